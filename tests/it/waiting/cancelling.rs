//! Waits that another thread ends.

use std::thread;

use leasehold::{Canceller, Client, Error, OwnedGuard};

use crate::support::kinds::Kind;
use crate::support::{
    SOON, Server, Store, behind_proxy, elsewhere, eventually, hasty, is_busy, ms, patient, sleepy,
    stores, take, timed,
};

stores! {
    every store:
        cancelling_ends_every_wait_at_once,
        cancelling_ends_the_pause_between_attempts_at_several_locks,
        a_cancelled_call_sends_nothing,
        cancelling_leaves_locks_and_other_waits_alone,
        a_cancelled_wait_does_not_get_a_lock_that_is_released_right_after;
    every server:
        cancelling_ends_a_wait_for_a_hung_server,
        nothing_delays_the_end_of_a_sleeping_wait;
    every direct server:
        a_lock_that_arrives_after_its_call_was_cancelled_is_released,
        nothing_delays_the_end_of_a_call_that_pauses_after_a_failure;
}

const fn is_shared_between_threads<T: Clone + Send + Sync + Default + 'static>() {}
const _: () = is_shared_between_threads::<Canceller>();

fn assert_cancelled<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        Err(Error::Cancelled { name, .. }) => assert_eq!(name, "a"),
        other => panic!("{other:?}"),
    }
}

fn cancelling_ends_every_wait_at_once(store: &Store) {
    let client = store.open(patient().backoff(ms(5000), ms(5000)));
    let canceller = Canceller::new();
    let _held = client.lock_owned("a").unwrap();
    thread::scope(|scope| {
        let mutex = || client.mutex("a").cancelled_by(&canceller.clone());
        let set = client.multi_mutex(["b", "a"]).cancelled_by(&canceller);
        let waits = [
            scope.spawn(move || mutex().lock().map(drop)),
            scope.spawn(move || mutex().try_lock_for(SOON).map(drop)),
            scope.spawn(move || mutex().lock_owned().map(drop)),
            scope.spawn(move || set.lock().map(drop)),
            scope.spawn(|| client.election("a").cancelled_by(&canceller).campaign().map(drop)),
        ];
        eventually(SOON, || client.stats().waiting == 5);
        assert!(!canceller.is_cancelled());
        canceller.cancel();
        let ended = std::time::Instant::now();
        for wait in waits {
            assert_cancelled(wait.join().unwrap());
        }
        let took = ended.elapsed();
        assert!(took < SOON / 2, "{took:?}");
    });
    assert!(canceller.is_cancelled() && canceller.clone().is_cancelled());
    assert_eq!(client.stats().waiting, 0);
}

/// A call for several locks that has found its other locks held pauses for the backoff.
fn cancelling_ends_the_pause_between_attempts_at_several_locks(store: &Store) {
    let client = store.open(patient().wait(6 * SOON).backoff(SOON, SOON));
    let canceller = Canceller::new();
    let take = |name| client.lock_owned(name).unwrap();
    let (a, b) = (take("a"), take("b"));
    thread::scope(|scope| {
        let set = client.multi_mutex(["a", "b"]).cancelled_by(&canceller);
        let call = scope.spawn(move || set.lock().map(drop));
        eventually(SOON, || client.stats().waiting == 1);
        a.unlock().unwrap();
        // This one queues behind the call, which gives the lock back because of the other one.
        let _a = take("a");
        eventually(SOON, || client.stats().waiting == 1);
        b.unlock().unwrap();
        let _b = take("b");
        eventually(SOON, || client.stats().waiting == 1);
        let (outcome, took) = timed(|| {
            canceller.cancel();
            call.join().unwrap()
        });
        assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
        assert!(took < SOON / 2, "{took:?}");
    });
}

fn a_cancelled_call_sends_nothing(store: &Store) {
    let client = store.open(patient());
    let canceller = Canceller::new();
    canceller.cancel();
    let mutex = client.mutex("a").cancelled_by(&canceller);
    assert_cancelled(mutex.lock());
    assert_cancelled(mutex.try_lock());
    assert_cancelled(mutex.try_lock_owned());
    assert_cancelled(mutex.with(|_| ()));
    assert!(!is_busy(&client, "a"));
}

fn cancelling_leaves_locks_and_other_waits_alone(store: &Store) {
    let client = store.open(patient());
    let canceller = Canceller::new();
    let guard = client.mutex("a").cancelled_by(&canceller).lock_owned().unwrap();
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| client.mutex("a").cancelled_by(&canceller).lock().map(drop));
        eventually(SOON, || client.stats().waiting == 1);
        let patient = scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        eventually(SOON, || client.stats().waiting == 2);
        canceller.cancel();
        assert_cancelled(cancelled.join().unwrap());
        assert!(guard.is_held() && !patient.is_finished());
        guard.unlock().unwrap();
        patient.join().unwrap();
    });
    take(&client, "a").unlock().unwrap();
}

fn a_cancelled_wait_does_not_get_a_lock_that_is_released_right_after(store: &Store) {
    let client = store.open(patient());
    for _ in 0..20 {
        let (canceller, guard) = (Canceller::new(), take(&client, "a"));
        let mutex = client.mutex("a").cancelled_by(&canceller);
        thread::scope(|scope| {
            let waits = [(); 2].map(|()| scope.spawn(|| mutex.lock().map(drop)));
            eventually(SOON, || client.stats().waiting == 2);
            canceller.cancel();
            drop(guard);
            for wait in waits {
                assert_cancelled(wait.join().unwrap());
            }
        });
        assert_eq!(client.stats().held, 0);
    }
}

