//! Holders that learn when another client waits.

use std::thread;

use crossbeam_channel::bounded;
use leasehold::{Builder, Client, Wanted};

use crate::support::lag::Lag;
use crate::support::{
    LEASE, SOON, Server, Store, behind_proxy, eventually, ms, patient, sleepy, soon, stores, take,
    unlock,
};

stores! {
    every store:
        a_lock_that_no_other_client_waits_for_is_not_wanted,
        a_watch_ends_with_its_hold;
    every server:
        a_holder_learns_that_another_client_waits,
        a_client_that_was_already_waiting_counts,
        a_try_lock_does_not_make_a_lock_wanted,
        a_watch_of_a_hold_that_is_over_stays_as_it_was,
        the_guard_of_an_adopted_hold_asks_each_time;
    every direct server:
        a_renewal_makes_up_for_a_lost_message,
        a_watch_whose_request_failed_is_still_notified,
        concurrent_watches_report_the_same,
        a_message_missed_between_two_subscriptions_is_asked_for;
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
        // A thread of the same client.
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
    let waiter = thread::spawn(move || soon(|| watch.wait()));
    drop(guard);
    assert!(!waiter.join().unwrap() && !wanted.is_wanted());
}

fn a_holder_learns_that_another_client_waits(server: &Server) {
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

fn a_client_that_was_already_waiting_counts(server: &Server) {
    let (holder, other) = (server.open(sleepy()), server.open(sleepy()));
    let guard = holder.lock_owned("a").unwrap();
    while_wanted(server, &other, || {
        assert!(guard.wanted().is_wanted());
        drop(guard);
    });
}

fn a_try_lock_does_not_make_a_lock_wanted(server: &Server) {
    let (holder, other) = (server.open(sleepy()), server.open(sleepy()));
    let guard = take(&holder, "a");
    let wanted = guard.wanted();
    eventually(SOON, || server.listeners(&holder) == 1);
    assert!(other.try_lock("a").unwrap().is_none());
    assert!(!wanted.wait_timeout(ms(100)));
    drop(guard);
    // A request for a lock that may be kept does not count either, though it is registered for a
    // moment.
    let keeper = server.open(sleepy().keep(ms(20_000)));
    drop(take(&keeper, "b"));
    eventually(SOON, || {
        let guard = take(&keeper, "b");
        thread::scope(|scope| {
            let tries = scope.spawn(|| other.try_lock("b").unwrap().is_none());
            eventually(SOON, || tries.is_finished() || !server.queue("b").is_empty());
            assert!(!guard.wanted().is_wanted());
            let was_registered = !server.queue("b").is_empty();
            assert!(tries.join().unwrap());
            was_registered
        })
    });
    assert_eq!(keeper.stats().kept, 1);
}

fn a_watch_of_a_hold_that_is_over_stays_as_it_was(server: &Server) {
    let (holder, other) = (server.open(sleepy().tenure(ms(8000))), server.open(sleepy()));
    let (before, (hand, handed)) = (take(&holder, "a"), bounded(1));
    let first = || {
        let first = holder.lock("a").unwrap();
        hand.send(first.wanted()).unwrap();
    };
    let second = || {
        let second = holder.lock("a").unwrap();
        let watch_of_the_first: Wanted = handed.recv().unwrap();
        while_wanted(server, &other, || {
            assert!(soon(|| second.wanted().wait_timeout(SOON)));
            assert!(!watch_of_the_first.is_wanted());
            drop(second);
        });
    };
    thread::scope(|scope| {
        scope.spawn(first);
        eventually(SOON, || holder.stats().waiting == 1);
        scope.spawn(second);
        eventually(SOON, || holder.stats().waiting == 2);
        drop(before);
    });
    assert_eq!(holder.stats().handoffs, 1);
}

/// A client whose holds are renewed within a test.
fn renewing() -> Builder {
    sleepy().lease(LEASE)
}

fn a_renewal_makes_up_for_a_lost_message(server: &Server) {
    for keep in [ms(0), LEASE] {
        let (proxy, holder) = behind_proxy(server, renewing().keep(keep));
        let other = server.open(sleepy());
        let guard = take(&holder, "a");
        let wanted = guard.wanted();
        proxy.lose_messages();
        while_wanted(server, &other, || {
            assert!(soon(|| wanted.wait_timeout(SOON)));
            drop(guard);
        });
        eventually(SOON, || !server.exists("a"));
    }
}

fn a_watch_whose_request_failed_is_still_notified(server: &Server) {
    let (proxy, holder) = behind_proxy(server, renewing());
    let other = server.open(sleepy());
    let guard = take(&holder, "a");
    proxy.lose_request_for("watch");
    let wanted = guard.wanted();
    assert!(proxy.has_lost());
    while_wanted(server, &other, || {
        assert!(soon(|| wanted.wait_timeout(SOON)));
        drop(guard);
    });
    // This may happen any number of times.
    let guard = take(&holder, "b");
    proxy.reject_all("ERR busy with something else");
    let wanted = guard.wanted();
    proxy.heal();
    thread::scope(|scope| {
        scope.spawn(|| unlock(other.lock("b").unwrap()));
        assert!(soon(|| wanted.wait_timeout(SOON)));
        drop(guard);
    });
}

fn concurrent_watches_report_the_same(server: &Server) {
    let lag = Lag::before(server, ms(100));
    let (holder, other) = (server.through(lag.port()).open(sleepy()), server.open(sleepy()));
    let guard = holder.lock_owned("a").unwrap();
    while_wanted(server, &other, || {
        let watch = || guard.wanted().is_wanted();
        let told = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(watch));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(told, [true; 4]);
        drop(guard);
    });
}

fn a_message_missed_between_two_subscriptions_is_asked_for(server: &Server) {
    let (proxy, holder) = behind_proxy(server, sleepy());
    let other = server.open(sleepy());
    let guard = take(&holder, "a");
    let wanted = guard.wanted();
    eventually(SOON, || server.listeners(&holder) == 1);
    proxy.delay_subscriptions(ms(500));
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    while_wanted(server, &other, || {
        assert!(soon(|| wanted.wait_timeout(SOON)));
        drop(guard);
    });
}

fn the_guard_of_an_adopted_hold_asks_each_time(server: &Server) {
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
