//! The listener: a client's single thread that receives wake-ups from other clients.
//!
//! Decides what a wake-up does: which thread tries next. A wake-up without a waiter is passed on to
//! another client, without delaying those that have a waiter. Also decides how soon the listener
//! reconnects after a failure.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use std::{io, mem};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use parking_lot::Mutex;

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::random;
use crate::base::sync::{receive, spawn};
use crate::config::Config;
use crate::error::Phase;
use crate::local::reporter::Reporter;
use crate::net::wait::Interrupter;
use crate::protocol::call::CallTimes;
use crate::protocol::retry::Backoff;
use crate::store::Store;
use crate::store::background::{STABLE, Wake, Wakeups};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::keys::{Keys, check_name};
use crate::store::redisson_channels::{RedissonChannels, RedissonWait};
use crate::store::request::{Change, HoldRequest, POST_MOMENT, PostedChange};

/// The longest wait for one message.
const TURN: Duration = Duration::from_secs(60);

/// The pauses between attempts to reconnect, after an immediate first one. They do not follow the
/// backoff of the waiters: the longer that is, the more the waiters rely on wake-ups.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The maximum number of wake-ups without a waiter that are kept to be passed on. Beyond that,
/// other clients find a free lock when they next try.
const UNCLAIMED_MAX: usize = 1024;

/// The shortest pause after a server has rejected the subscription, and the longest if it closes
/// the connection each time.
const REJECTED_PAUSE: Duration = Duration::from_secs(30);

/// The pause after a panic, so that a recurring one does not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The client's side of the listener, whose thread is started when it is first needed.
pub(super) struct Listening {
    /// Weak, because the thread must not keep the client alive.
    reporter: Weak<Reporter>,
    config: Config,
    client: Arc<str>,
    /// `Some` if the client exchanges wake-ups with Redisson.
    redisson: Option<RedissonChannels>,
    /// Started by the first wait for another client.
    listener: OnceLock<Listener>,
    /// Whether a failure to start it was reported. Locked while it is being started.
    failing: Mutex<bool>,
}

impl Listening {
    pub(super) fn new(config: &Config, client: &Arc<str>, reporter: &Arc<Reporter>) -> Self {
        Self {
            reporter: Arc::downgrade(reporter),
            config: config.clone(),
            client: client.clone(),
            redisson: if config.redisson { Some(RedissonChannels::default()) } else { None },
            listener: OnceLock::new(),
            failing: Mutex::default(),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.listener.get().is_some()
    }

    /// Starts the listener unless it runs, so that releases by other clients wake the waiters of
    /// this one. A request that registers the client as waiting needs it, and so does a lock that
    /// may be kept. If the thread cannot be started, the next call tries again.
    pub(super) fn start(&self, store: &dyn Store) {
        // If another thread is starting it now, there is no reason to wait.
        let Some(mut failing) = self.failing.try_lock() else { return };
        if self.has_begun() {
            return;
        }
        match self.spawn(store.wakeups(&self.client, self.redisson.as_ref())) {
            // No other thread has set it.
            Ok(listener) => self.listener.set(listener).unwrap_or_default(),
            Err(error) => {
                let failed_before = mem::replace(&mut *failing, true);
                let Some(reporter) = self.reporter.upgrade() else { return };
                reporter.set_listening(false);
                if !failed_before {
                    reporter.events.warn(|| {
                        format!("no thread for wake-ups, so that waiting may take longer: {error}")
                    });
                }
            }
        }
    }

    /// Starts the thread.
    fn spawn(&self, wakeups: Box<dyn Wakeups>) -> io::Result<Listener> {
        let interrupter = wakeups.interrupter();
        let (end, ended) = bounded(0);
        let mut thread = ListenerThread {
            wakeups,
            reporter: self.reporter.clone(),
            config: self.config.clone(),
            client: self.client.clone(),
            unclaimed: BTreeSet::new(),
            interrupter: interrupter.clone(),
            ended,
            pauses: None,
            closed: 0,
            ready: None,
        };
        spawn("leasehold-wake", move || thread.run())?;
        Ok(Listener { interrupter, _end: end })
    }

    /// Removes the client from the waiting clients without waiting for the reply: the call that
    /// wanted this hold ends at once, whatever the server does. If the request fails, the renewer
    /// repeats it.
    pub(super) fn unregister(&self, store: &dyn Store, hold: &HoldId, times: CallTimes) {
        let Some(reporter) = self.reporter.upgrade() else { return };
        let waited = hold.clone();
        let deadline = end_of(times.io_timeout);
        store.post(vec![PostedChange {
            request: HoldRequest { hold, change: Change::Unregister, deadline },
            write_by: end_of(POST_MOMENT),
            on_reply: Box::new(move |reply| match reply {
                // A thread that began to wait in the meantime is no longer registered.
                Ok(_) => drop(reporter.names.wake_any(&waited.name)),
                Err(_) => reporter.renewer.unregister(waited, times.lease),
            }),
        }]);
    }

    /// A release by Redisson wakes the first call for this lock while the result lives.
    pub(super) fn wait_for_redisson(&self, hold: &HoldId) -> Option<RedissonWait> {
        let channels = self.redisson.as_ref()?;
        if !hold.kind.is_lock() {
            return None;
        }
        let lock = Keys::new(&self.config.prefix);
        Some(channels.wait(&hold.name, &lock.lock(&hold.name)))
    }
}

/// The client's handle to the thread, which ends when this is dropped.
struct Listener {
    interrupter: Interrupter,
    /// Never used to send: dropping it ends a pause of the thread.
    _end: Sender<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.interrupter.interrupt();
    }
}

