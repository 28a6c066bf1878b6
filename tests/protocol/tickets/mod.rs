//! One server, a process that detaches its hold with a ticket, one or two that adopt it, and one
//! that wants the lock for itself: the behaviour of `src/local/adoption.rs`, and its faults.
//!
//! As in the model of tenures, time has no length, requests arrive in any order, and a hold ends at
//! the server only after each process with a guard has ceased to rely on it. No process relies on a
//! detached hold until one adopts it. The token of a hold is its number.
//!
//! The scope is bounded: each process does its part once, and up to two faults occur. Renewals of
//! guards that stay, locks that stay taken after a release, and the queue of waiting clients are
//! left out: an adoption does not use them.

mod flaw;
mod scope;
mod world;

use crate::check::{breaks, comes_to_an_end, keeps_its_promises};
use crate::tickets::flaw::Flaw;
use crate::tickets::scope::{
    END, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE, Fault, OTHERS, SERVICE, Scope,
};

const ALL: [Fault; 4] = [Fault::Duplicate, Fault::NoReply, Fault::Pause, Fault::Stop];

/// This many processes adopt the ticket, with up to `most` of these faults.
fn adopters(adopters: usize, most: u64, faults: &[Fault]) -> Scope {
    Scope { adopters, faults: faults.to_vec(), most, flaw: None }
}

/// Checks that a promise is broken if a rule is.
fn needs(promise: &'static str, flaw: Flaw, scope: Scope) {
    breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

#[test]
fn processes_can_rely_on_the_promises() {
    keeps_its_promises(adopters(1, 0, &[]));
    keeps_its_promises(adopters(2, 0, &[]));
}

#[test]
fn two_faults_of_any_kind_do_no_harm() {
    keeps_its_promises(adopters(1, 2, &ALL));
}

#[test]
fn one_fault_of_any_kind_does_no_harm_if_two_adopt() {
    keeps_its_promises(adopters(2, 1, &ALL));
}

/// Without this, the promise of service would say nothing about paths that never rest.
#[test]
fn no_path_is_endless() {
    comes_to_an_end(&adopters(1, 2, &ALL));
    comes_to_an_end(&adopters(2, 0, &[]));
}

#[test]
fn an_adoption_must_not_begin_a_hold() {
    needs(END, Flaw::AdoptionBegins, adopters(1, 0, &[]));
}

#[test]
fn an_adoption_must_not_renew_another_hold() {
    needs(OTHERS, Flaw::AdoptionIsUnchecked, adopters(1, 0, &[]));
    needs(EXCLUSION_BY_LEASE, Flaw::AdoptionIsUnchecked, adopters(1, 0, &[]));
    needs(EXCLUSION_BY_FENCE, Flaw::AdoptionIsUnchecked, adopters(1, 0, &[]));
}

#[test]
fn the_lease_of_an_adopted_hold_has_to_count_from_the_request() {
    needs(EXCLUSION_BY_LEASE, Flaw::CountsFromReply, adopters(1, 1, &[Fault::Pause]));
    needs(EXCLUSION_BY_FENCE, Flaw::CountsFromReply, adopters(1, 1, &[Fault::Pause]));
}

#[test]
fn a_hold_that_is_left_needs_an_end() {
    needs(SERVICE, Flaw::LeftHoldHasNoEnd, adopters(0, 0, &[]));
    needs(SERVICE, Flaw::LeftHoldHasNoEnd, adopters(1, 1, &[Fault::Stop]));
}

#[test]
fn a_guard_must_end_before_its_hold_is_left() {
    needs(EXCLUSION_BY_LEASE, Flaw::OwnerKeepsGuard, adopters(1, 0, &[]));
}

#[test]
fn a_late_renewal_must_not_shorten_the_lease_of_another_process() {
    needs(EXCLUSION_BY_LEASE, Flaw::RenewalShortens, adopters(1, 1, &[Fault::NoReply]));
}

#[test]
fn the_release_of_one_of_two_guards_must_not_end_the_next_hold() {
    needs(OTHERS, Flaw::ReleaseIsUnchecked, adopters(2, 0, &[]));
    needs(OTHERS, Flaw::ReleaseIsUnchecked, adopters(1, 1, &[Fault::Duplicate]));
}
