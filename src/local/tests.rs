//! Calls for locks in a store that is slow, or whose replies are lost.

mod forked;
mod panics;
mod several_holds;
mod shutdown;
mod taken_back;
mod wakeups;

use std::collections::VecDeque;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;

use crate::base::canceller::Canceller;
use crate::base::clock::{Moment, elapsed, end_of, now};
use crate::base::event_thread::Events;
use crate::base::failure::{Failure, FailureKind};
use crate::base::spans::HoldSpan;
use crate::base::sync::{Started, in_virtual_time, receive, sleep, start};
use crate::config::{Config, LockOptions};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::local::attempts::Attempts;
use crate::local::hold_requests::{self, Level};
use crate::local::listener::tests::Fake;
use crate::local::parker::Parker;
use crate::local::shared::Shared;
use crate::local::{acquire, adoption, release, status};
use crate::net::server::Pools;
use crate::protocol::call::Wait;
use crate::protocol::call::tests::caller;
use crate::protocol::hold::{Grant, Hold};
use crate::protocol::name::Name;
use crate::protocol::name::tests::Ending;
use crate::protocol::tenure::Tenure;
use crate::store::background::{Job, JobOutcome, JobRunner, Wakeups};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::memory::Memory;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, Look, OwnerOf, PostedChange,
    Registration, ReportReply, Telling,
};
use crate::store::{Store, ask_one};

/// Much longer than what a thread does between two lines of a test.
const LEASE: Duration = Duration::from_millis(600);

const SOON: Duration = Duration::from_secs(5);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fine,
    LostReply,
    /// Not executed.
    LostRequest,
    /// Not executed.
    Transient,
    /// Not executed: the thread panics.
    Panic,
    Slow(Duration),
    /// Executed after that time.
    SlowRequest(Duration),
    /// Executed, and after that time it falls short of its durability.
    Shortfall(Duration),
    /// A posted release is executed, and its reply read, before the reply to this request is read.
    ThenPosted,
}

/// Locks in memory, behind requests whose outcomes the test sets.
#[derive(Clone, Default)]
struct Scripted {
    inner: Memory,
    /// The outcomes of the next requests; all others succeed.
    outcomes: Arc<Mutex<VecDeque<Outcome>>>,
    jobs: Arc<Mutex<Vec<Change>>>,
    /// Posted releases that are not sent yet; `None` if each is sent at once.
    posted: Option<Arc<Mutex<Vec<Posted>>>>,
    /// Until when threads would have waited to write the requests that they posted.
    write_by: Arc<Mutex<Vec<Instant>>>,
    /// Whether the next thread that posts something panics.
    post_panics: Arc<AtomicBool>,
    /// Whether background jobs get no reply.
    is_silent_to_jobs: Arc<AtomicBool>,
    /// The jobs that fail at their deadlines.
    unanswered: Arc<Mutex<Vec<Job>>>,
    /// Whether no thread learns which client has a lock.
    is_silent_to_looks: Arc<AtomicBool>,
    /// Whether the next request to leave the queue is lost; requests with outcomes are others.
    loses_unregister: Arc<AtomicBool>,
    /// How the requests to acquire registered the client.
    registrations: Arc<Mutex<Vec<Registration>>>,
    /// The wake-ups for the listener, instead of those of the locks in memory.
    wakeups: Arc<Mutex<Option<Fake>>>,
}

/// A posted release, and the callback for its reply.
struct Posted {
    hold: HoldId,
    change: Change,
    on_reply: Box<dyn FnOnce(Result<HoldReply, Failure>) + Send>,
}

impl Scripted {
    fn set_outcomes(&self, outcomes: &[Outcome]) {
        self.outcomes.lock().extend(outcomes);
    }

