//! Follows calls of scripts and their answers in the models of tenures and of
//! quorums. This shows that the models describe this code. The torture
//! writes such traces, and `tests/traces` has them checked.
//!
//! Holds, offers, places in the queue, tokens, and the ends of leases have to match the model. The
//! clients that listen, and the clock of a server, are taken from the trace.

mod call;
mod recorded;
mod replay;
mod sets;
mod tenures;
mod votes;

use crate::traces::call::Call;
use crate::traces::replay::Replay;

/// Anna holds a lock that Ben and Cleo wait for. She releases it, and Ben gets it, with three
/// tokens.
const LOCK: &str = "\
1.000000 [0 a] acquire 3 lock fence queue anna:1 9000 9 600 '' -> 1000000
1.001000 [0 a] acquire 3 lock fence queue ben:1 9000 9 600 '' -> 0 8999
1.002000 [0 a] acquire 3 lock fence queue cleo:1 9000 9 600 '' -> 0 8998
1.003000 [0 a] change 1 lock anna:1 9000 2 -> 1
1.004000 [0 a] release 2 lock queue anna:1 200 '' 0 -> 1
1.004001 [0 lua] publish leasehold:wake:ben lock
1.004002 [0 lua] hset lock ben:0 0
1.004003 [0 lua] zrem queue ben
1.004004 [0 lua] publish leasehold:wake:cleo lock
1.005000 [0 a] acquire 3 lock fence queue anna:2 9000 9 600 '' -> 0 199
1.006000 [0 a] acquire 3 lock fence queue ben:1 9000 9 600 '' queued 9 200 '' -> 1006000 1006002 1
1.007000 [0 a] release 2 lock queue anna:1 200 '' 0 -> 0
2.000000 [0 a] unregister 2 lock queue cleo 200 '' 0 -> 1
9.000000 [0 a] change 1 lock ben:1 9000 '' -> 1
20.000000 [0 a] change 1 lock ben:1 9000 '' -> 0
";

const LOCK_PLANTED: &[(&str, &str)] = &[
    // A second holder, beside the first one and before an offer.
    ("-> 0 8999", "-> 1001000"),
    ("-> 0 199", "-> 1005000"),
    // A hold that does not exist, or remains.
    ("anna:1 9000 2 -> 1", "anna:1 9000 2 -> 0"),
    ("anna:1 200 '' 0 -> 0", "anna:1 200 '' 0 -> 1"),
    // The lock is offered to the wrong client, or to none.
    ("hset lock ben:0 0", "hset lock cleo:0 0"),
    ("hset lock ben:0 0", "hset lock anna:1 0"),
    // A token twice, more tokens than asked for, a client that waits unseen.
    ("-> 1006000 1006002 1", "-> 1000000 1000002 1"),
    ("-> 1006000 1006002 1", "-> 1006000 1007000 1"),
    ("-> 1006000 1006002 1", "-> 1006000 1006002"),
    // A waiting client is not found, a lease is too short or too long.
    ("cleo 200 '' 0 -> 1", "cleo 200 '' 0 -> 0"),
    ("-> 0 8998", "-> 0 7000"),
    ("20.000000", "17.000000"),
];

/// Anna takes two locks together. Ben wants them too and gets neither. When Anna has released the
/// second one, it is offered to Cleo.
const SETS: &str = "\
1.000000 [0 a] acquire_all 4 one f1 two f2 9000 9 anna:1 anna:2 -> 1 1000000 1000001
1.000001 [0 lua] hset one anna:1 1
1.000002 [0 lua] hset two anna:2 1
1.001000 [0 a] acquire_all 4 two f2 one f1 9000 9 ben:1 ben:2 -> 0 -1 0 0
1.002000 [0 a] acquire_all 4 one f1 two f2 9000 9 anna:1 anna:2 -> 1 1000000 1000001
1.003000 [0 a] acquire 3 two f2 queue cleo:1 9000 9 600 '' queued 1 200 '' -> 0 8999
1.004000 [0 a] release 2 two queue anna:2 200 '' 0 -> 1
1.004001 [0 lua] publish leasehold:wake:cleo two
1.004002 [0 lua] hset two cleo:0 0
1.004003 [0 lua] zrem queue cleo
1.005000 [0 a] release 2 one queue anna:1 200 '' 0 -> 1
1.006000 [0 a] acquire_all 4 one f1 two f2 9000 9 cleo:2 cleo:3 -> 0 -1 0 1
2.000000 [0 a] acquire_all 4 two f2 one f1 9000 9 ben:3 ben:4 -> 1 2000000 2000001
2.000001 [0 lua] hset two ben:3 1
2.000002 [0 lua] hset one ben:4 1
";

