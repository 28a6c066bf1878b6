//! The errors of the public API, distinguished by what a caller can do about each.

use std::error::Error as StdError;
use std::sync::Arc;
use std::{fmt, io, iter};

use crate::base::holder::{Holder, ShownClient};
pub(crate) use crate::base::phase::{Phase, ServerFailure, Shortfall};

/// The kind of an I/O error in a TLS session that only another certificate or setting can resolve.
pub(crate) const LASTING: io::ErrorKind = io::ErrorKind::PermissionDenied;

/// The result of a call to leasehold.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call failed.
///
/// Contention is an error only when a wait is limited: see [`Error::Timeout`]. An outage is never
/// reported as contention. No error message contains a password or the secret part of an owner.
///
/// The message of an error includes its cause. [`source`](std::error::Error::source) is the cause
/// of that cause, so a chain of messages says nothing twice. The fields `source` and `failures`
/// have the cause itself, to be downcast for example.
///
/// Variants may gain fields: match them with `..`.
///
/// ```
/// use leasehold::{Client, Error};
/// use std::time::Duration;
///
/// let client = Client::builder().wait(Duration::from_millis(10)).in_memory()?;
/// let _held = client.lock_owned("stock:42")?;
/// match client.lock("stock:42") {
///     Ok(_guard) => unreachable!("it is held"),
///     Err(Error::Timeout { name, .. }) => assert_eq!(name, "stock:42"),
///     Err(Error::Unavailable { server, .. }) => eprintln!("{server} is away"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// This thread already holds the lock, and must not lock it again: see
    /// [`Builder::reentrant`](crate::Builder::reentrant).
    #[non_exhaustive]
    AlreadyHeld {
        /// The name of the lock.
        name: String,
    },
    /// The wait was ended by a [`Canceller`](crate::Canceller).
    #[non_exhaustive]
    Cancelled {
        /// The name of the lock.
        name: String,
    },
    /// The client was closed by [`Client::close`](crate::Client::close), or shut down by
    /// [`Client::shutdown`](crate::Client::shutdown).
    Closed,
    /// The call was in a deadlock, and was chosen to fail: see
    /// [`Builder::deadlock`](crate::Builder::deadlock). The thread still holds its other locks, and
    /// the same call would wait in the same circle: drop them, and start over.
    #[non_exhaustive]
    Deadlock {
        /// The names of the locks that the threads of the circle waited for.
        names: Vec<String>,
        /// The [id](crate::Client::id) of each thread's client, in the order of `names`.
        clients: Vec<String>,
        /// The circle in words: which client waited for which, and for what.
        reason: String,
    },
    /// This process was forked from the one that opened the client, and does not own its
    /// connections and threads. Open a client in the child, or after a daemon has daemonized.
    Forked,
    /// An argument or a setting is invalid. Nothing was sent to a server.
    InvalidInput(String),
    /// The lease ended before the guard did, so another client may hold the lock now.
    #[non_exhaustive]
    Lost {
        /// The name of the lock.
        name: String,
        /// Why the lock was lost, as far as this client knows.
        cause: LossCause,
        /// The failure of the last renewal, if the lock was lost because none succeeded in time.
        last_failure: Option<Arc<dyn StdError + Send + Sync>>,
        /// Whether the call was for a nested level: this thread still has a guard of the lost hold,
        /// and cannot get the lock again until that guard is dropped.
        nested: bool,
    },
    /// Too few of several independent servers agreed, because others could not be reached or did
    /// not answer. The lock is not held. If those servers may have received the request, its effect
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
        /// See [`may_have_executed`](Error::may_have_executed).
        may_have_executed: bool,
    },
    /// Too few replicas or disks acknowledged the lock. The lock was released again; if this was a
    /// nested level, only that level was undone. See [`Durability`](crate::Durability).
    ///
    /// With several independent servers, a majority granted the lock, but too few of them reached
    /// the required durability. `server`, `acked` and `required` then describe one server: the one
    /// with the fewest acknowledgements in the best majority.
    #[non_exhaustive]
    NotReplicated {
        /// The name of the lock.
        name: String,
        /// The server's address.
        server: String,
        /// How many acknowledged it. The server itself counts as one if its disk was required.
        acked: u32,
        /// How many were required.
        required: u32,
    },
    /// The server refused the request and would refuse it again: a permission is missing, the
    /// password is wrong, or the server is out of memory.
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
    /// Another owner held the lock until the wait ended.
    #[non_exhaustive]
    Timeout {
        /// The name of the lock.
        name: String,
        /// Who held the lock when the wait ended. `None` if that is not known, if the call waited
        /// for a thread of its own client, and for kinds of locks that several clients can hold.
        holder: Option<Holder>,
        /// A description of the holders for people, which also covers readers, writers and permits.
        reason: String,
    },
    /// No usable reply came in time. The lock is not held. If the server may have received the
    /// request, its effect is being undone in the background.
    #[non_exhaustive]
    Unavailable {
        /// What was attempted, such as `acquire lock "stock:42"`.
        attempt: String,
        /// The server's address.
        server: String,
        /// How far the last attempt got before it failed or timed out.
        phase: Phase,
        /// See [`may_have_executed`](Error::may_have_executed).
        may_have_executed: bool,
        /// The failure of the last attempt.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// The key of this name holds something that is not a lock: another type or kind of lock, a
    /// hash without a TTL or without the shape of a lock, or a string without a TTL. It was left
    /// unchanged.
    #[non_exhaustive]
    WrongType {
        /// The name of the lock.
        name: String,
        /// The server's address.
        server: String,
        /// What the key holds, such as `a string without a TTL` or `a semaphore`.
        found: String,
        /// What the call expected, such as `lock` or `semaphore`.
        wanted: String,
    },
}

