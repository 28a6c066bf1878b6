//! A server in memory that is down, slow, or has ended a hold.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Canceller, Client, Error, HoldEnd, MemoryServer};

use crate::support::errors::assert_has_its_cause;
use crate::support::kinds::Kind;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SHORT, SOON, assert_lost, eventually, hasty, ms, patient, sleepy, take, throughout,
    timed,
};

fn opened(server: &MemoryServer, builder: Builder) -> Client {
    builder.open_memory(server).expect("it is up")
}

#[test]
fn a_server_that_is_down_is_not_contention() {
    let server = MemoryServer::new();
    let [client, other] = [(); 2].map(|()| opened(&server, hasty().wait(ms(50))));
    let guard = take(&client, "a");
    server.set_down(true);
    for result in [
        other.lock("a").map(drop),
        other.try_lock("a").map(drop),
        other.try_lock("free").map(drop),
        other.try_lock_for("a", ms(50)).map(drop),
        other.rw_lock("b").read().map(drop),
        other.semaphore("c", 1).try_acquire().map(drop),
        other.lock_all(["d", "e"]).map(drop),
        other.election("f").leader().map(drop),
        other.mutex("a").holder().map(drop),
        other.mutex("a").force_unlock().map(drop),
        other.ping().map(drop),
        guard.verify(),
        guard.renew(),
    ] {
        assert!(
            matches!(result, Err(Error::Unavailable { may_have_executed: false, .. })),
            "{result:?}"
        );
    }
    assert!(guard.is_held());
    server.set_down(false);
    guard.verify().unwrap();
    assert!(other.try_lock("a").unwrap().is_none(), "it keeps what it has");
    drop(guard);
    drop(take(&other, "a"));
}

#[test]
fn a_client_is_opened_while_the_server_is_down_if_it_is_lazy() {
    let server = MemoryServer::new();
    server.set_down(true);
    let refused = Client::builder().open_memory(&server);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    let lazy = opened(&server, Client::builder().lazy(true));
    assert!(matches!(lazy.try_lock("a"), Err(Error::Unavailable { .. })));
    server.set_down(false);
    drop(take(&lazy, "a"));
}

#[test]
fn a_hold_is_lost_at_its_deadline_and_not_before() {
    let server = MemoryServer::new();
    let recorder = Recorder::default();
    let client = opened(&server, Client::builder().lease(SHORT).on_event(recorder.listener()));
    let guard = take(&client, "a");
    let begin = Instant::now();
    server.set_down(true);
    assert_eq!(guard.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert!(begin.elapsed() >= SHORT * 8 / 10, "{:?}", begin.elapsed());
    assert_lost(guard.verify(), "a");
    recorder.wait_for("renewal failing a");
    server.set_down(false);
    drop(take(&client, "b"));
}

#[test]
fn a_short_outage_loses_nothing() {
    let server = MemoryServer::new();
    let client = opened(&server, Client::builder().lease(LEASE));
    let guard = take(&client, "a");
    server.set_down(true);
    thread::sleep(LEASE / 3);
    server.set_down(false);
    throughout(LEASE, || guard.is_held());
    guard.verify().unwrap();
}

#[test]
fn waiters_go_on_after_an_outage() {
    let server = MemoryServer::new();
    let [holder, waiter] = [(); 2].map(|()| opened(&server, patient()));
    let guard = holder.lock_owned("a").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(drop));
        eventually(SOON, || waiter.stats().waiting == 1);
        server.set_down(true);
        thread::sleep(ms(100));
        assert!(!waits.is_finished());
        server.set_down(false);
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
}

/// Calls that retry while the server is away.
#[test]
fn cancelling_ends_waits_in_an_outage() {
    let server = MemoryServer::new();
    let client = opened(&server, patient().retry_window(10 * SOON));
    server.set_down(true);
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let lock = client.mutex("a").cancelled_by(&canceller);
        let set = client.multi_mutex(["b", "c"]).cancelled_by(&canceller);
        let waits =
            [scope.spawn(move || lock.lock().map(drop)), scope.spawn(move || set.lock().map(drop))];
        thread::sleep(ms(100));
        canceller.cancel();
        for wait in waits {
            let (result, took) = timed(|| wait.join().unwrap());
            assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
            assert!(took < SOON, "{took:?}");
        }
    });
}

/// The drop cannot release the lock, because the server is away.
#[test]
fn a_release_that_has_failed_is_repeated() {
    let server = MemoryServer::new();
    let [client, other] = [(); 2].map(|()| opened(&server, patient()));
    let guard = take(&client, "a");
    server.set_down(true);
    drop(guard);
    server.set_down(false);
    drop(other.lock("a").unwrap());
}

