//! Whether to be busy while waiting for a reply.
//!
//! A thread that sleeps until its reply is there pays for being woken, which on a near server
//! takes several times as long as the server's work. One that keeps looking for a few microseconds
//! does not, but burns a core while it looks. So it looks only where that has paid lately, and never
//! with so many others that the server itself could be kept from a core.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// While spinning does not pay, every so many replies it is tried again.
const PROBE_EVERY: u32 = 16;

/// How many threads of this process spin now.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// How many may: one core is left to the server or to whoever brings its replies.
static SPINNERS_MAX: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from) - 1);

/// What is known of one server's replies.
#[derive(Debug)]
pub(crate) struct Spin {
    budget: Duration,
    /// Moving average of the time until a reply, in nanoseconds, over the spells of spinning only:
    /// a sleeper's time contains its wake-up.
    usual: AtomicU32,
    slept: AtomicU32,
}

impl Spin {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget, usual: AtomicU32::new(0), slept: AtomicU32::new(0) }
    }

    /// Allows a spell of spinning, or advises to sleep.
    pub(crate) fn start(&self) -> Option<Spell> {
        if self.budget.is_zero() {
            return None;
        }
        let usual = Duration::from_nanos(self.usual.load(Ordering::Relaxed).into());
        if usual > self.budget
            && self.slept.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY != PROBE_EVERY - 1
        {
            return None;
        }
        Spell::begin(Instant::now() + self.budget)
    }

    /// Takes in how long a reply took for which a spell was allowed.
    pub(crate) fn learn(&self, took: Duration) {
        // A single slow reply must not end spinning, nor many of them forbid it for long.
        let took = took.min(self.budget * 2);
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let usual = self.usual.load(Ordering::Relaxed);
        // Lost updates of an average do not matter.
        self.usual.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
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

    /// How many of the next replies would be waited for with a spell, at the most so many allowed.
    fn advised(spin: &Spin, replies: u32) -> u32 {
        let usual = Duration::from_nanos(spin.usual.load(Ordering::Relaxed).into());
        if usual <= spin.budget { replies } else { replies / PROBE_EVERY }
    }

    #[test]
    fn a_slow_server_is_not_spun_for() {
        let spin = Spin::new(BUDGET);
        for _ in 0..10 {
            spin.learn(Duration::from_millis(1));
        }
        assert_eq!(advised(&spin, 160), 10, "only a probe now and then");
    }

    #[test]
    fn a_fast_server_is_spun_for_and_forgiven_a_slow_reply() {
        let spin = Spin::new(BUDGET);
        for _ in 0..100 {
            spin.learn(Duration::from_micros(20));
        }
        spin.learn(Duration::from_millis(100));
        assert_eq!(advised(&spin, 160), 160);
    }

    #[test]
    fn a_server_that_became_fast_is_found_out() {
        let spin = Spin::new(BUDGET);
        (0..1000).for_each(|_| spin.learn(Duration::from_millis(1)));
        (0..10).for_each(|_| spin.learn(Duration::from_micros(10)));
        assert_eq!(advised(&spin, 160), 160);
    }

    #[test]
    fn no_budget_means_never() {
        assert!(Spin::new(Duration::ZERO).start().is_none());
    }
}
