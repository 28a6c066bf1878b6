//! One hold of one lock: its state, how the next hold of its tenure follows, and the channels that
//! report its end.
//!
//! Decides, without any I/O, which thread can have the next hold of a tenure, and whether the lock
//! may be kept. `reporter.rs` reports losses.

use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::base::flaws::{Flaw, flawed};
use crate::base::spans::{HoldSpan, OpenSpan};
use crate::error::{Error, Loss, LossCause};
use crate::protocol::call::Caller;
use crate::protocol::current_hold::{CurrentHold, OverChannel, Rare, WantedWatch};
use crate::protocol::lease::{HoldFailure, Lease, NextStep};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Change, HoldReply, HoldRequest, Unused};

/// The least pause between two looks whether a hold lasts for long.
const LONG_LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A hold that has ended while its tenure goes on, as it is reported.
#[derive(Debug)]
pub(crate) struct HandedOff {
    pub(crate) tenure: Arc<Hold>,
    pub(crate) fence: u64,
    pub(crate) held: Duration,
    /// Whether its beginning was reported. If not, its end is not either.
    pub(crate) is_reported: bool,
    pub(crate) span: Option<OpenSpan>,
}

/// A hold, and after it the next ones of its tenure. A client may have a million, so it is small.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: HoldId,
    pub(crate) span: HoldSpan,
    pub(crate) lease: Lease,
    /// Whether requests about the hold may renew it.
    pub(crate) renewed: bool,
    /// When the tenure began: with the reply to its request, however distant the server is.
    begun: Moment,
    /// Until when the lock stays taken, however early the hold is released.
    pub(crate) taken_until: Moment,
    /// The token of the current hold, or, for a permit, which has none, the number of holds before
    /// it. Changed while `current` is locked, and read without the lock, which in a forked child
    /// might never be released.
    fence: AtomicU64,
    /// How many milliseconds the lock is kept when the hold is over; 0 if it is not.
    keep: u32,
    pub(crate) current: Mutex<CurrentHold>,
}

impl Hold {
    /// Creates a hold of the caller, acquired by a request sent at `sent`, whose reply came at
    /// `replied`. Up to `room` more holds may follow it.
    pub(crate) fn new(
        id: HoldId,
        fence: u64,
        room: u32,
        caller: &Caller,
        sent: Moment,
        replied: Moment,
    ) -> Self {
        let Caller { terms, times, .. } = caller;
        let sent = if flawed(Flaw::CountsFromReply) { replied } else { sent };
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        let note = caller.note.clone();
        let current = CurrentHold {
            room,
            acquired: replied,
            thread: Some(caller.thread.clone()),
            place: caller.place,
            rare: note.map(|note| Box::new(Rare { note: Some(note), ..Rare::default() })),
            ..CurrentHold::NEW
        };
        let keep = if terms.keep > 0 && id.may_be_kept() { terms.keep } else { 0 };
        Self {
            id,
            span: HoldSpan::default(),
            lease: Lease::new(sent, times.lease, terms.lease, terms.max_hold),
            renewed: terms.renew,
            begun: replied,
            // From the reply, because the store has begun the hold by then.
            taken_until: terms.hold_at_least.map_or(Moment::FIRST, |time| replied.after(time)),
            fence: AtomicU64::new(fence),
            keep,
            current: Mutex::new(current),
        }
    }

    /// Creates a debt: a hold that no guard has, and that may exist in the store until `lease` is
    /// over. Nothing is reported about it. If a request may begin it again, one release does not
    /// settle it.
    pub(crate) fn debt(id: HoldId, lease: Duration, may_begin: bool, now: Moment) -> Self {
        let lease = Lease::new(now, lease, lease, None);
        // Over from the start, so that it is neither renewed nor reported.
        lease.end(now);
        lease.settle(false);
        Self {
            id,
            span: HoldSpan::default(),
            lease,
            renewed: false,
            begun: now,
            taken_until: Moment::FIRST,
            fence: AtomicU64::new(0),
            keep: 0,
            current: Mutex::new(CurrentHold { may_begin, ..CurrentHold::NEW }),
        }
    }

