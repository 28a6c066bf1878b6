//! Worlds in which threads hold locks while they wait for others, and may deadlock. Tracks which
//! thread waits for which, and what clients report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::{self, Process, Random};
use crate::client::Client;
use crate::config::{Config, Deadlock};
use crate::error::Error;
use crate::guards::mutex::Guard;
use crate::simulation::calls::{Patience, Side, acquire, release};
use crate::simulation::questions::ask_sometimes;
use crate::simulation::seeds::any_set;
use crate::simulation::uses::use_sometimes;
use crate::simulation::world::{self, Usage, World, broken, say};

/// How often a thread locks again a name that it holds.
const NESTED: u64 = 200;

/// The waiting threads and the circles so far.
pub(super) struct Deadlocks {
    /// How long a call waits before it looks for a deadlock.
    after: Duration,
    /// Whether one call of a circle fails.
    fails: bool,
    /// The calls of the threads that wait.
    waits: BTreeMap<u64, Wait>,
    last_call: u64,
    /// The guards that belong to a thread, by their index.
    bound: BTreeMap<usize, u64>,
    circles: Vec<Circle>,
    pub(super) found: u64,
    pub(super) told: u64,
}

/// A call that waits for a name.
#[derive(Clone, Copy, PartialEq)]
struct Wait {
    call: u64,
    client: Process,
    name: usize,
}

/// Calls that wait for each other, each for a name that the next one's thread holds. The smallest
/// client and name come first.
struct Circle {
    waits: Vec<Wait>,
    since: Instant,
    /// The clients that have reported it.
    told: BTreeSet<Process>,
    /// How many of its calls failed.
    failed: u32,
}

/// The clients of a circle, and the names that their threads wait for.
type Key = Vec<(Process, usize)>;

impl Circle {
    fn key(&self) -> Key {
        self.waits.iter().map(|wait| (wait.client, wait.name)).collect()
    }
}

fn with<T>(act: impl FnOnce(&mut World, &mut Deadlocks) -> T) -> T {
    world::with(|world| {
        let mut deadlocks = world.deadlocks.take().expect("a world of deadlocks");
        let result = act(world, &mut deadlocks);
        world.deadlocks = Some(deadlocks);
        result
    })
}

/// Rotates a circle so that its smallest element is first.
fn turn<T>(circle: &mut [T], key: impl Fn(&T) -> (Process, usize)) {
    let of = |first: usize| -> Key {
        circle[first..].iter().chain(&circle[..first]).map(&key).collect()
    };
    let least = (0..circle.len()).min_by_key(|first| of(*first));
    circle.rotate_left(least.unwrap_or(0));
}

impl Deadlocks {
    /// Sets what clients do about deadlocks.
    pub(super) fn new(config: &mut Config, random: &mut Random) -> Self {
        let after = Duration::from_millis(random.pick(&[50, 300, 1000]));
        let fails = random.permille(500);
        config.deadlock_after = Some(after);
        config.deadlock = if fails { Deadlock::Fail } else { Deadlock::Report };
        let (waits, bound, circles) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { after, fails, waits, last_call: 0, bound, circles, found: 0, told: 0 }
    }

    /// Returns `true` if a thread holds a name through a valid guard of its own.
    pub(super) fn has(&self, world: &World, thread: u64, name: usize) -> bool {
        self.holders(world, name).contains(&thread)
    }

    /// Returns the threads that hold a name through a valid guard of their own.
    fn holders(&self, world: &World, name: usize) -> Vec<u64> {
        let bound = self.bound.iter().filter(|(place, _)| world.trusts(**place, name));
        bound.map(|(_, thread)| *thread).collect()
    }

    /// Adds the circles that a thread closes when it begins to wait.
    fn add_circles(&mut self, world: &World, thread: u64) {
        let mut paths = vec![vec![thread]];
        while let Some(path) = paths.pop() {
            let last = path.last().and_then(|last| self.waits.get(last));
            let Some(Wait { name, .. }) = last.copied() else { continue };
            for holder in self.holders(world, name) {
                if holder == thread {
                    let mut waits: Vec<_> = path.iter().map(|thread| self.waits[thread]).collect();
                    turn(&mut waits, |wait| (wait.client, wait.name));
                    let (since, told) = (clock::now(), BTreeSet::new());
                    self.found += 1;
                    self.circles.push(Circle { waits, since, told, failed: 0 });
                } else if !path.contains(&holder) {
                    paths.push([&*path, &[holder]].concat());
                }
            }
        }
    }

    /// Returns `true` if all calls of a circle still wait, the threads' holds are valid, and the
    /// server has them. Only then can it tell the holder of a name that a call waits for it.
    fn exists(&self, world: &World, circle: &Circle) -> bool {
        let next = circle.waits.iter().cycle().skip(1);
        circle.waits.iter().zip(next).all(|(wait, next)| {
            let is_next = |thread: &u64| self.waits.get(thread) == Some(next);
            let mut bound = self.bound.iter().filter(|(_, thread)| is_next(thread));
            bound.any(|(place, _)| {
                world.trusts(*place, wait.name) && !world.is_forgotten(*place, wait.name)
            })
        })
    }

