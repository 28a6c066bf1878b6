//! A tenure, as the machine of its name knows it: the time for which a client has a name without a
//! break, with one hold after the other.
//!
//! ```text
//!            keep                     deadline, gone
//!    Held ◀────────▶ Kept        Held, Kept ──────────▶ Lost ── told ──▶ over, or Owed
//!     │ ╲next          │
//!     └──────end───────┴──▶ Ending ── released, lost ──▶ over
//!                              └───── failed ──▶ Owed ── released ──▶ over
//! ```
//!
//! A tenure that is over is forgotten: its guards, if it has any left, know how it has ended.

use std::error::Error as StdError;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::error::{Loss, LossCause};
use crate::protocol::call::{CallSite, Caller};
use crate::protocol::hold::{Grant, Hold};
use crate::protocol::signals::{EndSignal, WantedSignal};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Change, Unused};

/// The least pause between two looks whether a hold lasts for long.
const LONG_LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A client may have a million of these, so it is small.
#[expect(clippy::struct_excessive_bools, reason = "they are independent, and take little memory")]
#[derive(Debug)]
pub(crate) struct Tenure {
    /// The part that guards and the renewer share.
    pub(crate) hold: Arc<Hold>,
    pub(super) phase: TenurePhase,
    /// The hold that a call has, or had last; `None` while the lock is kept, and of a debt.
    pub(super) last: Option<Use>,
    /// When it began: with the reply to its request, however distant the server is.
    begun: Moment,
    /// How many holds may follow, each with the next token. A store gives out a thousand at most.
    pub(super) room: u16,
    /// Whether the beginning of the current hold was reported. If not, its end is not either: its
    /// call may not get it after all, or not alone.
    pub(super) is_reported: bool,
    /// Whether the renewer will check if the lock is still kept.
    looked_after: bool,
    /// Whether the last renewal has failed.
    pub(super) failing: bool,
    /// Whether another client waits for the lock.
    wanted: bool,
    /// Whether a hold has begun on the kept lock.
    reused: bool,
    /// Boxed, because only a few tenures need it.
    rare: Option<Box<Rare>>,
}

/// The state of a tenure.
#[derive(Clone, Copy, Debug)]
pub(super) enum TenurePhase {
    /// A call has its hold, or is about to get it.
    Held,
    /// No call has a hold, and the client keeps the lock.
    Kept { since: Moment },
    /// It was found lost, and that is about to be reported.
    Lost,
    /// It has ended here, and it is not known yet how its release goes.
    Ending { ended: Moment },
    /// A debt: it may exist in the store, and must not. There is nothing to report about it.
    Owed,
}

/// A hold of one call, or of readers together.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) since: Moment,
    /// The place of its call in the program.
    pub(crate) site: CallSite,
}

/// Details about the loss of a tenure, or that may lead to one, and the watches of its hold.
/// Created with the first watch.
#[derive(Debug, Default)]
struct Rare {
    end: Option<EndSignal>,
    /// Removed once another client waits.
    wanted: Option<WantedSignal>,
    /// Whether those that watch the hold are told that it is over, before it is known how it ends.
    told_over: bool,
    /// Whether the store has confirmed that it notifies this client when another one waits.
    is_told: bool,
    /// Set when the tenure is lost, or is about to be.
    cause: Option<LossCause>,
    /// The number of the last hold that was reported to last long.
    reported_long: Option<u64>,
    /// The failure of the last renewal, unless that succeeded.
    last_failure: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether a message said that the tenure was ended by force. Servers may still have it.
    forced: bool,
}

impl Use {
    fn new(caller: &Caller, since: Moment) -> Self {
        Self { since, site: caller.site() }
    }
}

impl Tenure {
    /// Creates the tenure that a reply has brought to a call.
    pub(crate) fn new(id: HoldId, grant: &Grant, caller: &Caller) -> Self {
        let hold = Arc::new(Hold::new(id, grant, caller));
        let last = Some(Use::new(caller, grant.replied));
        let room = u16::try_from(grant.room).unwrap_or(u16::MAX);
        Self { begun: grant.replied, room, last, ..Self::of(hold, TenurePhase::Held) }
    }

    /// Creates what is remembered of a debt.
    pub(super) fn owed(debt: Arc<Hold>) -> Self {
        Self::of(debt, TenurePhase::Owed)
    }

