//! The renewer's thread.
//!
//! Decides in which order work is done, and which requests are sent together. Finds a lease lost at
//! its local deadline even while the store does not reply.
//!
//! While the thread has leases, it wakes at least every second, to notice a resume after a suspend,
//! and to drop leases that have ended.
//!
//! After a shutdown has begun, the thread ends leases instead of renewing them. Each release is the
//! payment of a debt. The shutdown is complete when no call that may acquire a hold is under way,
//! every hold has ended, and every debt is paid. Until then, each call of `shutdown` waits for its
//! own time. When one runs out of time, a release that others wait for does not count as failed.

use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{cmp, io, mem};

use crate::base::clock::{self, Moment, end_of};
use crate::base::failure::Failure;
use crate::base::maps::RandomState;
use crate::base::shrink;
use crate::base::sync::{sleep, spawn};
use crate::local::parker::perform_each;
use crate::local::renewer::{
    Incoming, Message, Payment, Scheduled, Shutdown, ShutdownCall, unconfirmed,
};
use crate::local::reporter::Reporter;
use crate::protocol::hold::{Hold, HoldFailure, NextStep, TOGETHER};
use crate::protocol::steps::Action;
use crate::protocol::tenure::{HoldInput, ReleasedBy, Tenure};
use crate::store::background::{JobOutcome, JobRunner};
use crate::store::request::{Change, HoldReply};

/// The maximum number of jobs sent together.
const BATCH: usize = 512;

/// How often the thread checks for due leases while it waits for replies.
const COLLECT_TIME: Duration = Duration::from_millis(5);

/// The longest sleep while there is a lease, because a sleep does not end during a suspend.
pub(super) const NAP: Duration = Duration::from_secs(1);

/// The pause after a panic, so that a recurring one does not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The maximum number of holds found gone in one turn for which the new holders are looked up, and
/// how long that may take.
const LOOKS_MAX: usize = 8;
const LOOK_TIME: Duration = Duration::from_secs(1);

/// With fewer entries than this, only time causes a compaction.
const CROWD: usize = 1024;

/// How long entries of leases that are over may stay.
const COMPACTION_PAUSE: Duration = Duration::from_secs(5);

struct RenewerThread {
    incoming: Incoming,
    timers: TimerQueue,
    jobs: RenewerJobs,
    reporter: Reporter,
    /// `Some` once the client is shut down.
    shutdown: Option<Shutdown>,
    /// Holds marked as lost because they are gone, but not ended yet.
    gone: Vec<Arc<Hold>>,
}

