//! The location of a master that another server may replace.
//!
//! The thread that needs a connection finds out where the master is: before a new one is opened,
//! after a failure, and when the last answer is older than [`VALID_FOR`]. No request goes to a
//! server that was replaced longer ago than that, even if the server itself has not noticed. There
//! is no thread for this and no subscription, whose silence could just as well mean a broken
//! connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::event_thread::Events;
use crate::base::failure::Failure;
use crate::base::sync::lock_until;
use crate::base::{printable, with_port};

pub(super) const VALID_FOR: Duration = Duration::from_millis(500);

/// Pause after no sentinel has answered, while there is a connection to the master: asking hung
/// sentinels takes time.
const OUTAGE_PAUSE: Duration = Duration::from_secs(2);

/// The same pause if there is no master to connect to, either.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A value of `valid_until`: no answer is valid.
const OUTDATED: u64 = 0;

/// A value of `valid_until`: the sentinels are being asked.
const REFRESHING: u64 = 1;

/// The address of a server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_port(&printable(&self.host), self.port))
    }
}

/// Asks the sentinels until the deadline, given the address at which no master was found. Returns
/// the location of the master, and when the sentinel that named it was asked: its answer may be
/// that old by the time it is read.
pub(super) type AskSentinels =
    dyn FnMut(Option<&Address>, Instant) -> Result<(Address, Moment), Failure> + Send;

/// Leads to a master. Only [`refresh`](Route::refresh) does I/O.
pub(crate) struct Route {
    master: Arc<str>,
    /// Locked while the sentinels are asked.
    ask: Mutex<Box<AskSentinels>>,
    location: Mutex<Location>,
    /// The [`Moment`] until which the last answer is valid, or `OUTDATED` or `REFRESHING`.
    valid_until: AtomicU64,
    /// Whether connecting to the known address has failed since the sentinels were last asked.
    rejected: AtomicBool,
    moves: AtomicU64,
    /// The epoch of the connections to the master.
    pub(super) epoch: Arc<AtomicU64>,
    events: Events,
}

/// The last known location of the master.
struct Location {
    address: Option<Address>,
    /// Why the address must no longer be used.
    failure: Option<Failure>,
    label: Arc<str>,
}

impl Route {
    pub(super) fn new(master: &str, events: &Events, ask: Box<AskSentinels>) -> Self {
        let label = Arc::from(format!("master {master:?}"));
        Self {
            master: master.into(),
            ask: Mutex::new(ask),
            location: Mutex::new(Location { address: None, failure: None, label }),
            valid_until: AtomicU64::new(OUTDATED),
            rejected: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            epoch: Arc::default(),
            events: events.clone(),
        }
    }

    /// Returns the server's address, as shown to users.
    pub(super) fn label(&self) -> Arc<str> {
        self.location.lock().label.clone()
    }

    /// Returns the last known location of the master.
    pub(super) fn address(&self) -> Result<Address, Failure> {
        let known = self.location.lock();
        match (&known.failure, &known.address) {
            (None, Some(address)) => Ok(address.clone()),
            (failure, _) => Err(failure.clone().unwrap_or_else(|| unanswered(&self.master, None))),
        }
    }

    /// Returns how often the master has moved so far.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    pub(super) fn is_current(&self) -> bool {
        Moment::now().0 < self.valid_until.load(Ordering::SeqCst)
    }

    /// Finds out where the master is, unless that was done recently. If no sentinel answers, the
    /// last known location stays valid, unless a move was suspected.
    pub(super) fn refresh(&self, deadline: Instant) {
        if self.is_current() {
            return;
        }
        let Some(mut ask) = lock_until(&self.ask, deadline) else { return };
        if self.is_current() {
            // Another thread has asked in the meantime.
            return;
        }
        let outdated = self.valid_until.swap(REFRESHING, Ordering::SeqCst) == OUTDATED;
        let mut rejected = self.location.lock().address.clone();
        if rejected.is_some() && !self.rejected.swap(false, Ordering::SeqCst) {
            rejected = None;
        }
        let begun = Moment::now();
        let (answer, as_of) = match ask(rejected.as_ref(), deadline) {
            Ok((address, asked)) => (Ok(address), asked),
            Err(failure) => (Err(failure), begun),
        };
        let valid_until = as_of.after(self.record(answer, outdated)).0;
        // If another thread has found the master gone in the meantime, this answer may be older.
        self.valid_until
            .compare_exchange(REFRESHING, valid_until, Ordering::SeqCst, Ordering::SeqCst)
            .ok();
    }

    /// Stores an answer, and logs a change. Returns how long the answer is valid.
    pub(super) fn record(&self, answer: Result<Address, Failure>, outdated: bool) -> Duration {
        let master = &self.master;
        let mut known = self.location.lock();
        match answer {
            Ok(address) => {
                known.failure = None;
                if known.address.as_ref() != Some(&address) {
                    known.label = format!("{address} (master {master:?})").into();
                    self.moves.fetch_add(1, Ordering::SeqCst);
                    // The connections to the former master become stale.
                    self.epoch.fetch_add(1, Ordering::SeqCst);
                    self.events
                        .log(log::Level::Info, || format!("the master {master:?} is at {address}"));
                    known.address = Some(address);
                }
                VALID_FOR
            }
            Err(failure) if outdated || known.address.is_none() || known.failure.is_some() => {
                known.failure = Some(failure);
                RETRY_PAUSE
            }
            Err(Failure { source, .. }) => {
                self.events.warn(|| format!("no sentinel answers for {master:?}: {source}"));
                OUTAGE_PAUSE
            }
        }
    }

    /// Makes the address outdated: the server has failed, and may have been replaced.
    pub(super) fn suspect_move(&self) {
        self.valid_until.store(OUTDATED, Ordering::SeqCst);
    }

    /// Makes the address outdated, because no connection to a master could be opened there. Has no
    /// effect if the master has moved in the meantime.
    pub(super) fn reject_address(&self, moves: u64) {
        if self.moves() == moves {
            self.rejected.store(true, Ordering::SeqCst);
            self.suspect_move();
        }
    }
}

/// Returns the failure when no sentinel of `master` has answered. `last` is the failure of one of
/// them.
pub(super) fn unanswered(master: &str, last: Option<Failure>) -> Failure {
    let server = sentinels_label(master);
    match last {
        None => Failure::too_late(&server, "there was no time to ask"),
        Some(last) => Failure { server, ..last.of_question() },
    }
}

pub(super) fn sentinels_label(master: &str) -> Arc<str> {
    format!("the sentinels of {master:?}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{OnceLock, Weak};

    use crate::base::clock::end_of;

    #[test]
    fn a_suspicion_that_arises_while_the_sentinels_are_asked_stands() {
        let this = Arc::new(OnceLock::<Weak<Route>>::new());
        let asked = this.clone();
        let ask = move |_: Option<&Address>, _: Instant| {
            let route = asked.get().and_then(Weak::upgrade).expect("it is there");
            route.suspect_move();
            Ok((Address { host: "there".into(), port: 1 }, Moment::now()))
        };
        let route = Arc::new(Route::new("shop", &Events::default(), Box::new(ask)));
        this.set(Arc::downgrade(&route)).expect("it is new");
        route.refresh(end_of(VALID_FOR));
        assert!(route.address().is_ok() && !route.is_current());
    }
}
