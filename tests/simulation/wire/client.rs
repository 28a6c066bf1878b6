//! The threads of a client: some call its store, one runs its background jobs, and one listens.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::clock::end_of;
use crate::base::sync::executor::{self, Process, Random};
use crate::simulation::wire::judge::{Call, RECOVERY};
use crate::simulation::wire::server::Kind;
use crate::simulation::wire::world::{now, with};
use crate::store::background::{Job, JobOutcome, Wake};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{
    Acquire, Change, HoldRequest, POST_MOMENT, PostedChange, Registration, is_granted,
};
use crate::store::servers::Servers;
use crate::store::{Store, ask_one};

/// How long after its deadline a posted request may get its outcome: a sweep reads its reply, or
/// closes the connection.
const SWEPT: Duration = Duration::from_millis(100);

/// The settings of a client's calls.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) process: Process,
    pub(super) store: Servers,
    pub(super) lease: Duration,
    pub(super) io_timeout: Duration,
    pub(super) names: u64,
}

impl Caller {
    /// Returns the id of a new hold of a name.
    fn hold(&self, name: &str, random: &mut Random) -> HoldId {
        let client = with(|world| world.client(self.process).id.clone());
        // The bits with a meaning are left out.
        HoldId { kind: HoldKind::Lock, name: name.into(), client, nonce: random.next() >> 16 }
    }

