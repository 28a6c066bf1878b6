//! Holds in doubt: what requests without a reply may leave on some servers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, mem};

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::store::hold_id::HoldId;
use crate::store::job::InDoubtHold;
use crate::store::quorum::server::QuorumServer;

/// With this many holds in `late`, the ones that can no longer begin are removed.
const LATE_MAX: usize = 64;

/// The holds in doubt of a client, and where they are reported.
#[derive(Default)]
pub(super) struct InDoubtHolds {
    report: OnceLock<Box<dyn Fn(InDoubtHold) + Send + Sync>>,
    /// The holds that a request which was given up may yet begin somewhere, and until when that
    /// matters. One release does not end the doubt about them.
    late: Mutex<HashMap<HoldId, Moment>>,
    /// The client whose holds begin here.
    client: OnceLock<Arc<str>>,
    /// Whether `late` has any, so that most calls need no lock.
    any_late: AtomicBool,
    /// The longest lease of all requests, in nanoseconds.
    lease: AtomicU64,
}

impl fmt::Debug for InDoubtHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InDoubtHolds")
            .field("late", &self.late.lock().len())
            .finish_non_exhaustive()
    }
}

/// A hold that a request on its way ends. What is in doubt about it is reported only when the
/// request is decided: a job that releases the hold must not overtake the request, which would find
/// the hold gone.
#[derive(Debug)]
pub(super) struct EndedHold {
    in_doubt: Arc<InDoubtHolds>,
    hold: HoldId,
    /// Until when the request keeps the lock taken.
    kept_until: Moment,
    state: Mutex<EndState>,
}

#[derive(Debug)]
enum EndState {
    /// Replies are still waited for.
    Pending,
    /// As pending, and a server may keep the hold.
    MayRemain,
    /// Enough servers have replied, or no reply is waited for any more.
    Decided,
}

impl EndedHold {
    pub(super) fn new(in_doubt: &Arc<InDoubtHolds>, (hold, kept_until): (&HoldId, Moment)) -> Self {
        let state = Mutex::new(EndState::Pending);
        Self { in_doubt: in_doubt.clone(), hold: hold.clone(), kept_until, state }
    }

    /// Notes that the request may not have reached some server that may have the hold.
    pub(super) fn may_remain(&self) {
        let mut state = self.state.lock();
        if !matches!(*state, EndState::Decided) {
            *state = EndState::MayRemain;
            return;
        }
        drop(state);
        self.in_doubt.may_remain(&self.hold, self.kept_until);
    }

    fn decide(&self) {
        let before = mem::replace(&mut *self.state.lock(), EndState::Decided);
        if !matches!(before, EndState::Decided) {
            self.in_doubt.end(&self.hold, self.kept_until);
        }
        if matches!(before, EndState::MayRemain) {
            self.in_doubt.may_remain(&self.hold, self.kept_until);
        }
    }
}

/// Decides the end of a hold when it is dropped.
#[derive(Debug)]
pub(super) struct DecidesEnd(pub(super) Arc<EndedHold>);

impl Drop for DecidesEnd {
    fn drop(&mut self) {
        self.0.decide();
    }
}

impl InDoubtHolds {
    /// Sets the client, and where its holds are reported; only the first call has an effect.
    pub(super) fn report_to(&self, client: &str, report: Box<dyn Fn(InDoubtHold) + Send + Sync>) {
        drop((self.client.set(client.into()), self.report.set(report)));
    }

    /// Returns `true` if a server may have the hold. One that another client has begun, and this
    /// one has adopted, may be anywhere.
    pub(super) fn may_be_at(&self, server: &QuorumServer, hold: &HoldId) -> bool {
        server.was_asked_to_begin(hold)
            || self.client.get().is_some_and(|client| *client != hold.client)
    }

    /// Notes that leases of this length exist.
    pub(super) fn note_lease(&self, lease: Duration) {
        let nanos = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        if nanos > self.lease.load(Ordering::Relaxed) {
            self.lease.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Notes that a server may begin the hold late. The client may have it nevertheless, or have
    /// taken it back by then.
    pub(super) fn may_begin_late(&self, hold: &HoldId) {
        let (mut late, now) = (self.late.lock(), Moment::now());
        if late.len() >= LATE_MAX {
            late.retain(|_, until| *until > now);
        }
        // Until the hold is released, and then for as long as a lease.
        late.insert(hold.clone(), now.after(self.lease().saturating_mul(2)));
        self.any_late.store(true, Ordering::Release);
    }

    /// Reports a hold that has ended, if a server may yet begin it.
    pub(super) fn end(&self, hold: &HoldId, kept_until: Moment) {
        if !self.any_late.load(Ordering::Acquire) {
            return;
        }
        let mut late = self.late.lock();
        let may_begin = late.remove(hold).is_some();
        self.any_late.store(!late.is_empty(), Ordering::Release);
        drop(late);
        if may_begin {
            self.report(hold, kept_until, false);
        }
    }

    /// Reports a hold that has ended and may still exist on some server. The lock stays taken until
    /// `kept_until` all the same.
    pub(super) fn may_remain(&self, hold: &HoldId, kept_until: Moment) {
        let may_begin = self.late.lock().remove(hold).is_some();
        self.report(hold, kept_until, !may_begin);
    }

    fn report(&self, hold: &HoldId, kept_until: Moment, settled_by_release: bool) {
        if let Some(report) = self.report.get() {
            let (hold, lease) = (hold.clone(), self.lease());
            report(InDoubtHold { hold, kept_until, lease, settled_by_release });
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease.load(Ordering::Relaxed))
    }
}
