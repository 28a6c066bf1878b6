//! The nodes of a cluster that are known by now: those that serve slots, as a node replies to
//! `CLUSTER SLOTS`, and those to which requests are redirected.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::net::endpoint::Endpoint;
use crate::net::error_reply::ErrorReply;
use crate::net::server::ServerFactory;
use crate::store::commands::Commands;
use crate::store::keys::{SLOTS, ShardTag};
use crate::store::servers::node::Node;

/// How long a node that is not in the map is kept after it was last named: while a slot moves, only
/// redirections name the node that gets it.
const KEPT: Duration = Duration::from_secs(60);

/// The nodes of a cluster by address, each with its connections, for callers and background threads
/// alike.
///
/// A node is kept for as long as the map or a recent redirection names it. While a slot moves,
/// redirections come with each request, and each must lead to the same connections.
pub(super) struct Nodes {
    config: Config,
    servers: ServerFactory,
    by_address: Mutex<HashMap<Arc<str>, NamedNode>>,
}

struct NamedNode {
    node: Arc<Node>,
    last_named: Instant,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

impl Nodes {
    pub(super) fn new(config: &Config, servers: &ServerFactory) -> Self {
        let (config, servers) = (config.clone(), servers.clone());
        Self { config, servers, by_address: Mutex::default() }
    }

    /// The node at an address that was named just now: the known one, or a new one without
    /// connections.
    pub(super) fn at(&self, endpoint: Endpoint) -> Arc<Node> {
        let mut nodes = self.by_address.lock();
        let now = Instant::now();
        if let Some(named) = nodes.get_mut(&endpoint.label) {
            named.last_named = now;
            return named.node.clone();
        }
        let unused: Vec<_> = nodes.extract_if(|_, named| !named.is_used()).collect();
        let label = endpoint.label.clone();
        let commands = Commands::new(&self.config).in_cluster(ShardTag::default());
        let server = self.servers.server(endpoint);
        let node = Arc::new(Node::new(server, commands, &self.config));
        nodes.insert(label, NamedNode { node: node.clone(), last_named: now });
        // Connections are closed while no lock is held.
        drop(nodes);
        drop(unused);
        node
    }

    /// Returns `true` if the node has been named within the last minute.
    pub(super) fn was_named_lately(&self, node: &Node) -> bool {
        self.by_address.lock().get(node.label()).is_some_and(NamedNode::is_recent)
    }
}

impl NamedNode {
    fn is_recent(&self) -> bool {
        self.last_named.elapsed() < KEPT
    }

    /// Returns `true` if the node is recent, in the map, or otherwise known elsewhere.
    fn is_used(&self) -> bool {
        self.is_recent() || Arc::strong_count(&self.node) > 1
    }
}

/// Where a node redirects a request that it does not execute.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirect<'a> {
    /// Only this request, because the slot is moving; else the node there has the slot for good.
    pub(super) asking: bool,
    /// `None`: the host that has redirected the request.
    pub(super) host: Option<&'a str>,
    pub(super) port: u16,
}

impl<'a> Redirect<'a> {
    /// Reads `MOVED 3999 127.0.0.1:6381` or ASK; `None` for every other failure.
    pub(super) fn of(failure: &'a Failure) -> Option<Self> {
        if !matches!(&*failure.code, "ASK" | "MOVED") {
            return None;
        }
        let reply = failure.source.downcast_ref::<ErrorReply>()?;
        let (_slot, address) = reply.details.split_once(' ')?;
        // An IPv6 address has no brackets here.
        let (host, port) = address.rsplit_once(':')?;
        Some(Self {
            asking: failure.code == "ASK",
            host: Some(host).filter(|host| is_known(host)),
            port: port.parse().ok()?,
        })
    }
}

/// Returns `true` if a node knows its host: `?` and an empty string mean that it does not.
pub(super) fn is_known(host: &str) -> bool {
    !matches!(host, "" | "?")
}

/// Returns `true` if a failure may mean that another node serves the slot by now.
pub(super) fn is_doubtful(failure: &Failure) -> bool {
    !matches!(failure.kind, FailureKind::Rejected | FailureKind::WrongType)
}

/// The nodes by slot.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) owners: Vec<Option<Arc<Node>>>,
    /// By address.
    pub(super) masters: HashMap<Arc<str>, Arc<Node>>,
    /// Grows with every change of `masters`.
    pub(super) version: u64,
}

impl Default for Map {
    fn default() -> Self {
        Self { owners: vec![None; SLOTS], masters: HashMap::new(), version: 0 }
    }
}

impl Map {
    /// Sets the owner of one slot.
    pub(super) fn set(&mut self, slot: usize, node: &Arc<Node>) {
        self.owners[slot] = Some(node.clone());
        let before = self.masters.insert(node.label().clone(), node.clone());
        if before.is_none_or(|before| !Arc::ptr_eq(&before, node)) {
            self.version += 1;
        }
    }

