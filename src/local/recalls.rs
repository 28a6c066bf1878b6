//! How often other clients have asked for locks of this one that it had kept for nothing.
//!
//! Decides which locks are not kept for a while: those that several clients use by turns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// After this many recalls in a row a lock is not kept for a while.
const IN_A_ROW: u32 = 3;

/// That long. The next recall after it makes it as long again.
const PAUSE: Duration = Duration::from_secs(1);

/// What was not recalled for this long is forgotten.
const MEMORY: Duration = Duration::from_secs(10);

/// The most locks that are remembered. More are kept as if they were never recalled.
const LOCKS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Recalls {
    by_name: Mutex<HashMap<Arc<str>, Recalled>>,
}

#[derive(Debug)]
struct Recalled {
    in_a_row: u32,
    last: Instant,
}

impl Recalls {
    /// Records that another client has asked for a lock, and whether a thread of this one had used
    /// it again after it was kept.
    pub(super) fn record(&self, name: &Arc<str>, was_of_use: bool) {
        let (mut by_name, now) = (self.by_name.lock(), Instant::now());
        by_name.retain(|known, recalled| {
            now < recalled.last + MEMORY && !(was_of_use && known == name)
        });
        if !was_of_use && (by_name.len() < LOCKS_MAX || by_name.contains_key(name)) {
            let new = || Recalled { in_a_row: 0, last: now };
            let recalled = by_name.entry(name.clone()).or_insert_with(new);
            (recalled.in_a_row, recalled.last) = (recalled.in_a_row.saturating_add(1), now);
        }
    }

    /// Returns `true` if it is of no use to keep the lock now.
    pub(super) fn forbid(&self, name: &str) -> bool {
        self.by_name.lock().get(name).is_some_and(|recalled| {
            recalled.in_a_row >= IN_A_ROW && recalled.last.elapsed() < PAUSE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_recalled_again_and_again_is_not_kept_for_a_while() {
        let (recalls, name) = (Recalls::default(), Arc::from("a"));
        for _ in 0..IN_A_ROW {
            assert!(!recalls.forbid("a"));
            recalls.record(&name, false);
        }
        assert!(recalls.forbid("a") && !recalls.forbid("b"));
        recalls.record(&name, true);
        assert!(!recalls.forbid("a"));
    }

    #[test]
    fn not_all_locks_are_remembered() {
        let recalls = Recalls::default();
        for number in 0..LOCKS_MAX * 2 {
            recalls.record(&Arc::from(number.to_string()), false);
        }
        assert_eq!(recalls.by_name.lock().len(), LOCKS_MAX);
    }
}