/// The thread's own state.
struct ListenerThread {
    wakeups: Box<dyn Wakeups>,
    /// Gone once the client is. This thread may end a little later.
    reporter: Weak<Reporter>,
    config: Config,
    client: Arc<str>,
    /// The names of wake-ups without a waiter.
    unclaimed: BTreeSet<String>,
    interrupter: Interrupter,
    ended: Receiver<()>,
    /// The pauses of the current outage, once it was reported. The first attempt is immediate.
    pauses: Option<Backoff>,
    /// How often the connection was closed since then. A proxy may do that to every subscription.
    closed: u32,
    /// When messages began to arrive; `None` while they do not.
    ready: Option<Instant>,
}

impl ListenerThread {
    fn run(&mut self) {
        let mut pause = Duration::ZERO;
        while self.client_lives_after(pause) {
            // A bug here must not end all wake-ups.
            pause = catch_unwind(AssertUnwindSafe(|| self.turn())).unwrap_or(PANIC_PAUSE);
        }
    }

    /// Pauses. Returns `false` when the client is gone.
    fn client_lives_after(&self, pause: Duration) -> bool {
        if pause.is_zero() {
            return self.ended.try_recv() == Err(TryRecvError::Empty);
        }
        receive(&self.ended, end_of(pause)) == Err(RecvTimeoutError::Timeout)
    }

    /// Receives one message, and returns how long to pause before the next. Passes on a wake-up
    /// without a waiter only if no message has arrived.
    fn turn(&mut self) -> Duration {
        let time = if self.unclaimed.is_empty() { TURN } else { Duration::ZERO };
        match self.wakeups.next(end_of(time)) {
            None => {
                if let Some(name) = self.unclaimed.pop_first() {
                    self.pass_on(&name);
                }
                Duration::ZERO
            }
            Some(Ok(wake)) => {
                if wake == Wake::Ready {
                    self.ready = Some(clock::now());
                }
                // The waiter may have left a moment ago, and another client may wait behind it.
                if !self.wake(&wake)
                    && let Wake::Lock(name) = wake
                    && self.unclaimed.len() < UNCLAIMED_MAX
                {
                    self.unclaimed.insert(name);
                }
                Duration::ZERO
            }
            // This is the interruption, not an outage.
            Some(Err(_)) if self.interrupter.is_interrupted() => Duration::ZERO,
            Some(Err(failure)) => self.pause_after(&failure),
        }
    }

