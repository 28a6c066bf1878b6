//! The pool of connections to one server, by r2d2, and the thread that serves all pools of a
//! client.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::failure::Failure;
use crate::net::connection::Connection;
use crate::net::factory::ConnectionFactory;
use crate::net::multiplexer::ConnectionSource;

/// The thread that serves all pools of a client. It ends with the last pool, or clone of this.
///
/// Everything that runs on it is brief, and nothing does I/O that could block: requests may wait
/// for a connection that it makes.
#[derive(Clone)]
pub(crate) struct PoolThread(Arc<ScheduledThreadPool>);

impl fmt::Debug for PoolThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolThread").finish_non_exhaustive()
    }
}

impl PoolThread {
    pub(crate) fn start() -> Self {
        let thread = ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern("leasehold-pool")
            // Otherwise the thread would outlive the client until its last timer has run.
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled);
        Self(Arc::new(thread.build()))
    }

    /// Runs `work` on the thread after a delay, unless the thread ends before: `work` does not
    /// keep it alive.
    pub(crate) fn after(&self, delay: Duration, work: impl FnOnce(&Self) + Send + 'static) {
        let thread = Arc::downgrade(&self.0);
        self.0.execute_after(delay, move || {
            if let Some(thread) = thread.upgrade() {
                work(&Self(thread));
            }
        });
    }

    /// Makes an empty pool, without waiting and without I/O.
    ///
    /// If `limits` has times, r2d2 looks on this thread every 30 s for idle connections that have
    /// reached them. It closes these, which does not block, and opens no others.
    pub(crate) fn pool<M: ManageConnection>(&self, limits: PoolLimits, manager: M) -> Pool<M> {
        Pool::builder()
            .max_size(limits.size)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .max_lifetime(limits.max_lifetime)
            .idle_timeout(limits.idle_timeout)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(self.0.clone())
            .build_unchecked(manager)
    }
}

/// How many connections a pool may have, and when it closes idle ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLimits {
    pub(crate) size: u32,
    /// How long a connection may be idle.
    pub(crate) idle_timeout: Option<Duration>,
    /// How old an idle connection may be.
    pub(crate) max_lifetime: Option<Duration>,
}

/// The pool of connections to one server.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    pool: Pool<ConnectionSlots>,
    factory: Arc<ConnectionFactory>,
    /// How many have a connection or wait until there is one. While these are fewer than the pool
    /// may have connections, one more gets one without waiting for another user.
    users: Arc<AtomicU32>,
}

impl ConnectionPool {
    pub(crate) fn new(
        factory: Arc<ConnectionFactory>,
        limits: PoolLimits,
        thread: &PoolThread,
    ) -> Self {
        let pool = thread.pool(limits, ConnectionSlots(factory.clone()));
        Self { pool, factory, users: Arc::default() }
    }

    fn take(&self, place: Place, deadline: Instant) -> Option<Lent> {
        let left = || deadline.saturating_duration_since(Instant::now());
        // r2d2 makes a new one on the pool's thread, which takes no longer than waking that.
        let taken = self.pool.try_get().or_else(|| self.pool.get_timeout(left()).ok());
        taken.map(|connection| Lent { connection, _place: place })
    }
}

impl ConnectionSource for ConnectionPool {
    type Connection = Lent;

    fn try_get(&self, deadline: Instant) -> Option<Lent> {
        let free = |users| (users < self.pool.max_size()).then_some(users + 1);
        self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).ok()?;
        self.take(Place(self.users.clone()), deadline)
    }

    fn get(&self, deadline: Instant) -> Option<Lent> {
        self.users.fetch_add(1, Ordering::SeqCst);
        self.take(Place(self.users.clone()), deadline)
    }

    fn all_in_use(&self) -> Failure {
        let why = "all pooled connections were in use until the time was over";
        Failure::too_late(&self.factory.label(), why)
    }

    fn no_reply(&self) -> Failure {
        self.factory.no_reply()
    }
}

/// A connection that goes back to the pool when this is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    // Goes back first: a free place means that there is a connection for it.
    connection: PooledConnection<ConnectionSlots>,
    _place: Place,
}

/// One of the users of a pool.
#[derive(Debug)]
struct Place(Arc<AtomicU32>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Deref for Lent {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Makes closed connections: whoever takes one connects, by a deadline of its own and with an
/// error of its own. Through r2d2 an error would arrive as a text, after the whole time to wait.
#[derive(Debug)]
struct ConnectionSlots(Arc<ConnectionFactory>);

impl ManageConnection for ConnectionSlots {
    type Connection = Connection;
    type Error = Infallible;

    fn connect(&self) -> Result<Connection, Infallible> {
        Ok(Connection::new(self.0.clone()))
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), Infallible> {
        Ok(())
    }

    /// A connection in which something went wrong has given up its socket already.
    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_due_later_does_not_keep_the_thread_alive() {
        let thread = PoolThread::start();
        let alive = Arc::downgrade(&thread.0);
        thread.after(Duration::from_secs(60), |_| {});
        drop(thread);
        assert!(alive.upgrade().is_none());
    }
}
