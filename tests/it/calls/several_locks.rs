//! Several locks that are acquired together: all or none.

use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, Error, Event, HoldEnd, MultiGuard};
use parking_lot::Mutex;

use crate::support::lag::Lag;
use crate::support::quorum::open_redlock;
use crate::support::{
    LEASE, Quorum, SHORT, SOON, Server, Store, assert_lost, elsewhere, eventually, hasty, is_busy,
    ms, patient, server, sleepy, stores, take, timed,
};

stores! {
    every store:
        all_locks_are_held_or_none,
        a_set_can_be_acquired_right_after_another_is_dropped,
        the_order_of_names_makes_no_deadlock,
        two_threads_with_overlapping_sets_exclude_each_other,
        a_set_that_cannot_be_acquired_leaves_nothing_behind,
        a_set_waits_without_holding_anything,
        a_set_of_one_name_waits_for_it,
        close_ends_the_pause_between_two_attempts_for_a_set,
        a_set_is_lost_when_one_of_its_locks_is,
        the_end_of_a_set_wakes_a_thread_that_waits_for_one_of_its_locks,
        a_set_does_not_nest;
    several clients:
        sets_and_single_locks_of_two_clients_make_progress,
        a_lock_that_is_given_back_is_not_reported;
    every server:
        a_set_takes_one_request_and_one_more_if_a_lock_is_held,
        a_silent_server_hides_no_loss;
    every direct server:
        a_set_is_verified_renewed_and_released_in_one_round_trip;
    one server:
        the_releases_of_a_set_that_is_dropped_are_sent_together;
}

fn all_locks_are_held_or_none(store: &Store) {
    let client = store.open(patient());
    let set = client.lock_all(["b", "a", "c"]).unwrap();
    assert_eq!(set.names(), ["b", "a", "c"]);
    for name in ["a", "b", "c"] {
        assert!(is_busy(&client, name));
        assert!(set.fence(name).unwrap() > 0);
    }
    assert_eq!(set.fence("d"), None);
    set.verify().unwrap();
    set.renew().unwrap();
    assert_eq!(client.stats().held, 3);
    assert!(client.try_lock_all(["c", "d"]).unwrap().is_none());
    assert!(!is_busy(&client, "d"));
    assert!(client.try_lock_all_for(["d", "a"], ms(30)).unwrap().is_none());
    let timed_out = elsewhere(|| client.mutex("a").wait(ms(10)).lock().map(drop));
    assert!(matches!(timed_out, Err(Error::Timeout { .. })));
    let old = set.fence("a").unwrap();
    set.unlock().unwrap();
    let set = client.try_lock_all(vec!["a".to_string(), "d".to_string()]).unwrap().unwrap();
    assert!(set.fence("a").unwrap() > old);
    drop(set);
    for name in ["a", "b", "c", "d"] {
        eventually(SOON, || !is_busy(&client, name));
    }
}

fn a_set_can_be_acquired_right_after_another_is_dropped(store: &Store) {
    let client = store.open(patient());
    for round in 0..50 {
        drop(client.lock_all(["a", "b", "c"]).unwrap());
        drop(client.lock("b").unwrap());
        let set = client.try_lock_all(["c", "b", "a"]).unwrap();
        assert!(set.is_some(), "round {round}");
        drop(set);
        drop(client.try_lock("a").unwrap().unwrap());
    }
}

