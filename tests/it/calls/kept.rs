//! Cached locks, which a client keeps after the last drop and releases when another client asks.

use std::thread;
use std::time::Duration;

use leasehold::{Builder, Canceller, Client, Error, HoldEnd};

use crate::support::lag::Lag;
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SOON, Server, Store, assert_unavailable, assert_wrong_type, behind_proxy, elsewhere,
    eventually, is_busy, ms, patient, sleepy, soon, stores, take, throughout, timed, unlock,
};

stores! {
    every store:
        any_thread_and_guard_can_reuse_a_kept_lock,
        the_first_lock_can_be_kept,
        a_kept_lock_is_not_a_hold,
        an_unused_lock_is_kept_no_longer,
        a_block_of_tokens_is_followed_by_another,
        threads_that_share_a_kept_lock_exclude_one_another,
        an_unlocked_lock_is_not_kept,
        locks_with_special_options_are_not_kept,
        a_kept_lock_makes_room_for_other_options,
        a_set_may_include_a_kept_lock,
        a_closed_client_keeps_nothing,
        a_client_that_is_shut_down_keeps_nothing,
        invalid_keep_times_are_refused;
    several clients:
        a_kept_lock_makes_room_for_other_kinds;
    every server:
        a_kept_lock_costs_no_request,
        a_kept_lock_is_renewed,
        another_client_gets_a_kept_lock_at_once,
        another_client_gets_a_lock_in_use_when_its_guard_is_dropped,
        a_lock_that_is_wanted_is_not_kept,
        clients_that_take_turns_leave_none_waiting,
        locks_that_clients_take_by_turns_are_not_kept,
        a_try_lock_gets_a_kept_lock,
        a_try_lock_that_is_cancelled_leaves_nothing_behind,
        a_client_whose_subscription_breaks_keeps_nothing,
        a_try_lock_of_a_lock_in_use_leaves_nothing_behind,
        a_call_for_several_locks_gets_kept_locks,
        many_locks_are_recalled_at_once,
        a_client_that_ends_keeps_nothing,
        a_kept_lock_at_a_silent_server_stretches_no_wait,
        a_kept_lock_that_is_gone_is_acquired_again,
        a_kept_lock_that_is_forced_is_free;
    every direct server:
        the_first_try_lock_of_a_client_gets_a_kept_lock,
        a_client_that_cannot_be_asked_keeps_nothing,
        a_lost_message_costs_at_most_the_keep_time,
        a_lock_in_use_is_given_up_after_a_renewal_though_messages_are_lost;
}

/// A client that keeps its locks for longer than a test takes.
fn keeping() -> Builder {
    sleepy().keep(ms(25_000))
}

/// Locks and drops until the lock is kept, because the client may not listen yet.
#[track_caller]
fn keep(client: &Client, name: &str) {
    let kept = client.stats().kept;
    eventually(SOON, || {
        drop(client.lock(name).unwrap());
        client.stats().kept > kept
    });
}

fn any_thread_and_guard_can_reuse_a_kept_lock(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    let relocks = client.stats().relocks;
    let guard = client.lock("a").unwrap();
    let fence = guard.fence();
    assert!(guard.is_held() && guard.remaining() > ms(10_000));
    let nested = client.lock("a").unwrap();
    assert_eq!((nested.fence(), nested.depth()), (fence, 2));
    drop(guard);
    assert!(nested.is_held() && is_busy(&client, "a"));
    drop(nested);
    let owned = client.lock_owned("a").unwrap();
    assert_eq!(owned.fence(), fence + 1);
    owned.verify().unwrap();
    let watch = owned.lost();
    drop(owned);
    assert_eq!(watch.wait_timeout(SOON), Some(HoldEnd::Released));
    let tried = elsewhere(|| client.try_lock("a").unwrap().unwrap().fence());
    assert_eq!(tried, fence + 2);
    let inside = client.with_lock("a", leasehold::Guard::fence).unwrap();
    assert_eq!(inside, fence + 3);
    assert_eq!(client.stats().relocks, relocks + 4);
    assert_eq!((client.stats().kept, client.stats().held), (1, 0));
}

fn the_first_lock_can_be_kept(store: &Store) {
    let client = store.open(keeping());
    drop(client.lock("a").unwrap());
    assert_eq!(client.stats().kept, 1);
}

