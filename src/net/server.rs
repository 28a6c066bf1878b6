//! One server and the connections to it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::factory::ConnectionFactory;
use crate::net::lane::Then;
use crate::net::multiplexer::{self, ConnectionSource, Multiplexer};
use crate::net::pipeline::{Transport, WaitFor};
use crate::net::request::{Reply, Request};
use crate::net::route::Route;

/// Starts the thread that serves the pools of one client.
pub(crate) fn pool_threads() -> Arc<ScheduledThreadPool> {
    let threads = ScheduledThreadPool::builder()
        .num_threads(1)
        .thread_name_pattern("leasehold-pool")
        // Otherwise the thread would outlive the client until its last timer has run.
        .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled);
    Arc::new(threads.build())
}

/// A pool of connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    multiplexer: Arc<Multiplexer<Pooled>>,
    pub(crate) factory: Arc<ConnectionFactory>,
    /// Whether requests are preceded by ASKING.
    asking: bool,
}

impl Server {
    /// Makes the pool; connections are opened when they are first used.
    pub(crate) fn new(
        endpoint: Endpoint,
        config: &Config,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        Self::over(ConnectionFactory::new(endpoint, config, threads), config.pool_size)
    }

    /// As `new`, for a server to which a route leads: of the endpoint only the login counts.
    pub(crate) fn along(
        route: Box<dyn Route>,
        endpoint: Endpoint,
        config: &Config,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let mut factory = ConnectionFactory::new(endpoint, config, threads);
        factory.route = Some(route);
        Self::over(factory, config.pool_size)
    }

    fn over(factory: ConnectionFactory, size: u32) -> Result<Self, Failure> {
        let factory = Arc::new(factory);
        let pool = Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // Both would keep a timer, and with it the thread, alive.
            .max_lifetime(None)
            .idle_timeout(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(factory.threads.clone())
            .build(ConnectionSlots(factory.clone()))
            .map_err(|error| Failure::io(FailureKind::Unreachable, &factory.label(), error))?;
        let multiplexer = Arc::new(Multiplexer::new(Pooled { pool, factory: factory.clone() }));
        Ok(Self { multiplexer, factory, asking: false })
    }

    /// The same server and the same connections, with every request preceded by ASKING.
    pub(crate) fn asking(&self) -> Self {
        Self { asking: true, ..self.clone() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.factory.endpoint
    }

    /// The failure of a request that was answered with something that makes no sense.
    pub(crate) fn nonsense(&self) -> Failure {
        self.factory.nonsense()
    }

    /// Asks for a sign of life.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.exchange(Request::command(&redis::cmd("PING")), deadline).map(drop)
    }

    /// A connection of its own for one thread, outside the pool so that the pool cannot starve it.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.factory.clone())
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn exchange(&self, request: Request, deadline: Instant) -> Reply {
        self.multiplexer.exchange(self.addressed(request), deadline)
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(crate) fn begin(&self, request: Request, deadline: Instant) -> Pending {
        self.multiplexer.begin(self.addressed(request), deadline)
    }

    /// Leaves a request to a thread that reads now, if threads share connections at the moment.
    pub(crate) fn post(
        &self,
        request: Request,
        deadline: Instant,
        then: Then<Reply>,
    ) -> Option<Posted> {
        self.multiplexer.post(self.addressed(request), deadline, then)
    }

    /// The request as this server wants it.
    pub(crate) fn addressed(&self, request: Request) -> Request {
        if self.asking { request.asking() } else { request }
    }

    /// Lets `work` have a connection to itself.
    pub(crate) fn alone<T>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.multiplexer.alone(deadline, |connection| work(connection))
    }
}

/// A request that was sent, or will be.
pub(crate) type Pending = multiplexer::Pending<Pooled>;

/// A request that was left to another thread.
pub(crate) type Posted = multiplexer::Posted<Pooled>;

/// The pool, as the threads share it.
#[derive(Debug)]
pub(crate) struct Pooled {
    pool: Pool<ConnectionSlots>,
    factory: Arc<ConnectionFactory>,
}

impl ConnectionSource for Pooled {
    type Transport = PooledConnection<ConnectionSlots>;

    fn try_get(&self) -> Option<Self::Transport> {
        self.pool.try_get()
    }

    fn get(&self, deadline: Instant) -> Option<Self::Transport> {
        self.pool.get_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    fn all_in_use(&self) -> Failure {
        let why = "all pooled connections were in use until the time was over";
        Failure::too_late(&self.factory.label(), why)
    }

    fn no_reply(&self) -> Failure {
        self.factory.no_reply()
    }
}

impl Transport for PooledConnection<ConnectionSlots> {
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn is_connected(&self) -> bool {
        (**self).is_connected()
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        (**self).connect(deadline)
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        (**self).exchange(request, deadline)
    }

    fn write(&mut self, deadline: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        (**self).write(deadline, pack)
    }

    fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        (**self).receive(wait)
    }

    fn poison(&mut self) {
        (**self).poison();
    }

    fn time_out(&mut self) -> Failure {
        (**self).time_out()
    }
}

/// Makes places for connections, never connections: whoever takes a place connects, by a deadline
/// of its own and with an error of its own. Through r2d2 an error would arrive as a text, after the
/// whole time to wait.
#[derive(Debug)]
pub(crate) struct ConnectionSlots(Arc<ConnectionFactory>);

impl ManageConnection for ConnectionSlots {
    type Connection = Connection;
    type Error = Infallible;

    fn connect(&self) -> Result<Connection, Infallible> {
        Ok(Connection::new(self.0.clone()))
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), Infallible> {
        Ok(())
    }

    /// A connection in which something went wrong has left its place already.
    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}
