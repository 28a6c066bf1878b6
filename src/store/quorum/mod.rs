//! Locks on N independent servers: a hold exists while more than half of them have it.
//!
//! This is the algorithm known as [Redlock]. Each server keeps the same data as a single server
//! would. A request is written to all of them at once ([`exclusive`], [`links`]). Its outcome is
//! decided as soon as the replies allow it ([`votes`]); [`grants`] says why fencing tokens grow.
//! Background jobs remove what requests without a reply may have left behind ([`ballot`]). Calls
//! leave out servers that fail, until these answer again, and a server that already counts under
//! another address ([`health`]).
//!
//! # Which client is next
//!
//! Each server offers a released lock to the client that has waited longest there, which is usually
//! the same one everywhere. Clients that arrive at nearly the same time may be in a different order
//! at each server. If no majority then makes its offer to the same client, each client takes its
//! offers, gets too few votes and gives them back. Then the lock is offered to no client, and the
//! first to try again gets it. The pauses between attempts are random and, after a wake-up, short.
//! An offer only keeps other clients from a vote, so it cannot make two of them holders. A client
//! that has the lock from a majority may still wait at the other servers. Its release takes it off
//! their queues, because they would otherwise offer the lock to a client that does not want it.
//!
//! # Durability
//!
//! Each server has to meet the demand for replicas or disks itself. Its vote counts once it has
//! confirmed that, over the connection of the request and in the same write. This applies to tokens
//! as well, so that the majorities M and C of [`grants`] keep both hold and counter. A server that
//! waits for its replicas or disk executes nothing else on that connection. So only a few requests
//! may be behind such a wait ([`links`]), and further calls do without the vote of that server.
//! Renewals wait over connections of their own, and count on the same terms. Releases do not wait:
//! one that a crash undoes costs other clients a lease, and the holder nothing.
//!
//! # What servers forget
//!
//! A server that is restarted without its data can grant again what was held there. A hold exists
//! on all servers that were up when it began, and is lost when too few are left. But if two servers
//! of three forget between two renewals, another client gets the lock. Keep the data, as
//! `Durability` can ensure, or restart a server only after the longest lease has ended; and let the
//! resource check the token.
//!
//! [Redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

pub(crate) mod ballot;
pub(crate) mod exclusive;
mod grants;
mod health;
mod links;
pub(crate) mod policies;
mod votes;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::error::{Error, Result as ApiResult};
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::packed::Request;
use crate::net::server::ServerFactory;
use crate::net::wait::Spin;
use crate::store::Store;
use crate::store::background::{BackgroundSettings, InDoubtHold, JobRunner, Wakeups};
use crate::store::commands::{Commands, Scope};
use crate::store::hold_id::HoldId;
use crate::store::quorum::ballot::{Ballot, Effect, QuorumServers};
use crate::store::quorum::exclusive::{ExclusiveLinks, SharedLinks};
use crate::store::quorum::grants::ambiguous;
use crate::store::quorum::links::Links;
use crate::store::quorum::votes::{Votes, majority};
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, Look, OwnerOf, PostedChange,
    ReportReply, Telling,
};
use crate::store::scripts::ScriptReply;

/// N independent servers.
pub(crate) struct Quorum<L = Arc<Links>> {
    pub(crate) servers: Arc<QuorumServers>,
    /// The sets of connections. A name always uses the same one, so that its requests stay in
    /// order.
    pub(crate) links: Vec<L>,
}

/// Maximum number of requests that are sent before waiting for the first reply.
const TOGETHER: usize = 256;

impl Quorum {
    /// Sends nothing yet; connections are opened when they are first used.
    pub(crate) fn new(endpoints: Vec<Endpoint>, factory: &ServerFactory) -> Self {
        let config = &factory.config;
        let settings = BackgroundSettings::new(&Commands::proposing(config), factory);
        let factories = endpoints.into_iter().map(|endpoint| factory.connections(endpoint));
        let servers = QuorumServers::new(factories, settings, Spin::new(config.spin));
        let links = (0..config.pool_size).map(|_| Links::new(&servers, &factory.thread)).collect();
        Self { servers, links }
    }

    /// Fails unless a majority answers.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.links("").connect(deadline).map(drop)
    }

    /// Fails if two of the servers reached so far are the same.
    pub(crate) fn check_distinct(&self) -> ApiResult<()> {
        let run_ids = &self.servers.each[0].run_ids;
        let Some((one, other)) = run_ids.repeated.get() else { return Ok(()) };
        let why = format!("must not name one server twice: {one} and {other} are one");
        Err(Error::invalid("urls", why))
    }
}

