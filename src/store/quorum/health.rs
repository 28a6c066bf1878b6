//! One server of a quorum, and when to try it.
//!
//! Calls use only open connections. A connection is opened on a thread of its own, and is not used
//! before the server has answered over it. So a server that is down or hangs delays no call. After
//! each failure in a row, the pause before the next attempt is longer. A server that answers but
//! refuses to write, such as a replica, has failed too: only a script that has written something
//! shows that the server is good again. A server that answers at two addresses fails at the second
//! one, so that it does not count twice.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{FromRedisValue, InfoDict, Value};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::net::connection::Connection;
use crate::net::demand::Demand;
use crate::net::error_reply::suggests_demotion;
use crate::net::factory::ConnectionFactory;
use crate::net::packed::Request;
use crate::store::background::peer::Peer;
use crate::store::hold_id::HoldId;

/// The first pause after a failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(4));

/// One server.
pub(crate) struct QuorumServer {
    /// Its index among the servers.
    pub(crate) number: usize,
    pub(super) factory: Arc<ConnectionFactory>,
    /// The durability that the server must be able to reach.
    demand: Option<Demand>,
    /// Shared by all servers.
    pub(super) run_ids: Arc<RunIds>,
    health: Mutex<Health>,
    /// Failures since the server last wrote something. Changed while `health` is locked.
    failures: AtomicU32,
    /// Greater than the nonce of every hold of this client that the server was asked to begin. No
    /// other hold of this client can exist there.
    begun_below: AtomicU64,
}

struct Health {
    /// End of the pause after a failure.
    paused_until: Instant,
    /// The latest end of the attempt in progress to open a connection. No other attempt begins
    /// before that.
    claimed_until: Instant,
    last_failure: Option<Failure>,
}

impl QuorumServer {
    pub(super) fn new(
        number: usize,
        factory: Arc<ConnectionFactory>,
        demand: Option<Demand>,
        run_ids: &Arc<RunIds>,
    ) -> Self {
        Self {
            number,
            factory,
            demand,
            run_ids: run_ids.clone(),
            health: Mutex::new(Health::good()),
            failures: AtomicU32::new(0),
            begun_below: AtomicU64::new(0),
        }
    }

    fn fail(&self, health: &mut Health, failure: &Failure) {
        let (shortest, longest) = PAUSES;
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let pause = shortest.saturating_mul(1 << failures.min(16)).min(longest);
        health.paused_until = end_of(pause);
        health.claimed_until = clock::now();
        health.last_failure = Some(failure.clone());
    }

    /// Notes what a reply says about the server. The server is good if a script has written
    /// something. If it refuses to write, it counts as down, because its connections must be
    /// replaced each time.
    pub(super) fn note<T>(&self, reply: &Result<T, Failure>, has_written: impl FnOnce(&T) -> bool) {
        let written = reply.as_ref().map_or_else(Failure::is_shortfall, has_written);
        // Read first, because a write would take the cache line from other threads.
        if written && !self.is_trusted() {
            let mut health = self.health.lock();
            *health = Health::good();
            self.failures.store(0, Ordering::Relaxed);
        }
        if let Err(failure) = reply
            && suggests_demotion(&failure.code)
        {
            let mut health = self.health.lock();
            // Several requests may have been refused together, and count as one failure.
            if health.paused_until <= clock::now() {
                self.fail(&mut health, failure);
            }
        }
    }

    /// Notes that the server does not answer. None of its connections may be used after this.
    pub(super) fn time_out(&self) -> Failure {
        let failure = self.factory.no_reply();
        // A hung server may continue at any time, with requests that this client has long given up.
        self.factory.invalidate_connections();
        self.fail(&mut self.health.lock(), &failure);
        failure
    }

    /// Returns `true` if the server has not failed since it last wrote something.
    pub(super) fn is_trusted(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == 0
    }

    /// Returns the failure of a request that was not sent because the server is not connected.
    pub(super) fn unreachable(&self) -> Failure {
        let last = self.health.lock().last_failure.clone();
        let failure = last.unwrap_or_else(|| {
            Failure::too_late(&self.factory.label(), "no connection was open in time")
                .at(Phase::Connect)
        });
        // Unlike the earlier failure, this request was not sent.
        if failure.is_ambiguous() {
            Failure { kind: FailureKind::Unreachable, ..failure }
        } else {
            failure
        }
    }

