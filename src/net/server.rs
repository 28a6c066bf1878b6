//! The servers of one client, each with its pool of connections.

use std::sync::{Arc, Weak};
#[cfg(test)]
use std::{io, net::SocketAddr};

use parking_lot::Mutex;

use crate::base::event_thread::Events;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::net::endpoint::Endpoint;
use crate::net::factory::{ConnectionCounters, ConnectionFactory};
use crate::net::multiplexer::Multiplexer;
use crate::net::pool_thread::PoolThread;
use crate::net::route::Route;
use crate::net::shared_call::{CredentialsSource, Resolver};

/// Creates the servers of one client, which share a thread, look-ups and credentials.
#[derive(Clone)]
pub(crate) struct ServerFactory {
    pub(crate) config: Config,
    pub(crate) events: Events,
    pub(crate) thread: PoolThread,
    resolver: Resolver,
    credentials: Option<CredentialsSource>,
    pools: Pools,
}

/// The pools of the servers that a client still uses, and the counters of all its servers.
#[derive(Clone, Default)]
pub(crate) struct Pools {
    servers: Arc<Mutex<Vec<Weak<Multiplexer>>>>,
    counters: Arc<ConnectionCounters>,
}

impl Pools {
    pub(crate) fn counters(&self) -> &ConnectionCounters {
        &self.counters
    }

    /// Returns how many connections there are, and how many of them are idle.
    pub(crate) fn state(&self) -> (u64, u64) {
        let servers = self.servers.lock();
        servers.iter().filter_map(Weak::upgrade).fold((0, 0), |(all, idle), server| {
            let state = server.queue.pool.state();
            // A connection that only waits for replies is not in use by a thread.
            let unused = u64::from(state.idle_connections) + server.queue.lingering() as u64;
            (all + u64::from(state.connections), idle + unused)
        })
    }
}

impl ServerFactory {
    pub(crate) fn new(config: &Config, events: &Events) -> Result<Self> {
        let thread = PoolThread::start().map_err(Error::no_thread)?;
        Ok(Self {
            config: config.clone(),
            events: events.clone(),
            thread,
            resolver: Resolver::default(),
            credentials: config.credentials.clone().map(CredentialsSource::new),
            pools: Pools::default(),
        })
    }

    pub(crate) fn pools(&self) -> Pools {
        self.pools.clone()
    }

    /// Replaces the function that looks up hosts.
    #[cfg(test)]
    pub(crate) fn looking_up(
        self,
        look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { resolver: Resolver::new(look_up), ..self }
    }

    pub(crate) fn endpoint(&self, url: &str) -> Result<Endpoint> {
        Endpoint::parse(url, &self.config, &self.events)
    }

    /// Parses the URLs of several servers, all different. Errors call them `what`.
    pub(crate) fn endpoints(
        &self,
        what: &str,
        urls: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<Vec<Endpoint>> {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for url in urls {
            let endpoint = self.endpoint(url.as_ref())?;
            if endpoints.iter().any(|other| other.label == endpoint.label) {
                let label = endpoint.label;
                return Err(Error::invalid(what, format_args!("must not name {label} twice")));
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            return Err(Error::invalid(what, "must not be empty"));
        }
        Ok(endpoints)
    }

    /// Creates a server with an empty pool. Connections are opened when they are first used.
    pub(crate) fn server(&self, endpoint: Endpoint) -> Arc<Multiplexer> {
        self.pooled(self.connections(endpoint))
    }

    /// Like `server`, for a server to which a route leads. The address of the endpoint is not used.
    pub(crate) fn server_along(&self, route: Route, endpoint: Endpoint) -> Arc<Multiplexer> {
        let mut connections = self.connections(endpoint);
        // A new address makes every connection along the route stale at once.
        connections.epoch = route.epoch.clone();
        connections.route = Some(route);
        self.pooled(connections)
    }

    /// Creates the factory of the connections to a server.
    pub(crate) fn connections(&self, endpoint: Endpoint) -> ConnectionFactory {
        let mut factory = ConnectionFactory::new(endpoint, &self.config, self.resolver.clone());
        factory.credentials.clone_from(&self.credentials);
        factory.counters = self.pools.counters.clone();
        factory
    }

    fn pooled(&self, connections: ConnectionFactory) -> Arc<Multiplexer> {
        let server = Multiplexer::new(Arc::new(connections), &self.config, &self.thread);
        let mut known = self.pools.servers.lock();
        // Nodes of a cluster come and go.
        known.retain(|server| server.strong_count() > 0);
        known.push(Arc::downgrade(&server));
        server
    }
}
