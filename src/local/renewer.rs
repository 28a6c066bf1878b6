//! The renewer: a client's single thread that keeps leases alive, pays debts, and releases all
//! holds once the client is shut down. This module is how other threads reach it.
//!
//! Acquiring a lock does not wake the thread unless its lease is due before other work.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::receive;
use crate::local::timers::{Payment, Scheduled};
use crate::protocol::hold::Hold;
use crate::protocol::lease::NextStep;
use crate::store::hold_id::HoldId;

/// How long after its deadline a shutdown still waits for the thread's answer.
const ANSWER_TIME: Duration = Duration::from_millis(50);

/// With this many messages in the channel, the thread is woken to empty it: most of them may be
/// about holds that are over.
const CHANNEL_FULL: usize = 1024;

/// The sending end, for all other threads. The thread ends when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Renewer {
    queue: Sender<Message>,
    wake: Sender<()>,
    wake_time: Arc<WakeTime>,
}

/// The receiving end, for the thread.
pub(super) struct Incoming {
    pub(super) queue: Receiver<Message>,
    woken: Receiver<()>,
    wake_time: Arc<WakeTime>,
}

/// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
struct WakeTime {
    at: AtomicU64,
}

impl WakeTime {
    fn get(&self) -> Moment {
        Moment(self.at.load(Ordering::SeqCst))
    }

    fn set(&self, at: Moment) {
        self.at.store(at.0, Ordering::SeqCst);
    }
}

/// The messages to the thread.
pub(super) enum Message {
    /// Ask whether a hold exists.
    Check(HoldId),
    /// Send the holds of this client.
    List(Sender<Vec<Arc<Hold>>>),
    /// End all leases, including future ones, and answer when they are released.
    EndAll(ShutdownCall),
    /// Mark a hold that no longer exists as lost, and then drop the sender.
    Lose(HoldId, Sender<()>),
    /// Note that a hold is being ended by force, and then drop the sender.
    Force(HoldId, Sender<()>),
    /// Ask whether other clients wait for locks: their messages may have been missed.
    Watch,
    Work(Scheduled),
}

/// A call of `shutdown` that waits for the answer.
pub(super) struct ShutdownCall {
    pub(super) deadline: Instant,
    pub(super) answer: Sender<Result<(), Failure>>,
}

/// The shutdown of a client.
#[derive(Default)]
pub(super) struct Shutdown {
    /// The calls that wait for its end. A release that has failed once none waits any more is
    /// reported so.
    pub(super) calls: Vec<ShutdownCall>,
    pub(super) last_failure: Option<Failure>,
    /// Whether a hold has ended with its lease before its release was confirmed, since the shutdown
    /// was last complete.
    pub(super) outlived: bool,
}

/// Creates a channel to the thread. A message wakes it only if it is due before the thread wakes by
/// itself, or if the channel is so full that it should be emptied.
pub(super) fn channel() -> (Renewer, Incoming) {
    let (sender, receiver) = unbounded();
    let (wake, woken) = bounded(1);
    let wake_time = Arc::new(WakeTime { at: AtomicU64::new(Moment::FIRST.0) });
    let incoming = Incoming { queue: receiver, woken, wake_time: wake_time.clone() };
    (Renewer { queue: sender, wake, wake_time }, incoming)
}

impl Renewer {
    /// Returns a handle for the renewer thread's own use. What is posted to it neither wakes the
    /// thread nor keeps it alive.
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

    /// Adds a lease that was just acquired.
    pub(crate) fn add_lease(&self, hold: &Arc<Hold>) {
        if let Some(NextStep { due, .. }) = hold.next_step() {
            self.send(Message::Work(Scheduled::Hold(hold.clone())), due);
        }
    }

    /// Reports the holds of a tenure that last for long.
    pub(crate) fn watch_long(&self, hold: &Arc<Hold>, after: Duration) {
        if let Some(due) = hold.next_long_look(after, Moment::now()) {
            self.send(Message::Work(Scheduled::Long(hold.clone())), due);
        }
    }

    /// Releases a newly kept lock once no thread has used it for long enough.
    pub(crate) fn look_after_kept(&self, hold: &Arc<Hold>) {
        if let Some(due) = hold.begin_looks() {
            self.send(Message::Work(Scheduled::Kept(hold.clone())), due);
        }
    }

    /// Releases a hold that has ended, and that may exist in the store, now or later.
    pub(crate) fn pay(&self, debt: Arc<Hold>) {
        self.add_payment(Payment::new(debt));
    }

    /// Removes the client from the waiting clients, after a thread that wanted this hold has left.
    pub(crate) fn unregister(&self, hold: HoldId, lease: Duration) {
        self.add_payment(Payment::of_waiting(hold, lease));
    }

    fn add_payment(&self, payment: Payment) {
        self.send(Message::Work(Scheduled::Payment(Box::new(payment))), Moment::FIRST);
    }

    /// Checks whether a hold still exists that may have been ended by force.
    pub(crate) fn check(&self, hold: HoldId) {
        self.send(Message::Check(hold), Moment::FIRST);
    }

