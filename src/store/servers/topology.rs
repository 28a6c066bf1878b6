//! Which node serves which slot: learnt from any node, and again whenever that may have changed.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::base::clock::end_of;
use crate::base::event_thread::Events;
use crate::base::failure::{Failure, FailureKind};
use crate::config::callbacks::AddressMap;
use crate::config::{Config, Mechanism};
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::store::keys::{Keys, SLOTS, slot_of};
use crate::store::servers::node::{Node, Target};
use crate::store::servers::nodes::{
    Map, Nodes, Redirect, Share, covered, is_doubtful, shares, uncovered,
};

/// The nodes are not asked again within this time: a failover takes longer.
const PAUSE: Duration = Duration::from_millis(50);

/// What is known of a cluster.
pub(super) struct Topology {
    keys: Keys,
    connect_timeout: Duration,
    address_map: AddressMap,
    /// Whether clients are woken over sharded channels.
    sharded_wakeups: bool,
    nodes: Nodes,
    /// The nodes that the user has named.
    seeds: Vec<Arc<Node>>,
    map: RwLock<Map>,
    progress: Mutex<Progress>,
    /// Notified when `progress.running` has become false.
    ended: Condvar,
    events: Events,
}

/// How far learning is.
#[derive(Debug, Default)]
struct Progress {
    running: bool,
    last_end: Option<Instant>,
    /// Why the owners of all slots are not known, if they are not.
    failure: Option<Failure>,
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl Topology {
    /// Knows the seeds only, and sends nothing yet.
    pub(super) fn new(seeds: Vec<Endpoint>, config: &Config, servers: &ServerFactory) -> Self {
        let nodes = Nodes::new(config, servers);
        Self {
            keys: Keys::new(&config.prefix),
            connect_timeout: config.connect_timeout,
            address_map: config.address_map.clone(),
            sharded_wakeups: config.uses(Mechanism::ShardedWakeups),
            seeds: seeds.into_iter().map(|seed| nodes.at(seed)).collect(),
            nodes,
            map: RwLock::default(),
            progress: Mutex::default(),
            ended: Condvar::new(),
            events: config.events.clone(),
        }
    }

    /// The hash slot of a name.
    pub(super) fn slot(&self, name: &str) -> usize {
        slot_of(&self.keys.lock(name))
    }

    /// The node that serves a slot, as far as is known.
    pub(super) fn owner(&self, slot: usize) -> Option<Arc<Node>> {
        self.map.read().owners[slot].clone()
    }

    /// All masters, and a number that changes with them.
    pub(super) fn masters(&self) -> (Vec<Arc<Node>>, u64) {
        let map = self.map.read();
        (map.masters.values().cloned().collect(), map.version)
    }

    /// Returns `true` if requests are likely to be sent there again.
    pub(super) fn is_in_use(&self, Target { node, asking }: &Target) -> bool {
        let is_master = || self.map.read().masters.contains_key(node.label());
        !asking && is_master() || self.nodes.was_named_lately(node)
    }

    /// A number that changes with the masters.
    pub(super) fn version(&self) -> u64 {
        self.map.read().version
    }

    /// Where to send a request about a slot. If the owner is not known or doubted, the nodes are
    /// asked first, for half of the time at most.
    pub(super) fn target(
        self: &Arc<Self>,
        slot: usize,
        deadline: Instant,
    ) -> Result<Target, Failure> {
        let owner = self.owner(slot).filter(|owner| !owner.is_doubted());
        let owner = owner.or_else(|| {
            let now = Instant::now();
            self.learn_until(now + deadline.saturating_duration_since(now) / 2);
            self.owner(slot)
        });
        owner.map(Target::of).ok_or_else(uncovered)
    }

    /// Where to send a request that a node has redirected; `None` if it has not. Does not wait.
    pub(super) fn redirected(
        self: &Arc<Self>,
        failure: &Failure,
        slot: usize,
        from: &Node,
    ) -> Option<Target> {
        let Redirect { asking, host, port } = Redirect::of(failure)?;
        let node = self.node_at(host.or(from.server.factory.endpoint.host())?, port);
        if !asking {
            self.map.write().set(slot, &node);
            // Other slots may have moved too. This request does not wait until that is known.
            self.learn();
        }
        Some(Target { node, asking })
    }

    /// The failure as the caller gets it: transient if the cluster is likely to recover soon.
    pub(super) fn classify(&self, failure: Failure) -> Failure {
        // No node has answered when all were asked last.
        let is_unreachable = || {
            let progress = self.progress.lock();
            progress.failure.as_ref().is_some_and(|failure| failure.kind != FailureKind::Transient)
        };
        let passes = match failure.kind {
            // Nodes disagree for now.
            FailureKind::Rejected => matches!(failure.code.as_str(), "ASK" | "MOVED"),
            // A replica may take over soon, unless all nodes are unreachable.
            FailureKind::Foreign | FailureKind::Unreachable => !is_unreachable(),
            _ => false,
        };
        if passes { Failure { kind: FailureKind::Transient, ..failure } } else { failure }
    }

    #[cfg(test)]
    pub(super) fn place(&self, slot: usize, seed: usize) {
        self.map.write().set(slot, &self.seeds[seed]);
    }

    /// Notes that a node has failed. Does not wait until it is known whether another has its slots.
    pub(super) fn note_failure(self: &Arc<Self>, failure: &Failure, from: &Node) {
        if is_doubtful(failure) {
            from.doubt();
            self.learn();
        }
    }

    /// Starts to ask the nodes, on a short-lived thread, unless that is under way or was done just
    /// now.
    pub(super) fn learn(self: &Arc<Self>) {
        let mut progress = self.progress.lock();
        if progress.running || progress.last_end.is_some_and(|end| end.elapsed() < PAUSE) {
            return;
        }
        let topology = self.clone();
        let learn = move || {
            let end = End(&topology);
            // A failure is kept in `progress`.
            topology.explore().unwrap_or_default();
            drop(end);
        };
        let thread = thread::Builder::new().name("leasehold-slots".into());
        progress.running = thread.spawn(learn).is_ok();
    }

    /// As `learn`, and blocks until the nodes were asked or `deadline` has come.
    fn learn_until(self: &Arc<Self>, deadline: Instant) {
        self.learn();
        let mut progress = self.progress.lock();
        while progress.running && !self.ended.wait_until(&mut progress, deadline).timed_out() {}
    }

    /// Asks one node after another until one knows the owners of all slots.
    pub(super) fn explore(&self) -> Result<(), Failure> {
        let outcome = self.ask_all().and_then(|shares| {
            self.apply(&shares);
            if covered(&shares) == SLOTS { Ok(()) } else { Err(uncovered()) }
        });
        let before = mem::replace(&mut self.progress.lock().failure, outcome.clone().err());
        if let (Err(Failure { server, source, .. }), None) = (&outcome, before) {
            self.events.warn(|| format!("the cluster's slots are not known: {server}: {source}"));
        }
        outcome
    }

    /// The reply of the first node that knows all slots, or else of the one that knows most.
    fn ask_all(&self) -> Result<Vec<Share>, Failure> {
        let mut best: Result<Vec<Share>, Failure> = Err(uncovered());
        for node in self.nodes_to_ask() {
            match (self.ask(&node), &best) {
                (Ok(shares), _) if covered(&shares) == SLOTS => return Ok(shares),
                (Ok(shares), Ok(other)) if covered(&shares) <= covered(other) => {}
                (Err(_), Ok(_)) => {}
                (Err(_), Err(failure)) if failure.kind == FailureKind::Rejected => {}
                (reply, _) => best = reply,
            }
        }
        best
    }

    /// The nodes to ask, the doubted ones last.
    pub(super) fn nodes_to_ask(&self) -> Vec<Arc<Node>> {
        let (mut nodes, _) = self.masters();
        for seed in &self.seeds {
            if nodes.iter().all(|node| !Arc::ptr_eq(node, seed)) {
                nodes.push(seed.clone());
            }
        }
        // Cached, because other threads change the doubts while this sorts.
        nodes.sort_by_cached_key(|node| node.is_doubted());
        nodes
    }

    /// Asks one node, and adds its host where it does not know that itself.
    fn ask(&self, node: &Node) -> Result<Vec<Share>, Failure> {
        let reply = node.slots(end_of(self.connect_timeout)).inspect_err(|failure| {
            if is_doubtful(failure) {
                node.doubt();
            }
        })?;
        let mut shares = shares(&reply).ok_or_else(|| nonsense(node))?;
        for share in &mut shares {
            share.host =
                share.host.take().or_else(|| node.server.factory.endpoint.host().map(Into::into));
        }
        Ok(shares)
    }

    /// Replaces the map by what a node has replied.
    fn apply(&self, shares: &[Share]) {
        if shares.is_empty() {
            return;
        }
        let mut owners = vec![None; SLOTS];
        let mut nodes = HashMap::new();
        for Share { slots, host, port } in shares {
            let new = || self.node_at(host.as_deref().unwrap_or_default(), *port);
            let node = nodes.entry((host, port)).or_insert_with(new);
            owners[slots.clone()].fill(Some(node.clone()));
        }
        for node in nodes.values().filter(|_| self.sharded_wakeups) {
            let is_its = |owner: &Option<Arc<Node>>| {
                owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, node))
            };
            if let Some(first) = owners.iter().position(is_its) {
                node.serve_from(first);
            }
        }
        let before = self.map.write().replace(owners);
        // This may drop a node. Its connections are closed while no lock is held.
        drop(before);
    }

    /// The node that announces an address, with the login of the first seed unless the user has
    /// named it.
    fn node_at(&self, host: &str, port: u16) -> Arc<Node> {
        let (host, port) = self.address_map.reachable(host, port);
        self.nodes.at(self.seeds[0].server.factory.endpoint.at(&host, port))
    }
}

/// Ends the waits in `learn_until` when it is dropped, after a panic too.
struct End<'a>(&'a Topology);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        (progress.running, progress.last_end) = (false, Some(Instant::now()));
        self.0.ended.notify_all();
    }
}

fn nonsense(node: &Node) -> Failure {
    let error = io::Error::new(io::ErrorKind::InvalidData, "not a sensible reply");
    Failure::io(FailureKind::Unreachable, node.label(), error)
}
