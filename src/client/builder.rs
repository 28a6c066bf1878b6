//! The settings of a client, and the ways to open one.

use std::env;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Client, open};
use crate::config::callbacks::{AddressMap, Credentials, CredentialsCallback};
#[cfg(feature = "tls")]
use crate::config::certificates::Tls;
use crate::config::durability::Durability;
use crate::config::url::{Deployment, apply_environment, configure};
use crate::config::{Config, Deadlock, Mechanism};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::store::memory::memory_server::MemoryServer;

/// A configuration for a [`Client`]. All settings are optional, and are checked when a client is
/// opened.
///
/// ```
/// use leasehold::Client;
/// use std::time::Duration;
///
/// let client = Client::builder()
///     .lease(Duration::from_secs(10))
///     .prefix("shop:")
///     .on_event(|event| println!("{event:?}"))
///     .in_memory()?; // or .open("redis://127.0.0.1/")?
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// | setting | default | sets |
/// |---|---|---|
/// | **most programs** | | |
/// | [`lease`](Self::lease) | 30 s | how long a lock lasts after its last renewal |
/// | [`wait`](Self::wait) | no limit | how long `lock` waits for a held lock |
/// | [`label`](Self::label) | `host:pid` | the beginning of the client's id, for operators |
/// | [`prefix`](Self::prefix) | `lock:` | the beginning of the keys of locks |
/// | [`on_event`](Self::on_event) | none | a callback for events |
/// | **times** | | |
/// | [`max_hold`](Self::max_hold) | no limit | how long a hold may last in all |
/// | [`renew`](Self::renew) | `true` | whether leases are renewed in the background |
/// | [`tenure`](Self::tenure) | 10 ms | how long threads hand a lock off among themselves |
/// | [`keep`](Self::keep) | zero | how long a lock is kept after its last use |
/// | **connections** | | |
/// | [`lazy`](Self::lazy) | `false` | whether opening sends no request |
/// | [`credentials`](Self::credentials), `tls` | from the URL | how to log in |
/// | [`master_login`](Self::master_login) | from the URL | how to log in behind sentinels |
/// | [`address_map`](Self::address_map) | none | where announced servers can be reached |
/// | [`pool_size`](Self::pool_size) | 4 | how many connections the calls share |
/// | [`connect_timeout`](Self::connect_timeout) | 1 s | how long opening a connection may take |
/// | [`io_timeout`](Self::io_timeout) | 1 s | how long one request may take |
/// | [`retry_window`](Self::retry_window) | 10 s | how long calls without a deadline retry |
/// | [`idle_timeout`](Self::idle_timeout) | 1 min | how long a connection may be idle |
/// | [`max_lifetime`](Self::max_lifetime) | 30 min | how long a connection is used |
/// | **safety** | | |
/// | [`durability`](Self::durability) | `Memory` | where a lock must be stored before it counts |
/// | [`reentrant`](Self::reentrant) | `true` | whether a thread may lock a name that it holds |
/// | [`deadlock_after`](Self::deadlock_after) | 1 s | when a waiting call looks for a deadlock |
/// | [`deadlock`](Self::deadlock) | `Report` | whether a call of a deadlock fails |
/// | [`warn_held`](Self::warn_held) | none | when a long hold is reported |
/// | **special needs** | | |
/// | [`note`](Self::note) | none | a text that is shown with each hold |
/// | `metrics` | `false` | whether the crate `metrics` gets the client's numbers |
/// | [`redisson`](Self::redisson) | `false` | whether wake-ups are exchanged with Redisson |
/// | [`pollers`](Self::pollers) | `false` | whether programs that poll get their turn |
/// | [`backoff`](Self::backoff) | 5 ms, 500 ms | pauses between attempts without a wake-up |
/// | [`fence_life`](Self::fence_life) | 24 h | how long a counter of fences outlasts its last use |
/// | [`spin`](Self::spin) | 50 µs | how long a thread busy-waits for a reply |
///
/// A handle such as [`Mutex`](crate::Mutex) can have a `lease`, `wait`, `renew`, `max_hold`, `note`
/// and, for a single lock, `keep` and `reentrant` of its own.
///
/// [`open`](Self::open) opens a client for one server. There are
/// [`open_sentinel`](Self::open_sentinel), [`open_cluster`](Self::open_cluster) and
/// [`open_redlock`](Self::open_redlock) for several; [`in_memory`](Self::in_memory) and
/// [`open_memory`](Self::open_memory) for none; and [`from_url`](Self::from_url) and
/// [`from_env`](Self::from_env), if a URL says which.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is opened"]
pub struct Builder {
    pub(crate) config: Config,
    /// The servers, if a URL was given.
    pub(crate) deployment: Option<Deployment>,
}

