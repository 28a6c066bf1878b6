//! Where the examples find a Redis.

use std::env;
use std::fmt;

use self::server::Server;

#[path = "../../tests/it/support/server.rs"]
mod server;

/// A Redis to run against.
pub(crate) enum Redis {
    /// The one that the user named.
    Named(String),
    /// One of our own, which ends with this value.
    Private(Server),
}

impl Redis {
    /// Finds the Redis at `url`, else at `REDIS_URL`, else starts a private one from PATH.
    ///
    /// `None` on a machine that has no server installed.
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

/// Without the URL, which may carry a password.
impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(_) => write!(f, "the Redis you named"),
            Self::Private(server) => write!(f, "a private Redis on port {}", server.port()),
        }
    }
}