    fn of(hold: Arc<Hold>, phase: TenurePhase) -> Self {
        Self {
            hold,
            phase,
            last: None,
            begun: Moment::FIRST,
            room: 0,
            is_reported: false,
            looked_after: false,
            failing: false,
            wanted: false,
            reused: false,
            rare: None,
        }
    }

    /// Returns `true` if it may exist in the store, and must not.
    pub(super) fn is_debt(&self) -> bool {
        matches!(self.phase, TenurePhase::Ending { .. } | TenurePhase::Owed)
    }

    /// Returns the hold that a call has.
    pub(crate) fn current(&self) -> Option<&Use> {
        if let TenurePhase::Held = self.phase { self.last.as_ref() } else { None }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Returns `true` if a hold has begun on the kept lock, so that keeping it was of use.
    pub(crate) fn was_reused(&self) -> bool {
        self.reused
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    pub(super) fn has_begun_since(&self, moment: Moment) -> bool {
        self.begun > moment
    }

    /// Returns `true` if the caller can have the next hold of this tenure: time and a token are
    /// left for one with its options. As long as messages of other clients arrive, they can ask for
    /// a lock that may be kept, so there is time until one does.
    pub(super) fn may_be_followed_by(&self, caller: &Caller, may_keep: bool, now: Moment) -> bool {
        let keeps = self.hold.keep > 0 && may_keep && !self.wanted;
        // Without messages, clients that wait cannot ask. They wait for this time at most.
        let goes_on = now < self.begun.after(caller.terms.tenure);
        let has_token = !self.hold.id.kind.is_exclusive() || self.room > 0;
        (keeps || goes_on) && has_token && self.suits(caller, now)
    }

    /// Returns `true` if the terms and the note of the caller are those of this tenure, and no
    /// request of it is in doubt.
    pub(super) fn suits(&self, caller: &Caller, now: Moment) -> bool {
        let terms = &caller.terms;
        let hold = &self.hold;
        hold.note() == caller.note.as_ref()
            && hold.lease() == terms.lease
            && hold.max_hold() == terms.max_hold
            && hold.renewed == terms.renew
            // Each hold that has a minimum duration has its own.
            && hold.taken_until() == Moment::FIRST
            && terms.hold_at_least.is_none()
            && (hold.keep == 0 || hold.keep == terms.keep)
            && !hold.may_begin
            && hold.is_valid(now)
    }

    /// Ends the present hold of a tenure that goes on. Returns for how long it was held, if that is
    /// reported.
    pub(super) fn end_use(&mut self, now: Moment) -> Option<Duration> {
        // Those that watch the hold learn that it has ended, although its tenure goes on.
        self.tell_watches(false);
        if !mem::take(&mut self.is_reported) {
            return None;
        }
        self.current().map(|current| now.since(current.since))
    }

    /// Begins the next hold in place of the last one, which is over. It has the lease of the
    /// tenure: a renewal in flight counts for it, and so does a loss.
    pub(super) fn begin_next(&mut self, caller: &Caller, now: Moment) {
        self.reused |= matches!(self.phase, TenurePhase::Kept { .. });
        self.phase = TenurePhase::Held;
        self.last = Some(Use::new(caller, now));
        self.is_reported = false;
        self.room = self.room.saturating_sub(1);
        self.hold.set_depth(1);
        self.hold.set_number(self.hold.number() + 1);
    }

    /// Adds tokens for the next holds: `fence`, and the `room` ones after it.
    pub(super) fn add_fences(&mut self, fence: u64, room: u32) {
        // The next hold takes the first of them, as it takes the next one of an older block.
        self.hold.set_number(fence - 1);
        self.room = u16::try_from(room).unwrap_or(u16::MAX).saturating_add(1);
    }

    pub(super) fn can_be_kept(&self, now: Moment) -> bool {
        let speaks_against = self.failing || self.wanted || self.hold.may_begin;
        self.hold.keep > 0 && !speaks_against && self.hold.is_valid(now)
    }

    /// Keeps the lock, though the hold is over. Returns when the renewer has to check whether it
    /// still is; `None` if it already will. So a lock in use costs no checks, and one that is used
    /// and kept again and again costs one per time that it may be kept.
    pub(super) fn keep(&mut self, now: Moment) -> Option<Moment> {
        self.phase = TenurePhase::Kept { since: now };
        self.last = None;
        if mem::replace(&mut self.looked_after, true) { None } else { self.kept_end() }
    }

    /// Returns how long the lock is kept if no thread uses it; `None` if the renewer has nothing
    /// left to check.
    pub(super) fn next_look(&mut self) -> Option<Moment> {
        let end = self.kept_end();
        self.looked_after = end.is_some();
        end
    }

    /// Returns when a kept lock has been unused for long enough.
    pub(super) fn kept_end(&self) -> Option<Moment> {
        let TenurePhase::Kept { since } = self.phase else { return None };
        Some(since.after(Duration::from_millis(self.hold.keep.into())))
    }

    /// Returns when to look next whether a hold lasts for longer than `after`; `None` if the tenure
    /// is over. The next hold of the tenure begins later than now.
    pub(super) fn next_long_look(&self, after: Duration, now: Moment) -> Option<Moment> {
        if !self.hold.is_open() {
            return None;
        }
        let due = self.current().map(|current| current.since.after(after));
        let is_reported = self.reported_long() == Some(self.hold.number());
        Some(match due {
            Some(due) if due > now && !is_reported => due,
            _ => now.after(after.max(LONG_LOOK_PAUSE)),
        })
    }

    fn reported_long(&self) -> Option<u64> {
        self.rare.as_ref()?.reported_long
    }

    /// Returns for how long the present hold has been held, if that is longer than `after` and was
    /// not reported. Notes that it is now.
    pub(super) fn report_long(&mut self, after: Duration, now: Moment) -> Option<Duration> {
        let current = self.current()?;
        let held = now.since(current.since);
        let number = self.hold.number();
        let is_new = self.is_reported && self.reported_long() != Some(number);
        if !is_new || held < after || !self.hold.is_valid(now) {
            return None;
        }
        // By its number: the next hold of the tenure may last for long, too.
        self.rare().reported_long = Some(number);
        Some(held)
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Records that another client waits for the lock, and notifies threads that watch the current
    /// hold.
    pub(super) fn set_wanted(&mut self) {
        self.wanted = true;
        // Taken out, so that renewals no longer ask.
        if let Some(watch) = self.rare.as_mut().and_then(|rare| rare.wanted.take()) {
            watch.set_wanted();
        }
    }

    /// Returns the current hold's signal of waiting clients.
    pub(super) fn wanted_signal(&mut self) -> WantedSignal {
        let is_wanted = self.wanted;
        // An input that marks the hold later finds the signal.
        if is_wanted || !matches!(self.phase, TenurePhase::Held | TenurePhase::Ending { .. }) {
            return WantedSignal::over(is_wanted);
        }
        self.rare().wanted.get_or_insert_default().clone()
    }

    pub(crate) fn is_told(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.is_told)
    }

    pub(super) fn set_told(&mut self) {
        self.rare().is_told = true;
    }

    /// Returns the signal of the end of the current hold. With `shared`, that is the one to use,
    /// which several holds share.
    pub(super) fn end_signal(&mut self, shared: Option<&EndSignal>) -> EndSignal {
        let is_over = !matches!(self.phase, TenurePhase::Held | TenurePhase::Ending { .. });
        let was_lost = self.hold.was_lost();
        let rare = self.rare();
        let signal = match shared {
            Some(shared) => rare.end.insert(shared.clone()).clone(),
            None => rare.end.get_or_insert_default().clone(),
        };
        if is_over || rare.told_over {
            signal.tell(was_lost);
        }
        signal
    }

    /// Notifies present and future watches that the hold is over, although the outcome of its
    /// release is not known yet.
    pub(super) fn tell_over(&mut self) {
        let rare = self.rare();
        rare.told_over = true;
        let end = rare.end.clone();
        self.tell_watches(false);
        // They are also notified if the hold then turns out to be lost.
        self.rare().end = end;
    }

    /// Notifies the watches of the hold that it is over, even those that also watch other holds.
    pub(super) fn tell_watches(&mut self, was_lost: bool) {
        let Some(rare) = &mut self.rare else { return };
        // The store forgets that with the hold.
        rare.is_told = false;
        if let Some(wanted) = rare.wanted.take() {
            wanted.end();
        }
        if let Some(end) = rare.end.take() {
            end.tell(was_lost);
        }
    }

    /// Ends the tenure here. Returns `false` if it was ended or lost before.
    pub(super) fn end(&mut self, now: Moment) -> bool {
        let ends = self.hold.end(now);
        if ends {
            self.phase = TenurePhase::Ending { ended: now };
        }
        ends
    }

    /// Marks the tenure as lost. Returns `false` if it was ended or lost before.
    pub(super) fn lose(&mut self, cause: LossCause) -> bool {
        if !matches!(self.phase, TenurePhase::Held | TenurePhase::Kept { .. }) {
            return false;
        }
        self.phase = TenurePhase::Lost;
        self.hold.lose();
        self.set_cause(cause);
        if self.rare().cause != Some(LossCause::Gone) {
            // No look at the servers changes that.
            self.set_loss();
        }
        true
    }

    fn set_cause(&mut self, cause: LossCause) {
        let rare = self.rare();
        rare.cause = match rare.cause.take() {
            _ if cause != LossCause::Gone => Some(cause),
            _ if rare.forced => Some(LossCause::Forced),
            taken => taken.or(Some(cause)),
        };
    }

    /// Marks an ended tenure as lost, as its release has found it, and returns the loss.
    pub(super) fn lose_after_end(&mut self) -> Loss {
        self.hold.lose();
        self.set_cause(LossCause::Gone);
        self.set_loss()
    }

    /// Sets for its guards why the tenure was lost, and returns that.
    pub(super) fn set_loss(&mut self) -> Loss {
        let rare = self.rare.as_deref();
        let cause = rare.and_then(|rare| rare.cause.clone()).unwrap_or(LossCause::Gone);
        let last_failure = if cause == LossCause::Expired {
            rare.and_then(|rare| rare.last_failure.clone())
        } else {
            None
        };
        let loss = Loss { cause, last_failure };
        self.hold.set_loss(loss.clone());
        loss
    }

    /// Records which other client has the lock, unless the tenure is lost for a reason other than
    /// being gone.
    pub(super) fn set_taken(&mut self, by: String) {
        let rare = self.rare();
        // The look may have been slower than a message that says more.
        if !rare.forced && matches!(rare.cause, None | Some(LossCause::Gone)) {
            rare.cause = Some(LossCause::Taken { by });
        }
    }

    /// Records a message that the tenure was ended by force.
    pub(super) fn set_forced(&mut self) {
        self.rare().forced = true;
    }

    /// Records that a renewal has succeeded.
    pub(super) fn end_failures(&mut self) {
        if mem::take(&mut self.failing) {
            self.set_last_failure(None);
        }
    }

    /// Records the failure of a renewal; `None` once one succeeds again.
    pub(super) fn set_last_failure(&mut self, failure: Option<&Failure>) {
        self.rare().last_failure = failure.map(|failure| failure.source.clone());
    }

    /// Returns `true` if requests about the hold ask whether another client waits for the lock,
    /// whose message may have been lost: if a thread watches for that, or if the lock may be kept.
    pub(crate) fn asks_if_wanted(&self) -> bool {
        self.hold.keep > 0 || self.rare.as_ref().is_some_and(|rare| rare.wanted.is_some())
    }

    /// Returns the change that checks whether the hold exists.
    pub(crate) fn to_check(&self) -> Change {
        if self.asks_if_wanted() { Change::Watch { lease: None } } else { Change::Check }
    }

    /// Returns the change that renews the hold.
    pub(super) fn to_renew(&self, now: Moment) -> Change {
        let lease = self.hold.next_lease(now);
        if self.asks_if_wanted() {
            Change::Watch { lease: Some(lease) }
        } else {
            Change::Renew { lease }
        }
    }

    /// Returns the tokens that a tenure of writers has left.
    pub(crate) fn unused(&self) -> Option<Unused> {
        let before = self.hold.fence();
        if self.hold.id.kind != HoldKind::Write || self.room == 0 {
            return None;
        }
        Some(Unused { before, last: before + u64::from(self.room) })
    }

    /// Returns `true` if the lease is renewed: not if the thread that could release the hold is
    /// gone.
    pub(super) fn is_renewed(&self) -> bool {
        let can_end = self.current().is_none_or(|current| current.site.can_release());
        self.hold.renewed && can_end
    }
}

#[cfg(test)]
mod tests;
