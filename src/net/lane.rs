//! One connection's turn of work: requests that several threads have sent over it in one write.
//!
//! Replies come in the order of the requests. The thread whose reply comes next reads: it *drives*
//! the lane. When it has its own it hands out whatever else has come, and passes the lane on. So
//! nobody waits for somebody else's reply, and no thread is needed that only reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem};

use crate::failure::Failure;
use crate::net::pipeline::{Transport, WaitFor};
use crate::net::request::{Reply, Request};
use crate::sync::{Condvar, Mutex, wait_while};

/// What becomes of a reply for which no thread waits. Must not take long.
pub(crate) type Then<T> = Box<dyn FnOnce(T) + Send>;

/// A request for which a thread waits, or one that was posted: whoever reads its reply does with it
/// what is to be done.
pub(super) struct QueuedRequest<W> {
    pub(super) request: Request,
    pub(super) deadline: Instant,
    /// No thread waits for the reply, nor ever has.
    pub(super) posted: bool,
    state: Mutex<RequestState<W>>,
    changed: Condvar,
}

enum RequestState<W> {
    /// For a reply, or to drive.
    Waits,
    /// Nobody waits, but the reply is wanted.
    Posted(Then<Reply>),
    /// The thread is to drive this lane.
    Drives(Lane<W>),
    Answered(Reply),
    /// Nobody waits any more.
    Left,
}

/// What a thread has to do about its request next.
pub(super) enum Step<W> {
    Drive(Lane<W>),
    Return(Reply),
    /// Its time is over, and nobody will answer or make it drive any more.
    Leave,
}

impl<W> Step<W> {
    pub(super) fn into_reply(self) -> Option<Reply> {
        if let Self::Return(reply) = self { Some(reply) } else { None }
    }
}

impl<W> fmt::Debug for QueuedRequest<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedRequest").field("until", &self.deadline).finish_non_exhaustive()
    }
}

impl<W> QueuedRequest<W> {
    pub(super) fn new(deadline: Instant, request: Request) -> Arc<Self> {
        Self::begin(deadline, request, RequestState::Waits, false)
    }

    pub(super) fn posted(deadline: Instant, request: Request, then: Then<Reply>) -> Arc<Self> {
        Self::begin(deadline, request, RequestState::Posted(then), true)
    }

    fn begin(
        deadline: Instant,
        request: Request,
        state: RequestState<W>,
        posted: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            request,
            deadline,
            posted,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Waits for the reply, or for a lane to drive, until the time of the request is over.
    pub(super) fn wait(&self) -> Step<W> {
        let mut state = self.state.lock();
        let waits = |state: &RequestState<W>| matches!(state, RequestState::Waits);
        wait_while(&self.changed, &mut state, Some(self.deadline), waits);
        let step = Self::end(&mut state);
        if matches!(step, Step::Drive(_)) {
            // Whoever drives waits as well.
            *state = RequestState::Waits;
        }
        step
    }

    /// Ends the wait at once.
    pub(super) fn leave(&self) -> Step<W> {
        Self::end(&mut self.state.lock())
    }

    fn end(state: &mut RequestState<W>) -> Step<W> {
        match mem::replace(state, RequestState::Left) {
            RequestState::Drives(lane) => Step::Drive(lane),
            RequestState::Answered(reply) => Step::Return(reply),
            RequestState::Waits | RequestState::Posted(_) | RequestState::Left => Step::Leave,
        }
    }

    pub(super) fn answer(&self, reply: Reply) {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, RequestState::Left) {
            RequestState::Waits => {
                *state = RequestState::Answered(reply);
                // Not under the lock, which the thread that wakes takes first.
                drop(state);
                self.changed.notify_one();
            }
            RequestState::Posted(then) => {
                drop(state);
                then(reply);
            }
            other => *state = other,
        }
    }

