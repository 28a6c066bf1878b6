//! Locks on N independent servers: a hold stands where more than half of them have it.
//!
//! This is the algorithm known as Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//! Each server keeps the same data as a single one would. A request is written to all of them at
//! once ([`links`]); its outcome is decided as soon as answers can decide it ([`votes`]); what
//! requests without an answer may have left behind is removed in the background ([`in_doubt`]).
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
mod in_doubt;
mod jobs;
mod link;
mod link_pool;
mod links;
mod node;
mod requests;
mod round;
mod votes;
mod wakeups;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::failure::Failure;
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::net::spin::Spin;
use crate::store::Store;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::commands::Commands;
use crate::store::durability::Demand;
use crate::store::hold::{HoldId, Holder};
use crate::store::job::{InDoubtHold, JobRunner};
use crate::store::quorum::grant::{Grants, unsettled};
use crate::store::quorum::jobs::JobsByVote;
use crate::store::quorum::links::QuorumParts;
use crate::store::quorum::node::QuorumServer;
use crate::store::quorum::requests::{Effect, QuorumCommand, Requests};
use crate::store::quorum::round::Rounds;
use crate::store::quorum::votes::Votes;
use crate::store::quorum::wakeups::WakeupsOfMajorities;
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, PendingReply, SetDepth, Transfer, TransferReply,
};
use crate::store::wake::Wakeups;

/// N independent servers.
#[derive(Debug)]
pub(crate) struct Quorum {
    grants: Arc<Grants>,
    io_timeout: Duration,
    /// The same where no lease is at stake.
    retry: Duration,
}

impl Quorum {
    /// Makes ready; connections are opened when they are first used.
    pub(crate) fn new(endpoints: Vec<Endpoint>, config: &Config, servers: &ServerFactory) -> Self {
        let dialers = endpoints.into_iter().map(|at| Arc::new(servers.connections(at)));
        let demand = Demand::new(config.durability);
        let node = |(number, factory)| Arc::new(QuorumServer::new(number, factory, demand));
        let nodes = dialers.enumerate().map(node);
        let io_timeout = config.io_timeout(config.options.first_lease());
        let parts = Arc::new(QuorumParts {
            nodes: nodes.collect(),
            in_doubt: Arc::default(),
            spin: Spin::new(config.spin),
            retry: io_timeout,
        });
        let rounds = Rounds::new(parts, config.pool_size, servers.pool_thread());
        let requests = Requests { commands: Commands::proposing(config), demand };
        let grants = Arc::new(Grants { rounds, requests });
        Self { grants, io_timeout, retry: config.io_timeout(Duration::MAX) }
    }

    /// Makes sure that a majority answers.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.grants.rounds.connect("", deadline).map(drop)
    }

    /// Asks every server if a majority is connected.
    fn ask<T: Clone, A>(
        &self,
        name: &str,
        command: QuorumCommand<T>,
        deadline: Instant,
        decide: impl Fn(&Votes<T>) -> Option<Result<A, Failure>>,
    ) -> Result<A, Failure> {
        let rounds = &self.grants.rounds;
        let mut links = rounds.connect(name, deadline)?;
        rounds.ask(&mut links, command, deadline, decide).0
    }

    fn commands(&self) -> &Commands {
        &self.grants.requests.commands
    }

    /// Sets where to report holds that may be left over.
    pub(crate) fn report_in_doubt_to(&self, report: impl Fn(InDoubtHold) + Send + Sync + 'static) {
        self.grants.in_doubt().on_in_doubt(Box::new(report));
    }
}

impl Store for Quorum {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.grants.acquire(request)
    }

    fn set_depth(&self, request: SetDepth<'_>) -> Result<HoldReply, Failure> {
        let command = self.grants.requests.set_depth(request);
        self.ask(&request.hold.name, command, request.deadline, Votes::standing)
    }

    fn release(&self, hold: &HoldId, deadline: Instant) -> Result<HoldReply, Failure> {
        let Grants { rounds, requests } = &*self.grants;
        let mut links = rounds.take(&hold.name, deadline)?;
        // Also without a majority it is released where it can be.
        links.prepare(deadline);
        let release = requests.release(hold);
        let (outcome, _) = rounds.ask(&mut links, release, deadline, Votes::standing);
        outcome.map_err(unsettled)
    }

    fn transfer(&self, request: Transfer<'_>) -> PendingReply<TransferReply> {
        let grants = self.grants.clone();
        match self.grants.send_transfer(request) {
            Ok(sent) => PendingReply::new(move || grants.finish_transfer(&sent)),
            Err(failure) => PendingReply::new(move || Err(failure)),
        }
    }

    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<Holder>, Failure> {
        let inspect = QuorumCommand::new(self.commands().inspect(name), Effect::Nothing);
        self.ask(name, inspect, deadline, Votes::holder)
    }

    fn force_release(&self, name: &str, deadline: Instant) -> Result<bool, Failure> {
        let force = QuorumCommand::new(self.commands().force_release(name), Effect::Nothing);
        Ok(self.ask(name, force, deadline, Votes::any)? == HoldReply::Held)
    }

    fn unregister(&self, name: &str, client: &str, deadline: Instant) -> Result<(), Failure> {
        let command = self.commands().unregister(name, client);
        let command = QuorumCommand::new(command, Effect::Nothing);
        self.ask(name, command, deadline, Votes::any).map(drop)
    }

    fn wakeups(&self, client: &str) -> Option<Box<dyn Wakeups>> {
        let (nodes, keys) = (self.grants.rounds.parts.nodes.clone(), self.commands().keys.clone());
        let policy = WakeupsOfMajorities::new(nodes);
        Some(Box::new(BackgroundWakeups::new(policy, keys, client, self.retry)))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        let nodes = self.grants.rounds.parts.nodes.clone();
        let commands = self.commands().clone();
        Box::new(BackgroundJobs::new(JobsByVote(nodes), commands, self.io_timeout))
    }
}