fn the_order_of_names_makes_no_deadlock(store: &Store) {
    let client = store.open(patient());
    let register = store.register();
    let sets = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["c", "a", "b"]];
    thread::scope(|scope| {
        for names in sets {
            let (client, register) = (&client, &register);
            scope.spawn(move || {
                let mut number = register.handle();
                for _ in 0..5 {
                    let _set = client.lock_all(names).unwrap();
                    number.add_one();
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 20);
}

fn two_threads_with_overlapping_sets_exclude_each_other(store: &Store) {
    let client = store.open(patient());
    let register = store.register();
    thread::scope(|scope| {
        for worker in 0..4 {
            let (client, register) = (&client, &register);
            scope.spawn(move || {
                let mut number = register.handle();
                for _ in 0..5 {
                    let (set, single) = match worker {
                        0 => (Some(client.lock_all(["a", "x"]).unwrap()), None),
                        1 => (Some(client.lock_all(["y", "a"]).unwrap()), None),
                        2 => (None, Some(client.lock("a").unwrap())),
                        _ => (Some(client.lock_all(["x", "a", "y"]).unwrap()), None),
                    };
                    number.add_one();
                    drop((set, single));
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 20);
}

fn a_set_that_cannot_be_acquired_leaves_nothing_behind(store: &Store) {
    let client = store.open(patient());
    let guard = client.lock_owned("b").unwrap();
    for _ in 0..3 {
        assert!(client.try_lock_all(["a", "b", "c"]).unwrap().is_none());
        assert!(client.try_lock_all_for(["c", "b", "a"], ms(20)).unwrap().is_none());
        eventually(SOON, || !is_busy(&client, "a") && !is_busy(&client, "c"));
    }
    guard.unlock().unwrap();
    client.lock_all(["a", "b", "c"]).unwrap().unlock().unwrap();
}

fn a_set_waits_without_holding_anything(store: &Store) {
    let client = store.open(patient());
    let guard = client.lock_owned("b").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lock_all(["a", "b", "c"]).unwrap());
        eventually(SOON, || client.stats().waiting == 1);
        assert!(!is_busy(&client, "a") && !is_busy(&client, "c"));
        guard.unlock().unwrap();
        let (set, took) = timed(|| waiting.join().unwrap());
        assert!(took < SOON);
        set.unlock().unwrap();
        let guard = client.lock_owned("c").unwrap();
        let closed = scope.spawn(|| client.lock_all(["a", "c"]));
        eventually(SOON, || client.stats().waiting == 1);
        client.close();
        assert!(matches!(closed.join().unwrap(), Err(Error::Closed)));
        guard.unlock().unwrap();
    });
}

fn a_set_of_one_name_waits_for_it(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let set = scope.spawn(|| client.lock_all(["a"]).map(MultiGuard::unlock));
        eventually(SOON, || client.stats().waiting == 1);
        guard.unlock().unwrap();
        set.join().unwrap().unwrap().unwrap();
    });
}

fn close_ends_the_pause_between_two_attempts_for_a_set(store: &Store) {
    // The pauses are longer than the test may take.
    let client = store.open(Client::builder().backoff(3 * SOON, 3 * SOON));
    let [a, b] = ["a", "b"].map(|name| client.lock_owned(name).unwrap());
    thread::scope(|scope| {
        let closed = scope.spawn(|| client.lock_all(["a", "b"]));
        eventually(SOON, || client.stats().waiting == 1);
        // The set gets this lock, and gives it back because of the other.
        a.unlock().unwrap();
        eventually(SOON, || !is_busy(&client, "a") && client.stats().waiting == 1);
        client.close();
        let (closed, took) = timed(|| closed.join().unwrap());
        assert!(matches!(closed, Err(Error::Closed)) && took < SOON, "{took:?}");
    });
    b.unlock().unwrap();
}

fn a_set_is_lost_when_one_of_its_locks_is(store: &Store) {
    let client = store.open_for(LEASE, patient().lease(LEASE));
    let set = client.lock_all(["a", "b"]).unwrap();
    let lost = set.lost();
    assert_eq!(lost.wait_timeout(ms(1)), None);
    assert!(client.mutex("b").force_unlock().unwrap());
    assert_eq!(lost.wait(), HoldEnd::Lost);
    assert!(set.lost().is_lost() && !set.is_held());
    assert!(matches!(set.verify(), Err(Error::Lost { name, .. }) if name == "b"));
    assert!(is_busy(&client, "a"));
    assert!(matches!(set.unlock(), Err(Error::Lost { .. })));
    assert!(!is_busy(&client, "a"));
}

fn the_end_of_a_set_wakes_a_thread_that_waits_for_one_of_its_locks(store: &Store) {
    let client = store.open(sleepy());
    let ends: [&dyn Fn(MultiGuard); 3] = [&|set| set.unlock().unwrap(), &drop, &|set| {
        assert!(client.mutex("a").force_unlock().unwrap());
        assert!(matches!(set.unlock(), Err(Error::Lost { .. })));
    }];
    for end in ends {
        let set = client.lock_all(["a", "b"]).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| client.lock("a").map(|guard| guard.unlock().unwrap()));
            eventually(SOON, || client.stats().waiting == 1);
            end(set);
            let (waited, took) = timed(|| waiting.join().unwrap());
            waited.unwrap();
            assert!(took < SOON / 2, "{took:?}");
        });
    }
}

fn a_set_does_not_nest(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "b");
    for result in [client.lock_all(["a", "b"]).map(drop), client.try_lock_all(["b"]).map(drop)] {
        match result {
            Err(Error::AlreadyHeld { name, .. }) => assert_eq!(name, "b"),
            other => panic!("{other:?}"),
        }
    }
    assert!(!is_busy(&client, "a"));
    guard.unlock().unwrap();
    let set = client.lock_all(["a", "b"]).unwrap();
    assert!(client.try_lock("a").unwrap().is_none());
    assert!(!client.mutex("a").is_held_by_current_thread());
    set.unlock().unwrap();
    let none: [&str; 0] = [];
    assert!(matches!(client.lock_all(none), Err(Error::InvalidInput(_))));
    assert!(matches!(client.lock_all(["a", "b", "a"]), Err(Error::InvalidInput(_))));
    assert!(matches!(client.try_lock_all(["a", ""]), Err(Error::InvalidInput(_))));
}

