//! Wake-ups: what a waiting client is told by others.

use std::time::Instant;

use crate::failure::Failure;
use crate::net::interrupter::Interrupter;

/// A message to a waiting client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The lock of this name may be free.
    Lock(String),
    /// Messages arrive from now on; earlier ones may have been missed.
    Ready,
}

/// The messages to one client, for one thread.
pub(crate) trait Wakeups: Send {
    /// Blocks until a message has come or `deadline`, which a new connection may exceed by the time
    /// it takes. After a failure the next call begins anew.
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>>;

    /// Ends a `next` that another thread is in, and fails every later one.
    fn interrupter(&self) -> Interrupter;
}
