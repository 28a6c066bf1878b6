//! Several holds that one request gets for several threads, or one call for several locks.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::canceller::Canceller;
use crate::base::clock::{elapsed, now};
use crate::base::sync::{Started, in_virtual_time};
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::tests::{LEASE, Outcome, Scene, Scripted, eventually};
use crate::local::{acquire, acquire_all, hold_requests, release};
use crate::protocol::call::Wait;
use crate::protocol::hold::Hold;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, Look, OwnerOf, Registration,
};
use crate::store::{Store, ask_one};

/// A client that only a release wakes.
fn scene() -> Scene {
    Scene::with_backoff(Scripted::default(), LEASE * 10, (LEASE * 100, LEASE * 100))
}

fn acquire_as(scene: &Scene, kind: HoldKind, options: &LockOptions) -> Result<Arc<Hold>> {
    let hold = acquire::owned(&scene.shared, kind, &scene.name, options, Wait::Endless)?;
    Ok(hold.expect("no limit"))
}

fn acquire_kind(scene: &Scene, kind: HoldKind) -> Arc<Hold> {
    acquire_as(scene, kind, &scene.options).expect("a hold")
}

fn end(scene: &Scene, hold: Arc<Hold>) {
    release::unlock(&scene.shared, &[hold]).expect("released");
}

/// Begins the hold of a writer of another client.
fn other_writer(scene: &Scene) -> HoldId {
    let hold = HoldId { kind: HoldKind::Write, ..scene.id(1) };
    let (holds, deadline) = (slice::from_ref(&hold), now());
    let (lease, registration) = (LEASE * 10, Registration::None);
    let reply = scene.store.inner.acquire(Acquire {
        holds,
        lease,
        note: None,
        registration,
        echo: false,
        deadline,
    });
    assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
    hold
}

fn end_other(scene: &Scene, hold: &HoldId) {
    let change = Change::RELEASE;
    let request = HoldRequest { hold, change, deadline: now() };
    assert_eq!(ask_one(&scene.store.inner, request).ok(), Some(HoldReply::Done));
}

/// Waits until this many threads wait.
fn wait_until(scene: &Scene, waiting: u64) {
    eventually(|| scene.shared.stats().waiting == waiting);
}

#[test]
fn one_request_serves_all_readers_that_wait() {
    in_virtual_time(|| {
        let scene = scene();
        let writer = other_writer(&scene);
        let readers = [1, 2, 3].map(|waiting| {
            let reader = scene.start(|scene| acquire_kind(scene, HoldKind::Read));
            wait_until(&scene, waiting);
            reader
        });
        // The head asks once more when its client begins to listen.
        eventually(|| scene.store.registrations.lock().len() == 2);
        end_other(&scene, &writer);
        let holds = readers.map(Started::join);
        assert_eq!(scene.store.registrations.lock().len(), 3);
        let stats = scene.shared.counters.to_stats();
        // They share a hold, which ends with the last of them.
        assert_eq!((stats.handoffs, stats.acquired, stats.held), (0, 1, 1));
        for hold in holds {
            assert!(scene.shared.is_held(&hold));
            end(&scene, hold);
        }
        assert_eq!(scene.shared.counters.to_stats().held, 0);
        end(&scene, acquire_kind(&scene, HoldKind::Write));
    });
}

/// Cancels one of two readers while the first one's requests for both have these outcomes, and
/// checks that a writer gets the lock after the other one.
fn leave_during(outcomes: &[Outcome]) {
    let scene = scene();
    let writer = other_writer(&scene);
    let canceller = Canceller::new();
    let impatient = LockOptions { cancelled_by: Some(canceller.clone()), ..scene.options.clone() };
    let head = scene.start(|scene| acquire_kind(scene, HoldKind::Read));
    wait_until(&scene, 1);
    let leaves = scene.start(move |scene| acquire_as(scene, HoldKind::Read, &impatient));
    wait_until(&scene, 2);
    eventually(|| scene.store.registrations.lock().len() == 2);
    scene.store.set_outcomes(outcomes);
    end_other(&scene, &writer);
    eventually(|| scene.store.outcomes.lock().is_empty());
    canceller.cancel();
    let left = leaves.join();
    assert!(matches!(left, Err(Error::Cancelled { .. })), "{left:?}");
    let hold = head.join();
    assert!(scene.shared.is_held(&hold));
    end(&scene, hold);
    let (begin, writer) = (now(), acquire_kind(&scene, HoldKind::Write));
    assert!(elapsed(begin) < LEASE * 5, "not only after the lease of the hold");
    end(&scene, writer);
}

