//! How many holds a client has, and how many of its threads wait.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of one client.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    held: AtomicU64,
    waiting: AtomicU64,
}

/// A thread that waits, until this is dropped.
#[derive(Debug)]
pub(super) struct CountedWait<'a>(&'a Counters);

impl Counters {
    pub(super) fn begin_hold(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_hold(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn begin_wait(&self) -> CountedWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        CountedWait(self)
    }

    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
