//! What the renewer reports about its leases: renewals that fail or succeed again, and leases that
//! are lost.
//!
//! Decides what is an event for each lease, and what is one line of the log for all of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::Ordering;

use crate::base::failure::Failure;
use crate::event::Event;
use crate::local::hold::Hold;
use crate::local::reporter::{ReportSink, Reporter};
use crate::local::retry::is_outage;
use crate::store::background::InDoubtHold;

/// What the ends of holds leave to do for the renewer's thread.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) clean_ups: RefCell<Vec<InDoubtHold>>,
    /// How many leases were found lost in this turn, and the first of them, by the reason.
    lost: RefCell<BTreeMap<&'static str, (usize, String)>>,
}

impl ReportSink for Ends {
    fn clean_up(&self, in_doubt: InDoubtHold) {
        self.clean_ups.borrow_mut().push(in_doubt);
    }

    fn takes_loss(&self, hold: &Hold, why: &'static str) -> bool {
        let first = || (0, format!("{:?} (fence {})", &hold.id.name, hold.fence()));
        self.lost.borrow_mut().entry(why).or_insert_with(first).0 += 1;
        true
    }
}

/// The renewer's reports. They are collected during one turn of the renewer, and reported at its
/// end.
#[derive(Debug)]
pub(super) struct RenewalReports {
    pub(super) reporter: Reporter<Ends>,
    /// How many leases there are whose last renewal has failed.
    failing: usize,
    /// How many leases were renewed in this turn.
    renewed: usize,
    /// How many of them late.
    late: usize,
}

impl RenewalReports {
    pub(super) fn new(reporter: Reporter<()>) -> Self {
        Self { reporter: reporter.with_sink(Ends::default()), failing: 0, renewed: 0, late: 0 }
    }

    /// Records that a renewal brought no confirmation, while there is time to try again.
    pub(super) fn record_failure(&mut self, hold: &Hold, failure: &Failure) {
        let Reporter { counters, events, outages, .. } = &self.reporter;
        if is_outage(failure) {
            outages.record_failure(&hold.id.name, failure);
        } else {
            outages.record_refusal(&hold.id.name, failure);
        }
        let remaining = hold.lease.remaining();
        if remaining.is_zero() || hold.failing.swap(true, Ordering::Relaxed) {
            return;
        }
        self.failing += 1;
        counters.failed_renewals.add(1);
        events.emit(|| Event::RenewalFailing {
            name: hold.id.name.to_string(),
            fence: hold.fence(),
            remaining,
            reason: failure.source.to_string(),
        });
    }

    /// Records that a lease was renewed, and whether that was late.
    pub(super) fn record_renewal(&mut self, hold: &Hold, late: bool) {
        self.renewed += 1;
        self.late += usize::from(late);
        self.reporter.outages.record_reply(&hold.id.name);
        self.forget(hold);
    }

    /// Forgets a lease whose last renewal has not failed, or that the renewer has no more.
    pub(super) fn forget(&mut self, hold: &Hold) {
        if hold.failing.swap(false, Ordering::Relaxed) {
            self.failing -= 1;
        }
    }

    /// Reports what has happened in a turn.
    pub(super) fn tell(&mut self) {
        let (renewed, late) = (mem::take(&mut self.renewed), mem::take(&mut self.late));
        let Reporter { counters, events, outages, sink, .. } = &self.reporter;
        if renewed > 0 {
            counters.renewals.add(renewed as u64);
            counters.late_renewals.add(late as u64);
            events.emit(|| Event::Renewed { count: renewed });
            events.trace(|| format!("renewed leases: {renewed}"));
        }
        for (why, (count, first)) in sink.lost.take() {
            events.warn(|| match count {
                1 => format!("the lease of lock {first} is lost: {why}"),
                _ => format!("the leases of {count} locks are lost, first of {first}: {why}"),
            });
            (0..count).for_each(|_| counters.settle_hold());
        }
        if self.failing == 0 {
            outages.end_refusals();
        }
    }
}
