//! Handing a lock off to the next waiter of this process: one transfer instead of a release and an
//! acquire, whose reply the waiter reads itself if the releasing thread does not want to.
//!
//! Decides when a lock is handed off no longer because another client waits for it, and what a
//! transfer has brought. A waiter that has to acquire the lock learns so, by a signal or from the
//! outcome: nothing here acquires it.
//!
//! | reply to the transfer | the old hold | the waiter |
//! |---|---|---|
//! | transferred, in time | released | holds the lock |
//! | transferred, after the lease | released | must acquire; the new hold is cleaned up |
//! | gone | lost, unless an earlier request has ended it | must acquire |
//! | yielded | released | must acquire, after the other client |
//! | too few have acknowledged it | released | must acquire; the new hold is released |
//! | rejected | released by a request of its own | must acquire |
//! | none | may exist: the releasing thread releases it | fails, or must acquire |

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{Moment, end_of};
use crate::failure::Failure;
use crate::local::call::Caller;
use crate::local::ending::{self, HoldFailure};
use crate::local::lease::Lease;
use crate::local::pending::PendingHandoff;
use crate::local::retry::{RetryPolicy, is_outage};
use crate::local::shared::Shared;
use crate::local::wait_queue::Handoffs;
use crate::local::waiter::QueuedWaiter;
use crate::store::request::{PendingReply, Transfer, TransferReply};

/// For so long a lock may be handed off inside this process while another client waits for it.
const HANDOFF_TIME: Duration = Duration::from_millis(100);

/// What a handoff has brought the thread that was to get the lock.
pub(super) enum Received {
    Held(Arc<Lease>),
    MustAcquire {
        /// Whether the lock was released for another client, which goes first.
        yields: bool,
    },
}

/// A transfer that got a reply.
struct AnsweredTransfer {
    reply: TransferReply,
    /// When the request was sent that got the reply.
    sent: Moment,
    /// Whether an earlier request got none.
    in_doubt: bool,
}

/// Returns `true` if a client that waits gets the lock after so many handoffs.
pub(super) fn must_yield(shared: &Shared, handoffs: Handoffs) -> bool {
    handoffs.times >= shared.config.max_handoffs || handoffs.since.elapsed() >= HANDOFF_TIME
}

/// Sends the transfer of a hold that ends to a new one.
pub(super) fn start(
    shared: &Shared,
    from: &Arc<Lease>,
    to: &Caller,
    yields: bool,
    retry: &RetryPolicy,
) -> PendingHandoff {
    let deadline = retry.request_deadline().min(end_of(to.times.io_timeout));
    let (from, to, lease) =
        (from.clone(), shared.identity.next_hold(from.id.kind, from.name()), to.times.lease);
    let sent = Moment::now();
    let transfer = Transfer { from: &from.id, to: &to, lease, yields, deadline };
    let reply = shared.store.transfer(transfer);
    PendingHandoff { from, to, yields, sent, reply, reports_end: true }
}

/// Waits, in the releasing thread, until it is known what a handoff has brought. The waiter is
/// signalled in every case. Without a reply each of the two goes on by its own deadline: the waiter
/// may have less time than this thread.
pub(super) fn finish(
    shared: &Shared,
    mut pending: PendingHandoff,
    waiter: &QueuedWaiter,
    retry: &mut RetryPolicy,
) -> Result<(), HoldFailure> {
    match pending.reply.wait() {
        Err(mut failure) if is_outage(&failure) => {
            let (from, again) = (pending.from.clone(), failure.clone());
            pending.reply = PendingReply::new(move || Err(again));
            pending.reports_end = false;
            waiter.forward_handoff(pending);
            let Some(pause) = retry.pause_after(&mut failure) else {
                return Err(HoldFailure::Failed(failure));
            };
            thread::sleep(pause);
            // The waiter may end the hold first.
            return ending::release_in_store(shared, &from, retry, true);
        }
        reply => pending.reply = PendingReply::new(move || reply),
    }
    let (from, name) = (pending.from.clone(), pending.to.name.clone());
    let (received, outcome) = complete(shared, pending, &waiter.caller, retry);
    // Before the waiter reports its own hold.
    shared.end_reports.report_end(&from, &outcome);
    match received {
        Received::Held(lease) => shared.wait_queues.finish_handoff(waiter, &lease),
        Received::MustAcquire { yields } => {
            shared.wait_queues.cancel_handoff(&name, waiter, yields);
        }
    }
    outcome
}

