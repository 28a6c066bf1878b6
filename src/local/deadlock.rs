//! Deadlocks: threads that hold locks and wait for each other in a circle, perhaps in several
//! processes.
//!
//! Decides whether a call that has waited for long waits for itself, which is called a *look*. A
//! *probe* goes from the call to the hold that is in its way, to the call for which the thread of
//! that hold waits, and so on (edge chasing: Chandy, Misra and Haas 1983). Within the process it
//! follows the table of the calls that have waited for long. To another client it takes a message,
//! which names the hold, and which the server that has the lock sends to the holder. If it comes
//! back to where it began, there may be a circle, but calls that it has passed may have ended
//! since. So a second probe must find the same calls. Each call waits for one lock, and a thread
//! that waits keeps what it holds: what both probes have found existed while one was back and the
//! other not yet on its way. A message that is late, lost or doubled can only hide a circle.
//!
//! Only holds that belong to a thread pass a probe on. A chain ends at a thread that has not waited
//! for long, and at a hold that any thread can release, such as one of an owned guard.
//!
//! Knows no store: the thread of a call sends the messages, as its parker tells it to.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::error::Error;
use crate::local::parker::{Parker, Signal};
use crate::local::wait_queues::WaitQueues;
use crate::protocol::hold::Hold;
use crate::store::hold_id::{HoldKind, is_client_id};
use crate::store::request::Telling;

/// The most calls in a chain, and the most bytes of a message. Longer chains end.
const CALLS_MAX: usize = 100;
const MESSAGE_MAX: usize = 64 * 1024;

/// The maximum number of calls of other clients whose probes a call remembers.
const SENDERS_MAX: usize = 64;

/// How many circles are remembered, so that none is reported twice.
const CIRCLES_MAX: usize = 1024;

/// A call that has waited for long, as all clients know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitingCall {
    pub(super) client: String,
    /// Its number among those of the client.
    pub(super) number: u64,
    /// When it began, by its own system's clock: microseconds since 1970.
    pub(super) began: u64,
    /// Whether its client lets it fail to break a circle.
    pub(super) may_fail: bool,
    /// The name of the lock.
    pub(super) name: String,
}

/// A message that is passed along a chain of calls.
#[derive(Debug, PartialEq, Eq)]
struct Probe {
    /// Its number among the probes of the first call.
    number: u64,
    /// The calls up to here, each of which waits for the thread of the next one.
    path: Vec<WaitingCall>,
}

/// Calls, each of which waits for a lock that the thread of the next one holds, and the last one for
/// a lock of the first. The first is the one that began last, in whatever order a client has found them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Circle(Vec<WaitingCall>);

/// The calls of a client that have waited for long, and what is known of circles.
#[derive(Default)]
pub(crate) struct Deadlocks(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    waits: HashMap<u64, LongWait>,
    /// Hashes of the circles that were reported.
    reported: VecDeque<u64>,
}

struct LongWait {
    call: WaitingCall,
    parker: Arc<Parker>,
    /// The holds of its thread. A hold that has another fence meanwhile belongs to another thread.
    holds: Vec<(Arc<Hold>, u64)>,
    /// The number of its last probe.
    probe: u64,
    /// The circle that the first probe of a look has found.
    found: Option<Vec<WaitingCall>>,
    /// The last probe of other calls that was passed on, by client and number of the call. Several
    /// servers send each message of theirs.
    passed: HashMap<(String, u64), u64>,
}

impl Deadlocks {
    /// Adds a call that has waited for long, and whose thread has these holds. Returns its number.
    pub(super) fn add(
        &self,
        call: WaitingCall,
        parker: &Arc<Parker>,
        holds: impl IntoIterator<Item = Arc<Hold>>,
    ) -> u64 {
        let with_fence = |hold: Arc<Hold>| {
            let fence = hold.fence();
            (hold, fence)
        };
        let holds = holds.into_iter().map(with_fence).collect();
        let table = &mut *self.0.lock();
        table.last += 1;
        let (number, parker) = (table.last, parker.clone());
        let call = WaitingCall { number, ..call };
        let (found, passed) = (None, HashMap::new());
        table.waits.insert(number, LongWait { call, parker, holds, probe: 0, found, passed });
        number
    }

