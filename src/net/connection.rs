//! One connection to one server: opened when it is used, given up when anything but an error reply
//! goes wrong with it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use redis::{RedisError, RedisResult, ServerError, Value};

use crate::clock::end_of;
use crate::failure::{Failure, FailureKind};
use crate::net::factory::ConnectionFactory;
use crate::net::request::{Reply, Request};
use crate::net::resp::RespStream;
use crate::net::stream::SocketCloser;
use crate::net::transport::{Transport, WaitFor};

/// The codes of error replies about a condition that passes by itself.
const TRANSIENT: [&str; 7] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"];

/// The codes of error replies of a server that does not write, or not yet. UNBLOCKED is what a
/// master replies to blocked clients when it becomes a replica.
const INVALIDATING: [&str; 4] = ["LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

/// A connection, without a socket until it is used.
pub(crate) struct Connection {
    factory: Arc<ConnectionFactory>,
    socket: Option<RespStream>,
    /// The factory's generation when the socket was opened.
    generation: u64,
    /// Kept for its memory.
    out: Vec<u8>,
}

/// Shows nothing that was sent, which may be a password or the owner of a lock.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.factory).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(factory: Arc<ConnectionFactory>) -> Self {
        Self { factory, socket: None, generation: 0, out: Vec::new() }
    }

    fn exchange_once(&mut self, request: &Request, deadline: Instant) -> Reply {
        self.connect(deadline)?;
        self.write(deadline, |out| out.extend_from_slice(request.bytes()))?;
        self.receive_reply_to(request, deadline)
    }

    /// Reads the reply to a request that was sent. If none comes in time, the connection is given
    /// up.
    pub(crate) fn receive_reply_to(&mut self, request: &Request, deadline: Instant) -> Reply {
        for _ in 0..request.preludes() {
            // A rejected ASKING shows in the reply that counts.
            let prelude = self.receive_in_time(deadline);
            if !self.is_connected() {
                return prelude;
            }
        }
        self.receive_in_time(deadline)
    }

    fn receive_in_time(&mut self, deadline: Instant) -> Reply {
        self.receive(WaitFor::SoonReply { deadline }).unwrap_or_else(|| Err(self.time_out()))
    }

    /// Reads a reply and ignores it, or gives up the connection if it has not come by then.
    pub(crate) fn discard_reply(&mut self, deadline: Instant) {
        if self.receive(WaitFor::Reply { deadline }).is_none() {
            self.poison();
        }
    }

    /// Returns `true` if the next request needs no new socket.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some() && self.generation == self.factory.generation()
    }

    /// The socket, to wait until there is something to read.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Returns what closes the present socket from another thread.
    pub(crate) fn closer(&self) -> SocketCloser {
        self.socket.as_ref().map(RespStream::closer).unwrap_or_default()
    }

    /// The failure of a request that was not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.factory.no_reply()
    }

    /// Gives up a connection whose reply does not fit the request.
    pub(crate) fn invalid_reply(&mut self) -> Failure {
        self.poison();
        self.factory.invalid_reply()
    }

    fn log_in(&mut self, deadline: Instant) -> Result<(), Failure> {
        let factory = self.factory.clone();
        let mut replies = 0;
        self.write(deadline, |out| replies = factory.write_login(out))?;
        let mut last = Value::Nil;
        for _ in 0..replies {
            let reply = self.receive(WaitFor::Reply { deadline });
            last = reply.unwrap_or_else(|| Err(self.time_out()))?;
        }
        self.factory.check_role(&last)
    }

    /// Reads a reply as a value or as a failure; `None` if it has not come.
    fn interpret(&mut self, reply: RedisResult<Value>) -> Option<Reply> {
        Some(match reply {
            Ok(Value::ServerError(error)) => Err(self.rejected(error)),
            Ok(value) => Ok(value),
            Err(error) if error.is_timeout() => return None,
            Err(error) => Err(self.broken(error)),
        })
    }

    /// Gives up a connection for an error that is not a reply.
    fn broken(&mut self, error: RedisError) -> Failure {
        self.poison();
        let kind = if error.is_timeout() {
            FailureKind::Timeout
        } else {
            // Connections that were idle while the server restarted are all dead: with the first,
            // the others are given up too, so that a second attempt gets a new one.
            self.factory.invalidate_connections();
            FailureKind::Disconnected
        };
        self.factory.suspect_move();
        Failure::io(kind, &self.factory.label(), error)
    }

    /// The failure that an error reply is.
    fn rejected(&mut self, error: ServerError) -> Failure {
        let code = code(&error).to_owned();
        if is_invalidating(&code) {
            self.factory.invalidate_connections();
        }
        let full = error.details().is_some_and(|text| text.starts_with("max number of clients"));
        let kind = if full || TRANSIENT.contains(&code.as_str()) {
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
        self.is_open() && self.factory.is_route_current()
    }

    fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        // If the server has moved, this connection is no longer open.
        self.factory.refresh_route(deadline);
        if self.is_open() {
            return Ok(());
        }
        self.poison();
        let (generation, moves) = (self.factory.generation(), self.factory.moves());
        let deadline = deadline.min(end_of(self.factory.connect_timeout));
        let opened = self.factory.open(deadline).and_then(|socket| {
            (self.socket, self.generation) = (Some(socket), generation);
            self.log_in(deadline)
        });
        opened.map_err(|mut failure| {
            self.poison();
            self.factory.reject_address(moves);
            if failure.is_ambiguous() {
                // A login has no effect, so the outcome is known.
                failure.kind = FailureKind::Unreachable;
            }
            failure
        })
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        let reply = self.exchange_once(request, deadline);
        match request.again_after(&reply) {
            Some(again) => self.exchange_once(&again, deadline),
            None => reply,
        }
    }

    fn write(&mut self, deadline: Instant, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        self.out.clear();
        pack(&mut self.out);
        let Some(socket) = &mut self.socket else { return Err(self.invalid_reply()) };
        socket.send(&self.out, deadline).map_err(|error| self.broken(error.into()))
    }

    fn receive(&mut self, wait: WaitFor) -> Option<Reply> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.invalid_reply())) };
        let reply = match wait {
            WaitFor::Buffered => socket.receive_buffered(),
            WaitFor::Nothing => socket.receive_now(),
            WaitFor::Reply { deadline } => socket.receive(None, deadline),
            WaitFor::SoonReply { deadline } => socket.receive(Some(&self.factory.spin), deadline),
        };
        self.interpret(reply)
    }

    fn poison(&mut self) {
        self.socket = None;
    }

    fn time_out(&mut self) -> Failure {
        self.poison();
        self.no_reply()
    }
}

/// Returns `true` if an error reply with this code means that no connection to the server is to be
/// trusted any more.
pub(crate) fn is_invalidating(code: &str) -> bool {
    INVALIDATING.contains(&code)
}

/// The code of an error reply. Redis before 7 hides the code of a command that failed inside a
/// script: `ERR Error running script (call to f_…): @user_script:3: WRONGTYPE Operation against …`,
/// or has the place in it twice.
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
