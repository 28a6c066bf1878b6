//! Clients that keep wanting the same lock: each gets its turn, and none starves.

use std::any::Any;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;

use crate::support::cluster::unique_prefix;
use crate::support::contest::{Contest, TURNS, Turn, assert_turns_are_taken, turns_of_another};
use crate::support::lag::Lag;
use crate::support::{Cluster, SOON, Server, Store, eventually, ms, patient, stores};
#[cfg(unix)]
use crate::support::{
    address::{Address, Way},
    child::{self, Child},
    server, take, timed, very_sleepy,
};

stores! {
    several clients:
        two_busy_clients_both_make_progress,
        a_client_with_many_threads_does_not_starve_the_others,
        clients_with_one_thread_take_turns,
        a_waiting_client_goes_before_one_that_only_tries;
    every server:
        #[cfg(unix)] a_client_that_has_stopped_costs_one_offer,
        #[cfg(unix)] a_waiter_asks_again_when_an_offer_to_another_is_over;
    every direct server:
        a_client_that_is_farther_away_gets_its_turns,
        clients_farther_away_than_an_offer_lasts_get_their_turns;
}

/// Takes a name as a kind that excludes every other client.
type Take = fn(&Client, &str) -> Box<dyn Any>;
const ALONE: [(&str, Take); 3] = [
    ("lock", |client, name| Box::new(client.lock_owned(name).unwrap())),
    ("side", |client, name| Box::new(client.rw_lock(name).write().unwrap())),
    ("permit", |client, name| Box::new(client.semaphore(name, 1).acquire().unwrap())),
];

/// Keeps taking and dropping the lock, and returns the number of rounds.
fn work_for(client: &Client, time: Duration) -> u32 {
    let end = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < end {
        drop(client.lock("a").unwrap());
        rounds += 1;
    }
    rounds
}

fn two_busy_clients_both_make_progress(store: &Store) {
    let (one, other) = (store.open(patient()), store.open(patient()));
    let rounds = thread::scope(|scope| {
        let start = |client| [(); 3].map(|()| scope.spawn(move || work_for(client, ms(1500))));
        let started = [start(&one), start(&other)];
        started.map(|threads| threads.map(|thread| thread.join().unwrap()))
    });
    assert!(rounds.as_flattened().iter().all(|rounds| *rounds > 5), "{rounds:?}");
    // The holds were in tenures.
    assert!(one.stats().handoffs > 0 && other.stats().handoffs > 0);
}

fn a_client_with_many_threads_does_not_starve_the_others(store: &Store) {
    let (crowd, single) = (store.open(patient()), store.open(patient()));
    let contest = Contest::new("a", ms(4));
    let (theirs, mine) = thread::scope(|scope| {
        let theirs = [(); 4].map(|()| scope.spawn(|| contest.join(&crowd)));
        let mine = contest.join(&single);
        (theirs.into_iter().flat_map(|turns| turns.join().unwrap()).collect::<Vec<_>>(), mine)
    });
    assert!(crowd.stats().handoffs > 10, "{:?}", crowd.stats());
    assert!(mine.len() >= 10, "{} turns of {TURNS}", mine.len());
    // No more than three of these holds begin in 10 ms, and a wait begins within such a tenure. The
    // machine may pause between the start of the wait and the request.
    let theirs = [theirs];
    let long = |wait: &&Turn| turns_of_another(wait, &theirs) > 6;
    let long = mine.iter().filter(long).count();
    assert!(5 * long <= mine.len(), "{long} of {} waits were long", mine.len());
}

fn clients_with_one_thread_take_turns(store: &Store) {
    let clients = [(); 3].map(|()| store.open(patient()));
    for held in [ms(1), ms(5), ms(20)] {
        assert_turns_are_taken(&clients, "a", held);
    }
}

#[test]
fn clients_with_one_thread_take_turns_on_a_cluster() {
    for cluster in [Cluster::shared(), Cluster::shared_valkey()] {
        let prefix = unique_prefix();
        let clients = [(); 3].map(|()| cluster.open(patient().prefix(&prefix)));
        for held in [ms(1), ms(5), ms(20)] {
            assert_turns_are_taken(&clients, "a", held);
        }
    }
}

fn a_client_that_is_farther_away_gets_its_turns(server: &Server) {
    let lag = Lag::before(server, ms(2));
    let far = server.through(lag.port()).open(patient());
    let clients = [server.open(patient()), server.open(patient()), far];
    for held in [ms(5), ms(20)] {
        assert_turns_are_taken(&clients, "a", held);
    }
}

