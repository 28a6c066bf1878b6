//! Settings of a client.

use std::time::Duration;

use crate::client::Client;
use crate::config::{Config, Durability, Login};
use crate::error::Result;
use crate::event::{Callback, Event};
#[cfg(feature = "tls")]
use crate::tls::Tls;

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
pub struct Builder {
    pub(crate) config: Config,
    pub(crate) on_event: Option<Callback>,
}

/// How clients are made.
impl Client {
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
        Self::builder().open(url)
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
        Self::builder().in_memory().expect("the system has randomness and threads")
    }

    /// Starts to configure a client.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Sets the lease: how long a lock lasts after the last renewal. A holder that dies blocks
    /// others no longer than this; one that cannot reach the server loses the lock after it.
    ///
    /// From 10 ms to 365 days. Defaults to 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.options.lease = lease;
        self
    }

    /// Sets how long [`Client::lock`] waits for a lock that somebody else holds before it returns
    /// [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// Defaults to no limit.
    pub fn wait(mut self, time: Duration) -> Self {
        self.config.options.wait = Some(time);
        self
    }

    /// Sets whether leases are renewed in the background, each when a third of it is over. Without
    /// renewal a guard is lost when its lease ends.
    ///
    /// Defaults to `true`.
    pub fn renew(mut self, renew: bool) -> Self {
        self.config.options.renew = renew;
        self
    }

    /// Sets the longest time a lock can be held: renewal stops so that its last lease ends then,
    /// here and in Redis. A bound on the harm of a thread that hangs.
    ///
    /// At least 10 ms. Defaults to no limit.
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.config.options.max_hold = Some(age);
        self
    }

    /// Sets how many connections the calls of all threads share. A connection is opened when it is
    /// first needed, and used only for the time of a request, never while a thread waits for a
    /// lock. The renewer has one of its own besides.
    ///
    /// From 1 to 10 000. Defaults to 8.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.config.pool_size = connections;
        self
    }

    /// Sets how long opening a connection may take, from looking up the host's name to the end of
    /// the login.
    ///
    /// Defaults to 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets how long one request may take, from waiting for a connection to the last byte of the
    /// reply.
    ///
    /// At most a third of the lease. Defaults to 1 s, and as much more as
    /// [`durability`](Builder::durability) may take, or a third of the lease where that is less.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.config.io_timeout = Some(timeout);
        self
    }

    /// Sets for how long calls without a deadline of their own put up with kinds of the server
    /// that pass by themselves, such as a restart, a failover or a long script.
    ///
    /// Defaults to 10 s.
    pub fn retry_window(mut self, time: Duration) -> Self {
        self.config.retry_window = time;
        self
    }

    /// Sets the shortest and the longest pause between two tries for a lock that is held, should
    /// no wake-up end it. Pauses grow at random between the two ("decorrelated jitter"), and end
    /// with the holder's lease.
    ///
    /// Defaults to 5 ms and 500 ms.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.backoff = (min, max);
        self
    }

    /// Sets what is put before every lock's name to make its key. The prefix belongs to the name:
    /// prefix `a` with name `bc` is the same lock as prefix `ab` with name `c`.
    ///
    /// Defaults to nothing.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets what the client's [id](Client::id) begins with, so that people who look into Redis
    /// see who holds a lock: the host's name, say.
    ///
    /// At most 256 bytes. Defaults to nothing.
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = label.into();
        self
    }

    /// Sets what is called for every [`Event`], in order, on a thread of its own: it may block or
    /// panic without harm to locks. Up to 4096 events wait for it; more are dropped and logged.
    ///
    /// Defaults to nothing, and no such thread. The same events go to the `log` crate.
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Callback::new(callback));
        self
    }

    /// Sets what a lock must have survived before the call that took it returns. While too few
    /// replicas are there to say so, no lock can be had. Of several independent servers, each has
    /// replicas and a disk of its own, and a majority is enough.
    ///
    /// Defaults to [`Durability::Memory`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Sets for how long a thread may keep a core busy while it waits for a reply, before it
    /// sleeps. Being woken costs more time than a near server needs to answer.
    ///
    /// A server that usually takes longer is not waited for in this way, nor do so many threads do
    /// it at once that no core is left. Zero: never. Defaults to 50 µs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.config.spin = time;
        self
    }

    /// Sets how often in a row threads of this client may hand on a lock to one another while
    /// another client waits for it; then it is that client's turn, as it is after 100 ms of handing
    /// on. Zero: never hand on then.
    ///
    /// Defaults to 32.
    pub fn max_handoffs(mut self, times: u32) -> Self {
        self.config.max_handoffs = times;
        self
    }

    /// Sets whether dropping a guard may leave its release to another thread of this client, and
    /// return at once. That thread must be waiting for a reply at the moment over a connection that
    /// several share: it sends the release as soon as it has the reply, along with what others want
    /// by then. Without such a thread a drop waits as ever, and so does
    /// [`unlock`](crate::Guard::unlock).
    ///
    /// Many threads that lock and drop all the time get half as much done again, because each has to
    /// be woken once for a lock instead of twice. But when the drop returns, the lock may still be
    /// held in Redis, usually for a fraction of a millisecond, and for up to `io_timeout` if the
    /// server has stopped to answer. Threads of this client need not care: whoever wants the lock
    /// next gets it behind the release, or instead of it. Others may find it held. If the release
    /// fails it is repeated in the background, and told as [`Event::ReleaseFailed`].
    ///
    /// One server, sentinels and clusters only; elsewhere it has no effect. Defaults to `false`.
    pub fn pipelined_release(mut self, pipelined: bool) -> Self {
        self.config.pipelined_release = pipelined;
        self
    }

    /// Sets whom the client trusts at a `rediss://` URL, and how it proves who it is itself. With
    /// the feature `tls`.
    ///
    /// Defaults to the system's certificate authorities, and no certificate of its own.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// Sets the user, empty for the default one, and the password at the masters that sentinels
    /// name; those in the URLs are then only for the sentinels. See
    /// [`open_sentinel`](Builder::open_sentinel), which alone uses it.
    ///
    /// Defaults to those in the URLs.
    pub fn master_login(mut self, user: &str, password: &str) -> Self {
        self.config.master_login = Some(Login { user: user.into(), password: password.into() });
        self
    }
}
