//! The store in memory is the model of the scripts: random requests of several clients get the same
//! replies from both, and leave the same holds.
//!
//! Time passes only by a step of its own: leases take hours, and some end at once. A case that
//! fails is shrunk, and printed as a list of steps with both replies. `LEASEHOLD_MODEL_CASES` is
//! the number of cases, for a long run.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config as Cases, TestError, TestRunner};

use super::process::Server;
use super::*;
use crate::store::keys::Keys;

const HOUR: Duration = Duration::from_secs(60 * 60);
const KINDS: [HoldKind; 4] =
    [HoldKind::Lock, HoldKind::Read, HoldKind::Write, HoldKind::Permit { of: 2 }];
const CLIENTS: [&str; 3] = ["anna", "ben", "cleo"];
/// What the id of each client ends with.
const NUMBER: &str = "0123456789abcdef0123456789abcdef";
/// Two for locks, so that sets overlap, one for each other kind.
const NAMES: usize = 4;

/// A hold of a case. Each of its parts is an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Who {
    name: usize,
    kind: usize,
    client: usize,
    number: u64,
}

impl Who {
    fn kind(self) -> HoldKind {
        match KINDS[self.kind] {
            // Callers need not agree on the number.
            HoldKind::Permit { of } => HoldKind::Permit { of: of + u32::from(self.number == 1) },
            kind => kind,
        }
    }

    /// No two holds have the same nonce, whatever else they have in common.
    fn nonce(self) -> u64 {
        let place = (self.name * KINDS.len() + self.kind) * CLIENTS.len() + self.client;
        1 + place as u64 * 8 + self.number
    }

    fn id(self, case: u64) -> HoldId {
        HoldId {
            kind: self.kind(),
            name: name(case, self.name),
            client: format!("{}:{NUMBER}", CLIENTS[self.client]).into(),
            nonce: self.nonce(),
        }
    }
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, client, number, .. } = self;
        write!(f, "{}'s {:?} {number} of name {name}", CLIENTS[*client], self.kind())
    }
}

/// Each case has names of its own, and no other case finds what it leaves.
fn name(case: u64, index: usize) -> Arc<str> {
    format!("{case}:{index}").into()
}

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        hold: Who,
        hours: u32,
        registration: Registration,
    },
    AcquireAll {
        holds: Vec<Who>,
        hours: u32,
    },
    Change {
        changes: Vec<(Who, Change)>,
        by_jobs: bool,
    },
    ForceRelease {
        hold: Who,
    },
    Count {
        name: usize,
    },
    /// The lease of a hold ends, or the time for which a lock is kept.
    Expire {
        hold: Who,
    },
}

impl Step {
    fn names(&self) -> BTreeSet<usize> {
        match self {
            Self::Acquire { hold, .. } | Self::ForceRelease { hold } | Self::Expire { hold } => {
                BTreeSet::from([hold.name])
            }
            Self::AcquireAll { holds, .. } => holds.iter().map(|hold| hold.name).collect(),
            Self::Change { changes, .. } => changes.iter().map(|(hold, _)| hold.name).collect(),
            Self::Count { name } => BTreeSet::from([*name]),
        }
    }

    fn holds(&self) -> Vec<Who> {
        match self {
            Self::Acquire { hold, .. } | Self::ForceRelease { hold } | Self::Expire { hold } => {
                vec![*hold]
            }
            Self::AcquireAll { holds, .. } => holds.clone(),
            Self::Change { changes, .. } => changes.iter().map(|(hold, _)| *hold).collect(),
            Self::Count { .. } => Vec::new(),
        }
    }
}

/// Mostly of the kind for which the name is used.
fn who() -> impl Strategy<Value = Who> {
    let usual = (0..NAMES, any::<bool>()).prop_map(|(name, writes)| {
        let kind = match name {
            0 | 1 => 0,
            2 => 1 + usize::from(writes),
            _ => 3,
        };
        (name, kind)
    });
    let any_kind = (0..NAMES, 0..KINDS.len());
    (prop_oneof![15 => usual, 1 => any_kind], 0..CLIENTS.len(), 0..2_u64)
        .prop_map(|((name, kind), client, number)| Who { name, kind, client, number })
}

