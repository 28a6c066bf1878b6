//! Shared state of the threads that use the connections to one server: the requests that wait for a
//! connection, and the connections that no thread uses, whether in a pool, with outstanding
//! replies, or lent to a thread that is just waking up.
//!
//! Who may write to a connection is decided here:
//!
//! 1. Only the thread that has taken a connection from here writes to it and reads from it.
//! 2. A thread with requests of its own takes a connection and sends them at once. If other threads
//!    send batches, it queues them instead, to be sent with the next batch.
//! 3. A thread that gives a connection back first sends what is queued, first come, first served.
//!    It then lends the connection to the first thread that waits for one of these replies, and
//!    that thread reads them.
//! 4. A connection with outstanding replies lingers here. The next thread to take it reads them, or
//!    a sweep does.
//! 5. A connection that waits for replicas or disks is blocked: no other request is sent behind
//!    that wait. If only blocked connections are left, a thread that needs one closes one of them
//!    and opens it again.
//!
//! The pool is r2d2's. It creates closed connections, so taking one from it never depends on the
//! network. The thread that uses a connection opens it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use r2d2::{CustomizeConnection, ManageConnection, NopErrorHandler, Pool};

use crate::base::clock;
use crate::base::failure::Failure;
#[cfg(all(test, unix, not(leasehold_shuttle)))]
use crate::base::sync::executor;
use crate::base::sync::{Mutex, yield_now};
use crate::config::{Config, Mechanism};
use crate::net::connection::Connection;
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::{Exchange, InFlight};
use crate::net::packed::ReplySlot;
use crate::net::pool_thread::{PoolThread, SWEEP, Sweep};

const BATCH_MAX: usize = 64;

/// The requests that a thread wants a connection for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Requests {
    /// Its own, which can be queued instead.
    Own,
    /// Those that are queued.
    Queued,
}

pub(super) struct SharedQueue {
    pub(super) pool: Pool<ClosedConnections>,
    /// The number of connections of the pool in use. While it is below the maximum, a thread gets a
    /// connection without waiting for a user to finish.
    users: Arc<AtomicU32>,
    pub(super) state: Mutex<QueueState>,
    /// The connections that were lent to threads but not yet taken by them.
    lent: Mutex<Vec<Loan>>,
    pub(super) sweep: Sweep,
}

#[derive(Default)]
pub(super) struct QueueState {
    /// Whether requests of several threads may share one connection.
    shares: bool,
    /// First come, first served.
    pub(super) queue: VecDeque<Exchange>,
    /// The number of queued requests in the last batch.
    pub(super) last_batch: usize,
    /// The connections with outstanding replies. They are not in the pool, which could close them.
    pub(super) lingering: Vec<PooledConnection>,
    /// The number of sweeps that have taken connections from here and not returned them.
    pub(super) sweeps: usize,
}

/// A connection lent to a thread that waits for replies: the thread sends these requests, and reads
/// until it has its replies.
pub(super) struct Loan {
    slot: Arc<ReplySlot>,
    pub(super) connection: PooledConnection,
    pub(super) unsent: Vec<Exchange>,
}

/// A connection that returns to the pool when this is dropped.
pub(super) struct PooledConnection {
    // Dropped before `_user`: once the number of users goes down, a connection is free.
    pub(super) connection: r2d2::PooledConnection<ClosedConnections>,
    /// Whether the thread was panicking when it took the connection.
    unwinding: bool,
    _user: PoolUser,
}

/// A panic may have left requests in flight. The next user would take their replies for its own.
impl Drop for PooledConnection {
    fn drop(&mut self) {
        #[cfg(all(test, leasehold_shuttle))]
        yield_now();
        if thread::panicking() && !self.unwinding {
            self.connection.poison();
        }
    }
}

struct PoolUser(Arc<AtomicU32>);

