//! Deadlocks of clients that exchange their messages in memory.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::*;
use crate::config::LockOptions;
use crate::local::reporter::Reporter;
use crate::protocol::name::tests::Ending;
use crate::store::hold_id::HoldId;

const NAMES: usize = 4;
const CLIENTS: usize = 3;

#[derive(Default)]
struct Thread {
    /// Its locks, by the number of the name.
    holds: Vec<(usize, Arc<Hold>)>,
    /// The number of its call, and the name that it waits for.
    wait: Option<(u64, usize)>,
    parker: Arc<Parker>,
}

/// A call: its name, what its thread holds, and when it began and ended.
struct Known(usize, Vec<usize>, usize, Option<usize>);

/// Threads that lock at random, three to a client, and messages that are late, lost or doubled.
#[derive(Default)]
struct World {
    random: u64,
    now: usize,
    queues: Names,
    /// The locks of the threads.
    reporter: Reporter,
    clients: [Deadlocks; CLIENTS],
    threads: Vec<Thread>,
    nonces: u64,
    messages: Vec<(usize, u64, String)>,
    calls: HashMap<(usize, u64), Known>,
    /// The circles that each client has reported.
    reported: Vec<(usize, Circle)>,
}

fn options() -> LockOptions {
    let lease = Duration::from_secs(100);
    LockOptions { lease, tenure: Some(lease), ..LockOptions::default() }
}

fn id(client: usize) -> String {
    format!("{client:032x}")
}

impl World {
    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % below as u64).expect("small")
    }

    fn holder(&self, name: usize) -> Option<(usize, u64)> {
        let holds = |thread: &Thread| {
            let held = thread.holds.iter().find(|(held, _)| *held == name);
            held.map(|(_, hold)| hold.id.nonce)
        };
        self.threads.iter().enumerate().find_map(|(place, it)| Some((place, holds(it)?)))
    }

    fn take(&mut self, thread: usize, name: usize) {
        self.nonces += 1;
        let (kind, client) = (HoldKind::Lock, id(thread % CLIENTS).into());
        let id = HoldId { kind, name: name.to_string().into(), client, nonce: self.nonces };
        let hold = self.reporter.names.held(&id, &options());
        self.threads[thread].holds.push((name, hold));
    }

    fn wait(&mut self, thread: usize, name: usize) {
        let (client, it) = (thread % CLIENTS, &mut self.threads[thread]);
        self.nonces += 1;
        let number = self.nonces;
        let call = CircleCall {
            client: id(client),
            number,
            began: self.now as u64,
            may_fail: false,
            name: name.to_string(),
            note: String::new(),
        };
        let holds = it.holds.iter().map(|(_, hold)| hold.clone());
        self.clients[client].add(call, String::new(), &it.parker, holds);
        it.wait = Some((number, name));
        let held = it.holds.iter().map(|(name, _)| *name).collect();
        self.calls.insert((client, number), Known(name, held, self.now, None));
    }

    fn end_wait(&mut self, thread: usize) {
        let (client, it) = (thread % CLIENTS, &mut self.threads[thread]);
        let Some((number, _)) = it.wait.take() else { return };
        self.clients[client].remove(number);
        it.parker.clear();
        let call = self.calls.get_mut(&(client, number)).expect("known");
        call.3 = Some(self.now);
    }

    fn look(&mut self, thread: usize) {
        let client = thread % CLIENTS;
        if let Some((number, _)) = self.threads[thread].wait {
            let circle = self.clients[client].look(&self.queues, number);
            self.report(client, circle);
        }
    }

    fn deliver(&mut self, message: usize, again: bool) {
        let (client, nonce, text) =
            if again { self.messages[message].clone() } else { self.messages.swap_remove(message) };
        let circle = self.clients[client].receive(&self.queues, &id(client), nonce, &text);
        self.report(client, circle);
    }

    /// Checks that a circle existed as a whole at some time, and sends what threads have to.
    fn report(&mut self, client: usize, circle: Option<Circle>) {
        if let Some(circle) = circle {
            let known = |call: &CircleCall| {
                let client = usize::from_str_radix(&call.client, 16).expect("an id");
                &self.calls[&(client, call.number)]
            };
            let calls: Vec<_> = circle.0.iter().map(known).collect();
            for (place, Known(name, ..)) in calls.iter().enumerate() {
                assert!(calls[(place + 1) % calls.len()].1.contains(name), "{circle:?}");
            }
            let begin = calls.iter().map(|call| call.2).max();
            let end = calls.iter().map(|call| call.3.unwrap_or(self.now + 1)).min();
            assert!(begin < end, "{circle:?} never existed");
            if self.clients[client].resolve(&circle, &id(client)) {
                self.reported.push((client, circle));
            }
        }
        for thread in 0..self.threads.len() {
            let it = &self.threads[thread];
            let Some((_, name)) = it.wait else { continue };
            while let Some(signal) = it.parker.park(Some(Instant::now())) {
                let Signal::Tell(telling) = signal else { panic!("{signal:?}") };
                let Telling { clients, message } = *telling;
                let holder = self.holder(name).filter(|_| clients.is_empty());
                let holder = holder.map(|(thread, nonce)| (thread % CLIENTS, nonce));
                let number = |client: &String| usize::from_str_radix(client, 16).expect("an id");
                let others = clients.iter().map(|client| (number(client), 0));
                let to: Vec<_> = others.chain(holder).collect();
                let messages = to.into_iter().map(|(to, nonce)| (to, nonce, message.clone()));
                self.messages.extend(messages);
            }
        }
    }

    fn step(&mut self) {
        self.now += 1;
        let (thread, name) = (self.draw(CLIENTS * 3), self.draw(NAMES));
        match (self.draw(8), self.threads[thread].wait) {
            (0..=4, _) if !self.messages.is_empty() => {
                let (message, fate) = (self.draw(self.messages.len()), self.draw(8));
                if fate == 0 {
                    self.messages.swap_remove(message);
                } else {
                    self.deliver(message, fate == 1);
                }
            }
            (_, None) if self.threads[thread].holds.iter().any(|(held, _)| *held == name) => {
                let (_, hold) = self.threads[thread].holds.pop().expect("it has one");
                assert!(self.reporter.leave(&hold));
            }
            (_, None) if self.holder(name).is_some() => self.wait(thread, name),
            (_, None) => self.take(thread, name),
            (_, Some((_, name))) if self.holder(name).is_none() => {
                self.end_wait(thread);
                self.take(thread, name);
            }
            (5, Some(_)) if self.draw(6) == 0 => self.end_wait(thread),
            (_, Some(_)) => self.look(thread),
        }
    }

    /// Returns the calls of each client that wait for themselves.
    fn in_circles(&self) -> Vec<(usize, u64)> {
        let next = |thread: usize| self.holder(self.threads[thread].wait?.1).map(|it| it.0);
        let is_in_one = |start: usize| {
            let chain = iter::successors(next(start), |thread| next(*thread));
            chain.take(self.threads.len()).any(|thread| thread == start)
        };
        let waits = (0..self.threads.len()).filter(|thread| is_in_one(*thread));
        waits.filter_map(|it| Some((it % CLIENTS, self.threads[it].wait?.0))).collect()
    }
}

