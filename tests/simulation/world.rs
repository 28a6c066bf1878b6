//! A world of a simulation: its clients and names, and their state from beginning to end. It is
//! made from a seed (`seeds.rs`) or described by a scene (`scenes.rs`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::event_thread::Events;
use crate::base::sync::executor::{self, End, Process, Random, Settings};
use crate::client::Client;
use crate::config::{Config, LockOptions};
use crate::local::shared::Shared;
use crate::net::server::Pools;
use crate::simulation::calls::{CallState, Held};
use crate::simulation::deadlocks::Deadlocks;
use crate::simulation::faults::{Accident, heal};
use crate::simulation::judge::{
    Excuse, Unexpected, check_ended, check_quiet, check_step, forget_events,
};
use crate::simulation::ledger::Ledger;
use crate::simulation::network::{NOWHERE, Network, SimulatedStore};
use crate::simulation::questions::Seen;
use crate::simulation::quorum::quorum;
use crate::simulation::record::Record;
use crate::simulation::server::Server;
use crate::simulation::taken::Taken;
use crate::simulation::tickets::Left;
use crate::store::hold_id::HoldId;
use crate::store::request::DETACHED;

/// The process number of the first server. Clients have the numbers 1, 2 and so on.
pub(super) const SERVER: Process = 0;

/// Servers other than the first have greater numbers than any client.
const FIRST_OF_SERVERS: Process = NOWHERE - 10;

/// Returns the process number of a server.
pub(super) fn process_of(server: usize) -> Process {
    if server == 0 { SERVER } else { NOWHERE - server }
}

/// How long threads hand a lock off, unless the settings say otherwise.
const TENURE: Duration = Duration::from_millis(10);

/// No simulation lasts longer.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

/// Returns the time of a clock in microseconds, which is the smallest token then.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The names of a world.
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// The use of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Lock,
    ReadWrite,
    Semaphore(u32),
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct World {
    pub(super) network: Network,
    pub(super) tells: bool,
    pub(super) history: String,
    /// The last state shown of each name on each server.
    pub(super) shown: BTreeMap<(usize, usize), String>,
    /// When the last fault happened, in the history.
    pub(super) last_fault: Option<Duration>,
    pub(super) clients: Vec<ClientState>,
    pub(super) names: Vec<NameState>,
    /// Only in a world in which threads take several locks, one after the other.
    pub(super) deadlocks: Option<Deadlocks>,
    pub(super) guards: Vec<Option<Held>>,
    pub(super) calls: BTreeMap<u64, CallState>,
    pub(super) last_call: u64,
    /// The guards that are being dropped or unlocked.
    pub(super) releasing: Vec<(Process, usize)>,
    /// The detached holds, and how often, per mille, a guard is detached.
    pub(super) left: Vec<Left>,
    pub(super) leaves: u64,
    /// How often, per mille, a thread takes several locks at once.
    pub(super) sets: u64,
    /// Draws later additions, so that the worlds of earlier seeds stay the same.
    pub(super) random: Random,
    /// Draws even later additions.
    pub(super) later: Random,
    /// How often, per mille, a thread asks something, and the servers' state since then.
    pub(super) asks: u64,
    pub(super) questions: Vec<Seen>,
    pub(super) last_question: u64,
    pub(super) excuses: Vec<Excuse>,
    /// Holds that began without their clients' knowledge, because the server has older data or
    /// executed a request twice.
    pub(super) unasked: Vec<Unexpected>,
    /// Holds that began with a request after its client had given up on it.
    pub(super) late: Vec<Unexpected>,
    /// The requests of the clients.
    pub(super) record: Record,
    /// The locks that stay taken after their release.
    pub(super) taken: Vec<Taken>,
    /// The holds of each name that their clients no longer need, and since when.
    pub(super) leftovers: Vec<(usize, HoldId, Instant)>,
    /// How often the server's data or its clock were changed, or a late request was executed.
    pub(super) changes: u64,
    /// How a client overtook others, if one did.
    pub(super) overtaken: Option<String>,
    /// The accidents that may happen after a request was executed, if they are not left to chance.
    pub(super) accidents: Vec<Accident>,
    pub(super) lease: Duration,
    pub(super) renews: bool,
    /// How often, per mille, a call has its own terms; the shortest lease; and the age limit.
    pub(super) own_terms: u64,
    pub(super) shortest_lease: Duration,
    pub(super) max_hold: Option<Duration>,
    /// How long threads hand a lock off.
    pub(super) tenure: Duration,
    pub(super) io_timeout: Duration,
    pub(super) retry_window: Duration,
    pub(super) backoff_max: Duration,
    /// There is no fault any more, or there never was one.
    pub(super) is_calm: bool,
    /// Holds are acknowledged by the replica, which takes no longer than this.
    pub(super) is_durable: bool,
    pub(super) acks: Duration,
    pub(super) has_slow_replies: bool,
    /// No request, client or server fails; only messages may be lost.
    pub(super) is_reliable: bool,
    pub(super) is_healed: bool,
    /// No message or request is lost, and only one client has faults: this one.
    pub(super) is_mild: bool,
    pub(super) only_faulty: Option<Process>,
    pub(super) is_over: bool,
    /// The judge inspects the world at intervals, because events may happen without any input.
    pub(super) is_watched: bool,
    /// How far the clock of a client is behind at most.
    pub(super) clocks_behind: Duration,
    /// When the server's counter was last lost, and the greatest token that it remembers having
    /// given.
    pub(super) lowered: Option<(Instant, u64)>,
    /// The latest time on the clock of the only server, in microseconds, and when that was: a
    /// counter that continues after the clock was set back is not ahead of this.
    pub(super) clock_seen: (Instant, u64),
    /// How often a server of a quorum has lost its counter of tokens.
    pub(super) counters_lost: usize,
    /// Until when tokens may repeat, because so many servers lost the counter that not every two
    /// majorities share one that kept it, and not all clocks are right.
    pub(super) tokens_repeat_until: Option<Instant>,
    pub(super) tally: Tally,
}

