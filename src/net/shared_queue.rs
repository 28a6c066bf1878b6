//! What the threads that share the connections to one server have in common: the requests that wait
//! for a connection, and the connections that no thread uses while replies are to come over them.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::net::exchange::{Exchange, ReplySlot};
use crate::net::pool::PooledConnection;

/// The most requests that are sent in one write.
const BATCH_MAX: usize = 64;

/// What is to come over a connection that no thread uses is read this much later, unless a thread
/// has read it before.
pub(super) const SWEEP: Duration =
    Duration::from_millis(if cfg!(leasehold_shuttle) { 0 } else { 10 });

/// The requests that wait for a connection, first come, first served, and the idle connections that
/// are not in the pool.
#[derive(Debug)]
pub(super) struct SharedQueue {
    /// Whether requests of several threads may go over one connection.
    shares: bool,
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
    /// Send these.
    Batch(Vec<Exchange>),
    /// Lend it to the thread that waits for these, which sends them.
    Lend(Vec<Exchange>, Arc<ReplySlot>),
    Nothing,
    /// Open it if need be, and write these, which no thread waits for.
    Post(Vec<Exchange>),
}

/// Why no connection lingers that is not blocked.
pub(super) enum NoneLingers {
    Idle,
    /// Requests wait for a connection.
    Queued,
    /// A sweep has some, which never takes long.
    Swept,
}

impl SharedQueue {
    pub(super) fn new(shares: bool) -> Self {
        let (queue, lingering) = (VecDeque::new(), Vec::new());
        Self { shares, queue, last_batch: 0, lingering, sweeps: 0, scheduled: false }
    }

    /// Returns `true` if several threads had their requests sent in the last batch, and so may have
    /// further requests soon.
    pub(super) fn is_batching(&self) -> bool {
        self.last_batch > 1
    }

    /// Adds requests. Returns `true` if nothing was in the queue.
    pub(super) fn push(&mut self, exchanges: impl IntoIterator<Item = Exchange>) -> bool {
        let was_empty = self.queue.is_empty();
        self.queue.extend(exchanges);
        was_empty
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes back the requests of a thread that were not sent.
    pub(super) fn withdraw(&mut self, slot: &Arc<ReplySlot>) -> Vec<Exchange> {
        let first = self.queue.iter().position(|exchange| exchange.is_for(slot));
        let Some(first) = first else { return Vec::new() };
        let count = self.queue.range(first..).take_while(|exchange| exchange.is_for(slot)).count();
        self.queue.drain(first..first + count).collect()
    }

    /// Takes what is next for an idle connection, which may be ready to be written to.
    pub(super) fn next(&mut self, is_ready: impl FnOnce() -> bool) -> Next {
        match self.queue.iter().find_map(Exchange::slot).cloned() {
            None if self.queue.is_empty() => Next::Nothing,
            None => Next::Post(self.batch(0)),
            Some(_) if is_ready() => Next::Batch(self.batch(0)),
            // To connect takes time, which a thread that waits for a reply has.
            Some(slot) => Next::Lend(self.withdraw(&slot), slot),
        }
    }

    /// Takes the requests that are sent along with `own` of one thread. Those of another thread
    /// stay together.
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

    /// Adds a connection over which replies are to come. Returns `true` if the caller has to
    /// schedule a sweep.
    pub(super) fn linger(&mut self, connection: PooledConnection) -> bool {
        self.lingering.push(connection);
        self.claim_sweep()
    }

    /// How many connections no thread uses, though not all are idle.
    pub(super) fn lingering(&self) -> usize {
        self.lingering.iter().filter(|one| !one.in_flight.is_blocked()).count()
    }

    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_lingering(&self) -> bool {
        !self.lingering.is_empty() || self.sweeps > 0
    }

    /// Takes the connection that was added last among those that are not blocked.
    pub(super) fn take(&mut self) -> Option<PooledConnection> {
        let last = self.lingering.iter().rposition(|one| !one.in_flight.is_blocked())?;
        Some(self.lingering.remove(last))
    }

    /// Takes a connection over which replicas or disks are waited for.
    pub(super) fn take_blocked(&mut self) -> Option<PooledConnection> {
        let blocked = self.lingering.iter().position(|one| one.in_flight.is_blocked())?;
        Some(self.lingering.remove(blocked))
    }

    /// Takes a connection as `take` does, or says whether a sweep may have one.
    pub(super) fn take_lingering(&mut self) -> Result<PooledConnection, NoneLingers> {
        match self.take() {
            Some(connection) => Ok(connection),
            None if self.sweeps > 0 => Err(NoneLingers::Swept),
            None if !self.queue.is_empty() => Err(NoneLingers::Queued),
            None => Err(NoneLingers::Idle),
        }
    }

    /// Takes the connections over which something has been waited for a while. The sweep ends with
    /// `end_sweep`.
    pub(super) fn begin_sweep(&mut self, now: Instant) -> Vec<PooledConnection> {
        let is_due = |connection: &mut PooledConnection| {
            let since = connection.in_flight.since();
            since.is_none_or(|since| now.saturating_duration_since(since) >= SWEEP / 2)
        };
        self.scheduled = false;
        self.sweeps += 1;
        self.lingering.extract_if(.., is_due).collect()
    }

    /// Ends a sweep that has given back its connections. Returns `true` if the caller has to
    /// schedule another.
    pub(super) fn end_sweep(&mut self) -> bool {
        self.sweeps -= 1;
        !self.lingering.is_empty() && self.claim_sweep()
    }

    /// Returns `true` if the caller has to schedule a sweep.
    pub(super) fn claim_sweep(&mut self) -> bool {
        !mem::replace(&mut self.scheduled, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::durability::Durability;
    use crate::net::demand::Demand;
    use crate::net::exchange::SendWait;
    use crate::net::request::Request;

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
        let mut queue = SharedQueue::new(true);
        queue.push((1..BATCH_MAX).map(|_| posted()));
        queue.push([slot.exchange(request(), demand), slot.exchange(request(), demand)]);
        queue.push([other.exchange(request(), None)]);
        assert_eq!(queue.batch(0).len(), BATCH_MAX + 1);
        queue.push([slot.exchange(request(), demand), posted()]);
        assert_eq!(queue.batch(1).len(), 3, "along with one request");

        let mut alone = SharedQueue::new(false);
        alone.push([other.exchange(request(), None), posted()]);
        assert_eq!((alone.batch(1).len(), alone.batch(0).len()), (0, 1));
        assert!(alone.withdraw(&other).is_empty() && !alone.is_empty());
    }
}
