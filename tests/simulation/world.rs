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
use crate::base::sync::executor::{self, End, Process, Random, Settings};
use crate::client::Client;
use crate::config::durability::Durability;
use crate::config::{Config, LockOptions};
use crate::error::Error;
use crate::guards::AnyGuard;
use crate::local::shared::Shared;
use crate::net::server::Pools;
use crate::simulation;
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
enum Usage {
    Lock,
    ReadWrite,
    Semaphore(u32),
}

/// What a thread has, or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Alone,
    Reader,
    Permit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    None,
    For(Duration),
    Endless,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct World {
    pub(super) network: Network,
    tells: bool,
    history: String,
    clients: Vec<ClientState>,
    names: Vec<NameState>,
    guards: Vec<Option<Held>>,
    calls: BTreeMap<u64, CallState>,
    last_call: u64,
    /// The guards that are being dropped or unlocked.
    releasing: Vec<(Process, usize)>,
    /// The number of callers that are not done.
    running: usize,
    excuses: Vec<Excuse>,
    lease: Duration,
    io_timeout: Duration,
    retry_window: Duration,
    backoff_max: Duration,
    /// Nothing goes wrong any more, or ever has.
    is_calm: bool,
    /// Holds are acknowledged by the replica, which takes as long as this at most.
    is_durable: bool,
    acks: Duration,
    is_healed: bool,
    is_over: bool,
    tally: Tally,
}

struct ClientState {
    id: String,
    /// What its guards were when they were last looked at.
    closed: bool,
    /// How long it was stopped, in all.
    stopped: Duration,
    /// When it last was stopped, cut off or closed, or the server was away.
    disturbed: Instant,
}

struct NameState {
    name: String,
    key: String,
    usage: Usage,
    keeps: bool,
    /// The greatest token so far, and when the hold with it began.
    fence: u64,
    /// The greatest token of a write that the server remembers.
    written: u64,
    /// When the server last had a hold or an offer of each client, and when it had a waiting one.
    had_hold: BTreeMap<String, Instant>,
    had_waiter: BTreeMap<String, Instant>,
    /// When a guard of each client last existed.
    had_guard: BTreeMap<Process, Instant>,
    /// Since when the name is free at the server, as far as was looked.
    free_since: Option<Instant>,
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
    guard: Box<dyn AnyGuard>,
    client: Process,
    name: usize,
    side: Side,
    /// When its call began.
    begun: Instant,
    /// Whether its lease was found over, so that it must stay so.
    is_over: bool,
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
fn broken(why: &str) -> ! {
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
    fn new(number: usize, random: &mut Random) -> Self {
        Self {
            name: ["a", "b", "c"][number].into(),
            key: ["lock:a", "lock:b", "lock:c"][number].into(),
            usage: match random.below(6) {
                0..4 => Usage::Lock,
                4 => Usage::ReadWrite,
                _ => Usage::Semaphore(random.pick(&[1, 2, 3])),
            },
            keeps: random.permille(300),
            fence: 0,
            written: 0,
            had_hold: BTreeMap::new(),
            had_waiter: BTreeMap::new(),
            had_guard: BTreeMap::new(),
            free_since: None,
        }
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
            name.free_since = is_free.then(|| name.free_since.unwrap_or(now));
        }
    }

    fn disturb(&mut self, client: Process) {
        let now = clock::now();
        self.clients[client - 1].disturbed = now;
    }

