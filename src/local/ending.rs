//! How a hold ends: what releases and handoffs have in common.
//!
//! Decides how often a release is sent, what is cleaned up afterwards, and what is reported. Knows
//! nothing of wait queues: `release.rs` and `handoff.rs` decide which thread gets the lock next.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::event::Event;
use crate::failure::Failure;
use crate::local::lease::Lease;
use crate::local::retry::RetryPolicy;
use crate::local::shared::Shared;
use crate::store::hold::HoldId;
use crate::store::request::HoldReply;

/// Why a request about an existing hold has not had its effect.
#[derive(Debug)]
pub(super) enum HoldFailure {
    Failed(Failure),
    /// The hold is lost.
    Lost,
}

impl HoldFailure {
    /// Returns the error for the caller of `attempt`.
    pub(super) fn into_error(self, attempt: &str, name: &str) -> Error {
        match self {
            Self::Failed(failure) => failure.into_error(attempt, name),
            Self::Lost => Error::lost(name),
        }
    }
}

/// Releases a hold in the store. With `in_doubt` an earlier request may have ended it: then a reply
/// that it is gone is no loss, and neither is one to a repetition.
pub(super) fn release_in_store(
    shared: &Shared,
    lease: &Lease,
    retry: &mut RetryPolicy,
    mut in_doubt: bool,
) -> Result<(), HoldFailure> {
    loop {
        match shared.store.release(&lease.id, retry.request_deadline()) {
            Ok(HoldReply::Gone) if !in_doubt => return Err(HoldFailure::Lost),
            Ok(HoldReply::Gone | HoldReply::Held) => return Ok(()),
            Err(mut failure) => {
                in_doubt |= failure.is_ambiguous();
                match retry.pause_after(&mut failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(HoldFailure::Failed(failure)),
                }
            }
        }
    }
}

/// Ends a new hold that exists but fell short of its durability, in the background if need be.
pub(super) fn undo(shared: &Shared, hold: &HoldId, lease: Duration, deadline: Instant) {
    if shared.store.release(hold, deadline).is_err() {
        shared.clean_up(hold, lease, true);
    }
}

/// Cleans up and reports when it is known how a hold has ended. Does nothing if that is known
/// already: of two threads that learn it, the first reports it.
pub(super) fn report_end(shared: &Shared, lease: &Lease, outcome: &Result<(), HoldFailure>) {
    let is_first = match outcome {
        Err(HoldFailure::Lost) => lease.report_loss(),
        Ok(()) | Err(HoldFailure::Failed(_)) => lease.report_end(),
    };
    if !is_first {
        return;
    }
    if lease.is_in_doubt() || matches!(outcome, Err(HoldFailure::Failed(_))) {
        shared.clean_up(&lease.id, lease.duration(), !lease.is_in_doubt());
    }
    match outcome {
        Ok(()) => {
            let (name, held) = (lease.name(), lease.age());
            let fence = lease.fence;
            shared.events.emit(|| Event::Released { name: name.to_string(), fence, held });
            shared.events.debug(|| format!("released lock {name:?} after {held:?}"));
        }
        Err(HoldFailure::Failed(failure)) => {
            report_failed_release(shared, lease, failure);
        }
        Err(HoldFailure::Lost) => {
            shared.losses.report(lease, "the server did not know it any more");
        }
    }
}

/// Reports that a level was not released.
pub(super) fn report_failed_release(shared: &Shared, lease: &Lease, failure: &Failure) {
    let (name, fence, source) = (lease.name(), lease.fence, &failure.source);
    shared.events.emit(|| Event::ReleaseFailed {
        name: name.to_string(),
        fence,
        reason: source.to_string(),
    });
    shared.events.warn(|| format!("releasing lock {name:?} failed: {source}"));
}
