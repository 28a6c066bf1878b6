//! The attempts of a call at a request: how often it is repeated, and the pauses in between.

use std::time::{Duration, Instant};

use crate::base::canceller::Canceller;
use crate::base::clock::{self, end_of};
use crate::base::failure::Failure;
use crate::error::{Error, Result};
use crate::local::names::SleepingCall;
use crate::local::parker::{Parker, Signal};
use crate::local::shared::Shared;
use crate::protocol::call::{CallTimes, Caller, Wait};
use crate::protocol::retry::RetryPolicy;
use crate::store::hold_id::HoldKind;

/// The attempts of one call. Each pause ends at once when the client is closed during the call, or
/// the call is cancelled.
pub(super) struct Attempts<'a> {
    shared: &'a Shared,
    policy: RetryPolicy,
    canceller: Option<&'a Canceller>,
    /// The caller of a set of locks, which waits in no queue while it pauses.
    caller: Option<&'a Caller>,
    /// The guards of a closed client go on, with calls that pause as before.
    was_closed: bool,
}

impl<'a> Attempts<'a> {
    /// Returns the attempts of a call that begins now, for requests with these times.
    pub(super) fn new(shared: &'a Shared, times: CallTimes, wait: Wait, seed: u64) -> Self {
        let was_closed = shared.names.check_open().is_err();
        let policy = RetryPolicy::new(wait, shared.config.retry_window, times, seed);
        Self { shared, policy, canceller: None, caller: None, was_closed }
    }

    /// Makes the attempts end if the client is closed, even if it was closed before.
    pub(super) fn of_open_client(self) -> Self {
        Self { was_closed: false, ..self }
    }

    /// Makes the attempts end when the call is cancelled.
    pub(super) fn cancelled_by(self, canceller: Option<&'a Canceller>) -> Self {
        Self { canceller, ..self }
    }

    /// Makes these the attempts of a call for several locks.
    pub(super) fn of_set(self, caller: &'a Caller) -> Self {
        Self { caller: Some(caller), canceller: caller.canceller.as_ref(), ..self }
    }

    /// Returns the deadline of a request that is sent now.
    pub(super) fn request_deadline(&self) -> Instant {
        self.policy.request_deadline(clock::now())
    }

    /// Records that a request was answered: the next failure is the first one.
    pub(super) fn record_reply(&mut self) {
        self.policy.record_reply();
    }

    /// Makes a request, and repeats it after failures.
    pub(super) fn repeat<T>(
        mut self,
        attempt: &str,
        name: &str,
        mut request: impl FnMut(Instant) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        loop {
            match request(self.request_deadline()) {
                Ok(reply) => {
                    self.shared.reporter.record_reply(name);
                    return Ok(reply);
                }
                Err(mut failure) => {
                    if !self.pause_after(&mut failure, name) {
                        return Err(self.to_error(failure, attempt, name));
                    }
                }
            }
        }
    }

    /// Pauses after a request about a name has failed. Returns `false` if there is no other
    /// attempt.
    pub(super) fn pause_after(&mut self, failure: &mut Failure, name: &str) -> bool {
        let pause = self.next_pause(failure);
        self.shared.reporter.outages.record_failed_call(name, failure, pause);
        self.pause(pause, name)
    }

    /// Returns the pause after a failure; `None` if trying again is pointless.
    pub(super) fn next_pause(&mut self, failure: &mut Failure) -> Option<Duration> {
        self.policy.pause_after(failure, clock::now())
    }

    /// Pauses, if there is a pause. Returns `false` if there is no other attempt after it.
    pub(super) fn pause(&self, pause: Option<Duration>, name: &str) -> bool {
        pause.is_some_and(|pause| self.sleep(pause, name).is_ok())
    }

    /// Sleeps for this time, unless the call ends before.
    ///
    /// # Errors
    ///
    /// The same as `check`.
    pub(super) fn sleep(&self, time: Duration, name: &str) -> Result<()> {
        let parker = Parker::of_thread();
        let end = end_of(time);
        let call = self.caller.map(|caller| SleepingCall {
            kind: HoldKind::Lock,
            name: name.into(),
            caller: caller.clone(),
        });
        let names = &self.shared.names;
        let _sleeper = if self.was_closed { None } else { Some(names.add_sleeper(&parker, call)) };
        let _watch = self.canceller.map(|canceller| parker.watch(canceller, name));
        // Checked only now, because an earlier `close` or cancellation found no thread to wake.
        self.check(name)?;
        match parker.park(Some(end)) {
            Some(Signal::Ended(error)) => Err(error),
            _ => self.check(name),
        }
    }

    /// Returns `Closed` if the client was closed during the call, and `Cancelled` if the call was
    /// cancelled.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        if !self.was_closed {
            self.shared.names.check_open()?;
        }
        self.canceller.map_or(Ok(()), |canceller| canceller.check(name))
    }

    /// Returns the error of a call that makes no other attempt after this failure.
    pub(super) fn to_error(&self, failure: Failure, attempt: &str, name: &str) -> Error {
        self.check(name).err().unwrap_or_else(|| failure.into_error(attempt, name))
    }
}
