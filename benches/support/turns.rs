//! Measures rivals in turn, in short rounds of one run, so that other load on the machine affects
//! all of them equally.

use std::time::Duration;

use super::meter::Spent;
use super::server::Server;

/// An operation to measure, which is repeated.
pub(crate) struct Rival<'a> {
    pub(crate) name: &'static str,
    /// The servers whose CPU time counts.
    pub(crate) servers: &'a [&'a Server],
    pub(crate) cycle: Box<dyn FnMut() + 'a>,
}

impl Rival<'_> {
    fn turn(&mut self, cycles: u32) -> Spent {
        Spent::by(self.servers, || {
            for _ in 0..cycles {
                (self.cycle)();
            }
        })
    }
}

/// The number of turns of each rival, and the number of cycles of a turn.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) cycles: u32,
}

impl Plan {
    /// Measures the rivals in turn. The results are in the order of the rivals.
    pub(crate) fn run(self, rivals: &mut [Rival<'_>]) -> Vec<Series> {
        for rival in &mut *rivals {
            rival.turn(self.cycles); // Warms up; not counted.
        }
        let turns = in_turn(self.rounds, rivals, |rival| rival.turn(self.cycles));
        let series = |(rival, turns): (&Rival<'_>, _)| Series {
            name: rival.name,
            cycles: self.cycles,
            turns,
        };
        rivals.iter().zip(turns).map(series).collect()
    }
}

/// Gives every rival a turn in each round. The outcomes are in the order of the rivals.
pub(crate) fn in_turn<R, T>(
    rounds: u32,
    rivals: &mut [R],
    mut turn: impl FnMut(&mut R) -> T,
) -> Vec<Vec<T>> {
    let mut outcomes: Vec<_> = rivals.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for step in 0..rivals.len() {
            // The order varies, so that no rival always runs first, or always after the same rival.
            let step = if round % 2 == 0 { step } else { rivals.len() - 1 - step };
            let next = (round + step) % rivals.len();
            outcomes[next].push(turn(&mut rivals[next]));
        }
    }
    outcomes
}

/// The turns of one rival. All results are for one cycle.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    cycles: u32,
    turns: Vec<Spent>,
}

impl Series {
    /// Returns the wall time: the median of the turns.
    pub(crate) fn wall(&self) -> Duration {
        let turns = self.turns.iter().map(|turn| turn.wall.as_secs_f64());
        let [_, median, _] = quartiles(turns.collect());
        Duration::from_secs_f64(median) / self.cycles
    }

    /// Returns the ratio of this to `base`: the quartiles of the ratios in each round.
    pub(crate) fn ratios_to(&self, base: &Series) -> [f64; 3] {
        let rounds = self.turns.iter().zip(&base.turns);
        quartiles(rounds.map(|(own, base)| own.wall.div_duration_f64(base.wall)).collect())
    }

    /// Returns the CPU time of this process: the mean of the turns.
    pub(crate) fn cpu(&self) -> Duration {
        self.mean(|turn| turn.cpu)
    }

    /// Returns the CPU time of the servers: the mean of the turns.
    pub(crate) fn server_cpu(&self) -> Duration {
        self.mean(|turn| turn.servers)
    }

    /// Returns the CPU time of this process and of the servers.
    pub(crate) fn work(&self) -> Duration {
        self.cpu() + self.server_cpu()
    }

    fn mean(&self, part: impl Fn(&Spent) -> Duration) -> Duration {
        let turns = u32::try_from(self.turns.len()).expect("a u32 of rounds");
        self.turns.iter().map(part).sum::<Duration>() / turns / self.cycles
    }
}

/// Returns the lower quartile, the median and the upper quartile.
pub(crate) fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() * quarter / 4).min(values.len() - 1)])
}
