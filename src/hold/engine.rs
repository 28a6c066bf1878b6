//! How a lock is taken and nested: the heart of the library.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use scheduled_thread_pool::ScheduledThreadPool;

use crate::clock::{Moment, end_of};
use crate::config::{Config, Terms};
use crate::error::{Error, Result};
use crate::event::{Event, Events};
use crate::hold::agenda::Orphan;
use crate::hold::backoff::Backoff;
use crate::hold::herald::Herald;
use crate::hold::lease::Lease;
use crate::hold::line::{Lines, Ticket, Turn};
use crate::hold::listener::{Heard, Listener};
use crate::hold::owner::{Owner, Thread};
use crate::hold::patience::{Bound, Patience, is_outage};
use crate::hold::renewer::Renewer;
use crate::hold::table::Table;
use crate::store::{Bid, Failure, HoldId, Queue, Standing, Store};

/// For so long a thread lets another client go first after the lock was released for that one.
const YIELD_TIME: Duration = Duration::from_millis(20);

/// How long a call waits for whoever holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Endless,
    No,
    Until(Instant),
}

impl Wait {
    fn bound(self) -> Bound {
        match self {
            Self::Endless => Bound::Endless,
            Self::No => Bound::Brief,
            Self::Until(deadline) => Bound::Deadline(deadline),
        }
    }

    /// Tells whether one try is all there is time for.
    fn is_over(self) -> bool {
        match self {
            Self::No => true,
            Self::Endless => false,
            Self::Until(deadline) => deadline <= Instant::now(),
        }
    }

    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Endless | Self::No => None,
        }
    }
}

/// What all clones of a client and all its guards share.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) owner: Owner,
    pub(super) store: Arc<dyn Store>,
    pub(super) table: Table,
    pub(super) renewer: Renewer,
    pub(super) herald: Herald,
    pub(super) threads: OnceLock<Arc<ScheduledThreadPool>>,
    /// Started by the first wait for another client.
    listener: OnceLock<Option<Listener>>,
}

/// A level of a hold that a call has brought.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) lease: Arc<Lease>,
    pub(crate) depth: u32,
}

/// Where a call stands when it need not wait for threads of this client any more.
enum Start {
    /// At the head of the line, after the lock was released for another client or not.
    AtHead { ticket: Ticket, polite: bool },
    /// Beside the line, for one try.
    Beside(Ticket),
    /// With the lock, which another thread has handed on.
    Held(Arc<Lease>),
}

/// One call's attempt to get a lock: a hold in the making.
struct Attempt<'a> {
    id: HoldId,
    terms: &'a Terms,
    wait: Wait,
    /// Whether a request without a reply may stand in Redis as a hold, or may come to.
    unsettled: bool,
    queue: Queue,
    polite_until: Instant,
}

/// Why a thread stops to compete.
enum Setback {
    Closed,
    Failed(Failure),
}

