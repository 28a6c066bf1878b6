//! The handle through which locks are acquired, and the type that configures it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::config::Config;
use crate::config::deployment::Deployment;
use crate::error::{Error, Result};
use crate::guards::election::Election;
use crate::guards::guard::Guard;
use crate::guards::multi_guard::MultiGuard;
use crate::guards::mutex::Mutex;
use crate::guards::owned_guard::OwnedGuard;
use crate::guards::owned_hold::OwnedHold;
use crate::guards::rw_lock::RwLock;
use crate::guards::semaphore::Semaphore;
use crate::guards::ticket::Ticket;
use crate::local::call::Wait;
use crate::local::shared::Shared;
use crate::local::{acquire_all, release, status};
use crate::open;
use crate::stats::Stats;
use crate::store::memory::SimulatedServer;
use crate::survey::Survey;

/// A handle for acquiring distributed locks. Clones are cheap and share everything.
///
/// A client has a pool of connections and a background thread that renews its leases. Both are
/// shut down when the last clone and the last guard are gone. Two clients are two different owners,
/// even in one thread.
///
/// ```
/// let client = leasehold::Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
/// {
///     let guard = client.lock("stock:42")?; // blocks; renewed in the background
///     println!("selling with fencing token {}", guard.fence());
/// } // released
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { held, waiting, .. } = self.shared.stats();
        let shown = &mut f.debug_struct("Client");
        let shown = shown.field("label", &self.shared.config.label);
        shown.field("held", &held).field("waiting", &waiting).finish_non_exhaustive()
    }
}

/// A configuration for a [`Client`]. All settings are optional; they are checked when the client is
/// opened.
///
/// ```
/// use leasehold::{Client, Event};
/// use std::time::Duration;
///
/// let client = Client::builder()
///     .lease(Duration::from_secs(10))
///     .wait(Duration::from_secs(60))
///     .prefix("shop:")
///     .on_event(|event| {
///         if let Event::Lost { name, fence } = event {
///             eprintln!("lost {name} (fence {fence})");
///         }
///     })
///     .in_memory()?; // or .open("redis://127.0.0.1/")?
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is opened"]
// A client makes a builder and a builder makes a client: the file that both types are defined in
// ends that circle. The builder's methods are in `builder.rs`.
pub struct Builder {
    pub(crate) config: Config,
    /// Where the servers are, if a URL has said so.
    pub(crate) deployment: Option<Deployment>,
}

