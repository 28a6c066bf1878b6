//! Where links are while nobody uses them.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use scheduled_thread_pool::ScheduledThreadPool;

use crate::store::failure::{Failure, Trouble};
use crate::store::quorum::links::{Links, Parts};

/// So much later somebody looks for the replies that a call has not waited for. They may tell that
/// a hold was left over.
const SWEEP: Duration = Duration::from_millis(50);

/// The place of some links.
pub(super) struct Shelf {
    pool: Pool<Sets>,
    threads: Arc<ScheduledThreadPool>,
    /// Whether it is going to be swept.
    sweeps: AtomicBool,
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shelf").field(&self.pool).finish()
    }
}

impl Shelf {
    pub(super) fn new(
        parts: &Arc<Parts>,
        threads: &Arc<ScheduledThreadPool>,
    ) -> Result<Arc<Self>, Failure> {
        let pool = Pool::builder()
            .max_size(1)
            .test_on_check_out(false)
            // Both would keep a timer, and with it the thread, alive.
            .max_lifetime(None)
            .idle_timeout(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(threads.clone())
            .build(Sets(parts.clone()))
            .map_err(|error| Failure::io(Trouble::Unreachable, &Arc::from("the pool"), error))?;
        Ok(Arc::new(Self { pool, threads: threads.clone(), sweeps: AtomicBool::new(false) }))
    }

    /// Takes the links, as soon as nobody else has them.
    pub(super) fn take(shelf: &Arc<Self>, until: Instant) -> Result<Taken, Failure> {
        let left = || until.saturating_duration_since(Instant::now());
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
        self.threads.execute_after(SWEEP, move || {
            let Some(shelf) = shelf.upgrade() else { return };
            shelf.sweeps.store(false, Ordering::SeqCst);
            if shelf.pool.try_get().is_none_or(|mut links| links.sweep()) {
                shelf.sweep_later();
            }
        });
    }
}

/// Links that are given back when this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    links: PooledConnection<Sets>,
    shelf: Arc<Shelf>,
}

impl Deref for Taken {
    type Target = Links;

    fn deref(&self) -> &Links {
        &self.links
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut Links {
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
pub(super) struct Sets(Arc<Parts>);

impl ManageConnection for Sets {
    type Connection = Links;
    type Error = Infallible;

    fn connect(&self) -> Result<Links, Infallible> {
        Ok(Links::new(self.0.clone()))
    }

    fn is_valid(&self, _: &mut Links) -> Result<(), Infallible> {
        Ok(())
    }

    /// Links replace what is broken themselves.
    fn has_broken(&self, _: &mut Links) -> bool {
        false
    }
}
