//! One server and three clients that want a side of a read-write lock or permits of a semaphore:
//! holds side by side, batches for several threads of a client, offers to waiting clients, leases
//! that end, and faults in all of them.
//!
//! As in the model of tenures, time has no length, requests arrive in any order, and a hold ends at
//! the server only after its client has ceased to rely on it. An offer ends by itself if its client
//! does not take it. A client that would take it but is too late is a fault.
//!
//! The scope is bounded: each thread wants a guard once, and at most one fault occurs. Not modelled
//! are a server that loses its data, clients that cannot be told, clients that assume different
//! numbers of permits, abandoned waits, and threads that try without waiting.

mod client;
mod flaw;
mod promises;
mod scope;
pub(crate) mod server;
mod world;

use crate::check::{breaks, comes_to_an_end, keeps_its_promises};
use crate::members::flaw::Flaw;
use crate::members::promises::{END, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE, SERVICE, TURNS};
use crate::members::scope::{Fault, Scope};
use crate::members::server::Side::{self, Permit, Reader, Writer};

const ALL: [Fault; 5] =
    [Fault::Duplicate, Fault::MissedOffer, Fault::NoReply, Fault::Pause, Fault::Stop];

/// Two clients with readers, the first of which has two threads, and one with a writer.
fn sides(most: u64, faults: &[Fault]) -> Scope {
    let clients = vec![(Reader, 2), (Writer, 1), (Reader, 1)];
    Scope { clients, permits: 0, faults: faults.to_vec(), most, flaw: None }
}

/// Like `sides`, with other clients.
fn sides_of(clients: &[(Side, u64)], most: u64, faults: &[Fault]) -> Scope {
    Scope { clients: clients.to_vec(), ..sides(most, faults) }
}

/// Clients that want permits, with this many threads each.
fn permits_of(threads: &[u64], permits: usize, most: u64, faults: &[Fault]) -> Scope {
    let clients = threads.iter().map(|threads| (Permit, *threads)).collect();
    Scope { clients, permits, ..sides(most, faults) }
}

/// Three clients that want two permits. The first one has two threads.
fn permits(most: u64, faults: &[Fault]) -> Scope {
    permits_of(&[2, 1, 1], 2, most, faults)
}

/// Checks that a promise is broken if a rule is.
fn needs(promise: &'static str, flaw: Flaw, scope: Scope) {
    breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

#[test]
fn clients_can_rely_on_the_promises() {
    keeps_its_promises(sides(0, &[]));
    keeps_its_promises(permits(0, &[]));
}

#[test]
fn one_fault_of_any_kind_does_no_harm_to_readers_and_writers() {
    keeps_its_promises(sides_of(&[(Reader, 2), (Writer, 1)], 1, &ALL));
    keeps_its_promises(sides_of(&[(Writer, 1), (Reader, 1), (Reader, 1)], 1, &ALL));
}

#[test]
fn one_fault_of_any_kind_does_no_harm_to_permits() {
    keeps_its_promises(permits_of(&[2, 1], 2, 1, &ALL));
    keeps_its_promises(permits_of(&[1, 1, 1], 1, 1, &[Fault::MissedOffer, Fault::Stop]));
}

/// Without this, the promise of service would say nothing about paths that never rest.
#[test]
fn no_path_is_endless() {
    comes_to_an_end(&sides(0, &[]));
    comes_to_an_end(&sides_of(&[(Reader, 2), (Writer, 1)], 1, &ALL));
    comes_to_an_end(&permits_of(&[2, 1], 2, 1, &ALL));
}

#[test]
fn a_lease_has_to_count_from_the_request() {
    needs(EXCLUSION_BY_LEASE, Flaw::CountsFromReply, sides(1, &[Fault::Pause]));
    needs(EXCLUSION_BY_LEASE, Flaw::CountsFromReply, permits(1, &[Fault::Pause]));
}

#[test]
fn readers_and_writers_must_look_for_each_other() {
    needs(EXCLUSION_BY_LEASE, Flaw::SidesAreIgnored, sides(0, &[]));
}

#[test]
fn a_batch_must_not_take_more_permits_than_are_left() {
    needs(EXCLUSION_BY_LEASE, Flaw::BatchIsUncounted, permits(0, &[]));
    needs(EXCLUSION_BY_LEASE, Flaw::RepeatTakesMore, permits(1, &[Fault::NoReply]));
}

#[test]
fn an_offered_place_has_to_be_left_to_its_client_and_offered_to_one() {
    needs(EXCLUSION_BY_LEASE, Flaw::OffersAreIgnored, sides(0, &[]));
    needs(EXCLUSION_BY_LEASE, Flaw::ServesTooMany, sides(0, &[]));
}

#[test]
fn a_late_release_must_not_end_another_hold() {
    needs(EXCLUSION_BY_LEASE, Flaw::NumberIsReused, permits(1, &[Fault::Duplicate]));
}

#[test]
fn each_writer_needs_a_token_of_its_own() {
    needs(
        EXCLUSION_BY_FENCE,
        Flaw::WriterKeepsToken,
        sides_of(&[(Writer, 1), (Writer, 1)], 0, &[]),
    );
}

#[test]
fn a_hold_that_is_over_must_be_removed_and_never_renewed() {
    needs(END, Flaw::ReleaseIsLeft, sides(0, &[]));
    needs(END, Flaw::RenewalRevives, sides(1, &[Fault::Renewal]));
}

#[test]
fn a_client_that_waits_must_not_be_overtaken() {
    needs(TURNS, Flaw::QueueIsIgnored, sides(0, &[]));
    needs(TURNS, Flaw::BatchOvertakes, permits_of(&[2, 2, 1], 2, 0, &[]));
}

#[test]
fn leases_and_offers_need_an_end() {
    for flaw in [Flaw::LeaseHasNoEnd, Flaw::OfferHasNoEnd] {
        needs(SERVICE, flaw, sides(1, &[Fault::Stop]));
        needs(SERVICE, flaw, permits_of(&[1, 1, 1], 1, 1, &[Fault::Stop]));
    }
}

#[test]
fn a_waiting_client_has_to_ask_without_an_offer_too() {
    needs(SERVICE, Flaw::WaitsToBeWoken, sides(1, &[Fault::Stop]));
}
