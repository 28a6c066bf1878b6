//! The results of the peers' turns.

use std::time::Duration;

use crate::support::meter::Spent;
use crate::support::turns::quartiles;
use crate::worker::Worker;

/// The figure by which peers are compared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Measure {
    /// The median time of a cycle.
    Time,
    /// Cycles per second of all workers together.
    Rate,
}

/// One turn of one peer.
pub(crate) struct Turn {
    median_cycle: Duration,
    /// Of all workers together.
    cycles_per_second: f64,
    /// Of the whole process, including background threads, and of the server.
    cpu_per_cycle: [Duration; 2],
    longest_wait: Duration,
    /// The fewest cycles of any worker, divided by the most.
    least_to_most: f64,
}

impl Turn {
    pub(crate) fn of(workers: &[Worker], spent: Spent) -> Self {
        let mut cycles: Vec<_> = workers.iter().flat_map(Worker::cycles).copied().collect();
        cycles.sort_unstable();
        let counts = || workers.iter().map(|worker| count(worker.cycles()));
        let extreme = |choose: fn(f64, f64) -> f64| counts().reduce(choose).unwrap_or_default();
        Self {
            median_cycle: cycles[cycles.len() / 2],
            cycles_per_second: count(&cycles) / spent.wall.as_secs_f64(),
            cpu_per_cycle: [spent.cpu, spent.servers].map(|cpu| cpu.div_f64(count(&cycles))),
            longest_wait: workers.iter().map(Worker::longest_wait).max().unwrap_or_default(),
            least_to_most: extreme(f64::min) / extreme(f64::max),
        }
    }

    fn by(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Rate => self.cycles_per_second,
            Measure::Time => self.median_cycle.as_secs_f64(),
        }
    }
}

fn count(cycles: &[Duration]) -> f64 {
    f64::from(u32::try_from(cycles.len()).expect("a turn is short"))
}

/// All turns of one peer in one scenario. Its figures are medians over the turns.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) turns: Vec<Turn>,
}

impl Series {
    /// Seconds, or cycles per second.
    pub(crate) fn by(&self, measure: Measure) -> f64 {
        self.median(|turn| turn.by(measure))
    }

    /// Returns the ratio of this to `base`: the quartiles of the ratios in each round.
    pub(crate) fn ratios_to(&self, base: &Series, measure: Measure) -> [f64; 3] {
        let rounds = self.turns.iter().zip(&base.turns);
        quartiles(rounds.map(|(own, base)| own.by(measure) / base.by(measure)).collect())
    }

    /// Of the whole process, and of the server.
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
