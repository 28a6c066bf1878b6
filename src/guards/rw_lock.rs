//! A lock for many readers or one writer.

use std::time::Duration;

use crate::error::Result;
use crate::guards::guard::LockGuard;
use crate::guards::handle::{LockHandle, wait_for};
use crate::guards::kinds::{ReadWrite, Reader, Writer};
use crate::protocol::call::Wait;
use crate::store::hold_id::HoldKind;

/// A read-write lock: any number of readers, or one writer. Created by
/// [`Client::rw_lock`](crate::Client::rw_lock).
///
/// Every writer has its own lease, and the readers of a client share one, so a holder that dies
/// blocks others for no longer than its lease. Readers of a client share a hold in the server.
/// While its [tenure](crate::Builder::tenure) lasts and no writer of this process waits, they come
/// and go without a request, and the last one releases it. So `lost`, `verify` and `renew` of a
/// read guard are about that hold. Within a tenure, the writers of a client hand the lock off to
/// one another. All clients are served first come, first served, and readers next to each other in
/// the queue share the lock. So a waiting writer goes before readers that arrive later, including
/// [`try_read`](RwLock::try_read), and readers do not wait forever either.
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
///
/// In addition to the methods below, it has those of every [`LockHandle`], such as
/// [`lease`](RwLock::lease) and [`wait`](RwLock::wait).
pub type RwLock = LockHandle<ReadWrite>;

impl RwLock {
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
        let wait = self.default_wait();
        self.attempt_read(wait)?.ok_or_else(|| self.timed_out(wait, Some(HoldKind::Read)))
    }

    /// Attempts to acquire the lock for reading without waiting. Returns `None` if a writer holds
    /// it or waits for it. Blocks for one round trip at most.
    ///
    /// # Errors
    ///
    /// The same as [`read`](Self::read), except for `Timeout`.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let prices = client.rw_lock("prices");
    /// let _writer = prices.write()?;
    /// assert!(prices.try_read()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
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
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let prices = client.rw_lock("prices");
    /// let Some(_reader) = prices.try_read_for(Duration::from_millis(200))? else {
    ///     return Ok(()); // a writer is busy
    /// };
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        self.attempt_read(wait_for(wait))
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
        let wait = self.default_wait();
        self.attempt_write(wait)?.ok_or_else(|| self.timed_out(wait, Some(HoldKind::Write)))
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
        self.attempt_write(wait_for(wait))
    }

    #[track_caller]
    fn attempt_read(&self, wait: Wait) -> Result<Option<ReadGuard>> {
        let held = self.acquire_hold(HoldKind::Read, wait)?;
        Ok(held.map(|held| LockGuard { held, kind: Reader }))
    }

    #[track_caller]
    fn attempt_write(&self, wait: Wait) -> Result<Option<WriteGuard>> {
        let held = self.acquire_hold(HoldKind::Write, wait)?;
        Ok(held.map(|held| LockGuard { held, kind: Writer }))
    }
}

/// A read-write lock that is held for reading. Any thread may drop it, which releases it. Created
/// by [`RwLock::read`].
///
/// In addition to the method below, it has those of every [`LockGuard`], such as
/// [`is_held`](ReadGuard::is_held) and [`unlock`](ReadGuard::unlock).
pub type ReadGuard = LockGuard<Reader>;

impl ReadGuard {
    /// Returns the fencing token of the last writer. All readers between two writers have the same
    /// token, which is smaller than the next writer's. After a writer that was lost, or whose
    /// client died, it may be a token that no writer had, which is greater than the lost one's.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.hold().fence()
    }
}

/// A read-write lock that is held for writing. Any thread may drop it, which releases it. Created
/// by [`RwLock::write`].
///
/// In addition to the methods below, it has those of every [`LockGuard`], such as
/// [`is_held`](WriteGuard::is_held) and [`unlock`](WriteGuard::unlock).
pub type WriteGuard = LockGuard<Writer>;

impl WriteGuard {
    /// Returns the fencing token of this hold, which is greater than that of every earlier writer.
    /// See [`Guard::fence`](crate::Guard::fence).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.hold().fence()
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
    pub fn downgrade(self) -> Result<ReadGuard> {
        Ok(LockGuard { held: self.held.downgrade()?, kind: Reader })
    }
}
