//! A hold lasts as long as its lease, and its holder learns of the end.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;
use leasehold::{Client, HoldEnd};

use crate::support::{
    SHORT, SOON, Server, Store, assert_lost, elsewhere, eventually, is_busy, ms, patient, soon,
    stores, take, while_held,
};

stores! {
    every store:
        an_expired_hold_is_taken_over_and_stays_lost,
        a_waiter_wakes_when_the_lease_of_the_holder_ends,
        a_hold_ends_by_itself_at_its_local_deadline,
        the_loss_reaches_every_watcher,
        a_normal_end_is_not_reported_as_a_loss,
        a_guard_may_be_lent_to_other_threads,
        with_lock_reports_a_lease_lost_meanwhile;
    every server:
        an_expired_guard_leaves_the_next_holder_alone,
        a_lost_hold_is_not_created_again,
        a_lease_of_a_year_is_kept_as_it_is;
}

fn an_expired_hold_is_taken_over_and_stays_lost(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let mutex = client.mutex("a").lease(SHORT).renew(false);
    let first = mutex.lock().unwrap();
    while_held(&client, "a", |_end| {
        assert!(!first.is_held());
        assert_eq!(first.remaining(), Duration::ZERO);
        assert_lost(first.verify(), "a");
        assert_lost(client.try_lock("a"), "a");
        assert_lost(client.lock("a"), "a");
        assert_lost(first.unlock(), "a");
        assert!(is_busy(&client, "a"), "the other thread still has it");
    });
    take(&client, "a").unlock().unwrap();
}

fn a_waiter_wakes_when_the_lease_of_the_holder_ends(store: &Store) {
    // The pauses are longer than the test may take.
    let client = store.open_for(SHORT, Client::builder().wait(SOON).backoff(3 * SOON, 3 * SOON));
    let _first = client.mutex("a").lease(SHORT).renew(false).lock().unwrap();
    soon(|| elsewhere(|| client.lock("a").unwrap().unlock().unwrap()));
}

fn a_hold_ends_by_itself_at_its_local_deadline(store: &Store) {
    let client = store.open_for(ms(1000), patient());
    let mutex = client.mutex("a").lease(ms(1000)).renew(false);
    let before = Instant::now();
    let guard = mutex.lock().unwrap();
    let after = Instant::now();
    // The lease less 1 % and 2 ms for clock drift, counted from when the request was sent.
    let life = ms(1000 - 12);
    loop {
        let (earliest, held) = (after.elapsed(), guard.is_held());
        let latest = before.elapsed();
        assert!(!held || earliest < life, "held after {earliest:?}");
        assert!(held || latest >= life, "not held after {latest:?}");
        let remaining = guard.remaining();
        assert!(remaining <= life.saturating_sub(earliest), "{remaining:?}");
        if !held {
            return;
        }
        thread::sleep(ms(1));
    }
}

fn the_loss_reaches_every_watcher(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let guard = client.mutex("a").lease(SHORT).renew(false).lock().unwrap();
    let lost = guard.lost();
    assert_eq!(lost.wait_timeout(Duration::ZERO), None);
    thread::scope(|scope| {
        let watchers = [(); 3].map(|()| {
            let lost = lost.clone();
            scope.spawn(move || (lost.wait(), lost.is_lost()))
        });
        for watcher in watchers {
            assert_eq!(watcher.join().unwrap(), (HoldEnd::Lost, true));
        }
    });
    assert!(!guard.is_held());
    for lost in [lost.clone(), lost, guard.lost()] {
        for _ in 0..100 {
            assert_eq!(lost.receiver().try_recv(), Err(TryRecvError::Disconnected));
            assert!(lost.is_lost());
            assert_eq!(lost.wait(), HoldEnd::Lost);
            assert_eq!(
                lost.wait_timeout(Duration::ZERO),
                Some(HoldEnd::Lost),
                "however often it checks"
            );
        }
    }
}

fn a_normal_end_is_not_reported_as_a_loss(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    let lost = guard.lost();
    let inner = take(&client, "a");
    inner.unlock().unwrap();
    assert_eq!(lost.receiver().try_recv(), Err(TryRecvError::Empty), "the hold continues");
    assert!(!lost.is_lost());
    guard.unlock().unwrap();
    for lost in [lost.clone(), lost.clone(), lost] {
        assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Released));
        assert!(lost.wait() == HoldEnd::Released && !lost.is_lost());
    }
}

fn a_guard_may_be_lent_to_other_threads(store: &Store) {
    let client = store.open(patient());
    let guard = take(&client, "a");
    elsewhere(|| {
        assert!(guard.is_held());
        guard.verify().unwrap();
        assert_eq!(guard.lost().wait_timeout(Duration::ZERO), None);
    });
    guard.unlock().unwrap();
}

fn with_lock_reports_a_lease_lost_meanwhile(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let mutex = client.mutex("a").lease(SHORT).renew(false);
    let result = mutex.with(|guard| eventually(SOON, || !guard.is_held()));
    assert_lost(result, "a");
    client.lock("a").unwrap().unlock().unwrap();
}

fn an_expired_guard_leaves_the_next_holder_alone(server: &Server) {
    let client = server.open_for(SHORT, patient());
    let other = server.open(patient());
    let first = client.mutex("a").lease(SHORT).renew(false).lock().unwrap();
    let second = other.lock("a").unwrap();
    let hold = server.hold("a");
    assert!(hold.0.starts_with(other.id()));
    assert!(second.fence() > first.fence());

    assert!(!first.is_held());
    assert_lost(first.verify(), "a");
    assert_lost(client.try_lock("a"), "a");
    assert_lost(first.unlock(), "a");
    assert_eq!(server.hold("a"), hold);
    assert!(server.pttl("a") > ms(20_000), "nor is its lease cut short");
    second.verify().unwrap();
    second.unlock().unwrap();
}

fn a_lost_hold_is_not_created_again(server: &Server) {
    let client = server.open_for(SHORT, patient());
    let guard = client.mutex("a").lease(SHORT).renew(false).lock().unwrap();
    eventually(SOON, || !server.exists("a"));
    assert_lost(guard.verify(), "a");
    assert_lost(client.lock("a"), "a");
    assert!(!server.exists("a"));
    drop(guard);
    assert!(!server.exists("a"));
}

fn a_lease_of_a_year_is_kept_as_it_is(server: &Server) {
    let year = Duration::from_secs(365 * 24 * 3600);
    let client = server.open(Client::builder().lease(year));
    let guard = take(&client, "a");
    assert!(server.pttl("a") + ms(60_000) > year && server.pttl("a") <= year);
    assert!(guard.remaining() < year);
    // The counter outlives the hold; otherwise the next fence might be smaller.
    assert!(server.fence_life("a") >= year);
    guard.unlock().unwrap();
}
