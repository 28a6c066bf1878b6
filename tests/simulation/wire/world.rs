//! The state of a world: servers, connections, clients, and the history.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::executor::{self, Process, Random, START};
use crate::net::wait::Interrupter;
use crate::simulation::wire::judge::Ledger;
use crate::simulation::wire::network::{Link, Weather};
use crate::simulation::wire::server::Server;
use crate::store::hold_id::HoldId;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

#[derive(Default)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) weather: Weather,
    pub(super) servers: Vec<Server>,
    /// The server of each part of the slots, if this is a cluster.
    pub(super) owners: Vec<usize>,
    /// The part that is moving, and its destination.
    pub(super) moving: Option<(usize, usize)>,
    pub(super) links: BTreeMap<u64, Link>,
    pub(super) next_link: u64,
    /// The capacity of a client's socket, if it is small.
    pub(super) send_buffer: Option<usize>,
    /// How late a replica may be, and how often per thousand it is too late.
    pub(super) replica_lag: Duration,
    pub(super) replica_fails: u64,
    pub(super) clients: BTreeMap<Process, ClientState>,
    pub(super) pool_size: usize,
    pub(super) connect_timeout: Duration,
    /// The number of names.
    pub(super) names: u64,
    /// How many threads still make calls.
    pub(super) callers: usize,
    /// How many posted requests have no outcome yet.
    pub(super) posted: usize,
    /// How many clients have been checked in the end.
    pub(super) concluded: usize,
    pub(super) is_over: bool,
    /// Nothing happens in this world that may make a call fail.
    pub(super) is_calm: bool,
    /// When everything had been repaired.
    pub(super) healed: Option<Duration>,
    pub(super) last_fault: Duration,
    /// How long after its deadline a call may return: threads need time to wake up.
    pub(super) slack: Duration,
    pub(super) ledger: Ledger,
    pub(super) tally: Tally,
    /// The history, if it is wanted.
    history: Option<String>,
    broken: Option<String>,
}

/// The world's view of a client.
#[derive(Default)]
pub(super) struct ClientState {
    pub(super) id: Arc<str>,
    /// The holds that its jobs renew.
    pub(super) held: Vec<HoldId>,
    /// When it was last notified that the lock of a name may be free.
    pub(super) heard: BTreeMap<String, Duration>,
    /// Whether it receives all messages.
    pub(super) is_complete: bool,
    pub(super) interrupter: Option<Interrupter>,
}

/// The totals of worlds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) replied: u64,
    pub(super) failed: u64,
    pub(super) executed: u64,
    pub(super) refused: u64,
    pub(super) redirected: u64,
    pub(super) unknown_scripts: u64,
    pub(super) messages: u64,
    pub(super) connections: u64,
    /// The connections that were closed in the middle of a write, and those that have fallen
    /// silent.
    pub(super) broken: u64,
    pub(super) silent: u64,
    pub(super) faults: u64,
    pub(super) steps: u64,
    pub(super) simulated: Duration,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.replied += other.replied;
        self.failed += other.failed;
        self.executed += other.executed;
        self.refused += other.refused;
        self.redirected += other.redirected;
        self.unknown_scripts += other.unknown_scripts;
        self.messages += other.messages;
        self.connections += other.connections;
        self.broken += other.broken;
        self.silent += other.silent;
        self.faults += other.faults;
        self.steps += other.steps;
        self.simulated += other.simulated;
    }
}

impl World {
    pub(super) fn new(random: Random, tells: bool) -> Self {
        let history = tells.then(String::new);
        Self { random, history, ..Self::default() }
    }

    /// Adds a line to the history.
    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            let millis = |since: Duration| now().saturating_sub(since).as_secs_f64() * 1000.0;
            let (begun, fault) = (millis(START), millis(self.last_fault.max(START)));
            writeln!(history, "{begun:11.3} {fault:11.3} ms  {}", what())
                .expect("a string takes it");
        }
    }

    /// Records a broken promise. Only the first one counts.
    pub(super) fn break_promise(&mut self, why: String) {
        self.say(|| format!("BROKEN: {why}"));
        self.broken.get_or_insert(why);
    }

    pub(super) fn client(&mut self, process: Process) -> &mut ClientState {
        self.clients.entry(process).or_default()
    }
}

/// Returns the world's time.
pub(super) fn now() -> Duration {
    executor::now().unwrap_or_default()
}

pub(super) fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| act(world.as_mut().expect("there is a world")))
}

pub(super) fn begin(world: World) {
    WORLD.with_borrow_mut(|it| *it = Some(world));
}

/// Ends the world, and returns what it has done, and why if a promise was broken.
pub(super) fn end() -> (Tally, Option<String>, String) {
    let world = WORLD.with_borrow_mut(Option::take).unwrap_or_default();
    let World { tally, broken, history, links, clients, .. } = world;
    // Data that abandoned threads still use is not dropped before they are.
    std::mem::forget((links, clients));
    (tally, broken, history.unwrap_or_default())
}

/// Passes on what the threads of a process have written. Called after each of their turns.
pub(super) fn step(process: Process) {
    let broken = with(|world| {
        world.pump(process);
        world.broken.is_some()
    });
    assert!(!broken, "a promise is broken");
}
