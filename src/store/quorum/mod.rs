//! Locks on N independent servers: a hold exists while more than half of them have it.
//!
//! This is the algorithm known as [Redlock].
//! Each server keeps the same data as a single server would. A request is written to all of them at
//! once ([`link_set`]). Its outcome is decided as soon as the replies allow it ([`votes`]). What
//! requests without a reply may have left is removed in the background ([`in_doubt`]). Servers that
//! fail are left out of calls until they answer again ([`server`]), and so is one that has another
//! address too ([`run_ids`]).
//!
//! # Fencing tokens
//!
//! A token must be greater than those of all earlier holds of the name, though no single server has
//! seen all of them. The client proposes one: its clock in microseconds. A server gives that token,
//! or one more than its counter if the counter has reached the proposal, and sets its counter to
//! what it gives. The hold's token is the greatest that a majority M has given. Before the caller
//! gets the guard, a majority C confirms that its counters have reached the token *while the hold
//! existed there*. A server that gave just that token has confirmed it already; on the others
//! `raise.lua` raises the counter. Usually all servers have given the proposal, and there is
//! nothing to raise.
//!
//! Why tokens grow: let a hold with token F be followed by another. The later hold's M and the
//! earlier hold's C are majorities, so they have a server S in common. A majority counts only while
//! its leases last, so the later hold existed on S when it was granted. S therefore let it begin
//! after the earlier hold had ended there. S had confirmed F while the earlier hold existed, so its
//! counter had reached F before, and counters only grow. So S gave a token greater than F, and the
//! later hold's token is the greatest of those given. `tests/protocol/quorum` checks this on a
//! model, in all states within bounds.
//!
//! A client of which several threads wait asks for a block of tokens, for holds that follow one
//! another. A server that gives the proposal raises its counter to the end of the block. The hold
//! has as many of these tokens as the counters of a majority have reached, which takes the place of
//! C; if no majority has given the same first token, it has that one alone.
//!
//! The argument needs, for any two majorities, a common server that has kept its counter. Of an
//! even number of servers one may lose it; of an odd number none may. Otherwise the token is still
//! greater as long as the client's clock is not behind.
//!
//! # Which client is next
//!
//! Each server offers a released lock to the client that has waited longest there, which is usually
//! the same one everywhere. If clients have come at nearly the same time, in another order at each
//! server, and no majority makes its offer to the same one, each of them takes its offers, gets too
//! few votes and gives them back. Then the lock is offered to no client, and the first to try again
//! gets it; their pauses are random and, after a wake-up, short. An offer only keeps other clients
//! from a vote, so it cannot make two of them holders.
//!
//! # Durability
//!
//! Each server has to meet the demand for replicas or disks itself. Its vote counts once it has
//! said so, over the connection of the request and in the same write. That is true of tokens as
//! well, so that the majorities M and C keep both hold and counter. A server that waits for its
//! replicas or disk executes nothing else that comes over that connection. So only a few requests
//! may be behind such a wait ([`link`]), and further calls do without the vote of that server.
//! Renewals wait over connections of their own, and count on the same terms. Releases do not wait:
//! one that a crash undoes costs other clients a lease, and the holder nothing.
//!
//! # What servers forget
//!
//! A server that is restarted without its data grants again what was held there. A hold exists on
//! all servers that were up when it began, and is lost when too few are left; but if two servers of
//! three forget between two renewals, another client gets the lock. Keep the data, as `Durability`
//! can ensure, or restart a server only after the longest lease has ended; and let the resource
//! check the token.
//!
//! [Redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

mod broadcast;
mod commands;
mod grants;
mod in_doubt;
mod jobs;
mod link;
mod link_set;
mod rounds;
mod run_ids;
mod server;
mod shared_links;
mod votes;
mod wakeups;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::config::Config;
use crate::error::{Error, Result as ApiResult};
use crate::event::Events;
use crate::net::durability::Demand;
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::net::spin::Spin;
use crate::store::Store;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::commands::Commands;
use crate::store::decoder::Decoder;
use crate::store::job::{InDoubtHold, JobRunner};
use crate::store::quorum::broadcast::Broadcast;
use crate::store::quorum::commands::{Effect, QuorumCommand, QuorumCommands};
use crate::store::quorum::grants::{Grants, ambiguous};
use crate::store::quorum::in_doubt::DecidesEnd;
use crate::store::quorum::jobs::JobsByVote;
use crate::store::quorum::link_set::QuorumServers;
use crate::store::quorum::rounds::Rounds;
use crate::store::quorum::run_ids::RunIds;
use crate::store::quorum::server::QuorumServer;
use crate::store::quorum::shared_links::LockedLinks;
use crate::store::quorum::votes::holder::decide_holder;
use crate::store::quorum::votes::{Votes, majority};
use crate::store::quorum::wakeups::WakeupsOfMajorities;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, HolderReply, PostedChange,
    ServerConnections,
};
use crate::store::wake::Wakeups;

