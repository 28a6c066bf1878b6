//! The connection to one server of a quorum, and the requests in flight on it.
//!
//! | state | what becomes of a request | then |
//! |---|---|---|
//! | closed | it fails: not sent | opening, when a call finds the server worth trying |
//! | opening | as when closed, but a call may wait first | open, or closed again |
//! | open | it is written | lagging, if it is behind a wait for replicas or a disk |
//! | open | | closed, after an error or a silence, or when stale |
//! | lagging | it fails as transient, unless it only ends a hold | open, as replies come |
//!
//! When the connection is closed, everything in flight has failed. What it may have begun or ended
//! is reported as in doubt.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use rustix::event::PollFd;

use crate::base::failure::{Failure, FailureKind};
use crate::net::connection::Connection;
use crate::net::pipeline::{Pipeline, UnknownScript};
use crate::net::request::{Reply, Request, Script};
use crate::net::stream::PolledSocket;
use crate::net::transport::{Transport, WaitFor};
use crate::store::background::opening::Opening;
use crate::store::decoder::is_done;
use crate::store::quorum::broadcast::Broadcast;
use crate::store::quorum::commands::Effect;
use crate::store::quorum::in_doubt::InDoubtHolds;
use crate::store::quorum::server::QuorumServer;

/// With this many requests in flight a server is more than just slow.
const IN_FLIGHT_MAX: usize = 256;

/// Behind this many requests in flight, none is sent that no thread waits for. Redis reads about as
/// many at a time.
const OWED_MAX: usize = 64;

/// With this many requests in flight, one of which waits for replicas or a disk, a server lags.
const LAGGING: usize = 4;

/// The connection to one server, open or not.
#[derive(Debug)]
pub(super) struct QuorumLink {
    server: Arc<QuorumServer>,
    in_doubt: Arc<InDoubtHolds>,
    pipeline: Pipeline<PendingPart, Connection>,
    /// The connection that is being opened in the background.
    opening: Option<Opening>,
    /// Whether that is likely to succeed soon.
    opens_soon: bool,
    /// The scripts that were sent in full over this connection, so that the server knows them.
    known: Vec<&'static Script>,
}

/// What a reply that is to come belongs to.
#[derive(Debug)]
struct PendingPart {
    broadcast: Arc<Broadcast>,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Script,
    /// The request to wait until what the script has done is as durable as demanded.
    Wait,
}

