//! All possible replies of up to five servers, and the decisions that they lead to.

mod wrong_types;

use std::io;

use super::*;
use crate::store::request::HolderReply;

const LEASE: Duration = Duration::from_secs(30);

fn failed<T>(kind: FailureKind) -> Result<T, Failure> {
    Err(Failure::io(kind, &Arc::from("there"), io::Error::other("test")))
}

/// The only requested hold exists now.
fn acquired(fence: u64, room: u32) -> AcquireReply {
    AcquireReply::Acquired { fence, others: Vec::new(), room, wanted: false }
}

/// Another owner holds the lock.
fn held(remaining: Option<Duration>) -> AcquireReply {
    AcquireReply::Held { index: 0, remaining, in_doubt: false, recalled: false, echoed: None }
}

fn falls_short<T>(acked: u32) -> Result<T, Failure> {
    failed(FailureKind::NotReplicated { acked, required: 3 })
}

#[test]
fn a_missing_reply_may_be_anything_until_the_votes_are_closed() {
    let mut votes = Votes(vec![Some(Ok(1)), None, Some(failed(FailureKind::Rejected))]);
    let may_be_one =
        |votes: &Votes<i32>| [0, 1, 2].map(|server| votes.may_be(server, |it| *it == 1));
    assert_eq!(may_be_one(&votes), [true, true, false]);
    assert!(!votes.may_be(0, |it| *it == 2));
    votes.close(|_| failed::<i32>(FailureKind::Unreachable).expect_err("it failed"));
    assert_eq!(votes.pending(), 0);
    assert_eq!(may_be_one(&votes), [true, false, false]);
    votes.0[1] = Some(failed(FailureKind::Timeout));
    assert_eq!(may_be_one(&votes), [true, true, false]);
}

/// Returns every combination of these votes over that many servers.
fn all_of<T: Clone>(servers: usize, votes: &[Option<Result<T, Failure>>]) -> Vec<Votes<T>> {
    let combinations = votes.len().pow(u32::try_from(servers).expect("a few"));
    let combination = |mut number: usize| {
        let vote = |_| {
            let vote = votes[number % votes.len()].clone();
            number /= votes.len();
            vote
        };
        Votes((0..servers).map(vote).collect())
    };
    (0..combinations).map(combination).collect()
}

fn acquire_replies() -> [Option<Result<AcquireReply, Failure>>; 7] {
    [
        None,
        Some(Ok(acquired(7, 0))),
        Some(Ok(held(Some(LEASE)))),
        Some(failed(FailureKind::Timeout)),
        Some(failed(FailureKind::Unreachable)),
        Some(failed(FailureKind::WrongType)),
        Some(falls_short(1)),
    ]
}

