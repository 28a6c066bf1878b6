//! A lock that a limited number of owners can hold at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::end_of;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guards::owned_hold::{OwnedHold, lock_options, owned_guard};
use crate::local::call::Wait;
use crate::local::shared::Shared;
use crate::local::status;
use crate::store::hold_id::HoldKind;

/// A semaphore: a limited number of permits can be held at a time. Created by
/// [`Client::semaphore`](crate::Client::semaphore).
///
/// Every permit has a lease of its own: one whose holder dies is free again when that has ended.
/// There is no stored count that could go wrong: the held permits are counted each time.
///
/// The number of permits is the caller's. It is stored nowhere, and may differ between callers and
/// over time: a caller gets a permit while fewer than *its own* number are held. Threads of one
/// process are served in the order in which they ask, and a client that arrives while others wait
/// gets a permit only if they leave one.
///
/// It limits concurrency and is not a rate limiter: it says how many calls run at a time, not how
/// many begin in a second. A program that ends calls quickly may begin any number.
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
/// Permits have no fencing token, since several are held at a time. One server, Sentinel and
/// Cluster have semaphores. Over several [independent servers](crate::Builder::open_redlock) there
/// can be none: every call returns [`InvalidInput`](Error::InvalidInput).
#[derive(Clone)]
pub struct Semaphore {
    shared: Arc<Shared>,
    name: Arc<str>,
    options: LockOptions,
    permits: u32,
}

lock_options!(Semaphore);

owned_guard! {
    /// A permit of a [`Semaphore`]. Any thread may drop it, which releases it.
    #[must_use = "if unused the permit is released immediately: \
                  bind it to `_guard`, not to `_`"]
    Permit
}

impl Semaphore {
    pub(crate) fn new(shared: &Arc<Shared>, name: &str, permits: u32) -> Self {
        let options = LockOptions { keep: Duration::ZERO, ..shared.config.options.clone() };
        Self { shared: shared.clone(), name: name.into(), options, permits }
    }

    /// Acquires a permit, blocking the current thread until it is able to do so or
    /// [`wait`](Semaphore::wait) has passed.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), except for `Lost`; and
    /// [`InvalidInput`](Error::InvalidInput) for 0 permits or another invalid option, or over
    /// several independent servers.
    pub fn acquire(&self) -> Result<Permit> {
        let wait = Wait::at_most(self.options.wait);
        self.acquire_within(wait)?.ok_or_else(|| Error::timed_out(&self.name))
    }

    /// Attempts to acquire a permit without waiting. Returns `None` if none is free, or if the free
    /// ones are for waiting clients. Blocks for one round trip.
    ///
    /// # Errors
    ///
    /// The same as [`acquire`](Semaphore::acquire), except for `Timeout`.
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.acquire_within(Wait::No)
    }

    /// Acquires a permit, blocking the current thread until it is able to do so or `wait` has
    /// passed. Returns `None` in the latter case.
    ///
    /// # Errors
    ///
    /// The same as [`acquire`](Semaphore::acquire), except for `Timeout`.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.acquire_within(Wait::Until(end_of(wait)))
    }

    /// Returns how many of this caller's permits are free; zero if more are held than it has.
    /// Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Mutex::is_locked`](crate::Mutex::is_locked), and
    /// [`InvalidInput`](Error::InvalidInput) for 0 permits, or over several independent servers.
    pub fn available(&self) -> Result<u32> {
        self.check_permits()?;
        status::count(&self.shared, &self.name).map(|held| self.permits.saturating_sub(held))
    }

    fn acquire_within(&self, wait: Wait) -> Result<Option<Permit>> {
        self.check_permits()?;
        let kind = HoldKind::Permit { of: self.permits };
        let hold = OwnedHold::acquire(&self.shared, kind, &self.name, &self.options, wait)?;
        Ok(hold.map(Permit::new))
    }

    fn check_permits(&self) -> Result<()> {
        if self.permits == 0 {
            return Err(Error::invalid("permits", "must be at least 1"));
        }
        Ok(())
    }
}
