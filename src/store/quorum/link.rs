//! The connection to one server of a quorum, and the requests in flight on it.
//!
//! | state | what becomes of a request | then |
//! |---|---|---|
//! | closed | it fails: not sent | opening, when a call finds the server worth trying |
//! | opening | as when closed, but a call may wait first | open, or closed again |
//! | open | it is written | lagging, if it is behind a wait for replicas or a disk |
//! | open | | closed, after an error or a silence, or when stale |
//! | open, owed many replies | it fails as transient | open, as replies come |
//! | lagging | it fails as transient, unless it ends a hold | open, as replies come |
//!
//! When the connection is closed, everything in flight has failed. What it may have begun or ended
//! is in doubt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::{Failure, FailureKind};
use crate::net::connection::Connection;
use crate::net::exchange::Exchange;
use crate::net::resp::RespStream;
use crate::net::stream::{PolledSocket, WaitFor};
use crate::store::background::connection::Opening;
use crate::store::quorum::health::QuorumServer;

/// With this many requests in flight, one of which waits for replicas or a disk, a server lags.
const LAGGING: usize = 4;

/// A connection that is not needed for a majority is waited for this long.
const LATECOMERS: Duration = Duration::from_millis(50);

/// The connection to one server, open or not.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) server: Arc<QuorumServer>,
    connection: Connection,
    /// The connection that is being opened in the background, and until when it is likely to be
    /// open soon.
    opening: Option<(Opening<Connection>, Instant)>,
}

impl Link {
    /// Opens nothing yet.
    pub(super) fn new(server: &Arc<QuorumServer>) -> Self {
        let connection = server.closed_connection();
        Self { server: server.clone(), connection, opening: None }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.socket.is_connected()
    }

    /// The connection that is being opened, if there is none until then, and for how long it is
    /// worth to wait for it even if a majority is connected.
    pub(super) fn opening(&self) -> Option<&(Opening<Connection>, Instant)> {
        self.opening.as_ref().filter(|_| !self.is_connected())
    }

    /// Returns `true` if some reply is still to come.
    pub(super) fn is_busy(&self) -> bool {
        !self.connection.in_flight.is_empty()
    }

    /// The socket, to wait for while other threads use the link.
    pub(super) fn polled(&self) -> Option<PolledSocket> {
        self.connection.socket.stream().map(RespStream::polled)
    }

    /// Begins to open a connection if there is none, or if it is soon no longer valid. An `urgent`
    /// call cannot do without the server, and keeps no pause after a failure.
    pub(super) fn begin_opening(&mut self, urgent: bool) {
        let is_good = self.is_connected() && self.connection.socket.retiring().is_none();
        if !is_good && self.opening.is_none() {
            let soon = if self.server.is_trusted() { LATECOMERS } else { Duration::ZERO };
            let opening = self.server.begin_opening(urgent);
            self.opening = opening.map(|opening| (opening, Instant::now() + soon));
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
        let Some(outcome) = self.opening.as_ref().and_then(|(it, _)| it.take_outcome()) else {
            return;
        };
        self.opening = None;
        if let Ok(connection) = outcome {
            self.connection = connection;
        }
    }

    /// Closes a stale connection, and one over which nothing has come for `io_timeout` though
    /// something should have.
    pub(super) fn close_if_useless(&mut self, io_timeout: Duration) {
        if self.is_lagging() || self.is_overdue(io_timeout) {
            self.read();
        }
        if self.is_connected() && !self.connection.socket.is_open() {
            let failure = Failure { kind: FailureKind::Disconnected, ..self.server.no_reply() };
            self.connection.give_up(&failure);
        } else if self.is_overdue(io_timeout) {
            let failure = self.server.time_out();
            self.connection.give_up(&failure);
        }
    }

    fn is_overdue(&self, io_timeout: Duration) -> bool {
        let since = self.connection.in_flight.expected_since();
        since.is_some_and(|since| since.elapsed() >= io_timeout)
    }

    /// Returns `true` if too many requests are behind one that waits for replicas or a disk.
    fn is_lagging(&self) -> bool {
        self.connection.in_flight.len() >= LAGGING && self.connection.in_flight.is_blocked()
    }

    /// Returns `true` if the connection is open, not too many replies are to come over it, and
    /// everything is written for which there was no room.
    pub(super) fn has_room(&self) -> bool {
        let has_room = self.connection.in_flight.has_room(0);
        self.is_connected() && has_room && !self.connection.socket.is_writing()
    }

    /// Fails if a request cannot be sent now, which may end a hold.
    pub(super) fn check(&self, ends: bool) -> Result<(), Failure> {
        if !self.is_connected() {
            return Err(self.server.unreachable());
        }
        let can_send = self.has_room() && (ends || !self.is_lagging());
        if can_send { Ok(()) } else { Err(self.server.lagging()) }
    }

    /// Writes a request over the open connection.
    pub(super) fn send(&mut self, exchange: Exchange) {
        self.connection.send([exchange]);
    }

    /// Reads the replies that have come. Never waits.
    pub(super) fn read(&mut self) {
        while self.connection.receive(WaitFor::Nothing) {}
    }
}

/// Replies that were not read would make the system reset the connection, and that might keep the
/// server from the last requests.
impl Drop for Link {
    fn drop(&mut self) {
        self.read();
    }
}
