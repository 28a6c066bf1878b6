//! Where the master is, according to sentinels.
//!
//! The thread that needs a connection asks them: before a new one is opened, after a failure, and
//! when the last answer is older than [`VALID_FOR`]. So a request never goes to a server that was
//! replaced longer ago than that, even if the server itself has not noticed. This needs neither a
//! thread nor a subscription, whose silence could as well be a broken connection.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::clock::Moment;
use crate::config::Config;
use crate::error::Result;
use crate::failure::{Failure, FailureKind};
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::request::Request;
use crate::net::route::{Address, Route};
use crate::net::server::ServerFactory;
use crate::net::spin::Spin;
use crate::net::transport::Transport;

/// How long an answer is valid.
const VALID_FOR: Duration = Duration::from_millis(500);

/// The pause after which the sentinels are asked again if none has answered but there is a
/// connection to the master: asking a hung sentinel takes time.
const OUTAGE_PAUSE: Duration = Duration::from_secs(2);

/// The same pause if there is no master to connect to either.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The port of a sentinel whose URL has none.
const PORT: u16 = 26379;

/// In place of the time until which an answer is valid: none is.
const OUTDATED: u64 = 0;

/// In place of that time: the sentinels are being asked.
const REFRESHING: u64 = 1;

/// The sentinels that watch over one master.
pub(crate) struct Sentinels {
    master: Arc<str>,
    /// The sentinel that answered last comes first. Locked while they are asked.
    connections: Mutex<VecDeque<Connection>>,
    known: Mutex<Known>,
    /// The [`Moment`] until which the last answer is valid, or `OUTDATED` or `REFRESHING`.
    valid_until: AtomicU64,
    /// Whether the first sentinel has named a server that is not a master.
    first_was_wrong: AtomicBool,
    moves: AtomicU64,
}

/// What the sentinels have answered.
struct Known {
    address: Option<Address>,
    /// Why the address must not be used any more.
    failure: Option<Failure>,
    label: Arc<str>,
}

/// What is to be logged of an answer.
enum Change {
    Moved(Address),
    None,
    Unanswered(Failure),
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sentinels").field(&self.master).finish()
    }
}

/// Parses the URLs of sentinels, no two of which may be the same.
pub(crate) fn parse(
    urls: impl IntoIterator<Item: AsRef<str>>,
    config: &Config,
) -> Result<Vec<Endpoint>> {
    let urls = urls.into_iter().map(|url| with_port(url.as_ref()));
    Endpoint::parse_all("sentinels", urls, config)
}

fn with_port(url: &str) -> String {
    match redis::parse_redis_url(url) {
        Some(mut parsed) if parsed.has_host() && parsed.port().is_none() => {
            // It fails for a URL that cannot have a port, which is rejected later.
            parsed.set_port(Some(PORT)).unwrap_or_default();
            parsed.into()
        }
        _ => url.into(),
    }
}

impl Sentinels {
    pub(crate) fn new(sentinels: &[Endpoint], master: &str, servers: &ServerFactory) -> Self {
        let connection = |endpoint: &Endpoint| {
            let mut factory = servers.connections(endpoint.without_database());
            // Sentinels are asked too rarely to spin for.
            factory.spin = Spin::new(Duration::ZERO);
            Connection::new(Arc::new(factory))
        };
        let label = Arc::from(format!("master {master:?}"));
        Self {
            master: master.into(),
            connections: Mutex::new(sentinels.iter().map(connection).collect()),
            known: Mutex::new(Known { address: None, failure: None, label }),
            valid_until: AtomicU64::new(OUTDATED),
            first_was_wrong: AtomicBool::new(false),
            moves: AtomicU64::new(0),
        }
    }

    /// Asks one sentinel after the other until there is an answer, each for its share of the time.
    /// One that has none is asked last from then on.
    fn ask(
        &self,
        sentinels: &mut VecDeque<Connection>,
        deadline: Instant,
    ) -> Result<Address, Failure> {
        let mut failure: Option<Failure> = None;
        for left in (1..=u32::try_from(sentinels.len()).unwrap_or(u32::MAX)).rev() {
            let Some(sentinel) = sentinels.front_mut() else { break };
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / left;
            match self.ask_one(sentinel, now + share) {
                Ok(address) => return Ok(address),
                // That one has rejected the request says more than that another is unreachable.
                Err(next)
                    if failure.as_ref().is_none_or(|one| one.kind != FailureKind::Rejected) =>
                {
                    failure = Some(next);
                }
                Err(_) => {}
            }
            sentinels.rotate_left(1);
        }
        Err(self.unanswered(failure))
    }

