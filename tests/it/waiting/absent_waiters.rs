//! Waiting clients that leave, die, stop or have not returned yet, for each kind of lock with a
//! queue.

use std::env;
use std::thread::{self, ScopedJoinHandle};

use leasehold::{Canceller, Client, Error};
use parking_lot::Mutex;

use crate::support::child::{self, Child};
use crate::support::kinds::Kind;
use crate::support::proxy::Proxy;
use crate::support::{
    Cluster, SOON, Server, eventually, ms, patient, server, sleepy, stores, take, timed,
    very_sleepy,
};

stores! {
    every server:
        an_unneeded_wake_up_is_passed_on,
        a_waiter_that_leaves_takes_its_registration_with_it,
        clients_behind_a_waiter_that_leaves_get_their_turn,
        a_waiter_that_leaves_keeps_the_place_of_its_client,
        a_reader_gets_its_turn_when_the_writer_in_front_leaves,
        a_waiter_that_was_killed_is_skipped,
        newcomers_do_not_overtake_a_waiter_behind_one_that_was_killed,
        #[cfg(unix)] a_waiter_that_has_stopped_costs_one_offer;
    one server:
        waiting_clients_keep_their_places_over_a_restart;
}

fn an_unneeded_wake_up_is_passed_on(server: &Server) {
    pass_on_wake_ups(&[server], || server.open(sleepy()), "a");
}

#[test]
fn an_unneeded_wake_up_in_a_cluster_is_passed_on() {
    let cluster = Cluster::of_three();
    let servers: Vec<_> = cluster.nodes().iter().collect();
    pass_on_wake_ups(&servers, || cluster.open(sleepy()), &cluster.name_at(0));
}

/// Wakes clients that listen but have no waiting thread. The first of the servers has the locks.
fn pass_on_wake_ups(servers: &[&server::Server], open: impl Fn() -> Client, name: &str) {
    let [holder, listening, waiter] = [(); 3].map(|()| open());
    let listens = |client| servers.iter().all(|server| server.listeners(client) == 1);
    for kind in Kind::IN_LINE {
        let held = kind.block(&holder, name);
        assert!(kind.try_acquire(&listening, name, Some(ms(50))).is_none());
        eventually(SOON, || listens(&listening));
        thread::scope(|scope| {
            let waits = scope.spawn(|| kind.acquire(&waiter, name).map(drop));
            eventually(SOON, || {
                servers[0].queue(name) == [kind.entry(&waiter)] && listens(&waiter)
            });
            let queue = format!("leasehold:queue:{{{}}}", server::lock_key(name));
            servers[0].command(&["ZADD", &queue, "1", &kind.entry(&listening)]);
            let (result, took) = timed(|| {
                drop(held);
                waits.join().unwrap()
            });
            result.unwrap();
            assert!(took < SOON / 2, "{kind:?}: {took:?}");
        });
        eventually(SOON, || !servers[0].exists(name));
        assert!(servers[0].queue(name).is_empty());
    }
}

/// This holds whatever makes it leave.
fn a_waiter_that_leaves_takes_its_registration_with_it(server: &Server) {
    let holder = server.open(patient());
    let waits = |kind: Kind, client: &Client| server.queue("a") == [kind.entry(client)];
    for kind in Kind::IN_LINE {
        let held = kind.block(&holder, "a");
        let waiter = server.open(sleepy());
        assert!(kind.try_acquire(&waiter, "a", Some(ms(50))).is_none());
        assert!(server.queue("a").is_empty(), "its time is over");
        thread::scope(|scope| {
            let canceller = Canceller::new();
            let cancelled = {
                let (canceller, waiter) = (canceller.clone(), &waiter);
                scope.spawn(move || kind.acquire_until(waiter, "a", &canceller).map(drop))
            };
            eventually(SOON, || waits(kind, &waiter));
            canceller.cancel();
            assert!(matches!(cancelled.join().unwrap(), Err(Error::Cancelled { .. })));
            assert!(server.queue("a").is_empty(), "it was cancelled");

            let closed = scope.spawn(|| kind.acquire(&waiter, "a").map(drop));
            eventually(SOON, || waits(kind, &waiter));
            waiter.close();
            assert!(matches!(closed.join().unwrap(), Err(Error::Closed)));
            assert!(server.queue("a").is_empty(), "its client was closed");
        });
        drop(held);
        eventually(SOON, || !server.exists("a"));
    }
}

