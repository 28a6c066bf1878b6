//! One connection to one server: opened when it is used, dropped when anything but an error reply
//! goes wrong with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use redis::{RedisError, RedisResult, ServerError, Value};

use crate::clock::end_of;
use crate::store::dialer::Dialer;
use crate::store::failure::{Failure, Trouble};
use crate::store::socket::Socket;
use crate::store::stream::Plug;

/// Error replies that pass by themselves.
const PASSING: [&str; 7] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"];

/// Error replies after which no connection of this server is to be trusted. UNBLOCKED is what a
/// master says to those who wait when it becomes a replica.
const SPOILING: [&str; 4] = ["LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

/// A place for a connection, empty until it is used.
#[derive(Debug)]
pub(crate) struct Connection {
    dialer: Arc<Dialer>,
    socket: Option<Socket>,
    generation: u64,
    /// Kept for its memory.
    out: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(dialer: Arc<Dialer>) -> Self {
        Self { dialer, socket: None, generation: 0, out: Vec::new() }
    }

    /// Sends what `pack` writes, and reads the first reply.
    pub(crate) fn exchange(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Value, Failure> {
        self.connect(until)?;
        self.write(until, pack)?;
        self.receive(true, until).unwrap_or_else(|| Err(self.silence()))
    }

    /// Sends ASKING and what `pack` writes in one write, and reads the replies. Only the second reply counts: without
    /// the first command's effect it is a redirection.
    pub(crate) fn exchange_asking(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Value, Failure> {
        let first = self.exchange(until, |out| {
            pack_asking(out);
            pack(out);
        });
        if !self.is_connected() {
            return first;
        }
        self.receive(true, until).unwrap_or_else(|| Err(self.silence()))
    }

    /// Sends what `pack` writes over the open socket, and does not wait for replies.
    pub(crate) fn write(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Failure> {
        self.out.clear();
        pack(&mut self.out);
        let Some(socket) = &mut self.socket else { return Err(self.nonsense()) };
        socket.send(&self.out, until).map_err(|error| self.broken(error.into()))
    }

    /// Reads the next reply to what was sent, spinning if `spin` says so. `None` if it is not there
    /// by then; it can be read later.
    pub(crate) fn receive(&mut self, spin: bool, until: Instant) -> Option<Result<Value, Failure>> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.nonsense())) };
        let reply = socket.receive(spin.then_some(&self.dialer.spin), until);
        self.understand(reply)
    }

    /// As `receive`, without waiting for anything.
    pub(crate) fn receive_now(&mut self) -> Option<Result<Value, Failure>> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.nonsense())) };
        let reply = socket.receive_now();
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
    pub(crate) fn skip(&mut self, until: Instant) {
        if self.receive(false, until).is_none() {
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
        self.socket.is_some() && self.generation == self.dialer.generation()
    }

    /// Tells whether `connect` has nothing to do.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_open() && self.dialer.is_confirmed()
    }

    /// What to wait at for something to read.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// The means to end this connection from another thread, until it is given up.
    pub(crate) fn plug(&self) -> Plug {
        self.socket.as_ref().map(Socket::plug).unwrap_or_default()
    }

    /// The failure of what another thread has put an end to.
    pub(crate) fn interrupted(&self) -> Failure {
        let error = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "interrupted");
        Failure::io(Trouble::Unreachable, &self.dialer.label(), error)
    }

    /// Gives up a connection on which no reply has come in time.
    pub(crate) fn silence(&mut self) -> Failure {
        self.poison();
        self.no_reply()
    }

    /// The failure of what was sent and not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.dialer.no_reply()
    }

    /// Meets a reply that does not fit the request.
    pub(crate) fn nonsense(&mut self) -> Failure {
        self.poison();
        self.dialer.nonsense()
    }

    /// Opens the connection unless it is open.
    pub(crate) fn connect(&mut self, until: Instant) -> Result<(), Failure> {
        // If the server has moved, this is not open any more.
        self.dialer.confirm(until);
        if self.is_open() {
            return Ok(());
        }
        self.poison();
        let generation = self.dialer.generation();
        let until = until.min(end_of(self.dialer.connect_timeout));
        self.socket = Some(self.dialer.open(until)?);
        self.generation = generation;
        self.greet(until).map_err(|mut failure| {
            self.poison();
            if failure.is_ambiguous() {
                // A greeting has no effect, so nothing is unknown.
                failure.trouble = Trouble::Unreachable;
            }
            failure
        })
    }

    fn greet(&mut self, until: Instant) -> Result<(), Failure> {
        self.out.clear();
        let replies = self.dialer.greet(&mut self.out);
        let Some(socket) = &mut self.socket else { return Err(self.nonsense()) };
        socket.send(&self.out, until).map_err(|error| self.broken(error.into()))?;
        let mut last = Value::Nil;
        for _ in 0..replies {
            last = self.receive(false, until).unwrap_or_else(|| Err(self.silence()))?;
        }
        self.dialer.welcome(&last)
    }

    /// Meets an error that is not a reply.
    fn broken(&mut self, error: RedisError) -> Failure {
        self.poison();
        let trouble = if error.is_timeout() {
            Trouble::Silent
        } else {
            // Connections that idled through a restart of the server are all dead: with the first
            // the others are given up too, so that a second try gets a new one.
            self.dialer.spoil();
            Trouble::Reset
        };
        self.dialer.doubt();
        Failure::io(trouble, &self.dialer.label(), error)
    }

    /// Meets an error reply.
    fn refused(&mut self, error: ServerError) -> Failure {
        let code = code(&error).to_owned();
        if SPOILING.contains(&code.as_str()) {
            self.dialer.spoil();
        }
        let full = error.details().is_some_and(|text| text.starts_with("max number of clients"));
        let trouble = if full || PASSING.contains(&code.as_str()) {
            Trouble::Passing
        } else if code == "WRONGTYPE" {
            Trouble::WrongType
        } else {
            Trouble::Refused
        };
        let server = self.dialer.label();
        Failure { trouble, server, code, source: Arc::new(RedisError::from(error)) }
    }
}

/// Appends the request to serve the next one even for a slot that the node is only about to get.
pub(crate) fn pack_asking(out: &mut Vec<u8>) {
    redis::cmd("ASKING").write_packed_command(out);
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
