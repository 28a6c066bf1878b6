//! Threads that hold locks and wait for each other. Deadlocks are reported, and nothing else is.

use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{Builder, Canceller, Client, Deadlock, Error, Event, Guard};
use parking_lot::Mutex;

use crate::support::recorder::Recorder;
use crate::support::{SOON, Server, Store, eventually, ms, soon, stores, take, throughout};

stores! {
    every store:
        each_client_of_a_circle_reports_it_once,
        an_operator_sees_circles_of_clients_without_deadlock_checks,
        one_call_of_a_deadlock_fails_and_the_others_go_on,
        deadlocks_are_found_through_nested_locks_and_sets,
        a_deadlock_with_a_set_is_reported_once,
        no_deadlock_is_reported_that_resolves_by_itself,
        holds_that_any_thread_can_release_make_no_deadlock,
        locking_in_one_order_never_deadlocks,
        threads_that_lock_in_any_order_all_go_on;
    several clients:
        a_deadlock_within_one_client_is_reported,
        a_thread_that_waits_for_itself_is_a_deadlock,
        a_client_without_deadlock_checks_ends_a_chain;
    one server:
        nothing_is_sent_for_calls_that_wait_for_less_or_hold_nothing;
}

/// How long a call waits before it looks.
const AFTER: Duration = ms(100);

/// Longer than it takes to find a circle, and longer than many looks.
const LONG: Duration = ms(700);

fn looking() -> Builder {
    Client::builder().deadlock_after(Some(AFTER)).backoff(ms(1), ms(50))
}

fn failing() -> Builder {
    looking().deadlock(Deadlock::Fail)
}

/// The name of the lock that a thread of a circle holds.
fn name(thread: usize) -> String {
    format!("circle-{thread}")
}

/// The names and clients of an event.
#[derive(Clone, Debug, PartialEq)]
struct Circle(Vec<String>, Vec<String>);

/// The reports of circles to a client.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Circle>>>);

impl Told {
    fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let told = self.0.clone();
        move |event| {
            if let Event::Deadlock { names, clients, .. } = event {
                told.lock().push(Circle(names.clone(), clients.clone()));
            }
        }
    }

    fn circles(&self) -> Vec<Circle> {
        self.0.lock().clone()
    }
}

/// Each thread holds one of the locks, through its own client, and then calls `wait` with its
/// number. The last thread does so only once the others wait.
fn threads_with_locks(clients: &[Client], wait: impl Fn(usize, Guard) + Sync) {
    let all_hold = Barrier::new(clients.len());
    thread::scope(|scope| {
        for (thread, client) in clients.iter().enumerate() {
            let (all_hold, wait) = (&all_hold, &wait);
            scope.spawn(move || {
                let guard = take(client, &name(thread));
                all_hold.wait();
                if thread + 1 == clients.len() {
                    eventually(SOON, || {
                        clients[..thread].iter().all(|client| client.stats().waiting > 0)
                    });
                }
                wait(thread, guard);
            });
        }
    });
}

fn each_client_of_a_circle_reports_it_once(store: &Store) {
    for count in [2, 3, 5] {
        let told: Vec<Told> = (0..count).map(|_| Told::default()).collect();
        let open = |told: &Told| store.open(looking().on_event(told.listener()));
        let clients: Vec<_> = told.iter().map(open).collect();
        let (canceller, asked) = (Canceller::new(), Instant::now());
        thread::scope(|scope| {
            scope.spawn(|| {
                eventually(SOON, || told.iter().all(|told| !told.circles().is_empty()));
                println!("{count} clients: reported after {:?}", asked.elapsed());
                // Each of them looks a few more times.
                thread::sleep(AFTER * 8);
                canceller.cancel();
            });
            threads_with_locks(&clients, |thread, guard| {
                let next = clients[thread].mutex(&name((thread + 1) % count));
                let outcome = next.cancelled_by(&canceller).lock().map(drop);
                assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
                guard.verify().unwrap();
            });
        });
        // The last one comes first.
        let waits_for = |thread: usize| name(thread % count);
        let order: Vec<_> = (count - 1..2 * count - 1).collect();
        let names: Vec<_> = order.iter().map(|thread| waits_for(thread + 1)).collect();
        let ids = order.iter().map(|thread| clients[thread % count].id().to_owned()).collect();
        let circle = Circle(names, ids);
        for (told, client) in told.iter().zip(&clients) {
            assert_eq!(told.circles(), std::slice::from_ref(&circle));
            assert_eq!(client.stats().deadlocks, 1);
        }
    }
}