    fn apply_outcome<T>(&self, request: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let outcome = self.outcomes.lock().pop_front().unwrap_or(Outcome::Fine);
        let fail = |kind| Failure::io(kind, &Arc::from("here"), std::io::Error::other("test"));
        match outcome {
            Outcome::Slow(time) => {
                let reply = request();
                sleep(time);
                reply
            }
            Outcome::ThenPosted => {
                let reply = request();
                self.send_posted();
                reply
            }
            Outcome::SlowRequest(time) => {
                sleep(time);
                request()
            }
            Outcome::Panic => panic!("a test"),
            Outcome::Shortfall(time) => {
                let reply = request();
                sleep(time);
                reply.and(Err(fail(FailureKind::NotReplicated { acked: 0, required: 1 })))
            }
            Outcome::LostReply => request().and(Err(fail(FailureKind::Timeout))),
            Outcome::LostRequest => Err(fail(FailureKind::Timeout)),
            Outcome::Transient => Err(fail(FailureKind::Transient)),
            Outcome::Fine => request(),
        }
    }

    /// Removes and returns a posted release, as if it were sent.
    fn take_posted(&self) -> Posted {
        let posted = self.posted.as_ref().and_then(|posted| posted.lock().pop());
        posted.expect("a release")
    }

    /// Sends a posted release.
    fn send_posted(&self) {
        let Posted { hold, change, on_reply } = self.take_posted();
        on_reply(ask_one(self, HoldRequest { hold: &hold, change, deadline: now() }));
    }

    /// Returns how often a hold was released in the background.
    fn releases(&self) -> usize {
        self.jobs.lock().iter().filter(|job| matches!(job, Change::Release { .. })).count()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Store for Scripted {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.registrations.lock().push(request.registration);
        self.apply_outcome(|| self.inner.acquire(request))
    }

    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        for (place, request) in requests.iter().enumerate() {
            let reply = match request.change {
                Change::Unregister if self.loses_unregister.swap(false, Ordering::SeqCst) => {
                    Err(Failure::late())
                }
                Change::Unregister => ask_one(&self.inner, *request),
                _ => self.apply_outcome(|| ask_one(&self.inner, *request)),
            };
            on_reply(place, reply);
        }
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        assert!(!self.post_panics.swap(false, Ordering::SeqCst), "a test");
        for PostedChange { request, write_by, on_reply } in posts {
            self.write_by.lock().push(write_by);
            match (&self.posted, request) {
                (Some(posted), HoldRequest { hold, change: Change::Release { .. }, .. }) => {
                    let (hold, change) = (hold.clone(), request.change);
                    posted.lock().push(Posted { hold, change, on_reply });
                }
                _ => on_reply(ask_one(self, request)),
            }
        }
    }

    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure> {
        if self.is_silent_to_looks.load(Ordering::SeqCst) {
            sleep(deadline.saturating_duration_since(now()));
            return Err(Failure::late());
        }
        self.inner.report(name, look, deadline)
    }

    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure> {
        self.inner.force_release(owner, deadline)
    }

    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure> {
        self.inner.tell(name, telling, deadline)
    }

    fn ping(&self, hold: &HoldId, deadline: Instant) -> Result<(), Failure> {
        self.inner.ping(hold, deadline)
    }

    fn wakeups(&self, client: &str, channels: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        match self.wakeups.lock().take() {
            Some(scripted) => Box::new(scripted),
            None => self.inner.wakeups(client, channels),
        }
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(self.clone())
    }
}

impl JobRunner for Scripted {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        self.jobs.lock().extend(jobs.iter().map(|job| job.change));
        if self.is_silent_to_jobs.load(Ordering::SeqCst) {
            return self.unanswered.lock().extend(jobs);
        }
        self.inner.jobs().send(jobs, done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        let next =
            self.unanswered.lock().iter().map(|job| job.deadline).fold(deadline, Instant::min);
        sleep(next.saturating_duration_since(now()));
        for job in self.unanswered.lock().extract_if(.., |job| job.deadline <= now()) {
            done(job.id, Err(Failure::late()));
        }
    }
}

