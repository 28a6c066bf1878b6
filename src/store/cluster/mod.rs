//! Locks on a Redis Cluster: each on the node that serves the hash slot of its name.
//!
//! All keys of a name are in one slot, so every request goes to one node, and a [`Standalone`] per
//! node makes it as for a server that stands alone. This module decides which node that is, and
//! follows redirections. The `redis` crate's own cluster client is not used, because it repeats
//! requests by itself, sleeps beyond any deadline, and has no pub/sub.

mod jobs;
mod node;
mod slots;
mod topology;
mod wakeups;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::config::Config;
use crate::error::{Error, Result as ApiResult};
use crate::event::Events;
use crate::net::demand::Demand;
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::background::{JobRunner, Wakeups};
use crate::store::cluster::jobs::JobsBySlot;
use crate::store::cluster::node::Target;
use crate::store::cluster::slots::slot_of;
use crate::store::cluster::topology::{REDIRECTIONS_MAX, Topology, uncovered};
use crate::store::cluster::wakeups::WakeupsOfMasters;
use crate::store::commands::Commands;
use crate::store::hold_id::HoldKind;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, HoldRequest, HolderReply, PendingReply, PostedChange,
    ReportReply, ServerConnections,
};
use crate::store::standalone::Standalone;
use crate::store::{Store, ask_one};

/// A cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    topology: Arc<Topology>,
    commands: Commands,
    /// What must be met before a renewal counts.
    demand: Option<Demand>,
    io_timeout: Duration,
    /// The same for wake-ups, where no lease is at stake.
    wakeups_io_timeout: Duration,
    events: Events,
}

/// Parses the URLs of the nodes to begin with.
pub(crate) fn parse_seeds(
    urls: impl IntoIterator<Item: AsRef<str>>,
    config: &Config,
) -> ApiResult<Vec<Endpoint>> {
    let seeds = Endpoint::parse_all("seeds", urls, config)?;
    for seed in &seeds {
        if seed.host().is_none() {
            return Err(Error::invalid("seeds", "must be reached over TCP"));
        }
        if seed.database() != 0 {
            return Err(Error::invalid("seeds", "must not have a database number other than 0"));
        }
    }
    Ok(seeds)
}

impl Cluster {
    /// Sends nothing yet.
    pub(crate) fn new(seeds: Vec<Endpoint>, config: &Config, servers: &ServerFactory) -> Self {
        Self {
            topology: Arc::new(Topology::new(seeds, config, servers)),
            commands: Commands::new(config).in_cluster(None),
            demand: Demand::new(config.durability),
            io_timeout: config.io_timeout(config.options.first_lease()),
            wakeups_io_timeout: config.io_timeout(Duration::MAX),
            events: config.events.clone(),
        }
    }

    /// Asks which node serves which slot. Fails unless all slots are served.
    pub(crate) fn explore(&self) -> Result<(), Failure> {
        self.topology.explore()
    }

    /// Sends a request to the node that serves the lock, and follows redirections.
    fn route<T>(
        &self,
        name: &str,
        deadline: Instant,
        ask: impl FnMut(&Standalone) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let slot = self.slot(name);
        let target = self.topology.target(slot, deadline)?;
        self.route_from(target, slot, ask)
    }

    /// As `route`, beginning at a known node.
    fn route_from<T>(
        &self,
        mut target: Target,
        slot: usize,
        mut ask: impl FnMut(&Standalone) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut redirections = 0;
        loop {
            let failure = match ask(target.store()) {
                Ok(reply) => {
                    target.node.trust();
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            match self.topology.redirected(&failure, slot, &target.node) {
                Some(next) if redirections < REDIRECTIONS_MAX => target = next,
                _ => {
                    self.topology.note_failure(&failure, &target.node);
                    return Err(self.topology.classify(failure));
                }
            }
            redirections += 1;
        }
    }

    /// As `route_from`, for a request that was sent to the first node, and whose reply another
    /// thread may wait for.
    fn follow<T: Send + 'static>(
        &self,
        target: Target,
        slot: usize,
        first: PendingReply<T>,
        ask: impl Fn(&Standalone) -> Result<T, Failure> + Send + 'static,
    ) -> PendingReply<T> {
        let (cluster, mut first) = (self.clone(), Some(first));
        PendingReply::new(move || {
            cluster.route_from(target, slot, |node| match first.take() {
                Some(reply) => reply.wait(),
                None => ask(node),
            })
        })
    }

    /// Returns the node that a change is sent to, and the change for that. `None` if no node is
    /// known, so that it has failed.
    fn to_post<'a>(&self, post: PostedChange<'a>) -> Option<(Target, PostedChange<'a>)> {
        let PostedChange { request, on_reply } = post;
        let slot = self.slot(&request.hold.name);
        let Some(owner) = self.topology.owner(slot) else {
            on_reply(Err(uncovered()));
            return None;
        };
        let target = Target::of(owner);
        let (topology, node) = (self.topology.clone(), target.node.clone());
        let on_reply = Box::new(move |reply: Result<HoldReply, Failure>| {
            on_reply(reply.map_err(|failure| {
                // The clean-up follows the redirection.
                topology.redirected(&failure, slot, &node);
                topology.note_failure(&failure, &node);
                topology.classify(failure)
            }));
        });
        Some((target, PostedChange { request, on_reply }))
    }

