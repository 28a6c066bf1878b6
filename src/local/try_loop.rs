//! Trying for a lock until it is acquired, or the call ends without it.
//!
//! Decides when to try again: after a pause that a wake-up ends, and at once after failures that
//! ask for it. What an attempt says and shows is decided in `attempt.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::error::{Error, Result};
use crate::local::attempt::{Attempt, Tried};
use crate::local::hold::Hold;
use crate::local::retry::Backoff;

/// How long a call that does not wait gives another client to release a lock that is only kept.
const RECALL_TIME: Duration = Duration::from_millis(50);

/// Why a call ends without the lock.
pub(super) enum Stopped {
    /// The client is closed, or the wait is cancelled.
    Ended(Error),
    Failed(Failure),
    TimedOut,
}

impl Stopped {
    pub(super) fn into_result(self, name: &str) -> Result<Option<Arc<Hold>>> {
        match self {
            Self::Ended(error) => Err(error),
            Self::Failed(failure) => Err(failure.into_error("acquire", name)),
            Self::TimedOut => Ok(None),
        }
    }
}

/// Tries, waits and tries again.
pub(super) fn try_until_acquired(attempt: &mut Attempt<'_>) -> Result<Arc<Hold>, Stopped> {
    let (shared, waiter) = (attempt.shared, attempt.waiter);
    let queues = &shared.wait_queues;
    let mut backoff = Backoff::new(shared.config.backoff);
    let mut started = None;
    // Until when the lock can be free only because it was released, by the last reply.
    let mut held_until: Option<Moment> = None;
    // Whether the last pause has ended without a wake-up.
    let mut unsignalled = false;
    // A thread that becomes the head after `close` has sent its signals does not get one.
    queues.check_open().map_err(Stopped::Ended)?;
    loop {
        let pause = match attempt.run(started) {
            Ok(Tried::Acquired(hold)) => {
                if unsignalled && held_until.is_some_and(|end| Moment::now() < end) {
                    shared.counters.missed_wakeups.add(1);
                }
                return Ok(hold);
            }
            Ok(Tried::Held { remaining, asked, recalled }) => {
                queues.set_answer(waiter, Ok(()));
                let pause = attempt.cut_pause(backoff.next().unwrap_or_default(), remaining);
                held_until = remaining.map(|remaining| asked.after(remaining));
                match attempt.wait.cut(pause) {
                    Some(pause) => pause,
                    // Once it waits for a lock that is perhaps only kept.
                    None if recalled => RECALL_TIME,
                    None => return Err(Stopped::TimedOut),
                }
            }
            Err(mut failure) => {
                held_until = None;
                let pause = attempt.pause_after(&mut failure);
                // A connection that was found broken is no outage.
                if pause != Some(Duration::ZERO) {
                    queues.set_answer(waiter, Err(&failure));
                }
                pause.ok_or(Stopped::Failed(failure))?
            }
        };
        let _waiting = shared.counters.begin_wait();
        queues.check_open().map_err(Stopped::Ended)?;
        attempt.check_cancelled().map_err(Stopped::Ended)?;
        let asleep = Instant::now();
        started = waiter.sleep(pause, Some(attempt.next_request())).map_err(Stopped::Ended)?;
        unsignalled = asleep.elapsed() >= pause;
        if !unsignalled {
            // The lock was released a moment ago, so that another attempt may soon succeed too.
            backoff = Backoff::new(shared.config.backoff);
        }
        queues.set_pending(waiter);
    }
}
