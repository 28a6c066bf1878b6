//! Background jobs of a quorum: each is sent to all servers, and their votes are counted.

use std::sync::Arc;

use crate::failure::Failure;
use crate::store::background::jobs::{Decision, JobPolicy};
use crate::store::job::{Action, Job, JobOutcome};
use crate::store::quorum::server::QuorumServer;
use crate::store::quorum::votes::{Votes, majority};
use crate::store::request::HoldReply;

/// Each job to all servers.
#[derive(Debug)]
pub(super) struct JobsByVote(pub(super) Vec<Arc<QuorumServer>>);

impl JobPolicy for JobsByVote {
    type Node = Arc<QuorumServer>;
    type Progress = Votes<HoldReply>;

    fn route(&mut self, _: &Job) -> Result<(Vec<Arc<QuorumServer>>, Votes<HoldReply>), Failure> {
        Ok((self.0.clone(), Votes::new(self.0.len())))
    }

    /// A renewal counts when a majority has confirmed it. A release must reach all servers.
    fn decide(
        &mut self,
        job: &Job,
        votes: &mut Votes<HoldReply>,
        from: &Arc<QuorumServer>,
        reply: JobOutcome,
    ) -> Decision<Arc<QuorumServer>> {
        match &reply {
            Ok(HoldReply::Held) => from.note_written(),
            Ok(HoldReply::Gone) => {}
            Err(failure) => from.note_failure(failure),
        }
        let is_release = matches!(job.action, Action::Release { .. });
        let never_began = is_release && !from.may_have(&job.hold);
        let vote = if never_began { Ok(HoldReply::Gone) } else { reply };
        votes.0[from.number] = Some(vote);
        let outcome = match job.action {
            Action::Renew { .. } => votes.decide_hold(),
            Action::Release { .. } => votes.decide_all(),
        };
        outcome.map_or(Decision::Undecided, Decision::Done)
    }

    fn required(&self) -> usize {
        majority(self.0.len())
    }
}
