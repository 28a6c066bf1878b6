//! One connection to one server: opened when it is used, dropped when anything but an error reply
//! goes wrong with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use redis::{RedisError, RedisResult, ServerError, Value};

use crate::clock::end_of;
use crate::failure::{Failure, FailureKind};
use crate::net::factory::ConnectionFactory;
use crate::net::pipeline::{Transport, WaitFor};
use crate::net::request::{Reply, Request};
use crate::net::resp::RespStream;
use crate::net::stream::SocketCloser;

/// Error replies that pass by themselves.
const PASSING: [&str; 7] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"];

/// Error replies after which no connection of this server is to be trusted. UNBLOCKED is what a
/// master says to those who wait when it becomes a replica.
const SPOILING: [&str; 4] = ["LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

/// A place for a connection, empty until it is used.
#[derive(Debug)]
pub(crate) struct Connection {
    factory: Arc<ConnectionFactory>,
    socket: Option<RespStream>,
    generation: u64,
    /// Kept for its memory.
    out: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(factory: Arc<ConnectionFactory>) -> Self {
        Self { factory, socket: None, generation: 0, out: Vec::new() }
    }

    /// Sends a request, in full if need be, and reads its reply.
    pub(crate) fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        let reply = self.exchange_once(request, deadline);
        match request.again_after(&reply) {
            Some(again) => self.exchange_once(&again, deadline),
            None => reply,
        }
    }

    fn exchange_once(&mut self, request: &Request, deadline: Instant) -> Reply {
        self.connect(deadline)?;
        self.write(deadline, |out| out.extend_from_slice(request.bytes()))?;
        self.receive_reply_to(request, deadline)
    }

    /// Reads the reply to a request that was sent. Without one in time the connection is given up.
    pub(crate) fn receive_reply_to(&mut self, request: &Request, deadline: Instant) -> Reply {
        for _ in 0..request.preludes() {
            // A refusal of ASKING shows in the reply that counts.
            let prelude = self.receive_by(deadline);
            if !self.is_connected() {
                return prelude;
            }
        }
        self.receive_by(deadline)
    }

    fn receive_by(&mut self, deadline: Instant) -> Reply {
        self.receive(WaitFor::SoonReply { deadline }).unwrap_or_else(|| Err(self.time_out()))
    }

    /// Sends what `pack` writes over the open socket, and does not wait for replies.
    pub(crate) fn write(
        &mut self,
        deadline: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Failure> {
        self.out.clear();
        pack(&mut self.out);
        let Some(socket) = &mut self.socket else { return Err(self.nonsense()) };
        socket.send(&self.out, deadline).map_err(|error| self.broken(error.into()))
    }

    /// Reads the next reply to what was sent. `None` if it has not come by then; it can be read
    /// later.
    pub(crate) fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.nonsense())) };
        let reply = match wait {
            WaitFor::Buffered => socket.receive_buffered(),
            WaitFor::Nothing => socket.receive_now(),
            WaitFor::Reply { deadline } => socket.receive(None, deadline),
            WaitFor::SoonReply { deadline } => socket.receive(Some(&self.factory.spin), deadline),
        };
        self.understand(reply)
    }

    fn understand(&mut self, reply: RedisResult<Value>) -> Option<Result<Value, Failure>> {
        Some(match reply {
            Ok(Value::ServerError(error)) => Err(self.refused(error)),
            Ok(value) => Ok(value),
            Err(error) if error.is_timeout() => return None,
            Err(error) => Err(self.broken(error)),
        })
    }

    /// Reads a reply that nobody wants, or gives up the connection if it is not there by then.
    pub(crate) fn skip(&mut self, deadline: Instant) {
        if self.receive(WaitFor::Reply { deadline }).is_none() {
            self.poison();
        }
    }

    /// Gives up the socket, and with it whatever is still on its way.
    pub(crate) fn poison(&mut self) {
        self.socket = None;
    }

    /// Tells whether replies can still come.
    pub(crate) fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Tells whether the next request needs no new socket.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some() && self.generation == self.factory.generation()
    }

    /// Tells whether `connect` has nothing to do.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_open() && self.factory.is_confirmed()
    }

    /// What to wait at for something to read.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// The means to end this connection from another thread, until it is given up.
    pub(crate) fn plug(&self) -> SocketCloser {
        self.socket.as_ref().map(RespStream::plug).unwrap_or_default()
    }

    /// Gives up a connection on which no reply has come in time.
    pub(crate) fn time_out(&mut self) -> Failure {
        self.poison();
        self.no_reply()
    }

    /// The failure of what was sent and not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.factory.no_reply()
    }

    /// Meets a reply that does not fit the request.
    pub(crate) fn nonsense(&mut self) -> Failure {
        self.poison();
        self.factory.nonsense()
    }

    /// Opens the connection unless it is open.
    pub(crate) fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        // If the server has moved, this is not open any more.
        self.factory.confirm(deadline);
        if self.is_open() {
            return Ok(());
        }
        self.poison();
        let generation = self.factory.generation();
        let deadline = deadline.min(end_of(self.factory.connect_timeout));
        self.socket = Some(self.factory.open(deadline)?);
        self.generation = generation;
        self.greet(deadline).map_err(|mut failure| {
            self.poison();
            if failure.is_ambiguous() {
                // A greeting has no effect, so nothing is unknown.
                failure.kind = FailureKind::Unreachable;
            }
            failure
        })
    }

    fn greet(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.out.clear();
        let replies = self.factory.greet(&mut self.out);
        let Some(socket) = &mut self.socket else { return Err(self.nonsense()) };
        socket.send(&self.out, deadline).map_err(|error| self.broken(error.into()))?;
        let mut last = Value::Nil;
        for _ in 0..replies {
            last = self
                .receive(WaitFor::Reply { deadline })
                .unwrap_or_else(|| Err(self.time_out()))?;
        }
        self.factory.welcome(&last)
    }

    /// Meets an error that is not a reply.
    fn broken(&mut self, error: RedisError) -> Failure {
        self.poison();
        let kind = if error.is_timeout() {
            FailureKind::Timeout
        } else {
            // Connections that idled through a restart of the server are all dead: with the first
            // the others are given up too, so that a second try gets a new one.
            self.factory.spoil();
            FailureKind::Disconnected
        };
        self.factory.doubt();
        Failure::io(kind, &self.factory.label(), error)
    }

    /// Meets an error reply.
    fn refused(&mut self, error: ServerError) -> Failure {
        let code = code(&error).to_owned();
        if SPOILING.contains(&code.as_str()) {
            self.factory.spoil();
        }
        let full = error.details().is_some_and(|text| text.starts_with("max number of clients"));
        let kind = if full || PASSING.contains(&code.as_str()) {
            FailureKind::Transient
        } else if code == "WRONGTYPE" {
            FailureKind::WrongType
        } else {
            FailureKind::Rejected
        };
        let server = self.factory.label();
        Failure { kind, server, code, source: Arc::new(RedisError::from(error)) }
    }
}

