//! Requests that are executed twice or again later.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use leasehold::{Client, Guard};

use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::resp::message;
use crate::support::{
    LEASE, SOON, Server, eventually, ms, patient, sleepy, stores, take, throughout, timed,
};

stores! {
    every direct server:
        every_request_may_be_executed_twice,
        a_late_duplicate_of_a_lock_changes_no_later_hold,
        a_late_duplicate_of_a_nested_lock_changes_no_later_hold,
        a_late_duplicate_of_a_renewal_changes_no_later_hold,
        a_late_duplicate_of_a_release_changes_no_later_hold,
        a_late_duplicate_of_a_release_with_a_waiter_changes_no_later_hold,
        a_late_duplicate_of_a_lock_blocks_no_longer_than_its_lease,
        a_late_duplicate_of_a_release_wakes_no_client,
        late_duplicates_of_a_hold_do_not_change_how_long_its_lock_is_kept;
}

/// Much longer than any other lease here, so that a duplicate that prolongs a hold shows.
const LONG: Duration = ms(300_000);

fn every_request_may_be_executed_twice(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(sleepy().lease(LEASE));
    let other = server.open(sleepy());
    proxy.duplicate_scripts();
    let outer = take(&client, "a");
    assert_eq!(server.hold("a").1, "1");
    let inner = take(&client, "a");
    assert_eq!(server.hold("a").1, "2");
    inner.unlock().unwrap();
    assert_eq!(server.hold("a").1, "1");
    throughout(LEASE, || outer.is_held() && server.exists("a"));

    // The lock passes to another thread, and from it to another client.
    let (first, handed, woken) = thread::scope(|scope| {
        let handed = scope.spawn(|| client.lock("a").map(|guard| guard.fence()));
        let woken = scope.spawn(|| other.lock("a").map(|guard| guard.fence()));
        eventually(SOON, || server.queue("a") == [other.id()] && server.listeners(&other) == 1);
        let first = outer.fence();
        outer.unlock().unwrap();
        (first, handed.join().unwrap().unwrap(), woken.join().unwrap().unwrap())
    });
    assert!(first < handed && first < woken && handed != woken, "{first}, {handed}, {woken}");
    // A drop does not wait for the release, which goes through the proxy.
    eventually(SOON, || !server.exists("a"));
}

/// The state of a lock in Redis.
fn state(server: &Server) -> (BTreeMap<String, String>, Option<String>) {
    (server.hash("a"), server.ask(&["GET", "leasehold:fence:{lock:a}"]))
}

/// Sends requests again, on a connection of their own.
fn replay(server: &Server, requests: &[Vec<u8>]) {
    assert!(!requests.is_empty(), "nothing was recorded");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    for request in requests {
        stream.write_all(request).unwrap();
        message(&mut replies).unwrap();
    }
}

/// Checks that `requests` of ended holds change neither a hold of their own client nor one of
/// another client.
fn assert_harmless(server: &Server, client: &Client, requests: &[Vec<u8>]) {
    let other = server.open(patient());
    for holder in [client, &other] {
        let guard = holder.mutex("a").lease(ms(30_000)).lock().unwrap();
        assert_unchanged(server, &guard, "1", requests);
        let inner = holder.mutex("a").lease(ms(30_000)).lock().unwrap();
        assert_unchanged(server, &inner, "2", requests);
        inner.unlock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
        assert!(!server.exists("a"));
    }
}

fn assert_unchanged(server: &Server, guard: &Guard, depth: &str, requests: &[Vec<u8>]) {
    assert_eq!(server.hold("a").1, depth);
    let (before, left) = (state(server), server.pttl("a"));
    replay(server, requests);
    assert_eq!(state(server), before);
    assert!(server.pttl("a") <= left, "it is not prolonged");
    assert!(server.pttl("a") + SOON > left, "nor cut short");
    guard.verify().unwrap();
}

/// Checks that `requests` recreate nothing.
fn assert_nothing_is_created(server: &Server, requests: &[Vec<u8>]) {
    let before = state(server);
    replay(server, requests);
    assert!(!server.exists("a"));
    assert_eq!(state(server), before);
}

fn a_late_duplicate_of_a_lock_changes_no_later_hold(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(patient().lease(LONG));
    let (guard, requests) = proxy.record(|| take(&client, "a"));
    guard.unlock().unwrap();
    assert_harmless(server, &client, &requests);
}

