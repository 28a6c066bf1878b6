//! What the connections to one server share: how to get there, and whether they are stale.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use redis::{ConnectionAddr, Value};

use crate::base::Counter;
use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::error::Phase;
use crate::net::endpoint::Endpoint;
use crate::net::request::Reply;
use crate::net::resp::RespStream;
use crate::net::route::{Address, Route};
use crate::net::shared_call::{CredentialsSource, Resolver};
use crate::net::stream::{ConnectError, Spin};

/// What a client counts of its connections, to all servers.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    /// The requests that were queued for a connection of a pool.
    pub(crate) pool_waits: Counter,
    /// The connections that were opened in place of broken ones.
    pub(crate) reconnects: Counter,
}

/// Makes connections to one server, and has what they share.
pub(crate) struct ConnectionFactory {
    pub(crate) endpoint: Endpoint,
    /// Leads to the server's address if that is not the endpoint's own.
    pub(crate) route: Option<Route>,
    /// Has the login, in place of the endpoint's own.
    pub(crate) credentials: Option<CredentialsSource>,
    pub(crate) counters: Arc<ConnectionCounters>,
    pub(crate) connect_timeout: Duration,
    pub(crate) spin: Spin,
    resolver: Resolver,
    /// Raised to make every open connection stale.
    generation: AtomicU64,
    /// Raised when a connection has broken: the others may have ended too, and are looked at before
    /// their next use.
    pub(super) suspicions: AtomicU64,
    /// Whether the server has replied that it is not the master. New connections then ask for its
    /// role, until it is a master again: a replica would answer questions about locks, out of what
    /// it had from its master last.
    demoted: AtomicBool,
    /// How many connections have broken and not been replaced.
    broken: AtomicU64,
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
            credentials: None,
            counters: Arc::default(),
            connect_timeout: config.connect_timeout,
            spin: Spin::new(config.spin),
            resolver,
            generation: AtomicU64::new(0),
            suspicions: AtomicU64::new(0),
            demoted: AtomicBool::new(false),
            broken: AtomicU64::new(0),
        }
    }

    /// The server's address, as users are shown it.
    pub(crate) fn label(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| self.endpoint.label.clone(), Route::label)
    }

    /// The failure of a request that was not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.suspect_move();
        let error = io::Error::new(io::ErrorKind::TimedOut, "no reply in time");
        Failure::io(FailureKind::Timeout, &self.label(), error)
    }

    /// The failure of a request to something that is no Redis server. A route may lead elsewhere
    /// soon.
    pub(crate) fn foreign(&self, source: io::Error) -> Failure {
        let may_pass = self.route.is_some();
        let kind = if may_pass { FailureKind::Unreachable } else { FailureKind::Foreign };
        Failure::io(kind, &self.label(), source).at(Phase::Greeting)
    }

    /// The failure of a request whose reply does not fit it. Nothing that comes over the open
    /// connections is to be trusted then.
    pub(crate) fn invalid_reply(&self) -> Failure {
        self.invalidate_connections();
        let error = io::Error::new(io::ErrorKind::InvalidData, "not a sensible reply");
        Failure::io(FailureKind::Disconnected, &self.label(), error)
    }

    /// Finds out whether the server has moved, unless that is known. Takes half of the time at
    /// most, so that the other half is left for the request.
    pub(crate) fn refresh_route(&self, deadline: Instant) {
        if let Some(route) = &self.route {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now).min(self.connect_timeout);
            if !left.is_zero() {
                route.refresh(now + left / 2);
            }
        }
    }

    pub(crate) fn is_route_current(&self) -> bool {
        self.route.as_ref().is_none_or(Route::is_current)
    }

    /// Grows when the open connections have become stale.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed) + self.moves()
    }

    /// Grows when the route has come to lead elsewhere.
    pub(crate) fn moves(&self) -> u64 {
        self.route.as_ref().map_or(0, Route::moves)
    }

    /// Makes every open connection stale.
    pub(crate) fn invalidate_connections(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.suspect_move();
    }

    /// Has every open connection looked at before its next use: one has broken, and whatever has
    /// broken it may have ended the others too.
    pub(crate) fn suspect_connections(&self) {
        self.suspicions.fetch_add(1, Ordering::Relaxed);
        self.suspect_move();
    }

    /// Notes that a connection has broken that had been opened.
    pub(crate) fn record_break(&self) {
        self.broken.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a connection was opened, perhaps in place of one that had broken.
    pub(crate) fn record_opening(&self) {
        let replace = |broken: u64| broken.checked_sub(1);
        if self.broken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace).is_ok() {
            self.counters.reconnects.add(1);
        }
    }

    /// Makes every open connection stale, and has new ones ask for the server's role.
    pub(crate) fn suspect_demotion(&self) {
        self.demoted.store(true, Ordering::Relaxed);
        self.invalidate_connections();
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
    pub(super) fn open(&self, deadline: Instant) -> Result<RespStream, Failure> {
        let opened = match &self.route {
            None => self.open_at(&self.endpoint, deadline),
            Some(route) => {
                let Address { host, port } = route.address()?;
                self.open_at(&self.endpoint.at(&host, port), deadline)
            }
        };
        opened.map_err(|ConnectError { phase, source }| {
            self.suspect_move();
            match phase {
                Phase::Greeting => self.foreign(source),
                _ => Failure::io(FailureKind::Unreachable, &self.label(), source).at(phase),
            }
        })
    }

    fn open_at(&self, at: &Endpoint, deadline: Instant) -> Result<RespStream, ConnectError> {
        match &at.address {
            ConnectionAddr::Tcp(host, port) => {
                let addresses = self.resolver.resolve(host, *port, deadline);
                let addresses = addresses.map_err(ConnectError::at(Phase::LookUp))?;
                #[cfg(feature = "tls")]
                if let Some(connector) = &at.tls {
                    return RespStream::tls(&addresses, connector, deadline);
                }
                RespStream::tcp(&addresses, deadline)
            }
            ConnectionAddr::Unix(path) => RespStream::unix(path, deadline),
            _ => Err(ConnectError::at(Phase::Connect)(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Returns `true` if a new connection asks for the server's role.
    pub(super) fn asks_role(&self) -> bool {
        self.route.is_some() || self.demoted.load(Ordering::Relaxed)
    }

    /// Checks the server's role: only a master is asked about locks. Without a route, a server that
    /// does not tell its role counts as one.
    pub(crate) fn check_role(&self, reply: Reply) -> Result<(), Failure> {
        let is_master = match reply {
            Ok(reply) => is_master(&reply),
            Err(failure) if self.route.is_some() || failure.is_ambiguous() => return Err(failure),
            Err(_) => true,
        };
        if is_master {
            self.demoted.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let error = io::Error::other("the server is not a master, or not yet");
        Err(Failure::io(FailureKind::Transient, &self.label(), error))
    }
}

/// Returns `true` if this is how a master replies to ROLE.
fn is_master(reply: &Value) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
}
