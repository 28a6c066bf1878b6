//! Pooled connections, and the thread that serves all pools of a client.
//!
//! The pools are r2d2's. A pool makes connections closed, so neither making one nor a thread that
//! waits for one ever depends on the network; the thread that uses a connection opens it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fmt, io, thread};

use r2d2::ManageConnection;
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::net::connection::Connection;
use crate::net::factory::ConnectionFactory;

const NAME: &str = "leasehold-pool";

/// The thread that serves all pools of a client. It ends with the last pool and the last clone of
/// this.
///
/// Work on it must be brief and do no I/O that could block: requests may be waiting for a
/// connection that this thread makes.
#[derive(Clone)]
pub(crate) struct PoolThread(pub(super) Arc<ScheduledThreadPool>);

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

/// A connection that goes back to the pool when this is dropped.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    // Goes back first: once the pool counts a user less, a connection is free.
    pub(super) connection: r2d2::PooledConnection<ClosedConnections>,
    /// Whether the thread was panicking when it took the connection.
    pub(super) unwinding: bool,
    pub(super) _user: PoolUser,
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
pub(super) struct PoolUser(pub(super) Arc<AtomicU32>);

impl Drop for PoolUser {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes connections that are closed. The thread that takes one opens it, by its own deadline and
/// with an error of its own; through r2d2, an error would arrive as a text, after the whole
/// timeout.
#[derive(Debug)]
pub(super) struct ClosedConnections {
    pub(super) factory: Arc<ConnectionFactory>,
    pub(super) max_lifetime: Option<Duration>,
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

    #[test]
    fn work_that_is_due_later_does_not_keep_the_thread_alive() {
        let thread = PoolThread::start().expect("a thread");
        let alive = Arc::downgrade(&thread.0);
        thread.after(Duration::from_secs(60), || {});
        drop(thread);
        assert!(alive.upgrade().is_none());
    }
}
