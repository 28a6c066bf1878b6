//! The keys, connections and threads that a client uses, and frees again.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Guard};

use crate::support::address::Way;
use crate::support::child::{self, Child};
use crate::support::server;
use crate::support::{
    LEASE, SOON, Server, Store, elsewhere, eventually, is_busy, ms, patient, stores, take,
    throughout, while_held,
};

stores! {
    every store:
        threads_are_exactly_as_promised;
    every server:
        no_key_is_ever_without_a_ttl,
        a_broken_connection_leaves_the_others_open,
        a_pool_of_one_serves_fifty_waiters;
    one server:
        a_pool_bounds_the_connections,
        connections_are_closed_with_the_client,
        an_idle_connection_is_closed,
        an_old_connection_is_closed,
        an_old_connection_is_replaced_while_it_is_used;
}

stores! {
    over tls:
        a_broken_connection_leaves_the_others_open;
}

/// A pseudo-random workload of one thread: every way to acquire, nest, lose and release locks.
fn work(client: &Client, mut seed: u64, end: Instant) {
    let mut kept: Vec<Guard> = Vec::new();
    while Instant::now() < end {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let name = format!("lock {}", seed % 6);
        // Losses and errors are welcome here: only what is left in Redis counts.
        match seed / 6 % 8 {
            0 => kept.extend(client.try_lock(&name).ok().flatten()),
            1 => kept.extend(client.try_lock_for(&name, ms(20)).ok().flatten()),
            2 => {
                let short = client.mutex(&name).lease(ms(30)).renew(false);
                kept.extend(short.try_lock().ok().flatten());
            }
            3 => drop(client.with_lock(&name, |guard| guard.verify().is_ok())),
            4 => drop(kept.pop().map(Guard::unlock)),
            5 => drop(client.mutex(&name).force_unlock()),
            6 => kept.clear(),
            _ => drop(client.mutex(&name).holder()),
        }
    }
}

fn no_key_is_ever_without_a_ttl(server: &Server) {
    let clients = [server.open(patient()), server.open(patient().pool_size(2))];
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect();
            while !ended.load(Ordering::SeqCst) {
                let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
                for key in keys {
                    let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
                    assert_ne!(ttl, -1, "{key} has no time to live");
                }
            }
        });
        let end = Instant::now() + ms(2000);
        let workers: Vec<_> = (1..=6)
            .map(|seed| {
                let client = &clients[seed % 2];
                scope.spawn(move || work(client, 0x9e37_79b9 * seed as u64, end))
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ended.store(true, Ordering::SeqCst);
        assert!(results.iter().all(Result::is_ok), "no worker panicked");
    });
    drop(clients);
    eventually(SOON, || server.hashes().is_empty());
    let of_fences = |key: &String| key.starts_with("leasehold:fence:{lock:lock ");
    let fences = server.keys().into_iter().filter(of_fences).count();
    assert_eq!(fences, 6, "every name was used");
}

fn a_pool_of_one_serves_fifty_waiters(server: &Server) {
    let client = server.open(patient().pool_size(1).backoff(ms(1), ms(20)).wait(3 * SOON));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..50).map(|_| scope.spawn(|| client.lock("a").unwrap().unlock().unwrap())).collect();
        thread::sleep(ms(300));
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        // The holder, and a thread that wants another lock, can use the only connection.
        take(&client, "b").unlock().unwrap();
        let start = Instant::now();
        guard.unlock().unwrap();
        assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
    });
    assert!(!server.exists("a"));
}

/// Returns the number of TCP connections at the server. The question comes over the Unix socket.
fn connections(server: &Server) -> usize {
    over_tcp(server).len()
}

/// Returns the numbers of those connections.
fn over_tcp(server: &Server) -> Vec<String> {
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    let id = |line: &str| line.split_once(" addr=127.0.0.1:").map(|(id, _)| id.to_owned());
    clients.lines().filter_map(id).collect()
}

