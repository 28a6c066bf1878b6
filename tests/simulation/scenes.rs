//! Small worlds in which nothing is left to chance.

use std::time::Duration;

use crate::base::clock;
use crate::base::sync::executor::{self, Choice, Course, Deviation, Process, Random, Settings};
use crate::simulation::calls::{Patience, Side, acquire, release};
use crate::simulation::faults::{Accident, Fault};
use crate::simulation::judge::observe;
use crate::simulation::network::{Link, Network, Weather};
use crate::simulation::server::{Server, ServerClock};
use crate::simulation::tickets::pass;
use crate::simulation::world::{
    NAMES, NameState, Tally, Usage, World, conduct, config_of, finish, micros, populate, start,
    with,
};
use crate::store::memory::memory_server::MemoryServer;

/// The task of a thread of a small world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errand {
    /// It begins then.
    pub(super) at: Duration,
    pub(super) side: Side,
    pub(super) patience: Patience,
    /// How long it keeps the hold.
    pub(super) holds: Duration,
    /// Whether it drops or unlocks the hold.
    pub(super) drops: bool,
    /// The client that then adopts the hold, and keeps it as long.
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
    /// The number of names, and whether each is on its own server, as in a cluster.
    pub(super) names: usize,
    pub(super) apart: bool,
    /// The number of clients.
    pub(super) clients: usize,
    /// Each thread with its client and its task.
    pub(super) threads: Vec<(Process, Vec<Errand>)>,
    pub(super) accidents: Vec<Accident>,
    pub(super) quorum: Option<SmallQuorum>,
    /// The greatest number of deviations.
    pub(super) most: usize,
}

/// The servers of a quorum in a small world.
#[derive(Clone, Debug)]
pub(super) struct SmallQuorum {
    /// How far the counter of each is ahead of the clocks, and the size of its blocks of tokens.
    counters: Vec<(Duration, u32)>,
    /// The clients whose clocks are behind.
    behind: Vec<Process>,
    /// The extra travel time of requests from a client to a server.
    detours: Vec<(Process, usize, Duration)>,
}

/// How far a client's clock may be behind in a small world.
const BEHIND: Duration = Duration::from_secs(1);

impl SmallQuorum {
    /// Sets up the servers of a quorum.
    fn set_up(&self) {
        let now = clock::unix_time();
        for process in &self.behind {
            executor::set_ahead(*process, -i64::try_from(BEHIND.as_nanos()).unwrap_or(0));
        }
        with(|world| {
            world.clocks_behind = if self.behind.is_empty() { Duration::ZERO } else { BEHIND };
            let Network { servers, links, .. } = &mut world.network;
            for (server, (ahead, block)) in servers.iter_mut().zip(&self.counters) {
                server.block = *block;
                if !ahead.is_zero() {
                    server.memory.set_last_token(micros(now + *ahead));
                }
            }
            for (client, server, detour) in &self.detours {
                links[client - 1].wires[*server].detour = *detour;
            }
        });
    }
}

/// The lease in small worlds.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// Runs a small world that takes the usual course, with these exceptions.
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
        // A thread that is not woken is late.
        config.backoff = (Duration::from_millis(300), Duration::from_millis(500));
        let count = scene.quorum.as_ref().map_or(1, |quorum| quorum.counters.len());
        let server = |_| Server::new(MemoryServer::new(), ServerClock::new(0, 0));
        let servers: Vec<_> = (0..count).map(server).collect();
        let links = (0..scene.clients).map(|_| Link::new(&servers, &config)).collect();
        let (chance, weather) = (Random::default(), Weather::default());
        let ordered = scene.ordered;
        let mut network = Network::new(chance, weather, latency, LEASE, ordered, servers, links);
        (network.jitter, network.apart) = (Duration::ZERO, scene.apart);
        let name =
            |name| NameState { usage: scene.usage, keep: scene.keep, ..NameState::new(name) };
        let names = NAMES[..scene.names].iter().map(|it| name(it)).collect();
        // Calls for several locks may keep one another waiting where no server has all of them.
        let harmless = |least| !scene.apart && worst.is_none_or(|worst| worst <= least);
        let (is_calm, is_reliable) = (harmless(Choice::Arrival), harmless(Choice::Message));
        executor::observe(observe);
        let accidents = scene.accidents.clone();
        let world = World::new(network, names, &config, tells);
        let world = World { accidents, is_calm, is_reliable, ..world };
        populate(world, config, move || {
            executor::sleep(Duration::from_millis(20));
            let begin = clock::now();
            scene.quorum.iter().for_each(SmallQuorum::set_up);
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
            finish(LEASE * 8);
        });
    })
}

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A thread that asks for a hold at a certain time, and keeps it for a while.
fn errand(at: u64, side: Side, holds: u64) -> Errand {
    let (at, holds) = (ms(at), ms(holds));
    let patience = Patience::Endless;
    Errand { at, side, patience, holds, drops: true, passes_to: None, name: 0 }
}

