//! One connection's turn of work: requests that several threads have sent over it in one write.
//!
//! Replies come in the order of the requests. The thread whose reply comes next reads: it *drives*
//! the lane. When it has its own it hands out whatever else has come, and passes the lane on. So
//! nobody waits for somebody else's reply, and no thread is needed that only reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem};

use redis::Value;

use crate::store::failure::Failure;
use crate::sync::{Condvar, Mutex};

/// What a thread gets for its request.
pub(crate) type Reply = Result<Value, Failure>;

/// What becomes of a reply for which no thread waits. Must not take long.
pub(crate) type Then<T> = Box<dyn FnOnce(T) + Send>;

/// A connection, as far as a lane needs one.
pub(crate) trait Wire {
    /// Tells whether requests can be sent without connecting first.
    fn is_ready(&self) -> bool;

    /// Tells whether replies can still come.
    fn is_connected(&self) -> bool;

    fn connect(&mut self, until: Instant) -> Result<(), Failure>;

    /// Sends what `pack` writes, connecting first if need be, and reads the reply. Without one in
    /// time the connection is given up.
    fn exchange(&mut self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Reply;

    /// Sends what `pack` writes.
    fn write(&mut self, until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure>;

    /// Reads the next reply; `None` if it is not there by then.
    fn receive(&mut self, spin: bool, until: Instant) -> Option<Reply>;

    /// Gives up what is still on its way, because it has not come in time.
    fn silence(&mut self) -> Failure;
}

/// A request for which a thread waits, or one that was posted: whoever reads its reply does with it
/// what is to be done.
pub(super) struct Request<W> {
    pub(super) bytes: Vec<u8>,
    pub(super) until: Instant,
    /// No thread waits for the reply, nor ever has.
    pub(super) posted: bool,
    state: Mutex<State<W>>,
    changed: Condvar,
}

enum State<W> {
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

impl<W> fmt::Debug for Request<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("until", &self.until).finish_non_exhaustive()
    }
}

impl<W> Request<W> {
    pub(super) fn new(until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Arc<Self> {
        Self::begin(until, pack, State::Waits, false)
    }

    pub(super) fn posted(
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
        then: Then<Reply>,
    ) -> Arc<Self> {
        Self::begin(until, pack, State::Posted(then), true)
    }

    fn begin(
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
        state: State<W>,
        posted: bool,
    ) -> Arc<Self> {
        let mut bytes = Vec::with_capacity(512);
        pack(&mut bytes);
        Arc::new(Self { bytes, until, posted, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Waits for the reply, or for a lane to drive, until the time of the request is over.
    pub(super) fn wait(&self) -> Step<W> {
        let mut state = self.state.lock();
        while matches!(*state, State::Waits) {
            if self.changed.wait_until(&mut state, self.until).timed_out() {
                break;
            }
        }
        let step = Self::end(&mut state);
        if matches!(step, Step::Drive(_)) {
            // Whoever drives waits as well.
            *state = State::Waits;
        }
        step
    }

    /// Ends the wait at once.
    pub(super) fn leave(&self) -> Step<W> {
        Self::end(&mut self.state.lock())
    }

    fn end(state: &mut State<W>) -> Step<W> {
        match mem::replace(state, State::Left) {
            State::Drives(lane) => Step::Drive(lane),
            State::Answered(reply) => Step::Return(reply),
            State::Waits | State::Posted(_) | State::Left => Step::Leave,
        }
    }

    pub(super) fn answer(&self, reply: Reply) {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, State::Left) {
            State::Waits => {
                *state = State::Answered(reply);
                // Not under the lock, which the thread that wakes takes first.
                drop(state);
                self.changed.notify_one();
            }
            State::Posted(then) => {
                drop(state);
                then(reply);
            }
            other => *state = other,
        }
    }

    /// Makes the thread that waits drive the lane. Gives it back if nobody waits.
    pub(super) fn offer(&self, lane: Lane<W>) -> Option<Lane<W>> {
        let mut state = self.state.lock();
        if !matches!(*state, State::Waits) {
            return Some(lane);
        }
        *state = State::Drives(lane);
        drop(state);
        self.changed.notify_one();
        None
    }
}

/// A pooled connection, and the requests whose replies are still to come, in order.
#[derive(Debug)]
pub(super) struct Lane<W> {
    pub(super) wire: W,
    flying: VecDeque<Arc<Request<W>>>,
    /// Whether it is counted among those on which somebody waits.
    pub(super) watched: bool,
}

impl<W: Wire> Lane<W> {
    pub(super) fn new(wire: W) -> Self {
        Self { wire, flying: VecDeque::new(), watched: false }
    }

    /// Sends requests over the open connection in one write. If that fails, all of them have
    /// failed, and are told so.
    pub(super) fn send(&mut self, batch: impl IntoIterator<Item = Arc<Request<W>>>) {
        self.flying.extend(batch);
        let Some(until) = self.flying.iter().map(|request| request.until).min() else { return };
        let flying = &self.flying;
        let pack = |out: &mut Vec<u8>| {
            for request in flying {
                out.extend_from_slice(&request.bytes);
            }
        };
        if let Err(failure) = self.wire.write(until, pack) {
            self.fail(&failure);
        }
    }

    /// Tells whether a reply to the request is still to come.
    pub(super) fn carries(&self, request: &Arc<Request<W>>) -> bool {
        self.flying.iter().any(|flying| Arc::ptr_eq(flying, request))
    }

    /// Reads replies until there is one to `own`; `None` if its time is over before. For those in
    /// front of it nobody waits any more, or ever has.
    pub(super) fn read(&mut self, own: &Arc<Request<W>>) -> Option<Reply> {
        while let Some(next) = self.flying.front().cloned() {
            let reply = self.wire.receive(true, own.until)?;
            self.take(&reply);
            if Arc::ptr_eq(&next, own) {
                return Some(reply);
            }
            next.answer(reply);
        }
        None
    }

    /// Collects the replies that have come already, with the requests that they answer.
    pub(super) fn gather(&mut self) -> Vec<(Arc<Request<W>>, Reply)> {
        let mut gathered = Vec::new();
        while let Some(next) = self.flying.front().cloned()
            && let Some(reply) = self.wire.receive(false, Instant::now())
        {
            self.take(&reply);
            gathered.push((next, reply));
        }
        gathered
    }

    /// Makes the first of those that wait for a reply drive. Gives the lane back if nobody waits.
    pub(super) fn offer(mut self) -> Option<Self> {
        let mut next = 0;
        while let Some(request) = self.flying.get(next).cloned() {
            self = request.offer(self)?;
            next += 1;
        }
        Some(self)
    }

    /// Reads the replies for which nobody waits, but which are wanted. If there are others, or the
    /// time is over before, the connection is given up.
    pub(super) fn finish(&mut self, until: Instant) {
        while self.flying.iter().any(|request| request.posted)
            && let Some(next) = self.flying.front().cloned()
            && let Some(reply) = self.wire.receive(true, until.min(next.until))
        {
            self.take(&reply);
            next.answer(reply);
        }
        if !self.flying.is_empty() {
            let failure = self.wire.silence();
            self.fail(&failure);
        }
    }

    /// Takes the first request as answered; with a broken connection all are.
    fn take(&mut self, reply: &Reply) {
        self.flying.pop_front();
        if let Err(failure) = reply
            && !self.wire.is_connected()
        {
            self.fail(failure);
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.flying.drain(..).for_each(|request| request.answer(Err(failure.clone())));
    }
}
