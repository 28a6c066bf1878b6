//! One server and three clients, one of which has two threads that want the lock: tenures, offers
//! to waiting clients, leases that end, locks that are kept unused until another client asks, and
//! faults in all of them.
//!
//! Time has no length: a lease, an offer or a tenure may be over at any time, but a hold ends at
//! the server only after its client has ceased to rely on it. Requests arrive in any order. A
//! request for the lock may be lost, and its client asks again; a release is repeated until it has
//! arrived. A waiting client asks at any time, but only where it makes a difference.
//!
//! A lock may be kept for any time, but a waiting client is still served: the server tells the
//! client that keeps it each time the other one asks. Its messages are late or lost, and overtake
//! replies, but arrive in the order of the tenures that they are about. A renewal removes the
//! tokens of a kept lock, and learns the state at once.
//!
//! The scope is bounded: each thread wants the lock once, and up to two faults occur. Not modelled
//! are a server that loses its data, renewals of locks that are not kept, nested levels, and
//! threads that try without waiting. A client's requests are executed in order, except those that
//! it repeats and those that arrive again.

mod client;
mod flaw;
mod promises;
mod scope;
pub(crate) mod server;
mod world;

use crate::check::{breaks, comes_to_an_end, keeps_its_promises};
use crate::tenure::flaw::Flaw;
use crate::tenure::promises::{
    EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE, RECALL, RELEASE, SERVICE, TURNS,
};
use crate::tenure::scope::{Fault, Scope};

const ALL: [Fault; 5] = [Fault::Duplicate, Fault::Force, Fault::NoReply, Fault::Pause, Fault::Stop];

/// The possible faults where clients keep the lock.
const KEPT: [Fault; 6] =
    [Fault::Duplicate, Fault::Force, Fault::NoReply, Fault::Pause, Fault::Stop, Fault::Unheard];

/// Three clients, the first of which has two threads, with up to `most` of these faults.
fn three_clients(most: u64, faults: &[Fault]) -> Scope {
    Scope { threads: vec![2, 1, 1], keeps: 0, faults: faults.to_vec(), most, flaw: None }
}

/// Like `three_clients`, with two clients.
fn two_clients(most: u64, faults: &[Fault]) -> Scope {
    Scope { threads: vec![2, 1], ..three_clients(most, faults) }
}

/// The same clients, of which this many keep the lock.
fn keeping(keeps: usize, scope: Scope) -> Scope {
    Scope { keeps, ..scope }
}

