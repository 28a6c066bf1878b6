//! The threads of a client that wait for locks, as the listener sees them.
//!
//! Decides what a wake-up from another client does: which thread tries next, and that the wake-up
//! is passed on if there is none.

use std::sync::{Arc, Weak};

use crate::config::Config;
use crate::local::counters::Counters;
use crate::local::listener::WakeTarget;
use crate::local::renewer::Renewer;
use crate::local::reporter::Reporter;
use crate::local::wait_queues::WaitQueues;
use crate::store::background::Wake;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::check_name;

/// The threads of a client that wait for locks.
pub(super) struct ClientWaiters {
    pub(super) queues: Arc<WaitQueues>,
    pub(super) counters: Arc<Counters>,
    pub(super) config: Config,
    pub(super) client: Arc<str>,
    /// Its renewer ends with the client, and this thread perhaps a little later.
    pub(super) reporter: Weak<Reporter<Renewer>>,
}

impl WakeTarget for ClientWaiters {
    fn wake(&self, wake: &Wake) -> bool {
        match wake {
            Wake::Ready => {
                self.queues.set_listening(true);
                self.queues.wake_all();
                true
            }
            Wake::Unlocked(names) => {
                for name in names {
                    self.queues.wake(HoldKind::Lock, name);
                }
                true
            }
            Wake::Ended { name, nonce } => {
                if let Some(reporter) = self.reporter.upgrade() {
                    reporter.sink.check(self.hold(name, *nonce));
                }
                true
            }
            Wake::Recall { name, nonce, waits } => {
                if let Some(kept) = self.queues.recall(name, *nonce, *waits)
                    && let Some(reporter) = self.reporter.upgrade()
                {
                    self.counters.recalls.add(1);
                    reporter.sink.release(&kept);
                }
                true
            }
            // What is no name of a lock concerns no client.
            Wake::Lock(name) => {
                self.counters.wakeups.add(1);
                self.queues.wake_any(name) || check_name(&self.config.prefix, name).is_err()
            }
        }
    }

    fn disconnect(&self) {
        self.queues.set_listening(false);
    }

    fn pass_on(&self, name: &str) {
        if !self.queues.wake_any(name)
            && let Some(reporter) = self.reporter.upgrade()
        {
            reporter.sink.unregister(self.hold(name, 0), self.config.options.lease);
        }
    }
}

impl ClientWaiters {
    /// A hold of this client, of whatever kind: that is not known.
    fn hold(&self, name: &str, nonce: u64) -> HoldId {
        HoldId { kind: HoldKind::Lock, name: name.into(), client: self.client.clone(), nonce }
    }
}
