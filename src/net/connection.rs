//! One connection to one server: opened when it is used, given up when anything but an error reply
//! goes wrong with it.
//!
//! The socket is our own, not a connection of `redis`: a deadline must cover a whole reply, the
//! reader must be able to spin, and another thread must be able to end a blocked read. From `redis`
//! come URLs, the packing of commands, values and error kinds.

mod exchanges;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io, mem, process};

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::net::exchange::ReplySlot;
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::InFlight;
use crate::net::interrupter::Close;
use crate::net::login::Validity;
use crate::net::open_socket::{OpenSocket, WaitFor};
use crate::net::request::Reply;
use crate::net::socket::PollFd;
use crate::net::stream::{Arrived, PolledSocket};

/// A connection over which something was posted less long ago is taken for alive.
pub(super) const IDLE: Duration = Duration::from_millis(500);

/// A connection, without a socket until it is used.
pub(crate) struct Connection {
    factory: Arc<ConnectionFactory>,
    made: Instant,
    socket: Option<OpenSocket>,
    /// Whether the last socket has not been found broken or replaced.
    opened: bool,
    in_flight: InFlight,
    /// That of the last thread that has used the connection, to reuse the memory.
    slot: Arc<ReplySlot>,
    /// When something was last posted.
    used: Instant,
    process: u32,
}

