//! Follows requests about read-write locks and semaphores in the model of these. The two sides of a
//! client are two clients there.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold::HoldId;
use crate::members::server::{Absent, Reply, Server, Side};
use crate::traces::call::{Call, Time};
use crate::traces::replay::{hold_of, number, says};

/// How long a client without a listener is left alone, in microseconds.
const GRACE: u64 = 2_000_000;
/// The longest time that an answer gives for that, in milliseconds. The server rounds it up, from a
/// time to which it has added the client's place.
const GRACE_ANSWERED: i64 = 2_001;

/// A possible state of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    server: Server,
    /// The end of the lease that each call has set.
    leases: BTreeMap<u64, Time>,
    /// The end of each offer.
    offers: BTreeMap<usize, Time>,
    /// The arrival of each waiting client.
    came: BTreeMap<usize, Time>,
    /// Whether the last token was given with an answer that was not seen.
    is_token_unseen: bool,
}

impl State {
    /// Returns the states that this one may have become by a time.
    pub(crate) fn at(&self, time: Time) -> Vec<Self> {
        let mut states = vec![self.clone()];
        for (hold, call) in &self.server.holds {
            let without = |state: &mut Self| {
                state.server.holds.remove(hold);
            };
            split(&mut states, time, self.leases[call], without);
        }
        for (client, ends) in &self.offers {
            let without = |state: &mut Self| {
                state.offers.remove(client);
                state.server.offers.remove(client);
            };
            split(&mut states, time, *ends, without);
        }
        states
    }

    /// Returns the state after a call; `None` if the model answers or behaves differently.
    pub(crate) fn answer(&self, clients: &mut Vec<String>, call: &Call) -> Option<Self> {
        let mut next = self.clone();
        // Either kind and client, or the client of each kind.
        let asks = call.client();
        let kinds = ["r:", "w:", "p:"].map(|kind| number(clients, &format!("{kind}{asks}")));
        let offered: BTreeSet<usize> =
            call.offers().into_iter().map(|client| number(clients, client)).collect();
        let waits = call.script == "acquire_member" && call.arg(5).starts_with('1');
        let me = waits.then(|| number(clients, asks));
        let own = if call.script == "unregister" { &kinds[..] } else { me.as_slice() };
        next.find_absent(clients, call, &offered, own)?;
        let is_right = next.execute(clients, call, &kinds)?;
        let made: BTreeSet<usize> =
            next.server.offers.difference(&self.server.offers).copied().collect();
        if !is_right || made != offered {
            return None;
        }
        let window = call.micros(if call.script == "acquire_member" { 7 } else { 2 });
        next.offers.extend(made.into_iter().map(|client| (client, call.time.after(window))));
        next.settle(call);
        Some(next)
    }

    /// Executes a call in the model. Returns whether it has that answer.
    fn execute(&mut self, clients: &mut Vec<String>, call: &Call, kinds: &[usize]) -> Option<bool> {
        let first = hold_of(clients, call.arg(1));
        self.server.sides = clients.iter().map(|client| side(client)).collect();
        Some(match call.script.as_str() {
            "acquire_member" => {
                let others = call.args.iter().skip(9).map(|member| hold_of(clients, member));
                let holds = [first].into_iter().chain(others).collect::<Option<Vec<_>>>()?;
                self.acquire(&holds, call)
            }
            "release_member" => says(call, i64::from(self.server.release(first?, None))),
            "change" => {
                let (hold, lease) = (first?, self.begin_lease(call));
                let before = self.server.holds.clone();
                let last = self.server.holds.get_mut(&hold);
                let is_held = last.is_some();
                if let Some(last) = last.filter(|_| call.arg(2) != "0") {
                    *last = lease;
                    self.keep_longer_leases(&before, call);
                }
                says(call, i64::from(is_held))
            }
            "unregister" => says(call, i64::from(self.server.unregister(kinds))),
            // This changes nothing.
            "report" => true,
            _ => false,
        })
    }

    /// Notes the clients without a listener. The model does not know them, but such a client must
    /// have been offered a place to no effect, or have waited for a while.
    fn find_absent(
        &mut self,
        clients: &mut Vec<String>,
        call: &Call,
        offered: &BTreeSet<usize>,
        own: &[usize],
    ) -> Option<()> {
        let mut numbers = |names: Vec<&str>| -> BTreeSet<usize> {
            names.into_iter().map(|client| number(clients, client)).collect()
        };
        let (parked, removed, told) =
            (numbers(call.parked()), numbers(call.removed()), numbers(call.withdrawn()));
        let queue = &self.server.queue;
        let others = |client: &usize| {
            queue.contains(client) && !offered.contains(client) && !own.contains(client)
        };
        let gone: BTreeSet<usize> = removed.into_iter().filter(others).collect();
        for client in parked.union(&gone) {
            let waited = call.time.may_follow(self.came.get(client)?.after(GRACE));
            (waited || told.contains(client)).then_some(())?;
        }
        let absent = &mut self.server.absent;
        let mut silent = std::mem::take(&mut absent.silent);
        let takes = |client: &usize| own.contains(client) && told.contains(client);
        silent.retain(|it| {
            ![&gone, &parked, offered].iter().any(|set| set.contains(it)) && !takes(it)
        });
        let asks = own.first().filter(|me| !offered.contains(me) && !takes(me)).copied();
        *absent = Absent { gone, parked, silent, asks };
        Some(())
    }

