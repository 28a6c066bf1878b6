//! The server of a simulation: the shipped memory server, with its own clock, refused writes, and a
//! replica.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::base::clock::{self, Moment};
use crate::base::failure::Failure;
use crate::base::sync::executor;
use crate::simulation::flaws::{Flaw, flawed};
use crate::simulation::network::{self, network};
use crate::simulation::world::micros;
use crate::store::hold_id::HoldId;
use crate::store::memory::memory_server::MemoryServer;
use crate::store::request::Change;

/// A server and its clock.
pub(super) struct Server {
    pub(super) memory: MemoryServer,
    pub(super) clock: ServerClock,
    /// The greatest number of tokens in a block: it cannot store more.
    pub(super) block: u32,
    pub(super) refusal: Option<Refusal>,
    /// When it stopped refusing writes, if it ever refused any.
    pub(super) refused_until: Option<Instant>,
    pub(super) replica: Option<Replica>,
    /// Whether the replica is too late for the current request.
    pub(super) falls_short: bool,
    /// Connections are refused until then.
    pub(super) down_until: Instant,
    /// Counts the restarts.
    pub(super) restarts: u64,
    /// An earlier state.
    pub(super) older: Option<MemoryServer>,
}

/// A clock that is wrong, drifts, and jumps.
pub(super) struct ServerClock {
    begin: Instant,
    /// How far it is ahead, in nanoseconds, without its drift.
    ahead: i64,
    /// Its drift, in millionths.
    rate: i64,
    /// How far it was set back, in total.
    set_back: Duration,
}

impl ServerClock {
    pub(super) fn new(ahead: i64, rate: i64) -> Self {
        Self { begin: clock::now(), ahead, rate, set_back: Duration::ZERO }
    }

    /// Returns how far it is ahead of the clients' clocks, in nanoseconds.
    fn skew(&self) -> i64 {
        let rate = if flawed(Flaw::ClockRuns) { 30_000 } else { self.rate };
        // Also while the server executes a request, by its own clock.
        let passed = executor::skewed(0, || clock::elapsed(self.begin));
        let passed = i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX);
        self.ahead + passed / 1_000_000 * rate
    }

    pub(super) fn jump(&mut self, by: Duration, forwards: bool) {
        let nanos = i64::try_from(by.as_nanos()).unwrap_or(0);
        if forwards {
            self.ahead += nanos;
        } else {
            self.ahead -= nanos;
            self.set_back += by;
        }
    }
}

/// Which requests a server refuses, and how.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// It cannot write to its disk, and accepts no writes.
    Disk,
    /// It has no memory for new holds. Existing holds can be renewed and released.
    Memory,
    /// It has become a replica.
    ReadOnly,
}

impl Refusal {
    pub(super) const ALL: [Self; 3] = [Self::Disk, Self::Memory, Self::ReadOnly];

    fn reply(self) -> &'static str {
        match self {
            Self::Disk => "MISCONF Errors writing to the AOF file: No space left on device",
            Self::Memory => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::ReadOnly => "READONLY You can't write against a read only replica.",
        }
    }

    /// Returns whether it refuses a change, or a new hold.
    fn concerns(self, change: Option<Change>) -> bool {
        match (self, change) {
            (_, Some(Change::Check)) => false,
            (Self::Memory, Some(change)) => matches!(change, Change::SetDepth { .. }),
            _ => true,
        }
    }
}

/// Executes a change, or a request for a new hold, unless the server refuses it.
pub(super) fn unless_refused<T>(
    server: usize,
    change: Option<Change>,
    act: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let refusal = network(|it| {
        let server = &it.servers[server];
        server.refusal.map(|refusal| (server.memory.clone(), refusal))
    });
    match refusal {
        Some((server, refusal)) if refusal.concerns(change) => {
            server.refuse_with(Some(refusal.reply()));
            let refused = act();
            server.refuse_with(None);
            refused
        }
        _ => act(),
    }
}

impl Server {
    pub(super) fn new(memory: MemoryServer, clock: ServerClock) -> Self {
        Self {
            memory,
            clock,
            block: u32::MAX,
            refusal: None,
            refused_until: None,
            replica: None,
            falls_short: false,
            down_until: clock::now(),
            restarts: 0,
            older: None,
        }
    }

    /// Runs `act` by the server's clock.
    pub(super) fn at_its_time<T>(&self, act: impl FnOnce(&MemoryServer) -> T) -> T {
        executor::skewed(self.clock.skew(), || act(&self.memory))
    }

    pub(super) fn skew(&self) -> i64 {
        self.clock.skew()
    }

