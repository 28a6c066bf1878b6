//! Leases are renewed in the background while their locks are held, up to `max_hold`.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Guard, HoldEnd};

use crate::support::{
    LEASE, SOON, Server, Store, assert_lost, eventually, is_busy, ms, patient, stores, take,
    throughout,
};

stores! {
    every store:
        a_lease_is_renewed_for_as_long_as_it_is_held,
        a_hold_does_not_outlive_max_hold;
    every server:
        renewal_keeps_the_time_to_live_high,
        max_hold_ends_in_redis_too;
    one server:
        a_renewal_on_its_way_undoes_no_release,
        thousands_of_leases_are_renewed_in_time;
}

fn a_lease_is_renewed_for_as_long_as_it_is_held(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    let lost = guard.lost();
    throughout(4 * LEASE, || guard.is_held() && is_busy(&client, "a"));
    assert_eq!(lost.wait_timeout(Duration::ZERO), None);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(!is_busy(&client, "a"));
}

fn renewal_keeps_the_time_to_live_high(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let other = server.open(patient());
    let guard = take(&client, "a");
    // Renewed every third of the lease, it never falls to the last third.
    throughout(4 * LEASE, || {
        server.pttl("a") > LEASE / 3 && other.try_lock("a").unwrap().is_none()
    });
    guard.unlock().unwrap();
    throughout(LEASE, || !server.exists("a"));
}

fn a_renewal_on_its_way_undoes_no_release(server: &Server) {
    // Renewed every 20 ms, so that a release often races with a renewal.
    let client = server.open(patient().lease(ms(60)));
    let other = server.open(patient());
    for round in 0..200 {
        let guard = take(&client, "a");
        thread::sleep(Duration::from_micros(15_000 + round * 50));
        // The hold is lost if the machine has paused.
        if guard.unlock().is_ok() {
            assert!(!server.exists("a"), "in round {round}");
            let next = take(&other, "a");
            thread::sleep(ms(1));
            next.verify().unwrap();
            assert!(server.pttl("a") > ms(20_000));
            next.unlock().unwrap();
        } else {
            eventually(SOON, || !server.exists("a"));
        }
    }
}

fn a_hold_does_not_outlive_max_hold(store: &Store) {
    const MAX: Duration = ms(4000);
    let client = store.open(patient().lease(LEASE));
    let guard = client.mutex("a").max_hold(MAX).lock().unwrap();
    let start = Instant::now();
    throughout(LEASE + ms(200), || guard.is_held());
    loop {
        let age = start.elapsed();
        if !guard.is_held() {
            break;
        }
        assert!(age < MAX, "held after {age:?}");
        thread::sleep(ms(1));
    }
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(guard.unlock(), "a");
    client.lock("a").unwrap().unlock().unwrap();
}

fn max_hold_ends_in_redis_too(server: &Server) {
    const MAX: Duration = ms(4000);
    let client = server.open(patient().lease(LEASE).max_hold(MAX));
    let _guard = take(&client, "a");
    let start = Instant::now();
    loop {
        let age = start.elapsed();
        if !server.exists("a") {
            assert!(start.elapsed() > LEASE, "it was renewed before");
            return;
        }
        assert!(age < MAX + ms(100), "still there after {age:?}");
        thread::sleep(ms(1));
    }
}

fn thousands_of_leases_are_renewed_in_time(server: &Server) {
    const LEASES: usize = 3_000;
    let client = server.open(patient().lease(2 * LEASE));
    let guards: Vec<_> = (0..LEASES).map(|n| take(&client, &format!("lock {n}"))).collect();
    throughout(4 * LEASE, || guards.iter().all(Guard::is_held));
    assert_eq!(server.ask::<usize>(&["DBSIZE"]), 2 * LEASES, "a lock and a fence each");
    let last = guards.last().unwrap();
    assert!(server.pttl(last.name()) > LEASE);
    drop(guards);
    eventually(SOON, || server.ask::<usize>(&["DBSIZE"]) == LEASES);
}
