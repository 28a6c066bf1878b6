//! A simulation of the lower layers: `net/`, `store/servers` and `store/background` in virtual
//! time, over byte streams, with a small server that speaks RESP. See `tests/README.md`.

mod client;
mod faults;
mod judge;
mod network;
mod server;
mod world;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::base::event_thread::Events;
use crate::base::sync::executor::{self, End, Process, Random, Settings};
use crate::config::durability::Durability;
use crate::config::{Config, Mechanism};
use crate::net::sentinels;
use crate::net::server::ServerFactory;
use crate::simulation::wire::client::Caller;
use crate::simulation::wire::judge::check_pools;
use crate::simulation::wire::network::{OUTSIDE, Weather, connect};
use crate::simulation::wire::server::{Role, Server};
use crate::simulation::wire::world::{Tally, World, now, step, with};
use crate::simulation::{
    Broken, FAILURES_MAX, IS_WORLD, PANIC, note_panics, number, on_all_cores, show,
};
use crate::store::hold_id::new_client_id;
use crate::store::keys::Keys;
use crate::store::servers::{Servers, parse_seeds};

/// How many seeds are tried by default.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 2000 };

/// Longer than any world.
const LONGEST: Duration = Duration::from_secs(600);

/// A subscription that has fallen silent is replaced, and messages arrive again, this long after
/// the end of all faults.
const SILENCE: Duration = Duration::from_secs(20);

/// The deployment of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deployment {
    Cluster,
    One,
    Sentinels,
}

fn address(number: usize) -> SocketAddr {
    let last = u8::try_from(number + 1).expect("few servers");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 6379)
}

/// Creates the world of a seed, and starts its threads.
fn begin(mut random: Random, tells: bool) {
    let deployment = random.pick(&[Deployment::One, Deployment::Cluster, Deployment::Sentinels]);
    let is_calm = random.permille(200);
    let is_stormy = !is_calm && random.permille(500);
    let rate = |random: &mut Random| {
        let most = random.pick(&[1, 4, 16, 64]);
        if is_stormy { random.below(most) } else { 0 }
    };
    let latency = Duration::from_micros(random.pick(&[20, 100, 500, 2000]));
    let weather = Weather {
        latency,
        jitter: random.time(latency * 4),
        split: random.pick(&[0, 50, 500]),
        slow: rate(&mut random),
        broken: rate(&mut random),
        silent: rate(&mut random) / 4,
    };
    let servers: Vec<_> = match deployment {
        Deployment::Cluster => vec![Role::Master, Role::Master, Role::Master, Role::Replica],
        Deployment::One => vec![Role::Master],
        Deployment::Sentinels => {
            let sentinel = Role::Sentinel(0);
            vec![Role::Master, Role::Replica, sentinel, sentinel, sentinel]
        }
    };
    let io_timeout = Duration::from_millis(random.pick(&[200, 500, 1000]));
    let is_durable = random.permille(250);
    let mut config = Config {
        pool_size: random.pick(&[1, 1, 2, 4]),
        connect_timeout: Duration::from_millis(random.pick(&[100, 300, 1000])),
        io_timeout: Some(io_timeout),
        idle_timeout: None,
        max_lifetime: None,
        spin: Duration::ZERO,
        ..Config::default()
    };
    if is_durable {
        config.durability = Durability::Replicas { acks: 1, timeout: io_timeout / 3 };
    }
    if random.permille(200) {
        config.max_lifetime = Some(Duration::from_secs(1 + random.below(10)));
    }
    for mechanism in [Mechanism::PostedRelease, Mechanism::SharedWrites, Mechanism::ShardedWakeups]
    {
        if random.permille(200) {
            config.without.push(mechanism);
        }
    }
    let has_login = random.permille(500);
    let count = servers.len();
    let mut world = World::new(Random(random.next()), tells);
    world.weather = weather;
    world.servers = servers
        .into_iter()
        .enumerate()
        .map(|(number, role)| Server::new(address(number), role))
        .collect();
    if deployment == Deployment::Cluster {
        world.owners = (0..6).map(|part| part / 2).collect();
    }
    world.send_buffer = random.pick(&[None, None, Some(4096)]);
    world.replica_lag = if is_calm { io_timeout / 100 } else { io_timeout / 2 };
    world.replica_fails = if is_calm { 0 } else { random.pick(&[0, 100]) };
    world.pool_size = usize::try_from(config.pool_size).expect("it is small");
    world.connect_timeout = config.connect_timeout;
    world.is_calm = is_calm;
    world.slack = Duration::from_millis(20);
    let names = random.pick(&[1, 3, 10]);
    world.names = names;
    let clients = random.pick(&[1, 1, 2, 3]);
    let threads = random.pick(&[1, 2, 4, 8]);
    world.callers = clients * threads;
    world.say(|| format!("{deployment:?}, login {has_login}, {weather:?}, {config:?}"));
    world::begin(world);
    executor::use_network(connect);
    for process in 1..=clients {
        let config = &config;
        let (store, factory) =
            executor::of_process(process, || open(deployment, count, has_login, config));
        let id = new_client_id(&format!("p{process}")).expect("random numbers");
        with(|world| world.client(process).id = id);
        let lease = Duration::from_secs(5);
        let caller = Caller { process, store, lease, io_timeout, names };
        for _ in 0..threads {
            let (caller, random, calls) = (caller.clone(), Random(random.next()), random.below(40));
            executor::spawn(Some(process), move || caller.run(random, calls));
        }
        let (jobs, listener) = (caller.clone(), caller.clone());
        let (of_jobs, of_listener) = (Random(random.next()), Random(random.next()));
        executor::spawn(Some(process), move || jobs.renew(of_jobs));
        executor::spawn(Some(process), move || listener.listen(of_listener));
        let random = Random(random.next());
        executor::spawn(Some(process), move || conclude(&caller, random, &factory));
    }
    let faults = if is_calm && random.permille(500) { 0 } else { random.below(12) };
    executor::spawn(Some(OUTSIDE), move || {
        faults::direct(Random(random.next()), faults);
        finish(clients);
    });
}

