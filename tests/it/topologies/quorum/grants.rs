//! A lock is held if a majority has granted it, and only then.

use std::time::Instant;

use leasehold::{Error, HoldEnd};

use crate::support::quorum::{hasty, settle, take_everywhere};
use crate::support::server::Server;
use crate::support::{
    LEASE, Quorum, SOON, assert_lost, elsewhere, eventually, is_busy, lock_key, patient, take,
};

#[test]
fn a_lock_is_set_on_every_server_and_removed_from_all() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient());
    settle(&quorum, &client);
    for _ in 0..50 {
        let guard = take(&client, "a");
        eventually(SOON, || quorum.count("a") == 5);
        let inner = take(&client, "a");
        inner.unlock().unwrap();
        guard.unlock().unwrap();
        eventually(SOON, || quorum.count("a") == 0);
    }
}

#[test]
fn one_server_is_a_quorum_of_one() {
    let quorum = Quorum::of(1);
    let client = quorum.open(patient());
    assert!(!is_busy(&client, "a"));
    let guard = take(&client, "a");
    assert!(is_busy(&client, "a"));
    guard.unlock().unwrap();
}

/// Tries every set of servers with a value of another program.
fn foreign_values(servers: usize) {
    let quorum = Quorum::of(servers);
    // All names share the connections.
    let client = quorum.open(patient().pool_size(1));
    settle(&quorum, &client);
    let required = servers / 2 + 1;
    for mask in 0..1_usize << servers {
        let name = format!("lock {mask}");
        let key = lock_key(&name);
        let (taken, free): (Vec<_>, Vec<_>) =
            quorum.servers.iter().enumerate().partition(|(number, _)| mask >> number & 1 == 1);
        for (number, server) in &taken {
            // A hash like a hold of another client, but without a time to live; a hold; a value of
            // another type.
            match number % 3 {
                0 => server.command(&["HSET", &key, "other", "1"]),
                1 => server.ask(&["EVAL", HOLD, "1", &key]),
                _ => server.command(&["SET", &key, "precious"]),
            };
        }
        let lasting = taken.iter().filter(|(number, _)| number % 3 != 1);
        let is_wrong = lasting.clone().count() >= required;
        let guard = match client.try_lock(&name) {
            Ok(guard) if !is_wrong => guard,
            Err(Error::WrongType { .. }) if is_wrong => None,
            other => panic!("{mask:b}: {other:?}"),
        };
        assert_eq!(guard.is_some(), free.len() >= required, "{mask:b}");
        if let Some(guard) = guard {
            eventually(SOON, || free.iter().all(|(_, server)| server.exists(&name)));
            take(&client, &name).unlock().unwrap();
            guard.verify().unwrap();
            assert!(guard.is_held());
            guard.unlock().unwrap();
        }
        eventually(SOON, || free.iter().all(|(_, server)| !server.exists(&name)));
        assert!(taken.iter().all(|(_, server)| server.exists(&name)), "{mask:b}");
        assert!(lasting.clone().all(|(_, server)| server.raw_pttl(&name) == -1), "{mask:b}");
    }
}

const HOLD: &str =
    "redis.call('hset', KEYS[1], 'other:1', 1) return redis.call('pexpire', KEYS[1], 60000)";

#[test]
fn foreign_values_on_any_of_three_servers_are_left_alone_and_count_as_held() {
    foreign_values(3);
}

#[test]
fn foreign_values_on_any_of_five_servers_are_left_alone_and_count_as_held() {
    foreign_values(5);
}

#[test]
fn a_hold_without_a_majority_is_lost() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    let guard = take_everywhere(&quorum, &client);
    quorum.servers[0].command(&["DEL", "lock:a"]);
    guard.verify().unwrap();
    take(&client, "a").unlock().unwrap();
    quorum.servers[2].command(&["DEL", "lock:a"]);
    assert_lost(guard.verify(), "a");
    assert!(!guard.is_held());
    assert_lost(client.lock("a"), "a");
    assert_lost(guard.unlock(), "a");
    // The rest of the hold is removed, or expires with its lease.
    assert!(quorum.servers[0].keys().iter().all(|key| key != "a"));
}

#[test]
fn a_lease_that_a_majority_has_lost_is_not_renewed() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    let lost = guard.lost();
    quorum.servers[1].command(&["DEL", "lock:a"]);
    quorum.servers[2].command(&["DEL", "lock:a"]);
    assert_eq!(lost.wait_timeout(LEASE), Some(HoldEnd::Lost));
    assert!(!guard.is_held());
}

