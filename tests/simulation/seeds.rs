//! Worlds made from seeds: their parts, the tasks of their threads, and their faults.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock;
use crate::base::sync::executor::{self, Process, Random, Settings};
use crate::client::Client;
use crate::config::Config;
use crate::config::durability::Durability;
use crate::guards::watches::{HoldEnd, Lost};
use crate::simulation::calls::{Patience, Side, acquire, release};
use crate::simulation::deadlocks::{self, Deadlocks};
use crate::simulation::faults::{Accident, Fault, HEALED_AFTER, happen};
use crate::simulation::judge::observe;
use crate::simulation::network::{Link, Network, Weather};
use crate::simulation::questions::ask_sometimes;
use crate::simulation::server::{Replica, Server, ServerClock};
use crate::simulation::shape::Shape;
use crate::simulation::tickets::leave_to_any;
use crate::simulation::uses::{downgrade, use_sometimes};
use crate::simulation::world::{
    DIRECTOR, NAMES, NameState, Tally, Usage, World, broken, conduct, config_of, finish, populate,
    say, start, with,
};
use crate::store::memory::memory_server::MemoryServer;

/// Runs the world of a seed, cut down to this shape. Fails, or panics, if it breaks a promise.
pub(super) fn run(seed: u64, shape: Shape, tells: bool) -> Result<Tally, String> {
    let mut random = Random(seed);
    let latency = Duration::from_micros(random.pick(&[10, 100, 100, 1000, 10_000]));
    let settings = Settings {
        seed: random.next(),
        preemption: random.pick(&[0, 50, 300]),
        latency: Duration::from_micros(random.pick(&[1, 50, 1000])),
        course: None,
    };
    let has_quorum = seed % 8 == 7 && (seed / 64).is_multiple_of(2);
    let servers = if has_quorum { [3, 3, 4, 5][(seed / 8 % 4) as usize] } else { 1 };
    // Later additions draw from a generator of their own, so that the worlds of earlier seeds stay
    // the same.
    let others = Random(!seed);
    conduct(&settings, || begin(random, others, shape, tells, latency, servers))
}

fn weather(random: &mut Random, is_stormy: bool) -> Weather {
    let rate = |random: &mut Random| {
        let most = random.pick(&[1, 4, 16, 64, 128]);
        if is_stormy { random.below(most) } else { 0 }
    };
    Weather {
        broken: rate(random),
        late: rate(random),
        twice: rate(random),
        message_lost: rate(random) * 3,
        slow: rate(random) * 2,
    }
}