#[test]
fn every_deadlock_is_reported_and_no_false_one() {
    let (mut early, mut late) = (0, 0);
    for seed in 1..400_u64 {
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let threads = (0..CLIENTS * 3).map(|_| Thread::default()).collect();
        let mut world = World { random, threads, ..World::default() };
        for _ in 0..300 {
            world.step();
        }
        early += world.reported.len();
        // From here on nothing changes, and messages arrive, in whatever order.
        world.messages.clear();
        for thread in 0..world.threads.len() {
            world.look(thread);
        }
        while !world.messages.is_empty() {
            let message = world.draw(world.messages.len());
            world.deliver(message, false);
        }
        let deadlocked = world.in_circles();
        late += deadlocked.len();
        let distinct: HashSet<_> = world.reported.iter().collect();
        assert_eq!(distinct.len(), world.reported.len(), "seed {seed}: reported again");
        for (client, number) in deadlocked {
            let is_it = |call: &CircleCall| call.client == id(client) && call.number == number;
            let has_it =
                |(by, circle): &&(usize, Circle)| *by == client && circle.0.iter().any(is_it);
            // An earlier circle of the call may have broken up.
            let reported = world.reported.iter().filter(has_it).count();
            assert!(reported > 0, "seed {seed}: {client} {number}");
        }
    }
    assert!(early > 20 && late > 100, "{early} {late}");
}

/// The second call ends before the third begins, which the probe reaches later.
#[test]
fn calls_one_after_another_are_not_a_deadlock() {
    let threads = (0..3).map(|_| Thread::default()).collect();
    let mut world = World { threads, ..World::default() };
    (0..3).for_each(|thread| world.take(thread, thread));
    world.wait(0, 1);
    world.wait(1, 2);
    world.look(0);
    world.deliver(0, false);
    world.now += 1;
    world.end_wait(1);
    world.now += 1;
    world.wait(2, 0);
    for _ in 0..3 {
        assert_eq!(world.messages.len(), 1, "to the next call, and then the second probe");
        world.deliver(0, false);
    }
    assert!(world.messages.is_empty() && world.reported.is_empty());
    world.wait(1, 2);
    world.look(1);
    while !world.messages.is_empty() {
        world.deliver(0, false);
    }
    assert_eq!(world.reported.len(), 3, "now it is one, and each client reports it");
}

#[test]
fn a_thread_whose_hold_was_handed_on_is_in_no_deadlock() {
    let threads = (0..2).map(|_| Thread::default()).collect();
    let mut world = World { threads, ..World::default() };
    (0..2).for_each(|thread| world.take(thread, thread));
    world.wait(0, 1);
    let (_, hold) = &world.threads[0].holds[0];
    let next = HoldId { nonce: 7, ..hold.id.clone() };
    world.reporter.names.call(&next, &options()).expect("open");
    assert_eq!(world.reporter.names.end(hold, true), Ending::GoesOn);
    world.wait(1, 0);
    world.look(1);
    while !world.messages.is_empty() {
        world.deliver(0, false);
    }
    assert!(world.reported.is_empty());
}

#[test]
fn a_message_that_is_no_probe_is_ignored() {
    let call = |number, name: &str| CircleCall {
        client: id(7),
        number,
        began: 9,
        may_fail: true,
        name: name.into(),
        note: "why, ü".into(),
    };
    let probe = Probe { number: 3, path: vec![call(1, "a,b;ü"), call(2, "")] };
    let text = probe.encode();
    assert_eq!(Probe::decode(&text), Some(probe));
    for (cut, _) in text.char_indices() {
        let whole = Probe::decode(&text[..cut]);
        assert!(whole.is_none_or(|probe| probe.path.len() == 1), "{cut}");
    }
    for odd in ["", ";", "1;", "x;1,1,1,1,1,1,", "1;1,1,1,99,1,1,a", "1;1,1,1,1,1,1,üüü"] {
        assert_eq!(Probe::decode(odd), None, "{odd}");
    }
}
