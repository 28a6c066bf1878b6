//! The renewer: the one thread of a client that keeps its leases alive and removes in-doubt holds.
//!
//! Decides when leases are renewed together, what becomes of a lease whose renewal fails, and that
//! a lease is found lost at its local deadline even while the store does not reply. Knows of the
//! store only that it runs jobs.
//!
//! Acquiring a lock does not wake the thread: the new lease goes into a channel that is emptied
//! when the thread is awake anyway, and the thread is woken only for a lease that is due before
//! then. While it has any leases it wakes at least every second all the same, so that it notices a
//! resume after the system was suspended, and drops what has ended.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{mem, thread};

use crate::clock::{Moment, end_of};
use crate::local::lease::{Lease, NextStep};
use crate::local::loss::LossNotifier;
use crate::local::outage::RenewalReports;
use crate::local::timers::{CleanUp, Scheduled, TimerQueue};
use crate::shrink::shrink;
use crate::store::job::{Action, InDoubtHold, Job, JobOutcome, JobRunner};
use crate::store::request::HoldReply;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

/// With so many leases in the channel, most of which have ended, the thread is woken to empty it.
const CHANNEL_FULL: usize = 1024;

/// At most so many jobs are sent together.
const BATCH: usize = 512;

/// While replies are awaited the thread looks this often for leases that are due.
const COLLECT_TIME: Duration = Duration::from_millis(5);

/// The longest sleep while there is a lease, because a sleep does not end during a suspend.
const NAP: Duration = Duration::from_secs(1);

/// A renewal that failed is tried again after this part of the lease.
const RETRIES: u32 = 20;

/// The pause after a panic: should its cause persist, it must not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The client's end of the channel. The thread ends when the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Renewer {
    queue: Sender<Scheduled>,
    queued: Arc<AtomicUsize>,
    wake: Sender<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    wakes_at: Arc<AtomicU64>,
}

impl Renewer {
    /// Starts the thread. One request takes no longer than `io_timeout`.
    pub(crate) fn start(
        jobs: Box<dyn JobRunner>,
        io_timeout: Duration,
        losses: LossNotifier,
    ) -> std::io::Result<Self> {
        let (queue, incoming) = unbounded();
        let (wake, woken) = bounded(1);
        let queued = Arc::new(AtomicUsize::new(0));
        let wakes_at = Arc::new(AtomicU64::new(Moment::FIRST.raw()));
        let mut thread = RenewerThread {
            incoming,
            queued: queued.clone(),
            woken,
            wakes_at: wakes_at.clone(),
            timers: TimerQueue::default(),
            in_flight: HashMap::new(),
            last_job: 0,
            jobs,
            io_timeout,
            reports: RenewalReports::new(losses),
        };
        thread::Builder::new().name("leasehold-renew".into()).spawn(move || thread.run())?;
        Ok(Self { queue, queued, wake, wakes_at })
    }

    /// Adds a lease that was just acquired.
    pub(crate) fn add_lease(&self, lease: &Arc<Lease>) {
        if let NextStep::Expire(due) | NextStep::Renew(due) = lease.next_step() {
            self.add(Scheduled::Lease(lease.clone()), due);
        }
    }

    /// Adds a hold to remove.
    pub(crate) fn add_clean_up(&self, in_doubt: InDoubtHold) {
        self.add(Scheduled::clean_up(in_doubt), Moment::FIRST);
    }

    fn add(&self, work: Scheduled, due: Moment) {
        // Counted first: the thread may receive it before the next line.
        let queued = self.queued.fetch_add(1, Ordering::SeqCst) + 1;
        // The thread ends only after `self`.
        drop(self.queue.send(work));
        if due.raw() < self.wakes_at.load(Ordering::SeqCst) || queued == CHANNEL_FULL {
            // A full channel wakes the thread already.
            self.wake.try_send(()).unwrap_or_default();
        }
    }
}

/// The thread's own state.
struct RenewerThread {
    incoming: Receiver<Scheduled>,
    queued: Arc<AtomicUsize>,
    woken: Receiver<()>,
    wakes_at: Arc<AtomicU64>,
    timers: TimerQueue,
    /// What was sent, by job number.
    in_flight: HashMap<u64, SentWork>,
    last_job: u64,
    jobs: Box<dyn JobRunner>,
    io_timeout: Duration,
    reports: RenewalReports,
}

struct SentWork {
    work: Scheduled,
    sent: Moment,
    lease: Duration,
}

