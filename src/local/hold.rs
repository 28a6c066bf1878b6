//! One hold of one lock, and how long it may be relied on.
//!
//! Decides, without any I/O, whether the hold is still valid, and when it has to be renewed. Knows
//! neither the store nor the wait queues:
//! [`Reporter`](crate::local::reporter::Reporter) reports a loss to others.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;

use crate::base::clock::{Moment, nanos};
use crate::base::spans::HoldSpan;
use crate::local::call::{Caller, Terms, Thread};
use crate::local::deadline::Deadline;
use crate::local::over_channel::OverChannel;
use crate::store::background::InDoubtHold;
use crate::store::hold_id::HoldId;
use crate::store::request::{Change, HoldRequest};

/// A lease that is due within this part of its duration is renewed along with others.
pub(crate) const TOGETHER: u32 = 64;

/// The shortest time until the next look whether a lock is still kept.
const KEPT_LOOK: Duration = Duration::from_millis(1);

/// A hold and how long it may be relied on.
///
/// The one fact that decides is the local deadline: *the time at which the last confirmed request
/// was sent, plus the lease, less the drift*.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: HoldId,
    pub(crate) span: HoldSpan,
    /// Of a whole lease, in nanoseconds: a `Duration` takes twice as much memory.
    duration: u64,
    renewed: bool,
    /// When the tenure began: when the request was sent that has brought it.
    begun: Moment,
    /// The age limit.
    end: Moment,
    /// Until then the lock stays taken, however early the hold is released.
    kept_until: Moment,
    deadline: Deadline,
    /// How many guards there are. Only the holding thread changes it.
    depth: AtomicU32,
    /// Whether a request that began this hold may be executed once more.
    in_doubt: AtomicBool,
    /// How many requests to release the hold may have been executed, or come to be.
    releases: AtomicU16,
    /// Whether the last renewal has failed. Only the renewer sets it.
    failing: AtomicBool,
    /// Whether another client waits for the lock.
    wanted: AtomicBool,
    /// Whether a hold has begun after the lock was kept.
    reused: AtomicBool,
    /// Whether the client was asked to tell that.
    watched: AtomicBool,
    /// For how many milliseconds the lock is kept when the hold is over; 0 if it is not.
    keep: u32,
    current: Mutex<CurrentHold>,
}

/// What the holds of a tenure do not have in common.
#[derive(Debug)]
struct CurrentHold {
    fence: u64,
    /// How many holds may follow, each with the next token.
    room: u32,
    /// Whether it was reported that the hold has begun. If not, nothing is reported of its end: a
    /// call has it that may not get it, or not alone.
    reported: bool,
    ended: bool,
    /// Whether it is over, and the lock is kept.
    kept: bool,
    /// When it began. Once it has ended, as long after [`Moment::FIRST`] as it was held. While the
    /// lock is kept, when it was last used.
    acquired: Moment,
    /// `None` for a hold that belongs to no thread.
    thread: Option<Thread>,
    /// Made when the first thread asks for a receiver. Its sender is dropped when the hold is over.
    over: Option<Box<OverChannel>>,
    /// As `over`. Its sender is dropped when another client waits, too.
    wanted: Option<Box<OverChannel>>,
}

/// What the renewer does for a lease next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// To release the lock then if it is not used before.
    EndKept(Moment),
    /// Nothing any more.
    None,
    /// To find it lost then, unless it was released before.
    Expire(Moment),
    /// To renew it then: when a third of it has passed, a little less because of the drift.
    Renew(Moment),
}

