//! What the renewer has to do, and when.

use std::cmp;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::local::lease::{Lease, NextStep, TOGETHER};
use crate::store::hold::HoldId;

/// The first pause between two tries to clean up.
const CLEAN_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause, as a part of the time that there is for cleaning up.
const CLEAN_TRIES: u32 = 20;

/// Something to care for.
#[derive(Clone, Debug)]
pub(crate) enum Scheduled {
    Lease(Arc<Lease>),
    CleanUp(Box<CleanUp>),
}

/// What a request with an unknown outcome may have left behind, or may yet leave.
#[derive(Clone, Debug)]
pub(crate) struct CleanUp {
    pub(crate) hold: HoldId,
    /// How long one request may take.
    pub(crate) io_timeout: Duration,
    /// After this it is gone by itself.
    deadline: Moment,
    /// Whether the first answer settles it: nothing that would create it can come after.
    settles: bool,
    pause: Duration,
    longest_pause: Duration,
}

impl CleanUp {
    pub(crate) fn new(hold: HoldId, lease: Duration, io_timeout: Duration, settles: bool) -> Self {
        let deadline = Moment::now().after(lease);
        let longest_pause = (lease / CLEAN_TRIES).max(CLEAN_PAUSE);
        Self { hold, io_timeout, deadline, settles, pause: CLEAN_PAUSE, longest_pause }
    }

    /// When to try again after a try that was `answered` or not; `None` if it is done.
    pub(crate) fn next_try(&mut self, answered: bool, now: Moment) -> Option<Moment> {
        if now >= self.deadline || (answered && self.settles) {
            return None;
        }
        let due = now.after(self.pause);
        self.pause = (self.pause * 2).min(self.longest_pause);
        Some(due)
    }
}

/// Charges in the order in which they are due.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    entries: BinaryHeap<TimerEntry>,
}

impl TimerQueue {
    /// Notes a charge for the time at which it asks for care, if it ever does.
    pub(crate) fn add(&mut self, charge: Scheduled) {
        match &charge {
            Scheduled::CleanUp(_) => self.add_at(Moment::FIRST, charge),
            Scheduled::Lease(lease) => match lease.duty() {
                NextStep::None => {}
                NextStep::Expire(then) => self.add_at(then, charge),
                NextStep::Renew(then) => {
                    let slack = lease.length() / TOGETHER;
                    self.entries.push(TimerEntry { due: then, slack, charge });
                }
            },
        }
    }

    /// Notes a charge for exactly then.
    pub(crate) fn add_at(&mut self, due: Moment, charge: Scheduled) {
        self.entries.push(TimerEntry { due, slack: Duration::ZERO, charge });
    }

    pub(crate) fn next_due(&self) -> Moment {
        self.entries.peek().map_or(Moment::NEVER, |entry| entry.due)
    }

    /// Gives out a charge that is due, or nearly.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<Scheduled> {
        let next = self.entries.peek()?;
        if next.due > now.after(next.slack) {
            return None;
        }
        self.entries.pop().map(|entry| entry.charge)
    }

    /// Gives out everything.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Scheduled> {
        self.entries.drain().map(|entry| entry.charge)
    }
}

#[derive(Debug)]
struct TimerEntry {
    due: Moment,
    /// How much earlier it may be given out if that saves a wake-up.
    slack: Duration,
    charge: Scheduled,
}

/// The earliest entry is the greatest, as `BinaryHeap` gives out the greatest first.
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
    use crate::config::LockOptions;
    use crate::local::identity::Thread;

    fn id(nonce: u64) -> HoldId {
        HoldId { name: Arc::from("x"), client: Arc::from("c"), nonce }
    }

    fn lease(length: Duration) -> Scheduled {
        let options = LockOptions { lease: length, ..LockOptions::default() };
        Scheduled::Lease(Arc::new(Lease::new(id(1), 1, &options, Moment::now(), Thread::current())))
    }

    #[test]
    fn charges_come_out_when_they_are_due_and_neighbours_with_them() {
        let mut timers = TimerQueue::default();
        timers.add(lease(Duration::from_secs(30)));
        timers.add(lease(Duration::from_secs(3)));
        timers.add(lease(Duration::from_secs(30)));
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
    fn an_orphan_is_tried_at_growing_intervals_until_its_lease_is_over() {
        let lease = Duration::from_secs(30);
        let mut clean_up = CleanUp::new(id(1), lease, Duration::from_secs(1), false);
        let (begin, mut now) = (Moment::now(), Moment::now());
        let mut pauses = Vec::new();
        while let Some(next) = clean_up.next_try(true, now) {
            pauses.push(next.since(now));
            now = next;
        }
        assert!(now.since(begin) >= lease && now.since(begin) < lease * 11 / 10);
        assert!(pauses.is_sorted() && pauses.len() < 40, "{pauses:?}");
    }

    #[test]
    fn an_orphan_that_one_answer_settles_is_done_with_it() {
        let mut clean_up =
            CleanUp::new(id(1), Duration::from_secs(30), Duration::from_secs(1), true);
        assert!(clean_up.next_try(false, Moment::now()).is_some());
        assert!(clean_up.next_try(true, Moment::now()).is_none());
    }
}
