//! Random choices that a seed repeats.

use std::time::Duration;

/// The generator `SplitMix64` (<https://prng.di.unimi.it/splitmix64.c>).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a generator that makes different choices for each `stream` of one seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(stream);
        Self(seed ^ mixed.number())
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.number() % u64::from(end)).expect("less than a u32")
    }

    pub(crate) fn one_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn one_of<'all, T>(&mut self, all: &'all [T]) -> &'all T {
        &all[self.below(u32::try_from(all.len()).expect("few")) as usize]
    }

    /// Returns a time from `parts.0` to `parts.1` tenths of `whole`.
    pub(crate) fn tenths(&mut self, whole: Duration, (from, to): (u32, u32)) -> Duration {
        whole * (from * 100 + self.below((to - from) * 100)) / 1000
    }

    pub(crate) fn shuffled<T: Copy>(&mut self, all: &[T]) -> Vec<T> {
        let mut order: Vec<(u64, T)> = all.iter().map(|one| (self.number(), *one)).collect();
        order.sort_unstable_by_key(|(place, _)| *place);
        order.into_iter().map(|(_, one)| one).collect()
    }
}