pub(super) fn start(
    jobs: Box<dyn JobRunner>,
    io_timeout: Duration,
    incoming: Incoming,
    reporter: &Reporter,
) -> io::Result<()> {
    let reporter = Reporter { renewer: reporter.renewer.own(), in_turns: true, ..reporter.clone() };
    let mut thread = RenewerThread {
        incoming,
        timers: TimerQueue::default(),
        jobs: RenewerJobs::new(jobs, io_timeout),
        reporter,
        shutdown: None,
        gone: Vec::new(),
    };
    spawn("leasehold-renew", move || thread.run())
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
        // The last guards may have left releases here just before the client ended.
        self.receive_new();
        let mut left = Vec::new();
        let in_flight = self.jobs.take_work();
        for work in in_flight.chain(self.timers.take_all()) {
            if let Scheduled::Payment(payment) = &work {
                let change = self.change_of(payment);
                left.push((work, change));
            }
        }
        self.jobs.finish(left);
    }

    /// Does all due work, then waits. Returns `false` when the client is gone.
    fn turn(&mut self) -> bool {
        self.receive_new();
        self.send_due();
        let outcomes = self.jobs.collect(COLLECT_TIME);
        self.finish_jobs(outcomes);
        self.end_gone();
        self.reporter.outages.report_turn();
        self.answer_shutdown();
        !self.jobs.is_empty() || self.sleep()
    }

    fn receive_new(&mut self) {
        while let Ok(message) = self.incoming.queue.try_recv() {
            match message {
                Message::EndAll(call) => self.end_all(call),
                Message::Work(due, work) => self.schedule(due, work),
            }
        }
        // The messages received so far may contain all remaining holds.
        self.timers.compact(Moment::now());
    }

    fn schedule(&mut self, due: Moment, work: Scheduled) {
        match work {
            // The lease is ended instead of renewed. Its release is left to a later turn.
            Scheduled::Hold(hold) if self.shutdown.is_some() => {
                if !self.reporter.expire(&hold) && self.reporter.step(&hold, HoldInput::ShutDown) {
                    self.reporter.renewer.pay(hold);
                }
            }
            work => self.timers.add_at(due, work),
        }
    }

    /// Ends all leases, and tries again now to remove in-doubt holds.
    fn end_all(&mut self, call: ShutdownCall) {
        self.shutdown.get_or_insert_default().calls.push(call);
        let sent = self.jobs.work().filter_map(Scheduled::as_hold);
        let sent = sent.map(|hold| Scheduled::Hold(hold.clone()));
        let all: Vec<_> = sent.chain(self.timers.take_all()).collect();
        for mut work in all {
            if let Scheduled::Payment(payment) = &mut work {
                payment.hasten();
            }
            self.schedule(Moment::FIRST, work);
        }
    }

    /// Answers the calls that wait for the shutdown if it is complete, otherwise those that have
    /// timed out.
    fn answer_shutdown(&mut self) {
        let Some(shutdown) = self.shutdown.as_ref().filter(|it| !it.calls.is_empty()) else {
            return;
        };
        let now = clock::now();
        if shutdown.calls.iter().all(|call| call.deadline <= now) {
            let failure = shutdown.failure();
            for payment in self.payments() {
                if payment.has_failed {
                    self.report_failed(&payment.debt, &failure);
                } else {
                    self.reporter.step(&payment.debt, HoldInput::Abandoned);
                }
            }
        }
        let are_done = self.reporter.counters.unfinished.load(Ordering::SeqCst) == 0;
        let is_complete = are_done && !self.jobs.runner.has_open_ends() && {
            // Settling the last hold may have left a debt, and so may what the store has withdrawn
            // for the last call.
            self.receive_new();
            self.payments().all(Payment::is_confirmed)
        };
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.answer(is_complete, now);
        }
    }

    fn all_work(&self) -> impl Iterator<Item = &Scheduled> {
        self.timers.iter().chain(self.jobs.work())
    }

    fn payments(&self) -> impl Iterator<Item = &Payment> {
        self.all_work().filter_map(Scheduled::as_payment)
    }

    fn send_due(&mut self) {
        let now = Moment::now();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(TimerEntry { due, work }) = self.timers.pop(now)
        {
            let change = match &work {
                Scheduled::Check(hold) => self.check_of(hold),
                Scheduled::Hold(hold) => self.step(hold, HoldInput::Due { at: due }),
                Scheduled::Payment(payment) => Some(self.change_of(payment)),
            };
            if let Some(change) = change {
                batch.push((work, change));
            }
        }
        let outcomes = self.jobs.send(batch, now);
        self.finish_jobs(outcomes);
    }

    /// Gives the machine of a name an input about a lease, and schedules what is due next. Returns
    /// the request that renews the lease, if that is due.
    fn step(&mut self, hold: &Arc<Hold>, input: HoldInput<'_>) -> Option<Change> {
        let (_, actions) = self.reporter.begin_step(hold, input);
        let mut renewal = None;
        perform_each(actions, |action| match action {
            Action::Due { hold, at } => self.schedule(at, Scheduled::Hold(hold)),
            Action::Prepare => self.jobs.prepare(&hold.id.name),
            Action::Renew(change) => renewal = Some(change),
            other => drop(self.reporter.perform(other)),
        });
        renewal
    }

    /// Returns the change that checks whether a hold exists; `None` if it is over here.
    fn check_of(&self, hold: &Hold) -> Option<Change> {
        if !hold.is_open() {
            return None;
        }
        self.reporter.names.with(&hold.id, |name| name.tenure(hold).map(Tenure::to_check))
    }

    /// Returns the change that pays a debt, to be sent now.
    fn change_of(&self, payment: &Payment) -> Change {
        let debt = &payment.debt;
        if payment.unregisters {
            return Change::Unregister;
        }
        self.reporter.names.begin_release(debt)
    }

    fn finish_jobs(&mut self, outcomes: Vec<(u64, JobOutcome)>) {
        for (id, outcome) in outcomes {
            match self.jobs.remove(id) {
                // Without a reply the next renewal finds out.
                Some((Scheduled::Check(hold), _)) => match outcome.map(|reply| reply.hold) {
                    Ok(HoldReply::Gone) => drop(self.reporter.step(&hold, HoldInput::Gone)),
                    Ok(HoldReply::Wanted) => drop(self.reporter.step(&hold, HoldInput::Wanted)),
                    Ok(HoldReply::Done) | Err(_) => {}
                },
                Some((Scheduled::Payment(payment), _)) => self.finish_payment(payment, outcome),
                Some((Scheduled::Hold(hold), sent)) => self.finish_renewal(hold, sent, outcome),
                None => {}
            }
        }
    }

    /// Applies the outcome of a renewal. One without a reply is repeated: the local deadline
    /// decides whether the hold is lost, not a missing reply.
    fn finish_renewal(&mut self, hold: Arc<Hold>, sent: Moment, outcome: JobOutcome) {
        match outcome.map(|reply| reply.hold) {
            Ok(reply @ (HoldReply::Done | HoldReply::Wanted)) => {
                if reply == HoldReply::Wanted {
                    self.reporter.step(&hold, HoldInput::Wanted);
                }
                let is_late = hold.is_nearly_over(Moment::now());
                let lease = hold.next_lease(sent).duration;
                self.step(&hold, HoldInput::Renewed { sent, lease });
                self.reporter.record_reply(&hold.id.name);
                self.reporter.outages.record_renewal(is_late);
            }
            // This is not left to the short-lived thread, whose payment would not wake this one.
            Ok(HoldReply::Gone) if hold.may_begin => {
                self.reporter.step(&hold, HoldInput::Gone);
            }
            Ok(HoldReply::Gone) => {
                if self.reporter.step(&hold, HoldInput::FoundGone) {
                    self.gone.push(hold);
                }
            }
            Err(failure) => {
                self.reporter.outages.record_failed_renewal(&hold.id.name, &failure);
                self.step(&hold, HoldInput::RenewalFailed(&failure));
            }
        }
    }

    /// Ends the holds that are gone. Unless there are many, a short-lived thread first looks up
    /// which clients have their locks now: this thread must not wait for that.
    fn end_gone(&mut self) {
        let gone = mem::take(&mut self.gone);
        if (1..=LOOKS_MAX).contains(&gone.len()) {
            let reporter = Reporter { in_turns: false, ..self.reporter.clone() };
            let looked_at = gone.clone();
            // Calls of this client wait behind these holds, no longer than for a reply.
            let deadline = end_of(LOOK_TIME.min(self.jobs.io_timeout));
            let spawned = spawn("leasehold-look", move || {
                for hold in looked_at {
                    // Whatever happens, calls behind the hold must go on.
                    let look = AssertUnwindSafe(|| reporter.look(&hold, deadline));
                    catch_unwind(look).unwrap_or_default();
                    reporter.step(&hold, HoldInput::LookedUp);
                }
            });
            if spawned.is_ok() {
                return;
            }
        }
        // Without this look-up the cause stays unknown, but threads are waiting for these holds to
        // end.
        for hold in &gone {
            self.reporter.step(hold, HoldInput::LookedUp);
        }
    }

    fn finish_payment(&mut self, mut payment: Box<Payment>, outcome: JobOutcome) {
        let reporter = &self.reporter;
        let debt = payment.debt.clone();
        let everywhere = outcome.as_ref().is_ok_and(|reply| reply.everywhere);
        let now = Moment::now();
        let next = payment.next_try(everywhere, now);
        match outcome {
            // A thread that began to wait in the meantime is no longer registered, and must ask.
            Ok(_) if payment.unregisters => drop(reporter.names.wake_any(&debt.id.name)),
            Ok(reply) => {
                reporter.record_reply(&debt.id.name);
                payment.has_failed = false;
                payment.unconfirmed = payment.unconfirmed.saturating_sub(1);
                let outcome = &debt.release_outcome(Ok(reply.hold));
                let by = ReleasedBy::Renewer;
                reporter.step(&debt, HoldInput::Released { outcome, by });
            }
            Err(failure) => {
                payment.has_failed = true;
                if let Some(shutdown) = &mut self.shutdown {
                    shutdown.last_failure = Some(failure.clone());
                    // No call waits for the next attempt.
                    if shutdown.calls.is_empty() {
                        self.report_failed(&debt, &failure);
                    }
                }
                if !payment.unregisters {
                    drop(debt.release_outcome(Err(failure)));
                }
            }
        }
        if let Some(due) = next {
            self.timers.add_at(due, Scheduled::Payment(payment));
        } else if !payment.is_confirmed() {
            if let Some(shutdown) = &mut self.shutdown {
                shutdown.outlived = true;
            }
            self.reporter.step(&debt, HoldInput::ReleaseGivenUp(&unconfirmed()));
        }
    }

    /// Reports that a release has failed that no call waits for any longer. It is repeated.
    fn report_failed(&self, debt: &Arc<Hold>, failure: &Failure) {
        let outcome = &Err(HoldFailure::Failed(failure.clone()));
        self.reporter.step(debt, HoldInput::Released { outcome, by: ReleasedBy::Renewer });
    }

    /// Waits until something is due or the thread is woken. Returns `false` when the client is
    /// gone.
    fn sleep(&mut self) -> bool {
        if self.reporter.outages.has_refusals() && !self.has_failing() {
            self.reporter.outages.end_refusals();
        }
        let now = Moment::now();
        let due = self.timers.next_due();
        let due = if due == Moment::NEVER { due } else { due.min(now.after(NAP)) };
        let waits = self.shutdown.as_ref().is_some_and(|shutdown| !shutdown.calls.is_empty());
        // Calls under way do not wake this thread when they end.
        self.incoming.sleep(if waits { due.min(now.after(COLLECT_TIME)) } else { due })
    }

    fn has_failing(&self) -> bool {
        let names = &self.reporter.names;
        self.all_work().filter_map(Scheduled::as_hold).any(|hold| {
            hold.is_open()
                && names.with(&hold.id, |name| name.tenure(hold).is_some_and(Tenure::is_failing))
        })
    }

    /// Recovers from a panic without losing any work.
    fn recover(&mut self) {
        self.reporter.events.log(log::Level::Error, || "the renewer panicked, and goes on".into());
        // Requests may or may not have been written. All of them can be repeated.
        for work in self.jobs.abandon() {
            match work {
                Scheduled::Hold(hold) => {
                    self.step(&hold, HoldInput::RenewalFailed(&Failure::unsent()));
                }
                work => self.schedule(Moment::FIRST, work),
            }
        }
        sleep(PANIC_PAUSE);
    }
}

