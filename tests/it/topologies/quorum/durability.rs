//! Locks that count only when the replicas or the disks of a majority have them.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Durability, Error};

use crate::support::quorum::no_quorum;
use crate::support::quorum::open_redlock;
use crate::support::replicas::assert_lost_within;
use crate::support::replicas::{assert_shortfall, replicas, take_in_time};
use crate::support::sentinel::replicated;
use crate::support::server::{Server, redis_binary, valkey_binary};
use crate::support::{
    LEASE, Quorum, SOON, assert_lost, eventually, is_busy, ms, patient, take, throughout, timed,
};

/// Short, for a test that waits for missing replicas.
const TIMEOUT: Duration = ms(500);

/// Long, for replicas that are present, even if the machine pauses. Calls that must not wait for
/// missing replicas have to be faster.
const AMPLE: Duration = ms(30_000);

/// How long many such calls may take on a busy machine.
const SWIFT: Duration = ms(20_000);

const FENCE: &str = "leasehold:fence:{lock:a}";

/// Independent servers, each of which has a replica.
struct Backed {
    quorum: Quorum,
    replicas: Vec<Server>,
}

impl Backed {
    fn new() -> Backed {
        let pairs = (0..3).map(|_| replicated(1, redis_binary(), &[]));
        let pairs = pairs.map(|servers| <[Server; 2]>::try_from(servers).unwrap().into());
        let (servers, replicas) = pairs.map(|pair: (Server, Server)| pair).unzip();
        Backed { quorum: Quorum { servers }, replicas }
    }

    /// Returns how many of the answering replicas have the lock "a" at this depth.
    fn depths(&self, up: &[usize], depth: &str) -> usize {
        let hold = |number: &usize| self.replicas[*number].hash("a");
        up.iter().map(hold).filter(|hold| hold.values().eq([depth])).count()
    }

    fn waits(&self) -> Vec<u64> {
        self.quorum.servers.iter().map(|server| server.calls("wait")).collect()
    }
}

fn ample() -> Builder {
    replicas(1, AMPLE).lease(AMPLE * 4)
}

