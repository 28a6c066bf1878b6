//! N independent servers, of which a majority grants a hold. The model is mainly about fencing
//! tokens, which must grow whatever the clients' clocks show.
//!
//! Requests arrive at each server late, in any order, or never, and so do replies. A server that is
//! down for a while and comes back with its data is just that. Leases have no length. Once a hold
//! was released, undone or abandoned, or its lease is over for its client, its remains end at each
//! server at any time. The requests that remove it are not messages here.
//!
//! The scope is bounded: two or three attempts to get the lock, by two or three clients, at three
//! servers, and two attempts at four and five. Counters differ at the start, as earlier holds may
//! have left them, but no request of those holds is in transit. Clocks show one of up to three
//! times. A hold has up to two tokens, for guards that follow one another. At most one request is
//! executed twice and one server forgets its data; a hold is renewed once, or gets more tokens
//! once; and not all of these are combined. Depths, waiting clients and wake-ups are left out,
//! because no token relies on them.

mod client;
mod flaw;
mod promises;
mod scope;
pub(crate) mod server;
pub(crate) mod votes;
mod world;

use crate::check::{breaks, keeps_its_promises};
use crate::quorum::flaw::Flaw;
use crate::quorum::promises::{A_MAJORITY_HAS_IT, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE};
use crate::quorum::scope::{Clocks, Extra, Scope};

