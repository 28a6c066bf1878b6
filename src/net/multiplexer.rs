//! How the threads of a client share its connections to one server.
//!
//! A thread that finds a connection free uses it alone. Where none is free, requests queue up, and
//! the thread that gets a connection next sends all of them in one write. The idea is that of flat
//! combining (Hendler, Incze, Shavit and Tzafrir, 2010), with a connection for the lock.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::failure::Failure;
use crate::net::request::{Reply, Request};
use crate::net::send_queue::SendQueue;
use crate::net::shared_connection::{OnReply, QueuedRequest, ReplySlot, SharedConnection, Step};
use crate::net::transport::Transport;
use crate::sync::yield_now;

/// Where free connections come from, and go back to when they are dropped.
pub(crate) trait ConnectionSource {
    type Connection: Transport;

    /// Returns a connection unless all are in use. Blocks for no longer than it takes to make one,
    /// without opening it.
    fn try_get(&self, deadline: Instant) -> Option<Self::Connection>;

    /// Blocks until a connection is free; returns `None` if none is by the deadline.
    fn get(&self, deadline: Instant) -> Option<Self::Connection>;

    /// The failure of a request for which no connection was free in time.
    fn all_in_use(&self) -> Failure;

    /// The failure of a request that was not answered in time.
    fn no_reply(&self) -> Failure;
}

/// The connections to one server, as threads share them.
#[derive(Debug)]
pub(crate) struct Multiplexer<S: ConnectionSource> {
    source: S,
    /// Whether requests of several threads may go over one connection.
    shares: bool,
    queue: SendQueue<S::Connection>,
}

impl<S: ConnectionSource> Multiplexer<S> {
    pub(super) fn new(source: S, shares: bool) -> Self {
        Self { source, shares, queue: SendQueue::default() }
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// Returns `true` if no request waits for a connection.
    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends a request and waits for its reply: alone if a connection is free and other threads do
    /// not send batches at the moment, else together with theirs.
    pub(super) fn exchange(self: &Arc<Self>, request: Request, deadline: Instant) -> Reply {
        let free = if self.queue.is_batching() { None } else { self.source.try_get(deadline) };
        let Some(mut connection) = free else {
            return self.begin(request, deadline).wait();
        };
        let reply = connection.exchange(&request, deadline);
        self.send_queued(connection, deadline);
        reply
    }

    /// Sends a request, or has it sent as soon as a connection is free. Any thread may wait for the
    /// reply.
    pub(super) fn begin(self: &Arc<Self>, request: Request, deadline: Instant) -> Pending<S> {
        let slot = ReplySlot::waiting(deadline);
        if !self.shares {
            slot.answer(self.alone(deadline, |connection| connection.exchange(&request, deadline)));
            return Pending { multiplexer: self.clone(), slot, waited: false };
        }
        // Every request but the first is sent along with the first.
        if self.queue.push(QueuedRequest { request, slot: slot.clone() }) {
            if self.queue.is_batching() {
                // Threads that were woken together have their next requests at nearly the same
                // time: a moment for those that are awake saves a write for each.
                yield_now();
            }
            if let Some(connection) = self.source.try_get(deadline) {
                self.send_queued(connection, deadline);
            }
        }
        Pending { multiplexer: self.clone(), slot, waited: false }
    }

    /// Leaves a request to a reader thread, which sends it as soon as it has its own reply and
    /// calls `on_reply` with the reply to this one. Returns `None`, and does nothing, while no
    /// thread shares a connection.
    pub(super) fn post(
        self: &Arc<Self>,
        request: Request,
        deadline: Instant,
        on_reply: OnReply,
    ) -> Option<Posted<S>> {
        if !self.queue.has_readers() {
            return None;
        }
        let slot = ReplySlot::posted(deadline, on_reply);
        let posted = self.queue.push_posted(QueuedRequest { request, slot: slot.clone() });
        posted.then(|| Posted { multiplexer: self.clone(), slot })
    }

    /// Lets `work` have a connection to itself.
    pub(super) fn alone<T>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&mut S::Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut connection = self.source.get(deadline).ok_or_else(|| self.source.all_in_use())?;
        let outcome = work(&mut connection);
        self.send_queued(connection, deadline);
        outcome
    }

