//! How a thread comes to try for a lock, and what its attempts show.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::local::lease::Lease;
use crate::local::pending::PendingHandoff;

/// How a thread has come to try for the lock.
pub(super) enum Arrival {
    /// Without waiting behind another thread.
    First {
        /// Whether the release of an earlier hold of this client is not confirmed.
        after_release: bool,
    },
    /// To try once beside the head. A client has one place among the waiting clients: that of the
    /// thread which may try again.
    Beside,
    /// From behind another thread.
    Next {
        /// Whether the lock was released for another client, which goes first.
        yields: bool,
    },
    /// The lock is being handed off to it.
    Handoff(PendingHandoff),
}

/// What an attempt has shown.
pub(super) enum Tried {
    Acquired(NewHold),
    /// Another owner holds the lock, for so long unless it renews; `None` if that is not known.
    Held {
        remaining: Option<Duration>,
        asked: Moment,
    },
}

/// A hold, and how the thread has got it.
pub(super) enum NewHold {
    Acquired {
        lease: Arc<Lease>,
        /// How many more such holds there may be now.
        room: u32,
    },
    HandedOff(Arc<Lease>),
}
