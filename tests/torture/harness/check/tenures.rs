//! Finds out when a process got the lock that a hold relies on. The holds of a tenure follow one
//! another without a request, by handoff or on a kept lock.

use std::collections::BTreeMap;

use crate::harness::history::{Action, Call, Outcome};

pub(super) struct Tenures {
    /// See [`history::zero`](crate::harness::history::zero).
    zero: u64,
    /// By process and name: the last fence, and the start of the call that acquired the lock.
    last: BTreeMap<(u64, u32), (u64, u64)>,
}

impl Tenures {
    pub(super) fn new(zero: u64) -> Self {
        Self { zero, last: BTreeMap::new() }
    }

    /// Returns the start of the call that began the tenure of this call's hold, or an early time of
    /// that tenure.
    pub(super) fn begun(&mut self, call: &Call) -> u64 {
        let (Action::Lock { level: 1 }, Outcome::Granted { fence, .. }) =
            (call.action, call.outcome)
        else {
            return call.span.start;
        };
        // In a tenure, each hold has the next fence. Another tenure begins at the server's clock. A
        // call for several locks may have begun it, and may have given it back without the others.
        let last = self.last.get(&(call.actor.worker, call.name));
        let begun = last.filter(|(last, _)| last + 1 == fence).map(|(_, begun)| *begun);
        let given = (fence * 1000).saturating_sub(self.zero);
        let begun = begun.unwrap_or(call.span.start.min(given));
        self.last.insert((call.actor.worker, call.name), (fence, begun));
        begun
    }
}
