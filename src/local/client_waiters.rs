//! The threads of a client that wait for locks, as the listener sees them.
//!
//! Decides when the client begins to listen, and what a wake-up from another client does: which
//! thread tries next, and that the wake-up is passed on if there is none.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::config::Config;
use crate::local::listener::{Listener, WakeTarget};
use crate::local::reporter::Reporter;
use crate::local::wait_queues::WaitQueues;
use crate::stats::Counters;
use crate::store::Store;
use crate::store::background::Wake;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::{Keys, check_name};
use crate::store::redisson_channels::{RedissonChannels, RedissonWait};

/// Where the messages of other clients arrive.
pub(super) struct Listening {
    waiters: ClientWaiters,
    /// If the client exchanges wake-ups with Redisson.
    redisson: Option<RedissonChannels>,
    /// Started by the first wait for another client.
    listener: OnceLock<Listener>,
    /// Whether it was reported that it could not be. Locked while it is started.
    failing: Mutex<bool>,
}

impl Listening {
    pub(super) fn new(config: &Config, client: &Arc<str>, reporter: &Arc<Reporter>) -> Self {
        let waiters = ClientWaiters {
            queues: reporter.wait_queues.clone(),
            counters: reporter.counters.clone(),
            config: config.clone(),
            client: client.clone(),
            reporter: Arc::downgrade(reporter),
        };
        let redisson = config.redisson.then(RedissonChannels::default);
        Self { waiters, redisson, listener: OnceLock::new(), failing: Mutex::default() }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.listener.get().is_some()
    }

    /// Makes sure that releases by other clients wake the waiters of this one, from the first
    /// request on that has registered it as a waiting client, or the first lock that may be kept.
    /// If no thread can be started for that, the next such request tries again.
    pub(super) fn start(&self, store: &dyn Store) {
        // If another thread is starting it now, there is no reason to wait for that.
        let Some(mut failing) = self.failing.try_lock() else { return };
        if self.has_begun() {
            return;
        }
        let ClientWaiters { queues, config, client, .. } = &self.waiters;
        let wakeups = store.wakeups(client, self.redisson.as_ref());
        match Listener::start(wakeups, self.waiters.clone(), config.events.clone()) {
            // No other thread has set it.
            Ok(listener) => self.listener.set(listener).unwrap_or_default(),
            Err(error) => {
                queues.set_listening(false);
                if !mem::replace(&mut *failing, true) {
                    config.events.warn(|| {
                        format!("no thread for wake-ups, so that waiting may take longer: {error}")
                    });
                }
            }
        }
    }

    /// Lets a release by Redisson wake the head of a queue, as long as the result lives.
    pub(super) fn wait_for_redisson(&self, hold: &HoldId) -> Option<RedissonWait> {
        let channels = self.redisson.as_ref().filter(|_| hold.kind.is_lock())?;
        let lock = Keys::new(&self.waiters.config.prefix);
        Some(channels.wait(&hold.name, &lock.lock(&hold.name)))
    }
}

/// The threads of a client that wait for locks.
#[derive(Clone)]
struct ClientWaiters {
    queues: Arc<WaitQueues>,
    counters: Arc<Counters>,
    config: Config,
    client: Arc<str>,
    /// Its renewer ends with the client, and this thread perhaps a little later.
    reporter: Weak<Reporter>,
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
                    reporter.renewer.check(self.hold(name, *nonce));
                }
                true
            }
            Wake::Recall { name, nonce, waits } => {
                if let Some(kept) = self.queues.recall(name, *nonce, *waits)
                    && let Some(reporter) = self.reporter.upgrade()
                {
                    self.counters.recalls.fetch_add(1, Ordering::Relaxed);
                    reporter.renewer.release(&kept);
                }
                true
            }
            // What is no name of a lock concerns no client.
            Wake::Lock(name) => {
                self.counters.wakeups.fetch_add(1, Ordering::Relaxed);
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
            reporter.renewer.unregister(self.hold(name, 0), self.config.options.lease);
        }
    }
}

impl ClientWaiters {
    /// A hold of this client, of whatever kind: that is not known.
    fn hold(&self, name: &str, nonce: u64) -> HoldId {
        HoldId { kind: HoldKind::Lock, name: name.into(), client: self.client.clone(), nonce }
    }
}
