//! Locks with several owners, in several processes: the sides of a read-write lock and the permits
//! of a semaphore.

use std::thread::{self};

use leasehold::Client;
use redis::Commands;

use crate::support::child::{self, Child};
use crate::support::store::Handle;
use crate::support::{SOON, Server, ms, stores};

stores! {
    every server:
        processes_write_without_losing_an_update,
        processes_never_exceed_the_permits_together;
}

/// Starts four processes, and waits until they have done their work.
fn run_in_processes(server: &Server, work: impl Fn() + Copy) {
    let start = || Child::start(work, &server.address());
    [start(), start(), start(), start()].into_iter().for_each(Child::finish);
}

fn processes_write_without_losing_an_update(server: &Server) {
    run_in_processes(server, read_and_write_in_a_child);
    assert_eq!(Handle::connect(&server.url()).read(), 4 * 2 * 10);
}

#[test]
#[ignore = "a child of processes_write_without_losing_an_update"]
fn read_and_write_in_a_child() {
    let Some(address) = child::address() else { return };
    let lock = address.open(Client::builder().wait(6 * SOON)).rw_lock("a");
    thread::scope(|scope| {
        for worker in 0..6 {
            let (lock, mut number) = (&lock, Handle::connect(&address.url));
            scope.spawn(move || {
                for _ in 0..10 {
                    if worker < 2 {
                        let guard = lock.write().unwrap();
                        number.add_one();
                        guard.unlock().unwrap();
                    } else {
                        let guard = lock.read().unwrap();
                        let read = number.read();
                        thread::sleep(ms(1));
                        assert_eq!(number.read(), read, "written beside a reader");
                        guard.unlock().unwrap();
                    }
                }
            });
        }
    });
}

fn processes_never_exceed_the_permits_together(server: &Server) {
    run_in_processes(server, take_permits_in_a_child);
    assert_eq!(Handle::connect(&server.url()).read(), 4 * 6 * 5);
    assert_eq!(server.connect().get::<_, i64>("inside").unwrap(), 0);
}

/// Three permits limit how many are inside, and a single permit is as good as a lock.
#[test]
#[ignore = "a child of processes_never_exceed_the_permits_together"]
fn take_permits_in_a_child() {
    let Some(address) = child::address() else { return };
    let client = address.open(Client::builder().wait(6 * SOON));
    let (three, one) = (client.semaphore("three", 3), client.semaphore("one", 1));
    thread::scope(|scope| {
        for _ in 0..6 {
            let (three, one, mut number) = (&three, &one, Handle::connect(&address.url));
            let url = address.url.as_str();
            let mut counter = redis::Client::open(url).unwrap().get_connection().unwrap();
            scope.spawn(move || {
                for _ in 0..5 {
                    let permit = three.acquire().unwrap();
                    let inside: i64 = counter.incr("inside", 1).unwrap();
                    assert!(inside <= 3, "{inside} are inside");
                    let only = one.acquire().unwrap();
                    number.add_one();
                    only.unlock().unwrap();
                    let _: i64 = counter.decr("inside", 1).unwrap();
                    permit.unlock().unwrap();
                }
            });
        }
    });
}
