//! Clients that wait for one another: their queue in Redis, wake-ups and fairness.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;

use crate::support::child::{self, Child};
use crate::support::recorder::Recorder;
use crate::support::store::Handle;
use crate::support::{
    SOON, Server, eventually, ms, patient, sleepy, stores, take, timed, unlock, while_held,
};
use crate::wait_queue::settle;

stores! {
    every server:
        a_release_wakes_another_client,
        no_wake_up_is_lost_in_many_rounds,
        many_waiting_threads_need_one_queue_entry,
        a_waiter_that_gives_up_leaves_the_queue_entry_to_the_next,
        waits_that_end_early_leave_nothing,
        a_lost_wake_up_connection_is_reopened,
        a_waiter_that_was_killed_is_skipped,
        two_busy_clients_both_make_progress,
        a_client_with_many_threads_does_not_starve_the_others,
        clients_with_one_thread_take_turns,
        a_waiting_client_goes_before_one_that_only_tries,
        a_client_that_has_stopped_costs_one_offer,
        processes_with_threads_count_without_losing_an_update,
        a_lock_works_although_its_queue_key_has_another_type;
}

fn a_release_wakes_another_client(server: &Server) {
    let (holder, waiter) = (server.open(sleepy()), server.open(sleepy()));
    for _ in 0..5 {
        let guard = take(&holder, "a");
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            eventually(SOON, || !server.queue("a").is_empty());
            assert_eq!(server.queue("a"), [waiter.id()]);
            eventually(SOON, || server.listeners(&waiter) == 1);
            let ((), took) = timed(|| {
                guard.unlock().unwrap();
                waits.join().unwrap().unwrap();
            });
            assert!(took < ms(2000), "the next attempt by itself is 30 s away: {took:?}");
        });
        assert!(server.queue("a").is_empty());
    }
}

fn no_wake_up_is_lost_in_many_rounds(server: &Server) {
    let clients = [server.open(sleepy()), server.open(sleepy()), server.open(sleepy())];
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for round in 0..300 {
                    // After a lost wake-up the last attempt, at the end of the wait, would succeed.
                    let (guard, took) = timed(|| client.lock("a").unwrap());
                    assert!(took < SOON / 2, "{took:?} in round {round}");
                    if round % 3 == 0 {
                        thread::yield_now();
                    }
                    guard.unlock().unwrap();
                }
            });
        }
    });
}

fn many_waiting_threads_need_one_queue_entry(server: &Server) {
    let (holder, waiter) = (server.open(sleepy()), server.open(sleepy()));
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| waiter.lock("a").unwrap().unlock().unwrap());
        }
        eventually(SOON, || server.listeners(&waiter) == 1);
        assert_eq!(server.queue("a"), [waiter.id()]);
        guard.unlock().unwrap();
    });
}

fn a_waiter_that_gives_up_leaves_the_queue_entry_to_the_next(server: &Server) {
    let recorder = Recorder::default();
    let [holder, second] = [server.open(patient()), server.open(sleepy())];
    let first = server.open(sleepy().on_event(recorder.listener()));
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let hasty = scope.spawn(|| first.try_lock_for("a", ms(1000)).map(drop));
            eventually(SOON, || server.queue("a") == [first.id()]);
            let patient = scope.spawn(|| first.lock("a").map(unlock));
            settle(&recorder, 2);
            let other = scope.spawn(|| second.lock("a").map(unlock));
            eventually(SOON, || server.queue("a") == [first.id(), second.id()]);
            hasty.join().unwrap().unwrap();
            assert_eq!(server.queue("a"), [first.id(), second.id()]);
            drop(end);
            for waits in [patient, other] {
                waits.join().unwrap().unwrap();
            }
        });
    });
    assert!(server.queue("a").is_empty());
}

fn waits_that_end_early_leave_nothing(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(patient()));
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        for thread in 0..4 {
            let waiter = &waiter;
            scope.spawn(move || {
                for round in 0..250 {
                    let wait = Duration::from_micros(round * 37 % 3000 + thread);
                    assert!(waiter.try_lock_for("a", wait).unwrap().is_none());
                }
            });
        }
    });
    assert!(server.queue("a").is_empty(), "{:?}", server.queue("a"));
    guard.unlock().unwrap();
    take(&waiter, "a").unlock().unwrap();
    for key in server.keys() {
        assert!(server.key_pttl(&key) > 0, "{key} has no time to live");
    }
    let id = waiter.id().to_owned();
    drop(waiter);
    eventually(SOON, || server.subscribers(&id) == 0);
}

fn a_lost_wake_up_connection_is_reopened(server: &Server) {
    let (holder, waiter) =
        (server.open(sleepy()), server.open(sleepy().backoff(ms(5), ms(30_000))));
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        for _ in 0..3 {
            eventually(SOON, || server.listeners(&waiter) == 1);
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        eventually(SOON, || server.listeners(&waiter) == 1 && !server.queue("a").is_empty());
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
}

fn a_waiter_that_was_killed_is_skipped(server: &Server) {
    let (holder, waiter) = (server.open(sleepy()), server.open(sleepy()));
    let guard = take(&holder, "a");
    let mut child = Child::start(wait_in_a_child, &server.address());
    assert_eq!(child.next(), "waits");
    eventually(SOON, || server.queue("a").len() == 1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        eventually(SOON, || server.queue("a").len() == 2 && server.listeners(&waiter) == 1);
        child.kill();
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
        assert!(took < ms(3000), "{took:?}");
    });
    assert!(server.queue("a").is_empty());
}

#[test]
#[ignore = "a child of a_waiter_that_was_killed_is_skipped"]
fn wait_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(sleepy());
    child::report("waits");
    drop(client.lock("a"));
}

