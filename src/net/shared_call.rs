//! Calls that cannot be cut short, and that may take far longer than a caller has time: the
//! system's look-up of a host, and the program's callback for credentials.
//!
//! Each runs on a short-lived thread of its own, and callers wait for it by their own deadlines. A
//! caller with the same argument as a call in progress waits for that one. If it has not returned
//! for long, it may never do so, and the next caller starts another; at most two with the same
//! argument run at a time. An answer that is too late for all of them is kept for the next caller.
//! Otherwise a function that always takes longer than `connect_timeout` would keep a client from
//! ever connecting.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use parking_lot::Mutex;

use crate::config::callbacks::{Credentials, CredentialsAnswer, CredentialsCallback};

/// How long to keep an answer that no caller has waited for.
const KEPT: Duration = Duration::from_secs(30);

/// How long callers rely on a call before another one is started.
const SLOW_AFTER: Duration = Duration::from_secs(30);

/// Maximum number of concurrent calls with the same argument.
const CALLS_MAX: usize = 2;

/// A function whose calls are shared by callers with the same argument.
struct SharedCalls<K, T> {
    /// The name of its threads.
    thread: &'static str,
    /// The name of the function in errors.
    what: &'static str,
    function: Arc<dyn Fn(&K) -> T + Send + Sync>,
    /// The calls in progress, and those whose answers no caller has taken yet, the oldest first.
    calls: Mutex<Vec<SharedCall<K, T>>>,
    slow_after: Duration,
}

/// One call. It is over once `ended` is disconnected.
#[derive(Clone)]
struct SharedCall<K, T> {
    argument: K,
    begun: Instant,
    /// The answer and its time of arrival. There is none if the call has panicked.
    answer: Arc<OnceLock<(T, Instant)>>,
    ended: Receiver<Infallible>,
}

impl<K, T> SharedCalls<K, T>
where
    K: Clone + Eq + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    fn new(
        thread: &'static str,
        what: &'static str,
        function: impl Fn(&K) -> T + Send + Sync + 'static,
    ) -> Self {
        let function = Arc::new(function);
        Self { thread, what, function, calls: Mutex::default(), slow_after: SLOW_AFTER }
    }

    /// Returns the answer of a call, which is started unless one is in progress. Fails if no answer
    /// arrives in time, if the call has panicked, or if there is no thread for it.
    fn call(&self, argument: &K, deadline: Instant) -> io::Result<T> {
        let call = self.join(argument)?;
        // Nothing is ever sent.
        let Err(end) = call.ended.recv_deadline(deadline);
        let answer = call.answer.get().map(|(answer, _)| answer.clone());
        if answer.is_none() && end == RecvTimeoutError::Timeout {
            let why = format!("{} took too long", self.what);
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        // The next caller starts a call of its own.
        self.calls.lock().retain(|known| !Arc::ptr_eq(&known.answer, &call.answer));
        answer.ok_or_else(|| io::Error::other(format!("{} panicked", self.what)))
    }

    fn join(&self, argument: &K) -> io::Result<SharedCall<K, T>> {
        let mut calls = self.calls.lock();
        calls.retain(|call| call.answer.get().is_none_or(|(_, come)| come.elapsed() <= KEPT));
        let same: Vec<_> = calls.iter().filter(|call| call.argument == *argument).collect();
        if let Some(last) = same.last() {
            let enough = same.len() >= CALLS_MAX || last.begun.elapsed() < self.slow_after;
            if let Some(over) = same.iter().find(|call| call.is_over()) {
                return Ok((*over).clone());
            } else if enough {
                return Ok((*last).clone());
            }
        }
        let (end, ended) = bounded(0);
        let (argument, begun) = (argument.clone(), Instant::now());
        let call = SharedCall { argument, begun, answer: Arc::default(), ended };
        let (this, function) = (call.clone(), self.function.clone());
        thread::Builder::new().name(self.thread.into()).spawn(move || {
            let answer = function(&this.argument);
            this.answer.get_or_init(|| (answer, Instant::now()));
            drop(end);
        })?;
        calls.push(call.clone());
        Ok(call)
    }
}

impl<K, T> SharedCall<K, T> {
    fn is_over(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Disconnected)
    }
}

