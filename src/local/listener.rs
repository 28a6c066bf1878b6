//! The one thread of a client that hears which locks may be free.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::{mem, thread};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use crate::clock::end_of;
use crate::failure::{Failure, FailureKind};
use crate::local::backoff::Backoff;
use crate::net::interrupter::Interrupter;
use crate::store::wake::{Wake, Wakeups};

/// The thread looks up this often even if it hears nothing.
const TURN: Duration = Duration::from_secs(60);

/// A connection that lasted this long is no part of an outage before or after it.
const STABLE: Duration = Duration::from_secs(1);

/// A server that refuses to tell us anything is not asked again before this time.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// The pause after a panic: should its cause persist, it must not take a whole core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// What the thread has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a> {
    /// It may have missed something, so any lock may be free.
    All,
    /// The lock of this name may be free.
    Lock(&'a str),
}

/// The client's hold on the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    interrupter: Interrupter,
    /// Never sent to: that it goes ends a pause of the thread.
    _end: Sender<()>,
}

impl Listener {
    /// Starts the thread. It tells `hear` what it hears, and after a failure tries again with
    /// delays of `backoff`.
    pub(crate) fn start(
        wakeups: Box<dyn Wakeups>,
        hear: impl Fn(Heard<'_>) + Send + 'static,
        backoff: (Duration, Duration),
    ) -> std::io::Result<Self> {
        let interrupter = wakeups.interrupter();
        let (end, ended) = bounded(0);
        let mut work = ListenerThread {
            wakeups,
            hear,
            interrupter: interrupter.clone(),
            ended,
            limits: backoff,
            backoff: Backoff::new(backoff),
            ready: None,
            failing: false,
        };
        thread::Builder::new().name("leasehold-wake".into()).spawn(move || work.run())?;
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
    hear: F,
    interrupter: Interrupter,
    ended: Receiver<()>,
    limits: (Duration, Duration),
    backoff: Backoff,
    /// Since when messages arrive, if they do.
    ready: Option<Instant>,
    /// Whether the outage has been reported.
    failing: bool,
}

impl<F: Fn(Heard<'_>)> ListenerThread<F> {
    fn run(&mut self) {
        let mut pause = Duration::ZERO;
        while self.goes_on_after(pause) {
            // A bug here, or a panic of the program's logger, must not end all wake-ups.
            pause = catch_unwind(AssertUnwindSafe(|| self.turn())).unwrap_or(PANIC_PAUSE);
        }
    }

    /// Pauses. `false` when the client is gone.
    fn goes_on_after(&self, pause: Duration) -> bool {
        if pause.is_zero() {
            return self.ended.try_recv() == Err(TryRecvError::Empty);
        }
        self.ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
    }

    /// Hears one message, and returns how long to pause before the next.
    fn turn(&mut self) -> Duration {
        match self.wakeups.next(end_of(TURN)) {
            None => Duration::ZERO,
            Some(Ok(wake)) => {
                self.tell(&wake);
                Duration::ZERO
            }
            // Not an outage, but the end.
            Some(Err(_)) if self.interrupter.is_interrupted() => Duration::ZERO,
            Some(Err(failure)) => self.pause_after(&failure),
        }
    }

    fn tell(&mut self, wake: &Wake) {
        match wake {
            Wake::Lock(name) => (self.hear)(Heard::Lock(name)),
            Wake::Ready => {
                self.ready = Some(Instant::now());
                (self.hear)(Heard::All);
            }
        }
    }

    fn pause_after(&mut self, failure: &Failure) -> Duration {
        if self.ready.take().is_some_and(|since| since.elapsed() >= STABLE) {
            self.backoff = Backoff::new(self.limits);
            self.failing = false;
        }
        if !mem::replace(&mut self.failing, true) {
            let (server, source) = (&failure.server, &failure.source);
            log::warn!(
                target: "leasehold",
                "no wake-ups from {server}, so that waiting may take longer: {source}"
            );
        }
        let pause = self.backoff.next().unwrap_or_default();
        if failure.kind == FailureKind::Rejected { pause.max(REFUSED_PAUSE) } else { pause }
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

    /// Says what it is told to say.
    #[derive(Debug)]
    pub(in crate::local) struct Fake {
        news: Receiver<Result<Wake, Failure>>,
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
                match self.news.recv_timeout(Duration::from_millis(1)) {
                    Ok(news) => return Some(news),
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
        news: Sender<Result<Wake, Failure>>,
        heard: Receiver<String>,
        alive: Receiver<()>,
    }

    impl Scene {
        fn heard(&self) -> String {
            self.heard.recv_timeout(SOON).expect("something is heard")
        }

        fn say(&self, news: Result<Wake, Failure>) {
            self.news.send(news).expect("the thread lives");
        }

        /// Whether the thread is gone soon after the listener.
        fn ends(self) -> bool {
            drop(self.listener);
            self.alive.recv_timeout(SOON) == Err(RecvTimeoutError::Disconnected)
        }
    }

    /// With a way to have it say something, and one to find out whether its owner lives.
    pub(in crate::local) fn fake() -> (Fake, Sender<Result<Wake, Failure>>, Receiver<()>) {
        let (news, incoming) = unbounded();
        let (alive, living) = bounded(0);
        (Fake { news: incoming, interrupter: Interrupter::new(), _alive: alive }, news, living)
    }

    fn scene() -> Scene {
        let (fake, news, living) = fake();
        let (hear, heard) = unbounded();
        let tell = move |what: Heard<'_>| {
            assert_ne!(what, Heard::Lock("bad"), "a panic that the test wants");
            let what = match what {
                Heard::All => "*".into(),
                Heard::Lock(name) => name.to_owned(),
            };
            hear.send(what).expect("the test listens");
        };
        let listener = Listener::start(Box::new(fake), tell, BACKOFF).expect("a thread");
        Scene { listener, news, heard, alive: living }
    }

    #[test]
    fn what_is_heard_is_told_in_order() {
        let scene = scene();
        for news in [Wake::Ready, lock("a"), lock("b"), Wake::Ready] {
            scene.say(Ok(news));
        }
        assert_eq!([(); 4].map(|()| scene.heard()), ["*", "a", "b", "*"]);
        assert!(scene.ends());
    }

    #[test]
    fn failures_are_survived() {
        let scene = scene();
        for _ in 0..20 {
            scene.say(Err(failure(FailureKind::Disconnected)));
            scene.say(Err(failure(FailureKind::Unreachable)));
        }
        scene.say(Ok(Wake::Ready));
        assert_eq!(scene.heard(), "*");
    }

    #[test]
    fn a_panic_of_the_hearer_is_survived() {
        let scene = scene();
        scene.say(Ok(lock("bad")));
        scene.say(Ok(lock("good")));
        assert_eq!(scene.heard(), "good");
    }

    #[test]
    fn the_thread_ends_while_it_waits() {
        let scene = scene();
        scene.say(Ok(Wake::Ready));
        assert_eq!(scene.heard(), "*");
        assert!(scene.ends());
    }

    #[test]
    fn the_thread_ends_while_it_pauses() {
        let scene = scene();
        scene.say(Err(failure(FailureKind::Rejected)));
        scene.say(Ok(Wake::Ready));
        let paused = scene.heard.recv_timeout(Duration::from_millis(50));
        assert_eq!(paused, Err(RecvTimeoutError::Timeout), "a refusal is not asked for again");
        assert!(scene.ends());
    }
}
