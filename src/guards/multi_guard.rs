//! Several locks that are acquired and held together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::error::Result;
use crate::guards::watches::Lost;
use crate::guards::{GuardInner, LockHandle, any_guard};
use crate::local::acquire_all;
use crate::protocol::call::Wait;
use crate::protocol::hold::Hold;

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
#[derive(Clone)]
pub struct MultiMutex {
    pub(crate) handle: LockHandle,
    pub(crate) names: Arc<[Arc<str>]>,
}

impl MultiMutex {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Sets the lease, as [`Builder::lease`](crate::Builder::lease) does for the client.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.handle.options_mut().lease = lease;
        self
    }

    /// Sets whether the lease is renewed, as [`Builder::renew`](crate::Builder::renew) does for the
    /// client.
    #[must_use]
    pub fn renew(mut self, renew: bool) -> Self {
        self.handle.options_mut().renew = renew;
        self
    }

    /// Sets the longest age of a hold, as [`Builder::max_hold`](crate::Builder::max_hold) does for
    /// the client.
    #[must_use]
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.handle.options_mut().max_hold = Some(age);
        self
    }

    /// Sets how long a call without a deadline of its own waits, as
    /// [`Builder::wait`](crate::Builder::wait) does for the client.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.handle.options_mut().wait = Some(time);
        self
    }

    /// Sets what is shown with each hold, as [`Builder::note`](crate::Builder::note) does for the
    /// client.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        self.handle.options_mut().set_note(text);
        self
    }

    /// Lets a [`Canceller`](crate::Canceller) end the waits of this handle.
    #[must_use]
    pub fn cancelled_by(mut self, canceller: &Canceller) -> Self {
        self.handle.options_mut().cancelled_by = Some(canceller.clone());
        self
    }

    /// Acquires all locks or none as [`Client::lock_all`](crate::Client::lock_all) does.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock_all`](crate::Client::lock_all), and
    /// [`InvalidInput`](crate::Error::InvalidInput) if an option is invalid.
    #[track_caller]
    pub fn lock(&self) -> Result<MultiGuard> {
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt(wait)?.ok_or_else(|| self.handle.timed_out(wait, None))
    }

    /// Attempts to acquire all locks or none as
    /// [`Client::try_lock_all`](crate::Client::try_lock_all) does.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Self::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.attempt(Wait::No)
    }

    /// Like [`lock`](Self::lock), but waits for at most `wait`, and returns `None` if that time
    /// passes first.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Self::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        self.attempt(Wait::at_most(Some(wait), clock::now()))
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        let LockHandle { shared, options, .. } = &self.handle;
        let Some(holds) = acquire_all::acquire_all(shared, &self.names, options, wait)? else {
            return Ok(None);
        };
        shared.share_end_signal(&holds);
        let names = holds.iter().map(|hold| hold.id.name.to_string()).collect();
        let name = self.handle.name.clone();
        Ok(Some(MultiGuard { inner: self.handle.inner(holds), name, names }))
    }
}

impl fmt::Debug for MultiMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("MultiMutex", f)
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
    inner: GuardInner<Vec<Arc<Hold>>>,
    name: Arc<str>,
    names: Vec<String>,
}

impl MultiGuard {
    /// Returns the names, separated by commas.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the names, in the order in which they were given.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the fencing token of one of the names, or `None` for another name. See
    /// [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self, name: &str) -> Option<u64> {
        self.inner.holds.iter().find(|hold| *hold.id.name == *name).map(|hold| hold.fence())
    }

    /// Returns `true` if no lease has ended by this process's clock. Does not ask the servers.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Returns how long the lease that ends first lasts unless it is renewed, less a margin of 1 %
    /// of the lease and 2 ms for clock drift. Zero if one is lost. Does not ask the servers.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Returns a watch with which any thread can check whether one of the leases was lost, or wait
    /// for the holds to end.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.inner.lost()
    }

    /// Asks the servers whether all these holds still exist. Blocks for the replies.
    ///
    /// If the server has become a replica, and neither sentinels nor a cluster report it, it
    /// replies from its old data until a request of this client shows that it accepts no writes.
    /// While the lease is renewed, that takes a third of the lease at most.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): one of the holds no longer exists.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`Client::try_lock`](crate::Client::try_lock) for how long the
    ///   call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): [`Client::shutdown`](crate::Client::shutdown) has ended
    ///   the holds, or the client was closed while this call paused after a failure.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn verify(&self) -> Result<()> {
        self.inner.verify(false)
    }

    /// Renews all leases now, also with `renew(false)`, but not beyond
    /// [`max_hold`](crate::Builder::max_hold). Blocks for the replies.
    ///
    /// # Errors
    ///
    /// The same as [`verify`](Self::verify), and [`NotReplicated`](crate::Error::NotReplicated) if
    /// too few replicas or disks acknowledged it; then that lease is unchanged.
    pub fn renew(&self) -> Result<()> {
        self.inner.verify(true)
    }

    /// Releases what this guard holds, and reports errors. Unlike dropping the guard, this blocks
    /// for the replies. Does nothing after [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): one of the leases was lost before, so the work may have
    ///   overlapped with that of another holder.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came. The release is retried in the background, and that lease is no longer
    ///   renewed. If the client is closed while this call pauses after a failure, the call ends at
    ///   once with this.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child, where guards do nothing.
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}

any_guard!(MultiGuard);