impl Hold {
    /// A hold of the caller, acquired by a request that was sent at `sent`. Up to `room` more holds
    /// may follow it.
    pub(crate) fn new(id: HoldId, fence: u64, room: u32, caller: &Caller, sent: Moment) -> Self {
        let Caller { thread, terms, times, .. } = caller;
        let replied = Moment::now();
        let keep = if id.may_be_kept() { terms.keep } else { 0 };
        Self {
            id,
            span: HoldSpan::default(),
            duration: nanos(terms.lease),
            renewed: terms.renew,
            begun: sent,
            end: age_limit(sent, terms.max_hold),
            // From the reply, because the store has begun the hold by then.
            kept_until: terms.hold_at_least.map_or(Moment::FIRST, |time| replied.after(time)),
            deadline: Deadline::new(local_deadline(sent, times.lease)),
            depth: AtomicU32::new(1),
            in_doubt: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            reused: AtomicBool::new(false),
            keep,
            releases: AtomicU16::new(0),
            current: Mutex::new(CurrentHold {
                fence,
                room,
                reported: false,
                ended: false,
                kept: false,
                acquired: replied,
                thread: thread.clone(),
                over: None,
                wanted: None,
            }),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.id.name
    }

    pub(crate) fn fence(&self) -> u64 {
        self.current.lock().fence
    }

    /// Returns `true` if the caller can have the next hold of this tenure: there is time and a
    /// token left for one with its options. A lock that may be kept can be asked for, so there is
    /// time until another client does.
    pub(crate) fn may_be_followed_by(&self, caller: &Caller) -> bool {
        let keeps = self.keep > 0 && !self.is_wanted();
        self.suits(&caller.terms)
            && self.current.lock().room > 0
            && (keeps || Moment::now() < self.begun.after(caller.terms.tenure))
    }

    /// Returns `true` if these are the terms of this tenure, and no request of it is in doubt.
    pub(super) fn suits(&self, terms: &Terms) -> bool {
        let Terms { lease, renew, max_hold, hold_at_least, keep, .. } = *terms;
        (self.duration(), self.renewed) == (lease, renew)
            && self.end == age_limit(self.begun, max_hold)
            && (self.kept_until, hold_at_least) == (Moment::FIRST, None)
            && (self.keep == 0 || self.keep == keep)
            && !self.is_in_doubt()
            && !self.remaining().is_zero()
    }

    /// Begins the next hold of the tenure in place of this one, which is over. It relies on what
    /// the tenure has: a renewal that is on its way counts for it, and so does a loss.
    pub(crate) fn begin_next(&self, caller: &Caller) {
        self.set_depth(1);
        self.disconnect();
        self.current.lock().advance(caller);
    }

    /// Returns `true` if the lock may be kept when the hold is over.
    pub(crate) fn can_be_kept(&self) -> bool {
        let is_failing = self.failing.load(Ordering::Relaxed);
        self.keep > 0
            && !is_failing
            && !self.is_wanted()
            && !self.is_in_doubt()
            && !self.remaining().is_zero()
    }

    /// Keeps the lock, though the hold is over. Returns `false` if it was ended or lost before.
    pub(crate) fn keep(&self) -> bool {
        self.disconnect();
        let mut current = self.current.lock();
        if self.deadline.get().is_some() {
            (current.kept, current.reported, current.thread) = (true, false, None);
            current.acquired = Moment::now();
        }
        current.kept
    }

    /// Begins the next hold of a tenure that was kept. Returns `false` if that was ended or lost
    /// before.
    pub(crate) fn begin_kept(&self, caller: &Caller) -> bool {
        let mut current = self.current.lock();
        let begins = self.deadline.get().is_some();
        if begins {
            current.advance(caller);
            self.reused.store(true, Ordering::Relaxed);
        }
        begins
    }

    /// Returns `true` if it was of use to keep the lock.
    pub(crate) fn was_reused(&self) -> bool {
        self.reused.load(Ordering::Relaxed)
    }

    /// Returns `true` if the lock is kept, or was when its tenure ended.
    pub(crate) fn is_kept(&self) -> bool {
        self.current.lock().kept
    }

    /// Returns `true` if it is time to release a lock that is kept.
    pub(crate) fn is_unused(&self) -> bool {
        let current = self.current.lock();
        current.kept && current.acquired.after(self.keep_time()) <= Moment::now()
    }

    /// Adds tokens for the next holds, which begin with `fence`: `room` more follow that one.
    pub(crate) fn add_fences(&self, fence: u64, room: u32) {
        let mut current = self.current.lock();
        (current.fence, current.room) = (fence - 1, room.saturating_add(1));
    }

    /// Takes away the tokens for further holds if the lock may be kept: the request for more of
    /// them shows whether another client waits, whose message may have been lost.
    pub(crate) fn expire_fences(&self) {
        if self.keep > 0 {
            self.current.lock().room = 0;
        }
    }

    /// Returns `true` if another client waits for the lock, as far as is known.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Notes that another client waits for the lock.
    pub(crate) fn set_wanted(&self) {
        self.wanted.store(true, Ordering::Release);
        if let Some(channel) = self.current.lock().wanted.take() {
            channel.disconnect();
        }
    }

    /// Returns `true` for the first call, which has to make sure that this client is told when
    /// another one waits.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::Relaxed)
    }

