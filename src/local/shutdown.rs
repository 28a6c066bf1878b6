//! The calls of `shutdown` as the renewer sees them: how long they wait, and what they return.
//!
//! Decides when a hold whose release is not confirmed counts as failed. Knows nothing of holds.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;

use crate::base::failure::{Failure, FailureKind};

/// A call that waits for the answer.
#[derive(Debug)]
pub(super) struct ShutdownCall {
    pub(super) deadline: Instant,
    pub(super) answer: Sender<Result<(), Failure>>,
}

/// The calls of one client.
#[derive(Debug, Default)]
pub(super) struct ShutdownCalls {
    waiting: Vec<ShutdownCall>,
    /// The last deadline, until it has come or the shutdown is complete.
    give_up_at: Option<Instant>,
    last_failure: Option<Failure>,
    /// Whether a hold has ended with its lease, before its release was confirmed.
    outlived: bool,
}

impl ShutdownCalls {
    /// Adds a call that may take until then.
    pub(super) fn extend(&mut self, deadline: Instant) {
        self.give_up_at = self.give_up_at.max(Some(deadline));
    }

    /// Adds a call that waits.
    pub(super) fn add(&mut self, call: ShutdownCall) {
        self.waiting.push(call);
    }

    /// Returns `true` if it matters whether the shutdown is complete.
    pub(super) fn is_watched(&self) -> bool {
        self.give_up_at.is_some() || !self.waiting.is_empty()
    }

    pub(super) fn record_failure(&mut self, failure: Failure) {
        self.last_failure = Some(failure);
    }

    /// Records that a hold has ended with its lease, before its release was confirmed.
    pub(super) fn record_outlived(&mut self) {
        self.outlived = true;
    }

    /// Returns the failure of all releases that are not confirmed, once the time for them is over.
    pub(super) fn give_up(&mut self, now: Instant) -> Option<Failure> {
        self.give_up_at.take_if(|deadline| *deadline <= now).map(|_| self.failure())
    }

    /// Answers the calls if the shutdown is complete, or else those whose time is over.
    pub(super) fn answer(&mut self, is_complete: bool, now: Instant) {
        let failure = (!is_complete || self.outlived).then(|| self.failure());
        for call in self.waiting.extract_if(.., |call| is_complete || call.deadline <= now) {
            let answer = failure.clone().map_or(Ok(()), Err);
            // The call may have given up.
            call.answer.try_send(answer).unwrap_or_default();
            self.outlived = false;
        }
        if is_complete {
            self.give_up_at = None;
        }
    }

    fn failure(&self) -> Failure {
        self.last_failure.clone().unwrap_or_else(unconfirmed)
    }
}

/// The failure of a shutdown whose time was over before there was any other.
pub(super) fn unconfirmed() -> Failure {
    let why = "a release, or a call under way, had not ended when the time was over";
    let error = io::Error::new(io::ErrorKind::TimedOut, why);
    Failure::io(FailureKind::Timeout, &Arc::from("the server"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, TryRecvError, bounded};
    use std::time::Duration;

    const TIME: Duration = Duration::from_secs(10);

    fn call(calls: &mut ShutdownCalls, deadline: Instant) -> Receiver<Result<(), Failure>> {
        let (answer, answered) = bounded(1);
        calls.extend(deadline);
        calls.add(ShutdownCall { deadline, answer });
        answered
    }

    #[test]
    fn each_call_is_answered_by_its_deadline() {
        let (mut calls, now) = (ShutdownCalls::default(), Instant::now());
        let (short, long) = (call(&mut calls, now), call(&mut calls, now + TIME));
        assert!(calls.give_up(now).is_none(), "there is time for the other");
        calls.answer(false, now);
        assert!(matches!(short.try_recv(), Ok(Err(_))));
        assert!(matches!(long.try_recv(), Err(TryRecvError::Empty)));
        calls.answer(true, now);
        assert!(matches!(long.try_recv(), Ok(Ok(()))));
        assert!(!calls.is_watched());
    }

    #[test]
    fn holds_are_given_up_once_at_the_last_deadline() {
        let (mut calls, now) = (ShutdownCalls::default(), Instant::now());
        calls.extend(now + TIME);
        calls.extend(now);
        assert!(calls.give_up(now).is_none());
        assert!(calls.give_up(now + TIME).is_some());
        assert!(calls.give_up(now + TIME).is_none() && !calls.is_watched());
    }

    #[test]
    fn a_hold_that_ended_with_its_lease_is_not_taken_for_released() {
        let (mut calls, now) = (ShutdownCalls::default(), Instant::now());
        let first = call(&mut calls, now + TIME);
        calls.record_outlived();
        calls.answer(true, now);
        assert!(matches!(first.try_recv(), Ok(Err(_))));
        let second = call(&mut calls, now + TIME);
        calls.answer(true, now);
        assert!(matches!(second.try_recv(), Ok(Ok(()))));
    }
}
