//! How the threads of a client share its connections to one server.
//!
//! A thread that finds a connection free uses it alone. Where none is free, requests queue up, and
//! the thread that gets a connection next sends all of them in one write. The idea is that of flat
//! combining (Hendler, Incze, Shavit and Tzafrir, 2010), with a connection for the lock.
//! The first request of a batch yields once before it is sent: threads that were woken together
//! send their next requests at nearly the same time, and one write for all costs half the CPU of
//! one for each. A thread alone never yields.
//!
//! A request that no thread waits for is written by the thread that posts it, if a connection is
//! free. Connections on which replies are owed are kept apart from the others, and used first. A
//! sweep reads what no user has read for a while.

use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::base::sync::yield_now;
use crate::net::owed::PostedRequest;
use crate::net::owing::{NextOwing, OwingConnections, SWEEP};
use crate::net::post_writer::PostWriter;
use crate::net::request::{Reply, Request};
use crate::net::send_queue::{Queued, SendQueue};
use crate::net::shared_connection::{QueuedRequest, ReplySlot, SharedConnection, Step};
use crate::net::transport::{ConnectionSource, NoConnection, Transport, WaitFor};

/// The connections to one server, as threads share them.
#[derive(Debug)]
pub(crate) struct Multiplexer<S: ConnectionSource> {
    source: S,
    /// Whether requests of several threads may go over one connection.
    shares: bool,
    queue: SendQueue<S::Connection>,
    owing: OwingConnections<S::Connection>,
    posts: PostWriter,
}