    /// Returns a receiver that is disconnected when another client waits or the hold is over, and
    /// gets no message.
    pub(crate) fn wanted(&self) -> Receiver<Infallible> {
        let mut current = self.current.lock();
        // What is marked after this line finds the channel.
        if self.is_wanted() || self.deadline.is_settled() {
            return bounded(0).1;
        }
        current.wanted.get_or_insert_with(|| Box::new(OverChannel::new())).receiver.clone()
    }

    fn keep_time(&self) -> Duration {
        Duration::from_millis(self.keep.into())
    }

    /// Returns `true` unless it belongs to a thread that has ended.
    pub(crate) fn has_living_thread(&self) -> bool {
        self.current.lock().thread.as_ref().is_none_or(Thread::is_alive)
    }

    /// Returns how long it has been held.
    pub(crate) fn held(&self) -> Duration {
        let current = self.current.lock();
        if current.ended {
            current.acquired.since(Moment::FIRST)
        } else {
            Moment::now().since(current.acquired)
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    pub(crate) fn set_depth(&self, depth: u32) {
        self.depth.store(depth, Ordering::Relaxed);
    }

    /// Returns `true` if a request that began this hold may be executed once more, so that the hold
    /// can reappear after its release.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Calls `report` for the beginning of the hold with this token, unless it was found lost
    /// before. A thread that finds it lost later comes after the report.
    pub(crate) fn report_begin(&self, report: impl FnOnce(u64)) {
        let mut current = self.current.lock();
        if !self.deadline.is_settled() {
            current.reported = true;
            report(current.fence);
        }
    }

    /// Returns `true` if it was reported that the hold has begun.
    pub(crate) fn is_reported(&self) -> bool {
        self.current.lock().reported
    }

    /// Notes that a request to release the hold is sent.
    pub(crate) fn note_release(&self) {
        self.releases.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a request to release the hold was not executed.
    pub(crate) fn forget_release(&self) {
        self.releases.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns `true` if one request to release the hold may have ended it before another.
    pub(crate) fn is_released_again(&self) -> bool {
        self.releases.load(Ordering::Acquire) > 1
    }

    pub(crate) fn mark_in_doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    /// Sets whether the last renewal has failed, and returns whether the one before had.
    pub(crate) fn set_failing(&self, failing: bool) -> bool {
        self.failing.swap(failing, Ordering::Relaxed)
    }

    /// Returns the time for which the hold may still be relied on; zero if it is lost or ended.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Returns `true` if less than a third of the lease is left, but some.
    pub(crate) fn is_nearly_over(&self) -> bool {
        let remaining = self.remaining();
        !remaining.is_zero() && remaining < self.duration() / 3
    }

    /// Returns the duration of a whole lease.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration)
    }

    /// Returns `true` if requests about the hold may renew it.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// Returns the lease to ask for in a request that is sent now: less than a whole one where the
    /// age limit comes first.
    pub(crate) fn next_lease(&self, now: Moment) -> Duration {
        self.duration().min(self.end.since(now))
    }

    /// Moves the deadline after a request sent at `sent` has renewed the hold for `lease`. Does
    /// nothing if the hold was lost in the meantime.
    pub(crate) fn extend(&self, sent: Moment, lease: Duration) {
        self.deadline.extend(local_deadline(sent, lease));
    }

    /// Marks the hold as lost if its deadline has passed. Returns `true` for the one call that
    /// does.
    pub(crate) fn expire(&self) -> bool {
        let lost = self.deadline.expire();
        if lost {
            self.disconnect();
        }
        lost
    }

    /// Marks the hold as lost because the server does not know it any more. Returns `true` for the
    /// one call that does.
    pub(crate) fn lose(&self) -> bool {
        let lost = self.deadline.lose();
        if lost {
            self.disconnect();
        }
        lost
    }

    /// Ends the hold. Returns `false` if it was ended or lost before. Whether its release has found
    /// it lost is reported later.
    pub(crate) fn end(&self) -> bool {
        let now = Moment::now();
        let ended = self.deadline.end(now);
        if ended {
            let mut current = self.current.lock();
            current.ended = true;
            current.acquired = Moment::FIRST.after(now.since(current.acquired));
        }
        ended
    }

    /// Returns `true` if the hold was ended, and its release has not found it lost. While it has
    /// guards, that is the work of a shutdown.
    pub(crate) fn is_ended(&self) -> bool {
        self.deadline.is_ended()
    }

    /// Returns `true` if the hold is lost, also if no call has marked it as lost yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.deadline.is_lost()
    }

    /// As `is_lost`, for the hold of the tenure that has this token: one that was handed off, or
    /// after which the lock was kept, has ended before.
    pub(crate) fn is_lost_with(&self, fence: u64) -> bool {
        let current = self.current.lock();
        self.is_lost() && current.fence == fence && !current.kept
    }

    /// Returns a receiver that is disconnected when the hold is over, and gets no message.
    pub(crate) fn over(&self) -> Receiver<Infallible> {
        let mut current = self.current.lock();
        // What is marked after this line finds the channel.
        if self.deadline.is_settled() {
            return bounded(0).1;
        }
        current.over.get_or_insert_with(|| Box::new(OverChannel::new())).receiver.clone()
    }

    /// Lets the hold disconnect a channel of several holds when it is over.
    pub(crate) fn share_over(&self, channel: &OverChannel) {
        let mut current = self.current.lock();
        if self.deadline.is_settled() {
            channel.disconnect();
        } else {
            current.over = Some(Box::new(channel.clone()));
        }
    }

    /// Notes how a hold has ended that its holder has ended: its release may have found it lost.
    /// Disconnects the receivers. Returns `true` for the first call that says how it has ended.
    pub(crate) fn settle(&self, lost: bool) -> bool {
        let first = self.deadline.settle(lost);
        self.disconnect();
        first
    }

    /// Disconnects the receivers, even those that watch other holds as well.
    fn disconnect(&self) {
        let mut current = self.current.lock();
        for channel in [current.over.take(), current.wanted.take()].into_iter().flatten() {
            channel.disconnect();
        }
    }

    /// Returns for how long the lock stays taken from now on, however early the hold is released.
    pub(crate) fn kept_for(&self) -> Duration {
        self.kept_until.since(Moment::now())
    }

    /// Returns a request that releases the hold, to be sent now.
    pub(crate) fn to_release(&self, deadline: Instant) -> HoldRequest<'_> {
        HoldRequest { hold: &self.id, change: self.begin_release(), deadline }
    }

    /// As `to_release`, without the request.
    pub(crate) fn begin_release(&self) -> Change {
        self.note_release();
        Change::Release { kept_until: self.kept_until }
    }

    /// Returns the hold for its removal from the store, where it may still exist after its release
    /// or loss. A lock that was lost is not kept.
    pub(crate) fn to_clean_up(&self) -> InDoubtHold {
        let kept_until = if self.is_lost() { Moment::FIRST } else { self.kept_until };
        let settled_by_release = !self.is_in_doubt();
        InDoubtHold {
            hold: self.id.clone(),
            kept_until,
            lease: self.duration(),
            settled_by_release,
        }
    }

    /// Returns what the renewer has to do for the lease next.
    pub(crate) fn next_step(&self) -> NextStep {
        let Some(deadline) = self.deadline.get() else { return NextStep::None };
        // The age limit leaves nothing to renew, or the thread that could release is gone.
        let last = deadline.after(drift(self.duration())) >= self.end;
        if !self.renewed || last || !self.has_living_thread() {
            return NextStep::Expire(deadline);
        }
        let renewal = deadline.before(self.duration() * 2 / 3);
        match self.kept_end() {
            Some(end) if end < renewal => NextStep::EndKept(end),
            _ => NextStep::Renew(renewal),
        }
    }

    /// Returns the first moment at which the lock can be kept no longer, though it may be used and
    /// kept again until then. A thread that uses it wakes none for that.
    fn kept_end(&self) -> Option<Moment> {
        let now = Moment::now();
        let current = self.current.lock();
        let last_used = if current.kept { current.acquired } else { now };
        // Not at once again if a thread is about to use it.
        let end = last_used.after(self.keep_time()).max(now.after(KEPT_LOOK));
        (self.keep > 0).then_some(end)
    }

    /// Returns `true` if the lease should be renewed now, or so soon that it may go along with
    /// others.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let soon = now.after(self.duration() / TOGETHER);
        matches!(self.next_step(), NextStep::Renew(due) if due <= soon)
    }
}

