//! A world of a simulation: clients with their threads, the names that these use, what goes wrong,
//! and what must hold all the same.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::event_thread::Events;
use crate::base::sync::executor::{
    self, Choice, Course, Deviation, End, Process, Random, Settings,
};
use crate::client::Client;
use crate::config::durability::Durability;
use crate::config::{Config, LockOptions};
use crate::error::Error;
use crate::guards::AnyGuard;
use crate::guards::owned_guard::{OwnedGuard, Ticket};
use crate::local::shared::Shared;
use crate::net::server::Pools;
use crate::simulation;
use crate::simulation::deadlocks::{self, Deadlocks};
use crate::simulation::network::{Link, Network, SimulatedStore, Weather};
use crate::simulation::server::{self, Refusal, Replica, Server, ServerClock};
use crate::store::hold_id::HoldId;
use crate::store::memory::memory_server::MemoryServer;
use crate::store::request::OFFER;

/// The server's number among the processes. Clients have 1, 2 and so on.
pub(super) const SERVER: Process = 0;

/// No simulation lasts longer.
const LONGEST: Duration = Duration::from_secs(600);

/// How often the state of the whole world is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How much later than it may a call may end, for the time that threads need to wake up.
const SLACK: Duration = Duration::from_millis(110);

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// What a name is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Lock,
    ReadWrite,
    Semaphore(u32),
}

/// What a thread has, or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// All names of the world, which are locks.
    All,
    Alone,
    /// The same, by a guard that belongs to the thread.
    Own,
    Reader,
    Permit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    For(Duration),
    Endless,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct World {
    pub(super) network: Network,
    tells: bool,
    history: String,
    pub(super) clients: Vec<ClientState>,
    pub(super) names: Vec<NameState>,
    /// Only in a world in which threads take several locks, one after the other.
    pub(super) deadlocks: Option<Deadlocks>,
    guards: Vec<Option<Held>>,
    calls: BTreeMap<u64, CallState>,
    last_call: u64,
    /// The guards that are being dropped or unlocked.
    pub(super) releasing: Vec<(Process, usize)>,
    excuses: Vec<Excuse>,
    /// How a client has overtaken others, if one has.
    overtaken: Option<String>,
    /// What else may go wrong whenever a request was executed, if that is not left to chance.
    accidents: Vec<Accident>,
    lease: Duration,
    io_timeout: Duration,
    retry_window: Duration,
    backoff_max: Duration,
    /// Nothing goes wrong any more, or ever has.
    pub(super) is_calm: bool,
    /// Holds are acknowledged by the replica, which takes as long as this at most.
    is_durable: bool,
    acks: Duration,
    /// No request fails, and no client or server: only messages may be lost.
    is_reliable: bool,
    pub(super) is_healed: bool,
    is_over: bool,
    tally: Tally,
}

pub(super) struct ClientState {
    pub(super) id: String,
    /// Until its end.
    client: Option<Client>,
    /// The number of callers that are not done.
    running: usize,
    /// It has been cut off for ever.
    is_dead: bool,
    /// What its guards were when they were last looked at.
    pub(super) closed: bool,
    /// How long it was stopped, in all.
    stopped: Duration,
    /// Until when it was last stopped, cut off or closed, or the server was away, or a request of
    /// it has failed.
    disturbed: Instant,
}

pub(super) struct NameState {
    pub(super) name: String,
    key: String,
    usage: Usage,
    /// How long a client keeps it.
    keep: Option<Duration>,
    /// The greatest token so far, and when the hold with it began.
    fence: u64,
    /// The greatest token of a write that the server remembers.
    written: u64,
    /// When the server last had a hold or an offer of each client, and when it had a waiting one.
    had_hold: BTreeMap<String, Instant>,
    had_waiter: BTreeMap<String, Instant>,
    /// When a guard of each client last existed.
    pub(super) had_guard: BTreeMap<Process, Instant>,
    /// Since when the name is free at the server, as far as was looked.
    free_since: Option<Instant>,
    /// Since when no guard of the name is valid.
    unguarded_since: Instant,
    /// The clients that were waiting when the last hold of each client ended, and when that was.
    waited: BTreeMap<String, (Instant, Vec<String>)>,
    /// The holds that the server had when it was last looked at.
    last_holds: Vec<HoldId>,
}

/// A hold that the server ends earlier than it has promised, so that another one may overlap it.
struct Excuse {
    name: usize,
    client: Process,
    /// The hold, and those that follow it in its tenure, have no later token than this one, or
    /// their calls began before then.
    fence: u64,
    begun_by: Instant,
    /// When the server ends it, and when it would have ended it.
    from: Instant,
    until: Instant,
}

impl Excuse {
    /// Returns `true` if this may be the hold, or one of its tenure.
    fn is_about(&self, client: Process, name: usize, fence: Option<u64>, begun: Instant) -> bool {
        let is_it = fence.map_or(begun <= self.begun_by, |fence| fence <= self.fence);
        self.client == client && self.name == name && is_it && clock::now() < self.until
    }
}

struct Held {
    guard: Guarded,
    client: Process,
    name: usize,
    side: Side,
    /// When its call began.
    begun: Instant,
    /// Whether its lease was found over, so that it must stay so.
    is_over: bool,
}

/// A guard of a lock, which can be passed on, or another one.
enum Guarded {
    Lock(OwnedGuard),
    Other(Box<dyn AnyGuard>),
}

impl Guarded {
    fn guard(&self) -> &dyn AnyGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Other(guard) => &**guard,
        }
    }

    fn is_held(&self) -> bool {
        self.guard().is_held()
    }

    fn fence(&self) -> Option<u64> {
        self.guard().fence()
    }

    fn unlock(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Other(guard) => guard.unlock(),
        }
    }
}

impl Held {
    fn is_of(&self, name: usize) -> bool {
        self.side == Side::All || self.name == name
    }

    fn conflicts_with(&self, other: &Self) -> bool {
        self.is_of(other.name) || other.is_of(self.name)
    }
}

impl CallState {
    fn is_about(&self, name: usize) -> bool {
        self.side == Side::All || self.name == name
    }
}

struct CallState {
    client: Process,
    name: usize,
    patience: Patience,
    begun: Instant,
    side: Side,
}