impl<S: ConnectionSource> Multiplexer<S> {
    pub(super) fn new(source: S, shares: bool) -> Self {
        Self {
            source,
            shares,
            queue: SendQueue::default(),
            owing: OwingConnections::default(),
            posts: PostWriter::default(),
        }
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// How many connections no thread uses while replies are owed on them.
    pub(super) fn owing(&self) -> usize {
        self.owing.len()
    }

    /// Returns `true` if no request waits for a connection.
    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends a request and waits for its reply: alone if a connection is free and other threads do
    /// not send batches at the moment, else together with theirs.
    pub(super) fn exchange(self: &Arc<Self>, request: Request, deadline: Instant) -> Reply {
        let free = if self.queue.is_batching() { None } else { self.take(deadline) };
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
        let slot = ReplySlot::new(deadline);
        if !self.shares {
            slot.answer(self.alone(deadline, |connection| connection.exchange(&request, deadline)));
            return Pending { multiplexer: self.clone(), slot, waited: false };
        }
        let queued = QueuedRequest { request, slot: slot.clone() };
        self.push(Queued::Request(queued), deadline);
        Pending { multiplexer: self.clone(), slot, waited: false }
    }

    /// Writes requests that no thread waits for, or has them written as soon as a connection is
    /// free. Blocks only for room to write, and to open a connection.
    pub(super) fn post(self: &Arc<Self>, posted: Vec<PostedRequest>) {
        let Some(deadline) = posted.iter().map(|posted| posted.deadline).max() else { return };
        let free = if self.queue.is_batching() { None } else { self.take_to_post(deadline) };
        match free {
            None => {
                for posted in posted {
                    self.push(Queued::Posted(posted), deadline);
                }
            }
            Some(mut connection) => {
                self.posts.write(&mut connection, posted, deadline);
                self.send_queued(connection, deadline);
            }
        }
    }

    /// Lets `work` have a connection to itself.
    pub(super) fn alone<T>(
        self: &Arc<Self>,
        deadline: Instant,
        work: impl FnOnce(&mut S::Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut connection = match self.take(deadline) {
            Some(connection) => connection,
            None => self.wait_for_connection(deadline)?,
        };
        let outcome = work(&mut connection);
        self.send_queued(connection, deadline);
        outcome
    }

    /// Blocks until it is this thread's turn to have a connection to itself.
    fn wait_for_connection(self: &Arc<Self>, deadline: Instant) -> Result<S::Connection, Failure> {
        let slot = ReplySlot::new(deadline);
        self.push(Queued::Alone(slot.clone()), deadline);
        match slot.wait() {
            Step::Read(connection, _) => Ok(connection.into_idle()),
            Step::Return(Err(failure)) => Err(failure),
            Step::Leave | Step::Return(Ok(_)) => {
                self.queue.withdraw(&slot);
                Err(self.source.all_in_use())
            }
        }
    }

    /// Reads everything that is owed, or gives up the connections that owe it.
    pub(super) fn settle(self: &Arc<Self>, deadline: Instant) {
        loop {
            match self.owing.next() {
                NextOwing::Connection(mut connection) => {
                    drop(connection.read_owed(deadline));
                    self.send_queued(connection, deadline);
                }
                NextOwing::None if self.queue.is_empty() => return,
                // When it is this thread's turn, everything else has been sent.
                NextOwing::None if self.alone(deadline, |_| Ok(())).is_ok() => {}
                NextOwing::None => return,
                NextOwing::Swept => yield_now(),
            }
        }
    }

    /// Returns a connection of the pool. A thread that comes too late for one has kept it from
    /// others: a sweep sends what has queued up meanwhile.
    fn take_pooled(self: &Arc<Self>, deadline: Instant) -> Option<S::Connection> {
        match self.source.try_get(deadline) {
            Ok(connection) => return Some(connection),
            Err(NoConnection::InUse) => {}
            Err(NoConnection::Late) => {
                if !self.queue.is_empty() && self.owing.claim_sweep() {
                    self.schedule_sweep();
                }
            }
        }
        None
    }

    /// Returns a connection that no thread uses. A blocked one is given up for want of another.
    fn take(self: &Arc<Self>, deadline: Instant) -> Option<S::Connection> {
        let free = self.owing.pop().or_else(|| self.take_pooled(deadline));
        free.or_else(|| {
            let mut blocked = self.owing.pop_blocked()?;
            blocked.poison();
            Some(blocked)
        })
    }

    /// As `take`, but waits for a sweep that has what could be used: if nothing but the thread of
    /// the sweep wrote the requests, the program might end before.
    fn take_to_post(self: &Arc<Self>, deadline: Instant) -> Option<S::Connection> {
        loop {
            match self.owing.next() {
                NextOwing::Connection(connection) => return Some(connection),
                NextOwing::None => return self.take(deadline),
                NextOwing::Swept => match self.take_pooled(deadline) {
                    None => yield_now(),
                    free => return free,
                },
            }
        }
    }

    /// Adds to the queue. Every request but the first is sent along with the first.
    fn push(self: &Arc<Self>, queued: Queued<S::Connection>, deadline: Instant) {
        if !self.queue.push(queued) {
            self.source.count_wait();
            return;
        }
        if self.queue.is_batching() {
            // Threads that were woken together have their next requests at nearly the same time: a
            // moment for those that are awake saves a write for each.
            yield_now();
        }
        match self.take(deadline) {
            Some(connection) => self.send_queued(connection, deadline),
            None => self.source.count_wait(),
        }
    }

    /// Reads as the reader of a connection until the reply to `own` has come, after sending its
    /// request if that is `unsent`; `None` if its time is over before.
    fn read(
        self: &Arc<Self>,
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
        if let Some(idle) = connection.assign_reader() {
            self.send_queued(idle.close_unless_idle(), own.deadline);
        }
        // Only now: to wake many threads takes longer than to give the server more to do.
        for (slot, reply) in buffered {
            slot.answer(reply);
        }
        reply
    }

    /// Sends what has queued up over an idle connection, or gives that back. If no thread waits for
    /// what is sent, there is time until the deadline to do so here.
    fn send_queued(self: &Arc<Self>, idle: S::Connection, deadline: Instant) {
        let mut free = Some(idle);
        while let Some(mut connection) = free {
            free = if self.queue.is_empty() || connection.owed().is_blocked() {
                self.give_back(connection);
                // A thread that queued a request just before has found no connection free.
                if self.queue.is_empty() { None } else { self.take(deadline) }
            } else if let Some(slot) = self.queue.pop_alone() {
                let shared = slot.assign(SharedConnection::new(connection), None);
                shared.map(SharedConnection::into_idle)
            } else if connection.is_ready() {
                let mut shared = SharedConnection::new(connection);
                shared.send(None, self.queue.pop_batch(0));
                shared.assign_reader().map(SharedConnection::close_unless_idle)
            } else if let Some(QueuedRequest { request, slot }) = self.queue.pop_waiting() {
                // To connect takes time, which a thread that waits for a reply has.
                let shared = slot.assign(SharedConnection::new(connection), Some(request));
                shared.map(SharedConnection::into_idle)
            } else {
                self.posts.write(&mut connection, self.queue.pop_posted(), deadline);
                Some(connection)
            };
        }
    }

    /// Gives back an idle connection.
    fn give_back(self: &Arc<Self>, mut connection: S::Connection) {
        if connection.owed().is_empty() {
            return;
        }
        if connection.owe_again() {
            // A failure to write fails what is owed.
            drop(connection.send(|_| {}));
        }
        if connection.is_connected() && self.owing.push(connection) {
            self.schedule_sweep();
        }
    }

    fn schedule_sweep(self: &Arc<Self>) {
        let multiplexer = Arc::downgrade(self);
        self.source.run_later(SWEEP, move || {
            if let Some(multiplexer) = multiplexer.upgrade() {
                multiplexer.sweep();
            }
        });
    }

    /// Reads what was owed for a while, and gives up the connections on which something is overdue.
    /// Sends what is left in the queue.
    fn sweep(self: &Arc<Self>) {
        let now = Instant::now();
        for mut connection in self.owing.begin_sweep(now) {
            connection.collect(WaitFor::Nothing);
            if connection.owed().is_overdue(now) {
                connection.time_out();
            }
            // This thread has no time to open a connection.
            self.send_queued(connection, now);
        }
        if !self.queue.is_empty()
            && let Some(connection) = self.take(now)
        {
            self.send_queued(connection, now);
        }
        if self.owing.end_sweep() {
            self.schedule_sweep();
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
                if let Some(idle) = connection.assign_reader() {
                    self.multiplexer.send_queued(idle.close_unless_idle(), self.slot.deadline);
                }
            }
        }
    }
}
