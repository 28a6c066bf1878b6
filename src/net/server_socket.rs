//! The socket of a connection: opened and logged in when it is used, and replaced when the server
//! may be elsewhere or the credentials are about to expire.
//!
//! The socket is our own, not a connection of `redis`: a deadline must cover a whole reply, the
//! reader must be able to spin, and another thread must be able to end a blocked read. From `redis`
//! come URLs, the packing of commands, values and error kinds.

use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, Value};

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::config::callbacks::Credentials;
use crate::error::Phase;
use crate::net::error_reply;
use crate::net::factory::ConnectionFactory;
use crate::net::request::Reply;
use crate::net::resp::RespStream;
use crate::net::socket::PollFd;
use crate::net::stream::{Arrived, WaitFor};

/// The socket of a connection, open or not.
#[derive(Debug)]
pub(crate) struct ServerSocket {
    pub(crate) factory: Arc<ConnectionFactory>,
    pub(super) open: Option<OpenSocket>,
    /// Whether the last one has not been found broken or replaced.
    opened: bool,
}

/// An open socket, and what is known about it.
#[derive(Debug)]
pub(super) struct OpenSocket {
    pub(super) stream: RespStream,
    /// The factory's generation when it was opened.
    generation: u64,
    /// For how long what the client has logged in with is valid, if that is limited.
    validity: Option<Validity>,
    /// The factory's suspicions when it was last known not to have ended.
    checked: AtomicU64,
    /// Whether a reply has come, so that a Redis server is there.
    greeted: bool,
}

/// For how long a connection may be used whose credentials expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// When to start replacing it: while it is still good, so that there is time.
    retire_at: Instant,
    end: Instant,
}

impl Validity {
    /// Of a connection that is opened now.
    fn until(end: Instant) -> Self {
        let spare = end.saturating_duration_since(Instant::now()) / 5;
        Self { retire_at: end.checked_sub(spare).unwrap_or(end), end }
    }

    /// How much time there is to replace the connection.
    pub(crate) fn spare(&self) -> Duration {
        self.end.saturating_duration_since(self.retire_at)
    }
}

impl ServerSocket {
    pub(super) fn new(factory: Arc<ConnectionFactory>) -> Self {
        Self { factory, open: None, opened: false }
    }

    /// What is sent and received, if the socket is open.
    pub(crate) fn stream(&self) -> Option<&RespStream> {
        self.open.as_ref().map(|open| &open.stream)
    }

    /// Returns `true` if something is to be written for which there was no room.
    pub(crate) fn is_writing(&self) -> bool {
        self.stream().is_some_and(RespStream::is_writing)
    }

