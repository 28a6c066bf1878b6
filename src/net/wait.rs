//! How a thread waits for a reply, spinning first if that pays, and how another thread ends the
//! wait.
//!
//! Waking a sleeping thread takes time: with a nearby server, several times as long as the server's
//! work. A thread that spins for a few microseconds avoids this delay, but keeps a core busy; if
//! cores are scarce, it even delays the reply. So both ways are measured all the time, and the
//! faster one is used. The cost of spinning for other threads is not measured. So threads spin only
//! if that leaves a core free for the server: with more threads than that, some have work while
//! others sleep.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};
use std::{process, thread};

use parking_lot::Mutex;

/// The slower way is tried once in this many replies, in case it has become faster. An odd number,
/// because a thread that keeps locking and dropping reads two replies each time.
const PROBE_EVERY: u32 = 31;

/// The longest time that a thread spins, whatever its budget: compared with a longer wait, waking
/// costs almost nothing, and a longer spin could overrun a deadline.
const SPIN_MAX: Duration = Duration::from_millis(1);

/// The number of threads of this process that wait for a reply, spinning or asleep.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How many threads may wait for a reply while some of them spin. One core is left for the server,
/// or for the kernel's network code.
static SPINS_AMONG: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from) - 1);

/// Whether a connection has unread bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    Data,
    /// Nothing more can be read.
    End,
    Nothing,
}

/// How to wait for a reply.
#[derive(Clone, Copy)]
pub(crate) enum WaitFor {
    /// Does not wait, and makes no system call: only bytes read along with earlier replies count.
    Buffered,
    /// Does not wait: only bytes that have already arrived are read.
    Nothing,
    /// Waits in `poll`, because the reply may take a long time.
    Reply { deadline: Instant },
    /// Spins first, if that pays, and then waits in `read`, because the reply is expected soon.
    SoonReply { deadline: Instant },
}

impl WaitFor {
    /// Returns when the wait ends; `None` if the thread does not wait.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Buffered | Self::Nothing => None,
            Self::Reply { deadline } | Self::SoonReply { deadline } => Some(deadline),
        }
    }

    /// The same wait, until `deadline` instead.
    pub(super) fn until(self, deadline: Instant) -> Self {
        match self {
            Self::Buffered | Self::Nothing => self,
            Self::Reply { .. } => Self::Reply { deadline },
            Self::SoonReply { .. } => Self::SoonReply { deadline },
        }
    }
}

pub(crate) struct Spin {
    budget: Duration,
    /// The average number of nanoseconds until the reply when a thread spins first.
    spinning: Average,
    /// The average number of nanoseconds until the reply when a thread sleeps from the start.
    asleep: Average,
    /// How many spins in a thousand were for nothing, because the reply took longer.
    misses: Average,
    replies: AtomicU32,
}

impl Spin {
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            budget: budget.min(SPIN_MAX),
            spinning: Average::default(),
            // Counts as slow until measured.
            asleep: Average(AtomicU32::new(1_000_000)),
            misses: Average::default(),
            replies: AtomicU32::new(0),
        }
    }

    /// Begins a thread's wait for a reply, and decides whether it spins first.
    pub(crate) fn begin(&self) -> ReplyWait<'_> {
        let among = WAITING.fetch_add(1, Ordering::Relaxed) + 1;
        let spins = among <= *SPINS_AMONG && !self.budget.is_zero() && {
            let reply = self.replies.fetch_add(1, Ordering::Relaxed);
            // The other way is tried now and then, because a server may become faster or slower.
            let probe = reply % PROBE_EVERY == PROBE_EVERY - 1;
            self.pays() != probe
        };
        let waited = if spins { Waited::Spinning } else { Waited::Asleep };
        ReplyWait { spin: self, started: Instant::now(), waited }
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

    /// Returns `true` if most replies arrive within the budget, and sooner than a sleeping thread
    /// gets them.
    fn pays(&self) -> bool {
        self.misses.get() < 500 && self.spinning.get() <= self.asleep.get()
    }
}

#[derive(Clone, Copy)]
enum Waited {
    Asleep,
    Spinning,
    /// Spinning until another thread began to wait, and then asleep.
    Interrupted,
    /// Spinning for the whole budget, and then asleep.
    SpinningInVain,
}

/// A moving average over about eight values. Updates may be lost to races, which does no harm.
#[derive(Default)]
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

/// A thread's wait for a reply. When this is dropped, the duration until the reply and the way of
/// waiting are counted.
pub(crate) struct ReplyWait<'a> {
    spin: &'a Spin,
    started: Instant,
    waited: Waited,
}

impl ReplyWait<'_> {
    /// Returns `true` while the thread should spin. Afterwards it sleeps.
    pub(crate) fn spins(&mut self) -> bool {
        if matches!(self.waited, Waited::Spinning) {
            // With many threads, spinning would take the processor from a thread that has work.
            if WAITING.load(Ordering::Relaxed) > *SPINS_AMONG {
                self.waited = Waited::Interrupted;
            } else if self.started.elapsed() >= self.spin.budget {
                self.waited = Waited::SpinningInVain;
            }
        }
        matches!(self.waited, Waited::Spinning)
    }
}

impl Drop for ReplyWait<'_> {
    fn drop(&mut self) {
        self.spin.add(self.waited, self.started.elapsed());
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An object that a thread waits for, and that another thread can close.
pub(crate) trait Close: Send + Sync {
    /// Wakes the thread. Nothing arrives after this.
    fn close(&self);
}

/// Interrupts a thread once, for good. Clones interrupt the same thread.
#[derive(Clone)]
pub(crate) struct Interrupter(Arc<Interrupt>);

struct Interrupt {
    done: AtomicBool,
    /// The object that the thread waits for. An interrupt sets `done` before it locks this, so a
    /// thread that sets another object later finds `done` set.
    awaited: Mutex<Option<Weak<dyn Close>>>,
    process: u32,
}

impl Interrupter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Interrupt {
            done: AtomicBool::new(false),
            awaited: Mutex::default(),
            process: process::id(),
        }))
    }

    /// Ends the wait, and every later one.
    pub(crate) fn interrupt(&self) {
        // A forked child shares the sockets with its parent, and a thread that the child does not
        // have may hold the lock.
        if process::id() == self.0.process {
            // Set first, so that a thread that moves on to another object finds it set.
            self.0.done.store(true, Ordering::SeqCst);
            if let Some(awaited) = self.0.awaited.lock().as_ref().and_then(Weak::upgrade) {
                awaited.close();
            }
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.done.load(Ordering::SeqCst)
    }

    /// Sets the object that the thread will wait for. The thread must then check again whether it
    /// was interrupted.
    pub(crate) fn watch(&self, awaited: Option<Weak<dyn Close>>) {
        *self.0.awaited.lock() = awaited;
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
    fn a_server_that_becomes_faster_is_noticed() {
        assert!(spin_after(&[&[1_000; 50][..], &[10; 20]].concat(), &[60; 50]).pays());
    }

    #[test]
    fn no_thread_spins_for_long() {
        let spin = Spin::new(Duration::MAX);
        let mut wait = spin.begin();
        wait.started -= SPIN_MAX;
        // Pretends that no other thread waits.
        wait.waited = Waited::Spinning;
        assert!(!wait.spins());
    }

    #[test]
    fn the_slower_way_is_tried_now_and_then() {
        let far = spin_after(&[1_000; 9], &[1_000; 9]);
        let spins = (0..320).filter(|_| far.begin().spins()).count();
        assert!(spins <= 10, "{spins}");
        assert!(!Spin::new(Duration::ZERO).begin().spins());
    }
}
