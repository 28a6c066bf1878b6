//! Whether a thread spins while it waits for a reply.
//!
//! A thread that sleeps until its reply has come pays for being woken, which with a nearby server
//! can take several times as long as the server's work. A thread that spins for a few microseconds
//! does not, but keeps a core busy; where cores are short, this even delays the reply. So both ways
//! are measured all the time, and the faster one is taken. What is not measured is what spinning
//! costs the other threads. So threads spin only while all that wait for replies leave a core free:
//! when one of several threads sleeps, another has something to do in the meantime.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The slower way is tried once in this many replies, in case it has become the faster one. An odd
/// number, because a thread that locks and drops again and again reads two replies each time.
const PROBE_EVERY: u32 = 31;

/// How many threads of this process wait for a reply, spinning or asleep.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How many of them may wait while threads spin: one core is left for the server, or for whatever
/// delivers its replies.
static SPINS_AMONG: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from) - 1);

/// How long the replies of one server take.
#[derive(Debug)]
pub(crate) struct Spin {
    budget: Duration,
    /// How many nanoseconds replies take for which a thread spins first.
    spinning: Average,
    /// How many nanoseconds replies take for which a thread sleeps from the start.
    asleep: Average,
    /// How many times in a thousand a thread spun for nothing, because the reply took longer.
    misses: Average,
    replies: AtomicU32,
}

impl Spin {
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            budget,
            spinning: Average::default(),
            // Taken for slow until measured.
            asleep: Average(AtomicU32::new(1_000_000)),
            misses: Average::default(),
            replies: AtomicU32::new(0),
        }
    }

    /// Begins a thread's wait for a reply, and decides whether it spins first.
    pub(crate) fn begin(&self) -> ReplyWait {
        let among = WAITING.fetch_add(1, Ordering::Relaxed) + 1;
        let spins = among <= *SPINS_AMONG && !self.budget.is_zero() && {
            let reply = self.replies.fetch_add(1, Ordering::Relaxed);
            let probe = reply % PROBE_EVERY == PROBE_EVERY - 1;
            self.pays() != probe
        };
        let waited = if spins { Waited::Spinning } else { Waited::Asleep };
        ReplyWait { started: Instant::now(), budget: self.budget, waited }
    }

    /// Records how long a reply took, and how the thread waited for it.
    pub(crate) fn record(&self, wait: &ReplyWait) {
        self.add(wait.waited, wait.started.elapsed());
    }

    fn add(&self, waited: Waited, took: Duration) {
        // A single very slow reply must not tip the balance.
        let took = took.min(self.budget.saturating_mul(4));
        let nanos = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        match waited {
            Waited::Asleep => return self.asleep.add(nanos),
            Waited::Interrupted => return,
            Waited::Spinning => self.misses.add(0),
            Waited::SpinningInVain => self.misses.add(1000),
        }
        self.spinning.add(nanos);
    }

    /// Returns `true` if most replies come within the budget, and sooner than to a thread that
    /// sleeps.
    fn pays(&self) -> bool {
        self.misses.get() < 500 && self.spinning.get() <= self.asleep.get()
    }
}

/// How a thread has waited for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Asleep,
    Spinning,
    /// Spinning until another thread had to wait, and then asleep.
    Interrupted,
    /// Spinning for the whole budget, and then asleep.
    SpinningInVain,
}

/// A moving average over about eight values. Updates may be lost to races, which does no harm.
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

/// A thread's wait for a reply. It counts as waiting for as long as this exists.
#[derive(Debug)]
pub(crate) struct ReplyWait {
    started: Instant,
    budget: Duration,
    waited: Waited,
}

impl ReplyWait {
    /// Returns `true` while the thread is to spin. Once it is not, it sleeps.
    pub(crate) fn spins(&mut self) -> bool {
        if self.waited == Waited::Spinning {
            if WAITING.load(Ordering::Relaxed) > *SPINS_AMONG {
                self.waited = Waited::Interrupted;
            } else if self.started.elapsed() >= self.budget {
                self.waited = Waited::SpinningInVain;
            }
        }
        self.waited == Waited::Spinning
    }
}

impl Drop for ReplyWait {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);

    fn spin_after(spinning: &[u64], asleep: &[u64]) -> Spin {
        let spin = Spin::new(BUDGET);
        for took in spinning.iter().copied().map(Duration::from_micros) {
            let waited = if took <= BUDGET { Waited::Spinning } else { Waited::SpinningInVain };
            spin.add(waited, took);
        }
        for took in asleep.iter().copied().map(Duration::from_micros) {
            spin.add(Waited::Asleep, took);
        }
        spin
    }

    #[test]
    fn threads_spin_for_a_nearby_server_despite_one_slow_reply() {
        assert!(spin_after(&[20; 50], &[60; 50]).pays());
        assert!(spin_after(&[&[20; 50][..], &[100_000]].concat(), &[60; 50]).pays());
    }

    #[test]
    fn threads_do_not_spin_for_a_distant_server() {
        assert!(!spin_after(&[1_000; 8], &[]).pays());
        assert!(!spin_after(&[1_000; 8], &[1_000; 8]).pays());
    }

    #[test]
    fn spinning_ends_where_sleeping_is_faster() {
        assert!(!spin_after(&[25; 50], &[16; 50]).pays());
    }

    #[test]
    fn a_server_that_has_come_near_is_noticed() {
        assert!(spin_after(&[&[1_000; 50][..], &[10; 20]].concat(), &[60; 50]).pays());
    }

    #[test]
    fn the_slower_way_is_tried_now_and_then() {
        let far = spin_after(&[1_000; 9], &[1_000; 9]);
        let spins = (0..320).filter(|_| far.begin().spins()).count();
        assert!(spins <= 10, "{spins}");
        assert!(!Spin::new(Duration::ZERO).begin().spins());
    }
}