    /// The socket, to wait until there is something to do: to read, or to go on writing.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.stream().map(RespStream::poll_fd)
    }

    /// Returns `true` if replies can still come.
    pub(crate) fn is_connected(&self) -> bool {
        self.open.is_some()
    }

    /// Returns `true` if the next request needs no new socket.
    pub(crate) fn is_open(&self) -> bool {
        let Some(open) = &self.open else { return false };
        let has_expired = open.validity.is_some_and(|validity| Instant::now() >= validity.end);
        if has_expired || open.generation != self.factory.generation() {
            return false;
        }
        let suspicions = self.factory.suspicions.load(Ordering::Relaxed);
        if open.checked.load(Ordering::Relaxed) != suspicions {
            // Another connection has broken since this one was looked at.
            if open.stream.look() == Arrived::End {
                return false;
            }
            open.checked.store(suspicions, Ordering::Relaxed);
        }
        true
    }

    /// Returns `true` if the socket is open and leads to where the server is.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_open() && self.factory.is_route_current()
    }

    /// For how long the socket may be used, if it is time to replace it.
    pub(crate) fn retiring(&self) -> Option<Validity> {
        let validity = self.open.as_ref()?.validity?;
        (Instant::now() >= validity.retire_at).then_some(validity)
    }

    /// When to replace the socket or, after that, when it can no longer be used.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let Validity { retire_at, end } = self.open.as_ref()?.validity?;
        Some(if Instant::now() < retire_at { retire_at } else { end })
    }

    /// Returns `true` if the socket is open and leads to where the server is, as far as that can be
    /// found out in time, and it is not yet time to replace it.
    pub(super) fn is_ready(&self, deadline: Instant) -> bool {
        if self.factory.route.is_some() {
            self.factory.refresh_route(deadline);
        }
        self.is_open() && self.retiring().is_none()
    }

    /// Opens a socket in place of the last one, and makes sure that it leads to the right server.
    pub(super) fn open(&mut self, deadline: Instant) -> Result<(), Failure> {
        if self.retiring().is_some() {
            // Replaced in time, it has not broken.
            self.opened = false;
        }
        self.record_break();
        let moves = self.factory.moves();
        let deadline = deadline.min(end_of(self.factory.connect_timeout));
        let mut opened = self.log_in(deadline);
        if let Err(failure) = &opened
            && self.factory.credentials.is_some()
            && failure.phase == Phase::Login
            && failure.code == "WRONGPASS"
        {
            // There may be other credentials by now.
            opened = self.log_in(deadline);
        }
        if let Err(failure) = opened {
            self.open = None;
            self.factory.reject_address(moves);
            // What a connection begins with has no effect.
            return Err(failure.of_question());
        }
        self.opened = true;
        self.factory.record_opening();
        Ok(())
    }

    /// Opens a socket and logs in.
    fn log_in(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.open = None;
        let factory = &self.factory;
        let generation = factory.generation();
        let checked = AtomicU64::new(factory.suspicions.load(Ordering::Relaxed));
        let stream = factory.open(deadline)?;
        // Only now: a server that is away is tried often.
        let credentials = factory.credentials.as_ref().map(|source| source.ask(deadline));
        let credentials = credentials.transpose().map_err(|error| {
            Failure::caused_by(FailureKind::Unreachable, &factory.label(), error).at(Phase::Login)
        })?;
        let end = credentials.as_ref().and_then(|credentials| credentials.valid_until);
        let validity = end.map(Validity::until);
        let open = OpenSocket { stream, generation, validity, checked, greeted: false };
        self.greet(open, credentials.as_ref(), deadline)
    }

    /// Does what a new connection begins with, in one round trip.
    fn greet(
        &mut self,
        mut open: OpenSocket,
        credentials: Option<&Credentials>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let (endpoint, out) = (&self.factory.endpoint, &mut open.stream.out);
        let required = match credentials {
            None => endpoint.write_login(out),
            Some(credentials) => endpoint.with_login(credentials).write_login(out),
        };
        let has_name = endpoint.write_name(out);
        let asks_role = self.factory.asks_role();
        if asks_role {
            redis::cmd("ROLE").write_packed_command(out);
        }
        self.open = Some(open);
        self.write()?;
        let mut reply = || {
            let received = self.receive(WaitFor::Reply { deadline })?;
            received.ok_or_else(|| self.factory.no_reply())
        };
        for _ in 0..required {
            reply().and_then(|reply| reply).map_err(Failure::in_login)?;
        }
        if has_name {
            // The name is for operators. Not every user may set one, and not every proxy knows the
            // command.
            reply().map(drop).map_err(Failure::in_login)?;
        }
        if asks_role {
            let role = reply()?;
            self.factory.check_role(role)?;
        }
        Ok(())
    }

    /// Notes that the socket has broken, once.
    pub(super) fn record_break(&mut self) {
        if mem::take(&mut self.opened) {
            self.factory.record_break();
        }
    }

    /// Writes as much as there is room for of what is to be written.
    ///
    /// # Errors
    ///
    /// The socket is broken, here and below.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        let Some(open) = &mut self.open else { return Err(self.factory.no_reply()) };
        let written = open.stream.write();
        written.map_err(|error| self.failure_of_break(error.into()))
    }

    /// Blocks until everything is written. Returns `false` if there is no room for it in time.
    pub(super) fn flush(&mut self, deadline: Instant) -> Result<bool, Failure> {
        let Some(open) = &mut self.open else { return Err(self.factory.no_reply()) };
        match open.stream.flush(deadline) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(error) => Err(self.failure_of_break(error.into())),
        }
    }

    /// Reads the next reply, which may say that the request has failed; `None` if it has not come.
    pub(super) fn receive(&mut self, wait: WaitFor) -> Result<Option<Reply>, Failure> {
        let Self { open: Some(open), factory, .. } = self else {
            return Err(self.factory.no_reply());
        };
        let reply = open.stream.receive(wait, &factory.spin);
        open.greeted |= reply.is_ok();
        match reply {
            Ok(Value::ServerError(error)) => {
                let failure = error_reply::failure(&error, &factory.label());
                if error_reply::suggests_demotion(&failure.code) {
                    factory.suspect_demotion();
                }
                Ok(Some(Err(failure)))
            }
            Ok(value) => Ok(Some(Ok(value))),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(self.failure_of_break(error)),
        }
    }

    /// The failure of what was requested over a socket with this error.
    fn failure_of_break(&self, error: RedisError) -> Failure {
        let (factory, server) = (&self.factory, self.factory.label());
        if error.is_timeout() {
            factory.suspect_move();
            return Failure::io(FailureKind::Timeout, &server, error);
        }
        // Connections that were idle while the server restarted have all ended: with the first, the
        // others are looked at too, so that a second attempt gets a new one.
        factory.suspect_connections();
        if self.open.as_ref().is_some_and(|open| open.greeted) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_time_is_left_to_replace_a_connection() {
        let now = Instant::now();
        let validity = Validity::until(now + Duration::from_secs(900));
        let age = validity.retire_at - now;
        assert!(age >= Duration::from_secs(720) && age < Duration::from_secs(725), "{age:?}");
        assert!(Validity::until(now).retire_at <= now, "at once");
    }
}
