//! The lease of a hold: until when it may be relied on, when to renew it, and how it has ended.
//!
//! Everything depends on the local deadline: *the time at which the last confirmed request was
//! sent, plus the lease, less the drift*. It changes only by compare-and-swap, so that exactly one
//! thread ends a hold or finds it lost, and no thread can renew a hold that another has seen as
//! lost.
//!
//! | state | set by | followed by |
//! |---|---|---|
//! | a moment | `new`, `extend` | a later moment, `LOST` or `ENDED` |
//! | `ENDED` | `end` before that moment, by its holder or a shutdown | `TOLD` or `RELEASED` |
//! | `LOST` | `expire` at that moment, `lose` at any time | `TOLD` |
//! | `TOLD` | `tell_loss`: its loss was reported; `settle` after the end | nothing |
//! | `RELEASED` | `settle` | nothing |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::{Moment, nanos};
use crate::base::failure::Failure;
use crate::base::flaws::{Flaw, flawed};
use crate::error::LossCause;
use crate::store::request::NextLease;

/// A lease that is due within this fraction of its duration is renewed along with others.
pub(crate) const TOGETHER: u32 = 64;

/// States that are not moments.
const LOST: u64 = 0;
/// It is lost, and the thread that reports that is known.
const TOLD: u64 = 1;
const RELEASED: u64 = 2;
/// It was ended, but the outcome of its release is not known yet.
const ENDED: u64 = 3;

#[derive(Debug)]
pub(crate) struct Lease {
    /// The duration of a whole lease, in nanoseconds: a `Duration` takes twice as much memory.
    duration: u64,
    /// Boxed, because it is rarely set.
    age_limit: Option<Box<AgeLimit>>,
    /// The local deadline, or how the hold has ended.
    state: AtomicU64,
}

/// When a tenure is lost, however often it is renewed.
#[derive(Debug)]
struct AgeLimit {
    max_hold: Duration,
    end: Moment,
}

/// When the renewer handles a lease next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextStep {
    pub(crate) due: Moment,
    /// Whether to renew it then: after a third of it, a little less because of the drift. If not,
    /// it is found lost then.
    pub(crate) renews: bool,
}

impl Lease {
    /// Creates a lease that a request sent at `sent` has begun. The `first` lease is shorter than a
    /// `whole` one if the age limit comes first.
    pub(crate) fn new(
        sent: Moment,
        first: Duration,
        whole: Duration,
        max_hold: Option<Duration>,
    ) -> Self {
        Self {
            duration: nanos(whole),
            age_limit: max_hold
                .map(|max_hold| Box::new(AgeLimit { max_hold, end: sent.after(max_hold) })),
            state: AtomicU64::new(sent.after(reliable(first)).0),
        }
    }

    /// Returns `true` if this lease suits a tenure with these terms.
    pub(crate) fn suits(&self, whole: Duration, max_hold: Option<Duration>) -> bool {
        let limit = self.age_limit.as_ref().map(|limit| limit.max_hold);
        self.duration() == whole && limit == max_hold
    }

    fn limit(&self) -> Moment {
        self.age_limit.as_ref().map_or(Moment::NEVER, |limit| limit.end)
    }