#[derive(Clone)]
struct Scene {
    store: Scripted,
    shared: Arc<Shared>,
    name: Arc<str>,
    options: LockOptions,
    events: Receiver<Event>,
}

impl Scene {
    /// Ends the current hold, as another client might.
    fn end_hold(&self) {
        let holder = self.store.inner.inspect(&self.name, now()).expect("memory");
        let owner = holder.expect("a holder").owner;
        let owner = OwnerOf { kind: HoldKind::Lock, name: &self.name, owner: &owner };
        let ended = self.store.inner.force_release(owner, now());
        assert_eq!(ended.ok(), Some(true));
    }

    /// Creates a scene with a lease that is not renewed.
    fn new(lease: Duration) -> Self {
        Self::with(Scripted::default(), lease)
    }

    /// Like `new`, with a store in which the test decides when posted releases are sent.
    fn posting() -> Self {
        Self::with(Scripted { posted: Some(Arc::default()), ..Scripted::default() }, LEASE * 10)
    }

    fn with(store: Scripted, lease: Duration) -> Self {
        Self::with_backoff(store, lease, Config::default().backoff)
    }

    fn with_backoff(store: Scripted, lease: Duration, backoff: (Duration, Duration)) -> Self {
        let tenure = Some(lease / 3);
        let options = LockOptions { lease, renew: false, tenure, ..LockOptions::default() };
        let config = Config {
            options: options.clone().into(),
            retry_window: Duration::from_millis(200),
            backoff,
            ..Config::default()
        };
        let (sender, events) = unbounded();
        // The last events may arrive after the test.
        let callback = move |event: &Event| sender.send(event.clone()).unwrap_or_default();
        let reports = Events::start(Some(Arc::new(callback)), false).expect("a thread");
        let shared = Shared::start(config, &reports, Arc::new(store.clone()), Pools::default());
        let (shared, name) = (Arc::new(shared.expect("a thread")), Arc::from("lock"));
        Self { store, shared, name, options, events }
    }

    fn lock(&self) -> Level {
        self.lock_with(Wait::Endless).expect("a reply").expect("a lock")
    }

    fn lock_with(&self, wait: Wait) -> Result<Option<Level>> {
        acquire::lock(&self.shared, &self.name, &self.options, wait)
    }

    fn unlock(&self, hold: &Arc<Hold>) -> Result<()> {
        release::unlock(&self.shared, slice::from_ref(hold))
    }

    fn unlock_on_drop(&self, hold: &Arc<Hold>) {
        release::unlock_on_drop(&self.shared, slice::from_ref(hold));
    }

    /// Acquires the lock, and posts its release.
    fn lock_and_post_release(&self) {
        let level = self.lock();
        self.unlock_on_drop(&level.hold);
        assert!(self.is_held(), "not yet released");
    }

    fn is_held(&self) -> bool {
        self.store.inspect(&self.name, now()).expect("memory").is_some()
    }

    /// Calls this on another thread.
    fn start<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Started<T> {
        let scene = self.clone();
        start(move || call(&scene))
    }

    #[track_caller]
    fn next_event(&self) -> Event {
        receive(&self.events, end_of(SOON)).expect("another event")
    }

    /// Waits until a call is reported to have found the lock held.
    #[track_caller]
    fn wait_until_contended(&self) {
        while !matches!(self.next_event(), Event::Contended { .. }) {}
    }

    /// Expects these events next.
    #[track_caller]
    fn expect_events<const N: usize>(&self, words: [&str; N]) {
        let events = words.map(|_| match self.next_event() {
            Event::Acquired { .. } => "acquired",
            Event::Released { .. } => "released",
            Event::ReleaseFailed { .. } => "release failed",
            Event::Lost { .. } => "lost",
            _ => "something else",
        });
        assert_eq!(events, words);
    }

