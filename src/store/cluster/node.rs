//! The servers of a cluster, and where a request goes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::net::endpoint::Endpoint;
use crate::net::error_reply::ErrorReply;
use crate::net::request::Request;
use crate::net::server::ServerFactory;
use crate::store::cluster::slots::{slot_of, tag_of};
use crate::store::keys::ShardTag;
use crate::store::standalone::Standalone;

/// How long a node that is not in the map is kept after it was last named: while a slot moves, only
/// redirections name the node that gets it.
const KEPT: Duration = Duration::from_secs(60);

/// One server of a cluster.
#[derive(Debug)]
pub(super) struct ClusterNode {
    store: Standalone,
    asking: Standalone,
    /// That of the lowest slot which the node serves.
    shard: ShardTag,
    /// Whether the last request failed in a way that may mean that another node serves its slots.
    doubted: AtomicBool,
}

impl ClusterNode {
    /// Makes the pool; nothing is sent yet.
    pub(super) fn new(endpoint: Endpoint, config: &Config, servers: &ServerFactory) -> Self {
        let shard = ShardTag::default();
        let store = Standalone::new(servers.server(endpoint), config).in_cluster(shard.clone());
        let asking = store.asking();
        Self { store, asking, shard, doubted: AtomicBool::new(false) }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.store.server().endpoint()
    }

    /// The address, as users are shown it.
    pub(super) fn label(&self) -> &Arc<str> {
        &self.endpoint().label
    }

    /// Asks which node serves which slots.
    pub(super) fn slots(&self, deadline: Instant) -> Result<Value, Failure> {
        let question = redis::cmd("CLUSTER").arg("SLOTS").take();
        self.store.server().exchange(Request::command(&question), deadline)
    }

    /// The hash tag of the channels over which clients that listen at this node are woken.
    pub(super) fn shard_tag(&self) -> Option<Arc<str>> {
        self.shard.get()
    }

    /// Notes the lowest slot that the node serves. All clients that know the slots choose the same.
    pub(super) fn serve_from(&self, slot: usize) {
        if self.shard_tag().is_none_or(|tag| slot_of(&tag) != slot) {
            self.shard.set(&tag_of(slot));
        }
    }

    /// Returns `true` if another node may serve its slots by now.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Notes that the node has answered.
    pub(super) fn trust(&self) {
        // Each write would take the cache line from other threads.
        if self.is_doubted() {
            self.doubted.store(false, Ordering::Relaxed);
        }
    }
}

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
    node: Arc<ClusterNode>,
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
    pub(super) fn at(&self, endpoint: Endpoint) -> Arc<ClusterNode> {
        let mut nodes = self.by_address.lock();
        let now = Instant::now();
        if let Some(named) = nodes.get_mut(&endpoint.label) {
            named.last_named = now;
            return named.node.clone();
        }
        let unused: Vec<_> = nodes.extract_if(|_, named| !named.is_used()).collect();
        let label = endpoint.label.clone();
        let node = Arc::new(ClusterNode::new(endpoint, &self.config, &self.servers));
        nodes.insert(label, NamedNode { node: node.clone(), last_named: now });
        // Connections are closed while no lock is held.
        drop(nodes);
        drop(unused);
        node
    }

    /// Returns `true` if the node has been named within the last minute.
    pub(super) fn was_named_lately(&self, node: &ClusterNode) -> bool {
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

/// A node and how to ask it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) node: Arc<ClusterNode>,
    /// Whether requests are preceded by ASKING, because the node is only about to get the slot.
    pub(super) asking: bool,
}

impl Target {
    pub(super) fn of(node: Arc<ClusterNode>) -> Self {
        Self { node, asking: false }
    }

    /// The locks there.
    pub(super) fn store(&self) -> &Standalone {
        if self.asking { &self.node.asking } else { &self.node.store }
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.asking == other.asking
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::error_reply;

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