/// What has happened in a world, or in many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) acquired: u64,
    pub(super) busy: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    pub(super) handoffs: u64,
    pub(super) relocks: u64,
    pub(super) missed_wakeups: u64,
    /// The circles of threads that waited for each other, and how often a client was told of one.
    pub(super) circles: u64,
    pub(super) told: u64,
    pub(super) steps: u64,
    pub(super) simulated: Duration,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.acquired += other.acquired;
        self.busy += other.busy;
        self.failed += other.failed;
        self.lost += other.lost;
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

/// Ends a world that has broken a promise, and returns what has happened, in words. Its guards are
/// not dropped: nothing is left that they could be released by.
pub(super) fn abandon() -> String {
    let world = WORLD.with(|world| world.borrow_mut().take());
    let history = world.map(|mut world| {
        let history = mem::take(&mut world.history);
        mem::forget(world);
        history
    });
    history.unwrap_or_default()
}

impl NameState {
    fn any(number: usize, lease: Duration, random: &mut Random) -> Self {
        let usage = match random.below(6) {
            0..4 => Usage::Lock,
            4 => Usage::ReadWrite,
            _ => Usage::Semaphore(random.pick(&[1, 2, 3])),
        };
        let keep = random.permille(300).then_some(lease);
        Self { usage, keep, ..Self::new(["a", "b", "c"][number]) }
    }

    fn new(name: &str) -> Self {
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
            free_since: None,
            unguarded_since: clock::now(),
            waited: BTreeMap::new(),
            last_holds: Vec::new(),
        }
    }
}

impl NameState {
    /// Returns why clients do not take turns, if they do not: one whose hold has ended while others
    /// were waiting must not have the next one while these have an offer.
    fn check_turns(
        &mut self,
        holds: &[(HoldId, u32, Duration)],
        waiting: &[String],
        now: Instant,
    ) -> Option<String> {
        let client_of = |waiter: &String| match waiter.split_once(':') {
            Some(("p" | "r" | "w", client)) => client.to_owned(),
            _ => waiter.clone(),
        };
        let waiting: Vec<_> = waiting.iter().map(client_of).collect();
        let is_offer = |hold: &HoldId| hold.nonce == 0;
        let is_offered =
            |client: &str| holds.iter().any(|(hold, ..)| is_offer(hold) && *hold.client == *client);
        // What only one can have it does not get while another has the offer.
        let waits = |client: &String| {
            waiting.contains(client) || self.usage == Usage::Lock && is_offered(client)
        };
        let last = holds.iter().map(|(hold, ..)| hold.clone()).filter(|hold| !is_offer(hold));
        let last = mem::replace(&mut self.last_holds, last.collect());
        let mut overtaken = None;
        for hold in self.last_holds.iter().filter(|hold| !last.contains(hold)) {
            let me = &*hold.client;
            if let Some((at, waited)) = self.waited.remove(me)
                && now < at + OFFER
                && let Some(other) = waited.iter().find(|it| waits(it))
            {
                overtaken = Some(format!("client {me} gets {:?} before {other}", self.name));
            }
            self.waited.values_mut().for_each(|(_, waited)| waited.retain(|it| it != me));
        }
        for hold in last.iter().filter(|hold| !self.last_holds.contains(hold)) {
            let me = &*hold.client;
            let offered = holds.iter().map(|(it, ..)| it).filter(|it| is_offer(it));
            let queue = waiting.iter().map(String::as_str).take_while(|client| *client != me);
            let before = offered.map(|it| &*it.client).chain(queue).map(str::to_owned).collect();
            if !is_offered(me) {
                self.waited.insert(me.to_owned(), (now, before));
            }
        }
        overtaken
    }
}

impl World {
    fn add_line(&mut self, process: Process, line: &str) {
        let at = executor::now().unwrap_or_default().saturating_sub(executor::START);
        let by = if process == SERVER { "server  ".into() } else { format!("client {process}") };
        let thread = executor::thread_number();
        let thread = if thread == 0 { "   ".into() } else { format!("t{thread:<2}") };
        writeln!(self.history, "{:>12.6} ms  {by} {thread} {line}", at.as_secs_f64() * 1e3)
            .unwrap_or_default();
    }

    /// Notes who has, and who waits for, each name at the server.
    fn look_at_server(&mut self) {
        let now = clock::now();
        for name in &mut self.names {
            let NameState { key, had_hold, had_waiter, .. } = name;
            let mut is_free = true;
            self.network.server.look_at(key, |client, holds| {
                is_free &= !holds;
                let seen = if holds { &mut *had_hold } else { &mut *had_waiter };
                match seen.get_mut(client) {
                    Some(at) => *at = now,
                    None => drop(seen.insert(client.to_owned(), now)),
                }
            });
            if executor::follows_course() {
                let (holds, waiting) =
                    (self.network.server.holds(key), self.network.server.waiting(key));
                let overtaken = name.check_turns(&holds, &waiting, now);
                self.overtaken = self.overtaken.take().or(overtaken);
            }
            name.free_since = is_free.then(|| name.free_since.unwrap_or(now));
        }
    }

    /// Returns `true` if there is such a guard of a name, and it trusts its lease.
    pub(super) fn trusts(&self, place: usize, name: usize) -> bool {
        let held = self.guards.get(place).and_then(Option::as_ref);
        held.is_some_and(|held| held.is_of(name) && held.guard.is_held())
    }

    /// Returns since when nothing goes wrong, if nothing does.
    pub(super) fn settled_since(&self) -> Option<Instant> {
        let disturbed = self.clients.iter().map(|client| client.disturbed).max();
        disturbed.filter(|_| self.is_calm || self.is_healed)
    }

    /// Returns how long messages may be on their way, and how long a client needs to listen again.
    pub(super) fn grace(&self) -> Duration {
        let recovery = Duration::from_secs(2) + self.io_timeout * 2;
        let recovery = if self.is_calm { Duration::ZERO } else { recovery };
        recovery + SLACK + self.network.latency * 60
    }

    /// Notes that a client cannot do as usual until then.
    pub(super) fn disturb(&mut self, client: Process, until: Instant) {
        // Not before its client has been opened.
        if let Some(state) = self.clients.get_mut(client - 1) {
            state.disturbed = state.disturbed.max(until);
        }
    }

    fn disturb_all(&mut self, until: Instant) {
        for client in 1..=self.clients.len() {
            self.disturb(client, until);
        }
    }

