//! The renewer's timers: leases to renew or to find lost, and in-doubt holds to remove.
//!
//! Decides the order, which entries are close enough to be handled together, and the pauses between
//! attempts to remove a hold.

use std::cmp;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{Moment, end_of};
use crate::base::flaws::{Flaw, flawed};
use crate::protocol::hold::Hold;
use crate::protocol::lease::{NextStep, TOGETHER};
use crate::store::background::Job;
use crate::store::hold_id::HoldId;
use crate::store::request::Change;

/// The first pause between two attempts to pay a debt.
const PAYMENT_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause, as a fraction of the time in which the hold may exist.
const PAYMENTS: u32 = 20;

/// With fewer entries than this, only time causes a compaction.
const CROWD: usize = 1024;

/// How long entries of leases that are over may stay.
const COMPACTION_PAUSE: Duration = Duration::from_secs(5);

/// Work of the renewer.
#[derive(Debug)]
pub(crate) enum Scheduled {
    /// Ask whether the hold exists, independently of its renewals.
    Check(Arc<Hold>),
    Payment(Box<Payment>),
    Hold(Arc<Hold>),
    /// Release a kept lock if no thread has used it for long enough.
    Kept(Arc<Hold>),
    /// Report a hold that lasts for long.
    Long(Arc<Hold>),
}

impl Scheduled {
    /// Returns the job that does this work now. A renewal or a payment may take a third of the
    /// lease. The renewer handles kept locks and long holds without a job.
    pub(crate) fn job(&self, id: u64, now: Moment) -> Job {
        let (hold, change, limit) = match self {
            Self::Check(hold) | Self::Kept(hold) | Self::Long(hold) => {
                (&hold.id, hold.to_check(), hold.lease.remaining(now))
            }
            Self::Payment(payment) => {
                let debt = &payment.debt;
                (&debt.id, payment.begin_attempt(), debt.lease.duration() / 3)
            }
            Self::Hold(hold) => {
                let change = hold.to_renew(now);
                (&hold.id, change, (hold.lease.duration() / 3).min(hold.lease.remaining(now)))
            }
        };
        Job { id, hold: hold.clone(), change, deadline: end_of(limit) }
    }

    /// Returns `true` if a lease should be renewed now, or is due so soon that it can be renewed
    /// along with others. Other work is always due.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let Self::Hold(hold) = self else { return true };
        let soon = now.after(hold.lease.duration() / TOGETHER);
        hold.next_step().is_some_and(|next| next.renews && next.due <= soon)
    }

    pub(crate) fn as_hold(&self) -> Option<&Arc<Hold>> {
        if let Self::Hold(hold) = self { Some(hold) } else { None }
    }

    pub(crate) fn as_payment(&self) -> Option<&Payment> {
        if let Self::Payment(payment) = self { Some(payment) } else { None }
    }
}

/// The payment of a debt: the removal of a hold that may exist in the store and must not. A
/// shutdown releases holds in the same way.
#[derive(Debug)]
pub(crate) struct Payment {
    pub(super) debt: Arc<Hold>,
    /// After this the hold has ended by itself.
    deadline: Moment,
    pause: Duration,
    longest_pause: Duration,
    /// How many more replies it takes until the hold counts as removed.
    pub(super) unconfirmed: u8,
    /// Whether the last attempt has failed.
    pub(super) has_failed: bool,
    /// Whether this removes the client from the waiting clients, instead of a hold.
    pub(super) unregisters: bool,
}

impl Payment {
    pub(crate) fn new(debt: Arc<Hold>) -> Self {
        let lease = debt.lease.duration();
        Self {
            deadline: Moment::now().after(lease),
            pause: PAYMENT_PAUSE,
            longest_pause: (lease / PAYMENTS).max(PAYMENT_PAUSE),
            // A server that hung executes the requests of several connections in any order: a late
            // request may be executed after the release, but not after a second one.
            unconfirmed: if debt.may_begin() { 2 } else { 1 },
            has_failed: false,
            unregisters: false,
            debt,
        }
    }

