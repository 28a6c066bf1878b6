//! What the connections to one server share: how to open one, and whether they are stale.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::error::Phase;
use crate::net::endpoint::{Endpoint, Step};
use crate::net::error_reply::{self, ErrorReply};
use crate::net::packed::{Reply, Request};
use crate::net::resp::RespStream;
use crate::net::route::{Address, Route};
use crate::net::shared_call::{CredentialsSource, Resolver};
use crate::net::wait::Spin;

/// What a client counts of its connections, to all servers.
#[derive(Default)]
pub(crate) struct ConnectionCounters {
    /// The requests that were queued for a connection of a pool.
    pub(crate) pool_waits: AtomicU64,
    /// The connections that were opened in place of broken ones.
    pub(crate) reconnects: AtomicU64,
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
    /// Raised to make every open connection stale, also by the route when it leads elsewhere.
    pub(super) epoch: Arc<AtomicU64>,
    /// Raised when a connection has broken: the others may have ended too, and are looked at before
    /// their next use.
    pub(super) suspicions: AtomicU64,
    /// Whether the server has replied that it is not the master. New connections then ask for its
    /// role, until it is a master again: a replica would answer questions about locks, out of what
    /// it had from its master last.
    demoted: AtomicBool,
    /// How many connections have broken and not been replaced.
    pub(super) broken: AtomicU64,
}

/// An open socket, and what is known about it.
pub(super) struct OpenSocket {
    pub(super) stream: RespStream,
    /// That of the factory when it was opened.
    pub(super) epoch: u64,
    /// For how long what the client logs in with is valid, if that is limited.
    pub(super) validity: Option<Validity>,
    pub(super) checked: AtomicU64,
    /// Whether a reply has come, so that a Redis server is there.
    pub(super) greeted: bool,
}

/// For how long a connection may be used whose credentials expire.
#[derive(Clone, Copy)]
pub(crate) struct Validity {
    /// When to start replacing it: while it is still good, so that there is time.
    pub(super) retire_at: Instant,
    pub(super) end: Instant,
}

impl Validity {
    fn until(end: Instant) -> Self {
        let spare = end.saturating_duration_since(Instant::now()) / 5;
        Self { retire_at: end.checked_sub(spare).unwrap_or(end), end }
    }