impl Setback {
    fn into_error(self, name: &str) -> Error {
        match self {
            Self::Closed => Error::Closed,
            Self::Failed(failure) => failure.into_error("acquire", name),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("owner", &self.owner)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn start(
        config: Config,
        store: Arc<dyn Store>,
        threads: Option<Arc<ScheduledThreadPool>>,
        events: Events,
    ) -> Result<Self> {
        let io_timeout = config.io_timeout(config.terms.span());
        let herald = Herald { events, lines: Arc::default() };
        let renewer =
            Renewer::start(store.upkeep(), io_timeout, herald.clone()).map_err(Error::no_thread)?;
        Ok(Self {
            owner: Owner::new(&config.label)?,
            table: Table::default(),
            threads: threads.map(OnceLock::from).unwrap_or_default(),
            listener: OnceLock::new(),
            config,
            store,
            renewer,
            herald,
        })
    }

    /// Turns away new calls and those that wait.
    pub(crate) fn close(&self) {
        self.lines().close();
    }

    /// Takes a lock, or one more level of it; `None` if it is still held by somebody else when the
    /// wait is over.
    pub(crate) fn lock(&self, name: &Arc<str>, terms: &Terms, wait: Wait) -> Result<Option<Level>> {
        self.owner.check_process()?;
        self.config.check_name(name)?;
        terms.check(&self.config)?;
        self.lines().check_open()?;
        if let Some(lease) = self.table.find(thread::current().id(), name) {
            return self.nest(lease, wait).map(Some);
        }
        let started = Instant::now();
        let lease = match self.line_up(name, terms, wait)? {
            None => None,
            Some(Start::Held(lease)) => Some(lease),
            Some(Start::Beside(ticket)) => {
                let mut attempt = self.attempt(name, terms, wait, false);
                self.compete(&mut attempt, &ticket).map_err(|setback| setback.into_error(name))?
            }
            Some(Start::AtHead { ticket, polite }) => {
                let head = AtHead { lines: self.lines(), name, leaves: true };
                let mut attempt = self.attempt(name, terms, wait, polite);
                let outcome = self.compete(&mut attempt, &ticket);
                head.leave(&outcome, wait);
                outcome.map_err(|setback| setback.into_error(name))?
            }
        };
        if let Some(lease) = &lease {
            self.tell_acquired(lease, started.elapsed());
        }
        Ok(lease.map(|lease| Level { lease, depth: 1 }))
    }

    /// Waits until no thread of this client is in front. `None` if the wait is over before.
    fn line_up(&self, name: &Arc<str>, terms: &Terms, wait: Wait) -> Result<Option<Start>> {
        if wait == Wait::No {
            if let Some(ticket) = self.lines().enter(name)? {
                return Ok(Some(Start::AtHead { ticket, polite: false }));
            }
            if self.lines().holder(name).is_some_and(|lease| self.stands(&lease)) {
                self.tell_contended(name);
                return Ok(None);
            }
            return Ok(Some(Start::Beside(Ticket::beside(name))));
        }
        let (ticket, first) = self.lines().join(name, terms, wait == Wait::Endless)?;
        if first {
            return Ok(Some(Start::AtHead { ticket, polite: false }));
        }
        self.tell_contended(name);
        match self.lines().wait(&ticket, wait.deadline())? {
            Turn::Given(lease) => Ok(Some(Start::Held(lease))),
            Turn::Head { polite } => Ok(Some(Start::AtHead { ticket, polite })),
            Turn::Late(None) => Ok(None),
            Turn::Late(Some(failure)) | Turn::Failed(failure) => {
                Err(failure.into_error("acquire", name))
            }
        }
    }

    fn attempt<'a>(
        &self,
        name: &Arc<str>,
        terms: &'a Terms,
        wait: Wait,
        polite: bool,
    ) -> Attempt<'a> {
        let politeness = if polite { YIELD_TIME } else { Duration::ZERO };
        Attempt {
            id: self.owner.next_hold(name),
            terms,
            wait,
            unsettled: false,
            queue: if wait.is_over() { Queue::Out } else { Queue::Join },
            polite_until: Instant::now() + politeness,
        }
    }

