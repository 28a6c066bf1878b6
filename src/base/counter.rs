//! A number that only grows, such as [`Stats`](crate::Stats) has.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts from the moment at which the client was opened. To count is one atomic addition, which
/// orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
