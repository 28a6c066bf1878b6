//! The one thread of a client that keeps its leases alive, and removes what requests with an
//! unknown outcome may have left behind.
//!
//! Taking a lock does not wake it: the new lease goes into a channel that is emptied when the
//! thread is awake anyway, and the thread is woken only for a lease that is due before then.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{mem, thread};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::clock::{Moment, end_of};
use crate::event::Event;
use crate::failure::Failure;
use crate::local::lease::{Lease, NextStep};
use crate::local::loss::LossNotifier;
use crate::local::timers::{CleanUp, Scheduled, TimerQueue};
use crate::store::job::{Action, Job, JobOutcome, JobRunner};
use crate::store::request::HoldReply;

/// So many leases may wait in the channel before the thread is woken to empty it. Nearly all of
/// them have ended by then.
const CHANNEL_FULL: usize = 1024;

/// At most so many tasks are sent together.
const BATCH: usize = 512;

/// While replies are awaited the thread looks this often for leases that are due.
const LOOK: Duration = Duration::from_millis(5);

/// A renewal that failed is tried again after this part of the lease.
const RETRIES: u32 = 20;

/// The pause after a panic: should its cause persist, it must not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The client's end of the channel. The thread ends when the last of these is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Renewer {
    charges: Sender<Scheduled>,
    waiting: Arc<AtomicUsize>,
    bell: Sender<()>,
    /// When the thread will wake by itself; [`Moment::FIRST`] while it is awake.
    wakes: Arc<AtomicU64>,
}

impl Renewer {
    /// Starts the thread. One request takes no longer than `io_timeout`.
    pub(crate) fn start(
        jobs: Box<dyn JobRunner>,
        io_timeout: Duration,
        losses: LossNotifier,
    ) -> std::io::Result<Self> {
        let (charges, incoming) = unbounded();
        let (bell, rung) = bounded(1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let wakes = Arc::new(AtomicU64::new(Moment::FIRST.raw()));
        let mut work = RenewerThread {
            incoming,
            waiting: waiting.clone(),
            rung,
            wakes: wakes.clone(),
            timers: TimerQueue::default(),
            in_flight: HashMap::new(),
            tasks: 0,
            jobs,
            io_timeout,
            losses,
        };
        thread::Builder::new().name("leasehold-renew".into()).spawn(move || work.run())?;
        Ok(Self { charges, waiting, bell, wakes })
    }

    /// Hands over a lease that was just taken.
    pub(crate) fn keep(&self, lease: &Arc<Lease>) {
        if let NextStep::Expire(due) | NextStep::Renew(due) = lease.duty() {
            self.hand_over(Scheduled::Lease(lease.clone()), due);
        }
    }

    /// Hands over what has to be cleaned up.
    pub(crate) fn clean(&self, clean_up: CleanUp) {
        self.hand_over(Scheduled::CleanUp(Box::new(clean_up)), Moment::FIRST);
    }

    fn hand_over(&self, charge: Scheduled, due: Moment) {
        // Counted first: the thread may take it in before the next line.
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        // The thread ends only after `self`.
        drop(self.charges.send(charge));
        if due.raw() < self.wakes.load(Ordering::SeqCst) || waiting == CHANNEL_FULL {
            // A bell that rings already need not be rung.
            self.bell.try_send(()).unwrap_or_default();
        }
    }
}

/// The thread's own state.
struct RenewerThread {
    incoming: Receiver<Scheduled>,
    waiting: Arc<AtomicUsize>,
    rung: Receiver<()>,
    wakes: Arc<AtomicU64>,
    timers: TimerQueue,
    /// What was sent, by task number.
    in_flight: HashMap<u64, SentJob>,
    tasks: u64,
    jobs: Box<dyn JobRunner>,
    io_timeout: Duration,
    losses: LossNotifier,
}

struct SentJob {
    charge: Scheduled,
    sent: Moment,
    span: Duration,
}

impl RenewerThread {
    fn run(&mut self) {
        loop {
            // A bug here, or a panic of the program's logger, must not end all renewal.
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => self.recover(),
            }
        }
        self.finish();
    }

    /// Does what is due, then waits. `false` when the client is gone.
    fn turn(&mut self) -> bool {
        self.take_in();
        self.send_due();
        if self.in_flight.is_empty() {
            return self.sleep();
        }
        self.with_upkeep(|jobs, done| jobs.collect(end_of(LOOK), done));
        true
    }

    fn take_in(&mut self) {
        let mut taken = 0;
        while let Ok(charge) = self.incoming.try_recv() {
            taken += 1;
            self.timers.add(charge);
        }
        self.waiting.fetch_sub(taken, Ordering::SeqCst);
    }