/// A lock of each of the two names in either order, or of one.
fn set() -> impl Strategy<Value = Vec<Who>> {
    let orders = vec![vec![0, 1], vec![1, 0], vec![0, 1, 2]];
    (select(orders), 0..CLIENTS.len(), 0..2_u64).prop_map(|(names, client, number)| {
        names.into_iter().map(|name| Who { name, kind: 0, client, number }).collect()
    })
}

/// Readers of a name, or permits of one, which one request asks for.
fn sharers() -> impl Strategy<Value = Vec<Who>> {
    let clients = subsequence(vec![0, 1, 2], 2..=3).prop_shuffle();
    (any::<bool>(), clients, 0..2_u64).prop_map(|(reads, clients, number)| {
        let (name, kind) = if reads { (2, 1) } else { (3, 3) };
        clients.into_iter().map(|client| Who { name, kind, client, number }).collect()
    })
}

fn change_of(hold: Who) -> impl Strategy<Value = (Who, Change)> {
    let is_lock = hold.kind() == HoldKind::Lock;
    let lease = |hours| HOUR * hours;
    let kept = prop_oneof![
        2 => Just(Change::RELEASE),
        u32::from(is_lock) => Just(Change::Release { kept_until: Moment::now().after(HOUR / 2) }),
    ];
    let depth = (1..4_u32, prop::option::of(1..4_u32)).prop_map(move |(depth, hours)| {
        let depth = if is_lock { depth } else { 1 };
        Change::SetDepth { depth, lease: hours.map(lease), durable: false }
    });
    prop_oneof![
        4 => kept,
        1 => Just(Change::Check),
        2 => (1..4_u32).prop_map(move |hours| Change::Renew { lease: lease(hours) }),
        2 => depth,
    ]
    .prop_map(move |change| (hold, change))
}

fn step() -> impl Strategy<Value = Step> {
    let changes = vec(who().prop_flat_map(change_of), 1..4);
    prop_oneof![
        8 => (who(), 1..4_u32).prop_map(|(hold, hours)| {
            Step::Acquire { hold, hours, registration: Registration::None }
        }),
        4 => (prop_oneof![set(), sharers()], 1..4_u32)
            .prop_map(|(holds, hours)| Step::AcquireAll { holds, hours }),
        6 => (changes, any::<bool>())
            .prop_map(|(changes, by_jobs)| Step::Change { changes, by_jobs }),
        1 => who().prop_map(|hold| Step::ForceRelease { hold }),
        1 => (0..NAMES).prop_map(|name| Step::Count { name }),
        3 => who().prop_map(|hold| Step::Expire { hold }),
    ]
}

/// What a store has replied, without what may differ: times to the half hour, tokens by their
/// order.
#[derive(Clone, Debug, PartialEq)]
enum Reply {
    Acquired { tokens: Vec<Token>, room: u32 },
    Changed(Vec<Result<HoldReply, FailureKind>>),
    Counted(u32),
    Failed(FailureKind),
    Forced(bool),
    Held { index: usize, half_hours: Option<u64> },
    Nothing,
}

/// A fencing token, by what it is to those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    /// Greater than all before it of the name.
    New,
    /// That of the hold, or one of its block.
    Own,
    /// The last one, which readers share.
    Shared,
    /// A permit has none.
    Without,
}

/// A store, and what a case has seen of it.
struct Subject<'a> {
    store: &'a dyn Store,
    case: u64,
    /// Ends the lease of a hold.
    expire: &'a dyn Fn(&HoldId),
    /// Lets the rest of the time pass for which a key has only holds whose leases are over.
    pass: &'a dyn Fn(&str),
    /// The names for which that is called before they are looked at as locks: a key is there until
    /// the latest end of a lease that one of its holds had, released or not.
    over: BTreeSet<usize>,
    /// The last token of each name.
    last: HashMap<usize, u64>,
    /// The first and the last token of each hold.
    of_hold: HashMap<Who, (u64, u64)>,
}

