//! Follows requests for a lock in the model of tenures, and if clients propose tokens to the
//! servers of a quorum, in the model of quorums as well.

use std::collections::BTreeSet;

use crate::hold::{Block, HoldId};
use crate::network::Request;
use crate::quorum::server as vote;
use crate::tenure::server::{Command, Grant, Reply, Server};
use crate::traces::call::{Call, Time};
use crate::traces::replay::{hold_of, number, says};

/// A possible state of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) server: Server,
    /// The end of the lease of the hold, or of the offer.
    ends: Time,
    /// Whether the last token was given with an answer that was not seen.
    is_token_unseen: bool,
    /// Waiting clients that were found without a listener, in order.
    silent: Vec<usize>,
    /// Those of them that have asked since.
    alive: BTreeSet<usize>,
    /// Clients that wait only for a moment, behind the others.
    trying: BTreeSet<usize>,
}

impl State {
    /// Executes a call in the model. Returns `None` if the model answers or behaves differently.
    pub(super) fn answer(&self, clients: &mut Vec<String>, call: &Call) -> Option<Self> {
        let mut next = self.clone();
        let is_right = match call.script.as_str() {
            "acquire" => next.acquire(clients, call)?,
            "release" => {
                let hold = hold_of(clients, call.arg(1))?;
                let ended = next.server.release(hold, None);
                // A lock withdrawn from a quorum is offered to no client.
                if ended && !call.arg(2).is_empty() {
                    next.wake(clients, call)?;
                }
                call.arg(4) == "0" && says(call, i64::from(ended))
            }
            "change" => {
                let hold = hold_of(clients, call.arg(1))?;
                let is_held = next.server.is_held_by(hold);
                if is_held && call.arg(2) != "0" {
                    next.ends = next.ends.or_later(call.time.after(call.micros(2)));
                }
                let watches = call.arg(3) == "watch";
                if call.keys.len() == 2 && !watches {
                    next.vote(hold, vote::Command::Raise { fence: call.arg(5).parse().ok()? }, 0);
                }
                let is_wanted = watches && is_held && next.is_wanted(hold.client);
                says(call, if is_wanted { 2 } else { i64::from(is_held) })
            }
            "unregister" => {
                let client = number(clients, call.arg(1));
                let waited = next.server.unregister(client);
                if waited {
                    next.wake(clients, call)?;
                }
                says(call, i64::from(waited))
            }
            // This changes nothing.
            "report" => true,
            _ => false,
        };
        let offer = next.server.offer.filter(|offer| self.server.offer != Some(*offer));
        let offered = call.offered().map(|client| number(clients, client));
        (is_right && offer == offered && next.has_counted(self, call)).then_some(next)
    }

    /// Returns `true` if the counter was set to a token that a client has proposed or raised,
    /// unless it already shows it.
    fn has_counted(&self, before: &Self, call: &Call) -> bool {
        let is_told = call.keys.len() > 1 && !call.arg(5).is_empty();
        let counter = call.counted().unwrap_or(before.server.counter);
        !is_told || self.server.counter == counter
    }