/// N independent servers.
#[derive(Debug)]
pub(crate) struct Quorum {
    grants: Arc<Grants>,
    run_ids: Arc<RunIds>,
    io_timeout: Duration,
    /// The same for wake-ups, where no lease is at stake.
    wakeups_io_timeout: Duration,
    events: Events,
}

/// The most requests that are sent before waiting for the first reply.
const TOGETHER: usize = 64;

/// A request about a hold that is in flight.
struct SentRequest {
    broadcast: Arc<Broadcast>,
    decoder: Decoder<HoldReply>,
    /// Dropped when the replies are in.
    _ended: Option<DecidesEnd>,
}

impl Quorum {
    /// Sends nothing yet; connections are opened when they are first used.
    pub(crate) fn new(endpoints: Vec<Endpoint>, config: &Config, servers: &ServerFactory) -> Self {
        let demand = Demand::new(config.durability);
        let run_ids = Arc::<RunIds>::default();
        let server = |(number, endpoint)| {
            let factory = Arc::new(servers.connections(endpoint));
            Arc::new(QuorumServer::new(number, factory, demand, &run_ids))
        };
        let io_timeout = config.io_timeout(config.options.first_lease());
        let each = endpoints.into_iter().enumerate().map(server).collect();
        let (in_doubt, spin) = (Arc::default(), Spin::new(config.spin));
        let quorum_servers = Arc::new(QuorumServers { each, in_doubt, spin, io_timeout });
        let rounds = Rounds::new(quorum_servers, config.pool_size, servers.pool_thread());
        let commands = QuorumCommands { commands: Commands::proposing(config), demand };
        let grants = Arc::new(Grants { rounds, commands });
        let (wakeups_io_timeout, events) =
            (config.io_timeout(Duration::MAX), config.events.clone());
        Self { grants, run_ids, io_timeout, wakeups_io_timeout, events }
    }

    /// Fails unless a majority answers.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.grants.rounds.connect("", deadline).map(drop)
    }

    /// Fails if two of the servers reached so far are the same.
    pub(crate) fn check_distinct(&self) -> ApiResult<()> {
        self.run_ids.repeated().map_or(Ok(()), |(one, other)| {
            let why = format!("must not name one server twice: {one} and {other} are one");
            Err(Error::invalid("urls", why))
        })
    }

    /// Sends a command to all servers if a majority is connected, and returns the decision.
    fn count<T: Clone, D>(
        &self,
        name: &str,
        command: QuorumCommand<T>,
        deadline: Instant,
        decide: impl Fn(&Votes<T>) -> Option<Result<D, Failure>>,
    ) -> Result<D, Failure> {
        let rounds = &self.grants.rounds;
        let mut links = rounds.connect(name, deadline)?;
        rounds.ask(&mut links, command, deadline, decide).0
    }

    /// Sends a request about a hold, and does not wait for the replies.
    fn send(&self, request: &HoldRequest<'_>) -> Result<(SentRequest, LockedLinks<'_>), Failure> {
        let Grants { rounds, commands } = &*self.grants;
        let HoldRequest { hold, change, deadline } = *request;
        if let Some(lease) = change.lease() {
            // That of a hold which another client has begun may be longer than all others here.
            self.grants.in_doubt().note_lease(lease);
        }
        let mut links = match change {
            Change::Release { .. } => {
                let mut links = rounds.lock(&hold.name, deadline)?;
                // Without a majority too, the hold is released where it can be.
                links.prepare(deadline);
                links
            }
            _ => rounds.connect(&hold.name, deadline)?,
        };
        let command = commands.change(request);
        let decoder = command.command.decoder.clone();
        let broadcast = rounds.servers.broadcast(command);
        let ended = links.send(&broadcast, |_| true);
        Ok((SentRequest { broadcast, decoder, _ended: ended }, links))
    }

    /// Makes a request about a hold, with the links to itself until it is decided.
    fn ask_alone(&self, request: &HoldRequest<'_>) -> Result<HoldReply, Failure> {
        let (sent, mut links) = self.send(request)?;
        self.receive(request, &sent, &mut links)
    }

    /// Waits for the replies to a request about a hold.
    fn receive(
        &self,
        request: &HoldRequest<'_>,
        sent: &SentRequest,
        links: &mut LockedLinks<'_>,
    ) -> Result<HoldReply, Failure> {
        let (rounds, deadline) = (&self.grants.rounds, request.deadline);
        let SentRequest { broadcast, decoder, .. } = sent;
        let decide = |votes: &Votes<_>| votes.decide_change(request.change);
        let outcome = rounds.count(links, broadcast, deadline, decoder, decide).0;
        match request.change {
            Change::Release { .. } => outcome.map_err(ambiguous),
            _ => outcome,
        }
    }

    fn servers(&self) -> &[Arc<QuorumServer>] {
        &self.grants.rounds.servers.each
    }

    fn commands(&self) -> &Commands {
        &self.grants.commands.commands
    }

    /// Sets the client, and where its holds in doubt are reported.
    pub(crate) fn report_in_doubt_to(
        &self,
        client: &str,
        report: impl Fn(InDoubtHold) + Send + Sync + 'static,
    ) {
        self.grants.in_doubt().report_to(client, Box::new(report));
    }
}

