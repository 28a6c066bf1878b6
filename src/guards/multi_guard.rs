//! Several locks that are acquired and held together.

use std::sync::Arc;

use crate::error::Result;
use crate::guards::guard::guard;
use crate::guards::mutex::waits;
use crate::guards::{Held, LockHandle, lock_options};
use crate::local::acquire_all;
use crate::protocol::call::Wait;
use crate::protocol::current_hold::OverChannel;
use crate::protocol::hold::Hold;

/// A handle to several locks that are acquired together, all or none, with options that may differ
/// from the client's. Created by [`Client::mutexes`](crate::Client::mutexes).
///
/// Its `name` is all names, separated by commas. [`Client::lock_all`](crate::Client::lock_all)
/// describes how a call waits. The locking call reports invalid names and options:
///
/// ```
/// use leasehold::{Client, Error};
/// use std::time::Duration;
///
/// let client = Client::in_memory();
/// let both = client.mutexes(["account:1", "account:2"]).lease(Duration::from_secs(5));
/// let guard = both.lock()?;
/// assert!(guard.remaining() < Duration::from_secs(5));
/// assert!(client.mutexes(["account:2", "account:3"]).try_lock()?.is_none());
///
/// assert!(matches!(client.mutexes([""; 0]).lock(), Err(Error::InvalidInput(_))));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct MultiMutex {
    pub(crate) handle: LockHandle,
    pub(crate) names: Arc<[Arc<str>]>,
}

lock_options!(MultiMutex);

waits! {
    MultiMutex => MultiGuard, held_as: None, Self::acquire;

    /// Acquires all locks or none as [`Client::lock_all`](crate::Client::lock_all) does.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock_all`](crate::Client::lock_all), and
    /// [`InvalidInput`](crate::Error::InvalidInput) if an option is invalid.
    lock;

    /// Attempts to acquire all locks or none as
    /// [`Client::try_lock_all`](crate::Client::try_lock_all) does.
    try_lock;

    try_lock_for;
}

impl MultiMutex {
    fn acquire(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        let LockHandle { shared, options, .. } = &self.handle;
        let Some(holds) = acquire_all::acquire_all(shared, &self.names, options, wait)? else {
            return Ok(None);
        };
        let over = OverChannel::default();
        for hold in &holds {
            hold.share_over(&over);
        }
        let names = holds.iter().map(|hold| hold.id.name.to_string()).collect();
        Ok(Some(MultiGuard { held: self.handle.held(holds), names }))
    }
}

/// Several locks that are held together and belong to no thread. Dropping this releases all of
/// them. Created by [`Client::lock_all`](crate::Client::lock_all).
///
/// Its `name` is all names, separated by commas. It is held while all of its locks are, and lost as
/// soon as one of them is. If calls fail for several names, the error is the `Lost` of the first
/// lost name, or else the error of the first name that fails. [`unlock`](MultiGuard::unlock) still
/// releases the others. Once a server has not replied, these releases are left to the background,
/// so the call takes no longer than for one lock.
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock_all(["account:1", "account:2"])?;
/// assert!(guard.fence("account:1").is_some() && guard.fence("account:3").is_none());
/// assert!(client.try_lock("account:2")?.is_none());
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the locks are released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct MultiGuard {
    held: Held<Vec<Arc<Hold>>>,
    names: Vec<String>,
}

guard!(MultiGuard);

impl MultiGuard {
    /// Returns the names, in the order in which they were given.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the fencing token of one of the names, or `None` for another name. See
    /// [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self, name: &str) -> Option<u64> {
        self.held.holds.iter().find(|hold| *hold.id.name == *name).map(|hold| hold.fence())
    }
}
