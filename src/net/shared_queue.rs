//! What the threads that share the connections to one server have in common: the requests that wait
//! for a connection, and the connections that no thread uses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, mem};

use crate::base::sync::{Mutex, yield_now};
use crate::net::exchange::Exchange;
use crate::net::pool::{ConnectionPool, NoConnection, PooledConnection};
use crate::net::reply_slot::{Lent, ReplySlot};

/// The most requests that are sent in one write.
const BATCH_MAX: usize = 64;

/// What is to come over a connection that no thread uses is read this much later, unless a thread
/// has read it before.
const SWEEP: Duration = Duration::from_millis(if cfg!(leasehold_shuttle) { 0 } else { 10 });

/// The requests that wait for a connection, and the connections that no thread uses.
pub(super) struct SharedQueue {
    pub(super) pool: ConnectionPool,
    state: Mutex<QueueState>,
    sweep: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Debug)]
struct QueueState {
    /// Whether requests of several threads may go over one connection.
    shares: bool,
    /// The requests, first come, first served.
    queue: VecDeque<Exchange>,
    /// How many requests from the queue were in the last batch.
    last_batch: usize,
    /// The connections over which replies are to come. They are not in the pool, so nothing that
    /// r2d2 closes is owed a reply.
    lingering: Vec<PooledConnection>,
    /// How many sweeps have connections from here that they have not given back.
    sweeps: usize,
    /// Whether another sweep is scheduled.
    scheduled: bool,
}

/// What to do with an idle connection.
pub(super) enum Next {
    /// Send these over it.
    Batch(PooledConnection, Vec<Exchange>),
    /// Lend it to the thread that waits for the replies to requests that were not sent.
    Lend(Lent, Arc<ReplySlot>),
    /// Nothing: it was given back.
    Nothing,
    /// It was given back because it is blocked, and requests wait for another.
    Other,
    /// Open it if need be, and write these over it, which no thread waits for.
    Post(PooledConnection, Vec<Exchange>),
}

/// Why no connection lingers that is not blocked.
pub(super) enum NoneLingers {
    Idle,
    /// Requests wait for a connection.
    Queued,
    /// A sweep has some, which never takes long.
    Swept,
}

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedQueue").field(&self.pool).finish_non_exhaustive()
    }
}

impl SharedQueue {
    /// Unless it `shares`, no two threads have requests in flight over one connection. What is left
    /// over connections that no thread uses is read by `sweep`.
    pub(super) fn new(
        pool: ConnectionPool,
        shares: bool,
        sweep: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { pool, state: Mutex::new(QueueState::new(shares)), sweep: Arc::new(sweep) }
    }

    /// How many connections no thread uses while replies are to come over them.
    pub(super) fn lingering(&self) -> usize {
        let state = self.state.lock();
        state.lingering.iter().filter(|one| !one.connection.in_flight.is_blocked()).count()
    }

    /// Returns `true` if replies are to come that no thread waits for.
    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_lingering(&self) -> bool {
        let state = self.state.lock();
        !state.lingering.is_empty() || state.sweeps > 0
    }

    /// Returns `true` if no request waits for a connection.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Adds requests. Returns whether nothing was in the queue, and whether other threads may have
    /// further requests soon.
    pub(super) fn push(&self, exchanges: impl IntoIterator<Item = Exchange>) -> (bool, bool) {
        let mut state = self.state.lock();
        let was_empty = state.queue.is_empty();
        state.queue.extend(exchanges);
        (was_empty, state.is_batching())
    }

    /// Takes back the requests of a thread that were not sent.
    pub(super) fn withdraw(&self, slot: &Arc<ReplySlot>) -> Vec<Exchange> {
        self.state.lock().withdraw(slot)
    }

    /// Takes the requests that are sent along with `own` of one thread.
    pub(super) fn batch(&self, own: usize) -> Vec<Exchange> {
        self.state.lock().batch(own)
    }

    /// Returns a connection that no thread uses. A blocked one is given up for want of another.
    ///
    /// A thread with a request of its own (`own`) gets none while other threads send batches, and
    /// waits for a sweep that has what could be used, which never takes long: if nothing but the
    /// thread of the sweep wrote what is posted, the program might end before.
    pub(super) fn take(&self, own: bool, deadline: Instant) -> Option<PooledConnection> {
        loop {
            let mut state = self.state.lock();
            if own && state.is_batching() {
                return None;
            }
            let lingering = state.take(false);
            let is_swept = own && state.sweeps > 0;
            drop(state);
            let free = lingering.or_else(|| self.take_pooled(deadline));
            if free.is_some() {
                return free;
            }
            if !is_swept {
                let mut blocked = self.state.lock().take(true)?;
                blocked.connection.poison();
                return Some(blocked);
            }
            yield_now();
        }
    }

    /// Returns a connection over which replies are to come, or says why there is none.
    pub(super) fn take_lingering(&self) -> Result<PooledConnection, NoneLingers> {
        let mut state = self.state.lock();
        match state.take(false) {
            Some(idle) => Ok(idle),
            None if state.sweeps > 0 => Err(NoneLingers::Swept),
            None if state.queue.is_empty() => Err(NoneLingers::Idle),
            None => Err(NoneLingers::Queued),
        }
    }

