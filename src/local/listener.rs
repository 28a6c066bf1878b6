//! The listener: the one thread of a client that receives the wake-ups from other clients.
//!
//! Decides how often it tries to receive them again after a failure, and that a wake-up for which
//! no thread waits delays none for which one does. What a wake-up does is decided by its target.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use crate::base::clock::end_of;
use crate::base::event_thread::Events;
use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::local::retry::Backoff;
use crate::net::wait::Interrupter;
use crate::store::background::{STABLE, Wake, Wakeups};

/// The longest wait for one message.
const TURN: Duration = Duration::from_secs(60);

/// The pauses between attempts to connect again, after a first one at once. They do not follow the
/// backoff of the waiters: the longer that is, the more the waiters rely on wake-ups.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How many wake-ups for which no thread waits are kept, to be passed on. Beyond that, other
/// clients find out when they next try.
const UNCLAIMED_MAX: usize = 1024;

/// The shortest pause after a server has rejected the subscription.
const REJECTED_PAUSE: Duration = Duration::from_secs(30);

/// The pause after a panic: should its cause persist, it must not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// What a client does with wake-ups.
pub(super) trait WakeTarget: Send + 'static {
    /// Lets the thread try that the message is for. Returns `false` if none waits for that lock.
    fn wake(&self, wake: &Wake) -> bool;

    /// Learns that no messages come for a while.
    fn disconnect(&self) {}

    /// Lets the next client have a wake-up for which no thread waits here. Does not block.
    fn pass_on(&self, name: &str);
}

/// The client's handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    interrupter: Interrupter,
    /// Never used to send: dropping it ends a pause of the thread.
    _end: Sender<()>,
}

impl Listener {
    /// Starts the thread.
    pub(super) fn start(
        wakeups: Box<dyn Wakeups>,
        target: impl WakeTarget,
        events: Events,
    ) -> std::io::Result<Self> {
        let interrupter = wakeups.interrupter();
        let (end, ended) = bounded(0);
        let mut thread = ListenerThread {
            wakeups,
            target,
            unclaimed: BTreeSet::new(),
            interrupter: interrupter.clone(),
            ended,
            pauses: None,
            ready: None,
            events,
        };
        thread::Builder::new().name("leasehold-wake".into()).spawn(move || thread.run())?;
        Ok(Self { interrupter, _end: end })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.interrupter.interrupt();
    }
}

/// The thread's own state.
struct ListenerThread<T> {
    wakeups: Box<dyn Wakeups>,
    target: T,
    /// The names of wake-ups for which no thread waits.
    unclaimed: BTreeSet<String>,
    interrupter: Interrupter,
    ended: Receiver<()>,
    /// The pauses of the present outage, once it was reported. The first attempt is made at once.
    pauses: Option<Backoff>,
    /// Since when messages arrive, if they do.
    ready: Option<Instant>,
    events: Events,
}

