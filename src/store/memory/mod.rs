//! Locks in memory, for tests and demonstrations. This is the client's side of a server that exists
//! only in this process.

mod inbox;
mod locks;
pub(crate) mod memory_server;
mod name_state;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::base::clock;
use crate::base::failure::Failure;
use crate::base::sync::sleep;
use crate::config::Config;
use crate::store::Store;
use crate::store::background::{Job, JobOutcome, JobRunner, Wakeups};
use crate::store::hold_id::HoldId;
use crate::store::keys::Keys;
use crate::store::memory::inbox::{Inbox, MemoryWakeups};
use crate::store::memory::locks::Locks;
use crate::store::memory::memory_server::{Delayed, MemoryServer};
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, Look, OwnerOf, PostedChange,
    ReportReply, Telling,
};

/// A server in memory, as one client sees it.
#[derive(Clone)]
pub(crate) struct Memory {
    server: MemoryServer,
    keys: Keys,
    /// The client's inboxes, which are closed when the last clone is dropped.
    inboxes: Arc<Mutex<HashMap<Arc<str>, Arc<Inbox>>>>,
}

impl Memory {
    pub(crate) fn new(server: &MemoryServer, config: &Config) -> Self {
        Self { server: server.clone(), keys: Keys::new(&config.prefix), inboxes: Arc::default() }
    }

    fn inbox(&self, client: &Arc<str>) -> Arc<Inbox> {
        let mut inboxes = self.inboxes.lock();
        let inbox = inboxes.entry(client.clone()).or_insert_with(|| {
            // The server now sends messages to it.
            self.server.0.lock().locks.inboxes.open(client.clone())
        });
        inbox.clone()
    }

    /// Checks that the server replies.
    pub(crate) fn connect(&self, deadline: Instant) -> Result<(), Failure> {
        self.server.execute(deadline, |_| Ok(()))
    }
}

impl Store for Memory {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        self.inbox(&request.holds[0].client);
        self.server.execute(request.deadline, |locks| {
            let reply = locks.acquire(&self.keys, request)?;
            locks.confirm(matches!(reply, AcquireReply::Acquired { .. })).map(|()| reply)
        })
    }

    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        if names.is_empty() { Vec::new() } else { vec![(0..names.len()).collect()] }
    }

    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        let Some(deadline) = requests.iter().map(|request| request.deadline).max() else { return };
        let replies = self.server.execute(deadline, |locks| {
            let requests = requests.iter();
            Ok(requests
                .map(|request| execute(locks, &self.keys, request.hold, request.change))
                .collect())
        });
        let replies = replies.unwrap_or_else(|failure| vec![Err(failure); requests.len()]);
        for (place, reply) in replies.into_iter().enumerate() {
            on_reply(place, reply);
        }
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        for PostedChange { request, on_reply, .. } in posts {
            let HoldRequest { hold, change, deadline } = request;
            let begun =
                self.server.begin(deadline, |locks| execute(locks, &self.keys, hold, change));
            on_reply(begun.outcome);
        }
    }

    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure> {
        self.server.execute(deadline, |locks| locks.report(&self.keys.lock(name), look))
    }

    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure> {
        let OwnerOf { kind, name, owner } = owner;
        let key = self.keys.lock(name);
        let reply =
            self.server.execute(deadline, |locks| Ok(locks.force_release(kind, &key, owner)))?;
        Ok(reply == HoldReply::Done)
    }

    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure> {
        let key = self.keys.lock(name);
        self.server.execute(deadline, |locks| {
            locks.tell(&key, telling);
            Ok(())
        })
    }

    fn ping(&self, _: &HoldId, deadline: Instant) -> Result<(), Failure> {
        self.connect(deadline)
    }

    fn wakeups(&self, client: &str, _: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        Box::new(MemoryWakeups::new(self.inbox(&client.into()), self.keys.clone()))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(MemoryJobs { memory: self.clone(), delayed: Vec::new() })
    }
}

/// Executes a request about a hold.
fn execute(
    locks: &mut Locks,
    keys: &Keys,
    hold: &HoldId,
    change: Change,
) -> Result<HoldReply, Failure> {
    let reply = locks.change(keys, hold, change);
    locks.confirm(reply == HoldReply::Done && change.is_durable()).map(|()| reply)
}

/// The background jobs of one client.
struct MemoryJobs {
    memory: Memory,
    /// The jobs with an outcome that is not yet due.
    delayed: Vec<(u64, Delayed<HoldReply>)>,
}

impl MemoryJobs {
    /// Reports the outcomes that are due.
    fn finish(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        let now = clock::now();
        for (id, Delayed { outcome, .. }) in
            self.delayed.extract_if(.., |(_, delayed)| delayed.due <= now)
        {
            done(id, outcome.map(Into::into));
        }
    }
}

impl JobRunner for MemoryJobs {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        let Memory { server, keys, .. } = &self.memory;
        for Job { id, hold, change, deadline } in jobs {
            let reply = server.begin(deadline, |locks| execute(locks, keys, &hold, change));
            self.delayed.push((id, reply));
        }
        self.finish(done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        while let Some(due) = self.delayed.iter().map(|(_, delayed)| delayed.due).min() {
            sleep(due.min(deadline).saturating_duration_since(clock::now()));
            self.finish(done);
            if clock::now() >= deadline {
                return;
            }
        }
    }