fn a_pool_bounds_the_connections(server: &Server) {
    let client = server.open(patient().pool_size(3));
    thread::scope(|scope| {
        for n in 0..20 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..20 {
                    client.lock(&format!("lock {n}")).unwrap().unlock().unwrap();
                }
            });
        }
    });
    // Three of the pool, one for renewals and one for wake-ups.
    let opened = connections(server);
    assert!((1..=5).contains(&opened), "{opened} connections");
}

/// Returns the numbers of the client's connections, the oldest first: those over TCP that are
/// neither a replica's nor a sentinel's, and have this text in their line.
fn of_the_client(server: &Server, what: &str) -> Vec<String> {
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    let own = clients.lines().filter(|line| {
        let has = |what| line.contains(what);
        // Blocked connections wait for replicas.
        let is_clients = [" flags=N ", " flags=P ", " flags=b "].into_iter().any(has);
        has(" addr=127.0.0.1:") && has(" name= ") && is_clients && has(what)
    });
    own.filter_map(|line| line.split(' ').next()?.strip_prefix("id=").map(str::to_owned)).collect()
}

fn a_broken_connection_leaves_the_others_open(server: &Server) {
    let client = server.open(patient().lease(LEASE).pool_size(1));
    // The connection that was opened to check the server.
    let pooled = of_the_client(server, "").pop().unwrap();
    let kept = take(&client, "kept");
    let other = Client::open(&server.admin_url()).unwrap();
    let held = take(&other, "b");
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("b").map(drop));
        eventually(SOON, || server.listeners(&client) == 1);
        // The others are those of the renewer and the listener.
        eventually(SOON, || of_the_client(server, "").len() == 3);
        let (pooled, before) = (&pooled, of_the_client(server, ""));
        server.command(&["CLIENT", "KILL", "ID", pooled]);
        take(&client, "c").unlock().unwrap();
        throughout(LEASE, || kept.is_held() && server.listeners(&client) == 1);
        let after = of_the_client(server, "");
        let is_kept = |id: &String| after.contains(id) != (id == pooled);
        assert!(before.iter().all(is_kept), "{before:?} became {after:?}, without {pooled}");
        held.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
}

fn connections_are_closed_with_the_client(server: &Server) {
    let client = server.open(patient());
    let clone = client.clone();
    let guard = take(&client, "a");
    elsewhere(|| clone.lock("b").unwrap().unlock().unwrap());
    assert!(connections(server) > 0);
    drop((client, clone));
    guard.unlock().unwrap();
    eventually(SOON, || connections(server) == 0);
}

/// How often idle connections are checked.
const SWEEP: Duration = Duration::from_secs(30);

fn an_idle_connection_is_closed(server: &Server) {
    let client = server.open(patient().idle_timeout(Some(ms(10))).max_lifetime(None));
    assert!(client.mutex("a").holder().unwrap().is_none());
    assert!(connections(server) > 0);
    eventually(SWEEP + SOON, || connections(server) == 0);
    assert!(client.mutex("a").holder().unwrap().is_none());
}

fn an_old_connection_is_closed(server: &Server) {
    let client = server.open(patient().idle_timeout(None).max_lifetime(Some(ms(10))));
    assert!(client.mutex("a").holder().unwrap().is_none());
    eventually(SWEEP + SOON, || connections(server) == 0);
    assert!(client.mutex("a").holder().unwrap().is_none());
}

/// r2d2 looks for old connections too rarely for this, and may find this one in use each time.
fn an_old_connection_is_replaced_while_it_is_used(server: &Server) {
    let client = server.open(patient().idle_timeout(None).max_lifetime(Some(ms(300))));
    let mut ids = HashSet::new();
    eventually(SOON, || {
        assert!(client.mutex("a").holder().unwrap().is_none());
        ids.extend(over_tcp(server));
        ids.len() >= 3
    });
    eventually(SOON, || over_tcp(server).len() <= 1);
}

