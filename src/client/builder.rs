//! The configuration of a client, and the ways to open one.

use std::env;

use crate::client::{Client, open};
use crate::config::url::{Deployment, apply_environment, configure};
use crate::config::{Config, Mechanism};
use crate::error::{Error, Result};
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
/// | setting of locks | default | sets |
/// |---|---|---|
/// | [`lease`](Self::lease) | 30 s | how long a lock lasts after its last renewal |
/// | [`wait`](Self::wait) | no limit | how long `lock` waits for a held lock |
/// | [`renew`](Self::renew) | `true` | whether leases are renewed in the background |
/// | [`max_hold`](Self::max_hold) | no limit | how long a hold may last in all |
/// | [`reentrant`](Self::reentrant) | `true` | whether a thread may lock a name that it holds |
/// | [`tenure`](Self::tenure) | 10 ms | how long threads hand a lock off among themselves |
/// | [`keep`](Self::keep) | zero | how long a lock is kept after its last use |
/// | **of the client** | | |
/// | [`prefix`](Self::prefix) | `lock:` | the beginning of the keys of locks |
/// | [`label`](Self::label) | `host:pid` | the beginning of the client's id, for operators |
/// | [`durability`](Self::durability) | `Memory` | what must store a lock before it counts |
/// | [`backoff`](Self::backoff) | 5 ms, 500 ms | pauses between two attempts at a held lock |
/// | [`fence_life`](Self::fence_life) | 24 h | how long a counter of fences outlasts its last use |
/// | [`deadlock_after`](Self::deadlock_after) | 1 s | when a waiting call looks for a deadlock |
/// | [`deadlock`](Self::deadlock) | `Report` | whether a call of a deadlock fails |
/// | [`redisson`](Self::redisson) | `false` | whether wake-ups are exchanged with Redisson |
/// | [`on_event`](Self::on_event), `metrics` | none | where reports go |
/// | **of connections** | | |
/// | [`connect_timeout`](Self::connect_timeout) | 1 s | how long opening a connection may take |
/// | [`io_timeout`](Self::io_timeout) | 1 s | how long one request may take |
/// | [`retry_window`](Self::retry_window) | 10 s | how long calls without a deadline retry |
/// | [`pool_size`](Self::pool_size) | 8 | how many connections the calls share |
/// | [`idle_timeout`](Self::idle_timeout) | 10 min | how long a connection may be idle |
/// | [`max_lifetime`](Self::max_lifetime) | 30 min | how long a connection is used |
/// | [`spin`](Self::spin) | 50 µs | how long a thread busy-waits for a reply |
/// | [`lazy`](Self::lazy) | `false` | whether opening sends no request |
/// | [`credentials`](Self::credentials), `tls` | from the URL | how to log in |
/// | [`master_login`](Self::master_login) | from the URL | how to log in behind sentinels |
/// | [`address_map`](Self::address_map) | none | where announced servers can be reached |
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is opened"]
pub struct Builder {
    pub(crate) config: Config,
    /// The servers, if a URL was given.
    pub(crate) deployment: Option<Deployment>,
}

impl Builder {
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
    /// `key`, unless the URL has them.
    ///
    /// # Errors
    ///
    /// The same as [`from_url`](Builder::from_url), and
    /// [`InvalidInput`](crate::Error::InvalidInput) if `REDIS_URL` is not set.
    pub fn from_env() -> Result<Self> {
        let no_url = |_| Error::invalid("REDIS_URL", "must be set to the URL of the servers");
        let url = env::var("REDIS_URL").map_err(no_url)?;
        Self::default().environment(&url)
    }

    /// Replaces earlier settings with those of the environment and of this URL. For the program
    /// `leasehold`; may change at any time.
    ///
    /// # Errors
    ///
    /// The same as [`from_env`](Builder::from_env).
    #[doc(hidden)]
    pub fn environment(mut self, url: &str) -> Result<Self> {
        apply_environment(&mut self.config)?;
        self.deployment = Some(configure(&mut self.config, url)?);
        Ok(self)
    }

    /// Switches off a mechanism that makes locks faster, for benchmarks that show its effect.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.config.without.push(mechanism);
        self
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
        let no_url = || Error::invalid("url", "must be given, for example by `from_url`");
        let deployment = self.deployment.ok_or_else(no_url)?;
        open::at(self.config, deployment).map(Client::new)
    }

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
    pub fn open_sentinel(
        self,
        sentinels: impl IntoIterator<Item: AsRef<str>>,
        master: &str,
    ) -> Result<Client> {
        let (urls, master) = (strings(sentinels), master.into());
        open::at(self.config, Deployment::Sentinel { urls, master }).map(Client::new)
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
    /// shows only later, because the server did not answer at first, it is left out. The client
    /// notices this only with permission for `INFO`.
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
    pub fn open_memory(self, server: &MemoryServer) -> Result<Client> {
        open::in_memory(self.config, server).map(Client::new)
    }
}

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
