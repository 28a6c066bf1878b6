//! Reports about calls and holds: that a lock is held, how a call has ended without it, that a hold
//! has begun, and how it has ended.
//!
//! Decides which events and log lines report that, what must be cleaned up, and that the next
//! waiter of this process may try. Any thread may learn how a hold has ended; the first reports it.
//! Knows nothing of the store.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::failure::Failure;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::local::call::{Caller, Wait};
use crate::local::counters::Counters;
use crate::local::hold::Hold;
use crate::local::lease::HoldFailure;
use crate::local::outage::Outages;
use crate::local::wait_queues::WaitQueues;
use crate::store::background::InDoubtHold;
use crate::store::hold_id::HoldId;
use crate::store::request::HoldReply;

/// Why leases are lost.
const EXPIRED: &str = "it was not renewed in time";
const GONE: &str = "the server does not know it any more";

/// Where a report leaves work.
pub(crate) trait ReportSink {
    /// Has a hold removed from the store that may exist there, or come to.
    fn clean_up(&self, in_doubt: InDoubtHold);

    /// Takes over to log a loss, and to settle the hold then. Returns `false` if it does not.
    fn takes_loss(&self, _: &Hold, _why: &'static str) -> bool {
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
    pub(super) sink: S,
}

impl<S> Reporter<S> {
    /// Returns one that leaves work elsewhere.
    pub(super) fn with_sink<T>(self, sink: T) -> Reporter<T> {
        let Self { events, counters, outages, wait_queues, .. } = self;
        Reporter { events, counters, outages, wait_queues, sink }
    }

    /// Reports that a hold has begun. If it is lost already, neither its beginning nor its end is
    /// reported.
    pub(super) fn report_acquired(&self, hold: &Hold, caller: &Caller) {
        let Some(current) = hold.begin_report() else { return };
        let (name, fence, waited) = (&hold.id.name, current.fence, || caller.begin.elapsed());
        self.counters.acquired.add(1);
        let event = || Event::Acquired { name: name.to_string(), fence, waited: waited() };
        let line = || format!("acquired lock {name:?} (fence {fence}) after {:?}", waited());
        self.events.tell(event, line);
    }

    /// Reports that a call has found a lock held, unless it was `reported` of this call already.
    pub(super) fn report_contended(&self, name: &str, reported: &Cell<bool>) {
        if !reported.replace(true) {
            self.counters.contended.add(1);
            let line = || format!("lock {name:?} is held by another owner");
            self.events.tell(|| Event::Contended { name: name.to_string() }, line);
        }
    }

    /// Reports that a call has ended without a hold, with an error or because the lock was held.
    pub(super) fn report_failure(
        &self,
        name: &str,
        wait: Wait,
        error: Option<&Error>,
        waited: Duration,
    ) {
        let Self { counters, events, .. } = self;
        match error {
            // That the lock is held was reported when the only attempt found it so.
            None if wait == Wait::No => counters.busy.add(1),
            None => {
                counters.timed_out.add(1);
                let line = || format!("waited for lock {name:?} in vain, for {waited:?}");
                events.tell(|| Event::TimedOut { name: name.to_string(), waited }, line);
            }
            Some(error) if error.is_failure() => {
                counters.failed.add(1);
                let reason = || error.with_causes();
                let event = || Event::Failed { name: name.to_string(), waited, reason: reason() };
                let line = || format!("lock {name:?} failed after {waited:?}: {}", reason());
                events.tell(event, line);
            }
            Some(_) => {}
        }
    }

    /// Reports that a hold was released, or handed off.
    pub(super) fn report_release(&self, hold: &Hold) {
        let (name, fence) = (&hold.id.name, hold.fence());
        self.counters.released.add(1);
        let event = || Event::Released { name: name.to_string(), fence, held: hold.held() };
        self.events.tell(event, || format!("released lock {name:?} after {:?}", hold.held()));
    }

    fn report_failed_release(&self, hold: &Hold, failure: &Failure) {
        let (name, fence) = (&hold.id.name, hold.fence());
        self.counters.failed_releases.add(1);
        self.events.emit(|| Event::ReleaseFailed {
            name: name.to_string(),
            fence,
            reason: failure.source.to_string(),
        });
        self.log_failed_release(hold, failure);
    }

