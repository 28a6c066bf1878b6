//! Reports about holds: that they have begun, and how they have ended.
//!
//! Decides which events and log lines report that, what must be cleaned up, and that the next
//! waiter of this process may try. Any thread may learn how a hold has ended; the first reports it.
//! Knows nothing of the store.

use std::sync::Arc;

use crate::base::failure::Failure;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::local::call::Caller;
use crate::local::counters::Counters;
use crate::local::lease::Lease;
use crate::local::outage::Outages;
use crate::local::wait_queues::WaitQueues;
use crate::store::hold::{HoldId, HoldKind};
use crate::store::job::InDoubtHold;
use crate::store::request::HoldReply;

/// Why leases are lost.
const EXPIRED: &str = "it was not renewed in time";
const GONE: &str = "the server does not know it any more";

/// Why a request about an existing hold had no effect.
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

/// Returns what the reply to a release means. If another one may have ended the hold, a reply that
/// it is gone is no loss.
pub(super) fn release_outcome(
    lease: &Lease,
    reply: Result<HoldReply, Failure>,
) -> Result<(), HoldFailure> {
    match reply {
        Ok(HoldReply::Gone) if !lease.is_released_again() => Err(HoldFailure::Lost),
        Ok(HoldReply::Gone | HoldReply::Done) => Ok(()),
        Err(failure) => {
            if !failure.is_ambiguous() {
                lease.forget_release();
            }
            Err(HoldFailure::Failed(failure))
        }
    }
}

/// Where a report leaves work.
pub(crate) trait ReportSink {
    /// Has a hold removed from the store that may exist there, or come to.
    fn clean_up(&self, in_doubt: InDoubtHold);

    /// Takes over to log a loss, and to settle the hold then. Returns `false` if it does not.
    fn takes_loss(&self, _: &Lease, _why: &'static str) -> bool {
        false
    }
}

#[cfg(test)]
impl ReportSink for () {
    fn clean_up(&self, _: InDoubtHold) {}
}

/// Reports to the user, and ends holds in the wait queues and the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporter<S> {
    pub(super) events: Events,
    pub(super) counters: Arc<Counters>,
    pub(super) outages: Arc<Outages>,
    pub(super) wait_queues: Arc<WaitQueues>,
    /// Those of read-write locks and semaphores. A thread leaves the queue once it has acquired:
    /// those behind it may acquire too.
    pub(super) member_queues: Arc<WaitQueues>,
    pub(super) sink: S,
}

impl<S> Reporter<S> {
    /// Returns one that leaves work elsewhere.
    pub(super) fn with_sink<T>(self, sink: T) -> Reporter<T> {
        let Self { events, counters, outages, wait_queues, member_queues, .. } = self;
        Reporter { events, counters, outages, wait_queues, member_queues, sink }
    }

    /// Reports that a hold has begun. If it is lost already, neither its beginning nor its end is
    /// reported.
    pub(super) fn report_acquired(&self, lease: &Lease, caller: &Caller) {
        let (name, waited) = (lease.name(), caller.begin.elapsed());
        lease.report_begin(|fence| {
            self.counters.acquired.add(1);
            self.events.emit(|| Event::Acquired { name: name.to_string(), fence, waited });
            self.events
                .debug(|| format!("acquired lock {name:?} (fence {fence}) after {waited:?}"));
        });
    }

    /// Reports that a hold was released, or handed off.
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
    pub(super) fn log_failed_release(&self, lease: &Lease, failure: &Failure) {
        let (name, source) = (lease.name(), &failure.source);
        self.events.warn(|| format!("releasing lock {name:?} failed: {source}"));
    }

    fn tell_loss(&self, lease: &Lease) {
        if lease.is_reported() {
            let (name, fence) = (lease.name(), lease.fence());
            self.counters.lost.add(1);
            self.events.emit(|| Event::Lost { name: name.to_string(), fence });
        }
        self.events.end_span(&lease.span);
    }

