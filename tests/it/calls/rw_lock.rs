//! Read-write locks.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Canceller, Client, Error, HoldEnd, RwLock};

use crate::support::child::{self, Child};
use crate::support::proxy::Proxy;
use crate::support::{
    LEASE, Quorum, SHORT, SOON, Server, Store, assert_found, behind_proxy, elsewhere, eventually,
    is_busy, ms, patient, sleepy, soon, stores, throughout, timed,
};

stores! {
    every store but a quorum:
        writers_of_a_client_follow_one_another_within_a_tenure,
        readers_beside_a_downgraded_writer_have_its_fence,
        readers_share_and_a_writer_excludes,
        a_waiting_writer_goes_before_later_readers,
        readers_that_wait_for_a_writer_come_in_together,
        many_threads_see_no_writer_beside_another,
        a_wait_that_is_over_leaves_nothing_behind,
        the_fence_of_readers_is_between_those_of_writers,
        readers_share_a_fence_for_longer_than_its_counter_is_kept,
        a_lock_is_not_a_read_write_lock_of_the_same_name,
        a_writer_can_become_a_reader,
        threads_behind_a_downgraded_writer_read_beside_it,
        a_downgraded_writer_keeps_its_age,
        a_lost_writer_cannot_become_a_reader;
    several clients:
        a_writer_is_not_starved_by_readers_of_two_clients,
        a_reader_is_not_starved_by_writers_of_two_clients,
        a_release_wakes_all_readers_of_other_clients,
        readers_of_a_client_before_a_writer_of_another_come_in_together,
        a_reader_that_leaves_its_turn_leaves_it_to_the_writer_behind,
        a_downgraded_writer_lets_in_readers_only;
    every server:
        a_crashed_reader_blocks_for_its_lease_only,
        a_crashed_waiter_blocks_no_one_for_long;
    every direct server:
        a_lost_reply_to_a_downgrade_is_retried,
        a_downgrade_without_a_reply_leaves_nothing;
    one server:
        readers_that_come_together_do_not_wait_for_each_other,
        readers_that_wait_for_a_writer_come_in_after_few_round_trips,
        readers_of_a_client_share_a_hold_and_send_no_request,
        a_thread_that_waits_behind_another_of_its_client_needs_no_message;
}

fn a_thread_that_waits_behind_another_of_its_client_needs_no_message(server: &Server) {
    let (proxy, client) = behind_proxy(server, sleepy());
    // A client that listens makes no extra attempt for messages that it may have missed.
    client.listen();
    eventually(SOON, || server.listeners(&client) == 1);
    let lock = client.rw_lock("a");
    let reader = lock.read().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| lock.write().map(drop));
        // Until it has a reply, the writer would ask again even without a message.
        eventually(SOON, || server.queue("a").len() == 1 && client.stats().waiting == 1);
        proxy.lose_messages();
        drop(reader);
        soon(|| writer.join().unwrap().unwrap());
    });
}

fn readers_of_a_client_share_a_hold_and_send_no_request(server: &Server) {
    let client = server.open(patient().tenure(ms(5000)));
    let lock = client.rw_lock("a");
    let first = lock.read().unwrap();
    let (before, lost) = (server.evals(), first.lost());
    for _ in 0..10 {
        let other = elsewhere(|| lock.read().unwrap());
        assert!(other.is_held() && other.fence() == first.fence());
        assert!(lock.try_read().unwrap().is_some());
        other.unlock().unwrap();
    }
    assert_eq!(server.evals(), before);
    assert_eq!(server.ask::<u32>(&["ZCARD", "lock:a"]), 1);
    let last = lock.read().unwrap();
    first.unlock().unwrap();
    assert_eq!(
        (lost.wait_timeout(ms(20)), client.stats().held),
        (None, 1),
        "it is the other's too"
    );
    last.verify().unwrap();
    last.unlock().unwrap();
    assert_eq!(lost.wait_timeout(SOON), Some(HoldEnd::Released));
    assert!(!server.exists("a") && client.stats().held == 0);
    // All readers lose the lock together.
    let readers = [(); 2].map(|()| lock.read().unwrap());
    assert_eq!(server.ask::<u32>(&["DEL", "lock:a"]), 1);
    assert!(readers[0].verify().is_err() && !readers[1].is_held());
    for reader in readers {
        assert!(matches!(reader.unlock(), Err(Error::Lost { .. })));
    }
    // A waiting writer ends the tenure of the readers.
    let reader = lock.read().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| drop(lock.write().unwrap()));
        eventually(SOON, || client.stats().waiting == 1);
        assert!(lock.try_read().unwrap().is_none());
        reader.unlock().unwrap();
        writer.join().unwrap();
    });
}

