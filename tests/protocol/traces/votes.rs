//! Combines the answers of the servers of a quorum, like the model of quorums: a counter is raised
//! only to a token that a majority has given, and the tokens of a hold that a majority had are
//! above those of all earlier holds of a majority.
//!
//! It is not known which replies a client received first, so this must be true of the tokens that
//! any majority has given it. Times are used only where they leave no doubt.

use std::collections::BTreeMap;

use crate::hold::Block;
use crate::quorum::votes::{Grant, grants, majority};
use crate::traces::call::Call;
use crate::traces::calls;

/// A request to all servers: the lock, the owner, and the client's proposal.
type Ballot<'trace> = (&'trace str, &'trace str, u64);

/// A hold that a server has granted.
#[derive(Clone, Copy, Debug)]
struct Vote {
    server: usize,
    tokens: Block,
    /// The hold existed from `since` until `until`.
    since: u64,
    until: u64,
}

/// A grant of a majority. `since` is not before `until` unless they had the hold at the same time.
#[derive(Clone, Copy, Debug)]
struct Given<'trace> {
    ballot: Ballot<'trace>,
    grant: Grant,
    since: u64,
    until: u64,
}

/// The votes of the servers of a quorum.
#[derive(Debug)]
pub(crate) struct Votes<'trace> {
    servers: &'trace [Vec<Call>],
    ballots: BTreeMap<Ballot<'trace>, Vec<Vote>>,
    /// When a server had raised its counter to the token of a hold.
    raised: BTreeMap<Ballot<'trace>, Vec<u64>>,
}

impl<'trace> Votes<'trace> {
    /// Counts the votes in the traces of these servers. Fails if a promise is broken.
    pub(crate) fn count(servers: &'trace [Vec<Call>]) -> Result<Self, String> {
        let mut votes = Self { servers, ballots: BTreeMap::new(), raised: BTreeMap::new() };
        for (server, calls) in servers.iter().enumerate() {
            for call in calls {
                votes.note(server, call);
            }
        }
        let given = votes.given();
        votes.check_raises(&given)?;
        votes.check_order(given)?;
        Ok(votes)
    }

    fn note(&mut self, server: usize, call: &'trace Call) {
        let (lock, owner) = (&*call.keys[0], call.arg(1));
        match call.script.as_str() {
            "acquire" => {
                let Some(tokens) = call.tokens() else { return };
                let (since, until) = (call.time.last, call.time.first + call.micros(2));
                let votes = self.ballots.entry((lock, owner, token(call.arg(5)))).or_default();
                votes.push(Vote { server, tokens, since, until });
            }
            // A renewal that watches has the queue as its second key, and no token.
            "change" if !call.arg(5).is_empty() && call.answer.as_deref() == Some(&[1]) => {
                let raised = self.raised.entry((lock, owner, token(call.arg(5)))).or_default();
                raised.push(call.time.last);
            }
            "release" => {
                let ballots = self.ballots.range_mut((lock, owner, 0)..=(lock, owner, u64::MAX));
                let votes = ballots.flat_map(|(_, votes)| votes);
                for vote in votes.filter(|vote| vote.server == server) {
                    vote.until = vote.until.min(call.time.first);
                }
            }
            _ => {}
        }
    }

    /// Returns the grants of each majority.
    fn given(&self) -> Vec<Given<'trace>> {
        let required = majority(self.servers.len());
        let mut given = Vec::new();
        for (ballot, votes) in &self.ballots {
            for chosen in
                (0..1_u32 << votes.len()).filter(|it| it.count_ones() as usize == required)
            {
                let voters = votes.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
                let voters: Vec<_> = voters.map(|(_, vote)| vote).collect();
                let since = voters.iter().map(|vote| vote.since).max().unwrap_or_default();
                let until = voters.iter().map(|vote| vote.until).min().unwrap_or_default();
                let blocks: Vec<_> = voters.iter().map(|vote| vote.tokens).collect();
                let grants = grants(&blocks, required, None).into_iter();
                given.extend(grants.map(|grant| Given { ballot: *ballot, grant, since, until }));
            }
        }
        given
    }

    /// Checks that a majority without agreement has given the token to which the client asked to
    /// raise counters.
    fn check_raises(&self, given: &[Given<'_>]) -> Result<(), String> {
        for raise @ (lock, owner, token) in self.raised.keys() {
            let is_it = |given: &Given<'_>| {
                let Given { ballot, grant, .. } = given;
                (ballot.0, ballot.1) == (*lock, *owner)
                    && !grant.agreed
                    && grant.tokens.first == *token
            };
            if !given.iter().any(is_it) {
                return Err(format!("no majority has given what is raised: {raise:?}"));
            }
        }
        Ok(())
    }

    fn check_order(&self, mut given: Vec<Given<'trace>>) -> Result<(), String> {
        given.retain(|given| given.since < given.until && self.is_confirmed(given));
        given.sort_by_key(|given| given.since);
        let mut last: BTreeMap<&str, Given<'_>> = BTreeMap::new();
        for next in given {
            let before = last.entry(next.ballot.0).or_insert(next);
            if before.ballot != next.ballot && next.grant.tokens.first <= before.grant.tokens.last {
                return Err(format!("no token above those before: {next:?} after {before:?}"));
            }
            if before.grant.tokens.last < next.grant.tokens.last {
                *before = next;
            }
        }
        Ok(())
    }

    /// Returns `true` if the counters of a majority reached the tokens while the hold existed.
    fn is_confirmed(&self, given: &Given<'_>) -> bool {
        let (lock, owner, _) = given.ballot;
        let raised = self.raised.get(&(lock, owner, given.grant.tokens.first));
        let in_time = raised.into_iter().flatten().filter(|time| **time < given.until).count();
        given.grant.agreed || in_time >= majority(self.servers.len())
    }

    /// Returns the tokens that guards may have: those that majorities have given, and agreed on or
    /// were asked to raise their counters to.
    pub(crate) fn tokens(&self) -> Vec<Block> {
        let is_raised = |Given { ballot: (lock, owner, _), grant, .. }: &Given<'_>| {
            self.raised.contains_key(&(*lock, *owner, grant.tokens.first))
        };
        let given = self.given().into_iter().filter(|it| it.grant.agreed || is_raised(it));
        given.map(|given| given.grant.tokens).collect()
    }
}

