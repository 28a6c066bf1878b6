//! A thread that holds a lock may lock it again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use leasehold::{Client, Error, Guard, HoldEnd, Mutex};

use crate::support::{
    LEASE, SHORT, SOON, Server, Store, assert_lost, elsewhere, eventually, is_busy, ms, patient,
    stores, take, throughout,
};

stores! {
    every store:
        a_nested_lock_raises_the_depth_and_keeps_the_fence,
        every_way_of_locking_nests,
        a_lock_that_is_not_reentrant_is_held_already,
        a_lock_that_is_not_reentrant_excludes_stolen_work,
        a_clone_of_the_client_nests_too,
        another_thread_does_not_nest,
        the_hold_ends_with_its_last_guard_in_any_order,
        a_lock_after_the_last_guard_is_a_new_hold,
        nesting_does_not_prolong_a_hold_that_is_not_renewed,
        nesting_does_not_prolong_a_hold_beyond_max_hold,
        a_nested_lock_keeps_the_options_of_the_hold,
        an_owned_guard_never_nests;
    every server:
        redis_keeps_one_field_with_the_depth,
        a_spoilt_depth_in_redis_does_not_count,
        nesting_refreshes_the_lease;
}

fn a_nested_lock_raises_the_depth_and_keeps_the_fence(store: &Store) {
    let client = store.open(patient());
    let outer = take(&client, "a");
    let middle = client.lock("a").unwrap();
    let inner = client.lock("a").unwrap();
    assert_eq!([outer.depth(), middle.depth(), inner.depth()], [1, 2, 3]);
    assert_eq!(middle.fence(), outer.fence());
    assert_eq!(inner.fence(), outer.fence());
    for guard in [&outer, &middle, &inner] {
        assert!(guard.is_held());
        guard.verify().unwrap();
    }
}

fn every_way_of_locking_nests(store: &Store) {
    let client = store.open(patient());
    let _outer = take(&client, "a");
    let second = client.try_lock("a").unwrap().unwrap();
    let third = client.try_lock_for("a", ms(100)).unwrap().unwrap();
    let fourth = client.mutex("a").lock().unwrap();
    let fifth = client.with_lock("a", leasehold::Guard::depth).unwrap();
    assert_eq!([second.depth(), third.depth(), fourth.depth(), fifth], [2, 3, 4, 5]);
}

fn a_lock_that_is_not_reentrant_is_held_already(store: &Store) {
    let client = store.open(patient().reentrant(false));
    let guard = take(&client, "a");
    assert_held_already(client.lock("a").map(drop));
    assert_held_already(client.try_lock("a").map(drop));
    assert_held_already(client.try_lock_for("a", ms(10)).map(drop));
    assert_held_already(client.with_lock("a", |_| ()));
    assert_held_already(client.try_with_lock("a", |_| ()).map(drop));
    assert_held_already(client.lock_owned("a").map(drop));
    assert_held_already(client.try_lock_owned("a").map(drop));
    assert_held_already(client.try_lock_owned_for("a", ms(10)).map(drop));
    assert_held_already(client.election("a").campaign().map(drop));
    assert_held_already(client.election("a").try_campaign().map(drop));
    assert!(elsewhere(|| client.try_lock_owned("a")).unwrap().is_none());
    assert_eq!(client.mutex("a").reentrant(true).lock().unwrap().depth(), 2);
    assert!(is_busy(&client, "a"), "another thread waits as usual");
    guard.unlock().unwrap();
    take(&client, "a").unlock().unwrap();
}

fn assert_held_already(result: Result<(), Error>) {
    match result {
        Err(Error::AlreadyHeld { name, .. }) => assert_eq!(name, "a"),
        other => panic!("{other:?}"),
    }
}

