//! How a hold ends: what releases and handoffs have in common.
//!
//! Decides how often a release is sent, and what is cleaned up afterwards. Knows nothing of wait
//! queues: `release.rs` and `handoff.rs` decide which thread gets the lock next.

use std::thread;
use std::time::{Duration, Instant};

use crate::clock::Moment;
use crate::failure::Failure;
use crate::local::end_notifier::{HoldFailure, release_outcome};
use crate::local::lease::Lease;
use crate::local::retry::RetryPolicy;
use crate::local::shared::Shared;
use crate::store::ask_one;
use crate::store::hold::HoldId;
use crate::store::request::{Change, HoldReply, HoldRequest};

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
        let reply = ask_one(&*shared.store, lease.to_release(retry.request_deadline()));
        if reply.is_ok() {
            shared.record_reply(lease.name());
        }
        match release_outcome(lease, reply, in_doubt) {
            Err(HoldFailure::Failed(mut failure)) => {
                in_doubt |= failure.is_ambiguous();
                match shared.pause_after(retry, lease.name(), &mut failure) {
                    Some(pause) => thread::sleep(pause),
                    None => return Err(HoldFailure::Failed(failure)),
                }
            }
            outcome => return outcome,
        }
    }
}

/// The answer to one of several requests.
pub(super) struct Answer {
    /// When the request was sent that got it.
    pub(super) sent: Moment,
    /// Whether an earlier request got none.
    pub(super) in_doubt: bool,
    pub(super) reply: Result<HoldReply, Failure>,
}

/// Makes requests about several holds together. Those that fail are repeated, together again.
pub(super) fn ask_all(
    shared: &Shared,
    leases: &[&Lease],
    retry: &mut RetryPolicy,
    request: impl for<'a> Fn(&'a Lease, Instant) -> HoldRequest<'a>,
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = leases.iter().map(|_| None).collect();
    loop {
        let is_open = |answer: &Option<Answer>| answer.as_ref().is_none_or(|it| it.reply.is_err());
        let open: Vec<usize> = (0..leases.len()).filter(|at| is_open(&answers[*at])).collect();
        let (sent, deadline) = (Moment::now(), retry.request_deadline());
        let requests: Vec<_> = open.iter().map(|at| request(leases[*at], deadline)).collect();
        let replies = shared.store.ask(&requests);
        let mut failure = None;
        for (at, reply) in open.into_iter().zip(replies) {
            failure = failure.or_else(|| reply.as_ref().err().cloned());
            let before = answers[at].take();
            let in_doubt = before.is_some_and(|answer| {
                answer.in_doubt || answer.reply.is_err_and(|failure| failure.is_ambiguous())
            });
            answers[at] = Some(Answer { sent, in_doubt, reply });
        }
        match failure.and_then(|mut failure| retry.pause_after(&mut failure)) {
            Some(pause) => thread::sleep(pause),
            None => return answers.into_iter().flatten().collect(),
        }
    }
}

/// Ends a new hold that exists but fell short of its durability, in the background if need be.
pub(super) fn undo(shared: &Shared, hold: &HoldId, lease: Duration, deadline: Instant) {
    let release = HoldRequest { hold, change: Change::RELEASE, deadline };
    if ask_one(&*shared.store, release).is_err() {
        shared.clean_up(hold, lease, true);
    }
}
