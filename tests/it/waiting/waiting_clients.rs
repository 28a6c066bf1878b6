//! Clients that wait for one another: their queue in Redis, and wake-ups.

use std::thread;
use std::time::Duration;

use leasehold::Client;
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::child::{self, Child};
use crate::support::recorder::Recorder;
use crate::support::store::Handle;
use crate::support::{
    Cluster, Quorum, SOON, Server, Store, eventually, ms, patient, server, sleepy, soon, stores,
    take, timed, unlock, very_sleepy, while_held,
};

stores! {
    several clients:
        no_wake_up_is_lost_in_many_rounds,
        many_waiting_threads_need_one_queue_entry,
        a_waiter_that_gives_up_leaves_the_queue_entry_to_the_next;
    every server:
        waits_that_end_early_leave_nothing,
        a_lost_wake_up_connection_is_reopened,
        #[cfg(target_os = "linux")] a_listener_that_could_not_be_started_is_tried_again,
        processes_with_threads_count_without_losing_an_update,
        a_lock_works_although_its_queue_key_has_another_type;
}

fn no_wake_up_is_lost_in_many_rounds(store: &Store) {
    let clients = [store.open(sleepy()), store.open(sleepy()), store.open(sleepy())];
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for round in 0..300 {
                    // After a lost wake-up, the last attempt at the end of the wait would succeed.
                    let (guard, took) = timed(|| client.lock("a").unwrap());
                    assert!(took < SOON / 2, "{took:?} in round {round}");
                    if round % 3 == 0 {
                        thread::yield_now();
                    }
                    guard.unlock().unwrap();
                }
            });
        }
    });
}

fn many_waiting_threads_need_one_queue_entry(store: &Store) {
    let (holder, waiter) = (store.open(sleepy()), store.open(sleepy()));
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| waiter.lock("a").unwrap().unlock().unwrap());
        }
        eventually(SOON, || store.listens(&waiter));
        assert_eq!(store.queue("a"), [waiter.id()]);
        guard.unlock().unwrap();
    });
}

fn a_waiter_that_gives_up_leaves_the_queue_entry_to_the_next(store: &Store) {
    let recorder = Recorder::default();
    let [holder, second] = [store.open(patient()), store.open(sleepy())];
    let first = store.open(sleepy().on_event(recorder.listener()));
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let hasty = scope.spawn(|| first.try_lock_for("a", ms(1000)).map(drop));
            eventually(SOON, || store.queue("a") == [first.id()]);
            let patient = scope.spawn(|| first.lock("a").map(unlock));
            recorder.wait_for_waiters(2);
            let other = scope.spawn(|| second.lock("a").map(unlock));
            eventually(SOON, || store.queue("a") == [first.id(), second.id()]);
            hasty.join().unwrap().unwrap();
            assert_eq!(store.queue("a"), [first.id(), second.id()]);
            drop(end);
            for waits in [patient, other] {
                waits.join().unwrap().unwrap();
            }
        });
    });
    assert!(store.queue("a").is_empty());
}

fn waits_that_end_early_leave_nothing(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(patient()));
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        for thread in 0..4 {
            let waiter = &waiter;
            scope.spawn(move || {
                for round in 0..250 {
                    let wait = Duration::from_micros(round * 37 % 3000 + thread);
                    assert!(waiter.try_lock_for("a", wait).unwrap().is_none());
                }
            });
        }
    });
    assert!(server.queue("a").is_empty(), "{:?}", server.queue("a"));
    guard.unlock().unwrap();
    take(&waiter, "a").unlock().unwrap();
    for key in server.keys() {
        assert!(server.key_pttl(&key) > 0, "{key} has no time to live");
    }
    let id = waiter.id().to_owned();
    drop(waiter);
    eventually(SOON, || server.subscribers(&id) == 0);
}