/// Takes and releases the lock again and again, and returns the number of rounds.
fn work_for(client: &Client, time: Duration) -> u32 {
    let end = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < end {
        client.lock("a").unwrap().unlock().unwrap();
        rounds += 1;
    }
    rounds
}

fn two_busy_clients_both_make_progress(server: &Server) {
    let (one, other) = (server.open(patient()), server.open(patient()));
    let (mine, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(|| work_for(&other, ms(1500)));
        (work_for(&one, ms(1500)), theirs.join().unwrap())
    });
    assert!(mine > 20 && theirs > 20, "{mine} and {theirs}");
}

fn a_client_with_many_threads_does_not_starve_the_others(server: &Server) {
    let recorder = Recorder::default();
    let (crowd, single) =
        (server.open(patient().on_event(recorder.listener())), server.open(patient()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work_for(&crowd, ms(2000)));
        }
        settle(&recorder, 3);
        let rounds = work_for(&single, ms(1500));
        assert!(rounds >= 5, "{rounds} rounds beside four threads that hand the lock off");
    });
}

/// How many times a client gets the lock, and how long it waits at the longest, if it holds the
/// lock for `held` each time and wants it again at once.
fn turns_of(client: &Client, held: Duration, time: Duration) -> (u32, Duration) {
    let end = Instant::now() + time;
    let (mut turns, mut longest) = (0, Duration::ZERO);
    while Instant::now() < end {
        let (guard, took) = timed(|| client.lock("a").unwrap());
        (turns, longest) = (turns + 1, longest.max(took));
        thread::sleep(held);
        guard.unlock().unwrap();
    }
    (turns, longest)
}

fn clients_with_one_thread_take_turns(server: &Server) {
    assert_turns_are_taken(|| server.open(patient()));
}

/// Checks that clients with one thread each are served about equally often.
pub(crate) fn assert_turns_are_taken(open: impl Fn() -> Client) {
    for held in [ms(1), ms(20)] {
        let clients = [(); 3].map(|()| open());
        let turns = thread::scope(|scope| {
            let work = |client| scope.spawn(move || turns_of(client, held, ms(2000)));
            clients.each_ref().map(work).map(|work| work.join().unwrap())
        });
        let least = turns.iter().map(|(turns, _)| *turns).min().unwrap();
        let most = turns.iter().map(|(turns, _)| *turns).max().unwrap();
        assert!(f64::from(least) >= 0.7 * f64::from(most), "{held:?}: {turns:?}");
        assert!(turns.iter().all(|(_, longest)| *longest < ms(1000)), "{held:?}: {turns:?}");
    }
}

fn a_waiting_client_goes_before_one_that_only_tries(server: &Server) {
    let (waiting, trying) = (server.open(patient()), server.open(patient()));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Some(guard) = trying.try_lock("a").unwrap() {
                    thread::sleep(ms(10));
                    guard.unlock().unwrap();
                }
            }
        });
        let (turns, longest) = turns_of(&waiting, ms(1), ms(1500));
        over.store(true, Ordering::Relaxed);
        assert!(turns >= 30, "{turns} turns, the longest wait was {longest:?}");
    });
}

fn a_client_that_has_stopped_costs_one_offer(server: &Server) {
    let holder = server.open(patient());
    let guard = take(&holder, "a");
    let mut stopped = Child::start(wait_until_stopped_in_a_child, &server.address());
    eventually(SOON, || server.queue("a").len() == 1);
    stopped.stop();
    let other = server.open(patient());
    let turns = thread::scope(|scope| {
        let work = |client| scope.spawn(move || turns_of(client, ms(5), ms(3000)).0);
        let theirs = work(&other);
        eventually(SOON, || server.queue("a").len() == 2);
        guard.unlock().unwrap();
        [work(&holder), theirs].map(|work| work.join().unwrap())
    });
    // With an offer to the stopped client in each round there would be fifteen at the most.
    assert!(turns.iter().all(|turns| *turns > 40), "{turns:?}");
    stopped.cont();
    stopped.go_on();
    stopped.finish();
}

#[test]
#[ignore = "a child of a_client_that_has_stopped_costs_one_offer"]
fn wait_until_stopped_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder());
    client.lock("a").unwrap().unlock().unwrap();
    child::wait_for_parent();
}

fn processes_with_threads_count_without_losing_an_update(server: &Server) {
    let start = || Child::start(count_in_a_child, &server.address());
    let children = [start(), start(), start(), start()];
    children.into_iter().for_each(Child::finish);
    assert_eq!(Handle::connect(&server.url()).read(), 4 * 8 * 10);
}

#[test]
#[ignore = "a child of processes_with_threads_count_without_losing_an_update"]
fn count_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().wait(6 * SOON));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut number = Handle::connect(&address.url);
                for _ in 0..10 {
                    let guard = client.lock("counter").unwrap();
                    let read = number.read();
                    thread::sleep(ms(1));
                    number.write(read + 1);
                    guard.unlock().unwrap();
                }
            });
        }
    });
}

fn a_lock_works_although_its_queue_key_has_another_type(server: &Server) {
    let recorder = Recorder::default();
    let holder = server.open(patient());
    let waiter = server.open(patient().on_event(recorder.listener()));
    server.command(&["SET", "leasehold:queue:{lock:a}", "not a queue", "EX", "100"]);
    while_held(&holder, "a", |end| {
        assert!(waiter.try_lock_for("a", ms(100)).unwrap().is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            settle(&recorder, 2);
            drop(end);
            waits.join().unwrap().unwrap();
        });
    });
    assert_eq!(server.ask::<String>(&["GET", "leasehold:queue:{lock:a}"]), "not a queue");
}