/// All deviations that can happen to these clients.
fn accidents(clients: &[Process]) -> Vec<Accident> {
    let of_client = |client: Process| {
        [
            (Fault::Stop, LEASE * 3 / 2),
            (Fault::Stop, ms(300)),
            (Fault::Die, ms(0)),
            (Fault::ListenerLost, ms(0)),
            (Fault::Close, ms(0)),
            (Fault::ShutDown, LEASE),
        ]
        .map(|(fault, time)| Accident { fault, client, time, name: 0, server: 0 })
    };
    let of_server = [(Fault::ServerRestarts, ms(5)), (Fault::HoldEnded, ms(0))]
        .map(|(fault, time)| Accident { fault, client: 1, time, name: 0, server: 0 });
    clients.iter().copied().flat_map(of_client).chain(of_server).collect()
}

pub(super) fn scenes() -> Vec<(&'static str, Scene)> {
    use Side::{Alone, Reader};
    let lock = Scene {
        usage: Usage::Lock,
        keep: None,
        ordered: true,
        names: 1,
        apart: false,
        clients: 2,
        threads: vec![
            (1, vec![errand(0, Alone, 6), errand(10, Alone, 0)]),
            (1, vec![errand(1, Alone, 3)]),
            (2, vec![errand(2, Alone, 3)]),
        ],
        accidents: accidents(&[1, 2]),
        quorum: None,
        most: 1,
    };
    let brief = |at, patience| Errand { patience, ..errand(at, Alone, 0) };
    let impatient = Scene {
        threads: vec![
            (1, vec![errand(0, Alone, 20)]),
            (1, vec![brief(2, Patience::For(ms(5)))]),
            (2, vec![brief(3, Patience::None), brief(12, Patience::For(ms(30)))]),
        ],
        ..lock.clone()
    };
    let sides = Scene {
        usage: Usage::ReadWrite,
        threads: vec![
            (1, vec![errand(0, Reader, 6), errand(8, Reader, 0)]),
            (1, vec![errand(3, Reader, 3)]),
            (2, vec![errand(2, Alone, 3)]),
        ],
        ..lock.clone()
    };
    let kept = Scene {
        keep: Some(LEASE),
        threads: vec![
            (1, vec![errand(0, Alone, 3), errand(8, Alone, 0)]),
            (2, vec![errand(10, Alone, 3)]),
        ],
        ..lock.clone()
    };
    // The message that it is wanted may overtake the reply.
    let wanted = Scene {
        threads: vec![(1, vec![errand(0, Alone, 0)]), (2, vec![errand(5, Alone, 3)])],
        ..kept.clone()
    };
    let sets = Scene {
        names: 2,
        threads: vec![
            (1, vec![errand(0, Side::Set(0b11), 3)]),
            (2, vec![errand(1, Side::Set(0b11), 3)]),
            (2, vec![errand(2, Alone, 3)]),
        ],
        ..lock.clone()
    };
    let apart = Scene { apart: true, ..sets.clone() };
    let ticket = Scene {
        threads: vec![
            (1, vec![Errand { passes_to: Some(2), ..errand(0, Alone, 5) }]),
            (1, vec![errand(2, Alone, 3)]),
            (2, vec![errand(4, Alone, 3)]),
        ],
        ..lock.clone()
    };
    let (of_permits, of_quorums) = (scenes_of_permits(&lock), scenes_of_quorums(&lock));
    let of_servers = vec![
        ("a lock", lock),
        ("a kept lock", kept),
        ("a kept lock that is wanted at once", wanted),
        ("calls with short waits", impatient),
        ("readers and a writer", sides),
        ("a set", sets),
        ("a set on two servers", apart),
        ("a ticket", ticket),
    ];
    [of_servers, of_permits, of_quorums].concat()
}