impl<L: SharedLinks> Quorum<L> {
    /// Sets the client, and the callback for its holds in doubt.
    pub(crate) fn report_in_doubt_to(
        &self,
        client: &str,
        report: impl Fn(InDoubtHold) + Send + Sync + 'static,
    ) {
        self.servers.in_doubt.report_to(client, Box::new(report));
    }

    fn links(&self, name: &str) -> &L {
        // Always the same ones for a name, so that its requests stay in order.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let count = u64::try_from(self.links.len()).unwrap_or(1);
        &self.links[usize::try_from(hasher.finish() % count).unwrap_or(0)]
    }

    /// Requests a lock from all servers, without waiting for replies. [`conclude`](Self::conclude)
    /// must follow.
    fn propose(&self, request: Acquire<'_>) -> Result<Arc<Ballot<AcquireReply>>, Failure> {
        self.servers.in_doubt.note_lease(request.lease);
        let mut links = self.links(&request.holds[0].name).connect(request.deadline)?;
        Ok(grants::propose(&mut links, request))
    }

    /// Waits for the decision about a proposed lock.
    fn conclude(
        &self,
        ballot: &Ballot<AcquireReply>,
        request: Acquire<'_>,
    ) -> Result<AcquireReply, Failure> {
        let links = self.links(&request.holds[0].name);
        // The request was sent, so failing to get the links leaves its outcome unknown.
        let mut links = links.lock(request.deadline).map_err(ambiguous)?;
        grants::conclude(&mut links, ballot, request)
    }

    /// Sends a request to all servers if a majority is connected, and returns the decision.
    fn decide<T: ScriptReply>(
        &self,
        name: &str,
        request: Request,
        deadline: Instant,
        decide: impl Fn(&Votes<T>) -> Option<Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let mut links = self.links(name).connect(deadline)?;
        let ballot = links.send(Ballot::new(&self.servers, request, decide), |_| true);
        links.wait(&ballot, deadline)
    }

    fn ballot_to_change(&self, request: &HoldRequest<'_>) -> Ballot<HoldReply> {
        let HoldRequest { hold, change, deadline } = *request;
        let commands = &self.servers.settings.commands;
        let request = match change {
            // Only the first release takes the client off the queue: when it is repeated, the
            // client may already be waiting for its next hold. Nor does the release of an adopted
            // hold take its former client off.
            Change::Release { taken_until, .. } if self.servers.in_doubt.is_own(hold) => {
                commands.release_and_leave(hold, taken_until)
            }
            change => commands.change(hold, change),
        };
        let ballot = Ballot::new(&self.servers, request, move |votes| votes.decide_change(change));
        match change {
            Change::Release { taken_until, .. } => {
                ballot.with(Effect::Ends { hold: hold.clone(), taken_until })
            }
            _ if change.is_durable() => ballot.durable(deadline),
            _ => ballot,
        }
    }

    /// Sends a request about a hold, and does not wait for the replies.
    fn send(
        &self,
        request: &HoldRequest<'_>,
    ) -> Result<(Arc<Ballot<HoldReply>>, L::Locked<'_>), Failure> {
        let HoldRequest { hold, change, deadline } = *request;
        if let Some(lease) = change.lease() {
            // An adopted hold may have a longer lease than all holds of this client.
            self.servers.in_doubt.note_lease(lease.whole);
        }
        let links = self.links(&hold.name);
        let mut links = match change {
            // Even without a majority, the hold is released on every server that can be reached.
            Change::Release { .. } => links.prepare(deadline)?,
            _ => links.connect(deadline)?,
        };
        Ok((links.send(self.ballot_to_change(request), |_| true), links))
    }
}

