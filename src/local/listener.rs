//! The listener: the one thread of a client that receives the wake-ups from other clients.
//!
//! Decides how often it tries to receive them again after a failure. What a wake-up does is decided
//! by the function that it calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::{mem, thread};

use crate::clock::end_of;
use crate::event::Events;
use crate::failure::{Failure, FailureKind};
use crate::local::retry::Backoff;
use crate::net::interrupter::Interrupter;
use crate::store::wake::{Wake, Wakeups};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

/// The longest wait for one message.
const TURN: Duration = Duration::from_secs(60);

/// A connection that lasted this long belongs to no outage before or after it.
const STABLE: Duration = Duration::from_secs(1);

/// The shortest pause after a server has rejected the subscription.
const REJECTED_PAUSE: Duration = Duration::from_secs(30);

/// The pause after a panic: should its cause persist, it must not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// The client's handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    interrupter: Interrupter,
    /// Never used to send: dropping it ends a pause of the thread.
    _end: Sender<()>,
}

impl Listener {
    /// Starts the thread. It calls `on_wake` with each wake-up, and after a failure tries again
    /// with pauses of `backoff`.
    pub(crate) fn start(
        wakeups: Box<dyn Wakeups>,
        on_wake: impl Fn(&Wake) + Send + 'static,
        backoff: (Duration, Duration),
        events: Events,
    ) -> std::io::Result<Self> {
        let interrupter = wakeups.interrupter();
        let (end, ended) = bounded(0);
        let mut thread = ListenerThread {
            wakeups,
            on_wake,
            interrupter: interrupter.clone(),
            ended,
            limits: backoff,
            backoff: Backoff::new(backoff),
            ready: None,
            failing: false,
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
struct ListenerThread<F> {
    wakeups: Box<dyn Wakeups>,
    on_wake: F,
    interrupter: Interrupter,
    ended: Receiver<()>,
    limits: (Duration, Duration),
    backoff: Backoff,
    /// Since when messages arrive, if they do.
    ready: Option<Instant>,
    /// Whether the outage has been reported.
    failing: bool,
    events: Events,
}

impl<F: Fn(&Wake)> ListenerThread<F> {
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

    /// Receives one message, and returns how long to pause before the next.
    fn turn(&mut self) -> Duration {
        match self.wakeups.next(end_of(TURN)) {
            None => Duration::ZERO,
            Some(Ok(wake)) => {
                if wake == Wake::Ready {
                    self.ready = Some(Instant::now());
                }
                (self.on_wake)(&wake);
                Duration::ZERO
            }
            // The interruption, not an outage.
            Some(Err(_)) if self.interrupter.is_interrupted() => Duration::ZERO,
            Some(Err(failure)) => self.pause_after(&failure),
        }
    }

    fn pause_after(&mut self, failure: &Failure) -> Duration {
        if self.ready.take().is_some_and(|since| since.elapsed() >= STABLE) {
            self.backoff = Backoff::new(self.limits);
            self.failing = false;
        }
        if !mem::replace(&mut self.failing, true) {
            let (server, source) = (&failure.server, &failure.source);
            self.events.warn(|| {
                format!("no wake-ups from {server}, so that waiting may take longer: {source}")
            });
        }
        let pause = self.backoff.next().unwrap_or_default();
        if failure.kind == FailureKind::Rejected { pause.max(REJECTED_PAUSE) } else { pause }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;

    use crossbeam_channel::unbounded;

    const BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(2));
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
            while Instant::now() < deadline {
                if self.interrupter.is_interrupted() {
                    return Some(Err(failure(FailureKind::Unreachable)));
                }
                match self.messages.recv_timeout(Duration::from_millis(1)) {
                    Ok(message) => return Some(message),
                    Err(_) => thread::yield_now(),
                }
            }
            None
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

    fn scene() -> Scene {
        let (fake, messages, living) = fake();
        let (wakes, received) = unbounded();
        let on_wake = move |wake: &Wake| {
            assert_ne!(*wake, lock("bad"), "a panic that the test wants");
            let wake = match wake {
                Wake::Ready => "*".into(),
                Wake::Lock(name) => name.clone(),
            };
            wakes.send(wake).expect("the test receives");
        };
        let listener =
            Listener::start(Box::new(fake), on_wake, BACKOFF, Events::default()).expect("a thread");
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
        for _ in 0..20 {
            scene.send(Err(failure(FailureKind::Disconnected)));
            scene.send(Err(failure(FailureKind::Unreachable)));
        }
        scene.send(Ok(Wake::Ready));
        assert_eq!(scene.received(), "*");
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