/// A rayon thread that waits for the other half of a `join` runs other tasks meanwhile.
fn a_lock_that_is_not_reentrant_excludes_stolen_work(store: &Store) {
    let client = store.open(patient());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let most_inside = |mutex: &Mutex| {
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        let refused = AtomicU32::new(0);
        let task = || match mutex.lock() {
            Ok(_guard) => {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // The holder waits for work, and the only thread of the pool finds the next task.
                rayon::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
            }
            Err(Error::AlreadyHeld { .. }) => {
                refused.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => panic!("{error:?}"),
        };
        pool.scope(|scope| (0..4).for_each(|_| scope.spawn(|_| task())));
        (most.into_inner(), refused.into_inner())
    };
    let (inside, refused) = most_inside(&client.mutex("a"));
    assert!(inside > 1 && refused == 0, "{inside} were inside at the same time");
    let (inside, refused) = most_inside(&client.mutex("a").reentrant(false));
    assert!(inside == 1 && refused > 0, "{inside} were inside at the same time");
}

fn a_clone_of_the_client_nests_too(store: &Store) {
    let client = store.open(patient());
    let _outer = take(&client, "a");
    assert_eq!(take(&client.clone(), "a").depth(), 2);
}

fn another_thread_does_not_nest(store: &Store) {
    let client = store.open(patient());
    let outer = take(&client, "a");
    let _inner = take(&client, "a");
    assert!(is_busy(&client, "a"));
    drop(outer);
    assert!(is_busy(&client, "a"));
}

fn the_hold_ends_with_its_last_guard_in_any_order(store: &Store) {
    let client = store.open(patient());
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut guards = [(); 3].map(|()| Some(take(&client, "a")));
        for (dropped, index) in order.into_iter().enumerate() {
            assert!(is_busy(&client, "a"), "{order:?}, {dropped} dropped");
            guards[index].take().unwrap().unlock().unwrap();
            for guard in guards.iter().flatten() {
                assert!(guard.is_held(), "{order:?}, {dropped} dropped");
                guard.verify().unwrap();
            }
        }
        assert!(!is_busy(&client, "a"), "{order:?}");
    }
}

fn a_lock_after_the_last_guard_is_a_new_hold(store: &Store) {
    let client = store.open(patient());
    let outer = take(&client, "a");
    let inner = take(&client, "a");
    let fence = outer.fence();
    drop((outer, inner));
    let again = take(&client, "a");
    assert_eq!(again.depth(), 1);
    assert!(again.fence() > fence);
}