/// The settings that most programs choose.
impl Builder {
    /// Sets the lease: how long a lock lasts after its last renewal. A holder that dies blocks
    /// others for no longer than this, and a holder that cannot reach the server loses the lock
    /// after this time.
    ///
    /// From 10 ms to 365 days. Defaults to 30 s.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// // A process that is killed blocks others for ten seconds at most.
    /// let client = leasehold::Client::builder().lease(Duration::from_secs(10)).in_memory()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.options_mut().lease = lease;
        self
    }

    /// Sets how long [`Client::lock`](crate::Client::lock) waits for a held lock before it returns
    /// [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// Defaults to no limit.
    ///
    /// ```
    /// use leasehold::{Client, Error};
    /// use std::time::Duration;
    ///
    /// let client = Client::builder().wait(Duration::from_millis(50)).in_memory()?;
    /// let _held = client.lock_owned("stock:42")?;
    /// let outcome = client.lock("stock:42");
    /// assert!(matches!(outcome, Err(Error::Timeout { .. })));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn wait(mut self, time: Duration) -> Self {
        self.config.options_mut().wait = Some(time);
        self
    }

    /// Sets the beginning of the client's [id](crate::Client::id), which shows operators in Redis
    /// which program holds a lock.
    ///
    /// At most 256 bytes, without braces and control characters; empty for none. Defaults to the
    /// host and the number of the process, such as `web-3:4711`. If that number is 1, as in
    /// containers, four random digits follow it, such as `web-3:1-0815`.
    ///
    /// ```
    /// let client = leasehold::Client::builder().label("importer").in_memory()?;
    /// assert!(client.id().starts_with("importer:"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.config.label = Some(label.as_ref().into());
        self
    }

    /// Sets the prefix of the keys of locks, which keeps them apart from the application's data.
    /// The key is the prefix followed by the name, so prefix `a` with name `bc` is the same lock as
    /// prefix `ab` with name `c`. To share locks with programs that use another library, set the
    /// prefix of their keys: an empty one for Redisson's `getLock(name)`.
    ///
    /// Defaults to `lock:`.
    ///
    /// ```
    /// let client = leasehold::Client::builder().prefix("shop:lock:").in_memory()?;
    /// let _guard = client.lock("stock:42")?; // the key is shop:lock:stock:42
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets a callback for every [`Event`]. A thread of its own delivers the events, and the lines
    /// for the logger of the `log` crate, in order, so a callback that blocks or panics does no
    /// harm to locks. Up to 4096 of them are queued; further ones are dropped, and their number is
    /// logged. [`Client::shutdown`](crate::Client::shutdown) waits until all earlier ones are
    /// delivered, for a second at most, and so does dropping the last clone and guard of a client.
    ///
    /// Defaults to no callback. The thread is then started by the first line that the logger's
    /// maximum level lets through.
    ///
    /// ```
    /// use leasehold::{Client, Event};
    ///
    /// let client = Client::builder()
    ///     .on_event(|event| {
    ///         if let Event::Lost { name, cause, .. } = event {
    ///             eprintln!("lock {name:?} was lost: {cause}");
    ///         }
    ///     })
    ///     .in_memory()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.on_event = Some(Arc::new(callback));
        self
    }
}

