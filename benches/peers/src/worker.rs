//! A worker, in a thread or a task, which locks and unlocks repeatedly and counts its cycles.

use std::time::{Duration, Instant};

/// Acquires one lock repeatedly until its time is over.
pub(crate) struct Worker {
    name: String,
    until: Instant,
    asked: Instant,
    cycles: u32,
    longest_wait: Duration,
}

impl Worker {
    pub(crate) fn new(name: String, until: Instant) -> Self {
        Self { name, until, asked: until, cycles: 0, longest_wait: Duration::ZERO }
    }

    /// The lock that it acquires.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Begins a cycle, and returns `false` if there is no time for another. The first one always
    /// begins, however long the machine has paused.
    pub(crate) fn begins(&mut self) -> bool {
        self.asked = Instant::now();
        self.asked < self.until || self.cycles == 0
    }

    /// Records that the lock was acquired.
    pub(crate) fn holds(&mut self) {
        self.longest_wait = self.longest_wait.max(self.asked.elapsed());
    }

    /// Records that the lock was released.
    pub(crate) fn is_through(&mut self) {
        self.cycles += 1;
    }

    /// Returns how often it has acquired and released the lock.
    pub(crate) fn cycles(&self) -> f64 {
        self.cycles.into()
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.longest_wait
    }
}
