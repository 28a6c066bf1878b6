//! Levels of a hold: a thread may lock again what it holds.
//!
//! Decides when the depth of a hold changes, here and in the store. Knows nothing of wait queues:
//! the release of the last level is decided in `release.rs`.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::local::call::{CallTimes, Wait};
use crate::local::end_notifier::HoldFailure;
use crate::local::lease::Lease;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::Shared;
use crate::store::ask_one;
use crate::store::request::{Change, HoldReply, HoldRequest};

/// A level of a hold, for one guard.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) lease: Arc<Lease>,
    pub(crate) depth: u32,
}

/// Adds a level to a hold. The request also finds out whether the hold still exists.
pub(super) fn nest(shared: &Shared, lease: Arc<Lease>, wait: Wait) -> Result<Level> {
    let name = lease.name().clone();
    let Some(depth) = lease.depth().checked_add(1) else {
        return Err(Error::invalid("depth", "must not be greater than 4294967295"));
    };
    let limit = match wait {
        Wait::Endless | Wait::No => RetryLimit::Brief,
        Wait::Until(_) => wait.into(),
    };
    let times = CallTimes::new(&shared.config, lease.duration());
    let retry = RetryPolicy::new(limit, &shared.config, times);
    set_depth(shared, &lease, depth, true, retry)
        .map_err(|failure| failure.into_error("nest", &name))?;
    Ok(Level { lease, depth })
}

/// Sets the depth of a hold in the store, and then in this process. The hold is renewed too, if
/// `durable`: only what replicas or disks have, where they must, prolongs it.
pub(super) fn set_depth(
    shared: &Shared,
    lease: &Arc<Lease>,
    depth: u32,
    durable: bool,
    mut retry: RetryPolicy,
) -> Result<(), HoldFailure> {
    let (raises, renews) = (depth > lease.depth(), durable && lease.is_renewed());
    let change = |next| Change::SetDepth { depth, lease: renews.then_some(next), durable };
    match request_change(shared, lease, change, &mut retry) {
        Ok(()) => lease.set_depth(depth),
        Err(HoldFailure::Failed(failure)) if failure.is_shortfall() && !raises => {
            // The level has ended all the same, and the hold is not prolonged by it.
            if !shared.is_valid(lease) {
                return Err(HoldFailure::of(lease));
            }
        }
        Err(failure) => {
            if matches!(&failure, HoldFailure::Failed(failure) if failure.is_shortfall()) {
                restore_depth(shared, lease, &retry);
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// Renews a hold now, and leaves its depth alone: its guard may be lent to other threads, and a
/// server that is out of memory refuses no renewal.
pub(super) fn renew(
    shared: &Shared,
    lease: &Arc<Lease>,
    mut retry: RetryPolicy,
) -> Result<(), HoldFailure> {
    request_change(shared, lease, |next| Change::Renew { lease: next }, &mut retry)
}

/// Changes a hold in the store, which may renew it for the lease that is given. Succeeds if the hold is still valid then: a level that the caller
/// does not get must not be waited for by the release.
fn request_change(
    shared: &Shared,
    lease: &Arc<Lease>,
    change: impl Fn(Duration) -> Change,
    retry: &mut RetryPolicy,
) -> Result<(), HoldFailure> {
    while shared.is_valid(lease) {
        let sent = Moment::now();
        let change = change(lease.next_lease(sent));
        let (hold, deadline) = (&lease.id, retry.request_deadline());
        let reply = ask_one(&*shared.store, HoldRequest { hold, change, deadline });
        if reply.is_ok() {
            shared.record_reply(lease.name());
        }
        match reply {
            Ok(HoldReply::Done) => {
                if let Some(next_lease) = change.lease() {
                    lease.extend(sent, next_lease);
                }
                if shared.is_valid(lease) {
                    return Ok(());
                }
            }
            Ok(HoldReply::Gone) => shared.lose(lease),
            Err(mut failure) => match shared.pause_after(retry, lease.name(), &mut failure) {
                Some(pause) => thread::sleep(pause),
                None => return Err(HoldFailure::Failed(failure)),
            },
        }
    }
    Err(HoldFailure::of(lease))
}

/// Sets the depth in the store to what it is here. This is only for readers of the key in Redis:
/// the next request sets the depth anyway.
fn restore_depth(shared: &Shared, lease: &Lease, retry: &RetryPolicy) {
    let change = Change::SetDepth { depth: lease.depth(), lease: None, durable: false };
    let (hold, deadline) = (&lease.id, retry.request_deadline());
    drop(ask_one(&*shared.store, HoldRequest { hold, change, deadline }));
}