fn writers_of_a_client_follow_one_another_within_a_tenure(store: &Store) {
    let client = store.open(sleepy().tenure(ms(8000)));
    let (lock, order) = (client.rw_lock("a"), parking_lot::Mutex::new(Vec::new()));
    let first = lock.write().unwrap();
    thread::scope(|scope| {
        for number in 0..5 {
            let (lock, order) = (&lock, &order);
            scope.spawn(move || {
                let writer = lock.write().unwrap();
                writer.verify().unwrap();
                order.lock().push((number, writer.fence()));
            });
            eventually(SOON, || client.stats().waiting == number + 1);
        }
        // A reader ends the tenure.
        let reader = scope.spawn(|| lock.read().unwrap().fence());
        eventually(SOON, || client.stats().waiting == 6);
        let last = scope.spawn(|| lock.write().unwrap().fence());
        eventually(SOON, || client.stats().waiting == 7);
        drop(first);
        let (reader, last) = (reader.join().unwrap(), last.join().unwrap());
        let fences = order.lock().clone();
        let next = fences[0].1;
        assert_eq!(fences, [0, 1, 2, 3, 4].map(|number| (number, next + number)));
        assert!(next + 4 == reader && reader < last, "{next}, {reader}, {last}");
    });
    let stats = client.stats();
    assert_eq!((stats.handoffs, stats.held, stats.waiting), (4, 0, 0));
    assert!(lock.try_write().unwrap().is_some());
}

fn readers_beside_a_downgraded_writer_have_its_fence(store: &Store) {
    let (client, other) = (store.open(sleepy().tenure(ms(8000))), store.open(patient()));
    let lock = client.rw_lock("a");
    let first = lock.write().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| lock.write().unwrap().fence());
        eventually(SOON, || client.stats().waiting == 1);
        let third = scope.spawn(|| {
            let writer = lock.write().unwrap();
            let fence = writer.fence();
            let _reader = writer.downgrade().unwrap();
            (fence, other.rw_lock("a").read().unwrap().fence())
        });
        eventually(SOON, || client.stats().waiting == 2);
        drop(first);
        let (second, (third, beside)) = (second.join().unwrap(), third.join().unwrap());
        assert_eq!((third, beside), (second + 1, third));
    });
    assert_eq!(client.stats().handoffs, 1);
}

fn readers_share_and_a_writer_excludes(store: &Store) {
    let client = store.open(patient());
    let lock = client.rw_lock("a");
    assert_eq!(lock.name(), "a");
    let (one, other) = (lock.read().unwrap(), elsewhere(|| lock.read().unwrap()));
    assert!(lock.try_write().unwrap().is_none());
    one.verify().unwrap();
    one.unlock().unwrap();
    assert!(lock.try_write_for(ms(20)).unwrap().is_none());
    other.unlock().unwrap();
    let writer = lock.write().unwrap();
    writer.verify().unwrap();
    assert!(lock.try_read().unwrap().is_none() && lock.try_write().unwrap().is_none());
    assert!(lock.try_read_for(ms(20)).unwrap().is_none());
    let timed_out = lock.clone().wait(ms(20)).read();
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
    writer.unlock().unwrap();
    assert!(lock.try_read().unwrap().is_some());
}

fn a_waiting_writer_goes_before_later_readers(store: &Store) {
    let client = store.open(patient());
    let lock = client.rw_lock("a");
    let reader = lock.read().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| lock.write().unwrap());
        eventually(SOON, || lock.try_read().unwrap().is_none());
        let later = scope.spawn(|| lock.read().unwrap());
        thread::sleep(ms(50));
        assert!(!writer.is_finished() && !later.is_finished());
        reader.unlock().unwrap();
        let written = writer.join().unwrap();
        assert!(!later.is_finished());
        written.unlock().unwrap();
        later.join().unwrap().unlock().unwrap();
    });
}

/// Acquires the lock for reading and keeps it until this many readers hold it at the same time.
fn read_together(lock: &RwLock, inside: &AtomicU32, readers: u32) {
    let guard = lock.read().unwrap();
    inside.fetch_add(1, Ordering::SeqCst);
    eventually(SOON, || inside.load(Ordering::SeqCst) == readers);
    guard.unlock().unwrap();
}

