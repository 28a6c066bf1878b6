//! Locks in memory, for tests and demonstrations: a server that exists in this process only, as its
//! clients see it.
//!
//! Decides what becomes of a request while the server is down or slow. Each is executed at once,
//! and a reply that takes longer than the caller waits is lost, so that its outcome is unknown.

mod inbox;
mod locks;
mod name;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[cfg(test)]
use crate::base::clock::Moment;
use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::store::Store;
use crate::store::background::{Job, JobOutcome, JobRunner, Wakeups};
#[cfg(test)]
use crate::store::hold_id::HoldId;
use crate::store::hold_id::HoldKind;
use crate::store::keys::Keys;
use crate::store::memory::inbox::{Inbox, MemoryWakeups};
use crate::store::memory::locks::Locks;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, HoldRequest, Look, OwnerOf, PostedChange, Registration,
    ReportReply,
};

/// A server in memory. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedServer(Arc<Mutex<ServerState>>);

#[derive(Debug, Default)]
struct ServerState {
    locks: Locks,
    is_down: bool,
    /// How long each reply takes.
    delay: Duration,
}

/// What has come of a request that was executed, and when its caller learns of it.
struct Delayed<T> {
    outcome: Result<T, Failure>,
    due: Instant,
}

impl SimulatedServer {
    pub(crate) fn set_down(&self, is_down: bool) {
        self.0.lock().is_down = is_down;
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// Ends the hold of a lock, as an operator does, whether the server is down or not. Returns
    /// `false` if it is not held.
    pub(crate) fn end_hold(&self, key: &str) -> bool {
        let locks = &mut self.0.lock().locks;
        let report = locks.report(key, Look::Holder).unwrap_or_default();
        let mut ends = |owner: &[u8]| locks.force_release(HoldKind::Lock, key, owner);
        report.holder().is_some_and(|holder| ends(&holder.owner) == HoldReply::Done)
    }

    /// Sets the end of the holds and offers of a name that are meant.
    #[cfg(test)]
    pub(crate) fn end_at(&self, key: &str, end: Moment, is_meant: impl Fn(&HoldId) -> bool) {
        self.0.lock().locks.end_at(key, end, is_meant);
    }

    /// The clients that wait for a lock, as they are in Redis.
    #[cfg(test)]
    pub(crate) fn waiting(&self, key: &str) -> Vec<String> {
        self.0.lock().locks.waiting(key)
    }

    /// Executes a request, unless the server is down.
    fn begin<T>(
        &self,
        deadline: Instant,
        request: impl FnOnce(&mut Locks) -> Result<T, Failure>,
    ) -> Delayed<T> {
        let mut state = self.0.lock();
        let now = Instant::now();
        if state.is_down {
            let outcome = Err(failure(FailureKind::Unreachable, "the memory server is down"));
            return Delayed { outcome, due: now };
        }
        let outcome = request(&mut state.locks);
        if state.delay.is_zero() {
            return Delayed { outcome, due: now };
        }
        if let Some(due) = now.checked_add(state.delay).filter(|due| *due <= deadline) {
            return Delayed { outcome, due };
        }
        let outcome = Err(failure(FailureKind::Timeout, "the memory server is slow"));
        Delayed { outcome, due: deadline }
    }

    /// Executes a request and waits for the reply.
    fn execute<T>(
        &self,
        deadline: Instant,
        request: impl FnOnce(&mut Locks) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Delayed { outcome, due } = self.begin(deadline, request);
        let pause = due.saturating_duration_since(Instant::now());
        if pause.is_zero() {
            return outcome;
        }
        thread::sleep(pause);
        if self.0.lock().is_down {
            let why = "the memory server went down before it replied";
            return Err(failure(FailureKind::Disconnected, why));
        }
        outcome
    }
}

/// A server in memory, as one client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    server: SimulatedServer,
    keys: Keys,
    /// That of the client, once it waits. It ends with the last clone.
    inboxes: Arc<Mutex<HashMap<Arc<str>, Arc<Inbox>>>>,
}

impl Memory {
    pub(crate) fn new(server: &SimulatedServer, config: &Config) -> Self {
        Self { server: server.clone(), keys: Keys::new(&config.prefix), inboxes: Arc::default() }
    }

    /// The inbox of a client.
    fn inbox(&self, client: &str) -> Arc<Inbox> {
        let mut inboxes = self.inboxes.lock();
        if let Some(inbox) = inboxes.get(client) {
            return inbox.clone();
        }
        let inbox = self.server.0.lock().locks.inboxes.open(client);
        inboxes.insert(client.into(), inbox.clone());
        inbox
    }
}

/// The only client.
#[cfg(test)]
impl Default for Memory {
    fn default() -> Self {
        Self::new(&SimulatedServer::default(), &Config::default())
    }
}