fn sets_and_single_locks_of_two_clients_make_progress(store: &Store) {
    let clients = [store.open(patient()), store.open(patient())];
    let done = Mutex::new(0);
    let work = |client: &Client, forth: bool| {
        for round in 0..10 {
            let names = if forth { ["a", "b"] } else { ["b", "a"] };
            if round % 2 == 0 {
                client.lock_all(names).unwrap().unlock().unwrap();
            } else {
                client.lock(names[0]).unwrap().unlock().unwrap();
            }
            *done.lock() += 1;
        }
    };
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| work(client, true));
            scope.spawn(|| work(client, false));
        }
    });
    assert_eq!(*done.lock(), 40);
}

fn a_set_takes_one_request_and_one_more_if_a_lock_is_held(server: &Server) {
    let client = server.open(patient());
    let names: Vec<String> = (0..8).map(|number| format!("name {number}")).collect();
    client.lock_all(&names).unwrap().unlock().unwrap();
    // Makes that script known to the server.
    client.lock(&names[3]).unwrap().unlock().unwrap();
    let before = server.evals();
    let set = client.lock_all(&names).unwrap();
    assert_eq!(server.evals() - before, 1);
    let before = server.evals();
    assert!(client.try_lock_all(&names).unwrap().is_none());
    assert_eq!(server.evals() - before, 2);
    set.unlock().unwrap();
}

fn a_lock_that_is_given_back_is_not_reported(store: &Store) {
    let (sender, events) = crossbeam_channel::unbounded();
    let client = store.open(patient().on_event(move |event| {
        if let Event::Acquired { name, .. } | Event::Released { name, .. } = event {
            sender.send(name.clone()).unwrap();
        }
    }));
    let other = store.open(patient());
    let (a, b) = (other.lock_owned("a").unwrap(), other.lock_owned("b").unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lock_all(["a", "b"]).unwrap());
        eventually(SOON, || client.stats().waiting == 1);
        // It gets the first of the locks, and has to give it back.
        a.unlock().unwrap();
        thread::sleep(ms(100));
        b.unlock().unwrap();
        waiting.join().unwrap().unlock().unwrap();
    });
    drop(client);
    let mut told: Vec<String> = events.iter().collect();
    told.sort_unstable();
    assert_eq!(told, ["a", "a", "b", "b"]);
}

