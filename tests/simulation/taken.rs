//! Locks that stay taken after their release, for exactly as long as their calls demand.

use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::Process;
use crate::simulation::calls::Held;
use crate::simulation::reasons::{Reason, excused};
use crate::simulation::record::Wish;
use crate::simulation::world::World;
use crate::store::hold_id::HoldId;

/// The server counts in milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// A lock that stays taken after its guard is gone or its client was shut down.
pub(super) struct Taken {
    name: usize,
    client: Process,
    hold: HoldId,
    fence: u64,
    /// When its call began.
    begun: Instant,
    /// When its release began, and how often servers had been restarted before.
    ended: Instant,
    restarts: u64,
    /// How long it stays taken, counted from when its client read that it had the lock, which
    /// was in this period.
    time: Duration,
    read: (Instant, Instant),
}

impl World {
    /// Records that the lock of a guard that is being released stays taken, if it does.
    pub(super) fn note_taken(&mut self, held: &Held) {
        let Some(time) = held.terms.at_least.filter(|_| held.is_held()) else { return };
        let Held { name, client, begun, since, .. } = *held;
        let fence = held.guard.fence(name).unwrap_or_default();
        let Some(hold) = self.hold_of(client, name, fence) else { return };
        if self.taken.iter().any(|it| it.hold == hold) {
            return;
        }
        let granted = self.record.granted(name, &hold, self.required());
        let read = (granted.unwrap_or(begun), since);
        let (ended, restarts) = (clock::now(), self.restarts());
        self.taken.push(Taken { name, client, hold, fence, begun, ended, restarts, time, read });
    }

    /// Records the same for all guards of a client that is being shut down.
    pub(super) fn end_taken(&mut self, client: Process) {
        for place in 0..self.guards.len() {
            if let Some(held) = self.guards[place].take() {
                if held.client == client {
                    self.note_taken(&held);
                }
                self.guards[place] = Some(held);
            }
        }
    }

    /// Returns how often servers were restarted or failed over.
    fn restarts(&self) -> u64 {
        self.network.servers.iter().map(|server| server.restarts).sum()
    }

    /// Returns `true` if a name may be taken without a guard.
    pub(super) fn may_stay_taken(&self, name: usize) -> bool {
        self.taken.iter().any(|it| it.name == name && clock::now() < it.end())
    }

    /// Returns `true` if a lock of a client had to stay taken at some time since then.
    pub(super) fn stayed_taken(&self, client: Process, name: usize, since: Instant) -> bool {
        let own = self.taken.iter().filter(|it| it.client == client && it.name == name);
        own.map(Taken::end).any(|end| since <= end)
    }

    /// Returns how much longer locks may stay taken at most.
    pub(super) fn longest_taken(&self) -> Duration {
        let now = clock::now();
        let left = self.taken.iter().map(|it| it.end().saturating_duration_since(now));
        left.max().unwrap_or_default()
    }

    /// Checks that locks stay taken for exactly as long as their calls demand.
    pub(super) fn check_taken(&self) -> Result<(), String> {
        let now = clock::now();
        for taken in &self.taken {
            let Taken { name, hold, time, .. } = taken;
            let holds = self.network.holds(&self.names[*name].key);
            let own = holds.iter().filter(|(it, depth, _)| it == hold && *depth == 0);
            let left: Vec<Duration> = own.map(|(.., left)| *left).collect();
            let longest = left.iter().max().copied().unwrap_or_default();
            if longest > *time + ROUNDING && self.set_back().is_zero() {
                return Err(format!("it stays taken for {longest:?} more, of {time:?}"));
            }
            let end = taken.end() + self.slack();
            if self.is_calm && now + longest * 99 / 100 > end && !longest.is_zero() {
                return Err(format!("it stays taken for {longest:?} more"));
            }
            self.check_stays_taken(taken, &left)?;
        }
        Ok(())
    }

    /// Checks that a released lock is not free too early. Its holds last this much longer.
    fn check_stays_taken(&self, taken: &Taken, left: &[Duration]) -> Result<(), String> {
        let now = clock::now();
        let least = taken.read.0 + taken.time;
        // The server's clock may run too fast.
        let due = least.saturating_duration_since(now) * 99 / 100;
        let due = due.saturating_sub(taken.time / 100 + ROUNDING);
        let asked = self.record.of(taken.name, &taken.hold);
        let releases = asked.filter(|it| it.subject.wish == Wish::Release);
        let released = releases.filter(|it| it.said().is_yes()).count();
        let have_it = left.iter().filter(|left| **left >= due).count();
        if due.is_zero() || released < self.required() || have_it >= self.required() {
            return Ok(());
        }
        let Taken { name, client, fence, begun, .. } = *taken;
        // Includes a lock whose time is not over yet, because a clock was set.
        let mut excuses = self.excuses.iter();
        // No release waits for replicas.
        let has_failed_over = self.restarts() > taken.restarts;
        let is_lost =
            has_failed_over || excuses.any(|it| it.is_about(client, name, Some(fence), begun));
        if excused(&[(Reason::ServerForgot, is_lost)]) {
            return Ok(());
        }
        Err(format!(
            "client {client} has released {:?}, which is to stay taken for {due:?} more, and does \
             so for {left:?}",
            self.names[name].name
        ))
    }
}

impl Taken {
    /// Returns the time by which it is free, if its client could reach the server.
    fn end(&self) -> Instant {
        self.ended.max(self.read.1 + self.time * 101 / 100) + ROUNDING
    }
}
