//! Releasing a lock: one level of it, or with the last level the hold.
//!
//! Decides whether the lock is handed off to a waiter or released in the store, and whether this
//! thread waits for that. How a hold ends there is decided in `ending.rs`.

use std::sync::Arc;

use crate::clock::end_of;
use crate::config::{LockOptions, Mechanism};
use crate::error::{Error, Result};
use crate::local::call::CallTimes;
use crate::local::end_notifier::{HoldFailure, release_outcome};
use crate::local::ending::{self, Answer};
use crate::local::lease::Lease;
use crate::local::reentrancy;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::Shared;
use crate::store::request::{Change, HoldReply, HoldRequest, PostedChange};

/// Releases a level of a hold, and waits until it is known how that went. The hold ends with the
/// last level.
pub(crate) fn unlock(shared: &Shared, lease: &Arc<Lease>) -> Result<()> {
    let times = CallTimes::new(&shared.config, lease.duration());
    let retry = RetryPolicy::new(RetryLimit::Brief, &shared.config, times);
    unlock_level(shared, lease, true, retry)
}

/// As `unlock`, unless the lock is handed off to the next thread.
pub(crate) fn hand_off_or_unlock(shared: &Shared, lease: &Arc<Lease>) -> Result<()> {
    shared.identity.check_process()?;
    if lease.depth() == 1 && hand_off(shared, lease) { Ok(()) } else { unlock(shared, lease) }
}

/// As `unlock`, for the holds of a set, which have one level each: their releases are sent
/// together. It takes no longer than for one hold: after an outage they are repeated in the
/// background. A loss is reported rather than another failure.
pub(crate) fn unlock_all(shared: &Shared, leases: &[Arc<Lease>]) -> Result<()> {
    shared.identity.check_process()?;
    let Some(first) = leases.first() else { return Ok(()) };
    let times = CallTimes::new(&shared.config, first.duration());
    let mut retry = RetryPolicy::new(RetryLimit::Brief, &shared.config, times);
    let mut outcome = Ok(());
    let mut add = |released: Result<()>| {
        if outcome.is_ok() || is_lost(&released) && !is_lost(&outcome) {
            outcome = released;
        }
    };
    let mut held: Vec<&Lease> = Vec::new();
    for lease in leases {
        lease.set_depth(0);
        match end_locally(shared, lease) {
            Ok(()) => held.push(lease),
            Err(failure) => add(finish(lease, Err(failure))),
        }
    }
    let answers = ending::ask_all(shared, &held, &mut retry, Lease::to_release);
    for (lease, Answer { in_doubt, reply, .. }) in held.into_iter().zip(answers) {
        let released = release_outcome(lease, reply, in_doubt);
        shared.end_reports.settle(lease, &released);
        let_next_try(shared, lease);
        add(finish(lease, released));
    }
    outcome
}

