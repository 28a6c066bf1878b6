//! The renewer: the one thread of a client that keeps its leases alive, removes in-doubt holds, and
//! releases all holds once the client is shut down. This is how other threads reach it.
//!
//! Acquiring a lock does not wake the thread unless its lease is due before other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::Failure;
use crate::local::hold::Hold;
use crate::local::reporter::ReportSink;
use crate::local::shutdown::{ShutdownCall, unconfirmed};
use crate::local::timers::{CleanUp, Scheduled};
use crate::store::background::InDoubtHold;
use crate::store::hold_id::HoldId;

/// How much longer than its time a shutdown waits for what the thread says.
const ANSWER_TIME: Duration = Duration::from_millis(50);

/// With this much in the channel, most of which may be over, the thread is woken to empty it.
const CHANNEL_FULL: usize = 1024;

/// The end of the other threads. The thread ends when the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Renewer {
    queue: Sender<Message>,
    queued: Arc<AtomicUsize>,
    wake: Sender<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    wakes_at: Arc<AtomicU64>,
}

/// The end of the thread.
#[derive(Debug)]
pub(super) struct Incoming {
    queue: Receiver<Message>,
    queued: Arc<AtomicUsize>,
    woken: Receiver<()>,
    wakes_at: Arc<AtomicU64>,
}

/// The messages to the thread.
#[derive(Debug)]
pub(super) enum Message {
    /// To ask whether a hold exists.
    Check(HoldId),
    /// To end all leases, also those to come, and to release them by then if possible.
    EndAll(Instant),
    /// To mark a hold as lost that does not exist any more, and to drop the sender then.
    Lose(HoldId, Sender<()>),
    /// To answer when the shutdown is complete.
    Settle(ShutdownCall),
    Work(Scheduled),
}

/// A new channel to the thread: what is sent does not wake it unless it is due before the thread
/// will wake by itself, or so much was sent that the channel should be emptied.
pub(super) fn channel() -> (Renewer, Incoming) {
    let (sender, receiver) = unbounded();
    let (wake, woken) = bounded(1);
    let queued = Arc::new(AtomicUsize::new(0));
    let wakes_at = Arc::new(AtomicU64::new(Moment::FIRST.0));
    let incoming =
        Incoming { queue: receiver, queued: queued.clone(), woken, wakes_at: wakes_at.clone() };
    (Renewer { queue: sender, queued, wake, wakes_at }, incoming)
}

impl Renewer {
    fn send(&self, message: Message, due: Moment) {
        // Counted first: the thread may receive it before the next line.
        let queued = self.queued.fetch_add(1, Ordering::SeqCst) + 1;
        // The thread ends only after `self`.
        drop(self.queue.send(message));
        if due.0 < self.wakes_at.load(Ordering::SeqCst) || queued == CHANNEL_FULL {
            // A full channel wakes the thread already.
            self.wake.try_send(()).unwrap_or_default();
        }
    }

    /// Adds a lease that was just acquired.
    pub(crate) fn add_lease(&self, hold: &Arc<Hold>) {
        if let Some(due) = hold.next_step().due() {
            self.send(Message::Work(Scheduled::Hold(hold.clone())), due);
        }
    }

    /// Releases a tenure that was kept, and has ended here.
    pub(crate) fn release(&self, hold: &Arc<Hold>) {
        let release = Scheduled::CleanUp(Box::new(CleanUp::of_ended(hold)));
        self.send(Message::Work(release), Moment::FIRST);
    }

    /// Takes the client off the waiting clients, of which a thread was one that wanted this hold.
    pub(crate) fn unregister(&self, hold: HoldId, lease: Duration) {
        let removal = Box::new(CleanUp::of_waiting(hold, lease));
        self.send(Message::Work(Scheduled::CleanUp(removal)), Moment::FIRST);
    }

    /// Finds out whether a hold still exists that was perhaps ended by force.
    pub(crate) fn check(&self, hold: HoldId) {
        self.send(Message::Check(hold), Moment::FIRST);
    }

    /// Marks a hold as lost that does not exist any more, and blocks until the thread has done so,
    /// or the deadline.
    pub(crate) fn lose(&self, hold: HoldId, deadline: Instant) {
        let (lost, done) = bounded(0);
        self.send(Message::Lose(hold, lost), Moment::FIRST);
        // The thread drops its end.
        done.recv_deadline(deadline).unwrap_or_default();
    }

