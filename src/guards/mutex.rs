//! A lock with its own options.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::base::holder::Holder;
use crate::error::{Error, Result};
use crate::guards::LockHandle;
use crate::guards::guard::{BelongsToItsThreadUseLockOwned, Guard};
use crate::guards::owned_guard::OwnedGuard;
use crate::local::hold_requests::Level;
use crate::local::{acquire, release, status};
use crate::protocol::call::Wait;
use crate::store::hold_id::HoldKind;

/// A handle to one lock of a client, with options that may differ from the client's. Created by
/// [`Client::mutex`](crate::Client::mutex).
///
/// A thread that already holds the lock, through any handle of the client, gets another level of
/// that hold. The [`lease`](Mutex::lease), [`renew`](Mutex::renew), [`max_hold`](Mutex::max_hold)
/// and [`hold_at_least`](Mutex::hold_at_least) of this handle are then ignored, in favour of those
/// with which the hold began.
///
/// Invalid options are reported by the locking call:
///
/// ```
/// use leasehold::{Client, Error};
/// use std::time::Duration;
///
/// let client = Client::in_memory();
/// let (lease, age) = (Duration::from_secs(5), Duration::from_secs(60));
/// let report = client.mutex("report").lease(lease).max_hold(age);
/// report.with(|guard| assert!(guard.remaining() < lease))?;
///
/// let hasty = client.mutex("report").lease(Duration::ZERO);
/// assert!(matches!(hasty.lock(), Err(Error::InvalidInput(_))));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Mutex {
    pub(crate) handle: LockHandle,
}

impl Mutex {
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

