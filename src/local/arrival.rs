//! How a thread comes to try for a lock, and what its attempts show.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::local::hold::Hold;

/// How a thread has come to try for the lock.
#[derive(Clone, Copy)]
pub(super) enum Arrival {
    /// Without waiting behind another thread.
    First {
        /// Whether the release of an earlier hold of this client is not confirmed.
        after_release: bool,
    },
    /// To try once outside the queue. A client has one place among the waiting clients: that of the
    /// thread which may try again.
    Beside,
    /// From behind another thread.
    Next,
}

/// What an attempt has shown.
pub(super) enum Tried {
    Acquired(NewHold),
    /// Another owner holds the lock, for this long unless it renews; `None` if that is not known.
    Held {
        remaining: Option<Duration>,
        asked: Moment,
    },
}

/// A hold that was acquired.
pub(super) struct NewHold {
    pub(super) hold: Arc<Hold>,
    /// How many more there may be now: at the same time, or of a lock one after the other.
    pub(super) room: u32,
}