fn readers_that_wait_for_a_writer_come_in_together(store: &Store) {
    let client = store.open(patient());
    let lock = client.rw_lock("a");
    let writer = lock.write().unwrap();
    let inside = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| read_together(&lock, &inside, 5));
        }
        thread::sleep(ms(30));
        writer.unlock().unwrap();
    });
}

fn many_threads_see_no_writer_beside_another(store: &Store) {
    let client = store.open(patient());
    let register = store.register();
    let (readers, writers) = (AtomicI64::new(0), AtomicI64::new(0));
    thread::scope(|scope| {
        for worker in 0..8 {
            let (client, register, readers, writers) = (&client, &register, &readers, &writers);
            scope.spawn(move || {
                let (lock, mut number) = (client.rw_lock("a"), register.handle());
                for _ in 0..8 {
                    if worker % 3 == 0 {
                        let _guard = lock.write().unwrap();
                        assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0);
                        let seen = number.read();
                        thread::sleep(ms(1));
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        number.write(seen + 1);
                        writers.fetch_sub(1, Ordering::SeqCst);
                    } else {
                        let _guard = lock.read().unwrap();
                        readers.fetch_add(1, Ordering::SeqCst);
                        let seen = number.read();
                        thread::sleep(ms(1));
                        assert_eq!(writers.load(Ordering::SeqCst), 0);
                        assert_eq!(number.read(), seen);
                        readers.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(register.handle().read(), 3 * 8);
}

fn a_wait_that_is_over_leaves_nothing_behind(store: &Store) {
    let client = store.open(patient());
    let lock = client.rw_lock("a");
    let reader = lock.read().unwrap();
    assert!(lock.try_write_for(ms(30)).unwrap().is_none());
    // No writer waits any more.
    assert!(lock.try_read().unwrap().is_some());
    reader.unlock().unwrap();
    let writer = lock.write().unwrap();
    assert!(lock.try_read_for(ms(30)).unwrap().is_none());
    writer.unlock().unwrap();
    assert!(lock.try_write().unwrap().is_some());
}

fn the_fence_of_readers_is_between_those_of_writers(store: &Store) {
    let client = store.open(patient());
    let lock = client.rw_lock("a");
    let mut last = 0;
    for _ in 0..3 {
        let (one, other) = (lock.read().unwrap(), lock.read().unwrap());
        assert!(one.fence() >= last);
        assert_eq!(one.fence(), other.fence());
        last = one.fence();
        drop((one, other));
        let writer = lock.write().unwrap();
        assert!(writer.fence() > last);
        last = writer.fence();
    }
}

/// Otherwise a later reader would get a larger token, and a resource that refuses smaller ones
/// would refuse the first reader, which still holds the lock.
fn readers_share_a_fence_for_longer_than_its_counter_is_kept(store: &Store) {
    // Zero counts as two leases.
    let lease = SHORT * 3 / 2;
    let client = store.open_for(lease, patient().fence_life(Duration::ZERO));
    let lock = client.rw_lock("a").lease(lease);
    let first = lock.read().unwrap();
    for _ in 0..3 {
        thread::sleep(lease);
        assert_eq!(lock.read().unwrap().fence(), first.fence());
    }
    first.verify().unwrap();
    let renewed = lock.read().unwrap();
    drop(first);
    thread::sleep(3 * lease);
    renewed.verify().unwrap();
    assert_eq!(lock.read().unwrap().fence(), renewed.fence(), "renewals prolong it, too");
}

fn a_lock_is_not_a_read_write_lock_of_the_same_name(store: &Store) {
    let client = store.open(patient());
    let guard = client.lock("a").unwrap();
    let lock = client.rw_lock("a");
    assert_found(elsewhere(|| lock.read()), "a lock");
    assert_found(elsewhere(|| lock.try_write()), "a lock");
    assert_found(client.semaphore("a", 2).acquire(), "a lock");
    assert_found(client.semaphore("a", 2).available(), "a lock");
    guard.unlock().unwrap();
    let reader = lock.read().unwrap();
    assert_found(client.lock("a"), "a read-write lock");
    assert_found(client.try_lock_owned("a"), "a read-write lock");
    assert_found(client.mutex("a").holder(), "a read-write lock");
    for wait in [ms(0), ms(100)] {
        let set = client.try_lock_all_for(["b", "a"], wait);
        assert!(matches!(set, Err(Error::WrongType { name, .. }) if name == "a"));
    }
    assert!(matches!(client.try_lock_all(["b", "a"]), Err(Error::WrongType { .. })));
    assert!(!is_busy(&client, "b"));
    assert_found(client.semaphore("a", 2).try_acquire(), "a read-write lock");
    assert_found(client.semaphore("a", 2).available(), "a read-write lock");
    reader.unlock().unwrap();
    let permit = client.semaphore("b", 2).acquire().unwrap();
    assert_found(client.lock("b"), "a semaphore");
    assert_found(client.rw_lock("b").try_write(), "a semaphore");
    permit.unlock().unwrap();
    eventually(SOON, || client.try_lock("a").is_ok_and(|guard| guard.is_some()));
}

const READERS: u32 = 32;
const ROUND_TRIP: Duration = ms(100);

/// Checks that readers, whose replies each take a round trip, hold the lock together after far less
/// than a round trip per reader.
fn check_few_round_trips(server: &Server, meanwhile: impl FnOnce(&Client)) {
    let (proxy, client) = behind_proxy(server, patient().pool_size(READERS));
    let (lock, inside) = (client.rw_lock("a"), AtomicU32::new(0));
    proxy.delay_replies(ROUND_TRIP);
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| read_together(&lock, &inside, READERS));
        }
        meanwhile(&client);
        let all = || inside.load(Ordering::SeqCst) == READERS;
        let ((), took) = timed(|| eventually(SOON, all));
        assert!(took < ROUND_TRIP * READERS / 2, "{took:?}");
    });
}

fn readers_that_come_together_do_not_wait_for_each_other(server: &Server) {
    check_few_round_trips(server, |_| ());
}

fn readers_that_wait_for_a_writer_come_in_after_few_round_trips(server: &Server) {
    let holder = server.open(patient());
    let writer = holder.rw_lock("a").write().unwrap();
    check_few_round_trips(server, |client| {
        eventually(SOON, || client.stats().waiting == u64::from(READERS));
        writer.unlock().unwrap();
    });
}

#[test]
#[ignore = "a child of the tests of read-write locks"]
fn read_in_a_child() {
    let Some(address) = child::address() else { return };
    let _guard = address.open(patient().lease(LEASE)).rw_lock("a").read().unwrap();
    child::report("holds");
    child::wait_for_parent();
}

#[test]
#[ignore = "a child of the tests of read-write locks"]
fn write_in_a_child() {
    let Some(address) = child::address() else { return };
    let _guard = address.open(patient().lease(LEASE)).rw_lock("a").write().unwrap();
    child::report("holds");
    child::wait_for_parent();
}

fn a_crashed_reader_blocks_for_its_lease_only(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let lock = client.rw_lock("a");
    let reader = lock.read().unwrap();
    let mut child = Child::start(read_in_a_child, &server.address());
    assert_eq!(child.next(), "holds");
    child.kill();
    // The renewals of another reader do not keep the dead one alive.
    throughout(LEASE * 2, || reader.is_held());
    reader.unlock().unwrap();
    assert!(lock.try_write_for(LEASE).unwrap().is_some());
}

fn a_crashed_waiter_blocks_no_one_for_long(server: &Server) {
    let client = server.open(patient().lease(LEASE));
    let lock = client.rw_lock("a");
    let reader = lock.read().unwrap();
    let mut child = Child::start(write_in_a_child, &server.address());
    eventually(SOON, || lock.try_read().unwrap().is_none());
    child.kill();
    eventually(SOON, || lock.try_read().unwrap().is_some());
    reader.unlock().unwrap();
}

fn a_writer_is_not_starved_by_readers_of_two_clients(store: &Store) {
    let read = |lock: &RwLock| {
        let _guard = lock.read().unwrap();
        thread::sleep(ms(10));
    };
    is_not_starved(store, |lock| drop(lock.write().unwrap()), (6, read));
}

fn a_reader_is_not_starved_by_writers_of_two_clients(store: &Store) {
    let write = |lock: &RwLock| {
        let _guard = lock.write().unwrap();
        thread::sleep(ms(10));
    };
    is_not_starved(store, |lock| drop(lock.read().unwrap()), (2, write));
}

/// Checks that a client soon gets its turns while this many threads of two others do nothing but
/// `keep_busy`.
fn is_not_starved(
    store: &Store,
    take_turn: impl Fn(&RwLock),
    (threads, keep_busy): (usize, impl Fn(&RwLock) + Sync),
) {
    let clients = [store.open(patient()), store.open(patient())];
    let lock = store.open(patient()).rw_lock("a");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in clients.iter().cycle().take(threads) {
            let (done, keep_busy) = (&done, &keep_busy);
            scope.spawn(move || {
                let lock = client.rw_lock("a");
                while !done.load(Ordering::SeqCst) {
                    keep_busy(&lock);
                }
            });
        }
        let ((), took) = timed(|| (0..20).for_each(|_| take_turn(&lock)));
        done.store(true, Ordering::SeqCst);
        assert!(took < SOON, "{took:?}");
    });
}

