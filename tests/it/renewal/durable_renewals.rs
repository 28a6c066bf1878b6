//! A hold continues only while replicas or disks confirm its renewals.

use std::time::Instant;

use leasehold::{Durability, Guard};

use crate::support::recorder::Recorder;
use crate::support::replicas::assert_lost_within;
use crate::support::replicas::{TIMEOUT, replicas, take_in_time, two_replicas};
use crate::support::sentinel::{MASTER, replicated};
use crate::support::server::{Server, redis_binary, valkey_binary};
use crate::support::{
    Cluster, LEASE, SOON, Watched, assert_lost, eventually, ms, on_both, patient, take, throughout,
};

on_both! {
    two_replicas:
        a_hold_is_lost_when_its_replicas_are_gone,
        an_isolated_master_keeps_no_hold,
        replicas_that_come_back_in_time_keep_the_hold,
        renewals_of_many_leases_are_confirmed_together,
        renewals_are_confirmed_when_the_server_forgets_its_scripts,
        an_inner_unlock_waits_for_replicas,
        an_inner_unlock_without_replicas_prolongs_nothing;
}

fn a_hold_is_lost_when_its_replicas_are_gone(servers: &[Server]) {
    let recorder = Recorder::default();
    let builder = replicas(2, TIMEOUT).lease(LEASE).on_event(recorder.listener());
    let guard = take_in_time(&servers[0].open(builder));
    throughout(LEASE, || guard.is_held());
    servers[1].stop();
    let stopped = Instant::now();
    assert_lost_within(LEASE, &guard, stopped);
    recorder.wait_for("renewal failing a");
    recorder.wait_for("lost a");
    // The master answers, and its hold is removed.
    eventually(SOON, || !servers[0].exists("a"));
    assert_lost(guard.unlock(), "a");
}

/// One of its replicas becomes a master, as in a failover.
fn an_isolated_master_keeps_no_hold(servers: &[Server]) {
    let (old, new) = (&servers[0], &servers[1]);
    let client = old.open(replicas(2, TIMEOUT).lease(LEASE));
    let other = new.open(patient().backoff(ms(1), ms(1)));
    let guard = take_in_time(&client);
    throughout(LEASE, || guard.is_held());
    new.command(&["REPLICAOF", "NO", "ONE"]);
    let next = other.lock("a").unwrap();
    assert!(!guard.is_held(), "{:?} left", guard.remaining());
    assert!(next.is_held());
    assert!(old.try_command(&["PING"]));
}

fn replicas_that_come_back_in_time_keep_the_hold(servers: &[Server]) {
    let recorder = Recorder::default();
    let lease = LEASE * 3;
    let builder = replicas(2, TIMEOUT).lease(lease).on_event(recorder.listener());
    let guard = take_in_time(&servers[0].open(builder));
    servers[1].stop();
    recorder.wait_for("renewal failing a");
    assert!(guard.is_held());
    servers[1].cont();
    // A hold that was not renewed since would have less left.
    eventually(SOON, || guard.remaining() > lease * 3 / 4);
    assert_eq!(recorder.count("lost a"), 0);
    guard.unlock().unwrap();
}

fn renewals_of_many_leases_are_confirmed_together(servers: &[Server]) {
    const LEASES: u64 = 200;
    let master = &servers[0];
    let client = master.open(replicas(2, ms(900)).lease(LEASE));
    take_in_time(&client).unlock().unwrap();
    let guards: Vec<_> = (0..LEASES).map(|n| take(&client, &format!("lock {n}"))).collect();
    let (waits, renewals) = (master.calls("wait"), master.calls("pexpire"));
    eventually(SOON, || master.calls("pexpire") >= renewals + 4 * LEASES);
    // Leases are due at different times, because they were acquired one after another, but not far
    // apart.
    let waits = master.calls("wait") - waits;
    assert!((4..=LEASES).contains(&waits), "{waits} waits");
    assert!(guards.iter().all(Guard::is_held));
}

fn renewals_are_confirmed_when_the_server_forgets_its_scripts(servers: &[Server]) {
    let client = servers[0].open(replicas(2, ms(900)).lease(LEASE));
    let guard = take_in_time(&client);
    throughout(LEASE * 2, || {
        servers[0].command(&["SCRIPT", "FLUSH"]);
        guard.is_held()
    });
    servers[0].command(&["SCRIPT", "FLUSH"]);
    // A resent request counts only once the replicas have executed it.
    servers[1].stop();
    assert_lost_within(LEASE, &guard, Instant::now());
}

