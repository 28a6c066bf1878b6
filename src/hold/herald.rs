//! Whom the loss of a lease concerns.

use std::sync::Arc;

use crate::event::{Event, Events};
use crate::hold::lease::Lease;
use crate::hold::line::Lines;

/// Tells the user of events, and those who wait in line that a hold is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Herald {
    pub(crate) events: Events,
    pub(crate) lines: Arc<Lines>,
}

impl Herald {
    /// Tells that a lease was lost. Called once for each.
    pub(crate) fn lost(&self, lease: &Lease, why: &str) {
        let (name, fence) = (lease.name(), lease.fence);
        self.events.emit(|| Event::Lost { name: name.to_string(), fence });
        log::warn!(target: "leasehold", "the lease of lock {name:?} (fence {fence}) is lost: {why}");
        self.lines.done_with(lease);
    }
}