/// Times, besides [`lease`](Self::lease) and [`wait`](Self::wait).
impl Builder {
    /// Sets the longest time for which a lock can be held, to limit the harm of a hung thread.
    /// Renewal stops early enough for the last lease to end by then, both here and in Redis.
    ///
    /// At least 10 ms. Defaults to no limit.
    ///
    /// ```
    /// use leasehold::{Client, HoldEnd};
    /// use std::time::Duration;
    ///
    /// let client = Client::builder().max_hold(Duration::from_millis(20)).in_memory()?;
    /// let guard = client.lock("stock:42")?;
    /// assert_eq!(guard.lost().wait(), HoldEnd::Lost);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.config.options_mut().max_hold = Some(age);
        self
    }

    /// Sets whether leases are renewed in the background, each when a third of it has passed.
    /// Without renewal, a guard is lost when its lease ends, and nested locks do not prolong it.
    ///
    /// Defaults to `true`.
    pub fn renew(mut self, renew: bool) -> Self {
        self.config.options_mut().renew = renew;
        self
    }

    /// Sets how long the threads of this client hand a lock off among themselves, without a
    /// request, before other clients get it. The time starts when the client acquires the lock. The
    /// hold in progress when it ends is the last one.
    ///
    /// Longer tenures favour throughput, shorter ones favour other clients. With zero, every hold
    /// is acquired by a request of its own. The same goes for a hold with a different lease,
    /// renewal or [`hold_at_least`](crate::Mutex::hold_at_least), and for a hold after a guard that
    /// was [unlocked](crate::Guard::unlock). Within a tenure, [`max_hold`](Builder::max_hold)
    /// counts from its beginning, and a hold that an operator has ended is noticed only at the next
    /// request about it: at the latest by the first hold after the tenure, or by `unlock`, `verify`
    /// or `renew`.
    ///
    /// The technique is that of cohort locks (Dice, Marathe and Shavit 2012,
    /// <https://doi.org/10.1145/2145816.2145848>). At most a third of the lease; for a handle with
    /// a shorter lease, it is cut to a third of that. Defaults to 10 ms, or to a third of the lease
    /// if that is less.
    pub fn tenure(mut self, time: Duration) -> Self {
        self.config.options_mut().tenure = Some(time);
        self
    }

    /// Sets how long this client keeps a lock after its last use, so that its threads get it again
    /// without a request. A kept lock is renewed, and no thread holds it. If another client asks
    /// for it, that client gets it within a network latency, or when the current guard is dropped.
    /// [`try_lock`](crate::Client::try_lock) waits 50 ms for that, and
    /// [`try_lock_all`](crate::Client::try_lock_all) 50 ms for each lock. A client that dies while
    /// it keeps a lock blocks others for its [lease](Builder::lease), so set a short one. The
    /// [recipe][cached] says when this pays off, and which locks are not kept.
    ///
    /// A kept lock is released when the time is over, by [`close`](crate::Client::close),
    /// [`shutdown`](crate::Client::shutdown) or [`lock_all`](crate::Client::lock_all), and with the
    /// last clone of the client.
    ///
    /// Lustre, GFS2 and Ceph RBD cache their locks in this way. Defaults to zero: nothing is kept.
    /// At most the lease, and not together with [`redisson`](Builder::redisson) or
    /// [`pollers`](Builder::pollers). A handle with a shorter lease keeps its lock no longer than
    /// that.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::builder()
    ///     .lease(Duration::from_secs(5))
    ///     .keep(Duration::from_secs(1))
    ///     .in_memory()?;
    /// for _ in 0..1000 {
    ///     client.with_lock("cache", |_| { /* only the first time sends a request */ })?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// [cached]: crate::guide::cookbook#a-cached-lock
    pub fn keep(mut self, time: Duration) -> Self {
        self.config.options_mut().keep = time;
        self
    }
}

