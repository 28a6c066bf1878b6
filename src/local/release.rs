//! Releasing a lock: one level of it, or with the last level the hold.
//!
//! Decides whether the lock is handed off to a waiter, its release is posted, or it is released in
//! the store. How a hold ends there is decided in `ending.rs`.

use std::sync::Arc;

use crate::clock::end_of;
use crate::config::Mechanism;
use crate::error::Result;
use crate::local::call::CallTimes;
use crate::local::ending::{self, HoldFailure};
use crate::local::lease::Lease;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::Shared;
use crate::local::{handoff, reentrancy};
use crate::store::request::{HoldReply, PostedRelease};

/// Releases a level of a hold, and waits until it is known how that went. The hold ends with the
/// last level.
pub(crate) fn unlock(shared: &Arc<Shared>, lease: &Arc<Lease>) -> Result<()> {
    let times = CallTimes::new(&shared.config, lease.duration());
    let retry = RetryPolicy::new(RetryLimit::Brief, &shared.config, times);
    unlock_level(shared, lease, retry, true)
}

/// As `unlock`, within one `io_timeout`. If a waiter gets the lock, or the release can be posted,
/// another thread waits for the reply.
pub(crate) fn unlock_on_drop(shared: &Arc<Shared>, lease: &Arc<Lease>) -> Result<()> {
    let times = CallTimes::new(&shared.config, lease.duration());
    let limit = RetryLimit::End(end_of(times.io_timeout));
    let retry = RetryPolicy::new(limit, &shared.config, times);
    unlock_level(shared, lease, retry, false)
}

fn unlock_level(
    shared: &Arc<Shared>,
    lease: &Arc<Lease>,
    retry: RetryPolicy,
    waits: bool,
) -> Result<()> {
    shared.identity.check_process()?;
    let depth = lease.depth().saturating_sub(1);
    lease.set_depth(depth);
    let outcome = if depth > 0 {
        let outcome = reentrancy::set_depth(shared, lease, depth, waits, retry);
        if let Err(HoldFailure::Failed(failure)) = &outcome {
            ending::report_failed_release(shared, lease, failure);
        }
        outcome
    } else {
        release(shared, lease, retry, waits)
    };
    outcome.map_err(|failure| failure.into_error("release", lease.name()))
}

/// Ends a hold.
fn release(
    shared: &Arc<Shared>,
    lease: &Arc<Lease>,
    mut retry: RetryPolicy,
    waits: bool,
) -> Result<(), HoldFailure> {
    shared.held_locks.remove(lease);
    shared.counters.end_hold();
    // From here on it is not renewed. What was lost is not released: it does not exist any more, or
    // is being cleaned up.
    if !shared.is_valid(lease) || !lease.end() {
        shared.wait_queues.end_hold(lease);
        return Err(HoldFailure::Lost);
    }
    let hands_off = shared.config.uses(Mechanism::Handoff);
    let outcome =
        if hands_off && let Some((waiter, handoffs)) = shared.wait_queues.start_handoff(lease) {
            let yields = handoff::must_yield(shared, handoffs);
            let pending = handoff::start(shared, lease, &waiter.caller, yields, &retry);
            if !waits {
                waiter.forward_handoff(pending);
                return Ok(());
            }
            handoff::finish(shared, pending, &waiter, &mut retry)
        } else if !waits && shared.config.pipelined_release && post(shared, lease, &retry) {
            return Ok(());
        } else {
            let outcome = ending::release_in_store(shared, lease, &mut retry, false);
            // Before the next holder reports its own hold.
            ending::report_end(shared, lease, &outcome);
            shared.wait_queues.end_hold(lease);
            shared.wake_member(lease);
            return outcome;
        };
    ending::report_end(shared, lease, &outcome);
    outcome
}

/// Leaves a release to a thread that is about to send other requests. Returns `false` if there is
/// none.
fn post(shared: &Arc<Shared>, lease: &Arc<Lease>, retry: &RetryPolicy) -> bool {
    let (then_shared, then_lease) = (shared.clone(), lease.clone());
    let on_reply = Box::new(move |reply| {
        let outcome = match reply {
            Ok(HoldReply::Held) => Ok(()),
            Ok(HoldReply::Gone) => Err(HoldFailure::Lost),
            Err(failure) => Err(HoldFailure::Failed(failure)),
        };
        ending::report_end(&then_shared, &then_lease, &outcome);
        then_shared.wait_queues.end_hold(&then_lease);
        then_shared.wake_member(&then_lease);
    });
    let deadline = retry.request_deadline();
    let recall = shared.store.post_release(PostedRelease { hold: &lease.id, deadline, on_reply });
    recall.map(|recall| shared.wait_queues.set_releasing(lease, recall)).is_some()
}
