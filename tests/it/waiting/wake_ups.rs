//! A wake-up makes the waiting thread try again. Whatever happens to its request or to the thread,
//! either that thread gets the lock, or the lock is free.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Error};

use crate::support::proxy::Proxy;
use crate::support::{
    SOON, Server, behind_proxy, eventually, ms, patient, sleepy, stores, take, timed, unlock,
};

stores! {
    every server:
        a_wake_up_costs_one_request,
        a_deadline_at_the_moment_of_the_wake_up_leaves_nothing,
        close_at_the_moment_of_the_wake_up_leaves_nothing;
    every direct server:
        a_lost_reply_after_a_wake_up_is_retried,
        a_lost_request_after_a_wake_up_is_retried,
        an_unanswered_request_after_a_wake_up_leaves_nothing;
}

/// Waits until a thread of `waiter` needs only a wake-up.
#[track_caller]
fn asleep(server: &Server, waiter: &Client) {
    eventually(SOON, || server.listeners(waiter) == 1 && server.queue("a") == [waiter.id()]);
}

/// Holds the lock and releases it once a thread of `waiter` is in `wait` for it and `meanwhile` has
/// run. Returns the result of `wait`.
fn released_for<T: Send>(
    server: &Server,
    waiter: &Client,
    wait: impl FnOnce() -> T + Send,
    meanwhile: impl FnOnce(),
) -> T {
    let holder = server.open(sleepy());
    take(&holder, "warm").unlock().unwrap();
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(wait);
        asleep(server, waiter);
        meanwhile();
        guard.unlock().unwrap();
        waits.join().unwrap()
    })
}

/// Waits until no client has the lock or waits for it.
#[track_caller]
fn nothing_is_left(server: &Server) {
    eventually(SOON, || !server.exists("a") && server.queue("a").is_empty());
}

fn a_wake_up_costs_one_request(server: &Server) {
    let waiter = server.open(sleepy());
    let mut before = 0;
    let mut round = || {
        let lock = || {
            let guard = waiter.lock("a").unwrap();
            let evals = server.evals();
            // Confirmed, because otherwise the next round may ask once more whether its own release
            // was executed.
            guard.unlock().unwrap();
            evals
        };
        released_for(server, &waiter, lock, || before = server.evals()) - before
    };
    // The subscription may wake the first waiter too.
    for _ in 0..2 {
        round();
    }
    server.settled_evals();
    assert_eq!(round(), 2, "one to release and one to acquire");
    nothing_is_left(server);
}

fn a_deadline_at_the_moment_of_the_wake_up_leaves_nothing(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    for round in 0..100 {
        let guard = holder.lock("a").unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.try_lock_for("a", ms(10)).map(drop));
            thread::sleep(Duration::from_micros(9_000 + round * 20));
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
    }
    nothing_is_left(server);
}

fn close_at_the_moment_of_the_wake_up_leaves_nothing(server: &Server) {
    for round in 0..20 {
        let waiter = server.open(sleepy());
        let closer = waiter.clone();
        let lock = || waiter.lock("a").map(unlock);
        let outcome = thread::scope(|scope| {
            released_for(server, &waiter, lock, || {
                scope.spawn(move || {
                    thread::sleep(Duration::from_micros(round * 20));
                    closer.close();
                });
            })
        });
        assert!(matches!(outcome, Ok(()) | Err(Error::Closed)), "{outcome:?}");
        nothing_is_left(server);
    }
}

/// Loses the request after a wake-up, or its reply, and checks that the thread gets the lock soon.
fn lose(server: &Server, lose: fn(&Proxy)) {
    let (proxy, waiter) = behind_proxy(server, sleepy());
    let lock = || {
        let guard = waiter.lock("a").unwrap();
        assert_eq!((guard.depth(), server.hold("a").1.as_str()), (1, "1"));
        guard.unlock().unwrap();
    };
    let ((), took) = timed(|| released_for(server, &waiter, lock, || lose(&proxy)));
    assert!(proxy.has_lost());
    assert!(took < SOON / 2, "{took:?}");
    nothing_is_left(server);
}

fn a_lost_reply_after_a_wake_up_is_retried(server: &Server) {
    lose(server, Proxy::lose_reply);
}

fn a_lost_request_after_a_wake_up_is_retried(server: &Server) {
    lose(server, Proxy::lose_request);
}

fn an_unanswered_request_after_a_wake_up_leaves_nothing(server: &Server) {
    let (proxy, waiter) = behind_proxy(server, sleepy());
    let lock = || waiter.try_lock_for("a", ms(3000)).map(drop);
    let outcome = released_for(server, &waiter, lock, || proxy.lose_replies());
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    proxy.heal();
    nothing_is_left(server);
}
