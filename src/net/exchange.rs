//! A request on its way, and where its reply goes: to a callback, or to the slot in which a thread
//! waits for the replies to its requests, or for a connection to read them from.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::net::demand::Demand;
use crate::net::packed::{Reply, Request};
use crate::net::shared_queue::PooledConnection;

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
    /// Whether no thread waits for the reply, nor did.
    pub(super) posted: bool,
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

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Exchange {
    pub(super) fn new(request: Request, deadline: Instant, to: ReplyTo) -> Self {
        Self {
            request,
            deadline,
            write_by: deadline,
            demand: None,
            keeps_order: false,
            posted: matches!(to, ReplyTo::Callback(_)),
            to,
            asking: false,
            sent: None,
        }
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

    /// Returns `true` if the reply does more than to add to those that a thread waits for.
    pub(super) fn wakes(&self) -> bool {
        self.slot().is_none_or(|slot| slot.state.lock().missing <= 1)
    }

    /// Passes on the reply.
    pub(super) fn answer(self, reply: Reply) {
        self.to.pass_on(reply.map_err(|failure| self.request.judge(failure)));
    }

    /// Ends a request that was not sent, or that will not be answered.
    pub(crate) fn fail(self, failure: Failure) {
        self.answer(Err(failure));
    }
}

impl ReplyTo {
    pub(super) fn pass_on(self, reply: Reply) {
        match self {
            // The thread that reads it has other replies to pass on.
            Self::Callback(on_reply) => drop(catch_unwind(AssertUnwindSafe(|| on_reply(reply)))),
            Self::Slot(slot, place) => slot.answer(place, reply),
            Self::Nowhere | Self::Wait(_) => {}
        }
    }
}

/// Where the replies go that one thread waits for.
pub(super) struct ReplySlot {
    pub(super) deadline: Instant,
    pub(super) state: Mutex<SlotState>,
    changed: Condvar,
}

pub(super) struct SlotState {
    /// In the order of the requests.
    replies: Vec<Option<Reply>>,
    /// How many are still to come.
    pub(super) missing: usize,
    /// Whether the thread still waits.
    pub(super) waits: bool,
    lent: Option<Lent>,
}

/// A connection for the thread that waits: it sends these requests, and reads until it has its
/// replies.
pub(super) struct Lent {
    pub(super) connection: PooledConnection,
    pub(super) unsent: Vec<Exchange>,
}

impl ReplySlot {
    pub(super) fn new(deadline: Instant) -> Arc<Self> {
        let state = SlotState { replies: Vec::new(), missing: 0, waits: true, lent: None };
        Arc::new(Self { deadline, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Makes a used one as good as new, to reuse the memory, or replaces it if a request has it.
    pub(super) fn renew(used: &mut Arc<Self>, deadline: Instant) -> Arc<Self> {
        match Arc::get_mut(used) {
            Some(unused) => {
                unused.deadline = deadline;
                let mut state = unused.state.lock();
                state.replies.clear();
                (state.missing, state.waits) = (0, true);
            }
            None => *used = Self::new(deadline),
        }
        used.clone()
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

    /// Takes a reply. Returns without effect if the thread no longer waits for it.
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
}

/// Makes the first thread that waits for a reply the reader. Returns the connection if none waits,
/// without requests in flight that a thread has given up.
pub(super) fn lend_to_next(mut used: PooledConnection) -> Option<PooledConnection> {
    let mut next = 0;
    while let Some(slot) = used.connection.in_flight.waiting(next) {
        used = slot.lend(Lent { connection: used, unsent: Vec::new() })?;
        next += 1;
    }
    if next > 0 && used.connection.in_flight.is_awaited() {
        // Nothing is known about a server that has kept threads waiting until they gave up.
        used.connection.collect();
        if used.connection.in_flight.is_awaited() {
            used.connection.time_out();
        }
    }
    Some(used)
}
