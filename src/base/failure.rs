//! The reasons why a request fails, and the error that its caller gets.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use crate::error::{Error, Phase, Shortfall};

/// The start of a reply that says what a key holds in place of a lock.
const FOUND: &str = "WRONGTYPE found ";

/// The reason why a request got no usable answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The request was executed, but too few replicas or disks acknowledged it, so its effect must
    /// be undone.
    NotReplicated { acked: u32, required: u32 },
    /// The server cannot execute the request at the moment: nothing was done.
    Transient,
    /// The server refuses the request for good: nothing was done.
    Rejected,
    /// The connection broke after the request was sent, so the request may have been executed.
    Disconnected,
    /// The error reply does not say whether the request was executed. A proxy that has lost its
    /// server sends such errors.
    Unclear,
    /// No reply arrived in time. The request may have been executed, or may still be.
    Timeout,
    /// The request was not sent.
    Unreachable,
    /// The request was not sent, because other threads of this client used all connections.
    NoneFree,
    /// Something that is not a Redis server answers there.
    Foreign,
    /// The TLS settings do not fit the server.
    Misfit,
    /// The key holds something that is not a lock: nothing was done.
    WrongType,
}

/// A failed request, and the server that it was meant for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) server: Arc<str>,
    pub(crate) code: String,
    /// How far the request got.
    pub(crate) phase: Phase,
    /// Whether an earlier attempt of the same call may have been executed.
    pub(crate) after_doubt: bool,
    pub(crate) source: Arc<dyn StdError + Send + Sync>,
    /// The cause, with the same text as `source`, if too few of several servers agreed.
    pub(crate) no_quorum: Option<Arc<Shortfall>>,
}

impl Failure {
    /// Creates a failure without an answer from the server.
    pub(crate) fn io(
        kind: FailureKind,
        server: &Arc<str>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self::caused_by(kind, server, Arc::new(source))
    }

    /// Like `io`, for a cause that several failures share.
    pub(crate) fn caused_by(
        kind: FailureKind,
        server: &Arc<str>,
        source: Arc<dyn StdError + Send + Sync>,
    ) -> Self {
        Self {
            kind,
            server: server.clone(),
            code: String::new(),
            phase: Phase::Request,
            after_doubt: false,
            source,
            no_quorum: None,
        }
    }

    pub(crate) fn at(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    /// Returns the failure of a request that could not be sent in time.
    pub(crate) fn too_late(server: &Arc<str>, why: &'static str) -> Self {
        Self::io(FailureKind::Unreachable, server, io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// Returns the failure of a request for which no connection was free in time.
    pub(crate) fn none_free(server: &Arc<str>, why: impl Into<String>) -> Self {
        let error = io::Error::new(io::ErrorKind::TimedOut, why.into());
        Self::io(FailureKind::NoneFree, server, error).at(Phase::Pool)
    }

    /// Returns the failure of a request whose positive reply came too late.
    pub(crate) fn late() -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, "the reply came after the lease");
        Self::io(FailureKind::Timeout, &Arc::from("the server"), source)
    }

    /// Returns the failure of a call for several locks whose leases ended before it had the last
    /// one.
    pub(crate) fn too_short() -> Self {
        let why = "its lease was over before the last lock of the set was acquired";
        let source = io::Error::new(io::ErrorKind::TimedOut, why);
        Self::io(FailureKind::Timeout, &Arc::from("the server"), source)
    }

    /// Returns the failure of a request for a name that is of another kind, as a server would
    /// report it.
    pub(crate) fn wrong_type(found: &str) -> Self {
        let source = io::Error::other(format!("{FOUND}{found}"));
        Self::io(FailureKind::WrongType, &Arc::from("memory"), source)
    }

    /// Returns the failure of a request that was probably not sent, because of a panic.
    pub(crate) fn unsent() -> Self {
        let source = io::Error::other("a panic prevented the request");
        Self::io(FailureKind::Disconnected, &Arc::from("the server"), source)
    }

    /// Returns `true` if the request may have been executed, or may still be.
    pub(crate) fn is_ambiguous(&self) -> bool {
        use FailureKind::{Disconnected, Timeout, Unclear};
        matches!(self.kind, Disconnected | Timeout | Unclear)
    }

    /// Returns `true` if a node of a cluster has redirected the request, or could not execute it
    /// while the slot moves. The next attempt then goes to the right node.
    pub(crate) fn is_redirection(&self) -> bool {
        let is_of_cluster = matches!(&*self.code, "ASK" | "MOVED" | "TRYAGAIN");
        self.kind == FailureKind::Transient && is_of_cluster
    }

    /// Returns the failure of a request that changes nothing: its outcome is known, and any error
    /// reply is a refusal.
    pub(crate) fn of_question(self) -> Self {
        let kind = match self.kind {
            FailureKind::Unclear => FailureKind::Rejected,
            FailureKind::Disconnected | FailureKind::Timeout => FailureKind::Unreachable,
            other => other,
        };
        Self { kind, ..self }
    }

    /// Returns `true` if this failure says more than `next`, the failure of another server that
    /// could have answered: this server refuses, or it may be reachable later and the other one may
    /// not.
    pub(crate) fn outweighs(&self, next: &Self) -> bool {
        self.kind == FailureKind::Rejected || next.is_final() && !self.is_final()
    }

    fn is_final(&self) -> bool {
        matches!(self.kind, FailureKind::Foreign | FailureKind::Misfit)
    }

    /// Returns `true` if the request was executed and must be undone.
    pub(crate) fn is_shortfall(&self) -> bool {
        matches!(self.kind, FailureKind::NotReplicated { .. })
    }

    /// Returns `true` if the request may have changed something that must be undone.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.is_ambiguous() || self.is_shortfall()
    }

    /// Returns how many replicas and disks acknowledged an executed request, if they were too few.
    pub(crate) fn acked(&self) -> Option<u32> {
        if let FailureKind::NotReplicated { acked, .. } = self.kind { Some(acked) } else { None }
    }

    /// Returns the error for the caller of `attempt` on the lock `name`, which is empty if the
    /// attempt is not about a lock.
    pub(crate) fn into_error(self, attempt: &str, name: &str) -> Error {
        self.into_error_of("lock", attempt, name)
    }

    /// Like `into_error`, for something other than a lock, such as a semaphore.
    pub(crate) fn into_error_of(self, wanted: &str, attempt: &str, name: &str) -> Error {
        let may_have_executed = self.after_doubt || self.is_ambiguous();
        let Self { kind, server, code, phase, source, no_quorum, .. } = self;
        let server = server.to_string();
        let attempt =
            if name.is_empty() { attempt.into() } else { format!("{attempt} {wanted} {name:?}") };
        if let Some(no_quorum) = no_quorum {
            let Shortfall { ok, required, failures } = Arc::unwrap_or_clone(no_quorum);
            return Error::NoQuorum { attempt, ok, required, failures, may_have_executed };
        }
        let name = name.to_owned();
        match kind {
            FailureKind::NotReplicated { acked, required } => {
                Error::NotReplicated { name, server, acked, required }
            }
            FailureKind::Rejected => Error::Redis { attempt, server, code, source },
            FailureKind::WrongType => {
                let reply = source.to_string();
                let found = reply.strip_prefix(FOUND).unwrap_or("something else").into();
                Error::WrongType { name, server, found, wanted: wanted.into() }
            }
            _ => Error::Unavailable { attempt, server, phase, may_have_executed, source },
        }
    }
}
