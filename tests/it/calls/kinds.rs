//! The common behaviour of all holds that belong to no thread: owned guards, sets, terms, permits,
//! and both sides of a read-write lock.

use std::thread;

use leasehold::{
    Client, Election, Error, HoldEnd, LossCause, MultiGuard, OwnedGuard, Permit, ReadGuard, RwLock,
    Semaphore, Term, WriteGuard,
};

use crate::support::child::{self, Child};
use crate::support::kinds::{Call, Hold, Kind};
use crate::support::recorder::Recorder;
use crate::support::{
    LEASE, SHORT, SOON, Server, Store, eventually, ms, patient, sleepy, stores, throughout, timed,
};

stores! {
    every store:
        a_hold_excludes_its_rival,
        a_hold_is_renewed_on_whichever_thread_its_guard_is,
        a_hold_may_be_released_by_another_thread,
        a_hold_can_be_renewed_by_hand,
        a_lost_hold_stays_lost,
        a_wait_ends_with_its_time,
        a_wait_that_ends_names_the_holders,
        closing_ends_the_waits,
        a_shutdown_ends_every_hold,
        every_hold_is_reported,
        every_loss_is_reported,
        a_forced_end_is_reported_at_once,
        a_forced_end_by_the_same_client_is_reported_as_forced,
        every_wait_is_reported;
    several clients:
        a_waiting_client_is_woken_at_once;
    every server:
        a_dead_process_blocks_for_its_lease_only;
}

const fn is_shared_between_threads<T: Send + Sync + 'static>() {}
const _: () = is_shared_between_threads::<(Client, Election, RwLock, Semaphore)>();
const _: () = is_shared_between_threads::<(MultiGuard, OwnedGuard, Permit, Term)>();
const _: () = is_shared_between_threads::<(ReadGuard, WriteGuard)>();