    /// Logs that a level was not released. There are no events of inner levels.
    pub(super) fn log_failed_release(&self, hold: &Hold, failure: &Failure) {
        let (name, source) = (&hold.id.name, &failure.source);
        self.events.warn(|| format!("releasing lock {name:?} failed: {source}"));
    }

    fn tell_loss(&self, hold: &Hold) {
        if hold.is_reported() {
            let (name, fence) = (&hold.id.name, hold.fence());
            self.counters.lost.add(1);
            self.events.emit(|| Event::Lost { name: name.to_string(), fence });
        }
        self.events.end_span(&hold.span);
    }

    fn log_loss(&self, hold: &Hold, why: &str) {
        if hold.is_reported() {
            let (name, fence) = (&hold.id.name, hold.fence());
            self.events
                .warn(|| format!("the lease of lock {name:?} (fence {fence}) is lost: {why}"));
        }
    }

    /// Ends a hold without its holder. Returns `false` if it has ended or is lost already.
    pub(super) fn end(&self, hold: &Hold) -> bool {
        let ended = hold.end();
        if ended {
            self.count_end(hold);
            self.wait_queues.end_hold(hold);
        }
        ended
    }

    /// Counts the end of a hold. One after which the lock was kept was counted before.
    fn count_end(&self, hold: &Hold) {
        if !hold.is_kept() {
            self.counters.end_hold();
        }
    }

    /// Notes that a hold which was released does not exist any more.
    pub(super) fn confirm_release(&self, hold: &HoldId) {
        self.wait_queues.settle_release(hold, || true);
    }

    /// Reports how a hold has ended that was released, unless that is known already. Before it
    /// counts as settled, `clean_up` gets it if it may exist in the store.
    pub(super) fn report_end(
        &self,
        hold: &Hold,
        outcome: &Result<(), HoldFailure>,
        clean_up: impl FnOnce(InDoubtHold),
    ) {
        if !hold.settle(matches!(outcome, Err(HoldFailure::Lost))) {
            return;
        }
        if hold.in_doubt.load(Ordering::Relaxed) || matches!(outcome, Err(HoldFailure::Failed(_))) {
            clean_up(hold.to_clean_up());
        }
        match outcome {
            Err(HoldFailure::Lost) => {
                self.log_loss(hold, "the server did not know it any more");
                self.tell_loss(hold);
            }
            Err(HoldFailure::Failed(failure)) if hold.is_reported() => {
                self.report_failed_release(hold, failure);
            }
            Ok(()) if hold.is_reported() => self.report_release(hold),
            _ => {}
        }
        self.counters.settle_hold();
    }
}

impl<S: ReportSink> Reporter<S> {
    /// Marks a hold as lost if its deadline has passed. Returns `true` for the one call that does.
    pub(super) fn expire(&self, hold: &Hold) -> bool {
        let lost = hold.expire();
        if lost {
            self.report_loss(hold, EXPIRED, true);
        }
        lost
    }

    /// Marks a hold as lost because the store does not know it any more.
    pub(super) fn lose(&self, hold: &Hold) {
        if hold.lose() {
            self.report_loss(hold, GONE, hold.in_doubt.load(Ordering::Relaxed));
        }
    }

    fn report_loss(&self, hold: &Hold, why: &'static str, may_exist: bool) {
        self.count_end(hold);
        if may_exist {
            self.sink.clean_up(hold.to_clean_up());
        }
        // A tenure that was kept has no hold that was reported: its loss is silent.
        let taken = hold.is_reported() && self.sink.takes_loss(hold, why);
        if !taken {
            self.log_loss(hold, why);
        }
        // First the event: the next holder reports its own.
        self.tell_loss(hold);
        self.wait_queues.end_hold(hold);
        if !taken {
            self.counters.settle_hold();
        }
    }

    /// Reports what the reply to a posted release says.
    pub(super) fn report_reply(&self, hold: &Hold, reply: Result<HoldReply, Failure>) {
        if reply.is_ok() {
            self.outages.record_reply(&hold.id.name);
        }
        self.settle(hold, &hold.release_outcome(reply));
    }

    /// Reports how a hold has ended whose release was not confirmed, before the next holder reports
    /// its own.
    pub(super) fn settle(&self, hold: &Hold, outcome: &Result<(), HoldFailure>) {
        self.wait_queues.settle_release(&hold.id, || {
            self.report_end(hold, outcome, |in_doubt| self.sink.clean_up(in_doubt));
            !matches!(outcome, Err(HoldFailure::Failed(_)))
        });
    }
}
