//! Releasing locks: one level of a hold, or the hold with its last level. A drop does the same as
//! `unlock`, without waiting for the reply.
//!
//! Decides whether a hold is handed off to a waiter or released in the store, and when the next
//! waiter may try.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{self, Moment, end_of};
use crate::error::Result;
use crate::local::hold_requests::{add_outcome, ask, attempts, set_depth};
use crate::local::parker::perform_each;
use crate::local::shared::{Releases, Shared};
use crate::protocol::call::{Caller, Wait};
use crate::protocol::hold::{Hold, HoldFailure};
use crate::protocol::steps::Action;
use crate::protocol::tenure::HoldInput;
use crate::store::request::{Change, HoldReply, HoldRequest, PostedChange};

/// Releases a level of a hold, or the holds of a set, which have one level each, and waits for the
/// outcome. A set takes no longer than one hold: after an outage its releases are repeated in the
/// background.
///
/// # Errors
///
/// A loss rather than another failure.
pub(crate) fn unlock(shared: &Shared, holds: &[Arc<Hold>]) -> Result<()> {
    end(shared, holds, false)
}

/// Like `unlock`, unless the lock is handed off to the next thread.
pub(crate) fn hand_off_or_unlock(shared: &Shared, hold: &Arc<Hold>) -> Result<()> {
    end(shared, slice::from_ref(hold), true)
}

fn end(shared: &Shared, holds: &[Arc<Hold>], hands_off: bool) -> Result<()> {
    shared.check_process()?;
    let Some(first) = holds.first() else { return Ok(()) };
    if first.levels() > 1 {
        return end_level(shared, first);
    }
    let mut result = Ok(());
    let mut releases = Releases::new(shared);
    for hold in holds {
        match end_locally(shared, hold, HoldInput::End { hands_off }) {
            Ending::GoesOn => {}
            Ending::Lost => finish(&mut result, hold, Err(HoldFailure::of(hold))),
            Ending::Released { calls_wait } => releases.add(hold, calls_wait),
        }
    }
    let holds = releases.holds.clone();
    let mut attempts = attempts(shared, first, Wait::No);
    let outcomes = ask(
        shared,
        &holds,
        |hold| shared.names.begin_release(hold),
        &mut attempts,
        Some(&mut releases),
    );
    for (hold, outcome) in holds.iter().zip(outcomes) {
        // The others were settled when their replies came.
        if let Err(HoldFailure::Failed(_)) = outcome {
            shared.reporter.settle(hold, &outcome);
        }
        finish(&mut result, hold, outcome);
    }
    releases.are_settled();
    result
}

fn finish(result: &mut Result<()>, hold: &Hold, outcome: Result<(), HoldFailure>) {
    if let Some(span) = hold.span.take() {
        span.close(hold.is_lost(Moment::now()));
    }
    add_outcome(result, "release", hold, unless_ended(outcome));
}

/// Ends the innermost level of a hold.
fn end_level(shared: &Shared, hold: &Arc<Hold>) -> Result<()> {
    let depth = hold.depth() - 1;
    // The guard is gone, whatever the reply is.
    hold.set_depth(depth);
    let outcome = set_depth(shared, hold, depth, &mut attempts(shared, hold, Wait::No));
    if let Err(HoldFailure::Failed(failure)) = &outcome {
        // The next request about the hold sets the depth anyway.
        shared.reporter.log_failed_level(hold, failure);
    }
    let mut result = Ok(());
    add_outcome(&mut result, "release", hold, unless_ended(outcome));
    result
}

/// Counts a hold that a shutdown has ended as released.
fn unless_ended(outcome: Result<(), HoldFailure>) -> Result<(), HoldFailure> {
    match outcome {
        Err(HoldFailure::Ended) => Ok(()),
        outcome => outcome,
    }
}

/// Like `unlock`, but sends the requests and returns: the thread that reads a reply deals with it.
/// Errors are logged where they occur.
pub(crate) fn unlock_on_drop(shared: &Shared, holds: &[Arc<Hold>]) {
    if !shared.posts_releases {
        return end(shared, holds, false).unwrap_or_default();
    }
    let Some(first) = holds.first() else { return };
    if shared.check_process().is_err() {
        // The hold is that of the process from which this one was forked.
        return;
    }
    let levels = first.levels();
    if levels > 1 {
        return post_depth(shared, first, levels - 1);
    }
    release_unawaited(shared, holds, None);
}

/// Releases holds that a call has acquired but gives up. Does not wait for the replies.
pub(super) fn give_back(shared: &Shared, holds: &[Arc<Hold>], caller: &Caller) {
    release_unawaited(shared, holds, Some(caller));
}