fn a_release_wakes_all_readers_of_other_clients(store: &Store) {
    let clients: Vec<Client> = (0..4).map(|_| store.open(sleepy())).collect();
    let holder = store.open(patient());
    let writer = holder.rw_lock("a").write().unwrap();
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in &clients {
            let inside = &inside;
            scope.spawn(move || {
                let _guard = client.rw_lock("a").read().unwrap();
                inside.fetch_add(1, Ordering::SeqCst);
                eventually(SOON, || inside.load(Ordering::SeqCst) == 4);
            });
        }
        eventually(SOON, || {
            store.queue("a").len() == 4 && clients.iter().all(|client| store.listens(client))
        });
        writer.unlock().unwrap();
    });
}

/// A little less than the time for which a released lock is offered to one client.
const OFFER: Duration = ms(190);

/// Waits until this many threads of each client wait, and the clients are in that order in the
/// queue.
fn wait_in_line(store: &Store, clients: [(&Client, u64); 2]) {
    let ids = clients.map(|(client, _)| client.id());
    eventually(SOON, || {
        store.queue("a") == ids
            && clients.iter().all(|(client, threads)| {
                store.listens(client) && client.stats().waiting == *threads
            })
    });
}

fn readers_of_a_client_before_a_writer_of_another_come_in_together(store: &Store) {
    let clients = [(); 3].map(|()| store.open(sleepy()));
    // On a machine that stalls, the readers' client may miss its turn.
    assert!((0..10).any(|_| readers_come_in_before_a_writer(store, &clients)));
}