    fn ask_one(&self, sentinel: &mut Connection, deadline: Instant) -> Result<Address, Failure> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let reply = sentinel.exchange(&Request::command(&question), deadline)?;
        if reply == Value::Nil {
            let why = io::Error::new(io::ErrorKind::NotFound, "a sentinel knows no such master");
            let failure = Failure::io(FailureKind::Rejected, &self.sentinels_label(), why);
            return Err(Failure { code: "NOMASTER".into(), ..failure });
        }
        address(&reply).ok_or_else(|| sentinel.invalid_reply())
    }

    /// The failure of all sentinels, given that of one.
    fn unanswered(&self, last: Option<Failure>) -> Failure {
        let server = self.sentinels_label();
        match last {
            None => Failure::too_late(&server, "there was no time to ask"),
            // A question has no effect, so the outcome is known.
            Some(last) if last.is_ambiguous() => {
                Failure { kind: FailureKind::Unreachable, server, ..last }
            }
            Some(last) => Failure { server, ..last },
        }
    }

    fn sentinels_label(&self) -> Arc<str> {
        format!("the sentinels of {:?}", self.master).into()
    }

    /// Keeps an answer. Returns how long the sentinels are not to be asked again, and what is new.
    fn record(&self, answer: Result<Address, Failure>, outdated: bool) -> (Duration, Change) {
        let mut known = self.known.lock();
        match answer {
            Ok(address) => {
                known.failure = None;
                if known.address.as_ref() == Some(&address) {
                    return (VALID_FOR, Change::None);
                }
                let Address { host, port } = &address;
                known.label = format!("{host}:{port} (master {:?})", self.master).into();
                known.address = Some(address.clone());
                self.moves.fetch_add(1, Ordering::SeqCst);
                (VALID_FOR, Change::Moved(address))
            }
            Err(failure) if outdated || known.address.is_none() || known.failure.is_some() => {
                known.failure = Some(failure);
                (RETRY_PAUSE, Change::None)
            }
            Err(failure) => (OUTAGE_PAUSE, Change::Unanswered(failure)),
        }
    }

    /// Logs a change. A logger may take its time, so no lock must be held.
    fn log(&self, change: Change) {
        let master = &self.master;
        match change {
            Change::Moved(Address { host, port }) => {
                log::info!(target: "leasehold", "the master {master:?} is at {host}:{port}");
            }
            Change::None => {}
            Change::Unanswered(Failure { source, .. }) => {
                log::warn!(target: "leasehold", "no sentinel answers for {master:?}: {source}");
            }
        }
    }
}

impl Route for Sentinels {
    fn label(&self) -> Arc<str> {
        self.known.lock().label.clone()
    }

    fn address(&self) -> Result<Address, Failure> {
        let known = self.known.lock();
        match (&known.failure, &known.address) {
            (None, Some(address)) => Ok(address.clone()),
            (failure, _) => Err(failure.clone().unwrap_or_else(|| self.unanswered(None))),
        }
    }

    fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    fn is_current(&self) -> bool {
        Moment::now().raw() < self.valid_until.load(Ordering::SeqCst)
    }

    fn refresh(&self, deadline: Instant) {
        if self.is_current() {
            return;
        }
        let Some(mut sentinels) = self.connections.try_lock_until(deadline) else { return };
        if self.is_current() {
            return;
        }
        let outdated = self.valid_until.swap(REFRESHING, Ordering::SeqCst) == OUTDATED;
        if self.first_was_wrong.swap(false, Ordering::SeqCst) {
            sentinels.rotate_left(1);
        }
        let asked = Moment::now();
        let answer = self.ask(&mut sentinels, deadline);
        let (period, change) = self.record(answer, outdated);
        let valid_until = asked.after(period).raw();
        // A suspicion that has come up meanwhile stands: the answer may be older.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let exchanged =
            self.valid_until.compare_exchange(REFRESHING, valid_until, success, failure);
        exchanged.unwrap_or_default();
        drop(sentinels);
        self.log(change);
    }

    fn suspect_move(&self) {
        self.valid_until.store(OUTDATED, Ordering::SeqCst);
    }

    fn reject_address(&self) {
        self.first_was_wrong.store(true, Ordering::SeqCst);
        self.suspect_move();
    }
}

/// Reads a host and a port; `None` if the reply is something else.
fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &parts[..] else { return None };
    let host = str::from_utf8(host).ok()?.to_owned();
    Some(Address { host, port: str::from_utf8(port).ok()?.parse().ok()? })
}
