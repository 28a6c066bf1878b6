//! The settings of a client, and the ways to open one.

use std::env;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Builder, Client};
use crate::config::Mechanism;
use crate::config::address_map::AddressMap;
use crate::config::credentials::{Credentials, CredentialsCallback};
use crate::config::durability::Durability;
use crate::config::options;
#[cfg(feature = "tls")]
use crate::config::tls::Tls;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::memory_server::MemoryServer;
use crate::open;

/// The environment variable with the URL of the servers.
const URL_VARIABLE: &str = "REDIS_URL";

impl Builder {
    /// Sets the lease: how long a lock lasts after its last renewal. A holder that dies blocks
    /// others for no longer than this, and a holder that cannot reach the server loses the lock
    /// after it.
    ///
    /// From 10 ms to 365 days. Defaults to 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.options.lease = lease;
        self
    }

    /// Sets how long [`Client::lock`] waits for a lock that is held before it returns
    /// [`Error::Timeout`](crate::Error::Timeout).
    ///
    /// Defaults to no limit.
    pub fn wait(mut self, time: Duration) -> Self {
        self.config.options.wait = Some(time);
        self
    }

    /// Sets whether leases are renewed in the background, each when a third of it has passed.
    /// Without renewal, a guard is lost when its lease ends. Nested locks do not prolong it then.
    ///
    /// Defaults to `true`.
    pub fn renew(mut self, renew: bool) -> Self {
        self.config.options.renew = renew;
        self
    }

    /// Sets the longest time for which a lock can be held, which limits the harm that a hung thread
    /// can do. Renewal stops in time for the last lease to end then, both here and in Redis.
    ///
    /// At least 10 ms. Defaults to no limit.
    pub fn max_hold(mut self, age: Duration) -> Self {
        self.config.options.max_hold = Some(age);
        self
    }

    /// Sets whether a thread may lock again a name that it holds: `false` makes that
    /// [`AlreadyHeld`](crate::Error::AlreadyHeld) instead of another level.
    ///
    /// Choose `false` in thread pools that run other tasks while a task waits, such as rayon's:
    /// there a thread that holds a lock may start a task that locks the same name, and both would
    /// be in the critical section at once, with the same fence. Set [`wait`](Builder::wait) there,
    /// too: another thread may do the same while the holder waits for it, and neither would end. It
    /// also turns away [`lock_owned`](crate::Client::lock_owned) and
    /// [`campaign`](crate::Election::campaign), which would otherwise wait for the thread's own
    /// guard. An owned guard belongs to no thread, so they wait for one that holds the lock.
    ///
    /// Defaults to `true`.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.config.options.reentrant = reentrant;
        self
    }

    /// Sets whether the client is opened without any I/O: `true` opens it even while the server is
    /// away, and the first call reports what is wrong with the server or the login.
    ///
    /// Defaults to `false`.
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.config.lazy = lazy;
        self
    }

    /// Sets how many connections the calls of all threads share. A connection is opened when it is
    /// first needed and is in use only while a request is in flight, never while a thread waits for
    /// a lock. The renewer's connection is not counted.
    ///
    /// From 1 to 10 000. Defaults to 8.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.config.pool_size = connections;
        self
    }

    /// Sets how long a pooled connection may be idle before it is closed, so that a client with
    /// only occasional load does not occupy its server in between. `None` keeps connections open
    /// for as long as the client lives.
    ///
    /// A connection is closed up to 30 s after that time. Longer than zero. Defaults to 10 minutes.
    /// Has no effect with [`open_redlock`](Builder::open_redlock), whose clients have no spare
    /// connections.
    pub fn idle_timeout(mut self, time: Option<Duration>) -> Self {
        self.config.idle_timeout = time;
        self
    }

    /// Sets the age at which a pooled connection is closed and replaced, so that connections follow
    /// a host name to its new address and a proxy can rebalance its load. `None` means no limit.
    ///
    /// A connection is closed when a request over it ends after that time or, while it is idle, up
    /// to 30 s after that time. Longer than zero. Defaults to 30 minutes. Has no effect with
    /// [`open_redlock`](Builder::open_redlock).
    pub fn max_lifetime(mut self, age: Option<Duration>) -> Self {
        self.config.max_lifetime = age;
        self
    }

    /// Sets how long opening a connection may take, from looking up the host name to the end of the
    /// login.
    ///
    /// Defaults to 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets how long one request may take, from waiting for a connection to the last byte of the
    /// reply.
    ///
    /// At most a third of the lease. Defaults to 1 s plus the timeout of the
    /// [`durability`](Builder::durability), or to a third of the lease if that is less.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.config.io_timeout = Some(timeout);
        self
    }

    /// Sets how long calls without a deadline of their own keep retrying when a server reports a
    /// condition that passes by itself, such as a restart, a failover or a long-running script.
    ///
    /// Defaults to 10 s.
    pub fn retry_window(mut self, time: Duration) -> Self {
        self.config.retry_window = time;
        self
    }

    /// Sets the shortest and the longest pause between two attempts at a lock that is held, in case
    /// no wake-up ends the pause. Pauses grow at random between the two ([decorrelated
    /// jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)) and end
    /// no later than the holder's lease. Attempts that fail are repeated at a pace of their own,
    /// with pauses of at most 500 ms.
    ///
    /// Defaults to 5 ms and 500 ms.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.backoff = (min, max);
        self
    }

    /// Sets the prefix that makes the key of a lock from its name, so that no lock has the key of
    /// an application's data. The prefix is part of the name: prefix `a` with name `bc` is the same
    /// lock as prefix `ab` with name `c`. The keys of fence and queue contain it too.
    ///
    /// To share locks with programs that use another library, set the prefix that their keys have:
    /// an empty one for Redisson's `getLock(name)`, whose key is the name.
    ///
    /// Defaults to `lock:`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets whether wake-ups are exchanged with Redisson's `RLock`, for locks that a Java service
    /// shares under the same key (see [`prefix`](Builder::prefix)): a release wakes a thread there
    /// that waits, and one there wakes the threads here. Without this Redisson sleeps until the
    /// lease that it has seen ends, and clients of leasehold until they look again, half a second
    /// at most. How to move from one to the other is on a [page of its own][moving].
    ///
    /// [moving]: crate::guide::moving
    ///
    /// Set it in every client that uses such a name. While Redisson waits, it has a place in the
    /// queue, as one client. When that comes, clients with this setting leave a lock that is
    /// released alone for 5 ms, so that Redisson can take it: even `try_lock` finds it held then.
    /// That goes on for up to half a second after Redisson was last seen waiting. Several locks
    /// take a request each.
    ///
    /// `RFencedLock` has fences of its own, which leasehold's do not know. Fair locks, spin locks
    /// and `RReadWriteLock` cannot be shared. Defaults to `false`. Has no effect in memory, on
    /// read-write locks and on semaphores; with [`open_redlock`](Builder::open_redlock), `true` is
    /// [`InvalidInput`](crate::Error::InvalidInput).
    pub fn redisson(mut self, exchange: bool) -> Self {
        self.config.redisson = exchange;
        self
    }

    /// Sets how long the server keeps the counter of [fencing tokens](crate::Guard::fence) of a
    /// name that is no longer used, counted from when its last hold began. Until then, each name
    /// that was ever used takes some memory: 100 to 150 bytes if it has a dozen characters. So a
    /// shorter time is for programs that use many names once.
    ///
    /// Once the counter is gone, the fences of the name begin again at the server's clock, or with
    /// [`open_redlock`](Builder::open_redlock) at the client's. So they still grow, unless that
    /// clock has been set back by more than this time.
    ///
    /// At least two leases: a shorter time, such as zero, means two leases of the lock. Defaults to
    /// 24 hours. Has no effect in memory.
    pub fn fence_life(mut self, time: Duration) -> Self {
        self.config.fence_life = time;
        self
    }

    /// Sets what the client's [id](Client::id) begins with, such as a host name, so that an
    /// operator who looks into Redis can see which program holds a lock.
    ///
    /// At most 256 bytes, without braces and control characters. Defaults to no label.
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = label.into();
        self
    }

    /// Sets a callback for every [`Event`]. Events are delivered in order on a thread of their own,
    /// so a callback that blocks or panics does no harm to locks. Up to 4096 events are queued for
    /// it; further ones are dropped, and how many is logged.
    ///
    /// [`Client::shutdown`](crate::Client::shutdown), and the end of the last clone and guard of a
    /// client, wait until all earlier events are delivered, for a second at most.
    ///
    /// Defaults to no callback. The logger of the `log` crate, which gets much the same
    /// information, is called on the same thread, one line at a time. The thread is started with
    /// the client if there is a callback, and otherwise with the first line that the logger's
    /// maximum level lets through.
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.on_event = Some(Arc::new(callback));
        self
    }

    /// Sets whether this client reports to the recorder of the [`metrics`] crate: how many calls
    /// wait and fail, how long they wait, how many leases are late or lost, and the like.
    /// [Monitoring](crate::guide::monitoring) has the list, with alerts and a dashboard.
    ///
    /// The recorder is called on the thread of [`on_event`](Builder::on_event), with counters and
    /// gauges once a second. Several clients of a program add up. Names of locks are no labels.
    ///
    /// Install the recorder before the client is opened. Defaults to `false`.
    ///
    /// [`metrics`]: https://docs.rs/metrics
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, reports: bool) -> Self {
        self.config.metrics = reports.then(Arc::default);
        self
    }

    /// Sets what a lock must have survived before the call that acquires it returns. While too few
    /// replicas are there to acknowledge it, no lock can be acquired. With several independent
    /// servers, each has replicas and a disk of its own, and a majority of servers is enough.
    ///
    /// Defaults to [`Durability::Memory`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Sets how long a thread may keep a core busy while it waits for a reply, before it goes to
    /// sleep. Waking a thread takes longer than a nearby server takes to answer.
    ///
    /// Threads do not spin for a server that usually takes longer than this, nor when the threads
    /// that wait for replies would leave no core free. Zero disables spinning. Defaults to 50 µs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.config.spin = time;
        self
    }

    /// Sets how long the threads of this client hand a lock off among themselves, without a
    /// request, before other clients get it. Counted from when the client has acquired the lock;
    /// the hold that is under way then is the last.
    ///
    /// A client acquires a lock with one request for several of its threads: the first that waits
    /// gets it when a guard is dropped, with the next fencing token, and relies on the same lease.
    /// That takes no more than to wake a thread, however far away the server is. Longer tenures
    /// favour throughput, shorter ones other clients; with zero every hold is acquired by a request
    /// of its own. Threads that want another lease, renewal or
    /// [`hold_at_least`](crate::Mutex::hold_at_least), and those behind a guard that was
    /// [unlocked](crate::Guard::unlock), acquire the lock anew.
    ///
    /// Within a tenure a [`max_hold`](Builder::max_hold) counts from its beginning. A hold that an
    /// operator has ended there is noticed at the next request for it: at the latest by the first
    /// hold after the tenure, or by `unlock`, `verify` or `renew`.
    ///
    /// The technique is that of cohort locks (Dice, Marathe and Shavit 2012,
    /// <https://doi.org/10.1145/2145816.2145848>). Defaults to 10 ms, or a third of the lease where
    /// that is less. At most a third of the lease.
    pub fn tenure(mut self, time: Duration) -> Self {
        self.config.options.tenure = Some(time);
        self
    }

    /// Sets how long this client keeps a lock after its last use, so that its threads get it again
    /// without a request: a lock that the same process uses again and again then costs about a
    /// microsecond, however far away the server is.
    ///
    /// A kept lock is renewed, and no thread holds it. Another client that asks for it gets it
    /// within a network latency: its request tells this client, which releases the lock at once, or
    /// else when the guard under way is dropped. [`try_lock`](Client::try_lock) gives this client
    /// 50 ms for that. A message that is lost costs the other client its pause until it asks again.
    /// A client that dies while it keeps a lock blocks others for its [lease](Builder::lease), so
    /// set a short one.
    ///
    /// What is kept is released when the time is over, by [`close`](Client::close),
    /// [`shutdown`](Client::shutdown), [`lock_all`](Client::lock_all) and with the last clone of
    /// the client. Guards that are [unlocked](crate::Guard::unlock), those of locks without
    /// renewal, or with [`max_hold`](Builder::max_hold) or
    /// [`hold_at_least`](crate::Mutex::hold_at_least), those of several locks, and terms leave
    /// nothing behind that is kept. A lock is kept only while this client listens for such
    /// messages: the first call that may keep one waits for that, no longer than one
    /// [`io_timeout`](Builder::io_timeout). It is not kept for a second after it was asked for
    /// three times in a row before a thread of this client had used it again.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::builder().keep(Duration::from_secs(1)).in_memory()?;
    /// drop(client.lock("orders of customer 7")?);
    /// drop(client.lock("orders of customer 7")?);
    /// assert_eq!((client.stats().held, client.stats().kept, client.stats().relocks), (0, 1, 1));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// Cluster file systems do this with their locks: Lustre, GFS2 and Ceph RBD. Defaults to zero:
    /// nothing is kept. At most the lease, and not along with [`redisson`](Builder::redisson).
    pub fn keep(mut self, time: Duration) -> Self {
        self.config.options.keep = time;
        self
    }

    /// Does without a mechanism that makes locks faster. For benchmarks that show what it gains.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.config.without.push(mechanism);
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

    /// Sets a callback that is asked for user and password whenever a connection is opened, for
    /// tokens that expire (AWS IAM, Microsoft Entra ID) and passwords that are rotated. Those in
    /// the URLs are ignored then, except for sentinels, which are never told what the callback
    /// returns.
    ///
    /// The callback may do I/O. It is called on a short-lived thread, and the connection is given
    /// up if there is no answer within [`connect_timeout`](Builder::connect_timeout) or the time
    /// that the call has. Connections that are opened together share its answer, and one that comes
    /// too late is kept for the next connection, for 30 s at most. A second call runs at the same
    /// time only if the first has not returned for 30 s; there are never more. An error or a panic
    /// in it is the source of an [`Unavailable`](crate::Error::Unavailable) error. If the server
    /// refuses what it has returned (`WRONGPASS`), it is asked once more: the password may just
    /// have changed.
    ///
    /// If what it returns is [valid for a limited time](Credentials::valid_until), connections are
    /// replaced when 80 % of that time has passed: those of the pool when they would be used next.
    /// Those over which leases are renewed and wake-ups come are kept until the new ones are open,
    /// while they are valid.
    ///
    /// Defaults to the login in the URLs. Has no effect in memory.
    ///
    /// ```no_run
    /// use leasehold::{Client, Credentials};
    /// use std::time::{Duration, Instant};
    /// # fn sign() -> Result<String, std::io::Error> { Ok(String::new()) }
    ///
    /// let client = Client::builder()
    ///     .credentials(|| {
    ///         let end = Instant::now() + Duration::from_secs(15 * 60);
    ///         Ok(Credentials::new("app", sign()?).valid_until(end))
    ///     })
    ///     .open("rediss://redis.example/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
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

    /// Sets the user, empty for the default one, and the password for the masters that sentinels
    /// name. Those in the URLs are then used only for the sentinels. Applies only to
    /// [`open_sentinel`](Builder::open_sentinel).
    ///
    /// Defaults to the login in the URLs.
    pub fn master_login(mut self, user: &str, password: &str) -> Self {
        self.config.master_login = Some(Credentials::new(user, password));
        self
    }

    /// Sets a function that returns where a server is reached, given the host and the port that a
    /// sentinel or a node of a cluster names: for servers in containers or behind NAT, which
    /// announce addresses of their own network. The URLs of sentinels and seeds are used as they
    /// are. Over TLS, a server must have a certificate for the host that is returned, unless
    /// `Tls::server_name` is set.
    ///
    /// It is called often, by any thread, and must return at once. If it panics, the address stays
    /// as it is.
    ///
    /// Defaults to the addresses that are named. Applies only to
    /// [`open_sentinel`](Builder::open_sentinel) and [`open_cluster`](Builder::open_cluster).
    ///
    /// ```no_run
    /// // Containers, each with its port published on this machine.
    /// let client = leasehold::Client::builder()
    ///     .address_map(|_, port| ("127.0.0.1".into(), port))
    ///     .open_cluster(["redis://127.0.0.1:7000/"])?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.config.address_map = AddressMap::new(map);
        self
    }

    /// Creates a configuration from a URL: where the servers are, and any settings.
    /// [`build`](Builder::build) opens the client.
    ///
    /// | URL | servers |
    /// |---|---|
    /// | `redis://[user][:password@]host[:port][/database]` | one server |
    /// | `unix:///path[?db=&user=&pass=]` | one server, at a Unix socket |
    /// | `redis+sentinel://[login@]host[:port],…/master[/database]` | [the master][sentinel] |
    /// | `redis+cluster://[login@]host[:port],…` | [a cluster][cluster] |
    /// | `redis+redlock://[login@]host[:port],…[/database]` | [independent][redlock] |
    ///
    /// [sentinel]: Builder::open_sentinel
    /// [cluster]: Builder::open_cluster
    /// [redlock]: Builder::open_redlock
    ///
    /// With `rediss` in place of `redis`, connections are encrypted, as for
    /// [`open`](Builder::open). Any of them may have `client_name=` in its query. Several hosts
    /// share the login, the database and the query.
    ///
    /// The query may have these settings, which are the methods of this type: `backoff`,
    /// `connect_timeout`, `durability`, `fence_life`, `idle_timeout`, `io_timeout`, `label`,
    /// `lazy`, `lease`, `master_login`, `max_hold`, `max_lifetime`, `pool_size` (or
    /// `pool`), `prefix`, `redisson`, `reentrant`, `renew`, `retry_window`, `spin`, `wait`; and
    /// with the feature `tls` those of `Tls`: `ca`, `cert`, `key` and `server_name`.
    ///
    /// - A duration is `500ms`, `20s`, `5m`, `1h`, `1d`, `50us`, or plain seconds, such as `0.5`.
    /// - `idle_timeout`, `max_hold`, `max_lifetime` and `wait` may be `none`: no limit. A `backoff`
    ///   is `5ms..500ms`.
    /// - A `durability` is `memory`, `replicas:ACKS:TIMEOUT` or `fsync:LOCAL:REPLICAS:TIMEOUT`, as
    ///   in `replicas:1:100ms` and `fsync:true:0:100ms`.
    /// - `ca`, `cert` and `key` are paths of files in PEM, or what these have.
    /// - A `master_login` is `user:password`, with an empty user for the default one.
    /// - Special characters are percent-encoded, in passwords too: `%40` is an `@`.
    ///
    /// Later settings win: methods called on the result replace settings of the URL.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::Error::InvalidInput) names a setting that is unknown, set twice, or
    /// malformed. No error repeats the URL, which may have a password. What is wrong with a host or
    /// a value is the error of [`build`](Builder::build).
    ///
    /// ```no_run
    /// use leasehold::Builder;
    ///
    /// let url = "redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/shop?lease=20s&prefix=app:&pool=4";
    /// let client = Builder::from_url(url)?.label("worker 7").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Self> {
        Self::default().url(url)
    }

    /// As [`from_url`](Builder::from_url), with settings that were made before, unless the URL has
    /// others. For the program `leasehold`; it may change at any time.
    ///
    /// # Errors
    ///
    /// The same.
    #[doc(hidden)]
    pub fn url(mut self, url: &str) -> Result<Self> {
        self.deployment = Some(open::configure(&mut self.config, url)?);
        Ok(self)
    }

    /// As [`from_url`](Builder::from_url), with the URL in the environment variable `REDIS_URL`.
    /// `LEASEHOLD_CA`, `LEASEHOLD_CERT` and `LEASEHOLD_KEY` may have what `ca`, `cert` and `key`
    /// are in a URL, which has the last word.
    ///
    /// # Errors
    ///
    /// As [`from_url`](Builder::from_url), and [`InvalidInput`](crate::Error::InvalidInput) if
    /// `REDIS_URL` is not set.
    ///
    /// ```no_run
    /// let client = leasehold::Builder::from_env()?.build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        let url = env::var(URL_VARIABLE)
            .map_err(|_| Error::invalid(URL_VARIABLE, "must be set to the URL of the servers"))?;
        Self::default().environment()?.url(&url)
    }

    /// Takes over the settings that the environment may have beside the URL. For the program
    /// `leasehold`; it may change at any time.
    ///
    /// # Errors
    ///
    /// Those of [`from_env`](Builder::from_env).
    #[doc(hidden)]
    pub fn environment(mut self) -> Result<Self> {
        options::apply_environment(&mut self.config)?;
        Ok(self)
    }

    /// Opens the client at the servers of [`from_url`](Builder::from_url) or
    /// [`from_env`](Builder::from_env), and checks that they answer.
    ///
    /// # Errors
    ///
    /// Those of [`open_sentinel`](Builder::open_sentinel), [`open_cluster`](Builder::open_cluster),
    /// [`open_redlock`](Builder::open_redlock) or, for one server, [`open`](Builder::open); and
    /// [`InvalidInput`](crate::Error::InvalidInput) without a URL.
    pub fn build(self) -> Result<Client> {
        let no_url = || Error::invalid("url", "must be given, as by `from_url`");
        let deployment = self.deployment.ok_or_else(no_url)?;
        open::at(self.config, deployment).map(Client::new)
    }

    /// Opens a client at the servers of a URL, in most cases for one Redis server, and checks that
    /// they answer.
    ///
    /// The URL is one of those of [`from_url`](Builder::from_url), such as
    /// `redis://[user][:password@]host[:port][/database]` or `unix:///path[?db=&user=&pass=]`.
    /// Settings in its query replace those that were made before. `client_name=` in the query is
    /// for `CLIENT SETNAME`, which the server may refuse. A server must be Redis 6.2 or newer, or
    /// Valkey.
    ///
    /// `rediss://` in place of `redis://` means TLS and requires the feature `tls`. The server must
    /// have a certificate for the host in the URL. With the feature `tls-insecure`, a URL may end
    /// with `#insecure` to skip that check, which leaves protection against eavesdroppers only.
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
    pub fn open(self, url: &str) -> Result<Client> {
        open::at_url(self.config, url).map(Client::new)
    }

    /// Opens a client for the Redis server that sentinels name as the current `master`, and checks
    /// that the server answers.
    ///
    /// The URLs are those of [`open`](Builder::open), with port 26379 by default. Their user and
    /// password are for the sentinels and the master alike, unless
    /// [`master_login`](Builder::master_login) sets others for the master; database and client name
    /// are for the master. Everything meant for the master must be the same in all URLs.
    ///
    /// The client asks the sentinels, starting with the one that answered last, before it opens a
    /// connection, after every failure, and before a request if the last answer is half a second
    /// old. A server named by a sentinel must also report itself as a master. So after a failover
    /// the next call goes to the new master. A lock that the new master does not have, because
    /// replication is asynchronous, is reported as lost at its next renewal;
    /// [`durability`](Builder::durability) makes that less likely, and
    /// [`Guard::fence`](crate::Guard::fence) makes it harmless.
    ///
    /// While no sentinel answers, the client keeps using its connections to the master until one
    /// fails.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL is invalid, two URLs are
    ///   the same, or the list is empty.
    /// - [`Unavailable`](crate::Error::Unavailable): no sentinel or no master answered in two
    ///   attempts of [`connect_timeout`](Builder::connect_timeout) each, there was no master for
    ///   [`retry_window`](Builder::retry_window), or the system could not provide a thread or
    ///   random bytes.
    /// - [`Redis`](crate::Error::Redis): a server refused the login or cannot provide the
    ///   durability, or the sentinels that answered do not know a master of this name (code
    ///   `NOMASTER`).
    ///
    /// ```no_run
    /// let sentinels = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let client = leasehold::Client::builder()
    ///     .master_login("", "sesame")
    ///     .open_sentinel(sentinels, "shop")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_sentinel(
        self,
        sentinels: impl IntoIterator<Item: AsRef<str>>,
        master: &str,
    ) -> Result<Client> {
        open::sentinel(self.config, sentinels, master).map(Client::new)
    }

    /// Opens a client for a Redis Cluster, and checks that all of its hash slots are served.
    ///
    /// Each seed is the URL of a node, as for [`open`](Builder::open), over TCP and without a
    /// database number. One seed that answers is enough: it names the other nodes, each of which is
    /// used with the login of the seed at the same address, or else of the first seed.
    /// [`pool_size`](Builder::pool_size) applies to each master.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL is invalid, two seeds are
    ///   the same, or the list is empty.
    /// - [`Unavailable`](crate::Error::Unavailable): no seed answered in two attempts of
    ///   [`connect_timeout`](Builder::connect_timeout) each, some hash slots are not served, or the
    ///   system could not provide a thread or random bytes.
    /// - [`Redis`](crate::Error::Redis): the nodes refused the login, or are not a cluster.
    pub fn open_cluster(self, seeds: impl IntoIterator<Item: AsRef<str>>) -> Result<Client> {
        open::cluster(self.config, seeds).map(Client::new)
    }

    /// Opens a client for several independent servers, and checks that more than half of them
    /// answer. This is the algorithm known as
    /// [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/): a lock
    /// is held when more than half of the servers have granted it, so it survives the loss of the
    /// others.
    ///
    /// No server may be a replica of another. The URLs are those of [`open`](Builder::open). An odd
    /// number of servers is best, because four survive no more failures than three. A server that
    /// does not answer costs calls no time, and is used again once it does. A server that has lost
    /// its data must stay away until the longest lease has ended; otherwise it may help another
    /// client to acquire a lock that is held. [`pool_size`](Builder::pool_size) applies to each
    /// server.
    ///
    /// With [`Durability::Fsync`] a lock is on the disks of a majority before it is held, so
    /// servers that keep their files may restart at any time, even all at once.
    /// [`Durability::Replicas`] does the same for failovers, provided that the elected replicas
    /// have acknowledged the lock. Renewals count when a majority has confirmed them in the same
    /// way. A call keeps its connections while it waits, so calls for other names may have to wait
    /// for them. A server that cannot provide the durability is left out.
    ///
    /// No server counts twice. If two URLs turn out to lead to one server, which the client can see
    /// only with permission for `INFO`, opening fails; if that shows only later, because the server
    /// did not answer at first, it is left out.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL is invalid, two URLs lead
    ///   to the same server, or the list is empty.
    /// - [`NoQuorum`](crate::Error::NoQuorum): too few servers answered in two attempts of
    ///   [`connect_timeout`](Builder::connect_timeout) each.
    /// - [`Redis`](crate::Error::Redis): too many servers refused the login or cannot provide the
    ///   [`durability`](Builder::durability).
    /// - [`Unavailable`](crate::Error::Unavailable): the system could not provide a thread or
    ///   random bytes.
    ///
    /// URLs can be given as anything that iterates over strings:
    ///
    /// ```no_run
    /// use leasehold::Client;
    ///
    /// let client = Client::builder().open_redlock(["redis://a", "redis://b", "redis://c"])?;
    ///
    /// let urls: Vec<String> = std::env::args().skip(1).collect();
    /// let client = Client::builder().open_redlock(&urls)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_redlock(self, urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Client> {
        open::redlock(self.config, urls).map(Client::new)
    }

    /// Creates a client whose locks exist only in this process: the only one of a
    /// [`MemoryServer`]. See [`Client::in_memory`].
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting is invalid, or the
    ///   [`durability`](Builder::durability) is not [`Durability::Memory`].
    /// - [`Unavailable`](crate::Error::Unavailable): the system could not provide a thread or
    ///   random bytes.
    pub fn in_memory(self) -> Result<Client> {
        self.open_memory(&MemoryServer::new())
    }

    /// Opens a client of a server in memory, which contends for locks with the other clients of
    /// that server as processes do. See [`MemoryServer`].
    ///
    /// # Errors
    ///
    /// The same as [`in_memory`](Builder::in_memory), and
    /// [`Unavailable`](crate::Error::Unavailable) while the server is
    /// [down](MemoryServer::set_down), unless the client is [`lazy`](Builder::lazy).
    pub fn open_memory(self, server: &MemoryServer) -> Result<Client> {
        open::in_memory(self.config, &server.0).map(Client::new)
    }
}
