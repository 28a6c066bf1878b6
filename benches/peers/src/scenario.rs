//! The scenarios in which peers are measured.

use std::time::{Duration, Instant};

use crate::peer::{Leasehold, Peer, RawConnections, Redlock, Rslock, RslockWorkers};
use crate::results::{Series, Turn};
use crate::support::meter::Spent;
use crate::support::server::Server;
use crate::support::slow_link::SlowLink;
use crate::support::turns::in_turn;
use crate::worker::Worker;

/// A number of workers on a number of names. Raw, a lock for one thread, has one worker per name.
pub(crate) struct Scenario {
    pub(crate) workers: usize,
    pub(crate) names: usize,
    pub(crate) distance: Distance,
}

/// How far away the server is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Distance {
    Here,
    /// A round trip takes this long at least.
    Millisecond,
}

/// The server, and a link that makes it seem far away.
pub(crate) struct Servers {
    pub(crate) server: Server,
    link: SlowLink,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let server = Server::redis();
        let link = SlowLink::to(server.port(), Duration::from_micros(500));
        Self { server, link }
    }

    fn url(&self, distance: Distance) -> String {
        match distance {
            Distance::Here => self.server.url(),
            Distance::Millisecond => self.link.url(),
        }
    }
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
    /// Measures the peers in turn. Raw's results come first.
    pub(crate) fn run(&self, plan: Plan, servers: &Servers) -> Vec<Series> {
        let mut rivals = self.rivals(&servers.url(self.distance));
        for rival in &mut rivals {
            // Opens connections and loads scripts.
            self.turn(rival, plan.turn / 2, servers);
        }
        let turns = in_turn(plan.rounds, &mut rivals, |rival| self.turn(rival, plan.turn, servers));
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

    fn turn(&self, rival: &mut Rival, time: Duration, servers: &Servers) -> Turn {
        let peer = &mut rival.peer;
        let until = Instant::now() + time;
        let worker =
            |number| Worker::new(format!("lock:{}:{}", peer.name(), number % self.names), until);
        let workers: Vec<_> = (0..rival.workers).map(worker).collect();
        let mut done = Vec::new();
        let spent = Spent::by(&[&servers.server], || done = peer.employ(workers));
        Turn::of(&done, spent)
    }
}