    fn acquire(&mut self, holds: &[HoldId], call: &Call) -> bool {
        let side = self.server.sides[holds[0].client];
        self.server.permits = call.arg(8).parse().unwrap_or(0);
        let tokens = match call.answer.as_deref() {
            Some([1, tokens @ ..]) => tokens,
            Some([0, ..]) | None => &[],
            Some(token) => token,
        };
        let keeps = self.server.holds.contains_key(&holds[0]) || side == Side::Reader;
        if let Some(token) = tokens.first().and_then(|token| u64::try_from(*token).ok()) {
            let is_last = keeps && self.server.counter > 0;
            // A new token is not below the clock.
            let may_be = if is_last { self.is_token_unseen } else { call.time.may_show(token) };
            if side != Side::Permit && may_be {
                let least = (token - u64::from(!keeps)).min(call.time.last);
                self.server.counter = self.server.counter.max(least);
            }
            self.is_token_unseen = false;
        }
        let before = self.server.holds.clone();
        let lease = self.begin_lease(call);
        let reply = self.server.acquire(holds, lease, call.arg(5).starts_with('1'), None);
        self.keep_longer_leases(&before, call);
        self.is_token_unseen |= call.answer.is_none() && side == Side::Writer;
        let Some(answer) = &call.answer else { return true };
        match reply {
            Reply::Held => matches!(answer[..], [0, left] if self.lasts(side, left, call)),
            Reply::Granted { count, fence, .. } => {
                let is_it = |token: &i64| u64::try_from(*token) == Ok(fence);
                tokens.len() as u64 == count && tokens.iter().all(is_it)
            }
        }
    }

    /// Notes the end of the lease that a call sets, and returns its number.
    fn begin_lease(&mut self, call: &Call) -> u64 {
        let number = call.line as u64 * 1000;
        self.leases.insert(number, call.time.after(call.micros(2)));
        number
    }

    /// Restores longer leases: no call shortens those of holds that were there before.
    fn keep_longer_leases(&mut self, before: &BTreeMap<HoldId, u64>, call: &Call) {
        let now = call.line as u64 * 1000;
        for (number, (hold, last)) in (now + 1..).zip(before) {
            if self.server.holds.get(hold) == Some(&now) {
                let ends = self.leases[&now].or_later(self.leases[last]);
                self.leases.insert(number, ends);
                self.server.holds.insert(*hold, number);
            }
        }
    }

    /// Returns `true` if the obstacles to a side last for this many milliseconds.
    fn lasts(&self, side: Side, answered: i64, call: &Call) -> bool {
        let Server { holds, offers, absent, .. } = &self.server;
        let offered = call.time.after(call.micros(7));
        let offers =
            offers.iter().map(|client| self.offers.get(client).copied().unwrap_or(offered));
        let ends: Vec<Time> = holds.values().map(|call| self.leases[call]).chain(offers).collect();
        let Ok(left) = u64::try_from(answered) else { return ends.is_empty() };
        // They may last until a client without a listener loses its place.
        let is_young = |came: &Time| came.after(GRACE).may_follow(call.time);
        let is_kept = !(absent.parked.is_empty() && absent.silent.is_empty())
            || self.server.queue.iter().any(|it| self.came.get(it).is_none_or(is_young));
        let until = call.time.after(left * 1000);
        let is_bound = |end: &Time| match side {
            Side::Writer => until.may_follow(*end),
            Side::Permit | Side::Reader => end.may_follow(until),
        };
        is_kept && answered <= GRACE_ANSWERED
            || ends.iter().any(|end| end.may_be(until)) && ends.iter().all(is_bound)
    }

    /// Forgets what has ended, and notes the clients that have begun to wait.
    fn settle(&mut self, call: &Call) {
        let Server { holds, offers, queue, absent, .. } = &mut self.server;
        self.leases.retain(|call, _| holds.values().any(|last| last == call));
        self.offers.retain(|client, _| offers.contains(client));
        self.came.retain(|client, _| queue.contains(client));
        for client in queue.iter() {
            self.came.entry(*client).or_insert(call.time);
        }
        let Absent { parked, mut silent, .. } = std::mem::take(absent);
        silent.extend(parked);
        silent.retain(|client| queue.contains(client));
        absent.silent = silent;
    }
}

/// Splits the states: something that may be over by a time is over in some of them, and in all of
/// them if it must be.
fn split(states: &mut Vec<State>, time: Time, ends: Time, without: impl Fn(&mut State)) {
    if !time.may_follow(ends) {
        return;
    }
    let mut over = states.clone();
    over.iter_mut().for_each(without);
    if !ends.may_follow(time) {
        states.clear();
    }
    states.extend(over);
}

fn side(client: &str) -> Side {
    match client.get(..2) {
        Some("r:") => Side::Reader,
        Some("w:") => Side::Writer,
        _ => Side::Permit,
    }
}
