//! Decisions when some servers have something that is not a lock.

use std::fmt::Debug;

use super::*;

/// All numbers of servers.
const ALL: [usize; 5] = [1, 2, 3, 4, 5];

/// Returns the decision when the replies arrive one by one, in the order of the servers.
fn decide_in_order<T: Clone, D>(
    votes: &Votes<T>,
    decide: impl Fn(&Votes<T>) -> Option<Result<D, Failure>>,
) -> Result<D, Failure> {
    let mut come = Votes::new(votes.0.len());
    let decided = votes.0.iter().enumerate().find_map(|(number, vote)| {
        come.0[number].clone_from(vote);
        decide(&come)
    });
    decided.expect("there is a decision when all votes are in")
}

/// Checks for all replies in all orders that a majority of wrong types is an error, and that fewer
/// of them count among the answers.
fn assert_a_majority_decides<T: Clone, D>(
    counts: &[usize],
    answers: &[T],
    decide: impl Fn(&Votes<T>) -> Option<Result<D, Failure>>,
) where
    Votes<T>: Debug,
{
    let unreachable = Some(failed(FailureKind::Unreachable));
    let answers = answers.iter().map(|answer| Some(Ok(answer.clone())));
    let replies: Vec<_> = [unreachable, Some(wrong())].into_iter().chain(answers).collect();
    for &servers in counts {
        // With half of an even number of servers out of reach, no call waits for the others.
        let replies = if servers % 2 == 0 { &replies[1..] } else { &replies };
        for votes in all_of(servers, replies) {
            let is_wrong = votes.outvoted_by(votes.count_wrong());
            match decide_in_order(&votes, &decide) {
                Ok(_) => assert!(!is_wrong, "{votes:?}"),
                Err(failure) if failure.kind == FailureKind::WrongType => {
                    assert!(is_wrong, "{votes:?}");
                }
                Err(_) => {
                    assert!(!is_wrong, "{votes:?}");
                    assert!(votes.count_failures(FailureKind::Unreachable) > 0, "{votes:?}");
                }
            }
        }
    }
}

fn wrong<T>() -> Result<T, Failure> {
    failed(FailureKind::WrongType)
}

fn free() -> AcquireReply {
    acquired(7, 0)
}

fn busy() -> AcquireReply {
    held(Some(LEASE))
}

#[test]
fn a_lock_is_of_another_type_if_a_majority_says_so_in_any_order() {
    assert_a_majority_decides(&ALL, &[free(), busy()], |votes| {
        votes.decide_acquire().map(|decision| decision.map(drop))
    });
}

#[test]
fn a_holder_is_not_looked_for_if_a_majority_has_another_type_in_any_order() {
    let held = |owner: &str| {
        let owner = owner.into();
        let holder = HolderReply { owner, depth: 1, remaining: LEASE, fence: 1, note: None };
        ReportReply { holds: vec![(HeldAs::Lock, holder)], ..ReportReply::default() }
    };
    let replies = [ReportReply::default(), held("me"), held("you")];
    assert_a_majority_decides(&ALL, &replies, Votes::decide_holder);
}

#[test]
fn nothing_is_ended_if_a_majority_has_another_type_in_any_order() {
    assert_a_majority_decides(&ALL, &[HoldReply::Done, HoldReply::Gone], Votes::decide_any);
    let votes = [Ok(HoldReply::Done), wrong(), failed(FailureKind::Unreachable)];
    let decided = Votes(votes.map(Some).into()).decide_any();
    assert!(matches!(decided, Some(Ok(HoldReply::Done))), "{decided:?}");
}

#[test]
fn a_silent_server_is_waited_for_only_if_it_decides_about_the_type() {
    let decides = |votes: &[Result<AcquireReply, Failure>], silent: usize| {
        let votes = votes.iter().cloned().map(Some).chain((0..silent).map(|_| None));
        Votes(votes.collect()).decide_acquire().is_some()
    };
    assert!(decides(&[failed(FailureKind::Unreachable)], 1));
    assert!(decides(&[Ok(busy()), Ok(busy())], 1));
    assert!(!decides(&[Ok(busy()), wrong()], 1));
    assert!(decides(&[wrong(), wrong()], 1));
    assert!(decides(&[Ok(busy()), Ok(busy()), Ok(busy())], 2));
    assert!(!decides(&[Ok(busy()), Ok(busy()), wrong()], 2));
    assert!(decides(&[Ok(busy()), Ok(busy()), Ok(busy()), wrong()], 1));
    assert!(!decides(&[Ok(busy()), Ok(busy()), wrong(), wrong()], 1));
    assert!(decides(&[Ok(busy()), wrong(), wrong(), wrong()], 1));
    // A majority of such replies is enough.
    let free = Ok(ReportReply::default());
    let inspected = [None, Some(free), Some(wrong()), Some(wrong()), Some(wrong())];
    assert!(Votes(inspected.into()).decide_holder().is_some());
}
