//! The thread of the renewer.
//!
//! Decides when leases are renewed together and what happens to a lease whose renewal fails, and
//! finds a lease lost at its local deadline even while the store does not reply. All it knows about
//! the store is that it runs jobs.
//!
//! While the thread has any leases it wakes at least every second, so that it notices a resume
//! after the system was suspended, and drops what has ended.
//!
//! From a shutdown on, a lease that the thread has or gets is ended instead of renewed. Its release
//! is a clean-up that reports how it has gone. The shutdown is complete when no call is under way
//! that may acquire a hold, every hold has ended, and every clean-up was confirmed.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use crate::base::clock::{Moment, end_of};
use crate::base::shrink;
use crate::local::hold::Hold;
use crate::local::lease::HoldFailure;
use crate::local::renewal_reports::RenewalReports;
use crate::local::renewer::{self, Incoming, Message, Renewer};
use crate::local::reporter::Reporter;
use crate::local::shutdown::{ShutdownCalls, unconfirmed};
use crate::local::timers::{CleanUp, Scheduled, TimerQueue};
use crate::store::background::{Job, JobOutcome, JobReply, JobRunner};
use crate::store::hold_id::HoldId;
use crate::store::request::{Change, HoldReply};

/// The most jobs that are sent together.
const BATCH: usize = 512;

/// While replies are awaited the thread looks this often for leases that are due.
const COLLECT_TIME: Duration = Duration::from_millis(5);

/// The longest sleep while there is a lease, because a sleep does not end during a suspend.
pub(super) const NAP: Duration = Duration::from_secs(1);

/// A renewal that failed is tried again after this part of the lease.
const RETRIES: u32 = 20;

/// The pause after a panic: should its cause persist, it must not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The thread's own state.
struct RenewerThread {
    incoming: Incoming,
    timers: TimerQueue,
    /// What was sent, by job number.
    in_flight: HashMap<u64, SentWork>,
    last_job: u64,
    jobs: Box<dyn JobRunner>,
    io_timeout: Duration,
    reports: RenewalReports,
    /// Since the client was shut down.
    shutdown: Option<ShutdownCalls>,
}

struct SentWork {
    work: Scheduled,
    sent: Moment,
}

/// Starts the thread. One request takes no longer than `io_timeout`.
pub(super) fn start(
    jobs: Box<dyn JobRunner>,
    io_timeout: Duration,
    reporter: Reporter<()>,
) -> io::Result<Renewer> {
    let (renewer, incoming) = renewer::channel();
    let mut thread = RenewerThread {
        incoming,
        timers: TimerQueue::default(),
        in_flight: HashMap::new(),
        last_job: 0,
        jobs,
        io_timeout,
        reports: RenewalReports::new(reporter),
        shutdown: None,
    };
    thread::Builder::new().name("leasehold-renew".into()).spawn(move || thread.run())?;
    Ok(renewer)
}

