//! The protocol between clients and Redis as models, of which every state within a scope is looked
//! at. They are written after `src/store/lua`, `src/store/quorum` and `src/hold`, and do not run
//! them. They show that the rules keep the promises, and that the promises need the rules.

mod hold;
mod quorum;
mod single;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Path};

/// Looks at all states within a scope.
fn keeps_its_promises<M>(scope: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = scope.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Looks for a state in which a promise is broken, and tells how it comes about.
fn breaks<M>(promise: &'static str, fault: impl Debug, scope: M) -> Path<M::State, M::Action>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let found = HasDiscoveries::AnyOf([promise].into());
    let checker = scope.checker().finish_when(found).spawn_bfs().join();
    println!("{fault:?}: found among {} states", checker.unique_state_count());
    checker.assert_any_discovery(promise)
}
