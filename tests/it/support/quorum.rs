//! Several independent servers, and clients of all of them.

use leasehold::{Builder, Client, Error};

use super::server::Server;

pub(crate) struct Quorum {
    pub(crate) servers: Vec<Server>,
}

impl Quorum {
    pub(crate) fn of(servers: usize) -> Quorum {
        Quorum { servers: (0..servers).map(|_| Server::redis()).collect() }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// Opens a client; enough servers are up.
    pub(crate) fn open(&self, builder: Builder) -> Client {
        open_redlock(builder, &self.urls()).expect("a quorum is up")
    }

    /// The last server, which no test takes down first.
    pub(crate) fn last(&self) -> &Server {
        self.servers.last().expect("there are some")
    }

    /// The number of servers, of those that answer, that have the lock.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.servers.iter().filter(|server| server.exists(name)).count()
    }
}

pub(crate) fn open_redlock(builder: Builder, urls: &[String]) -> Result<Client, Error> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    builder.open_redlock(&urls)
}
