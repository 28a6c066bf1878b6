//! Locks that count only when replicas or disks have them.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Durability, Error, Phase};

use crate::support::lag::Lag;
use crate::support::replicas::{TIMEOUT, assert_shortfall, replicas, take_in_time, two_replicas};
use crate::support::sentinel::replicated;
use crate::support::server::{Server, redis_binary, valkey_binary};
use crate::support::{
    SOON, eventually, everything, is_busy, ms, on_both, patient, take, throughout, timed, unlock,
};

/// Long, for replicas that are present, even if the machine pauses.
const AMPLE: Duration = ms(8000);

on_both! {
    two_replicas:
        a_lock_waits_for_its_replicas,
        releases_do_not_wait,
        a_shortfall_is_reported_and_undone,
        a_shortfall_does_not_outlast_the_call,
        a_shortfall_is_not_contention_for_queued_threads,
        a_shortfall_of_a_nested_lock_undoes_only_that_level,
        a_handoff_that_falls_short_fails_the_next_thread,
        holds_of_a_tenure_are_as_durable_as_its_first,
        holds_of_a_tenure_share_one_wait,
        a_drop_waits_for_no_replica_while_a_thread_waits,
        a_master_that_is_demoted_while_it_waits_has_not_replicated,
        a_busy_lock_is_not_a_shortfall,
        a_server_without_an_append_only_file_is_refused,
        an_exhausted_pool_is_not_reported_as_an_outage;
}

fn a_lock_waits_for_its_replicas(servers: &[Server]) {
    let master = &servers[0];
    let client = master.open(replicas(2, AMPLE));
    for round in 1..=10 {
        let waits = master.calls("wait");
        let guard = take(&client, "a");
        assert!(servers[1..].iter().all(|replica| replica.exists("a")), "round {round}");
        let inner = take(&client, "a");
        let depths = servers[1..].iter().map(|replica| replica.hold("a").1);
        assert!(depths.into_iter().all(|depth| depth == "2"), "round {round}");
        // In the first round the server does not know the scripts.
        assert!((2..=4).contains(&(master.calls("wait") - waits)));
        inner.unlock().unwrap();
        guard.unlock().unwrap();
    }
}

/// Each thread in front holds the lock on the master for a while.
fn a_shortfall_is_not_contention_for_queued_threads(servers: &[Server]) {
    let client = servers[0].open(replicas(2, TIMEOUT));
    take_in_time(&client).unlock().unwrap();
    servers[1].stop();
    let outcomes: Vec<_> = [ms(0), ms(50), TIMEOUT / 2, TIMEOUT * 3 / 2]
        .into_iter()
        .map(|wait| {
            let call = || client.try_lock_for("a", wait).map(|guard| guard.is_some());
            thread::scope(|scope| {
                let calls = [(); 4].map(|()| scope.spawn(call));
                calls.map(|call| call.join().unwrap())
            })
        })
        .collect();
    servers[1].cont();
    for outcome in outcomes.iter().flatten() {
        let is_outage =
            matches!(outcome, Err(Error::NotReplicated { .. } | Error::Unavailable { .. }));
        assert!(is_outage, "{outcomes:?}");
    }
}

fn releases_do_not_wait(servers: &[Server]) {
    let client = servers[0].open(replicas(2, AMPLE));
    let (guard, inner) = (take(&client, "a"), take(&client, "a"));
    let waits = servers[0].calls("wait");
    servers[1].stop();
    drop(inner);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert_eq!(servers[0].calls("wait"), waits);
    assert!(!servers[0].exists("a"));
}

fn a_shortfall_is_reported_and_undone(servers: &[Server]) {
    let client = servers[0].open(replicas(2, TIMEOUT));
    take_in_time(&client).unlock().unwrap();
    servers[1].stop();
    eventually(SOON, || {
        let outcome = client.try_lock("a").map(drop);
        assert_shortfall(outcome.clone(), (1, 2));
        assert!(!servers[0].exists("a"));
        matches!(outcome, Err(Error::NotReplicated { acked: 1, .. }))
    });
    assert_shortfall(client.lock("a"), (1, 2));
    assert_shortfall(client.try_lock_for("a", SOON), (1, 2));
    assert_shortfall(client.with_lock("a", |_| panic!("this needs the lock")), (1, 2));
    assert!(!servers[0].exists("a"));
    // One replica is enough for a client that demands one.
    take(&servers[0].open(replicas(1, AMPLE)), "a").unlock().unwrap();
    servers[1].cont();
    take_in_time(&client).unlock().unwrap();
}

