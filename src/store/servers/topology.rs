//! The nodes of a cluster and the slots that they serve. Any node can tell, and is asked again
//! whenever the answer may have changed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::{Mutex, RwLock};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::maps::RandomState;
use crate::base::sync::{lock_until, receive, sleep, spawn};
use crate::config::Mechanism;
use crate::error::Phase;
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::store::commands::Commands;
use crate::store::keys::{Keys, SLOTS, slot_of};
use crate::store::servers::node::{Node, Share, Target, covered, is_doubtful, uncovered, unmapped};

/// Minimum time between two rounds of questions to the nodes. A failover takes longer.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a node has to answer before the next one is asked as well.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// How long a node outside the map is kept after it was last named. While a slot moves, only
/// redirections name its new node.
const KEPT: Duration = Duration::from_secs(60);

/// The known state of a cluster.
pub(super) struct Topology {
    servers: ServerFactory,
    keys: Keys,
    /// The nodes named by the user.
    seeds: Vec<Arc<Node>>,
    /// By address, each with its connections. A node is kept as long as the map or a recent
    /// redirection names it: while a slot moves, each request is redirected, always to the same
    /// connections.
    nodes: Mutex<HashMap<Arc<str>, Arc<Node>, RandomState>>,
    map: RwLock<Map>,
    /// Why no owner of a slot is known, if none is.
    failure: Mutex<Option<Failure>>,
    /// Disconnected once the thread that was started to ask the nodes has finished.
    next_look: Mutex<Option<Receiver<Infallible>>>,
    /// When a thread last asked the nodes. Locked by the thread that is asking.
    last_look: Mutex<Option<Instant>>,
}

/// The nodes by slot.
struct Map {
    owners: Vec<Option<Arc<Node>>>,
    /// By address.
    masters: HashMap<Arc<str>, Arc<Node>, RandomState>,
}

impl Topology {
    /// Starts with the seeds, and sends nothing yet.
    pub(super) fn new(seeds: Vec<Endpoint>, servers: &ServerFactory) -> Self {
        let map = Map { owners: vec![None; SLOTS], masters: HashMap::default() };
        let mut topology = Self {
            servers: servers.clone(),
            keys: Keys::new(&servers.config.prefix),
            seeds: Vec::new(),
            nodes: Mutex::default(),
            map: RwLock::new(map),
            failure: Mutex::default(),
            next_look: Mutex::default(),
            last_look: Mutex::default(),
        };
        topology.seeds = seeds.into_iter().map(|seed| topology.node_of(seed)).collect();
        topology
    }

    /// Returns the hash slot of a name.
    pub(super) fn slot(&self, name: &str) -> usize {
        slot_of(&self.keys.lock(name))
    }

    /// Returns the node that is known to serve a slot.
    pub(super) fn owner(&self, slot: usize) -> Option<Target> {
        self.map.read().owners[slot].clone().map(Target::of)
    }

