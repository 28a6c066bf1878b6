//! The renewer's thread.
//!
//! Decides when leases are renewed together, and what happens to a lease whose renewal fails. Finds
//! a lease lost at its local deadline even while the store does not reply.
//!
//! While the thread has leases, it wakes at least every second, to notice a resume after a suspend,
//! and to drop leases that have ended.
//!
//! After a shutdown has begun, the thread ends leases instead of renewing them. Each release is the
//! payment of a debt. The shutdown is complete when no call that may acquire a hold is under way,
//! every hold has ended, and every debt is paid. Until then, each call of it waits for as long as
//! it likes, and that one has no time does not make a release fail which others await.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{io, mem};

use crate::base::clock::{self, Moment, end_of};
use crate::base::flaws::{Flaw, flawed};
use crate::base::sync::{sleep, spawn};
use crate::local::renewer::{Incoming, Message, Shutdown, ShutdownCall, unconfirmed};
use crate::local::renewer_jobs::RenewerJobs;
use crate::local::reporter::Reporter;
use crate::local::timers::{Payment, Scheduled, TimerQueue};
use crate::protocol::hold::Hold;
use crate::protocol::lease::HoldFailure;
use crate::store::background::{JobOutcome, JobRunner};
use crate::store::hold_id::HoldId;
use crate::store::request::HoldReply;

/// The maximum number of jobs sent together.
const BATCH: usize = 512;

/// How often the thread checks for due leases while it waits for replies.
const COLLECT_TIME: Duration = Duration::from_millis(5);

/// The longest sleep while there is a lease, because a sleep does not end during a suspend.
pub(super) const NAP: Duration = Duration::from_secs(1);

/// A failed renewal is repeated after this fraction of the lease.
const RETRIES: u32 = 20;

/// A lock released within this fraction of its lease costs no connection for renewals.
const BRIEF: u32 = 30;

/// The pause after a panic, so that a recurring one does not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The maximum number of holds found gone in one turn for which the new holders are looked up, and
/// how long that may take.
const LOOKS_MAX: usize = 8;
const LOOK_TIME: Duration = Duration::from_secs(1);