    pub(super) fn note_begun(&self, hold: &HoldId) {
        // Nonces grow, so remembering one number is enough.
        self.begun_below.fetch_max(hold.number() + 1, Ordering::Relaxed);
    }

    pub(super) fn was_asked_to_begin(&self, hold: &HoldId) -> bool {
        hold.number() < self.begun_below.load(Ordering::Relaxed)
    }

    /// Connects, and waits for a sign of life. Fails for a server that cannot meet the demand, and
    /// for one that is already in use under another address.
    fn connect_and_probe(&self) -> Result<Connection, Failure> {
        let mut connection = Connection::new(self.factory.clone());
        let deadline = end_of(self.factory.connect_timeout);
        let probe = match &self.demand {
            None => Request::command(&redis::cmd("PING")),
            Some(demand) => demand.probe(),
        };
        // Nothing that changes data was sent.
        let sign = connection.exchange(&probe, deadline).map_err(Failure::of_question)?;
        if self.demand.is_none() {
            self.factory.check_assent(Ok(sign))?;
        }
        // Two URLs may lead to the same server, which would then have two votes.
        let question = Request::command(redis::cmd("INFO").arg("server"));
        match connection.exchange(&question, deadline).map_err(Failure::of_question) {
            Ok(info) => self.run_ids.note(self.number, &self.factory.label(), &info)?,
            // The user may lack the right to ask.
            Err(failure) if failure.kind == FailureKind::Rejected => {}
            Err(failure) => return Err(failure),
        }
        Ok(connection)
    }
}

impl PartialEq for QuorumServer {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Peer for Arc<QuorumServer> {
    fn factory(&self) -> &Arc<ConnectionFactory> {
        &self.factory
    }

    fn claim(&self, urgent: bool) -> Result<(), Failure> {
        let mut health = self.health.lock();
        if !urgent && clock::now() < health.next_try() {
            drop(health);
            return Err(self.unreachable());
        }
        // Several threads at a time may try a good server, but only one may try a server that has
        // failed.
        if !self.is_trusted() {
            // No other attempt begins before the outcome of this one is known.
            health.claimed_until = end_of(self.factory.connect_timeout);
        }
        Ok(())
    }

    fn next_try(&self) -> Instant {
        self.health.lock().next_try()
    }

    fn connect(&self, _: Option<Connection>, _: Instant) -> Result<Connection, Failure> {
        let connected = self.connect_and_probe();
        let mut health = self.health.lock();
        match &connected {
            Ok(_) => health.claimed_until = clock::now(),
            Err(failure) => self.fail(&mut health, failure),
        }
        connected
    }
}

impl Health {
    fn good() -> Self {
        let now = clock::now();
        Self { paused_until: now, claimed_until: now, last_failure: None }
    }