    /// Receives a client's report.
    fn hear(&mut self, client: Process, key: &Key) -> Result<(), String> {
        self.told += 1;
        // An earlier circle of the same threads may have broken up before it was found.
        let mut circles = self.circles.iter_mut().rev().filter(|circle| circle.key() == *key);
        let told = circles.find(|circle| !circle.told.contains(&client));
        match told {
            Some(circle) if key.iter().any(|(member, _)| *member == client) => {
                circle.told.insert(client);
                Ok(())
            }
            _ => Err(format!("client {client} reports {key:?}, which is wrong or not new")),
        }
    }
}

impl World {
    /// Records that nested levels outlive their outer guards, or are dropped with them.
    fn nested_levels(&mut self, client: Process, names: &[String], exist: bool) {
        for name in names {
            let Some(name) = self.names.iter().position(|it| it.name == *name) else { continue };
            if exist {
                self.releasing.push((client, name));
            } else {
                let ended = self.releasing.iter().position(|it| *it == (client, name));
                ended.map(|at| self.releasing.swap_remove(at));
                self.names[name].had_guard.insert(client, clock::now());
            }
        }
    }

    /// Returns the clients and names of a reported circle.
    fn key_of(&self, names: &[String], clients: &[String]) -> Option<Key> {
        let client = |id: &String| Some(self.clients.iter().position(|it| it.id == *id)? + 1);
        let name = |name: &String| self.names.iter().position(|it| it.name == *name);
        let each = clients.iter().map(client).zip(names.iter().map(name));
        let mut key = each.map(|(client, name)| Some((client?, name?))).collect::<Option<Key>>()?;
        turn(&mut key, |member| *member);
        Some(key)
    }
}

/// Receives the report of a circle.
pub(super) fn hear(process: Process, names: &[String], clients: &[String]) {
    say(process, || format!("reports a deadlock: {clients:?} wait for {names:?}"));
    let result = with(|world, deadlocks| match world.key_of(names, clients) {
        Some(key) => deadlocks.hear(process, &key),
        None => Err(format!("{names:?} of a deadlock, or {clients:?}, do not exist")),
    });
    if let Err(why) = result {
        broken(&why);
    }
}

/// Checks the error of a call of this thread.
pub(super) fn check_error(names: &[String], clients: &[String]) {
    let thread = executor::thread_number();
    let result = with(|world, deadlocks| {
        let key = world.key_of(names, clients);
        let wait = deadlocks.waits.get(&thread);
        let is_it = |circle: &&mut Circle| {
            Some(circle.key()) == key && wait.is_some_and(|wait| circle.waits.contains(wait))
        };
        let Some(circle) = deadlocks.circles.iter_mut().find(is_it) else {
            return Err(format!(
                "a call fails because of a deadlock that does not exist: {names:?}"
            ));
        };
        circle.failed += 1;
        if circle.failed > 1 || !deadlocks.fails {
            return Err(format!("{} calls of a circle fail: {names:?}", circle.failed));
        }
        Ok(())
    });
    if let Err(why) = result {
        broken(&why);
    }
}

/// Looks for circles that no client has reported in time.
pub(super) fn check(world: &World, deadlocks: &Deadlocks) -> Result<(), String> {
    let Some(settled) = world.settled_since() else { return Ok(()) };
    let now = clock::now();
    for circle in &deadlocks.circles {
        let is_over =
            circle.waits.iter().any(|wait| world.clients[wait.client - 1].closed.is_some());
        let since = circle.since.max(settled);
        let waited = since - circle.since;
        // The third look after that, plus the time that messages take.
        let most = (waited + deadlocks.after) * 7 + world.grace();
        let is_told = if deadlocks.fails { circle.failed > 0 } else { !circle.told.is_empty() };
        if !is_told && !is_over && now > since + most && deadlocks.exists(world, circle) {
            return Err(format!(
                "no client reports {:?} for {:?}",
                circle.key(),
                now - circle.since
            ));
        }
    }
    Ok(())
}