fn a_shortfall_does_not_outlast_the_call(servers: &[Server]) {
    let durability = Durability::Replicas { acks: 2, timeout: ms(9000) };
    let client = servers[0].open(Client::builder().durability(durability));
    servers[1].stop();
    let (result, took) = timed(|| client.try_lock_for("a", ms(100)));
    assert_shortfall(result, (1, 2));
    assert!(took < ms(6000), "{took:?}");
}

fn a_shortfall_of_a_nested_lock_undoes_only_that_level(servers: &[Server]) {
    let client = servers[0].open(replicas(2, TIMEOUT));
    let guard = take_in_time(&client);
    servers[1].stop();
    assert_shortfall(client.lock("a"), (1, 2));
    assert_eq!(servers[0].hold("a").1, "1");
    guard.verify().unwrap();
    servers[1].cont();
    assert_eq!(take_in_time(&client).depth(), 2);
    guard.unlock().unwrap();
    assert!(!servers[0].exists("a"));
}

fn a_handoff_that_falls_short_fails_the_next_thread(servers: &[Server]) {
    let client = servers[0].open(replicas(2, TIMEOUT));
    for dropped in [false, true] {
        let guard = take_in_time(&client);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock("a").map(drop));
            thread::sleep(ms(200));
            servers[1].stop();
            if dropped {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
            assert_shortfall(waiter.join().unwrap(), (1, 2));
        });
        assert!(!servers[0].exists("a"));
        servers[1].cont();
    }
}

fn holds_of_a_tenure_are_as_durable_as_its_first(servers: &[Server]) {
    let client = servers[0].open(replicas(2, AMPLE).wait(SOON * 3));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let guard = client.lock("a").unwrap();
                    let holds = servers[1..].iter().map(|replica| replica.hold("a").0);
                    let owner = servers[0].hold("a").0;
                    assert!(holds.into_iter().all(|hold| hold == owner));
                    drop(guard);
                }
            });
        }
    });
    eventually(SOON, || !servers[0].exists("a"));
}

fn holds_of_a_tenure_share_one_wait(servers: &[Server]) {
    let client = servers[0].open(replicas(2, AMPLE).tenure(ms(8000)));
    let guard = take_in_time(&client);
    thread::scope(|scope| {
        for waiting in 1..=6 {
            scope.spawn(|| drop(client.lock("a").unwrap()));
            eventually(SOON, || client.stats().waiting == waiting);
        }
        let waits = servers[0].calls("wait");
        drop(guard);
        eventually(SOON, || client.stats().released == 7 && !servers[0].exists("a"));
        assert_eq!(servers[0].calls("wait") - waits, 1);
    });
    assert_eq!(client.stats().handoffs, 5);
}

fn a_drop_waits_for_no_replica_while_a_thread_waits(servers: &[Server]) {
    let client = servers[0].open(replicas(2, AMPLE));
    for is_set in [false, true] {
        let guard = (!is_set).then(|| take_in_time(&client));
        let set = is_set.then(|| client.lock_all(["a", "b"]).unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock("a").map(unlock));
            eventually(SOON, || client.stats().waiting == 1);
            servers[1].stop();
            let ((), took) = timed(|| drop((guard, set)));
            servers[1].cont();
            assert!(took < AMPLE / 2, "{took:?}");
            waiter.join().unwrap().unwrap();
        });
    }
}

fn a_master_that_is_demoted_while_it_waits_has_not_replicated(servers: &[Server]) {
    let client = servers[0].open(replicas(3, AMPLE));
    thread::scope(|scope| {
        let caller = scope.spawn(|| timed(|| client.try_lock("a").map(drop)));
        eventually(SOON, || servers[0].exists("a"));
        servers[0].command(&["REPLICAOF", "127.0.0.1", &servers[1].port().to_string()]);
        let (result, took) = caller.join().unwrap();
        assert_shortfall(result, (0, 3));
        assert!(took < ms(7000), "{took:?}");
    });
}

fn a_busy_lock_is_not_a_shortfall(servers: &[Server]) {
    let (one, other) = (servers[0].open(patient()), servers[0].open(replicas(2, AMPLE)));
    let _guard = take(&one, "a");
    servers[1].stop();
    // There is no wait for replicas of a hold that was not created, either.
    let (tries, took) =
        timed(|| [other.try_lock("a").map(drop), other.try_lock_for("a", ms(300)).map(drop)]);
    assert!(tries.iter().all(Result::is_ok), "{tries:?}");
    assert!(took < ms(6000), "{took:?}");

    // A connection that waits for replicas is closed for a call that finds no other one.
    let lone = servers[0].open(replicas(2, AMPLE).pool_size(1));
    let (busy, took) = timed(|| (0..3).all(|_| lone.try_lock("a").unwrap().is_none()));
    assert!(busy && took < ms(6000), "{took:?}");
}