impl<'a> Subject<'a> {
    fn new(
        store: &'a dyn Store,
        case: u64,
        expire: &'a dyn Fn(&HoldId),
        pass: &'a dyn Fn(&str),
    ) -> Self {
        let (last, of_hold) = (HashMap::new(), HashMap::new());
        Self { store, case, expire, pass, over: BTreeSet::new(), last, of_hold }
    }

    fn execute(&mut self, step: &Step) -> Reply {
        for Who { name: index, .. } in step.holds().iter().filter(|hold| hold.kind == 0) {
            if self.over.remove(index) {
                (self.pass)(&name(self.case, *index));
            }
        }
        match step {
            Step::Acquire { hold, hours, registration } => {
                self.acquire(&[*hold], *hours, *registration)
            }
            Step::AcquireAll { holds, hours } => self.acquire(holds, *hours, Registration::None),
            Step::Change { changes, by_jobs } => {
                let ids: Vec<_> =
                    changes.iter().map(|(hold, change)| (hold.id(self.case), *change)).collect();
                let outcomes = if *by_jobs {
                    run_jobs(&mut *self.store.jobs(), &ids)
                } else {
                    let requests: Vec<_> = ids
                        .iter()
                        .map(|(hold, change)| HoldRequest {
                            hold,
                            change: *change,
                            deadline: soon(),
                        })
                        .collect();
                    self.store.ask(&requests)
                };
                Reply::Changed(
                    outcomes
                        .into_iter()
                        .map(|reply| reply.map_err(|failure| failure.kind))
                        .collect(),
                )
            }
            Step::ForceRelease { hold } => {
                let HoldId { name, .. } = &hold.id(self.case);
                let owner = hold.id(self.case).owner();
                let forced = self.store.force_release(name, owner.as_bytes(), soon());
                forced.map_or_else(|failure| Reply::Failed(failure.kind), Reply::Forced)
            }
            Step::Count { name: index } => {
                let counted = self.store.count(&name(self.case, *index), soon());
                counted.map_or_else(|failure| Reply::Failed(failure.kind), Reply::Counted)
            }
            Step::Expire { hold } => {
                (self.expire)(&hold.id(self.case));
                if hold.kind != 0 {
                    self.over.insert(hold.name);
                }
                Reply::Nothing
            }
        }
    }

    fn acquire(&mut self, holds: &[Who], hours: u32, registration: Registration) -> Reply {
        let ids: Vec<_> = holds.iter().map(|hold| hold.id(self.case)).collect();
        let lease = HOUR * hours;
        let reply =
            self.store.acquire(Acquire { holds: &ids, lease, registration, deadline: soon() });
        match reply {
            Ok(AcquireReply::Acquired { fence, others, room, .. }) => {
                let block = if registration == Registration::Followed { room } else { 0 };
                assert!(u64::from(block) < TENURE_FENCES, "{block}");
                let tokens = [fence].into_iter().chain(others).zip(holds);
                let tokens = tokens.map(|(fence, hold)| self.token(*hold, fence, block)).collect();
                Reply::Acquired { tokens, room: room - block }
            }
            Ok(AcquireReply::Held { index, remaining, .. }) => {
                Reply::Held { index, half_hours: remaining.map(half_hours) }
            }
            Err(failure) => Reply::Failed(failure.kind),
        }
    }

    fn token(&mut self, hold: Who, fence: u64, block: u32) -> Token {
        let last = self.last.entry(hold.name).or_default();
        let of_hold = self.of_hold.get(&hold);
        match hold.kind() {
            HoldKind::Permit { .. } => {
                assert_eq!(fence, 0, "the token of a permit");
                Token::Without
            }
            _ if fence > *last => {
                *last = fence + u64::from(block);
                self.of_hold.insert(hold, (fence, *last));
                Token::New
            }
            HoldKind::Read if fence == *last => Token::Shared,
            _ if of_hold.is_some_and(|(first, last)| (*first..=*last).contains(&fence)) => {
                Token::Own
            }
            _ => panic!("{hold:?} got token {fence} after {last}"),
        }
    }