/// Returns `false` if the writer came in first, because the readers' client did not take its turn
/// while the offer lasted.
fn readers_come_in_before_a_writer(store: &Store, clients: &[Client; 3]) -> bool {
    let [holder, reader, writer] = clients;
    let held = holder.rw_lock("a").write().unwrap();
    let (lock, inside) = (reader.rw_lock("a"), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| read_together(&lock, &inside, 5));
        eventually(SOON, || store.queue("a").len() == 1);
        let writes = scope.spawn(|| {
            let guard = writer.rw_lock("a").write().unwrap();
            let seen = (inside.load(Ordering::SeqCst), Instant::now());
            guard.unlock().unwrap();
            seen
        });
        eventually(SOON, || store.queue("a").len() == 2);
        for _ in 0..4 {
            scope.spawn(|| read_together(&lock, &inside, 5));
        }
        wait_in_line(store, [(reader, 5), (writer, 1)]);
        let free = Instant::now();
        let (readers, written) = soon(|| {
            held.unlock().unwrap();
            writes.join().unwrap()
        });
        let was_offered = written - free;
        assert!(readers == 5 || readers == 0 && was_offered >= OFFER, "{readers}, {was_offered:?}");
        readers == 5
    })
}

fn a_reader_that_leaves_its_turn_leaves_it_to_the_writer_behind(store: &Store) {
    let [holder, reader, writer] = [(); 3].map(|()| store.open(sleepy()));
    let lock = reader.rw_lock("a");
    for _ in 0..5 {
        let held = holder.rw_lock("a").write().unwrap();
        let canceller = Canceller::new();
        thread::scope(|scope| {
            scope.spawn(|| drop(lock.read().unwrap()));
            eventually(SOON, || store.queue("a").len() == 1);
            let writes = scope.spawn(|| drop(writer.rw_lock("a").write().unwrap()));
            let leaves = scope.spawn(|| lock.clone().cancelled_by(&canceller).read().map(drop));
            wait_in_line(store, [(&reader, 2), (&writer, 1)]);
            soon(|| {
                held.unlock().unwrap();
                canceller.cancel();
                writes.join().unwrap();
            });
            let left = leaves.join().unwrap();
            assert!(matches!(left, Ok(()) | Err(Error::Cancelled { .. })), "{left:?}");
        });
        eventually(SOON, || !store.exists("a"));
    }
}