    /// Returns a connection of the pool. A thread that comes too late for one has kept it from
    /// others: a sweep sends what has queued up meanwhile.
    fn take_pooled(&self, deadline: Instant) -> Option<PooledConnection> {
        match self.pool.try_get(deadline) {
            Ok(connection) => return Some(connection),
            Err(NoConnection::InUse) => {}
            Err(NoConnection::Late) => {
                let mut state = self.state.lock();
                if !state.queue.is_empty() {
                    self.schedule_sweep(&mut state);
                }
            }
        }
        None
    }

    /// Takes what is next for an idle connection, or gives that back.
    pub(super) fn next(&self, idle: PooledConnection) -> Next {
        let mut state = self.state.lock();
        let in_flight = &idle.connection.in_flight;
        if state.queue.is_empty() || in_flight.is_blocked() {
            // Still under the lock: a thread that queues a request after this finds it free.
            if in_flight.is_empty() {
                drop(idle);
            } else {
                state.lingering.push(idle);
                self.schedule_sweep(&mut state);
            }
            return if state.queue.is_empty() { Next::Nothing } else { Next::Other };
        }
        let Some(slot) = state.queue.iter().find_map(Exchange::slot).cloned() else {
            return Next::Post(idle, state.batch(0));
        };
        if idle.connection.is_usable() && idle.connection.retiring().is_none() {
            return Next::Batch(idle, state.batch(0));
        }
        // To connect takes time, which a thread that waits for a reply has.
        Next::Lend(Lent { connection: idle, unsent: state.withdraw(&slot) }, slot)
    }

    /// Takes the connections over which something has been waited for a while. The sweep ends with
    /// `end_sweep`.
    pub(super) fn begin_sweep(&self, now: Instant) -> Vec<PooledConnection> {
        let mut state = self.state.lock();
        (state.scheduled, state.sweeps) = (false, state.sweeps + 1);
        let is_due = |one: &mut PooledConnection| {
            let since = one.connection.in_flight.since();
            since.is_none_or(|since| now.saturating_duration_since(since) >= SWEEP / 2)
        };
        state.lingering.extract_if(.., is_due).collect()
    }

    /// Ends a sweep that has given back its connections.
    pub(super) fn end_sweep(&self) {
        let mut state = self.state.lock();
        state.sweeps -= 1;
        if !state.lingering.is_empty() {
            self.schedule_sweep(&mut state);
        }
    }

    /// Has a sweep begin after a while, unless one is to begin already.
    fn schedule_sweep(&self, state: &mut QueueState) {
        if !mem::replace(&mut state.scheduled, true) {
            let sweep = self.sweep.clone();
            self.pool.run_later(SWEEP, move || sweep());
        }
    }
}

impl QueueState {
    fn new(shares: bool) -> Self {
        let (queue, lingering) = (VecDeque::new(), Vec::new());
        Self { shares, queue, last_batch: 0, lingering, sweeps: 0, scheduled: false }
    }

    /// Returns `true` if several threads had their requests sent in the last batch, and so may have
    /// further requests soon.
    fn is_batching(&self) -> bool {
        self.last_batch > 1
    }

    /// Takes the lingering connection that was added last among those that are blocked, or not.
    fn take(&mut self, blocked: bool) -> Option<PooledConnection> {
        let is_it = |one: &PooledConnection| one.connection.in_flight.is_blocked() == blocked;
        let last = self.lingering.iter().rposition(is_it)?;
        Some(self.lingering.remove(last))
    }

    /// Takes back the requests of a thread.
    fn withdraw(&mut self, slot: &Arc<ReplySlot>) -> Vec<Exchange> {
        let first = self.queue.iter().position(|exchange| exchange.is_for(slot));
        let Some(first) = first else { return Vec::new() };
        let count = self.queue.range(first..).take_while(|exchange| exchange.is_for(slot)).count();
        self.queue.drain(first..first + count).collect()
    }

    /// Takes the requests that are sent along with `own` of one thread. Those of another thread
    /// stay together.
    fn batch(&mut self, own: usize) -> Vec<Exchange> {
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

    use crate::config::durability::Durability;
    use crate::net::demand::Demand;
    use crate::net::exchange::Request;
    use crate::net::exchange::SendWait;

    fn posted() -> Exchange {
        Exchange::posted(request(), Instant::now(), Box::new(drop))
    }

    fn request() -> Request {
        Request::command(&redis::cmd("PING"))
    }

    #[test]
    fn requests_of_all_kinds_are_sent_together_and_no_thread_s_are_divided() {
        let (slot, other) = (ReplySlot::new(Instant::now()), ReplySlot::new(Instant::now()));
        let (slot, other) = (Arc::new(slot), Arc::new(other));
        let durability = Durability::Replicas { acks: 1, timeout: SWEEP };
        let demand = Demand::new(durability).map(|demand| (demand, SendWait::Along));
        let mut queue = QueueState::new(true);
        queue.queue.extend((1..BATCH_MAX).map(|_| posted()));
        queue.queue.extend([slot.exchange(request(), demand), slot.exchange(request(), demand)]);
        queue.queue.extend([other.exchange(request(), None)]);
        assert_eq!(queue.batch(0).len(), BATCH_MAX + 1);
        queue.queue.extend([slot.exchange(request(), demand), posted()]);
        assert_eq!(queue.batch(1).len(), 3, "along with one request");

        let mut alone = QueueState::new(false);
        alone.queue.extend([other.exchange(request(), None), posted()]);
        assert_eq!((alone.batch(1).len(), alone.batch(0).len()), (0, 1));
        assert!(alone.withdraw(&other).is_empty() && !alone.queue.is_empty());
    }
}
