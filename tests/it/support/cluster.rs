//! A private Redis Cluster: several servers that share the hash slots.
#![allow(
    dead_code,
    reason = "every test, example and bench that includes this file uses a part of it"
)]

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{Server, lock_key, redis_binary, valkey_binary};

const SLOTS: u16 = 16_384;

/// Limit on the time until all nodes agree.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The silence after which a node counts as failed.
const NODE_TIMEOUT: &str = "1500";

/// Masters that share the slots evenly, and possibly one more node.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    /// The number of nodes with slots.
    masters: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Further {
    /// A master without slots. No node names it to clients.
    EmptyMaster,
    None,
    /// A replica of the first master.
    Replica,
}

impl Cluster {
    /// Starts three masters.
    pub(crate) fn of_three() -> Cluster {
        Cluster::of(3)
    }

    /// Like `of_three`, with another binary.
    pub(crate) fn three_of(binary: &Path) -> Cluster {
        Cluster::three_with(binary, &[])
    }

    /// Like `three_of`, with further arguments for the servers.
    pub(crate) fn three_with(binary: &Path, extra_args: &[&str]) -> Cluster {
        Cluster::start(binary, 3, Further::None, extra_args)
    }

    pub(crate) fn of(masters: usize) -> Cluster {
        Cluster::start(&redis_binary(), masters, Further::None, &[])
    }

    /// Starts three masters, and a replica of the first.
    pub(crate) fn with_replica() -> Cluster {
        Cluster::start(&redis_binary(), 3, Further::Replica, &[])
    }

    /// Starts three masters, and another without slots.
    pub(crate) fn with_empty_master() -> Cluster {
        Cluster::start(&redis_binary(), 3, Further::EmptyMaster, &[])
    }

    /// The cluster of all tests that do not change it; each uses its own prefix.
    pub(crate) fn shared() -> &'static Cluster {
        // Never dropped: its servers end with this process.
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Cluster::of_three)
    }

    /// Like `shared`, for Valkey.
    pub(crate) fn shared_valkey() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::three_of(valkey_binary()))
    }

    fn start(binary: &Path, masters: usize, further: Further, extra_args: &[&str]) -> Cluster {
        let count = masters + usize::from(further != Further::None);
        // The cluster bus uses the port plus 10,000. If that one is taken, the next attempt uses
        // another.
        let own = ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT];
        let args = [&own, extra_args].concat();
        let node = |_| Server::start(binary, &args);
        let cluster = Cluster { nodes: (0..count).map(node).collect(), masters };
        cluster.join();
        if further == Further::Replica {
            cluster.replicate();
        }
        cluster
    }

    fn join(&self) {
        for (number, node) in (0..).zip(&self.nodes) {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if usize::from(number) < self.masters {
                let first = number * self.share();
                add_slots(node, first..(first + self.share()).min(SLOTS));
            }
        }
        for node in &self.nodes {
            for other in &self.nodes {
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        self.wait_until("all nodes know one another", |node| {
            let info: String = node.ask(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&known)
        });
    }

    fn replicate(&self) {
        let replica = &self.nodes[self.masters];
        let id: String = self.nodes[0].ask(&["CLUSTER", "MYID"]);
        replica.command(&["CLUSTER", "REPLICATE", &id]);
        let linked = |_: &Server| {
            let info: String = replica.ask(&["INFO", "replication"]);
            info.contains("master_link_status:up")
        };
        self.wait_until("the replica has the data", linked);
        // Otherwise no node would vote for it.
        self.wait_until("all nodes know the replica", |node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.contains("slave") && line.contains(&id))
        });
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let deadline = Instant::now() + AGREEMENT_TIMEOUT;
        while !self.nodes.iter().all(&holds) {
            assert!(Instant::now() < deadline, "not yet: {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The URLs of all nodes.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The slot of a lock of a client that sets no prefix.
    pub(crate) fn slot(&self, name: &str) -> u16 {
        self.nodes[self.masters - 1].ask(&["CLUSTER", "KEYSLOT", &lock_key(name)])
    }

    /// Returns how many slots a master has at first.
    fn share(&self) -> u16 {
        SLOTS.div_ceil(u16::try_from(self.masters).expect("a few"))
    }

    /// The master that had the slot of a lock at first.
    pub(crate) fn home(&self, name: &str) -> &Server {
        &self.nodes[usize::from(self.slot(name) / self.share())]
    }

    /// Returns a master other than `home`.
    pub(crate) fn away(&self, name: &str) -> &Server {
        &self.nodes[(usize::from(self.slot(name) / self.share()) + 1) % self.masters]
    }

    /// Returns names whose slots are at that node from the start.
    pub(crate) fn names_at(&self, node: usize) -> impl Iterator<Item = String> {
        let names = (0..).map(|number| format!("name {number}"));
        names.filter(move |name| self.home(name).port() == self.nodes[node].port())
    }

    /// The first of these names.
    pub(crate) fn name_at(&self, node: usize) -> String {
        self.names_at(node).next().expect("names are many")
    }

    /// Prepares to move the slot of a lock away from home.
    pub(crate) fn move_away(&self, name: &str) -> Move<'_> {
        let masters = &self.nodes[..self.masters];
        Move {
            masters,
            slot: self.slot(name).to_string(),
            from: self.home(name),
            to: self.away(name),
        }
    }

    /// Prepares to move the slot of a key to the last node, which is a master without slots.
    pub(crate) fn move_to_last(&self, key: &str) -> Move<'_> {
        let (masters, to) = (&self.nodes[..], &self.nodes[self.masters]);
        Move { masters, slot: self.slot(key).to_string(), from: self.home(key), to }
    }
}

