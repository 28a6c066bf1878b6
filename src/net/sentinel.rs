//! Where the master is, according to sentinels.
//!
//! The thread that needs a connection asks them: before a new one is opened, after a failure, and
//! when the last answer is older than [`VALID_FOR`]. So a request never goes to a server that was
//! replaced longer ago than that, even if the server itself has not noticed. This needs neither a
//! thread nor a subscription, whose silence could just as well mean a broken connection.
//!
//! One sentinel is enough, as long as the server that it names is a master and accepts connections.
//! One that is cut off from the others may name a dead server forever. So if no connection could be
//! opened to the address, all sentinels are asked ([`panel`](crate::net::panel)).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::config::Config;
use crate::error::Result;
use crate::event::Events;
use crate::net::endpoint::Endpoint;
use crate::net::panel::{Panel, SentinelAnswer, unanswered};
use crate::net::route::{Address, Route};
use crate::net::server::ServerFactory;

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
    /// Locked while they are asked.
    panel: Mutex<Panel>,
    known: Mutex<Known>,
    /// The [`Moment`] until which the last answer is valid, or `OUTDATED` or `REFRESHING`.
    valid_until: AtomicU64,
    /// Whether the known address has led to no master since the sentinels were asked last.
    rejected: AtomicBool,
    moves: AtomicU64,
    events: Events,
}

/// What the sentinels have answered.
struct Known {
    address: Option<Address>,
    /// Why the address must not be used any more.
    failure: Option<Failure>,
    label: Arc<str>,
}

/// What to log about an answer.
enum RouteChange {
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
    pub(crate) fn new(
        sentinels: &[Endpoint],
        master: &str,
        servers: &ServerFactory,
        config: &Config,
    ) -> Self {
        let label = Arc::from(format!("master {master:?}"));
        Self {
            master: master.into(),
            panel: Mutex::new(Panel::new(sentinels, master, servers, config)),
            known: Mutex::new(Known { address: None, failure: None, label }),
            valid_until: AtomicU64::new(OUTDATED),
            rejected: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            events: config.events.clone(),
        }
    }

    /// Keeps an answer. Returns how long the sentinels are not to be asked again, and what is new.
    fn record(&self, answer: Result<Address, Failure>, outdated: bool) -> (Duration, RouteChange) {
        let mut known = self.known.lock();
        match answer {
            Ok(address) => {
                known.failure = None;
                if known.address.as_ref() == Some(&address) {
                    return (VALID_FOR, RouteChange::None);
                }
                known.label = format!("{address} (master {:?})", self.master).into();
                known.address = Some(address.clone());
                self.moves.fetch_add(1, Ordering::SeqCst);
                (VALID_FOR, RouteChange::Moved(address))
            }
            Err(failure) if outdated || known.address.is_none() || known.failure.is_some() => {
                known.failure = Some(failure);
                (RETRY_PAUSE, RouteChange::None)
            }
            Err(failure) => (OUTAGE_PAUSE, RouteChange::Unanswered(failure)),
        }
    }

    /// Logs a change.
    fn log(&self, change: RouteChange) {
        let master = &self.master;
        match change {
            RouteChange::Moved(address) => {
                self.events.info(|| format!("the master {master:?} is at {address}"));
            }
            RouteChange::None => {}
            RouteChange::Unanswered(Failure { source, .. }) => {
                let line = || format!("no sentinel answers for {master:?}: {source}");
                self.events.warn(line);
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
            (failure, _) => Err(failure.clone().unwrap_or_else(|| unanswered(&self.master, None))),
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
        let Some(mut panel) = self.panel.try_lock_until(deadline) else { return };
        if self.is_current() {
            return;
        }
        let outdated = self.valid_until.swap(REFRESHING, Ordering::SeqCst) == OUTDATED;
        let known = self.known.lock().address.clone();
        let rejected = known.filter(|_| self.rejected.swap(false, Ordering::SeqCst));
        let begun = Moment::now();
        let (answer, as_of) = match panel.ask(rejected.as_ref(), deadline) {
            Ok(SentinelAnswer { address, asked, .. }) => (Ok(address), asked),
            Err(failure) => (Err(failure), begun),
        };
        let (period, change) = self.record(answer, outdated);
        let valid_until = as_of.after(period).raw();
        // A suspicion that has come up meanwhile stands: the answer may be older.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let exchanged =
            self.valid_until.compare_exchange(REFRESHING, valid_until, success, failure);
        exchanged.unwrap_or_default();
        drop(panel);
        self.log(change);
    }

    fn suspect_move(&self) {
        self.valid_until.store(OUTDATED, Ordering::SeqCst);
    }

    fn reject_address(&self, moves: u64) {
        if self.moves() == moves {
            self.rejected.store(true, Ordering::SeqCst);
            self.suspect_move();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use crate::base::clock::end_of;

    /// Starts a sentinel that names a master after a delay, or never. Returns its URL.
    fn sentinel(delay: Option<Duration>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            while client.read(&mut [0; 1000]).is_ok_and(|bytes| bytes > 0) {
                let Some(delay) = delay else { continue };
                thread::sleep(delay);
                client.write_all(b"*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n").unwrap_or_default();
            }
        });
        format!("redis://127.0.0.1:{port}/")
    }

    fn refreshed(sentinels: &[String], time: Duration) -> Sentinels {
        let config = Config::default();
        let sentinels = parse(sentinels, &config).expect("good URLs");
        let sentinels = Sentinels::new(
            &sentinels,
            "shop",
            &ServerFactory::new(&config).expect("a thread"),
            &config,
        );
        sentinels.refresh(end_of(time));
        assert_eq!(sentinels.address().expect("an answer").port, 6379);
        sentinels
    }

    #[test]
    fn the_host_that_a_sentinel_names_is_shown_on_one_line() {
        let sentinels = refreshed(&[sentinel(Some(Duration::ZERO))], VALID_FOR * 8);
        let address = Address { host: "a\n\u{1b}[2J".into(), port: 1 };
        sentinels.record(Ok(address.clone()), false);
        assert_eq!(&*sentinels.label(), r#"a\n\u{1b}[2J:1 (master "shop")"#);
        assert_eq!(address.to_string(), r"a\n\u{1b}[2J:1", "in the log");
        let endpoint = Endpoint::parse("redis://b", &Config::default()).expect("a good URL");
        assert_eq!(&*endpoint.at(&address.host, 1).label, r"a\n\u{1b}[2J:1", "of a cluster's node");
    }

    #[test]
    fn an_answer_is_as_old_as_its_question() {
        let slow = sentinel(Some(VALID_FOR));
        assert!(!refreshed(&[slow], VALID_FOR * 8).is_current());
    }

    #[test]
    fn the_wait_for_a_silent_sentinel_makes_no_answer_older() {
        // The machine may pause.
        let is_current = || {
            let sentinels = [sentinel(None), sentinel(Some(Duration::ZERO))];
            refreshed(&sentinels, VALID_FOR * 3).is_current()
        };
        assert!((0..3).any(|_| is_current()));
    }
}
