//! Background jobs: what the renewer asks of a store, many holds at a time.

use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::store::hold::HoldId;
use crate::store::request::HoldReply;

/// A request about one hold, with a number by which its outcome is reported.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) hold: HoldId,
    pub(crate) action: Action,
    /// Without an outcome by then the job has failed.
    pub(crate) deadline: Instant,
}

/// What a job does with its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Release,
    Renew { lease: Duration },
}

/// What came of a job. After an ambiguous failure the hold is in doubt, not lost.
pub(crate) type JobOutcome = Result<HoldReply, Failure>;

/// Sends jobs in batches and collects their outcomes. Neither takes longer than it is told to, and
/// each job has exactly one outcome.
pub(crate) trait JobRunner: Send {
    /// Sends jobs.
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome));

    /// Blocks until every job has an outcome or `deadline` has come.
    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome));

    /// Gives up the jobs that have no outcome yet.
    fn abandon(&mut self, done: &mut dyn FnMut(u64, JobOutcome));
}

/// A hold that no guard belongs to, and that may exist on a server nevertheless.
#[derive(Debug)]
pub(crate) struct InDoubtHold {
    pub(crate) hold: HoldId,
    /// After this time it has ended by itself.
    pub(crate) lease: Duration,
    /// Whether one answered release is enough, because no request that begins it can come later.
    pub(crate) settled_by_release: bool,
}
