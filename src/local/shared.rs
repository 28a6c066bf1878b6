//! State shared by the clones and guards of a client, and the locks that the calling thread holds.
//!
//! Decides how the parts of a client are connected, and whether a hold may still be relied on. The
//! modules that borrow these parts decide what calls do with them: `acquire`, `release`,
//! `hold_requests` and `status`.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, mem, process, ptr};

use smallvec::SmallVec;

use crate::base::clock::{self, Moment, end_of};
use crate::base::event_thread::Events;
use crate::base::failure::Failure;
use crate::base::maps::RandomState;
use crate::base::shrink_set;
use crate::config::{Config, Mechanism};
use crate::error::{Error, Result};
use crate::local::listener::Listening;
use crate::local::names::Names;
use crate::local::parker::Parker;
use crate::local::renewer;
use crate::local::renewer_thread;
use crate::local::reporter::Reporter;
use crate::net::factory::ConnectionCounters;
use crate::net::server::Pools;
use crate::protocol::call::{CallTimes, Caller, Wait};
use crate::protocol::hold::{Hold, HoldFailure};
use crate::protocol::signals::EndSignal;
use crate::protocol::steps::Action;
use crate::protocol::tenure::HoldInput;
use crate::stats::{Counters, Stats};
use crate::store::Store;
use crate::store::background::InDoubtHold;
use crate::store::hold_id::{HoldId, HoldKind, new_client_id};
use crate::store::request::{HoldRequest, POST_MOMENT, PostedChange};

