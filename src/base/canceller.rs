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
/// Every wait ends with [`Error::Cancelled`](crate::Error::Cancelled): a sleeping call at once,
/// also one that pauses before it repeats a failed request, and a call with a request in flight
/// when the reply arrives, one [`io_timeout`](crate::Builder::io_timeout) later at the latest.
/// Later calls end in the same way, before any I/O. Held locks are not affected. Cancelling cannot
/// be undone: create a new canceller instead.
///
/// Do not call [`cancel`](Canceller::cancel) in a signal handler: set a flag there, and let a
/// thread check the flag.
#[derive(Clone, Default)]
pub struct Canceller(Arc<Cancelling>);

#[derive(Default)]
struct Cancelling {
    /// Set before `waits` is locked to end them. Read without the lock, which in a forked child
    /// might never be released.
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
