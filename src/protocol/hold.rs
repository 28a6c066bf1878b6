//! One hold of one lock: its state, how the next hold of its tenure follows, and the channels that
//! report its end.
//!
//! Decides, without any I/O, which thread can have the next hold of a tenure, and whether the lock
//! may be kept. Knows neither the store nor the wait queues: `reporter.rs` reports losses.

use std::convert::Infallible;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::failure::Failure;
use crate::base::spans::HoldSpan;
use crate::error::{Error, Loss, LossCause};
use crate::protocol::call::{Caller, Terms};
use crate::protocol::current_hold::{CurrentHold, OverChannel, WantedWatch};
use crate::protocol::lease::{HoldFailure, Lease, NextStep};
use crate::store::background::InDoubtHold;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Change, HoldReply, HoldRequest};

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
    pub(crate) kept_until: Moment,
    /// The token of the current hold, or, for a permit, which has none, the number of holds before
    /// it. Changed while `current` is locked, and read without the lock, which in a forked child
    /// might never be released.
    fence: AtomicU64,
    /// The number of guards. Only the holding thread changes it. Readers share a hold: for them it
    /// changes while the name is locked.
    pub(crate) depth: AtomicU32,
    /// Whether a request that began this hold may be executed again, so that the hold can reappear
    /// after its release.
    pub(crate) in_doubt: AtomicBool,
    /// How many requests to release the hold may have been executed, or may still be. If more than
    /// one, each may have ended the hold before another.
    pub(crate) releases: AtomicU16,
    /// Whether the last renewal has failed. Only the renewer sets it.
    pub(crate) failing: AtomicBool,
    /// Whether another client waits for the lock.
    wanted: AtomicBool,
    /// Whether a hold has begun on the kept lock, so that keeping it was of use.
    pub(crate) reused: AtomicBool,
    /// How many milliseconds the lock is kept when the hold is over; 0 if it is not.
    keep: u32,
    pub(crate) current: Mutex<CurrentHold>,
}

impl Hold {
    /// Creates a hold of the caller, acquired by a request sent at `sent`. Up to `room` more holds
    /// may follow it.
    pub(crate) fn new(id: HoldId, fence: u64, room: u32, caller: &Caller, sent: Moment) -> Self {
        let Caller { thread, terms, times, .. } = caller;
        let (replied, thread) = (Moment::now(), thread.clone());
        let current = CurrentHold { room, acquired: replied, thread, ..CurrentHold::NEW };
        let keep = if terms.keep > 0 && id.may_be_kept() { terms.keep } else { 0 };
        Self {
            id,
            span: HoldSpan::default(),
            lease: Lease::new(sent, times.lease, terms.lease, terms.max_hold),
            renewed: terms.renew,
            begun: replied,
            // From the reply, because the store has begun the hold by then.
            kept_until: terms.hold_at_least.map_or(Moment::FIRST, |time| replied.after(time)),
            fence: AtomicU64::new(fence),
            depth: AtomicU32::new(1),
            in_doubt: AtomicBool::new(false),
            releases: AtomicU16::new(0),
            failing: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            reused: AtomicBool::new(false),
            keep,
            current: Mutex::new(current),
        }
    }

    /// Creates a hold that no thread has, but that may exist in the store. Nothing is reported
    /// about it.
    pub(crate) fn in_doubt(id: HoldId, lease: Duration) -> Self {
        let now = Moment::now();
        let lease = Lease::new(now, lease, lease, None);
        lease.end(now);
        lease.settle(false);
        Self {
            id,
            span: HoldSpan::default(),
            lease,
            renewed: false,
            begun: now,
            kept_until: Moment::FIRST,
            fence: AtomicU64::new(0),
            depth: AtomicU32::new(1),
            in_doubt: AtomicBool::new(true),
            releases: AtomicU16::new(0),
            failing: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            reused: AtomicBool::new(false),
            keep: 0,
            current: Mutex::new(CurrentHold::NEW),
        }
    }

    /// Returns the fencing token of the present hold, or 0 for a permit, which has none.
    pub(crate) fn fence(&self) -> u64 {
        if matches!(self.id.kind, HoldKind::Permit { .. }) { 0 } else { self.number() }
    }

