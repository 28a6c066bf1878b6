//! A lock with one holder: its handle, the guard of a thread, and the guard that any thread may
//! have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::holder::Holder;
use crate::error::{Error, Result};
use crate::guards::guard::{Held, LockGuard};
use crate::guards::handle::{LockHandle, wait_for};
use crate::guards::kinds::{AnyThread, BelongsToItsThreadUseLockOwned, Exclusive, ThisThread};
use crate::guards::watches::Wanted;
use crate::local::hold_requests::Level;
use crate::local::shared::Shared;
use crate::local::{acquire, status};
use crate::protocol::call::Wait;
use crate::store::hold_id::HoldKind;
use crate::ticket::Ticket;

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
///
/// In addition to the methods below, it has those of every [`LockHandle`], such as
/// [`lease`](Mutex::lease) and [`wait`](Mutex::wait).
pub type Mutex = LockHandle<Exclusive>;

impl Mutex {
    /// Sets whether a thread that holds this lock may lock it again, as
    /// [`Builder::reentrant`](crate::Builder::reentrant) does for the client.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.options_mut().reentrant = reentrant;
        self
    }

    /// Sets how long the client keeps the lock after its last use, as
    /// [`Builder::keep`](crate::Builder::keep) does for all locks. At most the lease of this
    /// handle.
    pub fn keep(mut self, time: Duration) -> Self {
        let options = self.options_mut();
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
    /// rest of the lease. If the server's clock is set back meanwhile, the lock is free no later
    /// than twice this time after a client next asks for it. [`force_unlock`](Mutex::force_unlock)
    /// frees the lock at once.
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
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.options_mut().hold_at_least = Some(time);
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
        let wait = self.default_wait();
        self.attempt(wait)?.ok_or_else(|| self.timed_out(wait, Some(HoldKind::Lock)))
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
        self.attempt(wait_for(wait))
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
        let wait = self.default_wait();
        self.attempt_owned(wait)?.ok_or_else(|| self.timed_out(wait, Some(HoldKind::Lock)))
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
        self.attempt_owned(wait_for(wait))
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
        status::is_locked(&self.shared, &self.name)
    }

    /// Returns `true` if the current thread holds the lock through this client. Does not ask the
    /// server.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        status::is_held_by_current_thread(&self.shared, &self.name)
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
        status::holder(&self.shared, &self.name)
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
        status::force_unlock(&self.shared, &self.name)
    }

    #[track_caller]
    fn attempt(&self, wait: Wait) -> Result<Option<Guard>> {
        let level = acquire::lock(&self.shared, &self.name, &self.options, wait)?;
        Ok(level.map(|Level { hold, depth }| LockGuard {
            held: Held::new(&self.shared, hold),
            kind: ThisThread { depth, _not_send: BelongsToItsThreadUseLockOwned::default() },
        }))
    }

    #[track_caller]
    fn attempt_owned(&self, wait: Wait) -> Result<Option<OwnedGuard>> {
        let held = self.acquire_hold(HoldKind::Lock, wait)?;
        Ok(held.map(|held| LockGuard { held, kind: AnyThread }))
    }
}

/// Runs `work` under a lock, then releases it or hands it off to the next thread.
fn run<T>(guard: Guard, work: impl FnOnce(&Guard) -> T) -> Result<T> {
    let value = work(&guard);
    match guard.held.hand_off_or_unlock() {
        Err(error @ Error::Lost { .. }) => Err(error),
        // The work is done. A release that failed is retried in the background.
        _ => Ok(value),
    }
}

/// A lock, or one level of it, held by the current thread. Dropping the guard releases it.
///
/// The lease is renewed in the background. If renewal keeps failing until another client may have
/// the lock, [`is_held`](Guard::is_held) starts to return `false` and [`lost`](Guard::lost) wakes
/// the threads that wait for it. Only the [fencing token](Guard::fence) protects a resource from a
/// holder that was paused and has not noticed yet.
///
/// Dropping a guard never panics, and does not wait for the server's reply: see [What drop
/// does](crate#what-drop-does). [`unlock`](Guard::unlock) waits, and reports errors.
///
/// In addition to the methods below, it has those of every [`LockGuard`]: [`name`](Guard::name),
/// [`is_held`](Guard::is_held), [`remaining`](Guard::remaining), [`lost`](Guard::lost),
/// [`verify`](Guard::verify), [`renew`](Guard::renew) and [`unlock`](Guard::unlock).
///
/// A guard stays on its thread:
///
/// ```compile_fail,E0277
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// Clients and mutexes can be sent, so the other thread can lock for itself. A guard from
/// [`lock_owned`](crate::Client::lock_owned) belongs to no thread, and can be sent:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock_owned("stock:42").unwrap();
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// ```
///
/// Other threads can borrow a guard:
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("stock:42").unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert!(guard.is_held()));
/// });
/// ```
pub type Guard = LockGuard<ThisThread>;

