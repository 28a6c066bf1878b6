//! Why a request failed, and which error its caller gets.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use crate::error::{Error, Shortfall};

/// Why a request brought no usable answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It was executed, but too few replicas or disks acknowledged it, so its effect must be
    /// undone.
    NotReplicated { acked: u32, required: u32 },
    /// The server cannot execute it now, and says so: nothing was done.
    Transient,
    /// The server will not execute it at all: nothing was done.
    Rejected,
    /// The connection broke after the request was sent: it may have been executed.
    Disconnected,
    /// No reply came in time: the request may have been executed, or may still be.
    Timeout,
    /// The request was not sent.
    Unreachable,
    /// The key holds something that is not a lock: nothing was done.
    WrongType,
}

/// A failed request, and the server that it was meant for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) server: Arc<str>,
    pub(crate) code: String,
    pub(crate) source: Arc<dyn StdError + Send + Sync>,
}

impl Failure {
    /// A failure without an answer from the server.
    pub(crate) fn io(
        kind: FailureKind,
        server: &Arc<str>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self { kind, server: server.clone(), code: String::new(), source: Arc::new(source) }
    }

    /// The failure of a request whose time was over before it could be sent.
    pub(crate) fn too_late(server: &Arc<str>, why: &'static str) -> Self {
        Self::io(FailureKind::Unreachable, server, io::Error::new(io::ErrorKind::TimedOut, why))
    }

    /// The failure of a request whose positive reply came too late to be of use.
    pub(crate) fn late() -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, "the reply came after the lease");
        Self::io(FailureKind::Timeout, &Arc::from("the server"), source)
    }

    /// The failure of a request for a name that has something else.
    pub(crate) fn wrong_type() -> Self {
        let source = io::Error::other("the name is used for another kind of lock");
        Self::io(FailureKind::WrongType, &Arc::from("memory"), source)
    }

    /// Returns `true` if the request may have been executed, or may still be.
    pub(crate) fn is_ambiguous(&self) -> bool {
        matches!(self.kind, FailureKind::Disconnected | FailureKind::Timeout)
    }

    /// Returns `true` if the request was executed and must be undone.
    pub(crate) fn is_shortfall(&self) -> bool {
        matches!(self.kind, FailureKind::NotReplicated { .. })
    }

    /// Returns how many acknowledged the request, if it was executed and they were too few.
    pub(crate) fn acked(&self) -> Option<u32> {
        if let FailureKind::NotReplicated { acked, .. } = self.kind { Some(acked) } else { None }
    }

    /// Returns the error for the caller of `attempt` on the lock `name`, if it is about a lock.
    pub(crate) fn into_error(self, attempt: &str, name: &str) -> Error {
        let (server, source) = (self.server.to_string(), self.source);
        let attempt =
            if name.is_empty() { attempt.into() } else { format!("{attempt} lock {name:?}") };
        if let Some(Shortfall { ok, required, failures }) = source.downcast_ref::<Shortfall>() {
            let (ok, required, failures) = (*ok, *required, failures.clone());
            return Error::NoQuorum { attempt, ok, required, failures };
        }
        match self.kind {
            FailureKind::NotReplicated { acked, required } => {
                Error::NotReplicated { acked, required }
            }
            FailureKind::Rejected => Error::Redis { attempt, server, code: self.code, source },
            FailureKind::WrongType => Error::WrongType { name: name.into() },
            _ => Error::Unavailable { attempt, server, source },
        }
    }
}
