//! What the connections to one server share: how to get there, and whether they are stale.

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

/// Makes connections to one server, and has what they share.
pub(crate) struct ConnectionFactory {
    pub(crate) endpoint: Endpoint,
    /// Leads to the server's address if that is not the endpoint's own.
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

    /// The server's address, as users are shown it.
    pub(crate) fn label(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| self.endpoint.label.clone(), |route| route.label())
    }

    /// The failure of a request that was not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.suspect_move();
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "no reply in time");
        Failure::io(FailureKind::Timeout, &self.label(), error)
    }

    /// The failure of a request whose reply does not fit it. Nothing that comes over the open
    /// connections is to be trusted then.
    pub(crate) fn invalid_reply(&self) -> Failure {
        self.invalidate_connections();
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, "not a sensible reply");
        Failure::io(FailureKind::Disconnected, &self.label(), error)
    }

    /// Finds out whether the server has moved, unless that is known. Takes half of the time at
    /// most, so that the other half is left for the request.
    pub(crate) fn refresh_route(&self, deadline: Instant) {
        if let Some(route) = self.route.as_ref().filter(|route| !route.is_current()) {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now).min(self.connect_timeout);
            if !left.is_zero() {
                route.refresh(now + left / 2);
            }
        }
    }

    pub(crate) fn is_route_current(&self) -> bool {
        self.route.as_ref().is_none_or(|route| route.is_current())
    }

    /// Grows when the open connections have become stale.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed) + self.moves()
    }

    /// Grows when the route has come to lead elsewhere.
    pub(crate) fn moves(&self) -> u64 {
        self.route.as_ref().map_or(0, |route| route.moves())
    }

    /// Makes every open connection stale.
    pub(crate) fn invalidate_connections(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.suspect_move();
    }

    /// Has the route refreshed before the next request: after a failure, the server may have been
    /// replaced.
    pub(crate) fn suspect_move(&self) {
        if let Some(route) = &self.route {
            route.suspect_move();
        }
    }

    /// Has the route lead elsewhere, if it can: no connection could be opened when it had moved so
    /// often.
    pub(crate) fn reject_address(&self, moves: u64) {
        if let Some(route) = &self.route {
            route.reject_address(moves);
        }
    }

    /// Opens a socket.
    pub(crate) fn open(&self, deadline: Instant) -> Result<RespStream, Failure> {
        let opened = match &self.route {
            None => self.endpoint.connect(&self.resolver, deadline),
            Some(route) => {
                let Address { host, port } = route.address()?;
                self.endpoint.at(&host, port).connect(&self.resolver, deadline)
            }
        };
        opened.map_err(|error| {
            self.suspect_move();
            Failure::io(FailureKind::Unreachable, &self.label(), error)
        })
    }

    /// Appends the requests that a new connection begins with, and returns how many there are.
    pub(crate) fn write_login(&self, out: &mut Vec<u8>) -> usize {
        let requests = self.endpoint.write_login(out);
        if self.route.is_none() {
            return requests;
        }
        redis::cmd("ROLE").write_packed_command(out);
        requests + 1
    }

    /// Checks the last reply to these requests: a route must have led to a master.
    pub(crate) fn check_role(&self, reply: &Value) -> Result<(), Failure> {
        if self.route.is_none() || is_master(reply) {
            return Ok(());
        }
        let error = std::io::Error::other("the server is not a master, or not yet");
        Err(Failure::io(FailureKind::Transient, &self.label(), error))
    }
}

/// Returns `true` if this is how a master replies to ROLE.
fn is_master(reply: &Value) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
}