/// Shows nothing that was sent, which may be a password or the owner of a lock.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.factory).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(factory: Arc<ConnectionFactory>) -> Self {
        let now = Instant::now();
        Self {
            factory,
            made: now,
            socket: None,
            opened: false,
            in_flight: InFlight::default(),
            slot: Arc::new(ReplySlot::new(now)),
            used: now,
            process: process::id(),
        }
    }

    /// How long ago this was made.
    pub(crate) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// The server's address, as users are shown it.
    pub(crate) fn label(&self) -> Arc<str> {
        self.factory.label()
    }

    /// Returns `true` if the next request needs no new socket.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.is_current(&self.factory))
    }

    /// Returns `true` if the connection is open and leads to where the server is.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_open() && self.factory.is_route_current()
    }

    fn validity(&self) -> Option<Validity> {
        self.socket.as_ref()?.validity
    }

    /// For how long the connection may be used, if it is time to replace it.
    pub(crate) fn retiring(&self) -> Option<Validity> {
        self.validity().filter(|validity| Instant::now() >= validity.retire_at)
    }

    /// When to replace the connection or, after that, when it can no longer be used.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let Validity { retire_at, end } = self.validity()?;
        Some(if Instant::now() < retire_at { retire_at } else { end })
    }

    /// Returns `true` if something is to be written for which there was no room.
    pub(crate) fn is_writing(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.stream.is_writing())
    }

    /// The socket, to wait until there is something to do: to read, or to go on writing.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.socket.as_ref().map(|socket| socket.stream.poll_fd())
    }

    /// As `poll_fd`, to wait while other threads use the connection.
    pub(crate) fn polled(&self) -> Option<PolledSocket> {
        self.socket.as_ref().map(|socket| socket.stream.polled())
    }

    /// Returns the present socket, for another thread to close it.
    pub(crate) fn awaited(&self) -> Option<Weak<dyn Close>> {
        self.socket.as_ref().map(|socket| socket.stream.awaited())
    }

    /// The failure of a request that was not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.factory.no_reply()
    }

    /// Gives up a connection whose reply does not fit the request.
    pub(crate) fn invalid_reply(&mut self) -> Failure {
        let failure = self.factory.invalid_reply();
        self.break_off(failure)
    }

    /// Gives up a connection over which no reply has come in time.
    pub(crate) fn time_out(&mut self) -> Failure {
        let failure = self.no_reply();
        self.break_off(failure)
    }

    /// Gives up a broken connection.
    fn break_off(&mut self, failure: Failure) -> Failure {
        self.record_break();
        self.give_up(&failure);
        failure
    }

    /// Reads the next reply, whichever request it belongs to, or the next message; `None` if it has
    /// not come by then, so that it can be read later.
    pub(crate) fn receive_next(&mut self, wait: WaitFor) -> Option<Reply> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.invalid_reply())) };
        let received = socket.receive(&self.factory, wait);
        received.unwrap_or_else(|failure| Some(Err(self.break_off(failure))))
    }

    /// Closes the socket. What is in flight over it has failed for this reason.
    pub(crate) fn give_up(&mut self, failure: &Failure) {
        self.socket = None;
        self.in_flight.fail(failure);
    }

    /// Notes that the connection has broken, once.
    fn record_break(&mut self) {
        if mem::take(&mut self.opened) {
            self.factory.record_break();
        }
    }

    /// Returns `true` if [`connect`](Self::connect) has nothing to do.
    pub(super) fn is_ready(&self) -> bool {
        self.is_usable() && self.retiring().is_none()
    }

    /// Returns `true` if replies can still come.
    pub(crate) fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Opens the connection unless it is open, and makes sure that it leads to the right server.
    pub(crate) fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        // If the server has moved, this connection is no longer open.
        self.factory.refresh_route(deadline);
        if self.is_open() {
            if self.retiring().is_none() {
                return Ok(());
            }
            // A failure has ended what was in flight.
            drop(self.read_all(deadline));
        }
        if self.retiring().is_some() {
            // Replaced in time, it has not broken.
            self.opened = false;
        }
        self.record_break();
        self.collect(WaitFor::Nothing);
        self.poison();
        let moves = self.factory.moves();
        let deadline = deadline.min(end_of(self.factory.connect_timeout));
        let mut opened = OpenSocket::open(&self.factory, deadline);
        if opened.as_ref().is_err_and(|failure| self.factory.may_have_new_credentials(failure)) {
            opened = OpenSocket::open(&self.factory, deadline);
        }
        let opened = opened.map_err(|failure| {
            self.factory.reject_address(moves);
            // What a connection begins with has no effect.
            failure.of_question()
        })?;
        self.socket = Some(opened);
        self.opened = true;
        self.factory.record_opening();
        Ok(())
    }

    /// Writes what `pack` appends over the open connection, as far as there is room, without
    /// waiting. The reader goes on with the rest as room comes. If that fails, everything in
    /// flight has failed.
    pub(crate) fn write(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        let Some(socket) = &mut self.socket else {
            let failure = self.no_reply();
            self.give_up(&failure);
            return Err(failure);
        };
        pack(socket.stream.out());
        let written = socket.write(&self.factory);
        written.map_err(|failure| self.break_off(failure))
    }

    /// Blocks until everything is written. If there is no room for it in time, that is a failure,
    /// and the connection is as before.
    pub(super) fn flush(&mut self, deadline: Instant) -> Result<(), Failure> {
        let Some(socket) = &mut self.socket else { return Err(self.no_reply()) };
        match socket.stream.flush(deadline) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(self.no_reply()),
            Err(error) => {
                let failure = socket.failure_of_break(&self.factory, error.into());
                Err(self.break_off(failure))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Returns `true` if a request can be written over the open connection that no thread waits
    /// for, as far as is known without waiting.
    pub(super) fn can_post(&mut self, now: Instant) -> bool {
        // After a short time it is taken for granted that the server has not closed it. What comes
        // although nothing is in flight is no reply, but may say why the connection is about to
        // end.
        let was_idle =
            now.saturating_duration_since(self.used) >= IDLE && self.in_flight.is_empty();
        if was_idle
            && self.socket.as_ref().is_some_and(|socket| socket.stream.look() != Arrived::Nothing)
        {
            self.poison();
            self.factory.suspect_connections();
        }
        self.used = now;
        self.is_open() && self.retiring().is_none()
    }

    /// Gives up the connection, and with it whatever is in flight.
    pub(crate) fn poison(&mut self) {
        let error = io::Error::other("the connection was given up");
        let label = self.factory.label();
        self.give_up(&Failure::io(FailureKind::Disconnected, &label, error));
    }
}

impl AsRef<Self> for Connection {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In a forked child the replies are the parent's.
        if !self.in_flight.is_empty() && process::id() == self.process {
            self.collect(WaitFor::Nothing);
            self.poison();
        }
    }
}