fn token(argument: &str) -> u64 {
    argument.parse().unwrap_or_default()
}

/// Anna gets a token that two servers agree on. Ben asks to raise the counters to the greater one
/// that he got from the third, and renews. So does Cleo.
const SERVERS: [&str; 3] = [
    "\
1.000000 [0 a] acquire 3 lock f q anna:1 9000 9 600 500 -> 500
2.000000 [0 a] release 2 lock q anna:1 200 '' 0 -> 1
3.000000 [0 a] acquire 3 lock f q ben:1 9000 9 600 550 -> 550
3.100000 [0 a] change 2 lock f ben:1 0 '' 9 602 -> 1
3.200000 [0 a] change 2 lock q ben:1 9000 watch -> 1
4.000000 [0 a] release 2 lock q ben:1 200 '' 0 -> 1
5.000000 [0 a] acquire 3 lock f q cleo:1 9000 9 600 560 -> 603
5.100000 [0 a] change 2 lock f cleo:1 0 '' 9 603 -> 1
",
    "\
1.000000 [0 a] acquire 3 lock f q anna:1 9000 9 600 500 -> 500
2.000000 [0 a] release 2 lock q anna:1 200 '' 0 -> 1
5.000000 [0 a] acquire 3 lock f q cleo:1 9000 9 600 560 -> 560
5.100000 [0 a] change 2 lock f cleo:1 0 '' 9 603 -> 1
",
    "\
0.500000 [0 a] acquire 3 lock f q dora:1 9000 9 600 600 -> 600
0.600000 [0 a] release 2 lock q dora:1 '' '' 0 -> 1
1.000000 [0 a] acquire 3 lock f q anna:1 9000 9 600 500 -> 601
2.000000 [0 a] release 2 lock q anna:1 200 '' 0 -> 1
3.000000 [0 a] acquire 3 lock f q ben:1 9000 9 600 550 -> 602
3.100000 [0 a] change 2 lock f ben:1 0 '' 9 602 -> 1
",
];

fn traces(replaced: &[(&str, &str)]) -> Vec<Vec<Call>> {
    let replace = |trace: &str| {
        replaced
            .iter()
            .fold(String::from(trace), |trace, (right, wrong)| trace.replace(right, wrong))
    };
    SERVERS.iter().map(|trace| calls(&replace(trace)).expect("a trace")).collect()
}

#[test]
fn the_tokens_that_majorities_give_grow() {
    let servers = traces(&[]);
    let votes = Votes::count(&servers).expect("they grow");
    let mut tokens: Vec<_> = votes.tokens().into_iter().map(|tokens| tokens.first).collect();
    tokens.dedup();
    assert_eq!(tokens, [500, 602, 603]);
}

#[test]
fn a_token_that_no_majority_can_give_is_refused() {
    // The raised token is not the greatest that the client got.
    let least = traces(&[("ben:1 0 '' 9 602", "ben:1 0 '' 9 550")]);
    assert!(Votes::count(&least).expect_err("too small").starts_with("no majority"));
    // Servers that were asked to raise their counters give a lower token, or the same one again.
    for token in ["560", "602"] {
        let raise = format!("cleo:1 0 '' 9 {token}");
        let again = [("-> 603", &*format!("-> {token}")), ("cleo:1 0 '' 9 603", &raise)];
        assert!(Votes::count(&traces(&again)).expect_err("given before").starts_with("no "));
    }
}
