//! An outage while threads queue: no thread reports that another owner holds the lock unless a
//! server has replied so.

use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, Error, Guard};

use crate::support::recorder::Recorder;
use crate::support::{
    Cluster, IO, Quorum, SOON, Server, eventually, hasty, ms, patient, server, soon, stores, take,
    timed, unlock, while_held,
};

stores! {
    every server:
        no_waiter_takes_a_silent_server_for_a_holder,
        no_waiter_takes_a_dead_server_for_a_holder,
        no_waiter_takes_a_handoff_at_a_silent_server_for_a_holder,
        no_waiter_takes_a_release_at_a_silent_server_for_a_holder,
        no_waiter_relies_on_an_old_reply,
        close_reaches_a_thread_that_a_lock_is_handed_off_to,
        readers_without_time_to_wait_get_the_lock_or_an_outage,
        contention_is_reported_at_once_and_without_requests;
}

/// How long a call may take in addition to its wait and one attempt, on a busy machine.
const MARGIN: Duration = ms(4000);

const THREADS: usize = 10;

/// The place of the locks, which can become silent.
trait Place: Sync {
    fn open(&self, builder: Builder) -> Client;
    fn servers(&self) -> Vec<&server::Server>;

    fn stop(&self) {
        self.servers().into_iter().for_each(server::Server::stop);
    }

    fn cont(&self) {
        self.servers().into_iter().for_each(server::Server::cont);
    }
}

impl Place for Server {
    fn open(&self, builder: Builder) -> Client {
        Server::open(self, builder)
    }

    fn servers(&self) -> Vec<&server::Server> {
        vec![self]
    }
}

impl Place for Cluster {
    fn open(&self, builder: Builder) -> Client {
        Cluster::open(self, builder)
    }

    fn servers(&self) -> Vec<&server::Server> {
        self.nodes().iter().collect()
    }
}

impl Place for Quorum {
    fn open(&self, builder: Builder) -> Client {
        Quorum::open(self, builder)
    }

    fn servers(&self) -> Vec<&server::Server> {
        self.servers.iter().collect()
    }
}

/// Returns `true` for the result of a call that could not reach a server.
fn is_outage<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unavailable { .. } | Error::NoQuorum { .. }))
}

/// Runs `call` in many threads. In each it must fail because no server answers, and in time.
fn assert_outage_for_all(wait: Duration, call: impl Fn() -> Result<Option<Guard>, Error> + Sync) {
    let outcomes: Vec<_> = thread::scope(|scope| {
        let run = || scope.spawn(|| timed(|| call().map(|guard| guard.is_some())));
        let threads: Vec<_> = (0..THREADS).map(|_| run()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(outcomes.iter().all(|(result, _)| is_outage(result)), "after {wait:?}: {outcomes:?}");
    let longest = outcomes.iter().map(|(_, took)| *took).max().unwrap_or_default();
    assert!(longest < wait + IO + MARGIN, "{longest:?} after {wait:?}");
}

fn waiters_of_a_silent_place(place: &impl Place) {
    let client = place.open(hasty());
    take(&client, "a").unlock().unwrap();
    place.stop();
    for wait in [ms(0), ms(100), ms(500)] {
        assert_outage_for_all(wait, || client.try_lock_for("a", wait));
        assert_outage_for_all(wait, || client.mutex("a").wait(wait).lock().map(Some));
    }
    place.cont();
}

fn no_waiter_takes_a_silent_server_for_a_holder(server: &Server) {
    waiters_of_a_silent_place(server);
}

#[test]
fn no_waiter_takes_a_silent_cluster_for_a_holder() {
    waiters_of_a_silent_place(&Cluster::of_three());
}

#[test]
fn no_waiter_takes_a_silent_quorum_for_a_holder() {
    waiters_of_a_silent_place(&Quorum::of(3));
}

/// The first thread sleeps between its attempts most of the time.
fn no_waiter_takes_a_dead_server_for_a_holder(server: &Server) {
    let client = server.open(hasty().backoff(ms(50), ms(50)));
    take(&client, "a").unlock().unwrap();
    server.kill();
    for wait in [ms(0), ms(100), ms(500)] {
        assert_outage_for_all(wait, || client.try_lock_for("a", wait));
    }
}

/// Makes a holder release the lock for waiting threads once the place has become silent.
fn waiters_of_a_handoff(place: &impl Place, release: fn(Guard)) {
    let recorder = Recorder::default();
    let client = place.open(hasty().on_event(recorder.listener()));
    let guard = take(&client, "a");
    // Long enough for all of them to arrive.
    let wait = ms(2500);
    thread::scope(|scope| {
        let waiters =
            scope.spawn(|| assert_outage_for_all(wait, || client.try_lock_for("a", wait)));
        recorder.wait_for_waiters(THREADS);
        place.stop();
        release(guard);
        let outcome = waiters.join();
        place.cont();
        outcome.unwrap();
    });
    eventually(SOON, || client.try_lock("a").is_ok_and(|guard| guard.is_some()));
}

fn no_waiter_takes_a_handoff_at_a_silent_server_for_a_holder(server: &Server) {
    waiters_of_a_handoff(server, drop);
    waiters_of_a_handoff(server, |guard| drop(guard.unlock()));
}

#[test]
fn no_waiter_takes_a_handoff_at_a_silent_cluster_for_a_holder() {
    waiters_of_a_handoff(&Cluster::of_three(), drop);
}

#[test]
fn no_waiter_takes_a_handoff_at_a_silent_quorum_for_a_holder() {
    waiters_of_a_handoff(&Quorum::of(3), drop);
}

/// The threads arrive while the release is on its way.
fn no_waiter_takes_a_release_at_a_silent_server_for_a_holder(server: &Server) {
    let releases: [(_, fn(Guard)); 2] = [("a", drop), ("b", |guard| drop(guard.unlock()))];
    for (name, release) in releases {
        let client = server.open(hasty().io_timeout(ms(1000)));
        let guard = take(&client, name);
        server.stop();
        thread::scope(|scope| {
            let waiters = scope.spawn(|| {
                thread::sleep(ms(100));
                assert_outage_for_all(ms(1000), || client.try_lock_for(name, ms(100)));
            });
            release(guard);
            let outcome = waiters.join();
            server.cont();
            outcome.unwrap();
        });
    }
}

/// The first thread has learned that the lock is held, and will not ask again for a long time.
fn no_waiter_relies_on_an_old_reply(server: &Server) {
    let (holder, client) =
        (server.open(patient()), server.open(hasty().backoff(3 * SOON, 3 * SOON)));
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let front = scope.spawn(|| client.lock("a").map(drop));
            eventually(SOON, || server.queue("a").len() == 1 && server.listeners(&client) == 1);
            let told = || client.try_lock_for("a", ms(50)).map(|guard| guard.is_some());
            eventually(SOON, || told().is_ok_and(|has_lock| !has_lock));
            server.stop();
            assert_outage_for_all(ms(100), || client.try_lock_for("a", ms(100)));
            server.cont();
            eventually(SOON, || client.try_lock_for("a", ms(50)).is_ok());
            drop(end);
            front.join().unwrap().unwrap();
        });
    });
}