pub(super) struct ClientState {
    pub(super) id: String,
    /// `None` once the client has ended.
    pub(super) client: Option<Client>,
    /// The number of unfinished callers.
    pub(super) running: usize,
    /// It has been cut off permanently.
    pub(super) is_dead: bool,
    /// When it was closed, perhaps because it was shut down.
    pub(super) closed: Option<Instant>,
    /// When it was shut down, which ends its holds.
    pub(super) shut_down: Option<Instant>,
    /// How long it was stopped in total, and each period.
    pub(super) stopped: Duration,
    pub(super) stops: Vec<Range<Instant>>,
    /// Its reports.
    pub(super) ledger: Ledger,
    /// When the last disturbance ended: the client was stopped, cut off or closed, the server was
    /// away, or a request failed.
    pub(super) disturbed: Instant,
}

pub(super) struct NameState {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) usage: Usage,
    /// How long a client keeps it.
    pub(super) keep: Option<Duration>,
    /// The greatest token so far, and when the hold with it began.
    pub(super) fence: u64,
    /// The greatest token of a writer that the server remembers.
    pub(super) written: u64,
    /// When the server last had a hold or an offer of each client, and when it had a waiting one.
    pub(super) had_hold: BTreeMap<String, Instant>,
    pub(super) had_waiter: BTreeMap<String, Instant>,
    /// When a guard of each client last existed.
    pub(super) had_guard: BTreeMap<Process, Instant>,
    /// When it may last have been taken without a guard: by a call for several locks, or for the
    /// holder of a ticket.
    pub(super) taken_at: Instant,
    /// Whether an operator has ever ended a hold of it.
    pub(super) was_forced: bool,
    /// When the name became free on the server, as far as known.
    pub(super) free_since: Option<Instant>,
    /// When the last guard of the name ceased to be valid.
    pub(super) unguarded_since: Instant,
    /// The clients that were waiting when the last hold of each client ended, and when that was.
    pub(super) waited: BTreeMap<String, (Instant, Vec<String>)>,
    /// The holds on the server at the last inspection.
    pub(super) last_holds: Vec<HoldId>,
    /// The holds on the server that their clients do not need, and since when.
    pub(super) unused: Vec<(HoldId, Instant)>,
    /// The last tenure, and when its first guard was seen.
    pub(super) tenure: Option<(HoldId, Instant)>,
    /// The tokens of each client's holds that were reported as begun and not yet as ended.
    pub(super) reported: BTreeMap<Process, Vec<u64>>,
}

