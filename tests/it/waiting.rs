//! Waiting in line within a process, and being woken across processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};

use crate::support::child::{self, Child};
use crate::support::recorder::Recorder;
use crate::support::store::Handle;
use crate::support::{
    SOON, Server, Store, elsewhere, eventually, is_busy, ms, patient, sleepy, stores, take,
    throughout, timed, while_held,
};

stores! {
    every store:
        threads_are_served_in_the_order_of_coming,
        fences_grow_with_every_hand_over,
        a_lost_hold_lets_the_next_in_line_go_on,
        a_waiter_that_gives_up_does_not_hold_up_the_line,
        a_hand_over_follows_the_options_of_the_receiver,
        a_panic_of_the_holder_hands_the_lock_on;
    every server:
        a_lock_held_by_another_thread_is_refused_without_a_question,
        threads_in_line_ask_nothing,
        a_hand_over_costs_one_script,
        a_release_wakes_another_client,
        no_wake_up_is_lost_in_many_rounds,
        many_waiting_threads_need_one_place_in_the_queue,
        a_lost_wake_up_connection_is_made_again,
        a_waiter_that_was_killed_is_skipped,
        two_busy_clients_both_get_on,
        a_client_in_line_does_not_starve_the_others,
        waits_that_end_early_leave_nothing,
        a_thread_that_gives_up_leaves_its_clients_place_to_the_next,
        processes_with_threads_count_without_losing_an_update,
        the_queue_does_not_matter_to_a_lock_that_cannot_have_one;
}

/// Waits until so many threads have found the lock "a" taken, and wait for it or are about to.
#[track_caller]
fn settle(told: &Recorder, threads: usize) {
    eventually(SOON, || told.count("contended a") >= threads);
}

fn threads_are_served_in_the_order_of_coming(store: &Store) {
    let told = Recorder::default();
    let client = store.open(sleepy().on_event(told.listener()));
    let guard = take(&client, "a");
    let order = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..5 {
            let (client, order) = (&client, &order);
            scope.spawn(move || {
                let guard = client.lock("a").unwrap();
                order.lock().push(number);
                guard.unlock().unwrap();
            });
            settle(&told, number + 1);
        }
        guard.unlock().unwrap();
    });
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
}

fn fences_grow_with_every_hand_over(store: &Store) {
    let client = store.open(patient());
    let last = AtomicU64::new(0);
    let register = store.register();
    thread::scope(|scope| {
        for _ in 0..8 {
            let (client, last, mut number) = (&client, &last, register.handle());
            scope.spawn(move || {
                for _ in 0..50 {
                    let guard = client.lock("a").unwrap();
                    assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                    assert_eq!(guard.depth(), 1);
                    let read = number.read();
                    number.write(read + 1);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 400);
}

fn a_lost_hold_lets_the_next_in_line_go_on(store: &Store) {
    let told = Recorder::default();
    let client = store.open(sleepy().lease(ms(900)).on_event(told.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").map(|guard| guard.fence()));
        settle(&told, 1);
        assert!(client.mutex("a").force_unlock().unwrap());
        let fence = waiter.join().unwrap().unwrap();
        assert!(fence > guard.fence());
    });
    assert!(!guard.is_held());
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    take(&client, "a").unlock().unwrap();
}

fn a_waiter_that_gives_up_does_not_hold_up_the_line(store: &Store) {
    let told = Recorder::default();
    let client = store.open(sleepy().on_event(told.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let hasty = scope.spawn(|| client.try_lock_for("a", ms(200)).map(|guard| guard.is_some()));
        settle(&told, 1);
        let patient = scope.spawn(|| client.lock("a").map(drop));
        assert!(!hasty.join().unwrap().unwrap());
        assert!(!patient.is_finished());
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            patient.join().unwrap().unwrap();
        });
        assert!(took < ms(3000), "{took:?}");
    });
}

fn a_hand_over_follows_the_options_of_the_receiver(store: &Store) {
    let told = Recorder::default();
    let client = store.open_for(ms(2000), sleepy().on_event(told.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        let short = client.mutex("a").lease(ms(2000)).renew(false);
        let waiter = scope.spawn(move || {
            let guard = short.lock().unwrap();
            (guard.remaining(), guard.lost().recv_timeout(SOON).is_ok())
        });
        settle(&told, 1);
        guard.unlock().unwrap();
        let (remaining, lost) = waiter.join().unwrap();
        assert!(remaining < ms(2000), "{remaining:?}");
        assert!(lost, "it is not renewed");
    });
}

fn a_panic_of_the_holder_hands_the_lock_on(store: &Store) {
    let client = store.open(sleepy());
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let _guard = client.lock("a").unwrap();
            thread::sleep(ms(200));
            panic!("wanted by the test");
        });
        eventually(SOON, || is_busy(&client, "a"));
        let (result, took) = timed(|| client.lock("a").map(drop));
        result.unwrap();
        assert!(took < ms(5000), "{took:?}");
        assert!(holder.join().is_err());
    });
}