fn a_silent_server_hides_no_loss(server: &Server) {
    let client = server.open(hasty().lease(LEASE));
    let set = client.lock_all(["a", "b"]).unwrap();
    assert!(server.open(patient()).mutex("b").force_unlock().unwrap());
    assert_eq!(set.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    server.stop();
    assert_lost(set.verify(), "b");
    assert_lost(set.renew(), "b");
    assert_lost(set.unlock(), "b");
    server.cont();
}

fn a_set_is_verified_renewed_and_released_in_one_round_trip(server: &Server) {
    let lag = Lag::before(server, ms(100));
    let client = server.through(lag.port()).open(patient().io_timeout(SOON));
    let names: Vec<_> = (0..300).map(|n| format!("lock {n}")).collect();
    let set = client.lock_all(&names).unwrap();
    let ((), took) = timed(|| {
        set.verify().unwrap();
        set.renew().unwrap();
        set.unlock().unwrap();
    });
    // A tenth of the time that one round trip per name would take.
    assert!(took < ms(100) * 90, "{took:?}");
    assert_eq!(client.stats().reconnects, 0);
    assert_eq!(server.hashes(), [""; 0]);
}

/// A client of three servers, each at this distance.
fn far_from(quorum: &Quorum, builder: Builder, delay: Duration) -> (Vec<Lag>, Client) {
    let lags: Vec<_> = quorum.servers.iter().map(|server| Lag::before(server, delay)).collect();
    let url = |lag: &Lag| format!("redis://127.0.0.1:{}/", lag.port());
    let urls: Vec<_> = lags.iter().map(url).collect();
    let client = open_redlock(builder, &urls).unwrap();
    (lags, client)
}

#[test]
fn the_locks_of_a_set_in_a_quorum_are_acquired_together() {
    let quorum = Quorum::of(3);
    let (_lags, client) = far_from(&quorum, patient().io_timeout(SOON), ms(100));
    drop(client.lock_all(["warm"]).unwrap());
    let names: Vec<_> = (0..300).map(|n| format!("lock {n}")).collect();
    let (set, took) = timed(|| client.lock_all(&names).unwrap());
    // A tenth of the time that one round trip per name would take.
    assert!(took < ms(100) * 30, "{took:?}");
    for name in &names {
        assert!(set.fence(name).is_some_and(|fence| fence > 0), "{name}");
        assert!(quorum.servers.iter().filter(|server| server.exists(name)).count() >= 2, "{name}");
    }
    let ((), took) = timed(|| set.unlock().unwrap());
    assert!(took < ms(100) * 30, "{took:?}");
    eventually(SOON, || quorum.servers.iter().all(|server| server.hashes().is_empty()));
}

/// All others are given back, whether their replies come before or after that of the held one.
#[test]
fn a_set_in_a_quorum_takes_nothing_if_one_lock_is_held() {
    let quorum = Quorum::of(3);
    let (holder, client) = (quorum.open(patient()), quorum.open(patient()));
    let names: Vec<_> = (0..20).map(|n| format!("lock {n}")).collect();
    let guard = take(&holder, "lock 11");
    assert!(client.multi_mutex(&names).try_lock().unwrap().is_none());
    let held = |server: &server::Server| server.hashes().iter().all(|name| name == "lock 11");
    eventually(SOON, || quorum.servers.iter().all(held));
    guard.unlock().unwrap();
    client.lock_all(&names).unwrap().unlock().unwrap();
}

/// Once it has waited, it asks a quorum for one lock after the other.
#[test]
fn a_set_whose_leases_end_before_it_is_complete_is_an_error() {
    let quorum = Quorum::of(3);
    let builder = Client::builder().retry_window(ms(1000));
    let (_lags, client) = far_from(&quorum, builder, ms(80));
    let keeper = quorum.open(patient().keep(ms(25_000)));
    // A kept lock that must be recalled is in the way.
    let keep_one = || {
        eventually(SOON, || {
            drop(keeper.lock("lock 29").unwrap());
            keeper.stats().kept == 1
        });
    };
    let names: Vec<_> = (0..30).map(|n| format!("lock {n}")).collect();
    let lease = 2 * SHORT;
    let brief = || client.multi_mutex(&names).lease(lease).renew(false);
    let calls: [&dyn Fn() -> Result<Option<MultiGuard>, Error>; 3] =
        [&|| brief().try_lock(), &|| brief().lock().map(Some), &|| {
            client.multi_mutex(&names).max_hold(lease).try_lock()
        }];
    for call in calls {
        keep_one();
        let (outcome, took) = timed(call);
        assert!(took < SOON, "{took:?}");
        let error = outcome.map(|guard| guard.is_some()).unwrap_err().to_string();
        assert!(error.contains("its lease was over before the last lock"), "{error}");
    }
    keep_one();
    let (outcome, took) = timed(|| brief().try_lock_for(lease));
    assert!(outcome.is_err() && took < SOON, "{took:?}");
    keep_one();
    let set = client.multi_mutex(&names).lease(lease).try_lock().unwrap();
    assert!(set.is_some(), "it is renewed");
}

fn the_releases_of_a_set_that_is_dropped_are_sent_together(server: &Server) {
    let client = server.open(patient());
    drop(client.lock_all(["warm"]).unwrap());
    let names: Vec<_> = (0..20).map(|n| format!("lock {n}")).collect();
    let set = client.lock_all(&names).unwrap();
    let before = server.reads();
    // The cost of asking for this number.
    let asked = server.reads() - before;
    drop(set);
    eventually(SOON, || client.stats().released == 21);
    let reads = server.reads() - before;
    assert!(reads <= 2 * asked + 3, "{reads} for {} locks, {asked} of them to ask", names.len());
    assert_eq!(server.hashes(), [""; 0]);
}
