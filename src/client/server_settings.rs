//! The settings of a client that are about servers and connections.

use std::error::Error as StdError;
use std::time::Duration;

use crate::client::builder::Builder;
use crate::config::Mechanism;
use crate::config::callbacks::{AddressMap, Credentials, CredentialsCallback};
#[cfg(feature = "tls")]
use crate::config::certificates::Tls;

impl Builder {
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

    /// Sets how long a thread may keep a core busy while it waits for a reply, before it goes to
    /// sleep. Waking a thread takes longer than a nearby server takes to answer.
    ///
    /// Threads do not spin for a server that usually takes longer than this, nor when the threads
    /// that wait for replies would leave no core free. Zero disables spinning. Defaults to 50 µs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.config.spin = time;
        self
    }

    /// Does without a mechanism that makes locks faster. For benchmarks that show what it gains.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.config.without.push(mechanism);
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
    /// Defaults to the login in the URLs. Has no effect in memory. There is an example in
    /// [Deployment](crate::guide::deployment#credentials).
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

    /// Sets which servers the client trusts at a `rediss://` URL, and the certificate it presents.
    /// Requires the feature `tls`.
    ///
    /// Defaults to the system's certificate authorities and no client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.config.tls = Some(tls);
        self
    }
}