    fn slot(&self, name: &str) -> usize {
        slot_of(&self.commands.keys.lock(name))
    }
}

impl Store for Cluster {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.route(&request.holds[0].name, request.deadline, |node| node.acquire(request))
    }

    /// Does nothing if the node is not known, because finding it takes time.
    fn start_acquire(&self, request: Acquire<'_>) -> Option<PendingReply<AcquireReply>> {
        let slot = self.slot(&request.holds[0].name);
        let target = Target::of(self.topology.owner(slot)?);
        let first = target.store().start_acquire(request)?;
        let holds = request.holds.to_vec();
        let Acquire { lease, registration, deadline, .. } = request;
        let again = move |node: &Standalone| {
            node.acquire(Acquire { holds: &holds, lease, registration, deadline })
        };
        Some(self.follow(target, slot, first, again))
    }

    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        let mut slots = BTreeMap::<usize, Vec<usize>>::new();
        for (index, name) in names.iter().enumerate() {
            slots.entry(self.slot(name)).or_default().push(index);
        }
        slots
            .values()
            .flat_map(|group| group.chunks(self.commands.group_max()).map(<[usize]>::to_vec))
            .collect()
    }

    fn share_server(&self, one: &str, other: &str) -> bool {
        let owner = |name| self.topology.owner(self.slot(name)).map(|node| node.label().clone());
        owner(one) == owner(other)
    }

    /// One node after the other. A request that is redirected is made again alone.
    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        let mut targets = Vec::<(Target, Vec<usize>)>::new();
        for (index, request) in requests.iter().enumerate() {
            let slot = self.slot(&request.hold.name);
            let target = match self.topology.target(slot, request.deadline) {
                Ok(target) => target,
                Err(failure) => {
                    on_reply(index, Err(failure));
                    continue;
                }
            };
            match targets.iter_mut().find(|(known, _)| *known == target) {
                Some((_, indexes)) => indexes.push(index),
                None => targets.push((target, vec![index])),
            }
        }
        for (target, indexes) in targets {
            let batch: Vec<_> = indexes.iter().map(|index| requests[*index]).collect();
            target.store().ask(&batch, &mut |place, reply| {
                let (request, mut first) = (batch[place], Some(reply));
                let slot = self.slot(&request.hold.name);
                let reply = self.route_from(target.clone(), slot, |node| {
                    first.take().unwrap_or_else(|| ask_one(node, request))
                });
                on_reply(indexes[place], reply);
            });
        }
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        let mut targets = Vec::<(Target, Vec<PostedChange<'_>>)>::new();
        for post in posts {
            let Some((target, post)) = self.to_post(post) else { continue };
            match targets.iter_mut().find(|(known, _)| *known == target) {
                Some((_, posts)) => posts.push(post),
                None => targets.push((target, vec![post])),
            }
        }
        for (target, posts) in targets {
            target.store().post(posts);
        }
    }

    fn settle(&self, deadline: Instant) {
        for node in self.topology.nodes_to_ask() {
            Target::of(node).store().settle(deadline);
        }
    }

    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        self.route(name, deadline, |node| node.inspect(name, deadline))
    }

    fn inspect_fence(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        self.route(name, deadline, |node| node.inspect_fence(name, deadline))
    }

    fn report(&self, name: &str, deadline: Instant) -> Result<ReportReply, Failure> {
        self.route(name, deadline, |node| node.report(name, deadline))
    }

    /// Those of the masters that are known, or become known by this if none is.
    fn connections(&self) -> Result<ServerConnections, Failure> {
        if self.topology.masters().0.is_empty() {
            self.topology.explore()?;
        }
        let (masters, _) = self.topology.masters();
        let mut each = Vec::new();
        for node in masters.into_iter().map(Target::of) {
            each.extend(node.store().connections()?.each);
        }
        Ok(ServerConnections { required: each.len(), each })
    }

    fn force_release(
        &self,
        kind: HoldKind,
        name: &str,
        owner: &[u8],
        deadline: Instant,
    ) -> Result<bool, Failure> {
        self.route(name, deadline, |node| node.force_release(kind, name, owner, deadline))
    }

    fn count(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        self.route(name, deadline, |node| node.count(name, deadline))
    }

    fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.route("", deadline, |node| node.ping(deadline))
    }

    fn wakeups(&self, client: &str, redisson: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        Box::new(BackgroundWakeups::new(
            WakeupsOfMasters::new(self.topology.clone(), self.commands.keys.clone()),
            &self.commands,
            client,
            self.wakeups_io_timeout,
            redisson,
            &self.events,
        ))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        let policy = JobsBySlot::new(self.topology.clone(), self.commands.keys.clone());
        let commands = self.commands.clone();
        Box::new(BackgroundJobs::new(policy, commands, self.demand, self.io_timeout))
    }
}