impl Client {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Opens a client at the servers of a URL, in most cases for one Redis server. Whatever the URL
    /// does not set has its default. See [`Builder::from_url`].
    ///
    /// # Errors
    ///
    /// The same as [`Builder::open`].
    ///
    /// ```no_run
    /// let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open(url: &str) -> Result<Self> {
        open::at_url(Config::default(), url).map(Self::new)
    }

    /// Creates a client whose locks exist only in this process, for tests and demonstrations.
    ///
    /// Clones of the client share its locks; clients created by separate calls do not. For several
    /// clients that share locks, see [`MemoryServer`](crate::MemoryServer).
    ///
    /// # Panics
    ///
    /// Panics if the system cannot provide random bytes or start a thread. [`Builder::in_memory`]
    /// returns an error instead.
    #[must_use]
    pub fn in_memory() -> Self {
        let shared = open::in_memory(Config::default(), &SimulatedServer::default());
        Self::new(shared.expect("the system has random bytes and threads"))
    }

    /// Creates a [`Builder`] with default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Acquires the lock, blocking the current thread until it is able to do so.
    ///
    /// Waits for other holders without limit, or for as long as [`Builder::wait`] allows. A thread
    /// that already holds the lock gets another level of it, which takes one round trip and keeps
    /// the fencing token. Each level has a guard of its own, and the hold ends when the last of
    /// them is dropped, in whatever order that happens.
    ///
    /// Nesting is per thread. A pool that runs other tasks on a thread while one of them waits, as
    /// rayon does, may start a task on the thread of the holder that locks the same name, and both
    /// would be in the critical section at once. There, use
    /// [`reentrant(false)`](Builder::reentrant) or [`lock_owned`](Client::lock_owned), with a
    /// [`wait`](Builder::wait), and do not call into the pool while holding the lock.
    ///
    /// The call uses no connection while it waits. Waiting threads of this client form a queue, and
    /// the first of them is woken when another client releases the lock. In case that message is
    /// lost, it also retries after growing random pauses, and no later than the holder's lease
    /// ends.
    ///
    /// # Errors
    ///
    /// - [`Timeout`](crate::Error::Timeout): another owner held the lock until the wait was over.
    /// - [`Unavailable`](crate::Error::Unavailable), or [`NoQuorum`](crate::Error::NoQuorum) from
    ///   independent servers: no usable answer came before the wait was over or, without a limit,
    ///   for [`retry_window`](Builder::retry_window).
    /// - [`NotReplicated`](crate::Error::NotReplicated): too few replicas or disks acknowledged the
    ///   lock in time; see [`Builder::durability`].
    /// - [`Lost`](crate::Error::Lost): this thread has a guard of this name whose lease was lost.
    /// - [`AlreadyHeld`](crate::Error::AlreadyHeld): this thread holds the lock, and it is not
    ///   [`reentrant`](Builder::reentrant).
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`WrongType`](crate::Error::WrongType): the key holds something that is not a lock.
    /// - [`InvalidInput`](crate::Error::InvalidInput): the name cannot be that of a lock.
    /// - [`Closed`](crate::Error::Closed): the client is closed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn lock(&self, name: &str) -> Result<Guard> {
        self.mutex(name).lock()
    }

    /// Attempts to acquire the lock without waiting for another holder, and returns `None` if there
    /// is one, or if another thread of this client waits for the lock.
    ///
    /// Blocks for one round trip. A server that cannot be reached or does not answer is given up on
    /// after two attempts of [`io_timeout`](Builder::io_timeout) each; a server that is restarting,
    /// failing over or busy, after [`retry_window`](Builder::retry_window).
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
    /// The time covers the whole call, including attempts at a server that does not answer; the
    /// last request may take up to one [`io_timeout`](Builder::io_timeout) longer. Zero means a
    /// single attempt, and [`Duration::MAX`] means no limit. [`lock`](Client::lock) describes how
    /// threads wait.
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
    /// [`Lost`](crate::Error::Lost), if the lease was lost in the meantime; a release that fails is
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
    /// the lock, and returns the value of `work`. Returns `None` if another owner holds the lock;
    /// then `work` has not run.
    ///
    /// # Errors
    ///
    /// The same as [`with_lock`](Client::with_lock), except for `Timeout`.
    ///
    /// ```
    /// let client = leasehold::Client::in_memory();
    /// let swept = client.try_with_lock("nightly sweep", |_| "swept")?;
    /// assert_eq!(swept, Some("swept"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_with_lock<T>(
        &self,
        name: &str,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        self.mutex(name).try_with(work)
    }

    /// Acquires the lock as [`lock`](Client::lock) does, for a guard that belongs to no thread and
    /// never nests: if this thread holds the lock already, it waits for itself, unless
    /// [`reentrant(false)`](Builder::reentrant) makes that an error.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Lost`.
    pub fn lock_owned(&self, name: &str) -> Result<OwnedGuard> {
        self.mutex(name).lock_owned()
    }

    /// Attempts to acquire the lock as [`try_lock`](Client::try_lock) does, for a guard that
    /// belongs to no thread.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Client::lock_owned), except for `Timeout`.
    pub fn try_lock_owned(&self, name: &str) -> Result<Option<OwnedGuard>> {
        self.mutex(name).try_lock_owned()
    }

    /// Acquires the lock as [`try_lock_for`](Client::try_lock_for) does, for a guard that belongs
    /// to no thread.
    ///
    /// # Errors
    ///
    /// The same as [`lock_owned`](Client::lock_owned), except for `Timeout`.
    pub fn try_lock_owned_for(&self, name: &str, wait: Duration) -> Result<Option<OwnedGuard>> {
        self.mutex(name).try_lock_owned_for(wait)
    }

    /// Renews a hold that another guard has left by [`OwnedGuard::detach`], and returns a guard of
    /// it: the same hold, with the same fencing token. Blocks for the server's reply, and waits
    /// behind no other thread.
    ///
    /// The lease is that of the hold that was left. Whether it is renewed in the background, and
    /// [for how long](Builder::max_hold), is what this client is set to. Another client sees the
    /// hold, as in [`Holder`](crate::Holder), as one of the client that has acquired it.
    ///
    /// If a ticket is adopted twice, both guards are of one hold: when one of them releases it, the
    /// other has lost it, and learns so at its next renewal. If a worker may get its ticket twice,
    /// as from a queue that delivers at least once, let the first one write down that the work is
    /// done, and check [`OwnedGuard::fence`] there.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::Error::Lost): the hold is over. Its lease has ended, or it was released,
    ///   ended by force or overwritten.
    /// - [`InvalidInput`](crate::Error::InvalidInput): the ticket is that of a client with another
    ///   [`prefix`](Builder::prefix), or has a lease that is too short for the
    ///   [`io_timeout`](Builder::io_timeout) of this client. Nothing was sent.
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`try_lock`](Client::try_lock) for how long the call retries. The
    ///   hold stays as the ticket has left it, or was renewed by this call, and the ticket can be
    ///   adopted until its lease is over.
    /// - [`NotReplicated`](crate::Error::NotReplicated): too few replicas or disks acknowledged the
    ///   renewal. The hold stays as well.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): the client is closed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn adopt(&self, ticket: &Ticket) -> Result<OwnedGuard> {
        if *ticket.prefix != *self.shared.config.prefix {
            return Err(Error::invalid("ticket", "must be that of a client with the same prefix"));
        }
        OwnedHold::adopt(&self.shared, &ticket.hold).map(OwnedGuard::new)
    }

    /// Acquires several locks, all or none, blocking the current thread until it is able to do so.
    ///
    /// Waits without limit, or for as long as [`Builder::wait`] allows, for all of them together.
    /// The call holds none of the locks while it waits, so that it cannot be part of a deadlock,
    /// whatever the order of the names. The price: while others keep locking single names, a call
    /// for many may wait long.
    ///
    /// If all locks are free, this takes one round trip for those of one server, or of one slot of
    /// a cluster; with [independent servers](Builder::open_redlock) it takes one for each name.
    ///
    /// # Errors
    ///
    /// The same as [`lock`](Client::lock), except for `Lost`, and
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): no name, or one twice.
    /// - [`AlreadyHeld`](crate::Error::AlreadyHeld): this thread holds one of the locks.
    pub fn lock_all(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<MultiGuard> {
        let names = collect(names);
        let options = &self.shared.config.options;
        let wait = Wait::at_most(options.wait);
        self.acquire_all(&names, wait)?.ok_or_else(|| Error::timed_out(&names.join(", ")))
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
        self.acquire_all(&collect(names), Wait::No)
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
        self.acquire_all(&collect(names), Wait::Until(end_of(wait)))
    }

    fn acquire_all(&self, names: &[Arc<str>], wait: Wait) -> Result<Option<MultiGuard>> {
        let options = &self.shared.config.options;
        let leases = acquire_all::acquire_all(&self.shared, names, options, wait)?;
        Ok(leases.map(|leases| MultiGuard::new(&self.shared, leases)))
    }

    /// Returns a handle to a read-write lock. Sends nothing.
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::new(&self.shared, name)
    }

    /// Returns a handle to a semaphore with `permits` permits. Sends nothing.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore::new(&self.shared, name, permits)
    }

    /// Returns a handle to an election. Sends nothing.
    #[must_use]
    pub fn election(&self, name: &str) -> Election {
        Election::new(&self.shared, name)
    }

    /// Returns a handle to one lock, for setting options of its own or querying its state. Sends
    /// nothing.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(&self.shared, name)
    }

    /// Returns the part of this client's owners in Redis that is the same for all its holds: the
    /// label, if any, and 128 random bits.
    #[must_use]
    pub fn id(&self) -> &str {
        self.shared.identity.client()
    }

    /// Checks that the server answers, and returns how long that took. Blocks for the reply: of one
    /// server, of a node of a cluster, or of a majority of independent servers.
    ///
    /// # Errors
    ///
    /// - [`Unavailable`](crate::Error::Unavailable) or [`NoQuorum`](crate::Error::NoQuorum): no
    ///   usable answer came; see [`try_lock`](Client::try_lock) for how long the call retries.
    /// - [`Redis`](crate::Error::Redis): the server refused the request.
    /// - [`Closed`](crate::Error::Closed): the client is closed.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    pub fn ping(&self) -> Result<Duration> {
        status::ping(&self.shared)
    }

    /// Returns what the program `leasehold` shows and does of all clients' holds. Sends nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn survey(&self) -> Survey {
        Survey::new(&self.shared)
    }

    /// Returns what this client holds and uses at the moment. Does not ask the server.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns the ten names that most threads of this client want at the moment, and how many do,
    /// most first: those that wait, and those that are just asking. Does not ask the server.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let client = leasehold::Client::in_memory();
    /// let guard = client.lock_owned("stock:42")?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| client.lock("stock:42").map(drop));
    ///     while client.stats().waiting == 0 {
    ///         std::thread::sleep(Duration::from_millis(1));
    ///     }
    ///     assert_eq!(client.waiting_names(), [("stock:42".to_owned(), 1)]);
    ///     guard.unlock()
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn waiting_names(&self) -> Vec<(String, usize)> {
        status::waiting_names(&self.shared)
    }

    /// Closes all clones of this client to new locks: calls that wait for a lock or are just
    /// acquiring one, and those that begin later, return [`Error::Closed`](crate::Error::Closed).
    ///
    /// Live guards are not affected: their leases are still renewed, and they can be unlocked.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Closes all clones of this client as [`close`](Client::close) does, and releases every hold.
    /// Blocks until all of them are known to have ended, or `timeout` has passed.
    ///
    /// The releases are sent together, in one batch per server. It also waits for the releases of
    /// guards that were dropped before, and for calls that are just acquiring a lock: such a call
    /// returns [`Closed`](crate::Error::Closed), unless it has its lock already.
    ///
    /// A guard that is left is over: [`is_held`](Guard::is_held) returns `false`,
    /// [`lost`](Guard::lost) reports that the hold has ended normally, [`verify`](Guard::verify)
    /// and [`renew`](Guard::renew) return `Closed`, and unlocking or dropping it succeeds and does
    /// nothing more. Work under it is not stopped, nor is a closure of
    /// [`with_lock`](Client::with_lock), whose value is returned: stop it first. A lock that is to
    /// be [held at least](Mutex::hold_at_least) for a time stays taken for the rest of that time.
    ///
    /// May be called again, by several threads at once, and from a closure under a lock.
    ///
    /// # Errors
    ///
    /// - [`Unavailable`](crate::Error::Unavailable), or [`NoQuorum`](crate::Error::NoQuorum) from
    ///   independent servers: a release was not confirmed in time, or a call was still under way.
    ///   The releases are repeated in the background while a clone of the client or a guard is
    ///   left. A lock whose release never arrives is free when its lease ends.
    /// - [`Redis`](crate::Error::Redis): the server refused a release until the time was over.
    /// - [`Forked`](crate::Error::Forked): this process is a forked child.
    ///
    /// # When the process is told to end
    ///
    /// A process that ends by SIGTERM keeps its locks until their leases end. To free them at once,
    /// let a thread wait for the signal (not a signal handler, which may not take locks), and then:
    ///
    /// ```
    /// use leasehold::{Client, Error};
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// let client = Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
    /// let worker = thread::spawn({
    ///     let client = client.clone();
    ///     move || loop {
    ///         match client.with_lock("job", |_| { /* one piece of work */ }) {
    ///             Ok(()) => {}
    ///             Err(Error::Closed) => return,
    ///             Err(error) => eprintln!("{error}"),
    ///         }
    ///     }
    /// });
    ///
    /// // Wait for the signal: with the signal-hook crate,
    /// // Signals::new([SIGTERM, SIGINT])?.forever().next();
    ///
    /// // 1. No more locks. Workers that wait for one, or want the next, return.
    /// client.close();
    /// // 2. Let running work finish, for less than the time until SIGKILL.
    /// worker.join().unwrap();
    /// // 3. Release what unfinished work still holds, and wait for the confirmation.
    /// if let Err(error) = client.shutdown(Duration::from_secs(2)) {
    ///     eprintln!("some locks are free only when their leases end: {error}");
    /// }
    /// // 4. End the process.
    /// ```
    pub fn shutdown(&self, timeout: Duration) -> Result<()> {
        release::shut_down(&self.shared, timeout)
    }
}

fn collect(names: impl IntoIterator<Item: AsRef<str>>) -> Vec<Arc<str>> {
    names.into_iter().map(|name| name.as_ref().into()).collect()
}