    /// Returns all known masters.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        self.map.read().masters.values().cloned().collect()
    }

    /// Returns `true` if more requests are likely to be sent to this node.
    pub(super) fn is_in_use(&self, Target { node, asking }: &Target) -> bool {
        if !asking && self.map.read().masters.contains_key(node.label()) {
            return true;
        }
        clock::elapsed(*node.last_named.lock()) < KEPT
    }

    /// Like [`owner`](Self::owner), but if the owner is unknown or doubted, asks the nodes first,
    /// for at most half of the time. The failure says why no node has named the owner.
    pub(super) fn target(
        self: &Arc<Self>,
        slot: usize,
        deadline: Instant,
    ) -> Result<Target, Failure> {
        if let Some(owner) = self.owner(slot).filter(|owner| !owner.node.is_doubted()) {
            return Ok(owner);
        }
        let now = clock::now();
        let end = now + deadline.saturating_duration_since(now) / 2;
        // The channel is disconnected once the nodes have been asked.
        let Err(asked) = receive(&self.learn(), end);
        self.owner(slot).ok_or_else(|| match (asked, self.failure.lock().clone()) {
            // A node that is slow to answer may still do so before the next call.
            (RecvTimeoutError::Timeout, None) => unmapped("no node has replied yet"),
            // The request itself was not sent.
            (_, Some(failure)) if failure.is_ambiguous() => {
                Failure { kind: FailureKind::Unreachable, ..failure }
            }
            (_, failure) => failure.unwrap_or_else(uncovered),
        })
    }

    /// Handles a redirection, of one request with ASKING or of a slot for good. Returns where to
    /// send the request. Does not wait.
    pub(super) fn redirected(
        self: &Arc<Self>,
        asking: bool,
        host: &str,
        port: u16,
        slot: usize,
    ) -> Target {
        let node = self.node_at(host, port);
        if !asking {
            // The node that redirects knows better than the map, which another thread may be
            // replacing.
            self.map.write().set(slot, &node);
            // Other slots may have moved, too. This request does not wait for that answer.
            self.learn();
        }
        Target { node, asking }
    }

    /// Returns `true` if no node answered when all were last asked.
    pub(super) fn is_unreachable(&self) -> bool {
        let failure = self.failure.lock();
        failure.as_ref().is_some_and(|failure| failure.kind != FailureKind::Transient)
    }

    /// Notes that a node has failed. Does not wait to find out whether another one has its slots.
    pub(super) fn note_failure(self: &Arc<Self>, failure: &Failure, from: &Node) {
        if is_doubtful(failure) {
            from.doubt();
            self.learn();
        }
    }

    /// Asks the nodes on a short-lived thread, after a pause if they were asked just now, because
    /// nothing new may be known yet. Returns a channel that is disconnected once they have been
    /// asked.
    pub(super) fn learn(self: &Arc<Self>) -> Receiver<Infallible> {
        let mut next_look = self.next_look.lock();
        if let Some(look) = &*next_look {
            // That thread has not begun to ask, so its answer includes what this thread has
            // noticed.
            return look.clone();
        }
        let (end, look) = bounded(0);
        let topology = self.clone();
        let thread = spawn("leasehold-slots", move || {
            let Some(mut last_look) = lock_until(&topology.last_look, end_of(Duration::MAX)) else {
                return;
            };
            let elapsed = last_look.map_or(PAUSE, clock::elapsed);
            // Many calls fail at once in a failover, and share this question.
            sleep(PAUSE.saturating_sub(elapsed));
            // Changes that are noticed after this point start another look.
            *topology.next_look.lock() = None;
            // The topology keeps the failure.
            topology.explore().unwrap_or_default();
            *last_look = Some(clock::now());
            drop(end);
        });
        // Without a thread, `end` is dropped, so nothing waits, and the next call tries again.
        *next_look = if thread.is_ok() { Some(look.clone()) } else { None };
        look
    }

    /// Asks the nodes until one knows the owners of all slots.
    pub(super) fn explore(&self) -> Result<(), Failure> {
        let outcome = self.ask_all().and_then(|shares| {
            self.apply(&shares);
            if covered(&shares) == SLOTS { Ok(()) } else { Err(uncovered()) }
        });
        let before = mem::replace(&mut *self.failure.lock(), outcome.clone().err());
        if let (Err(Failure { server, source, .. }), None) = (&outcome, before) {
            self.servers
                .events
                .warn(|| format!("the cluster's slots are not known: {server}: {source}"));
        }
        outcome
    }

    /// Returns the reply of the first node that knows all slots, or else of the one that knows
    /// most. Asks the next node without waiting long for one that hangs.
    fn ask_all(&self) -> Result<Vec<Share>, Failure> {
        let mut best: Option<Result<Vec<Share>, Failure>> = None;
        let (sender, replies) = unbounded();
        let mut untried = self.nodes_to_ask().into_iter();
        let mut unanswered = 0;
        loop {
            let next = untried.next();
            let is_last = next.is_none();
            if let Some(node) = next {
                // Each node is asked on a thread of its own, so one that hangs delays no other.
                self.ask(&node, &sender);
                unanswered += 1;
            } else if unanswered == 0 {
                break;
            }
            // By then, every node has failed at its own deadline.
            let last = self.servers.config.connect_timeout.saturating_add(ANSWER_TIME);
            let time = if is_last { last } else { ANSWER_TIME };
            let reply = match receive(&replies, end_of(time)) {
                Ok(reply) => reply,
                Err(_) if is_last => break,
                // It may hang. The next node is asked, too, and the reply of either counts.
                Err(_) => continue,
            };
            unanswered -= 1;
            match (reply, &best) {
                (Ok(shares), _) if covered(&shares) == SLOTS => return Ok(shares),
                (Ok(shares), Some(Ok(other))) if covered(&shares) <= covered(other) => {}
                (Err(_), Some(Ok(_))) => {}
                (Err(next), Some(Err(failure))) if failure.outweighs(&next) => {}
                (reply, _) => best = Some(reply),
            }
        }
        best.unwrap_or_else(|| Err(uncovered()))
    }

    /// Asks a node on a short-lived thread, unless it has not answered the last question yet.
    fn ask(&self, node: &Arc<Node>, replies: &Sender<Result<Vec<Share>, Failure>>) {
        let deadline = end_of(self.servers.config.connect_timeout);
        if node.is_asked.swap(true, Ordering::Relaxed) {
            // A hung node would otherwise take another thread each time.
            let failure = Failure::too_late(node.label(), "it has not answered the last question");
            replies.send(Err(failure)).unwrap_or_default();
            return;
        }
        let asked = node.clone();
        let sender = replies.clone();
        let thread = spawn("leasehold-node", move || {
            let reply = asked.shares(deadline);
            asked.is_asked.store(false, Ordering::Relaxed);
            // If another node has answered first, no thread receives this.
            sender.send(reply).unwrap_or_default();
        });
        if let Err(error) = thread {
            node.is_asked.store(false, Ordering::Relaxed);
            let failure = Failure::io(FailureKind::Unreachable, node.label(), error);
            replies.send(Err(failure.at(Phase::System))).unwrap_or_default();
        }
    }

    /// Returns the nodes to ask, doubted ones last.
    fn nodes_to_ask(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.masters();
        let seeds = self.seeds.iter();
        let seeds = seeds.filter(|seed| !nodes.iter().any(|node| Arc::ptr_eq(node, seed)));
        let seeds: Vec<_> = seeds.cloned().collect();
        nodes.extend(seeds);
        // With cached keys, because other threads may change the doubts while this sorts.
        nodes.sort_by_cached_key(|node| node.is_doubted());
        nodes
    }

    /// Replaces the map with a node's reply.
    fn apply(&self, shares: &[Share]) {
        if shares.is_empty() {
            return;
        }
        let mut owners = vec![None; SLOTS];
        let mut masters = HashMap::default();
        for Share { slots, host, port } in shares {
            // The same node object as before, with its open connections, if it is known.
            let node = self.node_at(host, *port);
            owners[slots.clone()].fill(Some(node.clone()));
            masters.insert(node.label().clone(), node);
        }
        let has_shards = self.servers.config.uses(Mechanism::ShardedWakeups);
        if has_shards {
            for node in masters.values() {
                let first = owners
                    .iter()
                    .position(|owner| owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, node)));
                if let Some(first) = first {
                    node.serve_from(first);
                }
            }
        }
        let before = mem::replace(&mut *self.map.write(), Map { owners, masters });
        // Dropping a node closes its connections, which must not happen under a lock.
        drop(before);
    }

    /// Returns the node that announces an address, with the login of the first seed unless the user
    /// has named it.
    fn node_at(&self, host: &str, port: u16) -> Arc<Node> {
        let (host, port) = self.servers.config.address_map.reachable(host, port);
        self.node_of(self.seeds[0].server.factory.endpoint.at(&host, port))
    }

    /// Returns the node at an address that was named just now: the known one, or a new one without
    /// connections.
    fn node_of(&self, endpoint: Endpoint) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&endpoint.label) {
            *node.last_named.lock() = clock::now();
            return node.clone();
        }
        let unused = nodes.extract_if(|_, node| {
            // Under the lock, no other thread can get a reference to a node that has only this one.
            Arc::strong_count(node) == 1 && clock::elapsed(*node.last_named.lock()) >= KEPT
        });
        let unused: Vec<_> = unused.collect();
        let label = endpoint.label.clone();
        let config = &self.servers.config;
        let commands = Commands::new(config).in_cluster();
        let node = Arc::new(Node::new(self.servers.server(endpoint), commands, config));
        nodes.insert(label, node.clone());
        // Dropped after the lock, because this closes connections.
        drop(nodes);
        drop(unused);
        node
    }
}

