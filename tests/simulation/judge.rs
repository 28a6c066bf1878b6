//! The rules of every world, whatever goes wrong, and the excuses from them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::{self, Process};
use crate::error::Error;
use crate::event::Event;
use crate::simulation;
use crate::simulation::calls::{self, CallState, Held, Patience, Side};
use crate::simulation::deadlocks;
use crate::simulation::network::{Link, Network};
use crate::simulation::reasons::{Reason, excused};
use crate::simulation::record::{Asked, Said, Wish};
use crate::simulation::silence::{self, SILENCE};
use crate::simulation::world::{
    DIRECTOR, NAMES, NameState, SERVER, Usage, World, broken, is_locked, micros, text_of, time_of,
    with,
};
use crate::stats::Stats;
use crate::store::hold_id::HoldId;
use crate::store::memory::memory_server::MemoryServer;
use crate::store::request::{DETACHED, OFFER};

/// How often the judge inspects the whole world.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How late a call may end, because threads take time to wake up.
pub(super) const SLACK: Duration = Duration::from_millis(110);

/// How much longer than a tenure threads may hand a lock off, because they take time to wake up.
pub(super) const WAKE_UP: Duration = Duration::from_millis(20);

/// How far tokens may be ahead of the server's clock, in microseconds: a tenure takes a block of
/// them, and several grants may follow in quick succession.
const AHEAD: u64 = 2_000;

/// A hold that the server ends earlier than promised, so that another may overlap it.
pub(super) struct Excuse {
    pub(super) name: usize,
    pub(super) client: Process,
    /// The hold and its successors in the tenure have no later token than this, or their calls
    /// began before this time.
    pub(super) fence: u64,
    pub(super) begun_by: Instant,
    /// When the server ends it, and when it should have.
    pub(super) from: Instant,
    pub(super) until: Instant,
    /// By when its client learns of the end, unless a fault is in the way.
    pub(super) told: Option<Instant>,
}

/// A hold that began with a request whose outcome its client does not know.
pub(super) struct Unexpected {
    hold: HoldId,
    at: Instant,
    /// The greatest token at that time.
    token: u64,
}

impl Excuse {
    /// Returns `true` if this may be the hold, or another one of its tenure.
    pub(super) fn is_about(
        &self,
        client: Process,
        name: usize,
        fence: Option<u64>,
        begun: Instant,
    ) -> bool {
        let is_it = fence.map_or(begun <= self.begun_by, |fence| fence <= self.fence);
        self.client == client && self.name == name && is_it && clock::now() < self.until
    }
}

