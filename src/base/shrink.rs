//! Maps whose memory follows what they contain now, not the most that they ever did.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Smaller maps are left alone.
const SMALL: usize = 64;

/// Gives back memory after entries were removed, if little of it is used. This costs each removal a
/// constant time on average.
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
