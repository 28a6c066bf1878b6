//! The claims of docs/moving.md about locks that other libraries set as strings.

use std::thread;

use leasehold::{Client, Error};

use crate::support::{
    Quorum, SOON, Server, eventually, is_busy, ms, patient, soon, stores, take, unlock,
};

stores! {
    every server:
        strings_and_leasehold_exclude_each_other,
        an_offered_lock_is_visible_to_others,
        a_release_of_another_library_leaves_a_lock_of_leasehold,
        a_string_that_is_deleted_is_noticed_soon,
        a_string_without_a_ttl_is_no_lock;
}

/// Acquires the lock like the other libraries.
fn set(server: &Server, key: &str) -> bool {
    let reply: Option<String> = server.ask(&["SET", key, "token", "NX", "PX", "30000"]);
    reply.is_some()
}

/// The script with which the other libraries release a lock.
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                       return redis.call('del', KEYS[1]) else return 0 end";

fn release(server: &Server, key: &str) -> bool {
    server.try_command(&["EVAL", RELEASE, "1", key, "token"])
}

fn open(server: &Server) -> Client {
    server.open(patient().prefix(""))
}

fn strings_and_leasehold_exclude_each_other(server: &Server) {
    let client = open(server);
    let guard = take(&client, "stock:42");
    assert!(!set(server, "stock:42"));
    guard.unlock().unwrap();
    assert!(set(server, "stock:42"));
    assert!(is_busy(&client, "stock:42"));
    assert!(release(server, "stock:42"));
    take(&client, "stock:42").unlock().unwrap();
}

fn an_offered_lock_is_visible_to_others(server: &Server) {
    let client = open(server);
    // A client that has stopped does not take its offer.
    let mut connection = server.connect();
    let mut stopped = connection.as_pubsub();
    stopped.subscribe("leasehold:wake:stopped").unwrap();
    let is_refused = || {
        server.command(&["ZADD", "leasehold:queue:{a}", "1", "stopped"]);
        take(&client, "a").unlock().unwrap();
        let refused = !set(server, "a");
        server.command(&["DEL", "a", "leasehold:queue:{a}"]);
        refused
    };
    // On a busy machine, the offer may have ended.
    assert!((0..10).any(|_| is_refused()));
}

fn a_release_of_another_library_leaves_a_lock_of_leasehold(server: &Server) {
    let client = open(server);
    let guard = take(&client, "a");
    assert!(!release(server, "a"), "an error");
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn a_string_that_is_deleted_is_noticed_soon(server: &Server) {
    // The pauses are the default ones.
    let client = server.open(Client::builder().prefix("").wait(SOON));
    assert!(set(server, "a"));
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").map(unlock));
        eventually(SOON, || client.stats().waiting == 1);
        assert!(release(server, "a"));
        soon(|| waits.join().unwrap().unwrap());
    });
}

fn a_string_without_a_ttl_is_no_lock(server: &Server) {
    let client = open(server);
    server.command(&["SET", "a", "token", "NX"]);
    assert!(matches!(client.try_lock("a"), Err(Error::WrongType { .. })));
}

#[test]
fn a_majority_of_strings_is_a_lock_of_another_library() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient().prefix("").backoff(ms(1), ms(50)));
    let set = |server: &crate::support::server::Server| {
        let set = ["SET", "a", "token", "NX", "PX", "30000"];
        server.ask::<Option<String>>(&set).is_some()
    };
    assert!(quorum.servers[..2].iter().all(set));
    assert!(is_busy(&client, "a"));
    for server in &quorum.servers[..2] {
        server.command(&["EVAL", RELEASE, "1", "a", "token"]);
    }
    let guard = client.lock("a").unwrap();
    assert!(quorum.servers.iter().filter(|server| set(server)).count() < 2);
    guard.unlock().unwrap();
}
