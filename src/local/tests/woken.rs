//! What the engine makes of a message that a lock may be free.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use crate::clock::end_of;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::failure::Failure;
use crate::local::listener::tests::fake;
use crate::local::shared::{HeadStart, Level, Wait};
use crate::local::tests::{Fate, LEASE, Scene, Scripted, eventually};
use crate::local::waiter::Turn;
use crate::store::Store;
use crate::store::request::{Acquire, AcquireReply, Registration};
use crate::store::wake::Wake;

/// Longer than a test.
const LONG: Duration = Duration::from_secs(60);

/// A thread waits for a lock that another client has.
struct Waiting {
    scene: Scene,
    news: Sender<Result<Wake, Failure>>,
}

impl Waiting {
    fn new() -> Self {
        let scene = Scene::with_backoff(Scripted::default(), LEASE * 10, (LONG, LONG));
        let (fake, news, _) = fake();
        *scene.store.wakeups.lock() = Some(fake);
        let held = scene.store.inner.acquire(Acquire {
            hold: &scene.id(0),
            lease: LONG,
            registration: Registration::None,
            deadline: Instant::now(),
        });
        assert!(matches!(held, Ok(AcquireReply::Acquired { .. })));
        Self { scene, news }
    }

    fn release(&self) {
        self.scene.store.inner.release(&self.scene.id(0), Instant::now()).expect("memory");
    }

    fn wake(&self) {
        self.news.send(Ok(Wake::Lock(self.scene.name.to_string()))).expect("somebody listens");
    }

    /// Wakes the thread for a request that meets the first of the fates, as others will the rest.
    fn wake_for(&self, fates: &[Fate]) {
        let store = &self.scene.store;
        store.will(fates);
        self.wake();
        eventually(|| store.fates.lock().len() < fates.len());
    }

    /// Has the thread sleep, and woken for nothing, until a request was sent for it.
    fn is_asked_for(&self) {
        let begun = || self.scene.store.begun.load(Ordering::SeqCst);
        let before = begun();
        eventually(|| {
            // So that no more than one is heard later.
            if self.news.is_empty() {
                self.wake();
            }
            begun() > before
        });
    }

    /// Lets `meanwhile` happen once the thread has waited for a while.
    fn wait(&self, meanwhile: impl FnOnce()) -> Result<Option<Level>> {
        let Scene { engine, name, options, events, .. } = &self.scene;
        thread::scope(|scope| {
            let waits = scope.spawn(|| engine.lock(name, options, Wait::Until(end_of(LONG))));
            events.iter().find(|event| matches!(event, Event::Contended { .. }));
            self.is_asked_for();
            meanwhile();
            waits.join().expect("no panic")
        })
    }

    fn is_free(&self) -> bool {
        let Scene { store, name, .. } = &self.scene;
        store.inspect(name, Instant::now()).expect("memory").is_none()
    }
}

#[test]
fn a_wake_up_asks_for_the_thread_that_sleeps() {
    let waiting = Waiting::new();
    let won = waiting.wait(|| {
        waiting.release();
        waiting.wake();
    });
    let level = won.expect("an answer").expect("a lock");
    assert!(!level.lease.is_unsettled());
    assert!(waiting.scene.engine.is_held(&level.lease));
}

#[test]
fn a_lost_reply_to_what_a_wake_up_sent_is_asked_for_again() {
    let waiting = Waiting::new();
    let won = waiting.wait(|| {
        waiting.release();
        waiting.wake_for(&[Fate::LostReply]);
        waiting.wake();
    });
    let level = won.expect("an answer").expect("a lock");
    assert!(level.lease.is_unsettled());
}

#[test]
fn what_a_wake_up_sent_is_cleaned_up_when_nobody_gets_the_reply() {
    let waiting = Waiting::new();
    let lost = waiting.wait(|| {
        waiting.release();
        // It may have been woken once more, and ask again.
        waiting.wake_for(&[Fate::LostReply, Fate::LostRequest, Fate::LostRequest]);
        assert!(!waiting.is_free());
        waiting.scene.engine.close();
    });
    assert!(matches!(lost, Err(Error::Closed)), "{lost:?}");
    eventually(|| waiting.is_free());
}

/// The thread in front may have been told of the end, and have left, before this one has woken.
#[test]
fn who_comes_to_the_head_after_close_does_not_wait_there() {
    let Waiting { scene, .. } = Waiting::new();
    let Scene { engine, name, options, .. } = &scene;
    let join = || engine.lines().join(name, options, true).expect("open");
    let [_, (ticket, _)] = [join(), join()];
    engine.close();
    engine.lines().give_up(name, None);
    let turn = engine.lines().wait(&ticket, None).expect("called to the head");
    assert!(matches!(turn, Turn::Head { .. }));
    let wait = Wait::Until(end_of(Duration::from_secs(5)));
    let outcome = engine.compete_at_head(name, options, wait, &ticket, HeadStart::Next);
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}
