//! Wait queues that share a lock: those of the names that fall to it.
//!
//! Decides when there is a queue for a name: while a thread is at its head, or a release is not
//! confirmed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::shrink::shrink;
use crate::local::call::Caller;
use crate::local::hold::Hold;
use crate::local::wait_queue::{Place, WaitQueue};
use crate::local::waiter::{QueuedWaiter, Signal, Signals, Waiter};
use crate::store::hold_id::{HoldId, HoldKind};

/// Where a thread is in the queue that it has joined.
#[derive(Debug)]
pub(crate) enum Position {
    /// Behind another thread.
    Behind,
    /// At the head, to acquire the lock.
    Head {
        /// Whether the release of an earlier hold is not confirmed.
        after_release: bool,
    },
}

/// The queues, by name.
#[derive(Debug, Default)]
pub(super) struct QueueShard(HashMap<Arc<str>, WaitQueue>);

impl QueueShard {
    pub(super) fn get(&self, name: &str) -> Option<&WaitQueue> {
        self.0.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut WaitQueue> {
        self.0.get_mut(name)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a thread to a queue, or begins one with it.
    pub(super) fn push(
        &mut self,
        name: &Arc<str>,
        caller: &Caller,
        endless: bool,
        place: Place,
    ) -> (Waiter, Position) {
        let waiter = Waiter::new(name);
        let Some(queue) = self.0.get_mut(name) else {
            self.0.insert(name.clone(), WaitQueue::new(&waiter, caller.kind));
            return (waiter, Position::Head { after_release: false });
        };
        if !queue.has_head() {
            queue.set_acquiring(&waiter.signals, caller.kind);
            return (waiter, Position::Head { after_release: !queue.released().is_empty() });
        }
        let signals = waiter.signals.clone();
        queue.push(QueuedWaiter { caller: caller.clone(), endless, signals }, place);
        if matches!(place, Place::Beside) {
            self.end_beside(name);
        }
        (waiter, Position::Behind)
    }

    /// Notes that a thread which was let try beside the head has its answer. The next waiter may
    /// have waited for that.
    pub(super) fn end_beside(&mut self, name: &str) {
        let Some(queue) = self.0.get_mut(name) else { return };
        queue.end_beside();
        if queue.has_head_left() {
            self.advance(name);
        }
    }

    /// Makes the first waiter the head, and returns what it wants, or removes the queue.
    pub(super) fn advance(&mut self, name: &str) -> Option<HoldKind> {
        let queue = self.0.get_mut(name)?;
        if queue.waits_for_beside() {
            return None;
        }
        let Some(next) = queue.advance() else {
            if queue.remove_head() {
                self.remove(name);
            }
            return None;
        };
        next.signals.send(Signal::Head);
        Some(next.caller.kind)
    }

    /// Adds a hold whose release is not confirmed. If it is that of the head, and it `stays` or
    /// threads wait behind it, it stays the head until the release was sent. Returns `true` if a
    /// thread may have to try then.
    pub(super) fn remember_released(&mut self, hold: &Arc<Hold>, stays: bool) -> bool {
        let Some(queue) = self.0.get_mut(hold.name()) else {
            self.0.insert(hold.name().clone(), WaitQueue::without_head(hold));
            return false;
        };
        queue.add_released(hold);
        if queue.is_held_by(hold) && !stays && !queue.is_waited_in() {
            queue.remove_head();
            return false;
        }
        true
    }

    /// Forgets and returns the holds whose release is not confirmed.
    pub(super) fn take_released(&mut self, name: &str) -> Vec<Arc<Hold>> {
        let Some(queue) = self.0.get_mut(name) else { return Vec::new() };
        let released = queue.take_released();
        if !queue.has_head() {
            self.remove(name);
        }
        released
    }

    /// Forgets a hold whose release is confirmed.
    pub(super) fn confirm_release(&mut self, hold: &HoldId) {
        if let Some(queue) = self.0.get_mut(&hold.name) {
            queue.confirm_release(hold);
            if !queue.has_head() && queue.released().is_empty() {
                self.remove(&hold.name);
            }
        }
    }

    /// Returns the signals of all waiters.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Arc<Signals>> {
        self.0.values().flat_map(WaitQueue::waiting)
    }

    /// Returns the signals of the head if it acquires the lock, and what the thread behind it wants
    /// that has its turn along with it.
    pub(super) fn acquiring(&self, name: &str) -> Option<(Arc<Signals>, Option<HoldKind>)> {
        acquiring(self.0.get(name)?)
    }

    /// As `acquiring`, of every queue.
    pub(super) fn acquiring_heads(&self) -> Vec<(Arc<Signals>, Option<HoldKind>)> {
        self.0.values().filter_map(acquiring).collect()
    }

    fn remove(&mut self, name: &str) {
        self.0.remove(name);
        shrink(&mut self.0);
    }
}

fn acquiring(queue: &WaitQueue) -> Option<(Arc<Signals>, Option<HoldKind>)> {
    queue.acquiring().map(|signals| (signals.clone(), queue.next_in_turn()))
}
