//! How a call for a lock finds its place: a level more, in line, or at the head. The heart of the
//! library.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use scheduled_thread_pool::ScheduledThreadPool;

use crate::clock::end_of;
use crate::config::{Config, Terms};
use crate::error::{Error, Result};
use crate::event::{Event, Events};
use crate::hold::agenda::Orphan;
use crate::hold::alarm::Alarm;
use crate::hold::herald::Herald;
use crate::hold::lease::Lease;
use crate::hold::lines::Lines;
use crate::hold::listener::{Heard, Listener};
use crate::hold::owner::Owner;
use crate::hold::passage::Passage;
use crate::hold::patience::{Bound, Patience};
use crate::hold::place::{Entry, Ticket, Turn};
use crate::hold::renewer::Renewer;
use crate::hold::table::Table;
use crate::store::failure::Failure;
use crate::store::{HoldId, Queue, Store, Stray};

/// How long a call waits for whoever holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Endless,
    No,
    Until(Instant),
}

impl Wait {
    pub(super) fn bound(self) -> Bound {
        match self {
            Self::Endless => Bound::Endless,
            Self::No => Bound::Brief,
            Self::Until(deadline) => Bound::Deadline(deadline),
        }
    }

    /// Tells whether one try is all there is time for.
    pub(super) fn is_over(self) -> bool {
        match self {
            Self::No => true,
            Self::Endless => false,
            Self::Until(deadline) => deadline <= Instant::now(),
        }
    }

    pub(super) fn deadline(self) -> Option<Instant> {
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
    pub(super) alarm: Alarm,
    /// Started by the first wait for another client.
    listener: OnceLock<Option<Listener>>,
}

/// A level of a hold that a call has brought.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) lease: Arc<Lease>,
    pub(crate) depth: u32,
}

/// How a thread came to the head of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Nobody was there.
    First,
    /// From a place behind.
    Next,
    /// From a place behind, while the lock was released for another client.
    NextPolitely,
}

/// Where a call stands when it need not wait for threads of this client any more.
enum Start {
    /// At the head of the line.
    AtHead(Ticket, Arrival),
    /// Beside the line, for one try.
    Beside(Ticket),
    /// With the lock, which another thread has handed on.
    Held(Arc<Lease>),
    /// With the lock on its way.
    Coming(Ticket, Passage),
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
        let cleaner = renewer.clone();
        store.on_stray(Box::new(move |Stray { hold, lease, settles }| {
            cleaner.clean(Orphan::new(hold, lease, io_timeout, settles));
        }));
        Ok(Self {
            owner: Owner::new(&config.label)?,
            table: Table::default(),
            alarm: Alarm::new(threads),
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
            Some(Start::Coming(ticket, passage)) => {
                self.take_over(passage, terms, wait, &ticket)?
            }
            Some(Start::Beside(ticket)) => self.compete_beside(name, terms, wait, &ticket)?,
            Some(Start::AtHead(ticket, arrival)) => {
                self.compete_at_head(name, terms, wait, &ticket, arrival)?
            }
        };
        if let Some(lease) = &lease {
            self.tell_acquired(lease, started.elapsed());
        }
        Ok(lease.map(|lease| Level { lease, depth: 1 }))
    }

    /// Waits until no thread of this client is in front. `None` if the wait is over before.
    fn line_up(&self, name: &Arc<str>, terms: &Terms, wait: Wait) -> Result<Option<Start>> {
        let (ticket, entry) = if wait != Wait::No {
            self.lines().join(name, terms, wait == Wait::Endless)?
        } else if let Some(first) = self.lines().enter(name, terms)? {
            first
        } else if self.lines().holder(name).is_some_and(|lease| self.stands(&lease)) {
            self.tell_contended(name);
            return Ok(None);
        } else {
            return Ok(Some(Start::Beside(Ticket::new(name))));
        };
        match entry {
            Entry::Head => return Ok(Some(Start::AtHead(ticket, Arrival::First))),
            Entry::After(lease) => {
                let patience = Patience::new(wait.bound(), &self.config, terms.span());
                let passage = self.send_off(&lease, terms, true, &patience);
                return Ok(Some(Start::Coming(ticket, passage)));
            }
            Entry::Behind if wait == Wait::No => {}
            Entry::Behind => self.tell_contended(name),
        }
        let deadline = match wait {
            // It is behind a release that is answered by then, or will not be.
            Wait::No => Some(end_of(self.config.io_timeout(terms.span()))),
            Wait::Endless | Wait::Until(_) => wait.deadline(),
        };
        match self.lines().wait(&ticket, deadline)? {
            Turn::Given(lease) => Ok(Some(Start::Held(lease))),
            Turn::Coming(passage) => Ok(Some(Start::Coming(ticket, passage))),
            Turn::Head { polite: true } => Ok(Some(Start::AtHead(ticket, Arrival::NextPolitely))),
            Turn::Head { polite: false } => Ok(Some(Start::AtHead(ticket, Arrival::Next))),
            Turn::Unanswered => Ok(Some(Start::Beside(ticket))),
            Turn::Late(None) => Ok(None),
            Turn::Late(Some(failure)) | Turn::Failed(failure) => {
                Err(failure.into_error("acquire", name))
            }
        }
    }

    /// Makes sure that releases by other clients are heard.
    pub(super) fn listen(&self, queue: Queue) {
        if queue == Queue::Out {
            return;
        }
        self.listener.get_or_init(|| {
            let wakeups = self.store.wakeups(self.owner.client())?;
            let (lines, store) = (self.herald.lines.clone(), self.store.clone());
            let client = Arc::<str>::from(self.owner.client());
            let io_timeout = self.config.io_timeout(self.config.terms.span());
            let hear = move |heard: Heard<'_>| match heard {
                Heard::All => lines.knock_all(&*store),
                Heard::Lock(name) if !lines.knock(name, &*store) => {
                    // Nobody waits for it any more: the next client should know.
                    store.leave(name, &client, end_of(io_timeout)).unwrap_or_default();
                    // Somebody who began to wait in between is not in the queue now.
                    lines.knock(name, &*store);
                }
                Heard::Lock(_) => {}
            };
            let started = Listener::start(wakeups, hear, self.config.backoff);
            started.map_err(|error| log::warn!(target: "leasehold", "no listener: {error}")).ok()
        });
    }

    /// Leaves to the renewer to remove what may stand in Redis, or may come to, for a lease.
    pub(super) fn clean(&self, id: &HoldId, lease: Duration, settles: bool) {
        let io_timeout = self.config.io_timeout(lease);
        self.renewer.clean(Orphan::new(id.clone(), lease, io_timeout, settles));
    }

    pub(super) fn lines(&self) -> &Lines {
        &self.herald.lines
    }

    pub(super) fn tell_contended(&self, name: &Arc<str>) {
        self.herald.events.emit(|| Event::Contended { name: name.to_string() });
        log::debug!(target: "leasehold", "lock {name:?} is held by somebody else");
    }

    fn tell_acquired(&self, lease: &Lease, waited: Duration) {
        let (name, fence) = (lease.name(), lease.fence);
        self.herald.events.emit(|| Event::Acquired { name: name.to_string(), fence, waited });
        log::debug!(target: "leasehold", "acquired lock {name:?} (fence {fence}) after {waited:?}");
    }
}

/// What the caller is told of a request for a hold; without a failure the hold is lost.
pub(super) fn told(failure: Option<Failure>, attempt: &str, name: &str) -> Error {
    failure.map_or_else(|| Error::lost(name), |failure| failure.into_error(attempt, name))
}