#[test]
fn servers_restarted_empty_one_at_a_time_admit_no_second_holder() {
    let quorum = Quorum::of(5);
    let (first, second) = (quorum.open(patient()), quorum.open(patient()));
    let mut last = 0;
    for number in 0..10 {
        // The hold must be on all servers, so that a majority that keeps its data has it.
        settle(&quorum, &second);
        let guard = take_everywhere(&quorum, &first);
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        quorum.servers[number % 5].restart();
        for _ in 0..10 {
            assert!(second.try_lock("a").unwrap().is_none(), "round {number}");
        }
        guard.verify().unwrap();
        guard.unlock().unwrap();
        let guard = take(&second, "a");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.unlock().unwrap();
    }
}

#[test]
fn the_holder_of_a_majority_is_seen_and_can_be_forced_out() {
    let quorum = Quorum::of(5);
    let (first, second) = (quorum.open(patient()), quorum.open(patient()));
    settle(&quorum, &first);
    let guard = take(&first, "a");
    let inner = take(&first, "a");
    quorum.servers[2].kill();
    quorum.servers[3].command(&["DEL", "lock:a"]);
    let holder = second.mutex("a").holder().unwrap().unwrap();
    assert!(holder.owner.starts_with(first.id()));
    assert_eq!(holder.depth, 2);
    assert!(second.mutex("a").force_unlock().unwrap());
    assert_eq!(second.mutex("a").holder().unwrap(), None);
    assert_lost(inner.verify(), "a");
    assert!(!guard.is_held());
    assert!(!second.mutex("a").force_unlock().unwrap());
    elsewhere(|| take(&second, "a").unlock().unwrap());
}

#[test]
fn an_uncontended_cycle_costs_each_server_two_scripts() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    settle(&quorum, &client);
    let before: Vec<_> = quorum.servers.iter().map(Server::evals).collect();
    for _ in 0..100 {
        take(&client, "a").unlock().unwrap();
    }
    for (server, before) in quorum.servers.iter().zip(before) {
        eventually(SOON, || server.evals() >= before + 200);
        assert_eq!(server.evals(), before + 200);
    }
}

#[test]
fn a_refused_attempt_is_withdrawn_only_where_it_may_have_begun() {
    let quorum = Quorum::of(3);
    let (holder, client) = (quorum.open(patient()), quorum.open(patient()));
    settle(&quorum, &client);
    let _guard = take(&holder, "a");
    eventually(SOON, || quorum.count("a") == 3);
    let count = || quorum.servers.iter().map(Server::evals).sum::<u64>();
    let before = count();
    for _ in 0..100 {
        assert!(client.try_lock("a").unwrap().is_none());
    }
    // Each attempt ends with the second reply: only the third server may have begun the hold.
    assert!(count() - before < 500, "{}", count() - before);
}

#[test]
fn scripts_may_be_flushed_at_any_time() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    for _ in 0..20 {
        quorum.servers.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
        let guard = take(&client, "a");
        quorum.servers.iter().for_each(|server| drop(server.command(&["SCRIPT", "FLUSH"])));
        guard.unlock().unwrap();
    }
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn threads_end_with_the_client() {
    let quorum = Quorum::of(3);
    quorum.servers[0].stop();
    let client = quorum.open(hasty());
    let guard = take(&client, "a");
    assert!(is_busy(&client, "a"));
    drop((guard, client));
    let up = Instant::now();
    let connections = |server: &Server| {
        let list: String = server.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        list.lines().count()
    };
    // The connection of the check always exists.
    eventually(SOON, || quorum.servers[1..].iter().all(|server| connections(server) == 1));
    assert!(up.elapsed() < SOON);
}

#[test]
fn too_few_free_servers_are_contention_as_long_as_a_majority_answers() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient());
    for server in &quorum.servers[..2] {
        server.ask::<u64>(&["EVAL", HOLD, "1", "lock:a"]);
    }
    assert!(client.try_lock("a").unwrap().is_some());
    quorum.servers[3].kill();
    quorum.servers[4].stop();
    // Two servers are held by another client, one is free, two do not answer.
    for _ in 0..3 {
        assert!(client.try_lock("a").unwrap().is_none());
        eventually(SOON, || !quorum.servers[2].exists("a"));
    }
    // With this one, a majority would be free, if not for the one that is still held.
    quorum.servers[1].command(&["DEL", "lock:a"]);
    assert!(client.try_lock("a").unwrap().is_none());
    quorum.servers[0].command(&["DEL", "lock:a"]);
    take(&client, "a").unlock().unwrap();
}
