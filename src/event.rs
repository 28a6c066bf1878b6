//! Events in the life of a lock, which are delivered to the program's callback.

use std::time::Duration;

/// An event in the life of a lock of this client, of every kind. See
/// [`Builder::on_event`](crate::Builder::on_event).
///
/// A set of locks is reported once it is complete, each lock by its own name. A call for a set that
/// ends without it is reported by all names, separated by commas. Inner levels of nested locks are
/// not reported. Permits of a semaphore have no fencing token: it is 0.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread acquired a lock.
    Acquired {
        /// The name of the lock.
        name: String,
        /// The fencing token of the new hold.
        fence: u64,
        /// How long the call took, including the wait.
        waited: Duration,
    },
    /// A thread found a lock held by another owner. Reported once per call.
    Contended {
        /// The name of the lock; of several locks, the first that was held.
        name: String,
    },
    /// A call for a lock failed because of an outage or a refusal.
    #[non_exhaustive]
    Failed {
        /// The name of the lock.
        name: String,
        /// How long the call took.
        waited: Duration,
        /// The error of the call, with its causes.
        reason: String,
    },
    /// A lease ended before its guard did.
    Lost {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
    },
    /// A lock could not be released. It ends with its lease, or earlier by a retry in the
    /// background.
    #[non_exhaustive]
    ReleaseFailed {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// The cause of the failure.
        reason: String,
    },
    /// A lock was released.
    Released {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// How long it was held, from the reply that brought it until its release.
        held: Duration,
    },
    /// A renewal was not confirmed. It is retried until the lease ends. Reported once until a
    /// renewal of that lease succeeds again.
    #[non_exhaustive]
    RenewalFailing {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// How much of the lease is left.
        remaining: Duration,
        /// The cause of the failure.
        reason: String,
    },
    /// A batch of leases was renewed.
    Renewed {
        /// The number of leases.
        count: usize,
    },
    /// A wait for a lock was over before the lock was free.
    TimedOut {
        /// The name of the lock.
        name: String,
        /// How long the call took.
        waited: Duration,
    },
}