    /// How much time there is to replace the connection.
    pub(crate) fn spare(&self) -> Duration {
        self.end.saturating_duration_since(self.retire_at)
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
            epoch: Arc::default(),
            suspicions: AtomicU64::new(0),
            demoted: AtomicBool::new(false),
            broken: AtomicU64::new(0),
        }
    }

    /// The server's address, as users are shown it.
    pub(crate) fn label(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| self.endpoint.label.clone(), Route::label)
    }

    pub(crate) fn no_reply(&self) -> Failure {
        self.timeout(io::Error::new(io::ErrorKind::TimedOut, "no reply in time"))
    }

    fn timeout(&self, source: impl StdError + Send + Sync + 'static) -> Failure {
        self.suspect_move();
        Failure::io(FailureKind::Timeout, &self.label(), source)
    }

    /// The failure of a request to what is no Redis server. A route may lead elsewhere soon.
    pub(crate) fn foreign(&self, source: io::Error) -> Failure {
        let may_pass = self.route.is_some();
        let kind = if may_pass { FailureKind::Unreachable } else { FailureKind::Foreign };
        Failure::io(kind, &self.label(), source).at(Phase::Greeting)
    }

    /// After a reply that does not fit, nothing over the open connections is to be trusted.
    pub(crate) fn invalid_reply(&self) -> Failure {
        self.invalidate_connections();
        let error = io::Error::new(io::ErrorKind::InvalidData, "not a sensible reply");
        Failure::io(FailureKind::Disconnected, &self.label(), error)
    }

    /// Finds out by its route whether the server has moved, unless that is known. Takes half of the
    /// time at most, so that the other half is left for the request.
    pub(crate) fn refresh(&self, route: &Route, deadline: Instant) {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now).min(self.connect_timeout);
        if !left.is_zero() {
            route.refresh(now + left / 2);
        }
    }

    pub(crate) fn invalidate_connections(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.suspect_move();
    }

    /// Has every open connection looked at before its next use: one has broken, perhaps all have.
    pub(crate) fn suspect_connections(&self) {
        self.suspicions.fetch_add(1, Ordering::Relaxed);
        self.suspect_move();
    }

    /// Notes that a connection was opened, perhaps in place of one that had broken.
    pub(crate) fn record_opening(&self) {
        let replace = |broken: u64| broken.checked_sub(1);
        if self.broken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace).is_ok() {
            self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes every open connection stale, and has new ones ask for the server's role.
    pub(crate) fn suspect_demotion(&self) {
        self.demoted.store(true, Ordering::Relaxed);
        self.invalidate_connections();
    }

    /// Has the route refreshed before the next request: the server may have been replaced.
    pub(crate) fn suspect_move(&self) {
        if let Some(route) = &self.route {
            route.suspect_move();
        }
    }

    /// Opens a socket, and returns the requests that it must begin with.
    pub(super) fn open(
        &self,
        deadline: Instant,
    ) -> Result<(OpenSocket, Vec<(Step, Request)>), Failure> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let checked = AtomicU64::new(self.suspicions.load(Ordering::Relaxed));
        let connected = match &self.route {
            None => self.endpoint.connect(&self.resolver, deadline),
            Some(route) => {
                let Address { host, port } = route.address()?;
                self.endpoint.at(&host, port).connect(&self.resolver, deadline)
            }
        };
        let stream = connected.map_err(|(phase, source)| {
            self.suspect_move();
            match phase {
                Phase::Greeting => self.foreign(source),
                _ => Failure::io(FailureKind::Unreachable, &self.label(), source).at(phase),
            }
        })?;
        // Only now: a server that is away is tried often.
        let credentials = self.credentials.as_ref().map(|source| source.ask(deadline));
        let credentials = credentials.transpose().map_err(|error| {
            Failure::caused_by(FailureKind::Unreachable, &self.label(), error).at(Phase::Login)
        })?;
        let end = credentials.as_ref().and_then(|credentials| credentials.valid_until);
        let mut greeting = match &credentials {
            None => self.endpoint.greeting(),
            Some(credentials) => self.endpoint.with_login(credentials).greeting(),
        };
        if self.route.is_some() || self.demoted.load(Ordering::Relaxed) {
            greeting.push((Step::Role, Request::command(&redis::cmd("ROLE"))));
        }
        let validity = end.map(Validity::until);
        Ok((OpenSocket { stream, epoch, validity, checked, greeted: false }, greeting))
    }

    /// Checks the reply to a request that a connection has begun with.
    pub(super) fn check(&self, step: Step, reply: Reply) -> Result<(), Failure> {
        let is_refused = |failure: &Failure| failure.source.downcast_ref::<ErrorReply>().is_some();
        match (step, reply) {
            // The name is for operators. Not every user may set one, and not every proxy knows the
            // command.
            (Step::Name, Err(failure)) if is_refused(&failure) => Ok(()),
            // A service that does not know what a login is stays what it is.
            (Step::Login | Step::Name, Err(failure)) if failure.phase != Phase::Greeting => {
                Err(failure.at(Phase::Login))
            }
            (Step::Login | Step::Name, reply) => reply.map(drop),
            (Step::Role, Ok(reply)) if !is_master(&reply) => {
                let error = io::Error::other("the server is not a master, or not yet");
                Err(Failure::io(FailureKind::Transient, &self.label(), error))
            }
            // Without a route, a server that does not tell its role counts as a master.
            (Step::Role, Err(failure)) if self.route.is_some() || !is_refused(&failure) => {
                Err(failure)
            }
            (Step::Role, _) => {
                self.demoted.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    pub(super) fn failure_of_reply(&self, error: &ServerError) -> Failure {
        let failure = error_reply::failure(error, &self.label());
        if error_reply::suggests_demotion(&failure.code) {
            self.suspect_demotion();
        }
        failure
    }

    /// The failure of requests over a broken connection, which has `greeted` if a reply has come.
    pub(super) fn failure_of_break(&self, error: RedisError, greeted: bool) -> Failure {
        if error.is_timeout() {
            return self.timeout(error);
        }
        // Connections that were idle while the server restarted have all ended: with the first, the
        // others are looked at too, so that a second attempt gets a new one.
        self.suspect_connections();
        if greeted {
            return Failure::io(FailureKind::Disconnected, &self.label(), error);
        }
        if error.kind() == ErrorKind::Parse {
            let why = "the first reply over a new connection is not of Redis's protocol";
            return self.foreign(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        // Nothing shows that a server is there which has replied to anything yet.
        let why = format!("a new connection ended without a reply, as at a port for TLS: {error}");
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, why);
        Failure::io(FailureKind::Timeout, &self.label(), error)
    }
}

fn is_master(reply: &Value) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
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
