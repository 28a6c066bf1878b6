//! Follows a trace in the model of tenures.
//!
//! A trace does not give the end of a lease or an offer to the microsecond. So the model may be in
//! one of several states, and an answer is refused if none of them has it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::hold::HoldId;
use crate::traces::call::{Call, Time};
use crate::traces::{sets, tenures};

/// The locks of a trace.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    clients: Vec<String>,
    locks: BTreeMap<String, Vec<tenures::State>>,
    /// The number of calls of each script.
    pub(crate) calls: BTreeMap<String, u32>,
}

impl Replay {
    /// Takes all steps of a trace in the model.
    pub(crate) fn run(calls: &[Call]) -> Result<Self, String> {
        let mut replay = Self::default();
        for call in calls {
            replay.step(call)?;
        }
        Ok(replay)
    }

    fn step(&mut self, call: &Call) -> Result<(), String> {
        *self.calls.entry(call.script.clone()).or_default() += 1;
        let (key, clients) = (&call.keys[0], &mut self.clients);
        if call.script == "acquire_all" {
            return sets::follow(&mut self.locks, clients, call);
        }
        let states = self.locks.entry(key.clone()).or_default();
        follow(states, call, tenures::State::at, |it| it.answer(clients, call))
    }
}

/// Replaces the states with those after a call that have its answer. `at` returns what a state may
/// have become by then.
fn follow<S: Clone + Debug + Default + PartialEq>(
    states: &mut Vec<S>,
    call: &Call,
    at: impl Fn(&S, Time) -> Vec<S>,
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
        return Err(refused(call, states));
    }
    *states = after;
    Ok(())
}

pub(super) fn refused(Call { line, script, answer, .. }: &Call, states: &impl Debug) -> String {
    format!("line {line}: no {script} answers {answer:?} in {states:?}")
}

/// Returns the number of a client in the model.
pub(super) fn number(clients: &mut Vec<String>, client: &str) -> usize {
    clients.iter().position(|other| other == client).unwrap_or_else(|| {
        clients.push(client.into());
        clients.len() - 1
    })
}

pub(super) fn says(call: &Call, answer: i64) -> bool {
    call.answer.as_ref().is_none_or(|given| *given == [answer])
}

/// Returns the hold of an owner.
pub(super) fn hold_of(clients: &mut Vec<String>, owner: &str) -> Option<HoldId> {
    let (client, nonce) = owner.rsplit_once(':')?;
    let nonce = u64::from_str_radix(nonce, 16).ok()?;
    Some(HoldId { client: number(clients, client), nonce })
}