    /// Returns the number of the present hold within its tenure. Later holds have greater numbers.
    pub(crate) fn number(&self) -> u64 {
        self.fence.load(Ordering::Relaxed)
    }

    /// Returns how many levels the hold has in the store. The guards of readers share one.
    pub(crate) fn levels(&self) -> u32 {
        if self.id.kind.is_lock() { self.depth.load(Ordering::Relaxed) } else { 1 }
    }

    /// Returns `true` if the caller can have the next hold of this tenure: time and a token are
    /// left for one with its options. As long as messages of other clients arrive, they can ask for
    /// a lock that may be kept, so there is time until one does.
    pub(crate) fn may_be_followed_by(&self, caller: &Caller, may_keep: bool) -> bool {
        let keeps = self.keep > 0 && may_keep && !self.is_wanted();
        self.suits(&caller.terms)
            && (!self.id.kind.is_lock() || self.current.lock().room > 0)
            && (keeps || Moment::now() < self.begun.after(caller.terms.tenure))
    }

    /// Returns `true` if these are the terms of this tenure, and no request of it is in doubt.
    pub(crate) fn suits(&self, terms: &Terms) -> bool {
        self.lease.suits(terms.lease, terms.max_hold)
            && self.renewed == terms.renew
            && (self.kept_until, terms.hold_at_least) == (Moment::FIRST, None)
            && (self.keep == 0 || self.keep == terms.keep)
            && !self.in_doubt.load(Ordering::Relaxed)
            && !self.lease.remaining().is_zero()
    }