#[test]
fn a_hold_for_a_thread_that_has_left_is_cleaned_up() {
    in_virtual_time(|| {
        leave_during(&[Outcome::Slow(LEASE)]);
    });
}

#[test]
fn a_hold_in_doubt_of_a_thread_that_leaves_is_cleaned_up() {
    in_virtual_time(|| {
        leave_during(&[Outcome::LostReply, Outcome::Transient]);
        leave_during(&[Outcome::LostReply, Outcome::Slow(LEASE)]);
    });
}

/// The second request finds the hold of the first one. That hold may begin again, so no other call
/// shares it.
#[test]
fn a_reader_gets_the_hold_that_a_request_without_a_reply_has_brought() {
    in_virtual_time(|| {
        let scene = scene();
        let writer = other_writer(&scene);
        let readers = [(); 2].map(|()| scene.start(|scene| acquire_kind(scene, HoldKind::Read)));
        wait_until(&scene, 2);
        eventually(|| scene.store.registrations.lock().len() == 2);
        scene.store.set_outcomes(&[Outcome::LostReply]);
        end_other(&scene, &writer);
        let holds = readers.map(Started::join);
        let in_doubt = holds.iter().filter(|hold| hold.may_begin);
        assert_eq!(in_doubt.count(), 1, "the first request may come late");
        for hold in holds {
            end(&scene, hold);
        }
        eventually(|| scene.store.releases() >= 2);
    });
}

fn acquire_set(scene: &Scene, names: &[Arc<str>]) -> Vec<Arc<Hold>> {
    let set = acquire_all::acquire_all(&scene.shared, names, &scene.options, Wait::Endless);
    set.expect("a reply").expect("no limit")
}

#[test]
fn an_outage_that_only_a_set_suffers_from_is_told() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let names = ["a", "b"].map(Arc::from);
        let set = acquire_set(&scene, &names);
        let outages = &scene.shared.reporter.outages;
        scene.store.set_outcomes(&[Outcome::LostRequest; 4]);
        hold_requests::verify(&scene.shared, &set, false).expect_err("no reply");
        assert!(outages.lasts.load(Ordering::Relaxed));
        hold_requests::verify(&scene.shared, &set, true).expect("replies");
        assert!(!outages.lasts.load(Ordering::Relaxed));
        release::unlock(&scene.shared, &set).expect("released");
    });
}

#[test]
fn each_release_of_a_set_gets_a_second_chance() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let names = ["a", "b", "c"].map(Arc::from);
        let set = acquire_set(&scene, &names);
        let (lost, fine) = ([Outcome::LostRequest].repeat(3), [Outcome::Fine].repeat(3));
        // They are sent together, and once more together.
        scene.store.set_outcomes(&[lost, fine].concat());
        release::unlock(&scene.shared, &set).expect("released");
    });
}

/// Begins a hold of another client, if the lock is free.
fn try_as_other(scene: &Scene, name: &Arc<str>) -> Option<HoldId> {
    let hold = HoldId { name: name.clone(), ..scene.id(1) };
    let (holds, registration, deadline) = (slice::from_ref(&hold), Registration::None, now());
    let request =
        Acquire { holds, lease: LEASE * 10, note: None, registration, echo: false, deadline };
    let reply = scene.store.inner.acquire(request).expect("a reply");
    matches!(reply, AcquireReply::Acquired { .. }).then_some(hold)
}

/// Returns how many clients wait for a lock.
fn waiting_for(scene: &Scene, name: &str) -> usize {
    let report = scene.store.inner.report(name, Look::All, now());
    report.expect("a reply").waiting.len()
}

/// Lets a call wait for two locks that another client has, until `act` has ended those holds.
fn while_a_set_waits(act: impl FnOnce(&Scene, &[Arc<str>; 2], [HoldId; 2])) {
    let scene = scene();
    let names = ["a", "b"].map(Arc::from);
    let others = names.each_ref().map(|name| try_as_other(&scene, name).expect("free"));
    let waits = scene.start({
        let names = names.clone();
        move |scene| acquire_set(scene, &names)
    });
    act(&scene, &names, others);
    release::unlock(&scene.shared, &waits.join()).expect("released");
}

