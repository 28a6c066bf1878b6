//! Replies that are late, in pieces, incomplete or meaningless.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use leasehold::{Builder, Client};

use crate::support::{
    SOON, Server, assert_unavailable, behind_proxy, eventually, ms, patient, stores, take,
    throughout, timed,
};

stores! {
    every direct server:
        a_reply_after_the_deadline_does_not_count,
        a_late_reply_is_not_read_by_the_next_call,
        threads_that_share_a_connection_read_their_own_replies,
        a_distant_server_only_shortens_the_remaining_lease,
        a_reply_may_arrive_in_any_pieces,
        a_reply_cut_anywhere_is_retried,
        a_reply_that_makes_no_sense_is_retried,
        a_reply_that_is_too_long_or_nested_too_deep_is_retried;
    one server:
        a_late_reply_is_not_read_by_threads_that_share_the_connection;
}

fn hasty() -> Builder {
    Client::builder().io_timeout(ms(300)).retry_window(ms(300))
}

fn a_reply_after_the_deadline_does_not_count(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty());
    proxy.delay_replies(ms(450));
    assert_unavailable(client.try_lock("a"));
    assert_unavailable(client.try_lock_for("a", ms(100)));
    assert!(!client.mutex("a").is_held_by_current_thread());
    proxy.heal();
    // The request was executed without the caller knowing, so the hold is undone.
    eventually(SOON, || !server.exists("a"));
    throughout(ms(600), || !server.exists("a"));
    assert_eq!(take(&client, "a").depth(), 1);
}

fn a_late_reply_is_not_read_by_the_next_call(server: &Server) {
    let (proxy, client) = behind_proxy(server, hasty().pool_size(1));
    proxy.delay_replies(ms(450));
    assert_unavailable(client.try_lock("a"));
    proxy.heal();
    // The replies to the first call are still on their way.
    for n in 0..100 {
        let name = format!("lock {n}");
        let guard = take(&client, &name);
        let fence: u64 = server.ask(&["GET", &format!("leasehold:fence:{{lock:{name}}}")]);
        assert_eq!(guard.fence(), fence, "the reply is that to its own request");
        assert!(server.hold(&name).0.starts_with(client.id()));
    }
}

fn threads_that_share_a_connection_read_their_own_replies(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient().wait(3 * SOON).pool_size(1));
    let work = |worker: usize| {
        for round in 0..50 {
            let name = format!("lock {worker}");
            let guard = client.lock(&name).unwrap();
            let fence: u64 = server.ask(&["GET", &format!("leasehold:fence:{{lock:{name}}}")]);
            assert_eq!(guard.fence(), fence, "{name}, round {round}");
            assert!(server.hold(&name).0.starts_with(client.id()));
            if guard.unlock().is_err() {
                // A second fault has hit the repeat: the hold ends in the background.
                eventually(SOON, || !server.exists(&name));
            }
            assert!(!server.exists(&name));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|worker| scope.spawn(move || work(worker))).collect();
        let mut faults = 0;
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            if proxy.has_lost() {
                faults += 1;
                match faults % 3 {
                    0 => proxy.lose_reply_after(3),
                    1 => proxy.cut_reply(faults % 4),
                    _ => proxy.answer(b"*1\r\n:1\r\n"),
                }
            }
            thread::sleep(ms(20));
        }
        proxy.heal();
        assert!(faults > 2, "{faults} faults");
    });
}