/// Creates the world of a seed, and starts its threads.
fn begin(
    mut random: Random,
    mut others: Random,
    shape: Shape,
    tells: bool,
    latency: Duration,
    servers: usize,
) {
    // A world is not calm if its server is so far away that few round trips fit into a timeout.
    let is_calm = random.permille(300) && latency < Duration::from_millis(10);
    let is_stormy = !is_calm && random.permille(600);
    let mut weather = weather(&mut random, is_stormy);
    if !shape.weather {
        weather = Weather::default();
    }
    let lease = Duration::from_millis(random.pick(&[300, 1000, 3000, 10_000]));
    let mut config = config_of(lease);
    let own_terms = others.pick(&[0, 0, 200, 600]);
    let shortest_lease = if own_terms > 0 { lease / 2 } else { lease };
    let limits = own_terms > 0 && others.permille(500);
    let max_hold = limits.then(|| lease * others.pick(&[1, 2, 5]) / 2);
    vary(&mut config, lease, &mut others);
    // Leases that are not renewed run out while other calls wait.
    if !is_calm
        && random.permille(150)
        && let Some(options) = Arc::get_mut(&mut config.options)
    {
        options.renew = false;
    }
    // With longer pauses, more depends on messages.
    config.backoff = match random.below(10) {
        0..3 => (Duration::from_millis(20), Duration::from_secs(2)),
        3..5 => (Duration::from_millis(400), Duration::from_secs(2)),
        _ => config.backoff,
    };
    let is_quorum = servers > 1;
    let mut later = Random(others.clone().next());
    let is_replicated = random.permille(300) && !is_quorum || is_quorum && later.permille(600);
    let is_durable =
        is_replicated && if is_quorum { later.permille(750) } else { random.permille(600) };
    let timeout = (lease / 12).min(Duration::from_millis(200));
    // In a calm world the replica is never late.
    let lag = random.time(if is_calm { timeout / 8 } else { timeout * 2 });
    if is_durable {
        config.durability = Durability::Replicas { acks: 1, timeout };
    }
    let count = random.pick(&[1, 2, 2, 2, 3, 3, 4, 4, 6, 9]).min(shape.clients);
    let names = random.pick(&[1, 1, 2, 3]).min(shape.names);
    let mut names: Vec<_> =
        (0..names).map(|number| NameState::any(number, shortest_lease, &mut random)).collect();
    let deadlocks = random.permille(200) && !is_quorum;
    let deadlocks = deadlocks.then(|| Deadlocks::new(&mut config, &mut random));
    // Clients find no circles through other kinds.
    let are_locks = deadlocks.is_some() && later.permille(600);
    if are_locks || is_quorum {
        for name in &mut names {
            name.usage = Usage::Lock;
        }
    }
    executor::observe(observe);
    let mut servers: Vec<_> = (0..servers).map(|_| any_server(is_quorum, &mut random)).collect();
    if is_replicated {
        add_replicas(&mut servers, lag);
    }
    let links = (0..count).map(|_| Link::new(&servers, &config)).collect();
    let wrong_clocks = is_quorum && random.permille(500);
    let clocks_behind = if wrong_clocks { set_clocks(count, &mut random) } else { Duration::ZERO };
    let chance = Random(random.next());
    let ordered = random.permille(500) || is_quorum;
    let has_slow_replies = weather.slow > 0;
    let mut network =
        Network::new(chance, weather, latency, shortest_lease, ordered, servers, links);
    network.apart = random.permille(300);
    let is_reliable = is_calm;
    let is_mild = !network.weather.is_bad();
    let leaves = random.pick(&[0, 0, 100, 400]);
    let sets = random.pick(&[0, 0, 100, 300]);
    let world = World {
        deadlocks,
        leaves,
        sets,
        asks: others.pick(&[0, 0, 100, 300]),
        own_terms,
        shortest_lease,
        max_hold,
        later,
        random: others,
        is_calm,
        is_durable,
        has_slow_replies,
        is_reliable,
        is_mild,
        clocks_behind,
        ..World::new(network, names, &config, tells)
    };
    let settings = settings_of(&world, &config);
    populate(world, config, move || {
        say(DIRECTOR, || settings.clone());
        for process in 1..=count {
            for _ in 0..(1 + random.below(4)).min(shape.threads) {
                let random = Random(random.next());
                let calls = (1 + random.clone().below(12)).min(shape.calls);
                let caller = if with(|world| world.deadlocks.is_some()) {
                    deadlocks::caller
                } else {
                    caller
                };
                start(process, move |client, process| caller(client, process, random, calls));
            }
        }
        direct(random, shape.faults);
    });
}

/// Gives each client of a quorum its own clock for the tokens that it proposes. Returns how far a
/// clock is behind at most.
fn set_clocks(clients: usize, random: &mut Random) -> Duration {
    let mut behind = Duration::ZERO;
    for process in 1..=clients {
        let ahead: i64 = random.pick(&[0, 1_000_000_000, -1_000_000, -1_000_000_000_000]);
        executor::set_ahead(process, ahead);
        behind = behind.max(Duration::from_nanos(ahead.unsigned_abs()));
    }
    behind
}

/// Gives each server a replica that lags by this much.
fn add_replicas(servers: &mut [Server], lag: Duration) {
    for server in servers {
        server.replica = Some(Replica::new(&server.memory, lag, clock::now()));
    }
}

fn any_server(is_quorum: bool, random: &mut Random) -> Server {
    let ahead = random.pick(&[0, 0, 1_000_000_000, -1_000_000_000_000]);
    let rate = random.pick(&[0, 0, 10, -10, 9_000, -9_000]);
    let block = if is_quorum { random.pick(&[u32::MAX, u32::MAX, 1, 3]) } else { u32::MAX };
    let server = Server::new(MemoryServer::new(), ServerClock::new(ahead, rate));
    Server { block, ..server }
}

