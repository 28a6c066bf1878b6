//! A lock that many can read under, or one can write under.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::end_of;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guards::owned_hold::{OwnedHold, lock_options, owned_guard};
use crate::local::call::Wait;
use crate::local::shared::Shared;
use crate::store::hold_id::HoldKind;

/// A read-write lock: any number of readers, or one writer. Created by
/// [`Client::rw_lock`](crate::Client::rw_lock).
///
/// Every reader and writer has a lease of its own: one that dies blocks others for no longer than
/// that. All clients are served first come, first served, and readers that are next to each other
/// in the queue share the lock. So a waiting writer goes before readers that arrive later,
/// [`try_read`](RwLock::try_read) included, and readers do not wait forever either.
///
/// It is not reentrant, and a reader cannot become a writer: a thread that holds either guard and
/// waits for the other waits for itself. A writer can [go on as a reader](WriteGuard::downgrade).
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
/// One server, Sentinel and Cluster have read-write locks. Over several
/// [independent servers](crate::Builder::open_redlock) there can be none: every call returns
/// [`InvalidInput`](Error::InvalidInput).
#[derive(Clone)]
pub struct RwLock {
    shared: Arc<Shared>,
    name: Arc<str>,
    options: LockOptions,
}

lock_options!(RwLock);

owned_guard! {
    /// A read-write lock that is held for reading, along with other readers. Any thread may drop
    /// it, which releases it. Created by [`RwLock::read`].
    #[must_use = "if unused the lock is released immediately: \
                  bind it to `_guard`, not to `_`"]
    ReadGuard
}

owned_guard! {
    /// A read-write lock that is held for writing, alone. Any thread may drop it, which releases
    /// it. Its fencing token is greater than that of every earlier writer. Created by
    /// [`RwLock::write`].
    #[must_use = "if unused the lock is released immediately: \
                  bind it to `_guard`, not to `_`"]
    WriteGuard with fence
}

impl RwLock {
    pub(crate) fn new(shared: &Arc<Shared>, name: &str) -> Self {
        let options = LockOptions { keep: Duration::ZERO, ..shared.config.options.clone() };
        Self { shared: shared.clone(), name: name.into(), options }
    }

    /// Acquires the lock for reading, blocking the current thread until no writer holds it and none
    /// that arrived earlier waits for it, or until [`wait`](RwLock::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), except for `Lost`; and
    /// [`InvalidInput`](Error::InvalidInput) if an option is invalid, or over several independent
    /// servers.
    pub fn read(&self) -> Result<ReadGuard> {
        self.wait_for(HoldKind::Read).map(ReadGuard::new)
    }

    /// Attempts to acquire the lock for reading without waiting. Returns `None` if a writer holds
    /// it or waits for it. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read), except for `Timeout`.
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.acquire(HoldKind::Read, Wait::No)?.map(ReadGuard::new))
    }

    /// Acquires the lock for reading, blocking the current thread until it is able to do so or
    /// `wait` has passed. Returns `None` in the latter case.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read), except for `Timeout`.
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        Ok(self.acquire(HoldKind::Read, Wait::Until(end_of(wait)))?.map(ReadGuard::new))
    }

    /// Acquires the lock for writing, blocking the current thread until no other holds it and none
    /// that came before waits for it, or until [`wait`](RwLock::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read).
    pub fn write(&self) -> Result<WriteGuard> {
        self.wait_for(HoldKind::Write).map(WriteGuard::new)
    }

    /// Attempts to acquire the lock for writing without waiting. Returns `None` if another holds it
    /// or waits for it. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read), except for `Timeout`.
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.acquire(HoldKind::Write, Wait::No)?.map(WriteGuard::new))
    }

    /// Acquires the lock for writing, blocking the current thread until it is able to do so or
    /// `wait` has passed. Returns `None` in the latter case.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read), except for `Timeout`.
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        Ok(self.acquire(HoldKind::Write, Wait::Until(end_of(wait)))?.map(WriteGuard::new))
    }

    fn wait_for(&self, kind: HoldKind) -> Result<OwnedHold> {
        let wait = Wait::at_most(self.options.wait);
        self.acquire(kind, wait)?.ok_or_else(|| Error::timed_out(&self.name))
    }

    fn acquire(&self, kind: HoldKind, wait: Wait) -> Result<Option<OwnedHold>> {
        OwnedHold::acquire(&self.shared, kind, &self.name, &self.options, wait)
    }
}

impl ReadGuard {
    /// Returns the fencing token of the last writer. All readers between two writers have the same;
    /// it is smaller than the next writer's.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.hold.fence()
    }
}

impl WriteGuard {
    /// Goes on as a reader: other readers can have the lock along with it, and no writer has it in
    /// between. Blocks for the server's reply. The guard keeps the fencing token and the options of
    /// this one.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::renew`](crate::Guard::renew). Without a reply it is not known which of
    /// the two exists: both are released in the background.
    pub fn downgrade(self) -> Result<ReadGuard> {
        self.0.downgrade().map(ReadGuard::new)
    }
}