/// Waits until all servers grant the lock "a", which is free. Until then a connection may be
/// missing, or a replica may be late.
fn settle(quorum: &Quorum, client: &Client) {
    eventually(SOON, || {
        let Ok(Some(guard)) = client.try_lock("a") else { return false };
        let everywhere = quorum.count("a") == quorum.servers.len();
        guard.unlock().unwrap();
        everywhere
    });
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn a_lock_waits_for_the_replicas_of_a_majority() {
    let backed = Backed::new();
    let client = backed.quorum.open(ample());
    settle(&backed.quorum, &client);
    for round in 1..=10 {
        let waits = backed.waits();
        let guard = take(&client, "a");
        assert!(backed.depths(&[0, 1, 2], "1") >= 2, "round {round}");
        let inner = take(&client, "a");
        assert!(backed.depths(&[0, 1, 2], "2") >= 2, "round {round}");
        inner.unlock().unwrap();
        guard.unlock().unwrap();
        eventually(SOON, || backed.waits().iter().zip(&waits).all(|(now, then)| *now >= then + 2));
    }
}

#[test]
fn a_minority_without_its_replicas_does_no_harm() {
    let backed = Backed::new();
    let (quorum, lonely) = (&backed.quorum, &backed.quorum.servers[2]);
    let client = quorum.open(ample());
    settle(quorum, &client);
    backed.replicas[2].stop();
    let connections = lonely.connections();
    let ((), took) = timed(|| {
        for round in 0..50 {
            let guard = take(&client, "a");
            let inner = take(&client, "a");
            assert_eq!(backed.depths(&[0, 1], "2"), 2, "round {round}");
            inner.unlock().unwrap();
            guard.unlock().unwrap();
        }
        // More requests than may be in flight to one server.
        (0..400).for_each(|_| take(&client, "a").unlock().unwrap());
    });
    // A single wait for that replica would take longer.
    assert!(took < SWIFT, "{took:?}");
    // The check opens one connection, and the client none, because it does not take the server for
    // hung.
    assert_eq!(lonely.connections(), connections + 1);
    backed.replicas[2].cont();
    eventually(SOON, || quorum.count("a") == 0);
    settle(quorum, &client);
}

#[test]
fn a_server_that_forgets_its_scripts_grants_all_the_same() {
    let backed = Backed::new();
    let client = backed.quorum.open(ample());
    settle(&backed.quorum, &client);
    for _ in 0..5 {
        backed.quorum.last().command(&["SCRIPT", "FLUSH"]);
        let guard = take(&client, "a");
        eventually(SOON, || backed.quorum.count("a") == 3);
        guard.unlock().unwrap();
        eventually(SOON, || backed.quorum.count("a") == 0);
    }
}

#[test]
fn a_server_whose_replica_is_awaited_is_not_taken_for_hung() {
    let backed = Backed::new();
    let (quorum, lonely) = (&backed.quorum, &backed.quorum.servers[2]);
    // Two requests in flight take longer than one request may.
    let client = quorum.open(replicas(1, ms(1500)).io_timeout(ms(1800)));
    settle(quorum, &client);
    backed.replicas[2].stop();
    let connections = lonely.connections();
    // A replica of the others may be late on a busy machine.
    throughout(ms(5000), || {
        drop(client.try_lock("a"));
        true
    });
    assert_eq!(lonely.connections(), connections + 1);
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn a_shortfall_of_a_majority_is_reported_and_undone() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let client = quorum.open(replicas(1, TIMEOUT));
    settle(quorum, &client);
    backed.replicas[0].stop();
    backed.replicas[2].stop();
    let short = |result| {
        assert_shortfall(result, (0, 1));
        eventually(SOON, || quorum.count("a") == 0);
    };
    short(client.try_lock("a").map(drop));
    short(client.lock("a").map(drop));
    short(client.try_lock_for("a", SOON).map(drop));
    short(client.with_lock("a", |_| panic!("this needs the lock")));
    // A client that demands no replicas needs none.
    take(&quorum.open(patient()), "a").unlock().unwrap();
    backed.replicas[0].cont();
    take_in_time(&client).unlock().unwrap();
    assert!(quorum.servers.iter().all(|server| server.key_pttl(FENCE) > 0));
}

#[test]
fn a_shortfall_of_a_nested_lock_undoes_only_that_level() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let client = quorum.open(replicas(1, TIMEOUT));
    settle(quorum, &client);
    let guard = take_in_time(&client);
    eventually(SOON, || quorum.count("a") == 3);
    backed.replicas[0].stop();
    backed.replicas[1].stop();
    assert_shortfall(client.lock("a"), (0, 1));
    eventually(SOON, || quorum.servers.iter().all(|server| server.hold("a").1 == "1"));
    guard.verify().unwrap();
    backed.replicas[1].cont();
    assert_eq!(take_in_time(&client).depth(), 2);
    guard.unlock().unwrap();
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn a_handoff_that_falls_short_fails_the_next_thread() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let client = quorum.open(replicas(1, TIMEOUT));
    settle(quorum, &client);
    for dropped in [false, true] {
        let guard = take_in_time(&client);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock("a").map(drop));
            thread::sleep(ms(200));
            backed.replicas[0].stop();
            backed.replicas[1].stop();
            if dropped {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
            assert_shortfall(waiter.join().unwrap(), (0, 1));
        });
        eventually(SOON, || quorum.count("a") == 0);
        backed.replicas[0].cont();
        backed.replicas[1].cont();
    }
}