    /// Returns the id of a hold of another client.
    fn id(&self, nonce: u64) -> HoldId {
        HoldId { kind: HoldKind::Lock, name: self.name.clone(), client: Arc::from("client"), nonce }
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let end = end_of(SOON);
    while !condition() {
        assert!(now() < end, "not even after {SOON:?}");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_nested_lock_counts_from_its_request() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        let outer = scene.lock();
        let slow = LEASE / 3;
        scene.store.set_outcomes(&[Outcome::Slow(slow)]);
        let inner = scene.lock();
        assert_eq!(inner.depth, 2);
        let left = outer.hold.remaining(Moment::now());
        assert!(left + slow <= LEASE, "{left:?}");
    });
}

#[test]
fn a_level_beyond_the_last_is_refused_before_a_request() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let outer = scene.lock();
        outer.hold.set_depth(u32::MAX);
        let refused = scene.lock_with(Wait::No);
        assert!(matches!(refused, Err(Error::InvalidInput(_))), "{refused:?}");
        assert_eq!(outer.hold.depth(), u32::MAX);
        let holder = scene.store.inspect(&scene.name, now()).expect("memory");
        assert_eq!(holder.expect("a holder").depth, 1);
    });
}

#[test]
fn a_reply_after_the_lease_brings_no_hold() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        scene.store.set_outcomes(&[Outcome::Slow(LEASE)]);
        let level = scene.lock();
        assert!(level.hold.remaining(Moment::now()) > LEASE / 2, "the hold of a second request");
        assert!(level.hold.may_begin);
    });
}

#[test]
fn an_adoption_that_is_answered_after_the_lease_brings_no_hold() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        let left =
            adoption::leave(&scene.shared, &scene.lock().hold, "detach").expect("it is held");
        scene.store.set_outcomes(&[Outcome::Slow(LEASE)]);
        let adopted = adoption::adopt(&scene.shared, &left);
        assert!(matches!(adopted, Err(Error::Lost { .. })), "{adopted:?}");
    });
}

#[test]
fn a_nested_lock_that_is_answered_after_the_lease_adds_no_level() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        let outer = scene.lock();
        scene.store.set_outcomes(&[Outcome::Slow(LEASE)]);
        let nested = scene.lock_with(Wait::Endless);
        assert!(matches!(nested, Err(Error::Lost { .. })), "{nested:?}");
        scene.unlock(&outer.hold).expect_err("lost");
        // The thread has no guard left, so it gets a new hold.
        assert_eq!(scene.lock().depth, 1);
    });
}

#[test]
fn a_reply_begins_the_retry_window_anew() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        let window = scene.shared.config.retry_window;
        let other = scene.store.inner.acquire(Acquire {
            holds: &[scene.id(0)],
            lease: window * 2,
            note: None,
            registration: Registration::None,
            echo: false,
            deadline: now(),
        });
        assert!(matches!(other, Ok(AcquireReply::Acquired { .. })));
        scene.store.set_outcomes(&[Outcome::Transient, Outcome::Slow(window), Outcome::Transient]);
        // Between the failures lies more than the window, but also a reply.
        scene.lock();
        assert!(scene.store.outcomes.lock().is_empty());
    });
}

#[test]
fn an_in_doubt_hold_is_cleaned_up_after_its_release() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        scene.store.set_outcomes(&[Outcome::LostReply]);
        let level = scene.lock();
        scene.unlock(&level.hold).expect("released");
        // One reply is not enough.
        eventually(|| scene.store.releases() >= 2);
    });
}

/// Lets `unlock` hand a lock off to a waiter.
fn hand_off(scene: &Scene, unlock: impl FnOnce(&Arc<Hold>)) {
    let first = scene.lock();
    let next = scene.start(|scene| {
        let next = scene.lock();
        scene.unlock(&next.hold).expect("released");
    });
    // Reported by that thread when it waits in the queue.
    scene.wait_until_contended();
    unlock(&first.hold);
    next.join();
}

