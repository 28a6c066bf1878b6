//! How a call for a lock finds its place: a level more, in line, or at the head. The heart of the
//! library.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::config::{Config, LockOptions};
use crate::error::{Error, Result};
use crate::event::{Event, Events};
use crate::failure::Failure;
use crate::local::held_locks::HeldLocks;
use crate::local::identity::Identity;
use crate::local::lease::Lease;
use crate::local::listener::{Heard, Listener};
use crate::local::loss::LossNotifier;
use crate::local::pending_handoff::PendingHandoff;
use crate::local::renewer::Renewer;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::timers::CleanUp;
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::{Position, Turn, Waiter};
use crate::local::watchdog::Watchdog;
use crate::net::pool::PoolThread;
use crate::store::Store;
use crate::store::hold::HoldId;
use crate::store::job::InDoubtHold;
use crate::store::request::Registration;

/// How long a call waits for whoever holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Endless,
    No,
    Until(Instant),
}

impl Wait {
    pub(super) fn bound(self) -> RetryLimit {
        match self {
            Self::Endless => RetryLimit::Endless,
            Self::No => RetryLimit::Brief,
            Self::Until(deadline) => RetryLimit::Deadline(deadline),
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
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) owner: Identity,
    pub(super) store: Arc<dyn Store>,
    pub(super) table: HeldLocks,
    pub(super) renewer: Renewer,
    pub(super) losses: LossNotifier,
    pub(super) alarm: Watchdog,
    /// Whether the store takes a hold back that it has not granted at once. Then it must not be asked
    /// for again: the request that takes it back may come late.
    pub(super) withdraws: bool,
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
pub(super) enum HeadStart {
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
    AtHead(Waiter, HeadStart),
    /// Beside the line, for one try.
    Beside(Waiter),
    /// With the lock, which another thread has handed on.
    Held(Arc<Lease>),
    /// With the lock on its way.
    Coming(Waiter, PendingHandoff),
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("owner", &self.owner)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn start(
        config: Config,
        store: Arc<dyn Store>,
        withdraws: bool,
        pool_thread: Option<PoolThread>,
        events: Events,
    ) -> Result<Self> {
        let io_timeout = config.io_timeout(config.options.first_lease());
        let losses = LossNotifier { events, lines: Arc::default() };
        let renewer =
            Renewer::start(store.jobs(), io_timeout, losses.clone()).map_err(Error::no_thread)?;
        Ok(Self {
            owner: Identity::new(&config.label)?,
            table: HeldLocks::default(),
            alarm: Watchdog::new(pool_thread),
            listener: OnceLock::new(),
            config,
            withdraws,
            store,
            renewer,
            losses,
        })
    }

    /// Turns away new calls and those that wait.
    pub(crate) fn close(&self) {
        self.lines().close();
    }

    /// Takes a lock, or one more level of it; `None` if it is still held by somebody else when the
    /// wait is over.
    pub(crate) fn lock(
        &self,
        name: &Arc<str>,
        options: &LockOptions,
        wait: Wait,
    ) -> Result<Option<Level>> {
        self.owner.check_process()?;
        self.config.check_name(name)?;
        options.check(&self.config)?;
        self.lines().check_open()?;
        if let Some(lease) = self.table.find(thread::current().id(), name) {
            return self.nest(lease, wait).map(Some);
        }
        let started = Instant::now();
        let lease = match self.line_up(name, options, wait)? {
            None => None,
            Some(Start::Held(lease)) => Some(lease),
            Some(Start::Coming(ticket, passage)) => {
                self.take_over(passage, options, wait, &ticket)?
            }
            Some(Start::Beside(ticket)) => self.compete_beside(name, options, wait, &ticket)?,
            Some(Start::AtHead(ticket, arrival)) => {
                self.compete_at_head(name, options, wait, &ticket, arrival)?
            }
        };
        if let Some(lease) = &lease {
            self.tell_acquired(lease, started.elapsed());
        }
        Ok(lease.map(|lease| Level { lease, depth: 1 }))
    }

    /// Waits until no thread of this client is in front. `None` if the wait is over before.
    fn line_up(&self, name: &Arc<str>, options: &LockOptions, wait: Wait) -> Result<Option<Start>> {
        let (ticket, entry) = if wait != Wait::No {
            self.lines().join(name, options, wait == Wait::Endless)?
        } else if let Some(first) = self.lines().enter(name, options)? {
            first
        } else if self.lines().holder(name).is_some_and(|lease| self.stands(&lease)) {
            self.tell_contended(name);
            return Ok(None);
        } else {
            return Ok(Some(Start::Beside(Waiter::new(name))));
        };
        match entry {
            Position::Head => return Ok(Some(Start::AtHead(ticket, HeadStart::First))),
            Position::After(lease) => {
                let retry = RetryPolicy::new(wait.bound(), &self.config, options.first_lease());
                let passage = self.send_off(&lease, options, true, &retry);
                return Ok(Some(Start::Coming(ticket, passage)));
            }
            Position::Behind if wait == Wait::No => {}
            Position::Behind => self.tell_contended(name),
        }
        let deadline = match wait {
            // It is behind a release that is answered by then, or will not be.
            Wait::No => Some(end_of(self.config.io_timeout(options.first_lease()))),
            Wait::Endless | Wait::Until(_) => wait.deadline(),
        };
        match self.lines().wait(&ticket, deadline)? {
            Turn::Given(lease) => Ok(Some(Start::Held(lease))),
            Turn::Coming(passage) => Ok(Some(Start::Coming(ticket, passage))),
            Turn::Head { polite: true } => Ok(Some(Start::AtHead(ticket, HeadStart::NextPolitely))),
            Turn::Head { polite: false } => Ok(Some(Start::AtHead(ticket, HeadStart::Next))),
            Turn::Unanswered => Ok(Some(Start::Beside(ticket))),
            Turn::Late(None) => Ok(None),
            Turn::Late(Some(failure)) | Turn::Failed(failure) => {
                Err(failure.into_error("acquire", name))
            }
        }
    }

    /// Makes sure that releases by other clients are heard.
    pub(super) fn listen(&self, queue: Registration) {
        if queue == Registration::None {
            return;
        }
        self.listener.get_or_init(|| {
            let wakeups = self.store.wakeups(self.owner.client())?;
            let (lines, store) = (self.losses.lines.clone(), self.store.clone());
            let client = Arc::<str>::from(self.owner.client());
            let io_timeout = self.config.io_timeout(self.config.options.first_lease());
            let hear = move |heard: Heard<'_>| match heard {
                Heard::All => lines.knock_all(&*store),
                Heard::Lock(name) if !lines.knock(name, &*store) => {
                    // Nobody waits for it any more: the next client should know.
                    store.unregister(name, &client, end_of(io_timeout)).unwrap_or_default();
                    // Somebody who began to wait in between is not in the queue now.
                    lines.knock(name, &*store);
                }
                Heard::Lock(_) => {}
            };
            let started = Listener::start(wakeups, hear, self.config.backoff);
            started.map_err(|error| log::warn!(target: "leasehold", "no listener: {error}")).ok()
        });
    }

    /// Where a store reports holds that are left over.
    pub(crate) fn in_doubt_reports(&self) -> impl Fn(InDoubtHold) + Send + Sync + 'static {
        let io_timeout = self.config.io_timeout(self.config.options.first_lease());
        let renewer = self.renewer.clone();
        move |InDoubtHold { hold, lease, settled_by_release }| {
            renewer.clean(CleanUp::new(hold, lease, io_timeout, settled_by_release));
        }
    }

    /// Leaves to the renewer to remove what may stand in Redis, or may come to, for a lease.
    pub(super) fn clean(&self, id: &HoldId, lease: Duration, settles: bool) {
        let io_timeout = self.config.io_timeout(lease);
        self.renewer.clean(CleanUp::new(id.clone(), lease, io_timeout, settles));
    }

    pub(super) fn lines(&self) -> &WaitQueues {
        &self.losses.lines
    }

    pub(super) fn tell_contended(&self, name: &Arc<str>) {
        self.losses.events.emit(|| Event::Contended { name: name.to_string() });
        log::debug!(target: "leasehold", "lock {name:?} is held by somebody else");
    }

    fn tell_acquired(&self, lease: &Lease, waited: Duration) {
        let (name, fence) = (lease.name(), lease.fence);
        self.losses.events.emit(|| Event::Acquired { name: name.to_string(), fence, waited });
        log::debug!(target: "leasehold", "acquired lock {name:?} (fence {fence}) after {waited:?}");
    }
}

/// What the caller is told of a request for a hold; without a failure the hold is lost.
pub(super) fn told(failure: Option<Failure>, attempt: &str, name: &str) -> Error {
    failure.map_or_else(|| Error::lost(name), |failure| failure.into_error(attempt, name))
}
