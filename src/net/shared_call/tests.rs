//! Callers that share an answer, and functions that hang or panic.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Sender;

use super::*;
use crate::base::clock::end_of;
use crate::base::sync::{Started, in_virtual_time, start, yield_now};

const SOON: Duration = Duration::from_secs(5);
const AT_ONCE: Duration = Duration::from_millis(20);

/// Calls of a function that returns the answers of the test.
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
            // After the test, the answer is not used.
            receive(&from_test, end_of(Duration::MAX)).unwrap_or_default()
        });
        Self { calls, answers, begun }
    }

    fn answer(&self, answer: u32) {
        self.answers.send(answer).expect("the call waits");
    }

    /// Waits until exactly this many calls have begun.
    fn await_calls(&self, count: usize, why: &str) {
        while self.begun.load(Ordering::SeqCst) < count {
            yield_now();
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
    in_virtual_time(|| {
        let scene = Arc::new(Scene::new());
        let callers = [(); 8].map(|()| {
            let scene = scene.clone();
            start(move || scene.call(SOON))
        });
        let sharers = || {
            let calls = scene.calls.calls.lock();
            calls.first().map_or(0, |call| Arc::strong_count(&call.answer))
        };
        while sharers() < 2 + callers.len() {
            yield_now();
        }
        scene.answer(1);
        assert_eq!(callers.map(Started::join), [Some(1); 8]);
        assert_eq!(scene.begun.load(Ordering::SeqCst), 1);
        scene.answer(2);
        assert_eq!(scene.call(SOON), Some(2), "a new call");
        assert!(scene.calls.calls.lock().is_empty());
    });
}

#[test]
fn an_answer_that_comes_too_late_serves_the_next_caller() {
    in_virtual_time(|| {
        let scene = Scene::new();
        for _ in 0..3 {
            assert_eq!(scene.call(AT_ONCE), None);
        }
        scene.answer(1);
        assert_eq!(scene.call(SOON), Some(1));
        assert_eq!(scene.begun.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_call_that_never_returns_is_followed_by_one_more() {
    in_virtual_time(|| {
        let mut scene = Scene::new();
        assert_eq!(scene.call(AT_ONCE), None);
        assert_eq!(scene.call(AT_ONCE), None);
        scene.await_calls(1, "it may just be slow");
        scene.calls.slow_after = Duration::ZERO;
        for _ in 0..3 {
            assert_eq!(scene.call(AT_ONCE), None);
        }
        scene.await_calls(2, "two at once at most");
        // The answer is found, whichever of the two calls has it.
        scene.answer(1);
        while scene.calls.calls.lock().iter().all(|call| !call.is_over()) {
            yield_now();
        }
        assert_eq!(scene.call(SOON), Some(1));
        assert_eq!(scene.call(AT_ONCE), None);
        scene.await_calls(3, "beside the one that has not returned");
    });
}

#[test]
fn a_call_does_not_delay_one_with_another_argument() {
    in_virtual_time(|| {
        let (_lives, end) = bounded::<Infallible>(0);
        let calls = SharedCalls::new("test", "a test", move |name: &&str| {
            if *name == "slow" {
                receive(&end, end_of(Duration::MAX)).expect_err("nothing is sent");
            }
            1
        });
        calls.call(&"slow", end_of(AT_ONCE)).expect_err("it does not return before the test");
        assert!(matches!(calls.call(&"quick", end_of(SOON)), Ok(1)));
    });
}

#[test]
fn a_panic_fails_its_callers_and_the_next_one_calls_again() {
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
fn localhost_is_resolved() {
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
fn an_expired_answer_is_requested_again() {
    let (good, asked) = source(1);
    assert_eq!(good.ask(end_of(SOON)).expect("the second is good").password, "sesame");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let (bad, asked) = source(9);
    let error = bad.ask(end_of(SOON)).expect_err("not for ever");
    assert!(error.to_string().contains("had expired"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}
