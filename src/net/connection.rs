//! One connection to one server: opened when it is used, given up when anything but an error reply
//! goes wrong with it.
//!
//! The socket is our own, not a connection of `redis`: a deadline must cover a whole reply, the
//! reader must be able to spin, and another thread must be able to end a blocked read. From `redis`
//! come URLs, the packing of commands, values and error kinds.

mod exchanges;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io, mem, process};

use redis::{ErrorKind, RedisError, RedisResult, ServerError, Value};

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::config::callbacks::Credentials;
use crate::net::error_reply;
use crate::net::exchange::ReplySlot;
use crate::net::factory::{ConnectionFactory, Greeting};
use crate::net::in_flight::InFlight;
use crate::net::interrupter::Close;
use crate::net::login::Validity;
use crate::net::request::Reply;
use crate::net::resp::RespStream;
use crate::net::socket::PollFd;
use crate::net::stream::{Arrived, PolledSocket};

/// A connection over which something was posted less long ago is taken for alive.
pub(super) const IDLE: Duration = Duration::from_millis(500);

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

/// A connection, without a socket until it is used.
pub(crate) struct Connection {
    factory: Arc<ConnectionFactory>,
    made: Instant,
    socket: Option<RespStream>,
    /// Whether the last socket was opened, and has not been found broken or replaced.
    opened: bool,
    /// The factory's generation when the socket was opened.
    generation: u64,
    /// For how long what the client has logged in with is valid, if that is limited.
    validity: Option<Validity>,
    /// The factory's suspicions when the socket was last known not to have ended.
    checked: AtomicU64,
    /// Whether a reply has come over this socket, so that a Redis server is there.
    greeted: bool,
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
            generation: 0,
            validity: None,
            checked: AtomicU64::new(0),
            greeted: false,
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
        let Some(socket) = &self.socket else { return false };
        let has_expired = self.validity.is_some_and(|validity| Instant::now() >= validity.end);
        let is_current = self.generation == self.factory.generation();
        is_current && !has_expired && self.has_not_ended(socket)
    }

    /// Returns `true` if the connection is open and leads to where the server is.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_open() && self.factory.is_route_current()
    }

    /// For how long the connection may be used, if it is time to replace it.
    pub(crate) fn retiring(&self) -> Option<Validity> {
        self.validity.filter(|validity| Instant::now() >= validity.retire_at)
    }

    /// When to replace the connection or, after that, when it can no longer be used.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let Validity { retire_at, end } = self.validity?;
        Some(if Instant::now() < retire_at { retire_at } else { end })
    }

    /// Looks at the socket if another connection has broken since that was done last.
    fn has_not_ended(&self, socket: &RespStream) -> bool {
        let suspicions = self.factory.suspicions();
        if self.checked.load(Ordering::Relaxed) == suspicions {
            return true;
        }
        let has_ended = socket.look() == Arrived::End;
        if !has_ended {
            self.checked.store(suspicions, Ordering::Relaxed);
        }
        !has_ended
    }

    /// Returns `true` if something is to be written for which there was no room.
    pub(crate) fn is_writing(&self) -> bool {
        self.socket.as_ref().is_some_and(RespStream::is_writing)
    }

    /// The socket, to wait until there is something to do: to read, or to go on writing.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.socket.as_ref().map(RespStream::poll_fd)
    }

    /// As `poll_fd`, to wait while other threads use the connection.
    pub(crate) fn polled(&self) -> Option<PolledSocket> {
        self.socket.as_ref().map(RespStream::polled)
    }

    /// Returns the present socket, for another thread to close it.
    pub(crate) fn awaited(&self) -> Option<Weak<dyn Close>> {
        self.socket.as_ref().map(RespStream::awaited)
    }

    /// The failure of a request that was not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.factory.no_reply()
    }

    /// Gives up a connection whose reply does not fit the request.
    pub(crate) fn invalid_reply(&mut self) -> Failure {
        self.record_break();
        let failure = self.factory.invalid_reply();
        self.give_up(&failure);
        failure
    }

    /// Opens a socket and logs in.
    fn open(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.greeted = false;
        let generation = self.factory.generation();
        let socket = self.factory.open(deadline)?;
        // Only now: a server that is away is tried often.
        let credentials = self.factory.credentials(deadline)?;
        (self.socket, self.generation) = (Some(socket), generation);
        let end = credentials.as_ref().and_then(|credentials| credentials.valid_until);
        self.validity = end.map(Validity::until);
        self.greet(credentials.as_ref(), deadline)
    }

    /// Logs in, and makes sure that the server is the right one.
    fn greet(
        &mut self,
        credentials: Option<&Credentials>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let factory = self.factory.clone();
        let mut greeting = Greeting::default();
        self.write(|out| greeting = factory.write_greeting(credentials, out))?;
        for _ in 0..greeting.required {
            self.receive_in_greeting(deadline).map_err(Failure::in_login)?;
        }
        if greeting.has_name
            && let Err(failure) = self.receive_in_greeting(deadline)
            // The name is for operators. Not every user may set one, and not every proxy knows the
            // command.
            && !self.is_connected()
        {
            return Err(failure.in_login());
        }
        if greeting.asks_role {
            let reply = self.receive_in_greeting(deadline);
            factory.check_role(reply)?;
        }
        Ok(())
    }

    fn receive_in_greeting(&mut self, deadline: Instant) -> Reply {
        self.receive_next(WaitFor::Reply { deadline }).unwrap_or_else(|| Err(self.time_out()))
    }

    /// Reads the next reply, whichever request it belongs to, or the next message; `None` if it has
    /// not come by then, so that it can be read later.
    pub(crate) fn receive_next(&mut self, wait: WaitFor) -> Option<Reply> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.invalid_reply())) };
        let reply = match wait {
            WaitFor::Buffered => socket.receive_buffered(),
            WaitFor::Nothing => socket.receive_now(),
            WaitFor::Reply { deadline } => socket.receive(None, deadline),
            WaitFor::SoonReply { deadline } => socket.receive(Some(&self.factory.spin), deadline),
        };
        self.interpret(reply)
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

    /// Reads a reply as a value or as a failure; `None` if it has not come.
    fn interpret(&mut self, reply: RedisResult<Value>) -> Option<Reply> {
        self.greeted |= reply.is_ok();
        Some(match reply {
            Ok(Value::ServerError(error)) => Err(self.refused(&error)),
            Ok(value) => Ok(value),
            Err(error) if error.is_timeout() => return None,
            Err(error) => Err(self.broken(error)),
        })
    }

    /// Gives up a connection for an error that is not a reply.
    fn broken(&mut self, error: RedisError) -> Failure {
        let failure = self.failure_of_break(error);
        self.record_break();
        self.give_up(&failure);
        failure
    }

    fn failure_of_break(&self, error: RedisError) -> Failure {
        let (factory, server) = (&self.factory, self.factory.label());
        if error.is_timeout() {
            factory.suspect_move();
            return Failure::io(FailureKind::Timeout, &server, error);
        }
        // Connections that were idle while the server restarted have all ended: with the first, the
        // others are looked at too, so that a second attempt gets a new one.
        factory.suspect_connections();
        if self.greeted {
            return Failure::io(FailureKind::Disconnected, &server, error);
        }
        if error.kind() == ErrorKind::Parse {
            let why = "the first reply over a new connection is not of Redis's protocol";
            let error = io::Error::new(io::ErrorKind::InvalidData, why);
            return factory.foreign(error);
        }
        // Nothing shows that a server is there which has replied to anything yet.
        let why = format!("a new connection ended without a reply, as at a port for TLS: {error}");
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, why);
        Failure::io(FailureKind::Timeout, &server, error)
    }

    /// The failure that an error reply is.
    fn refused(&mut self, error: &ServerError) -> Failure {
        let failure = error_reply::failure(error, &self.factory.label());
        if error_reply::suggests_demotion(&failure.code) {
            self.factory.suspect_demotion();
        }
        failure
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
        *self.checked.get_mut() = self.factory.suspicions();
        let deadline = deadline.min(end_of(self.factory.connect_timeout));
        let mut opened = self.open(deadline);
        if opened.as_ref().is_err_and(|failure| self.factory.may_have_new_credentials(failure)) {
            self.poison();
            opened = self.open(deadline);
        }
        opened.map_err(|failure| {
            self.poison();
            self.factory.reject_address(moves);
            // What a connection begins with has no effect.
            failure.of_question()
        })?;
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
        pack(socket.out());
        socket.write().map_err(|error| self.broken(error.into()))
    }

    /// Blocks until everything is written. If there is no room for it in time, that is a failure,
    /// and the connection is as before.
    pub(super) fn flush(&mut self, deadline: Instant) -> Result<(), Failure> {
        let Some(socket) = &mut self.socket else { return Err(self.no_reply()) };
        match socket.flush(deadline) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(self.no_reply()),
            flushed => flushed.map_err(|error| self.broken(error.into())),
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
        if was_idle && self.socket.as_ref().is_some_and(|socket| socket.look() != Arrived::Nothing)
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

    /// Gives up a connection over which no reply has come in time.
    pub(crate) fn time_out(&mut self) -> Failure {
        let failure = self.no_reply();
        self.record_break();
        self.give_up(&failure);
        failure
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