fn cancelling_ends_a_wait_for_a_hung_server(server: &Server) {
    let client = server.open(hasty());
    let canceller = Canceller::new();
    server.stop();
    thread::scope(|scope| {
        let waits = [(); 2]
            .map(|()| scope.spawn(|| client.mutex("a").cancelled_by(&canceller).lock().map(drop)));
        thread::sleep(ms(50));
        canceller.cancel();
        for wait in waits {
            let (result, took) = timed(|| wait.join().unwrap());
            assert!(result.is_err() && took < SOON, "{result:?} after {took:?}");
        }
    });
    server.cont();
}

/// A thread that waits for its next attempt has no request in flight. Its client leaves the queue
/// when the server answers again.
fn nothing_delays_the_end_of_a_sleeping_wait(server: &Server) {
    let ends: [fn(&Client, &Canceller); 2] =
        [|client, _| client.close(), |_, canceller| canceller.cancel()];
    for end in ends {
        let (holder, canceller) = (server.open(patient()), Canceller::new());
        let client = server.open(sleepy().io_timeout(SOON));
        let guard = take(&holder, "a");
        let reader = holder.rw_lock("b").read().unwrap();
        thread::scope(|scope| {
            let lock = client.mutex("a").cancelled_by(&canceller);
            let rw_lock = client.rw_lock("b").cancelled_by(&canceller);
            let waits = [
                scope.spawn(move || lock.lock().map(drop)),
                scope.spawn(move || rw_lock.write().map(drop)),
            ];
            eventually(SOON, || !server.queue("a").is_empty() && !server.queue("b").is_empty());
            // The first subscription makes them ask once more.
            eventually(SOON, || server.listeners(&client) == 1);
            server.settled_evals();
            server.stop();
            let (outcomes, took) = timed(|| {
                end(&client, &canceller);
                waits.map(|wait| wait.join().unwrap())
            });
            server.cont();
            for outcome in outcomes {
                let ended = matches!(outcome, Err(Error::Cancelled { .. } | Error::Closed));
                assert!(ended, "{outcome:?}");
            }
            assert!(took < SOON / 2, "{took:?}");
        });
        eventually(SOON, || server.queue("a").is_empty() && server.queue("b").is_empty());
        guard.unlock().unwrap();
        reader.unlock().unwrap();
    }
}

/// A busy server is asked again for ten seconds.
fn nothing_delays_the_end_of_a_call_that_pauses_after_a_failure(server: &Server) {
    /// Whether a canceller ends the call, and the call itself, for a lock that its thread holds.
    type Call = (bool, fn(&Client, &Canceller, OwnedGuard) -> Result<(), Error>);
    let calls: [Call; 8] = [
        (true, |client, canceller, _| client.mutex("b").cancelled_by(canceller).lock().map(drop)),
        (true, |client, canceller, _| {
            client.multi_mutex(["b", "c"]).cancelled_by(canceller).lock().map(drop)
        }),
        (true, |client, canceller, _| {
            client.rw_lock("d").cancelled_by(canceller).try_read().map(drop)
        }),
        (false, |_, _, guard| guard.verify()),
        (false, |_, _, guard| guard.renew()),
        (false, |client, _, _| client.mutex("a").is_locked().map(drop)),
        (false, |client, _, _| client.mutex("a").force_unlock().map(drop)),
        (false, |_, _, guard| guard.unlock()),
    ];
    for cancels in [false, true] {
        for (number, (is_cancelled, call)) in calls.iter().enumerate() {
            if cancels && !is_cancelled {
                continue;
            }
            let (proxy, client) = behind_proxy(server, patient());
            let (guard, canceller) = (client.lock_owned("a").unwrap(), Canceller::new());
            thread::scope(|scope| {
                let pauses = scope.spawn(|| {
                    // Each call of a thread that holds the lock adds a level.
                    let _outer = client.lock("b").unwrap();
                    proxy.reject_all("BUSY Redis is busy running a script.");
                    let call = || call(&client, &canceller, guard);
                    if number == 1 { elsewhere(call) } else { call() }
                });
                proxy.wait_for_rejections(3);
                let (outcome, took) = timed(|| {
                    if cancels {
                        canceller.cancel();
                    } else {
                        client.close();
                    }
                    pauses.join().unwrap()
                });
                proxy.heal();
                match outcome {
                    Err(Error::Cancelled { .. }) if cancels => {}
                    Err(Error::Closed) if !cancels && number < 7 => {}
                    // Its release continues in the background.
                    Err(Error::Unavailable { .. }) if number == 7 => {}
                    other => panic!("call {number}: {other:?}"),
                }
                assert!(took < SOON / 2, "call {number}: {took:?}");
            });
            client.shutdown(SOON).unwrap();
            assert!(!server.exists("a") && !server.exists("b"));
        }
    }
}

fn a_lock_that_arrives_after_its_call_was_cancelled_is_released(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    for kind in Kind::ALL {
        let (name, canceller) = (format!("{kind:?}"), Canceller::new());
        proxy.delay_replies(ms(200));
        thread::scope(|scope| {
            let call = scope.spawn(|| kind.acquire_until(&client, &name, &canceller));
            eventually(SOON, || server.exists(&name));
            canceller.cancel();
            let outcome = call.join().unwrap();
            assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
        });
        proxy.heal();
        assert_eq!(client.stats().held, 0, "{kind:?}");
        eventually(SOON, || !server.exists(&name));
    }
}
