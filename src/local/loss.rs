//! Whom the loss of a lease concerns.

use std::sync::Arc;

use crate::event::{Event, Events};
use crate::local::lease::Lease;
use crate::local::wait_queues::WaitQueues;

/// Tells the user of events, and those who wait in line that a hold is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossNotifier {
    pub(crate) events: Events,
    pub(crate) lines: Arc<WaitQueues>,
}

impl LossNotifier {
    /// Finds out whether a lease is over, and tells if it is. `true` the one time it turns out.
    pub(crate) fn expire(&self, lease: &Lease) -> bool {
        let lost = lease.expire();
        if lost {
            self.lost(lease, "it was not renewed in time");
        }
        lost
    }

    /// Takes in that the server does not know a hold any more, and tells if this is news.
    pub(crate) fn lose(&self, lease: &Lease) {
        if lease.lose() {
            self.lost(lease, "the server does not know it any more");
        }
    }

    /// Tells that a lease was lost.
    pub(crate) fn lost(&self, lease: &Lease, why: &str) {
        let (name, fence) = (lease.name(), lease.fence);
        self.events.emit(|| Event::Lost { name: name.to_string(), fence });
        log::warn!(target: "leasehold", "the lease of lock {name:?} (fence {fence}) is lost: {why}");
        self.lines.done_with(lease);
    }
}