    fn acquire(&mut self, clients: &mut Vec<String>, call: &Call) -> Option<bool> {
        let hold = hold_of(clients, call.arg(1))?;
        let (mode, asked) = (call.arg(6), call.arg(7).parse().unwrap_or(1));
        let is_free = self.server.lock.is_none() && self.server.offer.is_none();
        let yields = ["yields", "returns"].contains(&mode);
        if call.parked().into_iter().any(|client| number(clients, client) == hold.client) {
            self.alive.insert(hold.client);
            self.sort();
        }
        let round = if mode.is_empty() { 1 } else { 2 };
        let joins = !mode.is_empty() && call.arg(4) != "0";
        let command = Command::Acquire { size: asked, yields: yields && joins };
        let mut request = Request::new(hold, round, command);
        if mode != "kept" && is_free && self.server.gives_way(&request) {
            self.server.register(hold.client);
            self.pass_over(clients, call)?;
            let mut ahead = self.server.queue.iter().take_while(|other| **other != hold.client);
            if mode == "yields" && call.offered().is_none() && ahead.all(|it| self.may_be_dead(*it))
            {
                // None of them delays it.
                request =
                    Request::new(hold, round, Command::Acquire { size: asked, yields: false });
            }
        }
        if mode != "kept" && self.server.gives_way(&request) {
            self.offer(clients, call);
            return Some(call.answer.as_ref().is_none_or(|answer| answer.first() == Some(&0)));
        }
        let (before, queue, counter) = (self.ends, self.server.queue.clone(), self.server.counter);
        let is_repeated = self.server.is_held_by(hold);
        let size = if call.arg(5).is_empty() {
            self.follow_clock(hold, asked, call.tokens().map(|tokens| tokens.first), call)?;
            tokens(call, asked)?
        } else {
            let (proposal, size) = (call.arg(5).parse().ok()?, asked);
            let keeps = mode == "kept";
            let refill = vote::Command::Refill { proposal, size };
            let acquire = vote::Command::Acquire { proposal, size };
            self.follow_proposal(hold, proposal, if keeps { refill } else { acquire })
        };
        let reply = if mode == "kept" {
            self.server.refill(request, size, None)
        } else {
            self.server.acquire(request, size, None)
        };
        let reply = match reply {
            Reply::Granted { grant, begun } => {
                let wanted = self.is_wanted(hold.client);
                Reply::Granted { grant: Grant { wanted, ..grant }, begun }
            }
            reply @ Reply::Held(_) => reply,
        };
        let mut recalled = None;
        if let Reply::Held(holder) = reply {
            self.server.counter = counter;
            let life: i64 = call.arg(4).parse().ok()?;
            let keepable = holder.filter(|holder| holder.nonce >> 63 == 1);
            if life == 0 || life < 0 && keepable.is_none() {
                self.server.queue.clone_from(&queue);
            }
            recalled = keepable.filter(|_| life != 0).map(|holder| (holder, life > 0));
            if life > 0 {
                self.trying.remove(&hold.client);
            } else if self.server.is_waiting(hold.client) && !queue.contains(&hold.client) {
                self.trying.insert(hold.client);
            }
            self.sort();
        } else {
            let ends = call.time.after(call.micros(2));
            self.ends = if is_repeated { self.ends.or_later(ends) } else { ends };
            self.is_token_unseen |= call.answer.is_none();
            self.silent.retain(|client| self.server.is_waiting(*client));
            self.trying.retain(|client| self.server.is_waiting(*client));
        }
        let is_recalled = recalled.is_some();
        let told = call.recalled().map(|(owner, waits)| (hold_of(clients, &owner), waits));
        let is_right = |answer: &Vec<i64>| agrees(answer, reply, is_recalled, before, call.time);
        let tells = told == recalled.map(|(holder, waits)| (Some(holder), waits));
        Some(tells && call.answer.as_ref().is_none_or(is_right))
    }

    /// Returns `true` if another client waits, and not only for a moment.
    fn is_wanted(&self, client: usize) -> bool {
        self.server.queue.iter().any(|other| *other != client && !self.trying.contains(other))
    }

    /// Offers a free lock in the model to the first client that listens.
    fn wake(&mut self, clients: &mut Vec<String>, call: &Call) -> Option<()> {
        self.pass_over(clients, call)?;
        self.offer(clients, call);
        Some(())
    }

    /// Returns `true` if a client was found without a listener, and has not asked since.
    fn may_be_dead(&self, client: usize) -> bool {
        self.silent.contains(&client) && !self.alive.contains(&client)
    }

    /// Puts the clients in front that were found without a listener, first those that have asked.
    /// Clients that wait only for a moment come last.
    fn sort(&mut self) {
        let Self { server, silent, alive, trying, .. } = self;
        alive.retain(|client| silent.contains(client));
        let place = |client: &usize| match silent.iter().position(|it| it == client) {
            Some(at) => (u8::from(!alive.contains(client)), at),
            None => (2 + u8::from(trying.contains(client)), 0),
        };
        server.queue.sort_by_key(place);
    }

    /// Removes the clients that have no listener, or puts them in front of the others. The model
    /// does not know who listens, but such a client must have been told to no effect.
    fn pass_over(&mut self, clients: &mut Vec<String>, call: &Call) -> Option<()> {
        let told = call.told();
        let asks = call.client();
        // A client that asks is alive. One that only releases may also be waiting.
        let is_alive = |client: &str| client == asks && call.script == "acquire";
        for client in call.parked().into_iter().filter(|client| !is_alive(client)) {
            told.contains(&client).then_some(())?;
            let id = number(clients, client);
            self.silent.push(id);
            // Its place no longer says that it waits only for a moment.
            self.trying.remove(&id);
        }
        self.sort();
        let leaves = |client: &str| client == asks && call.script != "release";
        for client in call.removed() {
            if !leaves(client) && call.offered() != Some(client) {
                told.contains(&client).then_some(())?;
                let id = number(clients, client);
                self.server.queue.retain(|other| *other != id);
                self.silent.retain(|other| *other != id);
            }
        }
        Some(())
    }

    fn offer(&mut self, clients: &mut Vec<String>, call: &Call) {
        let offered = call.offered().map(|client| number(clients, client));
        // A client without a listener keeps its place for two seconds, and is offered nothing.
        let is_passed = |client: &&usize| Some(**client) != offered && self.may_be_dead(**client);
        let passed = self.server.queue.iter().take_while(is_passed).count();
        if offered.is_none() && passed > 0 {
            return;
        }
        let passed: Vec<_> = self.server.queue.drain(..passed).collect();
        if let Some(client) = self.server.wake(None) {
            self.silent.retain(|other| *other != client);
            let window = call.micros(if call.script == "acquire" { 8 } else { 2 });
            self.ends = call.time.after(window);
        }
        self.server.queue.splice(..0, passed);
    }

