//! Holds that may stand where nobody wants them: what becomes of requests that nobody waits for.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::store::hold::HoldId;
use crate::store::job::InDoubtHold;

/// With this many ghosts, those whose time is over are cleared away.
const CROWD: usize = 64;

/// What is known of them, and whom to tell.
#[derive(Default)]
pub(super) struct InDoubtHolds {
    tell: OnceLock<Box<dyn Fn(InDoubtHold) + Send + Sync>>,
    /// Holds, by number, that some server may yet be asked to begin by a request that was given up,
    /// and until when they can matter. To release them once does not settle it.
    ghosts: Mutex<HashMap<u64, Moment>>,
    haunted: AtomicBool,
    /// The longest lease of all requests, in nanoseconds.
    lease: AtomicU64,
}

impl fmt::Debug for InDoubtHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InDoubtHolds")
            .field("ghosts", &self.ghosts.lock().len())
            .finish_non_exhaustive()
    }
}

impl InDoubtHolds {
    /// Takes in whom to tell; the first counts.
    pub(super) fn on_in_doubt(&self, tell: Box<dyn Fn(InDoubtHold) + Send + Sync>) {
        drop(self.tell.set(tell));
    }

    /// Takes in that leases of this length exist.
    pub(super) fn note_lease(&self, lease: Duration) {
        let nanos = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        if nanos > self.lease.load(Ordering::Relaxed) {
            self.lease.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Notes that the hold may come to stand somewhere, late, though it may live or be taken back.
    pub(super) fn may_come(&self, hold: &HoldId) {
        let (mut ghosts, now) = (self.ghosts.lock(), Moment::now());
        if ghosts.len() >= CROWD {
            ghosts.retain(|_, deadline| *deadline > now);
        }
        // Until the hold is released, and then for as long as a lease.
        ghosts.insert(hold.nonce, now.after(self.lease().saturating_mul(2)));
        self.haunted.store(true, Ordering::Release);
    }

    /// Has a hold that has ended removed, if a request that was given up may yet begin it.
    pub(super) fn lay(&self, hold: &HoldId) {
        if !self.haunted.load(Ordering::Acquire) {
            return;
        }
        let mut ghosts = self.ghosts.lock();
        let ghost = ghosts.remove(&hold.nonce).is_some();
        self.haunted.store(!ghosts.is_empty(), Ordering::Release);
        drop(ghosts);
        if ghost {
            self.clean(hold, false);
        }
    }

    /// Has a hold that has ended removed from where it may stand still.
    pub(super) fn may_stay(&self, hold: &HoldId) {
        let ghost = self.ghosts.lock().remove(&hold.nonce).is_some();
        self.clean(hold, !ghost);
    }

    fn clean(&self, hold: &HoldId, settles: bool) {
        if let Some(tell) = self.tell.get() {
            tell(InDoubtHold {
                hold: hold.clone(),
                lease: self.lease(),
                settled_by_release: settles,
            });
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease.load(Ordering::Relaxed))
    }
}
