//! Ways to check a model.

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