#[test]
fn a_hold_is_granted_by_a_majority_and_by_nothing_else() {
    for servers in 1..=5 {
        for votes in all_of(servers, &acquire_replies()) {
            let won = votes.count(|reply| matches!(reply, AcquireReply::Acquired { .. }));
            let busy = votes.count(|reply| matches!(reply, AcquireReply::Held { .. }));
            let (short, wrong) =
                (votes.count_short(), votes.count_failures(FailureKind::WrongType));
            let may_win = won + votes.pending() >= votes.required();
            match votes.decide_acquire() {
                Some(Ok(AcquireReply::Acquired { fence, room, .. })) => {
                    assert!(won >= votes.required(), "{votes:?}");
                    assert!(fence == 7 && room == 0 && votes.agree_on(7));
                }
                None => assert!(votes.pending() > 0 && won < votes.required(), "{votes:?}"),
                Some(outcome) => {
                    assert!(!may_win, "{votes:?}");
                    match outcome {
                        Ok(_) => {
                            assert!(won + short < votes.required(), "{votes:?}");
                            assert!(won + short + busy + wrong >= votes.required(), "{votes:?}");
                        }
                        Err(failure) if failure.is_shortfall() => {
                            assert!(won + short >= votes.required(), "{votes:?}");
                        }
                        Err(failure) if failure.kind == FailureKind::WrongType => {
                            assert!(votes.outvoted_by(wrong), "{votes:?}");
                        }
                        Err(failure) => {
                            assert!(won + short + busy + wrong < votes.required(), "{votes:?}");
                            let silent = votes.count_failures(FailureKind::Timeout) > 0;
                            assert_eq!(failure.is_ambiguous(), silent, "{votes:?}");
                            let shortfall = failure.no_quorum.expect("no majority");
                            let required = usize::try_from(shortfall.required).expect("a few");
                            assert_eq!(required, votes.required(), "{votes:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn contention_is_in_doubt_only_where_a_request_may_have_arrived() {
    for votes in all_of(5, &acquire_replies()) {
        let silent = votes.count_failures(FailureKind::Timeout) > 0;
        match votes.decide_acquire() {
            Some(Ok(AcquireReply::Held { in_doubt: true, .. })) => {
                assert!(silent, "{votes:?}");
            }
            Some(Ok(AcquireReply::Held { .. })) => assert!(!silent, "{votes:?}"),
            _ => {}
        }
    }
}

#[test]
fn a_hold_is_held_with_a_majority_and_gone_when_none_is_left() {
    let replies = [
        None,
        Some(Ok(HoldReply::Done)),
        Some(Ok(HoldReply::Gone)),
        Some(Ok(HoldReply::Wanted)),
        Some(failed(FailureKind::Timeout)),
        Some(falls_short(1)),
    ];
    for servers in 1..=5 {
        for votes in all_of(servers, &replies) {
            let wanted = votes.count(|reply| *reply == HoldReply::Wanted);
            let ours = votes.count(|reply| *reply == HoldReply::Done) + wanted;
            let gone = votes.count(|reply| *reply == HoldReply::Gone);
            let (required, pending) = (votes.required(), votes.pending());
            match votes.decide_hold() {
                Some(Ok(HoldReply::Done)) => assert!(ours >= required && wanted == 0),
                Some(Ok(HoldReply::Wanted)) => assert!(ours >= required && wanted > 0),
                Some(Ok(HoldReply::Gone)) => assert!(servers - gone < required),
                Some(Err(failure)) => {
                    assert!(ours < required && servers - gone >= required);
                    assert!(ours + pending < required, "{votes:?}");
                    assert!(pending == 0 || servers - gone - pending >= required, "{votes:?}");
                    let done = ours + votes.count_short();
                    assert_eq!(failure.is_shortfall(), done >= required, "{votes:?}");
                    assert!(failure.is_shortfall() || failure.is_ambiguous());
                }
                None => assert!(pending > 0 && ours < required && servers - gone >= required),
            }
            match votes.decide_release() {
                None => assert!(pending > 0),
                Some(Ok(JobReply { hold, everywhere })) => {
                    assert_eq!(everywhere, ours + gone == servers);
                    assert_eq!(votes.decide_hold().and_then(Result::ok), Some(hold));
                }
                Some(Err(_)) => assert!(ours + gone < servers),
            }
            match votes.decide_any() {
                None => assert!(pending > 0 && ours + gone < required),
                Some(Err(_)) => assert!(ours + gone + pending < required),
                Some(Ok(reply)) => assert_eq!(reply == HoldReply::Done, ours > 0),
            }
        }
    }
}

#[test]
fn the_token_is_the_greatest_and_agreed_if_a_majority_gave_it() {
    let race = |grants: [(u64, u32); 3]| {
        let grant = |(fence, room)| Some(Ok(acquired(fence, room)));
        let votes = Votes(grants.map(grant).into());
        match votes.decide_acquire() {
            Some(Ok(AcquireReply::Acquired { fence, room, .. })) => {
                (fence, votes.agree_on(fence).then_some(room))
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(race([(5, 0), (5, 0), (5, 0)]), (5, Some(0)));
    assert_eq!(race([(5, 9), (9, 0), (9, 0)]), (9, Some(0)));
    assert_eq!(race([(5, 9), (5, 9), (9, 9)]), (9, None));
    // Room for as many more as the counters of a majority allow.
    assert_eq!(race([(5, 7), (5, 9), (5, 8)]), (5, Some(8)));
    assert_eq!(race([(5, 7), (4, 9), (5, 8)]), (5, Some(7)));
}

#[test]
fn a_shortfall_reports_what_the_best_majority_has_acknowledged() {
    let acked = |votes: Vec<_>| match Votes(votes).decide_acquire() {
        Some(Err(Failure { kind, .. })) => match kind {
            FailureKind::NotReplicated { acked, required: 3 } => acked,
            kind => panic!("{kind:?}"),
        },
        other => panic!("{other:?}"),
    };
    let won = || Some(Ok(acquired(1, 0)));
    let short = |acked| Some(falls_short(acked));
    assert!(Votes(vec![short(1)]).may_be(0, |_: &AcquireReply| false), "it is done there");
    assert_eq!(acked(vec![short(1)]), 1);
    assert_eq!(acked(vec![short(0), short(2), won()]), 2);
    assert_eq!(acked(vec![short(2), short(0), short(1)]), 1);
    assert_eq!(acked(vec![short(2), short(1), None]), 1);
    assert_eq!(acked(vec![won(), short(0), short(1), short(2), None]), 1);
    assert_eq!(acked(vec![won(), short(2), Some(failed(FailureKind::Unreachable))]), 2);
}

#[test]
fn a_transient_failure_may_make_up_for_a_shortfall_at_the_next_try() {
    let race = |votes: Vec<_>| match Votes(votes).decide_acquire() {
        Some(Err(failure)) => failure.kind,
        other => panic!("{other:?}"),
    };
    let (won, short) = (|| Some(Ok(acquired(1, 0))), || Some(falls_short(1)));
    let passing = || Some(failed(FailureKind::Transient));
    assert_eq!(race(vec![won(), short(), passing()]), FailureKind::Transient);
    assert_eq!(race(vec![short(), passing(), passing()]), FailureKind::Transient);
    assert!(matches!(race(vec![short(), short(), passing()]), FailureKind::NotReplicated { .. }));
}

#[test]
fn a_lock_may_be_free_when_a_majority_of_leases_is_over() {
    let busy = |seconds| {
        let remaining = Some(Duration::from_secs(seconds));
        Some(Ok(held(remaining)))
    };
    let remaining = |votes: Vec<_>| match Votes(votes).decide_acquire() {
        Some(Ok(AcquireReply::Held { remaining, .. })) => remaining.map(|left| left.as_secs()),
        other => panic!("{other:?}"),
    };
    let won = || Some(Ok(acquired(1, 0)));
    let forever = || Some(Ok(held(None)));
    assert_eq!(remaining(vec![busy(9), busy(3), busy(6)]), Some(6));
    assert_eq!(remaining(vec![won(), won(), busy(9), busy(3), busy(6)]), Some(3));
    assert_eq!(remaining(vec![forever(), busy(3), busy(6)]), Some(6));
    assert_eq!(remaining(vec![forever(), forever(), busy(6)]), None);
}

#[test]
fn a_quorum_announces_only_the_end_of_a_hold_that_a_majority_has() {
    let at = |owner: &str| {
        let AcquireReply::Held { index, remaining, in_doubt, recalled, .. } = held(None) else {
            unreachable!("it is held")
        };
        let echoed = Some(owner.into());
        Some(Ok(AcquireReply::Held { index, remaining, in_doubt, recalled, echoed }))
    };
    let (mute, won) = (|| Some(Ok(held(None))), || Some(Ok(acquired(1, 0))));
    let echoed = |votes: Vec<_>| match Votes(votes).decide_acquire() {
        Some(Ok(AcquireReply::Held { echoed, .. })) => echoed,
        other => panic!("{other:?}"),
    };
    let one = Some("one".to_owned());
    assert_eq!(echoed(vec![at("one"), at("one"), at("other")]), one);
    assert_eq!(echoed(vec![at("one"), mute(), at("one")]), one);
    assert_eq!(echoed(vec![at("one"), at("one"), None]), one);
    assert_eq!(echoed(vec![at("one"), at("other"), at("third")]), None);
    assert_eq!(echoed(vec![at("one"), mute(), mute()]), None);
    assert_eq!(echoed(vec![at("one"), at("one"), at("one"), won(), won()]), None);
}

#[test]
fn the_holder_is_the_one_that_a_majority_names() {
    let seen = |owner: &str, depth, seconds| {
        let remaining = Duration::from_secs(seconds);
        let holder = HolderReply { owner: owner.into(), depth, remaining, fence: 1, note: None };
        let holds = vec![(HeldAs::Lock, holder)];
        Some(Ok(ReportReply { holds, ..ReportReply::default() }))
    };
    let free = || Some(Ok(ReportReply::default()));
    let holder = |votes: Vec<_>| match Votes(votes).decide_holder() {
        Some(Ok(report)) => report.holder().map(|holder| (holder.owner.clone(), holder.depth)),
        other => panic!("{:?}", other.map(Result::err)),
    };
    let mine = Some((b"me".to_vec(), 2));
    assert_eq!(holder(vec![seen("me", 2, 5), seen("me", 2, 9), None]), mine);
    assert_eq!(
        holder(vec![seen("me", 2, 5), seen("me", 1, 9), seen("me", 2, 9), None, None]),
        mine
    );
    assert_eq!(holder(vec![seen("me", 2, 5), seen("you", 1, 9), free()]), None);
    assert_eq!(holder(vec![free(), free(), None]), None);
    let decide = |votes: Vec<_>| Votes(votes).decide_holder();
    assert!(decide(vec![seen("me", 1, 1), free(), None]).is_none());
    assert!(decide(vec![free(), Some(failed(FailureKind::Timeout)), None]).is_none());
    let unreachable = || Some(failed(FailureKind::Unreachable));
    assert!(matches!(decide(vec![unreachable(), unreachable(), None]), Some(Err(_))));
    // The majority of a holder on three of five servers ends with the first of the three leases.
    let votes = vec![seen("me", 1, 9), seen("me", 1, 5), seen("me", 1, 7), free(), free()];
    let report = decide(votes).expect("three of five are a majority").expect("a report");
    assert_eq!(report.holder().expect("a holder").remaining.as_secs(), 5);
    assert_eq!(report.fence, 1);
}

#[test]
fn no_decision_waits_for_a_reply_that_cannot_change_it_or_comes_before_one_that_can() {
    let timeout = || Some(failed(FailureKind::Timeout));
    let hopeless = Votes::<HoldReply>(vec![timeout(), timeout(), None]);
    assert!(matches!(hopeless.decide_hold(), Some(Err(_))));
    assert!(matches!(hopeless.decide_any(), Some(Err(_))));
    let open = Votes::<HoldReply>(vec![None, None, None]);
    assert!(open.decide_hold().is_none() && open.decide_any().is_none());
    let refused = Votes::<HoldReply>(vec![Some(failed(FailureKind::Rejected)), None, None]);
    assert!(refused.decide_any().is_none(), "the others may be a majority");
    // One more answer, and the server that has something else, would make three of five.
    let gone = Some(Ok(HoldReply::Gone));
    let wrong = Some(failed(FailureKind::WrongType));
    let still_open = Votes(vec![gone, wrong, timeout(), timeout(), None]);
    assert!(still_open.decide_any().is_none());
}

#[test]
fn a_client_may_be_registered_at_one_server_and_a_hold_is_at_a_majority() {
    let votes =
        Votes([HoldReply::Done, HoldReply::Gone, HoldReply::Gone].map(|it| Some(Ok(it))).into());
    let decided = |change| votes.decide_change(change).expect("all have answered").ok();
    assert_eq!(decided(Change::Unregister), Some(HoldReply::Done));
    assert_eq!(decided(Change::Check), Some(HoldReply::Gone));
}