/// The request for more tokens may take as long as one attempt, and so may the whole call.
fn a_kept_lock_at_a_silent_server_stretches_no_wait(server: &Server) {
    let (lease, io) = (ms(9000), ms(3000));
    let client = server.open(patient().lease(lease).io_timeout(io).keep(lease));
    keep(&client, "a");
    server.stop();
    // As long as there are tokens, no request is needed. A block has a thousand.
    let failed = (0..=1000).find_map(|_| {
        let (outcome, took) = timed(|| client.try_lock_for("a", ms(100)).map(drop));
        outcome.is_err().then_some((outcome, took))
    });
    server.cont();
    let (outcome, took) = failed.expect("the tokens are used up");
    assert_unavailable(outcome);
    assert!(took < 2 * io, "{took:?}");
}

fn a_kept_lock_is_not_a_hold(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(keeping().on_event(recorder.listener()));
    keep(&client, "a");
    assert!(!client.mutex("a").is_held_by_current_thread());
    let stats = client.stats();
    assert_eq!((stats.held, stats.kept, stats.lost), (0, 1, 0));
    assert_eq!(stats.acquired, stats.released);
    recorder.wait_for("released a");
}

fn an_unused_lock_is_kept_no_longer(store: &Store) {
    let client = store.open(sleepy().keep(ms(300)));
    keep(&client, "a");
    let ((), took) = timed(|| eventually(SOON, || client.stats().kept == 0));
    assert!(took >= ms(150), "{took:?}");
    eventually(SOON, || !client.mutex("a").is_locked().unwrap());
    let guard = take(&client, "a");
    thread::sleep(ms(400));
    drop(guard);
    assert_eq!(client.stats().kept, 1, "it counts from the last use");
    // The lock is used more often than that.
    for _ in 0..8 {
        thread::sleep(ms(100));
        drop(take(&client, "a"));
    }
    assert_eq!(client.stats().lost, 0);
}

fn a_block_of_tokens_is_followed_by_another(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    let mut last = 0;
    for _ in 0..2_500 {
        let fence = take(&client, "a").fence();
        assert!(fence > last, "{fence} follows {last}");
        last = fence;
    }
    take(&client, "a").verify().unwrap();
    assert_eq!(client.stats().kept, 1);
    let other = take(&client, "b");
    let guard = client.lock_owned("a").unwrap();
    assert!(guard.fence() > last && other.is_held());
}

fn threads_that_share_a_kept_lock_exclude_one_another(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    let (inside, last) = (parking_lot::Mutex::new(()), parking_lot::Mutex::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let guard = client.lock("a").unwrap();
                    let _alone = inside.try_lock().expect("no other thread has the lock");
                    let mut last = last.lock();
                    assert!(guard.fence() > *last);
                    *last = guard.fence();
                }
            });
        }
    });
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiting, stats.lost), (0, 0, 0));
}

fn an_unlocked_lock_is_not_kept(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    take(&client, "a").unlock().unwrap();
    assert_eq!(client.stats().kept, 0);
    assert!(!client.mutex("a").is_locked().unwrap());
}

fn locks_with_special_options_are_not_kept(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "warm");
    let mutex = client.mutex("a");
    drop(mutex.clone().max_hold(ms(60_000)).lock().unwrap());
    drop(mutex.clone().renew(false).lock().unwrap());
    drop(mutex.clone().keep(ms(0)).lock().unwrap());
    drop(client.election("a").campaign().unwrap());
    drop(client.lock_all(["a", "b"]).unwrap());
    drop(mutex.hold_at_least(ms(1)).lock().unwrap());
    assert_eq!(client.stats().kept, 1);
}

fn a_kept_lock_makes_room_for_other_options(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    let fence = take(&client, "a").fence();
    let other = client.mutex("a").lease(ms(29_000)).keep(ms(0)).lock().unwrap();
    assert!(other.fence() > fence && other.remaining() <= ms(29_000));
    other.verify().unwrap();
    drop(other);
    assert_eq!((client.stats().kept, client.stats().lost), (0, 0));
    let term = client.election("a").try_campaign().unwrap().expect("the lock is free");
    term.verify().unwrap();
}

fn a_kept_lock_makes_room_for_other_kinds(store: &Store) {
    let (keeper, other) = (store.open(keeping()), store.open(sleepy()));
    // Each hold is released when it is dropped.
    let calls: [fn(&Client) -> bool; 4] = [
        |client| client.rw_lock("a").read().is_ok(),
        |client| client.rw_lock("a").try_write().is_ok_and(|side| side.is_some()),
        |client| client.semaphore("a", 1).acquire().is_ok(),
        |client| client.semaphore("a", 1).try_acquire().is_ok_and(|permit| permit.is_some()),
    ];
    for (client, call) in [&keeper, &other].into_iter().flat_map(|it| calls.map(|call| (it, call)))
    {
        // A slow machine may take longer than the keeper's time to release the lock.
        eventually(SOON, || {
            keep(&keeper, "a");
            drop(take(&keeper, "a"));
            call(client)
        });
    }
    keep(&keeper, "a");
    let guard = take(&keeper, "a");
    for client in [&keeper, &other] {
        assert_wrong_type(client.rw_lock("a").read(), "a");
        assert_wrong_type(client.semaphore("a", 1).try_acquire(), "a");
    }
    guard.verify().unwrap();
    drop(guard);
    assert_eq!((keeper.stats().kept, store.queue("a")), (1, vec![]));
}

