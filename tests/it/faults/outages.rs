//! A server that is down, silent or slow: every call ends in time, and nothing is left behind.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, HoldEnd};

use crate::support::proxy::Proxy;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SOON, Server, assert_lost, eventually, hasty, is_busy, ms, opened, patient, stores,
    take, throughout, timed,
};

stores! {
    every server:
        every_call_to_a_silent_server_ends_in_time,
        a_wait_for_a_silent_server_is_not_a_timeout,
        a_drop_at_a_silent_server_ends_in_time_and_is_repeated_later,
        a_panic_at_a_silent_server_unwinds,
        a_late_lock_that_no_call_waits_for_is_removed,
        a_late_lock_does_not_count_for_the_next_call,
        a_short_silence_does_not_lose_the_hold,
        the_calls_of_a_dead_server_fail_until_it_is_back,
        broken_connections_are_not_noticed,
        a_client_of_a_silent_server_can_be_dropped;
    one server:
        a_reply_that_drips_in_does_not_stretch_the_call,
        a_slow_reply_counts_against_the_lease,
        a_long_silence_loses_the_hold_before_redis_does,
        a_watched_hold_that_is_lost_by_silence_is_removed,
        a_server_that_closes_idle_connections_is_not_noticed;
}

stores! {
    over tls:
        broken_connections_are_not_noticed,
        a_server_that_closes_idle_connections_is_not_noticed;
}

/// The listener closes each connection at once, as a proxy may do while its server is away.
#[test]
fn threads_that_wait_for_many_names_connect_no_more_often_than_a_few() {
    const THREADS: usize = 64;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let accepted = Arc::<AtomicUsize>::default();
    let count = accepted.clone();
    thread::spawn(move || {
        for connection in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(connection);
        }
    });
    let client = Client::builder().lazy(true).open(&url).expect("it is lazy");
    thread::scope(|scope| {
        for number in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                assert_unavailable(|| client.try_lock_for(&number.to_string(), ms(2000)));
            });
        }
    });
    let accepted = accepted.load(Ordering::SeqCst);
    // If each thread paused for itself, it would be a thousand.
    assert!(accepted <= 200, "{accepted} connects in two seconds");
}

/// Much more than an attempt, its repetition and the promised 100 ms, for a busy machine, and much
/// less than the waits and leases in these tests.
const BOUND: Duration = ms(5000);

#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(call: impl FnOnce() -> Result<T, Error>) {
    let (result, took) = timed(call);
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < BOUND, "{took:?}");
}

fn every_call_to_a_silent_server_ends_in_time(server: &Server) {
    let client = server.open(hasty());
    let mutex = client.mutex("b");
    let guard = take(&client, "a");
    let inner = take(&client, "a");
    server.stop();
    assert_unavailable(|| client.try_lock("b"));
    assert_unavailable(|| client.try_lock("a"));
    assert_unavailable(|| client.try_lock_for("c", ms(100)));
    assert_unavailable(|| client.try_lock_for("c", Duration::ZERO));
    assert_unavailable(|| mutex.is_locked());
    assert_unavailable(|| mutex.holder());
    assert_unavailable(|| mutex.force_unlock());
    assert_unavailable(|| guard.verify());
    assert!(guard.is_held() && inner.is_held(), "no server has replied that it is gone");
    assert_unavailable(|| inner.unlock());
    assert_unavailable(|| guard.unlock());
}

fn a_wait_for_a_silent_server_is_not_a_timeout(server: &Server) {
    let client = server.open(hasty().wait(ms(1000)));
    server.stop();
    assert_unavailable(|| client.lock("a"));
    assert_unavailable(|| client.mutex("a").wait(ms(500)).lock());
}

fn a_drop_at_a_silent_server_ends_in_time_and_is_repeated_later(server: &Server) {
    let client = server.open(hasty());
    let guard = take(&client, "a");
    server.stop();
    let ((), took) = timed(|| drop(guard));
    assert!(took < BOUND, "{took:?}");
    server.cont();
    eventually(SOON, || !server.exists("a"));
    assert_eq!(take(&client, "a").depth(), 1);
}

fn a_panic_at_a_silent_server_unwinds(server: &Server) {
    let client = server.open(hasty());
    let (panicked, took) = timed(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let _guard = take(&client, "a");
            server.stop();
            panic!("as the test wants");
        }))
    });
    panicked.unwrap_err();
    assert!(took < BOUND, "{took:?}");
    server.cont();
    eventually(SOON, || !server.exists("a"));
}

fn a_late_lock_that_no_call_waits_for_is_removed(server: &Server) {
    let client = server.open(hasty());
    take(&client, "a").unlock().unwrap();
    server.stop();
    assert_unavailable(|| client.try_lock("a"));
    assert_unavailable(|| client.try_lock_for("a", ms(500)));
    // The server now executes what it has not read yet.
    server.cont();
    eventually(SOON, || !server.exists("a"));
    throughout(ms(500), || !server.exists("a"));
}