fn a_writer_can_become_a_reader(store: &Store) {
    let client = store.open(patient().lease(LEASE));
    let lock = client.rw_lock("a");
    let writer = lock.write().unwrap();
    let (lost, fence) = (writer.lost(), writer.fence());
    let reader = writer.downgrade().unwrap();
    assert!(!lost.is_lost(), "it is not a loss");
    assert_eq!(reader.fence(), fence);
    assert!(lock.try_write().unwrap().is_none());
    let other = elsewhere(|| lock.read().unwrap());
    assert_eq!(other.fence(), fence);
    other.unlock().unwrap();
    throughout(2 * LEASE, || reader.is_held() && lock.try_write().unwrap().is_none());
    reader.verify().unwrap();
    assert_eq!(client.stats().held, 1);
    reader.unlock().unwrap();
    assert!(lock.try_write().unwrap().unwrap().fence() > fence);
}

fn threads_behind_a_downgraded_writer_read_beside_it(store: &Store) {
    let client = store.open(sleepy());
    let lock = client.rw_lock("a");
    let held = lock.write().unwrap();
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(|| lock.read().unwrap()));
        eventually(SOON, || client.stats().waiting == 2);
        let reader = held.downgrade().unwrap();
        let others = readers.map(|other| other.join().unwrap());
        assert!(others.iter().all(|other| other.is_held() && other.fence() == reader.fence()));
    });
    assert!(lock.try_write().unwrap().is_some());
}

fn a_downgraded_writer_keeps_its_age(store: &Store) {
    let lock = store.open(patient().lease(LEASE)).rw_lock("a").max_hold(LEASE);
    let writer = lock.write().unwrap();
    thread::sleep(LEASE / 2);
    let reader = writer.downgrade().unwrap();
    assert!(reader.remaining() <= LEASE / 2, "{:?}", reader.remaining());
    assert_eq!(reader.lost().wait_timeout(SOON), Some(HoldEnd::Lost));
}

fn a_lost_writer_cannot_become_a_reader(store: &Store) {
    let lock = store.open(patient().lease(LEASE)).rw_lock("a").renew(false);
    let writer = lock.write().unwrap();
    eventually(SOON, || lock.try_write().unwrap().is_some());
    let lost = writer.downgrade();
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert!(lock.try_write().unwrap().is_some());
}

fn a_downgraded_writer_lets_in_readers_only(store: &Store) {
    let [holder, readers, writes] = [(); 3].map(|()| store.open(sleepy()));
    let held = holder.rw_lock("a").write().unwrap();
    let (lock, inside) = (readers.rw_lock("a"), AtomicU32::new(1));
    thread::scope(|scope| {
        scope.spawn(|| read_together(&lock, &inside, 4));
        scope.spawn(|| read_together(&lock, &inside, 4));
        scope.spawn(|| read_together(&lock, &inside, 4));
        eventually(SOON, || store.queue("a").len() == 1 && readers.stats().waiting == 3);
        let writer = scope.spawn(|| writes.rw_lock("a").write().map(|guard| guard.fence()));
        wait_in_line(store, [(&readers, 3), (&writes, 1)]);
        let reader = held.downgrade().unwrap();
        eventually(SOON, || inside.load(Ordering::SeqCst) == 4);
        throughout(ms(50), || !writer.is_finished());
        let fence = reader.fence();
        reader.unlock().unwrap();
        assert!(writer.join().unwrap().unwrap() > fence);
    });
}

fn a_lost_reply_to_a_downgrade_is_retried(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    // The first one makes the script known to the server.
    for lose in [Proxy::lose_request, Proxy::lose_reply] {
        let writer = client.rw_lock("a").write().unwrap();
        lose(&proxy);
        let reader = writer.downgrade().unwrap();
        assert!(proxy.has_lost());
        reader.verify().unwrap();
        reader.unlock().unwrap();
        eventually(SOON, || !server.exists("a"));
    }
}

fn a_downgrade_without_a_reply_leaves_nothing(server: &Server) {
    let (proxy, client) = behind_proxy(server, patient());
    let writer = client.rw_lock("a").write().unwrap();
    proxy.lose_replies();
    let failed = writer.downgrade();
    assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
    proxy.heal();
    eventually(SOON, || !server.exists("a"));
}

#[test]
fn a_quorum_has_no_read_write_locks() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    let lock = client.rw_lock("a");
    let Err(Error::InvalidInput(why)) = lock.read() else { panic!("it is granted") };
    assert!(why.starts_with("independent servers"), "the name is not the reason: {why}");
    assert!(matches!(lock.try_write(), Err(Error::InvalidInput(_))));
}