/// A thread that takes locks in any order, and holds them while it waits for the next.
pub(super) fn caller(client: &Client, process: Process, mut random: Random, calls: u64) {
    for _ in 0..calls {
        if world::with(|world| world.is_healed) {
            break;
        }
        if random.permille(700) {
            executor::sleep(random.time(Duration::from_millis(20)));
        }
        let mut held: Vec<(usize, usize, bool)> = Vec::new();
        let mut nested: Vec<Guard> = Vec::new();
        for _ in 0..=random.below(3) {
            let count = world::with(|world| world.names.len());
            let name = usize::try_from(random.below(count as u64)).unwrap_or(0);
            let has_it = held.iter().any(|(place, ..)| has(*place, name));
            if has_it && !lock_again(client, process, name, &mut random, &mut nested) {
                continue;
            }
            let set = if held.is_empty() { any_set(&mut random) } else { None };
            let (name, side) = set.unwrap_or_else(|| (name, any_side(name, &mut random)));
            if has_it || !lock(client, process, name, side, &mut random, &mut held) {
                break;
            }
            ask_sometimes(client, process);
            if let Some((place, ..)) = held.last() {
                use_sometimes(process, *place);
            }
            executor::sleep(random.time(Duration::from_millis(50)));
        }
        if random.permille(300) {
            executor::sleep(random.time(Duration::from_millis(300)));
        }
        // In any order: a hold ends with its last level.
        if random.permille(500) {
            nested.clear();
        }
        let again: Vec<_> = nested.iter().map(|guard| guard.name().to_owned()).collect();
        world::with(|world| world.nested_levels(process, &again, true));
        while !held.is_empty() {
            let (place, ..) =
                held.swap_remove(usize::try_from(random.below(9)).unwrap_or(0) % held.len());
            with(|_, deadlocks| deadlocks.bound.remove(&place));
            release(process, place, random.permille(700));
        }
        drop(nested);
        world::with(|world| world.nested_levels(process, &again, false));
    }
}

/// Returns `true` if this guard holds the name.
fn has(place: usize, name: usize) -> bool {
    with(|world, _| world.guards[place].as_ref().is_some_and(|it| it.is_of(name)))
}

/// Returns how a thread takes a name: a lock mostly through a guard of its own.
fn any_side(name: usize, random: &mut Random) -> Side {
    let usage = world::with(|world| world.names[name].usage);
    match usage {
        Usage::Lock if random.permille(800) => Side::Own,
        Usage::ReadWrite if random.permille(600) => Side::Reader,
        Usage::Lock | Usage::ReadWrite => Side::Alone,
        Usage::Semaphore(_) => Side::Permit,
    }
}

/// Takes one more lock. Returns `false` if the thread must release all its locks.
fn lock(
    client: &Client,
    process: Process,
    name: usize,
    side: Side,
    random: &mut Random,
    held: &mut Vec<(usize, usize, bool)>,
) -> bool {
    let is_bound = side == Side::Own;
    let is_lock = world::with(|world| world.names[name].usage == Usage::Lock) && !side.is_set();
    // Circles through guards that any thread can drop, or through other kinds, are never found.
    let can_be_found =
        is_lock && with(|_, deadlocks| deadlocks.fails) && held.iter().all(|(.., bound)| *bound);
    let patience = match random.below(10) {
        0 => Patience::None,
        1..8 if can_be_found => Patience::Endless,
        _ => {
            let after = with(|_, deadlocks| deadlocks.after);
            Patience::For(random.time(after * 24))
        }
    };
    let thread = executor::thread_number();
    with(|world, deadlocks| {
        deadlocks.last_call += 1;
        let wait = Wait { call: deadlocks.last_call, client: process, name };
        if is_lock {
            deadlocks.waits.insert(thread, wait);
        }
        if patience != Patience::None {
            deadlocks.add_circles(world, thread);
        }
    });
    let place = acquire(client, process, name, side, patience);
    with(|_, deadlocks| {
        deadlocks.waits.remove(&thread);
        if let Some(place) = place.filter(|_| is_bound) {
            deadlocks.bound.insert(place, thread);
        }
    });
    let is_lost = |(place, name, _): &(usize, usize, bool)| {
        with(|world, _| {
            let is_safe = world.is_calm && world.max_hold.is_none();
            is_safe && !world.trusts(*place, *name)
        })
    };
    if held.iter().any(is_lost) {
        broken("a thread loses a lock while it waits for another, though nothing went wrong");
    }
    held.extend(place.map(|place| (place, name, is_bound)));
    place.is_some()
}

/// Locks a name that the thread holds, without nesting.
fn lock_without_nesting(client: &Client, process: Process, text: &str) {
    let begun = clock::now();
    let result = client.mutex(text).reentrant(false).try_lock();
    say(process, || format!("asks for {text:?}, which it holds: {result:?}"));
    let is_right = match &result {
        Err(Error::AlreadyHeld { .. }) => true,
        Err(error) => world::with(|world| world.may_fail(error, process, begun)),
        // It may have been lost in the meantime.
        Ok(_) => world::with(|world| !world.is_calm || world.max_hold.is_some()),
    };
    if !is_right {
        broken(&format!("a thread asks for {text:?}, which it holds, without nesting: {result:?}"));
    }
}

/// Occasionally relocks a name that the thread holds. Returns `false` if it did not.
fn lock_again(
    client: &Client,
    process: Process,
    name: usize,
    random: &mut Random,
    nested: &mut Vec<Guard>,
) -> bool {
    let text = world::with(|world| world.names[name].name.clone());
    if !client.mutex(&text).is_held_by_current_thread() || !random.permille(NESTED) {
        return false;
    }
    if world::with(|world| world.random.permille(world.own_terms / 2)) {
        lock_without_nesting(client, process, &text);
        return true;
    }
    say(process, || format!("locks {text:?} again"));
    match client.lock(&text) {
        Ok(guard) => nested.push(guard),
        Err(error) => say(process, || format!("does not get it again: {error}")),
    }
    true
}
