//! One of those who lock and unlock over and over: a thread, or a task. It keeps its own books.

use std::time::{Duration, Instant};

/// Asks for one lock until its time is over.
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

    /// The lock that it asks for.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Begins a cycle, or says that there is no time for another. A first one there is, however
    /// long the machine has paused.
    pub(crate) fn begins(&mut self) -> bool {
        self.asked = Instant::now();
        self.asked < self.until || self.cycles.is_empty()
    }

    /// Notes that it has the lock now.
    pub(crate) fn holds(&mut self) {
        self.longest_wait = self.longest_wait.max(self.asked.elapsed());
    }

    /// Notes that the lock is released.
    pub(crate) fn is_through(&mut self) {
        self.cycles.push(self.asked.elapsed());
    }

    /// How long each cycle took, from the call that locks to the end of the one that unlocks.
    pub(crate) fn cycles(&self) -> &[Duration] {
        &self.cycles
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.longest_wait
    }
}
