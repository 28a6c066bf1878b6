//! Writing requests that no thread waits for.

use std::time::Instant;

use crate::failure::Failure;
use crate::net::owed::PostedRequest;
use crate::net::shared_connection::owe;
use crate::net::transport::Transport;
use crate::sync::Mutex;

/// Writes requests that no thread waits for, and remembers a server to which that has just failed:
/// threads that drop many guards at a server that is away wait only once.
#[derive(Debug, Default)]
pub(super) struct PostWriter {
    /// Why no connection could be opened, and until when none is opened again.
    failure: Mutex<Option<(Instant, Failure)>>,
}

impl PostWriter {
    /// Writes over an idle connection, opening it if need be. If that fails, so have the requests.
    pub(super) fn write(
        &self,
        connection: &mut impl Transport,
        posted: Vec<PostedRequest>,
        deadline: Instant,
    ) {
        if let Err(failure) = self.open(connection, deadline) {
            return posted.into_iter().for_each(|posted| posted.answer(Err(failure.clone())));
        }
        for posted in posted {
            owe(connection, posted, deadline);
        }
        // A failure to write fails what is owed.
        drop(connection.write(deadline, |_| {}));
        if connection.owed().is_full() {
            drop(connection.read_owed(deadline));
        }
    }

    fn open(&self, connection: &mut impl Transport, deadline: Instant) -> Result<(), Failure> {
        let begun = Instant::now();
        if connection.can_post(begun) {
            return Ok(());
        }
        if let Some((until, failure)) = &*self.failure.lock()
            && begun < *until
        {
            return Err(failure.clone());
        }
        connection.connect(deadline).inspect_err(|failure| {
            let now = Instant::now();
            *self.failure.lock() = Some((now + (now - begun), failure.clone()));
        })
    }
}
