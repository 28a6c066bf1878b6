//! Several clients that contend for one lock of a quorum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use leasehold::Client;

use crate::support::child::{self, Child};
use crate::support::contest::assert_turns_are_taken;
use crate::support::quorum::{open_redlock, settle};
use crate::support::recorder::Recorder;
use crate::support::server::Server;
use crate::support::store::Handle;
use crate::support::{Quorum, SOON, eventually, lock_key, ms, patient, take};

#[test]
fn contenders_that_split_the_votes_make_progress() {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 50;
    let quorum = Quorum::of(5);
    let mut urls = quorum.urls();
    // Each client names the servers in a different order, so that each gets some of them.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            urls.rotate_left(1);
            open_redlock(patient().wait(SOON * 6), &urls).unwrap()
        })
        .collect();
    let (holding, last) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = client.lock("a").unwrap();
                    assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                    holding.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    drop(clients);
    eventually(SOON, || quorum.count("a") == 0);
}

#[test]
fn clients_with_one_thread_take_turns() {
    let quorum = Quorum::of(3);
    let clients = [(); 3].map(|()| quorum.open(patient()));
    assert_turns_are_taken(&clients, "a", ms(5));
    assert_turns_are_taken(&clients, "a", ms(20));
}

/// The remaining servers have to agree on the client that is served next.
#[test]
fn clients_with_one_thread_take_turns_on_the_rest_of_a_quorum() {
    let quorum = Quorum::of(5);
    quorum.servers[..2].iter().for_each(Server::kill);
    let clients = [(); 3].map(|()| quorum.open(patient()));
    assert_turns_are_taken(&clients, "a", ms(5));
    assert_turns_are_taken(&clients, "a", ms(20));
}

#[test]
fn processes_count_without_losing_an_update() {
    let quorum = Quorum::of(3);
    let argument = quorum.urls().join(" ");
    let mut children: Vec<_> = (0..3).map(|_| Child::start(count_in_a_child, &argument)).collect();
    for child in &children {
        assert_eq!(child.next(), "ready");
    }
    children.iter_mut().for_each(Child::go_on);
    // Meanwhile, one server after another closes its connections.
    for server in &quorum.servers[..2] {
        thread::sleep(ms(100));
        server.kill_connections();
    }
    children.into_iter().for_each(Child::finish);
    assert_eq!(Handle::connect(&quorum.last().url()).read(), 75);
}

#[test]
#[ignore = "a child of processes_count_without_losing_an_update"]
fn count_in_a_child() {
    let Some(urls) = child::argument() else { return };
    let urls: Vec<_> = urls.split(' ').map(str::to_owned).collect();
    let client = open_redlock(Client::builder().backoff(ms(1), ms(20)), &urls).unwrap();
    let mut number = Handle::connect(urls.last().unwrap());
    child::report("ready");
    child::wait_for_parent();
    for _ in 0..25 {
        let guard = client.lock("counter").unwrap();
        number.add_one();
        guard.unlock().unwrap();
    }
}

#[test]
fn a_release_wakes_a_waiting_client() {
    let quorum = Quorum::of(3);
    // It makes no attempt by itself within the test, so that only a wake-up can end a wait.
    let sleepy = || Client::builder().wait(SOON).backoff(ms(30_000), ms(30_000));
    let recorder = Recorder::default();
    let (first, second) =
        (quorum.open(patient()), quorum.open(sleepy().on_event(recorder.listener())));
    for round in 0..20 {
        let guard = take(&first, "a");
        thread::scope(|scope| {
            scope.spawn(|| {
                second.lock("a").unwrap().unlock().unwrap();
            });
            eventually(SOON, || recorder.count("contended a") > round);
            eventually(SOON, || quorum.servers.iter().all(|server| server.listeners(&second) == 1));
            thread::sleep(ms(20));
            guard.unlock().unwrap();
        });
    }
}

#[test]
fn a_release_wakes_although_a_server_is_down() {
    let quorum = Quorum::of(3);
    let sleepy = Client::builder().wait(SOON).backoff(ms(30_000), ms(30_000));
    let (first, second) = (quorum.open(patient()), quorum.open(sleepy));
    quorum.servers[0].kill();
    let guard = take(&first, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| second.lock("a").map(drop));
        let up = &quorum.servers[1..];
        eventually(SOON, || up.iter().all(|server| server.listeners(&second) == 1));
        thread::sleep(ms(100));
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_client_does_not_wait_where_others_have_granted_its_lock() {
    let quorum = Quorum::of(3);
    let client = quorum.open(patient());
    settle(&quorum, &client);
    let last = &quorum.servers[2];
    last.command(&["HSET", &lock_key("a"), "other:1", "1"]);
    last.command(&["PEXPIRE", &lock_key("a"), "60000"]);
    let guard = client.lock("a").unwrap();
    eventually(SOON, || last.queue("a").len() == 1);
    guard.unlock().unwrap();
    eventually(SOON, || last.queue("a").is_empty());
    assert!(last.raw_pttl("a") > 30_000, "the hold of the other one stays");
}