impl Error {
    /// Returns `true` if the same call may succeed later without a change to the program or to the
    /// server's configuration, certificates included.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { phase: Phase::Greeting, .. } => false,
            Self::Unavailable { phase: Phase::Tls, source, .. } => !lasts(&**source),
            Self::NoQuorum { .. }
            | Self::NotReplicated { .. }
            | Self::Timeout { .. }
            | Self::Unavailable { .. } => true,
            _ => false,
        }
    }

    /// Returns `true` if a server may have executed the request, or may still do so, because the
    /// reply to some attempt was lost, late or inconclusive. Anything that the request acquired is
    /// then released in the background.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            Self::NotReplicated { .. } => true,
            Self::NoQuorum { may_have_executed, .. }
            | Self::Unavailable { may_have_executed, .. } => *may_have_executed,
            _ => false,
        }
    }

    /// Returns `true` if an outage or a refusal by a server is the cause.
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

    /// Returns the messages of this error and of its causes.
    pub(crate) fn with_causes(&self) -> String {
        let causes = iter::successors(self.source(), |&cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    /// Returns an error that names an argument and its allowed values.
    pub(crate) fn invalid(argument: &str, allowed: impl fmt::Display) -> Self {
        Self::InvalidInput(format!("{argument}: {allowed}"))
    }

    /// Returns an error that names an argument and its allowed values, unless its value is valid.
    pub(crate) fn require(
        is_valid: bool,
        argument: &str,
        allowed: impl fmt::Display,
    ) -> Result<()> {
        if is_valid { Ok(()) } else { Err(Self::invalid(argument, allowed)) }
    }

    pub(crate) fn no_thread(source: io::Error) -> Self {
        Self::system("start a thread", source)
    }

    /// Returns the error of an attempt that the operating system refused.
    pub(crate) fn system(attempt: &str, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Unavailable {
            attempt: attempt.into(),
            server: "the operating system".into(),
            phase: Phase::System,
            may_have_executed: false,
            source: Arc::new(source),
        }
    }

    pub(crate) fn lost(name: &str, Loss { cause, last_failure }: Loss) -> Self {
        Self::Lost { name: name.into(), cause, last_failure, nested: false }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyHeld { name } => write!(f, "this thread already holds lock {name:?}"),
            Self::Cancelled { name } => write!(f, "the wait for lock {name:?} was cancelled"),
            Self::Closed => f.write_str("the client is closed"),
            Self::Forked => f.write_str(
                "the process has forked since it opened the client: \
                 open a client in the child, or after becoming a daemon",
            ),
            Self::InvalidInput(what) => write!(f, "invalid input: {what}"),
            Self::Lost { name, cause, last_failure, nested } => {
                if *nested {
                    write!(f, "this thread still has a lost guard of {name:?}: drop it; ")?;
                }
                write!(f, "lock {name:?} was lost: ")?;
                describe_loss(cause, last_failure.as_deref(), f)
            }
            Self::NoQuorum { attempt, ok, required, failures, .. } => {
                write!(f, "could not {attempt}: {ok} of {required} required servers agreed")?;
                failures.iter().try_for_each(|failure| write!(f, "; {failure}"))
            }
            Self::NotReplicated { name, server, acked, required } => write!(
                f,
                "too few replicas or disks of {server} acknowledged a hold of {name:?}: \
                 {acked} of {required}"
            ),
            Self::Redis { attempt, server, code, source } => {
                write!(f, "could not {attempt}: {server} refused it: {source}")?;
                f.write_str(match &**code {
                    "CROSSSLOT" | "MOVED" => {
                        ", because it is a node of a cluster: use redis+cluster://"
                    }
                    "NOPERM" => " (docs/deployment.md lists the permissions that a user needs)",
                    _ => "",
                })
            }
            Self::Deadlock { reason, .. } | Self::Timeout { reason, .. } => f.write_str(reason),
            Self::Unavailable { attempt, server, phase, may_have_executed, source } => {
                write!(f, "could not {attempt}: ")?;
                phase.describe(server, f)?;
                write!(f, ": {source}")?;
                let in_doubt = "; the request may have been executed nevertheless";
                f.write_str(if *may_have_executed { in_doubt } else { "" })
            }
            Self::WrongType { name, server, found, wanted } => {
                write!(f, "the key of {wanted} {name:?} at {server} holds {found}")
            }
        }
    }
}

