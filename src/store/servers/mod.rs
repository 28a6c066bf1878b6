//! Locks on one server or on the nodes of a Redis Cluster.
//!
//! In a cluster, a name is on the node that serves its hash slot. All keys of a name are in one
//! slot, so every request goes to one node, which executes it like a standalone server ([`node`]).
//! The differences are which node that is, and that redirections are followed ([`placement`]). The
//! `redis` crate's own cluster client is not used, because it repeats requests by itself, sleeps
//! beyond any deadline, and has no pub/sub.

mod node;
mod placement;
mod topology;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::error::{Error, Result as ApiResult};
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::multiplexer::Multiplexer;
use crate::net::server::ServerFactory;
use crate::store::Store;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::background::{BackgroundSettings, JobRunner, Wakeups};
use crate::store::commands::{Commands, Scope};
use crate::store::hold_id::HoldId;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Ahead, HoldReply, HoldRequest, Look, OwnerOf, PostedChange, ReportReply,
    Telling,
};
use crate::store::servers::node::{Node, Target, uncovered};
use crate::store::servers::placement::{Placement, Progress};
use crate::store::servers::topology::Topology;

/// One server, or the nodes of a cluster.
#[derive(Clone)]
pub(crate) struct Servers {
    placement: Placement,
    background: BackgroundSettings,
}

/// Parses the URLs of the cluster nodes that are asked first.
pub(crate) fn parse_seeds(
    urls: impl IntoIterator<Item: AsRef<str>>,
    servers: &ServerFactory,
) -> ApiResult<Vec<Endpoint>> {
    let seeds = servers.endpoints("seeds", urls)?;
    for seed in &seeds {
        if seed.host().is_none() {
            return Err(Error::invalid("seeds", "must be reached over TCP"));
        }
        if seed.database() != seeds[0].database() {
            return Err(Error::invalid("seeds", "must have the same database number"));
        }
    }
    Ok(seeds)
}

impl Servers {
    /// Creates a store on one server.
    pub(crate) fn one(server: Arc<Multiplexer>, servers: &ServerFactory) -> Self {
        let commands = Commands::new(&servers.config);
        let background = BackgroundSettings::new(&commands, servers);
        let node = Node::new(server, commands, &servers.config);
        Self { placement: Placement::One(Target::of(Arc::new(node))), background }
    }

    /// Creates a store on the nodes of a cluster. Sends nothing yet.
    pub(crate) fn cluster(seeds: Vec<Endpoint>, servers: &ServerFactory) -> Self {
        let commands = Commands::new(&servers.config).in_cluster();
        let background = BackgroundSettings::new(&commands, servers);
        let topology = Topology::new(seeds, servers);
        Self { placement: Placement::Slots(Arc::new(topology)), background }
    }

    /// Fails if the one server is a node of a cluster and other nodes have some of the names.
    pub(crate) fn check_alone(&self, deadline: Instant) -> ApiResult<()> {
        let Placement::One(target) = &self.placement else { return Ok(()) };
        let why = "must begin with redis+cluster:// or rediss+cluster://, because the server is a \
                   node of a cluster, and other nodes have some of the names";
        Error::require(!target.node.has_others(deadline), "url", why)
    }

    /// Asks which node serves which slot. Fails unless all slots are served.
    pub(crate) fn explore(&self) -> Result<(), Failure> {
        match &self.placement {
            Placement::One(_) => Ok(()),
            Placement::Slots(topology) => topology.explore(),
        }
    }

    /// Sends a request to the node that has a name, and follows redirections.
    fn send<T>(
        &self,
        name: &str,
        deadline: Instant,
        mut ask: impl FnMut(&Target) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.send_within(Scope::All, name, deadline, |target, _| ask(target))
    }

    /// Like `send`, for a request that can be executed in a narrower scope.
    fn send_within<T>(
        &self,
        narrowest: Scope,
        name: &str,
        deadline: Instant,
        mut ask: impl FnMut(&Target, Scope) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let topology = match &self.placement {
            Placement::One(target) => return ask(target, Scope::All),
            Placement::Slots(topology) => topology,
        };
        let target = topology.target(topology.slot(name), deadline)?;
        self.placement.follow(name, target, narrowest, ask)
    }
}

