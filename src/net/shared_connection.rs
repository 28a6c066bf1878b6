//! A pooled connection over which several threads have sent requests in one write, and where the
//! replies go.
//!
//! Replies come in the order of the requests. The thread whose reply comes next is the *reader* of
//! the connection. When it has its own reply it collects what was read along with that, and the
//! next thread that waits becomes the reader. So no thread waits for the reply to another, and no
//! thread is needed that only reads.
//!
//! | connection | requests in flight | what comes next |
//! |---|---|---|
//! | idle | none that a thread waits for | queued requests are sent, or it goes back to the pool |
//! | without reader | some that threads wait for | the first of these threads becomes the reader |
//! | without reader | abandoned ones only | given up |
//! | with reader | some | the reader has its reply, or its deadline is over: without reader |
//! | given up | all fail | idle: the next user opens it again |
//!
//! Replies that are owed ([`owed`](crate::net::owed)) come in front of all others, and the
//! connection itself reads them.

use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem};

use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::net::owed::PostedRequest;
use crate::net::pipeline::{Pipeline, UnknownScript};
use crate::net::request::{Reply, Request};
use crate::net::transport::{Transport, WaitFor};

/// A request that was not sent yet, and where its reply goes.
#[derive(Debug)]
pub(super) struct QueuedRequest<C> {
    pub(super) request: Request,
    pub(super) slot: Arc<ReplySlot<C>>,
}

/// What is sent in one write.
#[derive(Debug)]
pub(super) struct Batch<C> {
    /// Sent in front of the others.
    pub(super) posted: Vec<PostedRequest>,
    pub(super) requests: Vec<QueuedRequest<C>>,
}

impl<C> Default for Batch<C> {
    fn default() -> Self {
        Self { posted: Vec::new(), requests: Vec::new() }
    }
}

/// Where the reply to one request goes: to the thread that waits for it.
pub(super) struct ReplySlot<C> {
    pub(super) deadline: Instant,
    state: Mutex<SlotState<C>>,
    changed: Condvar,
}

enum SlotState<C> {
    /// No thread waits any more.
    Abandoned,
    Answered(Reply),
    /// The thread that waits is to read from the connection, after sending its request over it if
    /// that is still here.
    Reading(SharedConnection<C>, Option<Request>),
    /// The thread waits: for the reply, or to become the reader.
    Waiting,
}

/// What a thread has to do about its request next.
pub(super) enum Step<C> {
    /// Its time is over, and it will be neither answered nor made the reader any more.
    Leave,
    Read(SharedConnection<C>, Option<Request>),
    Return(Reply),
}

impl<C> fmt::Debug for ReplySlot<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySlot").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl<C> ReplySlot<C> {
    pub(super) fn new(deadline: Instant) -> Arc<Self> {
        let (state, changed) = (Mutex::new(SlotState::Waiting), Condvar::new());
        Arc::new(Self { deadline, state, changed })
    }

    /// Blocks until the reply has come, the thread has become a reader, or the deadline is over.
    pub(super) fn wait(&self) -> Step<C> {
        let mut state = self.state.lock();
        let waits = |state: &SlotState<C>| matches!(state, SlotState::Waiting);
        wait_while(&self.changed, &mut state, Some(self.deadline), waits);
        let step = Self::end(&mut state);
        if matches!(step, Step::Read(..)) {
            // The reader waits for its reply as well.
            *state = SlotState::Waiting;
        }
        step
    }

    /// Stops waiting at once.
    pub(super) fn abandon(&self) -> Step<C> {
        Self::end(&mut self.state.lock())
    }

    fn end(state: &mut SlotState<C>) -> Step<C> {
        match mem::replace(state, SlotState::Abandoned) {
            SlotState::Reading(connection, request) => Step::Read(connection, request),
            SlotState::Answered(reply) => Step::Return(reply),
            SlotState::Waiting | SlotState::Abandoned => Step::Leave,
        }
    }

    pub(super) fn answer(&self, reply: Reply) {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, SlotState::Abandoned) {
            SlotState::Waiting => {
                *state = SlotState::Answered(reply);
                // Not under the lock, which the thread that wakes takes first.
                drop(state);
                self.changed.notify_one();
            }
            other => *state = other,
        }
    }

    /// Makes the thread that waits the reader of the connection, with a request to send first if
    /// there is one. Returns the connection if no thread waits.
    pub(super) fn assign(
        &self,
        connection: SharedConnection<C>,
        request: Option<Request>,
    ) -> Option<SharedConnection<C>> {
        let mut state = self.state.lock();
        if !matches!(*state, SlotState::Waiting) {
            return Some(connection);
        }
        *state = SlotState::Reading(connection, request);
        drop(state);
        self.changed.notify_one();
        None
    }

    fn is_abandoned(&self) -> bool {
        matches!(*self.state.lock(), SlotState::Abandoned)
    }
}

