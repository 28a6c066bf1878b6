//! How a hold comes about: begun by a majority, and its token confirmed by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::failure::{Failure, Trouble};
use crate::store::quorum::flight::{Flight, Request};
use crate::store::quorum::links::Links;
use crate::store::quorum::requests::Requests;
use crate::store::quorum::round::{Rounds, about_hold, plain};
use crate::store::quorum::strays::Strays;
use crate::store::quorum::votes::{Race, Votes};
use crate::store::reply::{bid, handover, standing};
use crate::store::{Bid, Handover, HoldId, Queue, Standing, is_granted};

/// What it takes to get holds; also what an answer that is still on its way needs.
#[derive(Debug)]
pub(super) struct Grants {
    pub(super) rounds: Rounds,
    pub(super) requests: Requests,
}

impl Grants {
    /// Takes the lock if a majority grants it. What comes of it otherwise is taken back, except
    /// what falls short of the durability that is demanded: that stands until it is released.
    pub(super) fn acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Result<Bid, Failure> {
        let Self { rounds, requests } = self;
        self.strays().note_lease(lease);
        let mut links = rounds.connect(&hold.name, until)?;
        let acquire = requests.durable(requests.acquire(hold, lease, queue), until);
        let (race, votes) = rounds.ask(&mut links, acquire, until, plain(bid), Votes::race);
        let outcome = match race {
            Race::Won { fence, agreed } => self
                .confirm(&mut links, hold, (fence, agreed), lease, until)
                .map(|fence| Bid::Won { fence }),
            Race::Lost(outcome) => outcome,
        };
        if !is_granted(&outcome) {
            let won = |bid: &Bid| matches!(bid, Bid::Won { .. });
            self.withdraw(&mut links, hold, |number| votes.may_be(number, won));
        }
        outcome
    }

    /// Sends a request to put one hold in another's place. Where a server lags, the one only ends.
    pub(super) fn send_transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        yields: bool,
        until: Instant,
    ) -> Result<Arc<Flight>, Failure> {
        let Self { rounds, requests } = self;
        self.strays().note_lease(lease);
        let mut links = rounds.connect(&to.name, until)?;
        let transfer = requests.durable(requests.transfer(from, to, lease, yields), until);
        let (flight, lagging) = (self.flight(transfer), links.lagging());
        links.send(&flight, |_| true);
        if lagging.contains(&true) {
            self.withdraw(&mut links, from, |number| lagging[number]);
        }
        Ok(flight)
    }

    /// Waits for the answers to a transfer.
    pub(super) fn land(
        &self,
        flight: &Arc<Flight>,
        to: &HoldId,
        lease: Duration,
        until: Instant,
    ) -> Result<Handover, Failure> {
        let mut links = self.rounds.take(&to.name, until).map_err(unsettled)?;
        let read = plain(handover);
        let (race, votes) = self.rounds.count(&mut links, flight, until, read, Votes::passage);
        let outcome = match race {
            Race::Won { fence, agreed } => {
                let fence = self.confirm(&mut links, to, (fence, agreed), lease, until)?;
                return Ok(Handover::Done { fence });
            }
            Race::Lost(outcome) => outcome.map_err(unsettled)?,
        };
        let done = |answer: &Handover| matches!(answer, Handover::Done { .. });
        self.withdraw(&mut links, to, |number| votes.may_be(number, done));
        Ok(outcome)
    }

    /// Makes sure that a majority has counted up to the token of a hold that a majority has begun.
    fn confirm(
        &self,
        links: &mut Links,
        hold: &HoldId,
        (fence, agreed): (u64, bool),
        lease: Duration,
        until: Instant,
    ) -> Result<u64, Failure> {
        if agreed {
            return Ok(fence);
        }
        let Self { rounds, requests } = self;
        let raise = requests.durable(requests.raise(hold, fence, lease), until);
        match rounds.ask(links, raise, until, about_hold(standing), Votes::standing).0 {
            Ok(Standing::Ours) => Ok(fence),
            Ok(Standing::Gone) => Err(Failure::late()),
            // The hold stands in some servers.
            Err(failure) => Err(unsettled(failure)),
        }
    }

    /// Ends a hold that has not come about, or not everywhere, where it may stand. Waits for nothing.
    fn withdraw(&self, links: &mut Links, hold: &HoldId, may_stand: impl Fn(usize) -> bool) {
        links.send(&self.flight(self.requests.withdraw(hold)), may_stand);
    }

    fn flight(&self, request: Request) -> Arc<Flight> {
        Flight::new(request, self.rounds.parts.nodes.len())
    }

    pub(super) fn strays(&self) -> &Strays {
        &self.rounds.parts.strays
    }
}

/// The failure of a request that some servers have executed, or that is made up for in the
/// background where they have not. A repeat may find it done.
pub(super) fn unsettled(failure: Failure) -> Failure {
    let trouble = match failure.trouble {
        Trouble::Unreachable => Trouble::Silent,
        Trouble::Passing => Trouble::Reset,
        other => other,
    };
    Failure { trouble, ..failure }
}