/// The totals of one or many worlds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) acquired: u64,
    /// The sets of locks among these.
    pub(super) sets: u64,
    pub(super) questions: u64,
    pub(super) busy: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    /// The detached holds, the adopted ones, and the refused tickets.
    pub(super) left: u64,
    pub(super) adopted: u64,
    pub(super) refused: u64,
    pub(super) handoffs: u64,
    pub(super) relocks: u64,
    pub(super) missed_wakeups: u64,
    /// The circles of threads that waited for each other, and how often a client reported one.
    pub(super) circles: u64,
    pub(super) told: u64,
    pub(super) steps: u64,
    pub(super) simulated: Duration,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.acquired += other.acquired;
        self.sets += other.sets;
        self.questions += other.questions;
        self.busy += other.busy;
        self.failed += other.failed;
        self.lost += other.lost;
        self.left += other.left;
        self.adopted += other.adopted;
        self.refused += other.refused;
        self.handoffs += other.handoffs;
        self.relocks += other.relocks;
        self.missed_wakeups += other.missed_wakeups;
        self.circles += other.circles;
        self.told += other.told;
        self.steps += other.steps;
        self.simulated += other.simulated;
    }
}

pub(super) fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    executor::uninterrupted(|| {
        WORLD.with(|world| act(world.borrow_mut().as_mut().expect("a world")))
    })
}

/// Returns `true` within [`with`].
pub(super) fn is_locked() -> bool {
    WORLD.with(|world| world.try_borrow_mut().is_err())
}

/// Returns text for the history, if it is wanted.
pub(super) fn words(words: impl FnOnce() -> String) -> String {
    if with(|world| world.tells) { words() } else { String::new() }
}

/// Returns a hold as histories and verdicts show it: its client and its number.
pub(super) fn text_of(hold: &HoldId) -> String {
    format!("{}/{}", hold.client, hold.number())
}

/// Describes the holders and the waiting clients of each name at a server, if they have changed.
pub(super) fn say_what_changed(server: usize) {
    if !with(|world| world.tells) {
        return;
    }
    for line in with(|world| world.changes_at(server)) {
        say(process_of(server), || line);
    }
}

/// Adds a line to the history, if it is wanted.
pub(super) fn say(process: Process, line: impl FnOnce() -> String) {
    if with(|world| world.tells) {
        let line = line();
        with(|world| world.add_line(process, &line));
    }
}

/// Ends the simulation because a promise is broken.
pub(super) fn broken(why: &str) -> ! {
    say(SERVER, || format!("BROKEN: {why}"));
    if executor::can_block() {
        executor::stop(why.to_owned());
    }
    panic!("{why}");
}

/// Ends a world that has broken a promise, and returns why and what has happened, in words. Its
/// guards are not dropped: nothing is left that could release them.
pub(super) fn abandon(why: &str) -> (String, String) {
    let world = WORLD.with(|world| world.borrow_mut().take());
    let Some(mut world) = world else { return (why.to_owned(), String::new()) };
    // Readers tell clients apart by their numbers.
    let (mut why, mut history) = (why.to_owned(), mem::take(&mut world.history));
    for (at, client) in world.clients.iter().enumerate() {
        let number = format!("client-{}", at + 1);
        why = why.replace(&client.id, &number);
        history = history.replace(&client.id, &number);
    }
    mem::forget(world);
    (why, history)
}

/// Returns a time as the history shows it.
pub(super) fn time_of(at: Instant) -> String {
    let now = executor::now().unwrap_or_default().saturating_sub(executor::START);
    let time = now.saturating_sub(clock::elapsed(at));
    format!("{:.6} ms", time.as_secs_f64() * 1e3)
}

impl NameState {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            key: format!("lock:{name}"),
            usage: Usage::Lock,
            keep: None,
            fence: 0,
            written: 0,
            had_hold: BTreeMap::new(),
            had_waiter: BTreeMap::new(),
            had_guard: BTreeMap::new(),
            was_forced: false,
            free_since: None,
            taken_at: clock::now(),
            unguarded_since: clock::now(),
            waited: BTreeMap::new(),
            last_holds: Vec::new(),
            unused: Vec::new(),
            tenure: None,
            reported: BTreeMap::new(),
        }
    }
}