fn a_lock_held_by_another_thread_is_refused_without_a_question(server: &Server) {
    let client = server.open(patient());
    let guard = take(&client, "a");
    elsewhere(|| {
        let before = server.evals();
        for _ in 0..10 {
            assert!(client.try_lock("a").unwrap().is_none());
        }
        assert!(client.try_lock_for("a", ms(50)).unwrap().is_none());
        assert_eq!(server.evals(), before);
    });
    // A hold that is lost is asked about again.
    server.command(&["DEL", "a"]);
    guard.verify().unwrap_err();
    assert!(elsewhere(|| client.try_lock("a").unwrap().is_some()));
}

fn threads_in_line_ask_nothing(server: &Server) {
    let told = Recorder::default();
    let client = server.open(patient().on_event(told.listener()));
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        }
        settle(&told, 20);
        let before = server.evals();
        throughout(ms(300), || server.evals() == before);
        guard.unlock().unwrap();
    });
}

fn a_hand_over_costs_one_script(server: &Server) {
    let told = Recorder::default();
    let client = server.open(sleepy().max_handoffs(u32::MAX).on_event(told.listener()));
    take(&client, "warm").unlock().unwrap();
    let guard = take(&client, "a");
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| client.lock("a").unwrap().unlock().unwrap());
        }
        settle(&told, 10);
        let before = server.evals();
        guard.unlock().unwrap();
        eventually(SOON, || !server.exists("a"));
        // Ten hand-overs, one of them also by EVAL as the first, and a release.
        let scripts = server.evals() - before;
        assert!((11..=12).contains(&scripts), "{scripts}");
    });
}

fn a_release_wakes_another_client(server: &Server) {
    let (holder, waiter) = (server.open(sleepy()), server.open(sleepy()));
    for _ in 0..5 {
        let guard = take(&holder, "a");
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(drop));
            eventually(SOON, || !server.queue("a").is_empty());
            assert_eq!(server.queue("a"), [waiter.id()]);
            eventually(SOON, || server.listeners(&waiter) == 1);
            let ((), took) = timed(|| {
                guard.unlock().unwrap();
                waits.join().unwrap().unwrap();
            });
            assert!(took < ms(2000), "the next try by itself is 30 s away: {took:?}");
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
                    // After a lost wake-up the last try, at the end of the wait, may succeed.
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

fn many_waiting_threads_need_one_place_in_the_queue(server: &Server) {
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

fn a_lost_wake_up_connection_is_made_again(server: &Server) {
    let (holder, waiter) =
        (server.open(sleepy()), server.open(sleepy().backoff(ms(5), ms(30_000))));
    let guard = take(&holder, "a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(drop));
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
        let waits = scope.spawn(|| waiter.lock("a").map(drop));
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

/// Takes and releases the lock again and again, and returns how often it could.
fn work_for(client: &Client, time: Duration) -> u32 {
    let end = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < end {
        client.lock("a").unwrap().unlock().unwrap();
        rounds += 1;
    }
    rounds
}

fn two_busy_clients_both_get_on(server: &Server) {
    let (one, other) = (server.open(patient()), server.open(patient()));
    let (mine, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(|| work_for(&other, ms(1500)));
        (work_for(&one, ms(1500)), theirs.join().unwrap())
    });
    assert!(mine > 20 && theirs > 20, "{mine} and {theirs}");
}

fn a_client_in_line_does_not_starve_the_others(server: &Server) {
    let told = Recorder::default();
    let (crowd, single) =
        (server.open(patient().on_event(told.listener())), server.open(patient()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work_for(&crowd, ms(2000)));
        }
        settle(&told, 3);
        let rounds = work_for(&single, ms(1500));
        assert!(rounds >= 5, "{rounds} rounds beside four threads that hand the lock on");
    });
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
        assert!(server.raw_pttl(&key) > 0, "{key} has no time to live");
    }
    let id = waiter.id().to_owned();
    drop(waiter);
    eventually(SOON, || server.subscribers(&id) == 0);
}

fn a_thread_that_gives_up_leaves_its_clients_place_to_the_next(server: &Server) {
    let told = Recorder::default();
    let [holder, second] = [server.open(patient()), server.open(sleepy())];
    let first = server.open(sleepy().on_event(told.listener()));
    while_held(&holder, "a", |end| {
        thread::scope(|scope| {
            let hasty = scope.spawn(|| first.try_lock_for("a", ms(1000)).map(drop));
            eventually(SOON, || server.queue("a") == [first.id()]);
            let patient = scope.spawn(|| first.lock("a").map(drop));
            settle(&told, 2);
            let other = scope.spawn(|| second.lock("a").map(drop));
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

fn the_queue_does_not_matter_to_a_lock_that_cannot_have_one(server: &Server) {
    let told = Recorder::default();
    let holder = server.open(patient());
    let waiter = server.open(patient().on_event(told.listener()));
    server.command(&["SET", "leasehold:queue:{a}", "not a queue", "EX", "100"]);
    while_held(&holder, "a", |end| {
        assert!(waiter.try_lock_for("a", ms(100)).unwrap().is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(drop));
            settle(&told, 2);
            drop(end);
            waits.join().unwrap().unwrap();
        });
    });
    assert_eq!(server.ask::<String>(&["GET", "leasehold:queue:{a}"]), "not a queue");
}
