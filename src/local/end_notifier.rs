//! What follows from the end of a hold: its release, or the loss of its lease.
//!
//! Decides which events and log lines report it, and that the next waiter of this process may try.
//! Knows nothing of the store: its callers decide whether the hold must be removed there.

use std::sync::Arc;

use crate::error::Error;
use crate::event::{Event, Events};
use crate::failure::Failure;
use crate::local::counters::Counters;
use crate::local::lease::Lease;
use crate::local::outage::Outages;
use crate::local::wait_queues::WaitQueues;
use crate::store::hold::{HoldId, HoldKind};
use crate::store::job::InDoubtHold;
use crate::store::request::HoldReply;

/// Why leases are lost.
pub(crate) const EXPIRED: &str = "it was not renewed in time";
pub(crate) const GONE: &str = "the server does not know it any more";

/// Why a request about an existing hold has not had its effect.
#[derive(Debug)]
pub(crate) enum HoldFailure {
    /// A shutdown has ended the hold.
    Ended,
    Failed(Failure),
    /// The hold is lost.
    Lost,
}

impl HoldFailure {
    /// Why a hold is not valid any more, though it has guards.
    pub(super) fn of(lease: &Lease) -> Self {
        if lease.is_ended() { Self::Ended } else { Self::Lost }
    }

    /// Returns the error for the caller of `attempt`.
    pub(super) fn into_error(self, attempt: &str, name: &str) -> Error {
        match self {
            Self::Ended => Error::Closed,
            Self::Failed(failure) => failure.into_error(attempt, name),
            Self::Lost => Error::lost(name),
        }
    }
}

/// Returns what the reply to a release means. If an earlier request is `in_doubt`, or another
/// thread releases the hold as well, a reply that it is gone is no loss.
pub(super) fn release_outcome(
    lease: &Lease,
    reply: Result<HoldReply, Failure>,
    in_doubt: bool,
) -> Result<(), HoldFailure> {
    match reply {
        Ok(HoldReply::Gone) if !in_doubt && !lease.is_released_again() => Err(HoldFailure::Lost),
        Ok(HoldReply::Gone | HoldReply::Done) => Ok(()),
        Err(failure) => Err(HoldFailure::Failed(failure)),
    }
}

/// Reports to the user how holds have ended, and ends them in the wait queues and the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndNotifier {
    pub(super) events: Events,
    pub(super) counters: Arc<Counters>,
    pub(super) outages: Arc<Outages>,
    wait_queues: Arc<WaitQueues>,
    /// Those of read-write locks and semaphores.
    member_queues: Arc<WaitQueues>,
}

impl EndNotifier {
    pub(crate) fn new(
        events: Events,
        counters: Arc<Counters>,
        wait_queues: Arc<WaitQueues>,
        member_queues: Arc<WaitQueues>,
    ) -> Self {
        let outages = Arc::default();
        Self { events, counters, outages, wait_queues, member_queues }
    }

    /// Marks a lease as lost if its deadline has passed. Returns `true` for the one call that does;
    /// `report_loss` is to follow.
    pub(crate) fn mark_expired(&self, lease: &Lease) -> bool {
        let lost = lease.expire();
        if lost {
            self.counters.end_hold();
        }
        lost
    }

    /// As `mark_expired`, because the server does not know the hold any more.
    pub(crate) fn mark_gone(&self, lease: &Lease) -> bool {
        let lost = lease.lose();
        if lost {
            self.counters.end_hold();
        }
        lost
    }

    /// Ends a hold without its holder. Returns `false` if it has ended or is lost already.
    pub(crate) fn end_hold(&self, lease: &Lease) -> bool {
        let ended = lease.end();
        if ended {
            self.counters.end_hold();
            self.wait_queues.end_hold(lease);
        }
        ended
    }

    /// Notes that a hold which was released does not exist any more.
    pub(crate) fn confirm_release(&self, hold: &HoldId) {
        self.settle_release(hold, || true);
    }

    /// Lets `report` tell how a release has gone, before the next holder reports its own hold. It
    /// returns `true` if the hold does not exist any more.
    pub(crate) fn settle_release(&self, hold: &HoldId, report: impl FnOnce() -> bool) {
        self.queues(hold).settle_release(hold, report);
    }