/// Lets this many threads lock one after the other once the first hold ends, and returns their
/// tokens.
fn lock_after(scene: &Scene, threads: u64, end: impl FnOnce(&Arc<Hold>)) -> Vec<u64> {
    let first = scene.lock();
    let calls = (1..=threads).map(|waiting| {
        let call = scene.start(|scene| {
            let next = scene.lock();
            // Another hold of the same tenure has another token.
            let token = next.hold.fence();
            scene.unlock_on_drop(&next.hold);
            token
        });
        eventually(|| scene.shared.counters.to_stats().waiting == waiting);
        call
    });
    let calls: Vec<_> = calls.collect();
    end(&first.hold);
    calls.into_iter().map(Started::join).collect()
}

#[test]
fn threads_that_wait_have_their_holds_in_one_tenure() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let tokens = lock_after(&scene, 3, |hold| scene.unlock_on_drop(hold));
        let followed = [Registration::IfHeld, Registration::Followed];
        assert_eq!(*scene.store.registrations.lock(), followed, "no request for the others");
        assert_eq!(tokens, [tokens[0], tokens[0] + 1, tokens[0] + 2]);
        let stats = scene.shared.counters.to_stats();
        assert_eq!((stats.handoffs, stats.acquired, stats.released, stats.held), (2, 4, 4, 0));
        assert!(!scene.is_held());
    });
}

#[test]
fn a_tenure_with_a_request_in_doubt_has_no_further_hold() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let tokens = lock_after(&scene, 2, |hold| {
            scene.store.set_outcomes(&[Outcome::Fine, Outcome::LostReply]);
            scene.unlock_on_drop(hold);
        });
        assert_eq!(tokens.len(), 2);
        assert_eq!(scene.shared.counters.to_stats().handoffs, 0);
        eventually(|| scene.store.releases() >= 2);
    });
}

/// No call has had that hold, so none has lost it.
#[test]
fn a_hold_that_is_lost_while_it_is_handed_off_is_no_loss() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let options = LockOptions { tenure: Some(LEASE), ..scene.options.clone() };
        let caller = caller(&options);
        let Shared { reporter, names, .. } = &*scene.shared;
        let hold = names.held(&scene.id(7), &options);
        reporter.begin(&hold, &caller);
        names.call(&scene.id(8), &options).expect("open");
        assert_eq!(names.end(&hold, true), Ending::GoesOn);
        reporter.lose(&hold);
        assert!(!reporter.begin_next(&hold, &caller));
        scene.lock();
        scene.expect_events(["acquired", "acquired"]);
    });
}

/// The releasing thread continues without a reply, and the waiter makes sure of the release.
#[test]
fn a_release_that_two_threads_learn_of_is_reported_once() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        hand_off(&scene, |hold| {
            scene.store.set_outcomes(&[Outcome::LostReply]);
            scene.unlock(hold).expect("released");
        });
        scene.expect_events(["released", "acquired", "released"]);
        sleep(LEASE / 4);
        assert!(scene.events.is_empty());
    });
}

#[test]
fn an_in_doubt_hold_is_cleaned_up_after_its_loss() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        scene.store.set_outcomes(&[Outcome::LostReply]);
        let level = scene.lock();
        status::force_unlock(&scene.shared, &scene.name).expect("a reply");
        let holds = slice::from_ref(&level.hold);
        hold_requests::verify(&scene.shared, holds, false).expect_err("lost");
        eventually(|| scene.store.releases() >= 2);
    });
}

#[test]
fn a_hold_that_its_thread_finds_lost_is_cleaned_up() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE * 10);
        let (id, sent) = (scene.id(7), Moment::now().before(LEASE * 10));
        let exists = || scene.store.inspect(&scene.name, now()).expect("memory").is_some();
        scene
            .store
            .acquire(Acquire {
                holds: std::slice::from_ref(&id),
                lease: LEASE * 10,
                note: None,
                registration: Registration::None,
                echo: false,
                deadline: now(),
            })
            .expect("memory");
        // The renewer does not know about it.
        let replied = Moment::now();
        let grant = Grant { fence: 1, room: 0, may_begin: false, sent, replied };
        let tenure = Tenure::new(id, &grant, &caller(&scene.options));
        let hold = scene.shared.reporter.add(tenure);
        assert!(exists() && !scene.shared.is_held(&hold));
        eventually(|| !exists());
    });
}