    /// Tries until the lock is ours, the wait is over, or the server is given up.
    fn compete(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>, Setback> {
        let outcome = self.bid_until_settled(attempt, ticket);
        if attempt.unsettled && !matches!(outcome, Ok(Some(_))) {
            self.clean(&attempt.id, attempt.terms.span(), false);
        }
        if attempt.queue == Queue::Waits && matches!(outcome, Ok(None) | Err(Setback::Closed)) {
            self.leave_queue(attempt);
        }
        outcome
    }

    fn bid_until_settled(
        &self,
        attempt: &mut Attempt<'_>,
        ticket: &Ticket,
    ) -> Result<Option<Arc<Lease>>, Setback> {
        let (wait, span) = (attempt.wait, attempt.terms.span());
        let mut patience = Patience::new(wait.bound(), &self.config, span);
        let mut backoff = Backoff::new(self.config.backoff);
        let mut contended = false;
        loop {
            let pause = match self.bid(attempt, patience.request_end()) {
                Ok((Bid::Won { fence }, sent)) => {
                    return Ok(Some(self.won(attempt, fence, sent)));
                }
                Ok((Bid::Busy { remaining }, _)) => {
                    patience.answered();
                    self.lines().note(&attempt.id.name, None);
                    if !contended {
                        contended = true;
                        self.tell_contended(&attempt.id.name);
                    }
                    let pause = until_free(backoff.next().unwrap_or_default(), remaining);
                    match wait {
                        Wait::No => return Ok(None),
                        Wait::Endless => pause,
                        Wait::Until(deadline) => {
                            let left = deadline.saturating_duration_since(Instant::now());
                            if left.is_zero() {
                                return Ok(None);
                            }
                            pause.min(left)
                        }
                    }
                }
                Err(failure) => {
                    self.lines().note(&attempt.id.name, Some(&failure));
                    patience.after(&failure).ok_or(Setback::Failed(failure))?
                }
            };
            ticket.sleep(pause).map_err(|_| Setback::Closed)?;
        }
    }

    /// Asks for the lock once. A reply that comes when the lease it brings is already over counts
    /// as none: a pause of this process must not bring forth a guard of nothing.
    fn bid(&self, attempt: &mut Attempt<'_>, end: Instant) -> Result<(Bid, Moment), Failure> {
        let (sent, span) = (Moment::now(), attempt.terms.span());
        let polite = Instant::now() < attempt.polite_until;
        let queue = if polite { Queue::Yields } else { attempt.queue };
        let reply = self.store.acquire(&attempt.id, span, queue, end);
        if queue != Queue::Out {
            attempt.queue = Queue::Waits;
        }
        let unknown = match &reply {
            Ok(Bid::Won { .. }) => Moment::now() >= Lease::deadline(sent, span),
            Ok(Bid::Busy { .. }) => {
                self.listen(queue);
                false
            }
            Err(failure) => failure.is_ambiguous(),
        };
        attempt.unsettled |= unknown;
        match reply? {
            Bid::Won { .. } if unknown => Err(Failure::late()),
            bid => Ok((bid, sent)),
        }
    }

    fn won(&self, attempt: &Attempt<'_>, fence: u64, sent: Moment) -> Arc<Lease> {
        let (id, thread) = (attempt.id.clone(), Thread::current());
        let lease = Arc::new(Lease::new(id, fence, attempt.terms, sent, thread));
        if attempt.unsettled {
            lease.unsettle();
        }
        self.table.insert(&lease);
        self.renewer.keep(&lease);
        lease
    }

    /// Makes sure that releases by other clients are heard.
    fn listen(&self, queue: Queue) {
        if queue == Queue::Out {
            return;
        }
        self.listener.get_or_init(|| {
            let wakeups = self.store.wakeups(self.owner.client())?;
            let (lines, store) = (self.herald.lines.clone(), self.store.clone());
            let client = Arc::<str>::from(self.owner.client());
            let io_timeout = self.config.io_timeout(self.config.terms.span());
            let hear = move |heard: Heard<'_>| match heard {
                Heard::All => lines.knock_all(),
                Heard::Lock(name) if !lines.knock(name) => {
                    // Nobody waits for it any more: the next client should know.
                    store.leave(name, &client, end_of(io_timeout)).unwrap_or_default();
                    // Somebody who began to wait in between is not in the queue now.
                    lines.knock(name);
                }
                Heard::Lock(_) => {}
            };
            let started = Listener::start(wakeups, hear, self.config.backoff);
            started.map_err(|error| log::warn!(target: "leasehold", "no listener: {error}")).ok()
        });
    }

    /// Takes the client out of the queue in Redis. Should that fail, the first wake-up does it.
    fn leave_queue(&self, attempt: &Attempt<'_>) {
        let (bound, span) = (attempt.wait.bound(), attempt.terms.span());
        let end = Patience::new(bound, &self.config, span).request_end();
        self.store.leave(&attempt.id.name, self.owner.client(), end).unwrap_or_default();
    }

