//! What the engine makes of a store that is slow, or whose replies are lost.

mod woken;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;

use crate::clock::{Moment, end_of};
use crate::config::{Config, LockOptions};
use crate::error::Error;
use crate::event::{Callback, Event, Events};
use crate::failure::{Failure, FailureKind};
use crate::local::identity::Thread;
use crate::local::lease::Lease;
use crate::local::listener::tests::Fake;
use crate::local::shared::{Level, Shared, Wait};
use crate::store::Store;
use crate::store::hold::{HoldId, Holder};
use crate::store::job::{Action, Job, JobOutcome, JobRunner};
use crate::store::memory::Memory;
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, PendingReply, PostedRelease, Recall, Registration, SetDepth,
    Transfer, TransferReply,
};
use crate::store::wake::Wakeups;

/// Long for what a thread does between two lines of a test.
const LEASE: Duration = Duration::from_millis(600);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    LostReply,
    /// Not executed.
    LostRequest,
    /// Not executed.
    Passing,
    Slow(Duration),
}

/// Locks in memory behind requests whose fates are known beforehand.
#[derive(Clone, Default)]
struct Scripted {
    inner: Memory,
    /// Those of the next requests; all others go well.
    fates: Arc<Mutex<VecDeque<Fate>>>,
    cares: Arc<Mutex<Vec<Action>>>,
    /// Releases that were left to others, while they are.
    left: Option<Arc<Mutex<Vec<Left>>>>,
    /// How many requests for a hold were sent by threads that did not wait for the answer.
    begun: Arc<AtomicUsize>,
    /// What the listener is to hear, if there is to be one.
    wakeups: Arc<Mutex<Option<Fake>>>,
}

/// A release, and who wants its answer.
type Left = (HoldId, Box<dyn FnOnce(Result<HoldReply, Failure>) + Send>);

impl Scripted {
    fn will(&self, fates: &[Fate]) {
        self.fates.lock().extend(fates);
    }

    fn meet<T>(&self, request: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let fate = self.fates.lock().pop_front().unwrap_or(Fate::Fine);
        let fail = |kind| Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"));
        match fate {
            Fate::Slow(time) => {
                let reply = request();
                thread::sleep(time);
                reply
            }
            Fate::LostReply => request().and(Err(fail(FailureKind::Timeout))),
            Fate::LostRequest => Err(fail(FailureKind::Timeout)),
            Fate::Passing => Err(fail(FailureKind::Transient)),
            Fate::Fine => request(),
        }
    }

    /// Takes a release that was left to others, as if it were sent.
    fn take_left(&self) -> Left {
        let left = self.left.as_ref().and_then(|left| left.lock().pop());
        left.expect("a release")
    }

    /// Sends a release that was left to others.
    fn send_left(&self) {
        let (hold, then) = self.take_left();
        then(self.release(&hold, Instant::now()));
    }

    /// How often a release was tried in the background.
    fn releases(&self) -> usize {
        self.cares.lock().iter().filter(|care| **care == Action::Release).count()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Store for Scripted {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.meet(|| self.inner.acquire(request))
    }

    fn start_acquire(&self, request: Acquire<'_>) -> Option<PendingReply<AcquireReply>> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let reply = self.acquire(request);
        Some(PendingReply::new(|| reply))
    }

    fn set_depth(&self, request: SetDepth<'_>) -> Result<HoldReply, Failure> {
        self.meet(|| self.inner.set_depth(request))
    }

    fn release(&self, hold: &HoldId, deadline: Instant) -> Result<HoldReply, Failure> {
        self.meet(|| self.inner.release(hold, deadline))
    }

    fn post_release(&self, release: PostedRelease<'_>) -> Option<Recall> {
        let left = self.left.clone()?;
        left.lock().push((release.hold.clone(), release.on_reply));
        Some(Recall::new(move || left.lock().pop().is_some()))
    }

    fn transfer(&self, request: Transfer<'_>) -> PendingReply<TransferReply> {
        let reply = self.meet(|| self.inner.transfer(request).wait());
        PendingReply::new(|| reply)
    }

    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<Holder>, Failure> {
        self.inner.inspect(name, deadline)
    }

    fn force_release(&self, name: &str, deadline: Instant) -> Result<bool, Failure> {
        self.inner.force_release(name, deadline)
    }

    fn unregister(&self, name: &str, client: &str, deadline: Instant) -> Result<(), Failure> {
        self.inner.unregister(name, client, deadline)
    }

    fn wakeups(&self, _: &str) -> Option<Box<dyn Wakeups>> {
        Some(Box::new(self.wakeups.lock().take()?))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(self.clone())
    }
}

impl JobRunner for Scripted {
    fn send(&mut self, tasks: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        self.cares.lock().extend(tasks.iter().map(|task| task.action));
        self.inner.send(tasks, done);
    }

    fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}

    fn abandon(&mut self, _: &mut dyn FnMut(u64, JobOutcome)) {}
}

struct Scene {
    store: Scripted,
    engine: Arc<Shared>,
    name: Arc<str>,
    options: LockOptions,
    events: Receiver<Event>,
}

impl Scene {
    /// With a lease that is not renewed.
    fn new(lease: Duration) -> Self {
        Self::with(Scripted::default(), lease)
    }

    /// As before, with others to whom releases can be left.
    fn pipelined() -> Self {
        Self::with(Scripted { left: Some(Arc::default()), ..Scripted::default() }, LEASE * 10)
    }

    fn with(store: Scripted, lease: Duration) -> Self {
        Self::with_backoff(store, lease, Config::default().backoff)
    }

    fn with_backoff(store: Scripted, lease: Duration, backoff: (Duration, Duration)) -> Self {
        let options = LockOptions { lease, renew: false, ..LockOptions::default() };
        let config = Config {
            options: options.clone(),
            retry_window: Duration::from_millis(200),
            backoff,
            pipelined_release: true,
            ..Config::default()
        };
        let (sender, events) = unbounded();
        // The last ones may come when the test is over.
        let callback = Callback::new(move |event| sender.send(event.clone()).unwrap_or_default());
        let told = Events::deliver_to(callback).expect("a thread");
        let engine = Shared::start(config, Arc::new(store.clone()), false, None, told);
        let (engine, name) = (Arc::new(engine.expect("a thread")), Arc::from("lock"));
        Self { store, engine, name, options, events }
    }

    fn lock(&self) -> Level {
        let won = self.engine.lock(&self.name, &self.options, Wait::Endless);
        won.expect("an answer").expect("a lock")
    }

    /// Locks and drops, and leaves the release to others.
    fn lock_and_leave(&self) {
        let level = self.lock();
        self.engine.unlock_soon(&level.lease).expect("left to others");
        assert!(self.is_held(), "not yet released");
    }

    fn is_held(&self) -> bool {
        self.store.inspect(&self.name, Instant::now()).expect("memory").is_some()
    }

    /// The next events, as words.
    #[track_caller]
    fn must_tell<const N: usize>(&self, words: [&str; N]) {
        let told = self.events.iter().take(N).map(|event| match event {
            Event::Acquired { .. } => "acquired",
            Event::Released { .. } => "released",
            Event::ReleaseFailed { .. } => "release failed",
            Event::Lost { .. } => "lost",
            _ => "something else",
        });
        assert_eq!(told.collect::<Vec<_>>(), words);
    }

