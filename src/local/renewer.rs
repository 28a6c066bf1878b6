//! The renewer: a client's single thread that keeps leases alive, pays debts, and releases all
//! holds once the client is shut down. This module is how other threads reach it, and what they
//! leave to it: decides the pauses between attempts to pay a debt.
//!
//! Acquiring a lock does not wake the thread unless its lease is due before other work.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::base::clock::{AtomicMoment, Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::receive;
use crate::protocol::hold::Hold;
use crate::store::background::Job;
use crate::store::hold_id::HoldId;
use crate::store::request::Change;

/// How long after its deadline a shutdown still waits for the thread's answer.
const ANSWER_TIME: Duration = Duration::from_millis(50);

/// With this many messages in the channel, the thread is woken to empty it: most of them may be
/// about holds that are over.
const CHANNEL_FULL: usize = 1024;

/// The first pause between two attempts to pay a debt.
const PAYMENT_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause, as a fraction of the time in which the hold may exist.
const PAYMENTS: u32 = 20;

/// The sending end, for all other threads. The thread ends when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Renewer {
    queue: Sender<Message>,
    wake: Sender<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    wake_time: Arc<AtomicMoment>,
}

/// The receiving end, for the thread.
pub(super) struct Incoming {
    pub(super) queue: Receiver<Message>,
    woken: Receiver<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    wake_time: Arc<AtomicMoment>,
}

/// The messages to the thread.
pub(super) enum Message {
    /// End all leases, including future ones, and answer when they are released.
    EndAll(ShutdownCall),
    /// Do this work then.
    Work(Moment, Scheduled),
}

/// A call of `shutdown` that waits for the answer.
pub(super) struct ShutdownCall {
    pub(super) deadline: Instant,
    pub(super) answer: Sender<Result<(), Failure>>,
}

/// The shutdown of a client.
#[derive(Default)]
pub(super) struct Shutdown {
    /// The calls that wait for its end. A release that fails when none of them waits any more is
    /// reported as failed.
    pub(super) calls: Vec<ShutdownCall>,
    pub(super) last_failure: Option<Failure>,
    /// Whether the lease of a hold has ended before its release was confirmed, since the shutdown
    /// was last complete.
    pub(super) outlived: bool,
}

/// Creates a channel to the thread. A message wakes it only if it is due before the thread wakes by
/// itself, or if the channel is so full that it should be emptied.
pub(super) fn channel() -> (Renewer, Incoming) {
    let (sender, receiver) = unbounded();
    let (wake, woken) = bounded(1);
    let wake_time = Arc::<AtomicMoment>::default();
    let incoming = Incoming { queue: receiver, woken, wake_time: wake_time.clone() };
    (Renewer { queue: sender, wake, wake_time }, incoming)
}

impl Renewer {
    /// Returns a handle for the renewer thread's own use. Posting to it neither wakes the thread
    /// nor keeps it alive.
    pub(super) fn own(&self) -> Self {
        Self { wake: bounded(0).0, ..self.clone() }
    }

    fn send(&self, message: Message, due: Moment) {
        // The thread outlives `self`.
        drop(self.queue.send(message));
        let is_full = self.queue.len() >= CHANNEL_FULL;
        if due < self.wake_time.get() || is_full {
            // If `wake` is full, the thread wakes anyway.
            self.wake.try_send(()).unwrap_or_default();
        }
    }

    /// Does what is due of a tenure at this time.
    pub(crate) fn schedule(&self, hold: Arc<Hold>, due: Moment) {
        self.send_work(due, Scheduled::Hold(hold));
    }

    /// Releases a hold that has ended, and that may exist in the store, now or later.
    pub(crate) fn pay(&self, debt: Arc<Hold>) {
        self.add_payment(Payment::new(debt));
    }

    /// Removes the client from the waiting clients, after the thread that wanted this hold has
    /// left.
    pub(crate) fn unregister(&self, hold: HoldId, lease: Duration) {
        self.add_payment(Payment::of_waiting(hold, lease));
    }

    fn send_work(&self, due: Moment, work: Scheduled) {
        self.send(Message::Work(due, work), due);
    }

    fn add_payment(&self, payment: Payment) {
        self.send_work(Moment::FIRST, Scheduled::Payment(Box::new(payment)));
    }

    /// Checks whether a hold still exists, and whether another client waits for its lock if that
    /// matters, even while a renewal of it is on its way.
    pub(crate) fn check(&self, hold: Arc<Hold>) {
        self.send_work(Moment::FIRST, Scheduled::Check(hold));
    }

