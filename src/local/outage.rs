//! The outages that calls and renewals of a client suffer from: one line of the log when one
//! begins, and one when it is over.
//!
//! An outage is over when servers reply again to requests about all names that suffered from it, or
//! about others of the same servers. Renewals that are refused suffer until none is any more.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::event::Events;
use crate::local::counters::Counters;
use crate::store::Store;

/// How long after an outage a failure is attributed to a request that was sent during it.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Logs the outages of one client.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    events: Events,
    counters: Arc<Counters>,
    /// It has threads that report to here, so it must not be kept alive.
    store: Option<Weak<dyn Store>>,
    /// Whether there is an outage. Checked on the reply to every call.
    lasts: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Debug)]
struct OutageState {
    /// The names whose last request has failed, one of each server.
    failing: Vec<Arc<str>>,
    /// Whether renewals are refused.
    refused: bool,
    begin: Moment,
    /// What was counted until then: calls that failed, and leases that were lost.
    before: [u64; 2],
    /// When the last one was over.
    over: Moment,
}

impl Default for OutageState {
    fn default() -> Self {
        let (begin, over) = (Moment::FIRST, Moment::FIRST);
        Self { failing: Vec::new(), refused: false, begin, before: [0; 2], over }
    }
}

impl Outages {
    pub(crate) fn new(events: Events, counters: Arc<Counters>, store: &Arc<dyn Store>) -> Self {
        let store = Some(Arc::downgrade(store));
        Self { events, counters, store, ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn lasts(&self) -> bool {
        self.lasts.load(Ordering::Relaxed)
    }

    /// Records that a call or a renewal suffers from a failure without a reply.
    pub(crate) fn record_failure(&self, name: &str, failure: &Failure) {
        let mut state = self.state.lock();
        let is_told = state.failing.iter().any(|failing| self.share_server(failing, name));
        if !is_told && state.over.after(AFTERMATH) <= Moment::now() {
            self.begin(&mut state, name, failure);
            state.failing.push(name.into());
        }
    }

    /// Records that a renewal was refused.
    pub(crate) fn record_refusal(&self, name: &str, failure: &Failure) {
        let mut state = self.state.lock();
        self.begin(&mut state, name, failure);
        state.refused = true;
    }

    /// Records that a server has replied to a request about a name.
    pub(crate) fn record_reply(&self, name: &str) {
        if self.lasts.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            state.failing.retain(|failing| !self.share_server(failing, name));
            self.end(&mut state);
        }
    }

    /// Records that no renewal is refused any more.
    pub(crate) fn end_refusals(&self) {
        if self.lasts.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            if mem::take(&mut state.refused) {
                self.end(&mut state);
            }
        }
    }

    fn begin(&self, state: &mut OutageState, name: &str, failure: &Failure) {
        if !self.lasts.swap(true, Ordering::Relaxed) {
            (state.begin, state.before) = (Moment::now(), self.counts());
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
        let (failed, lost) = (calls - state.before[0], holds - state.before[1]);
        self.events.warn(|| {
            format!(
                "the outage is over after {lasted:?}: calls failed: {failed}, leases lost: {lost}"
            )
        });
    }

    fn counts(&self) -> [u64; 2] {
        [self.counters.failed.get(), self.counters.lost.get()]
    }

    fn share_server(&self, one: &str, other: &str) -> bool {
        let store = self.store.as_ref().and_then(Weak::upgrade);
        store.is_none_or(|store| store.share_server(one, other))
    }
}