    pub(super) fn remove(&self, number: u64) {
        self.0.lock().waits.remove(&number);
    }

    /// Begins a look. Returns the circle if the whole of it is in this process.
    pub(super) fn look(&self, queues: &WaitQueues, number: u64) -> Option<Circle> {
        let mut table = self.0.lock();
        let wait = table.waits.get_mut(&number)?;
        wait.probe += 1;
        wait.found = None;
        let probe = Probe { number: wait.probe, path: Vec::new() };
        table.follow(queues, number, probe)
    }

    /// Receives a message of another client about the hold with this nonce, or with 0 about a
    /// circle that the other has found. Returns a circle to report.
    pub(super) fn receive(
        &self,
        queues: &WaitQueues,
        client: &str,
        nonce: u64,
        message: &str,
    ) -> Option<Circle> {
        let probe = Probe::decode(message)?;
        if nonce == 0 {
            let is_in_it = probe.path.iter().any(|call| call.client == client);
            return is_in_it.then(|| Circle::new(probe.path));
        }
        let mut table = self.0.lock();
        let at = table.blocked(|hold| hold.id.nonce == nonce)?;
        table.follow(queues, at, probe)
    }

    /// Ends the call that must fail for the circle to be broken, if it is one of this client.
    /// Returns `true` if the circle has not been reported yet, and notes that it is now.
    pub(super) fn resolve(&self, circle: &Circle, client: &str) -> bool {
        let mut table = self.0.lock();
        if let Some(fails) = circle.fails().filter(|call| call.client == client)
            && let Some(wait) = table.waits.get(&fails.number)
        {
            wait.parker.send(Signal::Ended(circle.error()));
        }
        let mut hasher = DefaultHasher::new();
        circle.hash(&mut hasher);
        let hash = hasher.finish();
        if table.reported.contains(&hash) {
            return false;
        }
        if table.reported.len() == CIRCLES_MAX {
            table.reported.pop_front();
        }
        table.reported.push_back(hash);
        true
    }
}

impl Table {
    /// Has a probe go on from a call whose thread is in its way, as far as it gets in this process.
    /// Returns the circle if this is the second one in succession to come back.
    fn follow(&mut self, queues: &WaitQueues, mut at: u64, mut probe: Probe) -> Option<Circle> {
        loop {
            let wait = self.waits.get_mut(&at)?;
            if probe.path.first() == Some(&wait.call) {
                if probe.number != wait.probe {
                    return None;
                }
                wait.probe += 1;
                probe.number = wait.probe;
                match wait.found.take() {
                    None => wait.found = Some(mem::take(&mut probe.path)),
                    Some(found) if found == probe.path => {
                        let circle = Circle::new(found);
                        // Before the call can fail.
                        if let Some(telling) = circle.to_others(&wait.call.client) {
                            wait.send(telling);
                        }
                        return Some(circle);
                    }
                    Some(_) => return None,
                }
            } else if probe.path.contains(&wait.call) || !wait.passes(&probe) {
                // A circle that the first call is not in.
                return None;
            }
            probe.path.push(wait.call.clone());
            let Some(held) = queues.holder(HoldKind::Lock, &wait.call.name) else {
                wait.send(Telling { clients: Vec::new(), message: probe.encode() });
                return None;
            };
            at = self.blocked(|hold| Arc::ptr_eq(hold, &held))?;
        }
    }

    /// Returns the number of the call whose thread has this hold.
    fn blocked(&self, is_it: impl Fn(&Arc<Hold>) -> bool) -> Option<u64> {
        let now = Moment::now();
        let has_it = |(hold, fence): &(Arc<Hold>, u64)| {
            is_it(hold) && hold.fence() == *fence && hold.lease.is_valid(now)
        };
        let mut waits = self.waits.iter();
        waits.find(|(_, wait)| wait.holds.iter().any(has_it)).map(|(number, _)| *number)
    }
}