fn an_operator_sees_circles_of_clients_without_deadlock_checks(store: &Store) {
    // No keys are listed in memory, and no server of a quorum knows all waiting clients.
    if matches!(store, Store::Memory(_) | Store::Quorum(_)) {
        return;
    }
    let survey = store.open(Client::builder()).survey();
    for count in [2, 3] {
        let open = |_| store.open(Client::builder().deadlock_after(None));
        let clients: Vec<_> = (0..count).map(open).collect();
        let waits_for = |thread: usize| (clients[thread].id(), name((thread + 1) % count));
        let mut circle: Vec<_> = (0..count).map(waits_for).collect();
        let first = (0..count).min_by_key(|thread| clients[*thread].id()).unwrap();
        circle.rotate_left(first);
        let circle: (Vec<_>, Vec<_>) = circle.into_iter().unzip();
        let canceller = Canceller::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                eventually(SOON, || match &survey.circles().unwrap()[..] {
                    [seen] => seen.clients == circle.0 && seen.names == circle.1,
                    seen => {
                        assert!(seen.is_empty(), "{seen:?}");
                        false
                    }
                });
                canceller.cancel();
            });
            threads_with_locks(&clients, |thread, guard| {
                let next = clients[thread].mutex(&name((thread + 1) % count));
                let outcome = next.cancelled_by(&canceller).lock().map(drop);
                assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
                guard.verify().unwrap();
            });
        });
        eventually(SOON, || survey.circles().unwrap().is_empty());
    }
}

