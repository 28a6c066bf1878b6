//! Requests of many threads that share one connection.

use crossbeam_channel::RecvTimeoutError;
use parking_lot::Mutex;

use super::process::Server;
use super::*;
use crate::config::callbacks::{Credentials, CredentialsCallback};
use crate::net::connection::Connection;

/// The number of threads that send requests at the same time.
const THREADS: u64 = 16;

/// A store with a pool of one connection, and a lock for each thread.
struct Scene {
    process: Server,
    store: Servers,
    /// Opens no connection for these questions, because its reads would count as well.
    observer: Mutex<redis::Connection>,
}

impl Scene {
    fn new() -> Self {
        let process = Server::redis();
        let store = single_at(&process.url(), &Config { pool_size: 1, ..Config::default() });
        for thread in 0..THREADS {
            must_acquire(&store, &Self::hold(thread));
        }
        let observer = Mutex::new(process.connect());
        Self { process, store, observer }
    }

    fn hold(thread: u64) -> HoldId {
        HoldId {
            kind: HoldKind::Lock,
            name: format!("lock {thread}").into(),
            client: Arc::from("client"),
            nonce: thread,
        }
    }

    /// Inspects the lock of a thread, and checks that the reply is not another thread's.
    fn ask(&self, thread: u64, deadline: Instant) -> Result<(), Failure> {
        let hold = Self::hold(thread);
        let holder = self.store.inspect(&hold.name, deadline)?;
        assert_eq!(holder.expect("it is held").owner, hold.owner().as_bytes());
        Ok(())
    }

    /// Makes each thread ask repeatedly, and passes each outcome to `check`.
    fn all_ask(
        &self,
        times: u32,
        deadline: impl Fn(u64) -> Instant + Sync,
        check: fn(Result<(), Failure>),
    ) {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let deadline = &deadline;
                scope.spawn(move || {
                    for _ in 0..times {
                        check(self.ask(thread, deadline(thread)));
                    }
                });
            }
        });
    }

    /// Returns how often the server has read from a socket, including once for this question.
    fn reads(&self) -> u64 {
        let mut info = redis::cmd("INFO");
        let stats: String = info.arg("stats").query(&mut *self.observer.lock()).expect("stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        line.expect("a count").trim().parse().expect("a number")
    }
}

fn must_be_right(answer: Result<(), Failure>) {
    answer.expect("an answer");
}

fn may_be_unknown(answer: Result<(), Failure>) {
    if let Err(failure) = answer {
        let is_unreachable = failure.kind == FailureKind::Unreachable;
        assert!(failure.is_ambiguous() || is_unreachable, "{failure:?}");
    }
}

fn must_fail(answer: Result<(), Failure>) {
    use FailureKind::{NoneFree, Timeout, Unreachable};
    let failure = answer.expect_err("the server is silent");
    assert!(matches!(failure.kind, NoneFree | Timeout | Unreachable), "{failure:?}");
}

#[test]
fn requests_are_sent_together_and_each_gets_its_own_reply() {
    let scene = Scene::new();
    let before = scene.reads();
    scene.all_ask(200, |_| soon(), must_be_right);
    let (reads, requests) = (scene.reads() - before, THREADS * 200);
    assert!(reads < requests / 2, "{reads} reads of {requests} requests");
}

#[test]
fn a_lone_thread_does_not_wait_for_others() {
    let scene = Scene::new();
    scene.all_ask(10, |_| soon(), must_be_right);
    let before = scene.reads();
    for _ in 0..100 {
        scene.ask(0, soon()).expect("an answer");
    }
    assert_eq!(scene.reads() - before, 100 + 1);
}

#[test]
fn a_broken_connection_fails_all_its_requests_and_is_replaced() {
    let scene = Scene::new();
    let (over, is_over) = crossbeam_channel::bounded::<()>(0);
    thread::scope(|scope| {
        // The thread ends when `over` is dropped, even by a failure.
        scope.spawn(|| {
            while is_over.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                scene.process.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
        });
        let _over = over;
        scene.all_ask(200, |_| soon(), may_be_unknown);
    });
    scene.all_ask(10, |_| soon(), drop);
    scene.all_ask(10, |_| soon(), must_be_right);
}

#[test]
fn each_thread_waits_for_a_silent_server_until_its_own_deadline() {
    let scene = Scene::new();
    scene.process.stop();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let scene = &scene;
            scope.spawn(move || {
                let time = Duration::from_millis(20 * thread + 100);
                let (end, slack) = (end_of(time), Duration::from_secs(5));
                must_fail(scene.ask(thread, end));
                assert!(Instant::now() >= end, "it has not waited for {time:?}");
                assert!(Instant::now() < end + slack, "it has waited for more than {time:?}");
            });
        }
    });
    scene.process.cont();
    scene.all_ask(10, |_| soon(), must_be_right);
}

#[test]
fn a_reply_that_is_late_for_one_thread_is_not_given_to_another() {
    let scene = Scene::new();
    for _ in 0..5 {
        scene.process.stop();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let scene = &scene;
                // Every second thread has enough time.
                let time = if thread % 2 == 0 { 5_000 } else { 30 };
                let end = end_of(Duration::from_millis(time));
                scope.spawn(move || match scene.ask(thread, end) {
                    Ok(()) => {}
                    Err(failure) => assert_eq!(thread % 2, 1, "{failure:?}"),
                });
            }
            thread::sleep(Duration::from_millis(100));
            scene.process.cont();
        });
    }
    scene.all_ask(10, |_| soon(), must_be_right);
}

#[test]
fn a_connection_whose_credentials_have_expired_is_not_used() {
    const VALID_FOR: Duration = Duration::from_millis(500);
    let server = Server::redis();
    server.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "+@all"]);
    let login = || Ok(Credentials::new("ali", "sesame").valid_until(end_of(VALID_FOR)));
    let credentials = Some(CredentialsCallback::new(login));
    let config = Config { credentials, ..Config::default() };
    let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
    let endpoint = servers.endpoint(&server.url()).expect("a good URL");
    let mut connection = Connection::new(Arc::new(servers.connections(endpoint)));
    let begun = Instant::now();
    connection.connect(soon()).expect("the server knows the login");
    while connection.is_open() {
        assert!(begun.elapsed() < 8 * VALID_FOR, "it is still used");
        thread::yield_now();
    }
    assert!(begun.elapsed() >= VALID_FOR && connection.is_connected());
}
