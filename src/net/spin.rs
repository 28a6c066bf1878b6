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
    /// How long replies take, in nanoseconds, for which a thread spins first.
    busy: Average,
    /// How long replies take, in nanoseconds, for which a thread sleeps from the start.
    asleep: Average,
    /// How many in a thousand spells were too short for their reply.
    misses: Average,
    replies: AtomicU32,
}

impl Spin {
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            budget,
            busy: Average::default(),
            // Believed to be slow until it is known.
            asleep: Average(AtomicU32::new(1_000_000)),
            misses: Average::default(),
            replies: AtomicU32::new(0),
        }
    }

    /// Allows a spell of spinning, or advises to sleep.
    pub(crate) fn start(&self) -> Option<SpinTurn> {
        if self.budget.is_zero() {
            return None;
        }
        let turn = self.replies.fetch_add(1, Ordering::Relaxed);
        let probe = turn % PROBE_EVERY == PROBE_EVERY - 1;
        if self.pays() == probe { None } else { SpinTurn::begin(end_of(self.budget)) }
    }

    /// Takes in how long a reply took, and how it was waited for.
    pub(crate) fn learn(&self, manner: Manner, took: Duration) {
        // A single very slow reply must not decide.
        let took = took.min(self.budget.saturating_mul(4));
        let nanos = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        match manner {
            Manner::Asleep => return self.asleep.add(nanos),
            Manner::Busy => self.misses.add(0),
            Manner::BusyInVain => self.misses.add(1000),
        }
        self.busy.add(nanos);
    }

    /// Tells whether most replies come within the budget, and sooner than to a sleeper.
    fn pays(&self) -> bool {
        self.misses.get() < 500 && self.busy.get() <= self.asleep.get()
    }
}

/// How a reply was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Asleep,
    /// With a spell of spinning that the reply ended.
    Busy,
    /// With a spell of spinning that was over before the reply came.
    BusyInVain,
}

/// A moving average over about eight values. Lost updates do not matter.
#[derive(Debug, Default)]
struct Average(AtomicU32);

impl Average {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, value: u32) {
        let average = self.get();
        self.0.store(average - average / 8 + value / 8, Ordering::Relaxed);
    }
}

/// A time in which a thread may be busy. Others may while it does not exist.
#[derive(Debug)]
pub(crate) struct SpinTurn {
    deadline: Instant,
}

impl SpinTurn {
    fn begin(deadline: Instant) -> Option<Self> {
        if SPINNERS.fetch_add(1, Ordering::Relaxed) < *SPINNERS_MAX {
            return Some(Self { deadline });
        }
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.deadline
    }
}

impl Drop for SpinTurn {
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
        for took in busy.iter().copied().map(Duration::from_micros) {
            let manner = if took <= BUDGET { Manner::Busy } else { Manner::BusyInVain };
            spin.learn(manner, took);
        }
        for took in asleep.iter().copied().map(Duration::from_micros) {
            spin.learn(Manner::Asleep, took);
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
        assert!(!spin_after(&[1_000; 8], &[]).pays());
        assert!(!spin_after(&[1_000; 8], &[1_000; 8]).pays());
    }

    #[test]
    fn spinning_ends_where_sleeping_is_faster() {
        assert!(!spin_after(&[25; 50], &[16; 50]).pays());
    }

    #[test]
    fn a_server_that_came_near_is_found_out() {
        assert!(spin_after(&[&[1_000; 50][..], &[10; 20]].concat(), &[60; 50]).pays());
    }

    #[test]
    fn the_other_way_is_tried_now_and_then() {
        let far = spin_after(&[1_000; 9], &[1_000; 9]);
        let spells = (0..320).filter(|_| far.start().is_some()).count();
        assert!(spells <= 10, "{spells}");
        assert!(Spin::new(Duration::ZERO).start().is_none());
    }
}