/// The requests on their way, and the work behind each.
struct RenewerJobs {
    runner: Box<dyn JobRunner>,
    /// How long one request may take.
    io_timeout: Duration,
    /// The work in flight, and when it was sent, by the number of the job.
    in_flight: HashMap<u64, (Scheduled, Moment), RandomState>,
    last: u64,
}

impl RenewerJobs {
    fn new(runner: Box<dyn JobRunner>, io_timeout: Duration) -> Self {
        Self { runner, io_timeout, in_flight: HashMap::default(), last: 0 }
    }

    fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the work in flight.
    fn work(&self) -> impl Iterator<Item = &Scheduled> {
        self.in_flight.values().map(|(work, _)| work)
    }

    /// Removes a job that has an outcome. Returns its work, and when that was sent.
    fn remove(&mut self, id: u64) -> Option<(Scheduled, Moment)> {
        let done = self.in_flight.remove(&id);
        shrink(&mut self.in_flight);
        done
    }

    /// Opens the connections that renewals of the lock with this name will need.
    fn prepare(&mut self, name: &str) {
        self.runner.prepare(name);
    }

    /// Sends a batch. Returns the outcomes that are known at once.
    fn send(&mut self, batch: Vec<(Scheduled, Change)>, now: Moment) -> Vec<(u64, JobOutcome)> {
        let mut jobs = Vec::with_capacity(batch.len());
        let mut outcomes = Vec::new();
        for (work, change) in batch {
            self.last += 1;
            jobs.push(work.job(self.last, change, now));
            self.in_flight.insert(self.last, (work, now));
        }
        if !jobs.is_empty() {
            self.runner.send(jobs, &mut |id, outcome| outcomes.push((id, outcome)));
        }
        outcomes
    }

