//! The faults of a world, one after another, and how each is repaired.

use std::time::Duration;

use crate::base::sync::executor::{self, Random};
use crate::simulation::wire::network::{OUTSIDE, Weather};
use crate::simulation::wire::server::{Accepts, Role, receive};
use crate::simulation::wire::world::{World, now, with};

/// The longest duration of a fault, in milliseconds.
const LONGEST: u64 = 4000;

/// The error replies of a server that executes nothing for a while.
const REFUSALS: [&str; 5] = [
    "BUSY Redis is busy running a script.",
    "CLUSTERDOWN The cluster is down",
    "LOADING Redis is loading the dataset in memory",
    "MISCONF Errors writing to the AOF file",
    "OOM command not allowed when used memory > 'maxmemory'.",
];

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// All open connections of a server are closed.
    Close,
    /// The open connections of a server fall silent, while new ones work.
    Cut,
    /// The same, for the connections that carry messages.
    Deafen,
    /// A server is down, and loses its scripts.
    Down,
    /// Another server takes over.
    FailOver,
    /// A server forgets its scripts.
    Forget,
    /// A server accepts no further connections.
    Full,
    /// A part of the slots moves to another node.
    Move,
    /// A server accepts connections, but replies to no login.
    Mute,
    /// A server executes nothing.
    Refuse,
    /// A server is stopped, and resumes later.
    Stop,
    /// No packets reach a server.
    Unreachable,
    /// A sentinel names another server.
    WrongSentinel,
}

impl Fault {
    const ALL: [Self; 13] = [
        Self::Close,
        Self::Cut,
        Self::Deafen,
        Self::Down,
        Self::FailOver,
        Self::Forget,
        Self::Full,
        Self::Move,
        Self::Mute,
        Self::Refuse,
        Self::Stop,
        Self::Unreachable,
        Self::WrongSentinel,
    ];
}

/// Causes this many faults, and then repairs everything.
pub(super) fn direct(mut random: Random, faults: u64) {
    for _ in 0..faults {
        executor::sleep(any_time(&mut random, LONGEST / 4));
        let applicable: Vec<_> = with(|world| {
            let harmless = [Fault::Forget, Fault::Move];
            let all = Fault::ALL.into_iter().filter(|fault| world.is_applicable(*fault));
            all.filter(|fault| !world.is_calm || harmless.contains(fault)).collect()
        });
        // Faults that only some deployments have would otherwise be rare.
        let rare = [Fault::FailOver, Fault::Move, Fault::WrongSentinel];
        let rare: Vec<_> = rare.into_iter().filter(|fault| applicable.contains(fault)).collect();
        let is_rare = random.permille(300) && !rare.is_empty();
        let fault = random.pick(if is_rare { &rare } else { &applicable });
        let lasts = any_time(&mut random, LONGEST);
        with(|world| {
            let server = usize::try_from(random.below(world.servers.len() as u64)).unwrap_or(0);
            world.say(|| format!("{fault:?} of server {server} for {lasts:?}"));
            world.tally.faults += 1;
            world.last_fault = now();
            world.begin_fault(fault, server, lasts, &mut random);
        });
    }
    executor::sleep(any_time(&mut random, LONGEST / 2));
    with(World::heal);
}

/// Returns a time up to this many milliseconds. Short ones are likely.
fn any_time(random: &mut Random, millis: u64) -> Duration {
    if random.permille(500) {
        return random.time(Duration::from_millis(millis));
    }
    Duration::from_millis(random.below(millis))
}

impl World {
    fn is_applicable(&self, fault: Fault) -> bool {
        match fault {
            Fault::FailOver => self.servers.len() > 1,
            Fault::Move => self.is_cluster(),
            Fault::WrongSentinel => self.servers.len() > 1 && !self.is_cluster(),
            _ => true,
        }
    }

    fn begin_fault(&mut self, fault: Fault, server: usize, lasts: Duration, random: &mut Random) {
        match fault {
            Fault::Close => self.each_link(server, World::close),
            Fault::Cut => self.each_link(server, World::silence),
            Fault::Deafen => self.each_link(server, |world, number| {
                if world.links.get(&number).is_some_and(|link| !link.session.channels.is_empty()) {
                    world.silence(number);
                }
            }),
            Fault::Down => {
                self.servers[server].known.clear();
                self.accept(server, Accepts::Nothing, lasts);
                self.each_link(server, World::close);
            }
            Fault::FailOver => self.fail_over(lasts, random),
            Fault::Forget => self.servers[server].known.clear(),
            Fault::Full => self.accept(server, Accepts::Full, lasts),
            Fault::Move => self.move_part(lasts, random),
            Fault::Mute => self.accept(server, Accepts::Mutely, lasts),
            Fault::Refuse => {
                self.servers[server].refusal = Some(random.pick(&REFUSALS));
                later(lasts, move |world| world.servers[server].refusal = None);
            }
            Fault::Stop => {
                self.servers[server].is_stopped = true;
                later(lasts, move |world| world.go_on(server));
            }
            Fault::Unreachable => {
                self.accept(server, Accepts::Silence, lasts);
                self.each_link(server, World::silence);
            }
            Fault::WrongSentinel => {
                let named = random.pick(&self.servers_of(|role| !is_sentinel(role)));
                let sentinel = random.pick(&self.servers_of(is_sentinel));
                self.servers[sentinel].role = Role::Sentinel(named);
                later(lasts, World::name_master);
            }
        }
    }

