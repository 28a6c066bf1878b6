//! Follows a trace in the model of tenures.
//!
//! A trace does not say when a lease or an offer was over, to the microsecond. So there may be
//! several states that the model can be in, and an answer is refused if none of them has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::hold::{Block, HoldId};
use crate::network::Request;
use crate::tenure::server::{Command, Grant, Reply, Server};
use crate::traces::call::Call;
use crate::traces::members;

/// How much earlier than it says, and how much later, in microseconds, a script may have read the
/// clock: the server's process may stand still in between.
pub(super) const EARLY: u64 = 20_000;
pub(super) const LATE: u64 = 250_000;

/// What the model may be in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    server: Server,
    /// When the lease of the hold is over, or the offer.
    ends: u64,
    /// Whether the last token was given with an answer that was not seen.
    is_token_unseen: bool,
    /// Waiting clients that were found without a listener.
    silent: BTreeSet<usize>,
}

/// The locks of a trace, and what several can hold.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    clients: Vec<String>,
    locks: BTreeMap<String, Vec<State>>,
    members: BTreeMap<String, Vec<members::State>>,
    /// How many calls there were of each script.
    pub(crate) calls: BTreeMap<String, u32>,
}

impl Replay {
    /// Has the model take all steps of a trace.
    pub(crate) fn run(calls: &[Call]) -> Result<Self, String> {
        let mut replay = Self::default();
        for call in calls {
            replay.step(call)?;
        }
        Ok(replay)
    }

    fn step(&mut self, call: &Call) -> Result<(), String> {
        *self.calls.entry(call.script.clone()).or_default() += 1;
        let key = &call.keys[0];
        if call.script == "acquire_member" || self.members.contains_key(key) {
            let (states, clients) =
                (self.members.entry(key.clone()).or_default(), &mut self.clients);
            return follow(states, call, members::State::at, |it| it.answer(clients, call));
        }
        let mut states = self.locks.remove(key).unwrap_or_default();
        follow(&mut states, call, State::at, |state| self.answer(state, call))?;
        self.locks.insert(key.clone(), states);
        Ok(())
    }

    /// Has the model execute a call. Returns `None` if it answers differently, or does something
    /// else.
    fn answer(&mut self, state: &State, call: &Call) -> Option<State> {
        let mut next = state.clone();
        let is_right = match call.script.as_str() {
            "acquire" => self.acquire(&mut next, call)?,
            "release" => {
                let hold = self.hold(call.arg(1))?;
                let ended = next.server.release(hold, None);
                if ended {
                    self.wake(&mut next, call)?;
                }
                call.arg(4) == "0" && says(call, i64::from(ended))
            }
            "change" => {
                let is_held = next.server.is_held_by(self.hold(call.arg(1))?);
                if is_held && call.arg(2) != "0" {
                    next.ends = call.time + call.micros(2);
                }
                says(call, i64::from(is_held))
            }
            "unregister" => {
                let client = self.client(call.arg(1));
                let waited = next.server.unregister(client);
                if waited {
                    self.wake(&mut next, call)?;
                }
                says(call, i64::from(waited))
            }
            // It changes nothing.
            "report" => true,
            _ => false,
        };
        let offer = next.server.offer.filter(|offer| state.server.offer != Some(*offer));
        let offered = call.offered().map(|client| self.client(client));
        (is_right && offer == offered).then_some(next)
    }

    fn acquire(&mut self, next: &mut State, call: &Call) -> Option<bool> {
        let hold = self.hold(call.arg(1))?;
        let (mode, asked) = (call.arg(6), call.arg(7).parse().unwrap_or(1));
        let first = next.server.queue.first();
        let is_free = next.server.lock.is_none() && next.server.offer.is_none();
        let yields = mode == "yields" || first.is_some_and(|first| next.silent.contains(first));
        let round = if mode.is_empty() { 1 } else { 2 };
        let joins = !mode.is_empty() && call.arg(4) != "0";
        let command = Command::Acquire { size: asked, yields: yields && joins };
        let request = Request::new(hold, round, command);
        if mode != "kept" && is_free && next.server.gives_way(&request) {
            next.server.register(hold.client);
            self.pass_over(next, call)?;
        }
        if mode != "kept" && next.server.gives_way(&request) {
            next.offer(call);
            return Some(call.answer.as_ref().is_none_or(|answer| answer.first() == Some(&0)));
        }
        let size = tokens(call, asked)?;
        next.follow_clock(hold, asked, call)?;
        let (before, queue) = (next.ends, next.server.queue.clone());
        let reply = if mode == "kept" {
            next.server.refill(request, size, None)
        } else {
            next.server.acquire(request, size, None)
        };
        if let Reply::Held(holder) = reply {
            let life: i64 = call.arg(4).parse().ok()?;
            let keepable = holder.is_some_and(|holder| holder.nonce >> 63 == 1);
            if life == 0 || life < 0 && !keepable {
                next.server.queue = queue;
            }
        } else {
            next.ends = call.time + call.micros(2);
            next.is_token_unseen |= call.answer.is_none();
            next.silent.remove(&hold.client);
        }
        Some(call.answer.as_ref().is_none_or(|answer| agrees(answer, reply, before, call.time)))
    }