    /// Checks whether other clients wait for locks that threads watch, or that may be kept.
    pub(crate) fn watch(&self) {
        self.send(Message::Watch, Moment::FIRST);
    }

    /// Returns the holds of this client. Blocks until the thread has collected them, or until the
    /// deadline.
    pub(crate) fn list(&self, deadline: Instant) -> Vec<Arc<Hold>> {
        let (answer, listed) = bounded(1);
        self.send(Message::List(answer), Moment::FIRST);
        receive(&listed, deadline).unwrap_or_default()
    }

    /// Notes that a hold is being ended by force, so that whichever request finds it gone knows
    /// why. Blocks until the thread has done so, or until the deadline.
    pub(crate) fn force(&self, hold: HoldId, deadline: Instant) {
        let (noted, done) = bounded(0);
        self.send(Message::Force(hold, noted), Moment::FIRST);
        // The thread drops its end.
        receive(&done, deadline).unwrap_or_default();
    }

    /// Marks a hold that no longer exists as lost. Blocks until the thread has done so, or until
    /// the deadline.
    pub(crate) fn lose(&self, hold: HoldId, deadline: Instant) {
        let (lost, done) = bounded(0);
        self.send(Message::Lose(hold, lost), Moment::FIRST);
        receive(&done, deadline).unwrap_or_default();
    }

    /// Ends and releases all holds, including future ones. Calls `settle`, and blocks until all
    /// have ended and all in-doubt holds are removed. A release that has failed is reported so once
    /// no such call waits any more, and still repeated.
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
    use crate::base::sync::{in_virtual_time, sleep};
    use crate::config::LockOptions;
    use crate::local::renewer_thread::{NAP, start};
    use crate::local::reporter::Reporter;
    use crate::protocol::call::tests::caller;
    use crate::store::background::{Job, JobOutcome, JobReply, JobRunner};
    use crate::store::hold_id::HoldKind;
    use crate::store::request::{Change, HoldReply};