impl Drop for PoolUser {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Creates closed connections. The thread that takes one opens it, by its own deadline and with its
/// own error; r2d2 would report an error as text, after the whole timeout.
pub(super) struct ClosedConnections {
    factory: Arc<ConnectionFactory>,
    last: Arc<LastConnection>,
}

/// The last connection of a pool may be idle this many times as long as the others. This saves a
/// client that rarely locks a connect for each lock.
const LAST_IS_IDLE: u32 = 10;

/// The last connection of a pool, after r2d2 has removed it as idle.
struct LastConnection {
    /// How many connections the pool has.
    in_pool: AtomicU32,
    /// The open connection that is kept, and how many were kept so far.
    kept: parking_lot::Mutex<(Option<Connection>, u64)>,
    /// How long a connection is kept; `None` if none is.
    time: Option<Duration>,
    thread: PoolThread,
}

impl LastConnection {
    fn new(config: &Config, thread: &PoolThread) -> Arc<Self> {
        let time = config.idle_timeout.map(|time| time.saturating_mul(LAST_IS_IDLE - 1));
        Arc::new(Self {
            in_pool: AtomicU32::new(0),
            kept: parking_lot::Mutex::default(),
            time,
            thread: thread.clone(),
        })
    }

    /// Takes back the connection that is kept, if there is one.
    fn take(&self) -> Option<Connection> {
        self.kept.lock().0.take()
    }
}

/// Receives each connection that r2d2 removes.
struct Removals(Arc<LastConnection>);

impl fmt::Debug for Removals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Removals").finish_non_exhaustive()
    }
}

impl CustomizeConnection<Connection, Infallible> for Removals {
    /// Keeps the connection if it is the last one and can still be used.
    fn on_release(&self, connection: Connection) {
        let Self(last) = self;
        let is_last = last.in_pool.fetch_sub(1, Ordering::SeqCst) == 1;
        let is_good = connection.is_connected() && connection.retiring().is_none();
        if !is_last || !is_good {
            return;
        }
        let Some(time) = last.time else { return };
        let mut kept = last.kept.lock();
        kept.1 += 1;
        let number = kept.1;
        let replaced = kept.0.replace(connection);
        // Not under the lock, because closing a connection reads what has arrived.
        drop(kept);
        drop(replaced);
        let weak = Arc::downgrade(last);
        last.thread.after(time, move || {
            let Some(last) = weak.upgrade() else { return };
            let mut kept = last.kept.lock();
            // If the number differs, a later connection has taken its place.
            let closed = if kept.1 == number { kept.0.take() } else { None };
            drop(kept);
            drop(closed);
        });
    }
}

impl ManageConnection for ClosedConnections {
    type Connection = Connection;
    type Error = Infallible;

    fn connect(&self) -> Result<Connection, Infallible> {
        self.last.in_pool.fetch_add(1, Ordering::SeqCst);
        Ok(self.last.take().unwrap_or_else(|| Connection::new(self.factory.clone())))
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), Infallible> {
        Ok(())
    }

    /// A connection that has failed has already closed its socket, and opens another one.
    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}

impl SharedQueue {
    /// Creates an empty pool, without I/O. `sweep` reads the replies left on idle connections.
    pub(super) fn new(
        factory: Arc<ConnectionFactory>,
        config: &Config,
        thread: &PoolThread,
        sweep: Sweep,
    ) -> Self {
        let Config { pool_size, idle_timeout, max_lifetime, .. } = *config;
        // No connection is created before it is needed. With a time limit, r2d2 closes idle
        // connections that have reached it, on the thread, every 30 s. That does not block, and
        // creates no others. A connection that is in use at that time is replaced by its user.
        let last = LastConnection::new(config, thread);
        let pool = Pool::builder()
            .max_size(pool_size)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .max_lifetime(max_lifetime)
            .idle_timeout(idle_timeout)
            .connection_customizer(Box::new(Removals(last.clone())))
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(thread.0.clone())
            .build_unchecked(ClosedConnections { factory, last });
        let shares = config.uses(Mechanism::SharedWrites);
        let state = Mutex::new(QueueState { shares, ..QueueState::default() });
        Self { pool, users: Arc::default(), state, lent: Mutex::default(), sweep }
    }

    /// Returns the number of connections that have outstanding replies but no thread using them.
    pub(super) fn lingering(&self) -> usize {
        let state = self.state.lock();
        state.lingering.iter().filter(|one| !one.connection.in_flight.is_blocked()).count()
    }

    /// Returns a connection that no thread uses. If only blocked ones are left, closes one of them.
    ///
    /// A thread with requests of its own gets none while other threads send batches.
    pub(super) fn take(&self, requests: Requests, deadline: Instant) -> Option<PooledConnection> {
        loop {
            let mut state = self.state.lock();
            if requests == Requests::Own && state.is_batching() {
                return None;
            }
            let lingering = state.take_usable();
            let is_swept = state.sweeps > 0;
            drop(state);
            let free = lingering.or_else(|| self.take_pooled(deadline));
            if free.is_some() {
                return free;
            }
            if requests == Requests::Own && is_swept {
                // The sweep has a usable connection, and never takes long. Leaving a posted request
                // to the sweep is not an option: the program might end first.
                yield_now();
                continue;
            }
            let mut blocked = self.state.lock().take_blocked()?;
            blocked.connection.poison();
            return Some(blocked);
        }
    }