/// The state of a client. It lives as long as the last clone or guard.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) client: Arc<str>,
    /// The number of the next hold.
    nonces: AtomicU64,
    /// The process that opened the client.
    pub(super) process: u32,
    /// For requests about no lock in particular, or about one whose options are not known.
    pub(super) times: CallTimes,
    pub(super) listening: Listening,
    /// Dropped before `reporter`, to which it then reports in-doubt holds.
    pub(crate) store: Arc<dyn Store>,
    pub(super) held_locks: HeldLocks,
    pub(super) counters: Arc<Counters>,
    pools: Pools,
    pub(super) names: Arc<Names>,
    /// Whether a dropped guard does not wait for the reply to its release.
    pub(super) posts_releases: bool,
    pub(super) reporter: Arc<Reporter>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn start(
        config: Config,
        events: &Events,
        store: Arc<dyn Store>,
        pools: Pools,
    ) -> Result<Self> {
        let client = new_client_id(&config.label())?;
        let times = CallTimes::new(&config, config.options.first_lease());
        let (renewer, incoming) = renewer::channel();
        let reporter = Arc::new(Reporter::new(events, renewer, &store, &config));
        let Reporter { counters, names, .. } = &*reporter;
        let started = renewer_thread::start(store.jobs(), times.io_timeout, incoming, &reporter);
        started.map_err(Error::no_thread)?;
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &events.metrics {
            let counters = counters.clone();
            let pools = pools.clone();
            let names = names.clone();
            metrics.measure(move || to_stats(&counters, &pools, &names));
        }
        Ok(Self {
            listening: Listening::new(&config, &client, &reporter),
            client,
            nonces: AtomicU64::new(1),
            process: process::id(),
            posts_releases: config.uses(Mechanism::PostedRelease),
            config,
            times,
            store,
            held_locks: HeldLocks::default(),
            counters: counters.clone(),
            pools,
            names: names.clone(),
            reporter,
        })
    }

    /// Returns an error if the store cannot have read-write locks and semaphores: different
    /// majorities could each grant the last permit.
    pub(super) fn check_has_members(&self) -> Result<()> {
        if self.store.withdraws() {
            let why = "independent servers can have neither read-write locks nor semaphores";
            return Err(Error::InvalidInput(why.into()));
        }
        Ok(())
    }

    /// Wakes the first call for a name after a hold has ended in the store. Once this client
    /// listens, a lock is left to the client that the store wakes.
    pub(super) fn wake_first(&self, kind: HoldKind, name: &str) {
        if !kind.is_lock() || !self.listening.has_begun() {
            // This client gets no messages about its own releases.
            self.names.wake(kind, name);
        }
    }

    /// Performs an action of the machine of a name, which is unlocked by now. The times and the
    /// wait are those of the call that is under way: no request delays it for longer.
    pub(super) fn perform(
        &self,
        name: &str,
        times: CallTimes,
        wait: Wait,
        action: Action<Arc<Parker>>,
    ) {
        let Some(action) = self.reporter.perform(action) else { return };
        // For these, requests may be sent.
        match action {
            Action::Listen(_) => self.listening.start(&*self.store),
            Action::RecordFailure(failure, pause) => {
                self.reporter.outages.record_failed_call(name, &failure, pause);
            }
            Action::Release { hold, calls_wait } => {
                let now = clock::now();
                let write_by = times.request_deadline(wait, now).min(now + POST_MOMENT);
                let mut releases = Releases::new(self);
                releases.add(&hold, calls_wait);
                releases.post(Some(write_by));
                // Only now: a subscriber must not delay the release.
                if let Some(span) = hold.span.take() {
                    span.close(hold.is_lost(Moment::now()));
                }
            }
            Action::Unregister(hold) => self.listening.unregister(&*self.store, &hold, times),
            Action::WakeLocks => drop(self.names.wake(HoldKind::Lock, name)),
            _ => unreachable!("the reporter has performed it"),
        }
    }

    /// Fails in a forked child, which shares the parent's sockets and identity but none of its
    /// threads.
    pub(crate) fn check_process(&self) -> Result<()> {
        if process::id() == self.process { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns `true` if a hold may be relied on in this process, without I/O.
    pub(crate) fn is_held(&self, hold: &Arc<Hold>) -> bool {
        self.check_process().is_ok() && self.is_valid(hold)
    }

    /// Returns how long a hold may be relied on in this process.
    pub(crate) fn remaining(&self, hold: &Arc<Hold>) -> Duration {
        if self.is_held(hold) { hold.remaining(Moment::now()) } else { Duration::ZERO }
    }

    /// Returns the signal of the end of a hold.
    pub(crate) fn end_signal(&self, hold: &Hold) -> EndSignal {
        self.names.with(&hold.id, |name| name.end_signal(hold, None))
    }

    /// Gives the holds of a set a common signal.
    pub(crate) fn share_end_signal(&self, holds: &[Arc<Hold>]) {
        let signal = EndSignal::default();
        for hold in holds {
            self.names.with(&hold.id, |name| name.end_signal(hold, Some(&signal)));
        }
    }

    /// Returns `true` if the local deadline of a hold has not passed. A hold that this call finds
    /// lost is cleaned up.
    pub(super) fn is_valid(&self, hold: &Arc<Hold>) -> bool {
        self.reporter.expire(hold);
        hold.is_valid(Moment::now())
    }

    /// Returns the id of a new hold.
    pub(super) fn new_hold(&self, kind: HoldKind, name: &Arc<str>) -> HoldId {
        HoldId {
            kind,
            name: name.clone(),
            client: self.client.clone(),
            nonce: self.nonces.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the id of a new hold. It shows whether the hold is renewed and has a note, and how
    /// long the lock stays taken after it.
    pub(super) fn new_hold_of(&self, caller: &Caller, kind: HoldKind, name: &Arc<str>) -> HoldId {
        let hold = self.new_hold(kind, name);
        let hold = if caller.terms.renew { hold } else { hold.that_is_not_renewed() };
        let hold = if caller.note.is_some() { hold.that_has_a_note() } else { hold };
        match caller.terms.hold_at_least {
            Some(time) => hold.that_stays_taken(time),
            None => hold,
        }
    }

    /// Returns the id of a hold to acquire. It also shows whether the lock may be kept when the
    /// hold is over: only if this client cannot miss a message of another client that asks for the
    /// lock.
    pub(super) fn next_hold(&self, kind: HoldKind, name: &Arc<str>, caller: &Caller) -> HoldId {
        let hold = self.new_hold_of(caller, kind, name);
        if caller.terms.keep == 0 || caller.in_set || !kind.is_lock() {
            return hold;
        }
        if !self.names.is_listening() {
            // A kept lock is released when another client asks, so its messages must arrive.
            self.listening.start(&*self.store);
            self.names.wait_to_listen(end_of(self.times.io_timeout));
        }
        if self.names.may_keep(name) { hold.that_may_be_kept() } else { hold }
    }

    /// Returns the deadline of a single request about a hold.
    pub(super) fn request_deadline(&self, hold: &Hold) -> Instant {
        end_of(self.times_for(hold.lease()).io_timeout)
    }

    /// Returns the times of requests about holds with this lease.
    pub(super) fn times_for(&self, lease: Duration) -> CallTimes {
        if lease == self.times.lease { self.times } else { CallTimes::new(&self.config, lease) }
    }

    /// Removes, in the background, a hold that no guard has had, but that may exist in the store or
    /// begin there later.
    pub(super) fn owe(&self, hold: &HoldId, lease: Duration) {
        let debt = Arc::new(Hold::debt(hold.clone(), lease, true));
        if self.store.withdraws() {
            // Calls pay the debts of a name before they ask again, but not here: with independent
            // servers every request has an id of its own.
            self.reporter.renewer.pay(debt);
        } else {
            self.reporter.step(&debt, HoldInput::Owed);
        }
    }

    /// Returns the function to which a store reports in-doubt holds of its own. It keeps nothing
    /// alive, because the renewer's thread has it too, and must end with the client.
    pub(crate) fn in_doubt_reports(&self) -> impl Fn(InDoubtHold) + Send + Sync + 'static {
        let reporter = Arc::downgrade(&self.reporter);
        move |in_doubt| {
            if let Some(reporter) = reporter.upgrade() {
                // To the renewer only: with independent servers no call pays it before it asks.
                let InDoubtHold { hold, taken_until, lease, may_begin } = in_doubt;
                let debt = Hold::debt(hold, lease, may_begin);
                reporter.renewer.pay(Arc::new(debt.that_stays_taken(taken_until)));
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        // In a forked child a thread of the parent may have locked the rest.
        if self.check_process().is_err() {
            return self.counters.to_stats();
        }
        to_stats(&self.counters, &self.pools, &self.names)
    }

    /// Rejects waiting and future calls, and releases kept locks.
    pub(crate) fn close(&self) {
        // In a forked child no thread waits, but one of the parent's may have locked the names.
        if self.check_process().is_ok() {
            // Calls that have asked already end with their replies.
            self.names.close();
            // Only now: before, a thread could have kept one more.
            Releases::of(self, self.names.end_all_kept()).post(Some(end_of(POST_MOMENT)));
        }
    }
}

impl Drop for Shared {
    /// Waits for the replies to posted releases, and until the callback and the logger have every
    /// report, so that the program may end right after.
    fn drop(&mut self) {
        // A forked child has the same connections.
        if self.check_process().is_ok() {
            Releases::of(self, self.names.end_all_kept()).post(None);
            // A connection that is closed with replies unread is reset, and the server may then not
            // execute what was written last.
            self.store.drain(end_of(self.times.io_timeout));
            // The renewer settles a lost hold once it has reported it, after the guards know.
            self.reporter.events.flush(|| self.counters.unfinished.load(Ordering::SeqCst) == 0);
        }
    }
}

/// Holds that have ended in this process, until their releases were sent. If a panic prevents that,
/// the renewer releases them.
pub(super) struct Releases<'a> {
    shared: &'a Shared,
    pub(super) holds: SmallVec<[Arc<Hold>; 1]>,
    /// The holds that calls of this process wait behind until the releases were sent.
    in_the_way: SmallVec<[Arc<Hold>; 1]>,
}

impl<'a> Releases<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self::of(shared, Vec::new())
    }

    /// Returns the holds for which no call of this process waits.
    pub(super) fn of(shared: &'a Shared, holds: Vec<Arc<Hold>>) -> Self {
        Self { shared, holds: holds.into(), in_the_way: SmallVec::new() }
    }

    pub(super) fn add(&mut self, hold: &Arc<Hold>, calls_wait: bool) {
        self.holds.push(hold.clone());
        if calls_wait {
            self.in_the_way.push(hold.clone());
        }
    }

    /// Returns `true` if calls of this process wait until the releases were sent.
    pub(super) fn calls_wait(&self) -> bool {
        !self.in_the_way.is_empty()
    }

    /// Lets these calls try, now that the releases were sent: not before, because such a call may
    /// have the connections wait for replicas or disks.
    pub(super) fn let_next_try(&mut self) {
        for hold in mem::take(&mut self.in_the_way) {
            self.shared.reporter.step(&hold, HoldInput::ReleaseSent);
            self.shared.wake_first(hold.id.kind, &hold.id.name);
        }
    }

    /// Sends the releases, and does not wait for the replies. Waits until `write_by` at most to
    /// write the requests; without it, as long as for a reply.
    pub(super) fn post(mut self, write_by: Option<Instant>) {
        let Self { shared, ref holds, .. } = self;
        if holds.is_empty() {
            return;
        }
        let mut posts = Vec::with_capacity(holds.len());
        for hold in holds {
            let reporter = shared.reporter.clone();
            let released = hold.clone();
            let deadline = shared.request_deadline(hold);
            posts.push(PostedChange {
                request: HoldRequest {
                    hold: &hold.id,
                    change: shared.names.begin_release(hold),
                    deadline,
                },
                write_by: write_by.unwrap_or(deadline),
                on_reply: Box::new(move |reply| reporter.report_reply(&released, reply)),
            });
        }
        shared.store.post(posts);
        self.are_settled();
    }

    /// Leaves nothing to the renewer: the thread that reads the replies settles the holds, or has.
    pub(super) fn are_settled(&mut self) {
        self.holds.clear();
    }
}

impl Drop for Releases<'_> {
    fn drop(&mut self) {
        for hold in &self.holds {
            let outcome = Err(HoldFailure::Failed(Failure::unsent()));
            self.shared.reporter.settle(hold, &outcome);
        }
        self.let_next_try();
    }
}