impl CurrentHold {
    /// Replaces the hold by the next one.
    fn advance(&mut self, caller: &Caller) {
        *self = Self {
            fence: self.fence + 1,
            // The renewer may just have taken the tokens away of which this is one.
            room: self.room.saturating_sub(1),
            reported: false,
            ended: false,
            kept: false,
            acquired: Moment::now(),
            thread: caller.thread.clone(),
            over: None,
            wanted: None,
        };
    }
}

impl NextStep {
    /// Returns when to take it.
    pub(crate) fn due(self) -> Option<Moment> {
        match self {
            Self::None => None,
            Self::EndKept(due) | Self::Expire(due) | Self::Renew(due) => Some(due),
        }
    }
}

/// Returns the moment at which the holds of a tenure are lost that began then.
fn age_limit(begun: Moment, max_hold: Option<Duration>) -> Moment {
    max_hold.map_or(Moment::NEVER, |age| begun.after(age))
}

/// Returns the moment until which a lease may be relied on that a request sent at `sent` has
/// brought.
pub(crate) fn local_deadline(sent: Moment, lease: Duration) -> Moment {
    sent.after(lease.saturating_sub(drift(lease)))
}

/// What clocks may differ by within a lease: 1 % of it and 2 ms, as in
/// <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::local::call::tests::caller;
    use crate::store::hold_id::HoldKind;
    use crossbeam_channel::TryRecvError;
    use std::thread::sleep;

    const LEASE: Duration = Duration::from_millis(200);

    fn options() -> LockOptions {
        LockOptions { lease: LEASE, ..LockOptions::default() }
    }

    fn id() -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 }
    }

    fn acquired(options: &LockOptions, sent: Moment) -> Hold {
        Hold::new(id(), 7, 0, &caller(options), sent)
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
        let left = acquired(&options(), sent).remaining();
        let drift = LEASE / 100 + Duration::from_millis(2);
        assert!(left + drift <= LEASE * 3 / 4, "{left:?}");
        assert!(left > LEASE / 4, "{left:?}");
    }

    #[test]
    fn a_hold_is_held_from_the_reply_on() {
        let sent = Moment::now();
        sleep(LEASE / 4);
        let replied = Instant::now();
        let hold = acquired(&options(), sent);
        assert!(hold.end());
        assert!(hold.held() <= replied.elapsed(), "{:?}", hold.held());
    }

    #[test]
    fn a_renewal_counts_from_its_request_and_never_shortens() {
        let sent = Moment::now();
        let hold = acquired(&options(), sent);
        sleep(LEASE / 4);
        let before = hold.remaining();
        hold.extend(sent, LEASE / 2);
        assert!(before.abs_diff(hold.remaining()) < LEASE / 10, "not shortened");
        hold.extend(sent.after(LEASE / 4), LEASE);
        assert!(hold.remaining() > before + LEASE / 5);
    }

    #[test]
    fn a_lost_lease_stays_lost() {
        let hold = expired();
        assert!(hold.remaining().is_zero());
        hold.extend(Moment::now(), LEASE);
        assert!(hold.remaining().is_zero(), "renewed too late");
        assert!(hold.expire(), "the first to see it");
        assert!(!hold.expire(), "and no other");
        assert!(!hold.end(), "too late to end it");
        assert_eq!(hold.next_step(), NextStep::None);
    }

    #[test]
    fn an_ended_lease_is_not_lost() {
        let hold = acquired(&options(), Moment::now());
        let over = hold.over();
        assert!(hold.end());
        hold.lose();
        assert_eq!(over.try_recv(), Err(TryRecvError::Empty), "its release is under way");
        assert!(hold.settle(false));
        assert!(!hold.settle(true), "only the first says how it has ended");
        assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!hold.is_lost());
        assert!(!hold.end(), "only once");
        assert_eq!(hold.over().try_recv(), Err(TryRecvError::Disconnected), "made later");
    }

    #[test]
    fn a_release_that_finds_the_hold_gone_makes_it_lost() {
        let hold = acquired(&options(), Moment::now());
        let over = hold.over();
        assert!(hold.end() && !hold.is_lost());
        assert!(hold.settle(true));
        assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!hold.settle(false));
        assert!(hold.is_lost());
    }

    #[test]
    fn every_receiver_learns_of_a_loss_before_and_after_it() {
        let hold = acquired(&options(), Moment::now());
        let early = [hold.over(), hold.over()];
        hold.lose();
        assert!(hold.is_lost());
        for over in early.iter().chain([&hold.over()]) {
            assert_eq!(over.try_recv(), Err(TryRecvError::Disconnected));
        }
    }

    #[test]
    fn a_hold_that_was_found_lost_is_not_reported_to_begin() {
        let lost = acquired(&options(), Moment::now());
        assert!(lost.lose());
        lost.report_begin(|_| panic!("a loss would have to be told too"));
        assert!(!lost.is_reported());
        let held = acquired(&options(), Moment::now());
        assert!(!held.is_reported());
        held.report_begin(|fence| assert_eq!(fence, 7));
        assert!(held.is_reported());
    }

    #[test]
    fn a_lease_is_nearly_over_in_its_last_third() {
        let options = LockOptions { lease: LEASE * 100, ..options() };
        let acquired_ago = |part: u32| {
            acquired(&options, Moment::now().before(options.lease * part / 100)).is_nearly_over()
        };
        assert_eq!([0, 60, 70, 98, 100].map(acquired_ago), [false, false, true, true, false]);
    }

    #[test]
    fn a_lease_is_lost_at_its_deadline_by_itself() {
        assert!(expired().is_lost());
    }

    #[test]
    fn a_lease_is_renewed_after_a_third() {
        let sent = Moment::now();
        let hold = acquired(&options(), sent);
        let NextStep::Renew(due) = hold.next_step() else { panic!("{:?}", hold.next_step()) };
        assert!(due.since(sent) <= LEASE / 3 && due.since(sent) > LEASE / 4);
        assert!(!hold.is_due(sent));
        assert!(hold.is_due(sent.after(LEASE / 3)));
    }

    #[test]
    fn a_lease_that_is_not_renewed_expires() {
        let hold = acquired(&LockOptions { renew: false, ..options() }, Moment::now());
        assert!(matches!(hold.next_step(), NextStep::Expire(_)));
    }

    #[test]
    fn the_age_limit_cuts_the_first_lease_and_the_last() {
        let sent = Moment::now();
        let short = acquired(&LockOptions { max_hold: Some(LEASE / 2), ..options() }, sent);
        assert!(short.remaining() < LEASE / 2);
        assert!(matches!(short.next_step(), NextStep::Expire(_)));

        let longer = acquired(&LockOptions { max_hold: Some(LEASE * 5 / 4), ..options() }, sent);
        assert!(matches!(longer.next_step(), NextStep::Renew(_)));
        let later = sent.after(LEASE / 2);
        let next = longer.next_lease(later);
        assert!(next <= LEASE * 3 / 4);
        longer.extend(later, next);
        let NextStep::Expire(then) = longer.next_step() else { panic!("{:?}", longer.next_step()) };
        assert!(then <= sent.after(LEASE * 5 / 4));
    }
}