/// Connections to servers.
impl Builder {
    /// Sets whether the client is opened without any I/O. With `true` it opens even while the
    /// server is away, and the first call reports any problem with the server or the login.
    ///
    /// Defaults to `false`.
    ///
    /// ```no_run
    /// let client = leasehold::Client::builder().lazy(true).open("redis://127.0.0.1/")?;
    /// // ... the program starts without its locks ...
    /// if let Err(error) = client.ping() {
    ///     eprintln!("no locks yet: {error}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.config.lazy = lazy;
        self
    }

    /// Sets a callback that provides the user and the password whenever a connection is opened, for
    /// tokens that expire and passwords that are rotated. [Deployment][login] has an example, and
    /// says when it is called. An error or a panic in it is the field `source`
    /// of an [`Unavailable`](crate::Error::Unavailable) error.
    ///
    /// Defaults to the login in the URLs. With a callback, that login is used only for sentinels.
    /// Has no effect in memory.
    ///
    /// ```no_run
    /// use leasehold::{Client, Credentials};
    ///
    /// let client = Client::builder()
    ///     .credentials(|| {
    ///         let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///         Ok(Credentials::new("locks", password.trim()))
    ///     })
    ///     .open("redis://127.0.0.1/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// [login]: crate::guide::deployment#credentials
    pub fn credentials(
        mut self,
        callback: impl Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.config.credentials = Some(CredentialsCallback::new(callback));
        self
    }

    /// Sets which servers the client trusts at a `rediss://` URL, and the certificate it presents.
    /// Requires the feature `tls`.
    ///
    /// Defaults to the system's certificate authorities and no client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// Sets the user (empty for the default user) and the password for the master that sentinels
    /// name. The login in the URLs is then used only for the sentinels. Without sentinels, this is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    ///
    /// Must not be set together with [`credentials`](Builder::credentials). Defaults to the login
    /// in the URLs.
    pub fn master_login(mut self, user: &str, password: &str) -> Self {
        self.config.master_login = Some(Credentials::new(user, password));
        self
    }

    /// Sets a function that translates the host and the port that a sentinel or a node of a cluster
    /// announces into those at which the server can be reached: for servers in containers or behind
    /// NAT. Over TLS, a server must have a certificate for the returned host, unless
    /// `Tls::server_name` is set. The function is called often, by any thread, and must return at
    /// once. If it panics, the announced address is used.
    ///
    /// Defaults to the announced addresses. Applies only to
    /// [`open_sentinel`](Builder::open_sentinel) and [`open_cluster`](Builder::open_cluster), and
    /// not to the addresses in their URLs.
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.config.address_map = AddressMap::new(map);
        self
    }

    /// Sets how many connections the calls of all threads share. A connection is opened when it is
    /// first needed and is in use only while a request is in flight, never while a thread waits for
    /// a lock. The renewer's connection is not counted.
    ///
    /// From 1 to 10 000. Defaults to 4.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.config.pool_size = connections;
        self
    }

    /// Sets how long opening a connection may take, from looking up the host name to the end of the
    /// login.
    ///
    /// A call that finds no open connection opens one within its
    /// [`io_timeout`](Builder::io_timeout), which is therefore no shorter than this unless you set
    /// it, or the lease is too short. With a shorter one, only [`open`](Builder::open), renewals,
    /// wake-ups and connections to independent servers have all of this time.
    ///
    /// Defaults to 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets how long one request may take, from waiting for a connection, or opening one, to the
    /// last byte of the reply.
    ///
    /// At most a third of the lease. Defaults to 1 s, or the
    /// [`connect_timeout`](Builder::connect_timeout) if that is longer, plus the timeout of the
    /// [`durability`](Builder::durability); or to a third of the lease if that is less.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.config.io_timeout = Some(timeout);
        self
    }

    /// Sets how long calls without a deadline of their own keep retrying while a server replies
    /// that it is temporarily unable to serve: it loads its data, fails over, or runs a long
    /// script. If a server refuses the connection, such calls fail at once, or after 300 ms if it
    /// has refused others before; only a [`lock`](crate::Client::lock) without a
    /// [`wait`](Builder::wait) goes on retrying.
    ///
    /// Defaults to 10 s.
    pub fn retry_window(mut self, time: Duration) -> Self {
        self.config.retry_window = time;
        self
    }

    /// Sets how long a pooled connection may be idle. It is closed up to 30 s after that time. The
    /// last one to a server is kept ten times as long. `None` keeps connections open for as long as
    /// the client lives.
    ///
    /// Longer than zero. Defaults to 1 minute. Has no effect with
    /// [`open_redlock`](Builder::open_redlock), whose clients have no spare connections.
    pub fn idle_timeout(mut self, time: Option<Duration>) -> Self {
        self.config.idle_timeout = time;
        self
    }

    /// Sets how old a connection may become, whether of the pool or for renewals, wake-ups or
    /// quorums, so that all of them eventually follow a host name or an address to another server.
    /// It is replaced at its first use after four fifths of that time. An idle connection of the
    /// pool is closed up to 30 s after that time; the others are kept until their successors are
    /// open. `None` means no limit.
    ///
    /// If a host name has another address when a connection is opened, all connections to the old
    /// one are replaced at once.
    ///
    /// Longer than zero. Defaults to 30 minutes.
    pub fn max_lifetime(mut self, age: Option<Duration>) -> Self {
        self.config.max_lifetime = age;
        self
    }
}

