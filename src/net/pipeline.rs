//! The requests in flight on one connection: written in order, answered in order.
//!
//! | the connection | what becomes of a request in flight |
//! |---|---|
//! | open | it is answered after the requests before it |
//! | open, script unknown | it is sent again, behind the others, or fails: [`UnknownScript`] |
//! | given up | it fails with the failure for which the connection was given up |
//!
//! All requests in flight are kept here: those of threads that share a pooled connection, those of
//! background jobs, and those to the servers of a quorum.

use std::collections::VecDeque;
use std::time::Instant;

use crate::base::failure::{Failure, FailureKind};
use crate::net::request::{Reply, Request};
use crate::net::transport::{Transport, WaitFor};

/// What becomes of a request with this tag if the server does not know its script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UnknownScript<T> {
    /// It fails as transient: the sender decides whether the requests that were sent after it may
    /// overtake it.
    Fail,
    /// It is sent again in full, behind the requests that were sent after it.
    SendAgain,
    /// It is sent again if this returns `true`, and fails otherwise.
    SendAgainIf(fn(&T) -> bool),
}

/// A connection and its requests in flight, each with a tag by which its sender knows it.
#[derive(Debug)]
pub(crate) struct Pipeline<T, C> {
    pub(crate) connection: C,
    in_flight: VecDeque<InFlight<T>>,
    /// Why the connection was given up, until everything that was in flight then has failed.
    broken: Option<Failure>,
    unknown_script: UnknownScript<T>,
    last_reply: Instant,
}

#[derive(Debug)]
struct InFlight<T> {
    tag: T,
    /// Kept to be sent again, should that be necessary.
    request: Request,
    /// How many replies are still to come before the one that counts.
    preludes: usize,
    sent: Instant,
}

impl<T, C: Transport> Pipeline<T, C> {
    pub(crate) fn new(connection: C, unknown_script: UnknownScript<T>) -> Self {
        let (in_flight, last_reply) = (VecDeque::new(), Instant::now());
        Self { connection, in_flight, broken: None, unknown_script, last_reply }
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

    /// Since when the next reply has been expected. A request behind others is not served before
    /// those are answered.
    pub(crate) fn expected_since(&self) -> Option<Instant> {
        self.in_flight.front().map(|next| next.sent.max(self.last_reply))
    }

    /// Sends requests over the open connection, in one write if there is room. If that fails,
    /// everything in flight has failed, and `receive` returns the failures.
    pub(crate) fn send(&mut self, batch: impl IntoIterator<Item = (T, Request)>) {
        let (sent, before) = (Instant::now(), self.in_flight.len());
        self.in_flight.extend(batch.into_iter().map(|(tag, request)| {
            let preludes = request.preludes();
            InFlight { tag, request, preludes, sent }
        }));
        let added = self.in_flight.range(before..);
        let written = self.connection.send(|out| {
            added.for_each(|in_flight| out.extend_from_slice(in_flight.request.bytes()));
        });
        if let Err(failure) = written {
            self.give_up(failure);
        }
    }

    /// Returns the next reply and the tag of its request; `None` if it has not come by then or
    /// nothing is in flight.
    pub(crate) fn receive(&mut self, wait: WaitFor) -> Option<(T, Reply)> {
        loop {
            self.in_flight.front()?;
            if let Some(failure) = self.broken.clone() {
                return self.answer(Err(failure));
            }
            let reply = self.connection.receive(wait)?;
            self.last_reply = Instant::now();
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
                self.send([(tag, again)]);
                continue;
            }
            return self.answer(reply);
        }
    }

    /// Gives up the connection. Everything in flight has failed, and `receive` returns that.
    pub(crate) fn give_up(&mut self, failure: Failure) {
        self.connection.poison();
        if !self.in_flight.is_empty() {
            self.broken = Some(failure);
        }
    }

    /// Ends the first request in flight.
    fn answer(&mut self, reply: Reply) -> Option<(T, Reply)> {
        let InFlight { tag, request, .. } = self.in_flight.pop_front()?;
        if self.in_flight.is_empty() {
            self.broken = None;
        }
        let unknown = request.again_after(&reply).is_some();
        let reply = request.judge(reply).map_err(|failure| {
            if unknown { Failure { kind: FailureKind::Transient, ..failure } } else { failure }
        });
        Some((tag, reply))
    }

    /// Returns what is sent in place of the first request, if the server does not know its script.
    fn sent_again_after(&self, reply: &Reply) -> Option<Request> {
        let InFlight { tag, request, .. } = self.in_flight.front()?;
        let again = request.again_after(reply)?;
        let wanted = match self.unknown_script {
            UnknownScript::Fail => false,
            UnknownScript::SendAgain => true,
            UnknownScript::SendAgainIf(wanted) => wanted(tag),
        };
        wanted.then_some(again)
    }
}
