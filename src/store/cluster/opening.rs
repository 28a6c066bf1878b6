//! Connecting on a thread of its own, so that a node that does not answer holds up nobody else.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::failure::{Failure, FailureKind};

/// Something that is being opened. The thread ends with that, whether anybody waits or not.
#[derive(Debug)]
pub(super) struct Opening<T> {
    outcome: Receiver<Result<T, Failure>>,
    server: Arc<str>,
}

impl<T: Send + 'static> Opening<T> {
    pub(super) fn begin(
        server: &Arc<str>,
        open: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Self {
        let (tell, outcome) = bounded(1);
        let connect = move || tell.send(open()).unwrap_or_default();
        // Without a thread the channel is disconnected at once, which is a failure too.
        thread::Builder::new()
            .name("leasehold-connect".into())
            .spawn(connect)
            .map(drop)
            .unwrap_or_default();
        Self { outcome, server: server.clone() }
    }

    /// Waits for the outcome until `until`.
    pub(super) fn wait(&self, deadline: Instant) -> Option<Result<T, Failure>> {
        match self.outcome.recv_deadline(deadline) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let error = io::Error::other("no thread could connect");
                Some(Err(Failure::io(FailureKind::Unreachable, &self.server, error)))
            }
        }
    }
}
