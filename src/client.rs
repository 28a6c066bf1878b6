//! The handle that locks are taken through.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::Result;
use crate::guard::Guard;
use crate::local::shared::Shared;
use crate::mutex::Mutex;
use crate::open;

/// A source of distributed locks. Clones are cheap and share everything.
///
/// A client has a pool of connections and a background thread that renews its leases. Both end
/// when the last clone and the last guard are gone. Two clients are two different owners, even in
/// one thread.
///
/// ```
/// let client = leasehold::Client::in_memory(); // or Client::open("redis://127.0.0.1/")?
/// {
///     let guard = client.lock("stock:42")?; // blocks; renewed in the background
///     println!("selling with fencing token {}", guard.fence());
/// } // released
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    engine: Arc<Shared>,
}

/// Configures a [`Client`]. All settings are optional and are checked when it is opened.
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
}

impl Client {
    pub(crate) fn new(engine: Shared) -> Self {
        Self { engine: Arc::new(engine) }
    }

    /// Opens a client of one Redis server with default settings. See [`Builder::open`].
    ///
    /// # Errors
    ///
    /// As [`Builder::open`].
    ///
    /// ```no_run
    /// let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open(url: &str) -> Result<Self> {
        open::standalone(Config::default(), url).map(Self::new)
    }

    /// Makes a client whose locks exist in this process only, for tests and demonstrations. Each
    /// call makes a world of its own, shared by the clones of the client.
    ///
    /// # Panics
    ///
    /// If the system has no randomness or cannot start a thread. [`Builder::in_memory`] returns
    /// an error instead.
    #[must_use]
    pub fn in_memory() -> Self {
        let shared = open::in_memory(Config::default());
        Self::new(shared.expect("the system has randomness and threads"))
    }

    /// Starts to configure a client.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Blocks the current thread until it has the lock.
    ///
    /// Waits without limit for others to release it, or as long as [`Builder::wait`](Builder::wait) says. A
    /// thread that has the lock already gets a further level of it, which costs one round trip and
    /// keeps the fencing token; each level has a guard of its own, and the hold ends with the last
    /// of them, in whatever order they are dropped.
    ///
    /// While it waits, the call has no connection. Threads of this client wait in line; the first
    /// of them is woken when another client releases the lock. Should the message be lost, it tries
    /// again after growing random pauses, never longer than the holder's lease lasts.
    ///
    /// # Errors
    ///
    /// - [`Timeout`](crate::Error::Timeout): somebody else had it when the wait was over.
    /// - [`Unavailable`](crate::Error::Unavailable): the server could not be reached or did not
    ///   answer until the wait was over, or without a limit for
    ///   [`retry_window`](Builder::retry_window).
    /// - [`Lost`](crate::Error::Lost): this thread has a guard of this name whose lease is lost.
    /// - [`Redis`](crate::Error::Redis), [`WrongType`](crate::Error::WrongType),
    ///   [`InvalidInput`](crate::Error::InvalidInput), [`Closed`](crate::Error::Closed),
    ///   [`Forked`](crate::Error::Forked).
    pub fn lock(&self, name: &str) -> Result<Guard> {
        self.mutex(name).lock()
    }

    /// Takes the lock if nobody else has it, and returns `None` otherwise. Blocks for one round
    /// trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Client::lock), but for `Timeout`. A server that cannot be reached or is silent
    /// is given up after two tries of [`io_timeout`](Builder::io_timeout); one that is restarting,
    /// failing over or busy after [`retry_window`](Builder::retry_window).
    pub fn try_lock(&self, name: &str) -> Result<Option<Guard>> {
        self.mutex(name).try_lock()
    }

    /// Blocks until the current thread has the lock or `wait` is over, and then returns `None`.
    ///
    /// The time covers everything, tries at a server that does not answer included; the last
    /// request may end one [`io_timeout`](Builder::io_timeout) later. Zero means one try,
    /// [`Duration::MAX`] no limit.
    ///
    /// # Errors
    ///
    /// As [`lock`](Client::lock), but for `Timeout`.
    pub fn try_lock_for(&self, name: &str, wait: Duration) -> Result<Option<Guard>> {
        self.mutex(name).try_lock_for(wait)
    }

    /// Blocks until the current thread has the lock or `deadline` has come, and then returns
    /// `None`. See [`try_lock_for`](Client::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`lock`](Client::lock), but for `Timeout`.
    pub fn try_lock_until(&self, name: &str, deadline: Instant) -> Result<Option<Guard>> {
        self.mutex(name).try_lock_until(deadline)
    }

    /// Runs `work` while holding the lock, and returns what it returns.
    ///
    /// # Errors
    ///
    /// As [`lock`](Client::lock) before the work. After it [`Lost`](crate::Error::Lost) if the
    /// lease was lost meanwhile; a release that got no answer is left to the background.
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

    /// Names a lock, to give it options of its own or to ask about it. Sends nothing.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(&self.engine, name)
    }

    /// The public part of this client's owners in Redis: the label, if any, and 128 random bits.
    #[must_use]
    pub fn id(&self) -> &str {
        self.engine.owner.client()
    }

    /// Turns away new calls for locks, and those that wait, in all clones of this client: they
    /// return [`Error::Closed`](crate::Error::Closed).
    ///
    /// Living guards are not affected: they are renewed, and can be unlocked.
    pub fn close(&self) {
        self.engine.close();
    }
}