    /// Creates a timer that removes this client from the waiting clients of a name, for the hold
    /// that a call wanted. No shutdown waits for it.
    pub(crate) fn of_waiting(hold: HoldId, lease: Duration) -> Self {
        let debt = Arc::new(Hold::debt(hold, lease, false, Moment::now()));
        Self { unconfirmed: 0, unregisters: true, ..Self::new(debt) }
    }

    /// Begins an attempt, and returns the change to ask for.
    fn begin_attempt(&self) -> Change {
        if self.unregisters { Change::Unregister } else { self.debt.begin_release() }
    }

    /// Returns `true` if the hold counts as removed: by a majority if there are several servers,
    /// and barring a very late request.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.unconfirmed == 0
    }

    /// Shortens the pause before the next attempt.
    pub(crate) fn hasten(&mut self) {
        self.pause = PAYMENT_PAUSE;
    }

    /// Returns when to try again; `None` if the hold is certainly gone. `replied` says whether
    /// every server has replied to the last attempt.
    pub(crate) fn next_try(&mut self, replied: bool, now: Moment) -> Option<Moment> {
        let may_begin = self.debt.may_begin() && !flawed(Flaw::OneReleaseSettles);
        if now >= self.deadline || (replied && !may_begin) {
            return None;
        }
        // A request that begins the hold may still be on its way, so one reply is not the end.
        let due = now.after(self.pause);
        self.pause = (self.pause * 2).min(self.longest_pause);
        Some(due)
    }
}

/// Scheduled work in the order in which it is due.
///
/// A lease that ends stays until it is due, which may take hours, or until the next compaction.
/// Entries are compacted when more leases may be over than not, which costs each lease a constant
/// time, and after a pause, so that memory shrinks even if no further leases arrive.
pub(crate) struct TimerQueue {
    entries: BinaryHeap<TimerEntry>,
    /// Entries are compacted when there are this many.
    crowd: usize,
    /// And at this time at the latest.
    next_compaction: Moment,
    /// After how long a hold is reported, if at all.
    warn_held: Option<Duration>,
}

impl Default for TimerQueue {
    fn default() -> Self {
        Self {
            entries: BinaryHeap::new(),
            crowd: CROWD,
            next_compaction: Moment::FIRST,
            warn_held: None,
        }
    }
}

impl TimerQueue {
    pub(crate) fn new(warn_held: Option<Duration>) -> Self {
        Self { warn_held, ..Self::default() }
    }

    /// Adds work for when it is due. Drops a lease that is over.
    pub(crate) fn add(&mut self, work: Scheduled) {
        let due = match &work {
            Scheduled::Check(_) | Scheduled::Payment(_) => Some(Moment::FIRST),
            Scheduled::Hold(hold) => hold.next_step().map(|next| next.due),
            Scheduled::Kept(hold) => hold.next_look(),
            Scheduled::Long(hold) => {
                self.warn_held.and_then(|after| hold.next_long_look(after, Moment::now()))
            }
        };
        if let Some(due) = due {
            self.add_at(due, work);
        }
    }

    /// Removes leases that are over, if it is time to.
    pub(crate) fn compact(&mut self, now: Moment) {
        if self.entries.len() < self.crowd && now < self.next_compaction {
            return;
        }
        // The heap cannot remove an entry when its hold ends, because it has no index of holds.
        self.entries.retain(|entry| match &entry.work {
            Scheduled::Check(_) | Scheduled::Payment(_) => true,
            Scheduled::Hold(hold) | Scheduled::Kept(hold) | Scheduled::Long(hold) => {
                hold.lease.is_open()
            }
        });
        self.crowd = CROWD.max(self.entries.len() * 2);
        self.entries.shrink_to(self.crowd);
        self.next_compaction = now.after(COMPACTION_PAUSE);
    }

    /// Adds work for this moment. If that is when a lease is due for renewal, `pop` may return it a
    /// little earlier.
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

    /// Returns all scheduled work, in no order.
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
    /// Returns how much earlier the entry may be removed to save a wake-up of the thread.
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
    use std::time::Instant;

