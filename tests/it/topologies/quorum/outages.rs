//! Servers that are down or hang: the loss of a minority goes unnoticed, that of a majority is
//! reported.

use std::thread;
use std::time::Instant;

use leasehold::{Error, HoldEnd};

use crate::support::quorum::{
    BOUND, addresses, hasty, no_quorum, on_all_servers, settle, take_everywhere,
};
use crate::support::server::Server;
use crate::support::{LEASE, Quorum, SOON, eventually, ms, patient, take, throughout, timed};

#[test]
fn hung_servers_delay_no_call() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient().io_timeout(ms(8000)));
    settle(&quorum, &client);
    quorum.servers[0].stop();
    quorum.servers[3].stop();
    let cycles = 300;
    let ((), took) = timed(|| (0..cycles).for_each(|_| take(&client, "a").unlock().unwrap()));
    // A single wait for a hung server would take longer.
    assert!(took < ms(5000), "{took:?} for {cycles} cycles");
    let guard = take(&client, "a");
    quorum.servers[0].cont();
    quorum.servers[3].cont();
    guard.unlock().unwrap();
    eventually(SOON, || quorum.count("a") == 0);
    // They are used again.
    eventually(SOON, || {
        let _guard = take(&client, "a");
        quorum.count("a") == 5
    });
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn a_server_that_hangs_from_the_start_delays_no_call() {
    let quorum = Quorum::of(3);
    quorum.servers[1].stop();
    let client = quorum.open(patient().connect_timeout(ms(8000)).io_timeout(ms(8000)));
    // Names have connections of their own, which are opened at their first calls.
    let names: Vec<_> = (0..50).map(|number| format!("lock {number}")).collect();
    let ((), took) = timed(|| names.iter().for_each(|name| take(&client, name).unlock().unwrap()));
    // A single wait for the server would take longer.
    assert!(took < ms(6000), "{took:?}");
}

/// More releases are on their way than a server reads at once.
#[test]
fn a_call_waits_until_servers_have_read_what_came_before() {
    let quorum = Quorum::of(3);
    // All names share the connections. A request that finds no room is not repeated.
    let builder = patient().io_timeout(ms(8000)).pool_size(1).retry_window(ms(1));
    let client = quorum.open(builder);
    settle(&quorum, &client);
    let guards = (0..300).map(|number| client.lock_owned(&format!("lock {number}")).unwrap());
    let guards: Vec<_> = guards.collect();
    quorum.servers.iter().for_each(Server::stop);
    thread::scope(|scope| {
        let dropping = scope.spawn(|| drop(guards));
        thread::sleep(ms(300));
        let trying = scope.spawn(|| client.try_lock("another").map(|guard| guard.is_some()));
        thread::sleep(ms(300));
        quorum.servers.iter().for_each(Server::cont);
        assert!(trying.join().unwrap().unwrap());
        dropping.join().unwrap();
    });
}

#[test]
fn a_drop_waits_for_no_call_about_another_name() {
    let quorum = Quorum::of(3);
    // All names share the connections.
    let client = quorum.open(patient().io_timeout(ms(8000)).pool_size(1));
    let guard = take_everywhere(&quorum, &client);
    quorum.servers[..2].iter().for_each(Server::stop);
    thread::scope(|scope| {
        let other = scope.spawn(|| client.try_lock("b").map(drop));
        eventually(SOON, || quorum.last().exists("b"));
        let ((), took) = timed(|| drop(guard));
        assert!(took < ms(4000) && !other.is_finished(), "{took:?}");
        eventually(SOON, || !quorum.last().exists("a"));
        quorum.servers[..2].iter().for_each(Server::cont);
        other.join().unwrap().unwrap();
    });
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn a_shutdown_takes_a_majority() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    let (guard, other) = on_all_servers(&quorum, &client, &["a", "b", "c"], || {
        (take(&client, "a"), client.lock_all(["b", "c"]).unwrap())
    });
    quorum.servers[0].stop();
    client.shutdown(SOON).unwrap();
    assert_eq!((guard.lost().wait(), other.lost().wait()), (HoldEnd::Released, HoldEnd::Released));
    assert!(["a", "b", "c"].iter().all(|name| !client.mutex(name).is_locked().unwrap()));
    quorum.servers[0].cont();
    // The clean-up continues.
    eventually(SOON, || ["a", "b", "c"].iter().all(|name| quorum.count(name) == 0));
}