impl LongWait {
    /// Returns `true` if a probe of another call has not come here before.
    fn passes(&mut self, probe: &Probe) -> bool {
        let Some(first) = probe.path.first() else { return true };
        let sender = (first.client.clone(), first.number);
        if self.passed.len() >= SENDERS_MAX && !self.passed.contains_key(&sender) {
            self.passed.clear();
        }
        let last = self.passed.entry(sender).or_default();
        mem::replace(last, probe.number.max(*last)) < probe.number
    }

    /// Has the thread send a message.
    fn send(&self, telling: Telling) {
        if telling.message.len() <= MESSAGE_MAX {
            self.parker.send(Signal::Tell(Box::new(telling)));
        }
    }
}

impl Probe {
    fn encode(&self) -> String {
        let mut text = format!("{:x};", self.number);
        for WaitingCall { client, number, began, may_fail, name } in &self.path {
            let (may_fail, [client_len, name_len]) =
                (u8::from(*may_fail), [client, name].map(String::len));
            let hop = write!(
                text,
                "{number:x},{began:x},{may_fail},{client_len},{name_len},{client}{name}"
            );
            hop.expect("a string takes whatever is written");
        }
        text
    }

    /// Reads what another client has sent; `None` if it is not what `encode` writes.
    fn decode(text: &str) -> Option<Self> {
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let (number, mut rest) = text.split_once(';')?;
        let mut probe = Self { number: hex(number)?, path: Vec::new() };
        while !rest.is_empty() {
            let fields: Vec<_> = rest.splitn(6, ',').collect();
            let [number, began, may_fail, client_len, name_len, texts] = fields[..] else {
                return None;
            };
            let (client, texts) = texts.split_at_checked(client_len.parse().ok()?)?;
            let (name, after) = texts.split_at_checked(name_len.parse().ok()?)?;
            probe.path.push(WaitingCall {
                client: Some(client).filter(|client| is_client_id(client))?.into(),
                number: hex(number)?,
                began: hex(began)?,
                may_fail: may_fail == "1",
                name: name.into(),
            });
            rest = after;
        }
        (1..CALLS_MAX).contains(&probe.path.len()).then_some(probe)
    }
}

impl Circle {
    fn new(mut calls: Vec<WaitingCall>) -> Self {
        let order = |call: &WaitingCall| (call.began, call.client.clone(), call.number);
        let last = (0..calls.len()).max_by_key(|place| order(&calls[*place]));
        calls.rotate_left(last.unwrap_or_default());
        Self(calls)
    }

    /// Returns the call that fails: of those that may, the one that began last.
    pub(super) fn fails(&self) -> Option<&WaitingCall> {
        let order = |call: &&WaitingCall| (call.began, call.client.clone(), call.number);
        self.0.iter().filter(|call| call.may_fail).max_by_key(order)
    }

    /// The names of the locks for which the calls wait, in their order.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|call| call.name.clone()).collect()
    }

    /// The clients of the calls, in their order.
    pub(super) fn clients(&self) -> Vec<String> {
        self.0.iter().map(|call| call.client.clone()).collect()
    }

    fn error(&self) -> Error {
        let (names, clients) = (self.names(), self.clients());
        Error::Deadlock { names, clients, reason: self.to_line() }
    }

    /// Tells the circle to the other clients, if it has others.
    fn to_others(&self, client: &str) -> Option<Telling> {
        let mut clients = self.clients();
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|other| other != client);
        let message = || Probe { number: 0, path: self.0.clone() }.encode();
        (!clients.is_empty()).then(|| Telling { clients, message: message() })
    }

    /// Describes which client waits for which.
    pub(super) fn to_line(&self) -> String {
        let calls = &self.0;
        let holders = calls.iter().skip(1).chain(calls.first());
        let mut line = format!("deadlock: {}", short(&calls[0].client));
        for (place, (call, holder)) in iter::zip(calls, holders).enumerate() {
            let and = if place == 0 { "" } else { ", which" };
            let (name, holder) = (&call.name, short(&holder.client));
            let part = write!(line, "{and} waits for lock {name:?}, held by {holder}");
            part.expect("a string takes whatever is written");
        }
        line
    }
}

