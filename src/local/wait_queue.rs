//! The wait queue of one lock: the threads of one client that want it, in the order in which they
//! came. It exists while a thread of the client acquires or holds the lock.
//!
//! Decides what the state of its head allows. Knows neither signals nor the other queues.
//!
//! | head | meaning | next |
//! |---|---|---|
//! | `Acquiring` | it tries to acquire the lock, and sleeps in between | `Held` |
//! | `Held` | it has the lock, or had it when it last looked | `HandingOff` or `None` |
//! | `HandingOff` | the first waiter is to get the lock by a transfer | `Held` or `Acquiring` |
//! | `None` | no thread wants the lock, but its release is not confirmed | `Acquiring` |
//!
//! From each state, when the head gives up, releases or loses the lock, the first waiter becomes
//! the head as `Acquiring`. Without a waiter the queue is removed, unless a release is not
//! confirmed: until then a reply that the lock is held may mean that very hold.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem};

use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::waiter::{QueuedWaiter, Signals, Waiter};
use crate::store::hold::HoldId;

/// It is small, because no thread waits for most locks.
#[derive(Debug)]
pub(super) struct WaitQueue {
    head: Head,
    /// The holds that were released, as long as it is not known that they have ended in the store.
    released: Vec<Arc<Lease>>,
    /// `None` until a first thread has waited.
    waiters: Option<Box<Waiters>>,
}

enum Head {
    /// With the failure of its last attempt, if it failed.
    Acquiring(Arc<Signals>, Option<Box<Failure>>),
    HandingOff,
    Held(Arc<Lease>),
    None,
}

/// The threads behind the head.
#[derive(Debug, Default)]
struct Waiters {
    queue: VecDeque<QueuedWaiter>,
    handoffs: Handoffs,
}

/// How often the lock was handed off since it was acquired from the store, and since when threads
/// have waited for that.
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
    /// A queue whose head acquires the lock.
    pub(super) fn new(head: &Waiter) -> Self {
        let head = Head::Acquiring(head.signals.clone(), None);
        Self { head, released: Vec::new(), waiters: None }
    }

    /// A queue of no thread, which remembers a hold whose release is not confirmed.
    pub(super) fn without_head(released: &Arc<Lease>) -> Self {
        Self { head: Head::None, released: vec![released.clone()], waiters: None }
    }

    pub(super) fn push(&mut self, waiter: QueuedWaiter) {
        self.waiters.get_or_insert_default().queue.push_back(waiter);
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = &QueuedWaiter> {
        self.waiters.iter().flat_map(|waiters| &waiters.queue)
    }

    /// Makes the first waiter the head, and returns it. `None` if there is none.
    pub(super) fn advance(&mut self) -> Option<QueuedWaiter> {
        let next = self.waiters.as_mut()?.queue.pop_front()?;
        self.set_acquiring(&next.signals);
        Some(next)
    }

    /// Removes a waiter, unless it has become the head or the lock is being handed off to it.
    pub(super) fn remove(&mut self, waiter: &Waiter) -> Option<QueuedWaiter> {
        let queue = &mut self.waiters.as_mut()?.queue;
        let position = queue.iter().position(|queued| waiter.is_same(queued))?;
        queue.remove(position)
    }

    /// Removes and returns the waiters that would wait without limit.
    pub(super) fn remove_endless(&mut self) -> VecDeque<QueuedWaiter> {
        let Some(waiters) = &mut self.waiters else { return VecDeque::new() };
        let (endless, others) = waiters.queue.drain(..).partition(|waiter| waiter.endless);
        waiters.queue = others;
        endless
    }

    /// Returns the signals of the head if it acquires the lock.
    pub(super) fn acquiring(&self) -> Option<&Arc<Signals>> {
        if let Head::Acquiring(signals, _) = &self.head { Some(signals) } else { None }
    }

    /// Returns why the last attempt of the head failed, if it did.
    pub(super) fn failure(&self) -> Option<&Failure> {
        if let Head::Acquiring(_, failure) = &self.head { failure.as_deref() } else { None }
    }

    /// Returns the hold of the head if it has one.
    pub(super) fn holder(&self) -> Option<&Arc<Lease>> {
        if let Head::Held(lease) = &self.head { Some(lease) } else { None }
    }

    pub(super) fn is_held_by(&self, lease: &Lease) -> bool {
        self.holder().is_some_and(|held| std::ptr::eq(&raw const **held, lease))
    }

    pub(super) fn has_head(&self) -> bool {
        !matches!(self.head, Head::None)
    }

    /// The holds whose release is not confirmed.
    pub(super) fn released(&self) -> &[Arc<Lease>] {
        &self.released
    }

    pub(super) fn take_released(&mut self) -> Vec<Arc<Lease>> {
        mem::take(&mut self.released)
    }

    /// Adds a hold whose release is not confirmed.
    pub(super) fn add_released(&mut self, lease: &Arc<Lease>) {
        self.released.push(lease.clone());
    }

    /// Forgets one of these, which has ended in the store.
    pub(super) fn confirm_release(&mut self, hold: &HoldId) {
        self.released.retain(|released| released.id.nonce != hold.nonce);
    }

    /// Removes the head. Returns `true` if the queue is of no use then.
    pub(super) fn remove_head(&mut self) -> bool {
        self.head = Head::None;
        self.released.is_empty()
    }

    /// Sets how the last attempt of the head ended.
    pub(super) fn set_failure(&mut self, last: Option<&Failure>) {
        if let Head::Acquiring(_, failure) = &mut self.head {
            *failure = last.cloned().map(Box::new);
        }
    }

    pub(super) fn set_acquiring(&mut self, signals: &Arc<Signals>) {
        self.head = Head::Acquiring(signals.clone(), None);
    }

    /// Gives the head the hold that it has acquired from the store.
    pub(super) fn set_acquired(&mut self, lease: &Arc<Lease>) {
        self.head = Head::Held(lease.clone());
        if let Some(waiters) = &mut self.waiters {
            waiters.handoffs = Handoffs::default();
        }
    }

    /// Gives the head the hold that was handed off to it.
    pub(super) fn set_handed_off(&mut self, lease: &Arc<Lease>) {
        self.head = Head::Held(lease.clone());
        if let Some(waiters) = &mut self.waiters {
            waiters.handoffs.times = waiters.handoffs.times.saturating_add(1);
        }
    }

    /// Removes and returns the first waiter, which is to get the lock.
    pub(super) fn start_handoff(&mut self) -> Option<(QueuedWaiter, Handoffs)> {
        let waiters = self.waiters.as_mut()?;
        let next = waiters.queue.pop_front()?;
        self.head = Head::HandingOff;
        Some((next, waiters.handoffs))
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquiring(..) => "Acquiring",
            Self::HandingOff => "HandingOff",
            Self::Held(_) => "Held",
            Self::None => "None",
        })
    }
}
