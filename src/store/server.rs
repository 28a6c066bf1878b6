//! One server and the connections to it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use redis::Value;
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::config::Config;
use crate::store::connection::Connection;
use crate::store::dialer::Dialer;
use crate::store::endpoint::Endpoint;
use crate::store::failure::{Failure, Trouble};
use crate::store::lane::{Reply, Then, Wire};
use crate::store::route::Route;
use crate::store::script::{Call, Form};
use crate::store::sharing::{self, Sharing, Supply};

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
    sharing: Arc<Sharing<Pooled>>,
    pub(super) dialer: Arc<Dialer>,
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
        Self::over(Dialer::new(endpoint, config, threads), config.pool_size)
    }

    /// As `new`, for a server to which a route leads: of the endpoint only the login counts.
    pub(crate) fn along(
        route: Box<dyn Route>,
        endpoint: Endpoint,
        config: &Config,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let mut dialer = Dialer::new(endpoint, config, threads);
        dialer.route = Some(route);
        Self::over(dialer, config.pool_size)
    }

    fn over(dialer: Dialer, size: u32) -> Result<Self, Failure> {
        let dialer = Arc::new(dialer);
        let pool = Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // Both would keep a timer, and with it the thread, alive.
            .max_lifetime(None)
            .idle_timeout(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(dialer.threads.clone())
            .build(Places(dialer.clone()))
            .map_err(|error| Failure::io(Trouble::Unreachable, &dialer.label(), error))?;
        let sharing = Arc::new(Sharing::new(Pooled { pool, dialer: dialer.clone() }));
        Ok(Self { sharing, dialer, asking: false })
    }

    /// The same server and the same connections, with every request preceded by ASKING.
    pub(crate) fn asking(&self) -> Self {
        Self { asking: true, ..self.clone() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.dialer.endpoint
    }

    /// Runs a script. `read` makes sense of its reply; `None` from it means the reply has none.
    pub(crate) fn ask<T>(
        &self,
        call: &Call<'_>,
        until: Instant,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let first = self.exchange(until, |out| call.pack(Form::Hash, out));
        self.finish(first, until, |out| call.pack(Form::Body, out), read)
    }

    /// Makes sense of the first reply to a script. A server that does not know it yet is sent what
    /// `pack_body` writes.
    pub(crate) fn finish<T>(
        &self,
        first: Reply,
        until: Instant,
        pack_body: impl FnOnce(&mut Vec<u8>),
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let reply = match first {
            Err(failure) if failure.code == "NOSCRIPT" => self.exchange(until, pack_body),
            first => first,
        };
        self.understand(&reply?, read)
    }

    pub(crate) fn understand<T>(
        &self,
        reply: &Value,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        read(reply).ok_or_else(|| self.dialer.nonsense())
    }

    /// Asks for a sign of life.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Failure> {
        self.exchange(until, |out| redis::cmd("PING").write_packed_command(out)).map(drop)
    }

    /// A connection of its own for one thread, outside the pool so that the pool cannot starve it.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.dialer.clone())
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn exchange(&self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Reply {
        if self.asking { self.ask_first(until, pack) } else { self.sharing.exchange(until, pack) }
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(crate) fn begin(&self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Pending {
        if self.asking {
            return self.sharing.answered(self.ask_first(until, pack));
        }
        self.sharing.begin(until, pack)
    }

    /// Leaves a request to a thread that reads now, if threads share connections at the moment.
    pub(crate) fn post(
        &self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
        then: Then<Reply>,
    ) -> Option<Posted> {
        if self.asking { None } else { self.sharing.post(until, pack, then) }
    }

    /// Exchanges a request that is preceded by another. That happens only while a slot moves.
    fn ask_first(&self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Reply {
        self.alone(until, |connection| self.exchange_over(connection, until, pack))
    }

    pub(super) fn exchange_over(
        &self,
        connection: &mut Connection,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Reply {
        if self.asking {
            connection.exchange_asking(until, pack)
        } else {
            connection.exchange(until, pack)
        }
    }

    /// Lets `work` have a connection to itself.
    pub(super) fn alone<T>(
        &self,
        until: Instant,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.sharing.alone(until, |connection| work(connection))
    }
}

/// A request that was sent, or will be.
pub(crate) type Pending = sharing::Pending<Pooled>;

/// A request that was left to another thread.
pub(crate) type Posted = sharing::Posted<Pooled>;

/// The pool, as the threads share it.
#[derive(Debug)]
pub(crate) struct Pooled {
    pool: Pool<Places>,
    dialer: Arc<Dialer>,
}

impl Supply for Pooled {
    type Wire = PooledConnection<Places>;

    fn try_get(&self) -> Option<Self::Wire> {
        self.pool.try_get()
    }

    fn get(&self, until: Instant) -> Option<Self::Wire> {
        self.pool.get_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    fn all_in_use(&self) -> Failure {
        let why = "all pooled connections were in use until the time was over";
        Failure::too_late(&self.dialer.label(), why)
    }

    fn no_reply(&self) -> Failure {
        self.dialer.no_reply()
    }
}

impl Wire for PooledConnection<Places> {
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn is_connected(&self) -> bool {
        (**self).is_connected()
    }

    fn connect(&mut self, until: Instant) -> Result<(), Failure> {
        (**self).connect(until)
    }

    fn exchange(&mut self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Reply {
        (**self).exchange(until, pack)
    }

    fn write(&mut self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        (**self).write(until, pack)
    }

    fn receive(&mut self, spin: bool, until: Instant) -> Option<Reply> {
        (**self).receive(spin, until)
    }

    fn silence(&mut self) -> Failure {
        (**self).silence()
    }
}

/// Makes places for connections, never connections: whoever takes a place connects, by a deadline
/// of its own and with an error of its own. Through r2d2 an error would arrive as a text, after the
/// whole time to wait.
#[derive(Debug)]
pub(crate) struct Places(Arc<Dialer>);

impl ManageConnection for Places {
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