    /// Returns `true` if the server has forgotten the hold, so that it may be overlapped.
    fn is_excused(&self, held: &Held) -> bool {
        let Held { client, name, begun, .. } = *held;
        let fence = held.guard.fence();
        let mut about = self.excuses.iter().filter(|it| it.is_about(client, name, fence, begun));
        about.any(|it| it.from <= clock::now())
    }

    /// Returns the holds of each name at the server, with their clients, and how long they last.
    fn holds(&self) -> Vec<(usize, HoldId, Duration)> {
        let each = self.names.iter().enumerate().flat_map(|(number, name)| {
            let holds = self.network.server.holds(&name.key).into_iter();
            holds.map(move |(hold, _, left)| (number, hold, left))
        });
        each.collect()
    }

    /// Changes what the server has, or its clock. Holds that end earlier by that may be overlapped
    /// until they would have ended, unless they are `safe`.
    fn change_server(&mut self, is_safe: bool, change: impl FnOnce(&mut Network)) {
        self.look_at_server();
        let (now, before, fence) =
            (clock::now(), self.holds(), self.network.server.memory.last_token());
        change(&mut self.network);
        let after = self.holds();
        for (name, hold, left) in before {
            let remains = after.iter().find(|(_, it, _)| *it == hold).map(|(.., left)| *left);
            let remains = remains.unwrap_or_default();
            let client = self.clients.iter().position(|it| *it.id == *hold.client);
            if let Some(client) = client.filter(|_| remains < left && !is_safe) {
                self.excuses.push(Excuse {
                    name,
                    client: client + 1,
                    fence,
                    begun_by: now + self.io_timeout + Duration::from_millis(10),
                    // Its clock may be as much too fast as leases allow for.
                    from: now + remains * 99 / 100,
                    until: now + left,
                });
            }
        }
        // A counter that is lost grows on only if the clock is not behind.
        let next = self.network.server.next_token();
        for name in &mut self.names {
            name.fence = name.fence.min(next - 1);
            if !is_safe {
                name.written = 0;
            }
        }
        self.look_at_server();
    }

    /// Returns how many threads have a side of a name, or want it, and trust their lease.
    fn check_exclusion(&self, new: usize) -> Result<(), String> {
        let Some(Some(one)) = self.guards.get(new) else { return Ok(()) };
        if !one.guard.is_held() {
            return Ok(());
        }
        if self.is_excused(one) {
            return Ok(());
        }
        let others = self.guards.iter().enumerate().filter(|(at, _)| *at != new);
        let others = others.filter_map(|(_, held)| held.as_ref());
        let others = others.filter(|it| it.conflicts_with(one) && it.guard.is_held());
        let others = others.filter(|it| !self.is_excused(it));
        let others: Vec<_> = others.collect();
        let conflicts = match self.names[one.name].usage {
            Usage::Lock => others.len(),
            Usage::Semaphore(permits) => (others.len() + 1).saturating_sub(permits as usize),
            Usage::ReadWrite => {
                let is_alone = one.side == Side::Alone;
                others.iter().filter(|it| is_alone || it.side == Side::Alone).count()
            }
        };
        if conflicts > 0 {
            let name = &self.names[one.name].name;
            let with: Vec<_> = others.iter().map(|it| (it.client, it.guard.fence())).collect();
            let (client, fence) = (one.client, one.guard.fence());
            return Err(format!(
                "{name:?} is held by client {client} ({fence:?}) and by {with:?} at the same time"
            ));
        }
        Ok(())
    }
}

/// Notes what the server has after it has executed a request.
pub(super) fn after_execution() {
    let overtaken = with(|world| {
        world.look_at_server();
        world.overtaken.take().filter(|_| world.is_calm)
    });
    if let Some(why) = overtaken {
        broken(&why);
    }
    let ways = with(|world| world.accidents.len() + 1);
    if ways > 1
        && let Some(way @ 1..) = executor::choose(Choice::Fault, ways)
    {
        let accident = with(|world| world.accidents[way - 1]);
        executor::spawn(Some(DIRECTOR), move || happen(accident, &mut Random::default()));
    }
}

/// What a step of the simulation must not break.
fn check_step(client: Process) {
    if simulation::HAS_PANICKED.get() {
        broken("a thread has panicked");
    }
    let broken_by = with(|world| {
        let World { guards, .. } = world;
        for held in guards.iter_mut().flatten().filter(|held| held.client == client) {
            let is_held = held.guard.is_held();
            if is_held && held.is_over {
                return Some(format!("a lost hold of client {client} is held again"));
            }
            held.is_over |= !is_held;
        }
        None
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
}

/// Notes a new guard, and checks that no other one is valid, and that tokens grow.
fn begin_hold(held: Held, grows: impl Fn(u64, u64, Side) -> bool) -> usize {
    let Held { client, name, side, begun, .. } = held;
    let fence = held.guard.fence().unwrap_or(0);
    let (place, last, is_excused) = with(|world| {
        world.tally.acquired += 1;
        let place = world.guards.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            world.guards.push(None);
            world.guards.len() - 1
        });
        let now = clock::now();
        let names = world.names.iter_mut().enumerate();
        for (_, state) in names.filter(|(at, _)| held.is_of(*at)) {
            state.had_guard.insert(client, now);
        }
        // A tenure that the server has forgotten goes on with its tokens until it ends.
        let mut excuses = world.excuses.iter();
        let is_excused = excuses.any(|it| it.is_about(client, name, held.guard.fence(), begun));
        world.guards[place] = Some(held);
        let state = &mut world.names[name];
        let last = if side == Side::Reader { state.written } else { state.fence };
        if matches!(side, Side::Alone | Side::Own) && !is_excused {
            (state.fence, state.written) = (state.fence.max(fence), state.written.max(fence));
        }
        (place, last, is_excused)
    });
    // A hold whose lease is over when its call ends is no use, whatever its token.
    let is_held = with(|world| world.guards[place].as_ref().is_some_and(|it| it.guard.is_held()));
    if is_held && !is_excused && !grows(last, fence, side) {
        let name = with(|world| world.names[name].name.clone());
        broken(&format!("the fence of {name:?} is {fence} after {last}"));
    }
    if let Err(why) = with(|world| world.check_exclusion(place)) {
        broken(&why);
    }
    place
}