/// Checks that a promise is broken if a rule is.
fn needs(promise: &'static str, flaw: Flaw, scope: Scope) {
    breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

#[test]
fn clients_can_rely_on_the_promises() {
    keeps_its_promises(three_clients(0, &[]));
}

#[test]
fn one_fault_of_any_kind_does_no_harm() {
    keeps_its_promises(three_clients(1, &ALL));
}

#[test]
fn two_faults_of_any_kind_do_no_harm() {
    keeps_its_promises(two_clients(2, &ALL));
}

#[test]
fn clients_that_give_up_or_let_others_go_first_do_no_harm() {
    let faults = [Fault::GiveUp, Fault::GiveWay, Fault::Stop];
    keeps_its_promises(three_clients(1, &faults));
    keeps_its_promises(two_clients(2, &faults));
}

/// Without this, the promise of service would say nothing about paths that never rest.
#[test]
fn no_path_is_endless() {
    comes_to_an_end(&three_clients(0, &[]));
    comes_to_an_end(&two_clients(2, &ALL));
}

#[test]
fn a_lease_has_to_count_from_the_request() {
    needs(EXCLUSION_BY_LEASE, Flaw::CountsFromReply, two_clients(1, &[Fault::Pause]));
}

#[test]
fn a_tenure_must_not_be_handed_off_once_its_release_was_sent() {
    needs(EXCLUSION_BY_LEASE, Flaw::HandsOffInDoubt, two_clients(0, &[]));
}

#[test]
fn a_tenure_must_not_be_handed_off_after_its_deadline() {
    needs(EXCLUSION_BY_LEASE, Flaw::HandsOffLate, two_clients(0, &[]));
}

#[test]
fn a_release_must_not_end_another_tenure() {
    let scope = || three_clients(1, &[Fault::Duplicate]);
    needs(EXCLUSION_BY_LEASE, Flaw::ReleaseIsUnchecked, scope());
    needs(EXCLUSION_BY_LEASE, Flaw::NumberIsReused, scope());
}

#[test]
fn a_counter_has_to_show_the_end_of_a_block() {
    needs(EXCLUSION_BY_FENCE, Flaw::BlockIsNotReserved, two_clients(0, &[]));
}

#[test]
fn a_repeated_request_must_not_count_as_another_hold() {
    for fault in [Fault::Duplicate, Fault::NoReply] {
        needs(RELEASE, Flaw::RepeatIsCounted, two_clients(1, &[fault]));
    }
}

#[test]
fn a_released_lock_has_to_be_offered_and_left_to_the_client_that_has_waited() {
    needs(TURNS, Flaw::NothingIsOffered, two_clients(0, &[]));
    needs(TURNS, Flaw::OffersAreIgnored, two_clients(0, &[]));
}

#[test]
fn leases_and_offers_need_an_end() {
    for flaw in [Flaw::LeaseHasNoEnd, Flaw::OfferHasNoEnd] {
        needs(SERVICE, flaw, three_clients(1, &[Fault::Stop]));
    }
}

#[test]
fn a_waiting_client_has_to_ask_without_a_wake_up_too() {
    needs(SERVICE, Flaw::WaitsToBeWoken, two_clients(1, &[Fault::Unwoken]));
}

#[test]
fn clients_that_keep_the_lock_can_rely_on_the_promises() {
    keeps_its_promises(keeping(3, three_clients(0, &[])));
}

#[test]
fn one_fault_does_no_harm_to_clients_that_keep_the_lock() {
    keeps_its_promises(keeping(2, two_clients(1, &KEPT)));
}

#[test]
fn lost_messages_and_forced_ends_do_no_harm_to_three_clients_that_keep_the_lock() {
    keeps_its_promises(keeping(1, three_clients(1, &[Fault::Force, Fault::Unheard])));
}

#[test]
fn two_faults_do_no_harm_to_clients_that_keep_the_lock() {
    keeps_its_promises(keeping(1, two_clients(2, &[Fault::NoReply, Fault::Unheard])));
}

#[test]
fn no_path_of_a_kept_lock_is_endless() {
    comes_to_an_end(&keeping(2, two_clients(1, &KEPT)));
}

#[test]
fn a_kept_lock_must_not_be_used_once_its_tenure_is_over() {
    needs(EXCLUSION_BY_LEASE, Flaw::KeptIsUsedLate, keeping(2, two_clients(0, &[])));
    let scope = keeping(2, two_clients(1, &[Fault::Force]));
    needs(EXCLUSION_BY_LEASE, Flaw::KeptIsUsedAfterItsEnd, scope);
}

#[test]
fn a_kept_lock_needs_more_tokens_when_its_block_is_used_up() {
    needs(
        EXCLUSION_BY_FENCE,
        Flaw::BlockIsOverdrawn,
        keeping(1, Scope { threads: vec![3, 1], ..two_clients(0, &[]) }),
    );
}

#[test]
fn a_client_has_to_heed_that_another_one_waits() {
    let scope = || keeping(2, two_clients(0, &[]));
    needs(RECALL, Flaw::RecallIsIgnored, scope());
    needs(RECALL, Flaw::WantedTooEarly, scope());
    needs(RECALL, Flaw::RefillHidesWaiters, keeping(2, two_clients(1, &[Fault::Unheard])));
}

#[test]
fn a_client_that_waits_for_a_kept_lock_has_to_ask_again() {
    let scope = |most| keeping(2, two_clients(most, &[Fault::Unheard]));
    let flaw = Some(Flaw::RecallIsNotRepeated);
    keeps_its_promises(Scope { flaw, ..scope(0) });
    needs(SERVICE, Flaw::RecallIsNotRepeated, scope(1));
}
