//! Locks on N independent servers: a hold stands where more than half of them have it.
//!
//! This is the algorithm known as Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//! Each server keeps the same data as a single one would. A request is written to all of them at
//! once ([`links`]); its outcome is decided as soon as answers can decide it ([`votes`]); what
//! requests without an answer may have left behind is removed in the background ([`strays`]).
//! Servers that fail are left out of calls until they answer again ([`node`]).
//!
//! # Fencing tokens
//!
//! A token must be greater than those of all earlier holds of the name, though no server has seen
//! all of them. The client proposes one, its clock in microseconds; a server gives that, or one more
//! than its counter if the counter is not below it, and sets its counter to what it gives. The hold's
//! token is the greatest that a majority M has given. Before the guard is handed out, it is confirmed
//! that in a majority C the counter has reached the token *while the hold stood there*: where the
//! server gave just that token this is known, and elsewhere `raise.lua` sees to it. Mostly all have
//! given the proposal, and nothing is to be raised.
//!
//! Why tokens grow: let a hold with token F be followed by another. The later hold's M and the
//! earlier one's C are majorities, so they have a server in common. The later hold still stood there
//! when it was granted, for a majority counts only while its leases last; so that server let it in
//! when the earlier one was gone, and had counted up to F before. A counter only grows. So it gave
//! more than F, and the later token is not below what it gave. `tests/protocol/quorum` checks this
//! on a model, in all states within bounds.
//!
//! This takes that of any two majorities some common server has kept its counter: of an even number
//! of servers one may have lost it, of an odd number none. Else the proposal still is greater if the
//! client's clock is not behind.
//!
//! # What servers forget
//!
//! A server that is restarted without its data gives away what was held there. A hold stands on all
//! servers that were up when it began, and is lost when too few are left; but two servers of three
//! that forget between two renewals let somebody else in. Keep the data, or restart a server only
//! after the longest lease; and let the resource check the token.

mod flight;
mod link;
mod links;
mod node;
mod requests;
mod round;
mod shelf;
mod strays;
mod upkeep;
mod votes;
mod wakeups;

use std::sync::Arc;
use std::time::{Duration, Instant};

use scheduled_thread_pool::ScheduledThreadPool;

use crate::config::Config;
use crate::store::dialer::Dialer;
use crate::store::endpoint::Endpoint;
use crate::store::failure::{Failure, Trouble};
use crate::store::keys::Keys;
use crate::store::quorum::flight::{Flight, Request};
use crate::store::quorum::links::{Links, Parts};
use crate::store::quorum::node::Node;
use crate::store::quorum::requests::Requests;
use crate::store::quorum::round::{Rounds, about_hold, plain};
use crate::store::quorum::strays::Strays;
use crate::store::quorum::upkeep::Caretakers;
use crate::store::quorum::votes::{Race, Votes};
use crate::store::quorum::wakeups::Subscriptions;
use crate::store::reply::{Inspected, bid, handover, inspected, standing};
use crate::store::single::queue_life;
use crate::store::spin::Spin;
use crate::store::{
    Answer, Bid, Handover, HoldId, Holder, Queue, Standing, Store, Stray, Upkeep, Wakeups,
};

/// N independent servers.
#[derive(Debug)]
pub(crate) struct Quorum {
    shared: Arc<Shared>,
    io_timeout: Duration,
    /// The same where no lease is at stake.
    patience: Duration,
}

/// What an answer that is still on its way needs.
#[derive(Debug)]
struct Shared {
    rounds: Rounds,
    requests: Requests,
}

impl Quorum {
    /// Makes ready; connections are opened when they are first used.
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        config: &Config,
        threads: &Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let dialers =
            endpoints.into_iter().map(|at| Arc::new(Dialer::new(at, config, threads.clone())));
        let nodes = dialers.enumerate().map(|(number, dialer)| Arc::new(Node::new(number, dialer)));
        let io_timeout = config.io_timeout(config.terms.span());
        let parts = Arc::new(Parts {
            nodes: nodes.collect(),
            strays: Arc::default(),
            spin: Spin::new(config.spin),
            patience: io_timeout,
        });
        let rounds = Rounds::new(parts, config.pool_size, threads)?;
        let requests = Requests { keys: Keys::new(&config.prefix), queue_life: queue_life(config) };
        let shared = Arc::new(Shared { rounds, requests });
        Ok(Self { shared, io_timeout, patience: config.io_timeout(Duration::MAX) })
    }

    /// Makes sure that a majority answers.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Failure> {
        self.shared.rounds.connect("", until).map(drop)
    }

    /// Makes a request that a majority has to answer, one way or the other.
    fn tell(&self, name: &str, request: Request, until: Instant) -> Result<Standing, Failure> {
        let rounds = &self.shared.rounds;
        let mut links = rounds.connect(name, until)?;
        rounds.ask(&mut links, request, until, plain(standing), Votes::any).0
    }

    fn strays(&self) -> &Strays {
        &self.shared.rounds.parts.strays
    }
}

