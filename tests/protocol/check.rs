//! Ways to check a model.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Visits all states of a model.
pub(crate) fn keeps_its_promises<M>(model: M)
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync> + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Visits states until one breaks a promise, and panics if none does.
pub(crate) fn breaks<M>(promise: &'static str, reason: impl Debug, model: M)
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync> + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let found = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    println!("{reason:?}: found among {} states", checker.unique_state_count());
    checker.assert_any_discovery(promise);
}

/// Panics if a path of a model returns to a state, so that it may be endless.
pub(crate) fn comes_to_an_end<M>(model: &M)
where
    M: Model<State: Clone + Eq + Hash>,
{
    // The number of steps to each state that were not yet walked back. A state without a circle
    // before it has none left in the end.
    let mut steps_to: HashMap<M::State, usize> = HashMap::new();
    let mut found = model.init_states();
    while let Some(state) = found.pop() {
        for next in model.next_steps(&state).into_iter().map(|(_, next)| next) {
            if !steps_to.contains_key(&next) {
                found.push(next.clone());
            }
            *steps_to.entry(next).or_default() += 1;
        }
    }
    let mut entered = model.init_states();
    while let Some(state) = entered.pop() {
        for (_, next) in model.next_steps(&state) {
            let left = steps_to.get_mut(&next).expect("a state that was found");
            *left -= 1;
            if *left == 0 {
                entered.push(next);
            }
        }
    }
    assert!(steps_to.values().all(|left| *left == 0), "a path may be endless");
}