fn to_stats(counters: &Counters, pools: &Pools, names: &Names) -> Stats {
    let (connections, idle_connections) = pools.state();
    let ConnectionCounters { pool_waits, reconnects } = pools.counters();
    Stats {
        kept: names.count_kept() as u64,
        connections,
        idle_connections,
        pool_waits: pool_waits.load(Ordering::Relaxed),
        reconnects: reconnects.load(Ordering::Relaxed),
        ..counters.to_stats()
    }
}

/// A hold, found by the name of its lock. The table takes no copies of names, because a thread may
/// have a million holds.
struct ByName(Arc<Hold>);

impl ByName {
    fn name(&self) -> &str {
        &self.0.id.name
    }
}

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        self.name()
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ByName {}

/// The holds of the calling thread by one client.
struct HeldByClient {
    /// The number of the client in this process.
    client: u64,
    holds: HashSet<ByName, RandomState>,
}

thread_local! {
    static HELD: RefCell<Vec<HeldByClient>> = const { RefCell::new(Vec::new()) };
}

/// Finds the calling thread's hold of a name, through one client. A lost hold stays until its last
/// guard is gone, or with a leaked guard until the thread ends. In a destructor of a thread-local,
/// there may be no holds to find.
pub(crate) struct HeldLocks {
    client: u64,
}