fn a_server_without_an_append_only_file_is_refused(servers: &[Server]) {
    for local in [true, false] {
        let durability = Durability::Fsync { local, replicas: 1, timeout: TIMEOUT };
        match patient().durability(durability).open(&servers[0].url()) {
            Err(Error::Redis { code, .. }) => assert_eq!(code, "ERR"),
            // Whether replicas have a file shows only when they answer.
            Ok(client) if !local => assert_shortfall(client.try_lock("a"), (0, 1)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lock_waits_for_disks() {
    let servers = replicated(2, valkey_binary(), &["--appendonly", "yes"]);
    let master = &servers[0];
    let open = |local, replicas| {
        let durability = Durability::Fsync { local, replicas, timeout: ms(4000) };
        master.open(patient().durability(durability))
    };
    let waits = master.calls("waitaof");
    let client = open(true, 2);
    let guard = take(&client, "a");
    assert!(is_busy(&client, "a"));
    take(&client, "a").unlock().unwrap();
    guard.unlock().unwrap();
    assert!(master.calls("waitaof") > waits + 3);

    servers[2].stop();
    assert_shortfall(client.try_lock("a"), (2, 3));
    assert!(!master.exists("a"));
    take(&open(false, 1), "a").unlock().unwrap();
    take(&open(true, 0), "a").unlock().unwrap();
}

#[test]
fn a_lock_on_disk_survives_a_crash() {
    let server = Server::start(valkey_binary(), &["--appendonly", "yes"]);
    let durability = Durability::Fsync { local: true, replicas: 0, timeout: ms(3000) };
    let client = server.open(patient().durability(durability));
    let guard = take(&client, "a");
    server.restart();
    eventually(SOON, || guard.verify().is_ok());
    guard.unlock().unwrap();
}

/// At least as many connections as these calls need at a time: one for each thread, and a blocked
/// one.
const FEW: u64 = 4;

/// A master whose replica acknowledges everything later than one call for a lock takes.
fn lagging() -> (Vec<Server>, Lag) {
    let servers = replicated(1, redis_binary(), &[]);
    let lag = Lag::before(&servers[0], ms(50));
    servers[1].command(&["REPLICAOF", "127.0.0.1", &lag.port().to_string()]);
    eventually(SOON, || {
        let info: String = servers[0].ask(&["INFO", "replication"]);
        info.matches("slave").count() == 2 && info.contains("state=online")
    });
    (servers, lag)
}

#[test]
fn calls_for_a_busy_lock_keep_their_connections() {
    let (servers, _lag) = lagging();
    let (one, other) = (servers[0].open(patient()), servers[0].open(replicas(1, AMPLE)));
    let guard = take(&one, "a");
    let connections = servers[0].connections();
    throughout(ms(1000), || other.try_lock("a").unwrap().is_none());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!(other.try_lock_for("a", ms(1000)).unwrap().is_none()));
        }
    });
    // Now and then a lock is free.
    throughout(ms(2000), || {
        take(&other, "b").unlock().unwrap();
        other.try_lock("a").unwrap().is_none()
    });
    let opened = servers[0].connections() - connections;
    assert!(opened <= FEW, "{opened} connections");
    guard.unlock().unwrap();
    let (guard, took) = timed(|| take(&other, "a"));
    assert!(took >= ms(50) && servers[1].exists("a"), "{took:?}");
    drop(guard);
}

#[test]
fn memory_has_no_replicas() {
    let durability = Durability::Replicas { acks: 1, timeout: TIMEOUT };
    let result = Client::builder().durability(durability).in_memory();
    assert!(matches!(result, Err(Error::InvalidInput(_))), "{result:?}");
}

fn an_exhausted_pool_is_not_reported_as_an_outage(servers: &[Server]) {
    let client = servers[0].open(replicas(2, AMPLE).pool_size(1));
    take_in_time(&client).unlock().unwrap();
    servers[1].stop();
    thread::scope(|scope| {
        // It occupies the connection until the replica has acknowledged it.
        let slow = scope.spawn(|| client.lock("slow").map(drop));
        eventually(SOON, || servers[0].exists("slow"));
        let error = client.try_lock_for("quick", ms(100)).unwrap_err();
        assert!(matches!(error, Error::Unavailable { phase: Phase::Pool, .. }), "{error:?}");
        assert!(error.is_retryable() && !error.may_have_executed(), "{error:?}");
        let text = everything(&error);
        assert!(text.contains("was free") && text.contains("(pool_size 1)"), "{text}");
        servers[1].cont();
        slow.join().unwrap().unwrap();
    });
    assert!(!servers[0].exists("quick"));
}
