//! What can go wrong, told apart by what the caller can do about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The result of a leasehold call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock call failed.
///
/// Contention is not among these unless a wait was limited: see [`Error::Timeout`]. An outage is
/// never reported as contention. No text of an error contains a password or the secret part of an
/// owner.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The client was closed by [`Client::close`](crate::Client::close).
    Closed,
    /// The process is a forked child of the one that made the client. Make a new client there.
    Forked,
    /// An argument is out of range. Nothing was sent to a server.
    InvalidInput(String),
    /// The lease ended before the guard did: somebody else may hold the lock now.
    Lost {
        /// The lock's name.
        name: String,
    },
    /// Too few of several independent servers agreed, because others could not be reached or did
    /// not answer. If a request may have reached those, its effect is being undone in the
    /// background; the lock is not held.
    #[non_exhaustive]
    NoQuorum {
        /// What was attempted, such as `acquire lock "stock:42"`.
        attempt: String,
        /// How many servers agreed.
        ok: u32,
        /// How many had to.
        required: u32,
        /// The servers that gave no usable answer, in the order of their URLs.
        failures: Vec<ServerFailure>,
    },
    /// Too few replicas, or disks, acknowledged the lock, which was released again; a further
    /// level of a lock was taken back. See [`Durability`](crate::Durability).
    ///
    /// Of several independent servers a majority granted the lock, but too few of them had it
    /// acknowledged. The numbers are then those for one server: what all servers of the best
    /// majority have at least, and what each of them needs.
    NotReplicated {
        /// How many acknowledged it; the server itself counts as one if its disk was to.
        acked: u32,
        /// How many had to.
        required: u32,
    },
    /// The server refused, and would refuse again: a missing right, a wrong password, no memory.
    #[non_exhaustive]
    Redis {
        /// What was attempted, such as `acquire lock "stock:42"`.
        attempt: String,
        /// The server's address.
        server: String,
        /// The first word of the server's reply, such as `NOPERM` or `OOM`.
        code: String,
        /// The server's whole reply.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// Somebody else held the lock until the time to wait was over.
    Timeout {
        /// The lock's name.
        name: String,
    },
    /// No usable answer came in time. If the request may have reached the server, its effect is
    /// being undone in the background; the lock is not held.
    #[non_exhaustive]
    Unavailable {
        /// What was attempted, such as `acquire lock "stock:42"`.
        attempt: String,
        /// The server's address.
        server: String,
        /// What happened to the last try.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// The key of this name holds something that is not a lock. It was left alone.
    WrongType {
        /// The lock's name.
        name: String,
    },
}

/// What one of several servers did not do. See [`Error::NoQuorum`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFailure {
    /// The server's address.
    pub server: String,
    /// What happened to the request.
    pub source: Arc<dyn StdError + Send + Sync>,
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no usable answer from {}", self.server)
    }
}

impl StdError for ServerFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.source.as_ref())
    }
}

/// Why a quorum did not come about: what is known before it is known what was attempted.
#[derive(Clone, Debug)]
pub(crate) struct Shortfall {
    pub(crate) ok: u32,
    pub(crate) required: u32,
    pub(crate) failures: Vec<ServerFailure>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} servers agreed, {} required", self.ok, self.required)?;
        self.failures
            .iter()
            .try_for_each(|ServerFailure { server, source }| write!(f, "; {server}: {source}"))
    }
}

impl StdError for Shortfall {}

impl Error {
    /// Tells whether the same call may well succeed later without a change to the program or to
    /// the server's settings.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::NoQuorum { .. }
                | Self::NotReplicated { .. }
                | Self::Timeout { .. }
                | Self::Unavailable { .. }
        )
    }

    /// An argument error that names the argument and the values it may have.
    pub(crate) fn invalid(argument: &str, allowed: impl fmt::Display) -> Self {
        Self::InvalidInput(format!("{argument}: {allowed}"))
    }

    pub(crate) fn no_thread(error: std::io::Error) -> Self {
        let (attempt, server) = ("start a thread".into(), "the system".into());
        Self::Unavailable { attempt, server, source: Arc::new(error) }
    }

    pub(crate) fn lost(name: &str) -> Self {
        Self::Lost { name: name.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the client is closed"),
            Self::Forked => f.write_str("the client belongs to the parent of this forked process"),
            Self::InvalidInput(what) => write!(f, "invalid input: {what}"),
            Self::Lost { name } => write!(f, "the lease of lock {name:?} was lost"),
            Self::NoQuorum { attempt, ok, required, .. } => {
                write!(f, "no quorum to {attempt}: {ok} servers agreed, {required} required")
            }
            Self::NotReplicated { acked, required } => {
                write!(f, "not replicated: {acked} acknowledged the lock, {required} required")
            }
            Self::Redis { attempt, server, code, .. } => {
                write!(f, "{server} refused to {attempt}: {code}")
            }
            Self::Timeout { name } => {
                write!(f, "lock {name:?} was held by somebody else until the wait was over")
            }
            Self::Unavailable { attempt, server, .. } => {
                write!(f, "could not {attempt}: no usable answer from {server}")
            }
            Self::WrongType { name } => {
                write!(f, "the key of lock {name:?} holds something that is not a lock")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Redis { source, .. } | Self::Unavailable { source, .. } => Some(source.as_ref()),
            Self::NoQuorum { failures, .. } => failures.first().map(|first| first as _),
            _ => None,
        }
    }
}
