//! Whether to be busy while waiting for a reply.
//!
//! A thread that sleeps until its reply is there pays for being woken, which on a near server can
//! take several times as long as the server's work. One that keeps looking for a few microseconds
//! does not, but burns a core while it looks; and where cores are short, it even delays the reply.
//! So both ways are measured all the time, and the faster one is taken.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::end_of;

/// Every so many replies the slower way is tried, to learn whether it still is.
const PROBE_EVERY: u32 = 32;

/// How many threads of this process spin now.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// How many may: one core is left to the server or to whoever brings its replies.
static SPINNERS_MAX: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from) - 1);

/// What is known of one server's replies.
#[derive(Debug)]
pub(crate) struct Spin {
    budget: Duration,
    /// How long replies take for which a thread spins, slept through where the budget was over.
    busy: Average,
    /// How long replies take for which a thread sleeps.
    asleep: Average,
    replies: AtomicU32,
}

impl Spin {
    pub(crate) fn new(budget: Duration) -> Self {
        let (busy, asleep) = (Average::default(), Average::default());
        Self { budget, busy, asleep, replies: AtomicU32::new(0) }
    }

    /// Allows a spell of spinning, or advises to sleep.
    pub(crate) fn start(&self) -> Option<Spell> {
        if self.budget.is_zero() {
            return None;
        }
        let turn = self.replies.fetch_add(1, Ordering::Relaxed);
        let probe = turn % PROBE_EVERY == PROBE_EVERY - 1;
        if self.pays() == probe { None } else { Spell::begin(end_of(self.budget)) }
    }

    /// Takes in how long a reply took.
    pub(crate) fn learn(&self, spun: bool, took: Duration) {
        let average = if spun { &self.busy } else { &self.asleep };
        // A single slow reply must not end spinning, nor many of them forbid it for long.
        average.add(took.min(self.budget.saturating_mul(2)));
    }

    fn pays(&self) -> bool {
        let (busy, asleep) = (self.busy.get(), self.asleep.get());
        busy <= self.budget && (asleep.is_zero() || busy <= asleep)
    }
}

/// A moving average over about eight values. Lost updates do not matter.
#[derive(Debug, Default)]
struct Average(AtomicU32);

impl Average {
    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).into())
    }

    fn add(&self, value: Duration) {
        let value = u32::try_from(value.as_nanos()).unwrap_or(u32::MAX);
        let average = self.0.load(Ordering::Relaxed);
        let moved = if average == 0 { value } else { average - average / 8 + value / 8 };
        self.0.store(moved, Ordering::Relaxed);
    }
}

/// A time in which a thread may be busy. Others may while it does not exist.
#[derive(Debug)]
pub(crate) struct Spell {
    until: Instant,
}

impl Spell {
    fn begin(until: Instant) -> Option<Self> {
        if SPINNERS.fetch_add(1, Ordering::Relaxed) < *SPINNERS_MAX {
            return Some(Self { until });
        }
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }
}

impl Drop for Spell {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);

    fn spin_after(busy: &[u64], asleep: &[u64]) -> Spin {
        let spin = Spin::new(BUDGET);
        for (spun, times) in [(true, busy), (false, asleep)] {
            for micros in times {
                spin.learn(spun, Duration::from_micros(*micros));
            }
        }
        spin
    }

    #[test]
    fn a_near_server_is_spun_for_and_forgiven_a_slow_reply() {
        assert!(spin_after(&[20; 50], &[60; 50]).pays());
        assert!(spin_after(&[&[20; 50][..], &[100_000]].concat(), &[60; 50]).pays());
    }

    #[test]
    fn a_far_server_is_not_spun_for() {
        assert!(!spin_after(&[1_000; 4], &[]).pays());
        assert!(!spin_after(&[1_000; 4], &[1_000; 4]).pays());
    }

    #[test]
    fn spinning_ends_where_sleeping_is_faster() {
        assert!(!spin_after(&[25; 20], &[16; 20]).pays());
    }

    #[test]
    fn a_server_that_came_near_is_found_out() {
        assert!(spin_after(&[&[1_000; 50][..], &[10; 10]].concat(), &[60; 50]).pays());
    }

    #[test]
    fn the_other_way_is_tried_now_and_then() {
        let far = spin_after(&[1_000; 9], &[1_000; 9]);
        let spells = (0..320).filter(|_| far.start().is_some()).count();
        assert!(spells <= 10, "{spells}");
        assert!(Spin::new(Duration::ZERO).start().is_none());
    }
}
