//! Delays between tries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Decorrelated jitter: each delay is random between the least one and three times the one before,
/// so that waiters that met once do not meet again, and capped
/// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    last: Duration,
    random: Random,
}

impl Backoff {
    pub(crate) fn new((min, max): (Duration, Duration)) -> Self {
        Self { min, max, last: min, random: Random::new() }
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let widest = self.last.saturating_mul(3).min(self.max);
        self.last = self.random.between(self.min, widest);
        Some(self.last)
    }
}

/// `SplitMix64`: enough for jitter, and nothing else is drawn from it.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// A generator different from all others of this process and from those of other processes.
    fn new() -> Self {
        static SEED: AtomicU64 = AtomicU64::new(0);
        if SEED.load(Ordering::Relaxed) == 0 {
            // Without randomness the processes' waiters may meet, which costs tries, not safety.
            let seed = getrandom::u64().unwrap_or_else(|_| std::process::id().into()) | 1;
            SEED.fetch_add(seed, Ordering::Relaxed);
        }
        Self(SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let width = most.saturating_sub(least).as_nanos();
        let width = u64::try_from(width).unwrap_or(u64::MAX - 1);
        least.saturating_add(Duration::from_nanos(self.next() % (width + 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(5);
    const MAX: Duration = Duration::from_millis(500);

    #[test]
    fn delays_stay_between_the_limits() {
        for delay in Backoff::new((MIN, MAX)).take(10_000) {
            assert!((MIN..=MAX).contains(&delay), "{delay:?}");
        }
    }

    #[test]
    fn delays_grow_to_the_cap_and_spread() {
        let late: Vec<_> = Backoff::new((MIN, MAX)).skip(20).take(1_000).collect();
        assert!(late.iter().any(|delay| *delay > MAX * 4 / 5));
        assert!(late.iter().any(|delay| *delay < MAX / 5));
    }

    #[test]
    fn two_waiters_do_not_draw_the_same_delays() {
        let draw = || Backoff::new((MIN, MAX)).take(10).collect::<Vec<_>>();
        assert_ne!(draw(), draw());
    }

    #[test]
    fn one_possible_delay_and_the_longest_possible_are_fine() {
        assert_eq!(Backoff::new((MIN, MIN)).nth(3), Some(MIN));
        assert!(Backoff::new((MIN, Duration::MAX)).nth(200).is_some());
    }
}