/// Safety.
impl Builder {
    /// Sets where a lock must be stored before the call that acquires it returns. While too few
    /// replicas or disks can acknowledge it, no lock can be acquired.
    ///
    /// Defaults to [`Durability::Memory`].
    ///
    /// ```no_run
    /// use leasehold::{Client, Durability};
    /// use std::time::Duration;
    ///
    /// // A lock counts once a replica has it, so that it survives a failover to that replica.
    /// let durability = Durability::Replicas { acks: 1, timeout: Duration::from_millis(500) };
    /// let client = Client::builder().durability(durability).open("redis://127.0.0.1/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Sets whether a thread may lock a name again while it holds it. With `false` that is
    /// [`AlreadyHeld`](crate::Error::AlreadyHeld) instead of another level.
    ///
    /// In a [thread pool](crate::guide::cookbook#a-rayon-pool) whose threads run other tasks while
    /// they wait, the holder's thread may start a task that locks the same name, and both would be
    /// in the critical section at once. There, choose `false` together with a
    /// [`wait`](Builder::wait), and do not call into the pool while holding the lock. This also
    /// turns [`lock_owned`](crate::Client::lock_owned) and [`campaign`](crate::Election::campaign)
    /// into errors for a thread that holds the lock, which would otherwise wait for its own guard.
    ///
    /// Defaults to `true`.
    ///
    /// ```
    /// use leasehold::{Client, Error};
    ///
    /// let client = Client::builder().reentrant(false).in_memory()?;
    /// let _guard = client.lock("stock:42")?;
    /// assert!(matches!(client.lock("stock:42"), Err(Error::AlreadyHeld { .. })));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.config.options_mut().reentrant = reentrant;
        self
    }

    /// Sets how long a call waits before it checks for a deadlock: whether the holder of the lock
    /// waits for a lock that this thread holds, directly or through others, in any process. A
    /// deadlock is reported as [`Event::Deadlock`](crate::Event::Deadlock) and in the log.
    ///
    /// A shorter wait costs nothing, and neither does a call whose thread holds no lock. After the
    /// first check, the call checks again after pauses that double, up to a minute. A check sends
    /// one message for each process in the chain. There are no false reports: two checks in
    /// succession must find the same calls.
    ///
    /// A deadlock is found if each thread holds its lock by a [`Guard`](crate::Guard), nested or
    /// not, as from [`lock`](crate::Client::lock) and [`with_lock`](crate::Client::with_lock), and
    /// waits for a lock in any call. It is not found if
    ///
    /// - a hold belongs to no thread, because any thread may release it: an
    ///   [`OwnedGuard`](crate::OwnedGuard), a [`MultiGuard`](crate::MultiGuard), a side of a
    ///   read-write lock, a permit, or a term;
    /// - a thread waits for something other than a lock of this library: a read-write lock or a
    ///   semaphore, another thread, a channel, or a lock of Redisson;
    /// - a thread holds a lock through one client, and waits through another;
    /// - a process has another version without this, or the setting `None`, or gets no messages
    ///   from the servers.
    ///
    /// Longer than zero; `None` means never. Defaults to 1 s, as in PostgreSQL.
    pub fn deadlock_after(mut self, time: Option<Duration>) -> Self {
        self.config.deadlock_after = time;
        self
    }

    /// Sets whether a deadlocked call of this client may fail, which lets the others go on. The
    /// [recipe][deadlocks] says what the thread must do then.
    ///
    /// Defaults to [`Deadlock::Report`]: the deadlock is only reported.
    ///
    /// ```
    /// use leasehold::{Client, Deadlock};
    ///
    /// let client = Client::builder().deadlock(Deadlock::Fail).in_memory()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// [deadlocks]: crate::guide::cookbook#a-deadlock
    pub fn deadlock(mut self, deadlock: Deadlock) -> Self {
        self.config.deadlock = deadlock;
        self
    }

    /// Sets how long a hold of any kind may last before it is reported, once: as
    /// [`Event::HeldLong`](crate::Event::HeldLong), as a line in the log of level `WARN`, and in
    /// [`Stats::long_holds`](crate::Stats::long_holds). The report has the line of the program that
    /// acquired the lock, its thread, and the [note](Builder::note). The hold goes on;
    /// [`max_hold`](Builder::max_hold) would end it.
    ///
    /// Longer than zero. By default nothing is reported.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = leasehold::Client::builder().warn_held(Duration::from_secs(60));
    /// ```
    pub fn warn_held(mut self, time: Duration) -> Self {
        self.config.warn_held = Some(time);
        self
    }
}