    use parking_lot::Mutex;
    use std::convert::Infallible;
    use std::sync::atomic::AtomicBool;
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
        renewer: Renewer,
        log: Arc<Mutex<Vec<(u64, Change, Instant)>>>,
    }

    impl Scene {
        fn new(outcome: impl FnMut(usize) -> Result<HoldReply, Failure> + Send + 'static) -> Self {
            let log = Arc::new(Mutex::new(Vec::new()));
            let fake = Fake { log: log.clone(), outcome: Box::new(outcome) };
            let io_timeout = Duration::from_secs(1);
            Self { renewer: started(Box::new(fake), io_timeout).renewer, log }
        }

        fn hold(&self, nonce: u64, duration: Duration) -> Arc<Hold> {
            let options = LockOptions { lease: duration, ..LockOptions::default() };
            let caller = caller(&options);
            let hold =
                Arc::new(Hold::new(id(nonce), nonce, 0, &caller, Moment::now(), Moment::now()));
            self.renewer.add_lease(&hold);
            hold
        }

        fn pay(&self, hold: HoldId, lease: Duration) {
            self.renewer.pay(Arc::new(Hold::debt(hold, lease, false, Moment::now())));
        }

        fn renewals(&self) -> usize {
            self.log.lock().iter().filter(|(_, change, _)| *change != Change::RELEASE).count()
        }

        fn releases(&self) -> usize {
            self.log.lock().iter().filter(|(_, change, _)| *change == Change::RELEASE).count()
        }

        fn wait_until_asleep(&self) {
            let awake = [Moment::FIRST, Moment::NEVER];
            eventually(LEASE * 10, || !awake.contains(&self.renewer.wake_time.get()));
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
    fn assert_over(over: &Receiver<Infallible>, within: Duration) {
        assert_eq!(receive(over, end_of(within)), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_lease_is_renewed_for_as_long_as_it_is_held() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Done));
            let hold = scene.hold(1, LEASE * 6);
            eventually(LEASE * 60, || scene.renewals() >= 5);
            assert!(!hold.lease.remaining(Moment::now()).is_zero());
            assert!(hold.end(Moment::now()));
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
            let left = hold.lease.remaining(Moment::now());
            assert!(left.is_zero() || left + sent <= LEASE * 10, "{left:?} after {sent:?}");
        });
    }

    #[test]
    fn a_hold_that_is_gone_is_lost_at_once() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Gone));
            let hold = scene.hold(1, LEASE * 20);
            let lost = hold.over();
            assert_over(&lost, LEASE * 15);
            assert!(hold.lease.remaining(Moment::now()).is_zero());
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
            assert!(!hold.lease.remaining(Moment::now()).is_zero());
        });
    }

    /// A renewal that has just failed must not delay the loss until the next one is due.
    #[test]
    fn a_lease_without_any_reply_is_lost_at_its_deadline_and_cleaned_up() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Err(no_reply()));
            let hold = scene.hold(1, LEASE * 20);
            let deadline = now() + hold.lease.remaining(Moment::now());
            assert_over(&hold.over(), LEASE * 60);
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
            let Reporter { renewer, outages, .. } = started(Box::new(Fake { log, outcome }), LEASE);
            let scene = Scene { renewer, log: Arc::default() };
            let (ended, _held) = (scene.hold(1, LEASE * 10), scene.hold(2, LEASE * 10));
            eventually(LEASE * 10, || outages.lasts.load(Ordering::Relaxed));
            assert!(ended.end(Moment::now()));
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
            let scene = Scene { renewer: started(jobs, LEASE * 100).renewer, log: Arc::default() };
            let holds = [scene.hold(1, LEASE * 10), scene.hold(2, LEASE * 4), {
                let options =
                    LockOptions { lease: LEASE * 6, renew: false, ..LockOptions::default() };
                let caller = caller(&options);
                Arc::new(Hold::new(id(3), 3, 0, &caller, Moment::now(), Moment::now()))
            }];
            scene.renewer.add_lease(&holds[2]);
            for hold in [&holds[1], &holds[2], &holds[0]] {
                let deadline = now() + hold.lease.remaining(Moment::now());
                assert_over(&hold.over(), LEASE * 60);
                assert!(elapsed(deadline) < LEASE * 10, "{:?}", elapsed(deadline));
            }
        });
    }

    #[test]
    fn an_in_doubt_hold_is_cleaned_up_after_its_loss() {
        in_virtual_time(|| {
            let scene = Scene::new(|_| Ok(HoldReply::Gone));
            scene.hold(1, LEASE).set_may_begin(true);
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
            assert!(holds.iter().all(|hold| !hold.lease.remaining(Moment::now()).is_zero()));
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
                scene.hold(nonce, Duration::from_secs(30)).end(Moment::now());
                assert!(scene.renewer.wake.is_empty());
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
                    scene.hold(nonce + 1, Duration::from_secs(30)).end(Moment::now());
                }
                eventually(LEASE * 10, || scene.renewer.queue.len() < 100);
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
                eventually(LEASE * 20, || scene.renewer.queue.is_empty());
                assert!(held.iter().all(|hold| hold.end(Moment::now())));
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
            let wakes_at = || scene.renewer.wake_time.get();
            eventually(LEASE * 10, || wakes_at() == Moment::NEVER);
            let hold = scene.hold(1, Duration::from_secs(3600));
            scene.wait_until_asleep();
            let first = wakes_at();
            assert!(first.since(Moment::now()) <= NAP);
            eventually(LEASE * 20, || wakes_at() > first && wakes_at() < Moment::NEVER);
            assert!(hold.end(Moment::now()));
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
                        scene.hold(nonce, Duration::from_millis(10)).end(Moment::now());
                    }
                });
            }
        });
        eventually(LEASE * 10, || scene.renewer.queue.is_empty());
    }

    #[test]
    fn leases_of_ended_threads_are_not_renewed() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let hold =
            thread::scope(|scope| scope.spawn(|| scene.hold(1, LEASE)).join().expect("no panic"));
        let lost = hold.over();
        assert_over(&lost, LEASE * 4);
        assert_eq!(scene.renewals(), 0);
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
            let Scene { renewer, log } = scene;
            let before = log.lock().len();
            drop(renewer);
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
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            let outcome = self.outcome.lock().clone();
            let is_over = |job: &mut Job| outcome.is_some() || job.deadline <= Instant::now();
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
            let hold = Arc::new(Hold::new(id(1), 1, 0, &caller, Moment::now(), Moment::now()));
            reporter.report_acquired(&hold, &caller);
            reporter.begin_renewal(&hold);
            let over = hold.over();
            let ended = reporter.renewer.end_all(Instant::now(), || {});
            assert!(ended.is_err(), "it had no time");
            assert_over(&over, LEASE);
            assert_over(&hold.over(), LEASE);
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
        let late = Late::default();
        let reporter = late.shut_down(LEASE * 200);
        eventually(LEASE * 20, || !late.jobs.lock().is_empty());
        assert_eq!(counts(&reporter), (0, 0), "it was sent");
        thread::scope(|scope| {
            let patient = scope.spawn(|| reporter.renewer.end_all(end_of(LEASE * 50), || {}));
            *late.outcome.lock() = Some(Ok(HoldReply::Done));
            assert!(patient.join().expect("no panic").is_ok());
        });
        assert_eq!(counts(&reporter), (1, 0));
    }

    #[test]
    fn a_release_that_fails_after_all_shutdowns_is_reported() {
        let late = Late::default();
        let reporter = late.shut_down(LEASE * 200);
        assert_eq!(counts(&reporter), (0, 0));
        *late.outcome.lock() = Some(Err(no_reply()));
        eventually(LEASE * 20, || counts(&reporter) == (0, 1));
    }

    #[test]
    fn a_release_that_is_not_confirmed_when_the_client_ends_is_reported() {
        let reporter = Late::default().shut_down(LEASE * 4);
        let counters = reporter.counters.clone();
        drop(reporter);
        eventually(LEASE * 40, || counters.to_stats().failed_releases == 1);
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
}