/// The move of a slot from one master to another, step by step.
pub(crate) struct Move<'cluster> {
    masters: &'cluster [Server],
    slot: String,
    pub(crate) from: &'cluster Server,
    pub(crate) to: &'cluster Server,
}

impl Move<'_> {
    /// Begins the move, during which the target serves the keys that the source does not have.
    pub(crate) fn begin(&self) {
        self.to.command(&["CLUSTER", "SETSLOT", &self.slot, "IMPORTING", &id(self.from)]);
        self.from.command(&["CLUSTER", "SETSLOT", &self.slot, "MIGRATING", &id(self.to)]);
    }

    /// Moves the keys.
    pub(crate) fn keys(&self) {
        let port = self.to.port().to_string();
        loop {
            let get = ["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"];
            let keys: Vec<String> = self.from.ask(&get);
            if keys.is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            self.from.command(&migrate);
        }
    }

    /// Assigns the slot to the target and tells all nodes, the target first. Returns when all know
    /// that this assignment is the newest: otherwise the next move could undo it.
    pub(crate) fn end(&self) {
        let others = self.masters.iter().filter(|node| node.port() != self.to.port());
        for node in std::iter::once(self.to).chain(others) {
            node.command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id(self.to)]);
        }
        let deadline = Instant::now() + AGREEMENT_TIMEOUT;
        while self.masters.iter().any(|node| epochs(node) != epochs(self.to)) {
            assert!(Instant::now() < deadline, "the masters do not agree");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Performs the whole move.
    pub(crate) fn complete(&self) {
        self.begin();
        self.keys();
        self.end();
    }

    /// Returns the move in the opposite direction.
    pub(crate) fn back(&self) -> Self {
        Self { masters: self.masters, slot: self.slot.clone(), from: self.to, to: self.from }
    }
}

/// Assigns slots to a node, with a command that Redis 6 knows too.
pub(crate) fn add_slots(node: &Server, slots: Range<u16>) {
    let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    node.command(&["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect::<Vec<_>>());
}

fn id(node: &Server) -> String {
    node.ask(&["CLUSTER", "MYID"])
}

/// Returns the configuration epochs of all nodes, as one of them sees them, ordered by the nodes'
/// ids.
fn epochs(node: &Server) -> Vec<(String, String)> {
    let nodes: String = node.ask(&["CLUSTER", "NODES"]);
    let epoch = |line: &str| {
        let mut fields = line.split(' ');
        Some((fields.next()?.to_owned(), fields.nth(5)?.to_owned()))
    };
    let mut epochs: Vec<_> = nodes.lines().filter_map(epoch).collect();
    epochs.sort();
    epochs
}

/// Returns a prefix that no other test in this process uses.
pub(crate) fn unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test {}: ", NEXT.fetch_add(1, Ordering::Relaxed))
}
