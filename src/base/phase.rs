//! How far a request to a server got before it failed, as shown to users.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// How far an attempt to get an answer from a server got before it failed, in the order of the
/// phases. See [`Error::Unavailable`](crate::Error::Unavailable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The call requested a resource from the operating system, such as a thread.
    System,
    /// The call waited for a connection while other threads used all that the client may have. The
    /// server is not to blame: see [`Builder::pool_size`](crate::Builder::pool_size).
    Pool,
    /// The server's host name was looked up.
    LookUp,
    /// A connection was being opened.
    Connect,
    /// The TLS handshake had begun.
    Tls,
    /// The first reply was read over a new connection, and it did not come from a Redis server. The
    /// port belongs to another service, or one side uses TLS and the other does not.
    Greeting,
    /// The client was logging in, or waiting for its credentials from a
    /// [callback](crate::Builder::credentials).
    Login,
    /// The request itself was about to be sent, or got an error that may pass, or no answer.
    Request,
}

impl Phase {
    /// Writes what failed at `server`.
    pub(crate) fn describe(self, server: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => write!(f, "{server} refused"),
            Self::Pool => write!(f, "no connection to {server} was free"),
            Self::LookUp => write!(f, "the look-up of {server} failed"),
            Self::Connect => write!(f, "no connection to {server}"),
            Self::Tls => write!(f, "no TLS connection to {server}"),
            Self::Greeting => write!(f, "{server} does not speak Redis"),
            Self::Login => write!(f, "the login at {server} failed"),
            Self::Request => write!(f, "no usable answer from {server}"),
        }
    }
}

/// The failure of one of several servers. See [`Error::NoQuorum`](crate::Error::NoQuorum).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFailure {
    /// The server's address.
    pub server: String,
    /// How far its request got.
    pub phase: Phase,
    /// Why its request failed.
    pub source: Arc<dyn StdError + Send + Sync>,
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.phase.describe(&self.server, f)?;
        write!(f, ": {}", self.source)
    }
}

impl StdError for ServerFailure {
    /// The message already includes the cause, so this returns the cause of that.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.source()
    }
}

/// Why there was no quorum. The caller adds what was attempted.
#[derive(Clone, Debug)]
pub(crate) struct Shortfall {
    pub(crate) ok: u32,
    pub(crate) required: u32,
    pub(crate) failures: Vec<ServerFailure>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} required servers agreed", self.ok, self.required)?;
        self.failures
            .iter()
            .try_for_each(|ServerFailure { server, source, .. }| write!(f, "; {server}: {source}"))
    }
}

impl StdError for Shortfall {}