type Holds = Vec<(Kind, &'static str, Box<Hold>)>;

/// Returns one hold of each kind that a store has, each under its own name.
fn one_of_each(store: &Store, client: &Client) -> Holds {
    let named = store.kinds().iter().zip(["a", "b", "c", "d", "e", "f"]);
    named.map(|(kind, name)| (*kind, name, kind.acquire(client, name).unwrap())).collect()
}

fn one_of_each_for_a_short_lease(store: &Store, client: &Client) -> Holds {
    let call = Call { lease: Some(SHORT), ..Call::default() };
    let named = store.kinds().iter().zip(["a", "b", "c", "d", "e", "f"]);
    let hold = |kind: &Kind, name| kind.call(client, name, call).unwrap().unwrap();
    named.map(|(kind, name)| (*kind, name, hold(kind, name))).collect()
}

fn a_hold_excludes_its_rival(store: &Store) {
    let client = store.open(patient());
    for (kind, name, hold) in one_of_each(store, &client) {
        let rival = kind.rival();
        assert!(rival.try_acquire(&client, name, None).is_none(), "{kind:?}");
        assert!(rival.try_acquire(&client, name, Some(ms(20))).is_none(), "{kind:?}");
        hold.verify().unwrap();
        assert_eq!(hold.name(), kind.shown(name));
        let fence = hold.fence();
        hold.unlock().unwrap();
        let next = rival.try_acquire(&client, name, Some(SOON)).expect("it is free");
        assert!(fence.is_none() || next.fence() > fence, "{kind:?}");
        next.unlock().unwrap();
        assert!(kind.try_acquire(&client, name, None).is_some(), "{kind:?}");
    }
}

fn a_hold_is_renewed_on_whichever_thread_its_guard_is(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let holds = thread::scope(|scope| {
        scope.spawn(|| one_of_each(store, &client)).join().expect("all are free")
    });
    throughout(LEASE * 2, || {
        holds.iter().all(|(kind, name, hold)| {
            hold.is_held() && kind.rival().try_acquire(&client, name, None).is_none()
        })
    });
    for (_, _, hold) in holds {
        assert!(hold.remaining() > ms(0) && !hold.lost().is_lost());
        hold.verify().unwrap();
        hold.unlock().unwrap();
    }
}

fn a_hold_may_be_released_by_another_thread(store: &Store) {
    let client = store.open(patient());
    for dropped in [false, true] {
        for (kind, name, hold) in one_of_each(store, &client) {
            let lost = hold.lost();
            let release = move || if dropped { drop(hold) } else { hold.unlock().unwrap() };
            thread::spawn(release).join().unwrap();
            assert_eq!(lost.wait(), HoldEnd::Released, "{kind:?}");
            eventually(SOON, || kind.rival().try_acquire(&client, name, None).is_some());
        }
    }
}

fn a_hold_can_be_renewed_by_hand(store: &Store) {
    let client = store.open_for(SHORT, patient());
    let holds = one_of_each_for_a_short_lease(store, &client);
    throughout(2 * SHORT, || {
        holds.iter().all(|(_, _, hold)| {
            hold.renew().unwrap();
            hold.is_held()
        })
    });
    for (kind, name, hold) in holds {
        assert!(kind.rival().try_acquire(&client, name, None).is_none(), "{kind:?}");
        hold.unlock().unwrap();
    }
}

fn a_lost_hold_stays_lost(store: &Store) {
    let client = store.open_for(SHORT, patient());
    for (kind, name, hold) in one_of_each_for_a_short_lease(store, &client) {
        let lost = hold.lost();
        assert_eq!(thread::spawn(move || lost.wait()).join().unwrap(), HoldEnd::Lost, "{kind:?}");
        assert!(!hold.is_held());
        let next = kind.block(&client, name);
        assert_eq!(hold.lost().cause(), Some(LossCause::Expired), "{kind:?}");
        for result in [hold.verify(), hold.renew(), hold.unlock()] {
            let is_right = matches!(result, Err(Error::Lost { cause: LossCause::Expired, .. }));
            assert!(is_right, "{kind:?}: {result:?}");
        }
        assert!(next.is_held(), "{kind:?}");
        next.verify().unwrap();
    }
}

fn a_wait_ends_with_its_time(store: &Store) {
    let client = store.open(patient());
    for (kind, name, _held) in one_of_each(store, &client) {
        let call = Call { wait: Some(ms(30)), ..Call::default() };
        let (result, took) = timed(|| kind.rival().call(&client, name, call));
        let error = result.unwrap_err();
        assert!(took < SOON / 2, "{kind:?}: {took:?}");
        assert!(matches!(error, Error::Timeout { .. }), "{kind:?}: {error:?}");
        let is_of_a_lock = error.to_string().contains("lock ");
        assert!(!is_of_a_lock || kind != Kind::Permit, "{error}");
    }
}

fn a_wait_that_ends_names_the_holders(store: &Store) {
    let holder = store.open(patient().label("till"));
    let waiter = store.open(patient());
    for (kind, name, _held) in one_of_each(store, &holder) {
        let call = Call { wait: Some(ms(200)), ..Call::default() };
        let fail = |client| kind.rival().call(client, name, call).unwrap_err().to_string();
        let (to_own, to_other) = (fail(&holder), fail(&waiter));
        let noun = match kind {
            Kind::Owned | Kind::Term => "lock",
            Kind::Permit => "semaphore",
            Kind::Read | Kind::Write => "read-write lock",
            Kind::Set => {
                assert!(to_other.contains("before it was free"), "{to_other}");
                continue;
            }
        };
        let end = format!(" held {noun} {name:?} when the wait ended");
        assert_eq!(to_own, format!("another thread of this client{end}"));
        assert_eq!(to_other, format!("client {:?}{end}", holder.id()));
    }
}

/// Checks that waits for held locks end when the client does.
fn ends_the_waits(client: &Client, holds: &Holds, end: impl FnOnce()) {
    thread::scope(|scope| {
        let waits: Vec<_> = holds
            .iter()
            .map(|(kind, name, _)| scope.spawn(|| kind.rival().acquire(client, name)))
            .collect();
        eventually(SOON, || client.stats().waiting == holds.len() as u64);
        end();
        for wait in waits {
            assert!(matches!(wait.join().unwrap(), Err(Error::Closed)));
        }
    });
    for (kind, ..) in holds {
        assert!(matches!(kind.acquire(client, "another"), Err(Error::Closed)), "{kind:?}");
    }
}

fn closing_ends_the_waits(store: &Store) {
    let client = store.open(patient());
    let holds = one_of_each(store, &client);
    ends_the_waits(&client, &holds, || client.close());
    for (_, _, hold) in holds {
        hold.verify().unwrap();
        hold.unlock().unwrap();
    }
}

fn a_shutdown_ends_every_hold(store: &Store) {
    let client = store.open(patient());
    let holds = one_of_each(store, &client);
    ends_the_waits(&client, &holds, || client.shutdown(SOON).unwrap());
    assert_eq!(client.stats().held, 0);
    for (kind, name, hold) in holds {
        let report = client.survey().report(name).unwrap();
        assert!(report.holds.is_empty(), "{report:?}");
        assert_eq!(hold.lost().wait_timeout(ms(0)), Some(HoldEnd::Released), "{kind:?}");
        assert!(!hold.is_held());
        for result in [hold.verify(), hold.renew()] {
            assert!(matches!(result, Err(Error::Closed)), "{kind:?}: {result:?}");
        }
        hold.unlock().unwrap();
    }
}

fn every_hold_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    for (kind, name, hold) in one_of_each(store, &client) {
        assert_eq!(recorder.count(&format!("released {name}")), 0, "{kind:?}");
        drop(hold);
        recorder.wait_for(&format!("released {name}"));
        assert_eq!(recorder.count(&format!("acquired {name}")), 1, "{kind:?}");
    }
    // Two of each, and two more for the other name of a set.
    eventually(SOON, || recorder.events_of_locks().len() == 2 * store.kinds().len() + 2);
}

