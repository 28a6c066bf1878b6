//! A lock for many readers or one writer.

use crate::error::Result;
use crate::guards::guard::guard;
use crate::guards::mutex::waits;
use crate::guards::{Held, LockHandle, lock_options};
use crate::local::adoption;
use crate::store::hold_id::HoldKind;

/// A read-write lock: any number of readers, or one writer. Created by
/// [`Client::rw_lock`](crate::Client::rw_lock).
///
/// Every writer has its own lease, and so have the readers of a client together: no holder blocks
/// others for longer than that if it dies. Readers of a client share a hold in the server. While
/// its [tenure](crate::Builder::tenure) lasts and no writer of this process waits, they come and go
/// without a request, and the last one releases it. So `lost`, `verify` and `renew` of a read guard
/// are about that hold. All clients are served first come, first served, and readers next to each
/// other in the queue share the lock. So a waiting writer goes before readers that arrive later,
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

lock_options!(RwLock);

/// A read-write lock that is held for reading. Any thread may drop it, which releases it. Created
/// by [`RwLock::read`].
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct ReadGuard {
    held: Held,
}

guard!(ReadGuard with held);

/// A read-write lock that is held for writing. Any thread may drop it, which releases it. Its
/// fencing token is greater than that of every earlier writer. Created by [`RwLock::write`].
#[must_use = "if unused the lock is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct WriteGuard {
    held: Held,
}

guard!(WriteGuard with held, fence);

waits! {
    RwLock => ReadGuard, held_as: Some(HoldKind::Read),
    |lock, wait| lock.handle.acquire(HoldKind::Read, wait);

    /// Acquires the lock for reading, blocking the current thread until no writer holds it and none
    /// that arrived earlier waits for it, or until [`wait`](RwLock::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), except for `Lost`; and
    /// [`InvalidInput`](crate::Error::InvalidInput) if an option is invalid, or over several
    /// independent servers.
    read;

    /// Attempts to acquire the lock for reading without waiting. Returns `None` if a writer holds
    /// it or waits for it. Blocks for one round trip at most.
    try_read;

    try_read_for;
}

waits! {
    RwLock => WriteGuard, held_as: Some(HoldKind::Write),
    |lock, wait| lock.handle.acquire(HoldKind::Write, wait);

    /// Acquires the lock for writing, blocking the current thread until no other reader or writer
    /// holds it and none that arrived earlier waits for it, or until [`wait`](RwLock::wait) has
    /// passed.
    ///
    /// # Errors
    ///
    /// The same as [`read`](RwLock::read).
    write;

    /// Attempts to acquire the lock for writing without waiting. Returns `None` if another reader
    /// or writer holds it or waits for it. Blocks for one round trip.
    try_write;

    try_write_for;
}

impl ReadGuard {
    /// Returns the fencing token of the last writer. All readers between two writers have the same
    /// token, which is smaller than the next writer's.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.holds[0].fence()
    }
}

impl WriteGuard {
    /// Turns this writer into a reader, without a moment in which another writer could get the
    /// lock. Other readers can join. The new guard keeps the fencing token and the options of this
    /// one. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Guard::renew`](crate::Guard::renew). On an error the lock is released: without
    /// a reply it is unknown whether the writer or the reader exists, so both are released in the
    /// background.
    pub fn downgrade(mut self) -> Result<ReadGuard> {
        let Held { shared, name, holds: [writer], .. } = &self.held;
        let (shared, name) = (shared.clone(), name.clone());
        let left = adoption::leave(&shared, writer, "downgrade")?;
        let reader = adoption::downgrade(&shared, writer, left);
        self.held.released = true;
        Ok(ReadGuard { held: Held { shared, name, holds: [reader?], released: false } })
    }
}