/// The pauses are much longer than the test.
fn close_reaches_a_thread_that_a_lock_is_handed_off_to(server: &Server) {
    for release in [drop, |guard: Guard| drop(guard.unlock())] {
        let recorder = Recorder::default();
        let builder = hasty().backoff(3 * SOON, 3 * SOON).retry_window(6 * SOON);
        let client = server.open(builder.on_event(recorder.listener()));
        let guard = take(&client, "a");
        thread::scope(|scope| {
            let endless = scope.spawn(|| client.lock("a").map(drop));
            recorder.wait_for_waiters(1);
            let limited = scope.spawn(|| client.try_lock_for("a", 6 * SOON).map(drop));
            recorder.wait_for_waiters(2);
            server.stop();
            release(guard);
            // The handoff has failed, and the thread pauses before the next attempt.
            thread::sleep(3 * IO);
            let (outcomes, took) = timed(|| {
                client.close();
                [endless, limited].map(|waits| waits.join().unwrap())
            });
            server.cont();
            for outcome in outcomes {
                assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
            }
            assert!(took < IO + MARGIN, "{took:?}");
        });
        eventually(SOON, || !server.exists("a"));
    }
}

/// The first reader may share the lock with the threads behind it.
fn readers_without_time_to_wait_get_the_lock_or_an_outage(server: &Server) {
    let read_all = |client: &Client| {
        let lock = client.rw_lock("a");
        let outcomes: Vec<_> = thread::scope(|scope| {
            let read = || lock.try_read_for(ms(0));
            let readers: Vec<_> = (0..THREADS).map(|_| scope.spawn(read)).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        outcomes
    };
    let client = server.open(patient().io_timeout(SOON / 2));
    for _ in 0..20 {
        let guards = read_all(&client);
        assert!(guards.iter().all(|guard| matches!(guard, Ok(Some(_)))), "{guards:?}");
    }
    let client = server.open(hasty());
    server.stop();
    let outcomes = read_all(&client);
    assert!(outcomes.iter().all(is_outage), "{outcomes:?}");
    server.cont();
}

/// An attempt may take as long as the machine pauses.
fn contention_is_reported_at_once_and_without_requests(server: &Server) {
    let [holder, client] = [(); 2].map(|()| server.open(patient().io_timeout(SOON / 4)));
    let are_refused = |wait| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let refused = || soon(|| client.try_lock_for("a", wait).unwrap().is_none());
                scope.spawn(move || assert!(refused()));
            }
        });
    };
    // Before another client has the lock, so that no wake-up is on its way to this one.
    let guard = take(&client, "a");
    let before = server.evals();
    are_refused(ms(20));
    assert_eq!(server.evals(), before);
    unlock(guard);
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let front = scope.spawn(|| client.lock("a").map(unlock));
            eventually(SOON, || server.queue("a").len() == 1);
            [ms(0), ms(1), ms(20)].into_iter().for_each(are_refused);
            drop(end);
            front.join().unwrap().unwrap();
        });
    });
}
