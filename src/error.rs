//! The errors of the public API, distinguished by what a caller can do about them.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The result of a call to leasehold.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call failed.
///
/// Contention is an error only when a wait is limited: see [`Error::Timeout`]. An outage is never
/// reported as contention. No error message contains a password or the secret part of an owner.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// This thread holds the lock already, and may not lock it again: see
    /// [`Builder::reentrant`](crate::Builder::reentrant).
    #[non_exhaustive]
    AlreadyHeld {
        /// The name of the lock.
        name: String,
    },
    /// The client was closed by [`Client::close`](crate::Client::close).
    Closed,
    /// This process is a forked child of the one that created the client. Create a new client in
    /// it.
    Forked,
    /// An argument or a setting is invalid. Nothing was sent to a server.
    InvalidInput(String),
    /// The lease ended before the guard did, so another client may hold the lock now.
    Lost {
        /// The name of the lock.
        name: String,
    },
    /// Too few of several independent servers agreed, because others could not be reached or did
    /// not answer. The lock is not held; if those servers may have received the request, its effect
    /// is being undone in the background.
    #[non_exhaustive]
    NoQuorum {
        /// What was attempted, such as `acquire lock "stock:42"`.
        attempt: String,
        /// How many servers agreed.
        ok: u32,
        /// How many were required.
        required: u32,
        /// The servers that gave no usable answer, in the order of their URLs.
        failures: Vec<ServerFailure>,
    },
    /// Too few replicas or disks acknowledged the lock. It was released again or, if it was another
    /// level of a held lock, that level was undone. See [`Durability`](crate::Durability).
    ///
    /// With several independent servers, a majority granted the lock, but too few of them had it
    /// acknowledged. The numbers are then those of a single server: the least that any server of
    /// the best majority has, and what each of them needs.
    NotReplicated {
        /// How many acknowledged it. The server itself counts as one if its disk was required.
        acked: u32,
        /// How many were required.
        required: u32,
    },
    /// The server refused the request and would refuse it again: a permission is missing, the
    /// password is wrong, or it is out of memory.
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
    /// Another owner held the lock until the wait was over.
    Timeout {
        /// The name of the lock.
        name: String,
    },
    /// No usable answer came in time. The lock is not held; if the server may have received the
    /// request, its effect is being undone in the background.
    #[non_exhaustive]
    Unavailable {
        /// What was attempted, such as `acquire lock "stock:42"`.
        attempt: String,
        /// The server's address.
        server: String,
        /// The failure of the last attempt.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// The key of this name holds something that is not a lock: another type, a hash without a TTL
    /// or without the shape of a lock, or a string without a TTL. It was left unchanged.
    WrongType {
        /// The name of the lock.
        name: String,
    },
}

/// The failure of one of several servers. See [`Error::NoQuorum`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFailure {
    /// The server's address.
    pub server: String,
    /// Why its request failed.
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

/// Why there was no quorum, without what was attempted, which only the caller knows.
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
            .try_for_each(|ServerFailure { server, source }| write!(f, "; {server}: {source}"))
    }
}

impl StdError for Shortfall {}

impl Error {
    /// Returns `true` if the same call may well succeed later without a change to the program or to
    /// the server's configuration.
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

    /// Returns `true` if an outage or a refusal of a server is the cause.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::NoQuorum { .. }
                | Self::NotReplicated { .. }
                | Self::Redis { .. }
                | Self::Unavailable { .. }
                | Self::WrongType { .. }
        )
    }

    /// Returns the texts of this error and of its causes.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// An error that names an argument and the values that it may have.
    pub(crate) fn invalid(argument: &str, allowed: impl fmt::Display) -> Self {
        Self::InvalidInput(format!("{argument}: {allowed}"))
    }

    /// The operating system could not start a thread.
    pub(crate) fn no_thread(source: io::Error) -> Self {
        Self::system("start a thread", source)
    }

    /// The operating system could not do what was attempted.
    pub(crate) fn system(attempt: &str, source: impl StdError + Send + Sync + 'static) -> Self {
        let (attempt, server) = (attempt.into(), "the operating system".into());
        Self::Unavailable { attempt, server, source: Arc::new(source) }
    }

    pub(crate) fn timed_out(name: &str) -> Self {
        Self::Timeout { name: name.into() }
    }

    pub(crate) fn lost(name: &str) -> Self {
        Self::Lost { name: name.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyHeld { name } => {
                write!(f, "this thread holds lock {name:?} already")
            }
            Self::Closed => f.write_str("the client is closed"),
            Self::Forked => f.write_str("the client belongs to the parent of this forked process"),
            Self::InvalidInput(what) => write!(f, "invalid input: {what}"),
            Self::Lost { name } => write!(f, "the lease of lock {name:?} was lost"),
            Self::NoQuorum { attempt, ok, required, .. } => {
                write!(f, "could not {attempt}: {ok} of {required} required servers agreed")
            }
            Self::NotReplicated { acked, required } => {
                write!(f, "too few replicas or disks acknowledged the lock: {acked} of {required}")
            }
            Self::Redis { attempt, server, code, .. } => {
                write!(f, "{server} refused to {attempt}: {code}")
            }
            Self::Timeout { name } => {
                write!(f, "another owner held lock {name:?} until the wait was over")
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