    /// Sets whether a thread that holds this lock may lock it again, as
    /// [`Builder::reentrant`](crate::Builder::reentrant) does for the client.
    #[must_use]
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.handle.options_mut().reentrant = reentrant;
        self
    }

    /// Sets how long the client keeps the lock after its last use, as
    /// [`Builder::keep`](crate::Builder::keep) does for all locks. At most the lease of this
    /// handle.
    #[must_use]
    pub fn keep(mut self, time: Duration) -> Self {
        let options = self.handle.options_mut();
        options.keep = time;
        options.has_own_keep = true;
        self
    }

    /// Keeps the lock taken for at least this time after it was acquired. If the hold is released
    /// earlier, no client gets the lock until then, and neither does the same thread.
    ///
    /// This is for a job that is scheduled on several machines, only one of which should run it:
    /// see the [recipe](crate::guide::cookbook#a-scheduled-job). Choose a time longer than the
    /// difference between their clocks, and shorter than the pause between two runs, with room for
    /// machines that start late. If machines wait for the lock, add the time for which they wait.
    ///
    /// The time starts with the reply to the acquire. It does not depend on the lease, and outlives
    /// the guard, the client and the process. While the hold lasts, it is renewed as usual. If the
    /// hold is lost, or its process dies before the release, the lock becomes free at the end of
    /// the lease, so set a lease of at least this time if that is too early. As with every release,
    /// the lock does not wait for replicas and disks, so a failover may leave it taken only for the
    /// rest of the lease. If the server's clock is set back meanwhile, the lock is free at the
    /// latest twice this time after a client next asks for it.
    /// [`force_unlock`](Mutex::force_unlock) frees the lock at once.
    ///
    /// Meanwhile, [`holder`](Mutex::holder) shows the ended hold with a `depth` of 0.
    ///
    /// At most 365 days, and at most [`max_hold`](Mutex::max_hold). Defaults to zero: a released
    /// lock is free at once.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let job = client.mutex("nightly import").hold_at_least(Duration::from_secs(60));
    /// if let Some(_guard) = job.try_lock()? {
    ///     // done in a second; another machine whose clock is late still finds the lock taken
    /// }
    /// assert!(client.try_lock("nightly import")?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.handle.options_mut().hold_at_least = Some(time);
        self
    }

    /// Acquires the lock as [`Client::lock`](crate::Client::lock) does, with these options.
    ///
    /// # Errors
    ///
    /// The same as [`Client::lock`](crate::Client::lock), and [`InvalidInput`](Error::InvalidInput)
    /// if an option is invalid.
    #[track_caller]
    pub fn lock(&self) -> Result<Guard> {
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt(wait)?.ok_or_else(|| self.handle.timed_out(wait, Some(HoldKind::Lock)))
    }

    /// Attempts to acquire the lock as [`Client::try_lock`](crate::Client::try_lock) does.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Self::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        self.attempt(Wait::No)
    }

    /// Like [`lock`](Self::lock), but waits for at most `wait`, and returns `None` if that time
    /// passes first.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Self::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.attempt(Wait::at_most(Some(wait), clock::now()))
    }

    /// Acquires the lock as [`Client::try_lock_until`](crate::Client::try_lock_until) does.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Mutex::lock), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        // A deadline long past still leaves time for one attempt.
        self.attempt(Wait::Until(deadline.max(clock::now())))
    }

    /// Runs `work` under the lock as [`Client::with_lock`](crate::Client::with_lock) does.
    ///
    /// # Errors
    ///
    /// The same as [`Client::with_lock`](crate::Client::with_lock).
    #[track_caller]
    pub fn with<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        run(self.lock()?, work)
    }

    /// Runs `work` under the lock if it is free, as
    /// [`Client::try_with_lock`](crate::Client::try_with_lock) does.
    ///
    /// # Errors
    ///
    /// The same as [`Client::try_with_lock`](crate::Client::try_with_lock).
    #[track_caller]
    pub fn try_with<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>> {
        self.try_lock()?.map(|guard| run(guard, work)).transpose()
    }

    /// Acquires the lock as [`Client::lock_owned`](crate::Client::lock_owned) does.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Mutex::lock), except for `Lost`.
    #[track_caller]
    pub fn lock_owned(&self) -> Result<OwnedGuard> {
        let wait = Wait::at_most(self.handle.options.wait, clock::now());
        self.attempt_owned(wait)?.ok_or_else(|| self.handle.timed_out(wait, Some(HoldKind::Lock)))
    }

    /// Attempts to acquire the lock as [`Client::try_lock_owned`](crate::Client::try_lock_owned)
    /// does.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Self::lock_owned), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_owned(&self) -> Result<Option<OwnedGuard>> {
        self.attempt_owned(Wait::No)
    }

    /// Like [`lock_owned`](Self::lock_owned), but waits for at most `wait`, and returns `None` if
    /// that time passes first.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Self::lock_owned), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard>> {
        self.attempt_owned(Wait::at_most(Some(wait), clock::now()))
    }

    /// Returns `true` if any client holds the lock, or if it stays taken after a hold. Blocks for
    /// the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`Client::ping`](crate::Client::ping), and
    ///
    /// - [`Closed`](Error::Closed): the client was closed while this call paused after a failure.
    ///   On a client that was closed before, the call works as usual.
    /// - [`WrongType`](Error::WrongType): the key holds something that is not a lock.
    /// - [`InvalidInput`](Error::InvalidInput): the name cannot be that of a lock.
    pub fn is_locked(&self) -> Result<bool> {
        status::is_locked(&self.handle.shared, &self.handle.name)
    }

    /// Returns `true` if the current thread holds the lock through this client. Does not ask the
    /// server.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        status::is_held_by_current_thread(&self.handle.shared, &self.handle.name)
    }

    /// Returns the holder of the lock, or `None` if the lock is free. Blocks for the server's
    /// reply.
    ///
    /// # Errors
    ///
    /// The same as [`is_locked`](Mutex::is_locked).
    ///
    /// ```
    /// let client = leasehold::Client::builder().label("web-3").in_memory()?;
    /// let mutex = client.mutex("stock:42");
    /// let _guard = mutex.lock()?;
    /// let holder = mutex.holder()?.expect("it is held");
    /// assert!(holder.client.starts_with("web-3"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder(&self) -> Result<Option<Holder>> {
        status::holder(&self.handle.shared, &self.handle.name)
    }

    /// Ends the current hold of the lock, whether this client, another client or another library
    /// has it, but no later hold, even if the request is repeated. Returns `false` if the lock was
    /// free. Blocks for the server's replies to two requests.
    ///
    /// If a guard of this client had the hold, it is lost when this returns. Another client finds
    /// its guard lost at once if it listens for messages, because it has waited for another client,
    /// keeps locks, or has called [`wanted`](Guard::wanted) or [`listen`](crate::Client::listen).
    /// If not, it finds out at its next renewal.
    ///
    /// # Errors
    ///
    /// The same as [`is_locked`](Mutex::is_locked). A key that is not a lock is left unchanged.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock("stock:42")?;
    /// assert!(client.mutex("stock:42").force_unlock()?); // for operators
    /// assert!(!guard.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn force_unlock(&self) -> Result<bool> {
        status::force_unlock(&self.handle.shared, &self.handle.name)
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<Guard>> {
        let LockHandle { shared, name, options } = &self.handle;
        let level = acquire::lock(shared, name, options, wait)?;
        Ok(level.map(|Level { hold, depth }| {
            let inner = self.handle.inner([hold]);
            Guard { inner, depth, _not_send: BelongsToItsThreadUseLockOwned(PhantomData) }
        }))
    }

    #[track_caller]
    fn attempt_owned(&self, wait: Wait) -> Result<Option<OwnedGuard>> {
        let inner = self.handle.acquire(HoldKind::Lock, wait)?;
        Ok(inner.map(|inner| OwnedGuard { inner }))
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("Mutex", f)
    }
}

/// Runs `work` under a lock, then releases it or hands it off to the next thread.
fn run<T>(mut guard: Guard, work: impl FnOnce(&Guard) -> T) -> Result<T> {
    let value = work(&guard);
    guard.inner.released = true;
    match release::hand_off_or_unlock(&guard.inner.shared, &guard.inner.holds[0]) {
        Err(error @ Error::Lost { .. }) => Err(error),
        // The work is done. A release that failed is retried in the background.
        _ => Ok(value),
    }
}