#[test]
fn a_shutdown_without_a_majority_ends_in_time() {
    let quorum = Quorum::of(3);
    let client = quorum.open(hasty());
    settle(&quorum, &client);
    let guard = take(&client, "a");
    quorum.servers[..2].iter().for_each(Server::stop);
    let (result, took) = timed(|| client.shutdown(ms(1000)));
    assert!(result.is_err() && took < SOON / 2, "{result:?} after {took:?}");
    assert!(!guard.is_held() && guard.lost().wait() == HoldEnd::Released);
    guard.unlock().unwrap();
    quorum.servers[..2].iter().for_each(Server::cont);
    client.shutdown(SOON).unwrap();
    eventually(SOON, || quorum.count("a") == 0);
}

/// Both are replicas without a master, and one of them serves no stale data.
#[test]
fn servers_that_refuse_to_write_are_left_alone() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient().lease(LEASE));
    settle(&quorum, &client);
    let replicas = &quorum.servers[..2];
    replicas[1].set_config("replica-serve-stale-data", "no");
    for replica in replicas {
        // No server listens there.
        replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    }
    let connections = || replicas.iter().map(Server::connections).collect::<Vec<_>>();
    let before = connections();
    let held = take(&client, "held");
    let until = Instant::now() + LEASE;
    while Instant::now() < until {
        take(&client, "a").unlock().unwrap();
    }
    assert!(held.is_held());
    for (after, before) in connections().iter().zip(before) {
        // The pauses between them grow.
        assert!(after - before <= 30, "{} connections", after - before);
    }
    for replica in replicas {
        replica.command(&["REPLICAOF", "NO", "ONE"]);
    }
    settle(&quorum, &client);
}

#[test]
fn a_hold_on_a_majority_is_renewed_while_others_hang() {
    let quorum = Quorum::of(5);
    // All names share the connections.
    let client = quorum.open(patient().lease(LEASE).pool_size(1));
    settle(&quorum, &client);
    let guards: Vec<_> = (0..20).map(|number| take(&client, &format!("lock {number}"))).collect();
    quorum.servers[1].stop();
    quorum.servers[2].kill();
    throughout(LEASE * 3, || guards.iter().all(leasehold::Guard::is_held));
    for guard in guards {
        guard.verify().unwrap();
        guard.unlock().unwrap();
    }
}

#[test]
fn the_error_for_a_lost_majority_names_the_failed_servers() {
    let quorum = Quorum::of(5);
    let client = quorum.open(hasty());
    let guard = take(&client, "held");
    quorum.servers[1].kill();
    quorum.servers[2].stop();
    quorum.servers[4].stop();
    let (result, took) = timed(|| client.try_lock("a").map(drop));
    let text = result.as_ref().unwrap_err().to_string();
    let (ok, required, failed) = no_quorum(result);
    assert_eq!((ok, required), (2, 3), "{text}");
    assert_eq!(failed, addresses([1, 2, 4].map(|number| &quorum.servers[number])));
    assert!(text.contains("acquire lock \"a\""), "{text}");
    assert!(took < BOUND, "{took:?}");
    let mutex = client.mutex("a");
    let bounded = |call: &dyn Fn() -> Result<(), Error>| {
        let (result, took) = timed(call);
        no_quorum(result);
        assert!(took < BOUND, "{took:?}");
    };
    bounded(&|| mutex.holder().map(drop));
    bounded(&|| mutex.force_unlock().map(drop));
    bounded(&|| mutex.try_lock_for(ms(100)).map(drop));
    // The grants of the others are undone.
    eventually(SOON, || !quorum.servers[0].exists("a") && !quorum.servers[3].exists("a"));
    let ((), took) = timed(|| drop(guard));
    assert!(took < BOUND, "{took:?}");
    eventually(SOON, || !quorum.servers[0].exists("held") && !quorum.servers[3].exists("held"));
}

#[test]
fn calls_succeed_again_when_a_majority_is_back() {
    let quorum = Quorum::of(3);
    let client = quorum.open(hasty());
    take(&client, "a").unlock().unwrap();
    quorum.servers[0].kill();
    quorum.servers[1].kill();
    no_quorum(client.try_lock("a").map(drop));
    quorum.servers[0].restart();
    take(&client, "a").unlock().unwrap();
    quorum.servers[2].kill();
    no_quorum(client.try_lock("a").map(drop));
    quorum.servers[1].restart();
    take(&client, "a").unlock().unwrap();
}

#[test]
fn an_outage_of_a_majority_is_waited_out() {
    let quorum = Quorum::of(3);
    let client = quorum.open(hasty());
    quorum.servers[0].stop();
    quorum.servers[1].stop();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.try_lock_for("a", SOON).unwrap().is_some());
        let set = scope.spawn(|| client.try_lock_all_for(["b", "c"], SOON).unwrap().is_some());
        thread::sleep(ms(700));
        assert!(!waiter.is_finished() && !set.is_finished());
        quorum.servers[1].cont();
        assert!(waiter.join().unwrap() && set.join().unwrap());
    });
}