    /// Ends and releases all holds, including future ones. Calls `settle`, and blocks until all
    /// have ended and all in-doubt holds are removed. A failed release is reported as such once no
    /// such call waits any more, and is still repeated.
    ///
    /// # Errors
    ///
    /// The last failure, if the deadline passes first.
    pub(crate) fn end_all(&self, deadline: Instant, settle: impl FnOnce()) -> Result<(), Failure> {
        let (answer, ended) = bounded(1);
        self.send(Message::EndAll(ShutdownCall { deadline, answer }), Moment::FIRST);
        settle();
        receive(&ended, deadline + ANSWER_TIME).unwrap_or_else(|_| Err(unconfirmed()))
    }
}

impl Incoming {
    /// Waits until something is due or the thread is woken. Returns `false` when the last sender is
    /// gone.
    pub(super) fn sleep(&self, due: Moment) -> bool {
        self.wake_time.set(due);
        // A message sent before the line above has not woken the thread; a later one does.
        let has_senders = if self.queue.is_empty() {
            let end = end_of(due.since(Moment::now()));
            receive(&self.woken, end) != Err(RecvTimeoutError::Disconnected)
        } else {
            true
        };
        self.wake_time.set(Moment::FIRST);
        has_senders
    }
}

impl Shutdown {
    /// Returns the failure of unconfirmed releases.
    pub(super) fn failure(&self) -> Failure {
        self.last_failure.clone().unwrap_or_else(unconfirmed)
    }

    /// Answers all calls if the shutdown is complete, otherwise those that have timed out.
    pub(super) fn answer(&mut self, is_complete: bool, now: Instant) {
        let result = if is_complete && !self.outlived { Ok(()) } else { Err(self.failure()) };
        for call in self.calls.extract_if(.., |call| is_complete || call.deadline <= now) {
            // The call may have given up.
            call.answer.try_send(result.clone()).unwrap_or_default();
        }
        self.outlived &= !is_complete;
    }
}

/// Returns the failure of a shutdown that timed out before any other failure.
pub(super) fn unconfirmed() -> Failure {
    let why = "a release, or a call under way, had not ended when the time was over";
    let error = io::Error::new(io::ErrorKind::TimedOut, why);
    Failure::io(FailureKind::Timeout, &Arc::from("the server"), error)
}

/// Work of the renewer.
#[derive(Debug)]
pub(crate) enum Scheduled {
    /// Ask whether the hold exists, independently of its renewals.
    Check(Arc<Hold>),
    Payment(Box<Payment>),
    /// What is due of a tenure.
    Hold(Arc<Hold>),
}

impl Scheduled {
    /// Returns the job that asks for this change. A renewal or a payment may take a third of the
    /// lease.
    pub(crate) fn job(&self, id: u64, change: Change, now: Moment) -> Job {
        let (hold, limit) = match self {
            Self::Check(hold) => (hold, hold.remaining(now)),
            Self::Payment(payment) => (&payment.debt, payment.debt.lease() / 3),
            Self::Hold(hold) => (hold, (hold.lease() / 3).min(hold.remaining(now))),
        };
        Job { id, hold: hold.id.clone(), change, deadline: end_of(limit) }
    }

    pub(crate) fn as_hold(&self) -> Option<&Arc<Hold>> {
        if let Self::Hold(hold) = self { Some(hold) } else { None }
    }

    pub(crate) fn as_payment(&self) -> Option<&Payment> {
        if let Self::Payment(payment) = self { Some(payment) } else { None }
    }
}

/// The payment of a debt: the removal of a hold that may exist in the store and must not. A
/// shutdown releases holds in the same way.
#[derive(Debug)]
pub(crate) struct Payment {
    pub(super) debt: Arc<Hold>,
    /// After this the hold has ended by itself.
    deadline: Moment,
    pause: Duration,
    longest_pause: Duration,
    /// How many more replies it takes until the hold counts as removed.
    pub(super) unconfirmed: u8,
    /// Whether the last attempt has failed.
    pub(super) has_failed: bool,
    /// Whether this removes the client from the waiting clients, instead of a hold.
    pub(super) unregisters: bool,
}

