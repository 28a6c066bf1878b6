//! The wait of a thread behind others of its client, and its turn at the head of the queue.
//!
//! Decides what each signal means for a thread that waits, and how long it waits for one; and what
//! becomes of the queue when the head has acquired the lock or gives up. Which thread is the head,
//! and what is known when a time is over, is decided in `wait_queues.rs`.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::local::call::Wait;
use crate::local::retry::is_outage;
use crate::local::try_loop::Stopped;
use crate::local::wait_queue::{Arrival, Turn};
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::{Signal, Waiter};
use crate::store::hold_id::{HoldId, HoldKind};

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

/// The head of a wait queue, which is given up even if the thread panics.
pub(super) struct QueueHead<'a> {
    queues: &'a WaitQueues,
    hold: &'a HoldId,
    /// Whether the call waits without limit.
    endless: bool,
    kept: bool,
}

impl<'a> QueueHead<'a> {
    pub(super) fn new(queues: &'a WaitQueues, hold: &'a HoldId, endless: bool) -> Self {
        Self { queues, hold, endless, kept: false }
    }

    /// Stays the head, with the lock.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    /// Makes the next thread the head, which may get the same.
    pub(super) fn leave(mut self) {
        self.kept = true;
        self.queues.give_up_head(self.hold, None);
    }

    /// Returns what the thread wants that is at the head now.
    pub(super) fn give_up(mut self, stopped: &Stopped) -> Option<HoldKind> {
        self.kept = true;
        let outage = match stopped {
            Stopped::Failed(failure) if self.endless && is_outage(failure) => Some(failure),
            Stopped::Ended(_) | Stopped::Failed(_) | Stopped::TimedOut => None,
        };
        self.queues.give_up_head(self.hold, outage)
    }
}

impl Drop for QueueHead<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.queues.give_up_head(self.hold, None);
        }
    }
}