/// Passes a lock to another client, which has it for some time.
fn pass(from: Process, place: usize, to: Process, holds: Duration) {
    let held = with(|world| world.guards[place].take());
    let Some(Held { guard: Guarded::Lock(guard), name, begun, .. }) = held else { return };
    let fence = guard.fence();
    with(|world| world.releasing.push((from, name)));
    let ticket = guard.detach();
    end_release(from, name);
    say(from, || format!("leaves the hold with fence {fence:?}: {ticket:?}"));
    let Ok(ticket) = ticket else { return };
    start(to, move |client, process| adopt(client, process, name, begun, fence, holds, &ticket));
}

/// Adopts a hold, and has it for some time.
fn adopt(
    client: &Client,
    process: Process,
    name: usize,
    begun: Instant,
    fence: u64,
    holds: Duration,
    ticket: &Ticket,
) {
    match client.adopt(ticket) {
        Ok(guard) => {
            say(process, || format!("adopts the hold with fence {fence:?}"));
            let (guard, side) = (Guarded::Lock(guard), Side::Alone);
            let held = Held { guard, client: process, name, side, begun, is_over: false };
            let place = begin_hold(held, |last, found, _| found == fence && last == fence);
            executor::sleep(holds);
            release(process, place, false);
        }
        Err(error) => {
            say(process, || format!("adopts nothing: {error}"));
            if with(|world| world.is_calm) {
                broken(&format!("a hold is not adopted, though nothing went wrong: {error}"));
            }
        }
    }
}

