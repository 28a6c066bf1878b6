//! The watch on the wishes of other clients, for a thread that can make way.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::base::clock::end_of;
use crate::local::hold::Hold;
use crate::local::hold_requests;
use crate::local::shared::Shared;

/// Lets any thread see whether another client waits for a lock, or wait for that. Created by
/// [`Guard::wanted`](crate::Guard::wanted).
///
/// All clones, and those of other guards of the same hold, report the same, and once it is `true`
/// it stays so. None of them keeps the lock or the client alive.
///
/// ```
/// let client = leasehold::Client::in_memory();
/// let guard = client.lock("reindex")?;
/// let wanted = guard.wanted();
/// for part in 0..100 {
///     // ... work on the part ...
///     if wanted.is_wanted() {
///         break; // the rest another time
///     }
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Wanted {
    /// None in a forked child, where nothing is held.
    hold: Option<Arc<Hold>>,
    receiver: Receiver<Infallible>,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted").field("is_wanted", &self.is_wanted()).finish_non_exhaustive()
    }
}

/// Returns the watch on the wishes for the lock of a hold.
pub(crate) fn watch(shared: &Shared, hold: &Arc<Hold>) -> Wanted {
    if shared.identity.check_process().is_err() {
        return Wanted { hold: None, receiver: bounded(0).1 };
    }
    hold_requests::watch(shared, hold);
    Wanted { hold: Some(hold.clone()), receiver: hold.wanted() }
}

impl Wanted {
    /// Returns `true` if another client waits for the lock, or did while this hold lasted. Does not
    /// block and does not ask the server.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.is_wanted())
    }

    /// Blocks the current thread until another client waits for the lock, the hold is over, or
    /// `time` has passed. Returns `true` in the first case.
    #[must_use]
    pub fn wait_timeout(&self, time: Duration) -> bool {
        match self.receiver.recv_deadline(end_of(time)) {
            Ok(never) => match never {},
            Err(_) => self.is_wanted(),
        }
    }

    /// Returns a receiver that gets no message and is disconnected when another client waits for
    /// the lock or the hold is over, for `select!`. After that, [`is_wanted`](Wanted::is_wanted)
    /// says which.
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Infallible> {
        &self.receiver
    }
}