    /// Ends all holds, also those to come, and releases them. What is not released by the deadline
    /// is reported as failed, and cleaned up.
    pub(crate) fn end_all(&self, deadline: Instant) {
        self.send(Message::EndAll(deadline), Moment::FIRST);
    }

    /// Blocks until all holds have ended after `end_all`, and all that was to be cleaned up by now
    /// is removed.
    ///
    /// # Errors
    ///
    /// The last failure if that takes until the deadline.
    pub(crate) fn settle(&self, deadline: Instant) -> Result<(), Failure> {
        let (answer, settled) = bounded(1);
        self.send(Message::Settle(ShutdownCall { deadline, answer }), Moment::FIRST);
        let answered = settled.recv_deadline(deadline + ANSWER_TIME);
        answered.unwrap_or_else(|_| Err(unconfirmed()))
    }
}

impl Incoming {
    /// Returns what was sent next, if anything was.
    pub(super) fn try_receive(&self) -> Option<Message> {
        let value = self.queue.try_recv().ok()?;
        self.queued.fetch_sub(1, Ordering::SeqCst);
        Some(value)
    }

    /// Waits until something is due or the thread is woken. Returns `false` when the last sender is
    /// gone.
    pub(super) fn sleep(&self, due: Moment) -> bool {
        self.wakes_at.store(due.0, Ordering::SeqCst);
        // What was sent before the line above woke no thread; what is sent afterwards does.
        let has_senders = if self.queue.is_empty() {
            let end = end_of(due.since(Moment::now()));
            self.woken.recv_deadline(end) != Err(RecvTimeoutError::Disconnected)
        } else {
            true
        };
        self.wakes_at.store(Moment::FIRST.0, Ordering::SeqCst);
        has_senders
    }
}