/// Acquires something and checks how the call has ended.
pub(super) fn acquire(
    client: &Client,
    process: Process,
    name: usize,
    side: Side,
    patience: Patience,
) -> Option<usize> {
    let (begun, number, text, usage, keep) = with(|world| {
        world.last_call += 1;
        world.tally.calls += 1;
        let begun = clock::now();
        let call = CallState { client: process, name, patience, begun, side };
        world.calls.insert(world.last_call, call);
        let NameState { name, usage, keep, .. } = &world.names[name];
        (begun, world.last_call, name.clone(), *usage, *keep)
    });
    let stopped = with(|world| world.clients[process - 1].stopped);
    say(process, || format!("call {number}: wants {text:?} as {side:?}, waits {patience:?}"));
    let result = request(client, process, &text, usage, side, patience, keep);
    let now = clock::now();
    with(|world| world.calls.remove(&number));
    let took = now - begun;
    let broken_by = with(|world| {
        // Everything that the process was stopped for meanwhile counts for nothing.
        let stopped = world.clients[process - 1].stopped.saturating_sub(stopped);
        let took = took.saturating_sub(stopped);
        let World { io_timeout, retry_window, .. } = *world;
        let most = match (patience, &result) {
            (Patience::For(time), _) => Some(time + io_timeout),
            (Patience::None, _) => Some(retry_window + io_timeout * 2),
            (Patience::Endless, _) => None,
        };
        if most.is_some_and(|most| took > most + SLACK) {
            return Some(format!("call {number} took {took:?}, and may take {most:?}"));
        }
        None
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
    match result {
        Ok(Some(guard)) => {
            say(process, || format!("call {number}: acquired, fence {:?}", guard.fence()));
            let grows = |last, fence, side| match side {
                Side::All | Side::Permit => true,
                Side::Reader => fence >= last,
                Side::Alone | Side::Own => fence > last,
            };
            let held = Held { guard, client: process, name, side, begun, is_over: false };
            Some(begin_hold(held, grows))
        }
        Ok(None) => {
            say(process, || format!("call {number}: busy"));
            with(|world| world.tally.busy += 1);
            let was_contended = with(|world| {
                let names = 0..world.names.len();
                let mut names = names.filter(|at| side == Side::All || *at == name);
                names.any(|name| world.was_contended(process, name, begun, patience))
            });
            if !was_contended {
                broken(&format!("call {number} is told that {text:?} is held, and it was not"));
            }
            None
        }
        Err(error) => {
            say(process, || format!("call {number}: {error}"));
            with(|world| world.tally.failed += 1);
            if let Error::Deadlock { names, clients, .. } = &error
                && with(|world| world.deadlocks.is_some())
            {
                deadlocks::check_error(names, clients);
                return None;
            }
            let is_expected = with(|world| world.may_fail(&error, process, begun));
            if !is_expected {
                broken(&format!("call {number} fails: {error}"));
            }
            None
        }
    }
}

impl World {
    /// Returns `true` if a call of a client that began then may fail so.
    fn may_fail(&self, error: &Error, client: Process, begun: Instant) -> bool {
        let Self { network, io_timeout, lease, .. } = self;
        // Calls in line share the failure of a request that was sent before, and of one that has
        // withdrawn it since.
        let was = |at: Option<Instant>, within: Duration| at.is_some_and(|at| at + within >= begun);
        match error {
            Error::Closed => self.clients[client - 1].closed,
            Error::Unavailable { .. } => !self.is_calm,
            Error::Redis { .. } => was(network.server.refused_until, *io_timeout),
            Error::NotReplicated { .. } => was(network.fell_short, *io_timeout * 2 + *lease * 2),
            _ => false,
        }
    }

    /// Returns `true` if another owner had the name, or waited for it, since the call began.
    fn was_contended(
        &self,
        client: Process,
        name: usize,
        begun: Instant,
        patience: Patience,
    ) -> bool {
        let state = &self.names[name];
        let own = &self.clients[client - 1].id;
        // A call that does not wait relies on the last reply to a call before it.
        let before = match patience {
            Patience::None => self.backoff_max + self.io_timeout,
            // The reply may have been on its way when the call began, or waited for its process.
            Patience::For(_) | Patience::Endless => {
                let thread = Duration::from_millis(2);
                self.network.latency * 6 + self.acks + thread + self.clients[client - 1].stopped
            }
        };
        let since = begun.checked_sub(before).unwrap_or(begun);
        let others = |seen: &BTreeMap<String, Instant>| {
            seen.iter().any(|(id, at)| id != own && *at >= since)
        };
        let is_held = self.guards.iter().flatten().any(|it| it.is_of(name) && it.client == client);
        let is_awaited = self.calls.values().any(|it| it.is_about(name) && it.client == client);
        let was_held = state.had_guard.get(&client).is_some_and(|at| *at >= since)
            || self.releasing.contains(&(client, name));
        // A request that no call waits for any more may have begun a hold of this client, which it
        // does not remember once one release was answered.
        let is_own = !self.is_calm && state.had_hold.get(own).is_some_and(|at| *at >= since);
        is_own
            || others(&state.had_hold)
            || others(&state.had_waiter)
            || is_held
            || was_held
            || is_awaited
    }
}

/// Attempts to get a hold.
fn request(
    client: &Client,
    process: Process,
    name: &str,
    usage: Usage,
    side: Side,
    patience: Patience,
    keep: Option<Duration>,
) -> Result<Option<Guarded>, Error> {
    macro_rules! acquired {
        ($wrap:expr, $handle:expr, $lock:ident, $try_lock:ident, $try_lock_for:ident) => {
            match patience {
                Patience::None => $handle.$try_lock()?.map($wrap),
                Patience::For(time) => $handle.$try_lock_for(time)?.map($wrap),
                Patience::Endless => Some($wrap($handle.$lock()?)),
            }
        };
    }
    Ok(match (usage, side) {
        (_, Side::All) => {
            let mut names: Vec<_> =
                with(|world| world.names.iter().map(|name| name.name.clone()).collect());
            let count = names.len();
            names.rotate_left(process % count);
            let set = client.mutexes(names);
            acquired!(other, set, lock, try_lock, try_lock_for)
        }
        (Usage::Lock, _) => {
            let mut mutex = client.mutex(name);
            if let Some(keep) = keep {
                mutex = mutex.keep(keep);
            }
            if side == Side::Own {
                return Ok(acquired!(other, mutex, lock, try_lock, try_lock_for));
            }
            acquired!(Guarded::Lock, mutex, lock_owned, try_lock_owned, try_lock_owned_for)
        }
        (Usage::ReadWrite, Side::Reader) => {
            acquired!(other, client.rw_lock(name), read, try_read, try_read_for)
        }
        (Usage::ReadWrite, _) => {
            acquired!(other, client.rw_lock(name), write, try_write, try_write_for)
        }
        (Usage::Semaphore(permits), _) => {
            let semaphore = client.semaphore(name, permits);
            acquired!(other, semaphore, acquire, try_acquire, try_acquire_for)
        }
    })
}

fn other<G: AnyGuard + 'static>(guard: G) -> Guarded {
    Guarded::Other(Box::new(guard))
}

/// Ends a hold.
pub(super) fn release(process: Process, place: usize, drops: bool) {
    let Some(Held { guard, name, side, .. }) = with(|world| {
        let held = world.guards[place].take();
        world.releasing.extend(held.as_ref().map(|held| (process, held.name)));
        held
    }) else {
        return;
    };
    let fence = guard.fence();
    let verb = if drops { "drops" } else { "unlocks" };
    say(process, || format!("{verb} its {side:?} of name {name}, fence {fence:?}"));
    if drops {
        drop(guard);
    } else {
        let result = guard.unlock();
        say(process, || format!("unlocked: {result:?}"));
        let is_lost = matches!(result, Err(Error::Lost { .. }));
        let calm = with(|world| {
            world.tally.lost += u64::from(is_lost);
            world.is_calm
        });
        if let Err(error) = result
            && calm
        {
            broken(&format!("a release fails, though nothing went wrong: {error}"));
        }
    }
    end_release(process, name);
}

fn end_release(process: Process, name: usize) {
    with(|world| {
        let ended = world.releasing.iter().position(|it| *it == (process, name));
        ended.map(|at| world.releasing.swap_remove(at));
        world.names[name].had_guard.insert(process, clock::now());
    });
}

/// A thread of a client that locks and unlocks.
fn caller(client: &Client, process: Process, mut random: Random, calls: u64) {
    for _ in 0..calls {
        if with(|world| world.is_healed) {
            break;
        }
        let longest = random.pick(&[1, 20, 300]);
        let pause = random.time(Duration::from_millis(longest));
        if random.permille(700) {
            executor::sleep(pause);
        }
        let (name, side, lease) = with(|world| {
            let name = usize::try_from(random.below(world.names.len() as u64)).unwrap_or(0);
            let side = match world.names[name].usage {
                Usage::Semaphore(_) => Side::Permit,
                Usage::ReadWrite if random.permille(600) => Side::Reader,
                Usage::ReadWrite | Usage::Lock => Side::Alone,
            };
            (name, side, world.lease)
        });
        let patience = match random.below(10) {
            0..3 => Patience::None,
            3..6 => Patience::For(random.time(Duration::from_secs(1))),
            _ => Patience::Endless,
        };
        let Some(place) = acquire(client, process, name, side, patience) else { continue };
        match random.below(20) {
            0..8 => {}
            8..15 => executor::sleep(random.time(Duration::from_millis(20))),
            15..19 => executor::sleep(random.time(lease / 2)),
            _ => executor::sleep(random.time(lease * 2)),
        }
        release(process, place, random.permille(700));
    }
}

/// Starts a thread of a client.
fn start(process: Process, act: impl FnOnce(&Client, Process) + Send + 'static) {
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

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A client is stopped for a while, all its threads at once.
    Stop,
    /// A client cannot reach the server for a while.
    CutOff,
    /// A client can never reach the server again: for others it is dead.
    Die,
    /// A client no longer receives messages, until it listens again.
    ListenerLost,
    /// A client is closed.
    Close,
    /// A client is shut down.
    ShutDown,
    /// The server is stopped for a while.
    ServerStops,
    /// The server ends, and comes back with its data.
    ServerRestarts,
    /// The server comes back without its data.
    ServerIsEmpty,
    /// The server comes back with data from a while ago.
    ServerIsOlder,
    /// An operator ends the hold of a name.
    HoldEnded,
    /// The server refuses writes for a while.
    WritesRefused,
    /// The server's clock is set forwards, or back.
    ClockIsSet,
    /// The server is lost, and its replica takes its place.
    FailsOver,
    /// The replica no longer follows the server for a while.
    ReplicaIsCutOff,
}

const FAULTS: [Fault; 14] = [
    Fault::Stop,
    Fault::CutOff,
    Fault::ListenerLost,
    Fault::Close,
    Fault::ShutDown,
    Fault::ServerStops,
    Fault::ServerRestarts,
    Fault::ServerIsEmpty,
    Fault::ServerIsOlder,
    Fault::HoldEnded,
    Fault::WritesRefused,
    Fault::ClockIsSet,
    Fault::FailsOver,
    Fault::ReplicaIsCutOff,
];

/// The number of the process of those who run the world.
const DIRECTOR: Process = 99;

/// A fault of a client, which lasts that long, or of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accident {
    pub(super) fault: Fault,
    pub(super) client: Process,
    pub(super) time: Duration,
    pub(super) name: usize,
}

