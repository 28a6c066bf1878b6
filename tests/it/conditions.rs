//! Servers in a bad way: loading, without a disk, without replicas, with another password or clock.

use std::fs;
use std::path::PathBuf;
use std::thread;

use leasehold::{Client, Error};

use crate::support::{
    LEASE, SOON, Server, assert_lost, eventually, everything, is_busy, ms, patient, stores, take,
    throughout, timed,
};

stores! {
    every server:
        a_server_that_loads_its_data_is_waited_for,
        a_replica_without_a_master_is_waited_for,
        a_server_without_enough_replicas_is_waited_for,
        a_server_that_cannot_save_gives_no_lock_and_says_so,
        a_server_that_evicts_a_hold_ends_it,
        a_restart_with_older_data_ends_the_hold_and_repeats_no_fence,
        a_clock_that_jumps_ahead_ends_the_hold;
    one server:
        a_changed_password_is_told_at_once,
        a_server_that_closes_idle_connections_is_not_noticed,
        a_host_with_several_addresses_is_tried_at_each;
}

#[track_caller]
fn assert_code<T: std::fmt::Debug>(result: Result<T, Error>, wanted: &str) {
    match result {
        Err(Error::Redis { code, .. }) => assert_eq!(code, wanted),
        other => panic!("{other:?} instead of {wanted}"),
    }
}

#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

fn a_server_that_loads_its_data_is_waited_for(server: &Server) {
    let client = server.open(patient());
    let guard = take(&client, "a");
    // A second of loading, during which it answers often. Redis 6, which cannot be told to, answers
    // once for each two megabytes.
    server.try_command(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    server.set_config("rdbcompression", "no");
    server.command(&["DEBUG", "POPULATE", "1000", "key", "8192"]);
    server.set_config("key-load-delay", "1000");
    thread::scope(|scope| {
        scope.spawn(|| server.command(&["DEBUG", "RELOAD"]));
        eventually(SOON, || redis::cmd("GET").arg("x").exec(&mut server.connect()).is_err());
        let (taken, took) = timed(|| take(&client, "b"));
        assert!(took >= ms(100), "{took:?}");
        taken.unlock().unwrap();
    });
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn a_replica_without_a_master_is_waited_for(server: &Server) {
    let client = server.open(patient().retry_window(ms(300)));
    take(&client, "a").unlock().unwrap();
    server.set_config("replica-serve-stale-data", "no");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_unavailable(client.try_lock("a"));
    assert_unavailable(client.mutex("a").wait(ms(300)).lock());
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.try_lock_for("a", SOON).map(drop));
        thread::sleep(ms(300));
        server.command(&["REPLICAOF", "NO", "ONE"]);
        waits.join().unwrap().unwrap();
    });
}

fn a_server_without_enough_replicas_is_waited_for(server: &Server) {
    let client = server.open(patient().retry_window(ms(300)));
    let guard = take(&client, "held");
    server.set_config("min-replicas-to-write", "3");
    assert_unavailable(client.try_lock("a"));
    assert_unavailable(client.mutex("a").wait(ms(300)).lock());
    assert_unavailable(guard.unlock());
    assert!(!server.exists("a") && server.exists("held"));
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.try_lock_for("a", SOON).map(drop));
        thread::sleep(ms(300));
        server.set_config("min-replicas-to-write", "0");
        waits.join().unwrap().unwrap();
    });
    eventually(SOON, || !server.exists("held"));
}

fn a_server_that_cannot_save_gives_no_lock_and_says_so(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "held");
    let [_, dir]: [String; 2] = server.ask(&["CONFIG", "GET", "dir"]);
    // Something that cannot be overwritten is where the file should be.
    let obstacle = PathBuf::from(dir).join("dump.rdb");
    // Where there are replicas, there is one from which they have begun.
    fs::remove_file(&obstacle).ok();
    fs::create_dir(&obstacle).unwrap();
    server.set_config("save", "3600 1");
    server.command(&["BGSAVE"]);
    let status = || server.ask::<String>(&["INFO", "persistence"]);
    eventually(SOON, || status().contains("rdb_last_bgsave_status:err"));

    let (result, took) = timed(|| client.lock("a"));
    assert_code(result, "MISCONF");
    assert!(took < SOON / 2, "waiting does not help: {took:?}");
    assert!(!server.exists("a"));
    assert_code(guard.unlock(), "MISCONF");
    fs::remove_dir(&obstacle).unwrap();
    server.command(&["SAVE"]);
    eventually(SOON, || !server.exists("held"));
    take(&client, "a").unlock().unwrap();
}

