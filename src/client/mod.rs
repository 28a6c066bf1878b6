//! The handle through which locks are acquired.

pub(crate) mod builder;
#[cfg(feature = "serde")]
mod deserialize;
mod open;
#[cfg(feature = "serde")]
mod serialize;
pub(crate) mod survey;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::survey::Survey;
use crate::error::Result;
use crate::guards::election::Election;
use crate::guards::handle::LockHandle;
use crate::guards::kinds::{Candidacy, Exclusive, LockNames, Permits, ReadWrite};
use crate::guards::multi_mutex::{MultiGuard, MultiMutex};
use crate::guards::mutex::{Guard, Mutex, OwnedGuard};
use crate::guards::rw_lock::RwLock;
use crate::guards::semaphore::Semaphore;
use crate::local::shared::Shared;
use crate::local::status::{HeldLock, WaitingCall};
use crate::local::{adoption, release, status};
use crate::stats::Stats;
use crate::ticket::Ticket;

/// A handle for acquiring distributed locks. Clones are cheap and share everything.
///
/// A client has a pool of connections and [a few background
/// threads](crate#threads-and-connections), one of which renews its leases. All are shut down when
/// the last clone and the last guard are dropped. Two clients are two different owners, even in one
/// thread.
///
/// ```
/// let client = leasehold::Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
/// {
///     let guard = client.lock("stock:42")?; // blocks; renewed in the background
///     println!("selling with fencing token {}", guard.fence());
/// } // released
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// | for | there are |
/// |---|---|
/// | a client | [`open`](Self::open), [`builder`](Self::builder), [`in_memory`](Self::in_memory) |
/// | one lock | [`lock`](Self::lock), [`try_lock`](Self::try_lock), `try_lock_for` |
/// | work under a lock | [`with_lock`](Self::with_lock), [`try_with_lock`](Self::try_with_lock) |
/// | a lock with its own options | [`mutex`](Self::mutex), [`multi_mutex`](Self::multi_mutex) |
/// | readers and one writer | [`rw_lock`](Self::rw_lock) |
/// | permits, a leader | [`semaphore`](Self::semaphore), [`election`](Self::election) |
/// | several locks at once | [`lock_all`](Self::lock_all), [`try_lock_all`](Self::try_lock_all) |
/// | a hold that any thread can have | [`lock_owned`](Self::lock_owned), `try_lock_owned` |
/// | a hold of another process | [`adopt`](Self::adopt), [`release_ticket`](Self::release_ticket) |
/// | what a client does | [`holds`](Self::holds), [`waits`](Self::waits), [`stats`](Self::stats) |
/// | what all clients do | [`survey`](Self::survey), [`ping`](Self::ping) |
/// | the end of the process | [`shutdown`](Self::shutdown), [`close`](Self::close) |
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { held, waiting, .. } = self.shared.stats();
        let shown = &mut f.debug_struct("Client");
        let shown = shown.field("label", &self.shared.config.label());
        shown.field("held", &held).field("waiting", &waiting).finish_non_exhaustive()
    }
}