fn threads_are_exactly_as_promised(store: &Store) {
    if cfg!(target_os = "linux") {
        Child::start(count_threads_in_a_child, &store.address()).finish();
    }
}

/// Runs in a process of its own, where no other test starts threads or opens files.
#[test]
#[ignore = "a child of threads_are_exactly_as_promised"]
fn count_threads_in_a_child() {
    let Some(address) = child::address() else { return };
    let open = |builder: Builder| address.open(builder);
    let before = InUse::now();
    // The renewer, and the pool's thread if there is a pool.
    let own = if address.way == Way::Memory { 1 } else { 2 };

    count_threads(open(patient()), before, own);
    // One more thread delivers the events.
    count_threads(open(patient().on_event(|_| ())), before, own + 1);
    count_threads(open(patient().pool_size(1)), before, own);

    let clients = [(); 5].map(|()| open(patient()));
    // Each client has its own threads.
    eventually(SOON, || InUse::now().threads == before.threads + 5 * own);
    drop(clients);
    before.assert_again();
}

/// Checks how many threads a client has while a lock is held, and that all end with the last guard.
#[track_caller]
fn count_threads(client: Client, before: InUse, own: usize) {
    let threads = || InUse::now().threads - before.threads;
    let guard = take(&client, "a");
    eventually(SOON, || threads() == own);
    // No use of locks needs more threads.
    for n in 0..50 {
        take(&client, &format!("lock {n}")).unlock().unwrap();
        assert!(is_busy(&client, "a"));
    }
    eventually(SOON, || threads() == own);
    // A wait may start the listener for wake-ups.
    while_held(&client, "b", |_end| {
        assert!(client.try_lock_for("b", ms(100)).unwrap().is_none());
    });
    eventually(SOON, || threads() <= own + 1);

    drop(client.clone());
    drop(client);
    thread::sleep(ms(50));
    assert!(threads() > 0, "the guard is still renewed");
    guard.unlock().unwrap();
    before.assert_again();
}

/// The resources of the system that this process uses.
#[derive(Clone, Copy, Debug, PartialEq)]
struct InUse {
    threads: usize,
    /// Including sockets.
    files: usize,
}

impl InUse {
    fn now() -> Self {
        let count = |of| fs::read_dir(format!("/proc/self/{of}")).unwrap().count();
        Self { threads: count("task"), files: count("fd") }
    }

    /// Waits until no more is in use than before.
    #[track_caller]
    fn assert_again(self) {
        eventually(SOON, || Self::now() == self);
    }
}

/// One server is enough, because the client is the same for all.
#[test]
fn memory_follows_what_is_held_now() {
    if cfg!(target_os = "linux") {
        Child::start(hold_and_release_in_a_child, &server::Server::redis().url()).finish();
    }
}

/// Runs in a process of its own, whose memory no other test uses.
#[test]
#[ignore = "a child of memory_follows_what_is_held_now"]
fn hold_and_release_in_a_child() {
    let Some(url) = child::argument() else { return };
    let builder = || patient().lease(Duration::from_secs(3600));
    for (client, rounds) in
        [(builder().in_memory().unwrap(), 60), (builder().open(&url).unwrap(), 30)]
    {
        hold_and_release(&client, 5);
        let before = memory();
        hold_and_release(&client, rounds);
        let grown = memory().saturating_sub(before);
        assert!(grown < 3_000, "{grown} kB in {rounds} rounds");
    }
}

/// Holds a thousand locks for a moment, repeatedly.
fn hold_and_release(client: &Client, rounds: usize) {
    for _ in 0..rounds {
        let guards: Vec<_> = (0..1_000).map(|n| take(client, &format!("lock {n}"))).collect();
        thread::sleep(ms(5));
        drop(guards);
    }
}

/// Returns the memory of this process in kB.
fn memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