impl Map {
    /// Sets the owner of one slot.
    fn set(&mut self, slot: usize, node: &Arc<Node>) {
        self.owners[slot] = Some(node.clone());
        self.masters.insert(node.label().clone(), node.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::net::TcpListener;
    use std::thread;

    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::store::tests::process;

    const SOON: Duration = Duration::from_secs(5);

    impl Topology {
        pub(in crate::store::servers) fn place(&self, slot: usize, seed: usize) {
            self.map.write().set(slot, &self.seeds[seed]);
        }
    }

    #[test]
    fn a_seed_that_may_come_back_counts_more_than_one_that_is_no_redis_server() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let unserved = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = |listener: &TcpListener| {
            format!("redis://{}/", listener.local_addr().expect("an address"))
        };
        let unused = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (foreign, silent, down) = (url(&listener), url(&unserved), url(&unused));
        drop(unused);
        thread::spawn(move || {
            for peer in listener.incoming() {
                let mut peer = peer.expect("a connection");
                peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_or_default();
            }
        });
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        for (seeds, kind) in [
            ([&foreign].to_vec(), FailureKind::Foreign),
            ([&foreign, &silent].to_vec(), FailureKind::Timeout),
            ([&silent, &foreign].to_vec(), FailureKind::Timeout),
            ([&down, &foreign].to_vec(), FailureKind::Unreachable),
        ] {
            let seeds = servers.endpoints("seeds", seeds).expect("good URLs");
            let failure = Topology::new(seeds, &servers).explore().expect_err("no cluster");
            assert_eq!(failure.kind, kind, "{failure:?}");
        }
    }

    #[test]
    fn a_node_that_has_not_answered_is_not_asked_on_another_thread() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let config = Config { connect_timeout: SOON * 12, ..Config::default() };
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let seeds = [format!("redis://127.0.0.1:{port}")];
        let seeds = servers.endpoints("seeds", seeds).expect("a good URL");
        let topology = Topology::new(seeds, &servers);
        let (sender, replies) = unbounded();
        topology.ask(&topology.seeds[0], &sender);
        topology.ask(&topology.seeds[0], &sender);
        assert!(matches!(replies.recv_deadline(end_of(SOON)), Ok(Err(_))), "it fails at once");
    }

