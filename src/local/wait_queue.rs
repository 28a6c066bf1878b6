//! The line of threads of one client that want one lock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::waiter::{QueuedWaiter, Signals, Waiter};
use crate::store::request::Recall;

/// There is one while a thread competes for the lock or holds it. It is small, because most locks
/// are held by somebody whom nobody waits for.
#[derive(Debug)]
pub(super) struct WaitQueue {
    head: Head,
    /// Since somebody waits, or has waited.
    crowd: Option<Box<Waiters>>,
}

enum Head {
    /// Asks the store, and sleeps in between. What went wrong the last time, if it did.
    Competes(Arc<Signals>, Option<Box<Failure>>),
    /// Has the lock, or had it when anybody last looked.
    Holds(Arc<Lease>),
    /// Has gone, and left its release to another thread.
    Leaves(Box<Leaving>),
    /// Is being given to a thread that was promised it.
    Passes,
}

/// A hold whose release was left to another thread.
struct Leaving {
    lease: Arc<Lease>,
    /// Until somebody has tried.
    recall: Option<Recall>,
}

/// Those who wait behind the head.
#[derive(Debug, Default)]
struct Waiters {
    places: VecDeque<QueuedWaiter>,
    handed: Handoffs,
}

/// How often the lock was handed on since it was got from the store, and since when somebody waits
/// for that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handoffs {
    pub(crate) times: u32,
    pub(crate) since: Instant,
}

impl Default for Handoffs {
    fn default() -> Self {
        Self { times: 0, since: Instant::now() }
    }
}

impl WaitQueue {
    /// With a thread at the head that competes.
    pub(super) fn new(ticket: &Waiter) -> Self {
        Self { head: Head::Competes(ticket.mailbox.clone(), None), crowd: None }
    }

    /// Adds the last place.
    pub(super) fn add(&mut self, place: QueuedWaiter) {
        self.crowd.get_or_insert_default().places.push_back(place);
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &QueuedWaiter> {
        self.crowd.iter().flat_map(|crowd| &crowd.places)
    }

    /// Takes the next place.
    pub(super) fn next(&mut self) -> Option<QueuedWaiter> {
        self.crowd.as_mut()?.places.pop_front()
    }

    /// Takes the place of a thread, unless it has been promised something.
    pub(super) fn withdraw(&mut self, ticket: &Waiter) -> Option<QueuedWaiter> {
        let places = &mut self.crowd.as_mut()?.places;
        let place = places.iter().position(|place| ticket.is_of(place))?;
        places.remove(place)
    }

    /// Takes the places of those who would wait without limit.
    pub(super) fn withdraw_endless(&mut self) -> VecDeque<QueuedWaiter> {
        let Some(crowd) = &mut self.crowd else { return VecDeque::new() };
        let (endless, others) = crowd.places.drain(..).partition(|place| place.endless);
        crowd.places = others;
        endless
    }

    /// Where the thread at the head looks for news, if it has not got the lock.
    pub(super) fn competitor(&self) -> Option<&Arc<Signals>> {
        if let Head::Competes(mailbox, _) = &self.head { Some(mailbox) } else { None }
    }

    /// What went wrong the last time that the thread at the head has tried, if it did.
    pub(super) fn failure(&self) -> Option<&Failure> {
        if let Head::Competes(_, failure) = &self.head { failure.as_deref() } else { None }
    }

    /// The hold of the thread at the head.
    pub(super) fn holder(&self) -> Option<&Arc<Lease>> {
        if let Head::Holds(lease) = &self.head { Some(lease) } else { None }
    }

    pub(super) fn is_held_by(&self, lease: &Lease) -> bool {
        let held = match &self.head {
            Head::Holds(held) => held,
            Head::Leaves(leaving) => &leaving.lease,
            Head::Competes(..) | Head::Passes => return false,
        };
        std::ptr::eq(&raw const **held, lease)
    }

    /// Tells whether the release of the hold at the head is under way.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.head, Head::Leaves(_))
    }

    /// Tells whether it is, and nobody waits for its end.
    pub(super) fn is_about_to_end(&self) -> bool {
        self.is_leaving() && self.places().next().is_none()
    }

    /// Notes how the last try of the thread at the head ended.
    pub(super) fn note(&mut self, last: Option<&Failure>) {
        if let Head::Competes(_, failure) = &mut self.head {
            *failure = last.cloned().map(Box::new);
        }
    }

    pub(super) fn compete(&mut self, mailbox: &Arc<Signals>) {
        self.head = Head::Competes(mailbox.clone(), None);
    }

    /// Notes that the thread at the head has got the lock from the store.
    pub(super) fn hold(&mut self, lease: &Arc<Lease>) {
        self.head = Head::Holds(lease.clone());
        if let Some(crowd) = &mut self.crowd {
            crowd.handed = Handoffs::default();
        }
    }

    /// Notes that it has got the lock from the one before.
    pub(super) fn hold_next(&mut self, lease: &Arc<Lease>) {
        self.head = Head::Holds(lease.clone());
        if let Some(crowd) = &mut self.crowd {
            crowd.handed.times = crowd.handed.times.saturating_add(1);
        }
    }

    /// Takes the next place, which is to get the lock.
    pub(super) fn promise(&mut self) -> Option<(QueuedWaiter, Handoffs)> {
        let crowd = self.crowd.as_mut()?;
        let place = crowd.places.pop_front()?;
        self.head = Head::Passes;
        Some((place, crowd.handed))
    }

    /// Notes that the release of the hold at the head was left to another thread.
    pub(super) fn leave(&mut self, lease: &Arc<Lease>, recall: Recall) {
        self.head = Head::Leaves(Box::new(Leaving { lease: lease.clone(), recall: Some(recall) }));
    }

    /// Takes that release back if it has not been sent, for the first who comes. The next hold may
    /// begin in its place.
    pub(super) fn recall(&mut self) -> Option<Arc<Lease>> {
        if !self.is_about_to_end() {
            return None;
        }
        let Head::Leaves(leaving) = &mut self.head else { return None };
        let recall = leaving.recall.take()?;
        let lease = recall.recall().then(|| leaving.lease.clone())?;
        self.head = Head::Passes;
        Some(lease)
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Competes(..) => "Competes",
            Self::Holds(_) => "Holds",
            Self::Leaves(_) => "Leaves",
            Self::Passes => "Passes",
        })
    }
}
