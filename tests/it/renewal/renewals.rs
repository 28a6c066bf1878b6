//! Leases are renewed in the background while their locks are held, up to `max_hold`.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Guard, HoldEnd};

use crate::support::proxy::Proxy;
use crate::support::quorum::open_redlock;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, Quorum, SOON, Server, Store, assert_lost, eventually, is_busy, ms, opened, patient,
    server, stores, take, throughout, unlock,
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
        a_lease_longer_than_the_clients_is_renewed_at_a_distant_server,
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
    // Because it is renewed every third of the lease, it never falls to the last third.
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

/// So distant that no request is answered within a third of the client's lease.
const FAR: Duration = ms(40);

fn a_lease_longer_than_the_clients_is_renewed_at_a_distant_server(server: &Server) {
    let proxy = Proxy::before(server);
    let client = opened(|| patient().lease(ms(60)).open(&proxy.url()));
    proxy.delay_replies(FAR);
    let guard = client.mutex("a").lease(LEASE).lock().unwrap();
    throughout(3 * LEASE, || guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn a_lease_longer_than_the_clients_is_renewed_at_distant_servers() {
    let quorum = Quorum::of(3);
    let proxies: Vec<_> = quorum.servers.iter().map(Proxy::before).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let client = opened(|| open_redlock(patient().lease(ms(60)), &urls));
    for proxy in &proxies {
        proxy.delay_replies(FAR);
    }
    let guard = client.mutex("a").lease(LEASE).lock().unwrap();
    throughout(3 * LEASE, || guard.is_held());
    guard.unlock().unwrap();
}

/// Returns the number of clients of a server, without the one that asks.
fn clients(server: &server::Server) -> usize {
    let list: String = server.ask(&["CLIENT", "LIST"]);
    list.lines().count() - 1
}

#[test]
fn the_connection_for_renewals_is_opened_long_before_the_first() {
    let quorum = Quorum::of(3);
    let alone = &quorum.servers[0];
    let builder = || patient().lease(ms(600_000)).pool_size(1);
    let client = builder().open(&alone.url()).unwrap();
    let guard = take(&client, "a");
    eventually(SOON, || clients(alone) == 2);
    guard.unlock().unwrap();
    drop(client);
    let client = quorum.open(builder());
    let _guard = take(&client, "a");
    eventually(SOON, || quorum.servers.iter().all(|server| clients(server) == 2));
}

/// The reason may be that others use all connections, that a password has changed or that a
/// firewall has closed.
#[test]
fn leases_are_renewed_though_no_further_connection_can_be_opened() {
    let quorum = Quorum::of(3);
    let (alone, recorder) = (server::Server::redis(), Recorder::default());
    let builder = || patient().lease(LEASE).pool_size(1).on_event(recorder.listener());
    let at_one = opened(|| builder().open(&alone.url()));
    let at_majorities = quorum.open(builder());
    let servers = || quorum.servers.iter().chain([&alone]);
    eventually(SOON, || servers().all(|server| clients(server) == 1));
    for server in servers() {
        server.command(&["CONFIG", "SET", "maxclients", "1"]);
    }
    let guards = [take(&at_one, "a"), take(&at_majorities, "a")];
    throughout(3 * LEASE, || guards.iter().all(Guard::is_held));
    assert!(guards.iter().all(|guard| guard.remaining() > LEASE / 3));
    guards.into_iter().for_each(unlock);
    let events = recorder.events();
    assert!(!events.iter().any(|event| event.contains("failing")), "{events:?}");
}

fn thousands_of_leases_are_renewed_in_time(server: &Server) {
    const LEASES: usize = 3_000;
    let client = server.open(patient().lease(2 * LEASE));
    let guards: Vec<_> = (0..LEASES).map(|n| take(&client, &format!("lock {n}"))).collect();
    throughout(4 * LEASE, || guards.iter().all(Guard::is_held));
    assert_eq!(server.ask::<usize>(&["DBSIZE"]), 2 * LEASES, "each has a lock and a fence");
    let last = guards.last().unwrap();
    assert!(server.pttl(last.name()) > LEASE);
    drop(guards);
    eventually(SOON, || server.ask::<usize>(&["DBSIZE"]) == LEASES);
}