/// Returns `true` for a failure of TLS that only another certificate or setting can resolve.
pub(crate) fn lasts(source: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(source);
    while let Some(cause) = next {
        // The operating system reports other errors of the same kind.
        if let Some(error) = cause.downcast_ref::<io::Error>()
            && error.kind() == LASTING
            && error.get_ref().is_some()
        {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Why a lock was lost, as far as its client knows. See [`Lost::cause`](crate::Lost::cause) and
/// [`Error::Lost`].
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The lease was not renewed in time: the server did not answer or refused the renewals, the
    /// process was paused for too long, or renewal is off.
    Expired,
    /// An operator or another program ended the hold by force, as
    /// [`Mutex::force_unlock`](crate::Mutex::force_unlock) does. Known only to a client that
    /// listens for messages: one that has waited for another client, keeps locks, or has called
    /// [`wanted`](crate::Guard::wanted). Any other finds the hold [gone](LossCause::Gone).
    Forced,
    /// The server no longer knows the hold: it has lost its data, has evicted the key, or another
    /// program has deleted or replaced it.
    Gone,
    /// The hold reached its age limit: see [`Builder::max_hold`](crate::Builder::max_hold).
    MaxHold,
    /// The hold is gone, and another client held the lock when this client checked.
    Taken {
        /// Its [id](crate::Client::id); empty for a client of another library.
        by: String,
    },
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("it was not renewed in time"),
            Self::Forced => f.write_str("it was ended by force"),
            Self::Gone => f.write_str("the server does not know it any more"),
            Self::MaxHold => f.write_str("it has reached its age limit"),
            Self::Taken { by } if by.is_empty() => f.write_str("another library holds it now"),
            Self::Taken { by } => write!(f, "client {by:?} holds it now"),
        }
    }
}

impl fmt::Debug for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("Expired"),
            Self::Forced => f.write_str("Forced"),
            Self::Gone => f.write_str("Gone"),
            Self::MaxHold => f.write_str("MaxHold"),
            Self::Taken { by } => f.debug_struct("Taken").field("by", &ShownClient(by)).finish(),
        }
    }
}

/// The cause of a loss, and the failure that led to it.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) cause: LossCause,
    /// The failure of the last renewal, if none succeeded in time.
    pub(crate) last_failure: Option<Arc<dyn StdError + Send + Sync>>,
}

impl From<LossCause> for Loss {
    fn from(cause: LossCause) -> Self {
        Self { cause, last_failure: None }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe_loss(&self.cause, self.last_failure.as_deref(), f)
    }
}

fn describe_loss(
    cause: &LossCause,
    last_failure: Option<&(dyn StdError + Send + Sync)>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "{cause}")?;
    last_failure.map_or(Ok(()), |failure| write!(f, ": {failure}"))
}

impl StdError for Error {
    /// The message already includes the cause, so this returns the cause of that.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Lost { last_failure, .. } => last_failure.as_ref()?.source(),
            Self::Redis { source, .. } | Self::Unavailable { source, .. } => source.source(),
            Self::NoQuorum { failures, .. } => failures.first()?.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure, and its cause.
    #[derive(Debug)]
    struct Fails(&'static str, Option<Box<Fails>>);

    impl fmt::Display for Fails {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Fails {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.1.as_deref().map(|behind| behind as _)
        }
    }

    #[test]
    fn a_message_has_its_cause_and_the_chain_says_nothing_twice() {
        let source: Arc<dyn StdError + Send + Sync> =
            Arc::new(Fails("WRONGPASS bad password", Some(Box::new(Fails("caps lock", None)))));
        let (attempt, server) = ("ping".to_owned(), "a:1".to_owned());
        let failure =
            ServerFailure { server: server.clone(), phase: Phase::Login, source: source.clone() };
        let lost = Loss { cause: LossCause::Expired, last_failure: Some(source.clone()) };
        let errors: [(Error, &str); 4] = [
            (Error::lost("x", lost), r#"lock "x" was lost: it was not renewed in time"#),
            (
                Error::NoQuorum {
                    attempt: attempt.clone(),
                    ok: 1,
                    required: 2,
                    failures: vec![failure],
                    may_have_executed: false,
                },
                "could not ping: 1 of 2 required servers agreed; the login at a:1 failed",
            ),
            (
                Error::Redis {
                    attempt: attempt.clone(),
                    server: server.clone(),
                    code: "WRONGPASS".into(),
                    source: source.clone(),
                },
                "could not ping: a:1 refused it",
            ),
            (
                Error::Unavailable {
                    attempt,
                    server,
                    phase: Phase::Connect,
                    may_have_executed: false,
                    source,
                },
                "could not ping: no connection to a:1",
            ),
        ];
        for (error, begin) in errors {
            assert_eq!(error.to_string(), format!("{begin}: WRONGPASS bad password"));
            assert_eq!(error.with_causes(), format!("{error}: caps lock"));
        }
    }

    #[test]
    fn a_loss_says_who_has_the_lock() {
        let lost = |by: &str| Error::lost("x", LossCause::Taken { by: by.into() }.into());
        assert_eq!(lost("b").to_string(), r#"lock "x" was lost: client "b" holds it now"#);
        assert_eq!(lost("").to_string(), r#"lock "x" was lost: another library holds it now"#);
    }
}