    /// Acts on a message. Returns `false` for a wake-up without a waiter.
    fn wake(&self, wake: &Wake) -> bool {
        let Some(reporter) = self.reporter.upgrade() else { return true };
        let Reporter { names, counters, renewer, .. } = &*reporter;
        match wake {
            // With one node missing, a message about any name of it may be missed.
            Wake::Complete(is_complete) => reporter.set_listening(*is_complete),
            Wake::Echo(name) => names.note_echo(name),
            Wake::Ready => {
                // Redis keeps no messages for a client that is not listening.
                names.wake_all();
                // Other clients may have asked for these locks while no message arrived.
                for hold in names.watched() {
                    renewer.check(hold);
                }
            }
            Wake::Unlocked(unlocked) => {
                for name in unlocked {
                    names.wake(HoldKind::Lock, name);
                }
            }
            Wake::Ended { name, nonce } => {
                for hold in reporter.force(&self.hold(name, *nonce)) {
                    renewer.check(hold);
                }
            }
            Wake::Probe { nonce, message } => {
                let deadlocks = &reporter.deadlocks;
                let found = deadlocks.receive(names, &self.client, *nonce, message);
                if let Some(circle) = found {
                    reporter.report_deadlock(&circle, &self.client);
                }
            }
            Wake::Recall { name, nonce, waits } => {
                if let Some(kept) = names.recall(name, *nonce, *waits) {
                    counters.recalls.fetch_add(1, Ordering::Relaxed);
                    renewer.pay(kept);
                }
            }
            // A name that no lock can have concerns no client.
            Wake::Lock(name) => {
                counters.wakeups.fetch_add(1, Ordering::Relaxed);
                let store = reporter.store.as_ref().and_then(Weak::upgrade);
                let mut has_woken = false;
                for kind in [HoldKind::Read, HoldKind::Lock] {
                    has_woken |= match &store {
                        Some(store) => names.wake_ahead(kind, name, &**store),
                        None => names.wake(kind, name),
                    };
                }
                return has_woken || check_name(&self.config.prefix, name).is_err();
            }
        }
        true
    }

    /// Passes a wake-up on to the next client, unless a thread waits here by now. Does not block.
    fn pass_on(&self, name: &str) {
        if let Some(reporter) = self.reporter.upgrade()
            && !reporter.names.wake_any(name)
        {
            // Redis then offers the lock to the next client.
            reporter.renewer.unregister(self.hold(name, 0), self.config.options.lease);
        }
    }

    /// Returns the id of a hold of this client, whose kind is not known.
    fn hold(&self, name: &str, nonce: u64) -> HoldId {
        HoldId { kind: HoldKind::Lock, name: name.into(), client: self.client.clone(), nonce }
    }

    fn pause_after(&mut self, failure: &Failure) -> Duration {
        let reporter = self.reporter.upgrade();
        // This comes first: calls must not rely on messages that no longer arrive.
        if let Some(reporter) = &reporter {
            reporter.set_listening(false);
        }
        if self.ready.take().is_some_and(|since| clock::elapsed(since) >= STABLE) {
            self.pauses = None;
            self.closed = 0;
        }
        if self.pauses.is_none()
            && let Some(reporter) = &reporter
        {
            let Failure { server, source, .. } = failure;
            reporter.events.warn(|| {
                format!("no wake-ups from {server}, so that waiting may take longer: {source}")
            });
        }
        let pause = self.pauses.as_mut().and_then(Backoff::next).unwrap_or_default();
        self.pauses.get_or_insert_with(|| Backoff::new(RECONNECT, random()));
        // A rejected login may soon succeed: passwords and credentials change.
        if failure.kind == FailureKind::Rejected && failure.phase != Phase::Login {
            return pause.max(REJECTED_PAUSE);
        }
        if failure.kind == FailureKind::Disconnected && !pause.is_zero() {
            self.closed = self.closed.saturating_add(1);
            return pause.max(closed_pause(self.closed));
        }
        pause
    }
}

