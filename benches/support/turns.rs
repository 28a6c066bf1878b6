//! Rivals measured in turn, in short rounds of one run, so that whatever else the machine does
//! meets all of them alike.

use std::time::Duration;

use super::meter::Spent;

/// Something that is done over and over.
pub(crate) struct Rival<'a> {
    pub(crate) name: &'static str,
    pub(crate) cycle: Box<dyn FnMut() + 'a>,
}

impl<'a> Rival<'a> {
    pub(crate) fn new(name: &'static str, cycle: impl FnMut() + 'a) -> Self {
        Self { name, cycle: Box::new(cycle) }
    }

    fn turn(&mut self, cycles: u32) -> Spent {
        Spent::by(|| {
            for _ in 0..cycles {
                (self.cycle)();
            }
        })
    }
}

/// How many turns each rival has, and how many cycles a turn.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) cycles: u32,
}

impl Plan {
    /// Lets the rivals take turns; the results are in the rivals' order.
    pub(crate) fn run(self, rivals: &mut [Rival<'_>]) -> Vec<Series> {
        let series = |rival: &mut Rival<'_>| {
            rival.turn(self.cycles); // Warms up; not counted.
            Series { name: rival.name, cycles: self.cycles, turns: Vec::new() }
        };
        let mut results: Vec<_> = rivals.iter_mut().map(series).collect();
        for round in 0..self.rounds as usize {
            for turn in 0..rivals.len() {
                // Nobody always comes after the same rival, nor always first.
                let next = (round + turn) % rivals.len();
                results[next].turns.push(rivals[next].turn(self.cycles));
            }
        }
        results
    }
}

/// One rival's turns. All results are for one cycle.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    cycles: u32,
    turns: Vec<Spent>,
}

impl Series {
    /// The wall time: median over the turns.
    pub(crate) fn wall(&self) -> Duration {
        let turns = self.turns.iter().map(|turn| turn.wall.as_secs_f64());
        let [_, median, _] = quartiles(turns.collect());
        Duration::from_secs_f64(median) / self.cycles
    }

    /// How much longer this takes than `base`: quartiles over the rounds, each compared in itself.
    pub(crate) fn ratios_to(&self, base: &Series) -> [f64; 3] {
        let rounds = self.turns.iter().zip(&base.turns);
        quartiles(rounds.map(|(own, base)| own.wall.div_duration_f64(base.wall)).collect())
    }

    /// The CPU time: mean over the turns.
    pub(crate) fn cpu(&self) -> Duration {
        self.mean(|turn| turn.cpu)
    }

    /// The CPU time in user code: mean over the turns.
    pub(crate) fn user(&self) -> Duration {
        self.mean(|turn| turn.user)
    }

    /// The share of the wall time that was spent on a CPU.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu().div_duration_f64(self.mean(|turn| turn.wall))
    }

    fn mean(&self, part: impl Fn(&Spent) -> Duration) -> Duration {
        let turns = u32::try_from(self.turns.len()).expect("a u32 of rounds");
        self.turns.iter().map(part).sum::<Duration>() / turns / self.cycles
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() * quarter / 4).min(values.len() - 1)])
}
