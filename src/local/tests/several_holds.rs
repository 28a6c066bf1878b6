//! Holds that several threads or one call have together.

use std::sync::Arc;
use std::thread;

use crate::local::call::Wait;
use crate::local::tests::{LEASE, Outcome, Scene, Scripted, eventually};
use crate::local::{acquire, acquire_all, hold_requests, release};
use crate::store::hold_id::HoldKind;
use crate::store::request::Registration;

/// Its client has one place among the waiting clients, which is that of the thread behind the head.
#[test]
fn a_thread_that_tries_beside_the_head_takes_no_place_among_the_waiting_clients() {
    let backoff = (LEASE * 100, LEASE * 100);
    let scene = Scene::with_backoff(Scripted::default(), LEASE * 10, backoff);
    let owned = |kind| {
        let hold = acquire::owned(&scene.shared, kind, &scene.name, &scene.options, Wait::Endless);
        hold.expect("a reply").expect("a hold")
    };
    let writer = owned(HoldKind::Write);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| owned(HoldKind::Read));
        }
        eventually(|| scene.shared.stats().waiting == 3);
        scene.store.registrations.lock().clear();
        release::unlock(&scene.shared, &[writer]).expect("released");
    });
    let registrations = scene.store.registrations.lock();
    let beside = registrations.iter().filter(|one| **one == Registration::None).count();
    assert_eq!((beside, registrations.len()), (1, 3), "{registrations:?}");
}

#[test]
fn an_outage_that_only_a_set_suffers_from_is_told() {
    let scene = Scene::new(LEASE * 10);
    let names = ["a", "b"].map(Arc::from);
    let set = acquire_all::acquire_all(&scene.shared, &names, &scene.options, Wait::Endless);
    let set = set.expect("a reply").expect("free locks");
    let outages = &scene.shared.reporter.outages;
    scene.store.set_outcomes(&[Outcome::LostRequest; 4]);
    hold_requests::verify(&scene.shared, &set, false).expect_err("no reply");
    assert!(outages.lasts());
    hold_requests::verify(&scene.shared, &set, true).expect("replies");
    assert!(!outages.lasts());
    release::unlock(&scene.shared, &set).expect("released");
}

#[test]
fn each_release_of_a_set_gets_a_second_chance() {
    let scene = Scene::new(LEASE * 10);
    let names = ["a", "b", "c"].map(Arc::from);
    let set = acquire_all::acquire_all(&scene.shared, &names, &scene.options, Wait::Endless);
    let set = set.expect("a reply").expect("free locks");
    let (lost, fine) = ([Outcome::LostRequest].repeat(3), [Outcome::Fine].repeat(3));
    // They are sent together, and once more together.
    scene.store.set_outcomes(&[lost, fine].concat());
    release::unlock(&scene.shared, &set).expect("released");
}
