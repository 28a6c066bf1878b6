//! The wait of a thread behind others of its client, until it is its turn.
//!
//! Decides what each signal means for such a thread, and how long it waits for one. Which thread is
//! the head, and what is known when a time is over, is decided in `wait_queues.rs`.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::local::arrival::Arrival;
use crate::local::call::Wait;
use crate::local::wait_queue::Turn;
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::{Signal, Waiter};

/// Blocks until it is this thread's turn, or its time is over.
///
/// # Errors
///
/// `Closed` if the client is closed, `Cancelled` if the wait is.
pub(crate) fn wait(queues: &WaitQueues, waiter: &Waiter, wait: Wait) -> Result<Turn> {
    let now = Instant::now();
    let (joined, mut end) =
        if wait == Wait::No { (None, Some(now)) } else { (Some(now), wait.deadline()) };
    loop {
        match waiter.receive(end) {
            Some(Signal::Failed(failure)) => return Ok(Turn::Failed(failure)),
            Some(Signal::HandedOff(hold)) => return Ok(Turn::HandedOff(hold)),
            Some(Signal::Head) => return Ok(Turn::Head(Arrival::Next)),
            // Meant for the head, which this thread is not.
            Some(Signal::AcquireSent(_) | Signal::MayBeFree) => {}
            Some(Signal::Cancelled) => {
                if queues.remove(waiter) {
                    return Err(Error::Cancelled { name: waiter.hold.name.to_string() });
                }
            }
            Some(Signal::Closed) => {
                if queues.remove(waiter) {
                    return Err(Error::Closed);
                }
            }
            None => match queues.time_out(waiter, joined) {
                Some(turn) => return Ok(turn),
                // It has been signalled something.
                None => end = None,
            },
        }
    }
}