fn a_late_duplicate_of_a_nested_lock_changes_no_later_hold(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(patient().lease(LONG));
    let outer = take(&client, "a");
    let ((), requests) = proxy.record(|| take(&client, "a").unlock().unwrap());
    outer.unlock().unwrap();
    assert_nothing_is_created(server, &requests);
    assert_harmless(server, &client, &requests);
}

fn a_late_duplicate_of_a_renewal_changes_no_later_hold(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(patient().lease(LEASE));
    let guard = take(&client, "a");
    let ((), requests) = proxy.record(|| throughout(LEASE / 2, || guard.is_held()));
    guard.unlock().unwrap();
    assert_nothing_is_created(server, &requests);
    assert_harmless(server, &client, &requests);
}

fn a_late_duplicate_of_a_release_changes_no_later_hold(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(patient().lease(LONG));
    let guard = take(&client, "a");
    let ((), requests) = proxy.record(|| guard.unlock().unwrap());
    assert_nothing_is_created(server, &requests);
    assert_harmless(server, &client, &requests);
}

fn a_late_duplicate_of_a_release_with_a_waiter_changes_no_later_hold(server: &Server) {
    let proxy = Proxy::before(server);
    let recorder = Recorder::default();
    let builder = patient().lease(LONG).on_event(recorder.listener());
    let client = server.through(proxy.port()).open(builder);
    let guard = take(&client, "a");
    let requests = thread::scope(|scope| {
        let (end, ended) = crossbeam_channel::bounded::<()>(0);
        let client = &client;
        let next = scope.spawn(move || {
            let guard = client.lock("a").unwrap();
            ended.recv().unwrap_err();
            guard.unlock().unwrap();
        });
        recorder.wait_for("contended a");
        let ((), requests) = proxy.record(|| guard.unlock().unwrap());
        drop(end);
        next.join().unwrap();
        requests
    });
    // The request of the next thread follows the release.
    let release = requests.first_chunk::<1>().expect("a release");
    assert_nothing_is_created(server, release);
    assert_harmless(server, &client, release);
}

fn a_late_duplicate_of_a_lock_blocks_no_longer_than_its_lease(server: &Server) {
    let lease = ms(1500);
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open_for(lease, patient());
    let short = client.mutex("a").lease(lease);
    let (guard, requests) = proxy.record(|| short.lock().unwrap());
    let fence = guard.fence();
    guard.unlock().unwrap();
    replay(server, &requests);
    assert!(server.pttl("a") <= lease);
    // The same thread has to wait, too: the hold that it released is no longer its own, and is not
    // renewed.
    let (again, took) = timed(|| client.lock("a").unwrap());
    assert!(took < lease + SOON / 2, "{took:?}");
    assert_eq!(again.depth(), 1);
    assert!(again.fence() > fence);
    assert_eq!(server.hold("a").1, "1");
}

fn a_late_duplicate_of_a_release_wakes_no_client(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(patient());
    let waiter = server.open(sleepy());
    let guard = take(&client, "a");
    let ((), requests) = proxy.record(|| guard.unlock().unwrap());
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(drop));
        eventually(SOON, || server.listeners(&waiter) == 1 && server.queue("a").len() == 1);
        let before = server.calls("publish");
        replay(server, &requests);
        assert_eq!(server.calls("publish"), before);
        assert_eq!(server.queue("a"), [waiter.id()]);
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
}

fn late_duplicates_of_a_hold_do_not_change_how_long_its_lock_is_kept(server: &Server) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(patient().lease(LEASE));
    let kept = LEASE * 10;
    let ((), requests) = proxy.record(|| {
        let mutex = client.mutex("a").hold_at_least(kept);
        let outer = mutex.try_lock().unwrap().expect("it is free");
        take(&client, "a").unlock().unwrap();
        throughout(LEASE / 2, || outer.is_held());
        outer.unlock().unwrap();
    });
    let (before, left) = (state(server), server.pttl("a"));
    assert!(left > LEASE && left <= kept, "{left:?}");
    replay(server, &requests);
    assert_eq!(state(server), before);
    assert!(server.pttl("a") <= left && server.pttl("a") + SOON > left);

    // Once the lock is free again, these requests have no more effect than those of any other hold.
    assert!(client.mutex("a").force_unlock().unwrap());
    assert_harmless(server, &client, &requests);
}