#[test]
fn each_reply_takes_the_set_delay() {
    let server = MemoryServer::new();
    let delay = ms(800);
    let client = opened(&server, Client::builder().io_timeout(SOON));
    server.set_delay(delay);
    let (guard, took) = timed(|| take(&client, "a"));
    assert!(took >= delay, "{took:?}");
    assert!(guard.remaining() + delay < ms(30_000), "it counts from the request");
    let ((), dropped) = timed(|| drop(guard));
    assert!(dropped < delay, "{dropped:?}");
    let (_, took) = timed(|| client.ping().unwrap());
    assert!(took >= delay, "{took:?}");
}

#[test]
fn holds_that_took_too_long_are_cleaned_up() {
    let server = MemoryServer::new();
    let [client, other] = [hasty(), sleepy()].map(|builder| opened(&server, builder));
    server.set_delay(Duration::MAX);
    for result in [
        client.try_lock("a").map(drop),
        client.rw_lock("b").try_write().map(drop),
        client.semaphore("c", 1).try_acquire().map(drop),
        client.try_lock_all(["d", "e"]).map(drop),
    ] {
        assert!(
            matches!(result, Err(Error::Unavailable { may_have_executed: true, .. })),
            "{result:?}"
        );
    }
    server.set_delay(Duration::ZERO);
    let begin = Instant::now();
    drop(other.lock("a").unwrap());
    drop(other.rw_lock("b").write().unwrap());
    drop(other.semaphore("c", 1).acquire().unwrap());
    drop(other.lock_all(["d", "e"]).unwrap());
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn a_reply_that_is_on_its_way_when_the_server_goes_down_is_lost() {
    let server = MemoryServer::new();
    let [client, other] = [(); 2].map(|()| opened(&server, hasty()));
    server.set_delay(ms(200));
    thread::scope(|scope| {
        let tries = scope.spawn(|| client.try_lock("a").map(drop));
        eventually(SOON, || {
            let holder = server.clone();
            holder.set_delay(Duration::ZERO);
            let held = other.mutex("a").is_locked().unwrap();
            holder.set_delay(ms(200));
            held
        });
        server.set_down(true);
        let lost = tries.join().unwrap();
        assert!(
            matches!(lost, Err(Error::Unavailable { may_have_executed: true, .. })),
            "{lost:?}"
        );
    });
    server.set_delay(Duration::ZERO);
    server.set_down(false);
    eventually(SOON, || other.try_lock("a").unwrap().is_some());
}

#[test]
fn a_slow_server_delays_no_renewal_beyond_the_lease() {
    let server = MemoryServer::new();
    let client = opened(&server, Client::builder().lease(LEASE));
    let guard = take(&client, "a");
    server.set_delay(LEASE / 10);
    throughout(LEASE * 2, || guard.is_held());
}

#[test]
fn a_hold_is_ended_once_and_only_that_of_the_default_prefix() {
    let server = MemoryServer::new();
    let client = opened(&server, Client::builder());
    let prefixed = opened(&server, Client::builder().prefix("shop:"));
    let (guard, another) = (take(&client, "a"), take(&prefixed, "a"));
    assert!(!server.end_hold("b"));
    assert!(server.end_hold("a"));
    assert!(!server.end_hold("a"));
    assert_lost(guard.verify(), "a");
    another.verify().unwrap();
    let again = take(&client, "b");
    server.set_down(true);
    assert!(server.end_hold("b"), "though it is down");
    server.set_down(false);
    assert_lost(again.unlock(), "b");
}

#[test]
fn a_kept_lock_is_not_a_hold_to_end() {
    let server = MemoryServer::new();
    let client = opened(&server, Client::builder().keep(ms(20_000)));
    // On a slow machine the client may take too long to release it.
    eventually(SOON, || {
        drop(client.lock("a").unwrap());
        assert_eq!(client.stats().kept, 1);
        let ended = server.end_hold("a");
        eventually(SOON, || client.stats().kept == 0);
        assert!(!server.end_hold("a") && client.stats().lost == 0);
        !ended
    });
    let guard = take(&client, "a");
    assert!(server.end_hold("a"));
    assert_lost(guard.verify(), "a");
}

#[test]
fn a_waiter_gets_a_lock_whose_hold_was_ended() {
    let server = MemoryServer::new();
    let [holder, waiter] = [(); 2].map(|()| opened(&server, sleepy()));
    let held = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(drop));
        eventually(SOON, || waiter.stats().waiting == 1 && server_has_waiter(&holder));
        assert!(server.end_hold("a"));
        waits.join().unwrap().unwrap();
    });
    assert_lost(held.unlock(), "a");
}

fn server_has_waiter(observer: &Client) -> bool {
    !observer.survey().report("a").unwrap().waiting.is_empty()
}

