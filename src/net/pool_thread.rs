//! The thread that serves the pools of a client: it creates their connections, and reads replies
//! that no other thread waits for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, thread};

use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use crate::base::sync::AtomicBool;
#[cfg(all(test, unix, not(leasehold_shuttle)))]
use crate::base::sync::executor;
#[cfg(all(test, leasehold_shuttle))]
use crate::base::sync::yield_now;

/// Outstanding replies on a connection that no thread uses are read this much later, unless a
/// thread has read them before.
pub(super) const SWEEP: Duration =
    Duration::from_millis(if cfg!(leasehold_shuttle) { 0 } else { 10 });

const NAME: &str = "leasehold-pool";

/// The thread that serves all pools of a client. It ends with the last pool and the last clone of
/// this.
///
/// Work on it must be brief and do no I/O that could block: requests may be waiting for a
/// connection that this thread makes.
#[derive(Clone)]
pub(crate) struct PoolThread(pub(super) Arc<ScheduledThreadPool>);

impl PoolThread {
    pub(crate) fn start() -> io::Result<Self> {
        // The builder panics if it gets no thread. This finds out first, and returns an error.
        let first = thread::Builder::new().name(NAME.into()).spawn(|| ())?;
        first.join().unwrap_or_default();
        let builder = ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern(NAME)
            // Otherwise the thread would outlive the client until its last timer has run.
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled);
        let pool = catch_unwind(AssertUnwindSafe(|| builder.build()));
        let pool = pool.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        Ok(Self(Arc::new(pool)))
    }

    /// Runs `work` on the thread after a delay, unless the thread has ended by then.
    #[cfg(not(all(test, leasehold_shuttle)))]
    pub(super) fn after(&self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        #[cfg(all(test, unix))]
        if executor::is_active() {
            return executor::spawn(None, move || {
                executor::sleep(delay);
                work();
            });
        }
        self.0.execute_after(delay, work);
    }

    #[cfg(all(test, leasehold_shuttle))]
    pub(super) fn after(&self, _: Duration, work: impl FnOnce() + Send + 'static) {
        drop(shuttle::thread::spawn(move || {
            // Other threads come first. Otherwise sweeps could follow each other for ever, while
            // the thread that has the connection never runs.
            yield_now();
            work();
        }));
    }
}

/// A task that reads replies that no thread waits for, a moment after it is scheduled.
pub(crate) struct Sweep {
    thread: PoolThread,
    is_scheduled: Arc<AtomicBool>,
    task: Arc<dyn Fn() + Send + Sync>,
}

impl Sweep {
    /// Creates a sweep that does nothing once the owner is gone.
    pub(crate) fn new<T: Send + Sync + 'static>(
        thread: &PoolThread,
        owner: &Weak<T>,
        task: fn(&Arc<T>),
    ) -> Self {
        let owner = owner.clone();
        let task = Arc::new(move || {
            if let Some(owner) = owner.upgrade() {
                task(&owner);
            }
        });
        Self { thread: thread.clone(), is_scheduled: Arc::default(), task }
    }

    /// Schedules the task, unless it is scheduled already. Once it has started, it can be scheduled
    /// again.
    pub(crate) fn schedule(&self) {
        // Read first: usually it is scheduled, and a write would take the cache line from other
        // threads.
        let Self { thread, is_scheduled, task } = self;
        if is_scheduled.load(Ordering::SeqCst) || is_scheduled.swap(true, Ordering::SeqCst) {
            return;
        }
        let is_scheduled = is_scheduled.clone();
        let task = task.clone();
        thread.after(SWEEP, move || {
            // Reset first, because replies that are left during the sweep need another one.
            is_scheduled.store(false, Ordering::SeqCst);
            task();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_due_later_does_not_keep_the_thread_alive() {
        let thread = PoolThread::start().expect("a thread");
        let alive = Arc::downgrade(&thread.0);
        thread.after(Duration::from_secs(60), || {});
        drop(thread);
        assert!(alive.upgrade().is_none());
    }
}