#[test]
fn a_dropped_hold_that_still_exists_is_no_other_holder() {
    in_virtual_time(|| {
        for wait in [Wait::Endless, Wait::No] {
            let scene = Scene::posting();
            scene.lock_and_post_release();
            let next = scene.lock_with(wait).expect("a reply").expect("a lock");
            scene.expect_events(["acquired", "released", "acquired"]);
            scene.store.send_posted();
            assert!(scene.is_held(), "the late release does not touch the new hold");
            scene.unlock(&next.hold).expect("released");
            scene.expect_events(["released"]);
            assert!(scene.shared.names.debts(HoldKind::Lock, &scene.name).is_empty());
        }
    });
}

#[test]
fn a_late_release_of_a_hold_that_was_looked_for_is_no_loss() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        scene.lock_and_post_release();
        assert!(status::holder(&scene.shared, &scene.name).expect("a reply").is_none());
        scene.store.send_posted();
        scene.expect_events(["acquired", "released"]);
        assert!(scene.events.is_empty());
    });
}

#[test]
fn a_release_that_another_thread_sends_as_well_finds_no_loss() {
    in_virtual_time(|| {
        let looks: [fn(&Scene); 2] = [
            |scene| {
                scene.store.set_outcomes(&[Outcome::ThenPosted]);
                assert!(status::holder(&scene.shared, &scene.name).expect("a reply").is_none());
            },
            |scene| {
                scene.store.set_outcomes(&[Outcome::Fine, Outcome::ThenPosted]);
                assert!(scene.lock_with(Wait::No).expect("a reply").is_some());
            },
        ];
        for look in looks {
            let scene = Scene::posting();
            scene.lock_and_post_release();
            look(&scene);
            scene.expect_events(["acquired", "released"]);
            assert_eq!(scene.shared.stats().lost, 0);
        }
    });
}

#[test]
fn a_hold_that_has_ended_is_reported_before_the_next_one() {
    in_virtual_time(|| {
        for wait in [Wait::Endless, Wait::No] {
            let scene = Scene::posting();
            scene.lock_and_post_release();
            let Posted { hold, on_reply, .. } = scene.store.take_posted();
            let reply = {
                let (change, deadline) = (Change::RELEASE, now());
                ask_one(&scene.store, HoldRequest { hold: &hold, change, deadline })
            };
            let next = scene.lock_with(wait).expect("a reply").expect("a lock");
            on_reply(reply);
            scene.unlock(&next.hold).expect("released");
            scene.expect_events(["acquired", "released", "acquired", "released"]);
        }
    });
}

/// Its thread is waiting to learn which client has the lock now.
#[test]
fn a_call_waits_behind_a_lost_hold_no_longer_than_one_request_takes() {
    in_virtual_time(|| {
        let mut scene = Scene::new(LEASE);
        scene.options.renew = true;
        let mine = scene.lock();
        let next = scene.start(Scene::lock);
        eventually(|| scene.shared.stats().waiting == 1);
        scene.store.is_silent_to_looks.store(true, Ordering::SeqCst);
        scene.end_hold();
        eventually(|| mine.hold.is_lost(Moment::now()));
        let lost = now();
        next.join();
        let most = scene.shared.times.io_timeout + Duration::from_millis(1);
        assert!(elapsed(lost) <= most, "{:?}", elapsed(lost));
    });
}

