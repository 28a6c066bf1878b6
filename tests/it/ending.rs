//! How holds end that nobody ends: with panics, threads and processes.

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold::{Client, Error, Guard};

use crate::support::child::{self, Child};
use crate::support::{
    LEASE, SOON, Server, Store, elsewhere, eventually, is_busy, ms, patient, stores, take,
    throughout, timed,
};

stores! {
    every store:
        a_guard_is_released_while_a_panic_unwinds,
        a_guard_in_a_thread_local_is_released_with_its_thread,
        a_leaked_guard_is_renewed_while_its_thread_lives,
        a_leaked_guard_is_not_renewed_after_its_thread,
        the_next_thread_is_not_taken_for_one_that_has_ended;
    every server:
        a_waiter_takes_over_when_the_holder_is_killed,
        a_process_that_aborts_leaves_its_lock_to_its_lease,
        signals_neither_break_nor_stretch_a_wait,
        a_process_that_was_stopped_too_long_has_lost_its_hold,
        a_process_that_was_stopped_too_long_creates_nothing_again;
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
    assert!(took < 2 * LEASE + ms(1000), "{took:?}");
    assert_eq!(guard.depth(), 1);
}

fn the_next_thread_is_not_taken_for_one_that_has_ended(store: &Store) {
    let client = store.open(patient());
    elsewhere(|| mem::forget(take(&client, "a")));
    // Operating systems give the number of an ended thread to a new one before long.
    for _ in 0..200 {
        assert!(is_busy(&client, "a"));
    }
}

/// The child's side of the tests below: it holds `a`, stands still on demand and tells how it went.
#[test]
#[ignore = "a child of the tests of processes"]
fn hold_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let guard = client.lock("a").unwrap();
    child::report(guard.fence());
    child::wait_for_parent();
    child::report(guard.is_held());
    child::report(is_lost(client.try_lock("a")));
    child::report(is_lost(guard.unlock()));
}

fn is_lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

fn start_holder(server: &Server) -> (Child, u64) {
    let child = Child::start(hold_in_a_child, &server.address());
    let fence = child.next().parse().unwrap();
    (child, fence)
}

fn a_waiter_takes_over_when_the_holder_is_killed(server: &Server) {
    let client = server.open(patient());
    let (mut child, fence) = start_holder(server);
    throughout(2 * LEASE, || client.try_lock("a").unwrap().is_none());
    child.kill();
    let left = server.pttl("a");
    let (guard, took) = timed(|| client.lock("a").unwrap());
    assert!(took + ms(10) >= left, "{took:?} of {left:?} that were left");
    assert!(took < left + ms(1500), "{took:?} of {left:?} that were left");
    assert!(guard.fence() > fence);
}

fn a_process_that_aborts_leaves_its_lock_to_its_lease(server: &Server) {
    let child = Child::start(abort_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    let (guard, took) = timed(|| server.open(patient()).lock("a").unwrap());
    assert!(took < LEASE + SOON / 2, "{took:?}");
    assert_eq!(guard.depth(), 1);
}

#[test]
#[ignore = "a child of a_process_that_aborts_leaves_its_lock_to_its_lease"]
fn abort_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let _guard = client.lock("a").unwrap();
    child::report("holds");
    std::process::abort();
}

fn signals_neither_break_nor_stretch_a_wait(server: &Server) {
    let client = server.open(patient());
    let _guard = take(&client, "a");
    let mut child = Child::start(wait_in_a_child, &server.address());
    assert_eq!(child.next(), "ready");
    child.go_on();
    // To stop and to go on interrupts system calls, as other signals do.
    for _ in 0..300 {
        child.stop();
        child.cont();
        std::thread::sleep(ms(5));
    }
    assert_eq!(child.next(), "Ok(false)");
    let took = ms(child.next().parse().unwrap());
    assert!(took >= ms(1000) && took < SOON / 2, "{took:?}");
    child.finish();
}

#[test]
#[ignore = "a child of signals_neither_break_nor_stretch_a_wait"]
fn wait_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().backoff(ms(1), ms(20)));
    child::report("ready");
    child::wait_for_parent();
    let (result, took) = timed(|| client.try_lock_for("a", ms(1000)).map(|held| held.is_some()));
    child::report(format_args!("{result:?}"));
    child::report(took.as_millis());
}

fn a_process_that_was_stopped_too_long_has_lost_its_hold(server: &Server) {
    let client = server.open(patient());
    let (mut child, fence) = start_holder(server);
    child.stop();
    let guard = client.lock("a").unwrap();
    assert!(guard.fence() > fence);
    let hold = server.hold("a");
    child.cont();
    child.go_on();
    assert_eq!(child.next(), "false", "is held");
    assert_eq!(child.next(), "true", "a nested lock is lost");
    assert_eq!(child.next(), "true", "the release is lost");
    child.finish();
    assert_eq!(server.hold("a"), hold);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

fn a_process_that_was_stopped_too_long_creates_nothing_again(server: &Server) {
    let (mut child, _fence) = start_holder(server);
    child.stop();
    eventually(SOON, || !server.exists("a"));
    child.cont();
    throughout(LEASE, || !server.exists("a"));
    child.go_on();
    assert_eq!(child.next(), "false", "is held");
    assert_eq!(child.next(), "true", "a nested lock is lost");
    assert_eq!(child.next(), "true", "the release is lost");
    assert!(!server.exists("a"));
    child.finish();
    take(&server.open(Client::builder()), "a").unlock().unwrap();
}
