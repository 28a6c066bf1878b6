//! The requests in flight on one connection: written in order, answered in order.
//!
//! | the connection | what becomes of a request in flight |
//! |---|---|
//! | open | its reply comes after those of the requests before it |
//! | open, and the reply is NOSCRIPT | it is sent again in full, behind the others, or fails, as the sender wishes |
//! | given up | it fails with the failure for which the connection was given up |
//!
//! Everyone who has requests in flight uses this: threads that share a pooled connection, the
//! background jobs, and the links of a quorum.

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::failure::{Failure, FailureKind};
use crate::net::request::{Reply, Request};

/// A server that accepts nothing more for this long is given up, where nobody waits longer.
pub(crate) const WRITE_TIME: Duration = Duration::from_millis(50);

/// A connection, as far as a pipeline needs one.
pub(crate) trait Transport {
    /// Returns `true` if requests can be sent without connecting first.
    fn is_ready(&self) -> bool;

    /// Returns `true` if replies can still come.
    fn is_connected(&self) -> bool;

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure>;

    /// Sends one request, connecting first if need be, and reads its reply. Without one in time the
    /// connection is given up.
    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply;

    /// Writes what `pack` appends.
    fn write(&mut self, deadline: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure>;

    /// Reads the next reply; `None` if it has not come by then.
    fn receive(&mut self, wait: WaitFor) -> Option<Reply>;

    /// Gives up the connection without a reason of its own.
    fn poison(&mut self);

    /// Gives up a connection over which no reply has come in time.
    fn time_out(&mut self) -> Failure;
}

/// What lends a connection is one.
impl<P> Transport for P
where
    P: DerefMut<Target: Transport>,
{
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn is_connected(&self) -> bool {
        (**self).is_connected()
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        (**self).connect(deadline)
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        (**self).exchange(request, deadline)
    }

    fn write(&mut self, deadline: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        (**self).write(deadline, pack)
    }

    fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        (**self).receive(wait)
    }

    fn poison(&mut self) {
        (**self).poison();
    }

    fn time_out(&mut self) -> Failure {
        (**self).time_out()
    }
}

/// How to wait for a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitFor {
    /// Not at all, and without a system call: only what was read along with earlier replies counts.
    Buffered,
    /// Not at all: only what has come already is read.
    Nothing,
    /// Asleep, because it may take long.
    Reply { deadline: Instant },
    /// Spinning first, if that pays, because it is expected soon.
    SoonReply { deadline: Instant },
}

/// What becomes of a request with this tag if the server does not know its script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UnknownScript<T> {
    /// It is sent again in full, behind the requests that were sent after it.
    SendAgain,
    /// As `SendAgain` if this returns `true`, else as `Fail`.
    SendAgainIf(fn(&T) -> bool),
    /// It fails as transient: the sender knows whether those that were sent after it may overtake
    /// it.
    Fail,
}

/// A connection, and the requests that it has not answered, each with what its sender wants to know
/// it by.
#[derive(Debug)]
pub(crate) struct Pipeline<T, C> {
    pub(crate) connection: C,
    in_flight: VecDeque<InFlight<T>>,
    /// Why the connection was given up, until all that was in flight then has failed.
    broken: Option<Failure>,
    unknown_script: UnknownScript<T>,
    /// When the last reply came.
    heard: Instant,
}

#[derive(Debug)]
struct InFlight<T> {
    tag: T,
    /// To be sent again, should that be necessary.
    request: Option<Request>,
    /// How many replies come before the one that counts.
    preludes: usize,
    sent: Instant,
}

impl<T, C: Transport> Pipeline<T, C> {
    pub(crate) fn new(connection: C, unknown_script: UnknownScript<T>) -> Self {
        let (in_flight, heard) = (VecDeque::new(), Instant::now());
        Self { connection, in_flight, broken: None, unknown_script, heard }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// The tags of the requests in flight, in order.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &T> {
        self.in_flight.iter().map(|in_flight| &in_flight.tag)
    }

    pub(crate) fn tags_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.in_flight.iter_mut().map(|in_flight| &mut in_flight.tag)
    }

    /// Since when the reply that comes next has been expected; a request behind others has its
    /// turn only when those are answered.
    pub(crate) fn expected_since(&self) -> Option<Instant> {
        self.in_flight.front().map(|next| next.sent.max(self.heard))
    }

    /// Sends requests over the open connection in one write. If that fails they have failed, and
    /// with them everything in flight: `receive` returns the failures.
    pub(crate) fn send(
        &mut self,
        batch: impl IntoIterator<Item = (T, Request)>,
        deadline: Instant,
    ) {
        let (sent, before) = (Instant::now(), self.in_flight.len());
        self.in_flight.extend(batch.into_iter().map(|(tag, request)| {
            let preludes = request.preludes();
            InFlight { tag, request: Some(request), preludes, sent }
        }));
        let added = self.in_flight.range(before..);
        let requests = added.filter_map(|in_flight| in_flight.request.as_ref());
        let written = self.connection.write(deadline, |out| {
            requests.for_each(|request| out.extend_from_slice(request.bytes()));
        });
        if let Err(failure) = written {
            self.give_up(failure);
        }
    }

    /// Returns the next reply, and the tag of the request that it answers; `None` if it has not come
    /// by then, or nothing is in flight.
    pub(crate) fn receive(&mut self, wait: WaitFor) -> Option<(T, Reply)> {
        loop {
            self.in_flight.front()?;
            if let Some(failure) = self.broken.clone() {
                return self.answer(Err(failure));
            }
            let reply = self.connection.receive(wait)?;
            self.heard = Instant::now();
            if !self.connection.is_connected()
                && let Err(failure) = &reply
            {
                self.broken = Some(failure.clone());
                continue;
            }
            if let Some(next) = self.in_flight.front_mut().filter(|next| next.preludes > 0) {
                next.preludes -= 1;
                continue;
            }
            if let Some(again) = self.sent_again_after(&reply) {
                let Some(InFlight { tag, .. }) = self.in_flight.pop_front() else { continue };
                self.send([(tag, again)], end_of(WRITE_TIME));
                continue;
            }
            return self.answer(reply);
        }
    }

    /// Gives up the connection: everything in flight has failed.
    pub(crate) fn give_up(&mut self, failure: Failure) {
        self.connection.poison();
        if !self.in_flight.is_empty() {
            self.broken = Some(failure);
        }
    }

    /// Takes the first request as answered.
    fn answer(&mut self, reply: Reply) -> Option<(T, Reply)> {
        let InFlight { tag, request, .. } = self.in_flight.pop_front()?;
        if self.in_flight.is_empty() {
            self.broken = None;
        }
        let unknown = request.is_some_and(|request| request.again_after(&reply).is_some());
        let reply = reply.map_err(|failure| match unknown {
            true => Failure { kind: FailureKind::Transient, ..failure },
            false => failure,
        });
        Some((tag, reply))
    }

    /// The whole script, if the server does not know it and it may be sent again.
    fn sent_again_after(&self, reply: &Reply) -> Option<Request> {
        let InFlight { tag, request, .. } = self.in_flight.front()?;
        let again = request.as_ref()?.again_after(reply)?;
        let wanted = match self.unknown_script {
            UnknownScript::Fail => false,
            UnknownScript::SendAgain => true,
            UnknownScript::SendAgainIf(wanted) => wanted(tag),
        };
        wanted.then_some(again)
    }
}