impl Default for HeldLocks {
    fn default() -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if let Some(random) = crate::base::sync::executor::random() {
            return Self { client: random >> 32 };
        }
        Self { client: CLIENTS.fetch_add(1, Ordering::Relaxed) }
    }
}

impl HeldLocks {
    /// The number of the client, for the calling thread.
    fn client(&self) -> u64 {
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        return self.client << 32 | crate::base::sync::executor::thread_number();
        #[cfg(not(all(test, unix, not(leasehold_shuttle))))]
        self.client
    }

    /// Calls `act` with the holds of the calling thread; `None` if there are none.
    fn with<T>(&self, act: impl FnOnce(&mut HashSet<ByName, RandomState>) -> T) -> Option<T> {
        let client = self.client();
        let result = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let own = held.iter_mut().find(|held| held.client == client)?;
            Some(act(&mut own.holds))
        });
        result.ok().flatten()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<Hold>> {
        self.with(|holds| holds.get(name).map(|found| found.0.clone()))?
    }

    /// Returns all holds of the calling thread.
    pub(super) fn all(&self) -> Vec<Arc<Hold>> {
        self.with(|holds| holds.iter().map(|held| held.0.clone()).collect()).unwrap_or_default()
    }

    /// Adds a hold of the calling thread.
    pub(crate) fn insert(&self, hold: &Arc<Hold>) {
        // It may take the place of one that was lost, which is dropped outside.
        if self.with(|holds| holds.replace(ByName(hold.clone()))).is_none() {
            let mut new = HeldByClient { client: self.client(), holds: HashSet::default() };
            new.holds.insert(ByName(hold.clone()));
            let added = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                held.retain(|other| !other.holds.is_empty());
                held.push(new);
            });
            added.unwrap_or_default();
        }
    }

    /// Removes a hold, if it was added.
    pub(crate) fn remove(&self, hold: &Hold) {
        self.with(|holds| {
            let found = holds.get(&*hold.id.name);
            if found.is_some_and(|found| ptr::eq(&raw const *found.0, hold)) {
                holds.remove(&*hold.id.name);
                shrink_set(holds);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use crate::config::LockOptions;
    use crate::local::reporter::tests::tenure;
    use crate::store::hold_id::{HoldId, HoldKind};

    /// A hold of the calling thread.
    fn hold(name: &Arc<str>) -> Arc<Hold> {
        let (kind, client) = (HoldKind::Lock, Arc::from("me"));
        let id = HoldId { kind, name: name.clone(), client, nonce: 1 };
        tenure(id, &LockOptions::default()).hold
    }

    #[test]
    fn a_thread_finds_what_it_holds_by_a_client_and_leaves_nothing_behind() {
        let (held, other, name) = (HeldLocks::default(), HeldLocks::default(), Arc::from("a"));
        let mine = hold(&name);
        held.insert(&mine);
        assert!(held.find(&name).is_some_and(|found| Arc::ptr_eq(&found, &mine)));
        assert!(other.find(&name).is_none());
        let leak = || {
            assert!(held.find(&name).is_none());
            let theirs = hold(&name);
            held.insert(&theirs);
            Arc::downgrade(&theirs)
        };
        let leaked = thread::scope(|scope| scope.spawn(leak).join().expect("no panic"));
        assert!(leaked.upgrade().is_none(), "its thread has ended");
        held.remove(&mine);
        assert!(held.find(&name).is_none());
    }
}