impl Accident {
    fn any(fault: Fault, random: &mut Random) -> Self {
        let (lease, clients, names) =
            with(|world| (world.lease, world.clients.len(), world.names.len()));
        let time = random.time(lease * 2);
        let mut below = |end: usize| usize::try_from(random.below(end as u64)).unwrap_or(0);
        let client = below(clients) + 1;
        let name = if let Fault::HoldEnded = fault { below(names) } else { 0 };
        Self { fault, client, time, name }
    }
}

fn happen(accident: Accident, random: &mut Random) {
    let Accident { fault, client, time, name } = accident;
    let lease = with(|world| world.lease);
    say(DIRECTOR, || format!("FAULT: {fault:?}, client {client}, {time:?}"));
    let now = clock::now();
    with(|world| match fault {
        Fault::Stop | Fault::CutOff | Fault::Die | Fault::ListenerLost => {
            world.disturb(client, now + time);
        }
        _ => world.disturb_all(now + time),
    });
    match fault {
        Fault::Stop => {
            let before = executor::paused_until(client);
            let start = before.or(executor::now()).unwrap_or_default();
            executor::pause(client, time);
            let end = executor::paused_until(client).unwrap_or_default();
            with(|world| world.clients[client - 1].stopped += end.saturating_sub(start));
        }
        Fault::CutOff | Fault::Die => with(|world| {
            let is_dead = matches!(fault, Fault::Die);
            world.clients[client - 1].is_dead |= is_dead;
            let link = &mut world.network.links[client - 1];
            link.cut_until = now + if is_dead { LONGEST } else { time };
            link.break_subscription();
        }),
        Fault::ListenerLost => with(|world| world.network.links[client - 1].break_subscription()),
        Fault::Close | Fault::ShutDown => {
            let process = client;
            let client = with(|world| {
                world.clients[process - 1].closed = true;
                world.clients[process - 1].client.clone().expect("it is open")
            });
            executor::spawn(Some(process), move || {
                if let Fault::Close = fault {
                    client.close();
                } else {
                    let result = client.shutdown(time);
                    say(process, || format!("shut down: {result:?}"));
                }
            });
        }
        Fault::ServerStops => executor::pause(SERVER, time),
        Fault::ServerRestarts => with(|world| {
            let same = world.network.server.memory.copy();
            world.network.restart(same, time);
        }),
        Fault::ServerIsEmpty => with(|world| {
            world.change_server(false, |network| network.restart(MemoryServer::new(), time));
        }),
        Fault::ServerIsOlder => with(|world| {
            world.change_server(false, |network| {
                let older = network.older.take().unwrap_or_default().copy();
                network.restart(older, time);
            });
        }),
        Fault::HoldEnded => {
            with(|world| {
                let name = world.names[name].name.clone();
                world.change_server(false, |network| {
                    // A server that is down does not ask a client for a lock that it keeps.
                    network.server.memory.set_down(true);
                    network.server.at_its_time(|memory| memory.end_hold(&name));
                    network.server.memory.set_down(false);
                });
            });
            crate::simulation::network::deliver();
        }
        Fault::WritesRefused => server::refuse(random.pick(&Refusal::ALL), time),
        Fault::ClockIsSet => {
            let forwards = random.permille(500);
            with(|world| {
                world.change_server(false, |network| network.server.clock.jump(time, forwards));
            });
        }
        Fault::FailsOver => {
            if random.permille(500) {
                cut_off_replica(lease * 2);
                executor::sleep(random.time(lease / 2));
            }
            with(|world| {
                let is_durable = world.is_durable;
                world.change_server(is_durable, |network| network.fail_over(time / 4));
                world.disturb_all(clock::now());
            });
        }
        Fault::ReplicaIsCutOff => cut_off_replica(time),
    }
}

fn cut_off_replica(time: Duration) {
    with(|world| {
        if let Some(replica) = &mut world.network.server.replica {
            replica.cut_off(time);
        }
    });
}

/// Ends everything that is wrong.
fn heal() {
    say(DIRECTOR, || "everything is healed".into());
    executor::end_choices();
    let now = clock::now();
    executor::resume_all();
    with(|world| {
        world.network.weather = Weather::default();
        world.network.down_until = now;
        world.network.server.heal();
        for (link, client) in world.network.links.iter_mut().zip(&mut world.clients) {
            client.closed |= client.is_dead;
            if !client.is_dead {
                link.cut_until = now;
            }
        }
        world.is_healed = true;
        for client in &mut world.clients {
            client.disturbed = now;
        }
    });
}