    fn abandon(&mut self) {
        self.delayed.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::clock::{elapsed, end_of, now};
    use crate::base::sync::{in_virtual_time, start};
    use crate::store::ask_one;
    use crate::store::background::Wake;
    use crate::store::hold_id::HoldKind;
    use crate::store::request::Registration;

    const LONG: Duration = Duration::from_secs(60);

    impl Default for Memory {
        fn default() -> Self {
            Self::new(&MemoryServer::default(), &Config::default())
        }
    }

    fn of(kind: HoldKind, client: &str) -> HoldId {
        HoldId { kind, name: "a".into(), client: client.into(), nonce: 1 }
    }

    fn opened(server: &MemoryServer, prefix: &str) -> Memory {
        Memory::new(server, &Config { prefix: prefix.into(), ..Config::default() })
    }

    fn acquires(store: &Memory, hold: &HoldId, registration: Registration) -> bool {
        let (holds, deadline) = (std::slice::from_ref(hold), end_of(LONG));
        let reply = store.acquire(Acquire {
            holds,
            lease: LONG,
            note: None,
            registration,
            echo: false,
            deadline,
        });
        matches!(reply, Ok(AcquireReply::Acquired { .. }))
    }

    fn release(store: &Memory, hold: &HoldId) {
        let (change, deadline) = (Change::RELEASE, end_of(LONG));
        let reply = ask_one(store, HoldRequest { hold, change, deadline });
        assert_eq!(reply.ok(), Some(HoldReply::Done));
    }

    #[test]
    fn a_client_that_is_gone_is_offered_nothing() {
        for kind in [HoldKind::Lock, HoldKind::Write, HoldKind::Permit { of: 1 }] {
            let server = MemoryServer::default();
            let [holder, gone] = [(); 2].map(|()| opened(&server, ""));
            assert!(acquires(&holder, &of(kind, "holder"), Registration::None));
            assert!(!acquires(&gone, &of(kind, "gone"), Registration::IfHeld));
            drop(gone);
            release(&holder, &of(kind, "holder"));
            assert!(acquires(&holder, &of(kind, "other"), Registration::None), "{kind:?}");
        }
    }

    #[test]
    fn a_message_that_comes_before_the_client_listens_is_kept() {
        let server = MemoryServer::default();
        let [holder, waiter] = [(); 2].map(|()| opened(&server, "shop:"));
        let (held, waits) = (of(HoldKind::Lock, "holder"), of(HoldKind::Lock, "waiter"));
        assert!(acquires(&holder, &held, Registration::None));
        assert!(!acquires(&waiter, &waits, Registration::IfHeld));
        release(&holder, &held);
        let mut wakeups = waiter.wakeups("waiter", None);
        let mut next = || wakeups.next(now()).map(|wake| wake.expect("a message"));
        assert_eq!([next(), next()], [Some(Wake::Ready), Some(Wake::Complete(true))]);
        assert_eq!(next(), Some(Wake::Lock("a".into())), "without the prefix");
        assert_eq!(next(), None);
    }

    #[test]
    fn an_interrupt_ends_a_wait_for_messages() {
        in_virtual_time(|| {
            let mut wakeups = Memory::default().wakeups("a", None);
            for first in [Wake::Ready, Wake::Complete(true)] {
                assert_eq!(wakeups.next(end_of(LONG)).and_then(Result::ok), Some(first));
            }
            let soon = end_of(Duration::from_millis(100));
            assert!(wakeups.next(soon).is_none() && now() >= soon);
            let interrupter = wakeups.interrupter();
            let waiter = start(move || wakeups.next(end_of(LONG)));
            interrupter.interrupt();
            assert!(matches!(waiter.join(), Some(Err(_))));
        });
    }

    #[test]
    fn a_slow_server_delays_the_outcomes_of_jobs() {
        in_virtual_time(|| {
            let memory = Memory::default();
            let (hold, delay) = (of(HoldKind::Lock, "a"), Duration::from_millis(600));
            assert!(acquires(&memory, &hold, Registration::None));
            memory.server.set_delay(delay);
            let (mut jobs, sent) = (memory.jobs(), now());
            let job = |id, deadline| {
                let change = Change::Renew { lease: LONG.into() };
                Job { id, hold: hold.clone(), change, deadline }
            };
            let mut outcomes = Vec::new();
            let mut done =
                |id, outcome: JobOutcome| outcomes.push((id, outcome.is_ok(), elapsed(sent)));
            jobs.send(vec![job(1, end_of(LONG)), job(2, sent + delay / 2)], &mut done);
            jobs.collect(sent + delay / 4, &mut done);
            jobs.collect(end_of(LONG), &mut done);
            let [(2, false, late), (1, true, took)] = outcomes[..] else { panic!("{outcomes:?}") };
            assert!(late >= delay / 2 && took >= delay, "{outcomes:?}");
        });
    }
}