/// Readers behind a writer get the lock as soon as it leaves, although no hold has ended.
fn clients_behind_a_waiter_that_leaves_get_their_turn(server: &Server) {
    let [holder, writer, reader] =
        [server.open(patient()), server.open(sleepy()), server.open(sleepy())];
    let held = holder.rw_lock("a").read().unwrap();
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let leaves = scope.spawn(|| Kind::Write.acquire_until(&writer, "a", &canceller).map(drop));
        eventually(SOON, || server.queue("a").len() == 1 && server.listeners(&writer) == 1);
        let waits = scope.spawn(|| Kind::Read.acquire(&reader, "a").map(drop));
        eventually(SOON, || server.queue("a").len() == 2 && server.listeners(&reader) == 1);
        assert_served_once_cancelled(&canceller, leaves, waits);
    });
    assert!(held.is_held());
}

/// Cancels the wait of a thread, and checks that the one behind it is then served.
fn assert_served_once_cancelled(
    canceller: &Canceller,
    leaves: ScopedJoinHandle<'_, Result<(), Error>>,
    waits: ScopedJoinHandle<'_, Result<(), Error>>,
) {
    let (result, took) = timed(|| {
        canceller.cancel();
        waits.join().unwrap()
    });
    result.unwrap();
    assert!(took < SOON / 2, "{took:?}");
    assert!(matches!(leaves.join().unwrap(), Err(Error::Cancelled { .. })));
}

/// This applies if another thread of the client waits for the same name.
fn a_waiter_that_leaves_keeps_the_place_of_its_client(server: &Server) {
    let [holder, waiter, behind] = [(); 3].map(|()| server.open(sleepy()));
    for kind in Kind::IN_LINE {
        // A prefix of its own, because a place left by an earlier wait may be removed late.
        let name = &format!("{kind:?}");
        let held = kind.block(&holder, name);
        let places = [kind.entry(&waiter), kind.entry(&behind)];
        thread::scope(|scope| {
            let canceller = Canceller::new();
            let leaves = scope.spawn({
                let (canceller, waiter) = (canceller.clone(), &waiter);
                move || kind.acquire_until(waiter, name, &canceller).map(drop)
            });
            eventually(SOON, || {
                server.queue(name) == places[..1] && server.listeners(&waiter) == 1
            });
            let stays = scope.spawn(|| kind.acquire(&waiter, name).map(drop));
            let last = scope.spawn(|| kind.acquire(&behind, name).map(drop));
            eventually(SOON, || {
                server.queue(name) == places
                    && server.listeners(&behind) == 1
                    && waiter.stats().waiting == 2
            });
            canceller.cancel();
            assert!(matches!(leaves.join().unwrap(), Err(Error::Cancelled { .. })));
            assert_eq!(server.queue(name), places, "{kind:?}");
            drop(held);
            stays.join().unwrap().unwrap();
            last.join().unwrap().unwrap();
        });
        eventually(SOON, || !server.exists(name));
    }
}

fn a_reader_gets_its_turn_when_the_writer_in_front_leaves(server: &Server) {
    let [holder, waiter] = [(); 2].map(|()| server.open(sleepy()));
    let held = Kind::Read.acquire(&holder, "a").unwrap();
    let canceller = Canceller::new();
    thread::scope(|scope| {
        let leaves = scope.spawn(|| Kind::Write.acquire_until(&waiter, "a", &canceller).map(drop));
        eventually(SOON, || server.queue("a") == [Kind::Write.entry(&waiter)]);
        let waits = scope.spawn(|| Kind::Read.acquire(&waiter, "a").map(drop));
        eventually(SOON, || waiter.stats().waiting == 2);
        assert_served_once_cancelled(&canceller, leaves, waits);
    });
    drop(held);
}

fn a_waiter_that_was_killed_is_skipped(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    for kind in Kind::IN_LINE {
        let held = kind.block(&holder, "a");
        let variables = [(KIND, format!("{kind:?}").into())];
        let mut child = Child::start_with(wait_in_a_child, &server.address(), &variables);
        eventually(SOON, || server.queue("a").len() == 1);
        thread::scope(|scope| {
            let waits = scope.spawn(|| kind.acquire(&waiter, "a").map(drop));
            eventually(SOON, || server.queue("a").len() == 2 && server.listeners(&waiter) == 1);
            child.kill();
            let (result, took) = timed(|| {
                drop(held);
                waits.join().unwrap()
            });
            result.unwrap();
            assert!(took < SOON / 2, "{kind:?}: {took:?}");
        });
        eventually(SOON, || !server.exists("a"));
        assert!(server.queue("a").is_empty());
    }
}