#[test]
fn a_client_that_is_gone_keeps_no_place_in_the_queue() {
    let server = MemoryServer::new();
    let [holder, other] = [(); 2].map(|()| opened(&server, sleepy()));
    let gone = opened(&server, hasty().retry_window(ms(100)));
    let held = holder.rw_lock("a").write().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| gone.rw_lock("a").write().map(drop));
        eventually(SOON, || server_has_waiter(&holder));
        server.set_down(true);
        gone.close();
        waits.join().unwrap().unwrap_err();
    });
    drop(gone);
    server.set_down(false);
    held.unlock().unwrap();
    eventually(SOON, || other.rw_lock("a").try_read().unwrap().is_some());
}

#[test]
fn memory_servers_share_nothing() {
    let [one, other] = [(); 2].map(|()| opened(&MemoryServer::new(), Client::builder()));
    let _guards = [take(&one, "a"), take(&other, "a")];
    let server = MemoryServer::default();
    let same = opened(&server.clone(), Client::builder());
    let _guard = take(&same, "a");
    assert!(opened(&server, Client::builder()).try_lock("a").unwrap().is_none());
    assert_eq!(format!("{server:?}"), "MemoryServer { .. }");
}

#[test]
fn the_threads_of_a_client_end_with_it_however_slow_the_server_is() {
    let server = MemoryServer::new();
    let client = opened(&server, hasty());
    drop(take(&client, "a"));
    server.set_delay(Duration::MAX);
    let ((), took) = timed(|| drop(client));
    assert!(took < SOON, "{took:?}");
}

#[test]
fn a_refusal_is_the_error_of_each_call_and_changes_nothing() {
    let server = MemoryServer::new();
    let client = opened(&server, hasty());
    let guard = take(&client, "a");
    server.refuse_with(Some("NOPERM this user has no\r\nright"));
    for result in [
        client.try_lock("b").map(drop),
        client.rw_lock("c").read().map(drop),
        client.semaphore("d", 1).try_acquire().map(drop),
        client.lock_all(["e", "f"]).map(drop),
        client.election("g").leader().map(drop),
        client.mutex("a").force_unlock().map(drop),
        client.ping().map(drop),
        guard.verify(),
        guard.renew(),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Redis { code, .. } if code == "NOPERM"), "{error:?}");
        assert_has_its_cause(&error);
    }
    server.refuse_with(Some("LOADING"));
    let loading = client.try_lock_for("b", ms(30));
    assert!(matches!(loading, Err(Error::Unavailable { .. })), "{loading:?}");
    server.refuse_with(None);
    guard.unlock().unwrap();
    for name in ["b", "e", "f"] {
        drop(take(&client, name));
    }
}

#[test]
fn a_server_can_refuse_as_a_quorum_or_replicas_do() {
    let server = MemoryServer::new();
    let [client, other] = [(); 2].map(|()| opened(&server, hasty()));
    let guard = take(&client, "a");
    server.refuse_with(Some("NOQUORUM"));
    for result in [client.try_lock("b").map(drop), guard.verify()] {
        let Err(Error::NoQuorum { ok: 1, required: 2, may_have_executed: false, .. }) = result
        else {
            panic!("{result:?}")
        };
    }
    server.refuse_with(Some("NOTREPLICATED"));
    assert!(other.try_lock("a").unwrap().is_none(), "contention");
    guard.verify().unwrap();
    for result in [
        client.try_lock("b").map(drop),
        client.lock("a").map(drop),
        client.lock_all(["b", "c"]).map(drop),
        client.rw_lock("d").write().map(drop),
        client.semaphore("e", 1).acquire().map(drop),
        guard.renew(),
    ] {
        let Err(Error::NotReplicated { acked: 0, required: 1, .. }) = result else {
            panic!("{result:?}")
        };
    }
    server.refuse_with(None);
    guard.unlock().unwrap();
    for name in ["a", "b", "c"] {
        // It was released, possibly in the background.
        eventually(SOON, || other.try_lock(name).unwrap().is_some());
    }
}

#[test]
fn holds_of_every_kind_and_prefix_can_be_ended() {
    let server = MemoryServer::new();
    for (prefix, before) in [("lock:", ""), ("shop:", "shop:")] {
        let client = opened(&server, sleepy().prefix(prefix).lease(LEASE));
        for kind in Kind::ALL {
            let hold = kind.acquire(&client, "a").unwrap();
            assert!(server.end_hold(&format!("{before}a")), "{prefix} {kind:?}");
            assert_eq!(hold.lost().wait_timeout(SOON), Some(HoldEnd::Lost), "{prefix} {kind:?}");
            assert!(!server.end_hold(&format!("{before}a")), "{prefix} {kind:?}");
            drop(hold);
        }
        let readers = [(); 3].map(|()| client.rw_lock("b").read().unwrap());
        assert!(server.end_hold(&format!("{before}b")));
        for reader in readers {
            assert_eq!(reader.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
        }
    }
}
