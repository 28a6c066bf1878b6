//! One request to all servers, from the connections to the decision.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::store::Standing;
use crate::store::failure::{Failure, Trouble};
use crate::store::lane::Reply;
use crate::store::quorum::flight::{Flight, Request};
use crate::store::quorum::links::{Links, Parts};
use crate::store::quorum::shelf::{Shelf, Taken};
use crate::store::quorum::votes::Votes;

/// The links of a client.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) parts: Arc<Parts>,
    /// A name always has the same, so that its requests do not overtake one another.
    shelves: Vec<Arc<Shelf>>,
}

impl Rounds {
    pub(super) fn new(
        parts: Arc<Parts>,
        sets: u32,
        threads: &Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let shelf = |_| Shelf::new(&parts, threads);
        let shelves = (0..sets).map(shelf).collect::<Result<_, _>>()?;
        Ok(Self { parts, shelves })
    }

    /// Takes the links for requests about this name.
    pub(super) fn take(&self, name: &str, until: Instant) -> Result<Taken, Failure> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let shelves = u64::try_from(self.shelves.len()).unwrap_or(1);
        let shelf = &self.shelves[usize::try_from(hasher.finish() % shelves).unwrap_or(0)];
        Shelf::take(shelf, until)
    }

    /// As `take`, with a majority connected.
    pub(super) fn connect(&self, name: &str, until: Instant) -> Result<Taken, Failure> {
        let mut links = self.take(name, until)?;
        links.prepare(until);
        let mut votes = Votes::new(self.parts.nodes.len());
        for (number, failure) in links.missing() {
            votes.0[number] = Some(Err(failure));
        }
        if votes.pending() >= votes.required() {
            return Ok(links);
        }
        for vote in &mut votes.0 {
            vote.get_or_insert(Ok(Standing::Ours));
        }
        votes.standing().unwrap_or(Ok(Standing::Ours)).map(|_| links)
    }

    /// Makes a request, and returns what `decide` makes of the answers as soon as it can, together
    /// with those.
    pub(super) fn ask<T, V>(
        &self,
        links: &mut Links,
        request: Request,
        until: Instant,
        read: impl Fn(Reply) -> Option<Result<T, Failure>>,
        decide: impl Fn(&Votes<T>) -> Option<V>,
    ) -> (V, Votes<T>) {
        let flight = Flight::new(request, self.parts.nodes.len());
        links.send(&flight, |_| true);
        self.count(links, &flight, until, read, decide)
    }

    /// As `ask`, for a request that has been sent.
    pub(super) fn count<T, V>(
        &self,
        links: &mut Links,
        flight: &Arc<Flight>,
        until: Instant,
        read: impl Fn(Reply) -> Option<Result<T, Failure>>,
        decide: impl Fn(&Votes<T>) -> Option<V>,
    ) -> (V, Votes<T>) {
        let nodes = &self.parts.nodes;
        let mut votes = Votes::new(nodes.len());
        let decision = links.wait(flight, until, |number, reply| {
            let vote = read(reply).unwrap_or_else(|| Err(nodes[number].nonsense()));
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

/// Makes sense of good replies.
pub(super) fn plain<T>(
    read: impl Fn(&Value) -> Option<T>,
) -> impl Fn(Reply) -> Option<Result<T, Failure>> {
    move |reply| match reply {
        Ok(value) => read(&value).map(Ok),
        Err(failure) => Some(Err(failure)),
    }
}

/// Makes sense of replies about a hold. Where something else is in the lock's place, it is gone.
pub(super) fn about_hold(
    read: impl Fn(&Value) -> Option<Standing>,
) -> impl Fn(Reply) -> Option<Result<Standing, Failure>> {
    let read = plain(read);
    move |reply| match reply {
        Err(failure) if failure.trouble == Trouble::WrongType => Some(Ok(Standing::Gone)),
        other => read(other),
    }
}
