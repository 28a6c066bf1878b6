//! A thread that holds a lock may lock it again.

use std::thread;

use leasehold::Client;

use crate::support::{Server, Store, is_busy, ms, patient, stores, take};

stores! {
    every store:
        a_nested_lock_raises_the_depth_and_keeps_the_fence,
        every_way_of_locking_nests,
        a_clone_of_the_client_nests_too,
        another_thread_does_not_nest,
        the_hold_ends_with_its_last_guard_in_any_order,
        a_lock_after_the_last_guard_is_a_new_hold;
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
    assert_eq!(server.hold("a"), (owner, "1".to_owned()));
    outer.unlock().unwrap();
    assert!(!server.exists("a"));
}

fn a_spoilt_depth_in_redis_does_not_count(server: &Server) {
    let client = server.open(patient());
    for spoilt in ["abc", "", "-1", "0", "9223372036854775807"] {
        let outer = take(&client, "a");
        let (owner, _) = server.hold("a");
        server.command(&["HSET", "lock:a", &owner, spoilt]);
        // The depth that this process knows counts.
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
    let client = server.open(Client::builder().lease(ms(5000)).renew(false));
    let outer = take(&client, "a");
    thread::sleep(ms(1000));
    assert!(server.pttl("a") <= ms(4000));
    let inner = take(&client, "a");
    assert!(server.pttl("a") > ms(4100));
    // One hold has one lease: the outer guard lasts as long as the inner one.
    assert!(outer.remaining() > ms(4100), "{:?}", outer.remaining());
    assert!(inner.remaining() > ms(4100), "{:?}", inner.remaining());
}