/// Every offer to one of these clients has ended by the time its request arrives.
fn clients_farther_away_than_an_offer_lasts_get_their_turns(server: &Server) {
    let lag = Lag::before(server, ms(250));
    let builder = || patient().backoff(ms(500), ms(1000)).io_timeout(Duration::from_secs(3));
    let open = || server.through(lag.port()).open(builder());
    let far = [open(), open()];
    let holder = server.open(patient());
    for (name, take) in ALONE {
        let guard = take(&holder, name);
        thread::scope(|scope| {
            let waits = far.each_ref().map(|client| scope.spawn(move || drop(take(client, name))));
            eventually(SOON, || server.queue(name).len() == 2);
            drop(guard);
            for wait in waits {
                wait.join().unwrap();
            }
        });
    }
}

fn a_waiting_client_goes_before_one_that_only_tries(store: &Store) {
    let (waiting, trying) = (store.open(patient()), store.open(patient()));
    let turns = thread::scope(|scope| {
        let waited = scope.spawn(|| Contest::new("a", ms(1)).join(&waiting).len());
        let mut tried = 0;
        while !waited.is_finished() {
            if let Some(guard) = trying.try_lock("a").unwrap() {
                tried += 1;
                thread::sleep(ms(10));
                guard.unlock().unwrap();
            }
        }
        [waited.join().unwrap(), tried]
    });
    // The other client gets the lock only between a turn and the next request.
    assert!(turns[1] <= turns[0] + turns[0] / 2, "{turns:?}");
}

#[cfg(unix)]
fn a_client_that_has_stopped_costs_one_offer(server: &Server) {
    let open = || server.open(patient());
    stop_a_client_that_waits(server, &server.address(), open);
}

#[cfg(unix)]
#[test]
fn a_client_of_a_cluster_that_has_stopped_costs_one_offer() {
    for cluster in [Cluster::shared(), Cluster::shared_valkey()] {
        let home = cluster.home("a");
        let address = Address { url: home.url(), way: Way::Cluster("lock:".into()) };
        stop_a_client_that_waits(home, &address.to_string(), || address.open(patient()));
    }
}

/// Checks that two clients get their turns although a third one, which also waits for the lock "a",
/// has stopped. `home` is the server that has the lock.
#[cfg(unix)]
fn stop_a_client_that_waits(home: &server::Server, address: &str, open: impl Fn() -> Client) {
    let [holder, other] = [open(), open()];
    let guard = take(&holder, "a");
    let mut stopped = Child::start(wait_until_stopped_in_a_child, address);
    eventually(SOON, || home.queue("a").len() == 1);
    stopped.stop();
    let contest = Contest::new("a", ms(5));
    let turns = thread::scope(|scope| {
        let theirs = scope.spawn(|| contest.join(&other));
        eventually(SOON, || home.queue("a").len() == 2);
        guard.unlock().unwrap();
        [contest.join(&holder), theirs.join().unwrap()]
    });
    let mut begins: Vec<_> = turns.iter().flatten().map(|turn| turn.begin).collect();
    begins.sort();
    let pauses = begins.windows(2).filter(|pair| pair[1] - pair[0] >= ms(150)).count();
    // If the stopped client got an offer in each round, there would be a pause after every second
    // turn.
    assert!(pauses < TURNS / 4, "{pauses} pauses in {TURNS} turns");
    stopped.cont();
    stopped.go_on();
    stopped.finish();
}

/// This holds even if it would make no attempt by itself for a long time.
#[cfg(unix)]
fn a_waiter_asks_again_when_an_offer_to_another_is_over(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(very_sleepy()));
    let guard = take(&holder, "a");
    let mut stopped = Child::start(wait_until_stopped_in_a_child, &server.address());
    eventually(SOON, || server.queue("a").len() == 1);
    stopped.stop();
    // Its first wake-up connection also makes it ask once more.
    assert!(waiter.try_lock_for("a", ms(50)).unwrap().is_none());
    eventually(SOON, || server.listeners(&waiter) == 1);
    guard.unlock().unwrap();
    let (result, took) = timed(|| waiter.lock("a").map(drop));
    result.unwrap();
    assert!(took < SOON / 2, "{took:?}");
    stopped.cont();
    stopped.go_on();
    stopped.finish();
}

#[cfg(unix)]
#[test]
#[ignore = "a child of a_client_that_has_stopped_costs_one_offer"]
fn wait_until_stopped_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder());
    client.lock("a").unwrap().unlock().unwrap();
    child::wait_for_parent();
}