/// Releases holds with one level each, and does not wait for the replies. A caller that gets
/// nothing does not wait long to write the requests either.
fn release_unawaited(shared: &Shared, holds: &[Arc<Hold>], given_back_by: Option<&Caller>) {
    let mut releases = Releases::new(shared);
    let mut spans = Vec::new();
    for hold in holds {
        let input = match given_back_by {
            Some(_) => HoldInput::GiveBack,
            None => HoldInput::End { hands_off: true },
        };
        // All of them end before the first request, so that the holds of a set end together.
        match end_locally(shared, hold, input) {
            Ending::GoesOn => continue,
            Ending::Lost => {}
            Ending::Released { calls_wait } => releases.add(hold, calls_wait),
        }
        spans.extend(hold.span.take().map(|span| (span, hold)));
    }
    // Requests of the next calls go out behind the releases.
    releases.post(given_back_by.map(|caller| caller.write_by(clock::now())));
    // Only now: a subscriber must not delay the release.
    for (span, hold) in spans {
        span.close(hold.is_lost(Moment::now()));
    }
}

/// How a hold ends in this process.
#[derive(Clone, Copy)]
enum Ending {
    /// Its tenure goes on: with the next call, with other readers, or because the lock is kept.
    GoesOn,
    /// It was lost, or had ended, before.
    Lost,
    /// It must be released. If `calls_wait`, one of them tries once the release was sent.
    Released { calls_wait: bool },
}

/// Ends a hold in this process: from here on it is not renewed, or it is another thread's if it was
/// handed off. A lost hold no longer exists, or is being cleaned up.
fn end_locally(shared: &Shared, hold: &Arc<Hold>, input: HoldInput<'_>) -> Ending {
    // First: from here on a call of this thread waits like any other.
    shared.held_locks.remove(hold);
    let (is_in_time, actions) = shared.reporter.begin_step(hold, input);
    if !is_in_time {
        // The thread that reports a loss lets the next waiter try.
        shared.reporter.expire(hold);
        return Ending::Lost;
    }
    let mut ending = Ending::GoesOn;
    perform_each(actions, |action| {
        if let Action::Release { calls_wait, .. } = action {
            // It is sent together with those of the other holds of a set.
            ending = Ending::Released { calls_wait };
        } else {
            shared.perform(&hold.id.name, shared.times_for(hold.lease()), Wait::No, action);
        }
    });
    ending
}

/// Sets the depth of a hold to that of its remaining guards, without waiting for the reply.
fn post_depth(shared: &Shared, hold: &Arc<Hold>, depth: u32) {
    hold.set_depth(depth);
    if !shared.is_valid(hold) {
        // There is no longer a level to remove.
        return;
    }
    let deadline = shared.request_deadline(hold);
    let reporter = shared.reporter.clone();
    let held = hold.clone();
    let change = Change::SetDepth { depth, lease: None, durable: false };
    shared.store.post(vec![PostedChange {
        request: HoldRequest { hold: &hold.id, change, deadline },
        write_by: deadline,
        on_reply: Box::new(move |reply| match reply {
            Ok(HoldReply::Done | HoldReply::Wanted) => {}
            Ok(HoldReply::Gone) => drop(reporter.step(&held, HoldInput::Gone)),
            Err(failure) => reporter.log_failed_level(&held, &failure),
        }),
    }]);
}

/// Closes the client and releases every hold. Blocks until all are known to have ended, for
/// `timeout` at most; the rest is left to the background then.
///
/// First the client is closed, so that only calls under way can still acquire a hold. Then the
/// renewer ends all holds that it has, and those that these calls give it, and sends the releases
/// of all of them together. Releases that other threads have begun stay with those threads; the
/// replies to posted ones are read here, and reach the renewer as they always do.
pub(crate) fn shut_down(shared: &Shared, timeout: Duration) -> Result<()> {
    shared.check_process()?;
    let deadline = end_of(timeout);
    // From here on no call begins, but those under way may still acquire.
    shared.close();
    let outcome = shared.reporter.renewer.end_all(deadline, || {
        // A sweep would read the replies too, a little later. It must if there is less time than a
        // reply may take, because a reply that has not arrived by then would count as failed.
        let all_read = end_of(shared.times.io_timeout);
        if all_read <= deadline {
            shared.store.drain(all_read);
        }
    });
    shared.reporter.events.flush(|| true);
    outcome.map_err(|failure| failure.into_error("shut down", ""))
}