impl Payment {
    pub(crate) fn new(debt: Arc<Hold>) -> Self {
        let lease = debt.lease();
        Self {
            deadline: Moment::now().after(lease),
            pause: PAYMENT_PAUSE,
            longest_pause: (lease / PAYMENTS).max(PAYMENT_PAUSE),
            // A server that hung executes the requests of several connections in any order: a late
            // request may be executed after the release, but not after a second one.
            unconfirmed: if debt.may_begin { 2 } else { 1 },
            has_failed: false,
            unregisters: false,
            debt,
        }
    }

    /// Creates a timer that removes this client from the waiting clients of a name, for the hold
    /// that a call wanted. No shutdown waits for it.
    pub(crate) fn of_waiting(hold: HoldId, lease: Duration) -> Self {
        let debt = Arc::new(Hold::debt(hold, lease, false));
        Self { unconfirmed: 0, unregisters: true, ..Self::new(debt) }
    }

    /// Returns `true` if the hold counts as removed: by a majority if there are several servers,
    /// and barring a very late request.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.unconfirmed == 0
    }

    /// Shortens the pause before the next attempt.
    pub(crate) fn hasten(&mut self) {
        self.pause = PAYMENT_PAUSE;
    }

    /// Returns when to try again; `None` if the hold is certainly gone. `replied` says whether
    /// every server has replied to the last attempt.
    pub(crate) fn next_try(&mut self, replied: bool, now: Moment) -> Option<Moment> {
        if now >= self.deadline || (replied && !self.debt.may_begin) {
            return None;
        }
        // A request that begins the hold may still be on its way, so one reply is not the end.
        let due = now.after(self.pause);
        self.pause = (self.pause * 2).min(self.longest_pause);
        Some(due)
    }
}

