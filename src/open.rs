//! How clients are opened, one way for each way to run Redis.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use scheduled_thread_pool::ScheduledThreadPool;

use crate::builder::Builder;
use crate::client::Client;
use crate::clock::end_of;
use crate::config::{Durability, Login};
use crate::error::{Error, Result};
use crate::event::Events;
use crate::failure::Failure;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::Shared;
use crate::net::endpoint::Endpoint;
use crate::net::sentinel::{self, Sentinels};
use crate::net::server::{Server, pool_threads};
use crate::store::Store;
use crate::store::cluster::{Cluster, parse_seeds};
use crate::store::durability::{Demand, probe};
use crate::store::memory::Memory;
use crate::store::quorum::Quorum;
use crate::store::standalone::Standalone;

/// Opening a client.
impl Builder {
    /// Opens a client of one Redis server, and makes sure that it answers.
    ///
    /// The URL is `redis://[user][:password@]host[:port][/database]` or
    /// `unix:///path[?db=&user=&pass=]`; either may have `client_name=` in its query, for
    /// `CLIENT SETNAME`. Redis 6.2 or newer, or Valkey.
    ///
    /// `rediss://` in place of `redis://` means TLS and needs the feature `tls`. The server must
    /// have a certificate for the host of the URL. With the feature `tls-insecure` as well, a URL
    /// that ends with `#insecure` does without that: it keeps off those who only listen, and
    /// nobody else.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](Error::InvalidInput): a setting or the URL makes no sense.
    /// - [`Unavailable`](Error::Unavailable): no answer in two tries of
    ///   [`connect_timeout`](Builder::connect_timeout).
    /// - [`Redis`](Error::Redis): the server refused the login.
    pub fn open(self, url: &str) -> Result<Client> {
        self.config.check()?;
        let endpoint = Endpoint::parse(url, &self.config)?;
        let threads = pool_threads();
        let server = Server::new(endpoint, &self.config, threads.clone());
        self.start_on(server, threads)
    }

