//! The connection to one server of a quorum, and the requests in flight on it.
//!
//! | state | a request | then |
//! |---|---|---|
//! | closed | it fails: not sent | opening, when a call finds the server worth trying |
//! | opening | it fails as when closed, but a call may wait first | open, or closed again |
//! | open | it is written | lagging, if it is behind a wait for replicas or a disk |
//! | open | | closed, after an error or a silence, or when stale |
//! | open, owed many replies | it fails as transient | open, as replies come |
//! | lagging | it fails as transient, unless it ends a hold | open, as replies come |
//!
//! When the connection is closed, everything in flight has failed. What it may have begun or ended
//! is in doubt.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::base::failure::{Failure, FailureKind};
use crate::net::connection::Connection;
use crate::net::in_flight::Exchange;
use crate::store::background::peer::BackgroundConnection;
use crate::store::quorum::health::QuorumServer;

/// With this many requests in flight, one of which waits for replicas or a disk, a server lags.
const LAGGING: usize = 4;

/// How long to wait for a connection that is not needed for a majority.
const LATECOMERS: Duration = Duration::from_millis(50);

/// The connection to one server, open or not.
pub(super) struct Link {
    pub(super) connection: BackgroundConnection<Arc<QuorumServer>, Connection>,
    /// Until then, the connection that is being opened is likely to open.
    soon: Instant,
}

impl Link {
    /// Opens nothing yet.
    pub(super) fn new(server: &Arc<QuorumServer>) -> Self {
        // Only the server itself keeps pauses, and its connections share them.
        let connection = BackgroundConnection::new(server.clone(), Duration::ZERO);
        Self { connection, soon: Instant::now() }
    }

    pub(super) fn server(&self) -> &QuorumServer {
        &self.connection.peer
    }

    fn open(&self) -> Option<&Connection> {
        self.connection.open.as_ref()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.open().is_some_and(Connection::is_connected)
    }

    /// Returns the connection that is being opened, if there is no other one, and until when it is
    /// worth waiting for even if a majority is connected.
    pub(super) fn opening(&self) -> Option<(&Receiver<Result<Connection, Failure>>, Instant)> {
        if self.is_connected() {
            return None;
        }
        Some((self.connection.opening.as_ref()?, self.soon))
    }

    /// Starts to open a connection if there is none or it soon expires. An `urgent` call cannot do
    /// without the server, and skips the pause after a failure.
    pub(super) fn begin_opening(&mut self, urgent: bool) {
        self.connection.open.take_if(|open| !open.is_connected());
        if self.connection.opening.is_none() {
            let soon = if self.server().is_trusted() { LATECOMERS } else { Duration::ZERO };
            self.soon = Instant::now() + soon;
        }
        // The server keeps the failure.
        self.connection.begin_opening(None, self.soon, urgent, Ok).unwrap_or_default();
    }

    /// Switches to the connection that was being opened, once that is possible.
    pub(super) fn finish_opening(&mut self) {
        // The server keeps the failure.
        self.connection.finish_opening().map(Result::ok);
    }

    /// Reads what has arrived. Closes a stale connection, and one over which nothing has arrived
    /// for `io_timeout` while something should have.
    pub(super) fn read_or_close(&mut self, io_timeout: Duration) {
        self.connection.read();
        let BackgroundConnection { peer: server, open: Some(open), .. } = &mut self.connection
        else {
            return;
        };
        let since = open.in_flight.expected_since();
        if open.is_connected() && !open.is_open() {
            // The server may have moved, or the credentials have expired.
            open.give_up(Failure { kind: FailureKind::Disconnected, ..server.factory.no_reply() });
        } else if since.is_some_and(|since| since.elapsed() >= io_timeout) {
            open.give_up(server.time_out());
        }
    }

    /// Returns `true` if too many requests are behind one that waits for replicas or a disk.
    fn is_lagging(&self) -> bool {
        self.open().is_some_and(|open| {
            open.in_flight.queue.len() >= LAGGING && open.in_flight.is_blocked()
        })
    }

    /// Returns `true` if the connection is open, not too many replies are outstanding, and
    /// everything that had to wait for room is written.
    pub(super) fn has_room(&self) -> bool {
        let open = self.open().filter(|open| open.is_connected());
        open.is_some_and(|open| open.in_flight.has_room(0) && !open.is_writing())
    }

    /// Fails if a request cannot be sent now. `ends` says whether it ends a hold.
    pub(super) fn check(&self, ends: bool) -> Result<(), Failure> {
        if !self.is_connected() {
            return Err(self.server().unreachable());
        }
        if self.has_room() && (ends || !self.is_lagging()) {
            return Ok(());
        }
        let error = io::Error::other("earlier locks still wait for the server's replicas or disk");
        Err(Failure::io(FailureKind::Transient, &self.server().factory.label(), error))
    }

    /// Returns the connection if a request can be sent over it now.
    pub(super) fn usable(&mut self) -> Option<&mut Connection> {
        let has_room = self.check(false).is_ok();
        self.connection.open.as_mut().filter(|open| has_room && open.is_open())
    }

    pub(super) fn send(&mut self, exchange: Exchange) {
        if let Some(open) = &mut self.connection.open {
            open.send([exchange]);
        }
    }
}
