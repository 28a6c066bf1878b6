//! The state that all connections to one server share: how to open one, and when they are stale.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::error::{Phase, lasts};
use crate::net::endpoint::{Endpoint, Step};
use crate::net::error_reply::{self, ErrorReply};
use crate::net::packed::{Reply, Request};
use crate::net::resp::RespStream;
use crate::net::route::{Address, Route};
use crate::net::shared_call::{CredentialsSource, Resolver};
use crate::net::wait::Spin;

/// Minimum time between two moves of a host. It limits how many connections are replaced if each
/// look-up returns different addresses.
const MOVE_INTERVAL: Duration = Duration::from_secs(10);

/// The first and the longest pause after a failed connect. No call waits longer than that before
/// its own attempt.
const PAUSES: (Duration, Duration) = if cfg!(leasehold_shuttle) {
    (Duration::ZERO, Duration::ZERO)
} else {
    (Duration::from_millis(5), Duration::from_millis(100))
};

/// After this time without another failure, the next pause is the shortest one again.
const PAUSES_END: Duration = Duration::from_secs(1);

/// Minimum time between two checks whether a silent server expects TLS and the client uses none, or
/// the reverse. A server that is down is silent, too.
const MISMATCH_INTERVAL: Duration = Duration::from_secs(10);

/// The code of the failure to connect to a server that is not the master, if another address of its
/// host may lead to the master.
pub(super) const ELSEWHERE: &str = "ELSEWHERE";

/// A client's counters about its connections, to all servers.
#[derive(Default)]
pub(crate) struct ConnectionCounters {
    /// The number of requests that were queued for a connection of a pool.
    pub(crate) pool_waits: AtomicU64,
    /// The number of connections that were opened in place of broken ones.
    pub(crate) reconnects: AtomicU64,
}

/// Opens connections to one server, and holds their shared state.
pub(crate) struct ConnectionFactory {
    pub(crate) endpoint: Endpoint,
    /// Leads to the server's address if that is not the endpoint's own.
    pub(crate) route: Option<Route>,
    /// Provides the login, in place of the endpoint's own.
    pub(crate) credentials: Option<CredentialsSource>,
    pub(crate) counters: Arc<ConnectionCounters>,
    pub(crate) connect_timeout: Duration,
    pub(crate) spin: Spin,
    max_lifetime: Option<Duration>,
    resolver: Resolver,
    known: Mutex<KnownAddresses>,
    /// Raised to make every open connection stale. The route raises it, too, when it leads
    /// elsewhere.
    pub(super) epoch: Arc<AtomicU64>,
    /// Raised when a connection breaks: the others may be gone too, and are checked before their
    /// next use.
    pub(super) suspicions: AtomicU64,
    /// Whether the server has replied that it is not the master. New connections then ask for its
    /// role until it is a master again: a replica would answer questions about locks from old data.
    demoted: AtomicBool,
    /// Whether a new connection has ended or hung as if the server expected TLS and the client used
    /// none, or the reverse.
    suspects_mismatch: AtomicBool,
    /// The number of connections that have broken and were not replaced.
    pub(super) broken: AtomicU64,
    /// The last failed connect.
    useless: Mutex<Option<UselessConnection>>,
}

/// A failed connect: the connection could not be opened, or was closed before the first reply. All
/// callers then pause together. Hundreds of threads that each tried for themselves would keep the
/// server, or a proxy in front of it, from coming back.
#[derive(Clone)]
pub(super) struct UselessConnection {
    failure: Failure,
    /// When it failed.
    pub(super) since: Instant,
    pause: Duration,
    /// The end of the pause.
    pub(super) until: Instant,
}

/// The addresses of the server's host, from the last look-up that counted.
#[derive(Default)]
struct KnownAddresses {
    /// The server whose host was looked up. A route may lead to another server each time.
    server: Arc<str>,
    addresses: Vec<SocketAddr>,
    moved: Option<Instant>,
    /// The addresses at which the last reply came from a server that is not the master. The others
    /// are tried first. Cleared once all addresses are among them.
    replicas: Vec<SocketAddr>,
    /// When the server last stayed silent in a check for TLS on only one side.
    found_no_mismatch: Option<Instant>,
}