fn redis_keeps_one_field_with_the_depth(server: &Server) {
    let client = server.open(patient());
    let outer = take(&client, "a");
    let (owner, depth) = server.hold("a");
    assert_eq!(depth, "1");
    let middle = take(&client, "a");
    let inner = take(&client, "a");
    assert_eq!(server.hold("a"), (owner.clone(), "3".to_owned()));
    inner.unlock().unwrap();
    assert_eq!(server.hold("a"), (owner.clone(), "2".to_owned()));
    drop(middle);
    eventually(SOON, || server.hold("a") == (owner.clone(), "1".to_owned()));
    outer.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_spoilt_depth_in_redis_does_not_count(server: &Server) {
    let client = server.open(patient());
    // 0 is not among them: a hold with that depth has ended.
    for spoilt in ["abc", "", "-1", "9223372036854775807"] {
        let outer = take(&client, "a");
        let (owner, _) = server.hold("a");
        server.command(&["HSET", "lock:a", &owner, spoilt]);
        // Only the depth that this process knows matters.
        outer.verify().unwrap();
        let inner = take(&client, "a");
        assert_eq!((inner.depth(), server.hold("a").1.as_str()), (2, "2"), "{spoilt:?}");
        server.command(&["HSET", "lock:a", &owner, spoilt]);
        inner.unlock().unwrap();
        assert_eq!(server.hold("a").1, "1", "{spoilt:?}");
        server.command(&["HSET", "lock:a", &owner, spoilt]);
        outer.unlock().unwrap();
        assert!(!server.exists("a"), "{spoilt:?}");
    }
}

fn nesting_refreshes_the_lease(server: &Server) {
    let client = server.open(Client::builder().lease(ms(9000)));
    let outer = take(&client, "a");
    thread::sleep(ms(1500));
    assert!(server.pttl("a") <= ms(7500));
    let inner = take(&client, "a");
    assert!(server.pttl("a") > ms(7600));
    // One hold has one lease: the outer guard lasts as long as the inner one.
    assert!(outer.remaining() > ms(7600), "{:?}", outer.remaining());
    assert!(inner.remaining() > ms(7600), "{:?}", inner.remaining());
}

/// Adds a level to a hold that ends at `end`, and releases it. Checks that the hold still ends at
/// that time, both here and in the store.
fn nest_until(end: Instant, mutex: &Mutex, outer: &Guard) {
    for nest in [true, false, true] {
        let inner = mutex.lock().unwrap();
        if nest {
            inner.unlock().unwrap();
        }
        let left = end.saturating_duration_since(Instant::now()) + ms(50);
        let (here, store) = (outer.remaining(), mutex.holder().unwrap().unwrap().remaining);
        assert!(here <= left && store <= left, "{here:?} and {store:?} instead of {left:?}");
        thread::sleep(ms(150));
    }
}

fn nesting_does_not_prolong_a_hold_that_is_not_renewed(store: &Store) {
    let client = store.open_for(2 * SHORT, patient());
    let mutex = client.mutex("a").lease(2 * SHORT).renew(false);
    let outer = mutex.lock().unwrap();
    nest_until(Instant::now() + 2 * SHORT, &mutex, &outer);
    assert_eq!(outer.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    assert_lost(client.lock("a"), "a");
    elsewhere(|| client.lock("a").unwrap().unlock().unwrap());
}

fn nesting_does_not_prolong_a_hold_beyond_max_hold(store: &Store) {
    let client = store.open_for(2 * SHORT, patient());
    let mutex = client.mutex("a").max_hold(2 * SHORT);
    let outer = mutex.lock().unwrap();
    nest_until(Instant::now() + 2 * SHORT, &mutex, &outer);
    assert_eq!(outer.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
    elsewhere(|| client.lock("a").unwrap().unlock().unwrap());
}

fn a_nested_lock_keeps_the_options_of_the_hold(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let outer = client.mutex("a").lease(2 * SHORT).renew(false).lock().unwrap();
    let end = Instant::now() + 2 * SHORT;
    nest_until(end, &client.mutex("a").lease(LEASE * 10).renew(true), &outer);
    assert_eq!(outer.lost().wait_timeout(SOON), Some(HoldEnd::Lost));

    let other = client.mutex("b");
    let outer = other.lock().unwrap();
    let inner = client.mutex("b").lease(SHORT).renew(false).max_hold(SHORT).lock().unwrap();
    throughout(2 * SHORT, || outer.is_held() && inner.is_held());
    assert!(other.holder().unwrap().unwrap().remaining > 2 * SHORT);
}

fn an_owned_guard_never_nests(store: &Store) {
    let client = store.open(patient());
    let owned = client.lock_owned("a").unwrap();
    assert_eq!((owned.name(), owned.depth()), ("a", 1));
    assert!(!client.mutex("a").is_held_by_current_thread());
    assert!(client.try_lock("a").unwrap().is_none());
    assert!(client.try_lock_owned("a").unwrap().is_none());
    assert!(client.try_lock_owned_for("a", ms(30)).unwrap().is_none());
    let fence = owned.fence();
    owned.unlock().unwrap();
    let outer = take(&client, "a");
    assert!(outer.fence() > fence);
    assert!(client.try_lock_owned("a").unwrap().is_none());
    assert_eq!(take(&client, "a").depth(), 2);
    let timed_out = client.mutex("a").wait(ms(30)).lock_owned();
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
}