    fn disturb_all(&mut self) {
        for client in 1..=self.clients.len() {
            self.disturb(client);
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
        let others = others.filter(|it| it.name == one.name && it.guard.is_held());
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
    with(World::look_at_server);
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

/// Acquires something and checks how the call has ended.
fn acquire(
    client: &Client,
    process: Process,
    name: usize,
    side: Side,
    patience: Patience,
) -> Option<usize> {
    let (begun, number, text, usage, keeps, lease) = with(|world| {
        world.last_call += 1;
        world.tally.calls += 1;
        let begun = clock::now();
        let call = CallState { client: process, name, patience, begun, side };
        world.calls.insert(world.last_call, call);
        let NameState { name, usage, keeps, .. } = &world.names[name];
        (begun, world.last_call, name.clone(), *usage, *keeps, world.lease)
    });
    let stopped = with(|world| world.clients[process - 1].stopped);
    say(process, || format!("call {number}: wants {text:?} as {side:?}, waits {patience:?}"));
    let result = request(client, &text, usage, side, patience, keeps.then_some(lease));
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
            let fence = guard.fence();
            say(process, || format!("call {number}: acquired, fence {fence:?}"));
            let place = with(|world| {
                world.tally.acquired += 1;
                let held = Held { guard, client: process, name, side, begun, is_over: false };
                let place = world.guards.iter().position(Option::is_none);
                let place = place.unwrap_or_else(|| {
                    world.guards.push(None);
                    world.guards.len() - 1
                });
                world.guards[place] = Some(held);
                place
            });
            let broken_by = with(|world| {
                let mut excuses = world.excuses.iter();
                // A tenure that the server has forgotten goes on with its tokens until it ends.
                let is_excused = excuses.any(|it| it.is_about(process, name, fence, begun));
                let state = &mut world.names[name];
                state.had_guard.insert(process, now);
                let (last, written, fence) = (state.fence, state.written, fence.unwrap_or(0));
                let grows = is_excused
                    || match side {
                        Side::Permit => true,
                        Side::Reader => fence >= written,
                        Side::Alone => fence > last,
                    };
                if side == Side::Alone && !is_excused {
                    (state.fence, state.written) = (last.max(fence), written.max(fence));
                }
                if !grows {
                    return Some(format!("the fence of {text:?} is {fence} after {last}"));
                }
                world.check_exclusion(place).err()
            });
            if let Some(why) = broken_by {
                broken(&why);
            }
            Some(place)
        }
        Ok(None) => {
            say(process, || format!("call {number}: busy"));
            with(|world| world.tally.busy += 1);
            if !with(|world| world.was_contended(process, name, begun, patience)) {
                broken(&format!("call {number} is told that {text:?} is held, and it was not"));
            }
            None
        }
        Err(error) => {
            say(process, || format!("call {number}: {error}"));
            with(|world| world.tally.failed += 1);
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
        let is_held = self.guards.iter().flatten().any(|it| it.name == name && it.client == client);
        let is_awaited = self.calls.values().any(|it| it.name == name && it.client == client);
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

fn request(
    client: &Client,
    name: &str,
    usage: Usage,
    side: Side,
    patience: Patience,
    keep: Option<Duration>,
) -> Result<Option<Box<dyn AnyGuard>>, Error> {
    macro_rules! acquired {
        ($handle:expr, $lock:ident, $try_lock:ident, $try_lock_for:ident) => {
            match patience {
                Patience::None => boxed($handle.$try_lock()?),
                Patience::For(time) => boxed($handle.$try_lock_for(time)?),
                Patience::Endless => boxed(Some($handle.$lock()?)),
            }
        };
    }
    Ok(match (usage, side) {
        (Usage::Lock, _) => {
            let mut mutex = client.mutex(name);
            if let Some(keep) = keep {
                mutex = mutex.keep(keep);
            }
            acquired!(mutex, lock_owned, try_lock_owned, try_lock_owned_for)
        }
        (Usage::ReadWrite, Side::Reader) => {
            acquired!(client.rw_lock(name), read, try_read, try_read_for)
        }
        (Usage::ReadWrite, _) => acquired!(client.rw_lock(name), write, try_write, try_write_for),
        (Usage::Semaphore(permits), _) => {
            acquired!(client.semaphore(name, permits), acquire, try_acquire, try_acquire_for)
        }
    })
}

fn boxed<G: AnyGuard + 'static>(guard: Option<G>) -> Option<Box<dyn AnyGuard>> {
    guard.map(|guard| Box::new(guard) as Box<dyn AnyGuard>)
}

/// Ends a hold.
fn release(process: Process, place: usize, drops: bool) {
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
    with(|world| world.running -= 1);
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A client is stopped for a while, all its threads at once.
    Stop,
    /// A client cannot reach the server for a while, or ever again.
    CutOff,
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

fn happen(fault: Fault, random: &mut Random, clients: &[Client]) {
    let lease = with(|world| world.lease);
    let time = random.time(lease * 2);
    let client = usize::try_from(random.below(clients.len() as u64)).unwrap_or(0) + 1;
    say(DIRECTOR, || format!("FAULT: {fault:?}, client {client}, {time:?}"));
    let now = clock::now();
    with(|world| match fault {
        Fault::Stop | Fault::CutOff | Fault::ListenerLost => world.disturb(client),
        _ => world.disturb_all(),
    });
    match fault {
        Fault::Stop => {
            let before = executor::paused_until(client);
            let start = before.or(executor::now()).unwrap_or_default();
            executor::pause(client, time);
            let end = executor::paused_until(client).unwrap_or_default();
            with(|world| world.clients[client - 1].stopped += end.saturating_sub(start));
        }
        Fault::CutOff => with(|world| {
            let link = &mut world.network.links[client - 1];
            link.cut_until = now + time;
            link.break_subscription();
        }),
        Fault::ListenerLost => with(|world| world.network.links[client - 1].break_subscription()),
        Fault::Close | Fault::ShutDown => {
            let (client, process) = (clients[client - 1].clone(), client);
            with(|world| world.clients[process - 1].closed = true);
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
                let names = world.names.len() as u64;
                let name = usize::try_from(random.below(names)).unwrap_or(0);
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
                world.disturb_all();
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
    let now = clock::now();
    executor::resume_all();
    with(|world| {
        world.network.weather = Weather::default();
        world.network.down_until = now;
        world.network.server.heal();
        for link in &mut world.network.links {
            link.cut_until = now;
        }
        world.is_healed = true;
        world.disturb_all();
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
        if !world.is_healed && !world.is_calm {
            return None;
        }
        for (number, call) in &world.calls {
            let name = &world.names[call.name];
            let client = &world.clients[call.client - 1];
            let is_disturbed = now < client.disturbed + retry + io_timeout + most;
            let is_held = world.guards.iter().flatten().any(|it| it.name == call.name)
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
fn direct(mut random: Random, clients: Vec<Client>) {
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
        happen(fault, &mut random, &clients);
        if random.permille(300) {
            with(|world| world.network.older = Some(world.network.server.memory.copy()));
        }
    }
    let begin = clock::now();
    while with(|world| world.running > 0) && clock::elapsed(begin) < horizon {
        executor::sleep(Duration::from_millis(50));
    }
    heal();
    let (healed, lease) = (clock::now(), with(|world| world.lease));
    let patience = lease * 10 + Duration::from_secs(60);
    while with(|world| world.running > 0) {
        executor::sleep(Duration::from_millis(50));
        if clock::elapsed(healed) > patience {
            broken("a call does not come to an end");
        }
    }
    // Clean-ups are repeated until their lease is over.
    let set_back = with(|world| world.network.server.set_back());
    executor::sleep(lease + set_back + Duration::from_secs(3));
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
    };
    let End { threads, steps, lasted } =
        executor::run(&settings, LONGEST, || begin(random, tells, latency), check_step)?;
    if threads > 0 {
        return Err(format!("{threads} threads are left"));
    }
    let tally = with(|world| world.tally);
    drop(WORLD.with(|world| world.borrow_mut().take()));
    Ok(Tally { steps, simulated: lasted, ..tally })
}

/// Creates the world, and starts its threads.
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
    let options = LockOptions { lease, ..LockOptions::default() };
    let label = Some("simulated".to_owned());
    let mut config =
        Config { label, options: Arc::new(options), deadlock_after: None, ..Config::default() };
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
    let names = (0..names).map(|number| NameState::new(number, &mut random)).collect();
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
    let world = World {
        network,
        tells,
        history: String::new(),
        clients: Vec::new(),
        names,
        guards: Vec::new(),
        calls: BTreeMap::new(),
        last_call: 0,
        releasing: Vec::new(),
        running: 0,
        excuses: Vec::new(),
        lease,
        io_timeout: config.io_timeout(lease),
        retry_window: config.retry_window,
        backoff_max: config.backoff.1,
        is_calm,
        is_durable,
        acks: config.durability.timeout(),
        is_healed: false,
        is_over: false,
        tally: Tally::default(),
    };
    WORLD.with(|it| *it.borrow_mut() = Some(world));
    executor::spawn(Some(DIRECTOR), move || {
        let mut clients = Vec::new();
        for number in 1..=count {
            let store = Arc::new(SimulatedStore { client: number });
            let events = Events::default();
            // Its threads belong to its process.
            let opened = executor::of_process(number, || {
                Shared::start(config.clone(), &events, store, Pools::default())
            });
            let client = Client::new(opened.expect("a client"));
            let id = client.id().to_owned();
            with(|world| {
                let disturbed = clock::now();
                let state = ClientState { id, closed: false, stopped: Duration::ZERO, disturbed };
                world.clients.push(state);
            });
            clients.push(client);
        }
        for (at, client) in clients.iter().enumerate() {
            for _ in 0..=random.below(4) {
                let (client, random, process) = (client.clone(), Random(random.next()), at + 1);
                let calls = 1 + random.clone().below(12);
                with(|world| world.running += 1);
                executor::spawn(Some(process), move || caller(&client, process, random, calls));
            }
        }
        tick();
        direct(random, clients);
    });
}