    /// Returns a connection that no thread uses and that is not blocked, without creating one.
    pub(super) fn take_idle(&self, now: Instant) -> Option<PooledConnection> {
        let lingering = self.state.lock().take_usable();
        // If none is idle, r2d2 would create one.
        if lingering.is_some() || self.pool.state().idle_connections == 0 {
            return lingering;
        }
        self.take_pooled(now)
    }

    /// Returns a connection of the pool unless all are in use. Blocks no longer than it takes to
    /// create one, without opening it.
    fn take_pooled(&self, deadline: Instant) -> Option<PooledConnection> {
        let max_users = self.pool.max_size();
        let counted = self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |users| {
            if users < max_users { Some(users + 1) } else { None }
        });
        counted.ok()?;
        let user = PoolUser(self.users.clone());
        // If none is idle, r2d2 creates one on the pool's thread, which takes a few microseconds.
        let left = deadline.saturating_duration_since(clock::now());
        // That thread runs in real time even in a simulation.
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        let left = if executor::is_active() { Duration::from_secs(60) } else { left };
        let taken = self.pool.try_get().or_else(|| self.pool.get_timeout(left).ok());
        #[cfg(all(test, leasehold_shuttle))]
        let taken = taken.filter(|_| crate::net::schedules::is_in_time(deadline));
        if let Some(connection) = taken {
            debug_assert!(connection.in_flight.queue.is_empty(), "a reply is still to come");
            let unwinding = thread::panicking();
            return Some(PooledConnection { connection, unwinding, _user: user });
        }
        drop(user);
        // Other threads counted this one as a user, and may have queued requests. A sweep sends
        // them.
        if !self.state.lock().queue.is_empty() {
            self.sweep.schedule();
        }
        None
    }

    /// Returns the failure of a request to `server` for which no connection was free in time.
    pub(super) fn none_free(&self, server: &Arc<str>) -> Failure {
        let size = self.pool.max_size();
        let why = format!("all connections were in use until the time was over (pool_size {size})");
        Failure::none_free(server, why)
    }

    /// Makes the first thread that waits for a reply the reader. If none waits, returns the
    /// connection, closed if threads have abandoned requests on it.
    pub(super) fn lend_to_next(&self, mut used: PooledConnection) -> Option<PooledConnection> {
        while let Some(slot) = used.connection.in_flight.waiting() {
            // The thread may have timed out in the meantime. Then the next one is tried.
            used = self.lend(&slot, used, Vec::new())?;
        }
        if used.connection.in_flight.calls_wait() {
            // Threads have timed out waiting for this server. Unless the replies are here by now,
            // the connection is closed.
            used.connection.collect();
            if used.connection.in_flight.calls_wait() {
                used.connection.time_out();
            }
        }
        Some(used)
    }

    /// Lends a connection to a waiting thread. Returns it if the thread no longer waits.
    pub(super) fn lend(
        &self,
        slot: &Arc<ReplySlot>,
        connection: PooledConnection,
        unsent: Vec<Exchange>,
    ) -> Option<PooledConnection> {
        // Pushed first, because a thread that becomes the reader takes it at once.
        self.lent.lock().push(Loan { slot: slot.clone(), connection, unsent });
        if slot.make_reader() { None } else { Some(self.take_lent(slot).connection) }
    }

    /// Takes the connection that was lent to a thread.
    pub(super) fn take_lent(&self, slot: &Arc<ReplySlot>) -> Loan {
        let mut lent = self.lent.lock();
        let own = lent.iter().position(|loan| Arc::ptr_eq(&loan.slot, slot));
        lent.swap_remove(own.expect("a thread is made a reader after it was lent a connection"))
    }

    /// Returns an idle connection, still under the lock: a thread that queues a request after this
    /// finds the connection free.
    pub(super) fn return_idle(&self, idle: PooledConnection, state: &mut QueueState) {
        if !idle.connection.in_flight.is_empty() {
            // Not to the pool, which may close a connection before its replies are read.
            state.lingering.push(idle);
            self.sweep.schedule();
        }
    }

    /// Takes the connections that are due for a sweep, which ends with `end_sweep`.
    pub(super) fn begin_sweep(&self, now: Instant) -> Vec<PooledConnection> {
        let mut state = self.state.lock();
        state.sweeps += 1;
        let due = state.lingering.extract_if(.., |one| {
            let since = one.connection.in_flight.since();
            since.is_none_or(|since| now.saturating_duration_since(since) >= SWEEP / 2)
        });
        due.collect()
    }

    /// Ends a sweep that has returned its connections.
    pub(super) fn end_sweep(&self) {
        let mut state = self.state.lock();
        state.sweeps -= 1;
        // Connections that were not due yet, or that were added during the sweep, need another one,
        // and so do posted requests, which may expire before a connection is free.
        if !state.lingering.is_empty() || state.queue.iter().any(Exchange::is_posted) {
            self.sweep.schedule();
        }
    }
}