fn scenes_of_permits(lock: &Scene) -> Vec<(&'static str, Scene)> {
    use Side::Permit;
    let permits = Scene {
        usage: Usage::Semaphore(2),
        clients: 3,
        threads: vec![
            (1, vec![errand(0, Permit, 6), errand(8, Permit, 0)]),
            (1, vec![errand(1, Permit, 6)]),
            (2, vec![errand(2, Permit, 3)]),
            (3, vec![errand(3, Permit, 3)]),
        ],
        ..lock.clone()
    };
    // Some of them leave while a request asks for their permits, too.
    let leaver = |wait| {
        let leaves = Errand { patience: Patience::For(ms(wait)), ..errand(4, Permit, 0) };
        (1, vec![leaves])
    };
    let left_permits = Scene {
        usage: Usage::Semaphore(4),
        threads: vec![
            (2, vec![errand(0, Permit, 20)]),
            (2, vec![errand(0, Permit, 15)]),
            (2, vec![errand(0, Permit, 15)]),
            (2, vec![errand(0, Permit, 15)]),
            (1, vec![errand(3, Permit, 3)]),
            leaver(18),
            leaver(19),
            leaver(20),
        ],
        ..lock.clone()
    };
    vec![("permits", permits), ("permits of calls that have given up", left_permits)]
}

fn scenes_of_quorums(lock: &Scene) -> Vec<(&'static str, Scene)> {
    use Side::Alone;
    // The clients of a quorum may get the lock from different majorities in succession.
    let of_quorum = |ahead: Duration, blocks: [u32; 3]| {
        let counters = [ahead, ms(0), ms(0)].into_iter().zip(blocks).collect();
        Some(SmallQuorum { counters, behind: vec![2], detours: vec![(2, 0, ms(4))] })
    };
    let quorum = Scene {
        keep: Some(LEASE),
        threads: vec![
            (1, vec![errand(0, Alone, 1), errand(3, Alone, 1), errand(6, Alone, 1)]),
            (2, vec![errand(20, Alone, 3)]),
        ],
        quorum: of_quorum(ms(0), [3, 1, 1]),
        ..lock.clone()
    };
    // Its first client asks once it listens at each server, which takes 6 ms.
    let ahead = Scene { quorum: of_quorum(Duration::from_micros(6_500), [3; 3]), ..quorum.clone() };
    // The server whose counter is ahead gives no block, and the others did not give its token.
    let uneven =
        Scene { quorum: of_quorum(Duration::from_micros(6_500), [1, 3, 3]), ..quorum.clone() };
    // A thread asks for a token just when the keep time of its client is over.
    let brief_tokens = Scene {
        keep: Some(ms(5)),
        threads: vec![(1, vec![errand(0, Alone, 1), errand(13, Alone, 1), errand(30, Alone, 1)])],
        quorum: of_quorum(ms(0), [1; 3]),
        ..lock.clone()
    };
    // One client meets the other at one server, and only then reaches another server.
    let split = Scene {
        threads: vec![(1, vec![errand(0, Alone, 0)]), (2, vec![errand(0, Alone, 3)])],
        quorum: Some(SmallQuorum {
            counters: vec![(ms(0), 1), (ms(2000), 1), (ms(1000), 1)],
            behind: vec![],
            detours: vec![(1, 2, ms(2)), (2, 1, ms(2)), (2, 0, ms(20))],
        }),
        ..lock.clone()
    };
    vec![
        ("a quorum", quorum),
        ("a quorum whose counters differ", ahead),
        ("a quorum whose counters and blocks differ", uneven),
        ("a quorum that is split", split),
        ("a quorum that gives single tokens", brief_tokens),
    ]
}
