//! The pool of connections to one server, and the thread that serves all pools of a client.
//!
//! The pool is r2d2's. A pool makes connections closed, so neither making one nor a thread that
//! waits for one ever depends on the network; the thread that uses a connection opens it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use r2d2::{ManageConnection, NopErrorHandler, Pool};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::base::failure::Failure;
use crate::config::Config;
use crate::net::connection::Connection;
use crate::net::factory::ConnectionFactory;

const NAME: &str = "leasehold-pool";

/// The thread that serves all pools of a client. It ends with the last pool and the last clone of
/// this.
///
/// Work on it must be brief and do no I/O that could block: requests may be waiting for a
/// connection that this thread makes.
#[derive(Clone)]
pub(crate) struct PoolThread(Arc<ScheduledThreadPool>);

impl fmt::Debug for PoolThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolThread").finish_non_exhaustive()
    }
}

impl PoolThread {
    pub(crate) fn start() -> io::Result<Self> {
        // The builder panics if it gets no thread. So another thread is tried first.
        let first = thread::Builder::new().name(NAME.into()).spawn(|| ())?;
        first.join().unwrap_or_default();
        let builder = ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern(NAME)
            // Otherwise the thread would outlive the client until its last timer has run.
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled);
        let pool = catch_unwind(AssertUnwindSafe(|| builder.build()));
        let pool = pool.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        Ok(Self(Arc::new(pool)))
    }

    /// Runs `work` on the thread after a delay, unless the thread has ended by then.
    pub(crate) fn after(&self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        self.0.execute_after(delay, work);
    }
}

/// Why a pool has no connection for a thread.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// All are in use.
    InUse,
    /// None was made in time. Until now it was in use for other threads.
    Late,
}

/// The pool of connections to one server.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    pool: Pool<ClosedConnections>,
    pub(super) factory: Arc<ConnectionFactory>,
    thread: PoolThread,
    /// How many connections are in use. While they are fewer than the pool may have, a thread gets
    /// one without waiting for a user to finish.
    users: Arc<AtomicU32>,
}

impl ConnectionPool {
    /// Makes an empty pool, without waiting and without I/O.
    pub(crate) fn new(
        factory: Arc<ConnectionFactory>,
        config: &Config,
        thread: &PoolThread,
    ) -> Self {
        let Config { pool_size, idle_timeout, max_lifetime, .. } = *config;
        let manager = ClosedConnections { factory: factory.clone(), max_lifetime };
        // No connection is made before it is needed. With a time limit, r2d2 checks on the thread
        // every 30 s for idle connections that have reached it. It closes these, which does not
        // block, and makes no others.
        let pool = Pool::builder()
            .max_size(pool_size)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .max_lifetime(max_lifetime)
            .idle_timeout(idle_timeout)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(thread.0.clone())
            .build_unchecked(manager);
        Self { pool, factory, thread: thread.clone(), users: Arc::default() }
    }

    pub(super) fn state(&self) -> r2d2::State {
        self.pool.state()
    }

    /// Returns a connection unless all are in use. Blocks for no longer than it takes to make one,
    /// without opening it.
    pub(super) fn try_get(&self, deadline: Instant) -> Result<PooledConnection, NoConnection> {
        let free = |users| (users < self.pool.max_size()).then_some(users + 1);
        let counted = self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free);
        counted.map_err(|_| NoConnection::InUse)?;
        let permit = Permit(self.users.clone());
        #[cfg(all(test, leasehold_shuttle))]
        crate::net::schedules::is_in_time(deadline).then_some(()).ok_or(NoConnection::Late)?;
        let left = || deadline.saturating_duration_since(Instant::now());
        // If none is idle, r2d2 makes one on the pool's thread, which takes a few microseconds.
        let taken = self.pool.try_get().or_else(|| self.pool.get_timeout(left()).ok());
        let connection = taken.ok_or(NoConnection::Late)?;
        debug_assert!(connection.in_flight.queue.is_empty(), "a reply is still to come");
        Ok(PooledConnection { connection, unwinding: thread::panicking(), _permit: permit })
    }

    /// Runs `work` after a delay on a thread for which it must not block.
    pub(super) fn run_later(&self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        #[cfg(not(all(test, leasehold_shuttle)))]
        self.thread.after(delay, work);
        #[cfg(all(test, leasehold_shuttle))]
        let _ = (delay, shuttle::thread::spawn(work));
    }

    /// The failure of a request for which no connection was free in time.
    pub(super) fn all_in_use(&self) -> Failure {
        let size = self.pool.max_size();
        let why = format!("all connections were in use until the time was over (pool_size {size})");
        Failure::none_free(&self.factory.label(), why)
    }
}

/// A connection that goes back to the pool when this is dropped.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    // Goes back first: when a permit is free, so is a connection.
    pub(super) connection: r2d2::PooledConnection<ClosedConnections>,
    /// Whether the thread was panicking when it took the connection.
    unwinding: bool,
    _permit: Permit,
}

/// A panic may have left requests in flight, whose replies the next user would take for its own.
impl Drop for PooledConnection {
    fn drop(&mut self) {
        #[cfg(all(test, leasehold_shuttle))]
        crate::base::sync::yield_now();
        if thread::panicking() && !self.unwinding {
            self.connection.poison();
        }
    }
}

/// One of the users of a pool.
#[derive(Debug)]
struct Permit(Arc<AtomicU32>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes connections that are closed. The thread that takes one opens it, by its own deadline and
/// with an error of its own; through r2d2, an error would arrive as a text, after the whole
/// timeout.
#[derive(Debug)]
pub(super) struct ClosedConnections {
    factory: Arc<ConnectionFactory>,
    max_lifetime: Option<Duration>,
}

impl ManageConnection for ClosedConnections {
    type Connection = Connection;
    type Error = Infallible;

    fn connect(&self) -> Result<Connection, Infallible> {
        Ok(Connection::new(self.factory.clone()))
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), Infallible> {
        Ok(())
    }

    /// A connection in which something went wrong has given up its socket already. But one that is
    /// in use whenever r2d2 looks for old ones would never be replaced.
    fn has_broken(&self, connection: &mut Connection) -> bool {
        self.max_lifetime.is_some_and(|max| connection.made.elapsed() >= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use crate::base::clock::end_of;
    use crate::net::endpoint::Endpoint;
    use crate::net::shared_call::Resolver;

    #[test]
    fn a_panic_gives_up_the_connection_that_the_thread_uses() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let config = Config { pool_size: 1, max_lifetime: None, ..Config::default() };
        let thread = PoolThread::start().expect("a thread");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let endpoint = Endpoint::parse(&url, &config).expect("a good URL");
        let factory = ConnectionFactory::new(endpoint, &config, Resolver::default());
        let pool = ConnectionPool::new(Arc::new(factory), &config, &thread);
        let take = || pool.try_get(end_of(Duration::from_secs(5))).expect("it is free");

        let mut connection = take();
        connection
            .connection
            .connect(end_of(Duration::from_secs(5)))
            .expect("the listener accepts it");
        drop(connection);
        assert!(take().connection.is_connected());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _used = take();
            panic!("a test");
        }));
        panicked.expect_err("a panic");
        assert!(!take().connection.is_connected());
    }

    #[test]
    fn work_that_is_due_later_does_not_keep_the_thread_alive() {
        let thread = PoolThread::start().expect("a thread");
        let alive = Arc::downgrade(&thread.0);
        thread.after(Duration::from_secs(60), || {});
        drop(thread);
        assert!(alive.upgrade().is_none());
    }
}