    /// Which of these holds exist, and who holds each name as a lock.
    fn state(&self, names: &BTreeSet<usize>, holds: &BTreeSet<Who>) -> String {
        let mut state = String::new();
        let ids: Vec<_> = holds
            .iter()
            .filter(|hold| names.contains(&hold.name))
            .map(|hold| (hold, hold.id(self.case)))
            .collect();
        let checks: Vec<_> = ids
            .iter()
            .map(|(_, hold)| HoldRequest { hold, change: Change::Check, deadline: soon() })
            .collect();
        for ((hold, _), reply) in ids.iter().zip(self.store.ask(&checks)) {
            if reply.as_ref().ok() != Some(&HoldReply::Gone) {
                write!(state, "{hold:?}: {reply:?}; ").expect("a string takes it");
            }
        }
        for index in names.difference(&self.over) {
            let holder = self.store.inspect(&name(self.case, *index), soon());
            let holder = holder.map_err(|failure| failure.kind).map(|holder| {
                holder.map(|holder| {
                    let owner = String::from_utf8_lossy(&holder.owner).replace(NUMBER, "");
                    (owner, holder.depth, half_hours(holder.remaining))
                })
            });
            write!(state, "name {index}: {holder:?}; ").expect("a string takes it");
        }
        state
    }
}

/// A time, to the nearest half hour.
fn half_hours(time: Duration) -> u64 {
    (time + HOUR / 4).as_secs() / (HOUR / 2).as_secs()
}

/// Executes the steps at both, and compares the replies and the holds after each.
fn agree(mut subjects: [Subject<'_>; 2], steps: &[Step]) -> Result<(), String> {
    let (mut log, mut holds) = (String::new(), BTreeSet::new());
    for step in steps {
        let (replies, names) = (subjects.each_mut().map(|it| it.execute(step)), step.names());
        holds.extend(step.holds());
        let states = subjects.each_ref().map(|it| it.state(&names, &holds));
        writeln!(log, "{step:?}\n    -> {:?}", replies[0]).expect("a string takes it");
        if replies[0] != replies[1] {
            return Err(format!("{log}    but the server: {:?}", replies[1]));
        }
        if states[0] != states[1] {
            return Err(format!("{log}    model:  {}\n    server: {}", states[0], states[1]));
        }
    }
    Ok(())
}

/// The lease of a hold ends, if there is one; and the key with the last one.
const EXPIRE: &str = "
if redis.call('type', KEYS[1]).ok == 'hash' then
  return redis.call('hexists', KEYS[1], ARGV[1]) == 1 and redis.call('del', KEYS[1])
end
redis.call('zadd', KEYS[1], 'xx', 1, ARGV[2])
local last = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
return last and redis.call('pexpireat', KEYS[1], last)";

const PASS: &str = "
local last = redis.pcall('zrange', KEYS[1], -1, -1, 'withscores')[2]
return last and redis.call('pexpireat', KEYS[1], last)";

/// As the member scripts write the kind of a hold.
fn prefix(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::Lock => "",
        HoldKind::Permit { .. } => "p:",
        HoldKind::Read => "r:",
        HoldKind::Write => "w:",
    }
}

fn eval(connection: &Mutex<redis::Connection>, script: &str, name: &str, args: &[&str]) {
    let lock = Keys::new(&Config::default().prefix).lock(name).into_owned();
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(1).arg(lock).arg(args);
    eval.exec(&mut *connection.lock()).expect("it is executed");
}

/// A renewal by no time ends a hold. A lock that is kept cannot be renewed.
fn expire_in_memory(store: &Memory, hold: &HoldId) {
    change(store, hold, Change::Renew { lease: Duration::ZERO }).expect("a reply");
    change(store, hold, Change::RELEASE).expect("a reply");
}