/// Opens the store of a client.
fn open(
    deployment: Deployment,
    servers: usize,
    has_login: bool,
    config: &Config,
) -> (Servers, ServerFactory) {
    let factory = ServerFactory::new(config, &Events::default()).expect("a thread");
    let login = if has_login { ":sesame@" } else { "" };
    let url = |number: usize| format!("redis://{login}{}/", address(number));
    let store = match deployment {
        Deployment::Cluster => {
            let seeds = parse_seeds((0..servers).map(url), &factory).expect("good URLs");
            Servers::cluster(seeds, &factory)
        }
        Deployment::One => {
            let endpoint = factory.endpoint(&url(0)).expect("a good URL");
            Servers::one(factory.server(endpoint), &factory)
        }
        Deployment::Sentinels => {
            let urls: Vec<_> = (2..servers).map(url).collect();
            let sentinels = sentinels::parse(urls, &factory).expect("good URLs");
            let route = sentinels::route(&sentinels, "shop", &factory);
            Servers::one(factory.server_along(route, sentinels[0].clone()), &factory)
        }
    };
    (store, factory)
}

/// Ends a client once everything is repaired, after checking that it works, receives messages, and
/// has lost no connection.
fn conclude(caller: &Caller, random: Random, factory: &ServerFactory) {
    let healed = loop {
        executor::sleep(Duration::from_millis(100));
        let healed = with(|world| world.healed.filter(|_| world.callers == 0));
        if let Some(healed) = healed {
            break healed;
        }
    };
    with(|world| world.callers += 1);
    caller.work(random);
    executor::sleep((healed + SILENCE).saturating_sub(now()));
    let process = caller.process;
    let key = Keys::new("lock:").lock("last").into_owned();
    with(|world| {
        let id = world.client(process).id.clone();
        let master =
            (0..world.servers.len()).find(|server| world.servers[*server].role == Role::Master);
        let home = if world.is_cluster() { Some(world.owners[world.part(&key)]) } else { master };
        world.publish(home.expect("there is a master"), &id, "", &key);
    });
    executor::sleep(Duration::from_millis(500));
    with(|world| {
        let client = world.client(process);
        let (heard, is_complete) = (client.heard.contains_key("last"), client.is_complete);
        if !heard || !is_complete {
            world.break_promise(format!("p{process} hears nothing: {heard} {is_complete}"));
        }
        if world.posted > 0 {
            let posted = world.posted;
            world.break_promise(format!("{posted} posted requests have no outcome"));
        }
        world.client(process).held.clear();
        world.concluded += 1;
    });
    let masters = with(|world| {
        world.servers.iter().filter(|server| !matches!(server.role, Role::Sentinel(_))).count()
    });
    executor::sleep(Duration::from_secs(3));
    check_pools(process, factory.pools().state(), masters);
}

/// Ends all clients.
fn finish(clients: Process) {
    while with(|world| world.concluded < clients) {
        executor::sleep(Duration::from_millis(100));
    }
    executor::sleep(Duration::from_secs(4));
    let interrupters = with(|world| {
        world.is_over = true;
        let clients = world.clients.values_mut();
        clients.filter_map(|client| client.interrupter.take()).collect::<Vec<_>>()
    });
    for interrupter in interrupters {
        interrupter.interrupt();
    }
    for process in 1..=clients {
        executor::signal_traffic(process);
    }
}