impl World {
    pub(super) fn new(
        network: Network,
        names: Vec<NameState>,
        config: &Config,
        tells: bool,
    ) -> Self {
        let lease = config.options.lease;
        Self {
            network,
            tells,
            history: String::new(),
            shown: BTreeMap::new(),
            last_fault: None,
            clients: Vec::new(),
            names,
            deadlocks: None,
            guards: Vec::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            releasing: Vec::new(),
            overtaken: None,
            accidents: Vec::new(),
            left: Vec::new(),
            leaves: 0,
            sets: 0,
            random: Random::default(),
            later: Random::default(),
            asks: 0,
            questions: Vec::new(),
            last_question: 0,
            excuses: Vec::new(),
            unasked: Vec::new(),
            late: Vec::new(),
            record: Record::default(),
            taken: Vec::new(),
            leftovers: Vec::new(),
            changes: 0,
            is_durable: false,
            acks: config.durability.timeout(),
            lease,
            renews: config.options.renew,
            own_terms: 0,
            shortest_lease: lease,
            max_hold: None,
            tenure: config.options.tenure.unwrap_or(TENURE).min(lease / 3),
            io_timeout: config.io_timeout(lease),
            retry_window: config.retry_window,
            backoff_max: config.backoff.1,
            is_calm: false,
            has_slow_replies: false,
            is_reliable: false,
            is_healed: false,
            is_mild: false,
            only_faulty: None,
            is_over: false,
            is_watched: false,
            clocks_behind: Duration::ZERO,
            lowered: None,
            clock_seen: (clock::now(), 0),
            counters_lost: 0,
            tokens_repeat_until: None,
            tally: Tally::default(),
        }
    }

    fn add_line(&mut self, process: Process, line: &str) {
        let at = executor::now().unwrap_or_default().saturating_sub(executor::START);
        if line.starts_with("FAULT") {
            self.last_fault = Some(at);
        }
        let since = match self.last_fault {
            Some(fault) => format!("+{:.3}", at.saturating_sub(fault).as_secs_f64() * 1e3),
            None => String::new(),
        };
        let by = match process {
            SERVER => "server 0".into(),
            DIRECTOR => "world   ".into(),
            // Those of the other servers: see `process_of`.
            FIRST_OF_SERVERS..=NOWHERE => format!("server {}", NOWHERE - process),
            _ => format!("client {process}"),
        };
        let thread = executor::thread_number();
        let thread = if thread == 0 { "   ".into() } else { format!("t{thread:<2}") };
        let at = at.as_secs_f64() * 1e3;
        writeln!(self.history, "{at:>12.6} ms {since:>10}  {by} {thread} {line}")
            .unwrap_or_default();
    }

    /// Returns a line for each name whose state at a server differs from the one last shown.
    fn changes_at(&mut self, server: usize) -> Vec<String> {
        let Self { network, names, shown, .. } = self;
        let mut lines = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let mut text = String::new();
            for (hold, depth, _) in network.servers[server].holds(&name.key) {
                let is = match depth {
                    _ if hold.nonce == 0 => format!("offered to {}", hold.client),
                    0 => format!("taken since the end of {}", text_of(&hold)),
                    1 | DETACHED => text_of(&hold),
                    levels => format!("{} with {levels} levels", text_of(&hold)),
                };
                write!(text, " {is},").unwrap_or_default();
            }
            let waiting = network.servers[server].waiting(&name.key);
            write!(text, " waiting {waiting:?}").unwrap_or_default();
            let before = shown.insert((server, at), text.clone());
            if before.unwrap_or_else(|| " waiting []".into()) != text {
                lines.push(format!("  {:?} is now:{text}", name.name));
            }
        }
        lines
    }

    /// Returns, in words, which calls of a client a message about a key is meant for.
    pub(super) fn calls_for(&self, client: Process, key: &str) -> String {
        let is_meant = |call: &CallState| {
            (0..self.names.len()).any(|at| call.is_about(at) && self.names[at].key == key)
        };
        let calls = self.calls.iter().filter(|(_, it)| it.client == client && is_meant(it));
        let calls: Vec<u64> = calls.map(|(number, _)| *number).collect();
        if calls.is_empty() {
            "no call waits for it".into()
        } else {
            format!("for calls {calls:?}")
        }
    }

    /// Notes that a client cannot work as usual until then.
    pub(super) fn disturb(&mut self, client: Process, until: Instant) {
        // There is no state before the client has been opened.
        if let Some(state) = self.clients.get_mut(client - 1) {
            state.disturbed = state.disturbed.max(until);
        }
    }

    /// Returns how far the clock of a server was set back at most.
    pub(super) fn set_back(&self) -> Duration {
        self.network.servers.iter().map(Server::set_back).max().unwrap_or_default()
    }

    pub(super) fn disturb_all(&mut self, until: Instant) {
        for client in 1..=self.clients.len() {
            self.disturb(client, until);
        }
    }
}

pub(super) fn config_of(lease: Duration) -> Config {
    let options = LockOptions { lease, ..LockOptions::default() };
    let label = Some("simulated".to_owned());
    Config { label, options: Arc::new(options), deadlock_after: None, ..Config::default() }
}