    /// Opens a client of the Redis server that is the `master` of this name at the moment, as
    /// sentinels say, and makes sure that it answers.
    ///
    /// The URLs are those of [`open`](Builder::open), with port 26379 if they name none. Their user
    /// and password are for the sentinels and the master alike, unless
    /// [`master_login`](Builder::master_login) gives others for the master; database and client
    /// name are for the master. What is for the master must be the same in all URLs.
    ///
    /// The sentinels are asked, the one that answered last first, before a connection is opened,
    /// after every failure, and before a request if the last answer is half a second old. A server
    /// that a sentinel names must also say itself that it is a master. So after a failover the next
    /// call goes to the new master. A lock that the new master has never heard of, because
    /// replication is asynchronous, is reported as lost when it is to be renewed; see
    /// [`durability`](Builder::durability) for how to make that rarer, and
    /// [`Guard::fence`](crate::Guard::fence) for what helps when it happens.
    ///
    /// While no sentinel answers, connections to the master go on being used until one fails.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](Error::InvalidInput): a setting or a URL makes no sense, two URLs are the
    ///   same, or there is none.
    /// - [`Unavailable`](Error::Unavailable): no answer from a sentinel or from the master in two
    ///   tries of [`connect_timeout`](Builder::connect_timeout), or no master for
    ///   [`retry_window`](Builder::retry_window).
    /// - [`Redis`](Error::Redis): a server refused the login, or the sentinels that answered do not
    ///   know a master of this name (code `NOMASTER`).
    ///
    /// ```no_run
    /// let sentinels = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let client = leasehold::Client::builder()
    ///     .master_login("", "sesame")
    ///     .open_sentinel(&sentinels, "shop")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_sentinel(self, sentinels: &[&str], master: &str) -> Result<Client> {
        self.config.check()?;
        if master.is_empty() {
            return Err(Error::invalid("master", "must not be empty"));
        }
        let sentinels = sentinel::parse(sentinels, &self.config)?;
        let endpoint = self.at_master(&sentinels)?;
        let threads = pool_threads();
        let route = Box::new(Sentinels::new(&sentinels, master, &self.config, &threads));
        let server = Server::along(route, endpoint, &self.config, threads.clone());
        self.start_on(server, threads)
    }

    /// Opens a client of a Redis Cluster, and makes sure that all of its hash slots are served.
    ///
    /// Each seed is the URL of a node, as in [`open`](Builder::open), over TCP and without a
    /// database number. One that answers is enough: it names the others, which are used with the
    /// login of the seed at the same address, or else of the first. [`pool_size`](Builder::pool_size)
    /// is for each master.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](Error::InvalidInput): a setting or a URL makes no sense, or there is no
    ///   seed or one twice.
    /// - [`Unavailable`](Error::Unavailable): no seed answered in two tries of
    ///   [`connect_timeout`](Builder::connect_timeout) each, or some hash slots are not served.
    /// - [`Redis`](Error::Redis): the nodes refused the login, or are no cluster.
    pub fn open_cluster(self, seeds: &[&str]) -> Result<Client> {
        self.config.check()?;
        let seeds = parse_seeds(seeds, &self.config)?;
        let threads = pool_threads();
        let cluster = Cluster::new(seeds, &self.config, &threads)
            .map_err(|failure| failure.into_error("open", ""))?;
        self.insist(|| cluster.explore())?;
        self.start(Arc::new(cluster), Some(threads))
    }

    /// Opens a client of several independent servers, and makes sure that more than half of them
    /// answer: the algorithm known as Redlock. A lock is held when more than half of them have
    /// granted it, so that it outlives the others.
    ///
    /// No server may be a replica of another. Each is given as for [`open`](Builder::open); an odd
    /// number of them is best, for four survive no more failures than three. A server that does not
    /// answer costs calls no time, and is used again when it does. One that has lost its data must
    /// not come back before the longest lease is over, or it helps somebody to a lock that is held.
    /// [`pool_size`](Builder::pool_size) is the number of connections to each.
    ///
    /// With [`Durability::Fsync`] a lock is on the disks of a majority before it is held, so that
    /// servers that keep their files may be restarted at any time, and all at once. Renewals do not
    /// wait: unless `appendfsync` is `always` a crash may take back the last one, and with it a third
    /// of the lease. [`Durability::Replicas`] does the same for failovers, as far as replicas are
    /// elected that have acknowledged the lock. A call keeps its connections for that long, so that
    /// calls about other names may have to wait for them. A server that cannot do what is demanded
    /// is left out.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](Error::InvalidInput): a setting or a URL makes no sense, there is no URL,
    ///   or two name the same address.
    /// - [`NoQuorum`](Error::NoQuorum): too few answer in two tries of
    ///   [`connect_timeout`](Builder::connect_timeout).
    /// - [`Redis`](Error::Redis): too many have refused the login, or cannot wait for what
    ///   [`durability`](Builder::durability) demands.
    pub fn open_redlock(self, urls: &[&str]) -> Result<Client> {
        self.config.check()?;
        let endpoints = Endpoint::parse_all("urls", urls, &self.config)?;
        let threads = pool_threads();
        let store = Quorum::new(endpoints, &self.config, &threads)
            .map_err(|failure| failure.into_error("open", ""))?;
        self.insist(|| store.ping(end_of(self.config.connect_timeout)))?;
        let store = Arc::new(store);
        let shared = self.share(store.clone(), true, Some(threads))?;
        store.report_in_doubt_to(shared.in_doubt_reports());
        Ok(Client::new(shared))
    }

    /// Makes a client whose locks exist in this process only. See [`Client::in_memory`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](Error::InvalidInput): a setting makes no sense, such as a
    /// [`Durability`] that memory does not have.
    pub fn in_memory(self) -> Result<Client> {
        self.config.check()?;
        if self.config.durability != Durability::Memory {
            return Err(Error::invalid("durability", "must be `Memory` in memory"));
        }
        self.start(Arc::new(Memory::default()), None)
    }

    fn start_on(
        self,
        server: Result<Server, Failure>,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Client> {
        let server = server.map_err(|failure| failure.into_error("open", ""))?;
        self.insist(|| server.ping(end_of(self.config.connect_timeout)))?;
        if let Some(demand) = Demand::new(self.config.durability) {
            probe(&server, &demand, end_of(self.config.connect_timeout))
                .map_err(|failure| failure.into_error("open a client", ""))?;
        }
        let store = Standalone::new(server, &self.config);
        self.start(Arc::new(store), Some(threads))
    }

    /// What the URLs of the sentinels say about the login at the master.
    fn at_master(&self, sentinels: &[Endpoint]) -> Result<Endpoint> {
        let at_master = |sentinel: &Endpoint| match &self.config.master_login {
            None => sentinel.clone(),
            Some(Login { user, password }) => sentinel.clone().with_login(user, password),
        };
        let first = at_master(&sentinels[0]);
        if !sentinels.iter().all(|other| first.is_alike(&at_master(other))) {
            return Err(Error::invalid(
                "sentinels",
                "must agree on what is for the master: database, client name, user and password",
            ));
        }
        Ok(first)
    }

    /// Tries what shows that servers answer, as often as a brief call would.
    fn insist(&self, attempt: impl Fn() -> std::result::Result<(), Failure>) -> Result<()> {
        let mut retry = RetryPolicy::new(RetryLimit::Brief, &self.config, Duration::MAX);
        while let Err(failure) = attempt() {
            let Some(pause) = retry.after(&failure) else {
                return Err(failure.into_error("open a client", ""));
            };
            thread::sleep(pause);
        }
        Ok(())
    }

    fn start(
        self,
        store: Arc<dyn Store>,
        threads: Option<Arc<ScheduledThreadPool>>,
    ) -> Result<Client> {
        self.share(store, false, threads).map(Client::new)
    }

    /// What the clones of a client share.
    fn share(
        self,
        store: Arc<dyn Store>,
        withdraws: bool,
        threads: Option<Arc<ScheduledThreadPool>>,
    ) -> Result<Shared> {
        let events = match self.on_event {
            None => Events::default(),
            Some(callback) => Events::deliver_to(callback).map_err(Error::no_thread)?,
        };
        Shared::start(self.config, store, withdraws, threads, events)
    }
}
