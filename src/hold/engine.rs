//! How a lock is taken, nested and released: the heart of the library.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::clock::{Moment, end_of};
use crate::config::{Config, Terms};
use crate::error::{Error, Result};
use crate::event::{Event, Events};
use crate::hold::agenda::Orphan;
use crate::hold::alarm;
use crate::hold::backoff::Backoff;
use crate::hold::gate::Gate;
use crate::hold::lease::Lease;
use crate::hold::owner::Owner;
use crate::hold::patience::{Bound, Patience};
use crate::hold::renewer::Renewer;
use crate::hold::table::Table;
use crate::store::server::pool_threads;
use crate::store::{Bid, Failure, HoldId, Holder, Standing, Store};

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
}

/// What all clones of a client and all its guards share.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) owner: Owner,
    pub(crate) gate: Gate,
    store: Box<dyn Store>,
    table: Table,
    renewer: Renewer,
    events: Events,
    threads: OnceLock<Arc<ScheduledThreadPool>>,
}

/// A level of a hold that a call has brought.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) lease: Arc<Lease>,
    pub(crate) depth: u32,
}

/// One call's attempt to get a lock: a hold in the making.
struct Attempt<'a> {
    id: HoldId,
    terms: &'a Terms,
    started: Instant,
    /// Whether a request without a reply may stand in Redis as a hold, or may come to.
    unsettled: bool,
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
        store: Box<dyn Store>,
        threads: Option<Arc<ScheduledThreadPool>>,
        events: Events,
    ) -> Result<Self> {
        let io_timeout = config.io_timeout(config.terms.span());
        let renewer =
            Renewer::start(store.upkeep(), io_timeout, events.clone()).map_err(Error::no_thread)?;
        Ok(Self {
            owner: Owner::new(&config.label)?,
            gate: Gate::default(),
            table: Table::default(),
            threads: threads.map(OnceLock::from).unwrap_or_default(),
            config,
            store,
            renewer,
            events,
        })
    }

    /// Takes a lock, or one more level of it; `None` if it is still held by somebody else when the
    /// wait is over.
    pub(crate) fn lock(&self, name: &Arc<str>, terms: &Terms, wait: Wait) -> Result<Option<Level>> {
        self.owner.check_process()?;
        self.config.check_name(name)?;
        terms.check(&self.config)?;
        self.gate.check()?;
        if let Some(lease) = self.table.find(thread::current().id(), name) {
            return self.nest(lease, wait).map(Some);
        }
        let mut attempt = Attempt {
            id: self.owner.next_hold(name),
            terms,
            started: Instant::now(),
            unsettled: false,
        };
        let outcome = self.compete(&mut attempt, wait);
        if attempt.unsettled && !matches!(outcome, Ok(Some(_))) {
            self.clean(&attempt.id, terms.span(), false);
        }
        Ok(outcome?.map(|lease| Level { lease, depth: 1 }))
    }

    /// Tries until the lock is ours, the wait is over, or the server is given up.
    fn compete(&self, attempt: &mut Attempt<'_>, wait: Wait) -> Result<Option<Arc<Lease>>> {
        let terms = attempt.terms;
        let mut patience = Patience::new(wait.bound(), &self.config, terms.span());
        let mut backoff = Backoff::new(self.config.backoff);
        let mut contended = false;
        loop {
            let pause = match self.bid(attempt, patience.request_end()) {
                Ok((Bid::Won { fence }, sent)) => {
                    return Ok(Some(self.won(attempt, fence, sent)));
                }
                Ok((Bid::Busy { remaining }, _)) => {
                    patience.answered();
                    if !contended {
                        contended = true;
                        self.tell_contended(&attempt.id.name);
                    }
                    let pause = backoff.next().unwrap_or_default();
                    match wait {
                        Wait::No => return Ok(None),
                        Wait::Endless => until_free(pause, remaining),
                        Wait::Until(deadline) => {
                            let left = deadline.saturating_duration_since(Instant::now());
                            if left.is_zero() {
                                return Ok(None);
                            }
                            until_free(pause, remaining).min(left)
                        }
                    }
                }
                Err(failure) => match patience.after(&failure) {
                    Some(pause) => pause,
                    None => return Err(failure.into_error("acquire", &attempt.id.name)),
                },
            };
            self.gate.sleep(pause)?;
        }
    }

    /// Asks for the lock once. A reply that comes when the lease it brings is already over counts
    /// as none: a pause of this process must not bring forth a guard of nothing.
    fn bid(&self, attempt: &mut Attempt<'_>, end: Instant) -> Result<(Bid, Moment), Failure> {
        let (sent, span) = (Moment::now(), attempt.terms.span());
        let reply = self.store.acquire(&attempt.id, span, end);
        let unknown = match &reply {
            Ok(Bid::Won { .. }) => Moment::now() >= Lease::deadline(sent, span),
            Ok(Bid::Busy { .. }) => false,
            Err(failure) => failure.is_ambiguous(),
        };
        attempt.unsettled |= unknown;
        match reply? {
            Bid::Won { .. } if unknown => Err(Failure::late()),
            bid => Ok((bid, sent)),
        }
    }

    fn won(&self, attempt: &Attempt<'_>, fence: u64, sent: Moment) -> Arc<Lease> {
        let lease = Arc::new(Lease::new(attempt.id.clone(), fence, attempt.terms, sent));
        if attempt.unsettled {
            lease.unsettle();
        }
        self.table.insert(&lease);
        self.renewer.keep(&lease);
        let waited = attempt.started.elapsed();
        let name = lease.name();
        self.events.emit(|| Event::Acquired { name: name.to_string(), fence, waited });
        log::debug!(target: "leasehold", "acquired lock {name:?} (fence {fence}) after {waited:?}");
        lease
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
    fn set_depth(
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
                Ok(Standing::Gone) => lease.lose(&self.events),
                Err(failure) => match patience.after(&failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(Some(failure)),
                },
            }
        }
        Err(None)
    }

    /// Gives a level back; the hold ends with the last.
    pub(crate) fn unlock(&self, lease: &Arc<Lease>) -> Result<()> {
        self.unlock_within(Bound::Brief, lease)
    }

    /// As `unlock`, within one `io_timeout`.
    pub(crate) fn unlock_soon(&self, lease: &Arc<Lease>) -> Result<()> {
        let end = end_of(self.config.io_timeout(lease.length()));
        self.unlock_within(Bound::End(end), lease)
    }

    fn unlock_within(&self, bound: Bound, lease: &Arc<Lease>) -> Result<()> {
        self.owner.check_process()?;
        let patience = Patience::new(bound, &self.config, lease.length());
        let left = lease.depth().saturating_sub(1);
        lease.set_depth(left);
        let name = lease.name();
        let outcome = if left > 0 {
            self.set_depth(lease, left, patience)
        } else {
            self.release(lease, patience)
        };
        if let Err(Some(Failure { source, .. })) = &outcome {
            let (name, reason) = (name.to_string(), source.to_string());
            log::warn!(target: "leasehold", "releasing lock {name:?} failed: {reason}");
            self.events.emit(|| Event::ReleaseFailed { name, reason });
        }
        outcome.map_err(|failure| told(failure, "release", name))
    }

    /// Ends a hold. `Err(None)` if it is lost.
    fn release(&self, lease: &Arc<Lease>, mut patience: Patience) -> Result<(), Option<Failure>> {
        self.table.remove(lease);
        // From here on nothing renews it. What was lost is not released: it is not there, or is
        // being cleaned up.
        if !self.stands(lease) || !lease.end() {
            return Err(None);
        }
        let mut unknown = false;
        let outcome = loop {
            match self.store.release(&lease.id, patience.request_end()) {
                Ok(Standing::Gone) if !unknown => break Err(None),
                Ok(_) => break Ok(()),
                Err(failure) => {
                    unknown |= failure.is_ambiguous();
                    match patience.after(&failure) {
                        Some(pause) => thread::sleep(pause),
                        None => break Err(Some(failure)),
                    }
                }
            }
        };
        if lease.is_unsettled() || matches!(outcome, Err(Some(_))) {
            self.clean(&lease.id, lease.length(), !lease.is_unsettled());
        }
        let (name, held) = (lease.name(), lease.age());
        match outcome {
            Ok(()) => {
                self.events.emit(|| Event::Released { name: name.to_string(), held });
                log::debug!(target: "leasehold", "released lock {name:?} after {held:?}");
            }
            Err(None) => lease.tell_lost(&self.events, "the server did not know it any more"),
            Err(Some(_)) => {}
        }
        outcome
    }

    /// Tells whether a hold may be relied on, without asking anybody.
    pub(crate) fn is_held(&self, lease: &Lease) -> bool {
        self.owner.check_process().is_ok() && self.stands(lease)
    }

    /// The time for which a hold may be relied on.
    pub(crate) fn remaining(&self, lease: &Lease) -> Duration {
        if self.is_held(lease) { lease.remaining() } else { Duration::ZERO }
    }

    fn stands(&self, lease: &Lease) -> bool {
        if lease.expire(&self.events) {
            self.clean(&lease.id, lease.length(), true);
        }
        !lease.remaining().is_zero()
    }

    /// Asks the server whether a hold stands.
    pub(crate) fn verify(&self, lease: &Arc<Lease>) -> Result<()> {
        self.owner.check_process()?;
        let name = lease.name();
        if self.stands(lease) {
            let holder = self.inspect(name)?;
            if holder.is_none_or(|holder| holder.owner != lease.id.owner()) {
                lease.lose(&self.events);
            }
        }
        if self.stands(lease) { Ok(()) } else { Err(Error::lost(name)) }
    }

    /// Tells who has a lock.
    pub(crate) fn inspect(&self, name: &Arc<str>) -> Result<Option<Holder>> {
        self.insist("inspect", name, |end| self.store.inspect(name, end))
    }

    /// Takes a lock away from whoever has it.
    pub(crate) fn force(&self, name: &Arc<str>) -> Result<bool> {
        self.insist("force open", name, |end| self.store.force(name, end))
    }

    /// Repeats a request that is bounded by nothing else.
    fn insist<T>(
        &self,
        attempt: &str,
        name: &str,
        request: impl Fn(Instant) -> Result<T, Failure>,
    ) -> Result<T> {
        self.owner.check_process()?;
        self.config.check_name(name)?;
        let mut patience = Patience::new(Bound::Brief, &self.config, self.config.terms.span());
        loop {
            match request(patience.request_end()) {
                Ok(answer) => return Ok(answer),
                Err(failure) => match patience.after(&failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(failure.into_error(attempt, name)),
                },
            }
        }
    }

    /// The calling thread's hold of a lock, if it may be relied on.
    pub(crate) fn own_hold(&self, name: &Arc<str>) -> Option<Arc<Lease>> {
        self.owner.check_process().ok()?;
        let lease = self.table.find(thread::current().id(), name)?;
        self.stands(&lease).then_some(lease)
    }

    /// A receiver of the news that a hold is lost.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) -> Receiver<()> {
        if self.owner.check_process().is_err() {
            // The hold is the parent's. Nothing that is shared may be touched here.
            return alarm::rung();
        }
        let (receiver, first) = lease.watch();
        if first {
            alarm::set(self.threads.get_or_init(pool_threads), lease, self.events.clone());
        }
        receiver
    }

    /// Leaves to the renewer to remove what may stand in Redis, or may come to, for a lease.
    fn clean(&self, id: &HoldId, lease: Duration, settles: bool) {
        let io_timeout = self.config.io_timeout(lease);
        self.renewer.clean(Orphan::new(id.clone(), lease, io_timeout, settles));
    }

    fn tell_contended(&self, name: &Arc<str>) {
        self.events.emit(|| Event::Contended { name: name.to_string() });
        log::debug!(target: "leasehold", "lock {name:?} is held by somebody else");
    }
}

/// The pause before asking again: no longer than the holder's lease can last, and a little longer
/// than that, for Redis counts whole milliseconds.
fn until_free(pause: Duration, remaining: Option<Duration>) -> Duration {
    remaining.map_or(pause, |remaining| pause.min(remaining + Duration::from_millis(1)))
}

/// What the caller is told of a request for a hold; without a failure the hold is lost.
fn told(failure: Option<Failure>, attempt: &str, name: &str) -> Error {
    failure.map_or_else(|| Error::lost(name), |failure| failure.into_error(attempt, name))
}