/// Keeps killing the wake-up connections of a client while it waits for a lock. The client makes no
/// attempt by itself, and its pauses are long, but it must still get the lock when it is released.
/// The first of the servers has the lock.
fn reopen_after_kills(servers: &[&server::Server], clients: [Client; 2], name: &str) {
    let [holder, waiter] = clients;
    let guard = take(&holder, name);
    let listens = || servers.iter().all(|server| server.listeners(&waiter) == 1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(name).map(unlock));
        for _ in 0..3 {
            eventually(SOON / 2, listens);
            for server in servers {
                server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
        }
        eventually(SOON / 2, listens);
        // Having listened again, it has asked once more and is in the queue.
        eventually(SOON, || !servers[0].queue(name).is_empty());
        soon(|| {
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
    });
}

fn a_lost_wake_up_connection_is_reopened(server: &Server) {
    let clients = [server.open(very_sleepy()), server.open(very_sleepy())];
    reopen_after_kills(&[server], clients, "a");
}

#[test]
fn lost_wake_up_connections_to_a_cluster_are_reopened() {
    let cluster = Cluster::of_three();
    let clients = [cluster.open(very_sleepy()), cluster.open(very_sleepy())];
    let servers: Vec<_> = cluster.nodes().iter().collect();
    reopen_after_kills(&servers, clients, &cluster.name_at(0));
}

#[test]
fn lost_wake_up_connections_to_a_quorum_are_reopened() {
    let quorum = Quorum::of(3);
    let clients = [quorum.open(very_sleepy()), quorum.open(very_sleepy())];
    let servers: Vec<_> = quorum.servers.iter().collect();
    reopen_after_kills(&servers, clients, "a");
}

/// The thread for the wake-ups cannot be started at the first wait, but at a later one it can. The
/// limit has an effect only on Linux.
#[cfg(target_os = "linux")]
fn a_listener_that_could_not_be_started_is_tried_again(server: &Server) {
    let holder = server.open(patient());
    let guard = take(&holder, "a");
    // The limit on memory leaves room for everything except the stack of a thread.
    let stacks = [("RUST_MIN_STACK", "1073741824".into())];
    let mut child = Child::start_with(wait_without_threads_in_a_child, &server.address(), &stacks);
    let id = child.next();
    assert_eq!(server.subscribers(&id), 0, "no thread could be started");
    child.go_on();
    eventually(SOON, || server.subscribers(&id) == 1 && server.queue("a") == [id.as_str()]);
    soon(|| {
        guard.unlock().unwrap();
        assert_eq!(child.next(), "has it");
    });
    child.finish();
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a child of a_listener_that_could_not_be_started_is_tried_again"]
fn wait_without_threads_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(very_sleepy());
    // This connects, so that no thread is needed under the limit.
    assert!(client.try_lock("a").unwrap().is_none());
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(used_memory() + (512 << 20)), ..before })
        .unwrap();
    thread::Builder::new().spawn(|| ()).unwrap_err();
    assert!(client.try_lock_for("a", ms(50)).unwrap().is_none());
    child::report(client.id());
    child::wait_for_parent();
    setrlimit(Resource::As, before).unwrap();
    client.lock("a").unwrap().unlock().unwrap();
    child::report("has it");
}

/// Returns the size of the address space of this process.
#[cfg(target_os = "linux")]
fn used_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

fn processes_with_threads_count_without_losing_an_update(server: &Server) {
    let start = || Child::start(count_in_a_child, &server.address());
    let children = [start(), start(), start(), start()];
    children.into_iter().for_each(Child::finish);
    assert_eq!(Handle::connect(&server.url()).read(), 4 * 8 * 10);
}

#[test]
#[ignore = "a child of processes_with_threads_count_without_losing_an_update"]
fn count_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().wait(6 * SOON));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut number = Handle::connect(&address.url);
                for _ in 0..10 {
                    let guard = client.lock("counter").unwrap();
                    number.add_one();
                    guard.unlock().unwrap();
                }
            });
        }
    });
}

fn a_lock_works_although_its_queue_key_has_another_type(server: &Server) {
    let recorder = Recorder::default();
    let holder = server.open(patient());
    let waiter = server.open(patient().on_event(recorder.listener()));
    server.command(&["SET", "leasehold:queue:{lock:a}", "not a queue", "EX", "100"]);
    while_held(&holder, "a", |end| {
        assert!(waiter.try_lock_for("a", ms(100)).unwrap().is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            recorder.wait_for_waiters(2);
            drop(end);
            waits.join().unwrap().unwrap();
        });
    });
    assert_eq!(server.ask::<String>(&["GET", "leasehold:queue:{lock:a}"]), "not a queue");
}
