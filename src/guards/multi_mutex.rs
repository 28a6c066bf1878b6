//! Several locks that are acquired and held together.

use std::time::Duration;

use crate::error::Result;
use crate::guards::guard::{Held, LockGuard};
use crate::guards::handle::{LockHandle, wait_for};
use crate::guards::kinds::{LockNames, SeveralLocks};
use crate::local::acquire_all;
use crate::protocol::call::Wait;

/// A handle to several locks that are acquired together, all or none, with options that may differ
/// from the client's. Created by [`Client::multi_mutex`](crate::Client::multi_mutex).
///
/// Its `name` is all names, separated by commas. [`Client::lock_all`](crate::Client::lock_all)
/// describes how a call waits. The locking call reports invalid names and options:
///
/// ```
/// use leasehold::{Client, Error};
/// use std::time::Duration;
///
/// let client = Client::in_memory();
/// let both = client.multi_mutex(["account:1", "account:2"]).lease(Duration::from_secs(5));
/// let guard = both.lock()?;
/// assert!(guard.remaining() < Duration::from_secs(5));
/// assert!(client.multi_mutex(["account:2", "account:3"]).try_lock()?.is_none());
///
/// assert!(matches!(client.multi_mutex([""; 0]).lock(), Err(Error::InvalidInput(_))));
/// # Ok::<(), Error>(())
/// ```
///
/// In addition to the methods below, it has those of every [`LockHandle`], such as
/// [`lease`](MultiMutex::lease) and [`wait`](MultiMutex::wait).
pub type MultiMutex = LockHandle<LockNames>;

impl MultiMutex {
    /// Acquires all locks or none as [`Client::lock_all`](crate::Client::lock_all) does.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock_all`](crate::Client::lock_all), and
    /// [`InvalidInput`](crate::Error::InvalidInput) if an option is invalid.
    #[track_caller]
    pub fn lock(&self) -> Result<MultiGuard> {
        let wait = self.default_wait();
        self.attempt(wait)?.ok_or_else(|| self.timed_out(wait, None))
    }

    /// Attempts to acquire all locks or none as
    /// [`Client::try_lock_all`](crate::Client::try_lock_all) does.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](MultiMutex::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.attempt(Wait::No)
    }

    /// Like [`lock`](MultiMutex::lock), but waits for at most `wait`, and returns `None` if that
    /// time passes first.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](MultiMutex::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        self.attempt(wait_for(wait))
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        let LockNames(names) = &self.kind;
        let holds = acquire_all::acquire_all(&self.shared, names, &self.options, wait)?;
        Ok(holds.map(|holds| {
            let names = holds.iter().map(|hold| hold.id.name.to_string()).collect();
            let held = Held::set(&self.shared, &self.name, holds);
            LockGuard { held, kind: SeveralLocks(names) }
        }))
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
///
/// In addition to the methods below, it has those of every [`LockGuard`], such as
/// [`is_held`](MultiGuard::is_held) and [`lost`](MultiGuard::lost).
pub type MultiGuard = LockGuard<SeveralLocks>;

impl MultiGuard {
    /// Returns the names, in the order in which they were given.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.kind.0
    }

    /// Returns the fencing token of one of the names, or `None` for another name. See
    /// [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self, name: &str) -> Option<u64> {
        self.held.holds().iter().find(|hold| *hold.id.name == *name).map(|hold| hold.fence())
    }
}