    /// Begins the next hold of the tenure in place of this one, which is over. It has the lease of
    /// the tenure: a renewal in flight counts for it, and so does a loss.
    pub(crate) fn begin_next(&self, caller: &Caller) {
        self.depth.store(1, Ordering::Relaxed);
        let mut current = self.current.lock();
        current.disconnect();
        current.advance(caller.thread.clone());
        self.fence.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `true` if the lock may be kept when the hold is over.
    pub(crate) fn can_be_kept(&self) -> bool {
        self.keep > 0
            && !self.failing.load(Ordering::Relaxed)
            && !self.is_wanted()
            && !self.in_doubt.load(Ordering::Relaxed)
            && !self.lease.remaining().is_zero()
    }

    /// Keeps the lock, though the hold is over. Returns `false` if it was ended or lost before.
    pub(crate) fn keep(&self) -> bool {
        let mut current = self.current.lock();
        current.disconnect();
        if self.lease.is_open() {
            (current.kept, current.reported, current.thread) = (true, false, None);
            current.acquired = Moment::now();
        }
        current.kept
    }

    /// Returns when the renewer has to check whether a newly kept lock still is; `None` if it
    /// already will, or another thread uses the lock. So a lock in use costs no checks, and one
    /// that is used and kept again and again costs one per time that it may be kept.
    pub(crate) fn begin_looks(&self) -> Option<Moment> {
        let mut current = self.current.lock();
        let begins = current.kept && !mem::replace(&mut current.looked_after, true);
        begins.then(|| self.kept_end(&current))
    }

    /// Returns until when the lock is kept if no thread uses it; `None` if the renewer has nothing
    /// left to check.
    pub(crate) fn next_look(&self) -> Option<Moment> {
        let mut current = self.current.lock();
        current.looked_after = current.kept && self.lease.is_open();
        current.looked_after.then(|| self.kept_end(&current))
    }

    /// Returns when a kept lock has been unused for long enough.
    fn kept_end(&self, current: &CurrentHold) -> Moment {
        current.acquired.after(Duration::from_millis(self.keep.into()))
    }

    /// Begins the next hold of a kept tenure. Returns `false` if the tenure is over.
    pub(crate) fn begin_kept(&self, caller: &Caller) -> bool {
        let mut current = self.current.lock();
        let begins = !self.lease.remaining().is_zero();
        if begins {
            current.advance(caller.thread.clone());
            self.fence.fetch_add(1, Ordering::Relaxed);
            self.reused.store(true, Ordering::Relaxed);
        }
        begins
    }

    /// Returns `true` if it is time to release a kept lock.
    pub(crate) fn is_unused(&self) -> bool {
        let current = self.current.lock();
        current.kept && self.kept_end(&current).has_come()
    }

    /// Adds tokens for the next holds: `fence`, and the `room` ones after it.
    pub(crate) fn add_fences(&self, fence: u64, room: u32) {
        let mut current = self.current.lock();
        self.fence.store(fence - 1, Ordering::Relaxed);
        current.room = room.saturating_add(1);
    }

    /// Returns `true` if another client waits for the lock, as far as is known.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Records that another client waits for the lock, and notifies threads that watch the current
    /// hold.
    pub(crate) fn set_wanted(&self) {
        self.wanted.store(true, Ordering::Release);
        let mut current = self.current.lock();
        if let Some(watch) = current.rare.as_mut().and_then(|it| it.wanted.take()) {
            watch.set_wanted();
        }
    }

    /// Returns the current hold's watch for waiting clients.
    pub(crate) fn wanted(&self) -> WantedWatch {
        let mut current = self.current.lock();
        // A call that marks the hold after this line finds the watch.
        if self.is_wanted() || self.lease.is_settled() {
            return WantedWatch::over(self.is_wanted());
        }
        current.rare.get_or_insert_default().wanted.get_or_insert_default().clone()
    }

    /// Returns a receiver that is disconnected when the hold is over, and never gets a message.
    pub(crate) fn over(&self) -> Receiver<Infallible> {
        let mut current = self.current.lock();
        if self.lease.is_settled() {
            return bounded(0).1;
        }
        current.rare.get_or_insert_default().over.get_or_insert_default().receiver.clone()
    }

    /// Lets the end of the hold disconnect a channel that several holds share.
    pub(crate) fn share_over(&self, channel: &OverChannel) {
        let mut current = self.current.lock();
        if self.lease.is_settled() {
            channel.disconnect();
        } else {
            current.rare.get_or_insert_default().over = Some(channel.clone());
        }
    }

    /// Ends the hold. Returns `false` if it was ended or lost before. `settle` later says whether
    /// its release has found it lost.
    pub(crate) fn end(&self) -> bool {
        let now = Moment::now();
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
    pub(crate) fn is_lost_with(&self, number: u64) -> bool {
        let current = self.current.lock();
        self.lease.is_lost() && self.number() == number && !current.kept
    }

    /// Marks the hold as lost if its deadline has passed. Returns `true` for the one call that
    /// does.
    pub(crate) fn expire(&self) -> bool {
        let cause = self.lease.cause_at_deadline();
        cause.is_some_and(|cause| self.lose_if(cause, Lease::expire))
    }

    /// Marks the hold as lost because the server no longer has it. Returns `true` for the one call
    /// that does.
    pub(crate) fn lose(&self) -> bool {
        self.lose_if(LossCause::Gone, Lease::lose)
    }

    /// Marks an ended hold as lost or as released. Returns `true` for the first call that does.
    pub(crate) fn settle(&self, lost: bool) -> bool {
        if lost {
            self.lose_if(LossCause::Gone, |lease| lease.settle(true))
        } else {
            self.lease.settle(false)
        }
    }

    /// Records the cause if `lose` marks the lease as lost, so that no thread sees a loss without
    /// its cause.
    fn lose_if(&self, cause: LossCause, lose: impl FnOnce(&Lease) -> bool) -> bool {
        let mut current = self.current.lock();
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
    pub(crate) fn loss(&self) -> Loss {
        let current = self.current.lock();
        let rare = current.rare.as_deref();
        let cause = rare.and_then(|rare| rare.cause.clone());
        // Perhaps no call has marked it as lost yet.
        let cause = cause.or_else(|| self.lease.cause_at_deadline()).unwrap_or(LossCause::Gone);
        let last_failure = rare.and_then(|rare| rare.last_failure.clone());
        let last_failure = last_failure.filter(|_| cause == LossCause::Expired);
        Loss { cause, last_failure }
    }

    /// Returns the error for the caller of `attempt`.
    pub(crate) fn to_error(&self, failure: HoldFailure, attempt: &str) -> Error {
        match failure {
            HoldFailure::Ended => Error::Closed,
            HoldFailure::Failed(failure) => failure.into_error(attempt, &self.id.name),
            HoldFailure::Lost => Error::lost(&self.id.name, self.loss()),
        }
    }

    /// Returns a request that releases the hold, to be sent now.
    pub(crate) fn to_release(&self, deadline: Instant) -> HoldRequest<'_> {
        HoldRequest { hold: &self.id, change: self.begin_release(), deadline }
    }

    /// Returns `true` if requests about the hold ask whether another client waits for the lock,
    /// whose message may have been lost: if a thread watches for that, or if the lock may be kept.
    pub(crate) fn asks_if_wanted(&self) -> bool {
        let is_watched = || {
            let current = self.current.lock();
            current.rare.as_ref().is_some_and(|rare| rare.wanted.is_some())
        };
        self.keep > 0 || is_watched()
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
        self.releases.fetch_add(1, Ordering::AcqRel);
        Change::Release { kept_until: self.kept_until }
    }

    /// Returns what the reply to a release means. If another release may have ended the hold, a
    /// reply that it is gone is no loss, unless it was reported as one.
    pub(crate) fn release_outcome(
        &self,
        reply: Result<HoldReply, Failure>,
    ) -> Result<(), HoldFailure> {
        let is_only = self.releases.load(Ordering::Acquire) <= 1;
        match reply {
            Ok(HoldReply::Gone) if is_only || self.lease.is_lost() => Err(HoldFailure::Lost),
            Ok(_) => Ok(()),
            Err(failure) => {
                if !failure.is_ambiguous() {
                    self.releases.fetch_sub(1, Ordering::AcqRel);
                }
                Err(HoldFailure::Failed(failure))
            }
        }
    }

    /// Returns the hold for its removal from the store, where it may still exist after its release
    /// or loss. A lost lock does not stay taken.
    pub(crate) fn to_clean_up(&self) -> InDoubtHold {
        let kept_until = if self.lease.is_lost() { Moment::FIRST } else { self.kept_until };
        InDoubtHold {
            hold: self.id.clone(),
            kept_until,
            lease: self.lease.duration(),
            settled_by_release: !self.in_doubt.load(Ordering::Relaxed),
        }
    }

    /// Returns the next step of the renewer for the lease; `None` if it is over. The lease is not
    /// renewed if the thread that could release it is gone.
    pub(crate) fn next_step(&self) -> Option<NextStep> {
        let current = self.current.lock();
        let is_alive = current.thread.as_ref().is_none_or(|thread| thread.strong_count() > 0);
        self.lease.next_step(self.renewed && is_alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::protocol::call::tests::caller;
    use crossbeam_channel::TryRecvError;
    use std::sync::Arc;
    use std::thread::sleep;

    const LEASE: Duration = Duration::from_millis(200);
    const KEEP: Duration = Duration::from_secs(5);

    fn options() -> LockOptions {
        LockOptions { lease: LEASE, ..LockOptions::default() }
    }

    fn id() -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 }
    }

    fn acquired(options: &LockOptions, sent: Moment) -> Hold {
        Hold::new(id(), 7, 0, &caller(options), sent)
    }

    fn next_step(hold: &Hold) -> NextStep {
        hold.next_step().expect("not over")
    }

    fn expired() -> Hold {
        let hold = acquired(&options(), Moment::now());
        sleep(LEASE);
        hold
    }

    #[test]
    fn the_deadline_counts_from_the_request_and_leaves_room_for_drift() {
        let sent = Moment::now();
        sleep(LEASE / 4);
        let left = acquired(&options(), sent).lease.remaining();
        let drift = LEASE / 100 + Duration::from_millis(2);
        assert!(left + drift <= LEASE * 3 / 4, "{left:?}");
        assert!(left + sent.elapsed() >= LEASE / 2, "{left:?}");
    }

    #[test]
    fn a_hold_is_held_from_the_reply_on() {
        let sent = Moment::now();
        sleep(LEASE / 4);
        let replied = Instant::now();
        let hold = acquired(&options(), sent);
        assert!(hold.end());
        assert!(
            hold.current.lock().held() <= replied.elapsed(),
            "{:?}",
            hold.current.lock().held()
        );
    }

    #[test]
    fn a_renewal_counts_from_its_request_and_never_shortens() {
        let (sent, long) = (Moment::now(), LEASE * 50);
        let hold = acquired(&LockOptions { lease: long, ..options() }, sent);
        sleep(LEASE / 4);
        let (begin, before) = (Instant::now(), hold.lease.remaining());
        let left_then = || hold.lease.remaining() + begin.elapsed();
        hold.lease.extend(sent, long / 2);
        assert!(left_then() >= before, "not shortened");
        hold.lease.extend(sent.after(LEASE / 4), long);
        assert!(left_then() > before + LEASE / 5);
    }

    #[test]
    fn a_lost_lease_stays_lost() {
        let hold = expired();
        assert!(hold.lease.remaining().is_zero());
        hold.lease.extend(Moment::now(), LEASE);
        assert!(hold.lease.remaining().is_zero(), "renewed too late");
        assert!(hold.expire(), "the first to see it");
        assert!(!hold.expire(), "and no other");
        assert!(!hold.end(), "too late to end it");
        assert_eq!(hold.next_step(), None);
    }

    #[test]
    fn a_loss_has_its_cause_and_the_last_failure_of_a_renewal() {
        use LossCause::{Expired, Forced, Gone};
        let (failure, caller) = (Failure::late(), caller(&options()));
        let lost = |happen: fn(&Hold, &Failure)| {
            let hold = Hold::new(id(), 7, 1, &caller, Moment::now());
            happen(&hold, &failure);
            hold.begin_next(&caller);
            sleep(LEASE);
            hold.expire();
            let Loss { cause, last_failure } = hold.loss();
            (cause, last_failure.is_some())
        };
        assert_eq!(lost(|_, _| ()), (Expired, false));
        assert_eq!(lost(|hold, failure| hold.set_last_failure(Some(failure))), (Expired, true));
        let renewed = |hold: &Hold, failure: &Failure| {
            hold.set_last_failure(Some(failure));
            hold.set_last_failure(None);
        };
        assert_eq!(lost(renewed), (Expired, false));
        assert_eq!(lost(|hold, _| assert!(hold.lose())), (Gone, false));
        let forced = |hold: &Hold, _: &Failure| {
            hold.set_forced();
            assert!(hold.lose());
        };
        assert_eq!(lost(forced), (Forced, false));
    }

    #[test]
    fn a_lease_is_nearly_over_in_its_last_third() {
        let options = LockOptions { lease: LEASE * 100, ..options() };
        let acquired_ago = |part: u32| {
            acquired(&options, Moment::now().before(options.lease * part / 100))
                .lease
                .is_nearly_over()
        };
        assert_eq!([0, 60, 70, 98, 100].map(acquired_ago), [false, false, true, true, false]);
    }

    #[test]
    fn a_lease_is_lost_at_its_deadline_by_itself() {
        assert!(expired().lease.is_lost());
    }

    #[test]
    fn a_lease_is_renewed_after_a_third() {
        let sent = Moment::now();
        let hold = acquired(&options(), sent);
        let NextStep { due, renews: true } = next_step(&hold) else { panic!("not renewed") };
        assert!(due.since(sent) <= LEASE / 3 && due.since(sent) > LEASE / 4);
    }

    #[test]
    fn a_lease_that_is_not_renewed_expires() {
        let hold = acquired(&LockOptions { renew: false, ..options() }, Moment::now());
        assert!(!next_step(&hold).renews);
    }

    #[test]
    fn the_age_limit_cuts_the_first_lease_and_the_last() {
        let sent = Moment::now();
        let short = acquired(&LockOptions { max_hold: Some(LEASE / 2), ..options() }, sent);
        assert!(short.lease.remaining() < LEASE / 2);
        assert!(!next_step(&short).renews);

        let longer = acquired(&LockOptions { max_hold: Some(LEASE * 5 / 4), ..options() }, sent);
        assert!(next_step(&longer).renews);
        let later = sent.after(LEASE / 2);
        let next = longer.lease.next(later);
        assert!(next <= LEASE * 3 / 4);
        longer.lease.extend(later, next);
        let last = next_step(&longer);
        assert!(!last.renews && last.due <= sent.after(LEASE * 5 / 4));
    }

    fn keeping() -> LockOptions {
        LockOptions { keep: KEEP, lease: LEASE * 100, ..options() }
    }

    /// A hold after which the lock may be kept, with tokens for two more.
    fn keepable(options: &LockOptions) -> Hold {
        Hold::new(id().that_may_be_kept(), 7, 2, &caller(options), Moment::now())
    }

    #[test]
    fn a_lock_is_kept_unless_something_speaks_against_it() {
        assert!(keepable(&keeping()).can_be_kept());
        let not_kept = LockOptions { keep: Duration::ZERO, ..keeping() };
        assert!(!keepable(&not_kept).can_be_kept());
        assert!(!acquired(&keeping(), Moment::now()).can_be_kept(), "its id says so to servers");
        let against: [fn(&Hold); 4] = [
            |hold| hold.failing.store(true, Ordering::Relaxed),
            Hold::set_wanted,
            |hold| hold.in_doubt.store(true, Ordering::Relaxed),
            |hold| assert!(hold.lease.lose()),
        ];
        for (number, happen) in against.iter().enumerate() {
            let hold = keepable(&keeping());
            assert!(!hold.is_wanted());
            happen(&hold);
            assert!(!hold.can_be_kept(), "{number}");
        }
    }

    #[test]
    fn a_kept_lock_is_used_again_with_the_next_token() {
        let hold = keepable(&keeping());
        let over = hold.over();
        hold.current.lock().reported = true;
        assert!(!hold.is_unused() && hold.keep());
        assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!hold.current.lock().reported && !hold.reused.load(Ordering::Relaxed));
        assert!(hold.begin_kept(&caller(&keeping())));
        assert!(hold.reused.load(Ordering::Relaxed) && !hold.current.lock().kept);
        assert_eq!((hold.fence(), hold.current.lock().room), (8, 1));
        assert!(hold.lease.lose());
        assert!(!hold.keep() && !hold.begin_kept(&caller(&keeping())));
        assert_eq!(hold.fence(), 8);
    }

    #[test]
    fn a_kept_lock_is_released_when_it_was_not_used_for_long() {
        let hold = keepable(&LockOptions { keep: LEASE / 2, ..keeping() });
        assert!(hold.keep() && !hold.is_unused());
        assert!(hold.next_look().is_some_and(|look| look.left() <= LEASE / 2));
        sleep(LEASE / 2);
        assert!(hold.is_unused());
        assert!(hold.begin_kept(&caller(&keeping())) && !hold.is_unused(), "it is used");
    }

    #[test]
    fn only_a_lock_that_is_kept_is_looked_at_and_once_in_the_time_of_keeping() {
        let hold = keepable(&keeping());
        assert!(next_step(&hold).renews);
        assert_eq!((hold.begin_looks(), hold.next_look()), (None, None), "it is in use");
        assert!(hold.keep() && hold.begin_looks().is_some());
        for _ in 0..3 {
            assert!(hold.begin_kept(&caller(&keeping())) && hold.keep());
            assert_eq!(hold.begin_looks(), None, "it is looked at already");
        }
        assert!(hold.next_look().is_some() && next_step(&hold).renews);
        assert!(hold.begin_kept(&caller(&keeping())));
        assert_eq!(hold.next_look(), None, "it is in use");
        assert!(hold.keep() && hold.begin_looks().is_some());
        assert!(hold.lease.lose());
        assert_eq!(hold.next_look(), None);
    }

    #[test]
    fn a_hold_that_is_over_does_not_become_wanted() {
        let hold = keepable(&keeping());
        let first = hold.wanted();
        hold.begin_next(&caller(&keeping()));
        let second = hold.wanted();
        assert!(hold.keep());
        assert!(hold.begin_kept(&caller(&keeping())));
        let third = hold.wanted();
        hold.set_wanted();
        let is_wanted = [first, second, third, hold.wanted()].map(|watch| watch.is_wanted());
        assert_eq!(is_wanted, [false, false, true, true]);
    }

    #[test]
    fn new_tokens_are_those_of_the_next_holds() {
        let (hold, caller) = (keepable(&keeping()), caller(&keeping()));
        hold.add_fences(20, 1);
        for fence in [20, 21] {
            assert!(hold.may_be_followed_by(&caller, true));
            hold.begin_next(&caller);
            assert_eq!(hold.fence(), fence);
        }
        assert!(!hold.may_be_followed_by(&caller, true), "it has no token for one");
    }

    #[test]
    fn a_tenure_lasts_from_the_reply_that_has_brought_it() {
        let (lease, tenure) = (LEASE * 100, Some(LEASE * 30));
        let caller = caller(&LockOptions { lease, tenure, ..options() });
        let far = Hold::new(id(), 7, 2, &caller, Moment::now().before(LEASE * 40));
        assert!(far.may_be_followed_by(&caller, true));
    }

    #[test]
    fn a_tenure_ends_with_its_time_unless_the_lock_may_be_kept() {
        let over = LockOptions { tenure: Some(Duration::ZERO), ..keeping() };
        let hold = keepable(&over);
        assert!(hold.may_be_followed_by(&caller(&over), true));
        assert!(!hold.may_be_followed_by(&caller(&over), false), "none can ask for it");
        hold.set_wanted();
        assert!(!hold.may_be_followed_by(&caller(&over), true), "another client waits");
        let goes_on = LockOptions { tenure: Some(LEASE * 20), ..keeping() };
        assert!(hold.may_be_followed_by(&caller(&goes_on), true));
        let not_kept = LockOptions { keep: Duration::ZERO, ..over };
        assert!(!keepable(&not_kept).may_be_followed_by(&caller(&not_kept), true));
    }

    #[test]
    fn holds_of_a_tenure_have_the_same_terms() {
        let terms = |options: &LockOptions| caller(options).terms;
        let (keeps, hold) = (keeping(), keepable(&keeping()));
        assert!(hold.suits(&terms(&keeps)));
        let others = [
            LockOptions { lease: LEASE, ..keeping() },
            LockOptions { renew: false, ..keeping() },
            LockOptions { max_hold: Some(LEASE), ..keeping() },
            LockOptions { hold_at_least: Some(LEASE), ..keeping() },
            LockOptions { keep: KEEP * 2, ..keeping() },
        ];
        for other in &others {
            assert!(!hold.suits(&terms(other)), "{other:?}");
        }
        let not_kept = LockOptions { keep: Duration::ZERO, ..keeping() };
        assert!(keepable(&not_kept).suits(&terms(&keeps)), "a thread that keeps it comes later");
        let at_least = LockOptions { hold_at_least: Some(LEASE), ..not_kept };
        assert!(!keepable(&at_least).suits(&terms(&at_least)), "each hold has its own");
        hold.in_doubt.store(true, Ordering::Relaxed);
        assert!(!hold.suits(&terms(&keeps)));
    }

    #[test]
    fn holds_share_a_channel_that_the_first_to_end_disconnects() {
        let channel = OverChannel::default();
        let [one, other] = [(); 2].map(|()| acquired(&options(), Moment::now()));
        one.share_over(&channel);
        other.share_over(&channel);
        assert_eq!(channel.receiver.try_recv(), Err(TryRecvError::Empty));
        other.current.lock().disconnect();
        assert_eq!(channel.receiver.try_recv(), Err(TryRecvError::Disconnected));
        let later = OverChannel::default();
        assert!(one.lease.lose());
        one.share_over(&later);
        assert_eq!(later.receiver.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_hold_that_has_ended_was_held_for_as_long_as_it_lasted() {
        let (begun, hold) = (Instant::now(), acquired(&options(), Moment::now()));
        sleep(LEASE / 10);
        assert!(hold.current.lock().held() >= LEASE / 10);
        assert!(hold.end());
        let (held, lasted) = (hold.current.lock().held(), begun.elapsed());
        sleep(LEASE / 10);
        let later = hold.current.lock().held();
        assert!(held == later && held >= LEASE / 10 && held <= lasted);
    }
}