type Addresses = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// The look-ups of one client. Clones share them.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<SharedCalls<String, Addresses>>);

impl Default for Resolver {
    fn default() -> Self {
        // Each caller has its own port.
        Self::new(|host| Ok((host, 0).to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(super) fn new(
        look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let look_up = move |host: &String| look_up(host).map_err(Arc::new);
        Self(Arc::new(SharedCalls::new("leasehold-lookup", "looking up the host", look_up)))
    }

    /// Returns the addresses of a host, which may be an IP address itself.
    pub(crate) fn resolve(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let answer = self.0.call(&host.to_owned(), deadline)?;
        // Every caller gets its own error, whose source is the shared one.
        let mut addresses = answer.map_err(|error| io::Error::new(error.kind(), error))?;
        for address in &mut addresses {
            address.set_port(port);
        }
        Ok(addresses)
    }
}

/// Asks the program's callback. Its answer serves all waiting connections. Clones share it.
#[derive(Clone)]
pub(crate) struct CredentialsSource(Arc<SharedCalls<(), CredentialsAnswer>>);

impl CredentialsSource {
    pub(super) fn new(callback: CredentialsCallback) -> Self {
        let (thread, what) = ("leasehold-login", "the credentials callback");
        Self(Arc::new(SharedCalls::new(thread, what, move |()| callback.call())))
    }

    /// Asks for credentials that have not expired.
    pub(super) fn ask(
        &self,
        deadline: Instant,
    ) -> Result<Credentials, Arc<dyn StdError + Send + Sync>> {
        // The first answer may have been kept because it was too late for every thread that waited
        // for it.
        for _ in 0..2 {
            let answer = self.0.call(&(), deadline).unwrap_or_else(|error| Err(Arc::new(error)))?;
            if answer.valid_until.is_none_or(|end| end > Instant::now()) {
                return Ok(answer);
            }
        }
        let why = "the credentials callback returned credentials that had expired";
        Err(Arc::new(io::Error::new(io::ErrorKind::InvalidData, why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crossbeam_channel::Sender;

    use crate::base::clock::end_of;

    const SOON: Duration = Duration::from_secs(5);
    const AT_ONCE: Duration = Duration::from_millis(20);

    /// A function that answers when the test does.
    struct Scene {
        calls: SharedCalls<&'static str, u32>,
        answers: Sender<u32>,
        begun: Arc<AtomicUsize>,
    }

    impl Scene {
        fn new() -> Self {
            let (answers, from_test) = bounded::<u32>(9);
            let begun = Arc::<AtomicUsize>::default();
            let count = begun.clone();
            let calls = SharedCalls::new("test", "a test", move |_: &&str| {
                count.fetch_add(1, Ordering::SeqCst);
                from_test.recv().expect("an answer")
            });
            Self { calls, answers, begun }
        }

        fn answer(&self, answer: u32) {
            self.answers.send(answer).expect("the call waits");
        }

        /// Waits until exactly this many calls have begun.
        fn await_calls(&self, count: usize, why: &str) {
            while self.begun.load(Ordering::SeqCst) < count {
                thread::yield_now();
            }
            assert_eq!(self.begun.load(Ordering::SeqCst), count, "{why}");
        }

        /// Returns `None` if no answer arrives in time.
        fn call(&self, time: Duration) -> Option<u32> {
            let answer = self.calls.call(&"a", end_of(time));
            answer.inspect_err(|error| assert_eq!(error.kind(), io::ErrorKind::TimedOut)).ok()
        }
    }

    #[test]
    fn callers_with_the_same_argument_share_a_call() {
        let scene = Scene::new();
        thread::scope(|scope| {
            let callers = [(); 8].map(|()| scope.spawn(|| scene.call(SOON)));
            let sharers = || {
                let calls = scene.calls.calls.lock();
                calls.first().map_or(0, |call| Arc::strong_count(&call.answer))
            };
            while sharers() < 2 + callers.len() {
                thread::yield_now();
            }
            scene.answer(1);
            for caller in callers {
                assert_eq!(caller.join().expect("no panic"), Some(1));
            }
        });
        assert_eq!(scene.begun.load(Ordering::SeqCst), 1);
        scene.answer(2);
        assert_eq!(scene.call(SOON), Some(2), "a new call");
        assert!(scene.calls.calls.lock().is_empty());
    }

    #[test]
    fn an_answer_that_comes_too_late_serves_the_next_caller() {
        let scene = Scene::new();
        for _ in 0..3 {
            assert_eq!(scene.call(AT_ONCE), None);
        }
        scene.answer(1);
        assert_eq!(scene.call(SOON), Some(1));
        assert_eq!(scene.begun.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_call_that_never_returns_is_followed_by_one_more() {
        let mut scene = Scene::new();
        assert_eq!(scene.call(AT_ONCE), None);
        assert_eq!(scene.call(AT_ONCE), None);
        scene.await_calls(1, "it may just be slow");
        scene.calls.slow_after = Duration::ZERO;
        for _ in 0..3 {
            assert_eq!(scene.call(AT_ONCE), None);
        }
        scene.await_calls(2, "two at once at most");
        // The answer is found, whichever of the two has it.
        scene.answer(1);
        while scene.calls.calls.lock().iter().all(|call| !call.is_over()) {
            thread::yield_now();
        }
        assert_eq!(scene.call(SOON), Some(1));
        assert_eq!(scene.call(AT_ONCE), None);
        scene.await_calls(3, "beside the one that has not returned");
    }

    #[test]
    fn a_call_does_not_delay_one_with_another_argument() {
        let calls = SharedCalls::new("test", "a test", |name: &&str| match *name {
            "slow" => loop {
                thread::park();
            },
            _ => 1,
        });
        calls.call(&"slow", end_of(AT_ONCE)).expect_err("it never returns");
        assert!(matches!(calls.call(&"quick", end_of(SOON)), Ok(1)));
    }

    #[test]
    fn a_call_that_panics_is_no_answer_and_the_next_is_another() {
        let panics = AtomicUsize::new(1);
        let calls = SharedCalls::new("test", "a test", move |(): &()| {
            assert_ne!(panics.swap(0, Ordering::SeqCst), 1, "a panic that the test wants");
        });
        let error = calls.call(&(), end_of(SOON)).expect_err("a panic");
        assert_eq!(error.to_string(), "a test panicked");
        assert!(matches!(calls.call(&(), end_of(SOON)), Ok(())));
    }

    #[test]
    fn the_answer_of_a_look_up_has_the_port_of_the_caller() {
        let resolver = Resolver::new(|host| match host {
            "a" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], 0))]),
            _ => Err(io::ErrorKind::NotFound.into()),
        });
        for port in [1, 2] {
            let found = resolver.resolve("a", port, end_of(SOON)).expect("known");
            assert_eq!(found, [SocketAddr::from(([10, 0, 0, 1], port))]);
        }
        let failed = resolver.resolve("b", 1, end_of(SOON)).expect_err("not known");
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_address_is_not_looked_up() {
        let resolver = Resolver::new(|_| panic!("asked"));
        for address in ["10.0.0.1", "::1"] {
            let found = resolver.resolve(address, 7, Instant::now()).expect("an address");
            assert_eq!(found, [SocketAddr::new(address.parse().expect("an address"), 7)]);
        }
    }

    #[test]
    fn the_system_knows_localhost() {
        let found = Resolver::default().resolve("localhost", 7, end_of(SOON)).expect("known");
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
    }

    /// A source whose first answers have expired, and the number of its calls.
    fn source(expired: usize) -> (CredentialsSource, Arc<AtomicUsize>) {
        let asked = Arc::<AtomicUsize>::default();
        let count = asked.clone();
        let callback = CredentialsCallback::new(move || {
            let credentials = Credentials::new("", "sesame");
            let is_over = count.fetch_add(1, Ordering::SeqCst) < expired;
            Ok(if is_over { credentials.valid_until(Instant::now()) } else { credentials })
        });
        (CredentialsSource::new(callback), asked)
    }

    #[test]
    fn an_answer_that_has_expired_is_asked_for_anew() {
        let (good, asked) = source(1);
        assert_eq!(good.ask(end_of(SOON)).expect("the second is good").password, "sesame");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let (bad, asked) = source(9);
        let error = bad.ask(end_of(SOON)).expect_err("not for ever");
        assert!(error.to_string().contains("had expired"), "{error}");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