    fn send_due(&mut self) {
        let now = Moment::now();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(charge) = self.timers.pop(now)
        {
            let (hold, span, time) = match &charge {
                Scheduled::CleanUp(clean_up) => (&clean_up.hold, None, clean_up.io_timeout),
                Scheduled::Lease(lease) => {
                    if self.losses.expire(lease) {
                        self.clean_up_after(lease);
                    }
                    if !lease.wants_renewal(now) {
                        self.timers.add(charge);
                        continue;
                    }
                    let time = (lease.length() / 3).min(lease.remaining());
                    (&lease.id, Some(lease.span(now)), time)
                }
            };
            self.tasks += 1;
            let action = span.map_or(Action::Release, |lease| Action::Renew { lease });
            let deadline = end_of(time.min(self.io_timeout));
            batch.push(Job { id: self.tasks, hold: hold.clone(), action, deadline });
            let span = span.unwrap_or_default();
            self.in_flight.insert(self.tasks, SentJob { charge, sent: now, span });
        }
        if !batch.is_empty() {
            self.with_upkeep(|jobs, done| jobs.send(batch, done));
        }
    }

    /// Lets the jobs work and deals with what it reports.
    fn with_upkeep(
        &mut self,
        work: impl FnOnce(&mut dyn JobRunner, &mut dyn FnMut(u64, JobOutcome)),
    ) {
        let mut outcomes = Vec::new();
        work(self.jobs.as_mut(), &mut |id, outcome| outcomes.push((id, outcome)));
        let mut renewed = 0;
        for (id, outcome) in outcomes {
            match self.in_flight.remove(&id) {
                Some(SentJob { charge: Scheduled::CleanUp(clean_up), .. }) => {
                    self.cleaned(clean_up, outcome.is_ok());
                }
                Some(SentJob { charge: Scheduled::Lease(lease), sent, span }) => {
                    renewed += usize::from(matches!(outcome, Ok(HoldReply::Held)));
                    self.renewed(lease, sent, span, outcome);
                }
                None => {}
            }
        }
        if renewed > 0 {
            self.losses.events.emit(|| Event::Renewed { count: renewed });
            log::trace!(target: "leasehold", "renewed {renewed} leases");
        }
    }

    /// Takes in the outcome of a renewal. An unknown one is tried again: it is the local deadline
    /// that decides, not one reply.
    fn renewed(&mut self, lease: Arc<Lease>, sent: Moment, span: Duration, outcome: JobOutcome) {
        match outcome {
            Ok(HoldReply::Held) => {
                lease.extend(sent, span);
                self.timers.add(Scheduled::Lease(lease));
            }
            Ok(HoldReply::Gone) => {
                self.losses.lose(&lease);
                if lease.is_unsettled() {
                    self.clean_up_after(&lease);
                }
            }
            Err(failure) => {
                let due = Moment::now().after(lease.length() / RETRIES);
                self.timers.add_at(due, Scheduled::Lease(lease.clone()));
                self.tell_failing(&lease, &failure);
            }
        }
    }

    fn tell_failing(&self, lease: &Lease, failure: &Failure) {
        let remaining = lease.remaining();
        if remaining.is_zero() {
            return;
        }
        let (name, server, source) = (lease.name(), &failure.server, &failure.source);
        self.losses.events.emit(|| Event::RenewalFailing {
            name: name.to_string(),
            remaining,
            reason: source.to_string(),
        });
        log::warn!(
            target: "leasehold",
            "renewing lock {name:?} on {server} fails, {remaining:?} left: {source}"
        );
    }

    fn cleaned(&mut self, mut clean_up: Box<CleanUp>, answered: bool) {
        if let Some(due) = clean_up.next_try(answered, Moment::now()) {
            self.timers.add_at(due, Scheduled::CleanUp(clean_up));
        }
    }

    /// A lease that ran out unconfirmed may still stand in Redis; nobody needs it there.
    fn clean_up_after(&mut self, lease: &Lease) {
        let settles = !lease.is_unsettled();
        let clean_up = CleanUp::new(lease.id.clone(), lease.length(), self.io_timeout, settles);
        self.timers.add(Scheduled::CleanUp(Box::new(clean_up)));
    }

    /// Waits until something is due or the bell rings. `false` when the client is gone.
    fn sleep(&mut self) -> bool {
        let due = self.timers.next_due();
        self.wakes.store(due.raw(), Ordering::SeqCst);
        // Whoever handed something over before the line above rang no bell; afterwards they do.
        let goes_on = if self.incoming.is_empty() {
            let end = end_of(due.since(Moment::now()));
            self.rung.recv_deadline(end) != Err(RecvTimeoutError::Disconnected)
        } else {
            true
        };
        self.wakes.store(Moment::FIRST.raw(), Ordering::SeqCst);
        goes_on
    }

