//! Waiting clients that receive messages rarely ask.

use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client};

use crate::support::kinds::Kind;
use crate::support::{
    Quorum, RIGHTS, SOON, Server, Store, behind_proxy, eventually, hasty, ms, patient, server,
    soon, stores, take, timed, unlock,
};

stores! {
    several clients:
        a_release_is_noticed_at_once;
    every server:
        a_key_that_was_deleted_by_hand_is_noticed_within_ten_seconds,
        a_client_without_messages_keeps_polling,
        a_server_that_does_not_publish_is_polled,
        a_lock_of_another_library_is_polled;
}

/// How long the silence lasts at most, with some time for a busy machine.
const SILENCE: Duration = ms(12_000);

/// A client with the usual pauses, and a lease that is not renewed during a test.
fn usual() -> Builder {
    Client::builder().lease(10 * SOON).wait(6 * SOON)
}

/// Blocks until a server has executed no script for some time.
fn settle(server: &server::Server) {
    eventually(2 * SOON, || {
        let before = server.evals();
        thread::sleep(ms(1500));
        server.evals() == before
    });
}

/// Returns how many commands a server has executed, apart from those of the tests.
fn commands(server: &server::Server) -> u64 {
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    let own = ["client", "config", "hello", "info"];
    let theirs = lines.filter(|(command, _)| !own.iter().any(|own| command.starts_with(own)));
    let calls = theirs.filter_map(|(_, fields)| {
        fields.strip_prefix("calls=")?.split_once(',')?.0.parse::<u64>().ok()
    });
    calls.sum()
}

/// Checks the cost, in ten seconds, of clients that only wait for a kind of lock.
fn wait_silently(servers: &[&server::Server], clients: &[Client], holder: &Client, kind: Kind) {
    const TIME: Duration = ms(10_000);
    let hold = kind.block(holder, "a");
    thread::scope(|scope| {
        let waiters: Vec<_> =
            clients.iter().map(|it| scope.spawn(|| kind.acquire(it, "a").map(drop))).collect();
        eventually(SOON, || clients.iter().all(|it| it.stats().waiting == 1));
        for server in servers {
            settle(server);
        }
        let sum =
            |count: fn(&server::Server) -> u64| servers.iter().map(|it| count(it)).sum::<u64>();
        let counted = || (sum(server::Server::evals), sum(commands));
        let before = counted();
        thread::sleep(TIME);
        let (scripts, commands) = counted();
        let (scripts, commands) = (scripts - before.0, commands - before.1);
        let count = u64::try_from(clients.len() * servers.len()).unwrap();
        println!("{kind:?}: {scripts} scripts and {commands} commands of {count} clients");
        // Both bounds hold on average: while one of them asks twice, another has not yet asked.
        assert!(scripts <= 2 * count, "{kind:?}: {scripts} scripts of {count} clients");
        assert!(commands <= 10 * count, "{kind:?}: {commands} commands of {count} clients");
        drop(hold);
        for waiter in waiters {
            soon(|| waiter.join().unwrap().unwrap());
        }
    });
}

#[test]
fn a_waiting_client_costs_a_server_little_for_every_kind() {
    thread::scope(|scope| {
        for kind in Kind::ALL {
            scope.spawn(move || {
                let server = Server::redis();
                let clients: Vec<_> = (0..4).map(|_| server.open(usual())).collect();
                wait_silently(&[&server], &clients, &server.open(usual()), kind);
            });
        }
    });
}

#[test]
fn a_waiting_client_costs_each_server_of_a_quorum_little() {
    let quorum = Quorum::of(3);
    let clients: Vec<_> = (0..4).map(|_| quorum.open(usual())).collect();
    let servers: Vec<_> = quorum.servers.iter().collect();
    wait_silently(&servers, &clients, &quorum.open(usual()), Kind::Owned);
}

fn a_release_is_noticed_at_once(store: &Store) {
    let [holder, waiter] = [store.open(usual()), store.open(usual())];
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || store.listens(&waiter));
        // By now it relies on messages.
        thread::sleep(ms(2500));
        let ((), took) = timed(|| {
            unlock(guard);
            waits.join().unwrap().unwrap();
        });
        assert!(took < SOON / 4, "{took:?}");
    });
}

fn a_key_that_was_deleted_by_hand_is_noticed_within_ten_seconds(server: &Server) {
    let [holder, waiter] = [server.open(usual()), server.open(usual())];
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || server.listeners(&waiter) == 1);
        settle(server);
        server.command(&["DEL", &crate::support::lock_key("a")]);
        let (result, took) = timed(|| waits.join().unwrap());
        result.unwrap();
        assert!(took < SILENCE, "{took:?}");
    });
    drop(guard);
}

/// Checks that a client asks often while another one holds the lock.
fn asks_often(server: &Server, waiter: &Client, end: impl FnOnce()) {
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || waiter.stats().waiting == 1);
        let before = server.evals();
        eventually(SOON, || server.evals() >= before + 20);
        end();
        soon(|| waits.join().unwrap().unwrap());
    });
}

fn a_client_without_messages_keeps_polling(server: &Server) {
    let [name, password] = ["deaf", "secret"];
    let rights: Vec<_> = RIGHTS.split(' ').filter(|right| !right.starts_with('+')).collect();
    let user = ["ACL", "SETUSER", name, "on", &format!(">{password}"), "+@all", "-subscribe"];
    server.command(&[&user[..], &rights].concat());
    let holder = server.open(usual());
    let url = format!("redis://{name}:{password}@127.0.0.1:{}", server.port());
    let waiter = patient().open(&url).unwrap();
    let guard = take(&holder, "a");
    asks_often(server, &waiter, || unlock(guard));
}

fn a_server_that_does_not_publish_is_polled(server: &Server) {
    let [name, password] = ["mute", "secret"];
    let rights: Vec<_> = RIGHTS.split(' ').filter(|right| !right.starts_with('+')).collect();
    let user = ["ACL", "SETUSER", name, "on", &format!(">{password}"), "+@all", "-publish"];
    server.command(&[&user[..], &rights].concat());
    let url = format!("redis://{name}:{password}@127.0.0.1:{}", server.port());
    let [holder, waiter] = [usual(), patient()].map(|builder| builder.open(&url).unwrap());
    let guard = take(&holder, "a");
    asks_often(server, &waiter, || unlock(guard));
}

fn a_lock_of_another_library_is_polled(server: &Server) {
    let key = crate::support::lock_key("a");
    server.command(&["SET", &key, "another", "NX", "PX", "60000"]);
    let waiter = server.open(patient());
    asks_often(server, &waiter, || drop(server.command(&["DEL", &key])));
}

#[test]
fn a_client_that_is_cut_off_from_its_messages_is_not_silent_for_long() {
    let server = Server::redis();
    let (proxy, waiter) = behind_proxy(&server, hasty().lease(10 * SOON).wait(6 * SOON));
    let holder = server.open(usual());
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || server.listeners(&waiter) == 1);
        settle(&server);
        proxy.blackhole_for("leasehold:wake:");
        unlock(guard);
        let (result, took) = timed(|| waits.join().unwrap());
        result.unwrap();
        // It sends a PING after five seconds, and waits for the reply for as long as for any other.
        assert!(took < ms(8_500), "{took:?}");
    });
}