fn one_call_of_a_deadlock_fails_and_the_others_go_on(store: &Store) {
    for count in [2, 3, 5] {
        let clients: Vec<_> = (0..count).map(|_| store.open(failing())).collect();
        let (failed, got) = (AtomicUsize::new(0), AtomicUsize::new(0));
        threads_with_locks(&clients, |thread, guard| {
            match soon(|| clients[thread].lock(&name((thread + 1) % count))) {
                Ok(_both) => {
                    got.fetch_add(1, Ordering::SeqCst);
                }
                Err(Error::Deadlock { names, clients: ids, .. }) => {
                    assert_eq!(thread, count - 1, "the last one that began to wait");
                    assert_eq!((names.len(), ids.len()), (count, count));
                    assert_eq!((&*names[0], &*ids[0]), (&*name(0), clients[thread].id()));
                    // It keeps its locks.
                    guard.verify().unwrap();
                    failed.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => panic!("{error}"),
            }
            drop(guard);
        });
        assert_eq!((failed.into_inner(), got.into_inner()), (1, count - 1));
        let told = || clients.iter().map(|client| client.stats().deadlocks);
        eventually(SOON, || told().all(|told| told == 1));
    }
}

fn deadlocks_are_found_through_nested_locks_and_sets(store: &Store) {
    let clients: Vec<_> = (0..2).map(|_| store.open(failing())).collect();
    threads_with_locks(&clients, |thread, guard| {
        let client = &clients[thread];
        let nested = client.lock(guard.name()).unwrap();
        let other = take(client, &format!("other-{thread}"));
        drop(guard);
        if thread == 0 {
            drop(soon(|| client.lock(&name(1))).unwrap());
        } else {
            let outcome = soon(|| client.lock_all(["free", &name(0)])).map(drop);
            assert!(matches!(outcome, Err(Error::Deadlock { .. })), "{outcome:?}");
            assert!(nested.is_held() && other.is_held());
        }
    });
    drop(take(&clients[0], "free"));
}

fn a_deadlock_with_a_set_is_reported_once(store: &Store) {
    for fails in [false, true] {
        let told = Told::default();
        let builder = if fails { failing() } else { looking() };
        let client = store.open(builder.on_event(told.listener()));
        let waits = |threads| eventually(SOON, || client.stats().waiting >= threads);
        let free = client.lock_owned("b").unwrap();
        let (client, both_hold) = (&client, &Barrier::new(2));
        let [single, set] = thread::scope(|scope| {
            let single = scope.spawn(move || {
                let _held = take(client, "c");
                both_hold.wait();
                client.try_lock_for("a", SOON).map(|guard| guard.is_some())
            });
            let set = scope.spawn(move || {
                let _held = take(client, "a");
                both_hold.wait();
                eventually(SOON, || client.stats().waiting >= 1);
                let set = client.try_lock_all_for(["b", "c"], LONG * 2);
                set.map(|guard| guard.is_some())
            });
            waits(2);
            // It looked while it waited for the lock that has become free.
            thread::sleep(AFTER * 2);
            drop(free);
            [single, set].map(|thread| thread.join().unwrap())
        });
        assert!(matches!(single, Ok(true)), "{single:?}");
        match set {
            Err(Error::Deadlock { .. }) => assert!(fails),
            set => assert!(!fails && matches!(set, Ok(false)), "{set:?}"),
        }
        // Another thread delivers the event.
        eventually(SOON, || !told.circles().is_empty());
        assert_eq!((told.circles().len(), client.stats().deadlocks), (1, 1));
    }
}

fn no_deadlock_is_reported_that_resolves_by_itself(store: &Store) {
    let recorders: Vec<_> = (0..3).map(|_| Recorder::default()).collect();
    let open = |recorder: &Recorder| store.open(failing().on_event(recorder.listener()));
    let clients: Vec<_> = recorders.iter().map(open).collect();
    threads_with_locks(&clients, |thread, guard| {
        if thread < 2 {
            drop(soon(|| clients[thread].lock(&name(thread + 1))).unwrap());
        } else {
            // Repeatedly waits for a lock of the chain, but never for long, and then ends the
            // chain.
            let end = Instant::now() + LONG;
            while Instant::now() < end {
                let short = clients[thread].try_lock_for(&name(0), AFTER / 4);
                assert!(short.unwrap().is_none());
            }
        }
        drop(guard);
    });
    for (client, recorder) in clients.iter().zip(&recorders) {
        assert_eq!(client.stats().deadlocks, 0, "{:?}", recorder.events());
    }
}

fn holds_that_any_thread_can_release_make_no_deadlock(store: &Store) {
    let clients: Vec<_> = (0..2).map(|_| store.open(failing())).collect();
    let all_hold = Barrier::new(2);
    thread::scope(|scope| {
        let (guards, others) = unbounded();
        let (first, second, all_hold) = (&clients[0], &clients[1], &all_hold);
        scope.spawn(move || {
            let _guard = take(first, "a");
            all_hold.wait();
            drop(soon(|| first.lock("b")).unwrap());
        });
        scope.spawn(move || {
            guards.send(second.lock_owned("b").unwrap()).unwrap();
            // A thread looks only while it holds a lock of its own.
            let _own = take(second, "c");
            all_hold.wait();
            drop(soon(|| second.lock("a")).unwrap());
        });
        // Another thread has the guard.
        eventually(SOON, || clients.iter().all(|client| client.stats().contended == 1));
        throughout(LONG, || clients.iter().all(|client| client.stats().deadlocks == 0));
        drop(others.recv().unwrap());
    });
    assert_eq!(clients.iter().map(|client| client.stats().deadlocks).sum::<u64>(), 0);
}

/// Makes two threads of each of three clients take locks, in an order that `choose` derives from
/// random bits, until `LONG` is over.
fn take_in_order(clients: &[Client], choose: impl Fn(u64) -> Vec<String> + Sync) -> usize {
    let (end, done) = (Instant::now() + LONG, AtomicUsize::new(0));
    thread::scope(|scope| {
        for (seed, client) in (1..).zip(clients.iter().chain(clients)) {
            let (choose, done) = (&choose, &done);
            let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed);
            scope.spawn(move || {
                while Instant::now() < end {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let mut guards = Vec::new();
                    for name in choose(random) {
                        match soon(|| client.lock(&name)) {
                            Ok(guard) => guards.push(guard),
                            Err(Error::Deadlock { .. }) if !guards.is_empty() => break,
                            Err(error) => panic!("{error}"),
                        }
                        thread::sleep(ms(random % 3));
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    done.into_inner()
}

fn locking_in_one_order_never_deadlocks(store: &Store) {
    let open = || store.open(failing().deadlock_after(Some(ms(1))));
    let clients = [(); 3].map(|()| open());
    let done = take_in_order(&clients, |random| {
        (0..4).filter(|bit| random >> (20 + bit) & 1 == 1).map(name).collect()
    });
    let told: Vec<_> = clients.iter().map(|client| client.stats().deadlocks).collect();
    println!("{done} rounds");
    assert_eq!(told, [0; 3]);
}

fn threads_that_lock_in_any_order_all_go_on(store: &Store) {
    let open = || store.open(failing().deadlock_after(Some(ms(20))));
    let clients = [(); 3].map(|()| open());
    let done = take_in_order(&clients, |random| {
        let first = usize::try_from(random >> 20 & 3).unwrap();
        let step = if random >> 30 & 1 == 1 { 1 } else { 3 };
        (0..3).map(|place| name((first + place * step) % 4)).collect()
    });
    let told: u64 = clients.iter().map(|client| client.stats().deadlocks).sum();
    println!("{done} rounds, {told} circles told");
    assert!(done > 0 && told > 0);
}

fn a_deadlock_within_one_client_is_reported(store: &Store) {
    let told = Told::default();
    let client = store.open(failing().on_event(told.listener()));
    let clients = [client.clone(), client.clone(), client];
    let all_hold = Barrier::new(3);
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (thread, client) in clients.iter().enumerate() {
            let (all_hold, failed) = (&all_hold, &failed);
            scope.spawn(move || {
                let _guard = take(client, &name(thread));
                all_hold.wait();
                match soon(|| client.lock(&name((thread + 1) % 3))).map(drop) {
                    Ok(()) => {}
                    Err(Error::Deadlock { .. }) => {
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) => panic!("{error}"),
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 1);
    eventually(SOON, || told.circles().len() == 1);
    assert_eq!(told.circles()[0].1, [clients[0].id(); 3]);
}

fn a_thread_that_waits_for_itself_is_a_deadlock(store: &Store) {
    let client = store.open(failing());
    let guard = take(&client, "a");
    let outcome = soon(|| client.lock_owned("a")).map(drop);
    assert!(matches!(outcome, Err(Error::Deadlock { .. })), "{outcome:?}");
    drop(guard);
    assert_eq!(client.stats().deadlocks, 1);
}

fn a_client_without_deadlock_checks_ends_a_chain(store: &Store) {
    let clients = [store.open(failing()), store.open(failing().deadlock_after(None))];
    threads_with_locks(&clients, |thread, guard| {
        let wait = if thread == 0 { LONG } else { LONG * 2 };
        let next = clients[thread].try_lock_for(&name(1 - thread), wait);
        assert_eq!(next.unwrap().is_some(), thread == 1);
        drop(guard);
    });
    assert_eq!(clients.map(|client| client.stats().deadlocks), [0; 2]);
}

fn nothing_is_sent_for_calls_that_wait_for_less_or_hold_nothing(server: &Server) {
    let scripts = || {
        let info: String = server.ask(&["INFO", "commandstats"]);
        ["cmdstat_publish:", "cmdstat_evalsha:"].map(|command| {
            let line = info.lines().find(|line| line.starts_with(command));
            let calls = line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok());
            calls.unwrap_or(0_u64)
        })
    };
    let sends = |after: Option<Duration>, holds: bool| {
        let builder = || Client::builder().deadlock_after(after).backoff(SOON, SOON);
        let (holder, waiter) = (server.open(builder()), server.open(builder()));
        let held = take(&holder, "a");
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let _other = holds.then(|| take(&waiter, "b"));
                drop(waiter.lock("a").unwrap());
            });
            eventually(SOON, || server.queue("a") == [waiter.id()]);
            eventually(SOON, || server.listeners(&waiter) > 0);
            thread::sleep(AFTER);
            let before = scripts();
            thread::sleep(LONG);
            let sent = iter::zip(scripts(), before).map(|(now, before)| now - before);
            let sent: Vec<_> = sent.collect();
            drop(held);
            call.join().unwrap();
            sent
        })
    };
    assert_eq!(sends(Some(SOON), true), [0, 0]);
    assert_eq!(sends(Some(ms(1)), false), [0, 0]);
    let looked = sends(Some(ms(1)), true);
    assert!(looked[1] > 0 && looked[0] <= looked[1], "{looked:?}");
}
