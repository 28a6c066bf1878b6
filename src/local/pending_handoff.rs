//! A lock on its way from one thread to the next.

use std::fmt;
use std::sync::Arc;

use crate::clock::Moment;
use crate::local::lease::Lease;
use crate::store::hold::HoldId;
use crate::store::request::{PendingReply, TransferReply};

/// A transfer that was asked for. Whoever needs it first waits for the answer.
pub(crate) struct PendingHandoff {
    /// The hold that ends.
    pub(super) from: Arc<Lease>,
    /// The hold that begins.
    pub(super) to: HoldId,
    /// Whether another client may get the lock instead.
    pub(super) yields: bool,
    /// When it was asked for.
    pub(super) sent: Moment,
    pub(super) answer: PendingReply<TransferReply>,
    /// Whether the thread that takes it over settles the hold that ends.
    pub(super) settles: bool,
}

impl fmt::Debug for PendingHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandoff").field("to", &self.to).finish_non_exhaustive()
    }
}