    fn log_loss(&self, lease: &Lease, why: &str) {
        if lease.is_reported() {
            let (name, fence) = (lease.name(), lease.fence());
            self.events
                .warn(|| format!("the lease of lock {name:?} (fence {fence}) is lost: {why}"));
        }
    }

    /// Ends a hold without its holder. Returns `false` if it has ended or is lost already.
    pub(super) fn end(&self, lease: &Lease) -> bool {
        let ended = lease.end();
        if ended {
            self.counters.end_hold();
            self.wait_queues.end_hold(lease);
        }
        ended
    }

    /// Notes that a hold which was released does not exist any more.
    pub(super) fn confirm_release(&self, hold: &HoldId) {
        self.queues(hold.kind).settle_release(hold, || true);
    }

    /// Signals the head of a queue to try again, after its client was unregistered for a thread
    /// that has left.
    pub(super) fn signal_head(&self, name: &str) {
        // It was unregistered for whatever it waits for.
        self.wait_queues.signal_head(name);
        self.member_queues.signal_head(name);
    }

    /// Reports how a hold has ended that was released, unless that is known already. Before it
    /// counts as settled, `clean_up` gets it if it may exist in the store.
    pub(super) fn report_end(
        &self,
        lease: &Lease,
        outcome: &Result<(), HoldFailure>,
        clean_up: impl FnOnce(InDoubtHold),
    ) {
        if !lease.settle(matches!(outcome, Err(HoldFailure::Lost))) {
            return;
        }
        if lease.is_in_doubt() || matches!(outcome, Err(HoldFailure::Failed(_))) {
            clean_up(lease.to_clean_up());
        }
        match outcome {
            Err(HoldFailure::Lost) => {
                self.log_loss(lease, "the server did not know it any more");
                self.tell_loss(lease);
            }
            Err(HoldFailure::Failed(failure)) if lease.is_reported() => {
                self.report_failed_release(lease, failure);
            }
            Ok(()) if lease.is_reported() => self.report_release(lease),
            _ => {}
        }
        self.counters.settle_hold();
    }

    /// The wait queues for holds of a kind.
    pub(super) fn queues(&self, kind: HoldKind) -> &WaitQueues {
        if kind == HoldKind::Lock { &self.wait_queues } else { &self.member_queues }
    }
}

impl<S: ReportSink> Reporter<S> {
    /// Marks a hold as lost if its deadline has passed. Returns `true` for the one call that does.
    pub(super) fn expire(&self, lease: &Lease) -> bool {
        let lost = lease.expire();
        if lost {
            self.report_loss(lease, EXPIRED, true);
        }
        lost
    }

    /// Marks a hold as lost because the store does not know it any more.
    pub(super) fn lose(&self, lease: &Lease) {
        if lease.lose() {
            self.report_loss(lease, GONE, lease.is_in_doubt());
        }
    }

    fn report_loss(&self, lease: &Lease, why: &'static str, may_exist: bool) {
        self.counters.end_hold();
        if may_exist {
            self.sink.clean_up(lease.to_clean_up());
        }
        let taken = self.sink.takes_loss(lease, why);
        if !taken {
            self.log_loss(lease, why);
        }
        // First the event: the next holder reports its own.
        self.tell_loss(lease);
        self.wait_queues.end_hold(lease);
        if !taken {
            self.counters.settle_hold();
        }
    }

    /// Reports what the reply to a posted release says.
    pub(super) fn report_reply(&self, lease: &Lease, reply: Result<HoldReply, Failure>) {
        if reply.is_ok() {
            self.outages.record_reply(lease.name());
        }
        self.settle(lease, &release_outcome(lease, reply));
    }

    /// Reports how a hold has ended whose release was not confirmed, before the next holder reports
    /// its own.
    pub(super) fn settle(&self, lease: &Lease, outcome: &Result<(), HoldFailure>) {
        self.queues(lease.id.kind).settle_release(&lease.id, || {
            self.report_end(lease, outcome, |in_doubt| self.sink.clean_up(in_doubt));
            !matches!(outcome, Err(HoldFailure::Failed(_)))
        });
    }
}