impl<T: WakeTarget> ListenerThread<T> {
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
        self.ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
    }

    /// Receives one message, and returns how long to pause before the next. Only when none has come
    /// passes on one for which no thread waits.
    fn turn(&mut self) -> Duration {
        let time = if self.unclaimed.is_empty() { TURN } else { Duration::ZERO };
        match self.wakeups.next(end_of(time)) {
            None => {
                if let Some(name) = self.unclaimed.pop_first() {
                    self.target.pass_on(&name);
                }
                Duration::ZERO
            }
            Some(Ok(wake)) => {
                if wake == Wake::Ready {
                    self.ready = Some(Instant::now());
                }
                if !self.target.wake(&wake)
                    && let Wake::Lock(name) = wake
                    && self.unclaimed.len() < UNCLAIMED_MAX
                {
                    self.unclaimed.insert(name);
                }
                Duration::ZERO
            }
            // The interruption, not an outage.
            Some(Err(_)) if self.interrupter.is_interrupted() => Duration::ZERO,
            Some(Err(failure)) => self.pause_after(&failure),
        }
    }

    fn pause_after(&mut self, failure: &Failure) -> Duration {
        self.target.disconnect();
        if self.ready.take().is_some_and(|since| since.elapsed() >= STABLE) {
            self.pauses = None;
        }
        if self.pauses.is_none() {
            let (server, source) = (&failure.server, &failure.source);
            self.events.warn(|| {
                format!("no wake-ups from {server}, so that waiting may take longer: {source}")
            });
        }
        let pause = self.pauses.as_mut().and_then(Backoff::next).unwrap_or_default();
        self.pauses.get_or_insert_with(|| Backoff::new(RECONNECT));
        // A refused login may soon be a good one: passwords and credentials change.
        let stays = failure.kind == FailureKind::Rejected && failure.phase != Phase::Login;
        if stays { pause.max(REJECTED_PAUSE) } else { pause }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;

    use crossbeam_channel::unbounded;

    const SOON: Duration = Duration::from_secs(5);

    /// Delivers the messages that a test sends.
    #[derive(Debug)]
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
                    return Some(message);
                }
                if Instant::now() >= deadline {
                    return None;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }

        fn interrupter(&self) -> Interrupter {
            self.interrupter.clone()
        }
    }

    fn failure(kind: FailureKind) -> Failure {
        Failure::io(kind, &Arc::from("here"), io::Error::other("test"))
    }

    fn lock(name: &str) -> Wake {
        Wake::Lock(name.into())
    }

    struct Scene {
        listener: Listener,
        messages: Sender<Result<Wake, Failure>>,
        received: Receiver<String>,
        alive: Receiver<()>,
    }

    impl Scene {
        fn received(&self) -> String {
            self.received.recv_timeout(SOON).expect("a wake-up")
        }

        fn send(&self, message: Result<Wake, Failure>) {
            self.messages.send(message).expect("the thread lives");
        }

        /// Returns `true` if the thread ends soon after the listener.
        fn ends(self) -> bool {
            drop(self.listener);
            self.alive.recv_timeout(SOON) == Err(RecvTimeoutError::Disconnected)
        }
    }

    /// Returns also the sender of its messages, and a receiver that is disconnected with its owner.
    pub(in crate::local) fn fake() -> (Fake, Sender<Result<Wake, Failure>>, Receiver<()>) {
        let (messages, incoming) = unbounded();
        let (alive, living) = bounded(0);
        (
            Fake { messages: incoming, interrupter: Interrupter::new(), _alive: alive },
            messages,
            living,
        )
    }

    /// Reports its messages to the test. No thread waits for a name with a question mark.
    struct Target(Sender<String>);

    impl WakeTarget for Target {
        fn wake(&self, wake: &Wake) -> bool {
            let name = match wake {
                Wake::Ready => "*",
                Wake::Lock(name) => name,
                Wake::Ended { .. } | Wake::Recall { .. } | Wake::Unlocked(_) => {
                    panic!("not in these tests")
                }
            };
            assert_ne!(name, "bad", "a panic that the test wants");
            if name.contains('?') {
                return false;
            }
            self.0.send(name.into()).expect("the test receives");
            true
        }

        fn pass_on(&self, name: &str) {
            self.0.send(format!("{name} passed on")).expect("the test receives");
        }
    }

    fn scene() -> Scene {
        let (fake, messages, living) = fake();
        let (wakes, received) = unbounded();
        let listener = Listener::start(Box::new(fake), Target(wakes), Events::default());
        let listener = listener.expect("a thread");
        Scene { listener, messages, received, alive: living }
    }

    #[test]
    fn wake_ups_arrive_in_order() {
        let scene = scene();
        for message in [Wake::Ready, lock("a"), lock("b"), Wake::Ready] {
            scene.send(Ok(message));
        }
        assert_eq!([(); 4].map(|()| scene.received()), ["*", "a", "b", "*"]);
        assert!(scene.ends());
    }

    #[test]
    fn failures_are_survived() {
        let scene = scene();
        for kind in [FailureKind::Disconnected, FailureKind::Unreachable, FailureKind::Timeout] {
            scene.send(Err(failure(kind)));
        }
        scene.send(Ok(Wake::Ready));
        assert_eq!(scene.received(), "*");
    }

    #[test]
    fn a_lost_connection_is_made_again_at_once_and_then_within_a_second() {
        let scene = scene();
        let started = Instant::now();
        scene.send(Err(failure(FailureKind::Disconnected)));
        scene.send(Ok(lock("at once")));
        assert_eq!(scene.received(), "at once");
        for _ in 0..3 {
            scene.send(Err(failure(FailureKind::Unreachable)));
        }
        scene.send(Ok(lock("later")));
        assert_eq!(scene.received(), "later");
        let took = started.elapsed();
        assert!(took >= RECONNECT.0 * 3, "{took:?}");
        assert!(Backoff::new(RECONNECT).take(1_000).all(|pause| pause <= Duration::from_secs(1)));
    }

    #[test]
    fn wake_ups_that_no_thread_waits_for_come_last_and_once() {
        let scene = scene();
        // All of them have come when the thread looks for the second.
        for message in ["a?", "b?", "a?", "real", "a?", "c?"] {
            scene.messages.send(Ok(lock(message))).expect("the thread lives");
        }
        assert_eq!(scene.received(), "real");
        let mut passed_on = [(); 3].map(|()| scene.received());
        passed_on.sort();
        assert_eq!(passed_on, ["a? passed on", "b? passed on", "c? passed on"]);
        scene.send(Ok(lock("end")));
        assert_eq!(scene.received(), "end");
    }

    #[test]
    fn a_panic_of_the_callback_is_survived() {
        let scene = scene();
        scene.send(Ok(lock("bad")));
        scene.send(Ok(lock("good")));
        assert_eq!(scene.received(), "good");
    }

    #[test]
    fn the_thread_ends_while_it_waits() {
        let scene = scene();
        scene.send(Ok(Wake::Ready));
        assert_eq!(scene.received(), "*");
        assert!(scene.ends());
    }

    #[test]
    fn the_thread_ends_while_it_pauses() {
        let scene = scene();
        scene.send(Err(failure(FailureKind::Rejected)));
        scene.send(Ok(Wake::Ready));
        let paused = scene.received.recv_timeout(Duration::from_millis(50));
        assert_eq!(
            paused,
            Err(RecvTimeoutError::Timeout),
            "a rejected subscription is not repeated"
        );
        assert!(scene.ends());
    }
}
