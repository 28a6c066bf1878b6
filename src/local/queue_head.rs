//! The head of a wait queue while it acquires the lock.
//!
//! Decides what becomes of the queue when that ends: the head stays with the lock, leaves with it,
//! or gives up.

use crate::local::retry::is_outage;
use crate::local::try_loop::Stopped;
use crate::local::wait_queues::WaitQueues;
use crate::store::hold_id::{HoldId, HoldKind};

/// The head of a wait queue, which is given up even if the thread panics.
pub(super) struct QueueHead<'a> {
    queues: &'a WaitQueues,
    hold: &'a HoldId,
    /// Whether the call waits without limit.
    endless: bool,
    kept: bool,
}

impl<'a> QueueHead<'a> {
    pub(super) fn new(queues: &'a WaitQueues, hold: &'a HoldId, endless: bool) -> Self {
        Self { queues, hold, endless, kept: false }
    }

    /// Stays the head, with the lock.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    /// Makes the next thread the head, which may get the same.
    pub(super) fn leave(mut self) {
        self.kept = true;
        self.queues.give_up_head(self.hold, None);
    }

    /// Returns what the thread wants that is at the head now.
    pub(super) fn give_up(mut self, stopped: &Stopped) -> Option<HoldKind> {
        self.kept = true;
        let outage = match stopped {
            Stopped::Failed(failure) if self.endless && is_outage(failure) => Some(failure),
            Stopped::Ended(_) | Stopped::Failed(_) | Stopped::TimedOut => None,
        };
        self.queues.give_up_head(self.hold, outage)
    }
}

impl Drop for QueueHead<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.queues.give_up_head(self.hold, None);
        }
    }
}