/// Settings for special needs.
impl Builder {
    /// Sets a text that is shown with each hold, for people: why it is held, a ticket, a URL. It is
    /// in [`Holder`](crate::Holder), [`Leader`](crate::Leader) and
    /// [`NameReport`](crate::NameReport), and in the messages of [`Timeout`](crate::Error::Timeout)
    /// and of deadlocks. A handle such as [`Mutex`](crate::Mutex::note) can have its own.
    ///
    /// A note travels with its hold: the request that begins the hold stores it, and it is renewed
    /// and removed with the hold. A [`Ticket`](crate::Ticket) carries it on. Threads with different
    /// notes do not hand a lock off among themselves, and readers with different notes do not share
    /// a hold. Anyone who can read the locks can read the notes, so they are no place for secrets.
    ///
    /// At most 256 bytes, without control characters. An empty text stands for none, which is the
    /// default, and costs nothing.
    ///
    /// ```
    /// let client = leasehold::Client::builder().note("nightly import").in_memory()?;
    /// let _guard = client.mutex("stock").note("deploy 4711, https://ci/4711").lock()?;
    /// let holder = client.mutex("stock").holder()?.expect("it is held");
    /// assert_eq!(holder.note.as_deref(), Some("deploy 4711, https://ci/4711"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn note(mut self, text: &str) -> Self {
        self.config.options_mut().set_note(text);
        self
    }

    /// Sets whether this client reports to the recorder of the `metrics` crate, which must be
    /// installed before the client is opened. [Monitoring](crate::guide::monitoring) lists the
    /// metrics, with alerts and a dashboard. The recorder is called on the thread of
    /// [`on_event`](Builder::on_event), with counters and gauges once a second.
    ///
    /// Defaults to `false`.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, reports: bool) -> Self {
        self.config.metrics = reports;
        self
    }

    /// Sets whether wake-ups are exchanged with Redisson's `RLock`, for locks that a Java service
    /// shares under the same key (see [`prefix`](Builder::prefix)). Set it in every client that
    /// uses such a name. [Moving](crate::guide::moving#redisson) says who gets the lock next, and
    /// which locks can be shared. With it, `lock_all` sends one request per name.
    ///
    /// Defaults to `false`. Has no effect in memory, on read-write locks and on semaphores; with
    /// [`open_redlock`](Builder::open_redlock), `true` is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    pub fn redisson(mut self, exchange: bool) -> Self {
        self.config.redisson = exchange;
        self
    }

    /// Sets whether other programs poll for the same keys, for example during a migration:
    /// hand-written `SET NX`, redis-py, rslock. They do not queue, and without this setting they
    /// rarely get a lock that several clients want. Set it in every client that uses such a name,
    /// until the last of these programs is gone.
    ///
    /// The two sides then take turns of equal length. During the clients' turn, a released lock
    /// goes from one to the next as always. The first release after that turn leaves the lock free,
    /// and for 20 ms only a program that polls can get it. If one does, their turn lasts until a
    /// client has the lock again, and the clients' next turn lasts as long. If none does, the
    /// clients' turn is 20 ms, or 100 ms if no polling program was seen for two seconds. A
    /// [`try_lock`](crate::Client::try_lock) during the others' turn finds the lock held. While
    /// such a program has the lock, each waiting client asks for it about every two milliseconds,
    /// because no message announces that it is free. [Moving](crate::guide::moving) has more.
    ///
    /// Defaults to `false`. Not together with [`keep`](Builder::keep). Has no effect in memory, on
    /// read-write locks and on semaphores. With it, `lock_all` sends one request per name.
    pub fn pollers(mut self, leave_turns: bool) -> Self {
        self.config.pollers = leave_turns;
        self
    }

    /// Sets the shortest and the longest pause between two attempts at a held lock, unless a
    /// wake-up ends the pause. Pauses grow at random between the two ([decorrelated
    /// jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)) and end
    /// no later than the holder's lease. After failures, attempts are repeated with other pauses,
    /// of at most 500 ms.
    ///
    /// This applies only until a message has shown that messages from the server arrive. After
    /// that, the call tries again when a message says so, when the holder's lease is over, when
    /// messages may have been missed, and otherwise after 10 s, whatever the backoff. A key that
    /// was deleted by hand is therefore noticed within 10 s. Locks of other libraries are always
    /// tried with the backoff.
    ///
    /// Defaults to 5 ms and 500 ms.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.backoff = (min, max);
        self
    }

    /// Sets how long the server keeps the [fence](crate::Guard::fence) counter of a name after its
    /// last hold began. Until then, each name takes 100 to 150 bytes if it has a dozen characters.
    /// Once the counter is gone, the fences of the name begin again at the server's clock, or with
    /// [`open_redlock`](Builder::open_redlock) at the client's: they still grow, unless that clock
    /// was set back by more than this time.
    ///
    /// A time shorter than two leases of the lock, such as zero, means two leases. Defaults to 24
    /// hours. Has no effect in memory.
    pub fn fence_life(mut self, time: Duration) -> Self {
        self.config.fence_life = time;
        self
    }

    /// Sets how long a thread may busy-wait for a reply before it sleeps, because waking a thread
    /// takes longer than a nearby server takes to reply. Threads do not spin if the server usually
    /// takes longer than this, or if that would leave no core free.
    ///
    /// Zero disables spinning; more than 1 ms counts as 1 ms. Defaults to 50 µs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.config.spin = time;
        self
    }

    /// Switches off a mechanism that makes locks faster, for benchmarks that show its effect.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.config.without.push(mechanism);
        self
    }
}

