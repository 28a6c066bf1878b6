//! One server: requests and replies may be late, lost, repeated or overtaken by others, and the
//! clock may tick between any two of them, for ever.

mod client;
mod flaw;
mod promises;
mod store;
mod world;

use crate::keeps_its_promises;
use crate::single::flaw::Flaw;
use crate::single::promises::{
    DEPTH_IS_SET, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE, LOST_IS_FINAL, OTHERS_ARE_LEFT_ALONE,
    REMAINS_ARE_CLEANED_UP,
};
use crate::single::world::{Besides, Scope};

/// The length of a lease, in ticks.
const LEASE: u8 = 3;

/// What a guard leaves of that for clocks that drift apart.
const DRIFT: u8 = 1;

/// Two clients that take the lock once, at a server whose clock is fast.
fn two_clients() -> Scope {
    Scope { holds: vec![1, 1], besides: vec![Besides::Drift], ..one_client() }
}

/// A client that takes the lock twice.
fn one_client() -> Scope {
    Scope { holds: vec![2], besides: vec![], messages: 2, flaw: None }
}

/// Looks for a state in which a promise is broken.
fn breaks(promise: &'static str, flaw: Flaw, scope: Scope) {
    crate::breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

#[test]
fn clients_that_compete_can_rely_on_what_is_promised() {
    keeps_its_promises(two_clients());
}

#[test]
fn holds_that_follow_each_other_can() {
    keeps_its_promises(Scope { messages: 3, ..one_client() });
}

#[test]
fn threads_that_hand_the_lock_on_can() {
    let besides = vec![Besides::HandOn, Besides::ForgottenFence];
    keeps_its_promises(Scope { besides, ..one_client() });
    keeps_its_promises(Scope { besides: vec![Besides::HandOn], messages: 3, ..one_client() });
}

#[test]
fn threads_that_nest_can() {
    keeps_its_promises(Scope { besides: vec![Besides::Nesting], ..one_client() });
}

#[test]
fn an_owner_needs_a_number_for_each_hold() {
    breaks(OTHERS_ARE_LEFT_ALONE, Flaw::OwnerIsTheClient, one_client());
    let two_clients = Scope { holds: vec![2, 1], ..one_client() };
    breaks(EXCLUSION_BY_LEASE, Flaw::OwnerIsTheClient, two_clients);
}

#[test]
fn a_depth_has_to_be_set() {
    let scope = Scope { besides: vec![Besides::Nesting], ..one_client() };
    breaks(DEPTH_IS_SET, Flaw::DepthIsCounted, scope);
}

#[test]
fn a_deadline_has_to_count_from_the_request() {
    breaks(EXCLUSION_BY_LEASE, Flaw::DeadlineFromReply, two_clients());
}

#[test]
fn a_deadline_has_to_leave_room_for_drift() {
    breaks(EXCLUSION_BY_LEASE, Flaw::DeadlineWithoutDrift, two_clients());
}

#[test]
fn a_renewal_must_not_come_too_late() {
    breaks(LOST_IS_FINAL, Flaw::LostIsRenewed, one_client());
}

#[test]
fn a_renewal_must_not_bring_a_hold_back() {
    breaks(REMAINS_ARE_CLEANED_UP, Flaw::RenewalCreates, one_client());
}

#[test]
fn a_clean_up_has_to_go_on_after_an_answer() {
    breaks(REMAINS_ARE_CLEANED_UP, Flaw::CleanUpStopsEarly, one_client());
}

#[test]
fn a_transfer_has_to_be_cleaned_up_after() {
    let scope = Scope { besides: vec![Besides::HandOn], messages: 3, ..one_client() };
    breaks(REMAINS_ARE_CLEANED_UP, Flaw::TransferIsForgotten, scope);
}

#[test]
fn a_transfer_needs_a_fence_of_its_own() {
    let scope = Scope { besides: vec![Besides::HandOn], ..one_client() };
    breaks(EXCLUSION_BY_FENCE, Flaw::TransferKeepsFence, scope);
}

#[test]
fn a_fence_needs_the_clock_where_the_counter_may_be_lost() {
    let scope = Scope { besides: vec![Besides::ForgottenFence], ..one_client() };
    breaks(EXCLUSION_BY_FENCE, Flaw::FenceIsCounted, scope);
}
