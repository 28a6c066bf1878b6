//! The end of a client, and what a fork makes of it.

use std::process::exit;
use std::thread;

use fork::{Fork, fork};
use leasehold::{Client, Error, Guard};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::support::child::{self, Child};
use crate::support::{
    LEASE, SOON, Server, Store, elsewhere, eventually, is_busy, ms, patient, stores, take,
    throughout, timed, while_held,
};

stores! {
    every store:
        close_ends_the_waits_of_every_thread,
        a_closed_client_gives_no_new_locks,
        guards_outlive_close,
        a_guard_outlives_its_client;
    every server:
        close_leaves_other_clients_alone,
        a_guard_without_a_client_is_renewed,
        a_forked_child_can_do_no_harm;
}

fn assert_closed<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
}

fn close_ends_the_waits_of_every_thread(store: &Store) {
    // Without a wait, and with pauses longer than the test may take.
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
        assert!(took < ms(2000), "{took:?}");
    });
    guard.unlock().unwrap();
}

fn a_closed_client_gives_no_new_locks(store: &Store) {
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
    assert!(lost.try_recv().is_err_and(|error| error.is_empty()));
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

fn close_leaves_other_clients_alone(server: &Server) {
    let client = server.open(patient());
    let other = server.open(patient());
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

fn a_forked_child_can_do_no_harm(server: &Server) {
    Child::start(fork_in_a_child, &server.address()).finish();
    assert!(server.hashes().is_empty());
}

/// In a process of its own, because a fork copies whatever the other tests are doing.
#[test]
#[ignore = "a child of a_forked_child_can_do_no_harm"]
fn fork_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let other = address.open(patient());
    let guard = take(&client, "a");
    let inner = take(&client, "a");
    let forked = match fork().unwrap() {
        Fork::Child => exit(harm_in_the_fork(client, guard, inner)),
        Fork::Parent(pid) => Pid::from_raw(pid).unwrap(),
    };
    let mut status = None;
    eventually(SOON, || {
        assert!(other.try_lock("a").unwrap().is_none(), "the parent holds it");
        status = waitpid(Some(forked), WaitOptions::NOHANG).unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().1.exit_status(), Some(0), "see harm_in_the_fork");

    // The connections that both have had still give each answer to its question.
    for n in 0..100 {
        let guard = take(&client, &format!("lock {n}"));
        assert!(is_busy(&client, guard.name()));
    }
    throughout(3 * LEASE, || guard.is_held() && other.try_lock("a").unwrap().is_none());
    inner.unlock().unwrap();
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(elsewhere(|| other.try_lock("a").unwrap().is_some()));
}

/// Tries everything that a fork must not do; the exit code tells what it could, and 0 is nothing.
fn harm_in_the_fork(client: Client, guard: Guard, inner: Guard) -> i32 {
    fn is_forked<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::Forked))
    }
    let mutex = client.mutex("a");
    let refused = [
        !guard.is_held(),
        is_forked(guard.verify()),
        is_forked(client.lock("a")),
        is_forked(client.try_lock("b")),
        is_forked(client.try_lock_for("b", ms(100))),
        is_forked(mutex.force_unlock()),
        !mutex.is_held_by_current_thread(),
    ];
    // One way to end a guard each.
    let unlocked = inner.unlock().is_ok();
    drop(guard);
    drop(client);
    let first_failure = refused.iter().position(|refused| !refused);
    match first_failure {
        Some(index) => 1 + i32::try_from(index).unwrap_or(100),
        None if unlocked => 50,
        None => 0,
    }
}
