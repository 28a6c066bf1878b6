//! A hold that its own client takes back does not count as another owner's, and giving back holds
//! does not prolong a call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::clock::{elapsed, end_of, now};
use crate::base::sync::in_virtual_time;
use crate::error::Error;
use crate::local::hold_requests::Level;
use crate::local::tests::{LEASE, Outcome, Scene, Scripted, eventually};
use crate::protocol::call::Wait;
use crate::store::Store;
use crate::store::hold_id::HoldKind;
use crate::store::request::{POST_MOMENT, Registration};

/// Much longer than what a thread does between two lines of a test.
const WHILE: Duration = Duration::from_millis(300);

fn is_shortfall<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotReplicated { .. }))
}

/// The first thread's request is executed, and seems to succeed, long before it falls short.
#[test]
fn a_thread_behind_a_hold_that_falls_short_is_not_told_of_another_owner() {
    in_virtual_time(|| {
        for begins in [|| Wait::No, || Wait::Until(now())] {
            let scene = Scene::new(LEASE * 10);
            scene.store.set_outcomes(&[Outcome::Shortfall(WHILE)]);
            let first = scene.start(|scene| scene.lock_with(Wait::Endless));
            eventually(|| scene.is_held());
            let told = scene.lock_with(begins());
            // Or it gets its turn, and nothing is wrong any more.
            let has_lock = matches!(told, Ok(Some(_)));
            assert!(is_shortfall(&told) || has_lock, "{told:?}");
            assert!(is_shortfall(&first.join()));
        }
    });
}

/// The first call has failed, and the second has no reply yet.
#[test]
fn a_failure_counts_for_threads_that_waited_then_whichever_call_is_first_now() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let long = Outcome::Shortfall(WHILE * 4);
        scene.store.set_outcomes(&[Outcome::Shortfall(WHILE), Outcome::Fine, long, Outcome::Fine]);
        let first = scene.start(|scene| scene.lock_with(Wait::Endless));
        eventually(|| scene.is_held());
        let second = scene.start(|scene| scene.lock_with(Wait::Endless));
        eventually(|| scene.shared.stats().waiting == 1);
        let begin = now();
        let third = scene.lock_with(Wait::Until(end_of(WHILE * 2)));
        assert!(is_shortfall(&third), "{third:?}");
        assert!(elapsed(begin) < WHILE * 4, "before the second knows");
        for call in [first, second] {
            assert!(is_shortfall(&call.join()));
        }
    });
}

/// A call has given up without a reply, and its hold has not been removed yet.
#[test]
fn a_hold_in_doubt_of_the_same_client_is_no_other_owner() {
    in_virtual_time(|| {
        for begins in [|| Wait::No, || Wait::Until(now())] {
            let scene = Scene::new(LEASE * 100);
            scene.store.is_silent_to_jobs.store(true, Ordering::SeqCst);
            scene.store.set_outcomes(&[Outcome::LostReply, Outcome::LostRequest]);
            let failed = scene.lock_with(Wait::No);
            assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
            assert!(scene.is_held());
            scene.lock_with(begins()).expect("a reply").expect("a lock");
        }
    });
}

#[test]
fn a_lost_hold_of_the_same_client_is_no_other_owner() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        scene.store.is_silent_to_jobs.store(true, Ordering::SeqCst);
        // The store counts the lease from the execution of the request.
        scene.store.set_outcomes(&[Outcome::SlowRequest(LEASE / 2)]);
        let level = scene.lock();
        eventually(|| !scene.shared.is_held(&level.hold));
        assert!(scene.is_held());
        scene.shared.held_locks.remove(&level.hold);
        scene.lock_with(Wait::No).expect("a reply").expect("a lock");
    });
}

/// Returns a client that keeps its lock, and needs more tokens for the next hold.
fn scene_with_a_kept_lock(lease: Duration) -> Scene {
    let mut scene = Scene::with(Scripted::default(), lease);
    (scene.options.renew, scene.options.keep) = (true, lease);
    let level = scene.lock();
    scene.unlock_on_drop(&level.hold);
    let kept = |scene: &Scene| scene.shared.stats().kept;
    assert_eq!(kept(&scene), 1);
    scene.shared.names.with(&level.hold.id, |name| name.use_up_tokens(&level.hold));
    scene.store.registrations.lock().clear();
    scene
}

#[test]
fn the_request_for_more_tokens_is_the_first_attempt() {
    in_virtual_time(|| {
        let scene = scene_with_a_kept_lock(LEASE * 100);
        let begin = now();
        scene.store.set_outcomes(&[Outcome::LostRequest; 9]);
        let failed = scene.lock_with(Wait::No);
        assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
        let registrations = [Registration::Kept, Registration::IfMayBeKept];
        assert_eq!(*scene.store.registrations.lock(), registrations);
        let write_by = scene.store.write_by.lock().clone();
        assert_eq!(write_by.len(), 1, "the tenure is given up");
        assert!(write_by[0] <= begin + POST_MOMENT + WHILE, "{:?}", write_by[0] - begin);
    });
}

#[test]
fn a_call_that_is_over_does_not_wait_to_give_back_what_it_has() {
    in_virtual_time(|| {
        let scene = scene_with_a_kept_lock(LEASE * 100);
        scene.store.set_outcomes(&[Outcome::LostRequest; 9]);
        let end = now();
        scene.lock_with(Wait::Until(end)).expect_err("an outage");
        let latest = end + scene.shared.times.io_timeout;
        assert!(scene.store.write_by.lock().iter().all(|write_by| *write_by <= latest));
    });
}

#[test]
fn more_tokens_that_come_after_the_lease_bring_no_hold() {
    in_virtual_time(|| {
        let scene = scene_with_a_kept_lock(LEASE);
        scene.store.is_silent_to_jobs.store(true, Ordering::SeqCst);
        scene.store.set_outcomes(&[Outcome::Slow(LEASE * 2)]);
        let Level { hold, .. } = scene.lock();
        assert!(scene.shared.is_held(&hold));
        assert_eq!(scene.shared.stats().lost, 0, "no guard has had what is lost");
        assert!(scene.shared.names.holder(HoldKind::Lock, &scene.name).is_some());
        assert!(scene.store.inspect(&scene.name, now()).expect("memory").is_some());
    });
}