    fn servers_of(&self, is_meant: impl Fn(Role) -> bool) -> Vec<usize> {
        let all = 0..self.servers.len();
        all.filter(|number| is_meant(self.servers[*number].role)).collect()
    }

    fn each_link(&mut self, server: usize, act: impl Fn(&mut Self, u64)) {
        let links = self.links.iter().filter(|(_, link)| link.server == server);
        let numbers: Vec<_> = links.map(|(number, _)| *number).collect();
        for number in numbers {
            act(self, number);
        }
    }

    /// Treats new connections this way for a while.
    fn accept(&mut self, server: usize, accepts: Accepts, lasts: Duration) {
        self.servers[server].accepts = accepts;
        later(lasts, move |world| world.servers[server].accepts = Accepts::Yes);
    }

    /// Resumes a stopped server.
    fn go_on(&mut self, server: usize) {
        self.servers[server].is_stopped = false;
        self.each_link(server, receive);
    }

    /// A replica becomes the master, or a spare node takes over the slots of another.
    fn fail_over(&mut self, lasts: Duration, random: &mut Random) {
        let replicas = self.servers_of(|role| role == Role::Replica);
        let masters = self.servers_of(|role| role == Role::Master);
        if replicas.is_empty() {
            return;
        }
        let (from, to) = (random.pick(&masters), random.pick(&replicas));
        self.servers[to].locks = self.servers[from].locks.clone();
        self.servers[to].last_fence = self.servers[from].last_fence;
        self.servers[to].role = Role::Master;
        // For a while, the old one does not notice.
        later(random.time(lasts), move |world| {
            // It may have got slots again since.
            if !world.owners.contains(&from) && world.moving.is_none_or(|(_, to)| to != from) {
                world.servers[from].role = Role::Replica;
            }
        });
        for owner in &mut self.owners {
            if *owner == from {
                *owner = to;
            }
        }
        if random.permille(500) {
            self.begin_fault(Fault::Down, from, lasts, random);
        }
        later(random.time(lasts), World::name_master);
    }

    /// Makes all sentinels name the current master.
    fn name_master(&mut self) {
        let master = self.servers_of(|role| role == Role::Master).last().copied();
        for server in &mut self.servers {
            if let (Role::Sentinel(named), Some(master)) = (&mut server.role, master) {
                *named = master;
            }
        }
    }

    /// Moves a part of the slots to another node. At first, single requests are redirected.
    fn move_part(&mut self, lasts: Duration, random: &mut Random) {
        if !self.is_cluster() || self.moving.is_some() {
            return;
        }
        let part = self.part(&format!("lock:n{}", random.below(self.names)));
        let to = random.pick(&self.servers_of(|role| role == Role::Master));
        if self.owners[part] == to {
            return;
        }
        self.moving = Some((part, to));
        later(lasts, World::end_move);
    }

    fn end_move(&mut self) {
        let Some((part, to)) = self.moving.take() else { return };
        let from = self.owners[part];
        if self.servers[to].role != Role::Master {
            return;
        }
        let keys = self.servers[from].locks.keys();
        let keys: Vec<_> = keys.filter(|key| self.part(key) == part).cloned().collect();
        for key in keys {
            let lock = self.servers[from].locks.remove(&key);
            self.servers[to].locks.extend(lock.map(|lock| (key, lock)));
        }
        let last = self.servers[from].last_fence;
        self.servers[to].last_fence = self.servers[to].last_fence.max(last);
        self.owners[part] = to;
    }

    /// Repairs everything.
    fn heal(&mut self) {
        self.say(|| "everything is in order".into());
        let Weather { latency, jitter, .. } = self.weather;
        self.weather = Weather { latency, jitter, ..Weather::default() };
        self.replica_fails = 0;
        self.end_move();
        let last = self.servers_of(|role| role == Role::Master).last().copied();
        let is_cluster = self.is_cluster();
        for (number, server) in self.servers.iter_mut().enumerate() {
            server.accepts = Accepts::Yes;
            server.refusal = None;
            if server.role == Role::Master && !is_cluster && Some(number) != last {
                server.role = Role::Replica;
            }
        }
        for number in 0..self.servers.len() {
            self.go_on(number);
            if is_cluster && self.servers[number].role == Role::Replica {
                // A node without slots has left for good.
                self.servers[number].accepts = Accepts::Nothing;
                self.each_link(number, World::close);
            }
        }
        self.name_master();
        self.healed = Some(now());
    }
}

fn is_sentinel(role: Role) -> bool {
    matches!(role, Role::Sentinel(_))
}

/// Schedules an action, unless everything has been repaired by then.
fn later(time: Duration, act: impl FnOnce(&mut World) + 'static) {
    executor::after(OUTSIDE, time, move || {
        with(|world| {
            if world.healed.is_none() {
                act(world);
            }
        });
    });
}