    /// Returns the duration of a whole lease.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration)
    }

    /// Returns `true` if the hold was neither ended nor found lost.
    pub(crate) fn is_open(&self) -> bool {
        self.load() > ENDED
    }

    /// Returns how long the hold may still be relied on; zero if it is lost or ended.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        Moment(self.load()).since(now)
    }

    /// Returns `true` if the hold may be relied on.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        let state = self.load();
        now.0 < state || state > ENDED && flawed(Flaw::ExpiryIsIgnored)
    }

    /// Returns `true` if less than a third of the lease is left, but some.
    pub(crate) fn is_nearly_over(&self, now: Moment) -> bool {
        let remaining = self.remaining(now);
        !remaining.is_zero() && remaining < self.duration() / 3
    }

    /// Returns the time until the age limit.
    pub(crate) fn age_left(&self, now: Moment) -> Duration {
        self.limit().since(now)
    }

    /// Returns the lease to ask for in a request that is sent now: less than a whole one if the age
    /// limit comes first.
    pub(crate) fn next(&self, now: Moment) -> NextLease {
        let whole = self.duration();
        NextLease { duration: whole.min(self.limit().since(now)), whole }
    }

    /// Moves the deadline after a request sent at `sent` has renewed the hold for `lease`. Does
    /// nothing if the hold was lost in the meantime, or the deadline is later already.
    pub(crate) fn extend(&self, sent: Moment, lease: Duration, now: Moment) {
        let deadline = sent.after(reliable(lease)).0;
        self.update(|seen| seen < deadline && now.0 < seen, deadline);
    }

    /// Returns why the hold is over if its deadline has passed, and no call has ended it or marked
    /// it as lost.
    pub(crate) fn cause_at_deadline(&self, now: Moment) -> Option<LossCause> {
        let deadline = Moment(self.load());
        let has_passed = deadline <= now && !flawed(Flaw::ExpiryIsIgnored);
        if deadline.0 <= ENDED || !has_passed {
            return None;
        }
        Some(if self.is_last(deadline) { LossCause::MaxHold } else { LossCause::Expired })
    }

    /// Returns `true` if the age limit leaves nothing to renew after this deadline.
    fn is_last(&self, deadline: Moment) -> bool {
        deadline.after(drift(self.duration())) >= self.limit()
    }

    /// Marks the hold as lost if its deadline has passed. Returns `true` for the one call that
    /// does.
    pub(crate) fn expire(&self, now: Moment) -> bool {
        self.update(|seen| seen <= now.0, LOST)
    }

    /// Marks the hold as lost because the server no longer knows it. Returns `true` for the one
    /// call that does.
    pub(crate) fn lose(&self) -> bool {
        self.update(|_| true, LOST)
    }

    /// Ends the hold at `now`. Returns `false` if it was ended or lost before.
    pub(crate) fn end(&self, now: Moment) -> bool {
        self.update(|seen| now.0 < seen, ENDED)
    }

    /// Returns `true` if the hold was ended, and its release has not found it lost. While it has
    /// guards, only a shutdown ends it.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.load(), ENDED | RELEASED)
    }

    /// Returns `true` if the hold is lost, even if no call has marked it as lost yet.
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        let state = self.load();
        state <= TOLD || (state > ENDED && state <= now.0)
    }

    /// Returns `true` if a call has marked the hold as lost.
    pub(crate) fn is_marked_as_lost(&self) -> bool {
        self.load() <= TOLD
    }

    /// Returns `true` if it is known how the hold has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.load() <= RELEASED
    }

    /// Marks an ended hold as released, or as lost if its release found it lost. Returns `true` for
    /// the first call that does: it reports the end.
    pub(crate) fn settle(&self, lost: bool) -> bool {
        self.replace(ENDED, if lost { TOLD } else { RELEASED })
    }

    /// Returns `true` for the one call that reports the loss of a hold that is marked as lost.
    pub(crate) fn tell_loss(&self) -> bool {
        self.replace(LOST, TOLD)
    }

    fn replace(&self, state: u64, next: u64) -> bool {
        self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns the next step of the renewer; `None` if the hold is over. Without `renews`, the
    /// lease is only found lost.
    pub(crate) fn next_step(&self, renews: bool) -> Option<NextStep> {
        let deadline = Some(Moment(self.load())).filter(|deadline| deadline.0 > ENDED)?;
        if !renews || self.is_last(deadline) {
            if flawed(Flaw::ExpiryIsIgnored) {
                return None;
            }
            return Some(NextStep { due: deadline, renews: false });
        }
        let parts = if flawed(Flaw::RenewedTooLate) { 0 } else { 2 };
        Some(NextStep { due: deadline.before(self.duration() * parts / 3), renews: true })
    }

    /// Sets the state to `next` if it is a moment that `may_change` accepts. Returns `true` if it
    /// did.
    fn update(&self, may_change: impl Fn(u64) -> bool, next: u64) -> bool {
        // A thread that releases the lock and one that finds it lost may come in between. The first
        // of them decides.
        let changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            if seen > ENDED && may_change(seen) { Some(next) } else { None }
        });
        changed.is_ok()
    }

    fn load(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }
}

/// Why a request about an existing hold had no effect.
pub(crate) enum HoldFailure {
    /// A shutdown has ended the hold.
    Ended,
    Failed(Failure),
    /// The hold is lost.
    Lost,
}

impl HoldFailure {
    /// Returns why a hold with this lease is no longer valid, though it has guards.
    pub(crate) fn of(lease: &Lease) -> Self {
        if lease.is_ended() { Self::Ended } else { Self::Lost }
    }
}

/// Returns how long a lease may be relied on, counted from when its request was sent.
pub(crate) fn reliable(lease: Duration) -> Duration {
    lease.saturating_sub(drift(lease))
}

/// Returns how much clocks may drift apart within a lease: 1 % of it and 2 ms, as in
/// <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_ends_at_its_deadline_is_lost() {
        let whole = Duration::from_secs(30);
        let lease = Lease::new(Moment::now(), whole, whole, None);
        let deadline = Moment(lease.load());
        assert!(!lease.end(deadline) && !lease.is_ended());
        assert!(lease.end(deadline.before(Duration::from_nanos(1))) && lease.is_ended());
    }

    #[test]
    fn the_age_limit_counts_from_the_first_request() {
        let (sent, whole) = (Moment::now(), Duration::from_secs(30));
        let lease = Lease::new(sent, whole, whole, Some(whole * 2));
        let later = sent.after(whole / 2);
        assert_eq!((lease.age_left(sent), lease.age_left(later)), (whole * 2, whole * 3 / 2));
    }
}