fn a_late_lock_does_not_count_for_the_next_call(server: &Server) {
    let client = server.open(hasty().wait(SOON));
    take(&client, "a").unlock().unwrap();
    server.stop();
    assert_unavailable(|| client.try_lock("a"));
    server.cont();
    // The same thread neither nests in a hold that it never got, nor waits for the end of its
    // lease.
    let guard = client.lock("a").unwrap();
    assert_eq!(guard.depth(), 1);
    assert_eq!(server.hold("a").1, "1");
    guard.verify().unwrap();
    // The clean-up after the first attempt leaves the second one alone.
    throughout(ms(1500), || server.exists("a"));
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_reply_that_drips_in_does_not_stretch_the_call(server: &Server) {
    let proxy = Proxy::before(server);
    let client = opened(|| hasty().open(&proxy.url()));
    take(&client, "a").unlock().unwrap();
    proxy.drip(ms(200));
    assert_unavailable(|| client.try_lock("a"));
    assert_unavailable(|| client.try_lock_for("a", ms(100)));
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
    take(&client, "a").unlock().unwrap();
}

fn a_slow_reply_counts_against_the_lease(server: &Server) {
    let proxy = Proxy::before(server);
    let client = Client::open(&proxy.url()).unwrap();
    take(&client, "a").unlock().unwrap();
    proxy.drip(ms(15));
    let (guard, took) = timed(|| take(&client, "a"));
    assert!(took > ms(50), "{took:?}");
    // The lease was counted from when the request was sent, which is the start of the call.
    let life = ms(30_000 - 302);
    assert!(guard.remaining() + took < life + ms(20), "{:?} after {took:?}", guard.remaining());
    proxy.heal();
    guard.unlock().unwrap();
}

fn a_short_silence_does_not_lose_the_hold(server: &Server) {
    let client = server.open(hasty().lease(ms(3000)));
    let guard = take(&client, "a");
    for _ in 0..2 {
        server.stop();
        throughout(ms(1200), || guard.is_held());
        server.cont();
        throughout(ms(1500), || guard.is_held());
    }
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn a_long_silence_loses_the_hold_before_redis_does(server: &Server) {
    let proxy = Proxy::before(server);
    let client = opened(|| hasty().lease(LEASE).open(&proxy.url()));
    let guard = take(&client, "a");
    let lost = guard.lost();
    proxy.blackhole();
    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
    assert!(!guard.is_held());
    // The difference is at least the 17 ms for clock drift, less the time to get here.
    assert!(server.pttl_or_zero("a") < LEASE / 3);
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
    throughout(ms(1000), || !server.exists("a"));
    assert!(!guard.is_held());
    assert_lost(guard.unlock(), "a");
}

fn a_watched_hold_that_is_lost_by_silence_is_removed(server: &Server) {
    let proxy = Proxy::before(server);
    let recorder = Recorder::default();
    let builder = hasty().lease(ms(3000)).on_event(recorder.listener());
    let client = builder.open(&proxy.url()).unwrap();
    let guard = take(&client, "a");
    let lost = guard.lost();
    recorder.wait_for("renewed");
    // The server receives every further renewal, but the client gets no reply.
    proxy.drip(ms(200));
    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Lost));
    // Unless the clean-up has already run.
    let left = server.pttl_or_zero("a");
    assert!(left.is_zero() || left > ms(1500), "renewed shortly before: {left:?}");
    proxy.heal();
    eventually(ms(1000), || !server.exists("a"));
    assert_lost(guard.unlock(), "a");
}

fn the_calls_of_a_dead_server_fail_until_it_is_back(server: &Server) {
    let client = server.open(hasty().wait(ms(500)));
    take(&client, "a").unlock().unwrap();
    server.kill();
    assert_unavailable(|| client.try_lock("a"));
    assert_unavailable(|| client.lock("a"));
    server.restart();
    eventually(SOON, || client.try_lock("a").is_ok_and(|guard| guard.is_some()));
    take(&client, "a").unlock().unwrap();
}

fn broken_connections_are_not_noticed(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    for _ in 0..5 {
        let guard = client.lock("a").unwrap();
        server.kill_connections();
        guard.verify().unwrap();
        server.kill_connections();
        let inner = client.lock("a").unwrap();
        server.kill_connections();
        inner.unlock().unwrap();
        server.kill_connections();
        guard.unlock().unwrap();
        assert!(!server.exists("a"));
        server.kill_connections();
    }
    let guard = take(&client, "a");
    let mut killed = Instant::now();
    throughout(3 * LEASE, || {
        // A failed renewal is repeated after a twentieth of the lease, so more than once between
        // two kills.
        if killed.elapsed() > LEASE / 6 {
            server.kill_connections();
            killed = Instant::now();
        }
        guard.is_held() && is_busy(&client, "a")
    });
}

fn a_client_of_a_silent_server_can_be_dropped(server: &Server) {
    let client = server.open(hasty().lease(ms(3000)));
    let guards = ["a", "b", "c"].map(|name| take(&client, name));
    server.stop();
    let ((), took) = timed(|| drop((guards, client)));
    assert!(took < BOUND, "{took:?}");
    server.cont();
    eventually(SOON, || server.hashes().is_empty());
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