    #[test]
    fn a_node_that_was_not_named_for_a_minute_is_forgotten() {
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let seeds = servers.endpoints("seeds", ["redis://127.0.0.1:1"]).expect("a good URL");
        let topology = Topology::new(seeds, &servers);
        let old = topology.node_at("127.0.0.1", 2);
        let label = old.label().clone();
        *old.last_named.lock() -= KEPT;
        topology.node_at("127.0.0.1", 3);
        assert!(topology.nodes.lock().contains_key(&label), "it is in use");
        drop(old);
        topology.node_at("127.0.0.1", 4);
        assert!(!topology.nodes.lock().contains_key(&label));
        assert_eq!(topology.nodes.lock().len(), 3);
    }

    /// Starts a cluster of one node.
    fn cluster() -> process::Server {
        let server = process::Server::start("redis-server", &["--cluster-enabled", "yes"]);
        let slots: Vec<_> = (0..SLOTS).collect();
        let add = redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).take();
        add.exec(&mut server.connect()).expect("it has them");
        server
    }

    #[test]
    fn the_slots_of_a_node_that_has_failed_are_asked_for_before_the_next_request() {
        let server = cluster();
        let unused = TcpListener::bind("127.0.0.1:0").expect("a port");
        let gone = format!("redis://{}", unused.local_addr().expect("an address"));
        drop(unused);
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let seeds = servers.endpoints("seeds", [gone, server.url()]).expect("good URLs");
        let topology = Arc::new(Topology::new(seeds, &servers));
        topology.place(7, 0);
        let failed = topology.target(7, end_of(SOON)).expect("it has the slot").node;
        let error = io::Error::other("no program listens");
        let failure = Failure::io(FailureKind::Unreachable, failed.label(), error);
        topology.note_failure(&failure, &failed);
        let next = topology.target(7, end_of(SOON)).expect("another node has the slot");
        assert_eq!(next.node.label(), topology.seeds[1].label());
    }

    #[test]
    fn the_nodes_are_asked_again_if_a_slot_moves_just_after_they_were_asked() {
        let server = cluster();
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let seeds = servers.endpoints("seeds", [server.url()]).expect("a good URL");
        let topology = Arc::new(Topology::new(seeds, &servers));
        assert!(topology.target(7, end_of(SOON)).is_ok());
        for elsewhere in [1, 2, 3] {
            topology.redirected(false, "127.0.0.1", elsewhere, 7);
            let end = end_of(SOON);
            while topology.owner(7) != Some(Target::of(topology.seeds[0].clone())) {
                assert!(Instant::now() < end, "the node was not asked again");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