/// The next hold has shown that the earlier one is over, which is reported before its own
/// beginning. The reply to the release comes later, and says that the server had forgotten it.
#[test]
fn an_unlock_tells_of_a_loss_that_nobody_could_report_in_time() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        let mine = scene.lock();
        let next = scene.start(Scene::lock);
        eventually(|| scene.shared.stats().waiting == 1);
        let (change, deadline) = (Change::RELEASE, now());
        let ended = HoldRequest { hold: &mine.hold.id, change, deadline };
        ask_one(&scene.store.inner, ended).expect("memory");
        let unlocked = scene.start(move |scene| scene.unlock(&mine.hold));
        next.join();
        scene.store.send_posted();
        let unlocked = unlocked.join();
        assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
        scene.expect_events(["acquired", "something else", "released", "acquired"]);
    });
}

/// Even by one that has not joined the wait queue, or was behind another one.
#[test]
fn a_release_that_failed_is_repeated_by_whichever_thread_comes_next() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        scene.lock_and_post_release();
        let Posted { on_reply, .. } = scene.store.take_posted();
        scene.store.set_outcomes(&[Outcome::Slow(LEASE / 10)]);
        let first = scene.start(|scene| scene.lock_with(Wait::Until(now())).is_ok());
        eventually(|| scene.store.outcomes.lock().is_empty());
        let second = scene.lock_with(Wait::No);
        assert!(first.join());
        let second = second.expect("a reply");
        drop(on_reply);
        assert!(second.is_some() || scene.is_held(), "one of them has the lock");
    });
}

#[test]
fn a_release_in_doubt_ends_the_next_call_with_its_failure() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        scene.lock_and_post_release();
        let Posted { on_reply, .. } = scene.store.take_posted();
        // The lock is held, and the repeated release fails.
        scene.store.set_outcomes(&[Outcome::Fine, Outcome::LostRequest].repeat(5));
        let refused = scene.lock_with(Wait::No);
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        scene.store.outcomes.lock().clear();
        scene.lock_with(Wait::No).expect("a reply").expect("a lock");
        drop(on_reply);
    });
}

#[test]
fn a_server_that_does_not_answer_a_release_is_no_other_holder() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        scene.lock_and_post_release();
        let posted = scene.store.take_posted();
        scene.store.set_outcomes(&[Outcome::LostRequest; 9]);
        let wait = Wait::Until(end_of(LEASE / 10));
        let refused = scene.lock_with(wait);
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        drop(posted);
    });
}

fn is_kept(scene: &Scene) -> bool {
    let holder = scene.store.inspect(&scene.name, now()).expect("memory");
    holder.is_some_and(|holder| holder.depth == 0)
}

#[test]
fn a_dropped_hold_that_keeps_its_lock_is_reported_once() {
    in_virtual_time(|| {
        let mut scene = Scene::posting();
        scene.options.hold_at_least = Some(LEASE * 10);
        scene.lock_and_post_release();
        assert!(scene.lock_with(Wait::No).expect("a reply").is_none());
        assert!(is_kept(&scene), "the call has not met the hold itself");
        scene.store.send_posted();
        assert!(is_kept(&scene));
        status::force_unlock(&scene.shared, &scene.name).expect("a reply");
        scene.lock();
        scene.expect_events(["acquired", "released", "something else", "acquired"]);
    });
}

#[test]
fn a_clean_up_keeps_a_lock_that_is_to_stay_taken() {
    in_virtual_time(|| {
        let mut scene = Scene::new(LEASE * 10);
        scene.options.hold_at_least = Some(LEASE * 10);
        let level = scene.lock();
        scene.store.set_outcomes(&[Outcome::LostRequest; 9]);
        let in_doubt = scene.unlock(&level.hold);
        assert!(matches!(in_doubt, Err(Error::Unavailable { .. })), "{in_doubt:?}");
        eventually(|| is_kept(&scene));
        scene.store.outcomes.lock().clear();

        // A lost hold frees its lock.
        scene.name = Arc::from("lost");
        scene.store.set_outcomes(&[Outcome::LostReply]);
        let level = scene.lock();
        scene.shared.reporter.lose(&level.hold);
        scene.unlock(&level.hold).expect_err("lost");
        eventually(|| !scene.is_held());
    });
}

