//! Where the master is, as sentinels say.
//!
//! They are asked by whoever needs a connection: before a new one is opened, after a failure, and
//! when the last answer is older than [`PERIOD`]. So a request never goes to a server that was
//! replaced longer ago than that, even if the server itself has not noticed, and it takes neither a
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

/// For so long an answer counts.
const PERIOD: Duration = Duration::from_millis(500);

/// While no sentinel answers, those who have a connection to the master ask after this time only:
/// a hung sentinel costs whoever asks it some time.
const OUTAGE_PERIOD: Duration = Duration::from_secs(2);

/// As before, while there is no master to connect to either.
const RETRY_PERIOD: Duration = Duration::from_millis(20);

/// The port of a sentinel whose URL names none.
const PORT: u16 = 26379;

/// In place of the time until which an answer counts: there is none that counts.
const DOUBTED: u64 = 0;

/// In place of that time: an answer is awaited.
const ASKED: u64 = 1;

/// The sentinels that watch over one master.
pub(crate) struct Sentinels {
    master: Arc<str>,
    /// The one that answered last comes first. Locked while they are asked.
    circle: Mutex<VecDeque<Connection>>,
    found: Mutex<Found>,
    /// The [`Moment`] until which the last answer counts, or `DOUBTED` or `ASKED`.
    valid: AtomicU64,
    /// Whether the first sentinel has named a server that is no master.
    wrong: AtomicBool,
    moves: AtomicU64,
}

/// What was found out last.
struct Found {
    address: Option<Address>,
    /// Why it must not be used any more.
    failure: Option<Failure>,
    label: Arc<str>,
}

/// What people should know of an answer.
enum Change {
    Moved(Address),
    None,
    Silence(Failure),
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sentinels").field(&self.master).finish()
    }
}

/// Reads the URLs of sentinels, of which no two may be the same.
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
            // It fails for a URL that cannot have a port, which is refused later.
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
            // Asked now and then only: not worth a core's time.
            factory.spin = Spin::new(Duration::ZERO);
            Connection::new(Arc::new(factory))
        };
        let label = Arc::from(format!("master {master:?}"));
        Self {
            master: master.into(),
            circle: Mutex::new(sentinels.iter().map(connection).collect()),
            found: Mutex::new(Found { address: None, failure: None, label }),
            valid: AtomicU64::new(DOUBTED),
            wrong: AtomicBool::new(false),
            moves: AtomicU64::new(0),
        }
    }

    /// Asks one after the other until there is an answer, each for its share of the time. Whoever
    /// has none is asked last from then on.
    fn ask(
        &self,
        circle: &mut VecDeque<Connection>,
        deadline: Instant,
    ) -> Result<Address, Failure> {
        let mut failure: Option<Failure> = None;
        for left in (1..=u32::try_from(circle.len()).unwrap_or(u32::MAX)).rev() {
            let Some(sentinel) = circle.front_mut() else { break };
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / left;
            match self.ask_one(sentinel, now + share) {
                Ok(address) => return Ok(address),
                // A refusal says more than that another sentinel cannot be reached.
                Err(next)
                    if failure.as_ref().is_none_or(|one| one.kind != FailureKind::Rejected) =>
                {
                    failure = Some(next);
                }
                Err(_) => {}
            }
            circle.rotate_left(1);
        }
        Err(self.unanswered(failure))
    }

    fn ask_one(&self, sentinel: &mut Connection, deadline: Instant) -> Result<Address, Failure> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let reply = sentinel.exchange(&Request::command(&question), deadline)?;
        if reply == Value::Nil {
            let why = io::Error::new(io::ErrorKind::NotFound, "a sentinel knows no such master");
            let failure = Failure::io(FailureKind::Rejected, &self.sentinels(), why);
            return Err(Failure { code: "NOMASTER".into(), ..failure });
        }
        address(&reply).ok_or_else(|| sentinel.nonsense())
    }

    /// The failure of all sentinels.
    fn unanswered(&self, last: Option<Failure>) -> Failure {
        let server = self.sentinels();
        match last {
            None => Failure::too_late(&server, "there was no time to ask"),
            // A question has no effect, so nothing is unknown.
            Some(last) if last.is_ambiguous() => {
                Failure { kind: FailureKind::Unreachable, server, ..last }
            }
            Some(last) => Failure { server, ..last },
        }
    }

    fn sentinels(&self) -> Arc<str> {
        format!("the sentinels of {:?}", self.master).into()
    }

    /// Takes in an answer. Tells for how long nobody else need ask, and what is new.
    fn take_in(&self, answer: Result<Address, Failure>, doubted: bool) -> (Duration, Change) {
        let mut found = self.found.lock();
        match answer {
            Ok(address) => {
                found.failure = None;
                if found.address.as_ref() == Some(&address) {
                    return (PERIOD, Change::None);
                }
                let Address { host, port } = &address;
                found.label = format!("{host}:{port} (master {:?})", self.master).into();
                found.address = Some(address.clone());
                self.moves.fetch_add(1, Ordering::SeqCst);
                (PERIOD, Change::Moved(address))
            }
            Err(failure) if doubted || found.address.is_none() || found.failure.is_some() => {
                found.failure = Some(failure);
                (RETRY_PERIOD, Change::None)
            }
            Err(failure) => (OUTAGE_PERIOD, Change::Silence(failure)),
        }
    }

    /// Tells the log, which may take its time: so without any lock.
    fn tell(&self, news: Change) {
        let master = &self.master;
        match news {
            Change::Moved(Address { host, port }) => {
                log::info!(target: "leasehold", "the master {master:?} is at {host}:{port}");
            }
            Change::None => {}
            Change::Silence(Failure { source, .. }) => {
                log::warn!(target: "leasehold", "no sentinel tells where {master:?} is: {source}");
            }
        }
    }
}