impl ReportSink for Renewer {
    fn clean_up(&self, in_doubt: InDoubtHold) {
        self.send(Message::Work(Scheduled::clean_up(in_doubt)), Moment::FIRST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::failure::FailureKind;
    use crate::config::LockOptions;
    use crate::local::call::tests::caller;
    use crate::local::renewer_thread::{NAP, start};
    use crate::local::reporter::Reporter;
    use crate::store::background::{Job, JobOutcome, JobReply, JobRunner};
    use crate::store::hold_id::HoldKind;
    use crate::store::request::{Change, HoldReply};

    use parking_lot::Mutex;
    use std::convert::Infallible;
    use std::thread;

    /// Gives each job the outcome that a function of the number of jobs before returns.
    struct Fake {
        log: Arc<Mutex<Vec<(u64, Change, Instant)>>>,
        outcome: Box<dyn FnMut(usize) -> Result<HoldReply, Failure> + Send>,
    }

    impl JobRunner for Fake {
        fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
            for Job { id, hold, change, .. } in jobs {
                let before = self.log.lock().len();
                self.log.lock().push((hold.nonce, change, Instant::now()));
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
            let renewer = start(Box::new(fake), io_timeout, Reporter::default());
            Self { renewer: renewer.expect("a thread"), log }
        }

        fn hold(&self, nonce: u64, duration: Duration) -> Arc<Hold> {
            let options = LockOptions { lease: duration, ..LockOptions::default() };
            let caller = caller(&options);
            let hold = Arc::new(Hold::new(id(nonce), nonce, 0, &caller, Moment::now()));
            self.renewer.add_lease(&hold);
            hold
        }

        fn clean_up(&self, hold: HoldId, lease: Duration) {
            let (kept_until, settled_by_release) = (Moment::FIRST, true);
            self.renewer.clean_up(InDoubtHold { hold, kept_until, lease, settled_by_release });
        }

        fn renewals(&self) -> usize {
            self.log.lock().iter().filter(|(_, change, _)| *change != Change::RELEASE).count()
        }

        fn releases(&self) -> usize {
            self.log.lock().iter().filter(|(_, change, _)| *change == Change::RELEASE).count()
        }

        fn wait_until_asleep(&self) {
            let awake = [Moment::FIRST.0, Moment::NEVER.0];
            eventually(LEASE * 10, || {
                !awake.contains(&self.renewer.wakes_at.load(Ordering::SeqCst))
            });
        }
    }

    const LEASE: Duration = Duration::from_millis(300);

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
            assert!(Instant::now() < end, "not within {within:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn assert_over(over: &Receiver<Infallible>, within: Duration) {
        assert_eq!(over.recv_timeout(within), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_lease_is_renewed_for_as_long_as_it_is_held() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let hold = scene.hold(1, LEASE * 6);
        eventually(LEASE * 60, || scene.renewals() >= 5);
        assert!(!hold.lease.remaining().is_zero());
        assert!(hold.end());
        let renewals = scene.renewals();
        thread::sleep(LEASE * 5);
        assert!(scene.renewals() <= renewals + 1, "one may have been on its way");
    }

    #[test]
    fn a_slow_renewal_counts_from_its_request() {
        let scene = Scene::new(|job| {
            thread::sleep(LEASE);
            if job == 0 { Ok(HoldReply::Done) } else { Err(no_reply()) }
        });
        let hold = scene.hold(1, LEASE * 10);
        eventually(LEASE * 60, || scene.renewals() >= 2);
        let sent = scene.log.lock()[0].2.elapsed();
        let left = hold.lease.remaining();
        assert!(left.is_zero() || left + sent <= LEASE * 10, "{left:?} after {sent:?}");
    }

    #[test]
    fn a_hold_that_is_gone_is_lost_at_once() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        let hold = scene.hold(1, LEASE * 20);
        let lost = hold.over();
        assert_over(&lost, LEASE * 15);
        assert!(hold.lease.remaining().is_zero());
        assert_eq!(scene.renewals(), 1);
    }

    #[test]
    fn a_lease_without_replies_is_not_lost_before_its_deadline() {
        let scene = Scene::new(|job| if job < 3 { Err(no_reply()) } else { Ok(HoldReply::Done) });
        let hold = scene.hold(1, LEASE * 5);
        eventually(LEASE * 20, || scene.renewals() >= 6);
        assert!(!hold.lease.remaining().is_zero());
    }

    /// A renewal that has just failed must not delay the loss until the next one is due.
    #[test]
    fn a_lease_without_any_reply_is_lost_at_its_deadline_and_cleaned_up() {
        let scene = Scene::new(|_| Err(no_reply()));
        let hold = scene.hold(1, LEASE * 20);
        let deadline = Instant::now() + hold.lease.remaining();
        assert_over(&hold.over(), LEASE * 60);
        let late = Instant::now().checked_duration_since(deadline).expect("not before");
        assert!(late < LEASE * 5, "{late:?}");
        assert!(scene.renewals() >= 2, "tried more than once");
        eventually(LEASE * 20, || scene.releases() > 0);
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
            thread::sleep(next.saturating_duration_since(Instant::now()));
            for job in self.0.extract_if(.., |job| job.deadline <= Instant::now()) {
                done(job.id, Err(no_reply()));
            }
        }
    }

    /// Two of them while their renewals are in flight, and one that is not renewed.
    #[test]
    fn leases_are_lost_at_their_deadlines_while_the_store_hangs() {
        let jobs = Box::new(Hanging::default());
        let renewer = start(jobs, LEASE * 100, Reporter::default());
        let scene = Scene { renewer: renewer.expect("a thread"), log: Arc::default() };
        let holds = [scene.hold(1, LEASE * 10), scene.hold(2, LEASE * 4), {
            let options = LockOptions { lease: LEASE * 6, renew: false, ..LockOptions::default() };
            let caller = caller(&options);
            Arc::new(Hold::new(id(3), 3, 0, &caller, Moment::now()))
        }];
        scene.renewer.add_lease(&holds[2]);
        for hold in [&holds[1], &holds[2], &holds[0]] {
            let deadline = Instant::now() + hold.lease.remaining();
            assert_over(&hold.over(), LEASE * 60);
            assert!(deadline.elapsed() < LEASE * 10, "{:?}", deadline.elapsed());
        }
    }

    #[test]
    fn an_in_doubt_hold_is_cleaned_up_after_its_loss() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        scene.hold(1, LEASE).in_doubt.store(true, Ordering::Relaxed);
        // One reply is not enough.
        eventually(LEASE * 4, || scene.releases() >= 2);
        assert_eq!(scene.renewals(), 1);
    }

    #[test]
    fn a_panic_is_survived() {
        let scene = Scene::new(|job| if job == 1 { panic!("a bug") } else { Ok(HoldReply::Done) });
        let holds = [scene.hold(1, LEASE * 6), scene.hold(2, LEASE * 6)];
        // Printing the panic takes a while.
        eventually(LEASE * 40, || scene.renewals() >= 10);
        assert!(holds.iter().all(|hold| !hold.lease.remaining().is_zero()));
    }

