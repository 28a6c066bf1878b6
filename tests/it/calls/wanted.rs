//! Holders that learn that another client waits.

use std::thread;

use leasehold::Client;

use crate::support::{
    SOON, Server, Store, eventually, ms, patient, sleepy, soon, stores, take, unlock,
};

stores! {
    every store:
        a_lock_that_no_other_client_waits_for_is_not_wanted,
        a_watch_ends_with_its_hold;
    every server:
        a_holder_is_told_that_another_client_waits,
        a_client_that_began_to_wait_before_counts,
        a_try_lock_is_no_wish,
        a_guard_that_has_adopted_a_hold_asks_each_time;
}

/// Runs `body` while another client waits for the lock "a".
fn while_wanted(server: &Server, other: &Client, body: impl FnOnce()) {
    thread::scope(|scope| {
        scope.spawn(|| unlock(other.lock("a").unwrap()));
        eventually(SOON, || server.queue("a") == [other.id()]);
        body();
    });
}

fn a_lock_that_no_other_client_waits_for_is_not_wanted(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    let wanted = guard.wanted();
    thread::scope(|scope| {
        // Another thread of the same client.
        scope.spawn(|| client.lock_owned("a").unwrap());
        eventually(SOON, || client.stats().waiting == 1);
        assert!(!wanted.wait_timeout(ms(50)) && !guard.wanted().is_wanted());
        guard.verify().unwrap();
        let nested = client.lock("a").unwrap();
        assert!(!nested.wanted().is_wanted());
        drop(nested);
        drop(guard);
    });
    let term = client.election("b").campaign().unwrap();
    assert!(!term.wanted().is_wanted());
    assert!(!client.lock_owned("c").unwrap().wanted().is_wanted());
}

fn a_watch_ends_with_its_hold(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    let wanted = guard.wanted();
    let watch = wanted.clone();
    let waiter = thread::spawn(move || soon(|| watch.wait_timeout(SOON)));
    drop(guard);
    assert!(!waiter.join().unwrap() && !wanted.is_wanted());
}

fn a_holder_is_told_that_another_client_waits(server: &Server) {
    for keep in [ms(0), ms(20_000)] {
        let (holder, other) = (server.open(patient().keep(keep)), server.open(patient()));
        drop(take(&holder, "a"));
        let guard = take(&holder, "a");
        let nested = holder.lock("a").unwrap();
        let wanted = guard.wanted();
        drop(nested);
        guard.verify().unwrap();
        assert!(!wanted.is_wanted());
        while_wanted(server, &other, || {
            assert!(soon(|| wanted.wait_timeout(SOON)));
            assert!(guard.wanted().is_wanted() && guard.is_held());
            assert_eq!(holder.mutex("a").holder().unwrap().unwrap().depth, 1);
            drop(guard);
        });
        assert!(wanted.is_wanted());
        eventually(SOON, || !server.exists("a"));
    }
}

fn a_client_that_began_to_wait_before_counts(server: &Server) {
    let (holder, other) = (server.open(sleepy()), server.open(sleepy()));
    let guard = holder.lock_owned("a").unwrap();
    while_wanted(server, &other, || {
        assert!(guard.wanted().is_wanted());
        drop(guard);
    });
}

fn a_try_lock_is_no_wish(server: &Server) {
    let (holder, other) = (server.open(sleepy()), server.open(sleepy()));
    let guard = take(&holder, "a");
    let wanted = guard.wanted();
    eventually(SOON, || server.listeners(&holder) == 1);
    assert!(other.try_lock("a").unwrap().is_none());
    assert!(!wanted.wait_timeout(ms(100)));
}

fn a_guard_that_has_adopted_a_hold_asks_each_time(server: &Server) {
    let [holder, adopter, other] = [(); 3].map(|()| server.open(patient()));
    for client in [&holder, &adopter] {
        let ticket = holder.lock_owned("a").unwrap().detach().unwrap();
        let guard = client.adopt(&ticket).unwrap();
        assert!(!guard.wanted().is_wanted());
        while_wanted(server, &other, || {
            assert!(guard.wanted().is_wanted());
            drop(guard);
        });
        eventually(SOON, || !server.exists("a"));
    }
}
