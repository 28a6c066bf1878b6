//! The store in memory is the model of the scripts: random requests of several clients get the same
//! replies from both, leave the same holds and waiting clients, and notify the same clients.
//!
//! A case that fails is shrunk, and printed as a list of steps with both replies.
//! `LEASEHOLD_MODEL_CASES` is the number of cases, for a long run.

mod steps;
mod time;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestError, TestRunner};

use self::steps::{CLIENTS, HOUR, NUMBER, Scene, Step, Who, name, steps};
use self::time::{AtServer, InMemory, Time, subscribe};
use super::process::Server;
use super::*;
use crate::store::memory::memory_server::MemoryServer;

/// The reply of a store in a form that can be compared: times are rounded to half an hour, and
/// tokens are numbered by their order.
#[derive(Clone, Debug, PartialEq)]
enum Reply {
    Acquired { tokens: Vec<Token>, room: u32, wanted: bool },
    Changed(Vec<Result<HoldReply, FailureKind>>),
    Counted(u32),
    Failed(FailureKind),
    Forced(bool),
    Held { index: usize, half_hours: Option<u64>, in_doubt: bool, recalled: bool },
    Nothing,
}

impl Reply {
    fn is_wrong(&self) -> bool {
        matches!(self, Self::Acquired { tokens, .. } if tokens.contains(&Token::Wrong))
    }
}

/// A fencing token, in relation to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    /// Greater than all earlier ones of the name.
    New,
    /// The hold's own token, or another of its block.
    Own,
    /// The last one, which readers share.
    Shared,
    /// A permit has none.
    Without,
    /// One that another hold may have, too.
    Wrong,
}

/// A store, and what a case has learned about it.
struct Subject<'a> {
    store: &'a dyn Store,
    case: u64,
    time: &'a dyn Time,
    /// The names that are not checked as locks before time passes: a key exists until the latest
    /// end of a lease of any of its holds, released or not.
    over: BTreeSet<usize>,
    /// The last token of each name.
    last: HashMap<usize, u64>,
    /// The first and the last token of each hold.
    of_hold: HashMap<Who, (u64, u64)>,
}

impl<'a> Subject<'a> {
    fn new(store: &'a dyn Store, case: u64, time: &'a dyn Time) -> Self {
        let (last, of_hold) = (HashMap::new(), HashMap::new());
        Self { store, case, time, over: BTreeSet::new(), last, of_hold }
    }