/// The label of a client, and enough of its id to find it.
fn short(client: &str) -> &str {
    let random = client.rfind(':').map_or(0, |colon| colon + 1);
    client.get(..random + 8).unwrap_or(client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::time::Instant;

    use crate::config::LockOptions;
    use crate::protocol::call::tests::caller;
    use crate::store::hold_id::HoldId;

    const NAMES: usize = 4;
    const CLIENTS: usize = 3;

    #[derive(Default)]
    struct Thread {
        /// What it holds, by the number of the name.
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
        queues: WaitQueues,
        clients: [Deadlocks; CLIENTS],
        threads: Vec<Thread>,
        nonces: u64,
        messages: Vec<(usize, u64, String)>,
        calls: HashMap<(usize, u64), Known>,
        /// The circles that each client has reported.
        reported: Vec<(usize, Circle)>,
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
            let hold =
                Hold::new(id, 1, 0, &caller(&LockOptions::default()), Moment::now(), Moment::now());
            self.threads[thread].holds.push((name, Arc::new(hold)));
        }

        fn wait(&mut self, thread: usize, name: usize) {
            let (client, it) = (thread % CLIENTS, &mut self.threads[thread]);
            let call = WaitingCall {
                client: id(client),
                number: 0,
                began: self.now as u64,
                may_fail: false,
                name: name.to_string(),
            };
            let holds = it.holds.iter().map(|(_, hold)| hold.clone());
            let number = self.clients[client].add(call, &it.parker, holds);
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
            let (client, nonce, text) = if again {
                self.messages[message].clone()
            } else {
                self.messages.swap_remove(message)
            };
            let circle = self.clients[client].receive(&self.queues, &id(client), nonce, &text);
            self.report(client, circle);
        }

        /// Checks that a circle existed as a whole at some time, and sends what threads have to.
        fn report(&mut self, client: usize, circle: Option<Circle>) {
            if let Some(circle) = circle {
                let known = |call: &WaitingCall| {
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
                    let number =
                        |client: &String| usize::from_str_radix(client, 16).expect("an id");
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
                    assert!(hold.end(Moment::now()));
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
    fn every_circle_is_reported_and_none_that_has_never_existed() {
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
                let is_it = |call: &WaitingCall| call.client == id(client) && call.number == number;
                let has_it =
                    |(by, circle): &&(usize, Circle)| *by == client && circle.0.iter().any(is_it);
                // An earlier circle of the call may have opened.
                let reported = world.reported.iter().filter(has_it).count();
                assert!(reported > 0, "seed {seed}: {client} {number}");
            }
        }
        assert!(early > 20 && late > 100, "{early} {late}");
    }

    /// The second call ends before the third begins, which the probe reaches later.
    #[test]
    fn calls_that_follow_one_another_are_no_circle() {
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
    fn a_message_that_is_no_probe_is_ignored() {
        let call = |number, name: &str| WaitingCall {
            client: id(7),
            number,
            began: 9,
            may_fail: true,
            name: name.into(),
        };
        let probe = Probe { number: 3, path: vec![call(1, "a,b;ü"), call(2, "")] };
        let text = probe.encode();
        assert_eq!(Probe::decode(&text), Some(probe));
        for (cut, _) in text.char_indices() {
            let whole = Probe::decode(&text[..cut]);
            assert!(whole.is_none_or(|probe| probe.path.len() == 1), "{cut}");
        }
        for odd in ["", ";", "1;", "x;1,1,1,1,1,", "1;1,1,1,99,1,a", "1;1,1,1,1,1,üü"] {
            assert_eq!(Probe::decode(odd), None, "{odd}");
        }
    }
}