    /// Has the model offer a lock that is free to the first client that listens.
    fn wake(&mut self, next: &mut State, call: &Call) -> Option<()> {
        self.pass_over(next, call)?;
        next.offer(call);
        Some(())
    }

    /// Removes the clients that have no listener, or puts them in front of the others. Who listens
    /// the model does not know, but such a client must have been told, and in vain.
    fn pass_over(&mut self, next: &mut State, call: &Call) -> Option<()> {
        let told = call.told();
        for (at, client) in call.parked().into_iter().enumerate() {
            told.contains(&client).then_some(())?;
            let id = self.client(client);
            next.server.queue.retain(|other| *other != id);
            next.server.queue.insert(at, id);
            next.silent.insert(id);
        }
        let asks = call.arg(1).rsplit_once(':').map_or(call.arg(1), |(client, _)| client);
        for client in call.removed() {
            if client != asks && call.offered() != Some(client) {
                told.contains(&client).then_some(())?;
                let id = self.client(client);
                next.server.queue.retain(|other| *other != id);
                next.silent.remove(&id);
            }
        }
        Some(())
    }

    fn client(&mut self, client: &str) -> usize {
        number(&mut self.clients, client)
    }

    fn hold(&mut self, owner: &str) -> Option<HoldId> {
        let (client, nonce) = owner.rsplit_once(':')?;
        let nonce = u64::from_str_radix(nonce, 16).ok()?;
        Some(HoldId { client: self.client(client), nonce })
    }
}

impl State {
    fn offer(&mut self, call: &Call) {
        let first = self.server.queue.first();
        // A client without a listener keeps its place for two seconds.
        if call.offered().is_none() && first.is_some_and(|first| self.silent.contains(first)) {
            return;
        }
        if let Some(client) = self.server.wake(None) {
            self.silent.remove(&client);
            self.ends = call.time + call.micros(if call.script == "acquire" { 8 } else { 2 });
        }
    }

    /// Has the counter follow the clock, to the tokens of an answer. A repeat that asks for none
    /// shows the last one. Returns `None` if the clock was not there.
    fn follow_clock(&mut self, hold: HoldId, asked: u64, call: &Call) -> Option<()> {
        let Some(first) = call.answer.iter().flatten().next().filter(|first| **first > 0) else {
            return Some(());
        };
        let first = u64::try_from(*first).ok()?;
        let least = if asked > 1 || !self.server.is_held_by(hold) {
            (first + LATE >= call.time).then_some(first - 1)?.min(call.time + LATE)
        } else if self.is_token_unseen {
            first
        } else {
            0
        };
        self.server.counter = self.server.counter.max(least);
        self.is_token_unseen = false;
        Some(())
    }

    /// The states that this one may have become by a time.
    fn at(&self, time: u64) -> Vec<Self> {
        let Server { lock, offer, .. } = self.server;
        if lock.is_none() && offer.is_none() || time + EARLY < self.ends {
            return vec![self.clone()];
        }
        let server = Server { lock: None, offer: None, ..self.server.clone() };
        let over = Self { server, ..self.clone() };
        if time > self.ends + LATE { vec![over] } else { vec![self.clone(), over] }
    }
}

/// Replaces the states by those after a call that have its answer. `at` returns what a state may
/// have become by then.
fn follow<S: Clone + Debug + Default + PartialEq>(
    states: &mut Vec<S>,
    call: &Call,
    at: impl Fn(&S, u64) -> Vec<S>,
    mut answer: impl FnMut(&S) -> Option<S>,
) -> Result<(), String> {
    let mut after: Vec<S> = Vec::new();
    if states.is_empty() {
        states.push(S::default());
    }
    for state in states.iter().flat_map(|state| at(state, call.time)) {
        after.extend(answer(&state).filter(|next| !after.contains(next)));
    }
    if after.is_empty() {
        let Call { line, script, answer, .. } = call;
        return Err(format!("line {line}: no {script} answers {answer:?} in {states:?}"));
    }
    *states = after;
    Ok(())
}

/// The number of a client in the model.
pub(super) fn number(clients: &mut Vec<String>, client: &str) -> usize {
    clients.iter().position(|other| other == client).unwrap_or_else(|| {
        clients.push(client.into());
        clients.len() - 1
    })
}

pub(super) fn says(call: &Call, answer: i64) -> bool {
    call.answer.as_ref().is_none_or(|given| *given == [answer])
}

/// How many tokens a request got: as many as it `asked` for at most.
fn tokens(call: &Call, asked: u64) -> Option<u64> {
    match call.answer.as_deref() {
        Some([first, last, ..]) if *first > 0 => {
            let given = u64::try_from(last - first + 1).ok()?;
            (1..=asked).contains(&given).then_some(given)
        }
        _ => Some(1),
    }
}

/// Returns `true` if an answer is what the model says.
fn agrees(answer: &[i64], reply: Reply, ends: u64, time: u64) -> bool {
    let is = |number: i64, token: u64| u64::try_from(number) == Ok(token);
    match (answer, reply) {
        ([0, left, ..], Reply::Held(holder)) => {
            let left = u64::try_from(left * 1000).map(|left| time + left);
            holder.is_none() || left.is_ok_and(|end| end.abs_diff(ends) <= LATE)
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
