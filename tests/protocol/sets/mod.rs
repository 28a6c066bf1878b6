//! Clients that want several locks at once, on one or several servers: the behaviour of
//! `acquire_all.lua` and `src/local/acquire_all.rs`, and its faults.
//!
//! As in the model of tenures, time has no length, requests arrive in any order, and a hold ends at
//! its server only after its client has ceased to rely on it. A client asks one server after
//! another. If a lock is held, it gives back what it has, waits for that one alone, and tries for
//! the others again once it has it.
//!
//! Two clients may get in each other's way again and again, so paths may be endless. In practice, a
//! pause of random length ends that. Here the promise of service is that every state can reach one
//! in which nothing more needs to happen, and that all clients are served there.
//!
//! The scope is bounded: each client wants its locks once, and one fault occurs. Tokens are left
//! out, as are offers, renewals and abandoned waits: the model of tenures has them.

mod client;
mod flaw;
mod scope;
pub(crate) mod server;
mod world;

use crate::check::{breaks, comes_to_rest, keeps_its_promises};
use crate::sets::flaw::Flaw;
use crate::sets::scope::{ALL_OR_NONE, EXCLUSION_BY_LEASE, Fault, RELEASE, SERVICE, Scope};

const ALL: [Fault; 4] = [Fault::Duplicate, Fault::NoReply, Fault::Pause, Fault::Stop];

/// Two clients that want the same two locks in different orders. The locks are on this many
/// servers.
fn two_clients(servers: usize, faults: &[Fault]) -> Scope {
    let clients = vec![vec![0, 1], vec![1, 0]];
    Scope { clients, servers, faults: faults.to_vec(), flaw: None }
}

/// Three clients, each of which shares a lock with every other one.
fn three_clients(servers: usize) -> Scope {
    Scope { clients: vec![vec![0, 1], vec![1, 2], vec![2, 0]], ..two_clients(servers, &[]) }
}

/// Checks that a promise is broken if a rule is.
fn needs(promise: &'static str, flaw: Flaw, scope: Scope) {
    breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

#[test]
fn clients_can_rely_on_the_promises() {
    for scope in [two_clients(1, &[]), two_clients(2, &[]), three_clients(1), three_clients(3)] {
        keeps_its_promises(scope.clone());
        comes_to_rest(&scope);
    }
}

#[test]
fn one_fault_of_any_kind_does_no_harm() {
    for servers in [1, 2] {
        keeps_its_promises(two_clients(servers, &ALL));
        comes_to_rest(&two_clients(servers, &ALL));
    }
}

#[test]
fn a_client_must_not_keep_what_it_has_while_it_waits() {
    needs(SERVICE, Flaw::KeepsWhileWaiting, two_clients(2, &[]));
    needs(SERVICE, Flaw::KeepsWhileWaiting, three_clients(3));
}

#[test]
fn a_server_must_grant_all_or_none_and_a_client_must_have_all() {
    needs(ALL_OR_NONE, Flaw::TakesPart, two_clients(1, &[]));
    needs(ALL_OR_NONE, Flaw::GuardWithPart, two_clients(2, &[]));
}

#[test]
fn all_locks_have_to_be_released_together() {
    needs(RELEASE, Flaw::PartIsLeft, two_clients(1, &[]));
    needs(RELEASE, Flaw::PartIsLeft, two_clients(2, &[]));
}

#[test]
fn a_lease_has_to_count_from_the_request_and_to_end() {
    needs(EXCLUSION_BY_LEASE, Flaw::CountsFromReply, two_clients(2, &[Fault::Pause]));
    needs(SERVICE, Flaw::LeaseHasNoEnd, two_clients(2, &[Fault::Stop]));
}

#[test]
fn a_late_release_must_not_end_another_hold() {
    needs(EXCLUSION_BY_LEASE, Flaw::NumberIsReused, two_clients(2, &[Fault::Duplicate]));
}
