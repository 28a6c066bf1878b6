//! Reports what affects many calls and leases of a client at once: outages, with a line in the log
//! when one begins and one when it is over, and the renewals and losses of one turn of the renewer.
//!
//! An outage is over when servers reply again about all affected names, or about others on the same
//! servers. If renewals were refused, it lasts until none is refused any longer.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::event_thread::Events;
use crate::base::failure::{Failure, FailureKind};
use crate::error::Loss;
use crate::event::Event;
use crate::protocol::call::CallSite;
use crate::protocol::retry::is_outage;
use crate::stats::Counters;
use crate::store::Store;

/// How long after an outage a failure is attributed to a request that was sent during it.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Logs the outages of one client.
#[derive(Default)]
pub(crate) struct OutageLog {
    events: Events,
    counters: Arc<Counters>,
    /// Weak, because the store has threads that report here, which must not keep it alive.
    store: Option<Weak<dyn Store>>,
    /// Whether there is an outage.
    pub(super) lasts: AtomicBool,
    state: Mutex<OutageState>,
}

/// The renewals and losses that the renewer reports at the end of a turn.
#[derive(Default)]
struct Renewals {
    /// How many leases were renewed in this turn.
    renewed: usize,
    /// How many of them were late.
    late: usize,
    /// By reason, how many leases were found lost in this turn, and the first of them.
    losses: BTreeMap<String, (u64, String)>,
}

struct OutageState {
    /// Names whose last request failed, one per server.
    failing: Vec<Arc<str>>,
    /// Whether renewals are refused.
    refused: bool,
    begin: Moment,
    /// The counts of failed calls and lost leases at that time.
    before: [u64; 2],
    /// When the last outage ended.
    over: Moment,
    renewals: Renewals,
}

impl Default for OutageState {
    fn default() -> Self {
        Self {
            failing: Vec::new(),
            refused: false,
            begin: Moment::FIRST,
            before: [0; 2],
            over: Moment::FIRST,
            renewals: Renewals::default(),
        }
    }
}

impl OutageLog {
    pub(crate) fn new(events: Events, counters: Arc<Counters>, store: &Arc<dyn Store>) -> Self {
        let store = Some(Arc::downgrade(store));
        Self { events, counters, store, ..Self::default() }
    }

    /// Records a failed request of a call, which tries again after `pause`; `None` if it does not.
    /// A call that is not about a lock is not part of an outage, because any server can answer it.
    pub(super) fn record_failed_call(
        &self,
        name: &str,
        failure: &Failure,
        pause: Option<Duration>,
    ) {
        // A broken connection is not an outage.
        let is_late = pause != Some(Duration::ZERO) || failure.kind == FailureKind::Timeout;
        if is_late && is_outage(failure) && !name.is_empty() {
            self.record_failure(name, failure);
        }
    }

    /// Records that a renewal was not confirmed.
    pub(super) fn record_failed_renewal(&self, name: &str, failure: &Failure) {
        if is_outage(failure) {
            self.record_failure(name, failure);
        } else {
            // The server still answers other requests, so only a renewal shows when it accepts them
            // again.
            let mut state = self.state.lock();
            self.begin(&mut state, name, failure);
            state.refused = true;
        }
    }

    /// Records that a lease was renewed, and whether that was late.
    pub(super) fn record_renewal(&self, is_late: bool) {
        let Renewals { renewed, late, .. } = &mut self.state.lock().renewals;
        *renewed += 1;
        *late += usize::from(is_late);
    }

    /// Records a loss, which is logged at the end of the turn. Until then it counts as unfinished.
    pub(super) fn record_loss(&self, name: &str, fence: u64, site: &CallSite, loss: &Loss) {
        // A program that ends now still gets the line.
        self.counters.unfinished.fetch_add(1, Ordering::SeqCst);
        let losses = &mut self.state.lock().renewals.losses;
        let (count, _) = losses
            .entry(loss.to_string())
            .or_insert_with(|| (0, format!("{name:?} (fence {fence}) {site}")));
        *count += 1;
    }

    /// Reports the renewals and losses of a turn of the renewer.
    pub(super) fn report_turn(&self) {
        let Renewals { renewed, late, losses } = mem::take(&mut self.state.lock().renewals);
        if renewed > 0 {
            self.counters.renewals.fetch_add(renewed as u64, Ordering::Relaxed);
            self.counters.late_renewals.fetch_add(late as u64, Ordering::Relaxed);
            self.events.emit(|| Event::Renewed { count: renewed });
            self.events.log(log::Level::Trace, || format!("renewed leases: {renewed}"));
        }
        for (why, (count, first)) in losses {
            // Thousands may be lost in one outage, for few different reasons.
            self.events.warn(|| match count {
                1 => format!("the lease of lock {first} is lost: {why}"),
                _ => format!("the leases of {count} locks are lost, first of {first}: {why}"),
            });
            self.counters.unfinished.fetch_sub(count, Ordering::SeqCst);
        }
    }

    /// Returns `true` if renewals are known to be refused.
    pub(super) fn has_refusals(&self) -> bool {
        self.lasts.load(Ordering::Relaxed) && self.state.lock().refused
    }

    /// Records that no renewal is refused any more.
    pub(super) fn end_refusals(&self) {
        let mut state = self.state.lock();
        state.refused = false;
        self.end(&mut state);
    }

    fn record_failure(&self, name: &str, failure: &Failure) {
        let mut state = self.state.lock();
        let is_told = state.failing.iter().any(|failing| self.share_server(failing, name));
        // Requests that were sent during an outage may fail a little after its end.
        if !is_told && state.over.after(AFTERMATH) <= Moment::now() {
            self.begin(&mut state, name, failure);
            state.failing.push(name.into());
        }
    }

    /// Records that a server has replied to a request about a name.
    pub(super) fn record_reply(&self, name: &str) {
        if !name.is_empty() {
            let mut state = self.state.lock();
            // With a cluster, other masters may still be away.
            state.failing.retain(|failing| !self.share_server(failing, name));
            self.end(&mut state);
        }
    }

    fn begin(&self, state: &mut OutageState, name: &str, failure: &Failure) {
        if !self.lasts.swap(true, Ordering::Relaxed) {
            state.begin = Moment::now();
            state.before = self.counts();
            let Failure { server, source, .. } = failure;
            self.events.warn(|| format!("an outage begins: lock {name:?} at {server}: {source}"));
        }
    }

    fn end(&self, state: &mut OutageState) {
        if state.refused || !state.failing.is_empty() || !self.lasts.swap(false, Ordering::Relaxed)
        {
            return;
        }
        state.over = Moment::now();
        let lasted = state.over.since(state.begin);
        let [calls, holds] = self.counts();
        let failed = calls - state.before[0];
        let lost = holds - state.before[1];
        self.events.warn(|| {
            format!(
                "the outage is over after {lasted:?}: calls failed: {failed}, leases lost: {lost}"
            )
        });
    }

    fn counts(&self) -> [u64; 2] {
        [&self.counters.failed, &self.counters.lost].map(|it| it.load(Ordering::Relaxed))
    }

    fn share_server(&self, one: &str, other: &str) -> bool {
        let store = self.store.as_ref().and_then(Weak::upgrade);
        store.is_none_or(|store| store.share_server(one, other))
    }
}