/// One lock.
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
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let outer = client.lock("stock:42")?;
    /// let inner = client.lock("stock:42")?; // another level of the same hold
    /// assert_eq!((inner.depth(), inner.fence()), (2, outer.fence()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
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
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// match client.try_lock("nightly import")? {
    ///     Some(_guard) => println!("importing"),
    ///     None => println!("another process is importing"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
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
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let Some(_guard) = client.try_lock_for("stock:42", Duration::from_millis(200))? else {
    ///     return Ok(()); // busy
    /// };
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn try_lock_for(&self, name: &str, wait: Duration) -> Result<Option<Guard>> {
        self.mutex(name).try_lock_for(wait)
    }

    /// Acquires the lock, blocking the current thread until it is able to do so or `deadline` is
    /// reached. Returns `None` in the latter case. See [`try_lock_for`](Client::try_lock_for).
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Timeout`.
    #[track_caller]
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
    #[track_caller]
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
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// if client.try_with_lock("nightly import", |_guard| { /* import */ })?.is_none() {
    ///     println!("another process is importing");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn try_with_lock<T>(
        &self,
        name: &str,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        self.mutex(name).try_with(work)
    }
}

/// Handles, which can have options of their own.
impl Client {
    /// Returns a handle to one lock, which can have its own options and query the lock's state.
    /// Sends nothing.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let report = client.mutex("daily report").lease(Duration::from_secs(5));
    /// let _guard = report.lock()?;
    /// assert!(report.is_locked()?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn mutex(&self, name: &str) -> Mutex {
        self.handle(name, Exclusive)
    }

    /// Returns a handle to a read-write lock. Sends nothing.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let prices = client.rw_lock("prices");
    /// {
    ///     let _first = prices.read()?;
    ///     let _second = prices.read()?; // alongside the first
    /// }
    /// let _writer = prices.write()?; // alone
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn rw_lock(&self, name: &str) -> RwLock {
        self.handle(name, ReadWrite).without_keep()
    }

    /// Returns a handle to a semaphore with `permits` permits. Sends nothing.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let api = client.semaphore("paid api", 2);
    /// let (_first, _second) = (api.acquire()?, api.acquire()?);
    /// assert!(api.try_acquire()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        self.handle(name, Permits(permits)).without_keep()
    }

    /// Returns a handle to an election. Sends nothing.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let term = client.election("scheduler").campaign()?;
    /// assert!(term.is_held()); // this client leads until it resigns, or ends
    /// term.resign()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn election(&self, name: &str) -> Election {
        self.handle(name, Candidacy).without_keep().without_tenure()
    }

    /// Returns a handle to several locks that are acquired together as by
    /// [`lock_all`](Client::lock_all), and that can have its own options. Sends nothing.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let both = client.multi_mutex(["account:7", "account:9"]).wait(Duration::from_secs(1));
    /// let _guard = both.lock()?;
    /// assert!(client.try_lock("account:9")?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn multi_mutex(&self, names: impl IntoIterator<Item: AsRef<str>>) -> MultiMutex {
        let names: Arc<[Arc<str>]> = names.into_iter().map(|name| name.as_ref().into()).collect();
        self.handle(&names.join(", "), LockNames(names))
    }
}

/// Several locks at once.
impl Client {
    /// Acquires several locks, all or none, blocking the current thread until it is able to do so.
    ///
    /// Waits without limit, or for as long as [`Builder::wait`](crate::Builder::wait) allows. The
    /// call holds none of the locks while it waits, except for some round trips, in which other
    /// calls for the same locks give up what they have. It therefore cannot cause a deadlock,
    /// whatever the order of the names. The cost is that a call for many names may wait a long time
    /// while others keep locking single ones.
    ///
    /// If all locks are free, this takes one round trip per server; with [independent
    /// servers](crate::Builder::open_redlock) it takes one for every 256 names. After a wait it
    /// takes one per slot of a cluster, or per name of independent servers.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Lost`, and
    ///
    /// - [`Unavailable`](crate::Error::Unavailable): acquiring all locks takes longer than
    ///   [`max_hold`](crate::Builder::max_hold), or than a lease that is not renewed.
    /// - [`InvalidInput`](crate::Error::InvalidInput): there is no name, or one is given twice.
    /// - [`AlreadyHeld`](crate::Error::AlreadyHeld): this thread holds one of the locks.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let accounts = client.lock_all(["account:7", "account:9"])?;
    /// assert!(accounts.is_held());
    /// accounts.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn lock_all(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<MultiGuard> {
        self.multi_mutex(names).lock()
    }

    /// Attempts to acquire several locks, all or none, without waiting for other holders. See
    /// [`lock_all`](Client::lock_all).
    ///
    /// # Errors
    ///
    /// The same as [`lock_all`](Client::lock_all), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_all(
        &self,
        names: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<Option<MultiGuard>> {
        self.multi_mutex(names).try_lock()
    }

    /// Acquires several locks, all or none, blocking the current thread until it is able to do so
    /// or `wait` has passed. Returns `None` in the latter case. See [`lock_all`](Client::lock_all).
    ///
    /// # Errors
    ///
    /// The same as [`lock_all`](Client::lock_all), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_all_for(
        &self,
        names: impl IntoIterator<Item: AsRef<str>>,
        wait: Duration,
    ) -> Result<Option<MultiGuard>> {
        self.multi_mutex(names).try_lock_for(wait)
    }
}

