//! What every storey uses, and what uses none of them.

pub(crate) mod clock;
pub(crate) mod event_thread;
pub(crate) mod failure;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod phase;
pub(crate) mod report;
pub(crate) mod spans;
pub(crate) mod sync;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, such as [`Stats`](crate::Stats) has. To count is one atomic addition,
/// which orders nothing.
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

/// Maps with fewer entries are left alone by [`shrink`].
const SMALL: usize = 64;

/// Gives back memory of a map after entries were removed, if little of it is used: it follows what
/// the map contains now, not the most that it ever did. This costs each removal a constant time on
/// average.
pub(crate) fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > SMALL && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_gives_back_what_it_no_longer_needs() {
        let mut map: HashMap<_, _> = (0..10_000).map(|n| (n, n)).collect();
        for n in 0..9_990 {
            map.remove(&n);
            shrink(&mut map);
            assert!(map.capacity() <= SMALL.max(map.len() * 16));
        }
        assert_eq!(map.len(), 10);
    }
}
