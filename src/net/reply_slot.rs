//! Where a thread waits for the replies to its requests, or for a connection to read them from.

use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::net::demand::Demand;
use crate::net::exchange::{Exchange, Reply, ReplyTo, Request, SendWait};
use crate::net::pool::PooledConnection;

/// Where the replies go that one thread waits for.
pub(super) struct ReplySlot {
    pub(super) deadline: Instant,
    state: Mutex<SlotState>,
    changed: Condvar,
}

struct SlotState {
    /// In the order of the requests.
    replies: Vec<Option<Reply>>,
    /// How many are still to come.
    missing: usize,
    /// Whether the thread still waits.
    waits: bool,
    lent: Option<Lent>,
}

/// A connection for the thread that waits: it sends these requests, and reads until it has its
/// replies.
pub(super) struct Lent {
    pub(super) connection: PooledConnection,
    pub(super) unsent: Vec<Exchange>,
}

impl ReplySlot {
    pub(super) fn new(deadline: Instant) -> Self {
        let state = SlotState { replies: Vec::new(), missing: 0, waits: true, lent: None };
        Self { deadline, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Makes one that no request has any more as good as new, to reuse the memory.
    pub(super) fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        let mut state = self.state.lock();
        state.replies.clear();
        (state.missing, state.waits) = (0, true);
    }

    /// Makes a request whose reply is one of those that the thread waits for.
    pub(super) fn exchange(
        self: &Arc<Self>,
        request: Request,
        demand: Option<(Demand, SendWait)>,
    ) -> Exchange {
        let mut state = self.state.lock();
        let to = ReplyTo::Slot(self.clone(), state.replies.len());
        state.replies.push(None);
        state.missing += 1;
        Exchange::new(request, self.deadline, to).durable(demand)
    }

    /// Blocks until all replies have come, there is a connection to read them from, or the deadline
    /// is over.
    pub(super) fn wait(&self) -> Option<Lent> {
        let mut state = self.state.lock();
        let waits = |state: &SlotState| state.missing > 0 && state.lent.is_none();
        wait_while(&self.changed, &mut state, Some(self.deadline), waits);
        let lent = state.lent.take();
        // The reader of a connection waits for its replies as well.
        state.waits = lent.is_some();
        lent
    }

    /// Stops waiting. What has not come is this failure.
    pub(super) fn close(&self, failure: impl Fn() -> Failure) {
        let mut state = self.state.lock();
        state.waits = false;
        for reply in &mut state.replies {
            reply.get_or_insert_with(|| Err(failure()));
        }
    }

    /// Takes the only reply, once the slot is closed.
    pub(super) fn reply(&self) -> Reply {
        self.state.lock().replies.pop().flatten().expect("a slot is closed with every reply")
    }

    /// Takes the replies, once the slot is closed.
    pub(super) fn replies(&self) -> Vec<Reply> {
        self.state.lock().replies.drain(..).flatten().collect()
    }

    /// Takes a reply. Returns without effect if the thread no longer waits for it.
    pub(super) fn answer(&self, place: usize, reply: Reply) {
        let mut state = self.state.lock();
        if !state.waits || state.replies[place].is_some() {
            return;
        }
        state.replies[place] = Some(reply);
        state.missing -= 1;
        if state.missing == 0 {
            // Not under the lock, which the thread that wakes takes first.
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Lends the thread that waits a connection. Returns it if no thread waits.
    pub(super) fn lend(&self, lent: Lent) -> Option<PooledConnection> {
        let mut state = self.state.lock();
        if !state.waits || state.missing == 0 {
            return Some(lent.connection);
        }
        state.lent = Some(lent);
        drop(state);
        self.changed.notify_one();
        None
    }

    /// How many replies are still to come.
    pub(super) fn missing(&self) -> usize {
        self.state.lock().missing
    }

    pub(super) fn is_abandoned(&self) -> bool {
        !self.state.lock().waits
    }
}
