//! Follows requests for several locks at once: they get all of them, or none if another client has
//! one.

use std::collections::BTreeMap;
use std::slice;

use crate::hold::HoldId;
use crate::traces::call::Call;
use crate::traces::replay::{hold_of, refused};
use crate::traces::tenures::State;

/// Checks each combination of possible states of the locks.
pub(super) fn follow(
    locks: &mut BTreeMap<String, Vec<State>>,
    clients: &mut Vec<String>,
    call: &Call,
) -> Result<(), String> {
    let holds: Option<Vec<_>> =
        call.args[2..].iter().map(|owner| hold_of(clients, owner)).collect();
    let holds = holds.ok_or_else(|| refused(call, &"no state"))?;
    let keys: Vec<&String> = call.keys.iter().step_by(2).collect();
    let mut before: Vec<Vec<State>> = vec![Vec::new()];
    for key in &keys {
        let states = locks.entry((*key).clone()).or_insert_with(|| vec![State::default()]);
        let states: Vec<_> = states.iter().flat_map(|state| state.at(call.time)).collect();
        let with = |chosen: Vec<State>| {
            let with = move |state: &State| [&chosen[..], slice::from_ref(state)].concat();
            states.iter().map(with).collect::<Vec<_>>()
        };
        before = before.into_iter().flat_map(with).collect();
    }
    let after: Vec<_> = before.iter().filter_map(|it| answer(it, &holds, call)).collect();
    if after.is_empty() {
        return Err(refused(call, &before));
    }
    for (at, key) in keys.into_iter().enumerate() {
        let mut states: Vec<State> = Vec::new();
        for state in after.iter().map(|states| &states[at]) {
            states.extend((!states.contains(state)).then(|| state.clone()));
        }
        locks.insert(key.clone(), states);
    }
    Ok(())
}

/// Executes a call in the model, with the locks in these states. Returns the states after it;
/// `None` if the model answers or behaves differently.
fn answer(states: &[State], holds: &[HoldId], call: &Call) -> Option<Vec<State>> {
    // Of each lock whether the client has it, if it is taken: one that is offered is not free.
    let found = states.iter().zip(holds).map(|(state, hold)| {
        let is_taken = state.server.lock.is_some() || state.server.offer.is_some();
        is_taken.then(|| state.server.is_held_by(*hold))
    });
    let found: Vec<_> = found.collect();
    let asks = call.keys.iter().step_by(2).zip(&call.args[2..]).map(<[_; 2]>::from);
    let free = asks.zip(&found).filter(|(_, lock)| lock.is_none());
    let free: Vec<_> = free.map(|(asks, _)| asks).collect();
    let held = found.iter().position(|is_own| *is_own == Some(false));
    match (held, call.answer.as_deref()) {
        (Some(first), answer) => {
            let says = |answer: &[i64]| answer == [0, -1, 0, i64::try_from(first).unwrap_or(-1)];
            (answer.is_none_or(says) && call.begun().is_empty()).then(|| states.to_vec())
        }
        (None, None | Some([1, ..])) if call.begun() == free => {
            let fences = call.answer.as_ref().map(|answer| &answer[1..]);
            let begin = |(at, state): (usize, &State)| {
                let fence = fences.map(|fences| fences.get(at).copied().unwrap_or(-1));
                state.begin_in_set(holds[at], fence, call)
            };
            states.iter().enumerate().map(begin).collect()
        }
        _ => None,
    }
}
