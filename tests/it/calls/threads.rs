//! Guards that are leaked, or dropped by a panic or at the end of their thread.

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold::Guard;

use crate::support::{
    LEASE, SOON, Store, elsewhere, eventually, is_busy, patient, stores, take, throughout, timed,
};

stores! {
    every store:
        a_guard_is_released_while_a_panic_unwinds,
        a_guard_in_a_thread_local_is_released_with_its_thread,
        a_leaked_guard_is_renewed_while_its_thread_lives,
        a_leaked_guard_is_not_renewed_after_its_thread,
        a_new_thread_is_not_taken_for_one_that_has_ended;
}

fn a_guard_is_released_while_a_panic_unwinds(store: &Store) {
    let client = store.open(patient());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _outer = take(&client, "a");
        let _inner = take(&client, "a");
        panic!("as the test wants");
    }));
    panicked.unwrap_err();
    assert!(!is_busy(&client, "a"));
}

fn a_guard_in_a_thread_local_is_released_with_its_thread(store: &Store) {
    thread_local! {
        static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    let client = store.open(patient());
    elsewhere(|| {
        KEPT.set(Some(take(&client, "a")));
        assert!(is_busy(&client, "a"));
    });
    eventually(SOON, || !is_busy(&client, "a"));
}

fn a_leaked_guard_is_renewed_while_its_thread_lives(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    mem::forget(take(&client, "a"));
    throughout(2 * LEASE, || is_busy(&client, "a"));
    assert_eq!(take(&client, "a").depth(), 2, "and it still counts");
}

fn a_leaked_guard_is_not_renewed_after_its_thread(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    elsewhere(|| mem::forget(take(&client, "a")));
    assert!(is_busy(&client, "a"));
    let (guard, took) = timed(|| client.lock("a").unwrap());
    assert!(took < LEASE + SOON / 2, "{took:?}");
    assert_eq!(guard.depth(), 1);
}

fn a_new_thread_is_not_taken_for_one_that_has_ended(store: &Store) {
    let client = store.open(patient());
    elsewhere(|| mem::forget(take(&client, "a")));
    // Operating systems soon give the number of an ended thread to a new one.
    for _ in 0..200 {
        assert!(is_busy(&client, "a"));
    }
}
