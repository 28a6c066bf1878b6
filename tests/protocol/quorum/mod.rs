//! N independent servers, of which a majority makes a hold; above all, that fencing tokens grow
//! whatever the clients' clocks show.
//!
//! Requests arrive at each server late, in any order, or never, and so do answers: to be down for a
//! while and come back with the data is nothing more than that. Leases have no length. What is left
//! of a hold that was released, taken back or given up, or whose lease is over for its client, ends
//! at each server at any time; the requests that remove it are not messages here.
//!
//! What is looked at has bounds: two or three attempts to get the lock, by two or three clients, at
//! three servers, and two attempts at four and five. Counters are uneven to begin with, as earlier
//! holds may have left them, but nothing of those is under way any more. Clocks show one of up to
//! three times. At most one request is executed twice and one server forgets; a hold is renewed once,
//! a transfer repeated once; and not all of that is put together. Depths, the queue and wake-ups are
//! left out, for no token relies on them.

mod client;
mod flaw;
mod promises;
mod scope;
mod server;
mod votes;
mod world;

use crate::keeps_its_promises;
use crate::quorum::flaw::Flaw;
use crate::quorum::promises::{A_MAJORITY_HAS_IT, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE};
use crate::quorum::scope::{Besides, Clocks, Scope};

/// Two attempts at three servers that have counted differently, by clients whose clocks are behind.
fn two_attempts() -> Scope {
    Scope {
        counters: vec![0, 1, 2],
        holds: vec![1, 1],
        clocks: Clocks::Any(vec![0]),
        besides: vec![],
        flaw: None,
    }
}

/// One attempt more, by the first client.
fn three_attempts() -> Scope {
    Scope { holds: vec![2, 1], ..two_attempts() }
}

/// Three attempts at servers that know nothing of the name.
fn first_attempts() -> Scope {
    Scope { counters: vec![0; 3], ..three_attempts() }
}

/// With a server that loses its data.
fn forgetting(scope: Scope) -> Scope {
    Scope { besides: vec![Besides::Forgetting], ..scope }
}

/// Looks for a state in which a promise is broken.
fn breaks(promise: &'static str, flaw: Flaw, scope: Scope) {
    crate::breaks(promise, flaw, Scope { flaw: Some(flaw), ..scope });
}

#[test]
fn clients_that_compete_can_rely_on_what_is_promised() {
    keeps_its_promises(three_attempts());
    keeps_its_promises(Scope { holds: vec![1, 1, 1], ..first_attempts() });
}

#[test]
fn clients_whose_clocks_jump_can() {
    keeps_its_promises(Scope { clocks: Clocks::Any(vec![0, 2]), ..first_attempts() });
    let (counters, clocks) = (vec![0, 1, 3], Clocks::Any(vec![0, 2, 4]));
    keeps_its_promises(Scope { counters, clocks, ..two_attempts() });
}

#[test]
fn clients_of_four_servers_and_of_five_can() {
    keeps_its_promises(Scope { counters: vec![0, 1, 2, 3], ..two_attempts() });
    keeps_its_promises(Scope { counters: vec![0, 0, 1, 1, 2], ..two_attempts() });
}

#[test]
fn clients_that_renew_their_holds_can() {
    let (clocks, besides) = (Clocks::Any(vec![0, 2]), vec![Besides::Renewal]);
    keeps_its_promises(Scope { clocks, besides, ..two_attempts() });
}

#[test]
fn clients_whose_requests_are_executed_twice_can() {
    keeps_its_promises(Scope { besides: vec![Besides::Duplicate], ..two_attempts() });
}

#[test]
fn threads_that_hand_the_lock_on_can() {
    let besides = vec![Besides::HandOn, Besides::Repeat];
    keeps_its_promises(Scope { counters: vec![0, 0, 1], besides, ..three_attempts() });
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

/// A limit, and not a flaw: two majorities of three may have no more than that server in common.
#[test]
fn a_server_of_three_that_forgets_leaves_it_to_the_clocks() {
    let limit = "a clock that is behind";
    crate::breaks(EXCLUSION_BY_FENCE, limit, forgetting(two_attempts()));
}

#[test]
fn a_server_that_has_forgotten_has_to_stay_away() {
    breaks(EXCLUSION_BY_LEASE, Flaw::ReturnsTooSoon, forgetting(two_attempts()));
}

#[test]
fn a_hold_needs_more_than_half_of_the_servers() {
    let four_servers = || Scope { counters: vec![0; 4], ..two_attempts() };
    for promise in [A_MAJORITY_HAS_IT, EXCLUSION_BY_FENCE, EXCLUSION_BY_LEASE] {
        breaks(promise, Flaw::HalfIsEnough, four_servers());
    }
}

#[test]
fn a_renewal_does_too() {
    let scope = Scope { besides: vec![Besides::Renewal], ..two_attempts() };
    breaks(EXCLUSION_BY_LEASE, Flaw::RenewalOfAMinority, scope);
}

#[test]
fn a_hold_that_was_taken_back_must_not_be_asked_for_again() {
    breaks(A_MAJORITY_HAS_IT, Flaw::NumberIsReused, first_attempts());
    breaks(EXCLUSION_BY_LEASE, Flaw::NumberIsReused, first_attempts());
}

#[test]
fn a_majority_must_not_come_too_late() {
    breaks(EXCLUSION_BY_FENCE, Flaw::AnswersCountLate, two_attempts());
}

#[test]
fn a_counter_has_to_outlive_the_hold() {
    breaks(EXCLUSION_BY_FENCE, Flaw::CounterEndsWithHold, two_attempts());
}

#[test]
fn a_server_has_to_give_more_than_its_counter() {
    breaks(EXCLUSION_BY_FENCE, Flaw::CounterIsGivenAgain, two_attempts());
    breaks(EXCLUSION_BY_FENCE, Flaw::ProposalIsGiven, two_attempts());
}

#[test]
fn a_token_has_to_be_the_greatest_that_was_given() {
    breaks(EXCLUSION_BY_FENCE, Flaw::TokenIsTheSmallest, two_attempts());
}

#[test]
fn counters_have_to_be_raised_to_the_token() {
    breaks(EXCLUSION_BY_FENCE, Flaw::RaiseIsLeftOut, two_attempts());
}

#[test]
fn counters_have_to_be_raised_by_a_majority() {
    breaks(EXCLUSION_BY_FENCE, Flaw::RaiseOfAMinority, two_attempts());
}

#[test]
fn a_counter_must_not_be_raised_where_the_hold_is_not() {
    breaks(EXCLUSION_BY_FENCE, Flaw::RaiseIsUnchecked, two_attempts());
}

#[test]
fn a_late_raise_must_not_lower_a_counter() {
    breaks(EXCLUSION_BY_FENCE, Flaw::RaiseLowers, three_attempts());
}

#[test]
fn a_transfer_needs_a_token_of_its_own_and_a_raise() {
    let hands_on = || Scope { besides: vec![Besides::HandOn], ..three_attempts() };
    breaks(EXCLUSION_BY_FENCE, Flaw::TransferKeepsToken, hands_on());
    breaks(EXCLUSION_BY_FENCE, Flaw::TransferIsNotRaised, hands_on());
}

#[test]
fn a_transfer_that_is_repeated_has_to_renew_the_lease() {
    let besides = vec![Besides::HandOn, Besides::Repeat];
    breaks(EXCLUSION_BY_LEASE, Flaw::RepeatDoesNotRenew, Scope { besides, ..first_attempts() });
}
