//! Semaphores.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread;

use leasehold::{Client, Error, HoldEnd};

use crate::support::recorder::Recorder;
use crate::support::{
    Quorum, SOON, Server, Store, behind_proxy, eventually, ms, patient, sleepy, stores, timed,
};

stores! {
    every store but a quorum:
        no_more_permits_are_held_than_there_are,
        threads_get_permits_in_the_order_in_which_they_ask,
        many_threads_never_exceed_the_permits,
        the_number_of_permits_may_differ,
        a_newcomer_leaves_one_permit_to_a_waiting_thread;
    several clients:
        clients_never_exceed_the_permits_together,
        a_release_wakes_as_many_clients_as_permits_are_free,
        a_newcomer_does_not_overtake_a_waiting_client;
    one server:
        threads_take_free_permits_in_few_round_trips,
        a_dropped_permit_goes_to_a_thread_that_waits_without_a_request,
        each_permit_is_lost_and_released_separately;
}

fn no_more_permits_are_held_than_there_are(store: &Store) {
    let client = store.open(patient());
    let semaphore = client.semaphore("a", 2);
    assert_eq!((semaphore.name(), semaphore.available().unwrap()), ("a", 2));
    let (one, other) = (semaphore.acquire().unwrap(), semaphore.try_acquire().unwrap().unwrap());
    assert_eq!(semaphore.available().unwrap(), 0);
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(semaphore.try_acquire_for(ms(20)).unwrap().is_none());
    one.verify().unwrap();
    one.unlock().unwrap();
    assert_eq!(semaphore.available().unwrap(), 1);
    let third = semaphore.try_acquire_for(ms(20)).unwrap().unwrap();
    third.unlock().unwrap();
    other.unlock().unwrap();
    assert_eq!(semaphore.available().unwrap(), 2);
    let none = client.semaphore("a", 0);
    assert!(matches!(none.acquire(), Err(Error::InvalidInput(_))));
    assert!(matches!(none.try_acquire(), Err(Error::InvalidInput(_))));
    assert!(matches!(none.try_acquire_for(ms(20)), Err(Error::InvalidInput(_))));
    assert!(matches!(none.available(), Err(Error::InvalidInput(_))));
}

fn threads_get_permits_in_the_order_in_which_they_ask(store: &Store) {
    let client = store.open(patient());
    let semaphore = client.semaphore("a", 1);
    let permit = semaphore.acquire().unwrap();
    let order = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..5 {
            let (semaphore, order) = (&semaphore, &order);
            scope.spawn(move || {
                let permit = semaphore.acquire().unwrap();
                order.lock().push(number);
                permit.unlock().unwrap();
            });
            eventually(SOON, || client.stats().waiting == number + 1);
        }
        permit.unlock().unwrap();
    });
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
}

fn a_dropped_permit_goes_to_a_thread_that_waits_without_a_request(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(sleepy().tenure(ms(5000)).on_event(recorder.listener()));
    let (semaphore, order) = (client.semaphore("a", 2), parking_lot::Mutex::new(Vec::new()));
    let permits = [(); 2].map(|()| semaphore.acquire().unwrap());
    thread::scope(|scope| {
        for number in 0..10 {
            let (semaphore, order) = (&semaphore, &order);
            scope.spawn(move || {
                let permit = semaphore.acquire().unwrap();
                order.lock().push(number);
                drop(permit);
            });
            recorder.wait_for_waiters(number + 1);
        }
        // The request of the first one has been answered, and it listens.
        let is_queued = || server.ask::<bool>(&["EXISTS", "leasehold:queue:{lock:a}"]);
        eventually(SOON, is_queued);
        let before = server.evals();
        let [one, other] = permits;
        drop(one);
        eventually(SOON, || client.stats().acquired == 12);
        drop(other);
        eventually(SOON, || client.stats().released == 12 && semaphore.available().unwrap() == 2);
        assert_eq!(client.stats().handoffs, 10);
        // Two releases, the place in the queue, and what `available` asks.
        let scripts = server.evals() - before;
        assert!((3..=20).contains(&scripts), "{scripts}");
    });
    assert_eq!(*order.lock(), (0..10).collect::<Vec<_>>());
    eventually(SOON, || !server.ask::<bool>(&["EXISTS", "leasehold:queue:{lock:a}"]));
}

fn each_permit_is_lost_and_released_separately(server: &Server) {
    let recorder = Recorder::default();
    let client = server.open(sleepy().tenure(ms(5000)).on_event(recorder.listener()));
    let semaphore = client.semaphore("a", 1);
    let first = semaphore.acquire().unwrap();
    let first_lost = first.lost();
    thread::scope(|scope| {
        let next = scope.spawn(|| semaphore.acquire().unwrap());
        recorder.wait_for_waiters(1);
        drop(first);
        let next = next.join().unwrap();
        assert_eq!(first_lost.wait_timeout(SOON), Some(HoldEnd::Released));
        assert_eq!(server.ask::<u32>(&["DEL", "lock:a"]), 1);
        assert!(matches!(next.verify(), Err(Error::Lost { .. })));
        assert!(next.lost().is_lost() && !first_lost.is_lost());
    });
    assert_eq!(client.stats().lost, 1);
}