/// An open socket, and what is known about it.
pub(super) struct OpenSocket {
    pub(super) stream: RespStream,
    /// The epoch of the factory when it was opened.
    pub(super) epoch: u64,
    /// Limits on its use, if any.
    pub(super) validity: Option<Validity>,
    pub(super) checked: AtomicU64,
    /// Whether a reply has arrived, which shows that there is a Redis server.
    pub(super) greeted: bool,
}

/// Limits on the use of a connection whose age is limited, or whose credentials expire.
#[derive(Clone, Copy)]
pub(crate) struct Validity {
    /// When to start replacing it, while it is still good.
    pub(super) retire_at: Instant,
    /// When its credentials expire. A connection that is merely old is used until it can be
    /// replaced.
    pub(super) end: Option<Instant>,
    /// The time available for replacing the connection.
    pub(crate) spare: Duration,
}

impl Validity {
    fn new(credentials_end: Option<Instant>, max_lifetime: Option<Duration>) -> Option<Self> {
        let ends = credentials_end.into_iter().chain(max_lifetime.map(end_of));
        let validities = ends.map(|end| {
            let spare = end.saturating_duration_since(clock::now()) / 5;
            let retire_at = end.checked_sub(spare).unwrap_or(end);
            Self { retire_at, end: credentials_end, spare }
        });
        validities.min_by_key(|validity| validity.retire_at)
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
            max_lifetime: config.max_lifetime,
            resolver,
            known: Mutex::default(),
            epoch: Arc::default(),
            suspicions: AtomicU64::new(0),
            demoted: AtomicBool::new(false),
            suspects_mismatch: AtomicBool::new(false),
            broken: AtomicU64::new(0),
            useless: Mutex::default(),
        }
    }

    /// Returns the server's address, as shown to users.
    pub(crate) fn label(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| self.endpoint.label.clone(), Route::label)
    }

    pub(crate) fn no_reply(&self) -> Failure {
        let why = "no reply in time, see `io_timeout`";
        self.timeout(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Like `no_reply`, for a connection that has never had a reply.
    pub(super) fn no_first_reply(&self) -> Failure {
        let why = "no reply in time over a new connection, see `connect_timeout` and `io_timeout`";
        self.timeout(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    fn timeout(&self, source: impl StdError + Send + Sync + 'static) -> Failure {
        self.suspect_move();
        Failure::io(FailureKind::Timeout, &self.label(), source)
    }

    /// Returns the failure of a request to something that is not a Redis server. During a failover,
    /// another program may have taken over the address of the old master, and the route will soon
    /// lead elsewhere.
    pub(crate) fn foreign(&self, source: io::Error) -> Failure {
        let may_pass = self.route.is_some();
        let kind = if may_pass { FailureKind::Unreachable } else { FailureKind::Foreign };
        Failure::io(kind, &self.label(), source).at(Phase::Greeting)
    }

    /// Returns the failure to agree on TLS. It counts as permanent even with a route, because the
    /// settings are the same for every server that the route leads to.
    fn misfit(&self, phase: Phase, source: impl StdError + Send + Sync + 'static) -> Failure {
        Failure::io(FailureKind::Misfit, &self.label(), source).at(phase)
    }

    /// Returns the failure after a reply that does not fit. Nothing on the open connections can be
    /// trusted then.
    pub(crate) fn invalid_reply(&self) -> Failure {
        self.invalidate_connections();
        let error = io::Error::new(io::ErrorKind::InvalidData, "not a sensible reply");
        Failure::io(FailureKind::Disconnected, &self.label(), error)
    }

    /// Asks the route whether the server has moved, unless that is known.
    pub(crate) fn refresh(&self, route: &Route, deadline: Instant) {
        if let Some(end) = self.end_of_refresh(deadline) {
            route.refresh(end);
        }
    }

    /// Returns the time until which a request with this deadline waits for a route: half of its
    /// time at most, which leaves the other half for the request. `None` if there is no time.
    pub(super) fn end_of_refresh(&self, deadline: Instant) -> Option<Instant> {
        let now = clock::now();
        let left = deadline.saturating_duration_since(now).min(self.connect_timeout);
        if left.is_zero() { None } else { Some(now + left / 2) }
    }

    pub(crate) fn invalidate_connections(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.suspect_move();
    }

    /// Marks all open connections to be checked before their next use, because one has broken.
    pub(crate) fn suspect_connections(&self) {
        self.suspicions.fetch_add(1, Ordering::Relaxed);
        self.suspect_move();
    }

    /// Notes that a connection was opened, perhaps in place of a broken one.
    pub(crate) fn record_opening(&self) {
        // Each broken connection is counted once, whichever connection of the pool replaces it.
        let replaced = self
            .broken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |broken| broken.checked_sub(1));
        if replaced.is_ok() {
            self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes a failed connect and begins the pause, unless every later connect would fail, too.
    pub(super) fn record_useless(&self, failure: &Failure) {
        let may_pass = match failure.kind {
            FailureKind::Disconnected
            | FailureKind::Timeout
            | FailureKind::Transient
            | FailureKind::Unreachable => true,
            FailureKind::Foreign
            | FailureKind::Misfit
            | FailureKind::NoneFree
            | FailureKind::NotReplicated { .. }
            | FailureKind::Rejected
            | FailureKind::Unclear
            | FailureKind::WrongType => false,
        };
        if !may_pass {
            return;
        }
        let now = clock::now();
        let mut useless = self.useless.lock();
        let (shortest, longest) = PAUSES;
        let (pause, until) = match &*useless {
            // Several connections may have failed at once.
            Some(last) if now < last.until => (last.pause, last.until),
            Some(last) if now < last.until + PAUSES_END => {
                let pause = (last.pause * 2).min(longest);
                (pause, now + pause)
            }
            _ => (shortest, now + shortest),
        };
        // The callers that get this failure have sent nothing.
        let failure = failure.clone().of_question();
        *useless = Some(UselessConnection { failure, since: now, pause, until });
    }

    /// Fails during the pause after a failed connect.
    pub(super) fn check_pause(&self) -> Result<(), Failure> {
        match self.pause() {
            Some(pause) => Err(pause.failure),
            None => Ok(()),
        }
    }

    /// Returns the last failed connect, while callers pause because of it.
    pub(super) fn pause(&self) -> Option<UselessConnection> {
        let useless = self.useless.lock();
        let last = useless.as_ref().filter(|last| clock::now() < last.until)?;
        // A route may lead to another server by now.
        if last.failure.server != self.label() {
            return None;
        }
        Some(last.clone())
    }

    /// Makes every open connection stale, and makes new ones ask for the server's role.
    pub(crate) fn suspect_demotion(&self) {
        self.demoted.store(true, Ordering::Relaxed);
        self.invalidate_connections();
    }

    /// Causes the route to be refreshed before the next request, because the server may have been
    /// replaced.
    pub(crate) fn suspect_move(&self) {
        if let Some(route) = &self.route {
            route.suspect_move();
        }
    }

    /// Opens a socket, and returns the requests that must be sent first.
    pub(super) fn open(
        &self,
        deadline: Instant,
    ) -> Result<(OpenSocket, Vec<(Step, Request)>), Failure> {
        let mut epoch = self.epoch.load(Ordering::SeqCst);
        let checked = AtomicU64::new(self.suspicions.load(Ordering::Relaxed));
        let elsewhere = self.route.as_ref().map(Route::address).transpose()?;
        let elsewhere = elsewhere.map(|Address { host, port }| self.endpoint.at(&host, port));
        let endpoint = elsewhere.as_ref().unwrap_or(&self.endpoint);
        let addresses = endpoint.look_up(&self.resolver, deadline);
        let addresses = addresses.map_err(|error| (Phase::LookUp, error));
        let connected = addresses.and_then(|mut addresses| {
            if let Some(raised) = self.note_addresses(&endpoint.label, &addresses) {
                epoch = raised;
            }
            self.check_mismatch(endpoint, &addresses, deadline)?;
            self.put_replicas_last(&mut addresses);
            endpoint.connect(&addresses, deadline)
        });
        let stream = connected.map_err(|(phase, source)| {
            self.suspect_move();
            if phase == Phase::Tls && source.kind() == io::ErrorKind::TimedOut {
                self.suspects_mismatch.store(true, Ordering::Relaxed);
            }
            if phase == Phase::Greeting || phase == Phase::Tls && lasts(&source) {
                return self.misfit(phase, source);
            }
            Failure::io(FailureKind::Unreachable, &self.label(), source).at(phase)
        })?;
        // Not asked for until the server accepts connections, because a server that is down is
        // tried often.
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
        let validity = Validity::new(end, self.max_lifetime);
        Ok((OpenSocket { stream, epoch, validity, checked, greeted: false }, greeting))
    }

    /// Checks whether a silent server expects TLS and the client uses none, or the reverse. Fails
    /// if so. Takes at most a quarter of the time.
    fn check_mismatch(
        &self,
        endpoint: &Endpoint,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<(), (Phase, io::Error)> {
        if addresses.is_empty() || !self.suspects_mismatch.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let now = clock::now();
        let last = self.known.lock().found_no_mismatch;
        if last.is_some_and(|last| now - last < MISMATCH_INTERVAL) {
            return Ok(());
        }
        let end = now + deadline.saturating_duration_since(now) / 4;
        let mismatch = endpoint.mismatch(addresses, end);
        match mismatch {
            None => self.known.lock().found_no_mismatch = Some(now),
            // The next attempt checks this at once, without timing out first.
            Some(_) => self.suspects_mismatch.store(true, Ordering::Relaxed),
        }
        mismatch.map_or(Ok(()), Err)
    }

    /// Moves the addresses of servers that are known not to be masters behind the others.
    fn put_replicas_last(&self, addresses: &mut [SocketAddr]) {
        let mut known = self.known.lock();
        if addresses.iter().all(|address| known.replicas.contains(address)) {
            // One of them may be the master by now.
            known.replicas.clear();
        }
        addresses.sort_by_key(|address| known.replicas.contains(address));
    }

    /// Records that a server is not a master. Returns `true` if this was not known and the host has
    /// another address.
    fn note_replica(&self, address: Option<SocketAddr>) -> bool {
        let Some(address) = address else { return false };
        let mut known = self.known.lock();
        if known.replicas.contains(&address) {
            return false;
        }
        known.replicas.push(address);
        known.addresses.iter().any(|address| !known.replicas.contains(address))
    }

    /// Returns the failure to connect. After a timeout, it names the settings that limited the
    /// time. The failure of a login without a reply names them already.
    pub(super) fn with_limit(failure: Failure, settings: &str) -> Failure {
        let has_begun = matches!(failure.phase, Phase::LookUp | Phase::Connect | Phase::Tls);
        let error = failure.source.downcast_ref::<io::Error>();
        let is_timeout = error.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
        if !has_begun || !is_timeout {
            return failure;
        }
        let why = format!("{}, see {settings}", failure.source);
        Failure { source: Arc::new(io::Error::new(io::ErrorKind::TimedOut, why)), ..failure }
    }

    /// Notes the result of a look-up. If an earlier address is missing, the server has moved and
    /// every open connection is stale. Returns the new epoch of the connections in that case.
    fn note_addresses(&self, server: &Arc<str>, addresses: &[SocketAddr]) -> Option<u64> {
        let mut known = self.known.lock();
        let has_moved = known.server == *server
            && known.addresses.iter().any(|address| !addresses.contains(address));
        // A DNS server may rotate a host's addresses, and each answer would then end all
        // connections.
        if has_moved && known.moved.is_some_and(|moved| clock::elapsed(moved) < MOVE_INTERVAL) {
            return None;
        }
        let moved = if has_moved { Some(clock::now()) } else { known.moved };
        known.server = server.clone();
        known.addresses = addresses.to_vec();
        known.moved = moved;
        known.replicas.retain(|address| addresses.contains(address));
        if has_moved { Some(self.epoch.fetch_add(1, Ordering::SeqCst) + 1) } else { None }
    }

    /// Checks the reply to one of the first requests on a connection to this address.
    pub(super) fn check(
        &self,
        step: Step,
        reply: Reply,
        peer: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        match (step, reply) {
            // The name is for operators. Not every user may set one, and not every proxy knows the
            // command.
            (Step::Name, Err(failure)) if is_error_reply(&failure) => Ok(()),
            // A service that does not know logins is not Redis.
            (Step::Login | Step::Name, Err(failure)) if failure.phase != Phase::Greeting => {
                Err(failure.at(Phase::Login))
            }
            (Step::Login, reply) => self.check_assent(reply),
            (Step::Name, reply) => reply.map(drop),
            (Step::Role, Ok(reply)) if !is_master(&reply) => {
                let code = if self.note_replica(peer) { ELSEWHERE } else { "" };
                let at = peer.map(|peer| format!(" at {peer}")).unwrap_or_default();
                let why = format!("the server{at} is not a master, or not yet");
                let error = io::Error::other(why);
                let failure = Failure::io(FailureKind::Transient, &self.label(), error);
                Err(Failure { code: code.into(), ..failure })
            }
            // Without a route, a server that does not report its role counts as a master.
            (Step::Role, Err(failure)) if self.route.is_some() || !is_error_reply(&failure) => {
                Err(failure)
            }
            (Step::Role, _) => {
                self.demoted.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Checks the reply to a login or to PING. Something that is not a Redis server may reply as
    /// well, for example by echoing the request.
    pub(crate) fn check_assent(&self, reply: Reply) -> Result<(), Failure> {
        match reply? {
            Value::Okay => Ok(()),
            Value::SimpleString(text) if text == "PONG" => Ok(()),
            _ => {
                let why = "a login or a PING has got another reply than a Redis server gives";
                Err(self.foreign(io::Error::new(io::ErrorKind::InvalidData, why)))
            }
        }
    }

    /// Returns the failure for an error reply of the server at this address. `is_first` says
    /// whether it is the first reply over the connection.
    pub(super) fn failure_of_reply(
        &self,
        error: &ServerError,
        peer: Option<SocketAddr>,
        is_first: bool,
    ) -> Failure {
        let failure = error_reply::failure(error, &self.label());
        let is_demoted = error_reply::suggests_demotion(&failure.code);
        if is_demoted {
            self.note_replica(peer);
            self.suspect_demotion();
        }
        // A server with too many clients closes the connection.
        if is_demoted || is_first && failure.kind == FailureKind::Transient {
            self.record_useless(&failure);
        }
        failure
    }

    /// Returns the failure of requests over a broken connection. `greeted` says whether a reply had
    /// arrived over it.
    pub(super) fn failure_of_break(&self, error: RedisError, greeted: bool) -> Failure {
        if error.is_timeout() {
            return self.timeout(error);
        }
        // A restart of the server ends all idle connections. Once the first one is found broken,
        // the others are checked, so that a second attempt gets a new one.
        self.suspect_connections();
        if greeted {
            return Failure::io(FailureKind::Disconnected, &self.label(), error);
        }
        if error.kind() == ErrorKind::Parse {
            let why = "the first reply over a new connection is not of Redis's protocol";
            return self.foreign(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if lasts(&error) {
            return self.misfit(Phase::Tls, error);
        }
        self.suspects_mismatch.store(true, Ordering::Relaxed);
        // No reply has ever shown that there is a server.
        let why = format!("a new connection ended without a reply, as at a port for TLS: {error}");
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, why);
        let failure = Failure::io(FailureKind::Timeout, &self.label(), error);
        self.record_useless(&failure);
        failure
    }
}

fn is_error_reply(failure: &Failure) -> bool {
    failure.source.downcast_ref::<ErrorReply>().is_some()
}

fn is_master(reply: &Value) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::event_thread::Events;

    #[test]
    fn a_fifth_of_the_time_is_left_to_replace_a_connection() {
        let now = Instant::now();
        let until = |end| Validity::new(Some(end), None).expect("it is limited");
        let validity = until(now + Duration::from_secs(900));
        let age = validity.retire_at - now;
        assert!(age >= Duration::from_secs(720) && age < Duration::from_secs(725), "{age:?}");
        assert!(until(now).retire_at <= now, "at once");
    }

    #[test]
    fn a_connection_is_replaced_for_its_age_or_its_credentials_whichever_comes_first() {
        let (now, minute) = (Instant::now(), Duration::from_secs(60));
        let retires = |end: Duration, age| {
            let validity = Validity::new(Some(now + end), Some(age)).expect("it is limited");
            assert_eq!(validity.end, Some(now + end), "only credentials end it");
            validity.retire_at - now
        };
        assert!(retires(minute, minute * 10) <= minute);
        assert!(retires(minute * 10, minute) <= minute);
        assert!(Validity::new(None, None).is_none());
        let old = Validity::new(None, Some(Duration::MAX)).expect("it is limited");
        assert!(old.end.is_none() && old.retire_at > now + minute);
    }

    #[test]
    fn only_replies_of_redis_confirm_a_login() {
        let config = Config::default();
        let endpoint = Endpoint::parse("redis://there/", &config, &Events::default());
        let endpoint = endpoint.expect("a good URL");
        let factory = ConnectionFactory::new(endpoint, &config, Resolver::default());
        let simple = |text: &str| Ok(Value::SimpleString(text.into()));
        for reply in [Ok(Value::Okay), simple("PONG")] {
            factory.check_assent(reply).expect("a server of Redis");
        }
        for reply in [simple("HELLO"), Ok(Value::Nil), Ok(Value::Int(1))] {
            let failure = factory.check_assent(reply).expect_err("something else");
            assert_eq!(failure.kind, FailureKind::Foreign);
        }
    }

    #[test]
    fn requests_over_a_new_connection_that_ends_may_have_arrived() {
        let config = Config::default();
        let endpoint = Endpoint::parse("redis://there/", &config, &Events::default());
        let endpoint = endpoint.expect("a good URL");
        let factory = ConnectionFactory::new(endpoint, &config, Resolver::default());
        for greeted in [false, true] {
            let end = io::Error::from(io::ErrorKind::UnexpectedEof);
            assert!(factory.failure_of_break(end.into(), greeted).is_ambiguous());
        }
    }

    #[test]
    fn a_server_has_moved_if_one_of_its_addresses_is_gone() {
        let events = Events::default();
        let config = Config::default();
        let endpoint = Endpoint::parse("redis://there/", &config, &events).expect("a good URL");
        let factory = ConnectionFactory::new(endpoint, &config, Resolver::default());
        let address = |last| SocketAddr::from(([10, 0, 0, last], 6379));
        let (there, elsewhere) = (Arc::from("there"), Arc::from("elsewhere"));
        assert_eq!(factory.note_addresses(&there, &[address(1)]), None);
        assert_eq!(factory.note_addresses(&there, &[address(2), address(1)]), None, "one more");
        assert_eq!(factory.note_addresses(&elsewhere, &[address(3)]), None, "a route knows");
        assert_eq!(factory.note_addresses(&elsewhere, &[address(4)]), Some(1));
        assert_eq!(factory.note_addresses(&elsewhere, &[address(3)]), None, "they alternate");
        factory.known.lock().moved = Instant::now().checked_sub(MOVE_INTERVAL);
        assert_eq!(factory.note_addresses(&elsewhere, &[address(3)]), Some(2), "it is noticed yet");
    }
}