/// Looks whether a call waits for what is free.
fn tick() {
    let broken_by = with(|world| {
        world.look_at_server();
        let now = clock::now();
        let retry = Duration::from_millis(500);
        let World { backoff_max, io_timeout, .. } = *world;
        // In a calm world every release wakes the next client.
        let pause =
            if world.is_calm { Duration::from_millis(100) } else { backoff_max + OFFER * 2 };
        let most = pause + world.network.latency * 20;
        let unguarded_most =
            if world.is_reliable { most } else { most + world.lease * 2 + io_timeout };
        let is_explored = executor::follows_course();
        for (at, name) in world.names.iter_mut().enumerate() {
            let mut guards = world.guards.iter().flatten();
            if guards.any(|held| held.is_of(at) && held.guard.is_held()) {
                name.unguarded_since = now;
            }
        }
        if !world.is_healed && !world.is_calm && !is_explored {
            return None;
        }
        let deadlocks = world.deadlocks.take();
        let result = deadlocks.as_ref().map(|deadlocks| deadlocks::check(world, deadlocks));
        world.deadlocks = deadlocks;
        if let Some(Err(why)) = result {
            return Some(why);
        }
        for (number, call) in &world.calls {
            let name = &world.names[call.name];
            let client = &world.clients[call.client - 1];
            let is_disturbed = now < client.disturbed + retry + io_timeout + most;
            // Whatever a client that no longer has a guard has left behind has ended by then.
            let unguarded = name.unguarded_since.max(call.begun).max(client.disturbed);
            if is_explored && !client.closed && now > unguarded + unguarded_most {
                let name = &name.name;
                return Some(format!("call {number} waits, though {name:?} has no guard"));
            }
            if !world.is_healed && !world.is_calm {
                continue;
            }
            let is_held = world.guards.iter().flatten().any(|it| it.is_of(call.name))
                || world.releasing.iter().any(|(_, name)| *name == call.name);
            // A lock that a client only keeps is free too.
            let last_held = name.had_guard.values().max().copied().filter(|_| world.is_calm);
            let free_since = name.free_since.or(last_held);
            let is_free = free_since.is_some_and(|since| now > since + most) && !is_held;
            if is_free && now > call.begun + most && !is_disturbed && !client.closed {
                let CallState { patience, side, .. } = call;
                return Some(format!(
                    "call {number} ({side:?}, {patience:?}) waits, though {:?} is free",
                    name.name
                ));
            }
        }
        None
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
    if with(|world| !world.is_over) {
        executor::after(DIRECTOR, LOOK, tick);
    }
}

/// Runs a world from its beginning to its end.
fn direct(mut random: Random) {
    let calm = with(|world| world.is_calm);
    let faults = if calm { 0 } else { random.below(6) };
    let horizon = Duration::from_secs(3);
    for _ in 0..faults {
        executor::sleep(random.time(horizon / 2));
        let is_replicated = with(|world| world.network.server.replica.is_some());
        let fault = match random.pick(&FAULTS) {
            _ if is_replicated && random.permille(300) => Fault::FailsOver,
            Fault::FailsOver | Fault::ReplicaIsCutOff if !is_replicated => Fault::ServerRestarts,
            fault => fault,
        };
        happen(Accident::any(fault, &mut random), &mut random);
        if random.permille(300) {
            with(|world| world.network.older = Some(world.network.server.memory.copy()));
        }
    }
    finish(Duration::from_secs(3));
}

/// Waits for the callers, heals everything after some time, and checks that nothing is left.
fn finish(horizon: Duration) {
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
    let set_back = with(|world| world.network.server.set_back());
    let keep = with(|world| world.names.iter().filter_map(|name| name.keep).max());
    executor::sleep(lease + keep.unwrap_or_default() + set_back + Duration::from_secs(3));
    with(World::look_at_server);
    let broken_by = with(|world| {
        world.is_over = true;
        for name in &world.names {
            let holds = world.network.server.holds(&name.key);
            let waiting = world.network.server.waiting(&name.key);
            // A late request may have left a place in the queue, which the next release passes on.
            if !holds.is_empty() || world.is_calm && !waiting.is_empty() {
                let holds: Vec<_> =
                    holds.iter().map(|(hold, depth, _)| (hold.owner(), *depth)).collect();
                return Some(format!("{:?} is not quiet: {holds:?}, {waiting:?}", name.name));
            }
        }
        world
            .network
            .links
            .iter()
            .position(Link::has_jobs)
            .map(|at| format!("client {} still waits for replies", at + 1))
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
    let clients =
        with(|world| world.clients.iter_mut().filter_map(|it| it.client.take()).collect());
    let clients: Vec<Client> = clients;
    for (at, client) in clients.into_iter().enumerate() {
        let stats = client.stats();
        let ends = stats.released + stats.lost + stats.failed_releases;
        if stats.acquired != ends || stats.held + stats.waiting + stats.kept > 0 {
            broken(&format!("client {} is not quiet: {stats:?}", at + 1));
        }
        if stats.lost > 0 && with(|world| world.is_calm) {
            broken(&format!("client {} loses a hold, though nothing went wrong", at + 1));
        }
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

/// Runs the world of a seed. Fails, or panics, if it breaks a promise.
pub(super) fn run(seed: u64, tells: bool) -> Result<Tally, String> {
    let mut random = Random(seed);
    let latency = Duration::from_micros(random.pick(&[10, 100, 100, 1000, 10_000]));
    let settings = Settings {
        seed: random.next(),
        preemption: random.pick(&[0, 50, 300]),
        latency: Duration::from_micros(random.pick(&[1, 50, 1000])),
        course: None,
    };
    conduct(&settings, || begin(random, tells, latency))
}

fn conduct(settings: &Settings, begin: impl FnOnce()) -> Result<Tally, String> {
    let End { threads, steps, lasted } = executor::run(settings, LONGEST, begin, check_step)?;
    if threads > 0 {
        return Err(format!("{threads} threads are left"));
    }
    let tally = with(|world| world.tally);
    drop(WORLD.with(|world| world.borrow_mut().take()));
    Ok(Tally { steps, simulated: lasted, ..tally })
}

/// Creates the world of a seed, and starts its threads.
fn begin(mut random: Random, tells: bool, latency: Duration) {
    // A server that is so far away that few round trips fit into a timeout is no calm world.
    let is_calm = random.permille(300) && latency < Duration::from_millis(10);
    let is_stormy = !is_calm && random.permille(600);
    let rate = |random: &mut Random| {
        let most = random.pick(&[1, 4, 16, 64, 128]);
        if is_stormy { random.below(most) } else { 0 }
    };
    let weather = Weather {
        broken: rate(&mut random),
        late: rate(&mut random),
        twice: rate(&mut random),
        message_lost: rate(&mut random) * 3,
    };
    let lease = Duration::from_millis(random.pick(&[300, 1000, 3000, 10_000]));
    let mut config = config_of(lease);
    if random.permille(300) {
        config.backoff = (Duration::from_millis(20), Duration::from_secs(2));
    }
    let is_replicated = random.permille(300);
    let is_durable = is_replicated && random.permille(600);
    let timeout = (lease / 12).min(Duration::from_millis(200));
    // In a calm world the replica is never late.
    let lag = random.time(if is_calm { timeout / 8 } else { timeout * 2 });
    if is_durable {
        config.durability = Durability::Replicas { acks: 1, timeout };
    }
    let (server, now) = (MemoryServer::new(), clock::now());
    let count = random.pick(&[1, 2, 2, 2, 3, 3, 4, 4, 6, 9]);
    let names = random.pick(&[1, 1, 2, 3]);
    let mut names: Vec<_> =
        (0..names).map(|number| NameState::any(number, lease, &mut random)).collect();
    let deadlocks = random.permille(200).then(|| Deadlocks::new(&mut config, &mut random));
    if deadlocks.is_some() {
        for name in &mut names {
            name.usage = Usage::Lock;
        }
        executor::observe(deadlocks::observe);
    }
    let links = (0..count).map(|_| Link::new(&server, &config)).collect();
    let ahead = random.pick(&[0, 0, 1_000_000_000, -1_000_000_000_000]);
    let rate = random.pick(&[0, 0, 10, -10, 9_000, -9_000]);
    let mut server = Server::new(server, ServerClock::new(ahead, rate));
    if is_replicated {
        server.replica = Some(Replica::new(&server.memory, lag, now));
    }
    let chance = Random(random.next());
    let ordered = random.permille(500);
    let network = Network::new(chance, weather, latency, lease, ordered, server, links);
    let is_reliable = is_calm;
    populate(
        World {
            deadlocks,
            is_calm,
            is_durable,
            is_reliable,
            ..World::new(network, names, &config, tells)
        },
        config,
        move || {
            for process in 1..=count {
                for _ in 0..=random.below(4) {
                    let random = Random(random.next());
                    let calls = 1 + random.clone().below(12);
                    let caller = if with(|world| world.deadlocks.is_some()) {
                        deadlocks::caller
                    } else {
                        caller
                    };
                    start(process, move |client, process| caller(client, process, random, calls));
                }
            }
            tick();
            direct(random);
        },
    );
}

fn config_of(lease: Duration) -> Config {
    let options = LockOptions { lease, ..LockOptions::default() };
    let label = Some("simulated".to_owned());
    Config { label, options: Arc::new(options), deadlock_after: None, ..Config::default() }
}

impl World {
    fn new(network: Network, names: Vec<NameState>, config: &Config, tells: bool) -> Self {
        let lease = config.options.lease;
        Self {
            network,
            tells,
            history: String::new(),
            clients: Vec::new(),
            names,
            deadlocks: None,
            guards: Vec::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            releasing: Vec::new(),
            overtaken: None,
            accidents: Vec::new(),
            excuses: Vec::new(),
            is_durable: false,
            acks: config.durability.timeout(),
            lease,
            io_timeout: config.io_timeout(lease),
            retry_window: config.retry_window,
            backoff_max: config.backoff.1,
            is_calm: false,
            is_reliable: false,
            is_healed: false,
            is_over: false,
            tally: Tally::default(),
        }
    }
}

/// Opens the clients of a world, and lets a thread run it.
fn populate(world: World, config: Config, direct: impl FnOnce() + Send + 'static) {
    let count = world.network.links.len();
    WORLD.with(|it| *it.borrow_mut() = Some(world));
    executor::spawn(Some(DIRECTOR), move || {
        for number in 1..=count {
            let store = Arc::new(SimulatedStore { client: number });
            let events = Events::default();
            // Its threads belong to its process.
            let opened = executor::of_process(number, || {
                Shared::start(config.clone(), &events, store, Pools::default())
            });
            let client = Client::new(opened.expect("a client"));
            let state = ClientState {
                id: client.id().to_owned(),
                client: Some(client),
                running: 0,
                is_dead: false,
                closed: false,
                stopped: Duration::ZERO,
                disturbed: clock::now(),
            };
            with(|world| world.clients.push(state));
        }
        direct();
    });
}

/// What a thread of a small world does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errand {
    /// It begins then.
    pub(super) at: Duration,
    pub(super) side: Side,
    pub(super) patience: Patience,
    /// How long it has the hold.
    pub(super) holds: Duration,
    /// Whether it drops the hold, or unlocks it.
    pub(super) drops: bool,
    /// Which client adopts the hold then, and has it as long.
    pub(super) passes_to: Option<Process>,
    pub(super) name: usize,
}

/// A small world in which nothing is left to chance.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) usage: Usage,
    pub(super) keep: Option<Duration>,
    /// Whether the requests of a client arrive in order.
    pub(super) ordered: bool,
    /// How many names there are, and whether each is on a server of its own, as in a cluster.
    pub(super) names: usize,
    pub(super) apart: bool,
    /// The number of clients.
    pub(super) clients: usize,
    /// Each thread with its client, and what it does.
    pub(super) threads: Vec<(Process, Vec<Errand>)>,
    pub(super) accidents: Vec<Accident>,
    /// With how many deviations it is run.
    pub(super) most: usize,
}

/// The lease in small worlds.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// Runs a small world in which things happen as usual, with these exceptions.
pub(super) fn run_scene(
    scene: &Scene,
    deviations: &[Deviation],
    worst: Option<Choice>,
    tells: bool,
) -> Result<Tally, String> {
    let course = Course { deviations: deviations.to_vec(), ..Course::default() };
    let settings = Settings { course: Some(course), ..Settings::default() };
    let scene = scene.clone();
    conduct(&settings, || {
        let (latency, mut config) = (Duration::from_millis(1), config_of(LEASE));
        // Who is not woken is late.
        config.backoff = (Duration::from_millis(300), Duration::from_millis(500));
        let memory = MemoryServer::new();
        let links = (0..scene.clients).map(|_| Link::new(&memory, &config)).collect();
        let server = Server::new(memory, ServerClock::new(0, 0));
        let (chance, weather) = (Random::default(), Weather::default());
        let ordered = scene.ordered;
        let mut network = Network::new(chance, weather, latency, LEASE, ordered, server, links);
        (network.jitter, network.apart) = (Duration::ZERO, scene.apart);
        let name =
            |name| NameState { usage: scene.usage, keep: scene.keep, ..NameState::new(name) };
        let names = ["a", "b", "c"][..scene.names].iter().map(|it| name(it)).collect();
        // Calls for several locks may keep one another waiting where no server has all of them.
        let harmless = |least| !scene.apart && worst.is_none_or(|worst| worst <= least);
        let (is_calm, is_reliable) = (harmless(Choice::Arrival), harmless(Choice::Message));
        let accidents = scene.accidents.clone();
        let world = World::new(network, names, &config, tells);
        let world = World { accidents, is_calm, is_reliable, ..world };
        populate(world, config, move || {
            executor::sleep(Duration::from_millis(20));
            let begin = clock::now();
            for (process, errands) in scene.threads {
                start(process, move |client, process| {
                    for errand in errands {
                        executor::sleep(
                            (begin + errand.at).saturating_duration_since(clock::now()),
                        );
                        let Errand { name, side, patience, holds, drops, passes_to, .. } = errand;
                        let place = acquire(client, process, name, side, patience);
                        let Some(place) = place else { continue };
                        executor::sleep(holds);
                        match passes_to {
                            Some(other) => pass(process, place, other, holds),
                            None => release(process, place, drops),
                        }
                    }
                });
            }
            tick();
            finish(LEASE * 8);
        });
    })
}