/// Without a thread.
#[cfg(test)]
impl Default for Renewer {
    fn default() -> Self {
        channel().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::{elapsed, now};
    use crate::base::failure::FailureKind;
    use crate::base::sync::{self, in_virtual_time, sleep};
    use crate::config::LockOptions;
    use crate::local::renewer_thread::{NAP, start};
    use crate::local::reporter::Reporter;
    use crate::local::reporter::tests::tenure;
    use crate::protocol::call::tests::caller;
    use crate::protocol::hold::Grant;
    use crate::protocol::signals::EndSignal;
    use crate::protocol::tenure::Tenure;
    use crate::store::background::{Job, JobOutcome, JobReply, JobRunner};
    use crate::store::hold_id::HoldKind;
    use crate::store::request::{Change, HoldReply};

    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// Gives each job the outcome that a function returns for the number of jobs before it.
    struct Fake {
        log: Arc<Mutex<Vec<(u64, Change, Instant)>>>,
        outcome: Box<dyn FnMut(usize) -> Result<HoldReply, Failure> + Send>,
    }

    impl JobRunner for Fake {
        fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
            for Job { id, hold, change, .. } in jobs {
                let before = self.log.lock().len();
                self.log.lock().push((hold.nonce, change, now()));
                done(id, (self.outcome)(before).map(JobReply::from));
            }
        }

        fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}
    }

    struct Scene {
        reporter: Reporter,
        log: Arc<Mutex<Vec<(u64, Change, Instant)>>>,
    }

    impl Scene {
        fn new(outcome: impl FnMut(usize) -> Result<HoldReply, Failure> + Send + 'static) -> Self {
            let log = Arc::new(Mutex::new(Vec::new()));
            let fake = Fake { log: log.clone(), outcome: Box::new(outcome) };
            let io_timeout = Duration::from_secs(1);
            Self { reporter: started(Box::new(fake), io_timeout), log }
        }

        fn hold(&self, nonce: u64, lease: Duration) -> Arc<Hold> {
            let options = LockOptions { lease, ..LockOptions::default() };
            self.begin(tenure(id(nonce), &options))
        }

        /// Begins a tenure, whose lease is renewed.
        fn begin(&self, tenure: Tenure) -> Arc<Hold> {
            self.reporter.add(tenure)
        }

        fn end(&self, hold: &Arc<Hold>) {
            assert!(self.reporter.leave(hold));
        }

        fn pay(&self, hold: HoldId, lease: Duration) {
            self.reporter.renewer.pay(Arc::new(Hold::debt(hold, lease, false)));
        }

        fn renewals(&self) -> usize {
            self.log.lock().iter().filter(|(_, change, _)| *change != Change::RELEASE).count()
        }

        fn releases(&self) -> usize {
            self.log.lock().iter().filter(|(_, change, _)| *change == Change::RELEASE).count()
        }

        fn wait_until_asleep(&self) {
            let awake = [Moment::FIRST, Moment::NEVER];
            eventually(LEASE * 10, || !awake.contains(&self.reporter.renewer.wake_time.get()));
        }
    }

    const LEASE: Duration = Duration::from_millis(300);

    fn started(jobs: Box<dyn JobRunner>, io_timeout: Duration) -> Reporter {
        let (renewer, incoming) = channel();
        let reporter = Reporter { renewer, ..Reporter::default() };
        start(jobs, io_timeout, incoming, &reporter).expect("a thread");
        reporter
    }

    fn id(nonce: u64) -> HoldId {
        HoldId {
            kind: HoldKind::Lock,
            name: Arc::from(format!("lock {nonce}")),
            client: Arc::from("me"),
            nonce,
        }
    }

    fn no_reply() -> Failure {
        Failure::io(FailureKind::Timeout, &Arc::from("here"), std::io::Error::other("test"))
    }

    fn eventually(within: Duration, mut condition: impl FnMut() -> bool) {
        let end = end_of(within);
        while !condition() {
            assert!(now() < end, "not within {within:?}");
            sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn assert_over(over: &EndSignal, within: Duration) {
        let told = receive(over.receiver(), end_of(within));
        assert_eq!(told, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_lease_is_renewed_for_as_long_as_it_is_held() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let hold = scene.hold(1, LEASE * 6);
            eventually(LEASE * 60, || scene.renewals() >= 5);
            assert!(!hold.remaining(Moment::now()).is_zero());
            scene.end(&hold);
            let renewals = scene.renewals();
            sleep(LEASE * 5);
            assert!(scene.renewals() <= renewals + 1, "one may have been on its way");
        });
    }

    #[test]
    fn a_slow_renewal_counts_from_its_request() {
        in_virtual_time(|| {
            let scene = Scene::new(|job| {
                sleep(LEASE);
                if job == 0 { Ok(HoldReply::Done) } else { Err(no_reply()) }
            });
            let hold = scene.hold(1, LEASE * 10);
            eventually(LEASE * 60, || scene.renewals() >= 2);
            let sent = elapsed(scene.log.lock()[0].2);
            let left = hold.remaining(Moment::now());
            assert!(left.is_zero() || left + sent <= LEASE * 10, "{left:?} after {sent:?}");
        });
    }

    #[test]
    fn a_hold_that_is_gone_is_lost_at_once() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Gone));
            let hold = scene.hold(1, LEASE * 20);
            let lost = scene.reporter.end_signal(&hold);
            assert_over(&lost, LEASE * 15);
            assert!(hold.remaining(Moment::now()).is_zero());
            assert_eq!(scene.renewals(), 1);
        });
    }

    #[test]
    fn a_lease_without_replies_is_not_lost_before_its_deadline() {
        in_virtual_time(|| {
            let scene =
                Scene::new(|job| if job < 3 { Err(no_reply()) } else { Ok(HoldReply::Done) });
            let hold = scene.hold(1, LEASE * 5);
            eventually(LEASE * 20, || scene.renewals() >= 6);
            assert!(!hold.remaining(Moment::now()).is_zero());
        });
    }

    /// A renewal that has just failed must not delay the loss until the next one is due.
    #[test]
    fn a_lease_without_any_reply_is_lost_at_its_deadline_and_cleaned_up() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Err(no_reply()));
            let hold = scene.hold(1, LEASE * 20);
            let deadline = now() + hold.remaining(Moment::now());
            assert_over(&scene.reporter.end_signal(&hold), LEASE * 60);
            let late = now().checked_duration_since(deadline).expect("not before");
            assert!(late < LEASE * 5, "{late:?}");
            assert!(scene.renewals() >= 2, "tried more than once");
            eventually(LEASE * 20, || scene.releases() > 0);
        });
    }

    #[test]
    fn refusals_are_over_when_no_held_lease_suffers_from_one() {
        in_virtual_time(|| {
            let refuses = Arc::new(AtomicBool::new(true));
            let (log, now_refuses) = (Arc::default(), refuses.clone());
            let outcome = Box::new(move |_| {
                let refused = || Failure { kind: FailureKind::Rejected, ..no_reply() };
                if now_refuses.load(Ordering::SeqCst) {
                    Err(refused())
                } else {
                    Ok(HoldReply::Done)
                }
            });
            let reporter = started(Box::new(Fake { log, outcome }), LEASE);
            let outages = reporter.outages.clone();
            let scene = Scene { reporter, log: Arc::default() };
            let (ended, _held) = (scene.hold(1, LEASE * 10), scene.hold(2, LEASE * 10));
            eventually(LEASE * 10, || outages.lasts.load(Ordering::Relaxed));
            scene.end(&ended);
            let begin = now();
            while elapsed(begin) < LEASE * 2 {
                assert!(outages.lasts.load(Ordering::Relaxed), "the other is still refused");
                sleep(Duration::from_millis(1));
            }
            refuses.store(false, Ordering::SeqCst);
            eventually(LEASE * 10, || !outages.lasts.load(Ordering::Relaxed));
        });
    }

    /// Replies to no job before its deadline.
    #[derive(Default)]
    struct Hanging(Vec<Job>);

    impl JobRunner for Hanging {
        fn send(&mut self, jobs: Vec<Job>, _: &mut dyn FnMut(u64, JobOutcome)) {
            self.0.extend(jobs);
        }

        fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
            let next = self.0.iter().map(|job| job.deadline).fold(deadline, Instant::min);
            sleep(next.saturating_duration_since(now()));
            for job in self.0.extract_if(.., |job| job.deadline <= now()) {
                done(job.id, Err(no_reply()));
            }
        }
    }

    /// Two of them while their renewals are in flight, and one that is not renewed.
    #[test]
    fn leases_are_lost_at_their_deadlines_while_the_store_hangs() {
        in_virtual_time(|| {
            let jobs = Box::new(Hanging::default());
            let scene = Scene { reporter: started(jobs, LEASE * 100), log: Arc::default() };
            let options = LockOptions { lease: LEASE * 6, renew: false, ..LockOptions::default() };
            let not_renewed = scene.begin(tenure(id(3), &options));
            let holds = [scene.hold(1, LEASE * 10), scene.hold(2, LEASE * 4), not_renewed];
            for hold in [&holds[1], &holds[2], &holds[0]] {
                let deadline = now() + hold.remaining(Moment::now());
                assert_over(&scene.reporter.end_signal(hold), LEASE * 60);
                assert!(elapsed(deadline) < LEASE * 10, "{:?}", elapsed(deadline));
            }
        });
    }

    #[test]
    fn an_in_doubt_hold_is_cleaned_up_after_its_loss() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Gone));
            let options = LockOptions { lease: LEASE, ..LockOptions::default() };
            let now = Moment::now();
            let grant = Grant { fence: 1, room: 0, may_begin: true, sent: now, replied: now };
            scene.begin(Tenure::new(id(1), &grant, &caller(&options)));
            // One reply is not enough.
            eventually(LEASE * 4, || scene.releases() >= 2);
            assert_eq!(scene.renewals(), 1);
        });
    }

    #[test]
    fn a_panic_is_survived() {
        in_virtual_time(|| {
            let scene =
                Scene::new(|job| if job == 1 { panic!("a bug") } else { Ok(HoldReply::Done) });
            let holds = [scene.hold(1, LEASE * 6), scene.hold(2, LEASE * 6)];
            // Printing the panic takes a while.
            eventually(LEASE * 40, || scene.renewals() >= 10);
            assert!(holds.iter().all(|hold| !hold.remaining(Moment::now()).is_zero()));
        });
    }

    #[test]
    fn leases_that_are_due_together_are_renewed_together() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let holds: Vec<_> = (0..100).map(|nonce| scene.hold(nonce, LEASE * 10)).collect();
            eventually(LEASE * 60, || scene.renewals() >= 100);
            let log = scene.log.lock();
            assert!(log[99].2 - log[0].2 < LEASE * 2);
            drop(holds);
        });
    }

    #[test]
    fn a_lease_that_is_due_later_than_others_does_not_wake_the_thread() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let first = scene.hold(1, Duration::from_secs(30));
            scene.wait_until_asleep();
            for nonce in 2..100 {
                scene.end(&scene.hold(nonce, Duration::from_secs(30)));
                assert!(scene.reporter.renewer.wake.is_empty());
            }
            drop(first);
        });
    }

    #[test]
    fn a_full_channel_is_emptied_again_and_again() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let _first = scene.hold(0, Duration::from_secs(30));
            for _ in 0..3 {
                scene.wait_until_asleep();
                for nonce in 0..1024 {
                    scene.end(&scene.hold(nonce + 1, Duration::from_secs(30)));
                }
                eventually(LEASE * 10, || scene.reporter.renewer.queue.len() < 100);
            }
        });
    }

    /// Each is held until the thread has received it.
    #[test]
    fn leases_that_have_ended_are_dropped_long_before_they_are_due() {
        in_virtual_time(|| {
            const HELD: u64 = 2_000;
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let mut holds = Vec::new();
            for round in 0..20 {
                let numbers = round * HELD..(round + 1) * HELD;
                let hour = Duration::from_secs(3600);
                let held: Vec<_> = numbers.map(|nonce| scene.hold(nonce, hour)).collect();
                eventually(LEASE * 20, || scene.reporter.renewer.queue.is_empty());
                for hold in &held {
                    scene.end(hold);
                }
                holds.extend(held.iter().map(Arc::downgrade));
            }
            let kept = || holds.iter().filter(|hold| hold.strong_count() > 0).count() as u64;
            assert!(kept() <= 4 * HELD, "{} of those that were held", kept());
            // Counting takes long.
            let dropped = (0..20).any(|_| {
                sleep(Duration::from_secs(1));
                kept() == 0
            });
            assert!(dropped, "{} after 20 s", kept());
        });
    }

    #[test]
    fn an_in_doubt_hold_that_an_answer_has_settled_is_dropped() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Gone));
            let name = Arc::<str>::from("x");
            for nonce in 0..10_000 {
                scene.pay(HoldId { name: name.clone(), ..id(nonce) }, LEASE * 10_000);
            }
            eventually(LEASE * 20, || scene.releases() == 10_000);
            eventually(LEASE * 20, || Arc::strong_count(&name) == 1);
        });
    }

    #[test]
    fn the_thread_wakes_every_second_while_there_is_a_lease_and_not_without_one() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let wakes_at = || scene.reporter.renewer.wake_time.get();
            eventually(LEASE * 10, || wakes_at() == Moment::NEVER);
            let hold = scene.hold(1, Duration::from_secs(3600));
            scene.wait_until_asleep();
            let first = wakes_at();
            assert!(first.since(Moment::now()) <= NAP);
            eventually(LEASE * 20, || wakes_at() > first && wakes_at() < Moment::NEVER);
            scene.end(&hold);
            eventually(Duration::from_secs(20), || wakes_at() == Moment::NEVER);
        });
    }

    #[test]
    fn leases_are_counted_right_while_the_thread_receives_them() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        thread::scope(|scope| {
            for nonce in 0..4 {
                let scene = &scene;
                scope.spawn(move || {
                    for _ in 0..5_000 {
                        // Short, so that each wakes the thread.
                        let hold = scene.hold(nonce, Duration::from_millis(10));
                        // It may be over by now.
                        scene.reporter.leave(&hold);
                    }
                });
            }
        });
        eventually(LEASE * 10, || scene.reporter.renewer.queue.is_empty());
    }

    #[test]
    fn leases_of_ended_threads_are_not_renewed() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let options = LockOptions { lease: LEASE, ..LockOptions::default() };
            let ended = thread::spawn(move || caller(&options)).join().expect("no panic");
            let now = Moment::now();
            let grant = Grant { fence: 1, room: 0, may_begin: false, sent: now, replied: now };
            let hold = scene.begin(Tenure::new(id(1), &grant, &ended));
            assert_over(&scene.reporter.end_signal(&hold), LEASE * 4);
            assert_eq!(scene.renewals(), 0);
        });
    }

    #[test]
    fn a_debt_is_paid_until_there_is_an_answer() {
        in_virtual_time(|| {
            let scene =
                Scene::new(|job| if job < 3 { Err(no_reply()) } else { Ok(HoldReply::Gone) });
            scene.pay(id(7), LEASE * 10);
            eventually(LEASE * 4, || scene.log.lock().len() >= 4);
            sleep(LEASE);
            assert_eq!(scene.log.lock().len(), 4);
        });
    }

    #[test]
    fn the_thread_ends_with_the_client_and_cleans_up_before() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Err(no_reply()));
            scene.pay(id(7), Duration::from_secs(60));
            // From now on the pauses are long.
            eventually(LEASE * 4, || scene.releases() >= 5);
            let Scene { reporter, log } = scene;
            let before = log.lock().len();
            drop(reporter);
            // The thread has the other reference.
            eventually(LEASE * 4, || Arc::strong_count(&log) == 1);
            assert!(log.lock().len() > before);
        });
    }

    fn call(shutdown: &mut Shutdown, deadline: Instant) -> Receiver<Result<(), Failure>> {
        let (answer, answered) = bounded(1);
        shutdown.calls.push(ShutdownCall { deadline, answer });
        answered
    }

    #[test]
    fn each_shutdown_is_answered_by_its_deadline() {
        let (mut shutdown, now) = (Shutdown::default(), Instant::now());
        let (short, long) = (call(&mut shutdown, now), call(&mut shutdown, now + LEASE));
        shutdown.answer(false, now);
        assert!(matches!(short.try_recv(), Ok(Err(_))) && long.is_empty());
        shutdown.answer(true, now);
        assert!(matches!(long.try_recv(), Ok(Ok(()))) && shutdown.calls.is_empty());
    }

    /// Has no jobs, but a hold that it withdraws.
    struct Withdrawing {
        is_open: Arc<AtomicBool>,
        questions: Sender<()>,
    }

    impl JobRunner for Withdrawing {
        fn send(&mut self, _: Vec<Job>, _: &mut dyn FnMut(u64, JobOutcome)) {}

        fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}

        fn has_open_ends(&self) -> bool {
            let is_open = self.is_open.load(Ordering::SeqCst);
            self.questions.send(()).expect("the test lives");
            is_open
        }
    }

    #[test]
    fn a_shutdown_waits_for_what_the_store_withdraws() {
        in_virtual_time(|| {
            let is_open = Arc::new(AtomicBool::new(true));
            let (questions, asked) = unbounded();
            let runner = Withdrawing { is_open: is_open.clone(), questions };
            let reporter = started(Box::new(runner), Duration::from_secs(1));
            let deadline = end_of(LEASE * 1000);
            let closes = is_open.clone();
            let ended = reporter.renewer.end_all(deadline, || {
                sync::start(move || {
                    let next = || receive(&asked, end_of(LEASE * 1000));
                    next().expect("it asks");
                    next().expect("it asks again, so it has not answered");
                    closes.store(false, Ordering::SeqCst);
                    while next().is_ok() {}
                });
            });
            assert!(ended.is_ok() && now() < deadline);
            assert!(!is_open.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn a_shutdown_without_time_does_not_answer_for_another() {
        let (mut shutdown, now) =
            (Shutdown { outlived: true, ..Shutdown::default() }, Instant::now());
        let (short, long) = (call(&mut shutdown, now), call(&mut shutdown, now + LEASE));
        shutdown.answer(false, now);
        assert!(matches!(short.try_recv(), Ok(Err(_))) && long.is_empty());
        shutdown.answer(true, now);
        assert!(matches!(long.try_recv(), Ok(Err(_))), "a hold has ended with its lease");
    }

    /// Gives all jobs this outcome once there is one. Without it, each fails at its deadline.
    #[derive(Clone, Default)]
    struct Late {
        jobs: Arc<Mutex<Vec<Job>>>,
        outcome: Arc<Mutex<Option<Result<HoldReply, Failure>>>>,
    }

    impl JobRunner for Late {
        fn send(&mut self, jobs: Vec<Job>, _: &mut dyn FnMut(u64, JobOutcome)) {
            self.jobs.lock().extend(jobs);
        }

        fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
            sleep(deadline.saturating_duration_since(now()));
            let outcome = self.outcome.lock().clone();
            let is_over = |job: &mut Job| outcome.is_some() || job.deadline <= now();
            for job in self.jobs.lock().extract_if(.., is_over) {
                let outcome = outcome.clone().unwrap_or_else(|| Err(no_reply()));
                done(job.id, outcome.map(JobReply::from));
            }
        }
    }

    impl Late {
        /// Returns a client's reporter with a hold that a shutdown without time has ended. Its
        /// release has not failed before a third of the lease.
        fn shut_down(&self, lease: Duration) -> Reporter {
            let reporter = started(Box::new(self.clone()), LEASE);
            let options = LockOptions { lease, ..LockOptions::default() };
            let caller = caller(&options);
            let hold = reporter.add(tenure(id(1), &options));
            reporter.report_acquired(&hold, &caller);
            let over = reporter.end_signal(&hold);
            let ended = reporter.renewer.end_all(now(), || {});
            assert!(ended.is_err(), "it had no time");
            assert_over(&over, LEASE);
            assert_over(&reporter.end_signal(&hold), LEASE);
            reporter
        }
    }

    /// Returns how many releases have succeeded and failed.
    fn counts(reporter: &Reporter) -> (u64, u64) {
        let stats = reporter.counters.to_stats();
        (stats.released, stats.failed_releases)
    }

    #[test]
    fn a_shutdown_without_time_does_not_make_a_release_fail() {
        in_virtual_time(|| {
            let late = Late::default();
            let reporter = late.shut_down(LEASE * 200);
            eventually(LEASE * 20, || !late.jobs.lock().is_empty());
            assert_eq!(counts(&reporter), (0, 0), "it was sent");
            let outcome = late.outcome.clone();
            let answers = sync::start(move || *outcome.lock() = Some(Ok(HoldReply::Done)));
            let ended = reporter.renewer.end_all(end_of(LEASE * 50), || {});
            assert!(ended.is_ok());
            answers.join();
            assert_eq!(counts(&reporter), (1, 0));
        });
    }

    #[test]
    fn a_release_that_fails_after_all_shutdowns_is_reported() {
        in_virtual_time(|| {
            let late = Late::default();
            let reporter = late.shut_down(LEASE * 200);
            assert_eq!(counts(&reporter), (0, 0));
            *late.outcome.lock() = Some(Err(no_reply()));
            eventually(LEASE * 20, || counts(&reporter) == (0, 1));
        });
    }

    #[test]
    fn a_release_that_is_not_confirmed_when_the_client_ends_is_reported() {
        in_virtual_time(|| {
            let reporter = Late::default().shut_down(LEASE * 4);
            let counters = reporter.counters.clone();
            drop(reporter);
            eventually(LEASE * 40, || counters.to_stats().failed_releases == 1);
        });
    }

    #[test]
    fn a_hold_that_ended_with_its_lease_is_not_taken_for_released() {
        let (mut shutdown, now) =
            (Shutdown { outlived: true, ..Shutdown::default() }, Instant::now());
        let first = call(&mut shutdown, now + LEASE);
        shutdown.answer(true, now);
        assert!(matches!(first.try_recv(), Ok(Err(_))));
        let second = call(&mut shutdown, now + LEASE);
        shutdown.answer(true, now);
        assert!(matches!(second.try_recv(), Ok(Ok(()))));
    }

    fn payment(lease: Duration, may_begin: bool) -> Payment {
        Payment::new(Arc::new(Hold::debt(id(1), lease, may_begin)))
    }

    #[test]
    fn an_in_doubt_hold_is_released_at_growing_intervals_until_its_lease_is_over() {
        let hold = Duration::from_secs(30);
        let mut payment = payment(hold, true);
        let (begin, mut now) = (Moment::now(), Moment::now());
        let mut pauses = Vec::new();
        while let Some(next) = payment.next_try(true, now) {
            pauses.push(next.since(now));
            now = next;
        }
        assert!(now.since(begin) >= hold && now.since(begin) < hold * 11 / 10);
        assert!(pauses.is_sorted() && pauses.len() < 40, "{pauses:?}");
    }

    #[test]
    fn one_answer_is_enough_for_a_hold_that_a_release_settles() {
        let mut payment = payment(Duration::from_secs(30), false);
        assert!(payment.next_try(false, Moment::now()).is_some());
        assert!(payment.next_try(true, Moment::now()).is_none());
    }

    #[test]
    fn a_job_has_a_third_of_the_lease() {
        let lease = Duration::from_secs(30);
        let time = Duration::from_secs(10);
        let payment = Scheduled::Payment(Box::new(payment(lease, false)));
        for work in [
            Scheduled::Hold(tenure(id(1), &LockOptions { lease, ..LockOptions::default() }).hold),
            payment,
        ] {
            let begin = Instant::now();
            let left = work.job(1, Change::Check, Moment::now()).deadline - begin;
            assert!(left >= time && left <= time + begin.elapsed(), "{work:?}: {left:?}");
        }
    }

    #[test]
    fn no_shutdown_waits_until_a_client_is_no_longer_waiting() {
        let payment = Payment::of_waiting(id(1), Duration::from_secs(30));
        assert!(payment.unregisters && payment.is_confirmed());
    }

    #[test]
    fn the_next_attempt_comes_soon_where_there_is_reason_to_hasten() {
        let mut payment = payment(Duration::from_secs(30), true);
        let now = Moment::now();
        let mut pause = |hastens: bool| {
            if hastens {
                payment.hasten();
            }
            payment.next_try(false, now).expect("not over").since(now)
        };
        assert_eq!(
            [false, false, false, true].map(&mut pause),
            [1, 2, 4, 1].map(|n| PAYMENT_PAUSE * n)
        );
    }
}