fn a_set_may_include_a_kept_lock(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    let fence = take(&client, "a").fence();
    let all = client.try_lock_all(["b", "a"]).unwrap().expect("no thread holds them");
    assert!(all.fence("a").unwrap() > fence);
    all.verify().unwrap();
    all.unlock().unwrap();
    assert_eq!((client.stats().kept, client.stats().held), (0, 0));
}

fn a_closed_client_keeps_nothing(store: &Store) {
    let client = store.open(keeping());
    keep(&client, "a");
    let guard = take(&client, "b");
    client.close();
    drop(guard);
    assert_eq!(client.stats().kept, 0);
    client.shutdown(SOON).unwrap();
    assert!(!client.mutex("a").is_locked().unwrap() && !client.mutex("b").is_locked().unwrap());
}

fn a_client_that_is_shut_down_keeps_nothing(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(keeping().on_event(recorder.listener()));
    for name in ["a", "b", "c"] {
        keep(&client, name);
    }
    client.shutdown(SOON).unwrap();
    assert_eq!((client.stats().kept, client.stats().lost), (0, 0));
    for name in ["a", "b", "c"] {
        assert!(!client.mutex(name).is_locked().unwrap());
    }
    assert!(matches!(client.lock("a"), Err(Error::Closed)));
}

fn invalid_keep_times_are_refused(store: &Store) {
    let bad = |result: Result<(), Error>| matches!(result, Err(Error::InvalidInput(_)));
    let open = |builder: Builder| builder.in_memory().map(drop);
    assert!(bad(open(Client::builder().keep(ms(30_001)))));
    assert!(bad(open(Client::builder().redisson(true).keep(ms(1)))));
    assert!(bad(open(Client::builder().pollers(true).keep(ms(1)))));
    open(Client::builder().keep(ms(30_000))).unwrap();
    let client = store.open(patient());
    assert!(bad(client.mutex("a").keep(ms(30_001)).lock().map(drop)));
    assert!(client.election("a").try_campaign().unwrap().is_some());
    let keeping = Client::builder().keep(ms(20_000)).in_memory().unwrap();
    drop(keeping.rw_lock("b").lease(ms(10_000)).read().unwrap());
    drop(keeping.semaphore("c", 1).lease(ms(10_000)).acquire().unwrap());
}

fn a_kept_lock_costs_no_request(server: &Server) {
    let client = server.open(keeping());
    keep(&client, "a");
    let before = server.settled_evals();
    for _ in 0..50 {
        drop(client.lock("a").unwrap());
        drop(client.try_lock("a").unwrap().unwrap());
        drop(client.lock_owned("a").unwrap());
    }
    assert_eq!(server.settled_evals(), before);
}

fn a_kept_lock_is_renewed(server: &Server) {
    let client = server.open_for(LEASE, sleepy().lease(LEASE).keep(LEASE));
    keep(&client, "a");
    let relocks = client.stats().relocks;
    throughout(LEASE * 3, || {
        drop(client.lock("a").unwrap());
        server.exists("a")
    });
    assert!(client.stats().relocks > relocks && client.stats().lost == 0);
    assert!(client.stats().renewals > 0);
}

fn another_client_gets_a_kept_lock_at_once(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    keep(&keeper, "a");
    let fence = take(&keeper, "a").fence();
    let guard = soon(|| other.lock("a").unwrap());
    assert!(guard.fence() > fence);
    let stats = keeper.stats();
    assert_eq!((stats.kept, stats.recalls, stats.lost), (0, 1, 0));
    unlock(guard);
    keep(&keeper, "a");
}

fn another_client_gets_a_lock_in_use_when_its_guard_is_dropped(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    keep(&keeper, "a");
    let guard = take(&keeper, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| soon(|| other.lock("a").unwrap().fence()));
        eventually(SOON, || server.queue("a") == [other.id()]);
        assert!(!waiter.is_finished() && guard.is_held());
        // The message must arrive first.
        thread::sleep(ms(100));
        let fence = guard.fence();
        drop(guard);
        assert!(waiter.join().unwrap() > fence);
    });
}

