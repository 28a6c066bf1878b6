//! Finds a Redis server for the examples.

use std::env;
use std::fmt;

use self::server::Server;

#[path = "../../tests/it/support/server.rs"]
mod server;

/// A Redis server to use.
pub(crate) enum Redis {
    /// The server that the user named.
    Named(String),
    /// A server of our own, which is stopped when this value is dropped.
    Private(Server),
}

impl Redis {
    /// Uses the server at `url`, or else at `REDIS_URL`, or else starts a private one from PATH.
    ///
    /// Returns `None` on a machine that has no server installed.
    pub(crate) fn find(url: Option<String>) -> Option<Self> {
        url.or_else(|| env::var("REDIS_URL").ok())
            .filter(|url| !url.is_empty())
            .map(Self::Named)
            .or_else(|| Server::on_path().map(Self::Private))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Named(url) => url.clone(),
            Self::Private(server) => server.url(),
        }
    }
}

/// Leaves out the URL, which may contain a password.
impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(_) => write!(f, "the Redis you named"),
            Self::Private(server) => write!(f, "a private Redis on port {}", server.port()),
        }
    }
}