/// Locks that other threads and processes can take over.
impl Client {
    /// Acquires the lock as [`lock`](Client::lock) does, and returns a guard that belongs to no
    /// thread and never nests. If this thread already holds the lock, it waits for itself, unless
    /// [`reentrant(false)`](crate::Builder::reentrant) makes that an error.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Lost`.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock_owned("stock:42")?;
    /// let worker = std::thread::spawn(move || guard.unlock());
    /// worker.join().expect("the worker has not panicked")?;
    /// assert!(client.try_lock("stock:42")?.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[track_caller]
    pub fn lock_owned(&self, name: &str) -> Result<OwnedGuard> {
        self.mutex(name).lock_owned()
    }

    /// Attempts to acquire the lock as [`try_lock`](Client::try_lock) does, and returns a guard
    /// that belongs to no thread.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Client::lock_owned), except for `Timeout`.
    #[track_caller]
    pub fn try_lock_owned(&self, name: &str) -> Result<Option<OwnedGuard>> {
        self.mutex(name).try_lock_owned()
    }

    /// Acquires the lock as [`try_lock_for`](Client::try_lock_for) does, and returns a guard that
    /// belongs to no thread.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Client::lock_owned), except for `Timeout`.
    #[track_caller]
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
    #[track_caller]
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
}

/// The state of clients and servers.
impl Client {
    /// Returns what this client holds: each hold with the line of the program that acquired it, its
    /// thread and its note, the oldest first. Nested levels are one hold, and so are readers that
    /// share it; a set of locks has one for each name. Does not ask the server. Empty in a forked
    /// child.
    ///
    /// Together with [`waits`](Client::waits), it says what a program that seems to hang is doing:
    /// see the [recipe](crate::guide::cookbook#what-a-program-holds-and-waits-for).
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let _guard = client.mutex("stock:42").note("deploy 4711").lock()?;
    /// let held = &client.holds()[0];
    /// assert_eq!((&*held.name, held.note.as_deref()), ("stock:42", Some("deploy 4711")));
    /// println!("{} at {} in thread {:?}", held.name, held.place, held.thread);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn holds(&self) -> Vec<HeldLock> {
        status::holds(&self.shared)
    }

    /// Returns the calls of this client that are waiting for or trying to acquire locks, each with
    /// the line of the program, its thread and its note, the longest wait first. Does not ask the
    /// server. Empty in a forked child.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// for call in client.waits() {
    ///     println!("{:?} waits for {} at {}", call.thread, call.name, call.place);
    /// }
    /// ```
    #[must_use]
    pub fn waits(&self) -> Vec<WaitingCall> {
        status::waits(&self.shared)
    }

    /// Returns the ten names that the most threads of this client are waiting for or trying to
    /// acquire, with the number of those threads, in descending order. Does not ask the server.
    #[must_use]
    pub fn waiting_names(&self) -> Vec<(String, usize)> {
        status::waiting_names(&self.shared)
    }

    /// Returns what this client holds and uses now, and its counters. Does not ask the server.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let _guard = client.lock("stock:42")?;
    /// let stats = client.stats();
    /// assert_eq!((stats.held, stats.acquired), (1, 1));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns an operator's view of the holds and the waiting clients of all servers. Sends
    /// nothing. See [`Survey`] for an example.
    #[must_use]
    pub fn survey(&self) -> Survey {
        Survey::new(&self.shared)
    }

    /// Returns the id of this client: its label, if any, and 128 random bits. In Redis, the owner
    /// of each of its holds begins with it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.client
    }

    /// Checks that locks can be acquired, and returns how long that took. The server executes
    /// everything that a lock needs, for a name that nothing else uses, and keeps nothing. So a
    /// missing permission, a full server or a replica is an error, too. Blocks for the reply: of
    /// one server, of a node of a cluster, or of a majority of independent servers.
    ///
    /// # Errors
    ///
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; [`try_lock`](Client::try_lock) says how long the call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): the client is closed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn ping(&self) -> Result<Duration> {
        status::ping(&self.shared)
    }

    /// Starts to listen to other clients now, rather than when a call first waits for one. After
    /// that, this client learns at once if an operator ends one of its holds, and not only at the
    /// next renewal. Opens a connection to each server in the background, and returns without
    /// waiting for it.
    pub fn listen(&self) {
        status::listen(&self.shared);
    }
}

