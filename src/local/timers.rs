//! When the renewer has to act: leases to renew or to find lost, and holds in doubt to remove.
//!
//! Decides the order, which entries are close enough to be handled together, and the pauses between
//! the attempts to remove a hold. Knows neither the store nor the renewer's thread.

use std::cmp;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{Moment, end_of};
use crate::protocol::hold::Hold;
use crate::protocol::lease::{NextStep, TOGETHER};
use crate::store::background::{InDoubtHold, Job};
use crate::store::hold_id::HoldId;
use crate::store::request::Change;

/// The first pause between two attempts to clean up.
const CLEAN_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause, as a part of the time that there is for cleaning up.
const CLEAN_TRIES: u32 = 20;

/// With fewer entries than this there is no compaction.
const CROWD: usize = 1024;

/// The longest time for which entries that are over may stay.
const COMPACTION_PAUSE: Duration = Duration::from_secs(5);

/// Work of the renewer.
#[derive(Debug)]
pub(crate) enum Scheduled {
    /// To ask whether the hold exists, beside its renewals.
    Check(Arc<Hold>),
    CleanUp(Box<CleanUp>),
    Hold(Arc<Hold>),
    /// To release a lock that is kept, if no thread has used it for long enough.
    Kept(Arc<Hold>),
}

impl Scheduled {
    /// Returns the job that does it now, in a third of the lease at most. What is kept is only
    /// looked at, before it comes to that.
    pub(crate) fn job(&self, id: u64, now: Moment) -> Job {
        let (hold, change, limit) = match self {
            Self::Check(hold) | Self::Kept(hold) => {
                (&hold.id, hold.to_check(), hold.lease.remaining())
            }
            Self::CleanUp(clean_up) => {
                let InDoubtHold { hold, lease, .. } = &clean_up.in_doubt;
                (hold, clean_up.begin_attempt(), *lease / 3)
            }
            Self::Hold(hold) => {
                let change = hold.to_renew(now);
                (&hold.id, change, (hold.lease.duration() / 3).min(hold.lease.remaining()))
            }
        };
        Job { id, hold: hold.clone(), change, deadline: end_of(limit) }
    }

    /// Returns `true` if a lease is to be renewed now, or so soon that it may go along with others.
    /// Other work is always due.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let Self::Hold(hold) = self else { return true };
        let soon = now.after(hold.lease.duration() / TOGETHER);
        hold.next_step().is_some_and(|next| next.renews && next.due <= soon)
    }

    pub(crate) fn as_hold(&self) -> Option<&Arc<Hold>> {
        if let Self::Hold(hold) = self { Some(hold) } else { None }
    }

    pub(crate) fn as_clean_up(&self) -> Option<&CleanUp> {
        if let Self::CleanUp(clean_up) = self { Some(clean_up) } else { None }
    }
}

/// The removal of an in-doubt hold: one that may exist after a request with an unknown outcome, or
/// that such a request may still begin. The same way a shutdown releases holds.
#[derive(Debug)]
pub(crate) struct CleanUp {
    pub(super) in_doubt: InDoubtHold,
    /// After this the hold has ended by itself.
    deadline: Moment,
    pause: Duration,
    longest_pause: Duration,
    /// The hold that a shutdown has ended, until it is known how its release has gone.
    pub(super) ended: Option<Arc<Hold>>,
    /// How many more replies it takes until the hold counts as removed.
    pub(super) unconfirmed: u8,
    /// Whether not a hold is removed, but its client from the waiting clients.
    pub(super) unregisters: bool,
}

impl CleanUp {
    pub(crate) fn new(in_doubt: InDoubtHold) -> Self {
        let deadline = Moment::now().after(in_doubt.lease);
        let longest_pause = (in_doubt.lease / CLEAN_TRIES).max(CLEAN_PAUSE);
        // A server that was hung executes what it finds over several connections in any order: a
        // late request may come after the release, but not after another one.
        let unconfirmed = if in_doubt.settled_by_release { 1 } else { 2 };
        Self {
            in_doubt,
            deadline,
            pause: CLEAN_PAUSE,
            longest_pause,
            ended: None,
            unconfirmed,
            unregisters: false,
        }
    }