impl QuorumLink {
    pub(super) fn new(server: &Arc<QuorumServer>, in_doubt: &Arc<InDoubtHolds>) -> Self {
        Self {
            server: server.clone(),
            in_doubt: in_doubt.clone(),
            pipeline: Pipeline::new(server.closed_connection(), UnknownScript::Fail),
            opening: None,
            opens_soon: false,
            known: Vec::new(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.pipeline.connection.is_connected()
    }

    /// The connection that is being opened, if there is none until then.
    pub(super) fn opening(&self) -> Option<&Opening> {
        self.opening.as_ref().filter(|_| !self.is_connected())
    }

    /// Returns `true` if it is worth a moment to wait for the connection that is being opened.
    pub(super) fn opens_soon(&self) -> bool {
        self.opening().is_some() && self.opens_soon
    }

    /// Notes that the connection is not open yet after a moment.
    pub(super) fn opens_late(&mut self) {
        self.opens_soon = false;
    }

    /// Returns `true` if some reply is still to come.
    pub(super) fn is_busy(&self) -> bool {
        !self.pipeline.is_empty()
    }

    /// Returns `true` if one more reply may be owed.
    pub(super) fn has_room(&self) -> bool {
        self.pipeline.len() < OWED_MAX && !self.is_writing()
    }

    /// Returns `true` if something is to be written for which there was no room.
    pub(super) fn is_writing(&self) -> bool {
        self.pipeline.connection.is_writing()
    }

    pub(super) fn socket(&self) -> Option<PollFd<'_>> {
        self.pipeline.connection.poll_fd()
    }

    pub(super) fn polled(&self) -> Option<PolledSocket> {
        self.pipeline.connection.polled()
    }

    /// The failure of a request that is not sent for want of a connection.
    pub(super) fn unreachable(&self) -> Failure {
        self.server.unreachable()
    }

    /// Begins to open a connection if there is none, or if it is soon no longer valid. An `urgent`
    /// call cannot do without the server, and keeps no pause after a failure.
    pub(super) fn begin_opening(&mut self, urgent: bool) {
        let is_good = self.is_connected() && self.pipeline.connection.retiring().is_none();
        if !is_good && self.opening.is_none() {
            self.opens_soon = self.server.is_trusted();
            self.opening = self.server.begin_opening(urgent);
        }
    }

    /// Uses the connection that was being opened, once it is and no reply is to come over the one
    /// that it replaces.
    pub(super) fn finish_opening(&mut self) {
        if self.opening.is_some() && self.is_connected() {
            self.read();
            if self.is_busy() && self.is_connected() {
                return;
            }
        }
        let Some(outcome) = self.opening.as_ref().and_then(Opening::take_outcome) else { return };
        self.opening = None;
        if let Ok(connection) = outcome {
            self.known.clear();
            self.pipeline.connection = connection;
        }
    }

    /// Closes a stale connection, and one over which nothing has come for `io_timeout` though
    /// something should have.
    pub(super) fn close_if_useless(&mut self, io_timeout: Duration) {
        if !self.is_connected() {
            return;
        }
        if self.is_lagging() {
            self.read();
        }
        if !self.pipeline.connection.is_open() {
            let failure = Failure { kind: FailureKind::Disconnected, ..self.server.no_reply() };
            return self.close(failure);
        }
        if self.is_overdue(io_timeout) {
            self.read();
            if self.is_overdue(io_timeout) {
                let failure = self.server.time_out();
                self.close(failure);
            }
        }
    }

    /// Returns `true` if a reply is overdue, or if too many are.
    fn is_overdue(&self, io_timeout: Duration) -> bool {
        let waited = self.pipeline.expected_since().map(|since| since.elapsed());
        self.pipeline.len() >= IN_FLIGHT_MAX || waited.is_some_and(|waited| waited >= io_timeout)
    }

    /// Returns `true` if too many requests are behind one that waits for replicas or a disk.
    pub(super) fn is_lagging(&self) -> bool {
        self.pipeline.len() >= LAGGING
            && self.pipeline.tags().any(|pending| pending.part == Part::Wait)
    }

    /// Sends a request, or stores its failure if the server is not connected or lags.
    pub(super) fn send(&mut self, broadcast: &Arc<Broadcast>) {
        let effect = &broadcast.effect;
        let is_lagging = self.is_lagging();
        let may_remain =
            effect.ended().is_some_and(|(hold, _)| self.in_doubt.may_be_at(&self.server, hold));
        if !self.is_connected() {
            if may_remain {
                broadcast.may_remain();
            }
            return broadcast.store_reply(self.server.number, Err(self.unreachable()));
        }
        let only_ends = matches!(effect, Effect::Ends { .. });
        if is_lagging && !(only_ends && may_remain) {
            // A hold that has never begun there is gone.
            let reply = if only_ends { Ok(Value::Int(0)) } else { Err(self.server.lagging()) };
            return broadcast.store_reply(self.server.number, reply);
        }
        if let Some(hold) = effect.begun() {
            self.server.note_begun(hold);
        }
        let request = &broadcast.request;
        // What is sent after it must not overtake it, so the script is sent unless it is known.
        let request = if self.knows(request) { request.clone() } else { request.in_full() };
        self.write(broadcast, request);
    }

    /// Returns `true` if the server knows the script of the request; it does after this request.
    fn knows(&mut self, request: &Request) -> bool {
        let knows = self.known.iter().any(|known| request.calls(known));
        if !knows {
            self.known.extend(request.script());
        }
        knows
    }

    fn write(&mut self, broadcast: &Arc<Broadcast>, request: Request) {
        let pending = |part| PendingPart { broadcast: broadcast.clone(), part };
        let wait = broadcast.demand.as_ref().map(|(demand, deadline)| demand.request(*deadline));
        let batch = [(pending(Part::Script), request)];
        let batch = batch.into_iter().chain(wait.map(|wait| (pending(Part::Wait), wait)));
        self.pipeline.send(batch);
        if !self.is_connected() {
            // All that was in flight has failed. The next connection must not begin with it.
            self.read();
        }
    }

    /// Reads the replies that have come.
    pub(super) fn read(&mut self) {
        while let Some((pending, reply)) = self.pipeline.receive(WaitFor::Nothing) {
            if !self.is_connected() {
                self.known.clear();
            }
            self.receive(&pending, reply);
        }
    }

    /// Stores a reply where the request is waited for.
    fn receive(&mut self, PendingPart { broadcast, part }: &PendingPart, reply: Reply) {
        if let (Part::Wait, Some((demand, _))) = (part, &broadcast.demand) {
            let durable = self.server.judge_durability(demand, reply);
            return broadcast.store_durability(self.server.number, durable);
        }
        match &reply {
            Ok(reply) if is_done(reply) => self.server.note_written(),
            Ok(_) => {}
            Err(failure) => self.server.note_failure(failure),
        }
        if let Err(failure) = &reply {
            if let Some(again) = broadcast.request.again_after(&reply) {
                // What was sent after it must not be overtaken.
                let is_last = |pending: &PendingPart| Arc::ptr_eq(&pending.broadcast, broadcast);
                if self.pipeline.tags().all(is_last) {
                    return self.write(broadcast, again);
                }
                self.known.retain(|known| !broadcast.request.calls(known));
            }
            if let Some(hold) = broadcast.effect.begun().filter(|_| failure.is_ambiguous()) {
                self.in_doubt.may_begin_late(hold);
            }
            // Where the key is of another type the hold is gone.
            if failure.kind != FailureKind::WrongType {
                broadcast.may_remain();
            }
        }
        broadcast.store_reply(self.server.number, reply);
    }

    /// Closes the connection: everything in flight has failed.
    fn close(&mut self, failure: Failure) {
        self.known.clear();
        self.pipeline.give_up(failure);
        self.read();
    }
}

/// Replies that were not read would make the system reset the connection, and that might keep the
/// server from the last requests.
impl Drop for QuorumLink {
    fn drop(&mut self) {
        self.read();
    }
}
