//! How a thread comes to try for a lock, and what its attempts show.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::local::hold::Hold;

/// How a thread has come to try for the lock.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Without waiting behind another thread.
    First {
        /// Whether the release of an earlier hold of this client is not confirmed.
        after_release: bool,
    },
    /// As `First`, in place of a tenure that was kept: it may want nothing but more tokens.
    Kept(Arc<Hold>),
    /// From behind another thread.
    Next,
    /// To try once outside the queue. A client has one place among the waiting clients: that of the
    /// thread which may try again.
    Outside,
}

/// What an attempt has shown.
pub(super) enum Tried {
    Acquired(Arc<Hold>),
    /// Another owner holds the lock, for this long unless it renews; `None` if that is not known.
    Held {
        remaining: Option<Duration>,
        asked: Moment,
        /// Whether its client may keep it, and was asked for it.
        recalled: bool,
    },
}
