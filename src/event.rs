//! What happens to locks, told to the user's callback on a thread of its own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

/// How many events may wait for a slow callback before further ones are dropped.
const BACKLOG: usize = 4096;

/// Something that happened to a lock of this client. See
/// [`Builder::on_event`](crate::Builder::on_event).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread got a lock. Nested locks are not reported.
    Acquired {
        /// The lock's name.
        name: String,
        /// The fencing token of the new hold.
        fence: u64,
        /// How long the call took, waiting included.
        waited: Duration,
    },
    /// A thread found a lock held by somebody else. Reported once per call.
    Contended {
        /// The lock's name.
        name: String,
    },
    /// A lease ended before its guard did.
    Lost {
        /// The lock's name.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
    },
    /// A lock could not be released; its lease will end it, or a later try in the background.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock's name.
        name: String,
        /// What went wrong.
        reason: String,
    },
    /// A lock was released.
    Released {
        /// The lock's name.
        name: String,
        /// How long it was held.
        held: Duration,
    },
    /// A renewal brought no confirmation. Tries go on until the lease ends.
    #[non_exhaustive]
    RenewalFailing {
        /// The lock's name.
        name: String,
        /// How long the lease still lasts.
        remaining: Duration,
        /// What went wrong.
        reason: String,
    },
    /// Leases were renewed together.
    Renewed {
        /// How many.
        count: usize,
    },
}

/// What the user wants called.
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

/// Hands events to the callback, in order, without ever blocking or failing its caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    queue: Option<Sender<Event>>,
}

impl Events {
    /// Starts the thread that calls `callback`. It ends when every clone of this is gone and the
    /// events before are delivered.
    pub(crate) fn deliver_to(callback: Callback) -> std::io::Result<Self> {
        let (queue, events) = bounded(BACKLOG);
        thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || deliver(&events, &callback))?;
        Ok(Self { queue: Some(queue) })
    }

    /// Reports an event, which is made only if somebody listens.
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