impl NameState {
    /// Returns how clients break the rule of turns, if they do: a client whose hold ended while
    /// others waited must not get the next one while these have an offer.
    fn check_turns(
        &mut self,
        holds: &[(HoldId, u32, Duration)],
        waiting: &[String],
        calls: &[&str],
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
        // A client does not get an exclusive lock while another one has been offered it.
        let waits = |client: &String| {
            let is_told = is_offered(client) || calls.contains(&&**client);
            waiting.contains(client) || self.usage == Usage::Lock && is_told
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

/// A hold as servers have it.
pub(super) struct HoldAtServers {
    name: usize,
    hold: HoldId,
    /// `false` if its name is only offered to its client, or stays taken though the hold has ended.
    is_held: bool,
    /// How long it lasts at each of them, the longest first.
    lasts: Vec<Duration>,
}

impl HoldAtServers {
    fn is_same(&self, other: &Self) -> bool {
        // The same hold may be a writer's at one time, and a reader's at another.
        let is_alike = self.hold == other.hold && self.hold.kind == other.hold.kind;
        is_alike && (self.name, self.is_held) == (other.name, other.is_held)
    }
}

impl World {
    /// Records the holders and the waiting clients of each name at the server.
    pub(super) fn look_at_server(&mut self) {
        let now = clock::now();
        let (mut is_free, mut is_idle) = ([true; NAMES.len()], true);
        let Self { names, calls, clients, network, overtaken, .. } = self;
        for server in &network.servers {
            server.look(|key, client, holds| {
                is_idle = false;
                let Some(at) = names.iter().position(|name| name.key == key) else { return };
                let NameState { had_hold, had_waiter, .. } = &mut names[at];
                is_free[at] &= !holds;
                let seen = if holds { had_hold } else { had_waiter };
                match seen.get_mut(client) {
                    Some(at) => *at = now,
                    None => drop(seen.insert(client.to_owned(), now)),
                }
            });
        }
        for (at, name) in names.iter_mut().enumerate() {
            if executor::follows_course() && !network.is_quorum() {
                let server = &network.servers[SERVER];
                let (holds, waiting) = (server.holds(&name.key), server.waiting(&name.key));
                let calls = calls.values().filter(|call| call.is_about(at));
                let calls: Vec<_> = calls.map(|call| &*clients[call.client - 1].id).collect();
                let overtakes = name.check_turns(&holds, &waiting, &calls, now);
                *overtaken = overtaken.take().or(overtakes);
            }
            name.free_since = is_free[at].then(|| name.free_since.unwrap_or(now));
        }
        self.look_for_questions();
        if !is_idle {
            self.watch();
        }
    }

    /// Makes the judge inspect the world at intervals, because leases end and calls become overdue
    /// without any input.
    pub(super) fn watch(&mut self) {
        if !self.is_over && !mem::replace(&mut self.is_watched, true) {
            executor::after(DIRECTOR, LOOK, tick);
        }
    }

    /// Returns `true` if this is a guard of the name that trusts its lease.
    pub(super) fn trusts(&self, place: usize, name: usize) -> bool {
        let held = self.guards.get(place).and_then(Option::as_ref);
        held.is_some_and(|held| held.is_of(name) && held.is_held())
    }

    /// Returns `true` if the server may have forgotten the hold of a guard.
    pub(super) fn is_forgotten(&self, place: usize, name: usize) -> bool {
        let held = self.guards.get(place).and_then(Option::as_ref);
        held.is_some_and(|Held { owner, guard, begun, .. }| {
            self.excuses_of(*owner, name, guard.fence(name), *begun).next().is_some()
        })
    }

    /// Returns how much older than its guard a hold may be: its age counts from the request for the
    /// first hold of its tenure.
    pub(super) fn age_before(&self) -> Duration {
        let slow = if self.is_calm { Duration::ZERO } else { self.io_timeout };
        self.tenure + self.slack() + slow + self.acks
    }

    /// Returns when the world became calm, if it is.
    pub(super) fn settled_since(&self) -> Option<Instant> {
        let disturbed = self.clients.iter().map(|client| client.disturbed).max();
        disturbed.filter(|_| self.is_calm || self.is_healed)
    }

    /// Returns how long messages may travel, plus the time until a client listens again.
    pub(super) fn grace(&self) -> Duration {
        let recovery = Duration::from_secs(2) + self.io_timeout * 2;
        let recovery = if self.is_calm { Duration::ZERO } else { recovery };
        recovery + SLACK + self.network.latency * 60
    }

    /// Returns why the server may have forgotten a hold of `owner` by now.
    pub(super) fn excuses_of(
        &self,
        owner: Process,
        name: usize,
        fence: Option<u64>,
        begun: Instant,
    ) -> impl Iterator<Item = &Excuse> {
        let about = self.excuses.iter().filter(move |it| it.is_about(owner, name, fence, begun));
        about.filter(|it| it.from <= clock::now())
    }

    /// Returns `true` if the server has forgotten the hold, so that another may overlap it while
    /// its client may not know.
    fn is_forgotten_unknown(&self, held: &Held, name: usize) -> bool {
        let Held { owner, client, begun, .. } = *held;
        let (now, fence) = (clock::now(), held.guard.fence(name));
        let disturbed = self.clients[client - 1].disturbed;
        // A client also learns this from any other reply that the hold is gone.
        let ids = self.holds_of(client, name, fence.unwrap_or_default());
        let asked = ids.iter().flat_map(|id| self.record.of(name, id));
        let gone = asked.filter(|it| {
            let is_about = matches!(it.subject.wish, Wish::Check | Wish::Renew(_));
            is_about && it.client == client && it.said() == Said::No
        });
        let gone = gone.filter_map(Asked::answered).max().filter(|_| !self.network.is_quorum());
        let gone = gone.map(|at| self.due_after_stops(client, at + SLACK));
        // Only the client that acquired it gets this message.
        let is_known = |it: &Excuse| {
            owner == client && it.told.is_some_and(|told| told < now && disturbed < it.from)
                || gone.is_some_and(|at| it.from + SLACK <= at && at < now)
        };
        self.excuses_of(owner, name, fence, begun).any(|it| !is_known(it))
    }

    /// Returns `true` if another hold may overlap this one, perhaps because a user of its ticket
    /// has ended it.
    fn is_excused(&self, held: &Held, name: usize) -> bool {
        held.has_ended(self) || self.is_forgotten_unknown(held, name)
    }

    /// Sets the time by which clients learn from messages of this server that these holds have just
    /// ended, unless a fault is in the way. The message about a hold whose call has not returned
    /// yet may overtake its reply.
    pub(super) fn expect_told(&mut self, ended: Range<usize>, server: usize, now: Instant) {
        let told = now + SLACK + self.network.latency * 60;
        for at in ended.clone() {
            let Excuse { client, name, .. } = self.excuses[at];
            let is_same = |it: &&Excuse| it.client == client && it.name == name;
            let holds = self.excuses[ended.clone()].iter().filter(is_same).count();
            let guards = self.guards.iter().flatten();
            let guards = guards.filter(|it| it.client == client && it.is_of(name)).count();
            let link = &self.network.links[client - 1];
            let hears = !self.network.weather.is_bad() && link.hears(server, now);
            self.excuses[at].told = (hears && guards >= holds).then_some(told);
        }
    }

    /// Returns the holds of each name, each with its remaining time at each server, the longest
    /// first.
    pub(super) fn holds(&self) -> Vec<HoldAtServers> {
        let mut holds: Vec<HoldAtServers> = Vec::new();
        for (number, name) in self.names.iter().enumerate() {
            for server in &self.network.servers {
                for (hold, depth, left) in server.holds(&name.key) {
                    let new =
                        HoldAtServers { name: number, hold, is_held: depth > 0, lasts: vec![left] };
                    match holds.iter_mut().find(|it| it.is_same(&new)) {
                        Some(known) => known.lasts.push(left),
                        None => holds.push(new),
                    }
                }
            }
        }
        for it in &mut holds {
            it.lasts.sort_unstable_by(|one, other| other.cmp(one));
        }
        holds
    }

    /// Records the holds that have begun since, without a call.
    pub(super) fn note_unasked(&mut self, before: &[HoldAtServers]) {
        let unasked = self.begun_since(before);
        self.unasked.extend(unasked);
    }

    /// Records the holds that more servers of a quorum have than before, because one went back to
    /// older data.
    fn note_regained(&mut self, before: &[HoldAtServers]) {
        for regained in self.holds() {
            let known = before.iter().find(|it| it.is_same(&regained));
            if known.is_some_and(|it| it.lasts.len() < regained.lasts.len()) {
                let (at, token) = (clock::now(), self.last_token());
                self.unasked.push(Unexpected { hold: regained.hold, at, token });
            }
        }
    }

    /// Records the holds that a late request has begun.
    pub(super) fn note_late(&mut self, before: &[HoldAtServers]) {
        self.changes += 1;
        let late = self.begun_since(before);
        self.late.extend(late);
    }

    /// Returns the holds that have begun since the servers had these, or are back after their end.
    fn begun_since(&self, before: &[HoldAtServers]) -> Vec<Unexpected> {
        let mut begun = Vec::new();
        for new in self.holds() {
            if !before.iter().any(|it| it.is_same(&new)) {
                let (at, token) = (clock::now(), self.last_token());
                begun.push(Unexpected { hold: new.hold, at, token });
            }
        }
        begun
    }

    /// Returns the greatest token that a server remembers having given.
    fn last_token(&self) -> u64 {
        let tokens = self.network.servers.iter().map(|it| it.memory.last_token());
        tokens.max().unwrap_or_default()
    }

    /// Returns `true` if a hold began with a request that its client does not know of.
    pub(super) fn is_unasked(&self, hold: &HoldId) -> bool {
        self.unasked.iter().any(|it| it.hold == *hold)
    }

    /// Returns `true` if a hold that was over is back on the servers, and its client has since
    /// neither released nor verified it.
    pub(super) fn is_back(&self, name: usize, hold: &HoldId) -> bool {
        self.is_unexpected(&self.unasked, name, hold)
    }

    /// Returns the same for a hold that a late request has begun.
    pub(super) fn was_late(&self, name: usize, hold: &HoldId) -> bool {
        self.is_unexpected(&self.late, name, hold)
    }

    fn is_unexpected(&self, unexpected: &[Unexpected], name: usize, hold: &HoldId) -> bool {
        let Some(last) = unexpected.iter().rfind(|it| it.hold == *hold) else { return false };
        let later = self.record.of(name, hold).filter(|it| it.sent > last.at);
        let ended = later.filter(|it| match it.subject.wish {
            Wish::Release => it.said().is_answer(),
            Wish::Check | Wish::Renew(_) => it.said() == Said::No,
            Wish::Acquire(_) | Wish::Other => false,
        });
        ended.count() < self.required()
    }

    /// Changes the data of a server, or its clock. Others may overlap the holds that end earlier
    /// because of this, until the time when these would have ended, unless they are `safe`. A hold
    /// of a quorum ends when it no longer has a majority.
    pub(super) fn change_server(
        &mut self,
        server: usize,
        is_safe: bool,
        change: impl FnOnce(&mut Network),
    ) {
        self.look_at_server();
        self.look_at_clock();
        let (now, before) = (clock::now(), self.holds());
        let fence = self.last_token();
        let counter = self.network.servers[server].memory.last_token();
        change(&mut self.network);
        self.look_at_clock();
        let is_counter_lost = self.network.servers[server].memory.last_token() < counter;
        self.note_unasked(&before);
        self.note_regained(&before);
        self.changes += 1;
        self.excuse_ended(before, fence, is_safe);
        // A lost counter continues to grow only if the clock is not behind.
        let required = self.required();
        let next = self.next_token(server);
        if self.network.is_quorum() {
            self.counters_lost += usize::from(is_counter_lost);
            // With an even number of servers, two majorities share more than one.
            let few = self.counters_lost < 2 * required - self.network.servers.len();
            if !few && !self.clocks_behind.is_zero() {
                // Until then, some clocks may show a time that others showed before the loss.
                let until = now + self.clocks_behind * 2 + self.io_timeout * 2;
                self.tokens_repeat_until = self.tokens_repeat_until.max(Some(until));
            }
            if few {
                return self.look_at_server();
            }
        }
        if fence >= next {
            self.lowered = Some((now, next - 1));
        }
        for name in &mut self.names {
            name.fence = name.fence.min(next - 1);
            if !is_safe {
                name.written = 0;
            }
        }
        self.look_at_server();
    }

    /// Records which of these holds end earlier than they would have, so that others may overlap
    /// them. At that time, no later token than `fence` had been given.
    fn excuse_ended(&mut self, before: Vec<HoldAtServers>, fence: u64, is_safe: bool) {
        // This must not use the clock of the server that executes a request.
        let now = executor::skewed(0, clock::now);
        let (after, required) = (self.holds(), self.required());
        for ended in before {
            let remains = after.iter().find(|it| it.is_same(&ended));
            let remains = remains.and_then(|it| it.lasts.get(required - 1).copied());
            let HoldAtServers { name, hold, lasts, .. } = ended;
            let (left, remains) = (lasts[0], remains.unwrap_or_default());
            let client = self.clients.iter().position(|it| *it.id == *hold.client);
            if let Some(client) = client.filter(|_| remains < left && !is_safe) {
                // It may be stopped before it learns of this.
                let clock = executor::now().unwrap_or_default();
                let stopped = executor::paused_until(client + 1).unwrap_or_default();
                let learns = self.io_timeout + Duration::from_millis(10);
                // After an earlier change, the server may have an older hold in place of this one.
                let older = self
                    .excuses
                    .iter()
                    .filter(|it| (it.client, it.name) == (client + 1, name) && it.from > now);
                let before = older.map(|it| it.fence).max();
                self.excuses.push(Excuse {
                    name,
                    client: client + 1,
                    fence: before.map_or(fence, |before| before.max(fence)),
                    begun_by: now + stopped.saturating_sub(clock) + learns,
                    // Its clock may be too fast by the drift that leases allow for.
                    from: now + remains * 99 / 100,
                    until: now + left,
                    told: None,
                });
            }
        }
    }

    /// Makes a client end a hold of a name by force, and records which hold that ends.
    pub(super) fn force<T>(&mut self, text: &str, act: impl FnOnce() -> T) -> T {
        let before = self.holds();
        let fence = self.last_token();
        let result = act();
        if let Some(name) = self.names.iter_mut().find(|name| name.name == text) {
            name.was_forced = true;
        }
        self.changes += 1;
        self.excuse_ended(before, fence, false);
        result
    }

    /// Checks that the server has no holds that their clients no longer use.
    fn check_holds(&mut self) -> Result<(), String> {
        let now = clock::now();
        // A quorum removes the effects of late requests when it next asks that server.
        let is_settled = self.is_calm || self.is_healed && !self.network.is_quorum();
        let most = Duration::from_millis(100) + self.network.latency * 20;
        // A release may take up to a third of the lease, and its repeat follows within a 20th.
        // Where a clock was set back, a hold outlasts the repeats.
        let set_back = self.set_back();
        let left_most = most + self.acks + self.lease / 3 + self.lease / 20 + set_back;
        for at in 0..self.names.len() {
            let holds = self.network.holds(&self.names[at].key);
            let mut unused = mem::take(&mut self.names[at].unused);
            let NameState { name, keep, .. } = &self.names[at];
            // A call for several locks waits for one of them.
            let calls = self.calls.values().filter(|call| call.name == at);
            let calls = calls.filter(|call| !call.side.is_set());
            let first_call = calls.map(|call| call.begun).min();
            for (hold, depth, left) in &holds {
                if *depth > 1 && *depth != DETACHED && self.deadlocks.is_none() {
                    return Err(format!(
                        "{name:?} has a hold with {depth} levels: {}",
                        text_of(hold)
                    ));
                }
                if self.is_calm
                    && !self.network.is_quorum()
                    && hold.nonce == 0
                    && *left + most < OFFER
                    && first_call.is_some_and(|begun| begun + most < now)
                {
                    let client = &hold.client;
                    return Err(format!("{name:?} is offered to {client} while a call waits"));
                }
            }
            let is_used = |hold: &HoldId| {
                let client = self.clients.iter().position(|it| it.id == *hold.client);
                let Some(client) = client.map(|client| client + 1) else { return true };
                let state = &self.clients[client - 1];
                let guards = self.guards.iter().flatten();
                let guards = guards.filter(|it| it.is_of(at) && it.client == client).count();
                let calls = self.calls.values();
                let calls = calls.filter(|it| it.is_about(at) && it.client == client).count();
                let releasing = self.releasing.iter().filter(|it| **it == (client, at)).count();
                let users = guards + calls + releasing;
                // Each permit has its own user, unless a late request has taken another one.
                let is_one = |(it, ..): &&(HoldId, u32, Duration)| {
                    it.nonce > 0 && it.client == hold.client && hold.kind.row().is_several
                };
                state.disturbed > now
                    || self.is_back(at, hold)
                    || self.may_be_adopted(hold)
                    || users > 0 && (!self.is_calm || users >= holds.iter().filter(is_one).count())
            };
            // A lock that its client has released may stay taken.
            let of_clients = holds.iter().filter(|(_, depth, _)| *depth > 0);
            let of_clients = of_clients.map(|(hold, ..)| hold.clone());
            let of_clients = of_clients.filter(|it| it.nonce > 0);
            let found = of_clients.filter(|hold| is_settled && keep.is_none() && !is_used(hold));
            let found: Vec<_> = found.collect();
            unused.retain(|(hold, _)| found.contains(hold));
            for hold in found {
                match unused.iter().find(|(it, _)| *it == hold) {
                    None => unused.push((hold, now)),
                    Some((_, since)) if *since + left_most < now => {
                        return Err(format!(
                            "{name:?} has a hold that its client left: {}",
                            text_of(&hold)
                        ));
                    }
                    Some(_) => {}
                }
            }
            self.names[at].unused = unused;
        }
        (0..self.guards.len()).try_for_each(|place| self.check_exclusion(place))
    }

    /// Returns `true` if a name has been free for longer than this.
    pub(super) fn is_free_for(&self, at: usize, most: Duration) -> bool {
        let name = &self.names[at];
        let is_held = self.guards.iter().flatten().any(|it| it.is_of(at))
            || self.releasing.iter().any(|(_, name)| *name == at);
        let last_guard = name.had_guard.values().max().copied();
        // A lock that a client only keeps is free too.
        let kept_since = last_guard.map(|at| name.taken_at.max(at)).filter(|_| self.is_calm);
        // A guard may have outlasted its hold.
        let free_since = name.free_since.max(last_guard.filter(|_| name.free_since.is_some()));
        let free_since = free_since.or(kept_since);
        !is_held && free_since.is_some_and(|since| clock::now() > since + most)
    }

    /// Records the latest time on the only server.
    fn look_at_clock(&mut self) {
        if !self.network.is_quorum() {
            let clock = |_: &MemoryServer| micros(clock::unix_time());
            let time = self.network.servers[SERVER].at_its_time(clock);
            let (at, seen) = self.clock_seen;
            let passed = micros(clock::elapsed(at) * 102 / 100);
            self.clock_seen = (clock::now(), time.max(seen + passed));
        }
    }

    /// Records a new guard of a name, and checks that it is allowed.
    fn note_hold(
        &mut self,
        held: &Held,
        name: usize,
        grows: impl Fn(u64, u64, Side) -> bool,
    ) -> Result<(), String> {
        let Held { client, owner, side, begun, left, .. } = *held;
        let (fence, is_held) = (held.guard.fence(name), held.is_held());
        // A tenure that the server has forgotten continues with its tokens until it ends.
        let is_forgotten = |name: usize| {
            let fence = held.guard.fence(name);
            self.excuses.iter().any(|it| it.is_about(owner, name, fence, begun))
        };
        let is_part_forgotten = (0..self.names.len()).any(|at| held.is_of(at) && is_forgotten(at));
        let forgotten = (Reason::ServerForgot, is_forgotten(name));
        let ended = (Reason::LeftToAdopt, left.is_some_and(|at| self.ends(at) > 0));
        let repeated = (Reason::TokensRepeat, self.tokens_may_repeat());
        let is_excused = forgotten.1 || ended.1 || repeated.1;
        let fence = fence.unwrap_or(0);
        self.look_at_clock();
        if !self.network.is_quorum() && fence > self.clock_seen.1 + AHEAD {
            let ahead = fence - self.clock_seen.1;
            return Err(format!("the fence of name {name} is {ahead} µs ahead of the clock"));
        }
        // It may have the token of a hold that came back with older data.
        let id = &self.clients[client - 1].id;
        let is_of = |hold: &HoldId| *hold.client == **id && *hold.name == *self.names[name].name;
        let is_back = self.unasked.iter().any(|it| is_of(&it.hold) && fence <= it.token);
        let state = &mut self.names[name];
        state.had_guard.insert(client, clock::now());
        let last = if side == Side::Reader { state.written } else { state.fence };
        let is_alone = matches!(side, Side::Alone | Side::Own | Side::Set(_));
        if is_alone && !is_excused {
            // The server may have forgotten a token before its reply arrived.
            let sent = self.record.sent_for(name, owner, fence);
            let lowered = self.lowered.filter(|(at, _)| sent.is_none_or(|sent| sent <= *at));
            let fence = lowered.map_or(fence, |(_, token)| token.min(fence));
            (state.fence, state.written) = (state.fence.max(fence), state.written.max(fence));
        }
        let part_forgotten = (Reason::ServerForgot, is_part_forgotten);
        if !is_held && !excused(&[part_forgotten, ended]) {
            return Err(format!("client {client} gets a hold that is over"));
        }
        let reasons = [forgotten, ended, repeated, (Reason::HoldIsBack, is_back)];
        if is_held && !grows(last, fence, side) && !excused(&reasons) {
            return Err(format!("the fence of {:?} is {fence} after {last}", state.name));
        }
        // A set may have waited for its other locks after it got this one.
        let is_tenure = is_alone && left.is_none() && !side.is_set();
        if is_tenure { self.note_tenure(client, name) } else { Ok(()) }
    }

    /// Records that a client has a guard of a lock, and checks that its threads do not hand it off
    /// for too long.
    fn note_tenure(&mut self, client: Process, name: usize) -> Result<(), String> {
        let now = clock::now();
        let state = &mut self.names[name];
        let is_one = !self.network.is_quorum();
        if !self.is_calm || !is_one || state.usage != Usage::Lock || state.keep.is_some() {
            return Ok(());
        }
        let holds = self.network.holds(&state.key);
        let id = &self.clients[client - 1].id;
        let hold = holds.into_iter().find(|(hold, ..)| hold.nonce > 0 && *hold.client == **id);
        let Some((hold, ..)) = hold else { return Ok(()) };
        match &state.tenure {
            Some((tenure, since)) if *tenure == hold => {
                let took = now - *since;
                if took > self.tenure + WAKE_UP {
                    return Err(format!("threads have handed {:?} off for {took:?}", state.name));
                }
            }
            _ => state.tenure = Some((hold, now)),
        }
        Ok(())
    }

    /// Returns `true` if the servers of a quorum may give a token again.
    fn tokens_may_repeat(&self) -> bool {
        self.tokens_repeat_until.is_some_and(|until| clock::now() < until)
    }

    /// Returns the smallest token that may be given next, now that a server's counter may be lost.
    fn next_token(&self, server: usize) -> u64 {
        if self.network.is_quorum() {
            return micros(clock::unix_time());
        }
        self.network.servers[server].next_token()
    }

    /// Returns an error if another guard is valid at the same time as this one and must not be.
    fn check_exclusion(&self, new: usize) -> Result<(), String> {
        let Some(Some(one)) = self.guards.get(new) else { return Ok(()) };
        if !one.is_held() {
            return Ok(());
        }
        for name in (0..self.names.len()).filter(|at| one.is_of(*at)) {
            let others = self.guards.iter().enumerate().filter(|(at, _)| *at != new);
            let others = others.filter_map(|(_, held)| held.as_ref());
            let others = others.filter(|it| it.is_of(name) && !it.is_same_as(one));
            let others: Vec<_> = others.filter(|it| it.is_held()).collect();
            let NameState { name: text, usage, .. } = &self.names[name];
            let are_too_many = |others: &[&Held]| match *usage {
                Usage::Lock => !others.is_empty(),
                Usage::Semaphore(permits) => others.len() + 1 > permits as usize,
                Usage::ReadWrite => {
                    let is_alone = one.side == Side::Alone;
                    others.iter().any(|it| is_alone || it.side == Side::Alone)
                }
            };
            if !are_too_many(&others) {
                continue;
            }
            let have_ended =
                [one].into_iter().chain(others.iter().copied()).any(|it| it.has_ended(self));
            let all = [one].into_iter().chain(others.iter().copied());
            let are_forgotten = all.into_iter().any(|it| self.is_forgotten_unknown(it, name));
            let mut others = others;
            others.retain(|it| !self.is_excused(it, name));
            let is_one_excused = self.is_excused(one, name);
            if is_one_excused || !are_too_many(&others) {
                let reasons =
                    [(Reason::LeftToAdopt, have_ended), (Reason::ServerForgot, are_forgotten)];
                excused(&reasons);
            } else {
                let with = others.iter().map(|it| (it.client, it.guard.fence(name)));
                let with: Vec<_> = with.collect();
                let (client, fence) = (one.client, one.guard.fence(name));
                return Err(format!(
                    "{text:?} is held by client {client} ({fence:?}) and by {with:?} at the same \
                     time"
                ));
            }
        }
        Ok(())
    }

    /// Returns `true` if a call of a client that began then may fail with this error.
    pub(super) fn may_fail(&self, error: &Error, client: Process, begun: Instant) -> bool {
        let Self { network, io_timeout, lease, .. } = self;
        let client = &self.clients[client - 1];
        // Queued calls share the failure of an earlier request, even if its client was stopped, or
        // withdrew it, in the meantime.
        let was = |at: Option<Instant>, within: Duration| {
            at.is_some_and(|at| at + within + client.stopped >= begun)
        };
        match error {
            Error::Closed => client.closed.is_some(),
            Error::Unavailable { .. } => !self.is_calm,
            Error::NoQuorum { .. } => !self.is_calm && network.is_quorum(),
            Error::Redis { .. } => {
                network.servers.iter().any(|it| was(it.refused_until, *io_timeout))
            }
            Error::NotReplicated { .. } => was(network.fell_short, *io_timeout * 2 + *lease * 2),
            _ => false,
        }
    }

    /// Returns `true` if another owner had the name, or waited for it, since the call began.
    pub(super) fn was_contended(&self, call: &CallState, name: usize) -> bool {
        let CallState { client, begun, patience, .. } = *call;
        let state = &self.names[name];
        let own = &self.clients[client - 1].id;
        // A call that does not wait relies on the last reply to an earlier call.
        let before = match patience {
            Patience::None => self.backoff_max + self.io_timeout,
            // The reply may have been on its way when the call began, or waited for its process.
            Patience::For(_) | Patience::Endless => {
                let thread = Duration::from_millis(2);
                // A quorum may decide by old votes after waiting for others without success.
                let waits = self.has_slow_replies || !self.is_calm && self.network.is_quorum();
                let slow = if waits { self.io_timeout } else { Duration::ZERO };
                self.network.latency * 6 + self.acks + slow + thread
            }
        };
        let since = begun.checked_sub(before + self.clients[client - 1].stopped).unwrap_or(begun);
        let others = |seen: &BTreeMap<String, Instant>| {
            seen.iter().any(|(id, at)| id != own && *at >= since)
        };
        let is_held = self.guards.iter().flatten().any(|it| it.is_of(name) && it.client == client);
        let is_awaited = self.calls.values().any(|it| it.is_about(name) && it.client == client);
        let was_held = state.had_guard.get(&client).is_some_and(|at| *at >= since)
            || self.releasing.contains(&(client, name));
        // An abandoned request may have begun a hold of this client, which forgets it once one
        // release was answered. A call for several locks first releases its client's kept locks,
        // and may have no time left after that.
        let is_first = state.keep.is_some()
            && call.side.is_set()
            && matches!(patience, Patience::For(time) if time < self.network.latency * 20);
        let was_tried = state.taken_at >= since;
        let is_own_name =
            |it: &Unexpected| *it.hold.client == **own && *it.hold.name == *state.name;
        let is_unexpected = self.unasked.iter().chain(&self.late).any(is_own_name);
        // If servers do not answer, a call ends without giving up its place, to which the name may
        // then be offered. The next call may want the name as another kind.
        let mut recent =
            self.record.latest(name).take_while(|it| it.sent + OFFER + self.io_timeout >= since);
        let keeps_place = recent.any(|it| it.client == client && !it.said().is_answer());
        // A hold that falls short of its durability exists until it is withdrawn.
        let fell_short = self.network.fell_short.is_some_and(|at| at >= since);
        let may_be_own = fell_short
            || is_unexpected
            || self.has_left(client, name)
            || self.stayed_taken(client, name, since)
            || is_awaited
            || is_first
            || keeps_place
            || was_tried;
        // However old, it counts for a call that does not wait, or waits for less time than a reply
        // takes. A call for several may have this one.
        let mut calls = self.calls.values().filter(|it| it.is_about(name) && it.client == client);
        let is_brief = match patience {
            Patience::None => true,
            Patience::For(time) => time < self.network.latency * 6,
            Patience::Endless => false,
        };
        let is_behind = is_awaited && is_brief || calls.any(|it| it.side.is_set());
        let is_own = may_be_own && state.had_hold.get(own).is_some_and(|at| *at >= since);
        // A thread that has just got it may not have returned yet.
        let now = clock::now();
        let asked = self.record.latest(name).take_while(|it| it.sent >= since);
        let mut granted = asked.filter(|it| it.client == client && it.said().is_yes());
        let was_granted = granted.any(|it| {
            let is_new = it.answered().is_some_and(|at| now < at + WAKE_UP);
            is_new && matches!(it.subject.wish, Wish::Acquire(_))
        });
        others(&state.had_hold)
            || others(&state.had_waiter)
            || is_held
            || was_held
            || was_granted
            || is_behind
            || excused(&[(Reason::OwnHold, is_own)])
    }
}

impl World {
    /// Returns the client whose turn comes before the one that asks for a side or a permit, perhaps
    /// one that it was `offered`. The current clock is that of the server, which is executing the
    /// request.
    pub(super) fn first_waiter(&self, hold: &HoldId, offered: bool) -> Option<String> {
        if hold.kind.is_lock() {
            return None;
        }
        let now = executor::skewed(0, clock::now);
        let name = self.names.iter().find(|name| *name.name == *hold.name)?;
        let holds = self.network.servers[SERVER].memory.holds(&name.key);
        let is_own = |it: &HoldId| {
            it.client == hold.client && (it.nonce == hold.nonce || it.nonce == 0 && offered)
        };
        if holds.iter().any(|(it, ..)| is_own(it)) {
            return None;
        }
        let first = self.network.servers[SERVER].memory.waiting(&name.key).into_iter().next()?;
        let client = self.clients.iter().position(|it| first.ends_with(&it.id))?;
        let is_there = self.clients[client].closed.is_none()
            && self.clients[client].disturbed < now
            && self.network.links[client].hears(SERVER, now);
        (is_there && !first.ends_with(&*hold.client)).then_some(first)
    }

    /// Returns `true` if a client is still at the head of the queue of a name.
    pub(super) fn is_first(&self, hold: &HoldId, waiter: &str) -> bool {
        let name = self.names.iter().find(|name| *name.name == *hold.name);
        let first = name.map(|name| self.network.servers[SERVER].memory.waiting(&name.key));
        first.is_some_and(|queue| queue.first().is_some_and(|first| first == waiter))
    }
}

thread_local! {
    /// The events that are not judged yet: inspecting a guard may reveal that its lease is over
    /// while the world is locked.
    static HEARD: RefCell<VecDeque<(Process, Event)>> = const { RefCell::new(VecDeque::new()) };
}

/// Forgets the events of another world.
pub(super) fn forget_events() {
    HEARD.take();
}

/// Receives the events of all clients.
pub(super) fn observe(process: Process, event: &Event) {
    let process = calls::looks_as().unwrap_or(process);
    HEARD.with_borrow_mut(|heard| heard.push_back((process, event.clone())));
    if let Event::Deadlock { names, clients } = event {
        return deadlocks::hear(process, names, clients);
    }
    judge_events();
}

fn judge_events() {
    while !is_locked()
        && let Some((process, event)) = HEARD.with_borrow_mut(VecDeque::pop_front)
    {
        let checked = with(|world| {
            world.clients[process - 1].ledger.note(&event)?;
            world.check_loss(process, &event)
        });
        if let Err(why) = checked {
            broken(&format!("client {process}: {why}"));
        }
        judge_event(process, &event);
    }
}

/// Checks that the end of a hold is reported once, and before the next one of the client begins,
/// whatever happens.
fn judge_event(process: Process, event: &Event) {
    let (name, fence, begins) = match event {
        Event::Acquired { name, fence, .. } => (name, fence, true),
        Event::Released { name, fence, .. }
        | Event::ReleaseFailed { name, fence, .. }
        | Event::Lost { name, fence, .. } => (name, fence, false),
        _ => return,
    };
    let is_in_order = with(|world| {
        let may_repeat = world.tokens_may_repeat();
        let World { left, names, .. } = world;
        let is_meant = |it: &&mut NameState| it.name == *name && it.usage == Usage::Lock;
        let Some(NameState { reported, .. }) = names.iter_mut().find(is_meant) else { return true };
        if begins {
            let open = reported.entry(process).or_default();
            // A client may adopt a hold that it already has.
            let is_next = open.iter().all(|other| other == fence && !left.is_empty());
            open.push(*fence);
            return is_next;
        }
        // A guard may be inspected on behalf of no process. Then several clients may have adopted
        // the hold.
        let own = reported.get_mut(&process).filter(|open| open.contains(fence));
        let mut is_open = own.is_some();
        if let Some(own) = own {
            own.iter().position(|other| other == fence).map(|at| own.swap_remove(at));
        } else {
            for open in reported.values_mut() {
                is_open |= open.contains(fence);
                open.retain(|other| other != fence);
            }
        }
        let was_left =
            left.iter().any(|left| names[left.name].name == *name && left.fence == *fence);
        is_open || excused(&[(Reason::TokensRepeat, may_repeat), (Reason::LeftToAdopt, was_left)])
    });
    if !is_in_order {
        broken(&format!("client {process} reports {event:?} out of order"));
    }
}

/// Inspects the server after it has executed a request.
pub(super) fn check_server() {
    let overtaken = with(|world| {
        world.look_at_server();
        world.overtaken.take().filter(|_| world.is_calm)
    });
    if let Some(why) = overtaken {
        broken(&why);
    }
}

/// The rules that no step of the simulation may break.
pub(super) fn check_step(client: Process) {
    judge_events();
    if simulation::HAS_PANICKED.get() {
        broken("a thread has panicked");
    }
    let broken_by = with(|world| {
        let before = world.age_before();
        let (now, is_calm) = (clock::now(), world.is_calm);
        for place in 0..world.guards.len() {
            let Some(held) = world.guards[place].as_ref().filter(|it| it.client == client) else {
                continue;
            };
            let is_held = held.is_held();
            if is_held && held.over_since.is_some() {
                return Some(format!("a lost hold of client {client} is held again"));
            }
            let is_ended = held.has_ended(world) || held.is_of_age(before);
            if is_held && held.is_too_old() {
                return Some(format!("client {client} has a hold for longer than it may"));
            }
            if !is_held && is_calm && !is_ended {
                return Some(format!("client {client} loses a hold, though nothing went wrong"));
            }
            if is_held || held.over_since.is_some() {
                continue;
            }
            // Its client releases a hold that it takes for lost.
            let left = held.left;
            if let Some(held) = &mut world.guards[place] {
                held.over_since = Some(now);
            }
            if let Some(at) = left {
                world.note_end(at);
            }
        }
        None
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
}

/// Records a new guard, and checks that no other one is valid, and that tokens grow.
pub(super) fn begin_hold(held: Held, grows: impl Fn(u64, u64, Side) -> bool) -> usize {
    let result = with(|world| {
        world.tally.acquired += 1;
        world.tally.sets += u64::from(held.side.is_set());
        let place = world.guards.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            world.guards.push(None);
            world.guards.len() - 1
        });
        let names = (0..world.names.len()).filter(|at| held.is_of(*at)).collect::<Vec<_>>();
        let checks = names.into_iter().map(|name| world.note_hold(&held, name, &grows));
        let checks = checks.collect::<Result<Vec<()>, String>>();
        world.guards[place] = Some(held);
        world.watch();
        checks?;
        world.check_exclusion(place)?;
        Ok(place)
    });
    result.unwrap_or_else(|why: String| broken(&why))
}

/// Looks for a call that waits for a free name.
fn tick() {
    let broken_by = with(|world| {
        world.is_watched = false;
        world.look_at_server();
        let is_busy = !world.calls.is_empty() || world.guards.iter().any(Option::is_some);
        if is_busy || !world.releasing.is_empty() {
            world.watch();
        }
        if (is_busy || world.is_calm)
            && let Err(why) = world.check_holds()
        {
            return Some(why);
        }
        if let Err(why) = world.check_watches().and_then(|()| world.check_leftovers()) {
            return Some(why);
        }
        if let Err(why) = world.check_taken() {
            return Some(why);
        }
        let now = clock::now();
        let retry = Duration::from_millis(500);
        let World { backoff_max, io_timeout, .. } = *world;
        // In a calm world every release wakes the next client, unless the servers of a quorum offer
        // the lock to different ones.
        let wakes = world.is_calm && !world.network.is_quorum();
        // A message that a client relies on may have been lost before everything was healed.
        let silence = if world.is_calm { backoff_max } else { backoff_max.max(SILENCE) };
        let pause = if wakes { Duration::from_millis(100) } else { silence + OFFER * 2 };
        let most = pause + world.network.latency * 20;
        let unguarded_most =
            if world.is_reliable { most } else { most + world.lease * 2 + io_timeout };
        let is_explored = executor::follows_course();
        if let Some(why) = silence::check(world, now) {
            return Some(why);
        }
        for at in 0..world.names.len() {
            let mut guards = world.guards.iter().flatten();
            if guards.any(|held| held.is_of(at) && held.is_held()) {
                world.names[at].unguarded_since = now;
            }
            let mut calls = world.calls.values().filter(|call| call.is_about(at));
            let is_taken = world.may_be_left(at) || world.may_stay_taken(at);
            if is_taken || calls.any(|call| call.side.is_set()) {
                world.names[at].taken_at = now;
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
            let client = &world.clients[call.client - 1];
            // A call for several locks may have met another one, and pauses after that.
            let most = most + if call.side.is_set() { backoff_max * 2 } else { LOOK };
            let is_disturbed = now < client.disturbed + retry + io_timeout + most;
            let names = (0..world.names.len()).filter(|at| call.is_about(*at));
            let text = &world.names[call.name].name;
            // By then, everything that a client without guards has left behind has ended.
            let unguarded = names.clone().map(|at| world.names[at].unguarded_since).max();
            let unguarded = unguarded.max(Some(call.begun)).max(Some(client.disturbed));
            let has_waited = unguarded.is_some_and(|since| now > since + unguarded_most);
            if is_explored && client.closed.is_none() && has_waited {
                return Some(format!("call {number} waits, though {text:?} has no guard"));
            }
            if !world.is_healed && !world.is_calm {
                continue;
            }
            let is_free = names.clone().all(|at| world.is_free_for(at, most));
            let is_closed = client.closed.is_some();
            if is_free && now > call.begun + most && !is_disturbed && !is_closed {
                let CallState { patience, side, .. } = call;
                let (client, since) = (call.client, time_of(call.begun));
                return Some(format!(
                    "call {number} ({side:?}, {patience:?}) of client {client} waits since \
                     {since}, though {text:?} is free"
                ));
            }
        }
        None
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
}

/// Checks that nothing is left, on the server or on the way to it.
pub(super) fn check_quiet() {
    with(World::look_at_server);
    let broken_by = with(|world| {
        world.is_over = true;
        for (at, name) in world.names.iter().enumerate() {
            for server in &world.network.servers {
                let (holds, waiting) = (server.holds(&name.key), server.waiting(&name.key));
                // A late request may have left a place in the queue, which the next release
                // removes. In a quorum, a client leaves the queues when a guard is dropped, but not
                // when a kept or detached hold ends.
                let is_left = world.left.iter().any(|left| left.name == at);
                let is_dropped = name.keep.is_none() && !is_left;
                let is_tidy = world.is_calm && (is_dropped || !world.network.is_quorum());
                if !holds.is_empty() || is_tidy && !waiting.is_empty() {
                    let holds: Vec<_> =
                        holds.iter().map(|(hold, depth, _)| (text_of(hold), *depth)).collect();
                    return Some(format!("{:?} is not quiet: {holds:?}, {waiting:?}", name.name));
                }
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
}

/// Checks the reports and counters of a client at its end.
pub(super) fn check_ended(client: Process, stats: &Stats) {
    if let Err(why) = with(|world| world.clients[client - 1].ledger.check(stats)) {
        broken(&format!("client {client}: {why}"));
    }
    let ends = stats.released + stats.lost + stats.failed_releases;
    if stats.acquired != ends || stats.held + stats.waiting + stats.kept > 0 {
        broken(&format!("client {client} is not quiet: {stats:?}"));
    }
    let may_lose = |world: &mut World| {
        world.max_hold.is_some() || world.left.iter().any(|left| left.is_shared)
    };
    if stats.lost > 0 && with(|world| world.is_calm && !may_lose(world)) {
        broken(&format!("client {client} loses a hold, though nothing went wrong"));
    }
}
