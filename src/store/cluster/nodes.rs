//! The nodes of a cluster by address, each with its connections, for callers and background threads
//! alike.
//!
//! A node is kept for as long as the map or a recent redirection names it. While a slot moves,
//! redirections come with each request, and each must lead to the same connections.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::Config;
use crate::net::endpoint::Endpoint;
use crate::net::server::ServerFactory;
use crate::store::cluster::node::ClusterNode;

/// How long a node that is not in the map is kept after it was last named: while a slot moves, only
/// redirections name the node that gets it.
const KEPT: Duration = Duration::from_secs(60);

/// The nodes that were named lately or are in use.
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