impl QueueState {
    /// Returns `true` if the last batch had requests of several threads, which may therefore have
    /// further requests soon.
    pub(super) fn is_batching(&self) -> bool {
        self.last_batch > 1
    }

    /// Takes the most recently added lingering connection that is not blocked.
    pub(super) fn take_usable(&mut self) -> Option<PooledConnection> {
        self.take_last(|in_flight| !in_flight.is_blocked())
    }

    /// Takes the most recently added lingering connection that is blocked.
    fn take_blocked(&mut self) -> Option<PooledConnection> {
        self.take_last(InFlight::is_blocked)
    }

    fn take_last(&mut self, is_wanted: impl Fn(&InFlight) -> bool) -> Option<PooledConnection> {
        let mut lingering = self.lingering.iter();
        let last = lingering.rposition(|one| is_wanted(&one.connection.in_flight))?;
        Some(self.lingering.remove(last))
    }

    /// Takes back the unsent requests of a thread.
    pub(super) fn withdraw(&mut self, slot: &Arc<ReplySlot>) -> Vec<Exchange> {
        let first = self.queue.iter().position(|exchange| exchange.is_for(slot));
        let Some(first) = first else { return Vec::new() };
        // They are next to each other, because their thread has queued them together.
        let count = self.queue.range(first..).take_while(|exchange| exchange.is_for(slot)).count();
        self.queue.drain(first..first + count).collect()
    }

