//! What the connections to one server have in common: the way there, and whether they are still
//! worth anything.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::net::endpoint::Endpoint;
use crate::net::resolver::Resolver;
use crate::net::resp::RespStream;
use crate::net::route::{Address, Route};
use crate::net::spin::Spin;

/// What all connections to one server share.
pub(crate) struct ConnectionFactory {
    pub(crate) endpoint: Endpoint,
    /// The way to the address, if that is not the endpoint's own.
    pub(crate) route: Option<Box<dyn Route>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) spin: Spin,
    resolver: Resolver,
    /// Raised to make every open connection stale.
    generation: AtomicU64,
}

impl fmt::Debug for ConnectionFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionFactory").field(&self.endpoint).finish()
    }
}

impl ConnectionFactory {
    pub(crate) fn new(endpoint: Endpoint, config: &Config, resolver: Resolver) -> Self {
        Self {
            endpoint,
            route: None,
            connect_timeout: config.connect_timeout,
            spin: Spin::new(config.spin),
            resolver,
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
        Failure::io(FailureKind::Timeout, &self.label(), error)
    }

    /// The failure of a request that was answered with something that makes no sense: nothing that
    /// comes over the open connections is to be trusted.
    pub(crate) fn nonsense(&self) -> Failure {
        self.spoil();
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, "not a sensible reply");
        Failure::io(FailureKind::Disconnected, &self.label(), error)
    }

    /// Finds out whether the server has moved, unless that is known. It takes half of the time at
    /// most, so that the other half is left for the request.
    pub(crate) fn confirm(&self, deadline: Instant) {
        if let Some(route) = self.route.as_ref().filter(|route| !route.is_confirmed()) {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now).min(self.connect_timeout);
            if !left.is_zero() {
                route.confirm(now + left / 2);
            }
        }
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.route.as_ref().is_none_or(|route| route.is_confirmed())
    }

    /// Grows when the open connections have become worthless.
    pub(crate) fn generation(&self) -> u64 {
        let moves = self.route.as_ref().map_or(0, |route| route.moves());
        self.generation.load(Ordering::Relaxed) + moves
    }

    /// Gives up all open connections.
    pub(crate) fn spoil(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.doubt();
    }

    pub(crate) fn doubt(&self) {
        if let Some(route) = &self.route {
            route.doubt();
        }
    }

    pub(crate) fn open(&self, deadline: Instant) -> Result<RespStream, Failure> {
        let opened = match &self.route {
            None => self.endpoint.connect(&self.resolver, deadline),
            Some(route) => {
                let Address { host, port } = route.address()?;
                self.endpoint.at(&host, port).connect(&self.resolver, deadline)
            }
        };
        opened.map_err(|error| {
            self.doubt();
            Failure::io(FailureKind::Unreachable, &self.label(), error)
        })
    }

    /// Appends the requests that a new connection begins with, and tells how many there are.
    pub(crate) fn greet(&self, out: &mut Vec<u8>) -> usize {
        let greetings = self.endpoint.greet(out);
        if self.route.is_none() {
            return greetings;
        }
        redis::cmd("ROLE").write_packed_command(out);
        greetings + 1
    }

    /// Meets the last reply to a greeting.
    pub(crate) fn welcome(&self, reply: &Value) -> Result<(), Failure> {
        let Some(route) = self.route.as_ref().filter(|_| !is_master(reply)) else { return Ok(()) };
        route.disprove();
        let error = std::io::Error::other("the server is not a master, or not yet");
        Err(Failure::io(FailureKind::Transient, &self.label(), error))
    }
}

/// Reads the reply to ROLE.
fn is_master(reply: &Value) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
}
