//! Shutting a client down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;
use leasehold::{Error, HoldEnd};

use crate::support::recorder::Recorder;
use crate::support::{
    IO, SHORT, SOON, Server, Store, assert_closed, assert_lost, assert_unavailable, behind_proxy,
    eventually, hasty, ms, patient, stores, take, timed, while_held,
};

stores! {
    every store:
        every_hold_is_released_and_none_is_lost,
        hold_at_least_keeps_the_lock_taken,
        a_shutdown_ends_the_waits_of_every_thread,
        a_running_closure_returns_its_value,
        threads_that_lock_and_drop_meanwhile_leave_nothing,
        threads_that_hand_one_lock_off_meanwhile_leave_nothing,
        guards_that_were_dropped_before_are_released_too,
        a_shutdown_may_be_repeated,
        a_hold_that_is_gone_is_still_reported_as_lost;
    every server:
        many_holds_are_released_together,
        released_holds_are_not_renewed,
        other_clients_get_the_locks;
    every direct server:
        a_lock_request_in_flight_leaves_nothing,
        a_lock_that_arrives_after_the_shutdown_ends_with_its_lease,
        a_lost_reply_to_a_release_is_no_loss,
        a_release_that_is_refused_is_repeated;
    one server:
        a_silent_server_costs_no_more_than_the_timeout,
        a_lock_request_in_flight_to_a_silent_server_leaves_nothing,
        a_drop_at_a_silent_server_is_waited_for;
}

/// Returns `true` if another client finds none of these locks held. The client that held them makes
/// no request about holds that it has ended.
fn all_free(store: &Store, names: &[&str]) -> bool {
    let other = store.open(patient());
    names.iter().all(|name| !other.mutex(name).is_locked().unwrap())
}

fn every_hold_is_released_and_none_is_lost(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    let (outer, inner) = (take(&client, "a"), take(&client, "a"));
    let owned = client.lock_owned("b").unwrap();
    let several = client.lock_all(["c", "d"]).unwrap();
    let term = client.election("e").campaign().unwrap();
    let lost = [outer.lost(), inner.lost(), owned.lost(), several.lost(), term.lost()];
    assert_eq!(client.stats().held, 5);

    client.shutdown(SOON).unwrap();
    assert!(all_free(store, &["a", "b", "c", "d", "e"]));
    assert_eq!((client.stats().held, client.stats().waiting), (0, 0));
    assert!(lost.iter().all(|lost| lost.wait_timeout(ms(0)) == Some(HoldEnd::Released)));
    let held = [outer.is_held(), inner.is_held(), owned.is_held(), several.is_held()];
    assert_eq!((held, term.is_held()), ([false; 4], false));
    assert!(outer.remaining().is_zero() && !client.mutex("a").is_held_by_current_thread());
    for closed in [inner.verify(), inner.renew(), owned.verify(), several.renew(), term.verify()] {
        assert_closed(closed);
    }
    assert_closed(client.lock("a").map(drop));
    assert_closed(client.try_lock_all(["f", "g"]).map(drop));
    assert_closed(client.ping());

    outer.unlock().unwrap();
    inner.unlock().unwrap();
    drop(owned);
    several.unlock().unwrap();
    term.resign().unwrap();
    assert!(lost.iter().all(|lost| !lost.is_lost()));
    assert_eq!(client.stats().held, 0);
    for name in ["a", "b", "c", "d", "e"] {
        recorder.wait_for(&format!("released {name}"));
    }
    let mut events = recorder.events();
    events.retain(|event| !event.starts_with("acquired") && !event.starts_with("renewed"));
    assert_eq!(events.len(), 5, "each is released once: {events:?}");
}

fn hold_at_least_keeps_the_lock_taken(store: &Store) {
    let client = store.open(patient());
    let guard = client.mutex("a").hold_at_least(SOON).lock().unwrap();
    let plain = take(&client, "b");
    client.shutdown(SOON / 2).unwrap();
    assert!(!guard.is_held() && !plain.is_held());
    assert_eq!(client.mutex("a").holder().unwrap().expect("it is taken").depth, 0);
    assert!(all_free(store, &["b"]));
    guard.unlock().unwrap();
}