struct RenewerThread {
    incoming: Incoming,
    timers: TimerQueue,
    jobs: RenewerJobs,
    reporter: Reporter,
    /// The leases for whose renewals no connection has been opened yet.
    unprepared: Vec<Arc<Hold>>,
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
        timers: TimerQueue::new(reporter.warn_held),
        jobs: RenewerJobs::new(jobs, io_timeout),
        reporter,
        unprepared: Vec::new(),
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
        self.jobs.finish(self.timers.drain());
    }

    /// Does all due work, then waits. Returns `false` when the client is gone.
    fn turn(&mut self) -> bool {
        self.prepare();
        self.receive_new();
        self.send_due();
        let outcomes = self.jobs.collect(COLLECT_TIME);
        self.finish_jobs(outcomes);
        self.end_gone();
        self.reporter.outages.report_turn();
        self.answer_shutdown();
        !self.jobs.is_empty() || self.sleep()
    }

    /// Opens the connections for renewing the locks that were held when the thread went to sleep:
    /// once the first renewal is due, none may be available.
    fn prepare(&mut self) {
        for hold in mem::take(&mut self.unprepared) {
            if hold.lease.is_open() {
                self.jobs.prepare(&hold.id.name);
            }
        }
    }

    fn receive_new(&mut self) {
        while let Ok(message) = self.incoming.queue.try_recv() {
            match message {
                Message::Check(id) => {
                    // Even if a request about the hold is in flight.
                    for hold in self.holds_of(&id) {
                        hold.set_forced();
                        self.timers.add_at(Moment::FIRST, Scheduled::Check(hold));
                    }
                }
                Message::EndAll(call) => self.end_all(call),
                Message::List(answer) => {
                    let holds = self.all_work().filter_map(Scheduled::as_hold);
                    let holds = holds.filter(|hold| hold.lease.is_open()).cloned().collect();
                    // The call may have given up.
                    answer.try_send(holds).unwrap_or_default();
                }
                // The call that ends the hold by force waits until this is dropped: a renewal may
                // find the hold gone right after.
                Message::Force(id, _noted) => {
                    self.holds_of(&id).iter().for_each(|hold| hold.set_forced());
                }
                Message::Lose(id, _lost) => {
                    for hold in self.holds_of(&id) {
                        hold.set_forced();
                        self.reporter.lose(&hold);
                    }
                }
                Message::Watch => {
                    // Other clients may have asked for these locks while no message arrived.
                    let holds = self.all_work().filter_map(Scheduled::as_hold);
                    let holds: Vec<_> =
                        holds.filter(|hold| hold.asks_if_wanted()).cloned().collect();
                    for hold in holds {
                        self.timers.add_at(Moment::FIRST, Scheduled::Check(hold));
                    }
                }
                Message::Work(work) => {
                    if let Scheduled::Hold(hold) = &work
                        && hold.renewed
                        && hold.lease.is_open()
                    {
                        self.unprepared.push(hold.clone());
                    }
                    self.schedule(work);
                }
            }
        }
        self.timers.compact(Moment::now());
    }

    fn schedule(&mut self, work: Scheduled) {
        match work {
            // Ended instead of renewed. The release is left to a later turn.
            Scheduled::Hold(hold) if self.shutdown.is_some() => {
                if !self.reporter.expire(&hold) && self.reporter.end(&hold) {
                    if flawed(Flaw::ShutdownForgets) {
                        return self.reporter.report_end(&hold, &Ok(()), false);
                    }
                    self.reporter.renewer.pay(hold);
                }
            }
            work => self.timers.add(work),
        }
    }

    /// Ends all leases, and tries again now to remove in-doubt holds.
    fn end_all(&mut self, call: ShutdownCall) {
        self.shutdown.get_or_insert_default().calls.push(call);
        let sent = self.jobs.work().filter_map(Scheduled::as_hold);
        let sent = sent.map(|hold| Scheduled::Hold(hold.clone()));
        let all: Vec<_> = sent.chain(self.timers.drain()).collect();
        for mut work in all {
            if let Scheduled::Payment(payment) = &mut work {
                payment.hasten();
            }
            self.schedule(work);
        }
    }

    /// Returns the holds with this id: several guards may have adopted it.
    fn holds_of(&self, id: &HoldId) -> Vec<Arc<Hold>> {
        let holds = self.all_work().filter_map(Scheduled::as_hold);
        holds.filter(|hold| hold.id == *id).cloned().collect()
    }

    /// Answers the calls that wait for the shutdown if it is complete, otherwise those that have
    /// timed out.
    fn answer_shutdown(&mut self) {
        let Some(shutdown) = self.shutdown.as_ref().filter(|it| !it.calls.is_empty()) else {
            return;
        };
        let now = clock::now();
        if shutdown.calls.iter().all(|call| call.deadline <= now) {
            let failed = Err(HoldFailure::Failed(shutdown.failure()));
            for payment in self.payments() {
                if payment.has_failed {
                    self.reporter.report_end(&payment.debt, &failed, false);
                } else {
                    payment.debt.tell_over();
                }
            }
        }
        let is_complete = self.reporter.counters.unfinished.load(Ordering::SeqCst) == 0 && {
            // Settling the last hold may have left a debt.
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
            && let Some(work) = self.timers.pop(now)
        {
            match &work {
                // This process may have been paused for longer than the lease.
                Scheduled::Hold(hold) => drop(self.reporter.expire(hold)),
                Scheduled::Kept(hold) => {
                    self.look_at_kept(hold);
                    continue;
                }
                Scheduled::Long(hold) => {
                    self.reporter.report_long(hold);
                    self.schedule(work);
                    continue;
                }
                Scheduled::Check(_) | Scheduled::Payment(_) => {}
            }
            // A call may have renewed the lease since it was scheduled, or released the lock.
            if work.is_due(now) {
                batch.push(work);
            } else {
                self.schedule(work);
            }
        }
        let outcomes = self.jobs.send(batch, now);
        self.finish_jobs(outcomes);
    }

    /// Releases a kept lock that no thread has used for long enough, or checks it again later: not
    /// at once, because a thread may be asking for more of its tokens. A lock in use is checked
    /// again once it is kept again.
    fn look_at_kept(&mut self, hold: &Arc<Hold>) {
        let Reporter { wait_queues, renewer, .. } = &self.reporter;
        // A call may have taken the lock since it was scheduled for this.
        let ended = wait_queues
            .end_kept(&hold.id.name, |kept| kept.id == hold.id && kept.is_unused(Moment::now()));
        if ended.is_some() {
            renewer.pay(hold.clone());
        } else if let Some(due) = hold.next_look() {
            let due = due.max(Moment::now().after(COLLECT_TIME));
            self.timers.add_at(due, Scheduled::Kept(hold.clone()));
        }
    }

    fn finish_jobs(&mut self, outcomes: Vec<(u64, JobOutcome)>) {
        for (id, outcome) in outcomes {
            match self.jobs.remove(id) {
                // Without a reply the next renewal finds out.
                Some((
                    Scheduled::Check(hold) | Scheduled::Kept(hold) | Scheduled::Long(hold),
                    _,
                )) => match outcome.map(|reply| reply.hold) {
                    Ok(HoldReply::Gone) => self.reporter.lose(&hold),
                    Ok(HoldReply::Wanted) => self.reporter.set_wanted(&hold),
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
                    self.reporter.set_wanted(&hold);
                }
                let now = Moment::now();
                let is_late = hold.lease.is_nearly_over(now);
                // From before the request, because Redis may have executed it at any time since.
                hold.lease.extend(sent, hold.lease.next(sent).duration, now);
                self.reporter.record_reply(&hold.id.name);
                self.reporter.outages.record_renewal(&hold, is_late);
                self.schedule(Scheduled::Hold(hold));
            }
            // Not left to the short-lived thread, whose payment would not wake this one.
            Ok(HoldReply::Gone) if hold.may_begin() => {
                self.reporter.lose(&hold);
            }
            Ok(HoldReply::Gone) => {
                if hold.lose() {
                    self.gone.push(hold);
                }
            }
            Err(failure) => {
                let now = Moment::now();
                let pause = (hold.lease.duration() / RETRIES).min(hold.lease.remaining(now));
                self.reporter.outages.record_failed_renewal(&hold, &failure);
                if flawed(Flaw::OneFailureLoses) {
                    self.reporter.lose(&hold);
                }
                self.timers.add_at(now.after(pause), Scheduled::Hold(hold));
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
            let deadline = end_of(LOOK_TIME);
            let spawned = spawn("leasehold-look", move || {
                for hold in looked_at {
                    // Whatever happens, calls behind the hold must go on.
                    let look = AssertUnwindSafe(|| reporter.look(&hold, deadline));
                    catch_unwind(look).unwrap_or_default();
                    reporter.end_gone(&hold);
                }
            });
            if spawned.is_ok() {
                return;
            }
        }
        // Without a look the cause stays unknown, but threads wait for these holds to end.
        for hold in &gone {
            self.reporter.end_gone(hold);
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
            Ok(_) if payment.unregisters => drop(reporter.wait_queues.wake_any(&debt.id.name)),
            Ok(reply) => {
                reporter.record_reply(&debt.id.name);
                payment.has_failed = false;
                payment.unconfirmed = payment.unconfirmed.saturating_sub(1);
                settle(reporter, &debt, &debt.release_outcome(Ok(reply.hold), now));
            }
            Err(failure) => {
                payment.has_failed = true;
                if let Some(shutdown) = &mut self.shutdown {
                    shutdown.last_failure = Some(failure.clone());
                    // No call waits for the next attempt.
                    if shutdown.calls.is_empty() {
                        let failed = Err(HoldFailure::Failed(failure.clone()));
                        reporter.report_end(&debt, &failed, false);
                    }
                }
                if !payment.unregisters {
                    drop(debt.release_outcome(Err(failure), now));
                }
            }
        }
        if let Some(due) = next {
            self.timers.add_at(due, Scheduled::Payment(payment));
        } else if !payment.is_confirmed() {
            if let Some(shutdown) = &mut self.shutdown {
                shutdown.outlived = true;
            }
            settle(reporter, &debt, &Err(HoldFailure::Failed(unconfirmed())));
        }
    }

    /// Waits until something is due or the thread is woken. Returns `false` when the client is
    /// gone.
    fn sleep(&mut self) -> bool {
        self.reporter.outages.end_refusals(|| {
            let mut renewed = self.all_work().filter_map(Scheduled::as_hold);
            renewed.any(|hold| hold.is_failing() && hold.lease.is_open())
        });
        // Ended ones may have left the timers already, and would be kept until they are due.
        self.unprepared.retain(|hold| hold.lease.is_open());
        let now = Moment::now();
        let due = self.timers.next_due();
        let mut due = if due == Moment::NEVER { due } else { due.min(now.after(NAP)) };
        for hold in &self.unprepared {
            due = due.min(now.after(hold.lease.duration() / BRIEF));
        }
        let waits = self.shutdown.as_ref().is_some_and(|shutdown| !shutdown.calls.is_empty());
        // Calls under way do not wake this thread when they end.
        self.incoming.sleep(if waits { due.min(now.after(COLLECT_TIME)) } else { due })
    }

    /// Recovers from a panic without losing any work.
    fn recover(&mut self) {
        self.reporter.events.log(log::Level::Error, || "the renewer panicked, and goes on".into());
        // Requests may or may not have been written. All of them can be repeated.
        for work in self.jobs.abandon() {
            self.schedule(work);
        }
        sleep(PANIC_PAUSE);
    }
}

/// Ends a debt, once it is paid or its lease is over.
fn settle(reporter: &Reporter, debt: &Arc<Hold>, outcome: &Result<(), HoldFailure>) {
    reporter.wait_queues.settle(debt, || {
        reporter.report_end(debt, outcome, false);
        true
    });
}
