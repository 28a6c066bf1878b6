//! Closing and dropping a client.

use std::thread;

use leasehold::Client;

use crate::support::{
    LEASE, SOON, Server, Store, assert_closed, eventually, ms, patient, stores, take, throughout,
    timed, while_held,
};

stores! {
    every store:
        close_ends_the_waits_of_every_thread,
        a_closed_wait_does_not_get_what_is_released_right_after,
        a_closed_client_grants_no_new_locks,
        guards_outlive_close,
        a_guard_outlives_its_client;
    several clients:
        close_leaves_other_clients_alone;
    every server:
        a_guard_without_a_client_is_renewed;
}

fn close_ends_the_waits_of_every_thread(store: &Store) {
    // The waits have no limit, and pauses that are longer than the test may take.
    let client = store.open(Client::builder().backoff(3 * SOON, 3 * SOON));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_closed(client.lock("a").map(drop)));
            scope.spawn(|| assert_closed(client.try_lock_for("a", 3 * SOON).map(drop)));
        }
        let clone = client.clone();
        scope.spawn(move || assert_closed(clone.lock("a").map(drop)));
        thread::sleep(ms(200));
        let ((), took) = timed(|| client.close());
        assert!(took < SOON / 2, "{took:?}");
    });
    guard.unlock().unwrap();
}

fn a_closed_wait_does_not_get_what_is_released_right_after(store: &Store) {
    for _ in 0..10 {
        let client = store.open(patient());
        let guard = take(&client, "a");
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert_closed(client.lock("a").map(drop)));
            }
            eventually(SOON, || client.stats().waiting == 2);
            client.close();
            drop(guard);
        });
        assert_eq!(client.stats().held, 0);
    }
}

fn a_closed_client_grants_no_new_locks(store: &Store) {
    let client = store.open(patient());
    client.close();
    client.close();
    assert_closed(client.lock("a").map(drop));
    assert_closed(client.try_lock("a").map(drop));
    assert_closed(client.try_lock_for("a", ms(100)).map(drop));
    assert_closed(client.mutex("a").lock().map(drop));
    assert_closed(client.clone().with_lock("a", |_| ()));
}

fn guards_outlive_close(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    let lost = guard.lost();
    client.close();
    throughout(3 * LEASE, || guard.is_held());
    guard.verify().unwrap();
    assert_eq!(lost.wait_timeout(ms(0)), None);
    guard.unlock().unwrap();
}

fn a_guard_outlives_its_client(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    drop(client);
    throughout(2 * LEASE, || guard.is_held());
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn close_leaves_other_clients_alone(store: &Store) {
    let client = store.open(patient());
    let other = store.open(patient());
    while_held(&other, "a", |end| {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.lock("a").map(drop));
            client.close();
            thread::sleep(ms(100));
            assert!(!waiter.is_finished());
            drop(end);
            waiter.join().unwrap().unwrap();
        });
    });
}

fn a_guard_without_a_client_is_renewed(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    drop(client);
    throughout(3 * LEASE, || server.exists("a"));
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}