impl Route for Sentinels {
    fn label(&self) -> Arc<str> {
        self.found.lock().label.clone()
    }

    fn address(&self) -> Result<Address, Failure> {
        let found = self.found.lock();
        match (&found.failure, &found.address) {
            (None, Some(address)) => Ok(address.clone()),
            (failure, _) => Err(failure.clone().unwrap_or_else(|| self.unanswered(None))),
        }
    }

    fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    fn is_confirmed(&self) -> bool {
        Moment::now().raw() < self.valid.load(Ordering::SeqCst)
    }

    fn confirm(&self, deadline: Instant) {
        if self.is_confirmed() {
            return;
        }
        let Some(mut circle) = self.circle.try_lock_until(deadline) else { return };
        if self.is_confirmed() {
            return;
        }
        let doubted = self.valid.swap(ASKED, Ordering::SeqCst) == DOUBTED;
        if self.wrong.swap(false, Ordering::SeqCst) {
            circle.rotate_left(1);
        }
        let asked = Moment::now();
        let answer = self.ask(&mut circle, deadline);
        let (period, news) = self.take_in(answer, doubted);
        let valid = asked.after(period).raw();
        // Unless a doubt has come up in between, to which the answer may be no answer.
        let exchanged =
            self.valid.compare_exchange(ASKED, valid, Ordering::SeqCst, Ordering::SeqCst);
        exchanged.unwrap_or_default();
        drop(circle);
        self.tell(news);
    }

    fn doubt(&self) {
        self.valid.store(DOUBTED, Ordering::SeqCst);
    }

    fn disprove(&self) {
        self.wrong.store(true, Ordering::SeqCst);
        self.doubt();
    }
}

/// Reads a host and a port; `None` if the reply is something else.
fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &parts[..] else { return None };
    let host = str::from_utf8(host).ok()?.to_owned();
    Some(Address { host, port: str::from_utf8(port).ok()?.parse().ok()? })
}
