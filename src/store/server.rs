//! One server and the connections to it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use r2d2::{ManageConnection, NopErrorHandler, Pool};
use redis::Value;
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::config::Config;
use crate::store::connection::{Connection, Dialer};
use crate::store::endpoint::Endpoint;
use crate::store::script::Call;
use crate::store::spin::Spin;
use crate::store::{Failure, Trouble};

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
    pool: Pool<Places>,
    dialer: Arc<Dialer>,
}

impl Server {
    /// Makes the pool; connections are opened when they are first used.
    pub(crate) fn new(
        endpoint: Endpoint,
        config: &Config,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        let server = endpoint.label.clone();
        let dialer = Arc::new(Dialer {
            endpoint,
            connect_timeout: config.connect_timeout,
            spin: Spin::new(config.spin),
            threads: threads.clone(),
            generation: AtomicU64::new(0),
        });
        let pool = Pool::builder()
            .max_size(config.pool_size)
            .test_on_check_out(false)
            // Both would keep a timer, and with it the thread, alive.
            .max_lifetime(None)
            .idle_timeout(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(threads)
            .build(Places(dialer.clone()))
            .map_err(|error| Failure::io(Trouble::Unreachable, &server, error))?;
        Ok(Self { pool, dialer })
    }

    /// Runs a script on a pooled connection, which is given back before this returns.
    pub(crate) fn ask<T>(
        &self,
        call: &Call<'_>,
        until: Instant,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        self.with_connection(until, |connection| connection.ask(call, until, read))
    }

    /// Asks for a sign of life.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Failure> {
        self.with_connection(until, |connection| connection.ping(until))
    }

    /// A connection of its own for one thread, outside the pool so that the pool cannot starve it.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.dialer.clone())
    }

    fn with_connection<T>(
        &self,
        until: Instant,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let time = until.saturating_duration_since(Instant::now());
        match self.pool.get_timeout(time) {
            Ok(mut connection) => work(&mut connection),
            Err(_) => Err(Failure::too_late(
                &self.dialer.endpoint.label,
                "all pooled connections were in use until the time was over",
            )),
        }
    }
}

/// Makes places for connections, never connections: whoever takes a place connects, by a deadline
/// of its own and with an error of its own. Through r2d2 an error would arrive as a text, after the
/// whole time to wait.
#[derive(Debug)]
struct Places(Arc<Dialer>);

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