/// Checks that a promise is broken if a rule is.
fn needs(promise: &'static str, flaw: Flaw, scope: Scope) {
    breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

/// Two attempts at three servers whose counters differ, by clients whose clocks are behind.
fn two_attempts() -> Scope {
    Scope {
        counters: vec![0, 1, 2],
        holds: vec![1, 1],
        clocks: Clocks::Any(vec![0]),
        extras: vec![],
        flaw: None,
    }
}

/// Adds an attempt by the first client.
fn three_attempts() -> Scope {
    Scope { holds: vec![2, 1], ..two_attempts() }
}

/// Three attempts at servers that have never seen the name.
fn first_attempts() -> Scope {
    Scope { counters: vec![0; 3], ..three_attempts() }
}

/// Returns the scope with servers that give blocks of tokens.
fn with_blocks(scope: Scope) -> Scope {
    Scope { extras: vec![Extra::Block], ..scope }
}

/// Returns the scope with a server that loses its data.
fn forgetting(scope: Scope) -> Scope {
    Scope { extras: vec![Extra::Forgetting], ..scope }
}

#[test]
fn contending_clients_can_rely_on_the_promises() {
    keeps_its_promises(three_attempts());
    keeps_its_promises(Scope { holds: vec![1, 1, 1], ..first_attempts() });
}

#[test]
fn clients_whose_clocks_jump_can_rely_on_them() {
    keeps_its_promises(Scope { clocks: Clocks::Any(vec![0, 2]), ..first_attempts() });
    let (counters, clocks) = (vec![0, 1, 3], Clocks::Any(vec![0, 2, 4]));
    keeps_its_promises(Scope { counters, clocks, ..two_attempts() });
}

#[test]
fn clients_of_four_and_of_five_servers_can_rely_on_them() {
    keeps_its_promises(Scope { counters: vec![0, 1, 2, 3], ..two_attempts() });
    keeps_its_promises(Scope { counters: vec![0, 0, 1, 1, 2], ..two_attempts() });
}

#[test]
fn clients_that_renew_their_holds_can_rely_on_them() {
    let (clocks, extras) = (Clocks::Any(vec![0, 2]), vec![Extra::Renewal]);
    keeps_its_promises(Scope { clocks, extras, ..two_attempts() });
}

#[test]
fn clients_whose_requests_are_executed_twice_can_rely_on_them() {
    keeps_its_promises(Scope { extras: vec![Extra::Duplicate], ..two_attempts() });
}

#[test]
fn threads_that_hand_the_lock_off_can_rely_on_them() {
    keeps_its_promises(with_blocks(first_attempts()));
    keeps_its_promises(with_blocks(Scope { clocks: Clocks::Any(vec![0, 2]), ..two_attempts() }));
    for extra in [Extra::Duplicate, Extra::Renewal] {
        keeps_its_promises(Scope { extras: vec![Extra::Block, extra], ..two_attempts() });
    }
}

#[test]
fn a_server_that_forgets_does_no_harm_where_clocks_are_right() {
    keeps_its_promises(forgetting(Scope { clocks: Clocks::Right, ..first_attempts() }));
}

/// Two majorities of four have two servers in common.
#[test]
fn a_server_of_four_that_forgets_does_no_harm_whatever_clocks_show() {
    keeps_its_promises(forgetting(Scope { counters: vec![0, 0, 1, 1], ..two_attempts() }));
}

#[test]
fn clients_that_keep_the_lock_and_get_more_tokens_can_rely_on_them() {
    for extras in [vec![Extra::Refill], vec![Extra::Refill, Extra::Renewal]] {
        keeps_its_promises(Scope { extras, ..two_attempts() });
    }
    let extras = vec![Extra::Block, Extra::Refill];
    keeps_its_promises(Scope { counters: vec![0; 3], extras, ..two_attempts() });
}

/// This is a limit and not a flaw: that server may be the only one that two majorities of three
/// share.
#[test]
fn a_server_of_three_that_forgets_leaves_it_to_the_clocks() {
    let limit = "a clock that is behind";
    breaks(EXCLUSION_BY_FENCE, limit, forgetting(two_attempts()));
}

#[test]
fn a_server_that_has_forgotten_has_to_stay_away_for_a_lease() {
    needs(EXCLUSION_BY_LEASE, Flaw::ReturnsTooSoon, forgetting(two_attempts()));
}

#[test]
fn a_hold_needs_more_than_half_of_the_servers() {
    let four_servers = || Scope { counters: vec![0; 4], ..two_attempts() };
    for promise in [A_MAJORITY_HAS_IT, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE] {
        needs(promise, Flaw::HalfIsEnough, four_servers());
    }
}

#[test]
fn a_renewal_needs_more_than_half_of_the_servers() {
    let scope = Scope { extras: vec![Extra::Renewal], ..two_attempts() };
    needs(EXCLUSION_BY_LEASE, Flaw::RenewalOfAMinority, scope);
}

#[test]
fn a_hold_that_was_undone_must_not_be_requested_again() {
    needs(A_MAJORITY_HAS_IT, Flaw::NumberIsReused, first_attempts());
    needs(EXCLUSION_BY_LEASE, Flaw::NumberIsReused, first_attempts());
}

#[test]
fn grants_of_a_majority_must_not_come_too_late() {
    needs(EXCLUSION_BY_FENCE, Flaw::LateRepliesCount, two_attempts());
}

#[test]
fn a_counter_has_to_outlive_the_hold() {
    needs(EXCLUSION_BY_FENCE, Flaw::CounterEndsWithHold, two_attempts());
}

#[test]
fn a_server_has_to_give_more_than_its_counter() {
    needs(EXCLUSION_BY_FENCE, Flaw::CounterIsGivenAgain, two_attempts());
    needs(EXCLUSION_BY_FENCE, Flaw::ProposalIsGiven, two_attempts());
    // This also holds if one client keeps the lock and gets more tokens.
    let kept = Scope { counters: vec![0; 3], holds: vec![1], ..two_attempts() };
    let kept = Scope { clocks: Clocks::Any(vec![1]), extras: vec![Extra::Refill], ..kept };
    needs(EXCLUSION_BY_FENCE, Flaw::CounterIsGivenAgain, kept);
}

#[test]
fn a_token_has_to_be_the_greatest_that_was_given() {
    needs(EXCLUSION_BY_FENCE, Flaw::TokenIsTheSmallest, two_attempts());
}

#[test]
fn counters_have_to_be_raised_to_the_token() {
    needs(EXCLUSION_BY_FENCE, Flaw::RaiseIsLeftOut, two_attempts());
}

#[test]
fn counters_have_to_be_raised_by_a_majority() {
    needs(EXCLUSION_BY_FENCE, Flaw::RaiseOfAMinority, two_attempts());
}

#[test]
fn a_counter_must_not_be_raised_without_the_hold() {
    needs(EXCLUSION_BY_FENCE, Flaw::RaiseIsUnchecked, two_attempts());
}

#[test]
fn a_late_raise_must_not_lower_a_counter() {
    needs(EXCLUSION_BY_FENCE, Flaw::RaiseLowers, three_attempts());
}

#[test]
fn counters_have_to_reach_the_end_of_a_block() {
    for flaw in [Flaw::BlockIsNotStored, Flaw::BlockOfOneServer] {
        let counters = vec![0; 3];
        needs(EXCLUSION_BY_FENCE, flaw, with_blocks(Scope { counters, ..two_attempts() }));
    }
}

#[test]
fn a_block_has_to_begin_with_the_same_token_at_a_majority() {
    needs(EXCLUSION_BY_FENCE, Flaw::BlockOfAMinority, with_blocks(two_attempts()));
}