    fn next_try(&self) -> Instant {
        self.paused_until.max(self.claimed_until)
    }
}

/// Records which server answers at which address.
#[derive(Default)]
pub(super) struct RunIds {
    /// The `run_id` of each server's process, by its index, as its address last reported it.
    reached: Mutex<HashMap<usize, (String, Arc<str>)>>,
    /// Two addresses of one server.
    pub(super) repeated: OnceLock<(Arc<str>, Arc<str>)>,
}

impl RunIds {
    /// Notes the reply to `INFO server`. Fails if another URL leads to the same process. A server
    /// that hides its id counts as different from all others.
    fn note(&self, number: usize, label: &Arc<str>, info: &Value) -> Result<(), Failure> {
        let info = InfoDict::from_redis_value_ref(info).ok();
        let run_id = info.and_then(|info| info.get::<String>("run_id"));
        let Some(run_id) = run_id.filter(|run_id| !run_id.is_empty()) else { return Ok(()) };
        let mut reached = self.reached.lock();
        // The address may lead to a different process than last time.
        reached.remove(&number);
        if let Some((_, other)) = reached.values().find(|(known, _)| *known == run_id) {
            // Kept, because the call that opens the client reports it.
            self.repeated.get_or_init(|| (other.clone(), label.clone()));
            let error = io::Error::other(format!("DUPLICATE: it is the same server as {other}"));
            let failure = Failure::io(FailureKind::Rejected, label, error);
            return Err(Failure { code: "DUPLICATE".into(), ..failure });
        }
        reached.insert(number, (run_id, label.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::server::ServerFactory;

    fn server_at(url: &str) -> Arc<QuorumServer> {
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let factory = servers.connections(servers.endpoint(url).expect("a good URL"));
        Arc::new(QuorumServer::new(0, Arc::new(factory), None, &Arc::default()))
    }

    #[test]
    fn a_server_that_is_reached_at_two_addresses_is_refused_with_a_code() {
        let (run_ids, info) = (RunIds::default(), Value::BulkString(b"run_id:7f\r\n".to_vec()));
        let note = |number, label: &str| run_ids.note(number, &Arc::from(label), &info);
        note(0, "here").expect("it is the first one");
        let error = note(1, "there").expect_err("it is one").into_error("open", "").to_string();
        assert!(error.contains("there refused it: DUPLICATE"), "{error}");
    }

    #[test]
    fn a_server_that_was_away_for_long_is_tried_again_within_seconds() {
        let unused = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server_at(&format!("redis://{}", unused.local_addr().expect("an address")));
        drop(unused);
        for _ in 0..40 {
            server.claim(true).expect("it is urgent");
            server.connect(None, Instant::now()).err().expect("no program listens");
        }
        server.claim(false).expect_err("it is left alone for a while");
        let pause = server.next_try().saturating_duration_since(Instant::now());
        assert!(pause <= Duration::from_secs(5), "{pause:?}");
        // As if this pause were over.
        server.health.lock().paused_until = Instant::now();
        server.claim(false).expect("it is time");
        server.connect(None, Instant::now()).err().expect("no program listens");
        let pause = server.next_try().saturating_duration_since(Instant::now());
        assert!(pause <= Duration::from_secs(5), "{pause:?}");
    }

    #[test]
    fn one_call_at_a_time_tries_a_server_that_has_failed() {
        let server = server_at("redis://there/");
        server.claim(false).expect("nothing is wrong with it");
        server.claim(false).expect("calls need not take turns");
        server.time_out();
        // As if the pause were over.
        server.health.lock().paused_until = Instant::now();
        server.claim(false).expect("it is time");
        server.claim(false).expect_err("another call is trying it");
        server.claim(true).expect("it is urgent");
    }

    #[test]
    fn a_request_that_was_not_sent_has_no_effect_whatever_went_wrong_before() {
        let server = server_at("redis://there/");
        assert!(!server.unreachable().is_ambiguous());
        assert!(server.time_out().is_ambiguous());
        assert!(!server.unreachable().is_ambiguous());
    }

    #[test]
    fn no_connection_to_a_server_that_does_not_answer_is_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = server_at(&format!("redis://{address}"));
        let mut connections = [(); 2].map(|()| Connection::new(server.factory.clone()));
        for connection in &mut connections {
            connection.connect(end_of(Duration::from_secs(5))).expect("a program listens");
            assert!(connection.is_open());
        }
        server.time_out();
        assert!(!connections.iter().any(Connection::is_open));
    }

    #[test]
    fn a_server_that_is_no_longer_the_master_is_left_alone_until_it_has_written() {
        let server = server_at("redis://there/");
        let start = Instant::now();
        let is_left_alone = || server.next_try() > start && !server.is_trusted();
        let refused = |code: &str| {
            let error = io::Error::other("refused");
            let failure = Failure::io(FailureKind::Rejected, &server.factory.label(), error);
            server.note(&Err(Failure { code: code.into(), ..failure }), |()| true);
        };
        refused("NOPERM");
        assert!(!is_left_alone(), "it writes what it has the right to");
        refused("READONLY");
        assert!(is_left_alone());
        let end = server.next_try();
        refused("READONLY");
        assert_eq!(server.next_try(), end, "requests that were refused together are one failure");
        server.note(&Ok(()), |()| false);
        assert!(is_left_alone(), "a replica answers questions too");
        server.note(&Ok(()), |()| true);
        assert!(server.is_trusted());
    }
}