    /// Makes the counter follow the clock, to the tokens of an answer. A repeat that asks for none
    /// shows the last one. Returns `None` if the clock was not there.
    fn follow_clock(
        &mut self,
        hold: HoldId,
        asked: u64,
        first: Option<u64>,
        call: &Call,
    ) -> Option<()> {
        let Some(first) = first else { return Some(()) };
        let least = if asked > 1 || !self.server.is_held_by(hold) {
            call.time.may_show(first).then_some(first - 1)?.min(call.time.last)
        } else if self.is_token_unseen {
            first
        } else {
            0
        };
        self.server.counter = self.server.counter.max(least);
        self.is_token_unseen = false;
        Some(())
    }

    /// Makes the counter follow a client's proposal, unless another client has the lock. Returns
    /// how many tokens there are from there: the last one is at most a millisecond ahead.
    fn follow_proposal(&mut self, hold: HoldId, proposal: u64, command: vote::Command) -> u64 {
        let asked = command.size();
        let keeps = asked == 1 && self.server.is_held_by(hold);
        let Some(vote::Reply::Granted { tokens }) = self.vote(hold, command, 1) else { return 1 };
        self.server.counter = if keeps { tokens.first } else { tokens.first - 1 };
        ((proposal + 1000).saturating_sub(tokens.first) + 1).min(asked)
    }

    /// Executes a command at the server of a quorum, as far as it changes its counter, and gives
    /// `size` tokens. Returns `None` if it does not grant them.
    fn vote(&mut self, hold: HoldId, command: vote::Command, size: u64) -> Option<vote::Reply> {
        let Server { lock, counter, .. } = self.server;
        let lock = lock.map(|lock| vote::Entry { hold: lock.hold, round: lock.round });
        let mut server = vote::Server { lock, counter, ..vote::Server::default() };
        let request = vote::Request { hold, round: 1, command };
        let is_granted = vote::Server::grants(lock, &request, None);
        let reply = is_granted.then(|| server.execute(&request, size, None));
        self.server.counter = server.counter;
        reply
    }

    /// Begins or finds the hold that is requested together with those of other locks. Returns
    /// `None` if it does not get this token.
    pub(super) fn begin_in_set(
        &self,
        hold: HoldId,
        fence: Option<i64>,
        call: &Call,
    ) -> Option<Self> {
        let mut next = self.clone();
        next.follow_clock(hold, 1, fence.and_then(|fence| u64::try_from(fence).ok()), call)?;
        let request = Request::new(hold, 1, Command::Acquire { size: 1, yields: false });
        let Reply::Granted { grant, .. } = next.server.acquire(request, 1, None) else {
            return None;
        };
        let ends = call.time.after(call.micros(1));
        let is_repeated = self.server.is_held_by(hold);
        next.ends = if is_repeated { next.ends.or_later(ends) } else { ends };
        next.is_token_unseen |= fence.is_none();
        let is_it = |fence| u64::try_from(fence) == Ok(grant.tokens.first);
        fence.is_none_or(is_it).then_some(next)
    }

    /// Returns the states that this one may have become by a time.
    pub(super) fn at(&self, time: Time) -> Vec<Self> {
        let Server { lock, offer, .. } = self.server;
        if lock.is_none() && offer.is_none() || !time.may_follow(self.ends) {
            return vec![self.clone()];
        }
        let server = Server { lock: None, offer: None, ..self.server.clone() };
        let over = Self { server, ..self.clone() };
        if self.ends.may_follow(time) { vec![self.clone(), over] } else { vec![over] }
    }
}

/// Returns how many tokens a request got: at most as many as it `asked` for.
fn tokens(call: &Call, asked: u64) -> Option<u64> {
    let Some(Block { first, last }) = call.tokens() else { return Some(1) };
    let given = (last + 1).checked_sub(first)?;
    (1..=asked).contains(&given).then_some(given)
}

/// Returns `true` if an answer is that of the model.
fn agrees(answer: &[i64], reply: Reply, is_recalled: bool, ends: Time, time: Time) -> bool {
    let is = |number: i64, token: u64| u64::try_from(number) == Ok(token);
    match (answer, reply) {
        ([0, left, others @ ..], Reply::Held(holder)) if (others == [1]) == is_recalled => {
            let left = u64::try_from(left * 1000).map(|left| time.after(left));
            holder.is_none() || left.is_ok_and(|end| end.may_be(ends))
        }
        ([fence], Reply::Granted { grant: Grant { tokens: Block { first, .. }, .. }, .. }) => {
            is(*fence, first)
        }
        ([fence, end, others @ ..], Reply::Granted { grant, .. }) => {
            let Grant { tokens: Block { first, last }, wanted } = grant;
            is(*fence, first) && is(*end, last) && (others == [1]) == wanted
        }
        _ => false,
    }
}