#[test]
fn holds_of_a_tenure_are_on_the_replicas_of_a_majority() {
    let backed = Backed::new();
    let client = backed.quorum.open(ample().wait(SOON * 3));
    settle(&backed.quorum, &client);
    backed.replicas[1].stop();
    let ((), took) = timed(|| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let guard = client.lock("a").unwrap();
                        let owner = backed.quorum.servers[0].hold("a").0;
                        let holds = [0, 2].map(|number| backed.replicas[number].hold("a").0);
                        assert!(holds.iter().all(|hold| *hold == owner));
                        drop(guard);
                    }
                });
            }
        });
    });
    assert!(took < SWIFT, "{took:?}");
    backed.replicas[1].cont();
    eventually(SOON, || backed.quorum.count("a") == 0);
}

#[test]
fn a_raised_token_waits_for_replicas_too() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let client = quorum.open(ample());
    settle(quorum, &client);
    for round in 1..=10 {
        let ahead = 4_000_000_000_000_000_u64 + round * 1000;
        quorum.servers[0].command(&["SET", FENCE, &ahead.to_string()]);
        let waits = backed.waits();
        backed.replicas[2].stop();
        let guard = take(&client, "a");
        assert_eq!(guard.fence(), ahead + 1);
        let counters = [0, 1].map(|number| backed.replicas[number].ask::<u64>(&["GET", FENCE]));
        assert_eq!(counters, [ahead + 1; 2]);
        assert!((0..2).all(|number| backed.waits()[number] == waits[number] + 2));
        backed.replicas[2].cont();
        guard.unlock().unwrap();
        settle(quorum, &client);
    }
}

#[test]
fn releases_do_not_wait() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let client = quorum.open(ample());
    settle(quorum, &client);
    let (guard, inner) = (take(&client, "a"), take(&client, "a"));
    eventually(SOON, || backed.depths(&[0, 1, 2], "2") == 3);
    let waits = backed.waits();
    backed.replicas.iter().for_each(Server::stop);
    let ((), took) = timed(|| {
        drop(inner);
        guard.verify().unwrap();
        guard.unlock().unwrap();
    });
    assert!(took < SWIFT, "{took:?}");
    eventually(SOON, || quorum.count("a") == 0);
    assert_eq!(backed.waits(), waits);
}

/// Opens a client of servers whose replicas are given a part of that lease.
fn leased(quorum: &Quorum, lease: Duration) -> Client {
    let client = quorum.open(replicas(1, lease / 6).lease(lease));
    settle(quorum, &client);
    client
}

#[test]
fn a_hold_is_lost_when_the_replicas_of_a_majority_are_gone() {
    let backed = Backed::new();
    let client = leased(&backed.quorum, LEASE);
    let guard = take_in_time(&client);
    throughout(LEASE, || guard.is_held());
    backed.replicas[..2].iter().for_each(Server::stop);
    assert_lost_within(LEASE, &guard, Instant::now());
    // The servers answer, and their holds are removed.
    eventually(SOON, || backed.quorum.count("a") == 0);
    backed.replicas[0].cont();
    assert_lost(guard.unlock(), "a");
    take_in_time(&client).unlock().unwrap();
}

#[test]
fn a_hold_goes_on_without_the_replicas_of_a_minority() {
    let backed = Backed::new();
    let lonely = backed.quorum.last();
    let client = leased(&backed.quorum, LEASE);
    let guard = take_in_time(&client);
    let connections = lonely.connections();
    backed.replicas[2].stop();
    throughout(3 * LEASE, || guard.is_held());
    // Connections for renewals, and that of the check: the client does not take the server for
    // hung.
    assert!(lonely.connections() <= connections + 2);
    guard.unlock().unwrap();
    eventually(SOON, || backed.quorum.count("a") == 0);
}

