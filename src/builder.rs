//! Settings of a client, and the ways to open one.

use std::time::Duration;

use crate::client::{Builder, Client};
use crate::config::{Durability, Login};
use crate::error::Result;
use crate::event::{Callback, Event};
use crate::open;
#[cfg(feature = "tls")]
use crate::tls::Tls;

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
        self.config.on_event = Some(Callback::new(callback));
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
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or the URL makes no sense.
    /// - [`Unavailable`](crate::Error::Unavailable): no answer in two tries of
    ///   [`connect_timeout`](Builder::connect_timeout).
    /// - [`Redis`](crate::Error::Redis): the server refused the login.
    pub fn open(self, url: &str) -> Result<Client> {
        open::standalone(self.config, url).map(Client::new)
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
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL makes no sense, two URLs are the
    ///   same, or there is none.
    /// - [`Unavailable`](crate::Error::Unavailable): no answer from a sentinel or from the master in two
    ///   tries of [`connect_timeout`](Builder::connect_timeout), or no master for
    ///   [`retry_window`](Builder::retry_window).
    /// - [`Redis`](crate::Error::Redis): a server refused the login, or the sentinels that answered do not
    ///   know a master of this name (code `NOMASTER`).
    ///
    /// ```no_run
    /// let sentinels = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let client = leasehold::Client::builder()
    ///     .master_login("", "sesame")
    ///     .open_sentinel(&sentinels, "shop")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open_sentinel(
        self,
        sentinels: impl IntoIterator<Item: AsRef<str>>,
        master: &str,
    ) -> Result<Client> {
        open::sentinel(self.config, sentinels, master).map(Client::new)
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
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL makes no sense, or there is no
    ///   seed or one twice.
    /// - [`Unavailable`](crate::Error::Unavailable): no seed answered in two tries of
    ///   [`connect_timeout`](Builder::connect_timeout) each, or some hash slots are not served.
    /// - [`Redis`](crate::Error::Redis): the nodes refused the login, or are no cluster.
    pub fn open_cluster(self, seeds: impl IntoIterator<Item: AsRef<str>>) -> Result<Client> {
        open::cluster(self.config, seeds).map(Client::new)
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
    /// - [`InvalidInput`](crate::Error::InvalidInput): a setting or a URL makes no sense, there is no URL,
    ///   or two name the same address.
    /// - [`NoQuorum`](crate::Error::NoQuorum): too few answer in two tries of
    ///   [`connect_timeout`](Builder::connect_timeout).
    /// - [`Redis`](crate::Error::Redis): too many have refused the login, or cannot wait for what
    ///   [`durability`](Builder::durability) demands.
    pub fn open_redlock(self, urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Client> {
        open::redlock(self.config, urls).map(Client::new)
    }

    /// Makes a client whose locks exist in this process only. See [`Client::in_memory`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::Error::InvalidInput): a setting makes no sense, such as a
    /// [`Durability`] that memory does not have.
    pub fn in_memory(self) -> Result<Client> {
        open::in_memory(self.config).map(Client::new)
    }
}
