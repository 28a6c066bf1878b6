//! Many threads that run the same operation at the same time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::meter::Spent;
use super::server::Server;

/// The work of a crowd.
pub(crate) struct Work {
    pub(crate) cycles: u32,
    pub(crate) spent: Spent,
    /// How long each cycle took, in ascending order.
    pub(crate) waits: Vec<Duration>,
    /// The cycles of the thread that had the fewest, and of the thread that had the most.
    pub(crate) least: u32,
    pub(crate) most: u32,
}

impl Work {
    /// Runs the given number of threads, each of which repeats the cycle that `prepare` returns for
    /// it until the time is over. The CPU time of `servers` counts.
    pub(crate) fn of<C: FnMut()>(
        servers: &[&Server],
        threads: usize,
        time: Duration,
        prepare: impl Fn(usize) -> C + Sync,
    ) -> Self {
        let (ready, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
        let work = |thread| {
            let mut cycle = prepare(thread);
            let mut waits = Vec::with_capacity(1 << 16);
            ready.wait();
            while !over.load(Ordering::Relaxed) {
                let started = Instant::now();
                cycle();
                waits.push(started.elapsed());
            }
            waits
        };
        thread::scope(|scope| {
            let start = |thread| {
                scope.spawn({
                    let work = &work;
                    move || work(thread)
                })
            };
            let workers: Vec<_> = (0..threads).map(start).collect();
            let mut waits = Vec::new();
            let spent = Spent::by(servers, || {
                ready.wait();
                thread::sleep(time);
                over.store(true, Ordering::Relaxed);
                let join = |worker: ScopedJoinHandle<'_, _>| worker.join().expect("no panic");
                waits.extend(workers.into_iter().map(join));
            });
            Self::from_waits(&waits, spent)
        })
    }

    fn from_waits(all: &[Vec<Duration>], spent: Spent) -> Self {
        let counts =
            || all.iter().map(|waits| u32::try_from(waits.len()).expect("a u32 of cycles"));
        let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        let cycles = counts().sum();
        let mut waits = all.concat();
        waits.sort();
        Self { cycles, spent, waits, least, most }
    }

    pub(crate) fn per_second(&self) -> f64 {
        f64::from(self.cycles) / self.spent.wall.as_secs_f64()
    }

    /// Returns the CPU time of a cycle, of this process and of the servers.
    pub(crate) fn cpu(&self) -> [Duration; 2] {
        [self.spent.cpu, self.spent.servers].map(|time| time / self.cycles.max(1))
    }

    pub(crate) fn longest(&self) -> Duration {
        self.waits.last().copied().unwrap_or_default()
    }

    /// Returns the wait that one in a hundred exceeds.
    pub(crate) fn p99(&self) -> Duration {
        self.waits.get(self.waits.len() * 99 / 100).copied().unwrap_or_default()
    }
}
