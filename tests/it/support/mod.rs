//! Shared parts of the tests: stores to run on, other threads and processes, ways to wait.

pub(crate) mod address;
#[cfg(feature = "tls")]
pub(crate) mod authority;
pub(crate) mod child;
pub(crate) mod cluster;
pub(crate) mod contest;
pub(crate) mod errors;
pub(crate) mod inspect;
pub(crate) mod kinds;
pub(crate) mod lag;
pub(crate) mod proxy;
pub(crate) mod quorum;
pub(crate) mod recorder;
pub(crate) mod redisson;
pub(crate) mod replicas;
pub(crate) mod resp;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod store;
#[cfg(feature = "tls")]
pub(crate) mod wire;

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use leasehold::{Builder, Client, Error, Guard};

pub(crate) use self::cluster::Cluster;
pub(crate) use self::errors::{
    assert_closed, assert_found, assert_lost, assert_rejected, assert_unavailable,
    assert_wrong_type, everything,
};
use self::proxy::Proxy;
pub(crate) use self::quorum::Quorum;
pub(crate) use self::sentinel::Watched;
pub(crate) use self::server::lock_key;
pub(crate) use self::store::{Server, Store, on_both, stores};

/// A generous limit for what should happen at once, even on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A lease to be renewed during a test: short enough to wait for several, and long enough to be
/// renewed in time after the machine has paused for two seconds.
pub(crate) const LEASE: Duration = ms(3000);

/// A lease to end during a test: short enough to wait for its end, and long enough for a replica to
/// be late within it.
pub(crate) const SHORT: Duration = ms(1000);

/// Milliseconds, the unit of nearly every duration in the tests.
pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A builder whose waits end with an error, so that a test fails rather than hangs.
pub(crate) fn patient() -> Builder {
    Client::builder().wait(SOON).backoff(ms(1), ms(50))
}

/// The time limit of one attempt of a [`hasty`] client.
pub(crate) const IO: Duration = ms(300);

/// A builder with short time limits, so that the tests that wait for them are short.
pub(crate) fn hasty() -> Builder {
    Client::builder().connect_timeout(IO).io_timeout(IO)
}

/// Like [`patient`], but waiters make no attempt by themselves within a test, so that only a
/// wake-up can end a wait.
pub(crate) fn sleepy() -> Builder {
    Client::builder().wait(SOON).backoff(ms(30_000), ms(30_000))
}

/// Like `sleepy`, but waits for longer than the test may take.
pub(crate) fn very_sleepy() -> Builder {
    sleepy().wait(6 * SOON)
}

/// The rights that the documentation requires.
pub(crate) const RIGHTS: &str = "~lock:* ~leasehold:* resetchannels &leasehold:* +eval +evalsha \
                      +ping +get +set +time +hget +hset +hdel +hgetall +hlen +type \
                      +getrange +del +exists +pttl +pexpire +zadd +zrange +zrem +zscore \
                      +publish +subscribe";

/// Opens a client of servers that are up, whatever its time limits: a busy machine may need longer
/// for an attempt.
#[track_caller]
pub(crate) fn opened(open: impl Fn() -> Result<Client, Error>) -> Client {
    let deadline = Instant::now() + SOON;
    loop {
        match open() {
            Err(error) if error.is_retryable() && Instant::now() < deadline => {}
            result => return result.expect("the servers are up"),
        }
    }
}

/// Opens a client behind a proxy, with the scripts already on the server.
pub(crate) fn behind_proxy(server: &Server, builder: Builder) -> (Proxy, Client) {
    let proxy = Proxy::before(server);
    let client = server.through(proxy.port()).open(builder);
    let guard = take(&client, "warm");
    take(&client, "warm").unlock().unwrap();
    guard.unlock().unwrap();
    (proxy, client)
}

/// Waits until `happened` returns `true`, and panics if it does not `within` that time.
#[track_caller]
pub(crate) fn eventually(within: Duration, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !happened() {
        assert!(Instant::now() < deadline, "not even after {within:?}");
        thread::sleep(ms(2));
    }
}

/// Checks that `holds` returns `true` throughout the time `during`.
#[track_caller]
pub(crate) fn throughout(during: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        assert!(holds(), "no longer so after {elapsed:?}");
        if elapsed >= during {
            return;
        }
        thread::sleep(ms(10));
    }
}

/// Runs `call` and returns how long it took.
pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = call();
    (value, start.elapsed())
}

/// Runs `call`, and panics if it takes nearly as long as a test waits for anything.
#[track_caller]
pub(crate) fn soon<T>(call: impl FnOnce() -> T) -> T {
    let (value, took) = timed(call);
    assert!(took < SOON / 2, "{took:?}");
    value
}

/// Runs `call` on another thread, because a thread is never refused a lock that it holds.
pub(crate) fn elsewhere<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let joined = scope.spawn(call).join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns `true` if another thread is refused the lock. If it gets the lock, it releases it at
/// once.
#[track_caller]
pub(crate) fn is_busy(client: &Client, name: &str) -> bool {
    elsewhere(|| client.try_lock(name).map(|guard| guard.is_none())).expect("try_lock answers")
}

/// Takes a lock that must be free.
#[track_caller]
pub(crate) fn take(client: &Client, name: &str) -> Guard {
    let guard = client.try_lock(name).expect("try_lock answers");
    guard.expect("the lock is free")
}

/// Releases a lock, and waits until it is released for all clients.
#[track_caller]
pub(crate) fn unlock(guard: Guard) {
    guard.unlock().expect("unlock answers");
}

/// Runs `body` while another thread holds the lock. `body` may end the hold early by dropping its
/// argument.
pub(crate) fn while_held<T>(client: &Client, name: &str, body: impl FnOnce(Sender<()>) -> T) -> T {
    thread::scope(|scope| {
        let (held, is_held) = bounded::<()>(1);
        let (end, ended) = bounded::<()>(0);
        scope.spawn(move || {
            let guard = client.lock(name).unwrap();
            held.send(()).unwrap();
            // It is only ever disconnected.
            ended.recv().unwrap_err();
            guard.unlock().unwrap();
        });
        is_held.recv().expect("the other thread gets the lock");
        body(end)
    })
}