fn the_same_requests_get_the_same_replies(process: &Server) {
    let store = single(process);
    let connection = Mutex::new(process.connect());
    let cases = std::env::var("LEASEHOLD_MODEL_CASES").ok();
    let cases = cases.map_or(1000, |cases| cases.parse().expect("a number of cases"));
    let config = Cases { cases, failure_persistence: None, ..Cases::default() };
    let next = AtomicU64::new(0);
    let outcome = TestRunner::new(config).run(&vec(step(), 1..30), |steps| {
        let (case, memory) = (next.fetch_add(1, Ordering::Relaxed), Memory::default());
        let expire_modelled = |hold: &HoldId| expire_in_memory(&memory, hold);
        let expire = |hold: &HoldId| {
            let owner = hold.owner();
            let member = format!("{}{owner}", prefix(hold.kind));
            eval(&connection, EXPIRE, &hold.name, &[&owner, &member]);
        };
        let pass = |name: &str| eval(&connection, PASS, name, &[]);
        let model = Subject::new(&memory, case, &expire_modelled, &|_| ());
        let server = Subject::new(&store, case, &expire, &pass);
        agree([model, server], &steps).map_err(TestCaseError::fail)
    });
    match outcome {
        Err(TestError::Fail(reason, steps)) => panic!("after {} steps:\n{reason}", steps.len()),
        outcome => outcome.expect("no case is given up"),
    }
}

/// Makes a module of tests per store; the first ones compare a server with the model.
macro_rules! stores {
    ($($compared:ident),+; $($found:ident),+ $(,)?) => {
        mod in_memory {
            $(#[test] fn $found() { super::$found(&super::Memory::default()); })+
        }
        mod on_redis {
            $(#[test] fn $compared() { super::$compared(&super::Server::redis()); })+
            $(#[test] fn $found() { super::$found(&super::single(&super::Server::redis())); })+
        }
        mod on_valkey {
            $(#[test] fn $compared() { super::$compared(&super::Server::valkey()); })+
            $(#[test] fn $found() { super::$found(&super::single(&super::Server::valkey())); })+
        }
    };
}

// What such cases have found has a test of its own.
stores!(
    the_same_requests_get_the_same_replies;
    a_forced_release_ends_no_permit_and_no_side,
    a_reader_shares_the_last_token_of_the_name,
    a_late_repeat_of_a_set_finds_no_hold_that_has_ended,
);

fn of(kind: HoldKind, nonce: u64) -> HoldId {
    HoldId { kind, client: format!("anna:{NUMBER}").into(), ..hold(nonce) }
}

fn a_forced_release_ends_no_permit_and_no_side(store: &dyn Store) {
    for kind in &KINDS[1..] {
        let hold = of(*kind, 1);
        must_acquire(store, &hold);
        let forced = store.force_release(&hold.name, hold.owner().as_bytes(), soon());
        assert_eq!(forced.ok(), Some(false), "{kind:?}");
        assert_eq!(release(store, &hold).ok(), Some(HoldReply::Done), "{kind:?}");
    }
}

fn a_reader_shares_the_last_token_of_the_name(store: &dyn Store) {
    let fence = must_acquire(store, &of(HoldKind::Lock, 1));
    release(store, &of(HoldKind::Lock, 1)).expect("a reply");
    assert_eq!(must_acquire(store, &of(HoldKind::Read, 2)), fence);
}

fn a_late_repeat_of_a_set_finds_no_hold_that_has_ended(store: &dyn Store) {
    let set = [hold(1), HoldId { name: "other".into(), ..hold(2) }];
    let acquire_all = || {
        let registration = Registration::None;
        store.acquire(Acquire { holds: &set, lease: LEASE, registration, deadline: soon() })
    };
    assert!(matches!(acquire_all(), Ok(AcquireReply::Acquired { .. })));
    assert_eq!(keep(store, &set[0], LEASE / 2).ok(), Some(HoldReply::Done));
    let reply = acquire_all();
    assert!(matches!(reply, Ok(AcquireReply::Held { index: 0, .. })), "{reply:?}");
    let holder = store.inspect("lock", soon()).expect("a reply").expect("it is kept");
    assert!(holder.remaining <= LEASE / 2, "{holder:?}");
}
