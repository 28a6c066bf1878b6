//! What follows from the loss of a lease, or warns of it.
//!
//! Decides which events and log lines report it, and that the next waiter of this process may try.
//! Knows nothing of the store: its callers decide whether the hold must be removed there.

use std::sync::Arc;

use crate::event::{Event, Events};
use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::wait_queues::WaitQueues;

/// Reports what becomes of leases to the user, and ends lost holds in the wait queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossNotifier {
    events: Events,
    wait_queues: Arc<WaitQueues>,
}

impl LossNotifier {
    pub(crate) fn new(events: Events, wait_queues: Arc<WaitQueues>) -> Self {
        Self { events, wait_queues }
    }

    /// Marks a lease as lost if its deadline has passed. Returns `true` for the one call that does.
    pub(crate) fn expire(&self, lease: &Lease) -> bool {
        let lost = lease.expire();
        if lost {
            self.report(lease, "it was not renewed in time");
        }
        lost
    }

    /// Marks a lease as lost because the server does not know the hold any more.
    pub(crate) fn lose(&self, lease: &Lease) {
        if lease.lose() {
            self.report(lease, "the server does not know it any more");
        }
    }

    /// Reports that a renewal brought no confirmation, while there is time to try again.
    pub(crate) fn report_failing_renewal(&self, lease: &Lease, failure: &Failure) {
        let remaining = lease.remaining();
        if remaining.is_zero() {
            return;
        }
        let (name, server, source) = (lease.name(), &failure.server, &failure.source);
        self.events.emit(|| Event::RenewalFailing {
            name: name.to_string(),
            remaining,
            reason: source.to_string(),
        });
        log::warn!(
            target: "leasehold",
            "renewing lock {name:?} on {server} fails, {remaining:?} left: {source}"
        );
    }

    pub(crate) fn report_renewals(&self, count: usize) {
        self.events.emit(|| Event::Renewed { count });
        log::trace!(target: "leasehold", "renewed {count} leases");
    }

    /// Reports that a lease was lost.
    pub(crate) fn report(&self, lease: &Lease, why: &str) {
        let (name, fence) = (lease.name(), lease.fence);
        self.events.emit(|| Event::Lost { name: name.to_string(), fence });
        log::warn!(
            target: "leasehold",
            "the lease of lock {name:?} (fence {fence}) is lost: {why}"
        );
        self.wait_queues.end_hold(lease);
    }
}