fn a_lock_that_is_wanted_is_not_kept(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    keep(&keeper, "a");
    thread::scope(|scope| {
        let guard = take(&keeper, "a");
        scope.spawn(|| other.lock("a").unwrap().unlock().unwrap());
        eventually(SOON, || server.queue("a") == [other.id()]);
        thread::sleep(ms(100));
        // A thread of the same client also waits, and the tenure is over.
        scope.spawn(|| keeper.lock("a").unwrap().unlock().unwrap());
        eventually(SOON, || keeper.stats().waiting == 1);
        drop(guard);
    });
    eventually(SOON, || !server.exists("a"));
    assert_eq!(keeper.stats().kept, 0);
}

/// Together with the lock, a client learns whether a third client waits.
fn clients_that_take_turns_leave_none_waiting(server: &Server) {
    let clients = [(); 3].map(|()| server.open(keeping()));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for round in 0..100 {
                    let (guard, took) = timed(|| client.lock("a").unwrap());
                    assert!(took < SOON / 2, "{took:?} in round {round}");
                    drop(guard);
                    thread::yield_now();
                }
            });
        }
    });
}

fn locks_that_clients_take_by_turns_are_not_kept(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    keep(&keeper, "b");
    // Keeping the lock is pointless now, unless this test is very slow.
    eventually(SOON, || {
        for _ in 0..3 {
            drop(keeper.lock("a").unwrap());
            unlock(soon(|| other.lock("a").unwrap()));
        }
        drop(keeper.lock("a").unwrap());
        keeper.stats().kept == 1
    });
    assert!(keeper.stats().recalls >= 3);
    keep(&keeper, "a");
}

fn a_try_lock_gets_a_kept_lock(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(keeping()));
    // A slow machine may take longer than the time limit of a call.
    eventually(SOON, || {
        keep(&keeper, "a");
        let guard = other.try_lock("a").unwrap();
        guard.is_some_and(|guard| guard.verify().and_then(|()| guard.unlock()).is_ok())
    });
    eventually(SOON, || server.queue("a").is_empty());
    assert!(keeper.stats().recalls > 0);
}

fn a_try_lock_of_a_lock_in_use_leaves_nothing_behind(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(keeping()));
    keep(&keeper, "a");
    let guard = take(&keeper, "a");
    assert!(other.try_lock("a").unwrap().is_none());
    assert!(server.queue("a").is_empty());
    drop(guard);
    assert_eq!(keeper.stats().kept, 1);
}

/// Such a client begins to listen during the call, before a distant keeper has released the lock.
fn the_first_try_lock_of_a_client_gets_a_kept_lock(server: &Server) {
    let lag = Lag::before(server, ms(10));
    let keeper = server.through(lag.port()).open(keeping());
    let calls: [fn(&Client) -> bool; 2] = [
        |new| new.try_lock("a").unwrap().is_some_and(|guard| guard.unlock().is_ok()),
        |new| new.try_lock_all(["b", "a"]).unwrap().is_some_and(|set| set.unlock().is_ok()),
    ];
    for call in calls {
        // A slow machine may take longer than the time limit of a call.
        eventually(2 * SOON, || {
            keep(&keeper, "a");
            drop(take(&keeper, "a"));
            call(&server.open(sleepy()))
        });
    }
}

fn a_try_lock_that_is_cancelled_leaves_nothing_behind(server: &Server) {
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    keep(&keeper, "a");
    let _guard = take(&keeper, "a");
    // A slow machine may take longer than the time limit of a call.
    eventually(SOON, || {
        let canceller = Canceller::new();
        thread::scope(|scope| {
            let mutex = other.mutex("a").cancelled_by(&canceller);
            let tries = scope.spawn(move || mutex.try_lock().map(|guard| guard.is_some()));
            eventually(SOON, || tries.is_finished() || !server.queue("a").is_empty());
            canceller.cancel();
            matches!(tries.join().unwrap(), Err(Error::Cancelled { .. }))
        })
    });
    eventually(SOON, || server.queue("a").is_empty());
}

fn a_client_whose_subscription_breaks_keeps_nothing(server: &Server) {
    let client = server.open(keeping());
    keep(&client, "a");
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually(SOON, || client.stats().kept == 0 && !server.exists("a"));
    keep(&client, "a");
}

fn a_client_that_cannot_be_asked_keeps_nothing(server: &Server) {
    let (proxy, keeper) = behind_proxy(server, keeping().io_timeout(ms(5000)));
    let other = server.open(sleepy());
    keep(&keeper, "a");
    proxy.delay_subscriptions(ms(60_000));
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    soon(|| other.lock("a").unwrap()).unlock().unwrap();
    take(&keeper, "a").verify().unwrap();
    assert_eq!((keeper.stats().kept, keeper.stats().lost), (0, 0));
    proxy.heal();
    keep(&keeper, "a");
}

