//! Keys of other programs on some of the servers.

use std::ops::Range;

use leasehold::Client;

use crate::support::quorum::{BOUND, hasty, settle};
use crate::support::server::Server;
use crate::support::{
    Quorum, SOON, assert_wrong_type, is_busy, lock_key, ms, patient, take, timed,
};

fn hold(server: &Server, name: &str) {
    server.command(&["HSET", &lock_key(name), "285475da:52", "1"]);
    server.command(&["PEXPIRE", &lock_key(name), "60000"]);
}

fn set_text(server: &Server, name: &str) {
    server.command(&["SET", &lock_key(name), "precious"]);
}

fn assert_every_call_fails(client: &Client, name: &str) {
    let mutex = client.mutex(name);
    assert_wrong_type(client.try_lock(name), name);
    let (result, took) = timed(|| client.lock(name));
    assert_wrong_type(result, name);
    assert!(took < SOON / 2, "waiting does not help: {took:?}");
    assert_wrong_type(client.try_lock_for(name, ms(100)), name);
    assert_wrong_type(mutex.holder(), name);
    assert_wrong_type(mutex.is_locked(), name);
    assert_wrong_type(client.election(name).leader(), name);
    assert_wrong_type(mutex.force_unlock(), name);
}

/// The replies usually arrive in the order of the servers.
fn texts_on(texts: Range<usize>, others: Range<usize>) {
    let quorum = Quorum::of(5);
    let (texts, others) = (&quorum.servers[texts], &quorum.servers[others]);
    // All names share the connections.
    let client = quorum.open(patient().pool_size(1));
    settle(&quorum, &client);
    for round in 0..10 {
        for held in 0..=others.len() {
            let (name, held) = (format!("{round} {held}"), &others[..held]);
            for server in texts {
                set_text(server, &name);
            }
            for server in held {
                hold(server, &name);
            }
            assert_every_call_fails(&client, &name);
            for server in texts {
                let text: String = server.ask(&["GET", &lock_key(&name)]);
                assert_eq!((text.as_str(), server.raw_pttl(&name)), ("precious", -1));
            }
            assert!(held.iter().all(|server| server.raw_pttl(&name) > 30_000));
        }
    }
}

#[test]
fn foreign_keys_on_the_first_servers_are_an_error_for_every_call() {
    texts_on(0..3, 3..5);
}

#[test]
fn foreign_keys_on_the_last_servers_are_an_error_for_every_call() {
    texts_on(2..5, 0..2);
}

#[test]
fn a_foreign_key_on_a_minority_counts_as_held() {
    let quorum = Quorum::of(5);
    let client = quorum.open(patient().pool_size(1));
    settle(&quorum, &client);
    for server in &quorum.servers[3..] {
        set_text(server, "rest free");
        set_text(server, "one held");
    }
    let mutex = client.mutex("rest free");
    assert!(mutex.holder().unwrap().is_none() && !mutex.is_locked().unwrap());
    assert!(!mutex.force_unlock().unwrap());
    take(&client, "rest free").unlock().unwrap();
    hold(&quorum.servers[0], "one held");
    assert!(is_busy(&client, "one held") && !client.mutex("one held").is_locked().unwrap());
}

/// The silent server and the one with a text would be a majority.
#[test]
fn a_call_ends_in_time_if_a_silent_server_may_decide_about_the_type() {
    let quorum = Quorum::of(3);
    let client = quorum.open(hasty());
    settle(&quorum, &client);
    set_text(&quorum.servers[0], "a");
    hold(&quorum.servers[1], "a");
    quorum.servers[2].stop();
    let (busy, took) = timed(|| is_busy(&client, "a"));
    assert!(busy && took < BOUND, "{took:?}");
}

#[test]
fn no_key_keeps_the_servers_from_being_pinged() {
    let quorum = Quorum::of(3);
    quorum.servers.iter().for_each(|server| set_text(server, "ping"));
    quorum.open(patient()).ping().unwrap();
}
