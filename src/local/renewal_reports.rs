//! What the renewer reports of the leases in its care: renewals that fail or succeed again, and
//! leases that are lost.
//!
//! Decides what is an event for each lease, and what is one line of the log for all of them.

use std::collections::BTreeMap;
use std::mem;

use crate::event::Event;
use crate::failure::Failure;
use crate::local::end_notifier::{EXPIRED, EndNotifier, GONE, HoldFailure};
use crate::local::lease::Lease;
use crate::local::retry::is_outage;
use crate::store::hold::HoldId;

/// The renewer's reports. They are collected in a turn of the renewer, and told at its end.
#[derive(Debug)]
pub(crate) struct RenewalReports {
    ends: EndNotifier,
    /// How many leases there are whose last renewal has failed.
    failing: usize,
    /// How many leases were renewed in this turn.
    renewed: usize,
    /// How many of them late.
    late: usize,
    /// How many leases were found lost in this turn, and the first of them, by the reason.
    lost: BTreeMap<&'static str, (usize, String)>,
}

impl RenewalReports {
    pub(crate) fn new(ends: EndNotifier) -> Self {
        Self { ends, failing: 0, renewed: 0, late: 0, lost: BTreeMap::new() }
    }

    /// Marks a lease as lost if its deadline has passed. Returns `true` for the one call that does.
    pub(crate) fn expire(&mut self, lease: &Lease) -> bool {
        let lost = self.ends.mark_expired(lease);
        if lost {
            self.record_loss(lease, EXPIRED);
        }
        lost
    }

    /// Marks a lease as lost because the server does not know the hold any more.
    pub(crate) fn lose(&mut self, lease: &Lease) {
        if self.ends.mark_gone(lease) {
            self.record_loss(lease, GONE);
        }
    }

    /// Ends a lease without its holder. Returns `false` if it has ended or is lost already.
    pub(crate) fn end(&self, lease: &Lease) -> bool {
        self.ends.end_hold(lease)
    }

    /// Reports how a hold has ended that was to be released here.
    pub(crate) fn report_end(&self, lease: &Lease, outcome: &Result<(), HoldFailure>) {
        // It is being cleaned up already.
        self.ends.report_end(lease, outcome, |_| {});
    }

    /// Returns `true` if no call is under way that may acquire a hold, and every hold has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.ends.counters.is_settled()
    }

    /// Notes that a hold which was cleaned up does not exist any more.
    pub(crate) fn confirm_release(&self, hold: &HoldId) {
        self.ends.confirm_release(hold);
    }

    /// Signals the head of a queue whose client was taken off the waiting clients.
    pub(crate) fn signal_head(&self, hold: &HoldId) {
        self.ends.signal_head(&hold.name);
    }

    /// Records that a server has replied to a request about a hold.
    pub(crate) fn record_reply(&self, hold: &HoldId) {
        self.ends.outages.record_reply(&hold.name);
    }

    fn record_loss(&mut self, lease: &Lease, why: &'static str) {
        let first = || (0, format!("{:?} (fence {})", lease.name(), lease.fence()));
        self.lost.entry(why).or_insert_with(first).0 += 1;
        self.ends.end_lost(lease);
    }

    /// Records that a renewal brought no confirmation, while there is time to try again.
    pub(crate) fn record_failure(&mut self, lease: &Lease, failure: &Failure) {
        let Failure { source, .. } = failure;
        if is_outage(failure) {
            self.ends.outages.record_failure(lease.name(), failure);
        } else {
            self.ends.outages.record_refusal(lease.name(), failure);
        }
        let remaining = lease.remaining();
        if remaining.is_zero() || lease.set_failing(true) {
            return;
        }
        self.failing += 1;
        self.ends.counters.failed_renewals.add(1);
        self.ends.events.emit(|| Event::RenewalFailing {
            name: lease.name().to_string(),
            fence: lease.fence(),
            remaining,
            reason: source.to_string(),
        });
    }

    /// Records that a lease was renewed, and whether that was late.
    pub(crate) fn record_renewal(&mut self, lease: &Lease, late: bool) {
        self.renewed += 1;
        self.late += usize::from(late);
        self.ends.outages.record_reply(lease.name());
        self.forget(lease);
    }

    /// Forgets a lease whose last renewal has not failed, or that the renewer has no more.
    pub(crate) fn forget(&mut self, lease: &Lease) {
        if lease.set_failing(false) {
            self.failing -= 1;
        }
    }

    pub(crate) fn tell_of_a_panic(&self) {
        self.ends.events.error(|| "the renewer panicked, and goes on".into());
    }

    /// Tells what has happened in a turn.
    pub(crate) fn tell(&mut self) {
        let (renewed, late) = (mem::take(&mut self.renewed), mem::take(&mut self.late));
        let EndNotifier { events, counters, .. } = &self.ends;
        if renewed > 0 {
            counters.renewals.add(renewed as u64);
            counters.late_renewals.add(late as u64);
            events.emit(|| Event::Renewed { count: renewed });
            events.trace(|| format!("renewed leases: {renewed}"));
        }
        for (why, (count, first)) in mem::take(&mut self.lost) {
            events.warn(|| match count {
                1 => format!("the lease of lock {first} is lost: {why}"),
                _ => format!("the leases of {count} locks are lost, first of {first}: {why}"),
            });
            (0..count).for_each(|_| counters.settle_hold());
        }
        if self.failing == 0 {
            self.ends.outages.end_refusals();
        }
    }
}
