//! A lock for many readers or one writer.

use std::fmt;
use std::time::Duration;

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::error::Result;
use crate::guards::watches::Lost;
use crate::guards::{GuardInner, LockHandle, any_guard};
use crate::local::adoption;
use crate::protocol::call::Wait;
use crate::store::hold_id::HoldKind;

/// A read-write lock: any number of readers, or one writer. Created by
/// [`Client::rw_lock`](crate::Client::rw_lock).
///
/// Every writer has its own lease, and so have the readers of a client together: no holder blocks
/// others for longer than that if it dies. Readers of a client share a hold in the server. While
/// its [tenure](crate::Builder::tenure) lasts and no writer of this process waits, they come and go
/// without a request, and the last one releases it. So `lost`, `verify` and `renew` of a read guard
/// are about that hold. Writers of a client that follow one another hand the lock on in that time.
/// All clients are served first come, first served, and readers next to each other in the queue
/// share the lock. So a waiting writer goes before readers that arrive later,
/// including [`try_read`](RwLock::try_read), and readers do not wait forever either.
///
/// The lock is not reentrant, and a reader cannot become a writer: a thread that holds either guard
/// and waits for the other waits for itself. A writer can become a reader by
/// [`downgrade`](WriteGuard::downgrade).
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let config = client.rw_lock("config");
/// {
///     let (one, other) = (config.read()?, config.read()?);
///     assert_eq!(one.fence(), other.fence());
///     assert!(config.try_write()?.is_none());
/// }
/// let writer = config.write()?;
/// assert!(config.try_read()?.is_none());
/// println!("writing with fencing token {}", writer.fence());
/// let reader = writer.downgrade()?;
/// assert!(config.try_read()?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Not available on several [independent servers](crate::Builder::open_redlock), where every call
/// returns [`InvalidInput`](crate::Error::InvalidInput).
#[derive(Clone)]
pub struct RwLock {
    pub(crate) handle: LockHandle,
}

impl RwLock {
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

    /// Acquires the lock for reading, blocking the current thread until no writer holds it and none
    /// that arrived earlier waits for it, or until [`wait`](RwLock::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), except for `Lost`; and
    /// [`InvalidInput`](crate::Error::InvalidInput) if an option is invalid, or over several
    /// independent servers.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let prices = client.rw_lock("prices");
    /// let first = prices.read()?;
    /// let second = prices.read()?; // shares the lock
    /// assert!(prices.try_write()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn read(&self) -> Result<ReadGuard> {
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt_read(wait)?.ok_or_else(|| self.handle.timed_out(wait, Some(HoldKind::Read)))
    }

    /// Attempts to acquire the lock for reading without waiting. Returns `None` if a writer holds
    /// it or waits for it. Blocks for one round trip at most.
    ///
    /// # Errors
    ///
    /// The same as [`read`](Self::read), except for `Timeout`.
    #[track_caller]
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        self.attempt_read(Wait::No)
    }

    /// Like [`read`](Self::read), but waits for at most `wait`, and returns `None` if that time
    /// passes first.
    ///
    /// # Errors
    ///
    /// The same as [`read`](Self::read), except for `Timeout`.
    #[track_caller]
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        self.attempt_read(Wait::at_most(Some(wait), clock::now()))
    }

    /// Acquires the lock for writing, blocking the current thread until no other reader or writer
    /// holds it and none that arrived earlier waits for it, or until [`wait`](RwLock::wait) has
    /// passed.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read).
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let prices = client.rw_lock("prices");
    /// let writer = prices.write()?;
    /// assert!(prices.try_read()?.is_none());
    /// writer.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn write(&self) -> Result<WriteGuard> {
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt_write(wait)?.ok_or_else(|| self.handle.timed_out(wait, Some(HoldKind::Write)))
    }

    /// Attempts to acquire the lock for writing without waiting. Returns `None` if another reader
    /// or writer holds it or waits for it. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`write`](Self::write), except for `Timeout`.
    #[track_caller]
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.attempt_write(Wait::No)
    }

    /// Like [`write`](Self::write), but waits for at most `wait`, and returns `None` if that time
    /// passes first.
    ///
    /// # Errors
    ///
    /// The same as [`write`](Self::write), except for `Timeout`.
    #[track_caller]
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        self.attempt_write(Wait::at_most(Some(wait), clock::now()))
    }

    #[track_caller]
    fn attempt_read(&self, wait: Wait) -> Result<Option<ReadGuard>> {
        let inner = self.handle.acquire(HoldKind::Read, wait)?;
        Ok(inner.map(|inner| ReadGuard { inner }))
    }

    #[track_caller]
    fn attempt_write(&self, wait: Wait) -> Result<Option<WriteGuard>> {
        let inner = self.handle.acquire(HoldKind::Write, wait)?;
        Ok(inner.map(|inner| WriteGuard { inner }))
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("RwLock", f)
    }
}

/// A read-write lock that is held for reading. Any thread may drop it, which releases it. Created
/// by [`RwLock::read`].
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct ReadGuard {
    inner: GuardInner,
}

impl ReadGuard {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the fencing token of the last writer. All readers between two writers have the same
    /// token, which is smaller than the next writer's. After a writer that was lost, or whose
    /// client died, it may be a token that no writer had, which is greater than the lost one's.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.holds[0].fence()
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

any_guard!(ReadGuard);

/// A read-write lock that is held for writing. Any thread may drop it, which releases it. Its
/// fencing token is greater than that of every earlier writer. Created by [`RwLock::write`].
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct WriteGuard {
    inner: GuardInner,
}

impl WriteGuard {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the fencing token of this hold. It is greater than that of every earlier hold of
    /// this name. Nested guards share it.
    ///
    /// Send it with every write to the protected resource, and let the resource reject tokens
    /// smaller than the greatest it has seen. Then a holder that has lost the lock without noticing
    /// can do no harm
    /// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
    ///
    /// Tokens grow even if the server has lost their counter, provided that its clock is not behind
    /// the last token. A token is the clock's microseconds or, if that is not greater than the last
    /// token, the next number; among threads that share a lock it is ahead of the clock by a
    /// millisecond at most. With independent servers, the clock is that of this system.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.inner.holds[0].fence()
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

    /// Turns this writer into a reader, without a moment in which another writer could get the
    /// lock. Other readers can join. The new guard keeps the fencing token and the options of this
    /// one. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::renew`](crate::Guard::renew). On an error the lock is released: without
    /// a reply it is unknown whether the writer or the reader exists, so both are released in the
    /// background.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let prices = client.rw_lock("prices");
    /// let writer = prices.write()?;
    /// let reader = writer.downgrade()?; // no other writer comes in between
    /// assert!(prices.try_read()?.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn downgrade(mut self) -> Result<ReadGuard> {
        let GuardInner { shared, holds: [writer], .. } = &self.inner;
        let shared = shared.clone();
        let unused = adoption::unused(&shared, writer);
        let left = adoption::leave(&shared, writer, "downgrade")?;
        let reader = adoption::downgrade(&shared, writer, left, unused);
        self.inner.released = true;
        Ok(ReadGuard { inner: GuardInner { shared, holds: [reader?], released: false } })
    }
}

any_guard!(WriteGuard);