    /// Signals the head of a queue to try again, after its client was unregistered for a thread
    /// that has left.
    pub(crate) fn signal_head(&self, name: &str) {
        // It was unregistered for whatever it waits for.
        self.wait_queues.signal_head(name);
        self.member_queues.signal_head(name);
    }

    fn queues(&self, hold: &HoldId) -> &WaitQueues {
        if hold.kind == HoldKind::Lock { &self.wait_queues } else { &self.member_queues }
    }

    /// Reports how a hold has ended that is at no head any more, once that is known. Does nothing
    /// if it is known already: of several threads that learn it, the first reports it. Before that,
    /// `clean_up` is called with a hold that may exist in the store.
    pub(crate) fn report_end(
        &self,
        lease: &Lease,
        outcome: &Result<(), HoldFailure>,
        clean_up: impl FnOnce(InDoubtHold),
    ) {
        let is_first = match outcome {
            Err(HoldFailure::Lost) => lease.report_loss(),
            Ok(()) | Err(HoldFailure::Ended | HoldFailure::Failed(_)) => lease.report_end(),
        };
        if !is_first {
            return;
        }
        if lease.is_in_doubt() || matches!(outcome, Err(HoldFailure::Failed(_))) {
            clean_up(lease.to_clean_up());
        }
        match outcome {
            Err(HoldFailure::Lost) => {
                self.log_loss(lease, "the server did not know it any more");
                self.tell_end_of_lost(lease);
            }
            Err(HoldFailure::Failed(failure)) if !lease.is_unreported() => {
                self.report_failed_release(lease, failure);
            }
            Ok(()) if !lease.is_unreported() => self.report_release(lease),
            _ => {}
        }
        self.counters.settle_hold();
    }

    pub(super) fn report_release(&self, lease: &Lease) {
        let (name, fence, held) = (lease.name(), lease.fence(), lease.held());
        self.counters.released.add(1);
        self.events.emit(|| Event::Released { name: name.to_string(), fence, held });
        self.events.debug(|| format!("released lock {name:?} after {held:?}"));
    }

    fn report_failed_release(&self, lease: &Lease, failure: &Failure) {
        let (name, fence) = (lease.name(), lease.fence());
        self.counters.failed_releases.add(1);
        self.events.emit(|| Event::ReleaseFailed {
            name: name.to_string(),
            fence,
            reason: failure.source.to_string(),
        });
        self.log_failed_release(lease, failure);
    }

    /// Logs that a level was not released. There are no events of inner levels.
    pub(crate) fn log_failed_release(&self, lease: &Lease, failure: &Failure) {
        let (name, source) = (lease.name(), &failure.source);
        self.events.warn(|| format!("releasing lock {name:?} failed: {source}"));
    }

    /// Reports that a lease was lost.
    pub(crate) fn report_loss(&self, lease: &Lease, why: &str) {
        self.log_loss(lease, why);
        self.end_lost(lease);
        self.counters.settle_hold();
    }

    fn log_loss(&self, lease: &Lease, why: &str) {
        let (name, fence) = (lease.name(), lease.fence());
        if !lease.is_unreported() {
            self.events
                .warn(|| format!("the lease of lock {name:?} (fence {fence}) is lost: {why}"));
        }
    }

    /// Does what a loss entails, without a line of its own for the log. The hold is to be settled
    /// once there is one.
    pub(crate) fn end_lost(&self, lease: &Lease) {
        // First the event: the next holder reports its own.
        self.tell_end_of_lost(lease);
        self.wait_queues.end_hold(lease);
    }

    fn tell_end_of_lost(&self, lease: &Lease) {
        if lease.may_tell_loss() {
            self.tell_loss(lease);
        }
        self.events.end_span(&lease.span);
    }

    /// Tells the program of a loss.
    pub(crate) fn tell_loss(&self, lease: &Lease) {
        let (name, fence) = (lease.name(), lease.fence());
        self.counters.lost.add(1);
        self.events.emit(|| Event::Lost { name: name.to_string(), fence });
    }
}