impl Store for Memory {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        if !matches!(request.registration, Registration::None | Registration::Kept) {
            self.inbox(&request.holds[0].client);
        }
        self.server.execute(request.deadline, |locks| locks.acquire(&self.keys, request))
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
            let change = |request: &HoldRequest<'_>| {
                Ok(locks.change(&self.keys, request.hold, request.change))
            };
            Ok(requests.iter().map(change).collect())
        });
        let replies = replies.unwrap_or_else(|failure| vec![Err(failure); requests.len()]);
        replies.into_iter().enumerate().for_each(|(place, reply)| on_reply(place, reply));
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        for PostedChange { request: HoldRequest { hold, change, deadline }, on_reply } in posts {
            let change = |locks: &mut Locks| Ok(locks.change(&self.keys, hold, change));
            on_reply(self.server.begin(deadline, change).outcome);
        }
    }

    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure> {
        self.server.execute(deadline, |locks| locks.report(&self.keys.lock(name), look))
    }

    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure> {
        let OwnerOf { kind, name, owner } = owner;
        let key = self.keys.lock(name);
        let force = |locks: &mut Locks| Ok(locks.force_release(kind, &key, owner));
        Ok(self.server.execute(deadline, force)? == HoldReply::Done)
    }

    fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.server.execute(deadline, |_| Ok(()))
    }

    fn wakeups(&self, client: &str, _: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        Box::new(MemoryWakeups::new(self.inbox(client), self.keys.clone()))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(MemoryJobs { memory: self.clone(), delayed: Vec::new() })
    }
}

/// The background jobs of one client.
struct MemoryJobs {
    memory: Memory,
    /// Those whose outcomes are still to come.
    delayed: Vec<(u64, Delayed<HoldReply>)>,
}

impl MemoryJobs {
    /// Reports the outcomes that have come.
    fn finish(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        let now = Instant::now();
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
            let reply = server.begin(deadline, |locks| Ok(locks.change(keys, &hold, change)));
            self.delayed.push((id, reply));
        }
        self.finish(done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        while let Some(due) = self.delayed.iter().map(|(_, delayed)| delayed.due).min() {
            thread::sleep(due.min(deadline).saturating_duration_since(Instant::now()));
            self.finish(done);
            if Instant::now() >= deadline {
                return;
            }
        }
    }

    fn abandon(&mut self) {
        self.delayed.clear();
    }
}

fn failure(kind: FailureKind, why: &'static str) -> Failure {
    Failure::io(kind, &Arc::from("memory"), io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::base::clock::end_of;
    use crate::store::ask_one;
    use crate::store::background::Wake;
    use crate::store::hold_id::{HoldId, HoldKind};
    use crate::store::request::Change;

    const LONG: Duration = Duration::from_secs(60);

    fn of(kind: HoldKind, client: &str) -> HoldId {
        HoldId { kind, name: "a".into(), client: client.into(), nonce: 1 }
    }

    fn opened(server: &SimulatedServer, prefix: &str) -> Memory {
        Memory::new(server, &Config { prefix: prefix.into(), ..Config::default() })
    }

    fn acquires(store: &Memory, hold: &HoldId, registration: Registration) -> bool {
        let (holds, deadline) = (std::slice::from_ref(hold), end_of(LONG));
        let reply = store.acquire(Acquire { holds, lease: LONG, registration, deadline });
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
            let server = SimulatedServer::default();
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
        let server = SimulatedServer::default();
        let [holder, waiter] = [(); 2].map(|()| opened(&server, "shop:"));
        let (held, waits) = (of(HoldKind::Lock, "holder"), of(HoldKind::Lock, "waiter"));
        assert!(acquires(&holder, &held, Registration::None));
        assert!(!acquires(&waiter, &waits, Registration::IfHeld));
        release(&holder, &held);
        let mut wakeups = waiter.wakeups("waiter", None);
        let mut next = || wakeups.next(Instant::now()).map(|wake| wake.expect("a message"));
        assert_eq!(next(), Some(Wake::Ready));
        assert_eq!(next(), Some(Wake::Lock("a".into())), "without the prefix");
        assert_eq!(next(), None);
    }

    #[test]
    fn an_interrupt_ends_a_wait_for_messages() {
        let mut wakeups = Memory::default().wakeups("a", None);
        assert!(matches!(wakeups.next(end_of(LONG)), Some(Ok(Wake::Ready))));
        let interrupter = wakeups.interrupter();
        let waiter = thread::spawn(move || wakeups.next(end_of(LONG)));
        interrupter.interrupt();
        assert!(matches!(waiter.join().expect("no panic"), Some(Err(_))));
    }

    #[test]
    fn a_slow_server_delays_the_outcomes_of_jobs() {
        let memory = Memory::default();
        let (hold, delay) = (of(HoldKind::Lock, "a"), Duration::from_millis(50));
        assert!(acquires(&memory, &hold, Registration::None));
        memory.server.set_delay(delay);
        let (mut jobs, sent) = (memory.jobs(), Instant::now());
        let job = |id, deadline| {
            let change = Change::Renew { lease: LONG };
            Job { id, hold: hold.clone(), change, deadline }
        };
        let mut outcomes = Vec::new();
        let mut done =
            |id, outcome: JobOutcome| outcomes.push((id, outcome.is_ok(), sent.elapsed()));
        jobs.send(vec![job(1, end_of(LONG)), job(2, sent + delay / 2)], &mut done);
        jobs.collect(sent + delay / 4, &mut done);
        jobs.collect(end_of(LONG), &mut done);
        let [(2, false, late), (1, true, took)] = outcomes[..] else { panic!("{outcomes:?}") };
        assert!(late >= delay / 2 && took >= delay, "{outcomes:?}");
    }
}