    /// Waits for outcomes, at most this long.
    fn collect(&mut self, time: Duration) -> Vec<(u64, JobOutcome)> {
        let mut outcomes = Vec::new();
        if !self.is_empty() {
            self.runner.collect(end_of(time), &mut |id, outcome| outcomes.push((id, outcome)));
        }
        outcomes
    }

    /// Forgets all jobs after a panic, and returns their work.
    fn abandon(&mut self) -> impl Iterator<Item = Scheduled> + use<> {
        drop(catch_unwind(AssertUnwindSafe(|| self.runner.abandon())));
        self.take_work()
    }

    /// Forgets all jobs, and returns their work.
    fn take_work(&mut self) -> impl Iterator<Item = Scheduled> + use<> {
        mem::take(&mut self.in_flight).into_values().map(|(work, _)| work)
    }

    /// Makes these last requests, and waits for the replies.
    fn finish(&mut self, left: Vec<(Scheduled, Change)>) {
        drop(self.send(left, Moment::now()));
        drop(self.collect(self.io_timeout));
    }
}

/// Scheduled work in the order in which it is due.
///
/// A lease that ends stays until it is due, which may take hours, or until the next compaction.
/// Entries are compacted when more leases may be over than not, which costs each lease a constant
/// time, and after a pause, so that memory shrinks even if no further leases arrive.
struct TimerQueue {
    entries: BinaryHeap<TimerEntry>,
    /// Entries are compacted when there are this many.
    crowd: usize,
    /// And at this time at the latest.
    next_compaction: Moment,
}

