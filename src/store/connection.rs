//! One connection to one server: opened when it is used, dropped when anything but an error reply
//! goes wrong with it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{RedisError, ServerError, Value};
use scheduled_thread_pool::ScheduledThreadPool;

use crate::clock::end_of;
use crate::config::Config;
use crate::store::endpoint::Endpoint;
use crate::store::route::{Address, Route};
use crate::store::socket::{Plug, Socket};
use crate::store::spin::Spin;
use crate::store::{Failure, Trouble};

/// Error replies that pass by themselves.
const PASSING: [&str; 7] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"];

/// Error replies after which no connection of this server is to be trusted.
/// UNBLOCKED is what a master says to those who wait when it becomes a replica.
const SPOILING: [&str; 4] = ["LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

/// What all connections to one server share.
pub(crate) struct Dialer {
    pub(crate) endpoint: Endpoint,
    /// The way to the address, if that is not the endpoint's own.
    pub(crate) route: Option<Box<dyn Route>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) spin: Spin,
    pub(crate) threads: Arc<ScheduledThreadPool>,
    /// Raised to make every open connection stale.
    pub(crate) generation: AtomicU64,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialer").field(&self.endpoint).finish()
    }
}

impl Dialer {
    pub(crate) fn new(
        endpoint: Endpoint,
        config: &Config,
        threads: Arc<ScheduledThreadPool>,
    ) -> Self {
        Self {
            endpoint,
            route: None,
            connect_timeout: config.connect_timeout,
            spin: Spin::new(config.spin),
            threads,
            generation: AtomicU64::new(0),
        }
    }

    pub(crate) fn label(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| self.endpoint.label.clone(), |route| route.label())
    }

    /// The failure of what was sent and not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.doubt();
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "no reply in time");
        Failure::io(Trouble::Silent, &self.label(), error)
    }

    /// The failure of a request that was answered with something that makes no sense: nothing that
    /// comes over the open connections is to be trusted.
    pub(crate) fn nonsense(&self) -> Failure {
        self.spoil();
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, "not a sensible reply");
        Failure::io(Trouble::Reset, &self.label(), error)
    }

    /// Finds out whether the server has moved, unless that is known. Half of the time at the most,
    /// so that the other is left for what it is asked for.
    fn confirm(&self, until: Instant) {
        if let Some(route) = self.route.as_ref().filter(|route| !route.is_confirmed()) {
            let now = Instant::now();
            let until = until.min(now + self.connect_timeout);
            route.confirm(now + until.saturating_duration_since(now) / 2);
        }
    }

    fn is_confirmed(&self) -> bool {
        self.route.as_ref().is_none_or(|route| route.is_confirmed())
    }

    /// Grows when the open connections have become worthless.
    fn generation(&self) -> u64 {
        let moves = self.route.as_ref().map_or(0, |route| route.moves());
        self.generation.load(Ordering::Relaxed) + moves
    }

    /// Gives up all open connections.
    fn spoil(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.doubt();
    }

    fn doubt(&self) {
        if let Some(route) = &self.route {
            route.doubt();
        }
    }

    fn open(&self, until: Instant) -> Result<Socket, Failure> {
        let opened = match &self.route {
            None => self.endpoint.connect(&self.threads, until),
            Some(route) => {
                let Address { host, port } = route.address()?;
                self.endpoint.at(&host, port).connect(&self.threads, until)
            }
        };
        opened.map_err(|error| {
            self.doubt();
            Failure::io(Trouble::Unreachable, &self.label(), error)
        })
    }

    /// Appends the requests that a new connection begins with, and tells how many there are.
    fn greet(&self, out: &mut Vec<u8>) -> usize {
        let greetings = self.endpoint.greet(out);
        if self.route.is_none() {
            return greetings;
        }
        redis::cmd("ROLE").write_packed_command(out);
        greetings + 1
    }

    /// Meets the last reply to a greeting.
    fn welcome(&self, reply: &Value) -> Result<(), Failure> {
        let Some(route) = self.route.as_ref().filter(|_| !is_master(reply)) else { return Ok(()) };
        route.disprove();
        let error = std::io::Error::other("the server is not a master, or not yet");
        Err(Failure::io(Trouble::Passing, &self.label(), error))
    }
}

/// Reads the reply to ROLE.
fn is_master(reply: &Value) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
}

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

    /// Sends what `pack` writes, and reads the one reply.
    pub(crate) fn exchange(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Value, Failure> {
        self.send(until, pack)?;
        self.receive(true, until).unwrap_or_else(|| Err(self.silence()))
    }

    /// Sends what `pack` writes, connecting first if need be, and does not wait for replies.
    pub(crate) fn send(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Failure> {
        self.connect(until)?;
        self.write(until, pack)
    }

    /// As `send`, on the socket that there is.
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
        Some(match socket.receive(spin.then_some(&self.dialer.spin), until) {
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

    /// Finds out whether the server has moved, unless that is known: then this is not open any
    /// more.
    pub(crate) fn confirm(&self, until: Instant) {
        self.dialer.confirm(until);
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
    fn silence(&mut self) -> Failure {
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
        self.confirm(until);
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

/// The code of an error reply. Redis before 7 hides the code of a command that failed inside a
/// script: `ERR Error running script (call to f_…): @user_script:3: WRONGTYPE Operation against …`.
fn code(error: &ServerError) -> &str {
    inner_code(error.details().unwrap_or_default()).unwrap_or_else(|| error.code())
}

fn inner_code(details: &str) -> Option<&str> {
    let (_, place) = details.strip_prefix("Error running script")?.split_once("@user_script:")?;
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
            code("Error running script (call to f_1a): @user_script:7: attempt to call"),
            None
        );
        assert_eq!(code("Error compiling script (new function)"), None);
    }
}
