//! An open socket to one server, logged in there.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redis::{ErrorKind, RedisError, Value};

use crate::base::failure::{Failure, FailureKind};
use crate::config::callbacks::Credentials;
use crate::net::error_reply;
use crate::net::factory::ConnectionFactory;
use crate::net::login::Validity;
use crate::net::request::Reply;
use crate::net::resp::RespStream;
use crate::net::stream::Arrived;

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

/// A socket, and what is known about it.
#[derive(Debug)]
pub(super) struct OpenSocket {
    pub(super) stream: RespStream,
    /// The factory's generation when it was opened.
    generation: u64,
    /// For how long what the client has logged in with is valid, if that is limited.
    pub(super) validity: Option<Validity>,
    /// The factory's suspicions when it was last known not to have ended.
    checked: AtomicU64,
    /// Whether a reply has come, so that a Redis server is there.
    greeted: bool,
}

impl OpenSocket {
    /// Opens a socket, logs in, and makes sure that the server is the right one.
    pub(super) fn open(factory: &ConnectionFactory, deadline: Instant) -> Result<Self, Failure> {
        let (generation, checked) = (factory.generation(), AtomicU64::new(factory.suspicions()));
        let stream = factory.open(deadline)?;
        // Only now: a server that is away is tried often.
        let credentials = factory.credentials(deadline)?;
        let end = credentials.as_ref().and_then(|credentials| credentials.valid_until);
        let validity = end.map(Validity::until);
        let mut opened = Self { stream, generation, validity, checked, greeted: false };
        opened.greet(factory, credentials.as_ref(), deadline)?;
        Ok(opened)
    }

    fn greet(
        &mut self,
        factory: &ConnectionFactory,
        credentials: Option<&Credentials>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let greeting = factory.write_greeting(credentials, self.stream.out());
        self.write(factory)?;
        let mut reply = || {
            let received = self.receive(factory, WaitFor::Reply { deadline })?;
            received.ok_or_else(|| factory.no_reply())
        };
        for _ in 0..greeting.required {
            reply().and_then(|reply| reply).map_err(Failure::in_login)?;
        }
        if greeting.has_name {
            // The name is for operators. Not every user may set one, and not every proxy knows the
            // command.
            reply().map(drop).map_err(Failure::in_login)?;
        }
        if greeting.asks_role {
            factory.check_role(reply()?)?;
        }
        Ok(())
    }

    /// Returns `true` unless the socket has ended, or is to be replaced.
    pub(super) fn is_current(&self, factory: &ConnectionFactory) -> bool {
        let has_expired = self.validity.is_some_and(|validity| Instant::now() >= validity.end);
        self.generation == factory.generation() && !has_expired && self.has_not_ended(factory)
    }

    /// Looks at the socket if another connection has broken since that was done last.
    fn has_not_ended(&self, factory: &ConnectionFactory) -> bool {
        let suspicions = factory.suspicions();
        if self.checked.load(Ordering::Relaxed) == suspicions {
            return true;
        }
        let has_ended = self.stream.look() == Arrived::End;
        if !has_ended {
            self.checked.store(suspicions, Ordering::Relaxed);
        }
        !has_ended
    }

    /// Writes as much as there is room for.
    ///
    /// # Errors
    ///
    /// The socket is broken, here and below.
    pub(super) fn write(&mut self, factory: &ConnectionFactory) -> Result<(), Failure> {
        self.stream.write().map_err(|error| self.failure_of_break(factory, error.into()))
    }

    /// Reads the next reply, which may say that the request has failed; `None` if it has not come.
    pub(super) fn receive(
        &mut self,
        factory: &ConnectionFactory,
        wait: WaitFor,
    ) -> Result<Option<Reply>, Failure> {
        let reply = match wait {
            WaitFor::Buffered => self.stream.receive_buffered(),
            WaitFor::Nothing => self.stream.receive_now(),
            WaitFor::Reply { deadline } => self.stream.receive(None, deadline),
            WaitFor::SoonReply { deadline } => self.stream.receive(Some(&factory.spin), deadline),
        };
        self.greeted |= reply.is_ok();
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
            Err(error) => Err(self.failure_of_break(factory, error)),
        }
    }

    /// The failure of what was requested over a socket with this error.
    pub(super) fn failure_of_break(
        &self,
        factory: &ConnectionFactory,
        error: RedisError,
    ) -> Failure {
        let server = factory.label();
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
}
