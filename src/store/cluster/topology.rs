//! Which node serves which slot: learnt from any node, and again whenever that seems to have
//! changed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::clock::end_of;
use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::store::cluster::map::Map;
use crate::store::cluster::node::{ClusterNode, Redirect, Target, is_doubtful};
use crate::store::cluster::shares::{Share, covered, shares};
use crate::store::cluster::slot::SLOTS;

/// What was learnt is not asked for again for so long: a failover takes longer.
const PAUSE: Duration = Duration::from_millis(50);

/// A request that was redirected more often than this has met nodes that disagree for now.
pub(super) const REDIRECTIONS_MAX: u32 = 5;

/// What is known of a cluster.
pub(super) struct Topology {
    config: Config,
    servers: ServerFactory,
    /// The nodes that the user has named.
    seeds: Vec<Arc<ClusterNode>>,
    map: RwLock<Map>,
    progress: Mutex<Progress>,
    ended: Condvar,
}

/// How far learning is.
#[derive(Debug, Default)]
struct Progress {
    running: bool,
    last_end: Option<Instant>,
    /// Why not everything is known, if so.
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
        let node = |seed| Arc::new(ClusterNode::new(seed, config, servers));
        Self {
            config: config.clone(),
            servers: servers.clone(),
            seeds: seeds.into_iter().map(node).collect(),
            map: RwLock::default(),
            progress: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// The node that serves a slot, as far as is known.
    pub(super) fn owner(&self, slot: usize) -> Option<Arc<ClusterNode>> {
        self.map.read().owner(slot).cloned()
    }

    /// All masters, and a number that changes with them.
    pub(super) fn masters(&self) -> (Vec<Arc<ClusterNode>>, u64) {
        let map = self.map.read();
        (map.masters().cloned().collect(), map.version())
    }

    /// Returns `true` if the node serves slots, as far as is known.
    pub(super) fn is_master(&self, node: &Arc<ClusterNode>) -> bool {
        self.map.read().master(node.label()).is_some_and(|master| Arc::ptr_eq(master, node))
    }

    pub(super) fn version(&self) -> u64 {
        self.map.read().version()
    }

    /// Whom to ask about a slot. If there are doubts, what can be learnt in half of the time is
    /// learnt first.
    pub(super) fn target(
        self: &Arc<Self>,
        slot: usize,
        deadline: Instant,
    ) -> Result<Target, Failure> {
        let owner = self.owner(slot).filter(|owner| !owner.is_doubted());
        let owner = owner.or_else(|| {
            self.learn_until(half_way_to(deadline));
            self.owner(slot)
        });
        owner.map(Target::of).ok_or_else(uncovered)
    }

    /// Where to send a request again that a node has sent elsewhere. Does not wait.
    pub(super) fn redirected(
        self: &Arc<Self>,
        failure: &Failure,
        slot: usize,
        from: &ClusterNode,
    ) -> Option<Target> {
        let Redirect { asking, host, port } = Redirect::of(failure)?;
        let node = self.node_at(host.or(from.endpoint().host())?, port);
        if !asking {
            self.map.write().set(slot, &node);
            // More than one slot may have moved, but who was redirected need not wait for that.
            self.learn();
        }
        Some(Target { node, asking })
    }

    /// What the caller is told who gives up.
    pub(super) fn verdict(&self, failure: Failure) -> Failure {
        let passes = match failure.kind {
            // Nodes disagree for now.
            FailureKind::Rejected => matches!(failure.code.as_str(), "ASK" | "MOVED"),
            // A replica may take over soon, unless it is not this node alone.
            FailureKind::Unreachable => !self.is_dead(),
            _ => false,
        };
        if passes { Failure { kind: FailureKind::Transient, ..failure } } else { failure }
    }

    #[cfg(test)]
    pub(super) fn place(&self, slot: usize, seed: usize) {
        self.map.write().set(slot, &self.seeds[seed]);
    }

    /// Tells whether no node at all has answered the last time.
    fn is_dead(&self) -> bool {
        let progress = self.progress.lock();
        progress.failure.as_ref().is_some_and(|failure| failure.kind != FailureKind::Transient)
    }

    /// Takes in how a node has failed, without waiting for what is learnt then.
    pub(super) fn take_in(self: &Arc<Self>, failure: &Failure, from: &ClusterNode) {
        if is_doubtful(failure) {
            from.doubt();
            self.learn();
        }
    }

    /// Learns anew, on a thread of its own, unless that is under way or was done just now.
    pub(super) fn learn(self: &Arc<Self>) {
        let mut progress = self.progress.lock();
        if progress.running || progress.last_end.is_some_and(|end| end.elapsed() < PAUSE) {
            return;
        }
        let topology = self.clone();
        let learn = move || {
            let end = End(&topology);
            // What went wrong was kept for those whom it concerns.
            topology.ask_around().unwrap_or_default();
            drop(end);
        };
        let thread = thread::Builder::new().name("leasehold-slots".into());
        progress.running = thread.spawn(learn).is_ok();
    }

    /// Learns anew, or waits until somebody else has.
    fn learn_until(self: &Arc<Self>, deadline: Instant) {
        self.learn();
        let mut progress = self.progress.lock();
        while progress.running && !self.ended.wait_until(&mut progress, deadline).timed_out() {}
    }

    /// Asks one node after the other, until one knows who serves every slot.
    pub(super) fn ask_around(&self) -> Result<(), Failure> {
        let outcome = self.ask_all().and_then(|shares| {
            self.apply(&shares);
            if covered(&shares) == SLOTS { Ok(()) } else { Err(uncovered()) }
        });
        let before = mem::replace(&mut self.progress.lock().failure, outcome.clone().err());
        if let (Err(Failure { server, source, .. }), None) = (&outcome, before) {
            log::warn!(
                target: "leasehold",
                "the cluster's slots are not known: {server}: {source}"
            );
        }
        outcome
    }

    /// What the first node says that knows it all, or else the one that knows most.
    fn ask_all(&self) -> Result<Vec<Share>, Failure> {
        let mut best: Result<Vec<Share>, Failure> = Err(uncovered());
        for node in self.informants() {
            match (self.ask(&node), &best) {
                (Ok(shares), _) if covered(&shares) == SLOTS => return Ok(shares),
                (Ok(shares), Ok(other)) if covered(&shares) <= covered(other) => {}
                (Err(_), Ok(_)) => {}
                (Err(_), Err(refusal)) if refusal.kind == FailureKind::Rejected => {}
                (answer, _) => best = answer,
            }
        }
        best
    }

    /// Whom to ask, the most promising first.
    fn informants(&self) -> Vec<Arc<ClusterNode>> {
        let (mut nodes, _) = self.masters();
        for seed in &self.seeds {
            if nodes.iter().all(|node| !Arc::ptr_eq(node, seed)) {
                nodes.push(seed.clone());
            }
        }
        // Cached, because doubts come and go while this sorts.
        nodes.sort_by_cached_key(|node| node.is_doubted());
        nodes
    }

    /// Asks one node, and fills in its host where it does not know that itself.
    fn ask(&self, node: &ClusterNode) -> Result<Vec<Share>, Failure> {
        let reply = node.slots(end_of(self.config.connect_timeout)).inspect_err(|failure| {
            if is_doubtful(failure) {
                node.doubt();
            }
        })?;
        let mut shares = shares(&reply).ok_or_else(|| nonsense(node))?;
        for share in &mut shares {
            share.host = share.host.take().or_else(|| node.endpoint().host().map(Into::into));
        }
        Ok(shares)
    }

    /// Makes what was learnt known to everybody.
    fn apply(&self, shares: &[Share]) {
        if shares.is_empty() {
            return;
        }
        let mut owners = vec![None; SLOTS];
        let mut nodes = HashMap::new();
        for Share { slots, host, port } in shares {
            let node = match nodes.entry((host, port)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    new.insert(self.node_at(host.as_deref().unwrap_or_default(), *port))
                }
            };
            owners[slots.clone()].fill(Some(node.clone()));
        }
        let before = self.map.write().replace(owners);
        // Perhaps the last of a node: its connections are closed without a lock held.
        drop(before);
    }