    /// Sets the owners of all slots, and returns the map until now.
    pub(super) fn replace(&mut self, owners: Vec<Option<Arc<Node>>>) -> Self {
        let masters: HashMap<_, _> =
            owners.iter().flatten().map(|node| (node.label().clone(), node.clone())).collect();
        let known = |(label, node): (&Arc<str>, &Arc<Node>)| {
            self.masters.get(label).is_some_and(|before| Arc::ptr_eq(before, node))
        };
        let same = masters.len() == self.masters.len() && masters.iter().all(known);
        let version = if same { self.version } else { self.version + 1 };
        mem::replace(self, Self { owners, masters, version })
    }
}

/// Some slots, and the master that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) slots: RangeInclusive<usize>,
    /// `None`: the host that was asked.
    pub(super) host: Option<String>,
    pub(super) port: u16,
}

/// Reads the reply; `None` if it has another shape.
pub(super) fn shares(reply: &Value) -> Option<Vec<Share>> {
    let Value::Array(entries) = reply else { return None };
    entries.iter().map(share).collect()
}

/// Reads `[first slot, last slot, [host, port, …] of the master, replicas…]`.
fn share(entry: &Value) -> Option<Share> {
    let Value::Array(parts) = entry else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
    let host = match host {
        Value::Nil => None,
        Value::BulkString(bytes) => Some(str::from_utf8(bytes).ok()?.to_owned()),
        _ => return None,
    };
    (first <= last && last < SLOTS).then_some(Share {
        slots: first..=last,
        host: host.filter(|host| is_known(host)),
        port: u16::try_from(*port).ok()?,
    })
}

/// How many slots are served.
pub(super) fn covered(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.slots.clone().count()).sum()
}

/// The failure of a request for a slot that no node is known to serve.
pub(super) fn uncovered() -> Failure {
    let error = io::Error::new(io::ErrorKind::NotFound, "no node serves the hash slot");
    let failure = Failure::io(FailureKind::Transient, &Arc::from("the cluster"), error);
    Failure { code: "CLUSTERDOWN".into(), ..failure }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{cases, values};
    use crate::net::error_reply;

    proptest! {
        #![proptest_config(cases(4000))]

        #[test]
        fn whatever_a_node_replies_names_slots_that_exist_or_has_another_shape(
            reply in values(),
            first in any::<i64>(),
            last in -1..20_000_i64,
            host in values(),
            port in any::<i64>(),
        ) {
            let nearly_right = Value::Array(vec![entry(first % 20_000, last, host, port)]);
            for reply in [reply, nearly_right] {
                for share in shares(&reply).unwrap_or_default() {
                    prop_assert!(share.slots.start() <= share.slots.end());
                    prop_assert!(*share.slots.end() < SLOTS);
                }
            }
        }
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"0a1b".to_vec());
        let node = Value::Array(vec![host, Value::Int(port), id, Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    fn text(host: &str) -> Value {
        Value::BulkString(host.into())
    }

    #[test]
    fn masters_and_their_slots_are_read() {
        let reply = Value::Array(vec![
            entry(0, 8000, text("10.0.0.1"), 7000),
            entry(8001, 16_382, text("?"), 7001),
            entry(16_383, 16_383, Value::Nil, 7002),
        ]);
        let shares = shares(&reply).expect("a good reply");
        let host = |host: &str| Some(host.to_owned());
        assert_eq!(shares[0], Share { slots: 0..=8000, host: host("10.0.0.1"), port: 7000 });
        assert_eq!(shares[1], Share { slots: 8001..=16_382, host: None, port: 7001 });
        assert_eq!(shares[2], Share { slots: 16_383..=16_383, host: None, port: 7002 });
        assert_eq!(covered(&shares), SLOTS);
    }

    #[test]
    fn replies_of_another_shape_are_refused() {
        let odd = [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(0, 16_384, text("host"), 7000)]),
            Value::Array(vec![entry(5, 4, text("host"), 7000)]),
            Value::Array(vec![entry(-1, 4, text("host"), 7000)]),
            Value::Array(vec![entry(0, 4, text("host"), 70_000)]),
            Value::Array(vec![entry(0, 4, Value::Int(1), 7000)]),
        ];
        for reply in odd {
            assert_eq!(shares(&reply), None, "{reply:?}");
        }
    }

    fn failure(reply: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).expect("a reply");
        let redis::Value::ServerError(error) = reply else { panic!("an error reply") };
        error_reply::failure(&error, &Arc::from("here"))
    }

    #[test]
    fn redirections_are_read() {
        for (reply, asking, host, port) in [
            ("MOVED 3999 10.0.0.1:6381", false, Some("10.0.0.1"), 6381),
            ("ASK 3999 node-2.example:7", true, Some("node-2.example"), 7),
            ("MOVED 1 fe80::1:7000", false, Some("fe80::1"), 7000),
            ("MOVED 1 :7000", false, None, 7000),
            ("MOVED 1 ?:7000", false, None, 7000),
        ] {
            let failure = failure(reply);
            assert_eq!(Redirect::of(&failure), Some(Redirect { asking, host, port }), "{reply}");
        }
    }

    #[test]
    fn other_replies_are_no_redirections() {
        for reply in ["MOVED", "MOVED 1", "MOVED 1 host", "MOVED 1 host:x", "ERR 1 host:7"] {
            let failure = failure(reply);
            assert_eq!(Redirect::of(&failure), None, "{reply}");
        }
    }
}
