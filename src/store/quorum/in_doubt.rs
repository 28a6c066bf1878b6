//! Holds in doubt: what requests without a reply may leave on some servers.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::store::background::InDoubtHold;
use crate::store::hold_id::HoldId;
use crate::store::quorum::health::QuorumServer;

/// With this many holds in `late`, the ones that can no longer begin are removed.
const LATE_MAX: usize = 64;

/// The holds in doubt of a client, and where they are reported.
#[derive(Default)]
pub(super) struct InDoubtHolds {
    report: OnceLock<Box<dyn Fn(InDoubtHold) + Send + Sync>>,
    /// The client whose holds begin here.
    client: OnceLock<Arc<str>>,
    /// The holds that a request which was given up may yet begin somewhere, and until when that
    /// matters. One release does not end the doubt about them.
    late: Mutex<HashMap<HoldId, Moment>>,
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

impl InDoubtHolds {
    /// Sets the client, and where its holds are reported; only the first call has an effect.
    pub(super) fn report_to(&self, client: &str, report: Box<dyn Fn(InDoubtHold) + Send + Sync>) {
        drop((self.client.set(client.into()), self.report.set(report)));
    }

    /// Returns `true` if a server may have the hold. One that another client has begun, and this
    /// one has adopted, may be anywhere.
    pub(super) fn may_be_at(&self, server: &QuorumServer, hold: &HoldId) -> bool {
        server.was_asked_to_begin(hold)
            || self.client.get().is_none_or(|client| *client != hold.client)
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
    }

    /// Reports a hold that has ended, unless it has `everywhere` and for good. The lock stays taken
    /// until `kept_until` all the same.
    pub(super) fn end(&self, hold: &HoldId, kept_until: Moment, everywhere: bool) {
        let may_begin = self.late.lock().remove(hold).is_some();
        if (may_begin || !everywhere)
            && let Some(report) = self.report.get()
        {
            let (hold, lease) = (hold.clone(), self.lease());
            report(InDoubtHold { hold, kept_until, lease, settled_by_release: !may_begin });
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease.load(Ordering::Relaxed))
    }
}