/// A pooled connection with requests in flight.
#[derive(Debug)]
pub(super) struct SharedConnection<C> {
    pipeline: Pipeline<Arc<ReplySlot<C>>, C>,
}

impl<C: Transport> SharedConnection<C> {
    pub(super) fn new(connection: C) -> Self {
        // The effect of a request that its sender has given up is being undone already.
        let again = UnknownScript::SendAgainIf(|slot: &Arc<ReplySlot<C>>| !slot.is_abandoned());
        Self { pipeline: Pipeline::new(connection, again) }
    }

    /// Opens the connection unless it is open.
    pub(super) fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.pipeline.connection.connect(deadline)
    }

    /// Ends the sharing of a connection that has no requests in flight.
    pub(super) fn into_idle(self) -> C {
        self.pipeline.connection
    }

    /// Sends requests over the open connection, in one write if there is room; the reader goes on
    /// with the rest. If that fails, all of them have failed and are answered so.
    pub(super) fn send(&mut self, own: Option<QueuedRequest<C>>, others: Batch<C>) {
        let Batch { posted, requests } = others;
        let waiting = own.iter().chain(&requests).map(|queued| queued.slot.deadline).min();
        let deadline = waiting.or_else(|| posted.iter().map(|posted| posted.deadline).max());
        let Some(deadline) = deadline else { return };
        for posted in posted {
            owe(&mut self.pipeline.connection, posted, deadline);
        }
        let batch = own.into_iter().chain(requests);
        self.pipeline.send(batch.map(|queued| (queued.slot, queued.request)));
        self.answer_if_given_up();
    }

    /// Reads replies until the one to `own`; `None` if its time is over before.
    pub(super) fn receive(&mut self, own: &Arc<ReplySlot<C>>) -> Option<Reply> {
        let wait = WaitFor::SoonReply { deadline: own.deadline };
        while let Some((slot, reply)) = self.pipeline.receive(wait) {
            if Arc::ptr_eq(&slot, own) {
                return Some(reply);
            }
            slot.answer(reply);
        }
        None
    }

    /// Collects the replies that were read along with earlier ones.
    pub(super) fn receive_buffered(&mut self) -> Vec<(Arc<ReplySlot<C>>, Reply)> {
        std::iter::from_fn(|| self.pipeline.receive(WaitFor::Buffered)).collect()
    }

    /// Makes the first thread that waits for a reply the reader. Returns the connection if none
    /// waits.
    pub(super) fn assign_reader(mut self) -> Option<Self> {
        let mut next = 0;
        while let Some(slot) = self.slot(next) {
            self = slot.assign(self, None)?;
            next += 1;
        }
        Some(self)
    }

    /// Ends the sharing of a connection without a reader. If requests are in flight, no thread
    /// waits for them, and the connection is given up.
    pub(super) fn close_unless_idle(mut self) -> C {
        if !self.pipeline.is_empty() && self.pipeline.connection.is_connected() {
            self.pipeline.connection.collect(WaitFor::Nothing);
            let failure = self.pipeline.connection.time_out();
            self.pipeline.give_up(failure);
        }
        self.answer_if_given_up();
        self.into_idle()
    }

    /// The slot for the reply at this position.
    fn slot(&self, position: usize) -> Option<Arc<ReplySlot<C>>> {
        self.pipeline.tags().nth(position).cloned()
    }

    /// Answers every request in flight with its failure if the connection was given up.
    fn answer_if_given_up(&mut self) {
        while !self.pipeline.connection.is_connected()
            && let Some((slot, reply)) = self.pipeline.receive(WaitFor::Buffered)
        {
            slot.answer(reply);
        }
    }
}

/// Has a request that no thread waits for written along with the next write. If too much is owed
/// already, that is read first.
fn owe<C: Transport>(connection: &mut C, posted: PostedRequest, deadline: Instant) {
    if !connection.owed().has_room(posted.len())
        && let Err(failure) = connection.read_owed(deadline)
    {
        return posted.answer(Err(failure));
    }
    connection.owe(posted);
}