impl<L: SharedLinks> Store for Quorum<L> {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Acquire { holds, lease, deadline, .. } = request;
        self.servers.in_doubt.note_lease(lease);
        grants::acquire(&mut self.links(&holds[0].name).connect(deadline)?, request)
    }

    /// Like `acquire`, for durable locks, one after another. See [`ask`](Self::ask).
    fn acquire_together(&self, requests: &[Acquire<'_>]) -> Vec<Result<AcquireReply, Failure>> {
        // A durable request blocks its connection until replicas or disks have confirmed it.
        if self.servers.settings.demand.is_some() || requests.len() == 1 {
            return requests.iter().map(|request| self.acquire(*request)).collect();
        }
        for request in requests {
            // Begins to open missing connections, all at the same time.
            drop(self.links(&request.holds[0].name).lock_to_post(request.deadline));
        }
        // All are proposed before this waits for the first reply.
        let proposed: Vec<_> = requests.iter().map(|request| self.propose(*request)).collect();
        let mut replies = Vec::with_capacity(requests.len());
        for (request, proposed) in requests.iter().zip(proposed) {
            replies.push(proposed.and_then(|ballot| self.conclude(&ballot, *request)));
        }
        replies
    }

    /// Durable changes are made one after another: otherwise a server that waits for replicas or
    /// its disk would soon lag.
    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        let has_demand = self.servers.settings.demand.is_some();
        let waits = has_demand && requests.iter().any(|request| request.change.is_durable());
        let mut place = 0;
        for requests in requests.chunks(if waits { 1 } else { TOGETHER }) {
            let mut sent = Vec::with_capacity(requests.len());
            for request in requests {
                sent.push(self.send(request).map(|(ballot, links)| {
                    // Dropped here, because the next request may use the same connections.
                    let links = if requests.len() == 1 { Some(links) } else { None };
                    (ballot, links)
                }));
            }
            for (HoldRequest { hold, change, deadline }, sent) in requests.iter().zip(sent) {
                let reply = sent.and_then(|(ballot, links)| {
                    let mut links = match links {
                        Some(links) => links,
                        // Other threads may have read and counted the replies in the meantime.
                        None => self.links(&hold.name).lock(*deadline).map_err(ambiguous)?,
                    };
                    let reply = links.wait(&ballot, *deadline);
                    // A release that failed is repeated by jobs, so it may still succeed.
                    let is_release = matches!(change, Change::Release { .. });
                    if is_release { reply.map_err(ambiguous) } else { reply }
                });
                on_reply(place, reply);
                place += 1;
            }
        }
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        for PostedChange { request, write_by, on_reply } in posts {
            // The links of its name, on which the request that began the hold was sent, too.
            match self.links(&request.hold.name).lock_to_post(write_by) {
                Ok(mut links) => {
                    let ballot = self.ballot_to_change(&request);
                    let ballot = ballot.passed_on(|reply| on_reply(reply.map_err(ambiguous)));
                    links.send(ballot, |_| true);
                }
                // Not sent to any server. The renewer repeats a release.
                Err(failure) => on_reply(Err(failure)),
            }
        }
    }

    fn drain(&self, deadline: Instant) {
        for links in &self.links {
            // Links that are in use until the deadline are skipped: their thread reads the replies.
            if let Ok(mut links) = links.lock(deadline) {
                links.drain(deadline);
            }
        }
    }

    fn withdraws(&self) -> bool {
        true
    }

    fn keeps_order(&self) -> bool {
        true
    }

    /// A quorum has only locks, and no server knows all waiting clients.
    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure> {
        let look = match look {
            Look::Permits => return Ok(ReportReply::default()),
            Look::All | Look::Token => Look::Token,
            look => look,
        };
        let report = self.servers.settings.commands.report(Scope::All, name, look);
        self.decide(name, report, deadline, Votes::decide_holder)
    }

    fn connections(&self) -> Result<(Vec<Connection>, usize), Failure> {
        let each = &self.servers.each;
        let connections = each.iter().map(|server| Connection::new(server.factory.clone()));
        Ok((connections.collect(), majority(each.len())))
    }

    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure> {
        let force = self.servers.settings.commands.force_release(Scope::All, owner);
        Ok(self.decide(owner.name, force, deadline, Votes::decide_any)? == HoldReply::Done)
    }

    /// Every server sends the message, and a client ignores the repeats.
    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure> {
        let tell = self.servers.settings.commands.tell(name, telling);
        self.decide(name, tell, deadline, Votes::decide_any).map(drop)
    }

    fn ping(&self, hold: &HoldId, deadline: Instant) -> Result<(), Failure> {
        let ping = self.servers.settings.commands.ping(hold);
        self.decide(&hold.name, ping, deadline, Votes::decide_hold).map(drop)
    }

    fn wakeups(&self, client: &str, _: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        L::wakeups(&self.servers, &self.links, client)
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        L::jobs(&self.servers, &self.links)
    }
}
