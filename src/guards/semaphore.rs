//! A lock with a limited number of permits.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::guards::guard::LockGuard;
use crate::guards::handle::{LockHandle, wait_for};
use crate::guards::kinds::{OnePermit, Permits};
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
///
/// In addition to the methods below, it has those of every [`LockHandle`], such as
/// [`lease`](Semaphore::lease) and [`wait`](Semaphore::wait).
pub type Semaphore = LockHandle<Permits>;

impl Semaphore {
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
        let wait = self.default_wait();
        self.attempt(wait)?.ok_or_else(|| self.timed_out(wait, Some(HoldKind::Permit { of: 0 })))
    }

    /// Attempts to acquire a permit without waiting. Returns `None` if none is free, or if waiting
    /// clients need the free ones. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`acquire`](Self::acquire), except for `Timeout`.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let api = client.semaphore("paid api", 1);
    /// let _permit = api.try_acquire()?.expect("it is free");
    /// assert!(api.try_acquire()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
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
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let api = client.semaphore("paid api", 3);
    /// match api.try_acquire_for(Duration::from_millis(200))? {
    ///     Some(_permit) => println!("calling the API"),
    ///     None => println!("too many calls, try again later"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.attempt(wait_for(wait))
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
        self.hold_kind()?;
        let held = status::count(&self.shared, &self.name)?;
        Ok(self.kind.0.saturating_sub(held))
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<Permit>> {
        let held = self.acquire_hold(self.hold_kind()?, wait)?;
        Ok(held.map(|held| LockGuard { held, kind: OnePermit }))
    }

    fn hold_kind(&self) -> Result<HoldKind> {
        let Permits(permits) = self.kind;
        Error::require(permits > 0, "permits", "must be at least 1")?;
        Ok(HoldKind::Permit { of: permits })
    }
}

/// A permit of a [`Semaphore`]. Any thread may drop it, which releases it. Created by
/// [`Semaphore::acquire`].
///
/// It has the methods of every [`LockGuard`], such as [`is_held`](Permit::is_held) and
/// [`unlock`](Permit::unlock).
pub type Permit = LockGuard<OnePermit>;
