//! One request to all servers, from the connections to the decision.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use crate::failure::Failure;
use crate::net::pool::PoolThread;
use crate::store::commands::Decoder;
use crate::store::quorum::flight::Broadcast;
use crate::store::quorum::link_pool::{LinkPool, Taken};
use crate::store::quorum::links::{QuorumLinks, QuorumParts};
use crate::store::quorum::requests::QuorumCommand;
use crate::store::quorum::votes::Votes;
use crate::store::request::HoldReply;

/// The links of a client.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) parts: Arc<QuorumParts>,
    /// A name always has the same, so that its requests do not overtake one another.
    shelves: Vec<Arc<LinkPool>>,
}

impl Rounds {
    pub(super) fn new(parts: Arc<QuorumParts>, sets: u32, pool_thread: &PoolThread) -> Self {
        let shelf = |_| LinkPool::new(&parts, pool_thread);
        Self { shelves: (0..sets).map(shelf).collect(), parts }
    }

    /// Takes the links for requests about this name.
    pub(super) fn take(&self, name: &str, deadline: Instant) -> Result<Taken, Failure> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let shelves = u64::try_from(self.shelves.len()).unwrap_or(1);
        let shelf = &self.shelves[usize::try_from(hasher.finish() % shelves).unwrap_or(0)];
        LinkPool::take(shelf, deadline)
    }

    /// As `take`, with a majority connected.
    pub(super) fn connect(&self, name: &str, deadline: Instant) -> Result<Taken, Failure> {
        let mut links = self.take(name, deadline)?;
        links.prepare(deadline);
        let mut votes = Votes::new(self.parts.nodes.len());
        for (number, failure) in links.missing() {
            votes.0[number] = Some(Err(failure));
        }
        if votes.pending() >= votes.required() {
            return Ok(links);
        }
        for vote in &mut votes.0 {
            vote.get_or_insert(Ok(HoldReply::Held));
        }
        votes.standing().unwrap_or(Ok(HoldReply::Held)).map(|_| links)
    }

    /// Makes a request, and returns what `decide` makes of the answers as soon as it can, together
    /// with those.
    pub(super) fn ask<T: Clone, V>(
        &self,
        links: &mut QuorumLinks,
        command: QuorumCommand<T>,
        deadline: Instant,
        decide: impl Fn(&Votes<T>) -> Option<V>,
    ) -> (V, Votes<T>) {
        let decoder = command.command.decoder.clone();
        let flight = Broadcast::new(command, self.parts.nodes.len());
        links.send(&flight, |_| true);
        self.count(links, &flight, deadline, &decoder, decide)
    }

    /// As `ask`, for a request that has been sent.
    pub(super) fn count<T: Clone, V>(
        &self,
        links: &mut QuorumLinks,
        flight: &Arc<Broadcast>,
        deadline: Instant,
        decoder: &Decoder<T>,
        decide: impl Fn(&Votes<T>) -> Option<V>,
    ) -> (V, Votes<T>) {
        let nodes = &self.parts.nodes;
        let mut votes = Votes::new(nodes.len());
        let decision = links.wait(flight, deadline, |number, reply| {
            let vote = decoder.decode(reply).unwrap_or_else(|| Err(nodes[number].nonsense()));
            votes.0[number] = Some(vote);
            decide(&votes)
        });
        let decision = decision.or_else(|| {
            votes.close(|number| nodes[number].no_reply());
            decide(&votes)
        });
        (decision.expect("there is a decision when all votes are in"), votes)
    }
}
