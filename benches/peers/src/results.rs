//! The results of the peers' turns.

use std::time::Duration;

use crate::support::meter::Spent;
use crate::support::turns::quartiles;
use crate::worker::Worker;

/// One turn of one peer.
pub(crate) struct Turn {
    /// The cycles of all workers together.
    cycles_per_second: f64,
    /// The CPU time of the whole process, including background threads, and that of the server.
    cpu_per_cycle: [Duration; 2],
    longest_wait: Duration,
    /// The fewest cycles of any worker, divided by the most.
    least_to_most: f64,
}

impl Turn {
    pub(crate) fn of(workers: &[Worker], spent: Spent) -> Self {
        let counts = || workers.iter().map(Worker::cycles);
        let cycles: f64 = counts().sum();
        let extreme = |choose: fn(f64, f64) -> f64| counts().reduce(choose).unwrap_or_default();
        Self {
            cycles_per_second: cycles / spent.wall.as_secs_f64(),
            cpu_per_cycle: [spent.cpu, spent.servers].map(|cpu| cpu.div_f64(cycles)),
            longest_wait: workers.iter().map(Worker::longest_wait).max().unwrap_or_default(),
            least_to_most: extreme(f64::min) / extreme(f64::max),
        }
    }
}

/// All turns of one peer in one scenario. Its figures are medians over the turns.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) turns: Vec<Turn>,
}

impl Series {
    pub(crate) fn cycles_per_second(&self) -> f64 {
        self.median(|turn| turn.cycles_per_second)
    }

    /// Returns the throughput ÷ that of `base`: the quartiles of the ratios in each round.
    pub(crate) fn ratios_to(&self, base: &Series) -> [f64; 3] {
        let rounds = self.turns.iter().zip(&base.turns);
        let ratios = rounds.map(|(own, base)| own.cycles_per_second / base.cycles_per_second);
        quartiles(ratios.collect())
    }

    /// The CPU time of the whole process, and that of the server.
    pub(crate) fn cpu_per_cycle(&self) -> [Duration; 2] {
        [0, 1].map(|part| {
            Duration::from_secs_f64(self.median(|turn| turn.cpu_per_cycle[part].as_secs_f64()))
        })
    }

    pub(crate) fn least_to_most(&self) -> f64 {
        self.median(|turn| turn.least_to_most)
    }

    /// Returns the longest wait in any turn. None can exceed a turn, because workers stop then.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.turns.iter().map(|turn| turn.longest_wait).max().unwrap_or_default()
    }

    fn median(&self, figure: impl Fn(&Turn) -> f64) -> f64 {
        let [_, median, _] = quartiles(self.turns.iter().map(figure).collect());
        median
    }
}