    /// Lets the lock of a debt stay taken until then, however early that is paid.
    pub(crate) fn taken_until(self, taken_until: Moment) -> Self {
        Self { taken_until, ..self }
    }

    /// Returns the debt that a lost hold leaves, which may exist after all. Its lock does not stay
    /// taken.
    pub(crate) fn to_debt(&self, now: Moment) -> Self {
        Self::debt(self.id.clone(), self.lease.duration(), self.may_begin(), now)
    }

    /// Returns `true` if a request that began this hold may be executed again, so that the hold can
    /// reappear after its release.
    pub(crate) fn may_begin(&self) -> bool {
        self.current.lock().may_begin
    }

    pub(crate) fn set_may_begin(&self, may_begin: bool) {
        self.current.lock().may_begin = may_begin;
    }

    /// Returns `true` if the reply that began the tenure came after this moment.
    pub(crate) fn has_begun_since(&self, moment: Moment) -> bool {
        self.begun > moment
    }

    /// Returns the number of guards.
    pub(crate) fn depth(&self) -> u32 {
        self.current.lock().depth
    }

    /// Sets the number of guards. Only the holding thread does.
    pub(crate) fn set_depth(&self, depth: u32) {
        self.current.lock().depth = depth;
    }

    /// Returns the note of the tenure.
    pub(crate) fn note(&self) -> Option<Arc<str>> {
        self.current.lock().note().cloned()
    }

    /// Adds a guard of another reader.
    pub(crate) fn add_reader(&self) {
        self.current.lock().depth += 1;
    }

    /// Removes the guard of a reader. Returns `false`, and removes nothing, if it is the last one
    /// or the hold is over, even if no call has marked it as lost yet.
    pub(crate) fn remove_reader(&self, now: Moment) -> bool {
        let mut current = self.current.lock();
        let others_read = current.depth > 1 && !flawed(Flaw::OneReaderEndsAll);
        let removes = others_read && self.lease.is_valid(now);
        current.depth -= u32::from(removes);
        removes
    }