    /// Starts over after a panic, with nothing forgotten.
    fn recover(&mut self) {
        let log = || log::error!(target: "leasehold", "the renewer panicked, and goes on");
        drop(catch_unwind(log));
        let abandon = AssertUnwindSafe(|| self.jobs.abandon(&mut |_, _| {}));
        drop(catch_unwind(abandon));
        for (_, SentJob { charge, .. }) in mem::take(&mut self.in_flight) {
            self.timers.add(charge);
        }
        thread::sleep(PANIC_PAUSE);
    }

    /// The last thing: one more try at what is left to clean up.
    fn finish(&mut self) {
        self.take_in();
        let orphans = self.timers.drain().filter_map(|charge| match charge {
            Scheduled::CleanUp(clean_up) => Some(clean_up.hold),
            Scheduled::Lease(_) => None,
        });
        let deadline = end_of(self.io_timeout);
        let tasks: Vec<_> =
            orphans.map(|hold| Job { id: 0, hold, action: Action::Release, deadline }).collect();
        if !tasks.is_empty() {
            self.jobs.send(tasks, &mut |_, _| {});
            self.jobs.collect(deadline, &mut |_, _| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::failure::FailureKind;
    use crate::local::identity::Thread;
    use crate::store::hold::HoldId;
    use parking_lot::Mutex;
    use std::time::Instant;

    /// Does to each task what a function of the number of tasks before says.
    struct Fake {
        tasks: Arc<Mutex<Vec<(u64, Action, Instant)>>>,
        fate: Box<dyn FnMut(usize) -> JobOutcome + Send>,
    }

    impl JobRunner for Fake {
        fn send(&mut self, tasks: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
            for Job { id, hold, action, .. } in tasks {
                let before = self.tasks.lock().len();
                self.tasks.lock().push((hold.nonce, action, Instant::now()));
                done(id, (self.fate)(before));
            }
        }

        fn collect(&mut self, _: Instant, _: &mut dyn FnMut(u64, JobOutcome)) {}

        fn abandon(&mut self, _: &mut dyn FnMut(u64, JobOutcome)) {}
    }

    struct Scene {
        renewer: Renewer,
        tasks: Arc<Mutex<Vec<(u64, Action, Instant)>>>,
    }

    impl Scene {
        fn new(fate: impl FnMut(usize) -> JobOutcome + Send + 'static) -> Self {
            let tasks = Arc::new(Mutex::new(Vec::new()));
            let fake = Fake { tasks: tasks.clone(), fate: Box::new(fate) };
            let io_timeout = Duration::from_secs(1);
            let renewer = Renewer::start(Box::new(fake), io_timeout, LossNotifier::default());
            Self { renewer: renewer.expect("a thread"), tasks }
        }

        fn lease(&self, nonce: u64, length: Duration) -> Arc<Lease> {
            let options = LockOptions { lease: length, ..LockOptions::default() };
            let lease =
                Arc::new(Lease::new(id(nonce), nonce, &options, Moment::now(), Thread::current()));
            self.renewer.keep(&lease);
            lease
        }

        fn renewals(&self) -> usize {
            self.tasks.lock().iter().filter(|(_, action, _)| *action != Action::Release).count()
        }

        fn releases(&self) -> usize {
            self.tasks.lock().iter().filter(|(_, action, _)| *action == Action::Release).count()
        }

        fn wait_until_asleep(&self) {
            let awake = [Moment::FIRST.raw(), Moment::NEVER.raw()];
            eventually(LEASE * 10, || !awake.contains(&self.renewer.wakes.load(Ordering::SeqCst)));
        }
    }

    const LEASE: Duration = Duration::from_millis(300);

    fn id(nonce: u64) -> HoldId {
        HoldId { name: Arc::from(format!("lock {nonce}")), client: Arc::from("me"), nonce }
    }

    fn silence() -> Failure {
        Failure::io(FailureKind::Timeout, &Arc::from("here"), std::io::Error::other("test"))
    }

    fn eventually(within: Duration, mut condition: impl FnMut() -> bool) {
        let end = end_of(within);
        while !condition() {
            assert!(Instant::now() < end, "not within {within:?}");
            thread::sleep(Duration::from_millis(1));
        }
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
        let scene = Scene::new(|task| {
            thread::sleep(LEASE / 3);
            if task == 0 { Ok(HoldReply::Held) } else { Err(silence()) }
        });
        let lease = scene.lease(1, LEASE);
        eventually(LEASE * 4, || scene.renewals() == 2);
        let sent = scene.tasks.lock()[0].2.elapsed();
        let left = lease.remaining();
        assert!(left + sent <= LEASE, "{left:?} after {sent:?}");
    }

    #[test]
    fn a_hold_that_is_gone_is_lost_at_once() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        let lease = scene.lease(1, LEASE);
        let (lost, _) = lease.watch();
        lost.recv_timeout(LEASE * 2 / 3).expect("lost after a third of the lease");
        assert!(lease.remaining().is_zero());
        assert_eq!(scene.renewals(), 1);
    }

    #[test]
    fn silence_is_not_loss_until_the_deadline() {
        let scene = Scene::new(|task| if task < 3 { Err(silence()) } else { Ok(HoldReply::Held) });
        let lease = scene.lease(1, LEASE);
        eventually(LEASE * 4, || scene.renewals() >= 6);
        assert!(!lease.remaining().is_zero());
    }

    #[test]
    fn unbroken_silence_is_loss_at_the_deadline_and_cleaned_up() {
        let scene = Scene::new(|_| Err(silence()));
        let begin = Instant::now();
        let lease = scene.lease(1, LEASE);
        let (lost, _) = lease.watch();
        lost.recv_timeout(LEASE * 4).expect("lost");
        assert!(begin.elapsed() >= LEASE * 9 / 10, "{:?}", begin.elapsed());
        assert!(scene.renewals() >= 2, "tried more than once");
        eventually(LEASE, || scene.tasks.lock().iter().any(|task| task.1 == Action::Release));
    }

    #[test]
    fn what_began_with_an_unknown_outcome_is_cleaned_up_after_its_loss() {
        let scene = Scene::new(|_| Ok(HoldReply::Gone));
        scene.lease(1, LEASE).unsettle();
        // One answer does not settle it.
        eventually(LEASE * 4, || scene.releases() >= 2);
        assert_eq!(scene.renewals(), 1);
    }

    #[test]
    fn a_panic_is_survived() {
        let scene =
            Scene::new(|task| if task == 1 { panic!("a bug") } else { Ok(HoldReply::Held) });
        let leases = [scene.lease(1, LEASE), scene.lease(2, LEASE)];
        eventually(LEASE * 10, || scene.renewals() >= 10);
        assert!(leases.iter().all(|lease| !lease.remaining().is_zero()));
    }

    #[test]
    fn leases_that_are_due_together_are_renewed_together() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let leases: Vec<_> = (0..100).map(|nonce| scene.lease(nonce, LEASE)).collect();
        eventually(LEASE * 10, || scene.renewals() >= 100);
        let tasks = scene.tasks.lock();
        assert!(tasks[99].2 - tasks[0].2 < LEASE / 3);
        drop(leases);
    }

    #[test]
    fn a_lease_that_is_due_later_than_others_rings_no_bell() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let first = scene.lease(1, Duration::from_secs(30));
        scene.wait_until_asleep();
        let wakes = || scene.renewer.wakes.load(Ordering::SeqCst);
        let planned = wakes();
        for nonce in 2..100 {
            scene.lease(nonce, Duration::from_secs(30)).end();
            assert!(scene.renewer.bell.is_empty());
        }
        assert_eq!(wakes(), planned);
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
            eventually(LEASE * 10, || scene.renewer.charges.len() < 100);
        }
    }

    #[test]
    fn leases_are_counted_right_while_the_thread_takes_them_in() {
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
        eventually(LEASE * 10, || scene.renewer.waiting.load(Ordering::SeqCst) == 0);
    }

    #[test]
    fn leases_of_ended_threads_are_not_renewed() {
        let scene = Scene::new(|_| Ok(HoldReply::Held));
        let lease =
            thread::scope(|scope| scope.spawn(|| scene.lease(1, LEASE)).join().expect("no panic"));
        let (lost, _) = lease.watch();
        lost.recv_timeout(LEASE * 4).expect("lost");
        assert_eq!(scene.renewals(), 0);
    }

    #[test]
    fn what_is_to_be_cleaned_up_is_tried_until_there_is_an_answer() {
        let scene = Scene::new(|task| if task < 3 { Err(silence()) } else { Ok(HoldReply::Gone) });
        scene.renewer.clean(CleanUp::new(id(7), LEASE * 10, LEASE, true));
        eventually(LEASE * 4, || scene.tasks.lock().len() >= 4);
        thread::sleep(LEASE);
        assert_eq!(scene.tasks.lock().len(), 4);
    }

    #[test]
    fn the_thread_ends_with_the_client_and_cleans_up_before() {
        let scene = Scene::new(|_| Err(silence()));
        scene.renewer.clean(CleanUp::new(id(7), Duration::from_secs(60), LEASE, true));
        // From now on the pauses are long.
        eventually(LEASE * 4, || scene.releases() >= 5);
        let Scene { renewer, tasks } = scene;
        let before = tasks.lock().len();
        drop(renewer);
        // The thread has the other reference.
        eventually(LEASE * 4, || Arc::strong_count(&tasks) == 1);
        assert!(tasks.lock().len() > before);
    }
}