    /// Returns the holds and offers of a name, and how long each still lasts by the server's clock.
    pub(super) fn holds(&self, key: &str) -> Vec<(HoldId, u32, Duration)> {
        self.at_its_time(|memory| {
            let holds = memory.holds(key).into_iter();
            holds.map(|(hold, depth, ends)| (hold, depth, ends.since(Moment::now()))).collect()
        })
    }

    /// Passes on each client that has a hold or an offer of a key (`true`), or waits for one
    /// (`false`).
    pub(super) fn look(&self, see: impl FnMut(&str, &str, bool)) {
        self.at_its_time(|memory| memory.look(see));
    }

    pub(super) fn waiting(&self, key: &str) -> Vec<String> {
        self.at_its_time(|memory| memory.waiting(key))
    }

    /// Returns the least token that the server may give next: it follows the last one, and the
    /// clock.
    pub(super) fn next_token(&self) -> u64 {
        self.at_its_time(|memory| micros(clock::unix_time()).max(memory.last_token() + 1))
    }

    /// Passes the current state on to the replica. Returns how long that takes.
    pub(super) fn replicate(&mut self) -> Option<Duration> {
        let at = self.replica.as_mut()?.follow(&self.memory);
        Some(at.saturating_duration_since(clock::now()))
    }

    /// Returns `true` if a change made now would reach the replica within this time.
    pub(super) fn is_replicated_in(&self, time: Duration) -> bool {
        self.replica.as_ref().is_some_and(|it| it.arrival() <= clock::now() + time)
    }

    /// Returns `true` if the server has not been restarted since then, and the replica had caught
    /// up with it.
    pub(super) fn has_waited(&self, restarts: u64, until: Instant) -> bool {
        let has_followed = self.replica.as_ref().is_some_and(|it| it.cut_until <= until);
        restarts == self.restarts && has_followed
    }

    pub(super) fn heal(&mut self) {
        self.down_until = clock::now();
        self.refusal = None;
        self.refused_until = self.refused_until.map(|until| until.min(clock::now()));
        if let Some(replica) = &mut self.replica {
            replica.cut_until = clock::now();
        }
    }

    pub(super) fn set_back(&self) -> Duration {
        self.clock.set_back
    }
}

/// Makes a server refuse writes for a while.
pub(super) fn refuse(number: usize, refusal: Refusal, time: Duration) {
    let until = clock::now() + time;
    network(|it| {
        let server = &mut it.servers[number];
        server.refusal = Some(refusal);
        server.refused_until = Some(until);
    });
    executor::after(network::NOWHERE, time, move || {
        network(|it| {
            let server = &mut it.servers[number];
            if server.refused_until == Some(until) {
                server.refusal = None;
            }
        });
    });
}

/// A replica that follows the server with a delay.
pub(super) struct Replica {
    lag: Duration,
    /// Nothing reaches it until then.
    cut_until: Instant,
    /// The states of the server that the replica does not have yet, each with the time at which it
    /// arrives there.
    states: VecDeque<(Instant, MemoryServer)>,
}

impl Replica {
    /// Returns a replica that has the server's current state at a certain time.
    pub(super) fn new(server: &MemoryServer, lag: Duration, cut_until: Instant) -> Self {
        Self { lag, cut_until, states: [(cut_until, server.copy())].into() }
    }

    /// Follows the server to its current state. Returns when the replica has it.
    pub(super) fn follow(&mut self, server: &MemoryServer) -> Instant {
        let now = clock::now();
        while self.states.get(1).is_some_and(|(at, _)| *at <= now) {
            self.states.pop_front();
        }
        let at = self.arrival();
        self.states.push_back((at, server.copy()));
        at
    }

    /// Returns when a change made now reaches the replica.
    fn arrival(&self) -> Instant {
        (clock::now() + self.lag).max(self.cut_until)
    }

    /// Returns a replica that follows a server which took this one's place.
    pub(super) fn next(&self, server: &MemoryServer, from: Instant) -> Self {
        Self::new(server, self.lag, from)
    }

    pub(super) fn cut_off(&mut self, time: Duration) {
        let now = clock::now();
        self.cut_until = self.cut_until.max(now + time);
        for (at, _) in self.states.iter_mut().filter(|(at, _)| *at > now) {
            *at = self.cut_until.max(*at);
        }
    }

    /// Returns the state that the replica has.
    pub(super) fn state(&self) -> Option<MemoryServer> {
        let now = clock::now();
        let has = self.states.iter().rev().find(|(at, _)| *at <= now);
        has.map(|(_, state)| state.copy())
    }
}