fn a_shutdown_ends_the_waits_of_every_thread(store: &Store) {
    let recorder = Recorder::default();
    let pause = 3 * SOON;
    let builder = patient().wait(pause).backoff(pause, pause).on_event(recorder.listener());
    let client = store.open(builder);
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_closed(client.lock("a").map(drop)));
            scope.spawn(|| assert_closed(client.try_lock_for("a", pause).map(drop)));
            scope.spawn(|| assert_closed(client.lock_all(["a"]).map(drop)));
        }
        eventually(SOON, || client.stats().waiting == 12);
        client.shutdown(SOON).unwrap();
    });
    assert!(!guard.is_held() && all_free(store, &["a"]));
    assert_eq!(recorder.count("acquired a"), 1, "no waiter got the lock");
}

fn a_running_closure_returns_its_value(store: &Store) {
    let client = store.open(patient());
    let value = client.with_lock("a", |guard| {
        client.shutdown(SOON).unwrap();
        (guard.is_held(), 7)
    });
    assert_eq!(value.unwrap(), (false, 7));
}

/// Runs threads that lock and drop until the client is shut down, and checks the remains.
fn shut_down_busy_threads(store: &Store, names: usize) {
    const THREADS: usize = 8;
    let recorder = Recorder::default();
    let client = store.open(patient().pool_size(4).on_event(recorder.listener()));
    let (rounds, names) = (AtomicUsize::new(0), (0..names).map(|name| format!("lock {name}")));
    let names: Vec<_> = names.collect();
    let work = |thread: usize| {
        let name = &names[thread % names.len()];
        loop {
            let guard = match client.lock(name) {
                Ok(guard) => guard,
                Err(error) => return assert!(matches!(error, Error::Closed), "{error:?}"),
            };
            // Otherwise there would be more events than fit into the queue.
            thread::sleep(ms(1));
            match rounds.fetch_add(1, Ordering::Relaxed) % 4 {
                0 => guard.unlock().unwrap(),
                1 => match client.lock(name) {
                    Ok(inner) => drop((guard, inner)),
                    Err(error) => assert!(matches!(error, Error::Closed), "{error:?}"),
                },
                _ => drop(guard),
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        // Whatever happens, the threads end only with the client.
        let latest = Instant::now() + 6 * SOON;
        while rounds.load(Ordering::Relaxed) < 50 * THREADS && Instant::now() < latest {
            thread::sleep(ms(1));
        }
        client.shutdown(SOON).unwrap();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert!(all_free(store, &names), "a lock is left");
        for thread in threads {
            thread.join().unwrap();
        }
    });
    assert!(rounds.load(Ordering::Relaxed) >= 50 * THREADS, "too slow");
    let count =
        |word: &str| recorder.events().iter().filter(|event| event.starts_with(word)).count();
    eventually(SOON, || count("released") == count("acquired"));
    assert_eq!(count("lost") + count("release failed"), 0, "{:?}", recorder.events());
    assert_eq!(client.stats().held, 0);
}

fn threads_that_lock_and_drop_meanwhile_leave_nothing(store: &Store) {
    shut_down_busy_threads(store, 8);
}

fn threads_that_hand_one_lock_off_meanwhile_leave_nothing(store: &Store) {
    shut_down_busy_threads(store, 1);
}

fn guards_that_were_dropped_before_are_released_too(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    let names: Vec<_> = (0..40).map(|n| format!("lock {n}")).collect();
    let guards: Vec<_> = names.iter().map(|name| take(&client, name)).collect();
    drop(guards);
    client.shutdown(SOON).unwrap();
    assert!(all_free(store, &names.iter().map(String::as_str).collect::<Vec<_>>()));
    for name in &names {
        recorder.wait_for(&format!("released {name}"));
    }
}

fn a_shutdown_may_be_repeated(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| client.shutdown(SOON).unwrap());
        }
    });
    client.clone().shutdown(ms(0)).unwrap_or_default();
    drop(guard);
    client.shutdown(SOON).unwrap();
    client.close();
}