    /// The node at an address; a new one has the login of the seed there or else of the first.
    fn node_at(&self, host: &str, port: u16) -> Arc<ClusterNode> {
        let endpoint = self.seeds[0].endpoint().at(host, port);
        let known = self.map.read().master(&endpoint.label).cloned();
        let seed = || self.seeds.iter().find(|seed| *seed.label() == endpoint.label).cloned();
        if let Some(node) = known.or_else(seed) {
            return node;
        }
        Arc::new(ClusterNode::new(endpoint, &self.config, &self.servers))
    }
}

/// Tells everybody that learning has ended, even by a panic.
struct End<'a>(&'a Topology);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        (progress.running, progress.last_end) = (false, Some(Instant::now()));
        self.0.ended.notify_all();
    }
}

fn half_way_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// The failure of what no node is known to serve.
pub(super) fn uncovered() -> Failure {
    let error = io::Error::new(io::ErrorKind::NotFound, "no node serves the hash slot");
    let failure = Failure::io(FailureKind::Transient, &Arc::from("the cluster"), error);
    Failure { code: "CLUSTERDOWN".into(), ..failure }
}

fn nonsense(node: &ClusterNode) -> Failure {
    let error = io::Error::new(io::ErrorKind::InvalidData, "not a sensible reply");
    Failure::io(FailureKind::Unreachable, node.label(), error)
}
