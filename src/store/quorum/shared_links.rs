//! Links that threads use in turn.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::failure::Failure;
use crate::net::pool::PoolThread;
use crate::store::quorum::link_set::LinkSet;

/// The replies that a call has not waited for are read this much later, unless another call reads
/// them before. They may show that a hold is in doubt.
const SWEEP: Duration = Duration::from_millis(10);

/// The pause before the next sweep where one has not read all of them.
const NEXT_SWEEP: Duration = Duration::from_millis(50);

/// Links, and what reads the replies that no call waits for.
pub(super) struct SharedLinks {
    links: Mutex<LinkSet>,
    pool_thread: PoolThread,
    /// Whether a sweep is scheduled.
    sweeps: AtomicBool,
}

/// Shows no request in flight, which names the owner of a lock.
impl fmt::Debug for SharedLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLinks").finish_non_exhaustive()
    }
}

impl SharedLinks {
    pub(super) fn new(links: LinkSet, pool_thread: &PoolThread) -> Arc<Self> {
        let (links, sweeps) = (Mutex::new(links), AtomicBool::new(false));
        Arc::new(Self { links, pool_thread: pool_thread.clone(), sweeps })
    }

    /// Blocks until no other thread uses the links. Fails if that takes until `deadline`.
    pub(super) fn lock(self: &Arc<Self>, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        let links = self.links.try_lock_until(deadline).ok_or_else(|| {
            let why = "the connections for this name were in use until the time was over";
            Failure::none_free(&Arc::from("the servers"), why)
        })?;
        Ok(LockedLinks { links, shared: self })
    }

    fn schedule_sweep(self: &Arc<Self>, delay: Duration) {
        if self.sweeps.load(Ordering::SeqCst) || self.sweeps.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::downgrade(self);
        self.pool_thread.after(delay, move || {
            let Some(shared) = shared.upgrade() else { return };
            shared.sweeps.store(false, Ordering::SeqCst);
            // Requests of other names may wait for this thread, so it never waits for the links.
            if shared.links.try_lock().is_none_or(|mut links| links.sweep()) {
                shared.schedule_sweep(NEXT_SWEEP);
            }
        });
    }
}

/// Links that no other thread uses until this is dropped.
#[derive(Debug)]
pub(super) struct LockedLinks<'a> {
    links: MutexGuard<'a, LinkSet>,
    shared: &'a Arc<SharedLinks>,
}

impl Deref for LockedLinks<'_> {
    type Target = LinkSet;

    fn deref(&self) -> &LinkSet {
        &self.links
    }
}

impl DerefMut for LockedLinks<'_> {
    fn deref_mut(&mut self) -> &mut LinkSet {
        &mut self.links
    }
}

impl Drop for LockedLinks<'_> {
    fn drop(&mut self) {
        if self.links.is_busy() {
            self.shared.schedule_sweep(SWEEP);
        }
    }
}
