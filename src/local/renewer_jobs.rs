//! The renewer's jobs in flight, and the work behind each. The renewer decides what an outcome
//! means.

use std::collections::HashMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::base::clock::{Moment, end_of};
use crate::base::maps::RandomState;
use crate::base::shrink;
use crate::local::timers::Scheduled;
use crate::store::background::{JobOutcome, JobRunner};

pub(super) struct RenewerJobs {
    runner: Box<dyn JobRunner>,
    /// How long to wait for replies at the end.
    io_timeout: Duration,
    /// The work in flight, and when it was sent, by the number of the job.
    in_flight: HashMap<u64, (Scheduled, Moment), RandomState>,
    last: u64,
}

impl RenewerJobs {
    pub(super) fn new(runner: Box<dyn JobRunner>, io_timeout: Duration) -> Self {
        Self { runner, io_timeout, in_flight: HashMap::default(), last: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the work in flight.
    pub(super) fn work(&self) -> impl Iterator<Item = &Scheduled> {
        self.in_flight.values().map(|(work, _)| work)
    }

    /// Removes a job that has an outcome. Returns its work, and when that was sent.
    pub(super) fn remove(&mut self, id: u64) -> Option<(Scheduled, Moment)> {
        let done = self.in_flight.remove(&id);
        shrink(&mut self.in_flight);
        done
    }

    /// Opens the connections that renewals of the lock with this name will need.
    pub(super) fn prepare(&mut self, name: &str) {
        self.runner.prepare(name);
    }

    /// Sends a batch. Returns the outcomes that are known at once.
    pub(super) fn send(&mut self, batch: Vec<Scheduled>, now: Moment) -> Vec<(u64, JobOutcome)> {
        let mut jobs = Vec::with_capacity(batch.len());
        let mut outcomes = Vec::new();
        for work in batch {
            self.last += 1;
            jobs.push(work.job(self.last, now));
            self.in_flight.insert(self.last, (work, now));
        }
        if !jobs.is_empty() {
            self.runner.send(jobs, &mut |id, outcome| outcomes.push((id, outcome)));
        }
        outcomes
    }

    /// Waits for outcomes, at most this long.
    pub(super) fn collect(&mut self, time: Duration) -> Vec<(u64, JobOutcome)> {
        let mut outcomes = Vec::new();
        if !self.is_empty() {
            self.runner.collect(end_of(time), &mut |id, outcome| outcomes.push((id, outcome)));
        }
        outcomes
    }

    /// Forgets all jobs after a panic, and returns their work.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Scheduled> + use<> {
        drop(catch_unwind(AssertUnwindSafe(|| self.runner.abandon())));
        mem::take(&mut self.in_flight).into_values().map(|(work, _)| work)
    }

    /// Tries once more to pay the debts that are left, including those of jobs in flight.
    pub(super) fn finish(&mut self, scheduled: impl Iterator<Item = Scheduled>) {
        let in_flight = mem::take(&mut self.in_flight).into_values().map(|(work, _)| work);
        let left = in_flight.chain(scheduled).filter(|work| work.as_payment().is_some());
        let left: Vec<_> = left.collect();
        drop(self.send(left, Moment::now()));
        drop(self.collect(self.io_timeout));
    }
}