    fn execute(&mut self, step: &Step) -> Reply {
        // A client that leaves may leave its turn to one that waits for a lock.
        let leaves = matches!(step, Step::Change { changes, .. }
            if changes.iter().any(|(_, change)| *change == Change::Unregister));
        let holds = step.holds().into_iter();
        for hold in holds.filter(|hold| leaves || hold.kind() == HoldKind::Lock) {
            if self.over.remove(&hold.name) {
                self.time.pass(&name(self.case, hold.name));
            }
        }
        match step {
            Step::Acquire { holds, hours, registration } => {
                self.acquire(holds, *hours, *registration)
            }
            Step::Change { changes, by_jobs } => {
                let ids: Vec<_> = changes
                    .iter()
                    .map(|(hold, change)| (hold.id(self.case), self.with_tokens(*hold, *change)))
                    .collect();
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
                    ask_all(self.store, &requests)
                };
                for (((hold, _), (_, change)), reply) in changes.iter().zip(&ids).zip(&outcomes) {
                    if matches!(reply, Ok(HoldReply::Done)) {
                        self.note_unused(*hold, *change);
                    }
                }
                Reply::Changed(
                    outcomes
                        .into_iter()
                        .map(|reply| reply.map_err(|failure| failure.kind))
                        .collect(),
                )
            }
            Step::ForceRelease { hold } => {
                let hold = hold.id(self.case);
                let owner = hold.owner();
                let owner = owner.as_bytes();
                let owner = OwnerOf { kind: hold.kind, name: &hold.name, owner };
                let forced = self.store.force_release(owner, soon());
                forced.map_or_else(|failure| Reply::Failed(failure.kind), Reply::Forced)
            }
            Step::Count { name: index } => {
                let report = self.store.report(&name(self.case, *index), Look::Permits, soon());
                let counted = report.map(|report| report.permits);
                counted.map_or_else(|failure| Reply::Failed(failure.kind), Reply::Counted)
            }
            Step::Expire { hold } => {
                if hold.kind() == HoldKind::Write {
                    self.of_hold.remove(hold);
                }
                self.time.expire(&hold.id(self.case));
                if hold.kind() != HoldKind::Lock {
                    self.over.insert(hold.name);
                }
                Reply::Nothing
            }
            Step::EndOffers { name: index } => {
                self.time.end_offers(&name(self.case, *index));
                Reply::Nothing
            }
        }
    }

    fn acquire(&mut self, holds: &[Who], hours: u32, registration: Registration) -> Reply {
        let ids: Vec<_> = holds.iter().map(|hold| hold.id(self.case)).collect();
        let (lease, note) = (HOUR * hours, holds[0].note());
        let reply = self.store.acquire(Acquire {
            holds: &ids,
            lease,
            note,
            registration,
            echo: false,
            deadline: soon(),
        });
        match reply {
            Ok(AcquireReply::Acquired { fence, others, room, wanted }) => {
                let is_followed = registration == Registration::Followed;
                let is_tenure = ids.len() == 1
                    && (ids[0].may_be_kept() || ids[0].kind.is_exclusive() && is_followed);
                let block = if is_tenure { room } else { 0 };
                assert!(u64::from(block) < TENURE_FENCES, "{block}");
                let tokens = [fence].into_iter().chain(others).zip(holds);
                let tokens = tokens.map(|(fence, hold)| self.token(*hold, fence, block)).collect();
                Reply::Acquired { tokens, room: room - block, wanted }
            }
            Ok(AcquireReply::Held { index, remaining, in_doubt, recalled, .. }) => {
                Reply::Held { index, half_hours: remaining.map(half_hours), in_doubt, recalled }
            }
            Err(failure) => Reply::Failed(failure.kind),
        }
    }

    /// Replaces the numbers in a change, which say which tokens of a writer are unused, with
    /// tokens.
    fn with_tokens(&self, hold: Who, mut change: Change) -> Change {
        let writer = hold.writer_ended_by(change);
        if let Change::Release { unused, .. } | Change::Downgrade { unused, .. } = &mut change {
            let tokens = writer.and_then(|writer| self.of_hold.get(&writer));
            // A writer with a single token has used it.
            let tokens = tokens.filter(|(first, end)| first < end);
            *unused = unused.zip(tokens).map(|(Unused { before, last }, (first, end))| Unused {
                before: (first + before).min(*end) - 1,
                last: end + last,
            });
        }
        change
    }

    /// The hold of a writer has ended, perhaps with unused tokens.
    fn note_unused(&mut self, hold: Who, change: Change) {
        if let Some(writer) = hold.writer_ended_by(change)
            && self.of_hold.remove(&writer).is_some()
            && let Some(Unused { before, last }) = change.unused()
            && self.last.get(&hold.name) == Some(&last)
        {
            self.last.insert(hold.name, before);
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
            _ => Token::Wrong,
        }
    }

    /// Returns which of these holds exist, and the holder of each name as a lock.
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
        for ((hold, _), reply) in ids.iter().zip(ask_all(self.store, &checks)) {
            if reply.as_ref().ok() != Some(&HoldReply::Gone) {
                write!(state, "{hold:?}: {reply:?}; ").expect("a string takes it");
            }
        }
        for index in names.difference(&self.over) {
            let is_last = |fence| fence == self.last.get(index).copied().unwrap_or_default();
            let holder = self.store.inspect(&name(self.case, *index), soon());
            let holder = holder.map_err(|failure| failure.kind).map(|holder| holder.map(shown));
            let report = self.store.report(&name(self.case, *index), Look::All, soon());
            let report = report.map(|report| {
                let holds = report.holds.into_iter().map(|(kind, holder)| {
                    assert!(is_last(holder.fence), "{holder:?}");
                    format!("{:?}", (kind, shown(holder)))
                });
                let holds: BTreeSet<_> = holds.collect();
                // A server may show what they wait for.
                let client = |text: String| CLIENTS.into_iter().find(|label| text.contains(label));
                let waiting: Vec<_> = report.waiting.into_iter().map(client).collect();
                (holds, waiting, is_last(report.fence))
            });
            let report = report.map_err(|failure| failure.kind);
            writeln!(state, "name {index}: {holder:?}, {report:?}").expect("a string takes it");
        }
        writeln!(state, "told {:?}", self.time.messages()).expect("a string takes it");
        state.replace(NUMBER, "")
    }
}

