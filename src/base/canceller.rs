//! Cancels waits from another thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Cancels waits for locks from another thread: those of one handle, or of all handles that use a
/// clone of it.
///
/// ```
/// use leasehold::{Canceller, Client, Error};
///
/// let client = Client::in_memory();
/// let _held = client.lock_owned("report")?;
/// let canceller = Canceller::new();
/// let waiting = {
///     let report = client.mutex("report").cancelled_by(&canceller);
///     std::thread::spawn(move || report.lock().map(drop))
/// };
/// canceller.cancel();
/// assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled { .. })));
/// # Ok::<(), Error>(())
/// ```
///
/// Every wait ends with [`Error::Cancelled`](crate::Error::Cancelled): at once if the call is
/// asleep or pauses between requests, and when the reply arrives if a request is in flight, one
/// [`io_timeout`](crate::Builder::io_timeout) later at the latest. Later calls end in the same way,
/// before any I/O. Held locks are not affected. Cancelling cannot be undone: create a new canceller
/// instead.
///
/// Do not call [`cancel`](Canceller::cancel) in a signal handler: set a flag there, and let a
/// thread check the flag.
#[derive(Clone, Default)]
pub struct Canceller(Arc<Cancelling>);

#[derive(Default)]
struct Cancelling {
    /// Set before `waits` is locked to end them. Read without that lock, which might never be
    /// released in a forked child.
    cancelled: AtomicBool,
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    last: u64,
    /// The callback that ends each wait.
    ends: HashMap<u64, Box<dyn Fn() + Send>>,
}

/// A wait that can be cancelled until this is dropped.
pub(crate) struct CancellableWait {
    canceller: Canceller,
    number: u64,
}

impl Canceller {
    /// Creates a canceller that has not been cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all current and later waits that use this canceller or a clone of it.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        let waits = self.0.waits.lock();
        for end in waits.ends.values() {
            end();
        }
    }

    /// Returns `true` if [`cancel`](Canceller::cancel) was called on this canceller or a clone of
    /// it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn check(&self, name: &str) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled { name: name.into() }) } else { Ok(()) }
    }

    /// Calls `end` when this is cancelled, or at once if it already is. `end` must not block.
    pub(crate) fn watch(&self, end: impl Fn() + Send + 'static) -> CancellableWait {
        let mut waits = self.0.waits.lock();
        if self.is_cancelled() {
            end();
        }
        waits.last += 1;
        let number = waits.last;
        waits.ends.insert(number, Box::new(end));
        CancellableWait { canceller: self.clone(), number }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

impl Drop for CancellableWait {
    fn drop(&mut self) {
        self.canceller.0.waits.lock().ends.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::{in_virtual_time, start, yield_now};
    use crate::client::Client;
    use std::time::Duration;

    #[test]
    fn no_call_leaves_an_entry() {
        in_virtual_time(|| {
            const BRIEF: Duration = Duration::from_millis(2);
            let (client, canceller) = (Client::in_memory(), Canceller::new());
            let entries = || canceller.0.waits.lock().ends.len();
            let held = client.lock_all(["a", "c"]).expect("it is free");
            let permit = client.semaphore("p", 1).acquire().expect("it is free");
            let writer = client.rw_lock("w").write().expect("it is free");
            let mutex = client.mutex("a").cancelled_by(&canceller);
            let set = client.multi_mutex(["b", "c"]).cancelled_by(&canceller);
            let semaphore = client.semaphore("p", 1).cancelled_by(&canceller);
            let rw_lock = client.rw_lock("w").cancelled_by(&canceller);
            for _ in 0..3 {
                let failed = [
                    mutex.try_lock().map(|guard| guard.is_none()),
                    mutex.try_lock_for(BRIEF).map(|guard| guard.is_none()),
                    set.try_lock_for(BRIEF).map(|guard| guard.is_none()),
                    semaphore.try_acquire_for(BRIEF).map(|permit| permit.is_none()),
                    rw_lock.try_read_for(BRIEF).map(|guard| guard.is_none()),
                ];
                assert!(failed.iter().all(|is_none| matches!(is_none, Ok(true))), "{failed:?}");
                assert_eq!(entries(), 0, "after calls that got nothing");
            }
            let waiter = start({
                let mutex = mutex.clone();
                move || mutex.lock().map(drop)
            });
            while entries() == 0 {
                yield_now();
            }
            drop(held);
            waiter.join().expect("it is free");
            drop((permit, writer));
            set.lock().expect("it is free").unlock().expect("it is held");
            assert_eq!(entries(), 0, "after calls that got their locks");
        });
    }
}
