//! How a hold ends: what releases and handoffs have in common.
//!
//! Decides how often a release is sent, and what is cleaned up afterwards. Knows nothing of wait
//! queues: `release.rs` and `handoff.rs` decide which thread gets the lock next.

use std::thread;
use std::time::{Duration, Instant};

use crate::local::end_notifier::HoldFailure;
use crate::local::lease::Lease;
use crate::local::retry::RetryPolicy;
use crate::local::shared::Shared;
use crate::store::hold::HoldId;
use crate::store::request::{HoldReply, Release};

/// Releases a hold in the store. With `in_doubt` an earlier request may have ended it: then a reply
/// that it is gone is no loss, and neither is one to a repetition, or if another thread releases it
/// as well.
pub(super) fn release_in_store(
    shared: &Shared,
    lease: &Lease,
    retry: &mut RetryPolicy,
    mut in_doubt: bool,
) -> Result<(), HoldFailure> {
    loop {
        let reply = shared.store.release(lease.to_release(retry.request_deadline()));
        if reply.is_ok() {
            shared.record_reply(lease.name());
        }
        match reply {
            Ok(HoldReply::Gone) if !in_doubt && !lease.is_released_again() => {
                return Err(HoldFailure::Lost);
            }
            Ok(HoldReply::Gone | HoldReply::Held) => return Ok(()),
            Err(mut failure) => {
                in_doubt |= failure.is_ambiguous();
                match shared.pause_after(retry, lease.name(), &mut failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(HoldFailure::Failed(failure)),
                }
            }
        }
    }
}

/// Ends a new hold that exists but fell short of its durability, in the background if need be.
pub(super) fn undo(shared: &Shared, hold: &HoldId, lease: Duration, deadline: Instant) {
    if shared.store.release(Release::at_once(hold, deadline)).is_err() {
        shared.clean_up(hold, lease, true);
    }
}
