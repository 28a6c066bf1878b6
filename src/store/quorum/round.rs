//! One request to all servers, from the connections to the decision.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::store::lane::Reply;
use crate::store::quorum::flight::{Flight, Request};
use crate::store::quorum::links::{Links, Parts};
use crate::store::quorum::votes::Votes;
use crate::store::{Failure, Standing, Trouble};

/// Links that are given back when this is dropped.
pub(super) type Taken = PooledConnection<Sets>;

/// The links of a client.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) parts: Arc<Parts>,
    /// Each with one place, so that a name always has the same: its requests do not overtake one
    /// another.
    pools: Vec<Pool<Sets>>,
}

impl Rounds {
    pub(super) fn new(
        parts: Arc<Parts>,
        sets: u32,
        threads: &Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let pool = |_| {
            Pool::builder()
                .max_size(1)
                .test_on_check_out(false)
                // Both would keep a timer, and with it the thread, alive.
                .max_lifetime(None)
                .idle_timeout(None)
                .error_handler(Box::new(NopErrorHandler))
                .thread_pool(threads.clone())
                .build(Sets(parts.clone()))
        };
        let pools: Result<_, _> = (0..sets).map(pool).collect();
        let server = Arc::from("the pool");
        let pools = pools.map_err(|error| Failure::io(Trouble::Unreachable, &server, error))?;
        Ok(Self { parts, pools })
    }

    /// Takes the links for requests about this name.
    pub(super) fn take(&self, name: &str, until: Instant) -> Result<Taken, Failure> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let sets = u64::try_from(self.pools.len()).unwrap_or(1);
        let pool = &self.pools[usize::try_from(hasher.finish() % sets).unwrap_or(0)];
        let left = || until.saturating_duration_since(Instant::now());
        pool.try_get().or_else(|| pool.get_timeout(left()).ok()).ok_or_else(|| {
            let why = "the connections for this name were in use until the time was over";
            Failure::too_late(&Arc::from("the servers"), why)
        })
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

    /// As `ask`, for a request that was sent.
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

/// Makes links that are opened when they are used.
#[derive(Debug)]
pub(super) struct Sets(Arc<Parts>);

impl ManageConnection for Sets {
    type Connection = Links;
    type Error = Infallible;

    fn connect(&self) -> Result<Links, Infallible> {
        Ok(Links::new(self.0.clone()))
    }

    fn is_valid(&self, _: &mut Links) -> Result<(), Infallible> {
        Ok(())
    }

    /// Links replace what is broken themselves.
    fn has_broken(&self, _: &mut Links) -> bool {
        false
    }
}