/// Opens the clients of a world, and lets a thread run it.
pub(super) fn populate(world: World, config: Config, direct: impl FnOnce() + Send + 'static) {
    let count = world.network.links.len();
    WORLD.with(|it| *it.borrow_mut() = Some(world));
    forget_events();
    executor::spawn(Some(DIRECTOR), move || {
        for number in 1..=count {
            let events = Events::default();
            // Its threads belong to its process.
            let opened = executor::of_process(number, || {
                if !with(|world| world.network.is_quorum()) {
                    let store = Arc::new(SimulatedStore { client: number });
                    return Shared::start(config.clone(), &events, store, Pools::default());
                }
                let store = Arc::new(quorum(number, &config));
                let pools = Pools::default();
                let shared = Shared::start(config.clone(), &events, store.clone(), pools)?;
                store.report_in_doubt_to(&shared.client, shared.in_doubt_reports());
                Ok(shared)
            });
            let client = Client::new(opened.expect("a client"));
            let state = ClientState {
                id: client.id().to_owned(),
                client: Some(client),
                running: 0,
                is_dead: false,
                closed: None,
                shut_down: None,
                stopped: Duration::ZERO,
                stops: Vec::new(),
                ledger: Ledger::default(),
                disturbed: clock::now(),
            };
            with(|world| world.clients.push(state));
        }
        direct();
    });
}

/// Starts a thread of a client.
pub(super) fn start(process: Process, act: impl FnOnce(&Client, Process) + Send + 'static) {
    let client = with(|world| {
        world.clients[process - 1].running += 1;
        world.clients[process - 1].client.clone().expect("it is open")
    });
    executor::spawn(Some(process), move || {
        act(&client, process);
        drop(client);
        with(|world| world.clients[process - 1].running -= 1);
    });
}

/// The process number of the threads that run the world.
pub(super) const DIRECTOR: Process = 99;

/// Waits for the callers, heals everything after some time, and checks that nothing is left.
pub(super) fn finish(horizon: Duration) {
    let begin = clock::now();
    let are_done = |world: &mut World| world.clients.iter().all(|it| it.running == 0 || it.is_dead);
    while !with(are_done) && clock::elapsed(begin) < horizon {
        executor::sleep(Duration::from_millis(50));
    }
    heal();
    let dead = with(|world| {
        let dead = world.clients.iter().filter(|it| it.is_dead);
        dead.filter_map(|it| it.client.clone()).collect::<Vec<_>>()
    });
    dead.iter().for_each(Client::close);
    drop(dead);
    let (healed, lease) = (clock::now(), with(|world| world.lease));
    let patience = lease * 10 + Duration::from_secs(60);
    while with(|world| world.clients.iter().any(|it| it.running > 0)) {
        executor::sleep(Duration::from_millis(50));
        if clock::elapsed(healed) > patience {
            broken("a call does not come to an end");
        }
    }
    // Clean-ups are repeated until their lease is over.
    let set_back = with(|world| world.set_back());
    let keep = with(|world| world.names.iter().filter_map(|name| name.keep).max());
    // A late request may have begun or renewed a hold that no client uses.
    let late = with(|world| world.network.lateness);
    let taken = with(|world| world.longest_taken());
    let kept = keep.unwrap_or_default().max(taken);
    executor::sleep(lease + late + kept + set_back + Duration::from_secs(3));
    check_quiet();
    let clients =
        with(|world| world.clients.iter_mut().filter_map(|it| it.client.take()).collect());
    let clients: Vec<Client> = clients;
    for (at, client) in clients.into_iter().enumerate() {
        let stats = client.stats();
        check_ended(at + 1, &stats);
        with(|world| {
            if let Some(deadlocks) = world.deadlocks.take() {
                (world.tally.circles, world.tally.told) = (deadlocks.found, deadlocks.told);
            }
            world.tally.handoffs += stats.handoffs;
            world.tally.relocks += stats.relocks;
            world.tally.missed_wakeups += stats.missed_wakeups;
        });
        // Its end waits for its threads.
        executor::spawn(Some(at + 1), move || drop(client));
    }
}

pub(super) fn conduct(settings: &Settings, begin: impl FnOnce()) -> Result<Tally, String> {
    let End { threads, steps, lasted } = executor::run(settings, LONGEST, begin, check_step)?;
    if threads > 0 {
        return Err(format!("{threads} threads are left"));
    }
    let tally = with(|world| world.tally);
    drop(WORLD.with(|world| world.borrow_mut().take()));
    Ok(Tally { steps, simulated: lasted, ..tally })
}