impl RenewerThread {
    /// Works until the client is gone.
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
        self.answer_shutdown();
        !self.in_flight.is_empty() || self.sleep()
    }

    fn receive_new(&mut self) {
        while let Some(message) = self.incoming.try_receive() {
            match message {
                Message::Check(id) => self.check(&id),
                Message::EndAll(deadline) => self.end_all(deadline),
                Message::Lose(id, _lost) => {
                    self.holds_of(&id).for_each(|hold| self.reports.reporter.lose(hold));
                }
                Message::Settle(call) => self.shutdown.get_or_insert_default().add(call),
                Message::Work(work) => self.schedule(work),
            }
        }
        self.schedule_clean_ups();
        self.timers.compact(Moment::now(), |hold| self.reports.forget(hold));
    }

    /// Schedules what the ends of holds have left to clean up.
    fn schedule_clean_ups(&mut self) {
        for in_doubt in self.reports.reporter.sink.clean_ups.take() {
            self.schedule(Scheduled::clean_up(in_doubt));
        }
    }

    fn schedule(&mut self, work: Scheduled) {
        match work {
            Scheduled::Hold(hold) if self.shutdown.is_some() => self.end(&hold),
            work => {
                if let Some(over) = self.timers.add(work) {
                    self.reports.forget(&over);
                }
            }
        }
    }

    /// Ends all leases, and tries again now to remove what is in doubt.
    fn end_all(&mut self, deadline: Instant) {
        self.shutdown.get_or_insert_default().extend(deadline);
        let sent = self.in_flight.values().filter_map(|sent| sent.work.as_hold());
        let sent = sent.map(|hold| Scheduled::Hold(hold.clone()));
        let all: Vec<_> = sent.chain(self.timers.drain()).collect();
        for mut work in all {
            if let Scheduled::CleanUp(clean_up) = &mut work {
                clean_up.hasten();
            }
            self.schedule(work);
        }
    }

    /// Ends a lease, and schedules its release.
    fn end(&mut self, hold: &Arc<Hold>) {
        if !self.reports.reporter.expire(hold) && self.reports.reporter.end(hold) {
            self.release(hold);
        }
        self.reports.forget(hold);
    }

    /// Ends a tenure that was kept and is not used, and schedules its release. Returns `false` if a
    /// thread uses it.
    fn end_kept(&mut self, hold: &Arc<Hold>) -> bool {
        let ended = self.reports.reporter.wait_queues.end_kept(hold);
        if ended {
            self.release(hold);
            self.reports.forget(hold);
        }
        ended
    }

    /// Schedules the release of a hold that has ended here.
    fn release(&mut self, hold: &Arc<Hold>) {
        let release = Scheduled::CleanUp(Box::new(CleanUp::of_ended(hold)));
        self.timers.add_at(Moment::FIRST, release);
    }

    /// Returns the holds with this id: several guards may have adopted it.
    fn holds_of(&self, id: &HoldId) -> impl Iterator<Item = &Arc<Hold>> {
        let holds = self.all_work().filter_map(Scheduled::as_hold);
        holds.filter(move |hold| hold.id == *id)
    }

    /// Has the store asked now whether a hold exists, whatever request about it is in flight.
    fn check(&mut self, id: &HoldId) {
        let checks: Vec<_> = self.holds_of(id).cloned().map(Scheduled::Check).collect();
        for check in checks {
            self.timers.add_at(Moment::FIRST, check);
        }
    }

    /// Answers the calls that wait for the shutdown if it is complete, or if their time is over.
    fn answer_shutdown(&mut self) {
        let now = Instant::now();
        let Some(shutdown) = self.shutdown.as_mut().filter(|shutdown| shutdown.is_watched()) else {
            return;
        };
        if let Some(failure) = shutdown.give_up(now) {
            let failed = Err(HoldFailure::Failed(failure));
            for hold in self.clean_ups().filter_map(CleanUp::ended) {
                // It is being cleaned up already.
                self.reports.reporter.report_end(hold, &failed, drop);
            }
        }
        let is_complete = self.reports.reporter.counters.is_settled() && {
            // What has settled the last hold may have left something to clean up.
            self.receive_new();
            self.clean_ups().all(CleanUp::is_confirmed)
        };
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.answer(is_complete, now);
        }
    }

    /// What is scheduled or in flight.
    fn all_work(&self) -> impl Iterator<Item = &Scheduled> {
        self.timers.iter().chain(self.in_flight.values().map(|sent| &sent.work))
    }

    fn clean_ups(&self) -> impl Iterator<Item = &CleanUp> {
        self.all_work().filter_map(|work| match work {
            Scheduled::CleanUp(clean_up) => Some(&**clean_up),
            Scheduled::Check(_) | Scheduled::Hold(_) => None,
        })
    }

    fn send_due(&mut self) {
        let now = Moment::now();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(work) = self.timers.pop(now)
        {
            let (id, change, limit) = match &work {
                Scheduled::Check(hold) => (&hold.id, Change::Check, hold.lease.remaining()),
                Scheduled::CleanUp(clean_up) => {
                    clean_up.begin_attempt();
                    (clean_up.hold(), clean_up.change(), clean_up.lease() / 3)
                }
                Scheduled::Hold(hold) => {
                    self.reports.reporter.expire(hold);
                    if hold.is_unused() && self.end_kept(hold) {
                        continue;
                    }
                    if !hold.is_due(now) {
                        self.schedule(work);
                        continue;
                    }
                    let change = Change::Renew { lease: hold.lease.next(now) };
                    (&hold.id, change, (hold.lease.duration() / 3).min(hold.lease.remaining()))
                }
            };
            self.last_job += 1;
            let deadline = end_of(limit.min(self.io_timeout));
            batch.push(Job { id: self.last_job, hold: id.clone(), change, deadline });
            self.in_flight.insert(self.last_job, SentWork { work, sent: now });
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
                Some(SentWork { work: Scheduled::Check(hold), .. }) => {
                    self.finish_check(&hold, &outcome);
                }
                Some(SentWork { work: Scheduled::CleanUp(clean_up), .. }) => {
                    self.finish_clean_up(clean_up, outcome);
                }
                Some(SentWork { work: Scheduled::Hold(hold), sent }) => {
                    self.finish_renewal(hold, sent, outcome);
                }
                None => {}
            }
        }
        shrink(&mut self.in_flight);
    }

    /// Applies the outcome of a renewal. One without a reply is tried again: the local deadline
    /// decides whether the hold is lost, not one reply.
    fn finish_renewal(&mut self, hold: Arc<Hold>, sent: Moment, outcome: JobOutcome) {
        match outcome.map(|reply| reply.hold) {
            Ok(HoldReply::Done) => {
                let late = hold.lease.is_nearly_over();
                hold.lease.extend(sent, hold.lease.next(sent));
                hold.expire_fences();
                self.reports.record_renewal(&hold, late);
                self.schedule(Scheduled::Hold(hold));
            }
            Ok(HoldReply::Gone) => self.lose(&hold),
            Err(failure) => {
                let pause = (hold.lease.duration() / RETRIES).min(hold.lease.remaining());
                self.reports.record_failure(&hold, &failure);
                self.timers.add_at(Moment::now().after(pause), Scheduled::Hold(hold));
            }
        }
    }

    /// Applies the outcome of a check. Without a reply the next renewal finds out.
    fn finish_check(&mut self, hold: &Hold, outcome: &JobOutcome) {
        if matches!(outcome, Ok(JobReply { hold: HoldReply::Gone, .. })) {
            self.lose(hold);
        }
    }

    fn lose(&mut self, hold: &Hold) {
        self.reports.reporter.lose(hold);
        self.reports.forget(hold);
    }

    fn finish_clean_up(&mut self, mut clean_up: Box<CleanUp>, outcome: JobOutcome) {
        let everywhere = outcome.as_ref().is_ok_and(|reply| reply.everywhere);
        match outcome {
            Ok(_) if clean_up.change() == Change::Unregister => {
                self.reports.reporter.wait_queues.wake_any(&clean_up.hold().name);
            }
            Ok(reply) => {
                let Reporter { outages, .. } = &self.reports.reporter;
                outages.record_reply(&clean_up.hold().name);
                self.reports.reporter.confirm_release(clean_up.hold());
                if let Some((hold, outcome)) = clean_up.record_reply(reply.hold) {
                    self.reports.reporter.report_end(&hold, &outcome, drop);
                }
            }
            Err(failure) => {
                clean_up.record_failure(&failure);
                if let Some(shutdown) = &mut self.shutdown {
                    shutdown.record_failure(failure);
                }
            }
        }
        if let Some(due) = clean_up.next_try(everywhere, Moment::now()) {
            return self.timers.add_at(due, Scheduled::CleanUp(clean_up));
        }
        // It is settled, or its lease is over.
        self.reports.reporter.confirm_release(clean_up.hold());
        if !clean_up.is_confirmed() {
            self.record_outlived(&clean_up);
        }
    }

    /// Records that a hold has ended with its lease, before a release was confirmed.
    fn record_outlived(&mut self, clean_up: &CleanUp) {
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.record_outlived();
        }
        if let Some(hold) = clean_up.ended() {
            let failed = Err(HoldFailure::Failed(unconfirmed()));
            self.reports.reporter.report_end(hold, &failed, drop);
        }
    }

    /// Waits until something is due or the thread is woken. Returns `false` when the client is
    /// gone.
    fn sleep(&mut self) -> bool {
        self.schedule_clean_ups();
        let (now, due) = (Moment::now(), self.timers.next_due());
        let due = if due == Moment::NEVER { due } else { due.min(now.after(NAP)) };
        let waits = self.shutdown.as_ref().is_some_and(ShutdownCalls::is_watched);
        // Calls under way do not wake this thread when they end.
        self.incoming.sleep(if waits { due.min(now.after(COLLECT_TIME)) } else { due })
    }

    /// Starts over after a panic, with nothing forgotten.
    fn recover(&mut self) {
        self.reports.reporter.events.error(|| "the renewer panicked, and goes on".into());
        drop(catch_unwind(AssertUnwindSafe(|| self.jobs.abandon())));
        for (_, SentWork { work, .. }) in mem::take(&mut self.in_flight) {
            self.schedule(work);
        }
        thread::sleep(PANIC_PAUSE);
    }

    /// Tries once more to remove what is left to clean up.
    fn finish(&mut self) {
        self.receive_new();
        let deadline = end_of(self.io_timeout);
        let release = |clean_up: &CleanUp| {
            let (hold, change) = (clean_up.hold().clone(), clean_up.change());
            Job { id: 0, hold, change, deadline }
        };
        let releases: Vec<_> = self.clean_ups().map(release).collect();
        if !releases.is_empty() {
            self.jobs.send(releases, &mut |_, _| {});
            self.jobs.collect(deadline, &mut |_, _| {});
        }
    }
}