/// The ways to open a client.
impl Builder {
    /// Opens a client for the server or servers of a URL, and checks that they answer.
    ///
    /// [`from_url`](Builder::from_url) describes the URL. Settings in its query replace earlier
    /// ones. `client_name=` in the query is for `CLIENT SETNAME`, which the server may refuse. A
    /// server must be Redis 6.2 or newer, or Valkey.
    ///
    /// `rediss://` in place of `redis://` means [TLS](crate::guide::deployment#tls) and requires
    /// the feature `tls`. The server must have a certificate for the host in the URL.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or the URL is invalid.
    /// - [`Unavailable`](crate::Error::Unavailable): the server did not answer in two attempts of
    ///   [`connect_timeout`](Builder::connect_timeout) each, was not ready within
    ///   [`retry_window`](Builder::retry_window), or the system could not provide a thread or
    ///   random bytes.
    /// - [`Redis`](crate::Error::Redis): the server refused the login, or cannot provide the
    ///   [`durability`](Builder::durability).
    ///
    /// ```no_run
    /// let client = leasehold::Client::builder().label("worker 7").open("redis://127.0.0.1/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open(mut self, url: &str) -> Result<Client> {
        self.deployment = Some(configure(&mut self.config, url)?);
        self.build()
    }

    /// Opens a client for the Redis server that the sentinels name as the current `master`, and
    /// checks that it answers.
    ///
    /// The URLs are as for [`open`](Builder::open), with port 26379 by default. Their user and
    /// password are for both the sentinels and the master, unless
    /// [`master_login`](Builder::master_login) sets others for the master; database and client name
    /// are for the master. Everything meant for the master must be the same in all URLs.
    ///
    /// The client asks the sentinels before it opens a connection, after every failure, and before
    /// a request if the last answer is half a second old. So after a failover the next call goes to
    /// the new master. [Deployment](crate::guide::deployment#which-one-do-i-need) describes what a
    /// failover does to locks.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Builder::open), and
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): two URLs are the same, or there is none.
    /// - [`Unavailable`](crate::Error::Unavailable): no sentinel or no master could be reached.
    /// - [`Redis`](crate::Error::Redis): the sentinels that answered do not know a master with this
    ///   name (code `NOMASTER`).
    ///
    /// ```no_run
    /// let sentinels = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
    /// let client = leasehold::Client::builder().open_sentinel(sentinels, "shop")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_sentinel(
        self,
        sentinels: impl IntoIterator<Item: AsRef<str>>,
        master: &str,
    ) -> Result<Client> {
        let deployment = Deployment::Sentinel { urls: strings(sentinels), master: master.into() };
        open::at(self.config, deployment).map(Client::new)
    }

    /// Opens a client for a Redis Cluster, and checks that all of its hash slots are served.
    ///
    /// Each seed is the URL of a node, as for [`open`](Builder::open), over TCP and without a
    /// database number. One seed that answers is enough: it names the other nodes. Each node is
    /// used with the login of the seed at the same address, or else with that of the first seed.
    /// [`pool_size`](Builder::pool_size) applies to each master.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Builder::open), and
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): two seeds are the same, or there is none.
    /// - [`Unavailable`](crate::Error::Unavailable): some hash slots are not served.
    /// - [`Redis`](crate::Error::Redis): the nodes are not a cluster.
    ///
    /// ```no_run
    /// let seeds = ["redis://10.0.0.1/", "redis://10.0.0.2/"];
    /// let client = leasehold::Client::builder().open_cluster(seeds)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_cluster(self, seeds: impl IntoIterator<Item: AsRef<str>>) -> Result<Client> {
        let seeds = strings(seeds);
        open::at(self.config, Deployment::Cluster { seeds }).map(Client::new)
    }

    /// Opens a client for several independent servers, and checks that more than half of them
    /// answer. This is the algorithm known as
    /// [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/): a lock
    /// is held when more than half of the servers have granted it, so it survives the loss of the
    /// others.
    ///
    /// No server may be a replica of another. The URLs are as for [`open`](Builder::open). Use an
    /// odd number of servers, because four survive no more failures than three. A server that does
    /// not answer costs calls no time, and is used again once it does. A server that has lost its
    /// data must stay away until the longest lease has ended; otherwise it may help another client
    /// to acquire a held lock. [`pool_size`](Builder::pool_size) applies to each server.
    ///
    /// A server that cannot provide the [`durability`](Builder::durability) is left out.
    ///
    /// No server counts twice. If two URLs turn out to lead to one server, opening fails. If that
    /// becomes known only later, because a server did not answer at first, the second URL is left
    /// out. The client notices this only with permission for `INFO`.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL is invalid, two URLs lead
    ///   to the same server, or the list is empty.
    /// - [`NoQuorum`](crate::Error::NoQuorum): too few servers answered in two attempts of
    ///   [`connect_timeout`](Builder::connect_timeout) each.
    /// - [`Redis`](crate::Error::Redis) and [`Unavailable`](crate::Error::Unavailable), as for
    ///   [`open`](Builder::open): too many servers refused the login or cannot provide the
    ///   durability, or the system could not provide a thread.
    ///
    /// ```no_run
    /// let servers = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
    /// let client = leasehold::Client::builder().open_redlock(servers)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_redlock(self, urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Client> {
        let urls = strings(urls);
        open::at(self.config, Deployment::Redlock { urls }).map(Client::new)
    }

    /// Creates a client whose locks exist only in this process: the only client of a
    /// [`MemoryServer`]. See [`Client::in_memory`].
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting is invalid, or the
    ///   [`durability`](Builder::durability) is not `Memory`.
    /// - [`Unavailable`](crate::Error::Unavailable): the system could not provide a thread or
    ///   random bytes.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::builder().wait(Duration::from_secs(1)).in_memory()?;
    /// let _guard = client.lock("stock:42")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn in_memory(self) -> Result<Client> {
        self.open_memory(&MemoryServer::new())
    }

    /// Opens a client of a server in memory. It contends for locks with the other clients of that
    /// server as separate processes would. See [`MemoryServer`].
    ///
    /// # Errors
    ///
    /// The same as [`in_memory`](Builder::in_memory), and
    /// [`Unavailable`](crate::Error::Unavailable) while the server is
    /// [down](MemoryServer::set_down), unless the client is [`lazy`](Builder::lazy).
    ///
    /// ```
    /// use leasehold::{Client, MemoryServer};
    ///
    /// let server = MemoryServer::new();
    /// let web = Client::builder().open_memory(&server)?;
    /// let worker = Client::builder().open_memory(&server)?;
    /// let _guard = web.lock("stock:42")?;
    /// assert!(worker.try_lock("stock:42")?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_memory(self, server: &MemoryServer) -> Result<Client> {
        open::in_memory(self.config, server).map(Client::new)
    }

    /// Creates a configuration from a URL, with the servers and any settings.
    /// [`build`](Builder::build) opens the client.
    ///
    /// The URL looks like `redis://user:password@host:port/database`, `unix:///path`,
    /// `redis+sentinel://host,host/master`, `redis+cluster://host,host` or
    /// `redis+redlock://host,host`. `rediss` in place of `redis` means TLS. The query may have
    /// `client_name=`, and the settings of this type by the names of their methods, such as
    /// `lease=20s`. [One URL](crate::guide::deployment#one-url) lists all of them. Percent-encode
    /// special characters, in passwords too: `%40` is an `@`.
    ///
    /// Later settings win: methods called on the result replace settings in the URL.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::Error::InvalidInput) names a setting that is unknown, set twice, or
    /// malformed. No error repeats the URL, which may contain a password. [`build`](Builder::build)
    /// reports an invalid host or value.
    ///
    /// ```no_run
    /// let url = "redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/shop?lease=20s&prefix=app:&pool=4";
    /// let client = leasehold::Builder::from_url(url)?.label("worker 7").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Self> {
        let mut config = Config::default();
        let deployment = Some(configure(&mut config, url)?);
        Ok(Self { config, deployment })
    }

    /// Like [`from_url`](Builder::from_url), with the URL in the environment variable `REDIS_URL`.
    /// `LEASEHOLD_CA`, `LEASEHOLD_CERT` and `LEASEHOLD_KEY` may have the values of `ca`, `cert` and
    /// `key`, unless the URL has them. Other libraries that read `REDIS_URL` may refuse settings in
    /// its query: [call methods](crate::guide::deployment#one-url) on the result instead.
    ///
    /// # Errors
    ///
    /// The same as [`from_url`](Builder::from_url), and
    /// [`InvalidInput`](crate::Error::InvalidInput) if `REDIS_URL` is not set.
    ///
    /// ```no_run
    /// let client = leasehold::Builder::from_env()?.label("worker 7").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        let url = env::var("REDIS_URL")
            .map_err(|_| Error::invalid("REDIS_URL", "must be set to the URL of the servers"))?;
        Self::from_url_and_env(&url)
    }

    /// Like [`from_env`](Builder::from_env), with a URL from elsewhere, such as the command line.
    ///
    /// # Errors
    ///
    /// The same as [`from_url`](Builder::from_url).
    pub fn from_url_and_env(url: &str) -> Result<Self> {
        let mut config = Config::default();
        apply_environment(&mut config)?;
        let deployment = Some(configure(&mut config, url)?);
        Ok(Self { config, deployment })
    }

    /// Opens the client for the servers of [`from_url`](Builder::from_url) or
    /// [`from_env`](Builder::from_env), and checks that they answer.
    ///
    /// # Errors
    ///
    /// The same as [`open_sentinel`](Builder::open_sentinel),
    /// [`open_cluster`](Builder::open_cluster), [`open_redlock`](Builder::open_redlock) or, for one
    /// server, [`open`](Builder::open); and [`InvalidInput`](crate::Error::InvalidInput) without a
    /// URL.
    pub fn build(self) -> Result<Client> {
        let Some(deployment) = self.deployment else {
            return Err(Error::invalid("url", "must be given, for example by `from_url`"));
        };
        open::at(self.config, deployment).map(Client::new)
    }
}

// This block is here because the file of `Client` must not import the builder in turn.
/// The ways to open a client.
impl Client {
    /// Opens a client for the server or servers of a URL. Settings that are not in the URL have
    /// their defaults. See [`Builder::from_url`].
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
        Builder::default().open(url)
    }

    /// Creates a client whose locks exist only in this process, for tests and demonstrations.
    ///
    /// Clones of the client share its locks; clients created by separate calls do not. For several
    /// clients that share locks, see [`MemoryServer`].
    ///
    /// # Panics
    ///
    /// Panics if the system cannot provide random bytes or start a thread. [`Builder::in_memory`]
    /// returns an error instead.
    #[must_use]
    pub fn in_memory() -> Self {
        let shared = open::in_memory(Config::default(), &MemoryServer::default());
        Self::new(shared.expect("the system has random bytes and threads"))
    }

    /// Creates a [`Builder`] with default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

fn strings(list: impl IntoIterator<Item: AsRef<str>>) -> Vec<String> {
    list.into_iter().map(|text| text.as_ref().to_owned()).collect()
}
