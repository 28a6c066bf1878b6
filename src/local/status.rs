//! The state of a lock, in this process and in the store, and the end of another client's hold.
//!
//! Decides how long such a request is repeated. Changes nothing in this process but what a reply
//! proves: a hold that the store does not know is lost.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::local::call::CallTimes;
use crate::local::lease::Lease;
use crate::local::reentrancy;
use crate::local::retry::{RetryLimit, RetryPolicy};
use crate::local::shared::Shared;
use crate::store::hold::{Holder, Leader};

/// Checks in the store that a hold exists.
///
/// # Errors
///
/// `Lost` if it does not.
pub(crate) fn verify(shared: &Shared, lease: &Lease) -> Result<()> {
    shared.identity.check_process()?;
    let name = lease.name();
    if shared.is_valid(lease) {
        let exists =
            repeat(shared, "inspect", name, |deadline| shared.store.exists(&lease.id, deadline));
        // Another program may have replaced the lock by something else.
        if matches!(exists, Err(Error::WrongType { .. })) || !exists? {
            shared.lose(lease);
        }
    }
    if shared.is_valid(lease) { Ok(()) } else { Err(Error::lost(name)) }
}

/// Returns the holder of a lock.
pub(crate) fn holder(shared: &Shared, name: &Arc<str>) -> Result<Option<Holder>> {
    repeat(shared, "inspect", name, |deadline| shared.store.inspect(name, deadline))
}

/// Asks for a sign of life, and returns how long the last attempt took.
pub(crate) fn ping(shared: &Shared) -> Result<Duration> {
    shared.identity.check_process()?;
    shared.wait_queues.check_open()?;
    let mut retry = RetryPolicy::new(RetryLimit::Brief, &shared.config, shared.times);
    loop {
        let sent = Instant::now();
        match shared.store.ping(retry.request_deadline()) {
            Ok(()) => return Ok(sent.elapsed()),
            Err(failure) => match retry.pause_after(&failure) {
                Some(pause) => thread::sleep(pause),
                None => return Err(failure.into_error("ping", "")),
            },
        }
    }
}

/// Returns the holder of a lock as a leader.
pub(crate) fn leader(shared: &Shared, name: &Arc<str>) -> Result<Option<Leader>> {
    let holder = holder(shared, name)?;
    Ok(holder.map(|Holder { client, label, fence, .. }| Leader { client, label, fence }))
}

/// Renews a lease now.
///
/// # Errors
///
/// `Lost` if the hold does not exist any more.
pub(crate) fn renew(shared: &Shared, lease: &Arc<Lease>) -> Result<()> {
    shared.identity.check_process()?;
    let times = CallTimes::new(&shared.config, lease.duration());
    let retry = RetryPolicy::new(RetryLimit::Brief, &shared.config, times);
    reentrancy::renew(shared, lease, retry)
        .map_err(|failure| failure.into_error("renew", lease.name()))
}

/// Returns how many permits of a semaphore are held.
pub(crate) fn count(shared: &Shared, name: &Arc<str>) -> Result<u32> {
    shared.check_has_members()?;
    repeat(shared, "inspect", name, |deadline| shared.store.count(name, deadline))
}

/// Ends the hold that a lock has now, of any owner, and no later one. Returns `false` if there is
/// none.
pub(crate) fn force_unlock(shared: &Shared, name: &Arc<str>) -> Result<bool> {
    let Some(Holder { owner, .. }) = holder(shared, name)? else { return Ok(false) };
    let in_doubt = Cell::new(false);
    let ended = repeat(shared, "force-unlock", name, |deadline| {
        let reply = shared.store.force_release(name, &owner, deadline);
        in_doubt.set(in_doubt.get() || reply.as_ref().is_err_and(Failure::is_ambiguous));
        reply
    })?;
    // A repeat that finds that owner gone has found what the attempt without a reply did.
    Ok(ended || in_doubt.get())
}

/// Repeats a request of a call without a deadline.
fn repeat<T>(
    shared: &Shared,
    attempt: &str,
    name: &str,
    request: impl Fn(Instant) -> Result<T, Failure>,
) -> Result<T> {
    shared.identity.check_process()?;
    shared.config.check_name(name)?;
    let mut retry = RetryPolicy::new(RetryLimit::Brief, &shared.config, shared.times);
    loop {
        match request(retry.request_deadline()) {
            Ok(reply) => return Ok(reply),
            Err(failure) => match retry.pause_after(&failure) {
                Some(pause) => thread::sleep(pause),
                None => return Err(failure.into_error(attempt, name)),
            },
        }
    }
}

/// Returns `true` if the calling thread has a hold of this lock that may be relied on.
pub(crate) fn is_held_by_current_thread(shared: &Shared, name: &Arc<str>) -> bool {
    shared.identity.check_process().is_ok()
        && shared
            .held_locks
            .find(thread::current().id(), name)
            .is_some_and(|lease| shared.is_valid(&lease))
}
