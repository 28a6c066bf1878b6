//! Background jobs of a quorum: each is sent to all servers, and their votes are counted.

use std::sync::Arc;

use crate::base::failure::Failure;
use crate::store::background::jobs::{Decision, JobPolicy};
use crate::store::job::{Job, JobReply};
use crate::store::quorum::in_doubt::InDoubtHolds;
use crate::store::quorum::server::QuorumServer;
use crate::store::quorum::votes::{Votes, majority};
use crate::store::request::{Change, HoldReply};

/// Each job to all servers.
#[derive(Debug)]
pub(super) struct JobsByVote {
    pub(super) servers: Vec<Arc<QuorumServer>>,
    pub(super) in_doubt: Arc<InDoubtHolds>,
}

impl JobPolicy for JobsByVote {
    type Node = Arc<QuorumServer>;
    type Progress = Votes<HoldReply>;

    fn route(&mut self, _: &Job) -> Result<(Vec<Arc<QuorumServer>>, Votes<HoldReply>), Failure> {
        Ok((self.servers.clone(), Votes::new(self.servers.len())))
    }

    /// A renewal counts when a majority has confirmed it, and so does a release, but that is sent
    /// to be executed by all servers.
    fn decide(
        &mut self,
        job: &Job,
        votes: &mut Votes<HoldReply>,
        from: &Arc<QuorumServer>,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Arc<QuorumServer>> {
        match &reply {
            Ok(HoldReply::Done) => from.note_written(),
            Ok(HoldReply::Gone) => {}
            Err(failure) => from.note_failure(failure),
        }
        let is_release = matches!(job.change, Change::Release { .. });
        let never_began = is_release && !self.in_doubt.may_be_at(from, &job.hold);
        let vote = if never_began { Ok(HoldReply::Gone) } else { reply };
        votes.0[from.number] = Some(vote);
        let outcome = match job.change {
            Change::Release { kept_until } => {
                let decided = votes.decide_release();
                if decided.is_some() {
                    self.in_doubt.end(&job.hold, kept_until);
                }
                decided
            }
            change => votes.decide_change(change).map(|reply| reply.map(JobReply::from)),
        };
        outcome.map_or(Decision::Undecided, Decision::Done)
    }

    fn required(&self) -> usize {
        majority(self.servers.len())
    }
}