impl Shared {
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
        let (raise, read) = (self.requests.raise(hold, fence, lease), about_hold(standing));
        match self.rounds.ask(links, raise, until, read, Votes::standing).0 {
            Ok(Standing::Ours) => Ok(fence),
            Ok(Standing::Gone) => Err(Failure::late()),
            // The hold stands in some servers.
            Err(failure) => Err(unsettled(failure)),
        }
    }

    /// Takes back a hold that has not come about, where it may stand. Waits for nothing.
    fn withdraw(&self, links: &mut Links, hold: &HoldId, may_stand: impl Fn(usize) -> bool) {
        links.send(&self.flight(self.requests.withdraw(hold)), may_stand);
    }

    /// Waits for the answers to a transfer.
    fn land(
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

    fn flight(&self, request: Request) -> Arc<Flight> {
        Flight::new(request, self.rounds.parts.nodes.len())
    }
}

impl Store for Quorum {
    fn acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Result<Bid, Failure> {
        let Shared { rounds, requests } = &*self.shared;
        self.strays().note_lease(lease);
        let mut links = rounds.connect(&hold.name, until)?;
        let acquire = requests.acquire(hold, lease, queue);
        let (race, votes) = rounds.ask(&mut links, acquire, until, plain(bid), Votes::race);
        let outcome = match race {
            Race::Won { fence, agreed } => self
                .shared
                .confirm(&mut links, hold, (fence, agreed), lease, until)
                .map(|fence| Bid::Won { fence }),
            Race::Lost(outcome) => outcome,
        };
        if !matches!(outcome, Ok(Bid::Won { .. })) {
            let won = |bid: &Bid| matches!(bid, Bid::Won { .. });
            self.shared.withdraw(&mut links, hold, |number| votes.may_be(number, won));
        }
        outcome
    }

    fn nest(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        let Shared { rounds, requests } = &*self.shared;
        let mut links = rounds.connect(&hold.name, until)?;
        let nest = requests.nest(hold, depth, lease);
        rounds.ask(&mut links, nest, until, about_hold(standing), Votes::standing).0
    }

    fn release(&self, hold: &HoldId, until: Instant) -> Result<Standing, Failure> {
        let Shared { rounds, requests } = &*self.shared;
        let mut links = rounds.take(&hold.name, until)?;
        // Also without a majority it is to be released where it can be.
        links.prepare(until);
        let release = requests.release(hold);
        let (outcome, _) =
            rounds.ask(&mut links, release, until, about_hold(standing), Votes::standing);
        outcome.map_err(unsettled)
    }

    fn transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        yields: bool,
        until: Instant,
    ) -> Answer<Handover> {
        self.strays().note_lease(lease);
        let mut links = match self.shared.rounds.connect(&to.name, until) {
            Ok(links) => links,
            Err(failure) => return Box::new(move || Err(failure)),
        };
        let flight = self.shared.flight(self.shared.requests.transfer(from, to, lease, yields));
        links.send(&flight, |_| true);
        let (shared, to) = (self.shared.clone(), to.clone());
        Box::new(move || shared.land(&flight, &to, lease, until))
    }

    fn inspect(&self, name: &str, until: Instant) -> Result<Option<Holder>, Failure> {
        let Shared { rounds, requests } = &*self.shared;
        let mut links = rounds.connect(name, until)?;
        let inspect = requests.inspect(name);
        let (seen, _) = rounds.ask(&mut links, inspect, until, plain(inspected), Votes::holder);
        seen.map(|Inspected(holder)| holder)
    }

    fn force(&self, name: &str, until: Instant) -> Result<bool, Failure> {
        let force = self.shared.requests.force(name);
        self.tell(name, force, until).map(|standing| standing == Standing::Ours)
    }

    fn leave(&self, name: &str, client: &str, until: Instant) -> Result<(), Failure> {
        self.tell(name, self.shared.requests.leave(name, client), until).map(drop)
    }

    fn wakeups(&self, client: &str) -> Option<Box<dyn Wakeups>> {
        let keys = self.shared.requests.keys.clone();
        Some(Box::new(Subscriptions::new(
            self.shared.rounds.parts.nodes.clone(),
            keys,
            client,
            self.patience,
        )))
    }

    fn upkeep(&self) -> Box<dyn Upkeep> {
        let keys = &self.shared.requests.keys;
        Box::new(Caretakers::new(self.shared.rounds.parts.nodes.clone(), keys, self.io_timeout))
    }

    fn takes_back(&self) -> bool {
        true
    }

    fn on_stray(&self, tell: Box<dyn Fn(Stray) + Send + Sync>) {
        self.strays().on_stray(tell);
    }
}

/// The failure of a request that some servers have executed, or that is made up for in the
/// background where they have not. A repeat may find it done.
fn unsettled(failure: Failure) -> Failure {
    let trouble = match failure.trouble {
        Trouble::Unreachable => Trouble::Silent,
        Trouble::Passing => Trouble::Reset,
        other => other,
    };
    Failure { trouble, ..failure }
}
