//! A request, and where its reply goes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::net::demand::Demand;
use crate::net::pool::PooledConnection;
use crate::net::request::{Reply, Request};

/// How long a thread that must not block waits nevertheless: a healthy server replies within that
/// time.
const MOMENT: Duration = Duration::from_millis(50);

/// Called with the reply to a request by the thread that reads it. Must not take long.
pub(crate) type OnReply = Box<dyn FnOnce(Reply) + Send>;

/// A request, and where its reply goes.
pub(crate) struct Exchange {
    pub(super) request: Request,
    /// Without a reply by then, there is none.
    pub(crate) deadline: Instant,
    /// Until then the thread that posts it may wait for a connection to be opened, or for room.
    pub(super) write_by: Instant,
    /// What must be met before a reply counts which says that something was done.
    pub(super) demand: Option<(Demand, SendWait)>,
    /// Whether no request that is sent after it may overtake it: it fails instead of being sent
    /// again behind them.
    pub(super) keeps_order: bool,
    pub(super) to: ReplyTo,
    /// Whether the reply to ASKING is still to come before the one that counts.
    pub(super) asking: bool,
    pub(super) sent: Option<Instant>,
}

/// Where a reply goes.
pub(super) enum ReplyTo {
    /// To a callback: no thread waits for it.
    Callback(OnReply),
    /// Nowhere any more.
    Nowhere,
    /// To a thread, which waits for several: the place of this one.
    Slot(Arc<ReplySlot>, usize),
    /// It says whether what was done before it is as durable as demanded.
    Wait(Demand),
}

/// When the request to wait for replicas or disks is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendWait {
    /// In one write with the script, which is likely to do something.
    Along,
    /// After the reply to a script that has done something. One that has not blocks nothing.
    After,
}

/// A reply on its way to where it goes.
pub(super) struct Answer {
    pub(super) to: ReplyTo,
    pub(super) reply: Reply,
}

impl Answer {
    /// Returns `true` if it does more than to add to the replies that a thread waits for.
    pub(super) fn wakes(&self) -> bool {
        !matches!(&self.to, ReplyTo::Slot(slot, _) if slot.state.lock().missing > 1)
    }

    pub(super) fn deliver(self) {
        match self.to {
            // The thread that reads it has other replies to pass on.
            ReplyTo::Callback(on_reply) => {
                drop(catch_unwind(AssertUnwindSafe(|| on_reply(self.reply))));
            }
            ReplyTo::Slot(slot, place) => slot.answer(place, self.reply),
            ReplyTo::Nowhere | ReplyTo::Wait(_) => {}
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Exchange {
    pub(super) fn new(request: Request, deadline: Instant, to: ReplyTo) -> Self {
        let (write_by, demand, keeps_order) = (deadline, None, false);
        Self { request, deadline, write_by, demand, keeps_order, to, asking: false, sent: None }
    }

    /// A request that no thread waits for.
    pub(crate) fn posted(request: Request, deadline: Instant, on_reply: OnReply) -> Self {
        Self::new(request, deadline, ReplyTo::Callback(on_reply))
    }

    /// As it is, for a thread that waits no longer than a moment.
    pub(crate) fn at_once(self) -> Self {
        Self { write_by: self.deadline.min(end_of(MOMENT)), ..self }
    }

    /// The same, whose reply counts only once the demand is met.
    pub(crate) fn durable(self, demand: Option<(Demand, SendWait)>) -> Self {
        Self { demand, ..self }
    }

    /// The same, which no request that is sent after it may overtake.
    pub(crate) fn in_order(self) -> Self {
        Self { keeps_order: true, ..self }
    }

    pub(super) fn is_posted(&self) -> bool {
        matches!(self.to, ReplyTo::Callback(_))
    }

    /// Returns `true` if the server reads nothing that comes after it until it has replied.
    pub(super) fn blocks(&self) -> bool {
        matches!(self.to, ReplyTo::Wait(_))
    }

    /// The slot of the thread that waits for the reply, or did.
    pub(super) fn slot(&self) -> Option<&Arc<ReplySlot>> {
        if let ReplyTo::Slot(slot, _) = &self.to { Some(slot) } else { None }
    }

    /// Returns `true` if the reply goes there.
    pub(super) fn is_for(&self, slot: &Arc<ReplySlot>) -> bool {
        self.slot().is_some_and(|own| Arc::ptr_eq(own, slot))
    }

    pub(super) fn len(&self) -> usize {
        self.request.bytes.len()
    }

    /// Ends a request that was not sent.
    pub(crate) fn fail(self, failure: Failure) {
        self.answered(Err(failure)).deliver();
    }

    pub(super) fn answered(self, reply: Reply) -> Answer {
        Answer { to: self.to, reply: reply.map_err(|failure| self.request.judge(failure)) }
    }
}

/// Where the replies go that one thread waits for.
pub(super) struct ReplySlot {
    pub(super) deadline: Instant,
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Debug)]
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
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) connection: PooledConnection,
    pub(super) unsent: Vec<Exchange>,
}

impl fmt::Debug for ReplySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySlot").field("deadline", &self.deadline).finish_non_exhaustive()
    }
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

    fn answer(&self, place: usize, reply: Reply) {
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

    pub(super) fn is_complete(&self) -> bool {
        self.state.lock().missing == 0
    }

    pub(super) fn is_abandoned(&self) -> bool {
        !self.state.lock().waits
    }
}
