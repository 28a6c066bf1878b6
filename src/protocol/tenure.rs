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
use std::time::{Duration, Instant};

use crate::base::clock::{Moment, nanos};
use crate::base::failure::Failure;
use crate::error::{Loss, LossCause};
use crate::protocol::call::{CallSite, Caller};
use crate::protocol::hold::{Grant, Hold, HoldFailure, TOGETHER};
use crate::protocol::signals::{EndSignal, WantedSignal};
use crate::protocol::steps::{Action, HoldEvent, Turn};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Change, Unused};

/// The least pause between two looks at a kept lock.
const KEPT_PAUSE: Duration = Duration::from_millis(5);

/// The least pause between two looks whether a hold lasts for long.
const LONG_LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A lock released within this fraction of its lease costs no connection for renewals.
const BRIEF: u32 = 30;

/// Or within this time, if that is less.
const BRIEF_MAX: Duration = Duration::from_secs(1);

/// A failed renewal is repeated after this fraction of the lease.
const RETRIES: u32 = 20;

/// An input about a hold.
pub(crate) enum HoldInput<'a> {
    /// Its tenure begins outside the conversation, with a request sent at that time.
    Begin { tenure: Tenure, sent: Moment },
    /// A call that was given the next hold of a tenure goes on with it. It began at that time, if
    /// its hold is reported now.
    Accept { begin: Option<Instant> },
    /// A call that began at that time has it, and every other hold that it wanted.
    Acquired { begin: Instant },
    /// Its thread no longer needs it. With `hands_off`, the tenure passes to the next call if its
    /// terms allow it, or the lock is kept.
    End { hands_off: bool },
    /// Its call ends without it.
    GiveBack,
    /// It goes on without its guard.
    Leave,
    /// The client is shut down.
    ShutDown,
    /// The lock, if it is kept, is not kept any longer.
    EndKept,
    /// Its release was sent.
    ReleaseSent,
    /// Its release has this outcome.
    Released { outcome: &'a Result<(), HoldFailure>, by: ReleasedBy },
    /// The renewer stops trying to release it, because its lease is over. The last attempt has
    /// failed like this.
    ReleaseGivenUp(&'a Failure),
    /// It is a debt: no call has it, and it may exist in the store until it is released.
    Owed,
    /// No thread waits any longer for its release, whose outcome is unknown.
    Abandoned,
    /// Its deadline may have passed.
    Deadline,
    /// The store does not have it any more.
    Gone,
    /// The same, but for now only its guards learn of it. `LookedUp` follows once the cause is
    /// known.
    FoundGone,
    /// This other client has its lock now.
    TakenBy(String),
    /// The look-up of its loss is complete.
    LookedUp,
    /// A message says that it was ended by force.
    Forced,
    /// Another client waits for the lock.
    Wanted,
    /// The store will notify this client when another one waits.
    WillBeTold,
    /// It is the time for which the renewer has scheduled it.
    Due { at: Moment },
    /// A request sent at that time has renewed it.
    Renewed { sent: Moment, lease: Duration },
    /// A renewal has failed.
    RenewalFailed(&'a Failure),
}

/// Who has sent a release, and goes on with one that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasedBy {
    /// A call, which leaves a failed one to the renewer.
    Call,
    Renewer,
}

/// A client may have a million of these, so it is small.
#[expect(clippy::struct_excessive_bools, reason = "they are independent, and take little memory")]
#[derive(Debug)]
pub(crate) struct Tenure {
    /// The part that guards and the renewer share.
    pub(crate) hold: Arc<Hold>,
    phase: TenurePhase,
    /// When the phase began, if it is `Kept` or `Ending`.
    since: Moment,
    /// The hold that a call has, or had last; `None` while the lock is kept, and for a debt.
    last: Option<Use>,
    /// When it began: with the reply to its request, however distant the server is.
    begun: Moment,
    /// How many holds may follow, each with the next token. A store gives out a thousand at most.
    room: u16,
    /// Whether the beginning of the current hold was reported. If it was not, its end is not
    /// reported either: its call may not get the hold after all, or may still wait for others of a
    /// set.
    is_reported: bool,
    /// When the renewer handles it next; [`Moment::NEVER`] if not before a reply about it.
    scheduled: Moment,
    /// Whether the renewer has opened the connections for its renewals, or needs none.
    is_prepared: bool,
    /// Whether the last renewal has failed.
    failing: bool,
    /// Whether another client waits for the lock.
    wanted: bool,
    /// Whether a hold has begun on the kept lock.
    reused: bool,
    /// Boxed, because only a few tenures need it.
    rare: Option<Box<Rare>>,
}

/// The state of a tenure.
#[derive(Clone, Copy, Debug)]
enum TenurePhase {
    /// A call has its hold, or is about to get it.
    Held,
    /// No call has a hold, and the client keeps the lock.
    Kept,
    /// It was found lost, and that is about to be reported.
    Lost,
    /// It has ended here, and it is not known yet how its release goes.
    Ending,
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
    /// Whether the watches of the hold were notified of its end before it was known how it ended.
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
            since: Moment::FIRST,
            last: None,
            begun: Moment::FIRST,
            room: 0,
            is_reported: false,
            scheduled: Moment::NEVER,
            is_prepared: false,
            failing: false,
            wanted: false,
            reused: false,
            rare: None,
        }
    }

    /// Returns `true` if it may exist in the store, and must not.
    pub(super) fn is_debt(&self) -> bool {
        matches!(self.phase, TenurePhase::Ending | TenurePhase::Owed)
    }

    /// Returns `true` if it has ended here, and it is not known yet how its release goes.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, TenurePhase::Ending)
    }

    /// Returns `true` if it is a debt of which there is nothing to report.
    pub(super) fn is_owed(&self) -> bool {
        matches!(self.phase, TenurePhase::Owed)
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
            // A minimum duration belongs to one hold, not to a tenure.
            && hold.taken_until() == Moment::FIRST
            && terms.hold_at_least.is_none()
            && (hold.keep == 0 || hold.keep == terms.keep)
            && !hold.may_begin
            && hold.is_valid(now)
    }

    /// Reports that the current hold has begun. Returns `false`, and reports nothing, if it is over
    /// or was reported: if it is lost already, neither its beginning nor its end is reported.
    pub(super) fn report_begin<P>(&mut self, begin: Instant, turn: &mut Turn<P>) -> bool {
        if self.current().is_none() || mem::replace(&mut self.is_reported, true) {
            return false;
        }
        turn.report(&self.hold, HoldEvent::Acquired { begin });
        true
    }

    /// Ends the current hold of a tenure that goes on, and reports that.
    pub(super) fn end_use<P>(&mut self, turn: &mut Turn<P>) {
        // Those that watch the hold learn that it has ended, although its tenure goes on.
        self.tell_watches(false);
        if mem::take(&mut self.is_reported)
            && let Some(current) = self.current()
        {
            let held = turn.now.since(current.since);
            turn.report(&self.hold, HoldEvent::Released { held });
        }
    }

    /// Begins the next hold in place of the last one, which is over. It has the lease of the
    /// tenure: a renewal in flight counts for it, and so does a loss.
    pub(super) fn begin_next(&mut self, caller: &Caller, now: Moment) {
        self.reused |= matches!(self.phase, TenurePhase::Kept);
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

    /// Keeps the lock, though the hold is over. A lock in use costs no checks whether it is still
    /// kept, and one that is used and kept again and again costs one per time that it may be kept.
    pub(super) fn keep<P>(&mut self, turn: &mut Turn<P>) {
        self.phase = TenurePhase::Kept;
        self.since = turn.now;
        self.last = None;
        if let Some(end) = self.kept_end() {
            self.schedule(end, turn);
        }
    }

    /// Returns when a kept lock has been unused for long enough.
    pub(super) fn kept_end(&self) -> Option<Moment> {
        let TenurePhase::Kept = self.phase else { return None };
        Some(self.since.after(Duration::from_millis(self.hold.keep.into())))
    }

    /// Makes the renewer handle the tenure at this time, unless it does so before.
    fn schedule<P>(&mut self, due: Moment, turn: &mut Turn<P>) {
        if due < self.scheduled {
            // A later time that was scheduled before is ignored when it comes.
            self.scheduled = due;
            turn.actions.push(Action::Due { hold: self.hold.clone(), at: due });
        }
    }

    /// Returns when the renewer handles the tenure, which begins, for the first time.
    pub(super) fn schedule_first<P>(&mut self, turn: &Turn<P>) -> Moment {
        let lease = self.hold.next_step(self.is_renewed()).map(|next| next.due);
        self.scheduled = self.earliest(lease.unwrap_or(turn.now), turn);
        self.scheduled
    }

    /// Returns `true` if this is the time for which the tenure was scheduled. After that, none is
    /// scheduled.
    pub(super) fn is_due(&mut self, at: Moment) -> bool {
        let is_due = self.scheduled == at;
        if is_due {
            self.scheduled = Moment::NEVER;
        }
        is_due
    }

    /// Does what is due now, and schedules the next time, unless the reply to a renewal does.
    pub(super) fn due<P>(&mut self, turn: &mut Turn<P>) {
        let Some(next) = self.hold.next_step(self.is_renewed()) else { return };
        self.report_long(turn);
        // One that is due so soon can be renewed along with others.
        let soon = turn.now.after(self.hold.lease() / TOGETHER);
        if next.renews && next.due <= soon {
            self.is_prepared = true;
            turn.actions.push(Action::Renew(self.to_renew(turn.now)));
            return;
        }
        if self.prepare_due().is_some_and(|due| due <= turn.now) {
            self.is_prepared = true;
            turn.actions.push(Action::Prepare);
        }
        self.schedule(self.earliest(next.due, turn), turn);
    }

    /// Returns the earliest time at which something is due, if the lease is at this time.
    fn earliest<P>(&self, lease: Moment, turn: &Turn<P>) -> Moment {
        // Not at once, because a thread may be asking for more tokens of a kept lock.
        let kept = self.kept_end().map(|end| end.max(turn.now.after(KEPT_PAUSE)));
        let long = turn.policy.warn_held.map(|after| self.long_due(after, turn.now));
        let others = [kept, long, self.prepare_due()];
        others.into_iter().flatten().fold(lease, Moment::min)
    }

    /// Returns when to open the connections for the renewals, unless that was done: by the first
    /// renewal, none may be available. Most locks are released before that, and need none. The time
    /// is a round one, so that one wake-up of the renewer serves many leases.
    fn prepare_due(&self) -> Option<Moment> {
        if self.is_prepared || !self.hold.renewed {
            return None;
        }
        let brief = nanos((self.hold.lease() / BRIEF).min(BRIEF_MAX)).max(1);
        Some(Moment((self.begun.0 / brief + 2) * brief))
    }

    /// Returns when to check next whether a hold has lasted longer than `after`. The next hold of
    /// the tenure begins later than now.
    fn long_due(&self, after: Duration, now: Moment) -> Moment {
        let due = self.current().map(|current| current.since.after(after));
        let is_reported = self.reported_long() == Some(self.hold.number());
        match due {
            Some(due) if due > now && !is_reported => due,
            _ => now.after(after.max(LONG_LOOK_PAUSE)),
        }
    }

    fn reported_long(&self) -> Option<u64> {
        self.rare.as_ref()?.reported_long
    }

    /// Reports the current hold if it lasts for too long, once.
    fn report_long<P>(&mut self, turn: &mut Turn<P>) {
        let Some(after) = turn.policy.warn_held else { return };
        let Some(current) = self.current() else { return };
        let held = turn.now.since(current.since);
        let number = self.hold.number();
        let is_new = self.is_reported && self.reported_long() != Some(number);
        if is_new && held >= after && self.hold.is_valid(turn.now) {
            turn.report(&self.hold, HoldEvent::HeldLong { site: current.site.clone(), held });
            // By its number: the next hold of the tenure may last for long, too.
            self.rare().reported_long = Some(number);
        }
    }

    /// Records that a request sent at `sent` has renewed the hold for `lease`.
    pub(super) fn renewed<P>(&mut self, sent: Moment, lease: Duration, turn: &mut Turn<P>) {
        // From before the request, because Redis may have executed it at any time since.
        self.hold.extend(sent, lease, turn.now);
        // Any reply shows that, not only those to the renewer.
        if mem::take(&mut self.failing) {
            self.set_last_failure(None);
        }
        if let Some(next) = self.hold.next_step(self.is_renewed()) {
            self.schedule(self.earliest(next.due, turn), turn);
        }
    }

    /// Records that a renewal has failed, and reports that if the one before had not, and there is
    /// time to try again. It is repeated well before the deadline, even if that is near, so that a
    /// shorter outage loses nothing.
    pub(super) fn renewal_failed<P>(&mut self, failure: &Failure, turn: &mut Turn<P>) {
        // Also when the lease is over by now: the loss is then explained by this failure.
        self.set_last_failure(Some(failure));
        let remaining = self.hold.remaining(turn.now);
        if !remaining.is_zero() && !mem::replace(&mut self.failing, true) {
            let failure = failure.clone();
            turn.report(&self.hold, HoldEvent::RenewalFailing { remaining, failure });
        }
        if self.hold.is_open() {
            let pause = (self.hold.lease() / RETRIES).min(remaining);
            self.schedule(self.earliest(turn.now.after(pause), turn), turn);
        }
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
        if is_wanted || !matches!(self.phase, TenurePhase::Held | TenurePhase::Ending) {
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
        let is_over = !matches!(self.phase, TenurePhase::Held | TenurePhase::Ending);
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
    fn tell_watches(&mut self, was_lost: bool) {
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
            self.phase = TenurePhase::Ending;
            self.since = now;
        }
        ends
    }

    /// Marks the tenure as lost. Returns `false` if it was ended or lost before.
    pub(super) fn lose(&mut self, cause: LossCause) -> bool {
        if !matches!(self.phase, TenurePhase::Held | TenurePhase::Kept) {
            return false;
        }
        self.phase = TenurePhase::Lost;
        self.hold.lose();
        self.set_cause(cause);
        if self.rare().cause != Some(LossCause::Gone) {
            // Asking the servers would not change that.
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

    /// Reports how a tenure that is ending has ended, from the outcome of its release. Returns
    /// `false` if it is in another phase: then there is nothing to report.
    pub(super) fn report_end<P>(
        &mut self,
        outcome: &Result<(), HoldFailure>,
        turn: &mut Turn<P>,
    ) -> bool {
        if !self.is_ending() {
            return false;
        }
        self.phase = TenurePhase::Owed;
        let last = self.last.take();
        // Without a call that had it, or was to get it, there is no hold to report.
        let reported = if mem::take(&mut self.is_reported) { last } else { None };
        let event = match outcome {
            Ok(()) => {
                self.tell_watches(false);
                let ended = self.since;
                reported.map(|Use { since, .. }| HoldEvent::Released { held: ended.since(since) })
            }
            Err(HoldFailure::Failed(failure)) => {
                self.tell_watches(false);
                let failure = failure.clone();
                reported.map(|Use { site, .. }| HoldEvent::ReleaseFailed { site, failure })
            }
            // The server had forgotten the hold before its release came.
            Err(HoldFailure::Lost) => {
                self.hold.lose();
                self.set_cause(LossCause::Gone);
                let loss = self.set_loss();
                self.tell_watches(true);
                reported.map(|Use { site, .. }| HoldEvent::Lost { site: Some(site), loss })
            }
            Err(HoldFailure::Ended) => {
                self.tell_watches(false);
                None
            }
        };
        if let Some(event) = event {
            turn.report(&self.hold, event);
        }
        // Last: a shutdown that finds nothing unfinished looks for payments next.
        turn.actions.push(Action::Finish);
        true
    }

    /// Reports the loss of a tenure that was marked as lost. Returns `false` if it is in another
    /// phase: another input has reported it.
    pub(super) fn report_loss<P>(&mut self, turn: &mut Turn<P>) -> bool {
        let TenurePhase::Lost = self.phase else { return false };
        self.phase = TenurePhase::Owed;
        let last = self.last.take();
        // Those that watch the hold find the cause when they wake.
        let loss = self.set_loss();
        self.tell_watches(true);
        if last.is_some() {
            turn.actions.push(Action::CountEnd);
        }
        let was_reported = mem::take(&mut self.is_reported);
        let site = if was_reported { last.map(|last| last.site) } else { None };
        turn.report(&self.hold, HoldEvent::Lost { site, loss });
        true
    }

    /// Sets for its guards why the tenure was lost, and returns that.
    fn set_loss(&mut self) -> Loss {
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

    /// Records the failure of a renewal; `None` once one succeeds again.
    fn set_last_failure(&mut self, failure: Option<&Failure>) {
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
    fn to_renew(&self, now: Moment) -> Change {
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
    fn is_renewed(&self) -> bool {
        let can_end = self.current().is_none_or(|current| current.site.can_release());
        self.hold.renewed && can_end
    }
}

#[cfg(test)]
mod tests;
