//! How a hold comes about: begun by a majority, and its token confirmed by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::{Failure, FailureKind};
use crate::store::commands::Decoder;
use crate::store::hold::HoldId;
use crate::store::quorum::flight::Broadcast;
use crate::store::quorum::in_doubt::InDoubtHolds;
use crate::store::quorum::links::QuorumLinks;
use crate::store::quorum::requests::{Effect, QuorumCommand, Requests};
use crate::store::quorum::round::Rounds;
use crate::store::quorum::votes::{HoldVote, Votes};
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, Transfer, TransferReply, is_granted,
};

/// What it takes to get holds; also what an answer that is still on its way needs.
#[derive(Debug)]
pub(super) struct Grants {
    pub(super) rounds: Rounds,
    pub(super) requests: Requests,
}

impl Grants {
    /// Takes the lock if a majority grants it. What comes of it otherwise is taken back, except
    /// what falls short of the durability that is demanded: that stands until it is released.
    pub(super) fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Self { rounds, requests } = self;
        let Acquire { hold, lease, deadline, .. } = request;
        self.in_doubt().note_lease(lease);
        let mut links = rounds.connect(&hold.name, deadline)?;
        let (race, votes) =
            rounds.ask(&mut links, requests.acquire(request), deadline, Votes::race);
        let outcome = match race {
            HoldVote::Won { fence, agreed } => self
                .confirm(&mut links, hold, (fence, agreed), lease, deadline)
                .map(|fence| AcquireReply::Acquired { fence }),
            HoldVote::Lost(outcome) => outcome,
        };
        if !is_granted(&outcome) {
            let won = |reply: &AcquireReply| matches!(reply, AcquireReply::Acquired { .. });
            self.withdraw(&mut links, hold, |number| votes.may_be(number, won));
        }
        outcome
    }

    /// Sends a request to put one hold in another's place. Where a server lags, the one only ends.
    pub(super) fn send_transfer(&self, request: Transfer<'_>) -> Result<SentTransfer, Failure> {
        let Self { rounds, requests } = self;
        let Transfer { from, to, lease, deadline, .. } = request;
        self.in_doubt().note_lease(lease);
        let mut links = rounds.connect(&to.name, deadline)?;
        let transfer = requests.transfer(request);
        let decoder = transfer.command.decoder.clone();
        let (broadcast, lagging) = (self.broadcast(transfer), links.lagging());
        links.send(&broadcast, |_| true);
        if lagging.contains(&true) {
            self.withdraw(&mut links, from, |number| lagging[number]);
        }
        Ok(SentTransfer { broadcast, decoder, to: to.clone(), lease, deadline })
    }

    /// Waits for the replies to a transfer.
    pub(super) fn finish_transfer(&self, sent: &SentTransfer) -> Result<TransferReply, Failure> {
        let SentTransfer { broadcast, decoder, to, lease, deadline } = sent;
        let mut links = self.rounds.take(&to.name, *deadline).map_err(unsettled)?;
        let (race, votes) =
            self.rounds.count(&mut links, broadcast, *deadline, decoder, Votes::passage);
        let outcome = match race {
            HoldVote::Won { fence, agreed } => {
                let fence = self.confirm(&mut links, to, (fence, agreed), *lease, *deadline)?;
                return Ok(TransferReply::Transferred { fence });
            }
            HoldVote::Lost(outcome) => outcome.map_err(unsettled)?,
        };
        let done = |reply: &TransferReply| matches!(reply, TransferReply::Transferred { .. });
        self.withdraw(&mut links, to, |number| votes.may_be(number, done));
        Ok(outcome)
    }

    /// Makes sure that a majority has counted up to the token of a hold that a majority has begun.
    fn confirm(
        &self,
        links: &mut QuorumLinks,
        hold: &HoldId,
        (fence, agreed): (u64, bool),
        lease: Duration,
        deadline: Instant,
    ) -> Result<u64, Failure> {
        if agreed {
            return Ok(fence);
        }
        let Self { rounds, requests } = self;
        let raise = requests.commands.raise(hold, fence, lease);
        let raise = requests.durable(QuorumCommand::new(raise, Effect::Nothing), deadline);
        match rounds.ask(links, raise, deadline, Votes::standing).0 {
            Ok(HoldReply::Held) => Ok(fence),
            Ok(HoldReply::Gone) => Err(Failure::late()),
            // The hold stands in some servers.
            Err(failure) => Err(unsettled(failure)),
        }
    }

    /// Ends a hold that has not come about, or not everywhere, where it may stand. Waits for nothing.
    fn withdraw(&self, links: &mut QuorumLinks, hold: &HoldId, may_stand: impl Fn(usize) -> bool) {
        links.send(&self.broadcast(self.requests.withdraw(hold)), may_stand);
    }

    fn broadcast<T>(&self, command: QuorumCommand<T>) -> Arc<Broadcast> {
        Broadcast::new(command, self.rounds.parts.nodes.len())
    }

    pub(super) fn in_doubt(&self) -> &InDoubtHolds {
        &self.rounds.parts.in_doubt
    }
}

/// A transfer whose replies are still to come.
#[derive(Debug)]
pub(super) struct SentTransfer {
    broadcast: Arc<Broadcast>,
    decoder: Decoder<TransferReply>,
    to: HoldId,
    lease: Duration,
    deadline: Instant,
}

/// The failure of a request that some servers have executed, or that is made up for in the
/// background where they have not. A repeat may find it done.
pub(super) fn unsettled(failure: Failure) -> Failure {
    let kind = match failure.kind {
        FailureKind::Unreachable => FailureKind::Timeout,
        FailureKind::Transient => FailureKind::Disconnected,
        other => other,
    };
    Failure { kind, ..failure }
}