const SETS_PLANTED: &[(&str, &str)] = &[
    // Locks that another client has, or is offered, and locks that are free.
    ("ben:2 -> 0 -1 0 0", "ben:2 -> 1 1001000 1001001"),
    ("cleo:3 -> 0 -1 0 1", "cleo:3 -> 1 1006000 1006001"),
    ("-> 1 2000000 2000001", "-> 0 -1 0 0"),
    // Another lock is held, or a later one.
    ("ben:2 -> 0 -1 0 0", "ben:2 -> 0 -1 0 1"),
    ("cleo:3 -> 0 -1 0 1", "cleo:3 -> 0 -1 0 0"),
    // A token twice, too few tokens, a lock without one, a hold that begins although it must not.
    ("-> 1 2000000 2000001", "-> 1 1000001 2000001"),
    ("-> 1 2000000 2000001", "-> 1 2000000"),
    ("hset one ben:4 1", "hset one ben:0 0"),
    ("[0 lua] hset two ben:3 1", "[0 lua] publish x y"),
];

/// Anna keeps a lock that Ben tries for once, and that Cleo waits for.
const KEPT: &str = "\
1.000000 [0 a] acquire 3 lock f q anna:8000000000000001 9000 9 600 '' '' 9 -> 1000000 1000008
1.001000 [0 a] acquire 3 lock f q ben:1 9000 9 -600 '' queued 1 200 '' -> 0 8999 1
1.001001 [0 lua] publish leasehold:wake:anna leasehold:try:8000000000000001:lock
1.001500 [0 a] change 2 lock q anna:8000000000000001 9000 watch -> 1
1.003000 [0 a] acquire 3 lock f q cleo:1 9000 9 600 '' queued 1 200 '' -> 0 8998 1
1.003001 [0 lua] publish leasehold:wake:anna leasehold:want:8000000000000001:lock
1.003500 [0 a] change 2 lock q anna:8000000000000001 9000 watch -> 2
1.004000 [0 a] acquire 3 lock f q anna:8000000000000001 9000 9 600 '' kept 9 -> 1004000 1004008 1
";

const KEPT_PLANTED: &[(&str, &str)] = &[
    // The wrong client is told, or about the wrong hold or the wrong wish, or no client is told.
    ("wake:anna leasehold:try", "wake:cleo leasehold:try"),
    ("try:8000000000000001", "try:8000000000000002"),
    ("leasehold:try", "leasehold:want"),
    ("leasehold:want", "leasehold:try"),
    ("publish leasehold:wake:anna leasehold:want", "publish leasehold:wake:cleo x"),
    // A client does not learn that the holder was told.
    ("-> 0 8999 1", "-> 0 8999"),
    ("-> 0 8998 1", "-> 0 8998"),
    // The holder does not learn that others wait, or learns it before one waits for longer than a
    // moment.
    ("watch -> 1", "watch -> 2"),
    ("watch -> 2", "watch -> 1"),
    ("1004008 1", "1004008"),
];

/// A server of a quorum gives Anna the token she proposes, and raises its counter to the token of
/// the others. She withdraws, and Ben gets more than he proposes.
const VOTES: &str = "\
1.000000 [0 a] acquire 3 lock f q anna:1 9000 9 600 500 -> 500
1.000001 [0 lua] set f 500 px 9 get
1.001000 [0 a] acquire 3 lock f q ben:1 9000 9 600 600 -> 0 8999
1.002000 [0 a] change 2 lock f anna:1 0 '' 9 700 -> 1
1.002001 [0 lua] set f 700 px 9
1.003000 [0 a] release 2 lock q anna:1 '' '' 0 -> 1
1.004000 [0 a] change 2 lock f anna:1 0 '' 9 5000 -> 0
1.005000 [0 a] acquire 3 lock f q ben:1 9000 9 600 650 queued 1 200 '' -> 701
1.005001 [0 lua] set f 650 px 9 get
1.005002 [0 lua] set f 701 px 9
1.006000 [0 a] acquire 3 lock f q ben:1 9000 9 600 660 queued 1 200 '' -> 701
1.007000 [0 a] acquire 3 lock f q ben:1 9000 9 600 650 queued 1000 200 '' -> 702 1650
1.007001 [0 lua] set f 1650 px 9
1.008000 [0 a] acquire 3 lock f q ben:1 9000 9 600 2000 kept 1000 200 '' -> 2000 2999
1.008001 [0 lua] set f 2999 px 9
";

