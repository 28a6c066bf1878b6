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
//! | none | may exist: the releasing thread releases it | sends the transfer again, or fails |

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{Moment, end_of};
use crate::failure::Failure;
use crate::local::call::Caller;
use crate::local::end_notifier::HoldFailure;
use crate::local::ending;
use crate::local::lease::Lease;
use crate::local::pending::PendingHandoff;
use crate::local::retry::{RetryLimit, RetryPolicy, is_outage};
use crate::local::shared::Shared;
use crate::local::wait_queue::Handoffs;
use crate::local::waiter::QueuedWaiter;
use crate::store::hold::HoldId;
use crate::store::request::{PendingReply, Transfer, TransferReply};

/// For so long a lock may be handed off inside this process while another client waits for it.
const HANDOFF_TIME: Duration = Duration::from_millis(100);

/// What a handoff has brought the thread that was to get the lock.
pub(super) enum HandoffOutcome {
    Held(Arc<Lease>),
    MustAcquire {
        /// Whether the lock was released for another client, which goes first.
        yields: bool,
    },
}

/// A transfer that was answered, or that will not be sent again.
struct AnsweredTransfer {
    from: Arc<Lease>,
    to: HoldId,
    /// When the request was sent that got the reply.
    sent: Moment,
    reply: Result<TransferReply, Failure>,
    /// Whether an earlier request got none.
    in_doubt: bool,
}

/// A handoff as the thread that is to get the lock sees it: a transfer that is sent again until
/// there is a reply.
pub(super) struct IncomingHandoff {
    from: Arc<Lease>,
    to: HoldId,
    yields: bool,
    reports_end: bool,
    /// When the last request was sent, and its reply, if it was not waited for yet.
    sent: Option<(Moment, PendingReply<TransferReply>)>,
    /// Why the last request got no reply.
    failure: Option<Failure>,
    /// Whether a request without a reply may have begun the hold, or may still begin it.
    in_doubt: bool,
}

/// Returns `true` if a client that waits gets the lock after so many handoffs.
fn must_yield(shared: &Shared, handoffs: Handoffs) -> bool {
    handoffs.times >= shared.config.max_handoffs() || handoffs.since.elapsed() >= HANDOFF_TIME
}

/// Sends the transfer of a hold that ends to a new one, or to a client that waits after so many
/// handoffs.
pub(super) fn start(
    shared: &Shared,
    from: &Arc<Lease>,
    to: &Caller,
    handoffs: Handoffs,
    retry: &RetryPolicy,
) -> PendingHandoff {
    let yields = must_yield(shared, handoffs);
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
    let reply = match pending.reply.wait() {
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
        reply => reply,
    };
    let PendingHandoff { from, to, sent, .. } = pending;
    let answered = AnsweredTransfer { from: from.clone(), to, sent, reply, in_doubt: false };
    let (received, outcome) = complete(shared, answered, &waiter.caller, retry);
    // Before the waiter reports its own hold.
    shared.end_reports.report_end(&from, &outcome);
    match received {
        HandoffOutcome::Held(lease) => shared.wait_queues.finish_handoff(waiter, &lease),
        HandoffOutcome::MustAcquire { yields } => waiter.cancel_handoff(yields),
    }
    outcome
}

impl IncomingHandoff {
    pub(super) fn new(pending: PendingHandoff) -> Self {
        let PendingHandoff { from, to, yields, sent, reply, reports_end } = pending;
        let sent = Some((sent, reply));
        Self { from, to, yields, reports_end, sent, failure: None, in_doubt: false }
    }

    /// Waits for the reply to the transfer, which is sent again if the last request got none.
    ///
    /// # Errors
    ///
    /// The failure if there was no reply this time either.
    pub(super) fn receive(
        &mut self,
        shared: &Shared,
        caller: &Caller,
        retry: &RetryPolicy,
    ) -> Result<HandoffOutcome, Failure> {
        let (sent, reply) = self.sent.take().unwrap_or_else(|| {
            let (from, to, yields) = (&self.from.id, &self.to, self.yields);
            let (lease, deadline) = (caller.times.lease, retry.request_deadline());
            let sent = Moment::now();
            (sent, shared.store.transfer(Transfer { from, to, lease, yields, deadline }))
        });
        let reply = reply.wait();
        if let Err(failure) = &reply
            && is_outage(failure)
        {
            self.in_doubt |= failure.is_ambiguous();
            self.failure = Some(failure.clone());
            return Err(failure.clone());
        }
        if !matches!(reply, Ok(TransferReply::Transferred { .. })) {
            self.clean_up(shared, caller);
        }
        let (from, to, in_doubt) = (self.from.clone(), self.to.clone(), self.in_doubt);
        let answered = AnsweredTransfer { from, to, sent, reply, in_doubt };
        let limit = RetryLimit::End(retry.request_deadline());
        let mut retry = RetryPolicy::new(limit, &shared.config, caller.times);
        let (received, outcome) = complete(shared, answered, caller, &mut retry);
        if self.reports_end {
            shared.end_reports.report_end(&self.from, &outcome);
        }
        Ok(received)
    }

    /// Gives up a handoff that has got no reply, and leaves both holds to the background.
    pub(super) fn give_up(&mut self, shared: &Shared, caller: &Caller) {
        self.clean_up(shared, caller);
        if let Some(failure) = self.failure.take().filter(|_| self.reports_end) {
            shared.end_reports.report_end(&self.from, &Err(HoldFailure::Failed(failure)));
        }
    }

    /// Cleans up the new hold, which does not exist, if an earlier request may still begin it.
    fn clean_up(&self, shared: &Shared, caller: &Caller) {
        if self.in_doubt {
            shared.clean_up(&self.to, caller.times.lease, false);
        }
    }
}

/// Decides what the reply to a transfer has brought. Returns also how the old hold has ended.
fn complete(
    shared: &Shared,
    answered: AnsweredTransfer,
    caller: &Caller,
    retry: &mut RetryPolicy,
) -> (HandoffOutcome, Result<(), HoldFailure>) {
    let AnsweredTransfer { from, to, sent, reply, in_doubt } = answered;
    let must_acquire = HandoffOutcome::MustAcquire { yields: false };
    match reply {
        Ok(TransferReply::Transferred { fence }) => {
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
            shared.counters.handoffs.add(1);
            shared.add_hold(&lease, caller);
            (HandoffOutcome::Held(lease), Ok(()))
        }
        Ok(TransferReply::Gone) if in_doubt => (must_acquire, Ok(())),
        Ok(TransferReply::Gone) => (must_acquire, Err(HoldFailure::Lost)),
        Ok(TransferReply::Yielded) => (HandoffOutcome::MustAcquire { yields: true }, Ok(())),
        // The old hold has ended, and the new one is this thread's to end.
        Err(failure) if failure.is_shortfall() => {
            ending::undo(shared, &to, caller.times.lease, retry.request_deadline());
            (must_acquire, Ok(()))
        }
        // A server that is out of memory begins no hold, but ends one.
        Err(_) => (must_acquire, ending::release_in_store(shared, &from, retry, in_doubt)),
    }
}
