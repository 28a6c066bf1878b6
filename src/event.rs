//! Events in the life of a lock, delivered to the user's callback on a thread of its own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

/// How many events are queued for a slow callback before further ones are dropped.
const WAITING_MAX: usize = 4096;

/// An event in the life of a lock of this client. See
/// [`Builder::on_event`](crate::Builder::on_event).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread acquired a lock. Nested locks are not reported.
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
        /// The name of the lock.
        name: String,
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
        /// The cause of the failure.
        reason: String,
    },
    /// A lock was released.
    Released {
        /// The name of the lock.
        name: String,
        /// How long it was held.
        held: Duration,
    },
    /// A renewal was not confirmed. It is retried until the lease ends.
    #[non_exhaustive]
    RenewalFailing {
        /// The name of the lock.
        name: String,
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
}

/// The user's callback.
#[derive(Clone)]
pub(crate) struct Callback(Arc<dyn Fn(&Event) + Send + Sync>);

impl Callback {
    pub(crate) fn new(call: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").finish_non_exhaustive()
    }
}

/// Passes events to the callback, in order, without ever blocking or failing the thread that emits
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    queue: Option<Sender<Event>>,
}

impl Events {
    /// Starts the thread that calls `callback`. It ends when every clone of this value is gone and
    /// the earlier events have been delivered.
    pub(crate) fn deliver_to(callback: Callback) -> std::io::Result<Self> {
        let (queue, events) = bounded(WAITING_MAX);
        thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || deliver(&events, &callback))?;
        Ok(Self { queue: Some(queue) })
    }

    /// Emits an event, which is built only if there is a callback.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(queue) = &self.queue
            && let Err(TrySendError::Full(event)) = queue.try_send(event())
        {
            log::warn!(target: "leasehold", "the event callback is too slow, dropped {event:?}");
        }
    }
}

fn deliver(events: &Receiver<Event>, Callback(call): &Callback) {
    for event in events {
        if catch_unwind(AssertUnwindSafe(|| call(&event))).is_err() {
            log::error!(target: "leasehold", "the event callback panicked at {event:?}");
        }
    }
}
