//! The wait of a thread behind others of its client, until it is its turn.
//!
//! Decides what each signal means for such a thread, and how long it waits for one. Which thread is
//! the head, and what is known when a time is over, is decided in `wait_queues.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::wait_queue::TimedOut;
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::{Signal, Waiter};

/// How the wait behind other threads has ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// With one attempt outside the queue: there is room for this thread as well as for the head.
    Beside,
    /// The server cannot be reached, as the thread in front has found out.
    Failed(Failure),
    /// With the lock.
    HandedOff(Arc<Lease>),
    /// At the head, to acquire the lock.
    Head,
    /// The time was over, and nothing is known against one attempt outside the queue: the hold of
    /// the head ends, or is none that excludes others.
    Outside,
    /// The time was over, and another owner holds the lock.
    TimedOut,
}

/// How long a thread waits behind others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    /// When its time is over.
    pub(crate) deadline: Instant,
    /// How long it may take then to learn whether the lock is held or cannot be asked for.
    pub(crate) slack: Duration,
}

/// Blocks until it is this thread's turn, or its time is over.
///
/// # Errors
///
/// `Closed` if the client is closed, `Cancelled` if the wait is.
pub(crate) fn wait(queues: &WaitQueues, waiter: &Waiter, limit: Option<TurnLimit>) -> Result<Turn> {
    let joined = Instant::now();
    let mut end = limit.map(|limit| limit.deadline);
    let mut slack = limit.map(|limit| limit.slack);
    loop {
        match waiter.signals.receive(end) {
            Some(Signal::Beside) => return Ok(Turn::Beside),
            Some(Signal::Contended) => return Ok(Turn::TimedOut),
            Some(Signal::Failed(failure)) => return Ok(Turn::Failed(failure)),
            Some(Signal::Outside) => return Ok(Turn::Outside),
            Some(Signal::HandedOff(lease)) => return Ok(Turn::HandedOff(lease)),
            Some(Signal::Head) => return Ok(Turn::Head),
            // Meant for the head, which this thread is not.
            Some(Signal::AcquireSent(_) | Signal::MayBeFree) => {}
            Some(Signal::Cancelled) => {
                if queues.remove(waiter) {
                    return Err(Error::Cancelled { name: waiter.name.to_string() });
                }
            }
            Some(Signal::Closed) => {
                if queues.remove(waiter) {
                    return Err(Error::Closed);
                }
            }
            None => match slack.take() {
                Some(slack) => match queues.time_out(waiter, joined) {
                    Some(TimedOut::Contended) => return Ok(Turn::TimedOut),
                    Some(TimedOut::Failed(failure)) => return Ok(Turn::Failed(failure)),
                    Some(TimedOut::HoldEnds) => return Ok(Turn::Outside),
                    Some(TimedOut::Overdue(_)) | None => {
                        end = end.and_then(|end| end.checked_add(slack));
                    }
                },
                None if queues.remove(waiter) => return Ok(Turn::Failed(unanswered())),
                // It has been signalled something, or will be.
                None => end = None,
            },
        }
    }
}

/// The failure of a call whose time was over before the thread in front of it had an answer.
pub(super) fn unanswered() -> Failure {
    Failure::too_late(&Arc::from("the server"), "no reply has come to the thread in front")
}