impl RenewerThread {
    fn run(&mut self) {
        loop {
            // A bug here must not end all renewal.
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => self.recover(),
            }
        }
        self.finish();
    }

    /// Does what is due, then waits. Returns `false` when the client is gone.
    fn turn(&mut self) -> bool {
        self.receive_new();
        self.send_due();
        if !self.in_flight.is_empty() {
            self.run_jobs(|jobs, done| jobs.collect(end_of(COLLECT_TIME), done));
        }
        self.reports.tell();
        !self.in_flight.is_empty() || self.sleep()
    }

    fn receive_new(&mut self) {
        let mut received = 0;
        while let Ok(work) = self.incoming.try_recv() {
            received += 1;
            self.schedule(work);
        }
        self.queued.fetch_sub(received, Ordering::SeqCst);
        self.timers.compact(Moment::now(), |lease| self.reports.forget(lease));
    }

    fn schedule(&mut self, work: Scheduled) {
        if let Some(over) = self.timers.add(work) {
            self.reports.forget(&over);
        }
    }

    fn send_due(&mut self) {
        let now = Moment::now();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(work) = self.timers.pop(now)
        {
            let (hold, action, lease, limit) = match &work {
                Scheduled::CleanUp(clean_up) => {
                    (clean_up.hold(), clean_up.action(), Duration::ZERO, clean_up.lease() / 3)
                }
                Scheduled::Lease(lease) => {
                    if self.reports.expire(lease) {
                        self.timers.add_clean_up(lease.to_clean_up());
                    }
                    if !lease.is_due(now) {
                        self.schedule(work);
                        continue;
                    }
                    let next = lease.next_lease(now);
                    let limit = (lease.duration() / 3).min(lease.remaining());
                    (&lease.id, Action::Renew { lease: next }, next, limit)
                }
            };
            self.last_job += 1;
            let deadline = end_of(limit.min(self.io_timeout));
            batch.push(Job { id: self.last_job, hold: hold.clone(), action, deadline });
            self.in_flight.insert(self.last_job, SentWork { work, sent: now, lease });
        }
        if !batch.is_empty() {
            self.run_jobs(|jobs, done| jobs.send(batch, done));
        }
    }

    /// Lets the store send or collect jobs, and deals with their outcomes.
    fn run_jobs(&mut self, run: impl FnOnce(&mut dyn JobRunner, &mut dyn FnMut(u64, JobOutcome))) {
        let mut outcomes = Vec::new();
        run(self.jobs.as_mut(), &mut |id, outcome| outcomes.push((id, outcome)));
        for (id, outcome) in outcomes {
            match self.in_flight.remove(&id) {
                Some(SentWork { work: Scheduled::CleanUp(clean_up), .. }) => {
                    self.finish_clean_up(clean_up, outcome.is_ok());
                }
                Some(SentWork { work: Scheduled::Lease(hold), sent, lease }) => {
                    self.finish_renewal(hold, sent, lease, outcome);
                }
                None => {}
            }
        }
        shrink(&mut self.in_flight);
    }

    /// Applies the outcome of a renewal. One without a reply is tried again: the local deadline
    /// decides whether the hold is lost, not one reply.
    fn finish_renewal(
        &mut self,
        hold: Arc<Lease>,
        sent: Moment,
        lease: Duration,
        outcome: JobOutcome,
    ) {
        match outcome {
            Ok(HoldReply::Held) => {
                let late = hold.is_nearly_over();
                hold.extend(sent, lease);
                self.reports.record_renewal(&hold, late);
                self.schedule(Scheduled::Lease(hold));
            }
            Ok(HoldReply::Gone) => {
                self.reports.lose(&hold);
                self.reports.forget(&hold);
                if hold.is_in_doubt() {
                    self.timers.add_clean_up(hold.to_clean_up());
                }
            }
            Err(failure) => {
                let pause = (hold.duration() / RETRIES).min(hold.remaining());
                self.reports.record_failure(&hold, &failure);
                self.timers.add_at(Moment::now().after(pause), Scheduled::Lease(hold));
            }
        }
    }

    fn finish_clean_up(&mut self, mut clean_up: Box<CleanUp>, replied: bool) {
        if replied {
            self.reports.confirm_release(clean_up.hold());
        }
        match clean_up.next_try(replied, Moment::now()) {
            Some(due) => self.timers.add_at(due, Scheduled::CleanUp(clean_up)),
            // Its lease is over.
            None => self.reports.confirm_release(clean_up.hold()),
        }
    }

    /// Waits until something is due or the thread is woken. Returns `false` when the client is
    /// gone.
    fn sleep(&mut self) -> bool {
        let due = self.timers.next_due();
        let due = if due == Moment::NEVER { due } else { due.min(Moment::now().after(NAP)) };
        self.wakes_at.store(due.raw(), Ordering::SeqCst);
        // What was added before the line above woke no thread; what is added afterwards does.
        let client_lives = if self.incoming.is_empty() {
            let end = end_of(due.since(Moment::now()));
            self.woken.recv_deadline(end) != Err(RecvTimeoutError::Disconnected)
        } else {
            true
        };
        self.wakes_at.store(Moment::FIRST.raw(), Ordering::SeqCst);
        client_lives
    }

    /// Starts over after a panic, with nothing forgotten.
    fn recover(&mut self) {
        self.reports.tell_of_a_panic();
        drop(catch_unwind(AssertUnwindSafe(|| self.jobs.abandon(&mut |_, _| {}))));
        for (_, SentWork { work, .. }) in mem::take(&mut self.in_flight) {
            self.schedule(work);
        }
        thread::sleep(PANIC_PAUSE);
    }

    /// Tries once more to remove what is left to clean up.
    fn finish(&mut self) {
        self.receive_new();
        let deadline = end_of(self.io_timeout);
        let drained = self.timers.drain().filter_map(|work| match work {
            Scheduled::CleanUp(clean_up) => {
                let (hold, action) = (clean_up.hold().clone(), clean_up.action());
                Some(Job { id: 0, hold, action, deadline })
            }
            Scheduled::Lease(_) => None,
        });
        let releases: Vec<_> = drained.collect();
        if !releases.is_empty() {
            self.jobs.send(releases, &mut |_, _| {});
            self.jobs.collect(deadline, &mut |_, _| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LockOptions};
    use crate::failure::{Failure, FailureKind};
    use crate::local::call::Caller;
    use crate::store::hold::{HoldId, HoldKind};
    use parking_lot::Mutex;
    use std::convert::Infallible;
    use std::time::Instant;

    /// Gives each job the outcome that a function of the number of jobs before returns.
    struct Fake {
        log: Arc<Mutex<Vec<(u64, Action, Instant)>>>,
        outcome: Box<dyn FnMut(usize) -> JobOutcome + Send>,
    }

    impl JobRunner for Fake {
        fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
            for Job { id, hold, action, .. } in jobs {
                let before = self.log.lock().len();
                self.log.lock().push((hold.nonce, action, Instant::now()));
                done(id, (self.outcome)(before));
            }
        }

        fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}

        fn abandon(&mut self, _: &mut dyn FnMut(u64, JobOutcome)) {}
    }

    struct Scene {
        renewer: Renewer,
        log: Arc<Mutex<Vec<(u64, Action, Instant)>>>,
    }

    impl Scene {
        fn new(outcome: impl FnMut(usize) -> JobOutcome + Send + 'static) -> Self {
            let log = Arc::new(Mutex::new(Vec::new()));
            let fake = Fake { log: log.clone(), outcome: Box::new(outcome) };
            let io_timeout = Duration::from_secs(1);
            let renewer = Renewer::start(Box::new(fake), io_timeout, LossNotifier::default());
            Self { renewer: renewer.expect("a thread"), log }
        }

        fn lease(&self, nonce: u64, duration: Duration) -> Arc<Lease> {
            let options = LockOptions { lease: duration, ..LockOptions::default() };
            let caller = Caller::current(&Config::default(), &options);
            let lease = Arc::new(Lease::new(id(nonce), nonce, &caller, Moment::now()));
            self.renewer.add_lease(&lease);
            lease
        }

        fn clean_up(&self, nonce: u64, lease: Duration) {
            let in_doubt = InDoubtHold {
                hold: id(nonce),
                kept_until: Moment::FIRST,
                lease,
                settled_by_release: true,
            };
            self.renewer.add_clean_up(in_doubt);
        }

        fn renewals(&self) -> usize {
            self.log.lock().iter().filter(|(_, action, _)| *action != RELEASE).count()
        }

        fn releases(&self) -> usize {
            self.log.lock().iter().filter(|(_, action, _)| *action == RELEASE).count()
        }

        fn wait_until_asleep(&self) {
            let awake = [Moment::FIRST.raw(), Moment::NEVER.raw()];
            eventually(LEASE * 10, || {
                !awake.contains(&self.renewer.wakes_at.load(Ordering::SeqCst))
            });
        }
    }

    const LEASE: Duration = Duration::from_millis(300);

    const RELEASE: Action = Action::Release { kept_until: Moment::FIRST };

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
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let lease = scene.lease(1, LEASE);
        eventually(LEASE * 10, || scene.renewals() >= 8);
        assert!(!lease.remaining().is_zero());
        assert!(lease.end());
        let renewals = scene.renewals();
        thread::sleep(LEASE);
        assert!(scene.renewals() <= renewals + 1, "one may have been on its way");
    }

    #[test]
    fn a_slow_renewal_counts_from_its_request() {
        let scene = Scene::new(|job| {
            thread::sleep(LEASE / 3);
            if job == 0 { Ok(HoldReply::Held) } else { Err(no_reply()) }
        });
        let lease = scene.lease(1, LEASE);
        eventually(LEASE * 4, || scene.renewals() == 2);
        let sent = scene.log.lock()[0].2.elapsed();
        let left = lease.remaining();
        assert!(left + sent <= LEASE, "{left:?} after {sent:?}");
    }

    #[test]
    fn a_hold_that_is_gone_is_lost_at_once() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        let lease = scene.lease(1, LEASE);
        let lost = lease.over();
        assert_over(&lost, LEASE * 2 / 3);
        assert!(lease.remaining().is_zero());
        assert_eq!(scene.renewals(), 1);
    }

    #[test]
    fn a_lease_without_replies_is_not_lost_before_its_deadline() {
        let scene = Scene::new(|job| if job < 3 { Err(no_reply()) } else { Ok(HoldReply::Held) });
        let lease = scene.lease(1, LEASE);
        eventually(LEASE * 4, || scene.renewals() >= 6);
        assert!(!lease.remaining().is_zero());
    }

    #[test]
    fn a_lease_without_any_reply_is_lost_at_its_deadline_and_cleaned_up() {
        let scene = Scene::new(|_| Err(no_reply()));
        let begin = Instant::now();
        let lease = scene.lease(1, LEASE);
        let lost = lease.over();
        assert_over(&lost, LEASE * 4);
        assert!(begin.elapsed() >= LEASE * 9 / 10, "{:?}", begin.elapsed());
        assert!(scene.renewals() >= 2, "tried more than once");
        eventually(LEASE, || scene.log.lock().iter().any(|job| job.1 == RELEASE));
    }

    /// A renewal that has just failed must not delay the loss until the next one is due.
    #[test]
    fn a_lease_without_any_reply_is_lost_no_later_than_its_deadline() {
        let scene = Scene::new(|_| Err(no_reply()));
        let lease = scene.lease(1, LEASE * 10);
        let lost = lease.over();
        let deadline = Instant::now() + lease.remaining();
        assert_over(&lost, LEASE * 20);
        assert!(deadline.elapsed() < LEASE / 6, "{:?}", deadline.elapsed());
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

        fn abandon(&mut self, _: &mut dyn FnMut(u64, JobOutcome)) {}
    }

    /// Two of them while their renewals are in flight, and one that is not renewed.
    #[test]
    fn leases_are_lost_at_their_deadlines_while_the_store_hangs() {
        let jobs = Box::new(Hanging::default());
        let renewer = Renewer::start(jobs, LEASE * 100, LossNotifier::default());
        let scene = Scene { renewer: renewer.expect("a thread"), log: Arc::default() };
        let leases = [scene.lease(1, LEASE * 10), scene.lease(2, LEASE * 4), {
            let options = LockOptions { lease: LEASE * 6, renew: false, ..LockOptions::default() };
            let caller = Caller::current(&Config::default(), &options);
            Arc::new(Lease::new(id(3), 3, &caller, Moment::now()))
        }];
        scene.renewer.add_lease(&leases[2]);
        for lease in [&leases[1], &leases[2], &leases[0]] {
            let deadline = Instant::now() + lease.remaining();
            assert_over(&lease.over(), LEASE * 20);
            assert!(deadline.elapsed() < LEASE / 6, "{:?}", deadline.elapsed());
        }
    }

    #[test]
    fn an_in_doubt_hold_is_cleaned_up_after_its_loss() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        scene.lease(1, LEASE).mark_in_doubt();
        // One reply is not enough.
        eventually(LEASE * 4, || scene.releases() >= 2);
        assert_eq!(scene.renewals(), 1);
    }

    #[test]
    fn a_panic_is_survived() {
        let scene = Scene::new(|job| if job == 1 { panic!("a bug") } else { Ok(HoldReply::Held) });
        let leases = [scene.lease(1, LEASE * 6), scene.lease(2, LEASE * 6)];
        // Printing the panic takes a while.
        eventually(LEASE * 40, || scene.renewals() >= 10);
        assert!(leases.iter().all(|lease| !lease.remaining().is_zero()));
    }

    #[test]
    fn leases_that_are_due_together_are_renewed_together() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let leases: Vec<_> = (0..100).map(|nonce| scene.lease(nonce, LEASE)).collect();
        eventually(LEASE * 10, || scene.renewals() >= 100);
        let log = scene.log.lock();
        assert!(log[99].2 - log[0].2 < LEASE / 3);
        drop(leases);
    }

    #[test]
    fn a_lease_that_is_due_later_than_others_does_not_wake_the_thread() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let first = scene.lease(1, Duration::from_secs(30));
        scene.wait_until_asleep();
        for nonce in 2..100 {
            scene.lease(nonce, Duration::from_secs(30)).end();
            assert!(scene.renewer.wake.is_empty());
        }
        drop(first);
    }

    #[test]
    fn a_full_channel_is_emptied_again_and_again() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let _first = scene.lease(0, Duration::from_secs(30));
        for _ in 0..3 {
            scene.wait_until_asleep();
            for nonce in 0..1024 {
                scene.lease(nonce + 1, Duration::from_secs(30)).end();
            }
            eventually(LEASE * 10, || scene.renewer.queue.len() < 100);
        }
    }

    /// Each is held until the thread has received it.
    #[test]
    fn leases_that_have_ended_are_dropped_long_before_they_are_due() {
        const HELD: u64 = 2_000;
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let mut leases = Vec::new();
        for round in 0..20 {
            let numbers = round * HELD..(round + 1) * HELD;
            let hour = Duration::from_secs(3600);
            let held: Vec<_> = numbers.map(|nonce| scene.lease(nonce, hour)).collect();
            eventually(LEASE * 20, || scene.renewer.queue.is_empty());
            assert!(held.iter().all(|lease| lease.end()));
            leases.extend(held.iter().map(Arc::downgrade));
        }
        let kept = || leases.iter().filter(|lease| lease.strong_count() > 0).count() as u64;
        assert!(kept() <= 4 * HELD, "{} of those that were held", kept());
        eventually(Duration::from_secs(20), || kept() == 0);
    }

    #[test]
    fn an_in_doubt_hold_that_an_answer_has_settled_is_dropped() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        let name = Arc::<str>::from("x");
        for nonce in 0..10_000 {
            let hold = HoldId { name: name.clone(), ..id(nonce) };
            let lease = Duration::from_secs(3600);
            let (kept_until, settled_by_release) = (Moment::FIRST, true);
            scene.renewer.add_clean_up(InDoubtHold { hold, kept_until, lease, settled_by_release });
        }
        eventually(LEASE * 20, || scene.releases() == 10_000);
        eventually(LEASE * 20, || Arc::strong_count(&name) == 1);
    }

    #[test]
    fn the_thread_wakes_every_second_while_there_is_a_lease_and_not_without_one() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let wakes_at = || scene.renewer.wakes_at.load(Ordering::SeqCst);
        eventually(LEASE * 10, || wakes_at() == Moment::NEVER.raw());
        let lease = scene.lease(1, Duration::from_secs(3600));
        scene.wait_until_asleep();
        let first = wakes_at();
        assert!(Moment::from_raw(first).since(Moment::now()) <= NAP);
        eventually(LEASE * 20, || wakes_at() > first && wakes_at() < Moment::NEVER.raw());
        assert!(lease.end());
        eventually(Duration::from_secs(20), || wakes_at() == Moment::NEVER.raw());
    }

    #[test]
    fn leases_are_counted_right_while_the_thread_receives_them() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        thread::scope(|scope| {
            for nonce in 0..4 {
                let scene = &scene;
                scope.spawn(move || {
                    for _ in 0..5_000 {
                        // Short, so that each wakes the thread.
                        scene.lease(nonce, Duration::from_millis(10)).end();
                    }
                });
            }
        });
        eventually(LEASE * 10, || scene.renewer.queued.load(Ordering::SeqCst) == 0);
    }

    #[test]
    fn leases_of_ended_threads_are_not_renewed() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let lease =
            thread::scope(|scope| scope.spawn(|| scene.lease(1, LEASE)).join().expect("no panic"));
        let lost = lease.over();
        assert_over(&lost, LEASE * 4);
        assert_eq!(scene.renewals(), 0);
    }

    #[test]
    fn a_clean_up_is_tried_until_there_is_an_answer() {
        let scene = Scene::new(|job| if job < 3 { Err(no_reply()) } else { Ok(HoldReply::Gone) });
        scene.clean_up(7, LEASE * 10);
        eventually(LEASE * 4, || scene.log.lock().len() >= 4);
        thread::sleep(LEASE);
        assert_eq!(scene.log.lock().len(), 4);
    }

    #[test]
    fn the_thread_ends_with_the_client_and_cleans_up_before() {
        let scene = Scene::new(|_| Err(no_reply()));
        scene.clean_up(7, Duration::from_secs(60));
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
