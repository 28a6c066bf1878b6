//! An attempt beside the head of a wait queue, for a side of a read-write lock that others may have
//! too, or for one of several permits.
//!
//! Decides what the attempt means for the threads that wait: with each that succeeds, as many more
//! may try as there is room for.

use std::sync::Arc;

use crate::error::Result;
use crate::local::arrival::{NewHold, Tried};
use crate::local::attempt::Attempt;
use crate::local::hold::Hold;
use crate::local::wait_queues::WaitQueues;
use crate::store::hold_id::HoldKind;

/// Makes one attempt. `None` if the thread has to wait in the queue again, for another owner or for
/// the server; it counts as one that tries until it has joined that.
pub(super) fn acquire(
    mut attempt: Attempt<'_>,
    name: &str,
    kind: HoldKind,
) -> Result<Option<Arc<Hold>>> {
    let queues = attempt.queues();
    let mut beside = Beside { queues, name, kind, room: 0, rejoins: false };
    queues.check_open()?;
    let outcome = match attempt.run(None) {
        Ok(Tried::Acquired(NewHold { hold, room })) => {
            beside.room = room;
            return Ok(Some(hold));
        }
        Ok(Tried::Held { .. }) => Ok(None),
        Err(mut failure) => match attempt.pause_after(&mut failure) {
            Some(_) => Ok(None),
            None => Err(failure.into_error("acquire", name)),
        },
    };
    attempt.clean_up();
    beside.rejoins = outcome.is_ok();
    outcome
}

/// An attempt under way. It ends even if the thread panics.
struct Beside<'a> {
    queues: &'a WaitQueues,
    name: &'a str,
    kind: HoldKind,
    /// For how many more there is room, as far as the attempt has shown.
    room: u32,
    /// Whether the thread joins the queue again, and ends it so.
    rejoins: bool,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.rejoins {
            self.queues.end_beside(self.name, self.kind, self.room);
        }
    }
}