    /// Takes the posted requests that have expired.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Exchange> {
        let mut expired = Vec::new();
        while let Some(place) = self.queue.iter().position(|request| request.has_expired(now)) {
            expired.extend(self.queue.remove(place));
        }
        expired
    }

    /// Takes the requests to send along with `own` others. Those of one thread stay together.
    pub(super) fn batch(&mut self, own: usize) -> Vec<Exchange> {
        let most = if self.shares { BATCH_MAX } else { 1 };
        let mut len = most.saturating_sub(own).min(self.queue.len());
        while len > 0
            && let Some(slot) = self.queue[len - 1].slot()
            && self.queue.get(len).is_some_and(|next| next.is_for(slot))
        {
            len += 1;
        }
        let batch: Vec<_> = self.queue.drain(..len).collect();
        self.last_batch = batch.len();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Weak;
    use std::sync::atomic::AtomicU64;

    use crate::base::clock::end_of;
    use crate::base::event_thread::Events;
    use crate::config::durability::Durability;
    use crate::net::demand::Demand;
    use crate::net::endpoint::Endpoint;
    use crate::net::in_flight::SendWait;
    use crate::net::packed::Request;
    use crate::net::shared_call::Resolver;

    fn posted() -> Exchange {
        Exchange::posted(request(), Instant::now(), Box::new(drop))
    }

    fn request() -> Request {
        Request::command(&redis::cmd("PING"))
    }

    #[test]
    fn a_batch_mixes_all_requests_but_splits_those_of_no_thread() {
        let (slot, other) = (ReplySlot::new(Instant::now()), ReplySlot::new(Instant::now()));
        let durability = Durability::Replicas { acks: 1, timeout: SWEEP };
        let demand = Demand::new(durability).map(|demand| (demand, SendWait::Along));
        let mut queue = QueueState { shares: true, ..QueueState::default() };
        queue.queue.extend((1..BATCH_MAX).map(|_| posted()));
        queue.queue.extend([
            Exchange::awaited(request(), &slot).durable(demand),
            Exchange::awaited(request(), &slot).durable(demand),
        ]);
        queue.queue.extend([Exchange::awaited(request(), &other)]);
        assert_eq!(queue.batch(0).len(), BATCH_MAX + 1);
        queue.queue.extend([Exchange::awaited(request(), &slot).durable(demand), posted()]);
        assert_eq!(queue.batch(1).len(), 3, "along with one request");

        let mut alone = QueueState::default();
        alone.queue.extend([Exchange::awaited(request(), &other), posted()]);
        assert_eq!((alone.batch(1).len(), alone.batch(0).len()), (0, 1));
        assert!(alone.withdraw(&other).is_empty() && !alone.queue.is_empty());
    }

    /// Makes connections to a listener.
    fn factory(listener: &TcpListener, config: &Config) -> Arc<ConnectionFactory> {
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let endpoint = Endpoint::parse(&url, config, &Events::default()).expect("a good URL");
        Arc::new(ConnectionFactory::new(endpoint, config, Resolver::default()))
    }

    #[test]
    fn a_connection_that_is_replaced_for_its_age_has_not_broken() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let age = Duration::from_millis(1);
        let config = Config { max_lifetime: Some(age), ..Config::default() };
        let factory = factory(&listener, &config);
        // Another connection has broken, and was not replaced.
        factory.broken.store(1, Ordering::Relaxed);
        let mut connection = Connection::new(factory.clone());
        let connect = |connection: &mut Connection| {
            connection.connect(end_of(Duration::from_secs(5))).expect("the listener accepts it");
            while connection.retiring().is_none() {
                yield_now();
            }
        };
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let counted = || (count(&factory.broken), count(&factory.counters.reconnects));
        connect(&mut connection);
        assert_eq!(counted(), (0, 1));
        factory.broken.store(1, Ordering::Relaxed);
        connect(&mut connection);
        assert_eq!(counted(), (1, 1));
        // It ends before its successor opens, so the successor counts as replacing the other one.
        connection.time_out();
        connect(&mut connection);
        assert_eq!(counted(), (0, 2));
    }

    #[test]
    fn the_last_connection_of_a_pool_is_idle_for_longer_than_the_others() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let idle_timeout = Some(Duration::from_millis(10));
        let config = Config { idle_timeout, ..Config::default() };
        let thread = PoolThread::start().expect("a thread");
        let factory = factory(&listener, &config);
        let last = LastConnection::new(&config, &thread);
        let made = ClosedConnections { factory, last: last.clone() };
        let removals = Removals(last.clone());
        let connect = || {
            let mut connection = made.connect().expect("it cannot fail");
            let opened = connection.connect(end_of(Duration::from_secs(5)));
            opened.expect("the listener accepts it");
            connection
        };
        let (one, other) = (connect(), connect());
        removals.on_release(one);
        assert!(last.take().is_none(), "there is another one");
        removals.on_release(other);
        assert!(made.connect().expect("it cannot fail").is_connected(), "it is the next one");
        assert!(last.take().is_none());
        removals.on_release(connect());
        let until = end_of(Duration::from_secs(5));
        while last.kept.lock().0.is_some() {
            assert!(Instant::now() < until, "it is kept");
            yield_now();
        }
        removals.on_release(made.connect().expect("it cannot fail"));
        assert!(last.take().is_none(), "one that is not open is not kept");
    }

    #[test]
    fn a_panic_closes_the_connection_that_the_thread_uses() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let config = Config { pool_size: 1, max_lifetime: None, ..Config::default() };
        let thread = PoolThread::start().expect("a thread");
        let sweep = Sweep::new(&thread, &Weak::<()>::new(), |_| {});
        let factory = factory(&listener, &config);
        let queue = SharedQueue::new(factory.clone(), &config, &thread, sweep);
        let take =
            || queue.take(Requests::Own, end_of(Duration::from_secs(5))).expect("it is free");

        let mut connection = take();
        let connected = connection.connection.connect(end_of(Duration::from_secs(5)));
        connected.expect("the listener accepts it");
        drop(connection);
        assert!(take().connection.is_connected());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _used = take();
            panic!("a test");
        }));
        panicked.expect_err("a panic");
        assert!(!take().connection.is_connected());
        assert_eq!(factory.broken.load(Ordering::Relaxed), 1, "another is to replace it");
    }
}