fn an_inner_unlock_waits_for_replicas(servers: &[Server]) {
    let client = servers[0].open(replicas(2, ms(8000)));
    for round in 1..=10 {
        let (guard, inner) = (take_in_time(&client), take_in_time(&client));
        let waits = servers[0].calls("wait");
        inner.unlock().unwrap();
        assert!(servers[0].calls("wait") > waits);
        let depths = servers[1..].iter().map(|replica| replica.hold("a").1);
        assert!(depths.into_iter().all(|depth| depth == "1"), "round {round}");
        guard.unlock().unwrap();
    }
}

fn an_inner_unlock_without_replicas_prolongs_nothing(servers: &[Server]) {
    let client = servers[0].open(replicas(2, TIMEOUT).lease(LEASE));
    let guard = take_in_time(&client);
    let inner = [take_in_time(&client), take_in_time(&client)];
    servers[1].stop();
    let stopped = Instant::now();
    let [dropped, unlocked] = inner;
    drop(dropped);
    unlocked.unlock().unwrap();
    assert_eq!(servers[0].hold("a").1, "1");
    assert_lost_within(LEASE, &guard, stopped);
}

#[test]
fn renewals_wait_for_disks() {
    let server = Server::start(valkey_binary(), &["--appendonly", "yes"]);
    server.set_config("appendfsync", "always");
    let durability = Durability::Fsync { local: true, replicas: 0, timeout: ms(900) };
    let client = server.open(patient().durability(durability).lease(LEASE));
    let guard = take_in_time(&client);
    let waits = server.calls("waitaof");
    throughout(LEASE * 2, || guard.is_held());
    assert!(server.calls("waitaof") >= waits + 4);
    server.set_config("appendonly", "no");
    assert_lost_within(LEASE, &guard, Instant::now());
}

#[test]
fn without_a_durability_nothing_waits() {
    let server = Server::redis();
    let client = server.open(patient().lease(LEASE / 3));
    let (guard, inner) = (take(&client, "a"), take(&client, "a"));
    inner.unlock().unwrap();
    throughout(LEASE, || guard.is_held());
    guard.unlock().unwrap();
    assert_eq!(server.calls("wait"), 0);
}

#[test]
fn a_hold_behind_sentinels_is_lost_when_its_replicas_are_gone() {
    let watched = Watched::start(redis_binary(), Watched::CALM);
    let urls = watched.urls();
    let client = replicas(1, TIMEOUT).lease(LEASE).open_sentinel(&urls, MASTER).unwrap();
    let guard = take_in_time(&client);
    throughout(LEASE, || guard.is_held());
    watched.servers[1..].iter().for_each(Server::stop);
    assert_lost_within(LEASE, &guard, Instant::now());
    watched.servers[1..].iter().for_each(Server::cont);
    assert_lost(guard.unlock(), "a");
    take_in_time(&client).unlock().unwrap();
}

/// A wait at one node delays no renewal at another.
#[test]
fn a_node_without_its_replica_loses_its_own_holds_only() {
    let cluster = Cluster::with_replica();
    let backed = 0;
    let replica = cluster.nodes().last().unwrap();
    let client = cluster.open(replicas(1, ms(900)).lease(LEASE));
    let names = cluster.names_at(backed).take(10);
    let guards: Vec<_> = names.map(|name| take(&client, &name)).collect();
    throughout(LEASE * 2, || guards.iter().all(Guard::is_held));
    // A node without any replica confirms nothing.
    client.try_lock(&cluster.name_at(1)).unwrap_err();
    replica.stop();
    let stopped = Instant::now();
    for guard in &guards {
        assert_lost_within(LEASE, guard, stopped);
    }
}

/// With the settings that `docs/deployment.md` recommends, even for a client without durability.
#[test]
fn a_master_that_demands_replicas_renews_nothing_without_them() {
    const LAG: &[&str] = &["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];
    let servers = replicated(1, redis_binary(), LAG);
    let client = servers[0].open(patient().lease(LEASE));
    let guard = take_in_time(&client);
    throughout(LEASE, || guard.is_held());
    servers[1].stop();
    // The master counts the lag in whole seconds, once a second.
    assert_lost_within(LEASE + ms(4000), &guard, Instant::now());
}