fn a_call_for_several_locks_gets_kept_locks(server: &Server) {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    let keeps_all = || {
        for name in NAMES {
            drop(keeper.lock(name).unwrap());
        }
        keeper.stats().kept == 3
    };
    eventually(SOON, keeps_all);
    soon(|| other.lock_all(NAMES).unwrap()).unlock().unwrap();
    assert_eq!((keeper.stats().kept, keeper.stats().recalls), (0, 3));
    // A slow machine may take longer than the time limit of a call.
    eventually(SOON, || {
        let set = keeps_all().then(|| other.try_lock_all(NAMES).unwrap()).flatten();
        set.is_some_and(|set| set.verify().and_then(|()| set.unlock()).is_ok())
    });
    let guard = take(&keeper, "b");
    assert!(other.try_lock_all(NAMES).unwrap().is_none());
    assert!(server.queue("b").is_empty() && guard.is_held());
}

fn many_locks_are_recalled_at_once(server: &Server) {
    const LOCKS: u64 = 200;
    let (keeper, other) = (server.open(keeping()), server.open(sleepy()));
    let names: Vec<_> = (0..LOCKS).map(|number| format!("lock {number}")).collect();
    keep(&keeper, &names[0]);
    names[1..].iter().for_each(|name| drop(take(&keeper, name)));
    assert_eq!(keeper.stats().kept, LOCKS);
    thread::scope(|scope| {
        for names in names.chunks(20) {
            let other = &other;
            scope.spawn(move || {
                for name in names {
                    soon(|| other.lock(name).unwrap()).unlock().unwrap();
                }
            });
        }
    });
    assert_eq!((keeper.stats().kept, keeper.stats().recalls), (0, LOCKS));
}

fn a_client_that_ends_keeps_nothing(server: &Server) {
    let client = server.open(keeping());
    keep(&client, "a");
    keep(&client, "b");
    drop(client);
    assert!(!server.exists("a") && !server.exists("b"));
}

fn a_kept_lock_that_is_gone_is_acquired_again(server: &Server) {
    let recorder = Recorder::default();
    let client =
        server.open_for(LEASE, keeping().lease(LEASE).keep(LEASE).on_event(recorder.listener()));
    keep(&client, "a");
    let last = take(&client, "a").fence();
    let (owner, _) = server.hold("a");
    server.command(&["DEL", "lock:a"]);
    eventually(SOON, || client.stats().kept == 0);
    let guard = take(&client, "a");
    assert!(guard.fence() > last && server.hold("a").0 != owner);
    guard.verify().unwrap();
    assert_eq!(client.stats().lost, 0);
    assert!(recorder.events().iter().all(|event| !event.starts_with("lost")));
}

fn a_kept_lock_that_is_forced_is_free(server: &Server) {
    let (client, operator) = (server.open(keeping()), server.open(patient()));
    keep(&client, "a");
    assert!(client.mutex("a").force_unlock().unwrap());
    assert_eq!((client.stats().kept, client.stats().lost), (0, 0));
    keep(&client, "a");
    let last = take(&client, "a").fence();
    assert!(operator.mutex("a").force_unlock().unwrap());
    let theirs = operator.lock("a").unwrap();
    assert!(theirs.fence() > last);
    // Until it is notified or asks, the client relies on its hold.
    let guard = client.try_lock("a").unwrap();
    assert!(guard.is_none_or(|guard| guard.verify().is_err()));
}

fn a_lost_message_costs_at_most_the_keep_time(server: &Server) {
    const KEEP: Duration = ms(1500);
    let (proxy, keeper) = behind_proxy(server, sleepy().keep(KEEP));
    keep(&keeper, "a");
    proxy.lose_messages();
    let other = server.open(sleepy());
    let (guard, took) = timed(|| other.lock("a").unwrap());
    assert!(took < KEEP + SOON / 2 && took > ms(200), "{took:?}");
    unlock(guard);
}

fn a_lock_in_use_is_given_up_after_a_renewal_though_messages_are_lost(server: &Server) {
    const LEASE: Duration = ms(6000);
    let (proxy, keeper) = behind_proxy(server, sleepy().lease(LEASE).keep(LEASE));
    keep(&keeper, "a");
    proxy.lose_messages();
    let other = server.open(sleepy());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| soon(|| other.lock("a").unwrap()).unlock().unwrap());
        while !waiter.is_finished() {
            drop(keeper.lock("a").unwrap());
            thread::sleep(ms(5));
        }
    });
}
