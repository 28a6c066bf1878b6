//! Wake-ups: the messages that tell a waiting client that a lock may be free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::net::interrupter::Interrupter;

/// A connection that lasted this long belongs to no outage before or after it.
pub(crate) const STABLE: Duration = Duration::from_secs(1);

/// A message to a waiting client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The hold of this lock with this nonce was ended by force.
    Ended { name: String, nonce: u64 },
    /// The lock of this name may be free.
    Lock(String),
    /// Another client wants the lock of which this client has the hold with this nonce.
    Recall {
        name: String,
        nonce: u64,
        /// Whether it waits, longer than a moment for a lock that is kept.
        waits: bool,
    },
    /// Redisson has released the locks of these names, or may have: a client that has not joined
    /// the queue may have taken them since.
    Unlocked(Vec<Arc<str>>),
    /// Messages arrive from now on; earlier ones may have been missed.
    Ready,
}

/// The messages to one client, for one thread.
pub(crate) trait Wakeups: Send {
    /// Blocks until a message has come or `deadline`. A message that has come already is returned
    /// even after the deadline. Fails if no message can come at the moment; the next call tries
    /// again.
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>>;

    /// Ends a `next` of another thread, and fails every later one.
    fn interrupter(&self) -> Interrupter;
}
