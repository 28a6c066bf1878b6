//! The calls by which a client acquires locks, and its handles to locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::Result;
use crate::guards::LockHandle;
use crate::guards::election::Election;
use crate::guards::guard::Guard;
use crate::guards::multi_guard::{MultiGuard, MultiMutex};
use crate::guards::mutex::Mutex;
use crate::guards::owned_guard::{OwnedGuard, Ticket};
use crate::guards::rw_lock::RwLock;
use crate::guards::semaphore::Semaphore;
use crate::local::adoption;

impl Client {
    /// Acquires the lock, blocking the current thread until it is able to do so.
    ///
    /// Waits for other holders without limit, or for as long as
    /// [`Builder::wait`](crate::Builder::wait) allows. A thread that already holds the lock gets
    /// another level of it, which takes one round trip and keeps the fencing token. Each level has
    /// its own guard, and the hold ends when the last of them is dropped, in any order.
    ///
    /// Nesting is per thread. In a pool whose threads run other tasks while they wait, like
    /// rayon's, see [`Builder::reentrant`](crate::Builder::reentrant) first.
    ///
    /// The call uses no connection while it waits. Waiting threads of this client form a queue, and
    /// the first of them is woken when another client releases the lock. In case that message is
    /// lost, it also retries after random pauses of growing length, and when the holder's lease
    /// ends at the latest.
    ///
    /// # Errors
    ///
    /// - [`Timeout`](crate::Error::Timeout): another owner held the lock until the wait ended.
    /// - [`Unavailable`](crate::Error::Unavailable), or [`NoQuorum`](crate::Error::NoQuorum) from
    ///   independent servers: no usable reply came before the wait ended or, without a limit,
    ///   within [`retry_window`](crate::Builder::retry_window).
    /// - [`NotReplicated`](crate::Error::NotReplicated): too few replicas or disks acknowledged the
    ///   lock in time; see [`Builder::durability`](crate::Builder::durability).
    /// - [`Lost`](crate::Error::Lost): this thread has a lost guard of this name.
    /// - [`AlreadyHeld`](crate::Error::AlreadyHeld): this thread holds the lock, and it is not
    ///   [`reentrant`](crate::Builder::reentrant).
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`WrongType`](crate::Error::WrongType): the key holds something that is not a lock.
    /// - [`InvalidInput`](crate::Error::InvalidInput): the name cannot be that of a lock.
    /// - [`Closed`](crate::Error::Closed): the client is closed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn lock(&self, name: &str) -> Result<Guard> {
        self.mutex(name).lock()
    }

    /// Attempts to acquire the lock without waiting. Returns `None` if another owner holds it, or
    /// if another thread of this client waits for it.
    ///
    /// Blocks for one round trip. If the server cannot be reached or does not reply, the call fails
    /// after two attempts of [`io_timeout`](crate::Builder::io_timeout) each; if the server is
    /// loading its data, failing over or busy, after
    /// [`retry_window`](crate::Builder::retry_window).
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Timeout`.
    pub fn try_lock(&self, name: &str) -> Result<Option<Guard>> {
        self.mutex(name).try_lock()
    }

    /// Acquires the lock, blocking the current thread until it is able to do so or `wait` has
    /// passed. Returns `None` in the latter case.
    ///
    /// The time covers the whole call, including attempts to reach a server that does not reply;
    /// the last request may take up to one [`io_timeout`](crate::Builder::io_timeout) longer. Zero
    /// means a single attempt, and [`Duration::MAX`] means no limit. [`lock`](Client::lock)
    /// describes how threads wait.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Timeout`.
    pub fn try_lock_for(&self, name: &str, wait: Duration) -> Result<Option<Guard>> {
        self.mutex(name).try_lock_for(wait)
    }

    /// Acquires the lock, blocking the current thread until it is able to do so or `deadline` is
    /// reached. Returns `None` in the latter case. See [`try_lock_for`](Client::try_lock_for).
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Timeout`.
    pub fn try_lock_until(&self, name: &str, deadline: Instant) -> Result<Option<Guard>> {
        self.mutex(name).try_lock_until(deadline)
    }

    /// Acquires the lock as [`lock`](Client::lock) does, runs `work`, releases the lock, and
    /// returns the value of `work`.
    ///
    /// # Errors
    ///
    /// Before `work` runs, the same as [`lock`](Client::lock). Afterwards only
    /// [`Lost`](crate::Error::Lost), if the lease was lost meanwhile. A release that fails is
    /// retried in the background.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let fence = client.with_lock("stock:42", |guard| guard.fence())?;
    /// assert!(fence > 0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock<T>(&self, name: &str, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.mutex(name).with(work)
    }

    /// Attempts to acquire the lock as [`try_lock`](Client::try_lock) does, runs `work`, releases
    /// the lock, and returns the value of `work`. Returns `None` without running `work` if another
    /// owner holds the lock.
    ///
    /// # Errors
    ///
    /// The same as [`with_lock`](Client::with_lock), except for `Timeout`.
    pub fn try_with_lock<T>(
        &self,
        name: &str,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        self.mutex(name).try_with(work)
    }

    /// Acquires the lock as [`lock`](Client::lock) does, and returns a guard that belongs to no
    /// thread and never nests. If this thread already holds the lock, it waits for itself, unless
    /// [`reentrant(false)`](crate::Builder::reentrant) makes that an error.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Lost`.
    pub fn lock_owned(&self, name: &str) -> Result<OwnedGuard> {
        self.mutex(name).lock_owned()
    }

    /// Attempts to acquire the lock as [`try_lock`](Client::try_lock) does, and returns a guard
    /// that belongs to no thread.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Client::lock_owned), except for `Timeout`.
    pub fn try_lock_owned(&self, name: &str) -> Result<Option<OwnedGuard>> {
        self.mutex(name).try_lock_owned()
    }

    /// Acquires the lock as [`try_lock_for`](Client::try_lock_for) does, and returns a guard that
    /// belongs to no thread.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Client::lock_owned), except for `Timeout`.
    pub fn try_lock_owned_for(&self, name: &str, wait: Duration) -> Result<Option<OwnedGuard>> {
        self.mutex(name).try_lock_owned_for(wait)
    }

    /// Renews a hold that another guard has left by [`OwnedGuard::detach`], and returns a guard for
    /// it: the same hold, with the same fencing token. Blocks for the server's reply, but does not
    /// queue behind other threads.
    ///
    /// The lease keeps its length. This client's settings decide whether it is renewed in the
    /// background, and [for how long](crate::Builder::max_hold). Other clients still see the client
    /// that acquired the lock as its [`Holder`](crate::Holder).
    ///
    /// If a ticket is adopted twice, both guards share one hold: when one of them releases it, the
    /// other has lost it, and finds out at its next renewal. If workers may receive a ticket twice,
    /// as from a queue that delivers at least once, let the first one record that the work is done,
    /// and check [`OwnedGuard::fence`] there.
    ///
    /// # Errors
    ///
    /// The same as [`ping`](Client::ping), and
    ///
    /// - [`Lost`](crate::Error::Lost): the hold is over, because its lease has ended, or it was
    ///   released, ended by force or overwritten.
    /// - [`InvalidInput`](crate::Error::InvalidInput): the ticket comes from a client with another
    ///   [`prefix`](crate::Builder::prefix), or its lease is too short for the
    ///   [`io_timeout`](crate::Builder::io_timeout) of this client. Nothing was sent.
    /// - [`NotReplicated`](crate::Error::NotReplicated): too few replicas or disks acknowledged the
    ///   renewal. The hold can still be adopted.
    ///
    /// Without a usable reply the hold is unchanged, or was renewed by this call, and can be
    /// adopted until its lease ends.
    pub fn adopt(&self, ticket: &Ticket) -> Result<OwnedGuard> {
        OwnedGuard::adopt(&self.shared, ticket)
    }

    /// Renews a hold that a guard has left by [`OwnedGuard::detach`], for the whole lease of its
    /// ticket, without adopting it: the ticket stays valid. Blocks for the server's reply.
    ///
    /// # Errors
    ///
    /// The same as [`adopt`](Client::adopt). No error ends the hold.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let ticket = client.lock_owned("order:7")?.detach()?;
    /// client.renew_ticket(&ticket)?;
    /// assert!(client.try_lock("order:7")?.is_none());
    /// client.release_ticket(&ticket)?;
    /// assert!(client.try_lock("order:7")?.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn renew_ticket(&self, ticket: &Ticket) -> Result<()> {
        adoption::renew(&self.shared, ticket.hold_for(&self.shared)?)
    }

    /// Releases a hold that a guard has left by [`OwnedGuard::detach`], without adopting it. Blocks
    /// for the server's reply. A lock with [`hold_at_least`](crate::Mutex::hold_at_least) stays
    /// taken for the rest of that time, counted from this call.
    ///
    /// # Errors
    ///
    /// The same as [`adopt`](Client::adopt). No error prolongs the hold. Without a usable reply the
    /// client repeats the release in the background, until the lease has ended.
    pub fn release_ticket(&self, ticket: &Ticket) -> Result<()> {
        adoption::release(&self.shared, ticket.hold_for(&self.shared)?)
    }

    /// Acquires several locks, all or none, blocking the current thread until it is able to do so.
    ///
    /// Waits without limit, or for as long as [`Builder::wait`](crate::Builder::wait) allows. The
    /// call holds none of the locks while it waits, so it cannot cause a deadlock, whatever the
    /// order of the names. The cost is that a call for many names may wait a long time while others
    /// keep locking single ones.
    ///
    /// If all locks are free, this takes one round trip per server, or per slot of a cluster; with
    /// [independent servers](crate::Builder::open_redlock) it takes one per name.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Lost`, and
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): there is no name, or one is given twice.
    /// - [`AlreadyHeld`](crate::Error::AlreadyHeld): this thread holds one of the locks.
    pub fn lock_all(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<MultiGuard> {
        self.mutexes(names).lock()
    }

    /// Attempts to acquire several locks, all or none, without waiting for other holders. See
    /// [`lock_all`](Client::lock_all).
    ///
    /// # Errors
    ///
    /// The same as [`lock_all`](Client::lock_all), except for `Timeout`.
    pub fn try_lock_all(
        &self,
        names: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<Option<MultiGuard>> {
        self.mutexes(names).try_lock()
    }

    /// Acquires several locks, all or none, blocking the current thread until it is able to do so
    /// or `wait` has passed. Returns `None` in the latter case. See [`lock_all`](Client::lock_all).
    ///
    /// # Errors
    ///
    /// The same as [`lock_all`](Client::lock_all), except for `Timeout`.
    pub fn try_lock_all_for(
        &self,
        names: impl IntoIterator<Item: AsRef<str>>,
        wait: Duration,
    ) -> Result<Option<MultiGuard>> {
        self.mutexes(names).try_lock_for(wait)
    }

    /// Returns a handle to a read-write lock. Sends nothing.
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock { handle: self.handle(name).without_keep() }
    }

    /// Returns a handle to a semaphore with `permits` permits. Sends nothing.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore { handle: self.handle(name).without_keep(), permits }
    }

    /// Returns a handle to an election. Sends nothing.
    #[must_use]
    pub fn election(&self, name: &str) -> Election {
        Election::new(self.handle(name))
    }

    /// Returns a handle to one lock, which can have its own options and query the lock's state.
    /// Sends nothing.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex { handle: self.handle(name) }
    }

    /// Returns a handle to several locks that are acquired together as by
    /// [`lock_all`](Client::lock_all), and that can have its own options. Sends nothing.
    #[must_use]
    pub fn mutexes(&self, names: impl IntoIterator<Item: AsRef<str>>) -> MultiMutex {
        let names: Arc<[Arc<str>]> = names.into_iter().map(|name| name.as_ref().into()).collect();
        MultiMutex { handle: self.handle(&names.join(", ")), names }
    }

    fn handle(&self, name: &str) -> LockHandle {
        let (shared, options) = (self.shared.clone(), self.shared.config.options.clone());
        LockHandle { shared, name: name.into(), options }
    }
}