impl Default for TimerQueue {
    fn default() -> Self {
        Self { entries: BinaryHeap::new(), crowd: CROWD, next_compaction: Moment::FIRST }
    }
}

impl TimerQueue {
    /// Removes leases that are over, if it is time to.
    fn compact(&mut self, now: Moment) {
        if self.entries.len() < self.crowd && now < self.next_compaction {
            return;
        }
        // The heap cannot remove an entry when its hold ends, because it has no index of holds.
        self.entries.retain(|entry| match &entry.work {
            Scheduled::Check(_) | Scheduled::Payment(_) => true,
            Scheduled::Hold(hold) => hold.is_open(),
        });
        self.crowd = CROWD.max(self.entries.len() * 2);
        self.entries.shrink_to(self.crowd);
        self.next_compaction = now.after(COMPACTION_PAUSE);
    }

    /// Adds work for this moment. If that is when a lease is due for renewal, `pop` may return it a
    /// little earlier.
    fn add_at(&mut self, due: Moment, work: Scheduled) {
        self.entries.push(TimerEntry { due, work });
    }

    fn next_due(&self) -> Moment {
        self.entries.peek().map_or(Moment::NEVER, |entry| entry.due)
    }

    /// Removes and returns work that is due, or nearly.
    fn pop(&mut self, now: Moment) -> Option<TimerEntry> {
        let next = self.entries.peek()?;
        if next.due > now.after(next.slack()) {
            return None;
        }
        self.entries.pop()
    }

