//! What follows from the loss of a lease.
//!
//! Decides which events and log lines report it, and that the next waiter of this process may try.
//! Knows nothing of the store: its callers decide whether the hold must be removed there.

use std::sync::Arc;

use crate::event::{Event, Events};
use crate::local::counters::Counters;
use crate::local::lease::Lease;
use crate::local::wait_queues::WaitQueues;
use crate::store::hold::{HoldId, HoldKind};

/// Why leases are lost.
pub(crate) const EXPIRED: &str = "it was not renewed in time";
pub(crate) const GONE: &str = "the server does not know it any more";

/// Reports lost leases to the user, and ends lost holds in the wait queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossNotifier {
    pub(super) events: Events,
    pub(super) counters: Arc<Counters>,
    wait_queues: Arc<WaitQueues>,
    /// Those of read-write locks and semaphores.
    member_queues: Arc<WaitQueues>,
}

impl LossNotifier {
    pub(crate) fn new(
        events: Events,
        counters: Arc<Counters>,
        wait_queues: Arc<WaitQueues>,
        member_queues: Arc<WaitQueues>,
    ) -> Self {
        Self { events, counters, wait_queues, member_queues }
    }

    /// Marks a lease as lost if its deadline has passed. Returns `true` for the one call that does.
    pub(crate) fn expire(&self, lease: &Lease) -> bool {
        let lost = lease.expire();
        if lost {
            self.report(lease, EXPIRED);
        }
        lost
    }

    /// Marks a lease as lost because the server does not know the hold any more.
    pub(crate) fn lose(&self, lease: &Lease) {
        if lease.lose() {
            self.report(lease, GONE);
        }
    }

    /// Notes that a hold which was released does not exist any more.
    pub(crate) fn confirm_release(&self, hold: &HoldId) {
        let is_lock = hold.kind == HoldKind::Lock;
        let queues = if is_lock { &self.wait_queues } else { &self.member_queues };
        queues.confirm_release(hold);
    }

    /// Reports that a lease was lost.
    pub(crate) fn report(&self, lease: &Lease, why: &str) {
        let (name, fence) = (lease.name(), lease.fence);
        if !lease.is_unreported() {
            self.events
                .warn(|| format!("the lease of lock {name:?} (fence {fence}) is lost: {why}"));
        }
        self.end(lease);
    }

    /// Does what a loss entails, without a line of its own for the log.
    pub(crate) fn end(&self, lease: &Lease) {
        let (name, fence) = (lease.name(), lease.fence);
        // First the event: the next holder reports its own.
        if !lease.is_unreported() {
            self.counters.lost.add(1);
            self.events.emit(|| Event::Lost { name: name.to_string(), fence });
        }
        self.wait_queues.end_hold(lease);
    }
}