/// Waits, in the thread that is to get the lock, until it is known what a handoff has brought.
///
/// # Errors
///
/// The failure if the server could not be reached.
pub(super) fn receive(
    shared: &Shared,
    pending: PendingHandoff,
    caller: &Caller,
    retry: &mut RetryPolicy,
) -> Result<Received, Failure> {
    let (from, reports_end) = (pending.from.clone(), pending.reports_end);
    let (received, outcome) = complete(shared, pending, caller, retry);
    if reports_end {
        shared.end_reports.report_end(&from, &outcome);
    }
    match outcome {
        Err(HoldFailure::Failed(failure)) if is_outage(&failure) => Err(failure),
        _ => Ok(received),
    }
}

/// Waits for the reply to a transfer. Returns also how the old hold has ended.
fn complete(
    shared: &Shared,
    pending: PendingHandoff,
    caller: &Caller,
    retry: &mut RetryPolicy,
) -> (Received, Result<(), HoldFailure>) {
    let (from, to) = (pending.from.clone(), pending.to.clone());
    let must_acquire = Received::MustAcquire { yields: false };
    let AnsweredTransfer { reply, sent, in_doubt } =
        match await_transfer(shared, pending, caller, retry) {
            Ok(answered) => answered,
            // The old hold has ended, and the new one is this thread's to end.
            Err(failure) if failure.is_shortfall() => {
                ending::undo(shared, &to, caller.times.lease, retry.request_deadline());
                return (must_acquire, Ok(()));
            }
            Err(failure) if is_outage(&failure) => {
                return (must_acquire, Err(HoldFailure::Failed(failure)));
            }
            // A server that is out of memory begins no hold, but ends one.
            Err(_) => return (must_acquire, ending::release_in_store(shared, &from, retry, false)),
        };
    match reply {
        TransferReply::Transferred { fence } => {
            let lease = Arc::new(Lease::new(to, fence, caller, sent));
            if in_doubt {
                lease.mark_in_doubt();
            }
            // No call gets it then, so that it is not lost to any.
            if lease.remaining().is_zero() {
                shared.clean_up(&lease.id, lease.duration(), !in_doubt);
                return (must_acquire, Ok(()));
            }
            shared.end_reports.report_end(&from, &Ok(()));
            shared.add_hold(&lease, caller);
            (Received::Held(lease), Ok(()))
        }
        TransferReply::Gone if in_doubt => (must_acquire, Ok(())),
        TransferReply::Gone => (must_acquire, Err(HoldFailure::Lost)),
        TransferReply::Yielded => (Received::MustAcquire { yields: true }, Ok(())),
    }
}

/// Waits for the reply to a transfer, and sends it again until there is one. If the new hold does
/// not exist, but an earlier request may still begin it, it is cleaned up.
fn await_transfer(
    shared: &Shared,
    pending: PendingHandoff,
    caller: &Caller,
    retry: &mut RetryPolicy,
) -> Result<AnsweredTransfer, Failure> {
    let PendingHandoff { from, to, yields, mut sent, mut reply, .. } = pending;
    let lease = caller.times.lease;
    let mut in_doubt = false;
    loop {
        let mut failure = match reply.wait() {
            Ok(reply) => {
                if in_doubt && !matches!(reply, TransferReply::Transferred { .. }) {
                    shared.clean_up(&to, lease, false);
                }
                return Ok(AnsweredTransfer { reply, sent, in_doubt });
            }
            Err(failure) => failure,
        };
        in_doubt |= failure.is_ambiguous();
        let Some(pause) = retry.pause_after(&mut failure) else {
            if in_doubt {
                shared.clean_up(&to, lease, false);
            }
            return Err(failure);
        };
        thread::sleep(pause);
        sent = Moment::now();
        let deadline = retry.request_deadline();
        let transfer = Transfer { from: &from.id, to: &to, lease, yields, deadline };
        reply = shared.store.transfer(transfer);
    }
}
