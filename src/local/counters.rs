//! What a client counts of its locks: for [`Stats`], and for a shutdown. Each number is counted in
//! one place: where the event of the same name is emitted, if there is one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::Counter;
use crate::stats::Stats;

/// The numbers of one client. [`Stats`] says what each of them counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(super) held: AtomicU64,
    waiting: AtomicU64,
    /// The calls that may yet acquire a hold, and the holds that are not known to have ended.
    pub(super) unsettled: AtomicU64,
    pub(super) acquired: Counter,
    pub(super) busy: Counter,
    pub(super) contended: Counter,
    pub(super) failed: Counter,
    pub(super) failed_releases: Counter,
    pub(super) failed_renewals: Counter,
    pub(super) handoffs: Counter,
    pub(super) late_renewals: Counter,
    pub(super) lost: Counter,
    pub(super) missed_wakeups: Counter,
    pub(super) recalls: Counter,
    pub(super) relocks: Counter,
    pub(super) released: Counter,
    pub(super) renewals: Counter,
    pub(super) timed_out: Counter,
    pub(super) wakeups: Counter,
}

/// A thread that waits, until this is dropped.
#[derive(Debug)]
pub(super) struct CountedWait<'a>(&'a Counters);

impl Counters {
    /// Ends a hold that was lost, or whose release begins.
    pub(super) fn end_hold(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Settles a hold that was lost, or whose release has a known outcome. Any clean-up has been
    /// added to the renewer.
    pub(super) fn settle_hold(&self) {
        self.unsettled.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn begin_wait(&self) -> CountedWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        CountedWait(self)
    }

    /// Returns the numbers that are counted here. Those of connections are zero.
    pub(super) fn to_stats(&self) -> Stats {
        Stats {
            held: self.held.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            acquired: self.acquired.get(),
            busy: self.busy.get(),
            contended: self.contended.get(),
            failed: self.failed.get(),
            failed_releases: self.failed_releases.get(),
            failed_renewals: self.failed_renewals.get(),
            handoffs: self.handoffs.get(),
            late_renewals: self.late_renewals.get(),
            lost: self.lost.get(),
            missed_wakeups: self.missed_wakeups.get(),
            recalls: self.recalls.get(),
            relocks: self.relocks.get(),
            released: self.released.get(),
            renewals: self.renewals.get(),
            timed_out: self.timed_out.get(),
            wakeups: self.wakeups.get(),
            ..Stats::default()
        }
    }

    /// Returns `true` if no call is under way that may acquire a hold, and every hold has ended.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::SeqCst) == 0
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that may acquire a hold, until this is dropped. Of a call that begins while the client is
/// closed, either this call sees that it is, or the thread that has closed it sees this call.
pub(super) struct CountedCall<'a>(&'a Counters);

impl<'a> CountedCall<'a> {
    pub(super) fn begin(counters: &'a Counters) -> Self {
        counters.unsettled.fetch_add(1, Ordering::SeqCst);
        Self(counters)
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.0.unsettled.fetch_sub(1, Ordering::SeqCst);
    }
}