    /// Returns all scheduled work, in no order.
    fn iter(&self) -> impl Iterator<Item = &Scheduled> {
        self.entries.iter().map(|entry| &entry.work)
    }

    /// Removes and returns everything.
    fn take_all(&mut self) -> impl Iterator<Item = Scheduled> + use<> {
        mem::take(&mut self.entries).into_iter().map(|entry| entry.work)
    }
}

/// Small, because there is one for each lease.
struct TimerEntry {
    due: Moment,
    work: Scheduled,
}

impl TimerEntry {
    /// Returns how much earlier the entry may be removed to save a wake-up of the thread.
    fn slack(&self) -> Duration {
        match &self.work {
            Scheduled::Hold(hold)
                if hold.next_step(hold.renewed)
                    == Some(NextStep { due: self.due, renews: true }) =>
            {
                hold.lease() / TOGETHER
            }
            _ => Duration::ZERO,
        }
    }
}

/// The earliest entry is the greatest, because `BinaryHeap` returns the greatest first.
impl Ord for TimerEntry {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for TimerEntry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::local::reporter::tests::tenure;
    use crate::store::hold_id::{HoldId, HoldKind};

    fn id() -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 }
    }

    fn hold(lease: Duration) -> Arc<Hold> {
        tenure(id(), &LockOptions { lease, ..LockOptions::default() }).hold
    }

    #[test]
    fn leases_come_out_when_they_are_due_and_neighbours_with_them() {
        let mut timers = TimerQueue::default();
        for seconds in [30, 3, 30] {
            let hold = hold(Duration::from_secs(seconds));
            let next = hold.next_step(true).expect("it is held");
            timers.add_at(next.due, Scheduled::Hold(hold));
        }
        let now = Moment::now();
        assert!(timers.pop(now).is_none());
        assert!(timers.pop(now.after(Duration::from_secs(1))).is_some());
        assert!(timers.pop(now.after(Duration::from_secs(1))).is_none());
        // 30 s / 3, less 30 s / 64 and the drift.
        let nearly = now.after(Duration::from_millis(9_600));
        assert!(timers.pop(nearly).is_some() && timers.pop(nearly).is_some());
        assert_eq!(timers.next_due(), Moment::NEVER);
    }

    #[test]
    fn work_comes_out_at_its_time_and_only_renewals_before_it() {
        let mut timers = TimerQueue::default();
        let due = Moment::now().after(Duration::from_secs(1));
        // The renewal of the lease is due later.
        timers.add_at(due, Scheduled::Hold(hold(Duration::from_secs(30))));
        assert!(timers.pop(due.before(Duration::from_millis(1))).is_none());
        assert!(timers.pop(due).is_some());
    }

    #[test]
    fn leases_that_are_over_are_removed_when_they_crowd_or_after_a_while() {
        let (mut timers, now) = (TimerQueue::default(), Moment::now());
        let open = hold(Duration::from_secs(30));
        let over = Arc::new(Hold::debt(id(), Duration::from_secs(30), false));
        let mut count_with = |count: usize, hold: &Arc<Hold>, now| {
            (0..count).for_each(|_| timers.add_at(now, Scheduled::Hold(hold.clone())));
            timers.compact(now);
            timers.iter().count()
        };
        assert_eq!(count_with(1, &over, now), 0, "for the first time");
        assert_eq!(count_with(CROWD - 1, &over, now), CROWD - 1);
        assert_eq!(count_with(1, &over, now), 0);
        // Twice as many as were left are a crowd.
        assert_eq!(count_with(CROWD, &open, now), CROWD);
        assert_eq!(count_with(CROWD - 1, &over, now), 2 * CROWD - 1);
        assert_eq!(count_with(1, &over, now), CROWD);
        let later = now.after(COMPACTION_PAUSE);
        assert_eq!(count_with(1, &over, later.before(Duration::from_nanos(1))), CROWD + 1);
        assert_eq!(count_with(0, &over, later), CROWD);
    }
}