    /// The removal of a client from the waiting clients, for which no shutdown waits. The hold was
    /// to be acquired, for that lease.
    pub(crate) fn of_waiting(hold: HoldId, lease: Duration) -> Self {
        let kept_until = Moment::FIRST;
        let removal = InDoubtHold { hold, kept_until, lease, settled_by_release: true };
        Self { unconfirmed: 0, unregisters: true, ..Self::new(removal) }
    }

    /// The release of a hold that a shutdown has ended.
    pub(crate) fn of_ended(hold: &Arc<Hold>) -> Self {
        Self { ended: Some(hold.clone()), ..Self::new(hold.to_clean_up()) }
    }

    /// Begins an attempt, and returns what it asks for.
    fn begin_attempt(&self) -> Change {
        match &self.ended {
            _ if self.unregisters => Change::Unregister,
            Some(hold) => hold.begin_release(),
            None => Change::Release { kept_until: self.in_doubt.kept_until },
        }
    }

    /// Returns `true` if the hold counts as removed: by a majority of several servers, and unless
    /// a request comes very late.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.unconfirmed == 0
    }

    /// Shortens the pause before the next attempt.
    pub(crate) fn hasten(&mut self) {
        self.pause = CLEAN_PAUSE;
    }

    /// Returns when to try again after an attempt to which every server has replied or not; `None`
    /// if the hold is gone for certain.
    pub(crate) fn next_try(&mut self, replied: bool, now: Moment) -> Option<Moment> {
        if now >= self.deadline || (replied && self.in_doubt.settled_by_release) {
            return None;
        }
        let due = now.after(self.pause);
        self.pause = (self.pause * 2).min(self.longest_pause);
        Some(due)
    }
}

/// Scheduled work in the order in which it is due.
///
/// A lease that ends stays until it is due, which may be hours, or until the next compaction: one
/// comes when there may be more leases that are over than others, which costs each a constant time,
/// and after a pause, so that memory also follows when no more leases come.
pub(crate) struct TimerQueue {
    entries: BinaryHeap<TimerEntry>,
    /// Entries are compacted when there are this many.
    crowd: usize,
    /// And at this time at the latest.
    next_compaction: Moment,
}

impl Default for TimerQueue {
    fn default() -> Self {
        Self { entries: BinaryHeap::new(), crowd: CROWD, next_compaction: Moment::FIRST }
    }
}

impl TimerQueue {
    /// Adds work for the time at which it is due. A lease that is over is dropped.
    pub(crate) fn add(&mut self, work: Scheduled) {
        let due = match &work {
            Scheduled::Check(_) | Scheduled::CleanUp(_) => Some(Moment::FIRST),
            Scheduled::Hold(hold) => hold.next_step().map(|next| next.due),
            Scheduled::Kept(hold) => hold.next_look(),
        };
        if let Some(due) = due {
            self.add_at(due, work);
        }
    }

    /// Removes the leases that are over, if it is time for that.
    pub(crate) fn compact(&mut self, now: Moment) {
        if self.entries.len() < self.crowd && now < self.next_compaction {
            return;
        }
        self.entries.retain(|entry| match &entry.work {
            Scheduled::Check(_) | Scheduled::CleanUp(_) => true,
            Scheduled::Hold(hold) | Scheduled::Kept(hold) => hold.lease.is_open(),
        });
        self.crowd = CROWD.max(self.entries.len() * 2);
        self.entries.shrink_to(self.crowd);
        self.next_compaction = now.after(COMPACTION_PAUSE);
    }

    /// Adds work for this moment. A lease whose time to be renewed this is may be removed earlier.
    pub(crate) fn add_at(&mut self, due: Moment, work: Scheduled) {
        self.entries.push(TimerEntry { due, work });
    }

