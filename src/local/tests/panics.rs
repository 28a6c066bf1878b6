//! Panics while a request is sent, which the client must survive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::clock::end_of;
use crate::base::sync::in_virtual_time;
use crate::local::acquire_all;
use crate::local::tests::{LEASE, Outcome, Scene, eventually};
use crate::protocol::call::Wait;
use crate::protocol::hold::Hold;

/// Ends a hold, which panics.
fn end_with_a_panic(scene: &Scene, hold: &Arc<Hold>, end: fn(&Scene, &Arc<Hold>)) {
    let ended = catch_unwind(AssertUnwindSafe(|| end(scene, hold)));
    ended.expect_err("a panic");
}

fn drop_with_a_panic(scene: &Scene, hold: &Arc<Hold>) {
    scene.store.post_panics.store(true, Ordering::SeqCst);
    scene.unlock_on_drop(hold);
}

/// Posts the release if a thread waits, otherwise waits for the reply.
fn unlock_with_a_panic(scene: &Scene, hold: &Arc<Hold>) {
    if scene.shared.stats().waiting > 0 {
        scene.store.post_panics.store(true, Ordering::SeqCst);
    } else {
        scene.store.set_outcomes(&[Outcome::Panic]);
    }
    drop(scene.unlock(hold));
}

fn is_settled(scene: &Scene) -> bool {
    scene.shared.counters.unfinished.load(Ordering::SeqCst) == 0
}

#[test]
fn a_thread_that_waits_gets_the_lock_whose_release_has_panicked() {
    in_virtual_time(|| {
        for end in [drop_with_a_panic, unlock_with_a_panic] {
            let scene = Scene::new(LEASE * 10);
            let first = scene.lock();
            let wait = Wait::Until(end_of(LEASE * 30));
            let waits =
                scene.start(move |scene| scene.lock_with(wait).map(|level| level.is_some()));
            eventually(|| scene.shared.stats().waiting == 1);
            end_with_a_panic(&scene, &first.hold, end);
            eventually(|| waits.is_finished());
            assert!(waits.join().expect("a reply"));
            assert_eq!(scene.shared.stats().held, 1);
        }
    });
}

#[test]
fn a_lock_whose_release_has_panicked_is_released_in_the_background() {
    in_virtual_time(|| {
        for end in [drop_with_a_panic, unlock_with_a_panic] {
            let scene = Scene::new(LEASE * 100);
            end_with_a_panic(&scene, &scene.lock().hold, end);
            eventually(|| !scene.is_held() && is_settled(&scene));
            scene.expect_events(["acquired", "release failed"]);
        }
    });
}

#[test]
fn a_call_for_several_locks_that_panics_leaves_none() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 100);
        let names = [scene.name.clone(), Arc::from("other")];
        scene.store.set_outcomes(&[Outcome::Fine, Outcome::Panic]);
        let call =
            || acquire_all::acquire_all(&scene.shared, &names, &scene.options, Wait::Endless);
        catch_unwind(AssertUnwindSafe(call)).expect_err("a panic");
        eventually(|| !scene.is_held() && is_settled(&scene));
        assert_eq!(scene.shared.stats().held, 0);
    });
}