/// The end of a client.
impl Client {
    /// Closes all clones of this client to new locks: all calls that are waiting for a lock or
    /// acquiring one, and all later ones, return [`Error::Closed`](crate::Error::Closed).
    ///
    /// Live guards are not affected: their leases are still renewed, and they can be unlocked.
    ///
    /// ```
    /// use leasehold::{Client, Error};
    ///
    /// let client = Client::in_memory();
    /// let guard = client.lock("stock:42")?;
    /// client.close(); // wakes every thread that waits for a lock
    /// assert!(matches!(client.lock("stock:43"), Err(Error::Closed)));
    /// guard.unlock()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn close(&self) {
        self.shared.close();
    }

    /// Closes all clones of this client as [`close`](Client::close) does, and releases every hold.
    /// Blocks until all of them are known to have ended, or `timeout` has passed.
    ///
    /// The releases are sent together, in one batch per server. The call also waits for the
    /// releases of guards that were dropped before, and for calls that are in the middle of
    /// acquiring a lock. Such a call returns [`Closed`](crate::Error::Closed), unless it already
    /// has its lock.
    ///
    /// For guards that still exist, the hold is over: [`is_held`](crate::Guard::is_held) returns
    /// `false`, [`lost`](crate::Guard::lost) reports a normal release,
    /// [`verify`](crate::Guard::verify) and [`renew`](crate::Guard::renew) return `Closed`, and
    /// unlocking or dropping the guard succeeds and does nothing. Work under a lock is not stopped,
    /// nor is a closure of [`with_lock`](Client::with_lock), whose value is returned: stop it
    /// first. A lock with [`hold_at_least`](crate::Mutex::hold_at_least) stays taken for the rest
    /// of that time.
    ///
    /// A request for a lock that was sent before and is still on its way counts as ended with the
    /// call that sent it. If the network delivers it only after the shutdown, the lock is taken for
    /// one lease, by a hold without a guard.
    ///
    /// May be called repeatedly, by several threads at once, and from a closure under a lock. Each
    /// call waits for its own `timeout`, and a call that returns early does not affect the others.
    ///
    /// # Errors
    ///
    /// - [`Unavailable`](crate::Error::Unavailable), or [`NoQuorum`](crate::Error::NoQuorum) from
    ///   independent servers: a release was not confirmed in time, or a call was still under way.
    ///   Releases are retried in the background while a clone of the client or a guard exists. A
    ///   lock whose release never arrives becomes free when its lease ends.
    /// - [`Redis`](crate::Error::Redis): the server kept refusing a release until `timeout` had
    ///   passed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    ///
    /// The [cookbook][end] shows how to free the locks of a process that SIGTERM ends.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock("stock:42")?;
    /// client.shutdown(Duration::from_secs(5))?;
    /// assert!(!guard.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// [end]: crate::guide::cookbook#shutting-down
    pub fn shutdown(&self, timeout: Duration) -> Result<()> {
        release::shut_down(&self.shared, timeout)
    }
}

impl Client {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    fn handle<K>(&self, name: &str, kind: K) -> LockHandle<K> {
        LockHandle::new(&self.shared, name, kind)
    }
}
