//! Background jobs: what the renewer asks of a store, for many holds at a time.

use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::store::hold_id::HoldId;
use crate::store::request::{Change, HoldReply};

/// A request about one hold, with a number by which its outcome is reported.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) hold: HoldId,
    pub(crate) change: Change,
    /// The job has failed if it has no outcome by then.
    pub(crate) deadline: Instant,
}

/// The outcome of a job. After an ambiguous failure the hold is in doubt, not lost.
pub(crate) type JobOutcome = Result<JobReply, Failure>;

/// What has come of a job at the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobReply {
    pub(crate) hold: HoldReply,
    /// Whether every server has replied that may have the hold. A majority of several is enough for
    /// a reply.
    pub(crate) everywhere: bool,
}

impl From<HoldReply> for JobReply {
    /// The reply of the only server.
    fn from(hold: HoldReply) -> Self {
        Self { hold, everywhere: true }
    }
}

/// Sends jobs in batches and collects their outcomes. Each job has exactly one outcome, unless
/// it is abandoned. No method waits for a connection to be opened.
pub(crate) trait JobRunner: Send {
    /// Sends jobs, or has them sent as soon as a connection is open and has room. Does not block.
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome));

    /// Blocks until every job has an outcome or `deadline` has come. Calls `done` with each
    /// outcome.
    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome));

    /// Forgets the jobs that have no outcome yet, and the connections with what is still to come
    /// over them. What is known of these may be wrong after a panic.
    fn abandon(&mut self) {}
}

/// A hold that has no guard, and that may exist on a server nevertheless.
#[derive(Debug)]
pub(crate) struct InDoubtHold {
    pub(crate) hold: HoldId,
    /// Until then the lock stays taken, though the hold is removed.
    pub(crate) kept_until: Moment,
    /// After this time it has ended by itself.
    pub(crate) lease: Duration,
    /// Whether one answered release is enough, because no request that begins it can come later.
    pub(crate) settled_by_release: bool,
}