/// Returns the shortest pause after the connection was closed this often.
fn closed_pause(times: u32) -> Duration {
    RECONNECT.0.saturating_mul(1 << times.min(16)).min(REJECTED_PAUSE)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crossbeam_channel::unbounded;

    use crate::base::clock::{elapsed, now};
    use crate::base::sync::{in_virtual_time, sleep};
    use crate::local::parker::Signal;
    use crate::protocol::steps::Next;

    const SOON: Duration = Duration::from_secs(5);

    /// A name that makes the thread panic.
    const PANICS: &str = "bad";

    /// Delivers the messages that a test sends.
    pub(in crate::local) struct Fake {
        messages: Receiver<Result<Wake, Failure>>,
        interrupter: Interrupter,
        /// Disconnected when the thread that owns this has ended.
        _alive: Sender<()>,
    }

    impl Wakeups for Fake {
        fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
            loop {
                if self.interrupter.is_interrupted() {
                    return Some(Err(failure(FailureKind::Unreachable)));
                }
                if let Ok(message) = self.messages.try_recv() {
                    assert!(!matches!(&message, Ok(Wake::Lock(name)) if name == PANICS));
                    return Some(message);
                }
                if now() >= deadline {
                    return None;
                }
                sleep(Duration::from_millis(1));
            }
        }

        fn interrupter(&self) -> Interrupter {
            self.interrupter.clone()
        }
    }

    fn failure(kind: FailureKind) -> Failure {
        Failure::io(kind, &Arc::from("here"), io::Error::other("test"))
    }

    struct Scene {
        listener: Listener,
        messages: Sender<Result<Wake, Failure>>,
        reporter: Arc<Reporter>,
        alive: Receiver<()>,
    }

    impl Scene {
        fn send(&self, message: Result<Wake, Failure>) {
            self.messages.send(message).expect("the thread lives");
        }

        /// Sends a wake-up for this lock, and checks that the call that waits gets its turn.
        fn wake(&self, name: &str) {
            let parker = self.reporter.names.call_that_waits(HoldKind::Lock, name);
            self.send(Ok(Wake::Lock(name.into())));
            let signal = parker.park(Some(end_of(SOON)));
            assert!(matches!(signal, Some(Signal::Next(Next::Turn))), "{signal:?}");
        }

        /// Returns `true` if the thread ends soon after the listener is dropped.
        fn ends(self) -> bool {
            drop(self.listener);
            receive(&self.alive, end_of(SOON)) == Err(RecvTimeoutError::Disconnected)
        }
    }

    /// Also returns the sender of its messages, and a receiver that is disconnected with its owner.
    pub(in crate::local) fn fake() -> (Fake, Sender<Result<Wake, Failure>>, Receiver<()>) {
        let (messages, incoming) = unbounded();
        let (alive, living) = bounded(0);
        (
            Fake { messages: incoming, interrupter: Interrupter::new(), _alive: alive },
            messages,
            living,
        )
    }

    fn scene() -> Scene {
        let (fake, messages, alive) = fake();
        let reporter = Arc::new(Reporter::default());
        let listening = Listening::new(&Config::default(), &Arc::from("c"), &reporter);
        let listener = listening.spawn(Box::new(fake)).expect("a thread");
        Scene { listener, messages, reporter, alive }
    }

    #[test]
    fn failures_are_survived() {
        in_virtual_time(|| {
            let scene = scene();
            for kind in [FailureKind::Disconnected, FailureKind::Unreachable, FailureKind::Timeout]
            {
                scene.send(Err(failure(kind)));
            }
            scene.wake("a");
        });
    }

    #[test]
    fn a_lost_connection_is_made_again_at_once_and_then_within_a_second() {
        in_virtual_time(|| {
            let scene = scene();
            let started = now();
            scene.send(Err(failure(FailureKind::Disconnected)));
            scene.wake("at once");
            for _ in 0..3 {
                scene.send(Err(failure(FailureKind::Unreachable)));
            }
            scene.wake("later");
            let took = elapsed(started);
            assert!(took >= RECONNECT.0 * 3, "{took:?}");
            assert!(
                Backoff::new(RECONNECT, 1).take(1_000).all(|pause| pause <= Duration::from_secs(1))
            );
        });
    }

    #[test]
    fn pauses_grow_while_every_subscription_is_closed() {
        let pauses: Vec<_> = (1..20).map(closed_pause).collect();
        assert!(pauses.is_sorted() && pauses[0] < Duration::from_millis(50), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&REJECTED_PAUSE));
    }

    #[test]
    fn locks_are_kept_while_messages_arrive() {
        in_virtual_time(|| {
            let stops: [fn() -> Result<Wake, Failure>; 2] =
                [|| Err(failure(FailureKind::Disconnected)), || Ok(Wake::Complete(false))];
            for stop in stops {
                let scene = scene();
                scene.send(Ok(Wake::Complete(true)));
                scene.wake("a");
                let names = &scene.reporter.names;
                assert!(names.is_listening());
                scene.send(stop());
                let until = end_of(SOON);
                while names.is_listening() {
                    assert!(now() < until, "it still listens");
                    sleep(Duration::from_millis(1));
                }
            }
        });
    }

    #[test]
    fn a_panic_is_survived() {
        in_virtual_time(|| {
            let scene = scene();
            scene.send(Ok(Wake::Lock(PANICS.into())));
            scene.wake("good");
        });
    }

    #[test]
    fn the_thread_ends_while_it_waits() {
        in_virtual_time(|| {
            let scene = scene();
            scene.wake("a");
            assert!(scene.ends());
        });
    }

    #[test]
    fn the_thread_ends_while_it_pauses() {
        in_virtual_time(|| {
            let scene = scene();
            scene.send(Err(failure(FailureKind::Rejected)));
            scene.send(Ok(Wake::Ready));
            let read = || scene.messages.is_empty();
            let until = end_of(Duration::from_millis(50));
            while now() < until {
                assert!(!read(), "a rejected subscription is not repeated");
                sleep(Duration::from_millis(1));
            }
            assert!(scene.ends());
        });
    }
}