impl Store for Servers {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let name = &request.holds[0].name;
        self.send(name, request.deadline, |target| target.acquire(request))
    }

    /// Asks one node after the other. A redirected request is repeated on its own.
    fn acquire_together(&self, requests: &[Acquire<'_>]) -> Vec<Result<AcquireReply, Failure>> {
        let topology = match &self.placement {
            Placement::One(target) => return target.acquire_together(requests),
            Placement::Slots(topology) => topology,
        };
        let mut replies = Vec::new();
        let mut targets = Vec::<(Target, Vec<usize>)>::new();
        for (index, request) in requests.iter().enumerate() {
            let slot = topology.slot(&request.holds[0].name);
            match topology.target(slot, request.deadline) {
                Ok(target) => add(&mut targets, target, index),
                Err(failure) => replies.push((index, Err(failure))),
            }
        }
        for (target, indexes) in targets {
            let batch: Vec<_> = indexes.iter().map(|index| requests[*index]).collect();
            for (index, reply) in indexes.into_iter().zip(target.acquire_together(&batch)) {
                let request = requests[index];
                let name = &request.holds[0].name;
                let mut first = Some(reply);
                let followed =
                    self.placement.follow(name, target.clone(), Scope::All, |target, _| {
                        first.take().unwrap_or_else(|| target.acquire(request))
                    });
                replies.push((index, followed));
            }
        }
        // The replies are grouped by node, but the caller expects the order of its requests.
        replies.sort_unstable_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Not in a cluster, where the request might be redirected.
    fn acquire_ahead(&self, request: Acquire<'_>) -> Option<Ahead> {
        let Placement::One(target) = &self.placement else { return None };
        target.acquire_ahead(request)
    }

    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        let mut slots = BTreeMap::<usize, Vec<usize>>::new();
        // A cluster executes a script only if all its keys have the same slot.
        for (index, name) in names.iter().enumerate() {
            slots.entry(self.placement.slot(name)).or_default().push(index);
        }
        // Services limit the arguments of a command, so large groups are divided.
        let max = self.background.commands.group_max();
        slots.values().flat_map(|group| group.chunks(max).map(<[usize]>::to_vec)).collect()
    }

    fn share_server(&self, one: &str, other: &str) -> bool {
        self.placement.known(one) == self.placement.known(other)
    }

    /// Asks one node after the other. A redirected request is repeated on its own.
    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        let topology = match &self.placement {
            Placement::One(target) => return target.ask(requests, on_reply),
            Placement::Slots(topology) => topology,
        };
        let mut targets = Vec::<(Target, Vec<usize>)>::new();
        for (index, request) in requests.iter().enumerate() {
            let slot = topology.slot(&request.hold.name);
            match topology.target(slot, request.deadline) {
                Ok(target) => add(&mut targets, target, index),
                Err(failure) => on_reply(index, Err(failure)),
            }
        }
        for (target, indexes) in targets {
            let batch: Vec<_> = indexes.iter().map(|index| requests[*index]).collect();
            target.ask(&batch, &mut |place, reply| {
                let request = batch[place];
                let name = &request.hold.name;
                let narrowest = Scope::narrowest(request.change);
                // The first answer is already here. Only a redirection needs another one.
                let mut first = Some(reply);
                let reply =
                    self.placement.follow(name, target.clone(), narrowest, |target, scope| {
                        first.take().unwrap_or_else(|| target.change(scope, request))
                    });
                on_reply(indexes[place], reply);
            });
        }
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        let topology = match &self.placement {
            Placement::One(target) => return target.post(posts),
            Placement::Slots(topology) => topology,
        };
        let mut targets = Vec::<(Target, Vec<PostedChange<'_>>)>::new();
        for PostedChange { request, write_by, on_reply } in posts {
            let name = request.hold.name.clone();
            let Some(target) = topology.owner(topology.slot(&name)) else {
                // A drop does not wait to find the owner. The renewer repeats the release.
                on_reply(Err(uncovered()));
                continue;
            };
            let placement = self.placement.clone();
            let asked = target.clone();
            let on_reply = Box::new(move |reply: Result<HoldReply, Failure>| {
                // Only noted here: the clean-up follows the redirection.
                placement.next(&name, Scope::All, &mut Progress::default(), &reply, &asked);
                on_reply(reply.map_err(|failure| placement.classify(failure)));
            });
            add(&mut targets, target, PostedChange { request, write_by, on_reply });
        }
        for (target, posts) in targets {
            target.post(posts);
        }
    }

    fn drain(&self, deadline: Instant) {
        for node in self.placement.masters() {
            node.server.drain(deadline);
        }
    }

    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure> {
        self.send_within(Scope::narrowest_look(look), name, deadline, |target, scope| {
            target.execute(target.node.commands.report(scope, name, look), None, deadline)
        })
    }

    /// Returns connections to all known masters. If none is known, asks the nodes first.
    fn connections(&self) -> Result<(Vec<Connection>, usize), Failure> {
        let mut nodes = self.placement.masters();
        if nodes.is_empty() {
            self.explore()?;
            nodes = self.placement.masters();
        }
        let each: Vec<_> =
            nodes.iter().map(|node| Connection::new(node.server.factory.clone())).collect();
        let required = each.len();
        Ok((each, required))
    }

    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure> {
        let reply: HoldReply =
            self.send_within(Scope::Lock, owner.name, deadline, |target, scope| {
                target.execute(target.node.commands.force_release(scope, owner), None, deadline)
            })?;
        Ok(reply == HoldReply::Done)
    }

    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure> {
        let _told: HoldReply = self.send(name, deadline, |target| {
            target.execute(target.node.commands.tell(name, telling), None, deadline)
        })?;
        Ok(())
    }

    fn ping(&self, hold: &HoldId, deadline: Instant) -> Result<(), Failure> {
        let _ready: HoldReply = self.send(&hold.name, deadline, |target| {
            target.execute(target.node.commands.ping(hold), None, deadline)
        })?;
        Ok(())
    }

    fn wakeups(&self, client: &str, redisson: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        let policy = self.placement.clone();
        Box::new(BackgroundWakeups::new(policy, &self.background, client, redisson))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(BackgroundJobs::new(self.placement.clone(), self.background.clone()))
    }
}

/// Adds a request to those for the same node.
fn add<T>(targets: &mut Vec<(Target, Vec<T>)>, target: Target, sent: T) {
    match targets.iter_mut().find(|(known, _)| *known == target) {
        Some((_, all)) => all.push(sent),
        None => targets.push((target, vec![sent])),
    }
}