/// Varies settings that used to be the same in all worlds.
fn vary(config: &mut Config, lease: Duration, others: &mut Random) {
    if let Some(options) = Arc::get_mut(&mut config.options) {
        options.tenure = others.pick(&[None, None, Some(Duration::ZERO), Some(lease / 3)]);
    }
    config.retry_window = match others.below(6) {
        0 => Duration::from_secs(3),
        1 => Duration::from_secs(5),
        _ => config.retry_window,
    };
    config.warn_held = others.pick(&[None, Some(lease / 8)]);
}

/// Returns the settings of a world, for the head of its history.
fn settings_of(world: &World, config: &Config) -> String {
    let Network { servers, weather, latency, ordered, apart, .. } = &world.network;
    let mut text = format!(
        "WORLD: {} clients, {} servers {latency:?} away, lease {:?}, renew {}, backoff {:?}, \
         {:?}, {weather:?}",
        world.network.links.len(),
        servers.len(),
        world.lease,
        config.options.renew,
        config.backoff,
        config.durability,
    );
    let mut flag = |is_set: bool, what: &str| {
        if is_set {
            text.push_str(", ");
            text.push_str(what);
        }
    };
    flag(world.is_calm, "calm");
    flag(*ordered, "requests of a client arrive in order");
    flag(*apart, "each name on its own server");
    flag(servers[0].replica.is_some(), "a replica");
    flag(world.deadlocks.is_some(), "threads that wait while they hold locks");
    flag(world.leaves > 0, "tickets");
    flag(world.sets > 0, "sets");
    flag(world.asks > 0, "questions");
    flag(world.own_terms > 0, "calls with their own terms");
    for name in &world.names {
        let kept = name.keep.map(|keep| format!(", kept for {keep:?}")).unwrap_or_default();
        write!(text, "; {:?} is a {:?}{kept}", name.name, name.usage).unwrap_or_default();
    }
    text
}

impl NameState {
    fn any(number: usize, lease: Duration, random: &mut Random) -> Self {
        let usage = match random.below(6) {
            0..4 => Usage::Lock,
            4 => Usage::ReadWrite,
            _ => Usage::Semaphore(random.pick(&[1, 2, 3])),
        };
        let keep = random.permille(300).then_some(lease);
        Self { usage, keep, ..Self::new(NAMES[number]) }
    }
}

/// Returns a set of locks that includes the first one, in worlds where threads lock several at
/// once.
pub(super) fn any_set(random: &mut Random) -> Option<(usize, Side)> {
    let sets = with(|world| world.sets);
    if !random.permille(sets) {
        return None;
    }
    let mut locks = with(|world| {
        let names = world.names.iter().enumerate();
        names.filter(|(_, name)| name.usage == Usage::Lock).map(|(at, _)| at).collect::<Vec<_>>()
    });
    if locks.len() > 2 && random.permille(500) {
        locks.swap_remove(usize::try_from(random.below(3)).unwrap_or(0));
    }
    let first = locks.iter().min().copied().filter(|_| locks.len() > 1)?;
    Some((first, Side::Set(locks.iter().map(|at| 1 << at).sum())))
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
        let (name, side) = any_set(&mut random).unwrap_or((name, side));
        let patience = match random.below(10) {
            0..3 => Patience::None,
            3..6 => Patience::For(random.time(Duration::from_secs(1))),
            _ => Patience::Endless,
        };
        ask_sometimes(client, process);
        let Some(place) = acquire(client, process, name, side, patience) else { continue };
        ask_sometimes(client, process);
        use_sometimes(process, place);
        let time = match random.below(20) {
            0..8 => Duration::ZERO,
            8..15 => random.time(Duration::from_millis(20)),
            15..19 => random.time(lease / 2),
            _ => random.time(lease * 2),
        };
        if random.permille(700) {
            executor::sleep(time);
        } else {
            watch(place, name, time);
        }
        let place = if with(|world| world.is_downgraded(name, side)) {
            let Some(reader) = downgrade(process, place) else { continue };
            executor::sleep(time);
            reader
        } else {
            place
        };
        if side == Side::Alone && random.permille(with(|world| world.leaves_of(name, place))) {
            leave_to_any(process, place, &mut random);
        } else {
            release(process, place, random.permille(700));
        }
    }
}

