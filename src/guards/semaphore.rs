//! A lock with a limited number of permits.

use std::fmt;
use std::time::Duration;

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::error::{Error, Result};
use crate::guards::watches::Lost;
use crate::guards::{GuardInner, LockHandle, any_guard};
use crate::local::status;
use crate::protocol::call::Wait;
use crate::store::hold_id::HoldKind;

/// A semaphore: a limited number of permits can be held at a time. Created by
/// [`Client::semaphore`](crate::Client::semaphore).
///
/// Every permit has its own lease: the permit of a holder that dies becomes free when the lease
/// ends. There is no stored counter that could go wrong: the held permits are counted each time.
///
/// Each caller passes the number of permits. It is stored nowhere, and may differ between callers
/// and over time: a caller gets a permit while fewer than *its own* number are held. Threads of one
/// process are served in the order in which they ask. A client that arrives while others wait gets
/// a permit only if there are enough for all of them.
///
/// It limits concurrency, not rate: how many calls run at a time, not how many begin in a second.
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let api = client.semaphore("paid-api", 2);
/// let (one, _other) = (api.acquire()?, api.acquire()?);
/// assert!(api.try_acquire()?.is_none());
/// drop(one);
/// assert_eq!(api.available()?, 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Permits have no fencing token, because several are held at a time. Semaphores are not available
/// on several [independent servers](crate::Builder::open_redlock), where every call returns
/// [`InvalidInput`](Error::InvalidInput).
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) handle: LockHandle,
    pub(crate) permits: u32,
}

impl Semaphore {
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

    /// Acquires a permit, blocking the current thread until it is able to do so or
    /// [`wait`](Semaphore::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), except for `Lost`; and
    /// [`InvalidInput`](Error::InvalidInput) for 0 permits or another invalid option, or over
    /// several independent servers.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let api = client.semaphore("paid api", 3);
    /// let permit = api.acquire()?;
    /// // at most three calls at a time, of all processes
    /// drop(permit);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn acquire(&self) -> Result<Permit> {
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt(wait)?
            .ok_or_else(|| self.handle.timed_out(wait, Some(HoldKind::Permit { of: 0 })))
    }

    /// Attempts to acquire a permit without waiting. Returns `None` if none is free, or if waiting
    /// clients need the free ones. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`acquire`](Self::acquire), except for `Timeout`.
    #[track_caller]
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.attempt(Wait::No)
    }

    /// Like [`acquire`](Self::acquire), but waits for at most `wait`, and returns `None` if that
    /// time passes first.
    ///
    /// # Errors
    ///
    /// The same as [`acquire`](Self::acquire), except for `Timeout`.
    #[track_caller]
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.attempt(Wait::at_most(Some(wait), clock::now()))
    }

    /// Returns how many of this handle's permits are free; zero if more are held than it allows.
    /// Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked), and
    /// [`InvalidInput`](Error::InvalidInput) for 0 permits, or over several independent servers.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let api = client.semaphore("paid api", 3);
    /// let _permit = api.acquire()?;
    /// assert_eq!(api.available()?, 2);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn available(&self) -> Result<u32> {
        self.kind()?;
        let held = status::count(&self.handle.shared, &self.handle.name)?;
        Ok(self.permits.saturating_sub(held))
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<Permit>> {
        let inner = self.handle.acquire(self.kind()?, wait)?;
        Ok(inner.map(|inner| Permit { inner }))
    }

    fn kind(&self) -> Result<HoldKind> {
        Error::require(self.permits > 0, "permits", "must be at least 1")?;
        Ok(HoldKind::Permit { of: self.permits })
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("Semaphore", f)
    }
}

/// A permit of a [`Semaphore`]. Any thread may drop it, which releases it.
#[must_use = "if unused the permit is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct Permit {
    inner: GuardInner,
}

impl Permit {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns `true` if the lease has not ended by this process's clock. Does not ask the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Returns how long the lease lasts unless it is renewed, less a margin of 1 % of the lease and
    /// 2 ms for clock drift. Zero if it is lost. Does not ask the server.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Returns a watch with which any thread can check whether the lease was lost, or wait for the
    /// hold to end.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.inner.lost()
    }

    /// Asks the server whether this hold still exists. Blocks for the server's reply.
    ///
    /// If the server has become a replica, and neither sentinels nor a cluster report it, it
    /// replies from its old data until a request of this client shows that it accepts no writes.
    /// While the lease is renewed, that takes a third of the lease at most.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the hold no longer exists.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`Client::try_lock`](crate::Client::try_lock) for how long the
    ///   call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): [`Client::shutdown`](crate::Client::shutdown) has ended
    ///   the hold, or the client was closed while this call paused after a failure.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn verify(&self) -> Result<()> {
        self.inner.verify(false)
    }

    /// Renews the lease now, also with `renew(false)`, but not beyond
    /// [`max_hold`](crate::Builder::max_hold). Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`verify`](Self::verify), and [`NotReplicated`](crate::Error::NotReplicated) if
    /// too few replicas or disks acknowledged it; then the lease is unchanged.
    pub fn renew(&self) -> Result<()> {
        self.inner.verify(true)
    }

    /// Releases what this guard holds, and reports errors. Unlike dropping the guard, this blocks
    /// for the server's reply. Does nothing after [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the lease was lost before, so the work may have overlapped
    ///   with that of another holder.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came. The release is retried in the background, and the lease is no longer
    ///   renewed. If the client is closed while this call pauses after a failure, the call ends at
    ///   once with this.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child, where guards do nothing.
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}

any_guard!(Permit);
