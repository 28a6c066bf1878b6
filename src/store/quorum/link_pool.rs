//! Where links are while nobody uses them.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use r2d2::{ManageConnection, Pool, PooledConnection};

use crate::failure::Failure;
use crate::net::pool::{PoolLimits, PoolThread};
use crate::store::quorum::links::{QuorumLinks, QuorumParts};

/// So much later somebody looks for the replies that a call has not waited for. They may tell that
/// a hold was left over.
const SWEEP: Duration = Duration::from_millis(50);

/// Links are kept: they replace what is broken themselves.
const ONE: PoolLimits = PoolLimits { size: 1, idle_timeout: None, max_lifetime: None };

/// The place of some links.
pub(super) struct LinkPool {
    pool: Pool<Sets>,
    pool_thread: PoolThread,
    /// Whether it is going to be swept.
    sweeps: AtomicBool,
}

impl fmt::Debug for LinkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LinkPool").field(&self.pool).finish()
    }
}

impl LinkPool {
    pub(super) fn new(parts: &Arc<QuorumParts>, pool_thread: &PoolThread) -> Arc<Self> {
        let pool = pool_thread.pool(ONE, Sets(parts.clone()));
        Arc::new(Self { pool, pool_thread: pool_thread.clone(), sweeps: AtomicBool::new(false) })
    }

    /// Takes the links, as soon as nobody else has them.
    pub(super) fn take(shelf: &Arc<Self>, deadline: Instant) -> Result<Taken, Failure> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let links = shelf.pool.try_get().or_else(|| shelf.pool.get_timeout(left()).ok());
        let links = links.ok_or_else(|| {
            let why = "the connections for this name were in use until the time was over";
            Failure::too_late(&Arc::from("the servers"), why)
        })?;
        Ok(Taken { links, shelf: shelf.clone() })
    }

    /// Looks for replies later, unless that is going to happen anyway.
    fn sweep_later(self: &Arc<Self>) {
        if self.sweeps.swap(true, Ordering::SeqCst) {
            return;
        }
        let shelf = Arc::downgrade(self);
        self.pool_thread.after(SWEEP, move |_| {
            let Some(shelf) = shelf.upgrade() else { return };
            shelf.sweeps.store(false, Ordering::SeqCst);
            if shelf.pool.try_get().is_none_or(|mut links| links.sweep()) {
                shelf.sweep_later();
            }
        });
    }
}

/// QuorumLinks that are given back when this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    links: PooledConnection<Sets>,
    shelf: Arc<LinkPool>,
}

impl Deref for Taken {
    type Target = QuorumLinks;

    fn deref(&self) -> &QuorumLinks {
        &self.links
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut QuorumLinks {
        &mut self.links
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.links.owe() {
            self.shelf.sweep_later();
        }
    }
}

/// Makes links that are opened when they are used.
#[derive(Debug)]
pub(super) struct Sets(Arc<QuorumParts>);

impl ManageConnection for Sets {
    type Connection = QuorumLinks;
    type Error = Infallible;

    fn connect(&self) -> Result<QuorumLinks, Infallible> {
        Ok(QuorumLinks::new(self.0.clone()))
    }

    fn is_valid(&self, _: &mut QuorumLinks) -> Result<(), Infallible> {
        Ok(())
    }

    /// QuorumLinks replace what is broken themselves.
    fn has_broken(&self, _: &mut QuorumLinks) -> bool {
        false
    }
}