#[test]
fn a_set_keeps_a_lock_for_a_moment_while_it_waits_for_a_later_one() {
    in_virtual_time(|| {
        while_a_set_waits(|scene, names, [first, second]| {
            // It asks for both locks of the set, for the earlier one, and once more when its client
            // listens.
            eventually(|| scene.store.registrations.lock().len() == 4);
            // It gets that lock. Others that have the later one should try for as long as this.
            scene.store.set_outcomes(&[Outcome::Fine, Outcome::Slow(LEASE / 4)]);
            end_other(scene, &first);
            eventually(|| waiting_for(scene, "b") == 1);
            assert!(try_as_other(scene, &names[0]).is_none(), "it has given nothing back");
            end_other(scene, &second);
        });
    });
}

#[test]
fn a_set_keeps_no_lock_for_long_while_it_waits() {
    in_virtual_time(|| {
        while_a_set_waits(|scene, names, [first, second]| {
            eventually(|| waiting_for(scene, "a") == 1);
            end_other(scene, &first);
            let mut again = None;
            eventually(|| {
                again = try_as_other(scene, &names[0]);
                again.is_some() && waiting_for(scene, "b") == 1
            });
            end_other(scene, &again.expect("it was free"));
            end_other(scene, &second);
        });
    });
}

#[test]
fn calls_for_the_same_locks_wait_for_the_same_one() {
    in_virtual_time(|| {
        let scene = scene();
        let names = ["a", "b", "c"].map(Arc::from);
        for name in &names {
            try_as_other(&scene, name).expect("free");
        }
        let queue = |name| waiting_for(&scene, name);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let names = order.map(|at: usize| names[at].clone());
            let canceller = Canceller::new();
            let options =
                LockOptions { cancelled_by: Some(canceller.clone()), ..scene.options.clone() };
            let waits = scene.start(move |scene| {
                acquire_all::acquire_all(&scene.shared, &names, &options, Wait::Endless)
            });
            eventually(|| queue("a") == 1);
            assert_eq!((queue("b"), queue("c")), (0, 0));
            canceller.cancel();
            let outcome = waits.join();
            assert!(matches!(outcome, Err(Error::Cancelled { .. })), "it is held");
            eventually(|| queue("a") == 0);
        }
    });
}

/// Ends the only hold of a lock at the server, as an operator can.
fn end_by_force(scene: &Scene, name: &str) {
    let report = scene.store.inner.report(name, Look::All, now()).expect("a reply");
    let owner = &report.holds[0].1.owner;
    let owner = OwnerOf { kind: HoldKind::Lock, name, owner };
    assert!(scene.store.inner.force_release(owner, now()).expect("a reply"));
}

#[test]
fn a_call_for_several_that_takes_a_reply_late_ends_no_later_hold() {
    in_virtual_time(|| {
        let scene = scene();
        let names = ["a", "b"].map(Arc::from);
        // The reply about "a" has come, and is taken when that about "b" has come.
        scene.store.set_outcomes(&[Outcome::Fine, Outcome::Slow(LEASE)]);
        let set = scene.start({
            let names = names.clone();
            move |scene| acquire_all::acquire_all(&scene.shared, &names, &scene.options, Wait::No)
        });
        eventually(|| scene.store.registrations.lock().len() == 2);
        end_by_force(&scene, "a");
        let (lock, wait) = (HoldKind::Lock, Wait::No);
        let later = acquire::owned(&scene.shared, lock, &names[0], &scene.options, wait);
        let later = later.expect("a reply").expect("free");
        let set = set.join().expect("a reply");
        assert!(set.is_none(), "another thread has one of them");
        assert!(scene.shared.is_held(&later));
        release::unlock(&scene.shared, &[later]).expect("released");
    });
}

#[test]
fn a_call_for_several_whose_client_is_closed_asks_no_more() {
    in_virtual_time(|| {
        let scene = scene();
        let names = ["a", "b"].map(Arc::from);
        let held = try_as_other(&scene, &names[0]).expect("free");
        // It may be a hold of this client: so the call would ask once more at once.
        scene.store.is_silent_to_jobs.store(true, Ordering::SeqCst);
        let debt = HoldId { client: scene.shared.client.clone(), nonce: 99, ..held };
        scene.shared.owe(&debt, LEASE);
        scene.store.set_outcomes(&[Outcome::Slow(LEASE)]);
        let calls = scene.start(move |scene| {
            acquire_all::acquire_all(&scene.shared, &names, &scene.options, Wait::Endless)
        });
        eventually(|| !scene.store.registrations.lock().is_empty());
        scene.shared.close();
        let outcome = calls.join();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        assert_eq!(scene.store.registrations.lock().len(), 2, "one for each name");
    });
}
