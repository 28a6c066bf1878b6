//! One connection's turn of work: requests that several threads have sent over it in one write.
//!
//! Replies come in the order of the requests. The thread whose reply comes next reads: it *drives*
//! the lane. When it has its own it hands out whatever else has come, and passes the lane on. So
//! nobody waits for somebody else's reply, and no thread is needed that only reads.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use r2d2::PooledConnection;
use redis::Value;

use crate::store::Failure;
use crate::store::server::Places;

/// What a thread gets for its request.
pub(super) type Reply = Result<Value, Failure>;

/// A request for which a thread waits.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    pub(super) until: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// For a reply, or to drive.
    Waits,
    /// The thread is to drive this lane.
    Drives(Lane),
    Answered(Reply),
    /// Nobody waits any more.
    Left,
}

/// What a thread has to do about its request next.
pub(super) enum Step {
    Drive(Lane),
    Return(Reply),
    /// Its time is over, and nobody will answer or make it drive any more.
    Leave,
}

impl Step {
    pub(super) fn into_reply(self) -> Option<Reply> {
        if let Self::Return(reply) = self { Some(reply) } else { None }
    }
}

impl Request {
    pub(super) fn new(until: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Arc<Self> {
        let mut bytes = Vec::with_capacity(512);
        pack(&mut bytes);
        let (state, changed) = (Mutex::new(State::Waits), Condvar::new());
        Arc::new(Self { bytes, until, state, changed })
    }

    /// Waits for the reply, or for a lane to drive, until the time of the request is over.
    pub(super) fn wait(&self) -> Step {
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
    pub(super) fn leave(&self) -> Step {
        Self::end(&mut self.state.lock())
    }

    fn end(state: &mut State) -> Step {
        match mem::replace(state, State::Left) {
            State::Drives(lane) => Step::Drive(lane),
            State::Answered(reply) => Step::Return(reply),
            State::Waits | State::Left => Step::Leave,
        }
    }

    pub(super) fn answer(&self, reply: Reply) {
        let mut state = self.state.lock();
        if matches!(*state, State::Waits) {
            *state = State::Answered(reply);
            self.changed.notify_one();
        }
    }

    /// Makes the thread that waits drive the lane. Gives it back if nobody waits.
    pub(super) fn offer(&self, lane: Lane) -> Option<Lane> {
        let mut state = self.state.lock();
        if !matches!(*state, State::Waits) {
            return Some(lane);
        }
        *state = State::Drives(lane);
        self.changed.notify_one();
        None
    }
}

/// A pooled connection, and the requests whose replies are still to come, in order.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) connection: PooledConnection<Places>,
    flying: VecDeque<Arc<Request>>,
}

impl Lane {
    pub(super) fn new(connection: PooledConnection<Places>) -> Self {
        Self { connection, flying: VecDeque::new() }
    }

    /// Sends requests over the open connection in one write. If that fails, all of them have
    /// failed, and are told so.
    pub(super) fn send(&mut self, batch: impl IntoIterator<Item = Arc<Request>>) {
        self.flying.extend(batch);
        let Some(until) = self.flying.iter().map(|request| request.until).min() else { return };
        let flying = &self.flying;
        let pack = |out: &mut Vec<u8>| {
            for request in flying {
                out.extend_from_slice(&request.bytes);
            }
        };
        if let Err(failure) = self.connection.write(until, pack) {
            self.fail(&failure);
        }
    }

    /// Tells whether a reply to the request is still to come.
    pub(super) fn carries(&self, request: &Arc<Request>) -> bool {
        self.flying.iter().any(|flying| Arc::ptr_eq(flying, request))
    }

    /// Reads replies until there is one to `own`; `None` if its time is over before.
    pub(super) fn read(&mut self, own: &Arc<Request>) -> Option<Reply> {
        while let Some(next) = self.flying.front().cloned() {
            let reply = self.connection.receive(true, own.until)?;
            self.take(&reply);
            if Arc::ptr_eq(&next, own) {
                return Some(reply);
            }
            next.answer(reply);
        }
        None
    }

    /// Collects the replies that have come already, with the requests that they answer.
    pub(super) fn gather(&mut self) -> Vec<(Arc<Request>, Reply)> {
        let mut gathered = Vec::new();
        while let Some(next) = self.flying.front().cloned()
            && let Some(reply) = self.connection.receive(false, Instant::now())
        {
            self.take(&reply);
            gathered.push((next, reply));
        }
        gathered
    }

    /// Makes the first of those that wait for a reply drive. Without any the connection is given
    /// up, and the lane is given back.
    pub(super) fn pass_on(mut self) -> Option<Self> {
        let mut next = 0;
        while let Some(request) = self.flying.get(next).cloned() {
            self = request.offer(self)?;
            next += 1;
        }
        if next > 0 {
            self.flying.clear();
            self.connection.poison();
        }
        Some(self)
    }

    /// Takes the first request as answered; with a broken connection all are.
    fn take(&mut self, reply: &Reply) {
        self.flying.pop_front();
        if let Err(failure) = reply
            && !self.connection.is_connected()
        {
            self.fail(failure);
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.flying.drain(..).for_each(|request| request.answer(Err(failure.clone())));
    }
}