    pub(crate) fn next_due(&self) -> Moment {
        self.entries.peek().map_or(Moment::NEVER, |entry| entry.due)
    }

    /// Removes and returns work that is due, or nearly.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<Scheduled> {
        let next = self.entries.peek()?;
        if next.due > now.after(next.slack()) {
            return None;
        }
        self.entries.pop().map(|entry| entry.work)
    }

    /// Returns what is scheduled, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Scheduled> {
        self.entries.iter().map(|entry| &entry.work)
    }

    /// Removes and returns everything.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Scheduled> {
        self.entries.drain().map(|entry| entry.work)
    }
}

/// Small, because there is one for each lease.
struct TimerEntry {
    due: Moment,
    work: Scheduled,
}

impl TimerEntry {
    /// How much earlier it may be removed if that saves a wake-up of the thread.
    fn slack(&self) -> Duration {
        match &self.work {
            Scheduled::Hold(hold)
                if hold.next_step() == Some(NextStep { due: self.due, renews: true }) =>
            {
                hold.lease.duration() / TOGETHER
            }
            _ => Duration::ZERO,
        }
    }
}

/// The earliest entry is the greatest, because `BinaryHeap` returns the greatest first.
impl Ord for TimerEntry {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for TimerEntry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::failure::{Failure, FailureKind};
    use crate::config::LockOptions;
    use crate::protocol::call::tests::caller;
    use crate::store::hold_id::HoldKind;
    use crate::store::request::HoldReply;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    fn id() -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 }
    }

    fn clean_up(lease: Duration, settled_by_release: bool) -> CleanUp {
        CleanUp::new(InDoubtHold {
            hold: id(),
            kept_until: Moment::FIRST,
            lease,
            settled_by_release,
        })
    }

    fn hold(duration: Duration) -> Scheduled {
        let options = LockOptions { lease: duration, ..LockOptions::default() };
        let caller = caller(&options);
        Scheduled::Hold(Arc::new(Hold::new(id(), 1, 0, &caller, Moment::now())))
    }

    #[test]
    fn leases_come_out_when_they_are_due_and_neighbours_with_them() {
        let mut timers = TimerQueue::default();
        for seconds in [30, 3, 30] {
            timers.add(hold(Duration::from_secs(seconds)));
        }
        let now = Moment::now();
        assert!(timers.pop(now).is_none());
        assert!(timers.pop(now.after(Duration::from_secs(1))).is_some());
        assert!(timers.pop(now.after(Duration::from_secs(1))).is_none());
        // 30 s / 3, less 30 s / 64 and the drift.
        let nearly = now.after(Duration::from_millis(9_600));
        assert!(timers.pop(nearly).is_some() && timers.pop(nearly).is_some());
        assert_eq!(timers.next_due(), Moment::NEVER);
    }

    #[test]
    fn work_comes_out_at_its_time_and_only_renewals_before_it() {
        let mut timers = TimerQueue::default();
        let due = Moment::now().after(Duration::from_secs(1));
        // The lease is to be renewed later.
        timers.add_at(due, hold(Duration::from_secs(30)));
        assert!(timers.pop(due.before(Duration::from_millis(1))).is_none());
        assert!(timers.pop(due).is_some());
    }

    #[test]
    fn an_in_doubt_hold_is_released_at_growing_intervals_until_its_lease_is_over() {
        let hold = Duration::from_secs(30);
        let mut clean_up = clean_up(hold, false);
        let (begin, mut now) = (Moment::now(), Moment::now());
        let mut pauses = Vec::new();
        while let Some(next) = clean_up.next_try(true, now) {
            pauses.push(next.since(now));
            now = next;
        }
        assert!(now.since(begin) >= hold && now.since(begin) < hold * 11 / 10);
        assert!(pauses.is_sorted() && pauses.len() < 40, "{pauses:?}");
    }

    #[test]
    fn one_answer_is_enough_for_a_hold_that_a_release_settles() {
        let mut clean_up = clean_up(Duration::from_secs(30), true);
        assert!(clean_up.next_try(false, Moment::now()).is_some());
        assert!(clean_up.next_try(true, Moment::now()).is_none());
    }

    fn held(lease: Duration) -> Arc<Hold> {
        hold(lease).as_hold().expect("a hold").clone()
    }

    #[test]
    fn a_job_has_a_third_of_the_lease() {
        let (lease, time) = (Duration::from_secs(30), Duration::from_secs(10));
        for work in [hold(lease), Scheduled::CleanUp(Box::new(clean_up(lease, true)))] {
            let begin = Instant::now();
            let left = work.job(1, Moment::now()).deadline - begin;
            assert!(left >= time && left <= time + begin.elapsed(), "{work:?}: {left:?}");
        }
    }

    #[test]
    fn releases_of_a_shutdown_are_counted_unless_they_had_no_effect() {
        let hold = held(Duration::from_secs(30));
        assert!(hold.end());
        let clean_up = CleanUp::of_ended(&hold);
        let failure = |kind| Failure::io(kind, &Arc::from("there"), std::io::Error::other("test"));
        let releases = || hold.releases.load(Ordering::Relaxed);
        for (kind, counted) in [(FailureKind::Unreachable, 0), (FailureKind::Timeout, 1)] {
            clean_up.begin_attempt();
            drop(hold.release_outcome(Err(failure(kind))));
            assert_eq!(releases(), counted, "{kind:?}");
        }
        clean_up.begin_attempt();
        assert_eq!(releases(), 2);
        // An earlier attempt may have ended it.
        assert!(hold.release_outcome(Ok(HoldReply::Gone)).is_ok());
    }

    #[test]
    fn a_client_that_waits_no_more_is_removed_and_no_hold() {
        let clean_up = CleanUp::of_waiting(id(), Duration::from_secs(30));
        assert_eq!(clean_up.begin_attempt(), Change::Unregister);
        assert!(clean_up.is_confirmed(), "no shutdown waits for it");
    }

    #[test]
    fn the_next_attempt_comes_soon_where_there_is_reason_to_hasten() {
        let mut clean_up = clean_up(Duration::from_secs(30), false);
        let now = Moment::now();
        let mut pause = |hastens: bool| {
            if hastens {
                clean_up.hasten();
            }
            clean_up.next_try(false, now).expect("not over").since(now)
        };
        assert_eq!(
            [false, false, false, true].map(&mut pause),
            [1, 2, 4, 1].map(|n| CLEAN_PAUSE * n)
        );
    }

    #[test]
    fn leases_that_are_over_are_removed_when_they_crowd_or_after_a_while() {
        let (mut timers, now) = (TimerQueue::default(), Moment::now());
        let [open, over] = [(); 2].map(|()| held(Duration::from_secs(30)));
        assert!(over.end());
        let mut count_with = |count: usize, hold: &Arc<Hold>, now| {
            (0..count).for_each(|_| timers.add_at(now, Scheduled::Hold(hold.clone())));
            timers.compact(now);
            timers.iter().count()
        };
        assert_eq!(count_with(1, &over, now), 0, "for the first time");
        assert_eq!(count_with(CROWD - 1, &over, now), CROWD - 1);
        assert_eq!(count_with(1, &over, now), 0);
        // Twice as many as were left are a crowd.
        assert_eq!(count_with(CROWD, &open, now), CROWD);
        assert_eq!(count_with(CROWD - 1, &over, now), 2 * CROWD - 1);
        assert_eq!(count_with(1, &over, now), CROWD);
        let later = now.after(COMPACTION_PAUSE);
        assert_eq!(count_with(1, &over, later.before(Duration::from_nanos(1))), CROWD + 1);
        assert_eq!(count_with(0, &over, later), CROWD);
    }
}