    /// Returns `true` if the last renewal has failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.current.lock().failing
    }

    /// Sets whether the last renewal has failed, and returns whether the one before had.
    pub(crate) fn set_failing(&self, failing: bool) -> bool {
        mem::replace(&mut self.current.lock().failing, failing)
    }

    /// Returns `true` if a hold has begun on the kept lock, so that keeping it was of use.
    pub(crate) fn was_reused(&self) -> bool {
        self.current.lock().reused
    }

    /// Returns the fencing token of the present hold, or 0 for a permit, which has none.
    pub(crate) fn fence(&self) -> u64 {
        if self.id.kind.row().has_fence { self.number() } else { 0 }
    }

    /// Returns the number of the present hold within its tenure. Later holds have greater numbers.
    pub(crate) fn number(&self) -> u64 {
        self.fence.load(Ordering::Relaxed)
    }

    /// Returns how many levels the hold has in the store. The guards of readers share one.
    pub(crate) fn levels(&self) -> u32 {
        if self.id.kind.is_lock() { self.depth() } else { 1 }
    }

    /// Returns `true` if the caller can have the next hold of this tenure: time and a token are
    /// left for one with its options. As long as messages of other clients arrive, they can ask for
    /// a lock that may be kept, so there is time until one does.
    pub(crate) fn may_be_followed_by(&self, caller: &Caller, may_keep: bool, now: Moment) -> bool {
        let current = self.current.lock();
        let keeps = self.keep > 0 && may_keep && !current.wanted;
        // Without messages, clients that wait cannot ask. They wait for this time at most.
        let goes_on = now < self.begun.after(caller.terms.tenure) || flawed(Flaw::TenureHasNoEnd);
        (keeps || goes_on)
            && (!self.id.kind.is_exclusive() || current.room > 0 || flawed(Flaw::BlockIsOverdrawn))
            && self.suits_with(&current, caller, now)
    }

    /// Returns `true` if the terms and the note of the caller are those of this tenure, and no
    /// request of it is in doubt.
    pub(crate) fn suits(&self, caller: &Caller, now: Moment) -> bool {
        self.suits_with(&self.current.lock(), caller, now)
    }

    fn suits_with(&self, current: &CurrentHold, caller: &Caller, now: Moment) -> bool {
        let terms = &caller.terms;
        current.note() == caller.note.as_ref()
            && self.lease.suits(terms.lease, terms.max_hold)
            && self.renewed == terms.renew
            && (self.taken_until, terms.hold_at_least) == (Moment::FIRST, None)
            && (self.keep == 0 || self.keep == terms.keep)
            && !current.may_begin
            && self.lease.is_valid(now)
    }

    /// Ends the present hold of a tenure that goes on, and returns it to be reported; `None` if the
    /// tenure was ended or lost before: then another thread reports that.
    pub(crate) fn hand_off(self: &Arc<Self>, now: Moment) -> Option<HandedOff> {
        // A thread that finds it lost while this is locked comes after it.
        let mut current = self.current.lock();
        if !self.lease.is_open() {
            return None;
        }
        Some(HandedOff {
            tenure: self.clone(),
            fence: self.fence(),
            held: current.held(now),
            is_reported: mem::take(&mut current.reported),
            span: self.span.take(),
        })
    }

    /// Begins the next hold of the tenure in place of this one, which is over. It has the lease of
    /// the tenure: a renewal in flight counts for it, and so does a loss.
    pub(crate) fn begin_next(&self, caller: &Caller, now: Moment) {
        let mut current = self.current.lock();
        // The watches of the last hold learn that it has ended, although its tenure goes on.
        current.disconnect();
        current.advance(caller, now);
        self.fence.fetch_add(u64::from(!flawed(Flaw::TokenIsRepeated)), Ordering::Relaxed);
    }

    /// Returns `true` if the lock may be kept when the hold is over.
    pub(crate) fn can_be_kept(&self, now: Moment) -> bool {
        let current = self.current.lock();
        let wanted = current.wanted && !flawed(Flaw::WantedIsKept);
        let speaks_against = current.failing || wanted || current.may_begin;
        self.keep > 0 && !speaks_against && self.lease.is_valid(now)
    }

    /// Keeps the lock, though the hold is over. Returns `false` if it was ended or lost before.
    pub(crate) fn keep(&self, now: Moment) -> bool {
        let mut current = self.current.lock();
        current.disconnect();
        // The renewer may have found it lost since the guard was dropped.
        if self.lease.is_open() {
            current.kept = true;
            current.reported = false;
            current.thread = None;
            current.acquired = now;
        }
        current.kept
    }

    /// Returns when the renewer has to check whether a newly kept lock still is; `None` if it
    /// already will, or another thread uses the lock. So a lock in use costs no checks, and one
    /// that is used and kept again and again costs one per time that it may be kept.
    pub(crate) fn begin_looks(&self) -> Option<Moment> {
        let mut current = self.current.lock();
        let begins = current.kept && !mem::replace(&mut current.looked_after, true);
        if begins { Some(self.kept_end(&current)) } else { None }
    }

    /// Returns until when the lock is kept if no thread uses it; `None` if the renewer has nothing
    /// left to check.
    pub(crate) fn next_look(&self) -> Option<Moment> {
        let mut current = self.current.lock();
        current.looked_after = current.kept && self.lease.is_open();
        if current.looked_after { Some(self.kept_end(&current)) } else { None }
    }

    /// Returns when a kept lock has been unused for long enough.
    fn kept_end(&self, current: &CurrentHold) -> Moment {
        let end = current.acquired.after(Duration::from_millis(self.keep.into()));
        if flawed(Flaw::KeptForever) { Moment::NEVER } else { end }
    }

    /// Begins the next hold of a kept tenure. Returns `false` if the tenure is over.
    pub(crate) fn begin_kept(&self, caller: &Caller, now: Moment) -> bool {
        let mut current = self.current.lock();
        let begins = self.lease.is_valid(now);
        if begins {
            current.advance(caller, now);
            self.fence.fetch_add(1, Ordering::Relaxed);
            current.reused = true;
        }
        begins
    }

    /// Returns when to look next whether a hold lasts for longer than `after`; `None` if the tenure
    /// is over. The next hold of the tenure begins later than now.
    pub(crate) fn next_long_look(&self, after: Duration, now: Moment) -> Option<Moment> {
        let current = self.current.lock();
        let is_reported = current.is_reported_long(self.number());
        let due = current.acquired.after(after);
        let is_looked_at = current.kept || is_reported || due <= now;
        if !self.lease.is_open() {
            return None;
        }
        Some(if is_looked_at { now.after(after.max(LONG_LOOK_PAUSE)) } else { due })
    }

    /// Returns `true` if it is time to release a kept lock.
    pub(crate) fn is_unused(&self, now: Moment) -> bool {
        let current = self.current.lock();
        current.kept && self.kept_end(&current) <= now
    }

    /// Adds tokens for the next holds: `fence`, and the `room` ones after it.
    pub(crate) fn add_fences(&self, fence: u64, room: u32) {
        let mut current = self.current.lock();
        self.fence.store(fence - 1, Ordering::Relaxed);
        current.room = u16::try_from(room).unwrap_or(u16::MAX).saturating_add(1);
    }

    /// Returns `true` if another client waits for the lock, as far as is known.
    pub(crate) fn is_wanted(&self) -> bool {
        self.current.lock().wanted
    }

    /// Records that another client waits for the lock, and notifies threads that watch the current
    /// hold.
    pub(crate) fn set_wanted(&self) {
        let mut current = self.current.lock();
        current.wanted = true;
        if let Some(watch) = current.rare.as_mut().and_then(|it| it.wanted.take()) {
            watch.set_wanted();
        }
    }

    /// Returns the current hold's watch for waiting clients.
    pub(crate) fn wanted(&self) -> WantedWatch {
        let mut current = self.current.lock();
        // A call that marks the hold later finds the watch.
        if current.wanted || self.lease.is_settled() {
            return WantedWatch::over(current.wanted);
        }
        current.rare.get_or_insert_default().wanted.get_or_insert_default().clone()
    }

    /// Returns `true` if the store notifies this client when another one waits.
    pub(crate) fn is_told(&self) -> bool {
        self.current.lock().rare.as_ref().is_some_and(|rare| rare.is_told)
    }

    pub(crate) fn set_told(&self) {
        self.current.lock().rare.get_or_insert_default().is_told = true;
    }

    /// Returns a receiver that is disconnected when the hold is over, and never gets a message.
    pub(crate) fn over(&self) -> Receiver<Infallible> {
        let mut current = self.current.lock();
        if self.lease.is_settled() || current.told_over() {
            return bounded(0).1;
        }
        current.rare.get_or_insert_default().over.get_or_insert_default().receiver.clone()
    }

    /// Lets the end of the hold disconnect a channel that several holds share.
    pub(crate) fn share_over(&self, channel: &OverChannel) {
        let mut current = self.current.lock();
        if self.lease.is_settled() || current.told_over() {
            channel.disconnect();
        } else {
            current.rare.get_or_insert_default().over = Some(channel.clone());
        }
    }

    /// Tells those that watch the hold, now or later, that it is over, although it is not known yet
    /// how its release ends.
    pub(crate) fn tell_over(&self) {
        let mut current = self.current.lock();
        current.rare.get_or_insert_default().told_over = true;
        current.disconnect();
    }

    /// Ends the hold. Returns `false` if it was ended or lost before. `settle` later says whether
    /// its release has found it lost.
    pub(crate) fn end(&self, now: Moment) -> bool {
        let ended = self.lease.end(now);
        if ended {
            let mut current = self.current.lock();
            current.ended = true;
            current.acquired = Moment::FIRST.after(now.since(current.acquired));
        }
        ended
    }

    /// Returns `true` if the tenure's hold with this number is lost. One that was handed off, or
    /// after which the lock was kept, ended before the loss.
    pub(crate) fn is_lost_with(&self, number: u64, now: Moment) -> bool {
        let current = self.current.lock();
        self.lease.is_lost(now) && self.number() == number && !current.kept
    }

    /// Marks the hold as lost if its deadline has passed. Returns `true` for the one call that
    /// does.
    pub(crate) fn expire(&self, now: Moment) -> bool {
        let cause = self.lease.cause_at_deadline(now);
        cause.is_some_and(|cause| self.lose_if(cause, |lease| lease.expire(now)))
    }

    /// Marks the hold as lost because the server no longer has it. Returns `true` for the one call
    /// that does.
    pub(crate) fn lose(&self) -> bool {
        self.lose_if(LossCause::Gone, Lease::lose)
    }

    /// Marks an ended hold as lost or as released. Returns `true` for the first call that does. It
    /// reports that while `current` is locked: so a call that comes second comes after the report.
    pub(crate) fn settle(&self, current: &mut CurrentHold, lost: bool) -> bool {
        if lost {
            self.lose_current(current, LossCause::Gone, |lease| lease.settle(true))
        } else {
            self.lease.settle(false)
        }
    }

    fn lose_if(&self, cause: LossCause, lose: impl FnOnce(&Lease) -> bool) -> bool {
        self.lose_current(&mut self.current.lock(), cause, lose)
    }

    /// Records the cause if `lose` marks the lease as lost, so that no thread sees a loss without
    /// its cause.
    fn lose_current(
        &self,
        current: &mut CurrentHold,
        cause: LossCause,
        lose: impl FnOnce(&Lease) -> bool,
    ) -> bool {
        let lost = lose(&self.lease);
        if lost {
            let rare = current.rare.get_or_insert_default();
            rare.cause = match rare.cause.take() {
                _ if cause != LossCause::Gone => Some(cause),
                _ if rare.forced => Some(LossCause::Forced),
                taken => taken.or(Some(cause)),
            };
        }
        lost
    }

    /// Records which other client has the lock, unless the hold is lost for a reason other than
    /// being gone.
    pub(crate) fn set_taken(&self, by: String) {
        let mut current = self.current.lock();
        let rare = current.rare.get_or_insert_default();
        if !rare.forced && matches!(rare.cause, None | Some(LossCause::Gone)) {
            rare.cause = Some(LossCause::Taken { by });
        }
    }

    /// Records a message that the hold was ended by force.
    pub(crate) fn set_forced(&self) {
        self.current.lock().rare.get_or_insert_default().forced = true;
    }

    /// Records the failure of a renewal; `None` once one succeeds again.
    pub(crate) fn set_last_failure(&self, failure: Option<&Failure>) {
        let mut current = self.current.lock();
        let source = failure.map(|failure| failure.source.clone());
        if source.is_some() || current.rare.is_some() {
            current.rare.get_or_insert_default().last_failure = source;
        }
    }

    /// Returns why the hold was lost, if it is.
    pub(crate) fn loss(&self, now: Moment) -> Loss {
        self.loss_of(&self.current.lock(), now)
    }

    /// The same, while the current hold is locked.
    pub(crate) fn loss_of(&self, current: &CurrentHold, now: Moment) -> Loss {
        let rare = current.rare.as_deref();
        let cause = rare.and_then(|rare| rare.cause.clone());
        // Perhaps no call has marked it as lost yet.
        let cause = cause.or_else(|| self.lease.cause_at_deadline(now)).unwrap_or(LossCause::Gone);
        let last_failure = if cause == LossCause::Expired {
            rare.and_then(|rare| rare.last_failure.clone())
        } else {
            None
        };
        Loss { cause, last_failure }
    }

    /// Returns the error for the caller of `attempt`.
    pub(crate) fn to_error(&self, failure: HoldFailure, attempt: &str, now: Moment) -> Error {
        match failure {
            HoldFailure::Ended => Error::Closed,
            HoldFailure::Failed(failure) => failure.into_error(attempt, &self.id.name),
            HoldFailure::Lost => Error::lost(&self.id.name, self.loss(now)),
        }
    }

    /// Returns a request that releases the hold, to be sent now.
    pub(crate) fn to_release(&self, deadline: Instant) -> HoldRequest<'_> {
        HoldRequest { hold: &self.id, change: self.begin_release(), deadline }
    }

    /// Returns `true` if requests about the hold ask whether another client waits for the lock,
    /// whose message may have been lost: if a thread watches for that, or if the lock may be kept.
    pub(crate) fn asks_if_wanted(&self) -> bool {
        if self.keep > 0 {
            return true;
        }
        let current = self.current.lock();
        current.rare.as_ref().is_some_and(|rare| rare.wanted.is_some())
    }

    /// Returns the change that renews the hold.
    pub(crate) fn to_renew(&self, now: Moment) -> Change {
        let lease = self.lease.next(now);
        let asks = self.asks_if_wanted();
        if asks { Change::Watch { lease: Some(lease) } } else { Change::Renew { lease } }
    }

    /// Returns the change that checks whether the hold exists.
    pub(crate) fn to_check(&self) -> Change {
        if self.asks_if_wanted() { Change::Watch { lease: None } } else { Change::Check }
    }

    /// Like `to_release`, but returns only the change.
    pub(crate) fn begin_release(&self) -> Change {
        self.current.lock().releases += 1;
        // A lost lock does not stay taken.
        let is_lost = self.lease.is_marked_as_lost();
        let taken_until = if is_lost { Moment::FIRST } else { self.taken_until };
        Change::Release { taken_until, unused: self.unused() }
    }

    /// Returns the tokens that a tenure of writers has left.
    pub(crate) fn unused(&self) -> Option<Unused> {
        let before = self.fence();
        let room = self.current.lock().room;
        if self.id.kind != HoldKind::Write || room == 0 {
            return None;
        }
        Some(Unused { before, last: before + u64::from(room) })
    }

    /// Returns what the reply to a release means. If another release may have ended the hold, a
    /// reply that it is gone is no loss, unless it was reported as one.
    pub(crate) fn release_outcome(
        &self,
        reply: Result<HoldReply, Failure>,
        now: Moment,
    ) -> Result<(), HoldFailure> {
        let is_only = self.current.lock().releases <= 1 || flawed(Flaw::RepeatedReleaseIsLoss);
        match reply {
            Ok(HoldReply::Gone) if is_only || self.lease.is_lost(now) => Err(HoldFailure::Lost),
            Ok(_) => Ok(()),
            Err(failure) => {
                if !failure.is_ambiguous() {
                    self.current.lock().releases -= 1;
                }
                Err(HoldFailure::Failed(failure))
            }
        }
    }

    /// Returns the next step of the renewer for the lease; `None` if it is over. The lease is not
    /// renewed if the thread that could release it is gone.
    pub(crate) fn next_step(&self) -> Option<NextStep> {
        let current = self.current.lock();
        let can_end = current.thread.as_ref().is_none_or(|thread| thread.can_release());
        self.lease.next_step(self.renewed && can_end)
    }
}

#[cfg(test)]
mod tests;