/// Keeps a hold for a while, or until it notices a loss.
fn watch(place: usize, name: usize, time: Duration) {
    let end = clock::now() + time;
    loop {
        let left = end.saturating_duration_since(clock::now());
        if left.is_zero() || !with(|world| world.trusts(place, name)) {
            return;
        }
        let watch = with(|world| {
            let held = world.guards.get(place).and_then(Option::as_ref)?;
            Some((held.lost.clone()?, held.guard.remaining()))
        });
        match watch {
            // Keeps it until just when the lease ends, if nothing renews it.
            Some((lost, lease)) if !lease.is_zero() => {
                wait_for_loss(place, &lost, left.min(lease));
            }
            // A shutdown may have ended the hold, and not know yet how its release goes.
            _ => executor::sleep(left.min(Duration::from_millis(1))),
        }
    }
}

/// Waits for a loss, for at most this long, and checks what the watch reports.
fn wait_for_loss(place: usize, lost: &Lost, time: Duration) {
    let begun = clock::now();
    let end = lost.wait_timeout(time);
    let took = clock::elapsed(begun);
    let is_lost = lost.is_lost();
    let is_right = match end {
        None => took >= time && !is_lost,
        Some(HoldEnd::Lost) => is_lost,
        // A shutdown has released it, because the guard still exists.
        Some(HoldEnd::Released) => with(|world| {
            let held = world.guards[place].as_ref();
            !is_lost && held.is_none_or(|held| world.clients[held.client - 1].shut_down.is_some())
        }),
    };
    if !is_right {
        broken(&format!("a watch says {end:?} after {took:?} of {time:?}: {lost:?}"));
    }
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

impl Accident {
    fn any(fault: Fault, random: &mut Random) -> Self {
        let (lease, clients, names) =
            with(|world| (world.lease, world.clients.len(), world.names.len()));
        let servers = with(|world| world.network.servers.len());
        let time = random.time(lease * 2);
        let mut below = |end: usize| usize::try_from(random.below(end as u64)).unwrap_or(0);
        let client = below(clients) + 1;
        let name = if let Fault::HoldEnded = fault { below(names) } else { 0 };
        let server = if servers > 1 { below(servers) } else { 0 };
        Self { fault, client, time, name, server }
    }
}

/// Runs a world from its beginning to its end.
fn direct(mut random: Random, most: u64) {
    let calm = with(|world| world.is_calm);
    let faults = if calm { 0 } else { random.below(6).min(most) };
    let horizon = Duration::from_secs(3);
    // The effect of one client on the others shows only where nothing else goes wrong.
    let only = (with(|world| world.is_mild) && random.permille(300)).then(|| {
        1 + usize::try_from(random.below(with(|world| world.clients.len()) as u64)).unwrap_or(0)
    });
    for _ in 0..faults {
        executor::sleep(random.time(horizon / 2));
        let (is_replicated, is_quorum) = with(|world| {
            let network = &world.network;
            (network.servers[0].replica.is_some(), network.is_quorum())
        });
        let fault = match random.pick(&FAULTS) {
            _ if only.is_some() => {
                random.pick(&[Fault::Stop, Fault::Stop, Fault::CutOff, Fault::Deaf])
            }
            _ if is_replicated && random.permille(300) => Fault::FailsOver,
            Fault::ListenerLost if random.permille(500) => Fault::Deaf,
            fault @ (Fault::FailsOver | Fault::ReplicaIsCutOff) if is_replicated => fault,
            Fault::FailsOver | Fault::ReplicaIsCutOff if is_quorum => Fault::ServerIsEmpty,
            Fault::FailsOver | Fault::ReplicaIsCutOff => Fault::ServerRestarts,
            fault => fault,
        };
        let accident = Accident::any(fault, &mut random);
        happen(Accident { client: only.unwrap_or(accident.client), ..accident }, &mut random);
        if random.permille(300) {
            with(|world| {
                for server in &mut world.network.servers {
                    server.older = Some(server.memory.copy());
                }
            });
        }
    }
    finish(HEALED_AFTER);
}
