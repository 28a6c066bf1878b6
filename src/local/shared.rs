//! What the clones and guards of one client share.
//!
//! Decides how the parts of a client are connected, and whether a hold may still be relied on. What
//! calls do with these parts is decided by the functions that borrow them: `acquire`, `release`,
//! `hold_requests` and `status`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, mem, process, slice};

use parking_lot::Mutex;

use crate::base::clock::{Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::config::{Config, Mechanism};
use crate::error::{Error, Result};
use crate::event::Events;
use crate::local::call::{CallTimes, Caller};
use crate::local::client_waiters::ClientWaiters;
use crate::local::counters::Counters;
use crate::local::held_locks::HeldLocks;
use crate::local::hold::Hold;
use crate::local::identity::Identity;
use crate::local::listener::Listener;
use crate::local::outage::Outages;
use crate::local::renewer::Renewer;
use crate::local::renewer_thread;
use crate::local::reporter::{ReportSink, Reporter};
use crate::local::retry::{RetryPolicy, is_outage};
use crate::local::wait_queues::WaitQueues;
use crate::local::waiter::Waiter;
use crate::net::factory::ConnectionCounters;
use crate::net::server::Pools;
use crate::stats::Stats;
use crate::store::Store;
use crate::store::background::InDoubtHold;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::Keys;
use crate::store::redisson_channels::{RedissonChannels, RedissonWait};
use crate::store::request::PostedChange;

/// The state of a client. It lives as long as the last clone or guard.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    /// For requests about no lock in particular, or about one whose options are not known.
    pub(super) times: CallTimes,
    /// Dropped before `reporter`, to which it reports what is in doubt then.
    pub(super) store: Arc<dyn Store>,
    pub(super) held_locks: HeldLocks,
    pub(super) counters: Arc<Counters>,
    pools: Pools,
    pub(super) wait_queues: Arc<WaitQueues>,
    pub(super) events: Events,
    /// Whether the store withdraws a hold that it has not granted at once. Such a hold must not be
    /// requested again, because the request that withdraws it may come late.
    pub(super) withdraws: bool,
    /// Whether a dropped guard does not wait for the reply to its release.
    pub(super) posts_releases: bool,
    pub(super) reporter: Arc<Reporter<Renewer>>,
    pub(super) renewer: Renewer,
    /// If the client exchanges wake-ups with Redisson.
    redisson: Option<RedissonChannels>,
    /// Started by the first wait for another client.
    listener: OnceLock<Listener>,
    /// Whether it was reported that it could not be. Locked while it is started.
    listener_failing: Mutex<bool>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn start(
        config: Config,
        store: Arc<dyn Store>,
        withdraws: bool,
        pools: Pools,
    ) -> Result<Self> {
        let events = config.events.clone();
        let times = CallTimes::new(&config, config.options.first_lease());
        let wait_queues = Arc::<WaitQueues>::default();
        let counters = Arc::<Counters>::default();
        let reporter = Reporter {
            events: events.clone(),
            counters: counters.clone(),
            outages: Arc::new(Outages::new(events.clone(), counters.clone(), &store)),
            wait_queues: wait_queues.clone(),
            sink: (),
        };
        let renewer = renewer_thread::start(store.jobs(), times.io_timeout, reporter.clone());
        let renewer = renewer.map_err(Error::no_thread)?;
        let reporter = Arc::new(reporter.with_sink(renewer.clone()));
        #[cfg(feature = "metrics")]
        if let Some(metrics) = &config.metrics {
            let (counters, pools) = (counters.clone(), pools.clone());
            metrics.measure(move || to_stats(&counters, &pools));
        }
        Ok(Self {
            identity: Identity::new(&config.label)?,
            redisson: config.redisson.then(RedissonChannels::default),
            posts_releases: config.uses(Mechanism::PostedRelease),
            config,
            times,
            store,
            held_locks: HeldLocks::default(),
            counters,
            pools,
            wait_queues,
            events,
            withdraws,
            reporter,
            renewer,
            listener: OnceLock::new(),
            listener_failing: Mutex::default(),
        })
    }

    /// Returns an error if there can be no read-write locks and semaphores: different majorities
    /// could each grant the last permit.
    pub(super) fn check_has_members(&self) -> Result<()> {
        if self.withdraws {
            let why = "independent servers can have neither read-write locks nor semaphores";
            return Err(Error::InvalidInput(why.into()));
        }
        Ok(())
    }

    /// Lets the head of a queue try, after a hold has ended in the store. A lock is left to the
    /// client that the store wakes, once this one listens for that.
    pub(super) fn wake_head(&self, kind: HoldKind, name: &str) {
        if !kind.is_lock() || self.listener.get().is_none() {
            self.wait_queues.wake(kind, name);
        }
    }

    /// Fails in a forked child, which shares the parent's sockets and identity but none of its
    /// threads.
    pub(crate) fn check_process(&self) -> Result<()> {
        if process::id() == self.identity.process { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns `true` if a hold may be relied on in this process, without I/O.
    pub(crate) fn is_held(&self, hold: &Hold) -> bool {
        self.check_process().is_ok() && self.is_valid(hold)
    }

    /// Returns the time for which a hold may be relied on in this process.
    pub(crate) fn remaining(&self, hold: &Hold) -> Duration {
        if self.is_held(hold) { hold.lease.remaining() } else { Duration::ZERO }
    }

    /// Returns `true` if the local deadline of a hold has not passed. If this call finds it lost,
    /// it is cleaned up.
    pub(super) fn is_valid(&self, hold: &Hold) -> bool {
        self.reporter.expire(hold);
        !hold.lease.remaining().is_zero()
    }

    /// Marks a hold as lost because the store does not know it any more.
    pub(super) fn lose(&self, hold: &Hold) {
        self.reporter.lose(hold);
    }

    /// Adds a new hold of a thread of this process, which may be at the head of the queue, to be
    /// renewed. It is reported before the renewer may find it lost,
    /// and after the ends of earlier holds.
    pub(super) fn add_hold(&self, hold: &Arc<Hold>, caller: &Caller, head: Option<&Waiter>) {
        if matches!(hold.id.kind, HoldKind::Lock) {
            self.begin_at_head(hold, head);
        }
        if !caller.in_set {
            self.reporter.report_acquired(hold, caller);
        }
        self.begin_hold(hold);
    }

    /// Begins a hold of a lock at the head of the queue, if that has acquired it, and reports the
    /// ends of earlier holds: two holds of a lock do not exist at the same time.
    pub(super) fn begin_at_head(&self, hold: &Arc<Hold>, head: Option<&Waiter>) {
        for released in self.wait_queues.begin_hold(hold, head) {
            let clean_up = |doubt| self.renewer.clean_up(doubt);
            self.reporter.report_end(&released, &Ok(()), clean_up);
        }
    }

    /// Has a new hold renewed.
    pub(super) fn begin_hold(&self, hold: &Arc<Hold>) {
        self.counters.held.fetch_add(1, Ordering::Relaxed);
        self.counters.unsettled.fetch_add(1, Ordering::SeqCst);
        self.renewer.add_lease(hold);
    }

    /// Takes the hold that another thread of this process has handed off. Returns `false` if it was
    /// lost on the way: no call gets it then.
    pub(super) fn take_hold(&self, hold: &Arc<Hold>, caller: &Caller) -> bool {
        if !self.is_valid(hold) {
            return false;
        }
        if hold.id.kind.is_lock() {
            self.counters.handoffs.add(1);
        }
        if !caller.in_set {
            self.reporter.report_acquired(hold, caller);
        }
        true
    }

    /// Returns the id of a new hold.
    pub(super) fn new_hold(&self, kind: HoldKind, name: &Arc<str>) -> HoldId {
        HoldId {
            kind,
            name: name.clone(),
            client: self.identity.client.clone(),
            nonce: self.identity.nonces.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the id of a hold to acquire, which shows whether the lock may be kept when it is
    /// over: only if no message of another client that asks for it can be missed before.
    pub(super) fn next_hold(&self, kind: HoldKind, name: &Arc<str>, caller: &Caller) -> HoldId {
        let hold = self.new_hold(kind, name);
        if caller.terms.keep == 0 || caller.in_set || !kind.is_lock() {
            return hold;
        }
        if !self.wait_queues.is_listening() {
            self.listen();
            self.wait_queues.wait_to_listen(end_of(self.times.io_timeout));
        }
        if self.wait_queues.may_keep(name) { hold.that_may_be_kept() } else { hold }
    }

    /// Begins the next hold of a tenure that was kept. Returns `false` if that was lost or ended
    /// meanwhile: no call gets it then.
    pub(super) fn take_kept(&self, hold: &Arc<Hold>, caller: &Caller) -> bool {
        // Counted first: a thread that finds it lost counts its end.
        self.counters.held.fetch_add(1, Ordering::Relaxed);
        let begins = hold.begin_kept(caller);
        if begins {
            self.counters.relocks.add(1);
            self.reporter.report_acquired(hold, caller);
        } else {
            self.counters.end_hold();
        }
        begins
    }

    /// Releases a tenure that was kept, and that the thread at the head cannot use.
    pub(super) fn give_up_kept(&self, kept: &Arc<Hold>) {
        if self.wait_queues.give_up(kept) {
            self.post_releases(slice::from_ref(kept));
        }
    }

    /// Releases tenures that were kept, and does not wait for the replies.
    pub(super) fn post_releases(&self, ended: &[Arc<Hold>]) {
        if !ended.is_empty() {
            self.store.post(ended.iter().map(|hold| self.post_of_release(hold)).collect());
        }
    }

    /// Returns the release of a hold, to be posted.
    pub(super) fn post_of_release<'a>(&self, hold: &'a Arc<Hold>) -> PostedChange<'a> {
        let (reporter, released) = (self.reporter.clone(), hold.clone());
        PostedChange {
            request: hold.to_release(self.request_deadline(hold)),
            on_reply: Box::new(move |reply| reporter.report_reply(&released, reply)),
        }
    }

    /// Until when a request about a hold that is not repeated may be answered.
    pub(super) fn request_deadline(&self, hold: &Hold) -> Instant {
        end_of(self.times_for(hold.lease.duration()).io_timeout)
    }

    /// Returns the times of requests about holds with this lease.
    pub(super) fn times_for(&self, lease: Duration) -> CallTimes {
        if lease == self.times.lease { self.times } else { CallTimes::new(&self.config, lease) }
    }

    /// Returns how long a call about a lock pauses before its next attempt; `None` if there should
    /// be none. Reports an outage. A call about no lock suffers from none: it asks any server.
    pub(super) fn pause_after(
        &self,
        retry: &mut RetryPolicy,
        name: &str,
        failure: &mut Failure,
    ) -> Option<Duration> {
        let pause = retry.pause_after(failure);
        self.record_failure(name, failure, pause);
        pause
    }

    /// Records that a call about a lock suffers from a failure, and pauses for that time.
    pub(super) fn record_failure(&self, name: &str, failure: &Failure, pause: Option<Duration>) {
        // A connection that was found broken is no outage.
        let is_late = pause != Some(Duration::ZERO) || failure.kind == FailureKind::Timeout;
        if is_late && is_outage(failure) && !name.is_empty() {
            self.reporter.outages.record_failure(name, failure);
        }
    }

    /// Records that a server has replied to a request about a lock.
    pub(super) fn record_reply(&self, name: &str) {
        if !name.is_empty() {
            self.reporter.outages.record_reply(name);
        }
    }

    /// Leaves it to the renewer to remove a hold that may exist in the store, or may come to, and
    /// that no guard has had.
    pub(super) fn clean_up(&self, hold: &HoldId, lease: Duration, settled_by_release: bool) {
        let (hold, kept_until) = (hold.clone(), Moment::FIRST);
        self.renewer.clean_up(InDoubtHold { hold, kept_until, lease, settled_by_release });
    }

    /// Returns the function to which a store reports in-doubt holds of its own. The renewer's
    /// thread has it too, and must end all the same when the client is gone.
    pub(crate) fn in_doubt_reports(&self) -> impl Fn(InDoubtHold) + Send + Sync + 'static {
        let reporter = Arc::downgrade(&self.reporter);
        move |in_doubt| {
            if let Some(reporter) = reporter.upgrade() {
                reporter.sink.clean_up(in_doubt);
            }
        }
    }

    /// Makes sure that releases by other clients wake the waiters of this one, from the first
    /// request on that has registered it as a waiting client, or the first lock that may be kept.
    /// If no thread can be started for that, the next such request tries again.
    pub(super) fn listen(&self) {
        if self.listener.get().is_some() {
            return;
        }
        // If another thread is starting it now, there is no reason to wait for that.
        let Some(mut failing) = self.listener_failing.try_lock() else { return };
        if self.listener.get().is_some() {
            return;
        }
        let wakeups = self.store.wakeups(&self.identity.client, self.redisson.as_ref());
        let waiters = ClientWaiters {
            queues: self.wait_queues.clone(),
            counters: self.counters.clone(),
            config: self.config.clone(),
            client: self.identity.client.clone(),
            reporter: Arc::downgrade(&self.reporter),
        };
        let started = Listener::start(wakeups, waiters, self.events.clone());
        if started.is_err() {
            self.wait_queues.set_listening(false);
        }
        match started {
            // No other thread has set it.
            Ok(listener) => self.listener.set(listener).unwrap_or_default(),
            Err(error) if !mem::replace(&mut *failing, true) => self.events.warn(|| {
                format!("no thread for wake-ups, so that waiting may take longer: {error}")
            }),
            Err(_) => {}
        }
    }

    /// Lets a release by Redisson wake the head of a queue, as long as the result lives.
    pub(super) fn listen_to_redisson(&self, hold: &HoldId) -> Option<RedissonWait> {
        let channels = self.redisson.as_ref().filter(|_| hold.kind.is_lock())?;
        let lock = Keys::new(&self.config.prefix);
        Some(channels.wait(&hold.name, &lock.lock(&hold.name)))
    }

    pub(crate) fn stats(&self) -> Stats {
        let kept = self.wait_queues.count_kept() as u64;
        Stats { kept, ..to_stats(&self.counters, &self.pools) }
    }

    /// Turns away waiting and future calls.
    pub(crate) fn close(&self) {
        // In a forked child no thread waits, but one of the parent's may have locked the queues.
        if self.check_process().is_ok() {
            self.wait_queues.close();
            self.release_kept();
        }
    }

    /// Releases the locks that are kept.
    fn release_kept(&self) {
        self.post_releases(&self.wait_queues.end_all_kept());
    }
}

impl Drop for Shared {
    /// Waits for the replies to releases that guards have left behind, and until the callback and
    /// the logger have every report, so that the program may end right after.
    fn drop(&mut self) {
        // A forked child has the same connections.
        if self.check_process().is_ok() {
            self.release_kept();
            self.store.settle(end_of(self.times.io_timeout));
            // The renewer settles a lost hold once it has reported it, after the guards know.
            self.events.flush(|| self.counters.is_settled());
        }
    }
}

fn to_stats(counters: &Counters, pools: &Pools) -> Stats {
    let (connections, idle_connections) = pools.state();
    let ConnectionCounters { pool_waits, reconnects } = pools.counters();
    Stats {
        connections,
        idle_connections,
        pool_waits: pool_waits.get(),
        reconnects: reconnects.get(),
        ..counters.to_stats()
    }
}