    #[test]
    fn leases_that_are_due_together_are_renewed_together() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let holds: Vec<_> = (0..100).map(|nonce| scene.hold(nonce, LEASE * 10)).collect();
        eventually(LEASE * 60, || scene.renewals() >= 100);
        let log = scene.log.lock();
        assert!(log[99].2 - log[0].2 < LEASE * 2);
        drop(holds);
    }

    #[test]
    fn a_lease_that_is_due_later_than_others_does_not_wake_the_thread() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let first = scene.hold(1, Duration::from_secs(30));
        scene.wait_until_asleep();
        for nonce in 2..100 {
            scene.hold(nonce, Duration::from_secs(30)).end();
            assert!(scene.renewer.wake.is_empty());
        }
        drop(first);
    }

    #[test]
    fn a_full_channel_is_emptied_again_and_again() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let _first = scene.hold(0, Duration::from_secs(30));
        for _ in 0..3 {
            scene.wait_until_asleep();
            for nonce in 0..1024 {
                scene.hold(nonce + 1, Duration::from_secs(30)).end();
            }
            eventually(LEASE * 10, || scene.renewer.queue.len() < 100);
        }
    }

    /// Each is held until the thread has received it.
    #[test]
    fn leases_that_have_ended_are_dropped_long_before_they_are_due() {
        const HELD: u64 = 2_000;
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let mut holds = Vec::new();
        for round in 0..20 {
            let numbers = round * HELD..(round + 1) * HELD;
            let hour = Duration::from_secs(3600);
            let held: Vec<_> = numbers.map(|nonce| scene.hold(nonce, hour)).collect();
            eventually(LEASE * 20, || scene.renewer.queue.is_empty());
            assert!(held.iter().all(|hold| hold.end()));
            holds.extend(held.iter().map(Arc::downgrade));
        }
        let kept = || holds.iter().filter(|hold| hold.strong_count() > 0).count() as u64;
        assert!(kept() <= 4 * HELD, "{} of those that were held", kept());
        eventually(Duration::from_secs(20), || kept() == 0);
    }

    #[test]
    fn an_in_doubt_hold_that_an_answer_has_settled_is_dropped() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        let name = Arc::<str>::from("x");
        for nonce in 0..10_000 {
            scene.clean_up(HoldId { name: name.clone(), ..id(nonce) }, LEASE * 10_000);
        }
        eventually(LEASE * 20, || scene.releases() == 10_000);
        eventually(LEASE * 20, || Arc::strong_count(&name) == 1);
    }

    #[test]
    fn the_thread_wakes_every_second_while_there_is_a_lease_and_not_without_one() {
        let scene = Scene::new(|_| Ok(HoldReply::Done));
        let wakes_at = || scene.renewer.wakes_at.load(Ordering::SeqCst);
        eventually(LEASE * 10, || wakes_at() == Moment::NEVER.0);
        let hold = scene.hold(1, Duration::from_secs(3600));
        scene.wait_until_asleep();
        let first = wakes_at();
        assert!(Moment(first).since(Moment::now()) <= NAP);
        eventually(LEASE * 20, || wakes_at() > first && wakes_at() < Moment::NEVER.0);
        assert!(hold.end());
        eventually(Duration::from_secs(20), || wakes_at() == Moment::NEVER.0);
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
                        scene.hold(nonce, Duration::from_millis(10)).end();
                    }
                });
            }
        });
        eventually(LEASE * 10, || scene.renewer.queued.load(Ordering::SeqCst) == 0);
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
    fn a_clean_up_is_tried_until_there_is_an_answer() {
        let scene = Scene::new(|job| if job < 3 { Err(no_reply()) } else { Ok(HoldReply::Gone) });
        scene.clean_up(id(7), LEASE * 10);
        eventually(LEASE * 4, || scene.log.lock().len() >= 4);
        thread::sleep(LEASE);
        assert_eq!(scene.log.lock().len(), 4);
    }

    #[test]
    fn the_thread_ends_with_the_client_and_cleans_up_before() {
        let scene = Scene::new(|_| Err(no_reply()));
        scene.clean_up(id(7), Duration::from_secs(60));
        // From now on the pauses are long.
        eventually(LEASE * 4, || scene.releases() >= 5);
        let Scene { renewer, log } = scene;
        let before = log.lock().len();
        drop(renewer);
        // The thread has the other reference.
        eventually(LEASE * 4, || Arc::strong_count(&log) == 1);
        assert!(log.lock().len() > before);
    }
}