    fn id() -> HoldId {
        HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 }
    }

    fn payment(lease: Duration, may_begin: bool) -> Payment {
        Payment::new(Arc::new(Hold::debt(id(), lease, may_begin, Moment::now())))
    }

    fn hold(duration: Duration) -> Scheduled {
        let options = LockOptions { lease: duration, ..LockOptions::default() };
        let caller = caller(&options);
        Scheduled::Hold(Arc::new(Hold::new(id(), 1, 0, &caller, Moment::now(), Moment::now())))
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
        // The renewal of the lease is due later.
        timers.add_at(due, hold(Duration::from_secs(30)));
        assert!(timers.pop(due.before(Duration::from_millis(1))).is_none());
        assert!(timers.pop(due).is_some());
    }

    #[test]
    fn an_in_doubt_hold_is_released_at_growing_intervals_until_its_lease_is_over() {
        let hold = Duration::from_secs(30);
        let mut payment = payment(hold, true);
        let (begin, mut now) = (Moment::now(), Moment::now());
        let mut pauses = Vec::new();
        while let Some(next) = payment.next_try(true, now) {
            pauses.push(next.since(now));
            now = next;
        }
        assert!(now.since(begin) >= hold && now.since(begin) < hold * 11 / 10);
        assert!(pauses.is_sorted() && pauses.len() < 40, "{pauses:?}");
    }

    #[test]
    fn one_answer_is_enough_for_a_hold_that_a_release_settles() {
        let mut payment = payment(Duration::from_secs(30), false);
        assert!(payment.next_try(false, Moment::now()).is_some());
        assert!(payment.next_try(true, Moment::now()).is_none());
    }

    fn held(lease: Duration) -> Arc<Hold> {
        hold(lease).as_hold().expect("a hold").clone()
    }

    #[test]
    fn a_job_has_a_third_of_the_lease() {
        let (lease, time) = (Duration::from_secs(30), Duration::from_secs(10));
        for work in [hold(lease), Scheduled::Payment(Box::new(payment(lease, false)))] {
            let begin = Instant::now();
            let left = work.job(1, Moment::now()).deadline - begin;
            assert!(left >= time && left <= time + begin.elapsed(), "{work:?}: {left:?}");
        }
    }

    #[test]
    fn releases_of_a_shutdown_are_counted_unless_they_had_no_effect() {
        let hold = held(Duration::from_secs(30));
        assert!(hold.end(Moment::now()));
        let payment = Payment::new(hold.clone());
        let failure = |kind| Failure::io(kind, &Arc::from("there"), std::io::Error::other("test"));
        let releases = || hold.current.lock().releases;
        for (kind, counted) in [(FailureKind::Unreachable, 0), (FailureKind::Timeout, 1)] {
            payment.begin_attempt();
            drop(hold.release_outcome(Err(failure(kind)), Moment::now()));
            assert_eq!(releases(), counted, "{kind:?}");
        }
        payment.begin_attempt();
        assert_eq!(releases(), 2);
        // An earlier attempt may have ended it.
        assert!(hold.release_outcome(Ok(HoldReply::Gone), Moment::now()).is_ok());
    }

    #[test]
    fn a_client_that_waits_no_more_is_removed_and_no_hold() {
        let payment = Payment::of_waiting(id(), Duration::from_secs(30));
        assert_eq!(payment.begin_attempt(), Change::Unregister);
        assert!(payment.is_confirmed(), "no shutdown waits for it");
    }

    #[test]
    fn the_next_attempt_comes_soon_where_there_is_reason_to_hasten() {
        let mut payment = payment(Duration::from_secs(30), true);
        let now = Moment::now();
        let mut pause = |hastens: bool| {
            if hastens {
                payment.hasten();
            }
            payment.next_try(false, now).expect("not over").since(now)
        };
        assert_eq!(
            [false, false, false, true].map(&mut pause),
            [1, 2, 4, 1].map(|n| PAYMENT_PAUSE * n)
        );
    }

    #[test]
    fn leases_that_are_over_are_removed_when_they_crowd_or_after_a_while() {
        let (mut timers, now) = (TimerQueue::default(), Moment::now());
        let [open, over] = [(); 2].map(|()| held(Duration::from_secs(30)));
        assert!(over.end(Moment::now()));
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