fn every_loss_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open_for(SHORT, patient().on_event(recorder.listener()));
    let holds = one_of_each_for_a_short_lease(store, &client);
    let count = holds.len() as u64;
    for (kind, name, hold) in holds {
        // A set loses each of its locks.
        for name in kind.shown(name).split(", ") {
            recorder.wait_for(&format!("lost {name}"));
        }
        drop(hold);
        assert_eq!(recorder.count(&format!("lost {name}")), 1, "{kind:?}");
    }
    let stats = client.stats();
    assert_eq!((stats.lost, stats.released), (count + 1, 0), "{stats:?}");
}

fn a_forced_end_is_reported_at_once(store: &Store) {
    // A client that keeps locks listens for messages.
    let (client, operator) = (store.open(sleepy().keep(ms(1))), store.open(sleepy()));
    drop(client.lock("warm").unwrap());
    for (kind, name, hold) in one_of_each(store, &client) {
        let lost = hold.lost();
        assert_eq!(operator.survey().end_holds(name).unwrap(), 1, "{kind:?}");
        assert_eq!(lost.wait_timeout(SOON / 2), Some(HoldEnd::Lost), "{kind:?}");
        assert_eq!(lost.cause(), Some(LossCause::Forced), "{kind:?}");
        assert!(!hold.is_held());
    }
}

fn a_forced_end_by_the_same_client_is_reported_as_forced(store: &Store) {
    let client = store.open(patient());
    for (kind, name, hold) in one_of_each(store, &client) {
        let lost = hold.lost();
        thread::scope(|scope| {
            // Usually the request of this thread is the first to find the hold gone.
            let other = scope.spawn(|| while hold.verify().is_ok() {});
            assert_eq!(client.survey().end_holds(name).unwrap(), 1, "{kind:?}");
            other.join().unwrap();
        });
        assert_eq!(lost.cause(), Some(LossCause::Forced), "{kind:?}");
    }
}

fn every_wait_is_reported(store: &Store) {
    let recorder = Recorder::default();
    let client = store.open(patient().on_event(recorder.listener()));
    let holds = one_of_each(store, &client);
    for (kind, name, _held) in &holds {
        assert!(kind.rival().try_acquire(&client, name, Some(ms(50))).is_none());
        recorder.wait_for(&format!("timed out {}", kind.shown(name)));
        let contended = [*name, &format!("{name}'")].map(|name| format!("contended {name}"));
        let count: usize = contended.iter().map(|event| recorder.count(event)).sum();
        assert_eq!(count, 1, "{kind:?}");
    }
    let (stats, calls) = (client.stats(), holds.len() as u64);
    assert_eq!((stats.timed_out, stats.contended), (calls, calls), "{stats:?}");
}

fn a_waiting_client_is_woken_at_once(store: &Store) {
    let (holder, waiter) = (store.open(patient()), store.open(sleepy()));
    for kind in Kind::ALL {
        let held = kind.block(&holder, "a");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| kind.acquire(&waiter, "a"));
            eventually(SOON, || store.queue("a") == [waiter.id()] && store.listens(&waiter));
            let (next, took) = timed(|| {
                held.unlock().unwrap();
                waiting.join().unwrap()
            });
            assert!(took < SOON / 2, "{kind:?}: {took:?}");
            next.unwrap().unlock().unwrap();
        });
        eventually(SOON, || !store.exists("a"));
    }
}

#[test]
#[ignore = "a child of a_dead_process_blocks_for_its_lease_only"]
fn hold_one_of_each_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(patient().lease(LEASE));
    let holds = Kind::ALL.map(|kind| kind.acquire(&client, &format!("{kind:?}")).unwrap());
    child::report("holds");
    child::wait_for_parent();
    drop(holds);
}

fn a_dead_process_blocks_for_its_lease_only(server: &Server) {
    let client = server.open(patient());
    let mut child = Child::start(hold_one_of_each_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    for kind in Kind::ALL {
        assert!(
            kind.rival().try_acquire(&client, &format!("{kind:?}"), None).is_none(),
            "{kind:?}"
        );
    }
    child.kill();
    let ((), took) = timed(|| {
        for kind in Kind::ALL {
            kind.block(&client, &format!("{kind:?}")).unlock().unwrap();
        }
    });
    assert!(took < LEASE + SOON / 2, "{took:?}");
}