impl Store for Quorum {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.grants.acquire(request)
    }

    /// What must be durable is asked for one hold after the other: a server that waits for its
    /// replicas or disk lags behind soon.
    fn ask(&self, requests: &[HoldRequest<'_>]) -> Vec<Result<HoldReply, Failure>> {
        let waits = self.grants.commands.demand.is_some()
            && requests.iter().any(|request| request.change.is_durable());
        let together = if waits { 1 } else { TOGETHER };
        let replies = requests.chunks(together).flat_map(|requests| {
            if let [request] = requests {
                return vec![self.ask_alone(request)];
            }
            let sent = requests.iter().map(|request| Ok(self.send(request)?.0));
            let sent: Vec<Result<SentRequest, Failure>> = sent.collect();
            let replies = requests.iter().zip(sent).map(|(request, sent)| {
                let (sent, name) = (sent?, &request.hold.name);
                let links = self.grants.rounds.lock(name, request.deadline);
                self.receive(request, &sent, &mut links.map_err(ambiguous)?)
            });
            replies.collect::<Vec<_>>()
        });
        replies.collect()
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        for PostedChange { request, on_reply } in posts {
            let Grants { rounds, commands } = &*self.grants;
            let on_reply = |reply: Result<HoldReply, Failure>| on_reply(reply.map_err(ambiguous));
            rounds.post(&request, commands.change(&request), on_reply);
        }
    }

    fn settle(&self, deadline: Instant) {
        self.grants.rounds.settle(deadline);
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        let inspect = QuorumCommand::new(self.commands().inspect(name), Effect::None);
        self.count(name, inspect, deadline, decide_holder)
    }

    fn inspect_fence(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        let inspect = QuorumCommand::new(self.commands().inspect_fence(name), Effect::None);
        self.count(name, inspect, deadline, decide_holder)
    }

    fn connections(&self) -> Result<ServerConnections, Failure> {
        let servers = self.servers();
        let each = servers.iter().map(|server| server.closed_connection()).collect();
        Ok(ServerConnections { each, required: majority(servers.len()) })
    }

    fn force_release(&self, name: &str, owner: &[u8], deadline: Instant) -> Result<bool, Failure> {
        let force = QuorumCommand::new(self.commands().force_release(name, owner), Effect::None);
        Ok(self.count(name, force, deadline, Votes::decide_any)? == HoldReply::Done)
    }

    fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        let inspect = QuorumCommand::new(self.commands().inspect("ping"), Effect::None);
        self.count("ping", inspect, deadline, decide_holder).map(drop)
    }

    fn wakeups(&self, client: &str, _: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        Box::new(BackgroundWakeups::new(
            WakeupsOfMajorities::new(self.servers().to_vec()),
            self.commands(),
            client,
            self.wakeups_io_timeout,
            None,
            &self.events,
        ))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        let quorum_servers = &self.grants.rounds.servers;
        let servers = quorum_servers.each.clone();
        let policy = JobsByVote { servers, in_doubt: quorum_servers.in_doubt.clone() };
        let (commands, demand) = (self.commands().clone(), self.grants.commands.demand);
        Box::new(BackgroundJobs::new(policy, commands, demand, self.io_timeout))
    }
}