    /// Reads as the reader of a connection until the reply to `own` has come, after sending its
    /// request if that is `unsent`; `None` if its time is over before.
    fn read(
        &self,
        mut connection: SharedConnection<S::Connection>,
        unsent: Option<Request>,
        own: &Arc<ReplySlot<S::Connection>>,
    ) -> Option<Reply> {
        if let Some(request) = unsent {
            if let Err(failure) = connection.connect(own.deadline) {
                self.send_queued(connection.into_idle(), own.deadline);
                return Some(Err(failure));
            }
            let own = QueuedRequest { request, slot: own.clone() };
            connection.send(Some(own), self.queue.pop_batch(1));
        }
        // Without a reply of its own, the thread may have been answered with a failure.
        let reply = connection.receive(own).or_else(|| match own.abandon() {
            Step::Return(reply) => Some(reply),
            Step::Leave | Step::Read(..) => None,
        });
        let buffered = connection.receive_buffered();
        if let Some(idle) = self.assign_reader(connection, own.deadline) {
            self.send_queued(idle, own.deadline);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        for (slot, reply) in buffered {
            slot.answer(reply);
        }
        reply
    }

    /// Makes the first thread that waits for a reply the reader. If none does, returns the
    /// connection idle, after reading the replies to posted requests, for which there is time until
    /// the deadline.
    fn assign_reader(
        &self,
        mut connection: SharedConnection<S::Connection>,
        deadline: Instant,
    ) -> Option<S::Connection> {
        if !mem::replace(&mut connection.counted, true) {
            self.queue.add_reader();
        }
        let mut connection = connection.assign_reader()?;
        self.queue.remove_reader();
        connection.receive_posted(deadline);
        Some(connection.into_idle())
    }

    /// Sends what has queued up over an idle connection, or gives that back to the pool. If no
    /// thread waits for what is sent, there is time until the deadline to do so here.
    fn send_queued(&self, idle: S::Connection, deadline: Instant) {
        let mut free = Some(idle);
        while let Some(mut connection) = free {
            free = if self.queue.can_wait() {
                drop(connection);
                // A thread that queued a request just before has found no connection free.
                if self.queue.can_wait() { None } else { self.source.try_get(deadline) }
            } else if connection.is_ready() {
                let mut shared = SharedConnection::new(connection);
                shared.send(None, self.queue.pop_batch(0));
                self.assign_reader(shared, deadline)
            } else if let Some(QueuedRequest { request, slot }) = self.queue.pop_first_waiting() {
                // To connect takes time, which a thread that waits for a reply has.
                let shared = slot.assign(SharedConnection::new(connection), Some(request));
                shared.map(SharedConnection::into_idle)
            } else {
                if let Err(failure) = connection.connect(deadline) {
                    for queued in self.queue.pop_batch(0) {
                        queued.slot.answer(Err(failure.clone()));
                    }
                }
                Some(connection)
            };
        }
    }
}

/// A request that was sent, or will be, and whose reply a thread can wait for.
#[derive(Debug)]
pub(crate) struct Pending<S: ConnectionSource> {
    multiplexer: Arc<Multiplexer<S>>,
    slot: Arc<ReplySlot<S::Connection>>,
    waited: bool,
}

impl<S: ConnectionSource> Pending<S> {
    /// Blocks until the reply has come or the deadline of the request is over.
    pub(crate) fn wait(mut self) -> Reply {
        self.waited = true;
        let Self { multiplexer, slot, .. } = &self;
        let reply = match slot.wait() {
            Step::Leave if multiplexer.queue.withdraw(slot) => {
                Some(Err(multiplexer.source.all_in_use()))
            }
            Step::Leave => None,
            Step::Read(connection, unsent) => multiplexer.read(connection, unsent, slot),
            Step::Return(reply) => Some(reply),
        };
        reply.unwrap_or_else(|| Err(multiplexer.source.no_reply()))
    }
}

/// A request that is not waited for must not keep other threads from their replies.
impl<S: ConnectionSource> Drop for Pending<S> {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        match self.slot.abandon() {
            Step::Leave | Step::Return(_) => {
                self.multiplexer.queue.withdraw(&self.slot);
            }
            Step::Read(connection, _) => {
                let deadline = self.slot.deadline;
                if let Some(idle) = self.multiplexer.assign_reader(connection, deadline) {
                    self.multiplexer.send_queued(idle, deadline);
                }
            }
        }
    }
}

/// A request that was left to another thread.
#[derive(Debug)]
pub(crate) struct Posted<S: ConnectionSource> {
    multiplexer: Arc<Multiplexer<S>>,
    slot: Arc<ReplySlot<S::Connection>>,
}

impl<S: ConnectionSource> Posted<S> {
    /// Takes the request back. Returns `false` if it may have been sent.
    pub(crate) fn recall(self) -> bool {
        self.multiplexer.queue.withdraw(&self.slot)
    }
}
