//! A lock with options of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::local::shared::{Shared, Wait};
use crate::store::hold::Holder;

/// One lock of a client, with options that may differ from the client's. Made by
/// [`Client::mutex`](crate::Client::mutex).
///
/// Options that make no sense are the error of the locking call:
///
/// ```
/// use leasehold::{Client, Error};
/// use std::time::Duration;
///
/// let client = Client::in_memory();
/// let report = client.mutex("report").lease(Duration::from_secs(5)).max_hold(Duration::from_secs(60));
/// report.with(|guard| assert!(guard.remaining() < Duration::from_secs(5)))?;
///
/// let hasty = client.mutex("report").lease(Duration::ZERO);
/// assert!(matches!(hasty.lock(), Err(Error::InvalidInput(_))));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    engine: Arc<Shared>,
    name: Arc<str>,
    options: LockOptions,
}

impl Mutex {
    pub(crate) fn new(engine: &Arc<Shared>, name: &str) -> Self {
        Self { engine: engine.clone(), name: name.into(), options: engine.config.options.clone() }
    }

    /// Sets the lease, as [`Builder::lease`](crate::Builder::lease) does for the client.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets whether the lease is renewed, as [`Builder::renew`](crate::Builder::renew) does.
    #[must_use]
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Sets the longest age of a hold, as [`Builder::max_hold`](crate::Builder::max_hold) does.
    #[must_use]
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.options.max_hold = Some(age);
        self
    }

    /// Sets how long [`lock`](Mutex::lock) waits, as [`Builder::wait`](crate::Builder::wait) does.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.options.wait = Some(time);
        self
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Blocks the current thread until it has the lock. See [`Client::lock`](crate::Client::lock).
    ///
    /// # Errors
    ///
    /// As [`Client::lock`](crate::Client::lock).
    pub fn lock(&self) -> Result<Guard> {
        let wait = self.options.wait.map_or(Wait::Endless, |wait| Wait::Until(end_of(wait)));
        self.acquire(wait)?.ok_or_else(|| Error::Timeout { name: self.name.to_string() })
    }

    /// Takes the lock if nobody has it. See [`Client::try_lock`](crate::Client::try_lock).
    ///
    /// # Errors
    ///
    /// As [`Client::try_lock`](crate::Client::try_lock).
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        self.acquire(Wait::No)
    }

    /// Blocks until the current thread has the lock or `wait` is over. See
    /// [`Client::try_lock_for`](crate::Client::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`Client::try_lock_for`](crate::Client::try_lock_for).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.acquire(Wait::Until(end_of(wait)))
    }

    /// Blocks until the current thread has the lock or `deadline` has come. See
    /// [`Client::try_lock_until`](crate::Client::try_lock_until).
    ///
    /// # Errors
    ///
    /// As [`Client::try_lock_until`](crate::Client::try_lock_until).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.acquire(Wait::Until(deadline))
    }

    /// Runs `work` while holding the lock. See [`Client::with_lock`](crate::Client::with_lock).
    ///
    /// # Errors
    ///
    /// As [`Client::with_lock`](crate::Client::with_lock).
    pub fn with<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.lock()?;
        let value = work(&guard);
        match guard.unlock() {
            Err(error @ Error::Lost { .. }) => Err(error),
            // What the release did not reach is cleaned up in the background; the work is done.
            _ => Ok(value),
        }
    }

    /// Asks the server whether anybody holds the lock.
    ///
    /// # Errors
    ///
    /// [`WrongType`](Error::WrongType) if the key is something else,
    /// [`InvalidInput`](Error::InvalidInput), [`Forked`](Error::Forked),
    /// [`Unavailable`](Error::Unavailable), [`Redis`](Error::Redis).
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.holder()?.is_some())
    }

    /// Tells whether the current thread holds the lock through this client. Asks nobody.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.engine.own_hold(&self.name).is_some()
    }

    /// Asks the server who holds the lock.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Mutex::is_locked).
    pub fn holder(&self) -> Result<Option<Holder>> {
        self.engine.inspect(&self.name)
    }

    /// Takes the lock away from whoever holds it, a Redisson client included. Its guard finds the
    /// lease lost at its next renewal. Returns `false` if nobody held it.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Mutex::is_locked); keys that are not locks are not touched.
    pub fn force_unlock(&self) -> Result<bool> {
        self.engine.force(&self.name)
    }

    fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        let level = self.engine.lock(&self.name, &self.options, wait)?;
        Ok(level.map(|level| Guard::new(self.engine.clone(), level)))
    }
}