#[test]
fn an_inner_unlock_waits_for_the_replicas_of_a_majority() {
    let backed = Backed::new();
    let client = leased(&backed.quorum, LEASE);
    let guard = take_in_time(&client);
    let inner = [take_in_time(&client), take_in_time(&client)];
    let waits = backed.waits();
    let [unlocked, last] = inner;
    unlocked.unlock().unwrap();
    eventually(SOON, || backed.waits().iter().zip(&waits).all(|(now, then)| now > then));
    backed.replicas[..2].iter().for_each(Server::stop);
    let stopped = Instant::now();
    last.unlock().unwrap();
    assert_lost_within(LEASE, &guard, stopped);
}

#[test]
fn a_busy_lock_is_not_a_shortfall() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let (one, other) = (quorum.open(patient()), quorum.open(replicas(1, TIMEOUT)));
    settle(quorum, &other);
    let guard = take(&one, "a");
    eventually(SOON, || quorum.count("a") == 3);
    backed.replicas.iter().for_each(Server::stop);
    for wait in [Duration::ZERO, ms(300), Duration::ZERO] {
        let (result, took) = timed(|| other.try_lock_for("a", wait));
        assert!(result.unwrap().is_none());
        assert!(took < SWIFT, "{took:?}");
    }
    guard.unlock().unwrap();
    assert_shortfall(other.try_lock("a"), (0, 1));
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn missing_servers_are_distinguished_from_missing_replicas() {
    let backed = Backed::new();
    let quorum = &backed.quorum;
    let client = quorum.open(replicas(1, TIMEOUT));
    settle(quorum, &client);
    quorum.servers[0].kill();
    take_in_time(&client).unlock().unwrap();
    // The two others have granted it, so only a replica is missing.
    backed.replicas[1].stop();
    assert_shortfall(client.try_lock("a"), (0, 1));
    quorum.servers[2].kill();
    let (ok, required, failed) = no_quorum(client.try_lock("a").map(drop));
    assert_eq!((ok, required, failed.len()), (1, 2, 2));
    eventually(SOON, || !quorum.servers[1].exists("a"));
}

fn on_disk() -> Builder {
    let timeout = ms(4000);
    patient().durability(Durability::Fsync { local: true, replicas: 0, timeout })
}

#[test]
fn a_lock_on_the_disks_of_a_majority_survives_a_crash_of_all() {
    let start = |_| Server::start(valkey_binary(), &["--appendonly", "yes"]);
    let quorum = Quorum { servers: (0..3).map(start).collect() };
    let (client, other) = (quorum.open(on_disk()), quorum.open(on_disk()));
    settle(&quorum, &client);
    let guard = take(&client, "a");
    take(&client, "a").unlock().unwrap();
    quorum.servers.iter().for_each(Server::kill);
    quorum.servers.iter().for_each(Server::restart);
    eventually(SOON, || guard.verify().is_ok());
    assert!(is_busy(&other, "a"));
    let fence = guard.fence();
    guard.unlock().unwrap();
    let next = take(&other, "a");
    assert!(next.fence() > fence);
    assert!(quorum.servers.iter().all(|server| server.calls("waitaof") > 0));
}

#[test]
fn servers_without_an_append_only_file_are_left_out() {
    let start = |file| Server::start(valkey_binary(), &["--appendonly", file]);
    let quorum = Quorum { servers: ["yes", "yes", "no"].map(start).into() };
    let client = quorum.open(on_disk());
    let guard = take(&client, "a");
    assert!(!quorum.last().exists("a"));
    guard.unlock().unwrap();
    // The server is used as soon as it can sync.
    quorum.last().command(&["CONFIG", "SET", "appendonly", "yes"]);
    settle(&quorum, &client);
    quorum.servers[0].command(&["CONFIG", "SET", "appendonly", "no"]);
    quorum.servers[1].command(&["CONFIG", "SET", "appendonly", "no"]);
    assert_shortfall(client.try_lock("a"), (0, 1));
    match open_redlock(on_disk(), &quorum.urls()) {
        Err(Error::Redis { code, .. }) => assert_eq!(code, "ERR"),
        other => panic!("{other:?}"),
    }
}
