//! A shutdown while other threads acquire and release.

use std::slice;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::{in_virtual_time, sleep};
use crate::error::{Error, Result};
use crate::local::hold_requests;
use crate::local::release::shut_down;
use crate::local::tests::{LEASE, Outcome, Scene, eventually};
use crate::protocol::call::Wait;

/// Much longer than what a thread does between two lines of a test.
const WHILE: Duration = Duration::from_millis(100);

const SOON: Duration = Duration::from_secs(10);

fn assert_unconfirmed(result: &Result<()>) {
    let may_have_executed = result.as_ref().is_err_and(Error::may_have_executed);
    assert!(may_have_executed && matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

#[test]
fn a_posted_release_without_a_reply_is_waited_for() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        scene.lock_and_post_release();
        assert_unconfirmed(&shut_down(&scene.shared, WHILE));
        let shutdown = scene.start(|scene| shut_down(&scene.shared, SOON));
        sleep(WHILE);
        assert!(!shutdown.is_finished());
        scene.store.send_posted();
        shutdown.join().expect("released");
        assert!(!scene.is_held());
        scene.expect_events(["acquired", "released"]);
    });
}

#[test]
fn a_call_under_way_is_waited_for() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        scene.store.set_outcomes(&[Outcome::Slow(3 * WHILE)]);
        let lock = scene.start(|scene| scene.lock_with(Wait::Endless));
        eventually(|| scene.is_held());
        assert_unconfirmed(&shut_down(&scene.shared, WHILE));
        shut_down(&scene.shared, SOON).expect("released");
        assert!(!scene.is_held());
        let outcome = lock.join();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        assert_eq!(scene.shared.stats().held, 0);
    });
}

#[test]
fn a_call_under_way_acquires_nothing_once_the_client_is_closed() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        scene.store.set_outcomes(&[Outcome::Slow(3 * WHILE)]);
        let lock = scene.start(|scene| scene.lock_with(Wait::Endless));
        eventually(|| scene.is_held());
        scene.shared.close();
        let outcome = lock.join();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        eventually(|| !scene.is_held());
        scene.expect_events(["acquired", "released"]);
        assert_eq!(scene.shared.stats().held, 0);
    });
}

/// Its request may still be executed after the first release.
#[test]
fn an_in_doubt_hold_is_released_twice() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        scene.store.set_outcomes(&[Outcome::LostReply]);
        let level = scene.lock();
        shut_down(&scene.shared, SOON).expect("released");
        assert!(scene.store.releases() >= 2);
        scene.expect_events(["acquired", "released"]);
        assert!(!level.hold.is_lost(Moment::now()));
    });
}

#[test]
fn requests_about_a_hold_that_a_shutdown_has_ended_are_not_sent() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let (outer, inner) = (scene.lock(), scene.lock());
        shut_down(&scene.shared, SOON).expect("released");
        // Each request would get this.
        scene.store.set_outcomes(&[Outcome::LostRequest; 8]);
        let closed = |result| matches!(result, Err(Error::Closed));
        for renews in [false, true] {
            let holds = slice::from_ref(&outer.hold);
            assert!(closed(hold_requests::verify(&scene.shared, holds, renews)));
        }
        scene.unlock(&inner.hold).expect("over");
        scene.unlock_on_drop(&outer.hold);
        assert_eq!(scene.store.outcomes.lock().len(), 8);
        scene.expect_events(["acquired", "released"]);
    });
}