    /// Makes the thread that waits drive the lane. Gives it back if nobody waits.
    pub(super) fn offer(&self, lane: Lane<W>) -> Option<Lane<W>> {
        let mut state = self.state.lock();
        if !matches!(*state, RequestState::Waits) {
            return Some(lane);
        }
        *state = RequestState::Drives(lane);
        drop(state);
        self.changed.notify_one();
        None
    }
}

/// A pooled connection, and the requests whose replies are still to come, in order.
#[derive(Debug)]
pub(super) struct Lane<W> {
    pub(super) wire: W,
    in_flight: VecDeque<Arc<QueuedRequest<W>>>,
    /// Whether it is counted among those on which somebody waits.
    pub(super) watched: bool,
}

impl<W: Transport> Lane<W> {
    pub(super) fn new(wire: W) -> Self {
        Self { wire, in_flight: VecDeque::new(), watched: false }
    }

    /// Sends requests over the open connection in one write. If that fails, all of them have
    /// failed, and are told so.
    pub(super) fn send(&mut self, batch: impl IntoIterator<Item = Arc<QueuedRequest<W>>>) {
        self.in_flight.extend(batch);
        let Some(deadline) = self.in_flight.iter().map(|request| request.deadline).min() else {
            return;
        };
        let in_flight = &self.in_flight;
        let pack = |out: &mut Vec<u8>| {
            for request in in_flight {
                out.extend_from_slice(request.request.bytes());
            }
        };
        if let Err(failure) = self.wire.write(deadline, pack) {
            self.fail(&failure);
        }
    }

    /// Tells whether a reply to the request is still to come.
    pub(super) fn carries(&self, request: &Arc<QueuedRequest<W>>) -> bool {
        self.in_flight.iter().any(|in_flight| Arc::ptr_eq(in_flight, request))
    }

    /// Reads replies until there is one to `own`; `None` if its time is over before. For those in
    /// front of it nobody waits any more, or ever has.
    pub(super) fn read(&mut self, own: &Arc<QueuedRequest<W>>) -> Option<Reply> {
        while let Some(next) = self.in_flight.front().cloned() {
            let reply = self.wire.receive(WaitFor::SoonReply { deadline: own.deadline })?;
            self.take(&reply);
            if Arc::ptr_eq(&next, own) {
                return Some(reply);
            }
            next.answer(reply);
        }
        None
    }

    /// Collects the replies that have come already, with the requests that they answer.
    pub(super) fn gather(&mut self) -> Vec<(Arc<QueuedRequest<W>>, Reply)> {
        let mut gathered = Vec::new();
        while let Some(next) = self.in_flight.front().cloned()
            && let Some(reply) = self.wire.receive(WaitFor::Nothing)
        {
            self.take(&reply);
            gathered.push((next, reply));
        }
        gathered
    }

    /// Makes the first of those that wait for a reply drive. Gives the lane back if nobody waits.
    pub(super) fn offer(mut self) -> Option<Self> {
        let mut next = 0;
        while let Some(request) = self.in_flight.get(next).cloned() {
            self = request.offer(self)?;
            next += 1;
        }
        Some(self)
    }

    /// Reads the replies for which nobody waits, but which are wanted. If there are others, or the
    /// time is over before, the connection is given up.
    pub(super) fn finish(&mut self, deadline: Instant) {
        while self.in_flight.iter().any(|request| request.posted)
            && let Some(next) = self.in_flight.front().cloned()
            && let Some(reply) =
                self.wire.receive(WaitFor::SoonReply { deadline: deadline.min(next.deadline) })
        {
            self.take(&reply);
            next.answer(reply);
        }
        if !self.in_flight.is_empty() {
            let failure = self.wire.time_out();
            self.fail(&failure);
        }
    }

    /// Takes the first request as answered; with a broken connection all are.
    fn take(&mut self, reply: &Reply) {
        self.in_flight.pop_front();
        if let Err(failure) = reply
            && !self.wire.is_connected()
        {
            self.fail(failure);
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.in_flight.drain(..).for_each(|request| request.answer(Err(failure.clone())));
    }
}
