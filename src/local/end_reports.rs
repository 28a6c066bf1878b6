//! What a thread does that learns how a hold has ended: it reports that, and leaves to the renewer
//! what must be cleaned up.

use crate::failure::Failure;
use crate::local::end_notifier::{EXPIRED, EndNotifier, GONE, HoldFailure, release_outcome};
use crate::local::lease::Lease;
use crate::local::renewer::Renewer;
use crate::store::request::HoldReply;

/// Cleans up and reports how holds have ended, in whichever thread learns it.
#[derive(Clone, Debug)]
pub(super) struct EndReports {
    pub(super) ends: EndNotifier,
    pub(super) renewer: Renewer,
}

impl EndReports {
    /// Cleans up and reports when it is known how a hold has ended. Does nothing if that is known
    /// already: of several threads that learn it, the first reports it.
    pub(super) fn report_end(&self, lease: &Lease, outcome: &Result<(), HoldFailure>) {
        self.ends.report_end(lease, outcome, |in_doubt| self.renewer.add_clean_up(in_doubt));
    }

    /// As `report_end`, with the reply to a release that was posted.
    pub(super) fn report_reply(&self, lease: &Lease, reply: Result<HoldReply, Failure>) {
        if reply.is_ok() {
            self.ends.outages.record_reply(lease.name());
        }
        self.settle(lease, &release_outcome(lease, reply, false));
    }

    /// As `report_end`, for a hold whose release was not confirmed, before the next holder reports
    /// its own.
    pub(super) fn settle(&self, lease: &Lease, outcome: &Result<(), HoldFailure>) {
        self.ends.settle_release(&lease.id, || {
            self.report_end(lease, outcome);
            !matches!(outcome, Err(HoldFailure::Failed(_)))
        });
    }

    /// Logs that a level was not released.
    pub(super) fn log_failed_release(&self, lease: &Lease, failure: &Failure) {
        self.ends.log_failed_release(lease, failure);
    }

    /// Marks a hold as lost if its deadline has passed, and cleans it up.
    pub(super) fn expire(&self, lease: &Lease) {
        if self.ends.mark_expired(lease) {
            self.renewer.add_clean_up(lease.to_clean_up());
            self.ends.report_loss(lease, EXPIRED);
        }
    }

    /// Marks a hold as lost because the store does not know it any more.
    pub(super) fn lose(&self, lease: &Lease) {
        if self.ends.mark_gone(lease) {
            if lease.is_in_doubt() {
                self.renewer.add_clean_up(lease.to_clean_up());
            }
            self.ends.report_loss(lease, GONE);
        }
    }
}
