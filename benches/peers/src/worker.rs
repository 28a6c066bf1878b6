//! A worker, in a thread or a task, which locks and unlocks repeatedly and records its own times.

use std::time::{Duration, Instant};

/// Acquires one lock repeatedly until its time is over.
pub(crate) struct Worker {
    name: String,
    until: Instant,
    asked: Instant,
    cycles: Vec<Duration>,
    longest_wait: Duration,
}

impl Worker {
    pub(crate) fn new(name: String, until: Instant) -> Self {
        let cycles = Vec::new();
        Self { name, until, asked: until, cycles, longest_wait: Duration::ZERO }
    }

    /// The lock that it acquires.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Begins a cycle, and returns `false` if there is no time for another. The first one always
    /// begins, however long the machine has paused.
    pub(crate) fn begins(&mut self) -> bool {
        self.asked = Instant::now();
        self.asked < self.until || self.cycles.is_empty()
    }

    /// Records that the lock was acquired.
    pub(crate) fn holds(&mut self) {
        self.longest_wait = self.longest_wait.max(self.asked.elapsed());
    }

    /// Records that the lock was released.
    pub(crate) fn is_through(&mut self) {
        self.cycles.push(self.asked.elapsed());
    }

    /// Returns how long each cycle took, from the start of the lock call to the end of the unlock
    /// call.
    pub(crate) fn cycles(&self) -> &[Duration] {
        &self.cycles
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.longest_wait
    }
}
