//! How a client of a master is opened that sentinels watch over.

use crate::builder::Builder;
use crate::client::Client;
use crate::config::Login;
use crate::error::{Error, Result};
use crate::store::endpoint::Endpoint;
use crate::store::sentinel::{Sentinels, parse};
use crate::store::server::{Server, pool_threads};

/// Sentinels.
impl Builder {
    /// Sets the user, empty for the default one, and the password at the masters that sentinels
    /// name; those in the URLs are then only for the sentinels. See
    /// [`open_sentinel`](Builder::open_sentinel), which alone uses it.
    ///
    /// Defaults to those in the URLs.
    pub fn master_login(mut self, user: &str, password: &str) -> Self {
        self.config.master_login = Some(Login { user: user.into(), password: password.into() });
        self
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
        let sentinels = parse(sentinels, &self.config)?;
        let endpoint = self.at_master(&sentinels)?;
        let threads = pool_threads();
        let route = Box::new(Sentinels::new(&sentinels, master, &self.config, &threads));
        let server = Server::along(route, endpoint, &self.config, threads.clone());
        self.start_on(server, threads)
    }

    /// What the URLs of the sentinels say about the login at the master.
    fn at_master(&self, sentinels: &[Endpoint]) -> Result<Endpoint> {
        let mut endpoints =
            sentinels.iter().cloned().map(|endpoint| match &self.config.master_login {
                None => endpoint,
                Some(Login { user, password }) => endpoint.with_login(user, password),
            });
        let first = endpoints
            .next()
            .ok_or_else(|| Error::invalid("sentinels", "must name at least one"))?;
        if !endpoints.all(|other| first.is_alike(&other)) {
            return Err(Error::invalid(
                "sentinels",
                "must agree on what is for the master: database, client name, user and password",
            ));
        }
        Ok(first)
    }
}
