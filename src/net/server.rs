//! One server and its pool of connections.

#[cfg(test)]
use std::io;
#[cfg(test)]
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::config::{Config, Mechanism};
use crate::error::{Error, Result};
use crate::net::connection::Connection;
use crate::net::demand::Demand;
use crate::net::endpoint::Endpoint;
use crate::net::exchange::SendWait;
use crate::net::factory::{ConnectionCounters, ConnectionFactory};
use crate::net::multiplexer::Multiplexer;
use crate::net::pool::{ConnectionPool, PoolThread};
use crate::net::request::{Reply, Request};
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
    multiplexers: Arc<Mutex<Vec<Weak<Multiplexer>>>>,
    counters: Arc<ConnectionCounters>,
}

impl Pools {
    fn add(&self, pool: &Arc<Multiplexer>) {
        let mut pools = self.multiplexers.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    pub(crate) fn counters(&self) -> &ConnectionCounters {
        &self.counters
    }

    /// Returns how many connections there are, and how many of them are idle.
    pub(crate) fn state(&self) -> (u64, u64) {
        let pools = self.multiplexers.lock();
        pools.iter().filter_map(Weak::upgrade).fold((0, 0), |(all, idle), pool| {
            let state = pool.queue.pool.state();
            // Connections over which only replies are to come are not in use.
            let unused = u64::from(state.idle_connections) + pool.queue.lingering() as u64;
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
    pub(crate) fn server(&self, endpoint: Endpoint) -> Server {
        self.pooled(self.connections(endpoint))
    }

    /// As `server`, for a server to which a route leads. Of the endpoint only the login counts.
    pub(crate) fn server_along(&self, route: Route, endpoint: Endpoint) -> Server {
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

    fn pooled(&self, connections: ConnectionFactory) -> Server {
        let factory = Arc::new(connections);
        let shares = self.config.uses(Mechanism::SharedWrites);
        let pool = ConnectionPool::new(factory.clone(), &self.config, &self.thread);
        let multiplexer = Multiplexer::new(pool, shares);
        self.pools.add(&multiplexer);
        Server { multiplexer, factory, asking: false }
    }
}

/// One server. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) multiplexer: Arc<Multiplexer>,
    pub(crate) factory: Arc<ConnectionFactory>,
    /// Whether requests are preceded by ASKING.
    asking: bool,
}

impl Server {
    /// The same server and the same connections, with every request preceded by ASKING.
    pub(crate) fn asking(&self) -> Self {
        Self { asking: true, ..self.clone() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.factory.endpoint
    }

    /// Makes sure that the server answers.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.exchange(Request::command(&redis::cmd("PING")), deadline).map(drop)
    }

    /// Makes a connection outside the pool, for which a thread never has to wait.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.factory.clone())
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn exchange(&self, request: Request, deadline: Instant) -> Reply {
        self.exchange_durably(request, None, deadline)
    }

    /// As `exchange`. A reply that says that something was done counts only once the demand is met,
    /// if there is one.
    pub(crate) fn exchange_durably(
        &self,
        request: Request,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Reply {
        self.multiplexer.exchange(self.addressed(request), demand, deadline)
    }

    /// As `exchange_durably`, for several requests, in one write.
    pub(crate) fn exchange_all(
        &self,
        requests: Vec<Request>,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Vec<Reply> {
        let requests = requests.into_iter().map(|request| self.addressed(request));
        self.multiplexer.exchange_all(requests, demand, deadline)
    }

    /// The request as this server accepts it.
    pub(crate) fn addressed(&self, request: Request) -> Request {
        if self.asking { request.asking() } else { request }
    }
}