impl Transport for Connection {
    fn is_ready(&self) -> bool {
        self.is_ready()
    }

    fn is_connected(&self) -> bool {
        self.is_connected()
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.connect(deadline)
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        self.exchange(request, deadline)
    }

    fn write(&mut self, deadline: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        self.write(deadline, pack)
    }

    fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        self.receive(wait)
    }

    fn poison(&mut self) {
        self.poison();
    }

    fn time_out(&mut self) -> Failure {
        self.time_out()
    }
}

/// The code of an error reply. Redis before 7 hides the code of a command that failed inside a
/// script: `ERR Error running script (call to f_…): @user_script:3: WRONGTYPE Operation against …`,
/// or twice so with the place.
fn code(error: &ServerError) -> &str {
    inner_code(error.details().unwrap_or_default()).unwrap_or_else(|| error.code())
}

fn inner_code(details: &str) -> Option<&str> {
    let (_, place) = details.strip_prefix("Error running script")?.rsplit_once("@user_script:")?;
    let (_, reply) = place.trim_start().split_once(": ")?;
    let word = reply.trim_start_matches('-').split(' ').next()?;
    let is_code = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_inside_a_script_is_found_in_the_replies_of_redis_6() {
        let code = |text| inner_code(text);
        assert_eq!(
            code(
                "Error running script (call to f_1a): @user_script:7: WRONGTYPE Operation against"
            ),
            Some("WRONGTYPE")
        );
        assert_eq!(
            code("Error running script (call to f_1a): @user_script: 7: -OOM command not allowed"),
            Some("OOM")
        );
        assert_eq!(
            code(
                "Error running script (call to f_1a): @user_script:62: @user_script: 62: \
                 -READONLY You can't write"
            ),
            Some("READONLY")
        );
        assert_eq!(
            code("Error running script (call to f_1a): @user_script:7: attempt to call"),
            None
        );
        assert_eq!(code("Error compiling script (new function)"), None);
    }
}