impl Guard {
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
        self.held.hold().fence()
    }

    /// Returns the level of this guard: 1, or more if it is nested.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.kind.depth
    }

    /// Returns a watch that reports when another client waits for the lock, so that a long job can
    /// end early or take a break. Waiting threads of this client do not count, nor do calls that do
    /// not wait, such as [`try_lock`](crate::Client::try_lock).
    ///
    /// The first call for a hold makes this client listen for messages, and blocks for the server's
    /// reply to a request that also finds a client that is already waiting. From then on a message
    /// arrives within a network latency. The next renewal makes up for a lost message, and for a
    /// failed request.
    ///
    /// No messages arrive for a hold that was [adopted](crate::Client::adopt): the watch learns of
    /// other clients from renewals, and each call of this method asks the server.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::new(&self.held.shared, self.held.hold())
    }
}

/// A lock that belongs to no thread: any thread may keep, send or drop it. Dropping it releases the
/// lock. Created by [`Client::lock_owned`](crate::Client::lock_owned).
///
/// It is a hold of its own. A thread that has one and locks the same name again waits for itself.
/// [`lock_owned`](crate::Client::lock_owned) by a thread that holds the lock through a
/// [`Guard`] waits for that guard, or is refused with
/// [`reentrant(false)`](crate::Builder::reentrant). Otherwise it is like a `Guard`: it is renewed
/// until it is dropped, even if the thread that acquired it has ended.
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock_owned("stock:42")?;
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// assert!(client.try_lock("stock:42")?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// In addition to the methods below, it has those of every [`LockGuard`], such as
/// [`is_held`](OwnedGuard::is_held) and [`unlock`](OwnedGuard::unlock).
pub type OwnedGuard = LockGuard<AnyThread>;

impl OwnedGuard {
    #[track_caller]
    pub(crate) fn adopt(shared: &Arc<Shared>, ticket: &Ticket) -> Result<Self> {
        let held = Held::adopt(shared, ticket.hold_for(shared)?)?;
        Ok(Self { held, kind: AnyThread })
    }

    /// Returns the fencing token of this hold. See [`Guard::fence`].
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.hold().fence()
    }

    /// Returns 1: this guard never nests.
    #[must_use]
    pub fn depth(&self) -> u32 {
        1
    }

    /// Returns a watch that reports when another client waits for the lock. See
    /// [`Guard::wanted`].
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::new(&self.held.shared, self.held.hold())
    }

    /// Renews the lease once more, and leaves the hold to be adopted, by this process or another
    /// one, with [`Client::adopt`](crate::Client::adopt) before that lease ends. Blocks for the
    /// server's reply.
    ///
    /// For example, a web server acquires a lock and puts the ticket into a queue, and a worker
    /// releases the lock. In between, the lock is neither released nor renewed. If no guard adopts
    /// the hold, it ends with its lease. Neither dropping this client nor
    /// [`shutdown`](crate::Client::shutdown) ends it earlier. Choose a
    /// [`lease`](crate::Mutex::lease) longer than a ticket may take to arrive.
    ///
    /// For this client the hold is over: [`lost`](OwnedGuard::lost) and
    /// [`Event::Released`](crate::Event::Released) report a release.
    ///
    /// [`max_hold`](crate::Builder::max_hold) limits how long each guard has the lock. The lease
    /// that is left here also ends by then, and a guard that adopts the hold starts counting again.
    /// A lock with [`hold_at_least`](crate::Mutex::hold_at_least) stays taken for the rest of that
    /// time, counted from the adoption.
    ///
    /// # Errors
    ///
    /// The same as [`renew`](OwnedGuard::renew). On an error the lock is released, as by a drop.
    ///
    /// ```
    /// use leasehold::Ticket;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock_owned("order:7")?;
    /// let fence = guard.fence();
    /// let text = guard.detach()?.to_string(); // put it into a queue, with the order
    /// assert!(client.try_lock("order:7")?.is_none());
    ///
    /// let ticket: Ticket = text.parse()?; // in the worker
    /// let guard = client.adopt(&ticket)?; // renewed in the background from here on
    /// assert_eq!(guard.fence(), fence);
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn detach(self) -> Result<Ticket> {
        let prefix = self.held.shared.config.prefix.as_str().into();
        Ok(Ticket { prefix, hold: self.held.detach()? })
    }
}
