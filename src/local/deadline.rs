//! The local deadline of a hold: until when it may be relied on, and how it has ended.
//!
//! Decides which of several threads is the one that finds a hold lost or ended. The deadline is
//! moved, found to be over, or ended by compare-and-swap, so that no thread can renew what another
//! has seen as lost.
//!
//! | state | set by | followed by |
//! |---|---|---|
//! | a moment | `new`, `extend` | a later moment, `LOST` or `ENDED` |
//! | `ENDED` | `end` before that moment, by its holder or a shutdown | `LOST` or `RELEASED` |
//! | `LOST` | `expire` at that moment, `lose` at any time, `settle` after the end | nothing |
//! | `RELEASED` | `settle` | nothing |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::Moment;

/// States that are not moments.
const LOST: u64 = 0;
const RELEASED: u64 = 1;
/// It was ended, and it is not known yet how its release has gone.
const ENDED: u64 = 2;

/// A moment, or how the hold has ended.
#[derive(Debug)]
pub(super) struct Deadline(AtomicU64);

impl Deadline {
    pub(super) fn new(moment: Moment) -> Self {
        Self(AtomicU64::new(moment.raw()))
    }

    /// Returns the deadline of a hold that was neither ended nor found lost.
    pub(super) fn get(&self) -> Option<Moment> {
        Some(self.load()).filter(|state| *state > ENDED).map(Moment::from_raw)
    }

    /// Returns the time for which the hold may still be relied on; zero if it is lost or ended.
    pub(super) fn remaining(&self) -> Duration {
        Moment::from_raw(self.load()).since(Moment::now())
    }

    /// Moves the deadline. Does nothing if it has passed in the meantime, or is later already.
    pub(super) fn extend(&self, deadline: Moment) {
        let deadline = deadline.raw();
        self.update(|seen| seen < deadline && Moment::now().raw() < seen, deadline);
    }

    /// Marks the hold as lost if its deadline has passed. Returns `true` for the one call that
    /// does.
    pub(super) fn expire(&self) -> bool {
        self.update(|seen| seen <= Moment::now().raw(), LOST)
    }

    /// Marks the hold as lost because the server does not know it any more. Returns `true` for the
    /// one call that does.
    pub(super) fn lose(&self) -> bool {
        self.update(|_| true, LOST)
    }

    /// Ends the hold at `now`. Returns `false` if it was ended or lost before.
    pub(super) fn end(&self, now: Moment) -> bool {
        self.update(|seen| now.raw() < seen, ENDED)
    }

    /// Returns `true` if the hold was ended, and its release has not found it lost.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.load(), ENDED | RELEASED)
    }

    /// Returns `true` if the hold is lost, also if no call has marked it as lost yet.
    pub(super) fn is_lost(&self) -> bool {
        let state = self.load();
        state == LOST || (state > ENDED && state <= Moment::now().raw())
    }

    /// Returns `true` if it is known how the hold has ended.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.load(), LOST | RELEASED)
    }

    /// Marks a hold that was ended as lost, because its release has found it so, or as released.
    /// Returns `true` for the first call that says how it has ended.
    pub(super) fn settle(&self, lost: bool) -> bool {
        let outcome = if lost { LOST } else { RELEASED };
        self.0.compare_exchange(ENDED, outcome, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sets the state to `next` while it is a moment that `may_change`. Returns `true` if it has.
    fn update(&self, may_change: impl Fn(u64) -> bool, next: u64) -> bool {
        let change = |seen| (seen > ENDED && may_change(seen)).then_some(next);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_ends_at_its_deadline_is_lost() {
        let end = Moment::now().after(Duration::from_secs(60));
        let deadline = Deadline::new(end);
        assert!(!deadline.end(end) && !deadline.is_ended());
        assert!(deadline.end(end.before(Duration::from_nanos(1))) && deadline.is_ended());
    }
}