const VOTES_PLANTED: &[(&str, &str)] = &[
    // The clock decides instead of a proposal, or a proposal instead of a counter.
    ("-> 500", "-> 1000000"),
    ("-> 2000 2999", "-> 1651 2650"),
    ("650 queued 1 200 '' -> 701", "650 queued 1 200 '' -> 650"),
    ("-> 702 1650", "-> 650 1649"),
    // A counter is not raised, or is raised without the hold.
    ("'' 9 700 -> 1", "'' 9 700 -> 0"),
    ("set f 700 px 9", "zrem q x"),
    ("650 queued 1 200 '' -> 701", "650 queued 1 200 '' -> 651"),
    ("9 5000 -> 0", "9 5000 -> 1"),
    ("9 5000 -> 0", "9 5000 -> 0\n1.004001 [0 lua] set f 5000 px 9"),
    // A repeat gets another token, or a block that is further ahead than its counter may be.
    ("660 queued 1 200 '' -> 701", "660 queued 1 200 '' -> 702"),
    ("-> 702 1650", "-> 702 1701"),
    ("set f 1650 px 9", "set f 702 px 9"),
    // A withdrawn hold did not exist, or its lock is offered.
    ("anna:1 '' '' 0 -> 1", "anna:1 '' '' 0 -> 0"),
    ("anna:1 '' '' 0 -> 1", "anna:1 '' '' 0 -> 1\n1.003001 [0 lua] hset lock ben:0 0"),
];

struct Sample {
    trace: &'static str,
    /// An answer that may be lost.
    lost: &'static str,
    /// Pairs of the right answer and a wrong one.
    planted: &'static [(&'static str, &'static str)],
}

const SAMPLES: [Sample; 4] = [
    Sample { trace: LOCK, lost: "-> 1006000 1006002 1", planted: LOCK_PLANTED },
    Sample { trace: SETS, lost: "ben:2 -> 0 -1 0 0", planted: SETS_PLANTED },
    Sample { trace: KEPT, lost: "-> 0 8999 1", planted: KEPT_PLANTED },
    Sample { trace: VOTES, lost: "-> 702 1650", planted: VOTES_PLANTED },
];

fn check(trace: &str) -> Result<Replay, String> {
    Replay::run(&calls(trace)?)
}

/// Parses a trace. Each answer is seen at once, unless it has a time.
fn calls(trace: &str) -> Result<Vec<Call>, String> {
    let seen = |line: &str| match line.split_once(' ') {
        Some((time, _)) if line.contains(" -> ") && !line.contains(['?', '@']) => {
            format!("{line} @{time}\n")
        }
        _ => format!("{line}\n"),
    };
    Call::read(trace.trim().lines().map(seen).collect::<String>().trim())
}

/// Replaces a part of the trace, which must occur exactly once.
fn planted(trace: &str, from: &str, to: &str) -> String {
    assert_eq!(trace.matches(from).count(), 1, "{from}");
    trace.replace(from, to)
}

#[test]
fn what_the_model_does_is_a_trace_of_it() {
    for Sample { trace, lost, .. } in SAMPLES {
        check(trace).expect("the model has these steps");
        // A lost reply may have been anything.
        let (asked, _) = lost.split_once("->").expect("an answer");
        check(&planted(trace, lost, &format!("{asked}-> ?"))).expect("the model has these steps");
    }
}

#[test]
fn a_wrong_answer_is_refused() {
    for sample in SAMPLES {
        for (right, wrong) in sample.planted {
            assert!(check(&planted(sample.trace, right, wrong)).is_err(), "{wrong} for {right}");
        }
    }
}

/// The lease begins before that, or when the script continues, two seconds later.
#[test]
fn a_server_may_stand_still_in_the_middle_of_a_script() {
    for (left, may_be) in [(6500, false), (7000, true), (8000, true), (8999, true), (9500, false)] {
        let trace = format!(
            "1.000000 [0 a] acquire 3 lock f q anna:1 9000 9 600 '' -> 1000000 @3.000000\n\
             3.001000 [0 a] acquire 3 lock f q ben:1 9000 9 600 '' -> 0 {left}"
        );
        assert_eq!(check(&trace).is_ok(), may_be, "{trace}");
    }
}
