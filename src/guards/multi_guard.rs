//! Several locks that are acquired and held together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::end_of;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guards::owned_hold::lock_options;
use crate::guards::watches::{Lost, watch_losses};
use crate::local::call::Wait;
use crate::local::hold::Hold;
use crate::local::lease::OverChannel;
use crate::local::shared::Shared;
use crate::local::{acquire_all, hold_requests, release};

/// A handle to several locks that are acquired together, all or none, with options that may differ
/// from the client's. Created by [`Client::mutexes`](crate::Client::mutexes).
///
/// [`Client::lock_all`](crate::Client::lock_all) describes how a call waits. A call that is
/// cancelled while it pauses between two attempts ends after that pause, which
/// [`backoff`](crate::Builder::backoff) limits. Invalid names and options are reported by the
/// locking call:
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
    shared: Arc<Shared>,
    names: Arc<[Arc<str>]>,
    /// All names, for messages.
    name: Arc<str>,
    options: LockOptions,
}

lock_options!(MultiMutex);

impl MultiMutex {
    pub(crate) fn new(shared: &Arc<Shared>, names: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let names: Arc<[Arc<str>]> = names.into_iter().map(|name| name.as_ref().into()).collect();
        let (name, options) = (names.join(", ").into(), shared.config.options.clone());
        Self { shared: shared.clone(), names, name, options }
    }

    /// Acquires all locks or none, blocking the current thread until it is able to do so. See
    /// [`Client::lock_all`](crate::Client::lock_all).
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock_all`](crate::Client::lock_all), and
    /// [`InvalidInput`](Error::InvalidInput) if an option is invalid.
    pub fn lock(&self) -> Result<MultiGuard> {
        let wait = Wait::at_most(self.options.wait);
        self.acquire(wait)?.ok_or_else(|| Error::timed_out(&self.name))
    }

    /// Attempts to acquire all locks or none, without waiting for other holders. Returns `None` if
    /// there is one.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](MultiMutex::lock), except for `Timeout`.
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.acquire(Wait::No)
    }

    /// Acquires all locks or none, blocking the current thread until it is able to do so or `wait`
    /// has passed. Returns `None` in the latter case.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](MultiMutex::lock), except for `Timeout`.
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        self.acquire(Wait::Until(end_of(wait)))
    }

    fn acquire(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        let Self { shared, names, name, options } = self;
        let holds = acquire_all::acquire_all(shared, names, options, wait)?;
        Ok(holds.map(|holds| MultiGuard::new(shared, holds, name)))
    }
}

/// Several locks that are held together, and belong to no thread. Dropping this releases all of
/// them. Created by [`Client::lock_all`](crate::Client::lock_all).
///
/// It is lost as soon as one of its locks is.
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
    shared: Arc<Shared>,
    /// In the order of the names, which are never empty.
    holds: Vec<Arc<Hold>>,
    names: Vec<String>,
    /// All names, for messages.
    name: Arc<str>,
    over: OverChannel,
    released: bool,
}

impl MultiGuard {
    fn new(shared: &Arc<Shared>, holds: Vec<Arc<Hold>>, name: &Arc<str>) -> Self {
        let over = OverChannel::new();
        for hold in &holds {
            hold.share_over(&over);
        }
        let names = holds.iter().map(|hold| hold.id.name.to_string()).collect();
        let (shared, name) = (shared.clone(), name.clone());
        Self { shared, holds, names, name, over, released: false }
    }

    /// Returns all names in one string, separated by commas.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the names, in the order in which they were asked for.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the fencing token of one of the names, or `None` for another name. See
    /// [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self, name: &str) -> Option<u64> {
        self.holds.iter().find(|hold| *hold.id.name == *name).map(|hold| hold.fence())
    }

    /// Returns `true` if none of the leases has ended by this process's clock. Does not ask the
    /// server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holds.iter().all(|hold| self.shared.is_held(hold))
    }

    /// Returns how long the first of the leases to end lasts if it is not renewed again. See
    /// [`Guard::remaining`](crate::Guard::remaining).
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.holds.iter().map(|hold| self.shared.remaining(hold));
        remaining.min().unwrap_or_default()
    }

    /// Returns the watch on these holds, which are over as soon as one of them is. See
    /// [`Guard::lost`](crate::Guard::lost).
    #[must_use]
    pub fn lost(&self) -> Lost {
        watch_losses(&self.shared, &self.holds, &self.over)
    }

    /// Asks the server whether all of these holds still exist. Blocks for its replies.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::verify`](crate::Guard::verify): `Lost` for the first name that is known
    /// to be lost, without a request, or else the error of the first name that fails.
    pub fn verify(&self) -> Result<()> {
        hold_requests::verify(&self.shared, &self.holds, false)
    }

    /// Renews all leases now. Blocks for the server's replies.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::renew`](crate::Guard::renew), as for [`verify`](Self::verify).
    pub fn renew(&self) -> Result<()> {
        hold_requests::verify(&self.shared, &self.holds, true)
    }

    /// Releases all locks, as dropping the guard does, and reports errors. Blocks for the server's
    /// replies.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::unlock`](crate::Guard::unlock): `Lost` for the first name that was
    /// lost, or else the error of the first name that fails. The others are released all the same.
    /// Once a server has not answered, that is left to the background, so that the call takes no
    /// longer than for one lock.
    pub fn unlock(mut self) -> Result<()> {
        self.released = true;
        release::unlock(&self.shared, &self.holds)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        if !self.released {
            release::unlock_on_drop(&self.shared, &self.holds);
        }
    }
}

/// Shows nothing that would allow another client to release the locks.
impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("names", &self.names)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