/// The killed client is found dead before the other begins to wait.
fn newcomers_do_not_overtake_a_waiter_behind_one_that_was_killed(server: &Server) {
    let (busy, waiter) = (server.open(patient()), server.open(sleepy()));
    // The waiter listens from the beginning.
    let held = take(&busy, "b");
    assert!(waiter.try_lock_for("b", ms(50)).unwrap().is_none());
    eventually(SOON, || server.listeners(&waiter) == 1);
    drop(held);
    let held = take(&busy, "a");
    let variables = [(KIND, "Owned".into())];
    let mut child = Child::start_with(wait_in_a_child, &server.address(), &variables);
    eventually(SOON, || server.queue("a").len() == 1);
    child.kill();
    held.unlock().unwrap();
    let held = busy.lock("a").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(drop));
        // On a slow machine, the killed client has lost its place by now.
        eventually(SOON, || server.queue("a").iter().any(|client| client == waiter.id()));
        held.unlock().unwrap();
        let mut rounds = 0;
        while !waits.is_finished() {
            drop(busy.lock("a").unwrap());
            rounds += 1;
        }
        waits.join().unwrap().unwrap();
        assert!(rounds < 20, "{rounds} rounds");
    });
}

/// This holds even for a waiter whose next attempt comes long after the offer to the stopped one.
#[cfg(unix)]
fn a_waiter_that_has_stopped_costs_one_offer(server: &Server) {
    let (holder, waiter) = (server.open(patient()), server.open(sleepy()));
    for kind in Kind::IN_LINE {
        // Readers would be served together with it.
        let wanted = kind.rival();
        let held = kind.block(&holder, "a");
        let variables = [(KIND, format!("{wanted:?}").into())];
        let mut stopped = Child::start_with(wait_in_a_child, &server.address(), &variables);
        eventually(SOON, || server.queue("a").len() == 1);
        thread::scope(|scope| {
            let waits = scope.spawn(|| kind.acquire(&waiter, "a").map(drop));
            eventually(SOON, || server.queue("a").len() == 2 && server.listeners(&waiter) == 1);
            // The first subscription makes it ask once more.
            server.settled_evals();
            stopped.stop();
            let (result, took) = timed(|| {
                drop(held);
                waits.join().unwrap()
            });
            result.unwrap();
            assert!(took < SOON / 2, "{kind:?}: {took:?}");
        });
        stopped.kill();
        eventually(SOON, || !server.exists("a"));
    }
}

/// The holder releases before any of them listens again.
fn waiting_clients_keep_their_places_over_a_restart(server: &Server) {
    let (holder, proxy) = (server.open(patient()), Proxy::before(server));
    // They begin to wait long before the restart.
    let clients = [(); 4].map(|()| very_sleepy().open(&proxy.url()).unwrap());
    for kind in Kind::IN_LINE {
        let held = kind.block(&holder, "a");
        let places = clients.each_ref().map(|client| kind.entry(client));
        let served = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (number, client) in clients.iter().enumerate() {
                let served = &served;
                scope.spawn(move || {
                    let hold = kind.acquire(client, "a").unwrap();
                    served.lock().push(kind.entry(client));
                    drop(hold);
                });
                eventually(SOON, || {
                    server.queue("a") == places[..=number] && server.listeners(client) == 1
                });
            }
            server.settled_evals();
            server.command(&["SAVE"]);
            proxy.delay_subscriptions(ms(700));
            server.restart();
            drop(held);
            eventually(SOON, || !server.exists("a"));
            assert_eq!(server.queue("a"), places, "{kind:?}");
            // Each is notified, because on its own it would ask much later.
            eventually(SOON, || served.lock().len() == places.len());
        });
        let mut served = served.into_inner();
        if let Kind::Read = kind {
            served.sort_by_key(|entry| places.iter().position(|place| place == entry));
        }
        assert_eq!(served, places, "{kind:?}");
        eventually(SOON, || !server.exists("a") && server.queue("a").is_empty());
        proxy.heal();
    }
}

/// Tells a child which lock to wait for.
const KIND: &str = "LEASEHOLD_TEST_KIND";

#[test]
#[ignore = "a child of a_waiter_that_was_killed_is_skipped"]
fn wait_in_a_child() {
    let Some(address) = child::address() else { return };
    let name = env::var(KIND).unwrap();
    let kind = Kind::IN_LINE.into_iter().find(|kind| format!("{kind:?}") == name).unwrap();
    drop(kind.acquire(&address.open(sleepy()), "a"));
}
