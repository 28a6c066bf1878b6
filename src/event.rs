//! The events that the program's callback receives, and the trait of their receivers.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::error::LossCause;

/// Something that happened to a lock of this client, of any kind. See
/// [`Builder::on_event`](crate::Builder::on_event).
///
/// A set of locks is reported once all are acquired, each lock by its own name. A call that does
/// not get its set is reported once, with all names separated by commas. Inner levels of nested
/// locks are not reported, nor are readers that share the hold of another reader of this client.
/// Permits of a semaphore have no fencing token: `fence` is 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A thread acquired a lock.
    #[non_exhaustive]
    Acquired {
        /// The name of the lock.
        name: String,
        /// The fencing token of the new hold.
        fence: u64,
        /// How long the call took, including the wait.
        waited: Duration,
    },
    /// A thread found a lock held by another owner. Reported once per call.
    #[non_exhaustive]
    Contended {
        /// The name of the lock; of several locks, the first that was held.
        name: String,
    },
    /// A deadlock: threads wait in a circle, each for a lock that the next one holds. Reported once
    /// by each client that has one of these threads. The first call is the one that began to wait
    /// last. See [`Builder::deadlock_after`](crate::Builder::deadlock_after).
    #[non_exhaustive]
    Deadlock {
        /// The names of the locks that the threads wait for.
        names: Vec<String>,
        /// The [id](crate::Client::id) of each thread's client, in the order of `names`: the thread
        /// of `clients[0]` waits for `names[0]`, which the thread of `clients[1]` holds.
        clients: Vec<String>,
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
    /// A hold lasts for longer than [`Builder::warn_held`](crate::Builder::warn_held) allows.
    /// Reported once per hold.
    #[non_exhaustive]
    HeldLong {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// How long it has been held so far.
        held: Duration,
        /// The line of the program that acquired it.
        place: &'static Location<'static>,
        /// The name of the thread that acquired it, if the thread has one.
        thread: Option<String>,
        /// The [note](crate::Mutex::note) of the hold, if it has one.
        note: Option<String>,
    },
    /// A lease ended before its guard did.
    #[non_exhaustive]
    Lost {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// Why the lock was lost, as far as this client knows.
        cause: LossCause,
    },
    /// A release was not confirmed. It is retried in the background; at the latest, the hold ends
    /// with its lease.
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
    #[non_exhaustive]
    Released {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// How long it was held, from the reply to the acquire until the release.
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
    #[non_exhaustive]
    Renewed {
        /// The number of leases.
        count: usize,
    },
    /// A wait for a lock ended before the lock was free.
    #[non_exhaustive]
    TimedOut {
        /// The name of the lock.
        name: String,
        /// How long the call took.
        waited: Duration,
    },
}

/// Receives events, on one thread.
pub(crate) trait EventListener: Send + Sync {
    fn event(&self, event: &Event);

    /// Returns how often to call `tick`; `None` for never.
    fn pause(&self) -> Option<Duration> {
        None
    }

    /// Called between events, and when the program may be about to end.
    fn tick(&self) {}

    /// Called when a call has waited for a held lock and got it.
    #[cfg(feature = "metrics")]
    fn waited(&self, _: Duration) {}

    /// Called after the last event.
    fn end(&self) {}
}

/// The callback of the program.
impl<F: Fn(&Event) + Send + Sync> EventListener for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

impl fmt::Debug for dyn EventListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventListener").finish_non_exhaustive()
    }
}
