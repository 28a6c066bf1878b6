//! The servers of one client, each with its pool of connections.

#[cfg(test)]
use std::io;
#[cfg(test)]
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::net::endpoint::Endpoint;
use crate::net::factory::{ConnectionCounters, ConnectionFactory};
use crate::net::multiplexer::Multiplexer;
use crate::net::pool::PoolThread;
use crate::net::route::Route;
use crate::net::shared_call::{CredentialsSource, Resolver};

/// Makes the servers of one client, which share the thread of its pools, its look-ups and its
/// credentials.
#[derive(Clone, Debug)]
pub(crate) struct ServerFactory {
    config: Config,
    pub(crate) thread: PoolThread,
    resolver: Resolver,
    credentials: Option<CredentialsSource>,
    pools: Pools,
}

/// The pools of one client, of servers that it still has, and what was counted in all.
#[derive(Clone, Debug, Default)]
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
            // Connections over which only replies are to come are not in use.
            let unused = u64::from(state.idle_connections) + server.queue.lingering() as u64;
            (all + u64::from(state.connections), idle + unused)
        })
    }
}

impl ServerFactory {
    /// Starts the thread of the pools.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let thread = PoolThread::start().map_err(Error::no_thread)?;
        let (resolver, pools) = (Resolver::default(), Pools::default());
        let credentials = config.credentials.clone().map(CredentialsSource::new);
        Ok(Self { config: config.clone(), thread, resolver, credentials, pools })
    }

    /// The pools of all servers that this makes.
    pub(crate) fn pools(&self) -> Pools {
        self.pools.clone()
    }

    /// The same servers, whose hosts are looked up in this way.
    #[cfg(test)]
    pub(crate) fn looking_up(
        self,
        look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { resolver: Resolver::new(look_up), ..self }
    }

    /// Makes a server with an empty pool. Connections are opened when they are first used.
    pub(crate) fn server(&self, endpoint: Endpoint) -> Arc<Multiplexer> {
        self.pooled(self.connections(endpoint))
    }

    /// As `server`, for a server to which a route leads. Of the endpoint only the login counts.
    pub(crate) fn server_along(&self, route: Route, endpoint: Endpoint) -> Arc<Multiplexer> {
        let mut connections = self.connections(endpoint);
        connections.route = Some(route);
        self.pooled(connections)
    }

    /// Returns what makes connections outside a pool.
    pub(crate) fn connections(&self, endpoint: Endpoint) -> ConnectionFactory {
        let mut factory = ConnectionFactory::new(endpoint, &self.config, self.resolver.clone());
        factory.credentials.clone_from(&self.credentials);
        factory.counters = self.pools.counters.clone();
        factory
    }

    fn pooled(&self, connections: ConnectionFactory) -> Arc<Multiplexer> {
        let server = Multiplexer::new(Arc::new(connections), &self.config, &self.thread);
        let mut known = self.pools.servers.lock();
        known.retain(|server| server.strong_count() > 0);
        known.push(Arc::downgrade(&server));
        server
    }
}