fn a_hold_that_is_gone_is_still_reported_as_lost(store: &Store) {
    let client = store.open(patient());
    let (gone, kept) = (take(&client, "a"), take(&client, "b"));
    assert!(client.mutex("a").force_unlock().unwrap());
    client.shutdown(SOON).unwrap();
    assert_eq!(gone.lost().wait_timeout(ms(0)), Some(HoldEnd::Lost));
    assert_eq!(kept.lost().wait_timeout(ms(0)), Some(HoldEnd::Released));
    assert_lost(gone.unlock(), "a");
    assert_eq!(client.stats().held, 0);
}

fn many_holds_are_released_together(server: &Server) {
    let client = server.open(patient());
    take(&client, "warm").unlock().unwrap();
    let _guards: Vec<_> = (0..100).map(|n| take(&client, &format!("lock {n}"))).collect();
    let kinds = (client.rw_lock("config"), client.semaphore("api", 2));
    let _read = kinds.0.read().unwrap();
    let _permits = (kinds.1.acquire().unwrap(), kinds.1.acquire().unwrap());
    let written = client.rw_lock("state").write().unwrap();
    assert_eq!(client.stats().held, 104);
    let before = (server.reads(), server.evals());
    client.shutdown(SOON).unwrap();
    let (reads, scripts) = (server.reads() - before.0, server.evals() - before.1);
    // The limits leave room for a new connection, for reads from replicas and sentinels, for
    // requests longer than the 16 KB that the server reads at a time, and for two scripts that it
    // did not know.
    assert!(reads < 60, "{reads}");
    assert!((104..=110).contains(&scripts), "{scripts}");
    let locks: Vec<_> = server.keys().into_iter().filter(|key| key.starts_with("lock:")).collect();
    assert_eq!(locks, [""; 0]);
    assert_closed(written.verify());
    written.unlock().unwrap();
}

fn released_holds_are_not_renewed(server: &Server) {
    let lease = SHORT;
    let client = server.open_for(lease, patient().lease(lease));
    let _guards = (take(&client, "a"), client.lock_owned("b").unwrap());
    client.shutdown(SOON).unwrap();
    let scripts = server.evals();
    thread::sleep(lease);
    assert_eq!(server.evals(), scripts);
}

fn other_clients_get_the_locks(server: &Server) {
    let client = server.open(patient());
    let other = server.open(patient().backoff(3 * SOON, 3 * SOON).wait(2 * SOON));
    let _guard = take(&client, "a");
    while_held(&other, "b", |_| {
        thread::scope(|scope| {
            let there = scope.spawn(|| other.lock("a").map(drop));
            let here = scope.spawn(|| client.lock("b").map(drop));
            eventually(SOON, || server.queue("a").len() == 1 && server.queue("b").len() == 1);
            client.shutdown(SOON).unwrap();
            there.join().unwrap().unwrap();
            assert_closed(here.join().unwrap());
            assert_eq!(server.queue("b"), [""; 0], "the client no longer waits");
        });
    });
}

fn a_lock_request_in_flight_leaves_nothing(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    proxy.delay_replies(ms(300));
    thread::scope(|scope| {
        let one = scope.spawn(|| client.lock_owned("a"));
        let several = scope.spawn(|| client.lock_all(["b", "c"]));
        eventually(SOON, || server.exists("a") && server.exists("c"));
        client.shutdown(SOON).unwrap();
        assert_eq!(server.hashes(), [""; 0]);
        let one = one.join().unwrap().map(|guard| guard.is_held());
        let several = several.join().unwrap().map(|guard| guard.is_held());
        for held in [one, several] {
            assert!(matches!(held, Ok(false) | Err(Error::Closed)), "{held:?}");
        }
    });
    assert_eq!(client.stats().held, 0);
}

fn a_lock_that_arrives_after_the_shutdown_ends_with_its_lease(server: &Server) {
    let lease = 3 * IO;
    let (proxy, client) = behind_proxy(server, hasty().lease(lease));
    proxy.delay_request(5 * IO);
    // A second request may have acquired it.
    drop(client.try_lock("a"));
    client.shutdown(SOON).unwrap();
    drop(client);
    assert!(!server.exists("a"));
    eventually(SOON, || server.exists("a"));
    assert!(server.pttl("a") <= lease);
    eventually(SOON, || !server.exists("a"));
}

