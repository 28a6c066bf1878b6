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

use crate::base::failure::{Failure, FailureKind};
use crate::net::connection::{Connection, WaitFor};
use crate::net::durability::is_done;
use crate::net::exchange::{Exchange, SendWait};
use crate::net::request::Reply;
use crate::net::socket::PollFd;
use crate::net::stream::PolledSocket;
use crate::store::background::opening::Opening;
use crate::store::quorum::broadcast::Broadcast;
use crate::store::quorum::commands::Effect;
use crate::store::quorum::in_doubt::InDoubtHolds;
use crate::store::quorum::server::QuorumServer;

/// With this many requests in flight a server is more than just slow.
const IN_FLIGHT_MAX: usize = 256;

/// Behind this many requests in flight, none is posted. Redis reads about as many at a time.
const POSTED_MAX: usize = 64;

/// With this many requests in flight, one of which waits for replicas or a disk, a server lags.
const LAGGING: usize = 4;

/// The connection to one server, open or not.
#[derive(Debug)]
pub(super) struct QuorumLink {
    server: Arc<QuorumServer>,
    in_doubt: Arc<InDoubtHolds>,
    connection: Connection,
    /// The connection that is being opened in the background.
    opening: Option<Opening>,
    /// Whether that is likely to succeed soon.
    opens_soon: bool,
}

impl QuorumLink {
    pub(super) fn new(server: &Arc<QuorumServer>, in_doubt: &Arc<InDoubtHolds>) -> Self {
        Self {
            server: server.clone(),
            in_doubt: in_doubt.clone(),
            connection: server.closed_connection(),
            opening: None,
            opens_soon: false,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_connected()
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
        !self.connection.in_flight().is_empty()
    }

    /// Returns `true` if one more reply may be owed.
    pub(super) fn has_room(&self) -> bool {
        self.connection.in_flight().len() < POSTED_MAX && !self.is_writing()
    }

    /// Returns `true` if something is to be written for which there was no room.
    pub(super) fn is_writing(&self) -> bool {
        self.connection.is_writing()
    }

    pub(super) fn socket(&self) -> Option<PollFd<'_>> {
        self.connection.poll_fd()
    }

    pub(super) fn polled(&self) -> Option<PolledSocket> {
        self.connection.polled()
    }

    /// The failure of a request that is not sent for want of a connection.
    pub(super) fn unreachable(&self) -> Failure {
        self.server.unreachable()
    }

    /// Begins to open a connection if there is none, or if it is soon no longer valid. An `urgent`
    /// call cannot do without the server, and keeps no pause after a failure.
    pub(super) fn begin_opening(&mut self, urgent: bool) {
        let is_good = self.is_connected() && self.connection.retiring().is_none();
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
            self.connection = connection;
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
        if !self.connection.is_open() {
            let failure = Failure { kind: FailureKind::Disconnected, ..self.server.no_reply() };
            return self.connection.give_up(&failure);
        }
        if self.is_overdue(io_timeout) {
            self.read();
            if self.is_overdue(io_timeout) {
                let failure = self.server.time_out();
                self.connection.give_up(&failure);
            }
        }
    }

    /// Returns `true` if a reply is overdue, or if too many are.
    fn is_overdue(&self, io_timeout: Duration) -> bool {
        let waited = self.connection.in_flight().expected_since().map(|since| since.elapsed());
        self.connection.in_flight().len() >= IN_FLIGHT_MAX
            || waited.is_some_and(|waited| waited >= io_timeout)
    }

    /// Returns `true` if too many requests are behind one that waits for replicas or a disk.
    pub(super) fn is_lagging(&self) -> bool {
        self.connection.in_flight().len() >= LAGGING && self.connection.in_flight().is_blocked()
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
        let (server, in_doubt) = (self.server.clone(), self.in_doubt.clone());
        let (broadcast, deadline) = (broadcast.clone(), broadcast.deadline);
        let (request, demand) = (broadcast.request.clone(), broadcast.demand);
        let on_reply = Box::new(move |reply| receive(&server, &in_doubt, &broadcast, reply));
        // What is sent after it must not overtake it.
        let exchange = Exchange::posted(request, deadline, on_reply).in_order();
        let demand = demand.map(|demand| (demand, SendWait::Along));
        self.connection.send([exchange.durable(demand)]);
    }

    /// Reads the replies that have come.
    pub(super) fn read(&mut self) {
        while self.connection.receive(WaitFor::Nothing) {}
    }
}

/// Takes what a server's reply says about it, and stores the reply.
fn receive(
    server: &QuorumServer,
    in_doubt: &InDoubtHolds,
    broadcast: &Arc<Broadcast>,
    reply: Reply,
) {
    match &reply {
        Ok(reply) if is_done(reply) => server.note_written(),
        Ok(_) => {}
        Err(failure) if failure.is_shortfall() => server.note_written(),
        Err(failure) => server.note_failure(failure),
    }
    if let Err(failure) = &reply {
        if let Some(hold) = broadcast.effect.begun().filter(|_| failure.is_ambiguous()) {
            in_doubt.may_begin_late(hold);
        }
        // Where the key is of another type the hold is gone.
        if failure.kind != FailureKind::WrongType {
            broadcast.may_remain();
        }
    }
    broadcast.store_reply(server.number, reply);
}

/// Replies that were not read would make the system reset the connection, and that might keep the
/// server from the last requests.
impl Drop for QuorumLink {
    fn drop(&mut self) {
        self.read();
    }
}