/// Nothing was done under the lock, so it need not stay taken.
#[test]
fn a_lock_that_no_caller_got_does_not_stay_taken() {
    in_virtual_time(|| {
        let mut scene = Scene::new(LEASE * 10);
        let canceller = Canceller::new();
        scene.options.hold_at_least = Some(LEASE * 10);
        scene.options.cancelled_by = Some(canceller.clone());
        scene.store.set_outcomes(&[Outcome::Slow(LEASE)]);
        let call = scene.start(|scene| scene.lock_with(Wait::Endless));
        eventually(|| scene.store.outcomes.lock().is_empty());
        canceller.cancel();
        let ended = call.join().err();
        assert!(matches!(ended, Some(Error::Cancelled { .. })), "{ended:?}");
        let holder = || scene.store.inspect(&scene.name, now()).expect("memory");
        eventually(|| holder().is_none());
    });
}

#[test]
fn the_outcome_of_a_posted_release_is_reported() {
    in_virtual_time(|| {
        let scene = Scene::posting();
        scene.lock_and_post_release();
        scene.store.send_posted();
        scene.expect_events(["acquired", "released"]);
        scene.lock_and_post_release();
        scene.store.set_outcomes(&[Outcome::LostRequest]);
        scene.store.send_posted();
        scene.expect_events(["acquired", "release failed"]);
        eventually(|| !scene.is_held());
        scene.lock_and_post_release();
        scene.end_hold();
        scene.store.send_posted();
        scene.expect_events(["acquired", "lost"]);
        eventually(|| scene.shared.names.debts(HoldKind::Lock, &scene.name).is_empty());
    });
}

/// The memory of a lock that is only held. A client may have a million.
#[test]
#[cfg(target_pointer_width = "64")]
fn a_held_lock_takes_little_memory() {
    // The span exists only with the feature `tracing`.
    let hold = size_of::<Hold>() - size_of::<HoldSpan>().next_multiple_of(8);
    assert_eq!((hold, size_of::<Tenure>(), size_of::<Name<Arc<Parker>>>()), (112, 72, 48));
}

/// Returns the attempts of a call of a scene's client that begins now.
fn attempts(scene: &Scene) -> Attempts<'_> {
    Attempts::new(&scene.shared, scene.shared.times, Wait::No, 1)
}

#[test]
fn a_pause_lasts_until_close_at_most() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        let begin = now();
        let time = Duration::from_millis(20);
        let before = attempts(&scene);
        assert!(before.sleep(time, "x").is_ok() && elapsed(begin) >= time);
        let closes = scene.start(|scene| scene.shared.names.close());
        let ended = before.sleep(LEASE * 100, "x");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        assert!(elapsed(begin) < LEASE * 100);
        closes.join();
        // Later requests of a guard are repeated as before.
        let begin = now();
        let after = attempts(&scene);
        assert!(after.sleep(time, "x").is_ok() && elapsed(begin) >= time);
        let ended = after.of_open_client().sleep(time, "x");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    });
}

#[test]
fn a_pause_lasts_until_it_is_cancelled_at_most() {
    in_virtual_time(|| {
        let scene = Scene::new(LEASE);
        let canceller = Canceller::new();
        let begin = now();
        let sleep = || attempts(&scene).cancelled_by(Some(&canceller)).sleep(LEASE * 100, "x");
        let cancels = start({
            let canceller = canceller.clone();
            move || canceller.cancel()
        });
        let ended = sleep();
        assert!(matches!(ended, Err(Error::Cancelled { .. })), "{ended:?}");
        cancels.join();
        assert!(matches!(sleep(), Err(Error::Cancelled { .. })), "cancelled before");
        assert!(elapsed(begin) < LEASE * 100);
    });
}
