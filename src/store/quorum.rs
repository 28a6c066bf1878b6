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
//! # Durability
//!
//! What is demanded besides, of replicas or disks, each server has to meet itself: its vote counts
//! once it has said so, over the connection of the request and in the same write. That goes for
//! tokens as well, so that the majorities M and C keep hold and counter. A server whose replicas or
//! disk are awaited answers nothing else over that connection, so only few requests stand in line
//! there ([`link`]), and others do without its vote. Nor do renewals and releases wait: a renewal
//! that a crash takes back is made up for by the next, with two thirds of the lease left, and a
//! release that it takes back costs the others a lease, not the holder.
//!
//! # What servers forget
//!
//! A server that is restarted without its data gives away what was held there. A hold stands on all
//! servers that were up when it began, and is lost when too few are left; but two servers of three
//! that forget between two renewals let somebody else in. Keep the data, as `Durability`
//! can see to, or restart a server only after the longest lease; and let the resource check the
//! token.

mod flight;
mod grant;
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
use crate::store::arguments::queue_life;
use crate::store::dialer::Dialer;
use crate::store::durable::Demand;
use crate::store::endpoint::Endpoint;
use crate::store::failure::Failure;
use crate::store::keys::Keys;
use crate::store::lane::Reply;
use crate::store::quorum::flight::Request;
use crate::store::quorum::grant::{Grants, unsettled};
use crate::store::quorum::links::Parts;
use crate::store::quorum::node::Node;
use crate::store::quorum::requests::Requests;
use crate::store::quorum::round::{Rounds, about_hold, plain};
use crate::store::quorum::upkeep::Caretakers;
use crate::store::quorum::votes::Votes;
use crate::store::quorum::wakeups::Subscriptions;
use crate::store::reply::{Inspected, inspected, standing};
use crate::store::spin::Spin;
use crate::store::{
    Answer, Bid, Handover, HoldId, Holder, Queue, Standing, Store, Stray, Upkeep, Wakeups,
};

/// N independent servers.
#[derive(Debug)]
pub(crate) struct Quorum {
    grants: Arc<Grants>,
    io_timeout: Duration,
    /// The same where no lease is at stake.
    patience: Duration,
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
        let demand = Demand::new(config.durability);
        let node = |(number, dialer)| Arc::new(Node::new(number, dialer, demand));
        let nodes = dialers.enumerate().map(node);
        let io_timeout = config.io_timeout(config.terms.span());
        let parts = Arc::new(Parts {
            nodes: nodes.collect(),
            strays: Arc::default(),
            spin: Spin::new(config.spin),
            patience: io_timeout,
        });
        let rounds = Rounds::new(parts, config.pool_size, threads)?;
        let (keys, queue_life) = (Keys::new(&config.prefix), queue_life(config));
        let requests = Requests { keys, queue_life, demand };
        let grants = Arc::new(Grants { rounds, requests });
        Ok(Self { grants, io_timeout, patience: config.io_timeout(Duration::MAX) })
    }

    /// Makes sure that a majority answers.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Failure> {
        self.grants.rounds.connect("", until).map(drop)
    }

    /// Makes a request that a majority has to answer, one way or the other.
    fn tell(&self, name: &str, request: Request, until: Instant) -> Result<Standing, Failure> {
        self.ask(name, request, until, plain(standing), Votes::any)
    }

    fn set_depth(
        &self,
        hold: &HoldId,
        request: Request,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.ask(&hold.name, request, until, about_hold(standing), Votes::standing)
    }

    /// Makes a request about a name if a majority is connected.
    fn ask<T, A>(
        &self,
        name: &str,
        request: Request,
        until: Instant,
        read: impl Fn(Reply) -> Option<Result<T, Failure>>,
        decide: impl Fn(&Votes<T>) -> Option<Result<A, Failure>>,
    ) -> Result<A, Failure> {
        let rounds = &self.grants.rounds;
        let mut links = rounds.connect(name, until)?;
        rounds.ask(&mut links, request, until, read, decide).0
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
        self.grants.acquire(hold, lease, queue, until)
    }

    fn nest(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.set_depth(hold, self.grants.requests.nest(hold, depth, lease), until)
    }

    fn deepen(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        let Grants { requests, .. } = &*self.grants;
        self.set_depth(hold, requests.durable(requests.nest(hold, depth, lease), until), until)
    }

    fn release(&self, hold: &HoldId, until: Instant) -> Result<Standing, Failure> {
        let Grants { rounds, requests } = &*self.grants;
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
        match self.grants.send_transfer(from, to, lease, yields, until) {
            Ok(flight) => {
                let (grants, to) = (self.grants.clone(), to.clone());
                Box::new(move || grants.land(&flight, &to, lease, until))
            }
            Err(failure) => Box::new(move || Err(failure)),
        }
    }

    fn inspect(&self, name: &str, until: Instant) -> Result<Option<Holder>, Failure> {
        let inspect = self.grants.requests.inspect(name);
        let seen = self.ask(name, inspect, until, plain(inspected), Votes::holder);
        seen.map(|Inspected(holder)| holder)
    }

    fn force(&self, name: &str, until: Instant) -> Result<bool, Failure> {
        let force = self.grants.requests.force(name);
        self.tell(name, force, until).map(|standing| standing == Standing::Ours)
    }

    fn leave(&self, name: &str, client: &str, until: Instant) -> Result<(), Failure> {
        self.tell(name, self.grants.requests.leave(name, client), until).map(drop)
    }

    fn wakeups(&self, client: &str) -> Option<Box<dyn Wakeups>> {
        let keys = self.grants.requests.keys.clone();
        Some(Box::new(Subscriptions::new(
            self.grants.rounds.parts.nodes.clone(),
            keys,
            client,
            self.patience,
        )))
    }

    fn upkeep(&self) -> Box<dyn Upkeep> {
        let keys = &self.grants.requests.keys;
        Box::new(Caretakers::new(self.grants.rounds.parts.nodes.clone(), keys, self.io_timeout))
    }

    fn takes_back(&self) -> bool {
        true
    }

    fn on_stray(&self, tell: Box<dyn Fn(Stray) + Send + Sync>) {
        self.grants.strays().on_stray(tell);
    }
}
