//! Wake-ups from other clients, for a waiting thread.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::base::clock::{end_of, now};
use crate::base::failure::Failure;
use crate::base::sync::{in_virtual_time, sleep};
use crate::error::{Error, Result};
use crate::local::hold_requests::Level;
use crate::local::listener::tests::fake;
use crate::local::tests::{LEASE, Outcome, Scene, Scripted, eventually};
use crate::protocol::call::Wait;
use crate::store::Store;
use crate::store::ask_one;
use crate::store::background::Wake;
use crate::store::request::{Acquire, AcquireReply, Change, HoldRequest, Registration};

/// Longer than a test.
const LONG: Duration = Duration::from_secs(60);

/// A lock that another client holds, and a client that waits for it.
struct Waiting {
    scene: Scene,
    wakes: Sender<Result<Wake, Failure>>,
}

impl Waiting {
    fn new() -> Self {
        Self::with_pause(LONG)
    }

    /// Without messages, the client asks again after this pause.
    fn with_pause(pause: Duration) -> Self {
        let scene = Scene::with_backoff(Scripted::default(), LEASE * 10, (pause, pause));
        let (fake, wakes, _) = fake();
        *scene.store.wakeups.lock() = Some(fake);
        let held = scene.store.inner.acquire(Acquire {
            holds: &[scene.id(0)],
            lease: LONG,
            note: None,
            registration: Registration::None,
            echo: false,
            deadline: now(),
        });
        assert!(matches!(held, Ok(AcquireReply::Acquired { .. })));
        Self { scene, wakes }
    }

    fn release(&self) {
        let id = self.scene.id(0);
        let (change, deadline) = (Change::RELEASE, now());
        let release = HoldRequest { hold: &id, change, deadline };
        ask_one(&self.scene.store.inner, release).expect("memory");
    }

    fn wake(&self) {
        self.wakes.send(Ok(Wake::Lock(self.scene.name.to_string()))).expect("the listener lives");
    }

    /// Wakes the thread for requests with these outcomes, and waits until the first is sent.
    fn wake_with(&self, outcomes: &[Outcome]) {
        let store = &self.scene.store;
        store.set_outcomes(outcomes);
        self.wake();
        eventually(|| store.outcomes.lock().len() < outcomes.len());
    }

    /// Waits for the lock, and runs `meanwhile` once the thread has found it held.
    fn wait(&self, meanwhile: impl FnOnce()) -> Result<Option<Level>> {
        let waits = self.scene.start(|scene| scene.lock_with(Wait::Until(end_of(LONG))));
        self.scene.wait_until_contended();
        meanwhile();
        waits.join()
    }

    fn is_free(&self) -> bool {
        let Scene { store, name, .. } = &self.scene;
        store.inspect(name, now()).expect("memory").is_none()
    }
}

#[test]
fn a_wake_up_has_the_thread_try_again() {
    in_virtual_time(|| {
        let waiting = Waiting::new();
        let level = waiting.wait(|| {
            waiting.release();
            waiting.wake();
        });
        let level = level.expect("a reply").expect("a lock");
        assert!(!level.hold.may_begin);
        assert!(waiting.scene.shared.is_held(&level.hold));
    });
}

#[test]
fn a_call_that_relies_on_messages_asks_soon_once_they_no_longer_arrive() {
    in_virtual_time(|| {
        let pause = Duration::from_millis(20);
        let waiting = Waiting::with_pause(pause);
        let requests = || waiting.scene.store.registrations.lock().len();
        let tell = |wake| waiting.wakes.send(Ok(wake)).expect("the listener lives");
        let level = waiting.wait(|| {
            tell(Wake::Complete(true));
            eventually(|| waiting.scene.shared.names.is_listening());
            tell(Wake::Echo(waiting.scene.name.to_string()));
            eventually(|| {
                let before = requests();
                sleep(pause * 10);
                requests() == before
            });
            let before = requests();
            tell(Wake::Complete(false));
            eventually(|| requests() > before);
            waiting.release();
        });
        level.expect("a reply").expect("a lock");
    });
}

#[test]
fn a_lost_request_to_leave_the_queue_is_repeated() {
    in_virtual_time(|| {
        let Waiting { scene, .. } = Waiting::new();
        scene.store.loses_unregister.store(true, Ordering::SeqCst);
        let left = scene.lock_with(Wait::Until(end_of(Duration::from_millis(50))));
        assert!(left.expect("a reply").is_none());
        let is_repeated = || scene.store.jobs.lock().contains(&Change::Unregister);
        eventually(is_repeated);
    });
}

#[test]
fn a_request_after_a_wake_up_is_repeated_after_a_lost_reply() {
    in_virtual_time(|| {
        let waiting = Waiting::new();
        let level = waiting.wait(|| {
            waiting.release();
            waiting.wake_with(&[Outcome::LostReply]);
            waiting.wake();
        });
        let level = level.expect("a reply").expect("a lock");
        assert!(level.hold.may_begin);
    });
}

#[test]
fn a_request_after_a_wake_up_is_cleaned_up_when_the_thread_gets_no_reply() {
    in_virtual_time(|| {
        let waiting = Waiting::new();
        let lost = waiting.wait(|| {
            waiting.release();
            let mut outcomes = [Outcome::LostRequest; 100];
            outcomes[0] = Outcome::LostReply;
            waiting.wake_with(&outcomes);
            // An outcome is taken before the request is carried out.
            eventually(|| !waiting.is_free());
            waiting.scene.shared.close();
        });
        assert!(matches!(lost, Err(Error::Closed)), "{lost:?}");
        eventually(|| waiting.is_free());
    });
}