fn a_lost_reply_to_a_release_is_no_loss(server: &Server) {
    let recorder = Recorder::default();
    let builder = hasty().on_event(recorder.listener());
    let (proxy, client) = behind_proxy(server, builder);
    let (guard, other) = (take(&client, "a"), take(&client, "b"));
    proxy.lose_reply_to("lock:a");
    client.shutdown(SOON).unwrap();
    assert!(proxy.has_lost());
    assert_eq!(server.hashes(), [""; 0]);
    for guard in [guard, other] {
        assert_eq!(guard.lost().wait_timeout(ms(0)), Some(HoldEnd::Released));
        recorder.wait_for(&format!("released {}", guard.name()));
    }
    assert_eq!(recorder.count("release failed a") + recorder.count("lost a"), 0);
}

fn a_release_that_is_refused_is_repeated(server: &Server) {
    let recorder = Recorder::default();
    let (proxy, client) = behind_proxy(server, patient().on_event(recorder.listener()));
    let guard = take(&client, "a");
    proxy.reject_all("LOADING the test says so");
    thread::scope(|scope| {
        let shutdown = scope.spawn(|| client.shutdown(SOON));
        eventually(SOON, || !guard.is_held());
        thread::sleep(ms(100));
        assert!(server.exists("a") && !shutdown.is_finished());
        proxy.heal();
        shutdown.join().unwrap().unwrap();
    });
    assert_eq!(guard.lost().wait_timeout(ms(0)), Some(HoldEnd::Released));
    assert!(!server.exists("a"));
    recorder.wait_for("released a");
    assert_eq!(recorder.count("release failed a"), 0);
}

fn a_silent_server_costs_no_more_than_the_timeout(server: &Server) {
    let recorder = Recorder::default();
    let io_timeout = SOON;
    let client = server.open(hasty().io_timeout(io_timeout).on_event(recorder.listener()));
    let (guard, set) = (take(&client, "a"), client.lock_all(["b", "c"]).unwrap());
    let lost = guard.lost();
    server.stop();
    for timeout in [ms(100), 3 * IO] {
        let (result, took) = timed(|| client.shutdown(timeout));
        assert_unavailable(result);
        assert!(took >= timeout && took < timeout + SOON / 2, "{took:?}");
        assert_eq!(lost.wait_timeout(ms(0)), Some(HoldEnd::Released));
        assert!(!guard.is_held() && !set.is_held());
        assert_eq!(client.stats().held, 0);
    }
    let (unlocked, took) = timed(|| guard.unlock().and(set.unlock()));
    unlocked.unwrap();
    assert!(took < io_timeout, "there is nothing to wait for: {took:?}");
    recorder.wait_for("release failed a");
    server.cont();
    client.shutdown(SOON).unwrap();
    assert_eq!(server.hashes(), [""; 0]);
    assert_eq!(recorder.count("released a") + recorder.count("lost a"), 0);
    assert_eq!(recorder.count("release failed a"), 1);
}

fn a_lock_request_in_flight_to_a_silent_server_leaves_nothing(server: &Server) {
    let client = server.open(hasty());
    take(&client, "warm").unlock().unwrap();
    server.stop();
    thread::scope(|scope| {
        let calls = [
            scope.spawn(|| client.lock("a").map(drop)),
            scope.spawn(|| client.try_lock("b").map(drop)),
            scope.spawn(|| client.lock_all(["c", "d"]).map(drop)),
        ];
        // They have sent their requests, or never will.
        thread::sleep(IO / 3);
        assert_unavailable(client.shutdown(ms(100)));
        for call in calls {
            assert!(call.join().unwrap().is_err());
        }
    });
    assert_unavailable(client.shutdown(ms(100)));
    server.cont();
    client.shutdown(SOON).unwrap();
    assert_eq!(server.hashes(), [""; 0]);
}

fn a_drop_at_a_silent_server_is_waited_for(server: &Server) {
    let client = server.open(hasty());
    let guard = take(&client, "a");
    server.stop();
    drop(guard);
    assert_unavailable(client.shutdown(ms(100)));
    let (resumed, resume) = bounded(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            resume.recv().unwrap();
            thread::sleep(IO);
            server.cont();
        });
        resumed.send(()).unwrap();
        client.shutdown(SOON).unwrap();
    });
    assert_eq!(server.hashes(), [""; 0]);
}