/// The reply to each thread takes a round trip.
fn threads_take_free_permits_in_few_round_trips(server: &Server) {
    const THREADS: u32 = 32;
    let round_trip = ms(100);
    let (proxy, client) = behind_proxy(server, patient().pool_size(THREADS));
    let (semaphore, inside) = (client.semaphore("a", THREADS), AtomicU32::new(0));
    let all = || inside.load(Ordering::SeqCst) == THREADS;
    proxy.delay_replies(round_trip);
    let ((), took) = timed(|| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let _permit = semaphore.acquire().unwrap();
                    inside.fetch_add(1, Ordering::SeqCst);
                    eventually(SOON, all);
                });
            }
        });
    });
    assert!(took < round_trip * THREADS / 2, "{took:?}");
}

fn many_threads_never_exceed_the_permits(store: &Store) {
    let client = store.open(patient());
    never_exceed(&[client]);
}

fn clients_never_exceed_the_permits_together(store: &Store) {
    never_exceed(&[(); 3].map(|()| store.open(patient())));
}

/// Twelve threads that use three permits.
fn never_exceed(clients: &[Client]) {
    let (inside, most) = (AtomicI64::new(0), AtomicI64::new(0));
    thread::scope(|scope| {
        for client in clients.iter().cycle().take(12) {
            let (inside, most) = (&inside, &most);
            scope.spawn(move || {
                let semaphore = client.semaphore("a", 3);
                for _ in 0..6 {
                    let _permit = semaphore.acquire().unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= 3, "{now} are inside");
                    most.fetch_max(now, Ordering::SeqCst);
                    thread::sleep(ms(3));
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

fn the_number_of_permits_may_differ(store: &Store) {
    let client = store.open(patient());
    let (many, few) = (client.semaphore("a", 5), client.semaphore("a", 2));
    let permits: Vec<_> = (0..4).map(|_| many.acquire().unwrap()).collect();
    assert_eq!((many.available().unwrap(), few.available().unwrap()), (1, 0));
    assert!(few.try_acquire().unwrap().is_none());
    for (left, permit) in (0..4).rev().zip(permits) {
        assert_eq!(few.try_acquire().unwrap().is_some(), left + 1 < 2);
        permit.unlock().unwrap();
    }
    eventually(SOON, || few.available().unwrap() == 2);
}

fn a_newcomer_leaves_one_permit_to_a_waiting_thread(store: &Store) {
    let client = store.open(patient());
    let [one, two, nine] = [1, 2, 9].map(|permits| client.semaphore("a", permits));
    let permit = nine.acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| one.acquire().unwrap());
        eventually(SOON, || two.try_acquire().unwrap().is_none());
        nine.try_acquire().unwrap().expect("more is free").unlock().unwrap();
        permit.unlock().unwrap();
        waiter.join().unwrap().unlock().unwrap();
    });
}

fn a_release_wakes_as_many_clients_as_permits_are_free(store: &Store) {
    let clients = [(); 4].map(|()| store.open(sleepy()));
    let holder = store.open(patient());
    let held = [(); 2].map(|()| holder.semaphore("a", 2).acquire().unwrap());
    let served = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in &clients {
            let served = &served;
            scope.spawn(move || {
                let permit = client.semaphore("a", 2).acquire().unwrap();
                served.fetch_add(1, Ordering::SeqCst);
                permit.unlock().unwrap();
            });
        }
        eventually(SOON, || {
            store.queue("a").len() == 4 && clients.iter().all(|client| store.listens(client))
        });
        for permit in held {
            permit.unlock().unwrap();
        }
    });
    assert_eq!(served.load(Ordering::SeqCst), 4);
}

fn a_newcomer_does_not_overtake_a_waiting_client(store: &Store) {
    let (holder, waiter, newcomer) =
        (store.open(patient()), store.open(sleepy()), store.open(patient()));
    let permit = holder.semaphore("a", 1).acquire().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.semaphore("a", 1).acquire().unwrap());
        eventually(SOON, || store.queue("a").len() == 1 && store.listens(&waiter));
        permit.unlock().unwrap();
        assert!(newcomer.semaphore("a", 1).try_acquire().unwrap().is_none());
        waiting.join().unwrap().unlock().unwrap();
    });
    eventually(SOON, || newcomer.semaphore("a", 1).try_acquire().unwrap().is_some());
}

#[test]
fn a_quorum_has_no_semaphores() {
    let quorum = Quorum::of(3);
    let semaphore = quorum.open(patient()).semaphore("a", 1);
    assert!(matches!(semaphore.acquire(), Err(Error::InvalidInput(_))));
    assert!(matches!(semaphore.available(), Err(Error::InvalidInput(_))));
}