fn a_server_that_evicts_a_hold_ends_it(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let guard = take(&client, "a");
    server.set_config("maxmemory-policy", "volatile-ttl");
    server.set_config("maxmemory", "1");
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(()));
    assert!(!server.exists("a"));
    server.set_config("maxmemory", "0");
    let fence = guard.fence();
    assert_lost(guard.unlock(), "a");
    assert!(take(&client, "a").fence() > fence);
}

fn a_restart_with_older_data_ends_the_hold_and_repeats_no_fence(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    take(&client, "a").unlock().unwrap();
    // What was written after this is lost, the counter's last step among it.
    server.command(&["SAVE"]);
    let guard = take(&client, "a");
    server.restart();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(()));
    let fence = guard.fence();
    assert_lost(guard.unlock(), "a");
    assert!(take(&client, "a").fence() > fence);
}

fn a_clock_that_jumps_ahead_ends_the_hold(server: &Server) {
    let (client, other) = (server.open(patient().lease(LEASE)), server.open(patient()));
    let guard = take(&client, "a");
    // What has expired to the server, to us has not.
    server.command(&["PEXPIRE", "a", "0"]);
    let next = other.lock("a").unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(()));
    assert_lost(guard.unlock(), "a");
    next.verify().unwrap();
    assert!(is_busy(&client, "a"));
}

fn a_changed_password_is_told_at_once(server: &Server) {
    let set = |password: &str| {
        let rule = ["ACL", "SETUSER", "ali", "reset", "on", password, "~*", "&*", "+@all"];
        server.command(&rule);
    };
    set(">sesame");
    let client = patient().lease(LEASE).pool_size(1);
    let url = format!("redis://ali:sesame@127.0.0.1:{}/", server.port());
    let client = client.open(&url).unwrap();
    let guard = take(&client, "a");
    set(">mellon");
    server.kill_connections();
    let (result, took) = timed(|| client.lock("b"));
    let text = everything(result.as_ref().unwrap_err());
    assert!(!text.contains("sesame") && !text.contains("mellon"), "{text}");
    assert_code(result, "WRONGPASS");
    assert!(took < SOON / 2, "trying again does not help: {took:?}");
    // Until its lease ends, a hold is good; then it is lost, and nothing is made of it again.
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(()));
    assert_lost(guard.unlock(), "a");
    set(">sesame");
    take(&client, "b").unlock().unwrap();
}

fn a_server_that_closes_idle_connections_is_not_noticed(server: &Server) {
    let client = server.open(patient());
    let guard = take(&client, "a");
    server.set_config("timeout", "1");
    let over_tcp = || server.ask::<String>(&["CLIENT", "LIST"]).contains(" addr=127.0.0.1:");
    eventually(SOON, || !over_tcp());
    guard.verify().unwrap();
    eventually(SOON, || !over_tcp());
    take(&client, "b").unlock().unwrap();
    guard.unlock().unwrap();
    assert!(server.hashes().is_empty());
}

fn a_host_with_several_addresses_is_tried_at_each(server: &Server) {
    // By most systems also the address ::1, where this server does not listen.
    let client = Client::open(&format!("redis://localhost:{}/", server.port())).unwrap();
    let guard = take(&client, "a");
    throughout(ms(100), || server.exists("a"));
    guard.unlock().unwrap();
}

#[test]
fn a_host_without_an_address_is_unavailable() {
    let builder = Client::builder().connect_timeout(ms(500));
    let (result, took) = timed(|| builder.open("redis://nonexistent.invalid/"));
    assert_unavailable(result);
    assert!(took < SOON, "{took:?}");
}
