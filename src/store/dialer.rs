//! What the connections to one server have in common: the way there, and whether they are still
//! worth anything.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::config::Config;
use crate::store::endpoint::Endpoint;
use crate::store::failure::{Failure, Trouble};
use crate::store::route::{Address, Route};
use crate::store::socket::Socket;
use crate::store::spin::Spin;

/// What all connections to one server share.
pub(crate) struct Dialer {
    pub(crate) endpoint: Endpoint,
    /// The way to the address, if that is not the endpoint's own.
    pub(crate) route: Option<Box<dyn Route>>,
    pub(super) connect_timeout: Duration,
    pub(crate) spin: Spin,
    pub(super) threads: Arc<ScheduledThreadPool>,
    /// Raised to make every open connection stale.
    generation: AtomicU64,
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

    /// Finds out whether the server has moved, unless that is known. It takes half of the time at
    /// most, so that the other half is left for the request.
    pub(super) fn confirm(&self, until: Instant) {
        if let Some(route) = self.route.as_ref().filter(|route| !route.is_confirmed()) {
            let now = Instant::now();
            let left = until.saturating_duration_since(now).min(self.connect_timeout);
            if !left.is_zero() {
                route.confirm(now + left / 2);
            }
        }
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.route.as_ref().is_none_or(|route| route.is_confirmed())
    }

    /// Grows when the open connections have become worthless.
    pub(super) fn generation(&self) -> u64 {
        let moves = self.route.as_ref().map_or(0, |route| route.moves());
        self.generation.load(Ordering::Relaxed) + moves
    }

    /// Gives up all open connections.
    pub(super) fn spoil(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.doubt();
    }

    pub(super) fn doubt(&self) {
        if let Some(route) = &self.route {
            route.doubt();
        }
    }

    pub(super) fn open(&self, until: Instant) -> Result<Socket, Failure> {
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
    pub(super) fn greet(&self, out: &mut Vec<u8>) -> usize {
        let greetings = self.endpoint.greet(out);
        if self.route.is_none() {
            return greetings;
        }
        redis::cmd("ROLE").write_packed_command(out);
        greetings + 1
    }

    /// Meets the last reply to a greeting.
    pub(super) fn welcome(&self, reply: &Value) -> Result<(), Failure> {
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
