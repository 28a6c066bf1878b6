//! Opening a connection on a thread of its own.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Select, TryRecvError, bounded};

use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::net::connection::Connection;

/// A connection that is being opened. The thread ends when it has connected or failed to, even if
/// this was dropped before.
#[derive(Debug)]
pub(crate) struct Opening {
    outcome: Receiver<Result<Connection, Failure>>,
    server: Arc<str>,
}

impl Opening {
    /// Starts the thread.
    pub(crate) fn begin(
        server: Arc<str>,
        open: impl FnOnce() -> Result<Connection, Failure> + Send + 'static,
    ) -> Self {
        let (sender, outcome) = bounded(1);
        let connect = move || sender.send(open()).unwrap_or_default();
        // Without a thread the channel is disconnected at once, which is a failure too.
        thread::Builder::new()
            .name("leasehold-connect".into())
            .spawn(connect)
            .map(drop)
            .unwrap_or_default();
        Self { outcome, server }
    }

    /// Returns the outcome, once; `None` while there is none.
    pub(crate) fn take_outcome(&self) -> Option<Result<Connection, Failure>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let why = format!("no thread could connect to {}", self.server);
                let (system, error) = (Arc::from("the operating system"), io::Error::other(why));
                let failure = Failure::io(FailureKind::Unreachable, &system, error);
                Some(Err(failure.at(Phase::System)))
            }
        }
    }

    /// Blocks until one of `openings` has an outcome or `deadline` has come. Returns `false` if
    /// none has.
    pub(crate) fn wait_for_any<'a>(
        openings: impl IntoIterator<Item = &'a Self>,
        deadline: Instant,
    ) -> bool {
        let mut select = Select::new();
        for opening in openings {
            select.recv(&opening.outcome);
        }
        select.ready_deadline(deadline).is_ok()
    }
}