    /// Goes one level deeper, which also finds out whether the hold still stands.
    fn nest(&self, lease: Arc<Lease>, wait: Wait) -> Result<Level> {
        let name = lease.name().clone();
        let Some(depth) = lease.depth().checked_add(1) else {
            return Err(Error::invalid("depth", "must not be greater than 4294967295"));
        };
        let bound = match wait {
            Wait::Endless | Wait::No => Bound::Brief,
            Wait::Until(_) => wait.bound(),
        };
        let patience = Patience::new(bound, &self.config, lease.length());
        self.set_depth(&lease, depth, patience).map_err(|failure| told(failure, "nest", &name))?;
        Ok(Level { lease, depth })
    }

    /// Writes the depth of a hold to the server. `Err(None)` if the hold is lost.
    pub(super) fn set_depth(
        &self,
        lease: &Arc<Lease>,
        depth: u32,
        mut patience: Patience,
    ) -> Result<(), Option<Failure>> {
        while self.stands(lease) {
            let sent = Moment::now();
            let span = lease.span(sent);
            match self.store.nest(&lease.id, depth, span, patience.request_end()) {
                Ok(Standing::Ours) => {
                    lease.extend(sent, span);
                    lease.set_depth(depth);
                    return if self.stands(lease) { Ok(()) } else { Err(None) };
                }
                Ok(Standing::Gone) => lease.lose(&self.herald),
                Err(failure) => match patience.after(&failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(Some(failure)),
                },
            }
        }
        Err(None)
    }

    /// Leaves to the renewer to remove what may stand in Redis, or may come to, for a lease.
    pub(super) fn clean(&self, id: &HoldId, lease: Duration, settles: bool) {
        let io_timeout = self.config.io_timeout(lease);
        self.renewer.clean(Orphan::new(id.clone(), lease, io_timeout, settles));
    }

    pub(super) fn lines(&self) -> &Lines {
        &self.herald.lines
    }

    fn tell_contended(&self, name: &Arc<str>) {
        self.herald.events.emit(|| Event::Contended { name: name.to_string() });
        log::debug!(target: "leasehold", "lock {name:?} is held by somebody else");
    }

    fn tell_acquired(&self, lease: &Lease, waited: Duration) {
        let (name, fence) = (lease.name(), lease.fence);
        self.herald.events.emit(|| Event::Acquired { name: name.to_string(), fence, waited });
        log::debug!(target: "leasehold", "acquired lock {name:?} (fence {fence}) after {waited:?}");
    }
}

/// The head of a line, which is left even if the thread panics.
struct AtHead<'a> {
    lines: &'a Lines,
    name: &'a Arc<str>,
    leaves: bool,
}

impl AtHead<'_> {
    fn leave(mut self, outcome: &Result<Option<Arc<Lease>>, Setback>, wait: Wait) {
        self.leaves = false;
        match outcome {
            Ok(Some(lease)) => self.lines.hold(lease),
            Err(Setback::Failed(failure)) if wait == Wait::Endless && is_outage(failure) => {
                self.lines.give_up(self.name, Some(failure));
            }
            _ => self.lines.give_up(self.name, None),
        }
    }
}

impl Drop for AtHead<'_> {
    fn drop(&mut self) {
        if self.leaves {
            self.lines.give_up(self.name, None);
        }
    }
}

/// The pause before asking again: no longer than the holder's lease can last, and a little longer
/// than that, for Redis counts whole milliseconds.
fn until_free(pause: Duration, remaining: Option<Duration>) -> Duration {
    remaining.map_or(pause, |remaining| pause.min(remaining + Duration::from_millis(1)))
}

/// What the caller is told of a request for a hold; without a failure the hold is lost.
pub(super) fn told(failure: Option<Failure>, attempt: &str, name: &str) -> Error {
    failure.map_or_else(|| Error::lost(name), |failure| failure.into_error(attempt, name))
}
