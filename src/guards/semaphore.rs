//! A lock with a limited number of permits.

use crate::error::{Error, Result};
use crate::guards::guard::guard;
use crate::guards::mutex::waits;
use crate::guards::{Held, LockHandle, lock_options};
use crate::local::status;
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

lock_options!(Semaphore);

/// A permit of a [`Semaphore`]. Any thread may drop it, which releases it.
#[must_use = "if unused the permit is released immediately: \
              bind it to `_guard`, not to `_`"]
pub struct Permit {
    held: Held,
}

guard!(Permit with held);

waits! {
    Semaphore => Permit, held_as: Some(HoldKind::Permit { of: 0 }),
    |lock, wait| lock.handle.acquire(lock.kind()?, wait);

    /// Acquires a permit, blocking the current thread until it is able to do so or
    /// [`wait`](Semaphore::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), except for `Lost`; and
    /// [`InvalidInput`](Error::InvalidInput) for 0 permits or another invalid option, or over
    /// several independent servers.
    acquire;

    /// Attempts to acquire a permit without waiting. Returns `None` if none is free, or if waiting
    /// clients need the free ones. Blocks for one round trip.
    try_acquire;

    try_acquire_for;
}

impl Semaphore {
    /// Returns how many of this handle's permits are free; zero if more are held than it allows.
    /// Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked), and
    /// [`InvalidInput`](Error::InvalidInput) for 0 permits, or over several independent servers.
    pub fn available(&self) -> Result<u32> {
        self.kind()?;
        let held = status::count(&self.handle.shared, &self.handle.name)?;
        Ok(self.permits.saturating_sub(held))
    }

    fn kind(&self) -> Result<HoldKind> {
        Error::require(self.permits > 0, "permits", "must be at least 1")?;
        Ok(HoldKind::Permit { of: self.permits })
    }
}
