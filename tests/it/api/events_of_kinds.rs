//! The events of read-write locks, semaphores and elections: the same as those of a lock.

use std::time::Duration;

use leasehold::Client;

use crate::support::recorder::Recorder;
use crate::support::{LEASE, SHORT, SOON, Store, ms, patient, stores};

stores! {
    every store but a quorum:
        every_kind_of_hold_is_reported,
        a_loss_of_every_kind_is_reported,
        a_wait_for_every_kind_is_reported;
}

/// A hold of any kind, which is released when this is dropped.
type Hold = Box<dyn std::any::Any>;

/// Acquires a hold of a kind, for a lease that is not renewed, within some time.
type Acquire = fn(&Client, &str, Duration, Duration) -> Option<Hold>;

fn boxed(hold: impl std::any::Any) -> Hold {
    Box::new(hold)
}

/// Holds that exclude each other, each of another kind.
const KINDS: [Acquire; 4] = [
    |client, name, lease, wait| {
        let mutex = client.mutex(name).lease(lease).renew(false);
        mutex.try_lock_owned_for(wait).unwrap().map(boxed)
    },
    |client, name, lease, wait| {
        let election = client.election(name).lease(lease).renew(false);
        election.try_campaign_for(wait).unwrap().map(boxed)
    },
    |client, name, lease, wait| {
        let lock = client.rw_lock(name).lease(lease).renew(false);
        lock.try_write_for(wait).unwrap().map(boxed)
    },
    |client, name, lease, wait| {
        let semaphore = client.semaphore(name, 1).lease(lease).renew(false);
        semaphore.try_acquire_for(wait).unwrap().map(boxed)
    },
];

fn every_kind_of_hold_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(LEASE, patient().on_event(recorder.listener()));
    for (index, acquire) in KINDS.iter().enumerate() {
        drop(acquire(&client, "a", LEASE, SOON).expect("it is free"));
        recorder.wait_for_count("released a", index + 1);
    }
    let lock = client.rw_lock("a");
    let readers = [lock.read().unwrap(), lock.read().unwrap()];
    drop(readers);
    recorder.wait_for_count("released a", KINDS.len() + 2);
    assert_eq!(recorder.count("acquired a"), KINDS.len() + 2);
    assert_eq!(recorder.events_of_locks().len(), 2 * (KINDS.len() + 2));
}

fn a_loss_of_every_kind_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(SHORT, patient().on_event(recorder.listener()));
    for (index, acquire) in KINDS.iter().enumerate() {
        let name = index.to_string();
        let hold = acquire(&client, &name, SHORT, SOON).expect("it is free");
        recorder.wait_for(&format!("lost {name}"));
        drop(hold);
    }
    let stats = client.stats();
    assert_eq!((stats.lost, stats.released), (KINDS.len() as u64, 0), "{stats:?}");
}

fn a_wait_for_every_kind_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(LEASE, patient().on_event(recorder.listener()));
    for (index, acquire) in KINDS.iter().enumerate() {
        let hold = acquire(&client, "a", LEASE, SOON).expect("it is free");
        assert!(acquire(&client, "a", LEASE, ms(50)).is_none());
        recorder.wait_for_count("timed out a", index + 1);
        drop(hold);
        recorder.wait_for_count("released a", index + 1);
    }
    assert_eq!(recorder.count("contended a"), KINDS.len());
    let stats = client.stats();
    assert_eq!((stats.timed_out, stats.contended), (4, 4), "{stats:?}");
}