    /// A hold of nobody's.
    fn id(&self, nonce: u64) -> HoldId {
        HoldId { name: self.name.clone(), client: Arc::from("client"), nonce }
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let end = end_of(Duration::from_secs(5));
    while !condition() {
        assert!(Instant::now() < end, "not even after 5 s");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_nested_lock_counts_from_its_request() {
    let scene = Scene::new(LEASE);
    let outer = scene.lock();
    let slow = LEASE / 3;
    scene.store.will(&[Fate::Slow(slow)]);
    let inner = scene.lock();
    assert_eq!(inner.depth, 2);
    let left = outer.lease.remaining();
    assert!(left + slow <= LEASE, "{left:?}");
}

#[test]
fn a_level_beyond_the_last_is_refused_before_a_request() {
    let scene = Scene::new(LEASE * 10);
    let outer = scene.lock();
    outer.lease.set_depth(u32::MAX);
    let refused = scene.engine.lock(&scene.name, &scene.options, Wait::No);
    assert!(matches!(refused, Err(Error::InvalidInput(_))), "{refused:?}");
    assert_eq!(outer.lease.depth(), u32::MAX);
    let holder = scene.store.inspect(&scene.name, Instant::now()).expect("memory");
    assert_eq!(holder.expect("a holder").depth, 1);
}

#[test]
fn a_reply_after_the_lease_brings_no_hold() {
    let scene = Scene::new(LEASE);
    scene.store.will(&[Fate::Slow(LEASE)]);
    let level = scene.lock();
    assert!(level.lease.remaining() > LEASE / 2, "the hold of a second request");
    assert!(level.lease.is_unsettled());
}

#[test]
fn a_nested_lock_that_is_answered_after_the_lease_leaves_no_level_behind() {
    let scene = Scene::new(LEASE);
    let outer = scene.lock();
    scene.store.will(&[Fate::Slow(LEASE)]);
    let nested = scene.engine.lock(&scene.name, &scene.options, Wait::Endless);
    assert!(matches!(nested, Err(Error::Lost { .. })), "{nested:?}");
    scene.engine.unlock(&outer.lease).expect_err("lost");
    // The thread has no guard any more, so that it gets a new hold.
    assert_eq!(scene.lock().depth, 1);
}

#[test]
fn an_answer_begins_the_retry_window_anew() {
    let scene = Scene::new(LEASE);
    let window = scene.engine.config.retry_window;
    let other = scene.store.inner.acquire(Acquire {
        hold: &scene.id(0),
        lease: window * 2,
        registration: Registration::None,
        deadline: Instant::now(),
    });
    assert!(matches!(other, Ok(AcquireReply::Acquired { .. })));
    scene.store.will(&[Fate::Passing, Fate::Slow(window), Fate::Passing]);
    // More than the window lies between the failures, and an answer.
    scene.lock();
    assert!(scene.store.fates.lock().is_empty());
}

#[test]
fn what_began_with_an_unknown_outcome_is_cleaned_up_after_its_release() {
    let scene = Scene::new(LEASE * 10);
    scene.store.will(&[Fate::LostReply]);
    let level = scene.lock();
    scene.engine.unlock(&level.lease).expect("released");
    // One answer does not settle it.
    eventually(|| scene.store.releases() >= 2);
}

/// Has a hold handed on to a thread that waits in line.
fn hand_on(scene: &Scene, hand_on: impl FnOnce(&Arc<Lease>)) {
    let first = scene.lock();
    thread::scope(|scope| {
        scope.spawn(|| {
            let next = scene.lock();
            scene.engine.unlock(&next.lease).expect("released");
        });
        // Told by that thread when it stands in line.
        scene.events.iter().find(|event| matches!(event, Event::Contended { .. }));
        hand_on(&first.lease);
    });
}

#[test]
fn what_was_handed_on_with_an_unknown_outcome_is_cleaned_up_after_its_release() {
    let scene = Scene::new(LEASE * 10);
    hand_on(&scene, |lease| {
        scene.store.will(&[Fate::LostReply]);
        scene.engine.unlock(lease).expect("handed on");
    });
    eventually(|| scene.store.releases() >= 2);
}

/// The first request to hand on may yet be executed, after one that brings the old hold back.
#[test]
fn what_was_handed_on_too_late_with_an_unknown_outcome_is_cleaned_up() {
    let scene = Scene::new(LEASE * 10);
    hand_on(&scene, |lease| {
        scene.store.will(&[Fate::LostRequest]);
        scene.engine.unlock_soon(lease).expect("on its way");
        scene.store.inner.force_release(&scene.name, Instant::now()).expect("memory");
    });
    eventually(|| scene.store.releases() >= 2);
}

#[test]
fn what_began_with_an_unknown_outcome_is_cleaned_up_after_its_loss() {
    let scene = Scene::new(LEASE * 10);
    scene.store.will(&[Fate::LostReply]);
    let level = scene.lock();
    scene.engine.force(&scene.name).expect("an answer");
    scene.engine.verify(&level.lease).expect_err("lost");
    eventually(|| scene.store.releases() >= 2);
}

#[test]
fn a_hold_that_its_thread_finds_lost_is_cleaned_up() {
    let scene = Scene::new(LEASE * 10);
    let (id, sent) = (scene.id(7), Moment::now().before(LEASE * 10));
    let stands = || scene.store.inspect(&scene.name, Instant::now()).expect("memory").is_some();
    scene
        .store
        .acquire(Acquire {
            hold: &id,
            lease: LEASE * 10,
            registration: Registration::None,
            deadline: Instant::now(),
        })
        .expect("memory");
    // Such as nobody but the holding thread looks after.
    let lease = Lease::new(id, 1, &scene.options, sent, Thread::current());
    assert!(stands() && !scene.engine.is_held(&lease));
    eventually(|| !stands());
}

#[test]
fn a_release_that_was_not_sent_becomes_a_hand_over() {
    for wait in [Wait::Endless, Wait::No] {
        let scene = Scene::pipelined();
        scene.lock_and_leave();
        scene.store.will(&[Fate::Fine; 2]);
        let next = scene.engine.lock(&scene.name, &scene.options, wait).expect("an answer");
        assert_eq!(scene.store.fates.lock().len(), 1, "one request");
        scene.must_tell(["acquired", "released", "acquired"]);
        scene.engine.unlock(&next.expect("a lock").lease).expect("released");
        assert!(!scene.is_held());
    }
}

#[test]
fn a_release_that_was_sent_is_waited_for() {
    for wait in [Wait::Endless, Wait::No] {
        let scene = Scene::pipelined();
        scene.lock_and_leave();
        let (hold, then) = scene.store.take_left();
        thread::scope(|scope| {
            let next = scope.spawn(|| {
                let next = scene.engine.lock(&scene.name, &scene.options, wait);
                next.expect("an answer").expect("a lock").lease.fence
            });
            thread::sleep(LEASE / 10);
            assert!(!next.is_finished(), "the lock is still in the store");
            then(scene.store.release(&hold, Instant::now()));
            assert!(next.join().expect("no panic") > 1);
        });
    }
}

#[test]
fn a_server_that_does_not_answer_a_release_is_no_other_holder() {
    let scene = Scene::pipelined();
    scene.lock_and_leave();
    let left = scene.store.take_left();
    scene.store.will(&[Fate::LostRequest; 9]);
    let wait = Wait::Until(end_of(LEASE / 10));
    let refused = scene.engine.lock(&scene.name, &scene.options, wait);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    drop(left);
}

#[test]
fn what_comes_of_a_release_that_was_left_to_others_is_told() {
    let scene = Scene::pipelined();
    scene.lock_and_leave();
    scene.store.send_left();
    scene.must_tell(["acquired", "released"]);
    scene.lock_and_leave();
    scene.store.will(&[Fate::LostRequest]);
    scene.store.send_left();
    scene.must_tell(["acquired", "release failed"]);
    eventually(|| !scene.is_held());
    scene.lock_and_leave();
    scene.store.inner.force_release(&scene.name, Instant::now()).expect("memory");
    scene.store.send_left();
    scene.must_tell(["acquired", "lost"]);
}