fn is_lost(result: &Result<()>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

/// As `unlock`, but sends the request and returns: the thread that reads the reply deals with it.
pub(crate) fn unlock_on_drop(shared: &Shared, lease: &Arc<Lease>) -> Result<()> {
    let retry = retry_on_drop(shared, lease);
    if !posts_releases(shared) {
        return unlock_level(shared, lease, false, retry);
    }
    shared.identity.check_process()?;
    let depth = lease.depth().saturating_sub(1);
    if depth == 0 && hand_off(shared, lease) {
        return Ok(());
    }
    lease.set_depth(depth);
    let outcome = if depth > 0 {
        post_depth(shared, lease, depth, &retry)
    } else {
        begin_release(shared, lease, &retry).map(|post| {
            shared.store.post(vec![post]);
            let_next_try(shared, lease);
        })
    };
    finish(lease, outcome)
}

/// As `unlock_on_drop`, for the holds of a set, which have one level each: their releases are sent
/// together. Errors are logged where they occur.
pub(crate) fn unlock_all_on_drop(shared: &Shared, leases: &[Arc<Lease>]) {
    if !posts_releases(shared) || shared.identity.check_process().is_err() {
        return leases.iter().for_each(|lease| drop(unlock_on_drop(shared, lease)));
    }
    let ended: Vec<_> = leases.iter().filter(|lease| !hand_off(shared, lease)).collect();
    let posts = ended.iter().filter_map(|lease| {
        lease.set_depth(0);
        // What was lost is not released.
        begin_release(shared, lease, &retry_on_drop(shared, lease)).ok()
    });
    shared.store.post(posts.collect());
    for lease in ended {
        let_next_try(shared, lease);
        end_span(lease);
    }
}

/// A drop takes no longer than one request may.
fn retry_on_drop(shared: &Shared, lease: &Lease) -> RetryPolicy {
    let times = CallTimes::new(&shared.config, lease.duration());
    RetryPolicy::new(RetryLimit::End(end_of(times.io_timeout)), &shared.config, times)
}

/// Returns `true` if the thread that drops a guard does not wait for the reply.
fn posts_releases(shared: &Shared) -> bool {
    shared.config.uses(Mechanism::PostedRelease)
}

/// Ends a hold for which there is no guard.
pub(super) fn give_back(shared: &Shared, lease: &Arc<Lease>) {
    // A failure is cleaned up after.
    unlock_on_drop(shared, lease).unwrap_or_default();
}

/// Gives back new holds if the client was closed in the meantime, or the wait cancelled: the thread
/// that did so may be what has freed their locks.
///
/// # Errors
///
/// `Closed` if the client was closed, `Cancelled` if the wait was cancelled.
pub(super) fn check_wanted(
    shared: &Shared,
    options: &LockOptions,
    leases: &[Arc<Lease>],
) -> Result<()> {
    let is_cancelled = || leases.iter().try_for_each(|lease| options.check_cancelled(lease.name()));
    let wanted = shared.wait_queues.check_open().and_then(|()| is_cancelled());
    if wanted.is_err() {
        for lease in leases {
            give_back(shared, lease);
        }
    }
    wanted
}

/// With `durable`, what an inner level leaves must be as durable as a lock.
fn unlock_level(
    shared: &Shared,
    lease: &Arc<Lease>,
    durable: bool,
    mut retry: RetryPolicy,
) -> Result<()> {
    shared.identity.check_process()?;
    let depth = lease.depth().saturating_sub(1);
    lease.set_depth(depth);
    let outcome = if depth > 0 {
        let outcome = reentrancy::set_depth(shared, lease, depth, durable, retry);
        if let Err(HoldFailure::Failed(failure)) = &outcome {
            shared.end_reports.log_failed_release(lease, failure);
        }
        outcome
    } else {
        release(shared, lease, &mut retry)
    };
    finish(lease, outcome)
}

/// Returns the result of a release. What a shutdown has ended is over, as it should be.
fn finish(lease: &Lease, outcome: Result<(), HoldFailure>) -> Result<()> {
    end_span(lease);
    match outcome {
        Ok(()) | Err(HoldFailure::Ended) => Ok(()),
        Err(failure) => Err(failure.into_error("release", lease.name())),
    }
}

/// Ends the span of a hold that has no guard any more. Only now: a subscriber must not delay the
/// release.
fn end_span(lease: &Lease) {
    if lease.depth() == 0
        && let Some(span) = lease.span.take()
    {
        span.close(lease.is_lost());
    }
}

/// Ends a hold, and waits until that is so.
fn release(
    shared: &Shared,
    lease: &Arc<Lease>,
    retry: &mut RetryPolicy,
) -> Result<(), HoldFailure> {
    shared.held_locks.remove(lease);
    end_locally(shared, lease)?;
    let outcome = ending::release_in_store(shared, lease, retry, false);
    shared.end_reports.settle(lease, &outcome);
    let_next_try(shared, lease);
    outcome
}

/// Gives the next thread a hold in the same tenure, if one waits that can have it. From then on the
/// lease says nothing about this hold any more.
fn hand_off(shared: &Shared, lease: &Arc<Lease>) -> bool {
    shared.held_locks.remove(lease);
    let mut span = None;
    let handed_off = shared.queues(lease.id.kind).hand_off(lease, || {
        span = lease.span.take();
        shared.end_reports.ends.report_release(lease);
    });
    if let Some(span) = span {
        span.close(false);
    }
    handed_off
}

/// Ends a hold, and returns the release that is to be posted.
fn begin_release<'a>(
    shared: &Shared,
    lease: &'a Arc<Lease>,
    retry: &RetryPolicy,
) -> Result<PostedChange<'a>, HoldFailure> {
    end_locally(shared, lease)?;
    let (reports, released) = (shared.end_reports.clone(), lease.clone());
    Ok(PostedChange {
        request: lease.to_release(retry.request_deadline()),
        on_reply: Box::new(move |reply| reports.report_reply(&released, reply)),
    })
}

/// Lets the next waiter try, once the release of a hold was sent: not before, because the waiter
/// may have the connections wait for replicas or disks.
fn let_next_try(shared: &Shared, lease: &Lease) {
    shared.queues(lease.id.kind).end_hold(lease);
    shared.wake_head(lease.id.kind, lease.name());
}

/// Sets the depth of a hold to that of its remaining guards, without waiting for the reply.
fn post_depth(
    shared: &Shared,
    lease: &Arc<Lease>,
    depth: u32,
    retry: &RetryPolicy,
) -> Result<(), HoldFailure> {
    if !shared.is_valid(lease) {
        return Err(HoldFailure::of(lease));
    }
    let (reports, held) = (shared.end_reports.clone(), lease.clone());
    let change = Change::SetDepth { depth, lease: None, durable: false };
    shared.store.post(vec![PostedChange {
        request: HoldRequest { hold: &lease.id, change, deadline: retry.request_deadline() },
        on_reply: Box::new(move |reply| match reply {
            Ok(HoldReply::Done) => {}
            Ok(HoldReply::Gone) => reports.lose(&held),
            Err(failure) => reports.log_failed_release(&held, &failure),
        }),
    }]);
    Ok(())
}

/// Ends a hold in this process: from here on it is not renewed. What was lost is not released: it
/// does not exist any more, or is being cleaned up.
fn end_locally(shared: &Shared, lease: &Arc<Lease>) -> Result<(), HoldFailure> {
    if shared.is_valid(lease) && lease.end() {
        shared.counters.end_hold();
        // A call may find it in the store until the release is executed.
        shared.queues(lease.id.kind).remember_released(lease);
        return Ok(());
    }
    shared.wait_queues.end_hold(lease);
    Err(HoldFailure::of(lease))
}
