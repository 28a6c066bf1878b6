//! Helpers for all storeys.

pub(crate) mod canceller;
pub(crate) mod clock;
pub(crate) mod event_thread;
pub(crate) mod failure;
pub(crate) mod holder;
pub(crate) mod maps;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod phase;
pub(crate) mod spans;
pub(crate) mod sync;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

/// Maps with fewer entries are left alone by [`shrink`].
const SMALL: usize = 64;

/// Frees memory of a map after entries were removed, if little of it is used, so that the map's
/// size follows its current content, not its largest. The cost per removal is constant on average.
pub(crate) fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if let Some(capacity) = smaller(map.len(), map.capacity()) {
        map.shrink_to(capacity);
    }
}

/// Like `shrink`, for a set.
pub(crate) fn shrink_set<K: Eq + Hash, S: BuildHasher>(set: &mut HashSet<K, S>) {
    if let Some(capacity) = smaller(set.len(), set.capacity()) {
        set.shrink_to(capacity);
    }
}

/// Returns a sufficient capacity for `len` entries if it is much less than the current one.
fn smaller(len: usize, capacity: usize) -> Option<usize> {
    if capacity > SMALL && len < capacity / 8 { Some(len * 2) } else { None }
}

/// Returns a number that is different each time and in each process. Without a source of
/// randomness, numbers may repeat. Threads whose pauses coincide then cost each other attempts, but
/// the locks stay safe.
pub(crate) fn random() -> u64 {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    if let Some(random) = sync::executor::random() {
        return random;
    }
    getrandom::u64().unwrap_or_default()
}

/// The generator `SplitMix64` (<https://prng.di.unimi.it/splitmix64.c>), with its state.
#[derive(Clone, Default)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Returns the hash FNV-1a of these bytes, which is the same in every process.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// Escapes control characters in a server's text, because a terminal would obey them, and some
/// would start a new line in a log.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            printable.extend(char.escape_default());
        } else {
            printable.push(char);
        }
    }
    printable
}

/// Returns the address of a port. A host that is an IPv6 address gets brackets.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_has_brackets_before_its_port() {
        assert_eq!(with_port("::1", 17001), "[::1]:17001");
        assert_eq!(with_port("redis.example", 6379), "redis.example:6379");
    }

    #[test]
    fn texts_of_servers_are_escaped_for_terminals() {
        assert_eq!(printable("a\u{1b}[2J\nb \u{1f409}"), "a\\u{1b}[2J\\nb \u{1f409}");
    }

    #[test]
    fn a_map_frees_memory_that_it_no_longer_needs() {
        let mut map: HashMap<_, _> = (0..10_000).map(|n| (n, n)).collect();
        for n in 0..9_990 {
            map.remove(&n);
            shrink(&mut map);
            assert!(map.capacity() <= SMALL.max(map.len() * 16));
        }
        assert_eq!(map.len(), 10);
    }
}