fn a_late_reply_is_not_read_by_threads_that_share_the_connection(server: &Server) {
    let (proxy, client) = behind_proxy(server, Client::builder().pool_size(1));
    proxy.delay_replies(ms(40));
    let end = Instant::now() + ms(3000);
    let (client, acquired) = (&client, AtomicU32::new(0));
    let work = |worker: u32| {
        let name = format!("lock {worker}");
        // Half of the threads wait only for 100 ms, and have left when their replies arrive.
        let lease = if worker.is_multiple_of(2) { ms(300) } else { ms(30_000) };
        let mutex = client.mutex(&name).lease(lease);
        while Instant::now() < end {
            let Ok(Some(guard)) = mutex.try_lock() else { continue };
            let fence: u64 = server.ask(&["GET", &format!("leasehold:fence:{{lock:{name}}}")]);
            if guard.is_held() {
                assert_eq!(guard.fence(), fence, "the reply is that to its own request");
                acquired.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    thread::scope(|scope| {
        for worker in 0..8 {
            scope.spawn(move || work(worker));
        }
    });
    assert!(acquired.into_inner() > 0, "no thread got a lock");
}

fn a_distant_server_only_shortens_the_remaining_lease(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient().lease(ms(20_000)));
    proxy.delay_replies(ms(200));
    let lease = ms(20_000);
    let (guard, took) = timed(|| client.mutex("a").lease(lease).lock().unwrap());
    assert!(took >= ms(200), "{took:?}");
    // Counted from the request, not from the reply, less 1 % and 2 ms for clock drift.
    let left = guard.remaining();
    assert!(left + ms(200 + 202) <= lease, "{left:?}");
    take(&client, "a").unlock().unwrap();
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_reply_may_arrive_in_any_pieces(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    proxy.drip(ms(0));
    for _ in 0..3 {
        let outer = take(&client, "a");
        let inner = take(&client, "a");
        inner.verify().unwrap();
        assert_eq!(client.mutex("a").holder().unwrap().unwrap().depth, 2);
        inner.unlock().unwrap();
        outer.unlock().unwrap();
        assert!(!server.exists("a"));
    }
}

fn a_reply_cut_anywhere_is_retried(server: &Server) {
    // The reply is a colon and a token of 16 digits, in a line.
    const LENGTH: usize = 19;
    let (proxy, client) = behind_proxy(server, patient());
    for bytes in 0..LENGTH {
        proxy.cut_reply(bytes);
        let guard = take(&client, "a");
        assert!(proxy.has_lost(), "after {bytes} bytes");
        assert_eq!((guard.depth(), server.hold("a").1.as_str()), (1, "1"), "after {bytes} bytes");
        guard.verify().unwrap();
        proxy.cut_reply(bytes % 4);
        guard.unlock().unwrap();
        assert!(proxy.has_lost() && !server.exists("a"), "after {bytes} bytes");
    }
}

fn a_reply_that_makes_no_sense_is_retried(server: &Server) {
    const NONSENSE: [&[u8]; 12] = [
        b"$5\r\nhello\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*1\r\n:1\r\n",
        b"*2\r\n:1\r\n:-1\r\n",
        b"*2\r\n:7\r\n:6\r\n",
        b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n",
        b":999999999999999999999\r\n",
        b"+OK\r\n",
        b"_\r\n",
        b"\0\xffHTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    // Over one connection, because nonsense at the start of a new one would mean another service.
    let (proxy, client) = behind_proxy(server, patient().pool_size(1));
    for (n, nonsense) in NONSENSE.into_iter().enumerate() {
        let what = nonsense.escape_ascii().to_string();
        // Two locks, because background work after an attempt must not get the nonsense that is
        // meant for the release.
        let (acquired, released) = (format!("acquired {n:02}"), format!("released {n:02}"));

        proxy.answer_to(&acquired, nonsense);
        let guard = take(&client, &acquired);
        assert!(proxy.has_lost());
        assert_eq!(server.hold(&acquired).1, "1", "{what}");
        let fence: u64 = server.ask(&["GET", &format!("leasehold:fence:{{lock:{acquired}}}")]);
        assert_eq!(guard.fence(), fence, "{what}");
        guard.unlock().unwrap();

        let guard = take(&client, &released);
        proxy.answer_to(&released, nonsense);
        guard.unlock().unwrap();
        assert!(proxy.has_lost());
        assert!(!server.exists(&released), "{what}");
    }
}

fn a_reply_that_is_too_long_or_nested_too_deep_is_retried(server: &Server) {
    // Without a limit, the client would wait for more until this time is over.
    let io_timeout = ms(8000);
    let (proxy, client) = behind_proxy(server, patient().io_timeout(io_timeout));
    let guard = take(&client, "a");
    let short_parts = [&b"*1000000\r\n"[..], &b":1\r\n".repeat(1_000_000)].concat();
    for reply in [&b"$99999999999\r\nx"[..], &b"*1\r\n".repeat(100), &short_parts] {
        proxy.answer(reply);
        let mut took = Duration::ZERO;
        let used = measure(|| {
            let (verified, time) = timed(|| guard.verify());
            verified.unwrap();
            took = time;
        });
        assert!(took < io_timeout, "{took:?}");
        assert!(used.bytes_max <= 65 * 1024 * 1024, "{used:?}");
        assert!(proxy.has_lost());
    }
    guard.unlock().unwrap();
}
