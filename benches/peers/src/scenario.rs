//! The scenarios in which peers are measured.

use std::time::{Duration, Instant};

use crate::peer::{Leasehold, Peer, RawConnections, Redlock, Rslock, RslockWorkers};
use crate::results::{Measure, Series, Turn};
use crate::support::meter::Spent;
use crate::support::turns::in_turn;
use crate::worker::Worker;

/// How long each peer runs before its first turn, to open connections and load scripts.
const WARM_UP: Duration = Duration::from_millis(100);

/// A number of workers on a number of names. Raw, a lock for one thread, has one worker per name.
pub(crate) struct Scenario {
    pub(crate) title: &'static str,
    pub(crate) measure: Measure,
    pub(crate) workers: usize,
    pub(crate) names: usize,
    /// The goal for leasehold's ratio to raw: a maximum for a time, a minimum for a rate.
    pub(crate) goal: f64,
}

/// How many turns each peer gets, and how long a turn is.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) turn: Duration,
}

struct Rival {
    peer: Box<dyn Peer>,
    workers: usize,
}

impl Scenario {
    /// Measures the peers in turn at the server at `url`. Raw's results come first.
    pub(crate) fn run(&self, plan: Plan, url: &str) -> Vec<Series> {
        let mut rivals = self.rivals(url);
        for rival in &mut rivals {
            self.turn(rival, WARM_UP);
        }
        let turns = in_turn(plan.rounds, &mut rivals, |rival| self.turn(rival, plan.turn));
        let names = rivals.iter().map(|rival| rival.peer.name());
        names.zip(turns).map(|(name, turns)| Series { name, turns }).collect()
    }

    fn rivals(&self, url: &str) -> [Rival; 5] {
        let peer = |peer| Rival { peer, workers: self.workers };
        [
            Rival { peer: Box::new(RawConnections::open(url, self.names)), workers: self.names },
            peer(Box::new(Leasehold::open(url))),
            peer(Box::new(Rslock::open(url, self.workers, RslockWorkers::Threads))),
            peer(Box::new(Rslock::open(url, self.workers, RslockWorkers::Tasks))),
            peer(Box::new(Redlock::open(url))),
        ]
    }

    fn turn(&self, rival: &mut Rival, time: Duration) -> Turn {
        let peer = &mut rival.peer;
        let until = Instant::now() + time;
        let worker =
            |number| Worker::new(format!("lock:{}:{}", peer.name(), number % self.names), until);
        let workers: Vec<_> = (0..rival.workers).map(worker).collect();
        let mut done = Vec::new();
        let spent = Spent::by(|| done = peer.employ(workers));
        Turn::of(&done, spent)
    }
}