    fn acquire<'a>(&self, hold: &'a [HoldId], time: Duration, waits: bool) -> Acquire<'a> {
        let registration = if waits { Registration::IfHeld } else { Registration::None };
        let (lease, deadline) = (self.lease, end_of(time));
        Acquire { holds: hold, lease, note: None, registration, echo: false, deadline }
    }

    /// Calls the store at intervals.
    pub(super) fn run(&self, mut random: Random, calls: u64) {
        let mut held = Vec::new();
        for _ in 0..calls {
            executor::sleep(match random.below(20) {
                0 => random.time(Duration::from_secs(4)),
                1..=8 => Duration::from_millis(random.below(400)),
                _ => random.time(Duration::from_millis(2)),
            });
            self.call(&mut random, &mut held);
        }
        with(|world| world.callers -= 1);
    }

    fn call(&self, random: &mut Random, held: &mut Vec<HoldId>) {
        let time = random.pick(&[1, 1, 1, 2, 8]);
        let time = self.io_timeout / time;
        match random.below(10) {
            0..4 => {
                let hold = [self.any_hold(random)];
                let call = Call::begin(self.process, Kind::Acquire, &hold[0], time);
                let waits = random.permille(300);
                let reply = self.store.acquire(self.acquire(&hold, time, waits));
                call.end_acquire(&reply);
                self.keep(&hold[0], is_granted(&reply), held);
            }
            4 => {
                let holds: Vec<_> =
                    (0..=random.below(4)).map(|_| [self.any_hold(random)]).collect();
                let calls =
                    holds.iter().map(|[hold]| Call::begin(self.process, Kind::Acquire, hold, time));
                let calls: Vec<_> = calls.collect();
                let requests: Vec<_> =
                    holds.iter().map(|hold| self.acquire(hold, time, false)).collect();
                let replies = self.store.acquire_together(&requests);
                assert_eq!(replies.len(), calls.len(), "replies");
                for ((call, reply), [hold]) in calls.iter().zip(&replies).zip(&holds) {
                    call.end_acquire(reply);
                    self.keep(hold, is_granted(reply), held);
                }
            }
            5 => {
                let hold = [self.any_hold(random)];
                let call = Call::begin(self.process, Kind::Acquire, &hold[0], time);
                if let Some(ahead) = self.store.acquire_ahead(self.acquire(&hold, time, false)) {
                    executor::sleep(random.time(Duration::from_millis(1)));
                    call.end_acquire(&ahead.reply());
                } else {
                    call.end_unsent();
                }
            }
            6 => {
                let Some(hold) = held.last().cloned() else { return };
                let call = Call::begin(self.process, Kind::Check, &hold, time);
                let deadline = end_of(time);
                let request = HoldRequest { hold: &hold, change: Change::Check, deadline };
                call.end_change(&ask_one(&self.store, request));
            }
            7 => self.post(random, held),
            _ => {
                let count = held.len().min(random.pick(&[1, 1, 2, 5]));
                let ended: Vec<_> = held.drain(..count).collect();
                self.forget(&ended);
                self.release(&ended, time);
            }
        }
    }

    fn any_hold(&self, random: &mut Random) -> HoldId {
        let name = random.below(self.names);
        self.hold(&format!("n{name}"), random)
    }

    /// Records a granted hold.
    fn keep(&self, hold: &HoldId, is_granted: bool, held: &mut Vec<HoldId>) {
        if is_granted {
            held.push(hold.clone());
            with(|world| world.client(self.process).held.push(hold.clone()));
        }
    }

    /// Removes these holds from the renewals.
    fn forget(&self, holds: &[HoldId]) {
        with(|world| world.client(self.process).held.retain(|held| !holds.contains(held)));
    }

    fn release(&self, holds: &[HoldId], time: Duration) {
        let calls = holds.iter().map(|hold| Call::begin(self.process, Kind::Release, hold, time));
        let calls: Vec<_> = calls.collect();
        let deadline = end_of(time);
        let requests = holds.iter();
        let requests: Vec<_> =
            requests.map(|hold| HoldRequest { hold, change: Change::RELEASE, deadline }).collect();
        let mut replies = 0;
        self.store.ask(&requests, &mut |place, reply| {
            calls[place].end_change(&reply);
            replies += 1;
        });
        assert_eq!(replies, calls.len(), "replies");
    }

    /// Releases without waiting for the replies.
    fn post(&self, random: &mut Random, held: &mut Vec<HoldId>) {
        let count = held.len().min(random.pick(&[1, 1, 1, 3]));
        let ended: Vec<_> = held.drain(..count).collect();
        self.forget(&ended);
        let deadline = end_of(self.io_timeout);
        let write_by = end_of(POST_MOMENT);
        let time = self.io_timeout + SWEPT;
        let posts = ended.iter().map(|hold| {
            let call = Call::begin(self.process, Kind::Release, hold, time).posted();
            let request = HoldRequest { hold, change: Change::RELEASE, deadline };
            with(|world| world.posted += 1);
            let on_reply = Box::new(move |reply| {
                with(|world| world.posted -= 1);
                call.end_change(&reply);
            });
            PostedChange { request, write_by, on_reply }
        });
        let posts: Vec<_> = posts.collect();
        let begun = now();
        self.store.post(posts);
        with(|world| {
            let took = now().saturating_sub(begun);
            if took > POST_MOMENT + world.slack {
                world.break_promise(format!("a post took {took:?}"));
            }
        });
    }

    /// Renews holds in the background.
    pub(super) fn renew(&self, mut random: Random) {
        let mut jobs = self.store.jobs();
        let mut calls = BTreeMap::new();
        let mut next_id = 0;
        while !with(|world| world.is_over) || !calls.is_empty() {
            let mut batch = Vec::new();
            let held = with(|world| world.client(self.process).held.clone());
            let is_over = with(|world| world.is_over);
            for hold in held.iter().rev().take(8).filter(|_| !is_over) {
                // Each hold is renewed by one job at a time.
                if calls.values().any(|(owner, _)| *owner == hold.owner()) {
                    continue;
                }
                let time = self.io_timeout * 2;
                let call = Call::begin(self.process, Kind::Renew, hold, time + SWEPT);
                let change = Change::Renew { lease: self.lease.into() };
                batch.push(Job { id: next_id, hold: hold.clone(), change, deadline: end_of(time) });
                calls.insert(next_id, (hold.owner(), call));
                next_id += 1;
            }
            let mut done = |id, outcome: JobOutcome| {
                let (_, call) = calls.remove(&id).expect("a job has one outcome");
                call.end_change(&outcome.map(|reply| reply.hold));
            };
            jobs.send(batch, &mut done);
            let until = end_of(random.time(Duration::from_millis(50)));
            jobs.collect(until, &mut done);
            let rest = if calls.is_empty() { 1000 } else { 5 };
            executor::sleep(Duration::from_millis(random.below(rest)));
        }
    }

    /// Listens until the end.
    pub(super) fn listen(&self, mut random: Random) {
        let id = with(|world| world.client(self.process).id.clone());
        let mut wakeups = self.store.wakeups(&id, None);
        let interrupter = wakeups.interrupter();
        with(|world| world.client(self.process).interrupter = Some(interrupter));
        while !with(|world| world.is_over) {
            let next = wakeups.next(end_of(random.time(Duration::from_secs(2))));
            match next {
                None => {}
                Some(Ok(wake)) => with(|world| {
                    world.say(|| format!("p{} hears {wake:?}", self.process));
                    let client = world.client(self.process);
                    match wake {
                        Wake::Lock(name) => {
                            client.heard.insert(name, now());
                            world.tally.messages += 1;
                        }
                        Wake::Complete(is_complete) => client.is_complete = is_complete,
                        _ => {}
                    }
                }),
                Some(Err(_)) => executor::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Checks that a client can work again after all faults.
    pub(super) fn work(&self, mut random: Random) {
        let healed = with(|world| world.healed).expect("everything is in order");
        for number in 0..self.names {
            let name = format!("last-{}-{number}", self.process);
            loop {
                let hold = [self.hold(&name, &mut random)];
                let call = Call::begin(self.process, Kind::Acquire, &hold[0], self.io_timeout);
                let reply = self.store.acquire(self.acquire(&hold, self.io_timeout, false));
                call.end_acquire(&reply);
                if is_granted(&reply) {
                    break;
                }
                if now() > healed + RECOVERY * 2 {
                    with(|world| world.break_promise(format!("p{} gets no lock", self.process)));
                    return;
                }
                executor::sleep(Duration::from_millis(20));
            }
        }
        with(|world| world.callers -= 1);
    }
}