/// Runs the world of a seed on this thread.
fn run_here(seed: u64, tells: bool) -> Result<Tally, Broken> {
    note_panics();
    let mut random = Random(seed);
    let settings = Settings {
        seed: random.next(),
        preemption: random.pick(&[0, 0, 50, 300]),
        latency: Duration::from_micros(random.pick(&[1, 50, 500])),
        course: None,
    };
    IS_WORLD.set(true);
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        executor::run(&settings, LONGEST, || begin(random, tells), step)
    }));
    IS_WORLD.set(false);
    let panic = PANIC.take();
    let left = if ran.is_ok() { connections_left() } else { 0 };
    let (tally, broken, history) = world::end();
    let why = match (broken, ran) {
        (Some(why), _) => why,
        (None, Err(_)) => panic.unwrap_or_default(),
        (None, Ok(Err(why))) => format!("{why}: {}", panic.unwrap_or_default()),
        (None, Ok(Ok(End { threads, .. }))) if threads > 0 => format!("{threads} threads are left"),
        (None, Ok(Ok(_))) if left > 0 => format!("{left} connections are left"),
        (None, Ok(Ok(End { steps, lasted, .. }))) => {
            return Ok(Tally { steps, simulated: lasted, ..tally });
        }
    };
    Err(Broken { why, history })
}

/// Returns how many connections are still open when all clients are gone. A pool's thread, which
/// runs in real time, may still be closing some.
fn connections_left() -> usize {
    let begun = Instant::now();
    loop {
        let left = with(World::open_links);
        if left == 0 || begun.elapsed() > Duration::from_secs(10) {
            return left;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the worlds of seeds until one fails, on a thread of its own.
fn run_worlds(
    seeds: impl Iterator<Item = u64> + Send + 'static,
    tells: bool,
) -> (Tally, Option<(u64, Broken)>) {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || {
        let mut tally = Tally::default();
        let mut failed = None;
        for seed in seeds {
            match run_here(seed, tells) {
                Ok(one) => tally.add(&one),
                Err(broken) => {
                    failed = Some((seed, broken));
                    break;
                }
            }
        }
        sender.send((tally, failed)).expect("the test waits");
        // Its coroutines, and perhaps a panic, are left behind.
        loop {
            thread::park();
        }
    });
    result.recv().expect("an outcome")
}

/// Shows the history of a world that broke a promise, and fails.
fn fail(seed: u64) -> ! {
    let (_, failed) = run_worlds(seed..=seed, true);
    let Some((_, broken)) = failed else {
        panic!("seed {seed} has failed, but does not when it is run again")
    };
    let variables = format!("LEASEHOLD_SEED={seed}");
    let test = "connections_keep_their_promises_in_simulated_networks";
    show(&format!("seed {seed}"), &broken, &variables, None, test)
}

#[test]
fn connections_keep_their_promises_in_simulated_networks() {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        if run_worlds(seed..=seed, false).1.is_some() {
            fail(seed);
        }
        return;
    }
    let (first, seeds) = (number("LEASEHOLD_FIRST_SEED").unwrap_or(0), number("LEASEHOLD_SEEDS"));
    let start = Instant::now();
    // They take longer than the worlds without connections.
    let end = first + seeds.map_or(SEEDS, |seeds| seeds.div_ceil(10));
    let each = on_all_cores(|core, cores| {
        let mut tally = Tally::default();
        let mut failed = Vec::new();
        let mut next = first + core as u64;
        while failed.len() < FAILURES_MAX {
            let (one, broken) = run_worlds((next..end).step_by(cores), false);
            tally.add(&one);
            let Some((seed, Broken { why, .. })) = broken else { break };
            println!("seed {seed}: {why}");
            failed.push(seed);
            next = seed + cores as u64;
        }
        (tally, failed)
    });
    let took = start.elapsed();
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    for (one, of_core) in each {
        tally.add(&one);
        failed.extend(of_core);
    }
    if let Some(seed) = failed.into_iter().min() {
        fail(seed);
    }
    println!("{tally:?} in {took:?}");
}

/// A request that was posted behind others in the queue, or together with a thread's request, got
/// its outcome only when a thread was done with the connection.
#[test]
fn posted_requests_have_their_outcomes_in_time() {
    for seed in [10_005, 15_480] {
        if run_worlds(seed..=seed, false).1.is_some() {
            fail(seed);
        }
    }
}

/// A job used the connection of a call whose thread waited for longer than the job's deadline.
#[test]
fn jobs_over_the_connections_of_calls_end_in_their_time() {
    for seed in [10_427, 15_309] {
        if run_worlds(seed..=seed, false).1.is_some() {
            fail(seed);
        }
    }
}
