//! A private Redis Cluster: several servers that share the hash slots.
#![allow(
    dead_code,
    reason = "every test, example and bench that includes this file uses a part of it"
)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};

use super::server::Server;

const SLOTS: u16 = 16_384;

/// How long it may take until all nodes agree.
const PATIENCE: Duration = Duration::from_secs(30);

/// After this long a node that does not answer counts as failed.
const NODE_TIMEOUT: &str = "1500";

/// Masters that share the slots evenly, and perhaps a replica of the first.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    masters: usize,
}

impl Cluster {
    /// Starts three masters.
    pub(crate) fn of_three() -> Cluster {
        Cluster::start(3, false)
    }

    /// Starts three masters, and a replica of the first.
    pub(crate) fn with_replica() -> Cluster {
        Cluster::start(3, true)
    }

    /// The cluster of all those that leave it as it is, and use prefixes of their own.
    pub(crate) fn shared() -> &'static Cluster {
        // Never dropped: its servers end with this process.
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Cluster::of_three)
    }

    fn start(masters: usize, replica: bool) -> Cluster {
        let count = masters + usize::from(replica);
        // The bus listens 10,000 above; where that port is taken, the server gets another one.
        let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT];
        let node = |_| Server::start("redis-server", &args);
        let cluster = Cluster { nodes: (0..count).map(node).collect(), masters };
        cluster.join();
        if replica {
            cluster.replicate();
        }
        cluster
    }

    fn join(&self) {
        let share = SLOTS.div_ceil(u16::try_from(self.masters).expect("a few"));
        for (number, node) in (0..).zip(&self.nodes) {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if usize::from(number) < self.masters {
                let (first, last) = (number * share, ((number + 1) * share).min(SLOTS) - 1);
                let (first, last) = (first.to_string(), last.to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
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
        // Otherwise nobody would vote for it.
        self.wait_until("all nodes know the replica", |node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.contains("slave") && line.contains(&id))
        });
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.nodes.iter().all(&holds) {
            assert!(Instant::now() < deadline, "not until now: {what}");
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

    pub(crate) fn slot(&self, key: &str) -> u16 {
        self.nodes[1].ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// The master that had the slot of a key at first.
    pub(crate) fn home(&self, key: &str) -> &Server {
        let share = SLOTS.div_ceil(u16::try_from(self.masters).expect("a few"));
        &self.nodes[usize::from(self.slot(key) / share)]
    }

    /// The master after the one that had the slot of a key at first.
    pub(crate) fn next_to_home(&self, key: &str) -> &Server {
        let share = SLOTS.div_ceil(u16::try_from(self.masters).expect("a few"));
        &self.nodes[(usize::from(self.slot(key) / share) + 1) % self.masters]
    }

    /// A name whose slot is at that node from the start.
    pub(crate) fn name_at(&self, node: usize) -> String {
        let names = (0..).map(|number| format!("name {number}"));
        let mut fitting = names.filter(|name| self.home(name).port() == self.nodes[node].port());
        fitting.next().expect("names are many")
    }

    /// Begins to move a slot: from now on the target serves what the source does not have.
    pub(crate) fn begin_move(&self, slot: u16, from: &Server, to: &Server) {
        let slot = slot.to_string();
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves the keys of a slot that is moving.
    pub(crate) fn move_keys(&self, slot: u16, from: &Server, to: &Server) {
        let (slot, port) = (slot.to_string(), to.port().to_string());
        loop {
            let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            if keys.is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            from.command(&migrate);
        }
    }

    /// Gives the slot to the target for good, as far as the two know.
    pub(crate) fn end_move(&self, slot: u16, from: &Server, to: &Server) {
        let slot = slot.to_string();
        for node in [to, from] {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
        }
    }

    /// Moves a slot with all its keys.
    pub(crate) fn move_slot(&self, slot: u16, from: &Server, to: &Server) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to);
    }

    /// Asks one node after the other until one serves the key.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answers = self.nodes.iter().map(|node| node.try_ask(words));
            if let Some(answer) = answers.filter_map(RedisResult::ok).next() {
                return answer;
            }
            assert!(Instant::now() < deadline, "no node serves {words:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn id(node: &Server) -> String {
    node.ask(&["CLUSTER", "MYID"])
}

/// A prefix that nobody else in this process uses.
pub(crate) fn unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test {}: ", NEXT.fetch_add(1, Ordering::Relaxed))
}
