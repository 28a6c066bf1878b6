//! Wait queues that share a lock: those of the names that fall to it.
//!
//! Decides when there is a queue for a name: while a thread is at its head, the lock is kept, or a
//! release is not confirmed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::shrink;
use crate::local::call::Caller;
use crate::local::hold::Hold;
use crate::local::pending::Followers;
use crate::local::wait_queue::{Arrival, Turn, WaitQueue};
use crate::local::waiter::{QueuedWaiter, Signal, Waiter};
use crate::store::hold_id::{HoldId, HoldKind};

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

    /// Adds a thread that asks for a hold to a queue, or begins one with it. Returns its turn if it
    /// is the head.
    pub(super) fn push(
        &mut self,
        hold: HoldId,
        caller: &Caller,
        endless: bool,
        rejoins: bool,
    ) -> (Arc<Waiter>, Option<Turn>) {
        let waiter = Arc::new(Waiter::new(hold, caller));
        let name = &waiter.hold.name;
        let Some(queue) = self.0.get_mut(name) else {
            self.0.insert(name.clone(), WaitQueue::new(&waiter));
            return (waiter, Some(Turn::Head(Arrival::First { after_release: false })));
        };
        if let Some(turn) = queue.take_kept(&waiter, caller) {
            return (waiter, Some(turn));
        }
        if !queue.has_head() {
            queue.set_acquiring(&waiter);
            let after_release = !queue.released().is_empty();
            return (waiter, Some(Turn::Head(Arrival::First { after_release })));
        }
        let queued = QueuedWaiter { caller: caller.clone(), endless, waiter: waiter.clone() };
        queue.push(queued, rejoins);
        (waiter, None)
    }

    /// Makes the first waiter the head, and returns what it wants, or removes the queue.
    pub(super) fn advance(&mut self, name: &str) -> Option<HoldKind> {
        let queue = self.0.get_mut(name)?;
        let Some(next) = queue.advance() else {
            if queue.remove_head() {
                self.remove(name);
            }
            return None;
        };
        next.waiter.send(Signal::Head);
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

    /// Ends the tenure of a name if it is kept, and is the one that is meant. Returns it, to be
    /// released.
    pub(super) fn end_kept(
        &mut self,
        name: &str,
        is_meant: impl FnOnce(&Hold) -> bool,
    ) -> Option<Arc<Hold>> {
        let hold = self.0.get(name)?.kept().filter(|hold| is_meant(hold))?.clone();
        let ended = hold.end();
        if ended {
            self.remember_released(&hold, false);
        }
        ended.then_some(hold)
    }

    /// The names of locks that are kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().filter(|(_, queue)| queue.kept().is_some()).map(|(name, _)| name)
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

    /// Returns all threads that wait behind heads, or at one for the lock.
    pub(super) fn threads(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.0.values().flat_map(WaitQueue::threads)
    }

    /// Returns for each name that threads want how many do.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        let counts = self.0.iter().map(|(name, queue)| (name, queue.threads().count()));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Returns the heads that acquire a lock, and who waits behind each.
    pub(super) fn acquiring(&self) -> Vec<(Arc<Waiter>, Followers)> {
        self.0.values().filter_map(WaitQueue::acquiring).collect()
    }

    fn remove(&mut self, name: &str) {
        self.0.remove(name);
        shrink(&mut self.0);
    }
}