/// A holder without its token.
fn shown(holder: HolderReply) -> (String, u32, u64, Option<String>) {
    let HolderReply { owner, depth, remaining, note, .. } = holder;
    (String::from_utf8_lossy(&owner).into_owned(), depth, half_hours(remaining), note)
}

/// Rounds a time to the nearest half hour.
fn half_hours(time: Duration) -> u64 {
    (time + HOUR / 4).as_secs() / (HOUR / 2).as_secs()
}

/// Executes the steps on both, and compares the replies and the holds after each.
fn agree(mut subjects: [Subject<'_>; 2], steps: &[Step]) -> Result<(), String> {
    let (mut log, mut holds) = (String::new(), BTreeSet::new());
    for step in steps {
        let (replies, names) = (subjects.each_mut().map(|it| it.execute(step)), step.names());
        holds.extend(step.holds());
        for (subject, index) in subjects.iter().flat_map(|it| names.iter().map(move |at| (it, at)))
        {
            subject.time.prolong_offers(&name(subject.case, *index));
        }
        let states = subjects.each_ref().map(|it| it.state(&names, &holds));
        writeln!(log, "{step:?}\n    -> {:?}", replies[0]).expect("a string takes it");
        if replies[0] != replies[1] || replies[0].is_wrong() {
            return Err(format!("{log}    but the server: {:?}", replies[1]));
        }
        if states[0] != states[1] {
            return Err(format!("{log}    model:  {}\n    server: {}", states[0], states[1]));
        }
    }
    Ok(())
}

fn compare(process: &Server, scene: Scene) {
    let store = single(process);
    let (connection, mut listening) = (Mutex::new(process.connect()), process.connect());
    let messages = Mutex::new(subscribe(&mut listening));
    let cases = std::env::var("LEASEHOLD_MODEL_CASES").ok();
    let cases = cases.map_or(500, |cases| cases.parse().expect("a number of cases"));
    let config = Cases { cases, failure_persistence: None, ..Cases::default() };
    let next = AtomicU64::new(0);
    let run = |steps: &[Step]| {
        let (case, server) = (next.fetch_add(1, Ordering::Relaxed), MemoryServer::default());
        let memory = Memory::new(&server, &Config::default());
        let times = (InMemory::new(server, &memory), AtServer::new(&connection, &messages));
        let model = Subject::new(&memory, case, &times.0);
        let server = Subject::new(&store, case, &times.1);
        agree([model, server], steps)
    };
    let outcome = TestRunner::new(config).run(&steps(scene), |steps| {
        // An offer expires by itself if this test stalls before it can prolong the offer.
        run(&steps).or_else(|_| run(&steps)).or_else(|_| run(&steps)).map_err(TestCaseError::fail)
    });
    match outcome {
        Err(TestError::Fail(reason, steps)) => panic!("after {} steps:\n{reason}", steps.len()),
        outcome => outcome.expect("no case is skipped"),
    }
}

fn requests_of_clients_that_do_not_wait_get_the_same_replies(process: &Server) {
    compare(process, Scene::Alone);
}

fn requests_of_clients_that_wait_get_the_same_replies(process: &Server) {
    compare(process, Scene::Waiting);
}

/// Makes a test module per store. The first kind of tests compares a server with the model.
macro_rules! stores {
    ($($compared:ident),+; $($found:ident),+ $(,)?) => {
        mod in_memory {
            $(#[test] fn $found() {
                super::in_virtual_time(|| super::$found(&super::Memory::default()));
            })+
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

// Findings of such cases have tests of their own.
stores!(
    requests_of_clients_that_do_not_wait_get_the_same_replies,
    requests_of_clients_that_wait_get_the_same_replies;
    a_forced_release_ends_no_permit_and_no_side,
    a_reader_shares_the_last_token_of_the_name,
    a_reader_that_was_a_writer_shares_the_last_token_of_that,
    readers_that_wait_are_told_when_a_writer_becomes_one,
    a_late_repeat_of_a_set_finds_no_hold_that_has_ended,
    a_repeat_leaves_the_queue_of_a_lock_if_its_client_may_be_there,
    the_first_two_are_told_of_a_lock_that_stays_taken_for_a_while,
    a_thread_is_told_of_an_offer_that_another_thread_of_its_client_brings_about,
    a_client_is_told_when_a_name_that_it_waits_for_is_of_another_kind,
    a_kind_that_the_name_is_not_is_refused_and_disturbs_no_queue,
    a_request_for_several_permits_gets_none_that_another_client_waits_for,
);

fn of(kind: HoldKind, nonce: u64) -> HoldId {
    HoldId { kind, client: format!("anna:{NUMBER}").into(), ..hold(nonce) }
}

fn a_forced_release_ends_no_permit_and_no_side(store: &dyn Store) {
    for kind in &[HoldKind::Read, HoldKind::Write, HoldKind::Permit { of: 2 }] {
        let hold = of(*kind, 1);
        must_acquire(store, &hold);
        let forced = store.force_release(lock_of(hold.owner().as_bytes()), soon());
        assert_eq!(forced.ok(), Some(false), "{kind:?}");
        assert_eq!(release(store, &hold).ok(), Some(HoldReply::Done), "{kind:?}");
    }
}

fn a_reader_shares_the_last_token_of_the_name(store: &dyn Store) {
    let fence = must_acquire(store, &of(HoldKind::Lock, 1));
    release(store, &of(HoldKind::Lock, 1)).expect("a reply");
    assert_eq!(must_acquire(store, &of(HoldKind::Read, 2)), fence);
}

fn a_reader_that_was_a_writer_shares_the_last_token_of_that(store: &dyn Store) {
    let (writer, reader) = (of(HoldKind::Write, 1), of(HoldKind::Read, 1));
    let reply = acquire(store, &writer, Registration::Followed);
    let Ok(AcquireReply::Acquired { fence, room, .. }) = reply else { panic!("{reply:?}") };
    assert!(room > 0);
    let downgrade = Change::Downgrade { lease: LEASE.into(), unused: None };
    assert_eq!(change(store, &reader, downgrade).ok(), Some(HoldReply::Done));
    assert_eq!(must_acquire(store, &reader), fence + u64::from(room));
}

fn readers_that_wait_are_told_when_a_writer_becomes_one(store: &dyn Store) {
    must_acquire(store, &of(HoldKind::Write, 1));
    let client = steps::client("ben");
    let mut wakeups = messages(store, &client);
    assert_eq!(wakeups.next(soon()).expect("in time").ok(), Some(Wake::Ready));
    let waits = HoldId { client, ..of(HoldKind::Read, 2) };
    assert!(is_held(&acquire(store, &waits, Registration::IfHeld)));
    let downgrade = Change::Downgrade { lease: LEASE.into(), unused: None };
    assert_eq!(change(store, &of(HoldKind::Read, 1), downgrade).ok(), Some(HoldReply::Done));
    assert!(matches!(wakeups.next(soon()), Some(Ok(Wake::Lock(_)))));
}

fn a_repeat_leaves_the_queue_of_a_lock_if_its_client_may_be_there(store: &dyn Store) {
    for kind in [HoldKind::Lock, HoldKind::Write] {
        must_acquire(store, &of(kind, 1));
        assert!(is_held(&acquire(store, &of(kind, 2), Registration::IfHeld)));
        for (registration, leaves) in
            [(Registration::IfHeld, false), (Registration::Registered, kind == HoldKind::Lock)]
        {
            acquire(store, &of(kind, 1), registration).expect("a reply");
            let waiting = store.report("lock", Look::All, soon()).expect("a reply").waiting;
            assert_eq!(waiting.is_empty(), leaves, "{kind:?}, {registration:?}");
        }
        change(store, &of(kind, 2), Change::Unregister).expect("a reply");
        release(store, &of(kind, 1)).expect("a reply");
    }
}

fn the_first_two_are_told_of_a_lock_that_stays_taken_for_a_while(store: &dyn Store) {
    must_acquire(store, &of(HoldKind::Lock, 1));
    let mut wakeups = ["ben", "cleo", "dora"].map(|label| {
        let client = steps::client(label);
        let mut wakeups = messages(store, &client);
        assert_eq!(wakeups.next(soon()).expect("in time").ok(), Some(Wake::Ready));
        let waits = HoldId { client, ..of(HoldKind::Lock, 2) };
        assert!(is_held(&acquire(store, &waits, Registration::IfHeld)));
        wakeups
    });
    let taken_until = Moment::now().after(LEASE);
    change(store, &of(HoldKind::Lock, 1), Change::Release { taken_until, unused: None })
        .expect("a reply");
    for first in &mut wakeups[..2] {
        assert!(matches!(first.next(soon()), Some(Ok(Wake::Lock(_)))));
    }
    assert!(wakeups[2].next(end_of(Duration::from_millis(50))).is_none());
}

fn a_late_repeat_of_a_set_finds_no_hold_that_has_ended(store: &dyn Store) {
    let set = [hold(1), HoldId { name: "other".into(), ..hold(2) }];
    let acquire_all = || {
        let registration = Registration::None;
        store.acquire(Acquire {
            holds: &set,
            lease: LEASE,
            note: None,
            registration,
            echo: false,
            deadline: soon(),
        })
    };
    assert!(matches!(acquire_all(), Ok(AcquireReply::Acquired { .. })));
    assert_eq!(keep(store, &set[0], LEASE / 2).ok(), Some(HoldReply::Done));
    let reply = acquire_all();
    assert!(matches!(reply, Ok(AcquireReply::Held { index: 0, .. })), "{reply:?}");
    let holder = store.inspect("lock", soon()).expect("a reply").expect("it is kept");
    assert!(holder.remaining <= LEASE / 2, "{holder:?}");
}

fn a_thread_is_told_of_an_offer_that_another_thread_of_its_client_brings_about(store: &dyn Store) {
    let [writer, reader] = [HoldKind::Write, HoldKind::Read].map(|kind| of(kind, 1));
    let mut wakeups = messages(store, &writer.client);
    assert_eq!(wakeups.next(soon()).expect("in time").ok(), Some(Wake::Ready));
    let first = HoldId { client: format!("ben:{NUMBER}").into(), ..of(HoldKind::Write, 2) };
    let holds = [first];
    let lease = Duration::from_millis(500);
    let (registration, deadline) = (Registration::None, soon());
    let reply = store.acquire(Acquire {
        holds: &holds,
        lease,
        note: None,
        registration,
        echo: false,
        deadline,
    });
    assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
    assert!(is_held(&acquire(store, &writer, Registration::IfHeld)));
    sleep(lease);
    eventually(|| {
        acquire(store, &HoldId { nonce: 3, ..reader.clone() }, Registration::IfHeld)
            .expect("a reply");
        wakeups.next(now()).is_some()
    });
}

fn a_client_is_told_when_a_name_that_it_waits_for_is_of_another_kind(store: &dyn Store) {
    let mut wakeups = messages(store, &of(HoldKind::Lock, 1).client);
    assert_eq!(wakeups.next(soon()).expect("in time").ok(), Some(Wake::Ready));
    let kinds = [HoldKind::Lock, HoldKind::Read, HoldKind::Write, HoldKind::Permit { of: 1 }];
    let pairs = kinds.map(|before| kinds.map(|after| (before, after)));
    for (before, after) in pairs.into_iter().flatten().filter(|(a, b)| !a.has_form_of(*b)) {
        // The holder is gone when its lease is over, without a message to any waiting client.
        let ben = |kind, nonce| HoldId { client: steps::client("ben"), ..of(kind, nonce) };
        let first = if before == HoldKind::Read { HoldKind::Write } else { before };
        let (holds, lease) = ([ben(first, 1)], Duration::from_millis(250));
        let (registration, deadline) = (Registration::None, soon());
        let reply = store.acquire(Acquire {
            holds: &holds,
            lease,
            note: None,
            registration,
            echo: false,
            deadline,
        });
        assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
        assert!(is_held(&acquire(store, &of(before, 2), Registration::IfHeld)), "{before:?}");
        sleep(lease + Duration::from_millis(50));
        must_acquire(store, &ben(after, 3));
        assert_eq!(release(store, &ben(after, 3)).ok(), Some(HoldReply::Done));
        let told = wakeups.next(soon());
        assert!(matches!(told, Some(Ok(Wake::Lock(_)))), "{before:?}, {after:?}: {told:?}");
        let waiting = store.report("lock", Look::All, soon()).expect("a reply").waiting;
        assert!(waiting.is_empty(), "{before:?}, {after:?}");
    }
}

fn a_request_for_several_permits_gets_none_that_another_client_waits_for(store: &dyn Store) {
    let [anna, ben, cleo] = ["anna", "ben", "cleo"].map(steps::client);
    let _wakeups = [messages(store, &anna), messages(store, &cleo)];
    let permit = |client: &Arc<str>, nonce| HoldId {
        client: client.clone(),
        ..of(HoldKind::Permit { of: 2 }, nonce)
    };
    must_acquire(store, &permit(&ben, 1));
    // Shorter than an offer lasts.
    let (holds, lease) = ([permit(&ben, 2)], Duration::from_millis(150));
    let (registration, deadline) = (Registration::None, soon());
    let reply = store.acquire(Acquire {
        holds: &holds,
        lease,
        note: None,
        registration,
        echo: false,
        deadline,
    });
    assert!(matches!(reply, Ok(AcquireReply::Acquired { .. })), "{reply:?}");
    for client in [&anna, &cleo] {
        acquire(store, &permit(client, 3), Registration::IfHeld).expect("a reply");
    }
    // One is offered to the first client, and the other is free when its lease is over.
    assert_eq!(release(store, &permit(&ben, 1)).ok(), Some(HoldReply::Done));
    sleep(lease);
    let (holds, lease) = ([permit(&anna, 3), permit(&anna, 4)], LEASE);
    let (registration, deadline) = (Registration::Registered, soon());
    let reply = store.acquire(Acquire {
        holds: &holds,
        lease,
        note: None,
        registration,
        echo: false,
        deadline,
    });
    let Ok(AcquireReply::Acquired { others, .. }) = &reply else { panic!("{reply:?}") };
    assert!(others.is_empty(), "{reply:?}");
}

fn a_kind_that_the_name_is_not_is_refused_and_disturbs_no_queue(store: &dyn Store) {
    let [anna, ben, cleo] = ["anna", "ben", "cleo"].map(steps::client);
    let _wakeups = messages(store, &anna);
    let permit = HoldKind::Permit { of: 1 };
    must_acquire(store, &HoldId { client: ben, ..of(permit, 1) });
    assert!(is_held(&acquire(store, &of(permit, 2), Registration::IfHeld)));
    for kind in [HoldKind::Lock, HoldKind::Read, HoldKind::Write] {
        let hold = HoldId { client: cleo.clone(), ..of(kind, 3) };
        let refused = acquire(store, &hold, Registration::IfHeld).map_err(|failure| failure.kind);
        assert_eq!(refused.err(), Some(FailureKind::WrongType), "{kind:?}");
        let waiting = store.report("lock", Look::All, soon()).expect("a reply").waiting;
        assert_eq!(waiting, [&*anna], "{kind:?}");
    }
}
