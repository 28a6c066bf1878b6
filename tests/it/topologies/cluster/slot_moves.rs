//! Locks on a Redis Cluster whose slots move while the locks are acquired, held and released.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};

use leasehold::{Client, Error, Guard};

use crate::support::recorder::Recorder;
use crate::support::server::Server;
use crate::support::{
    Cluster, LEASE, RIGHTS, SOON, eventually, is_busy, ms, patient, take, throughout,
};

/// The further rights that the documentation requires for a cluster.
const RIGHTS_IN_A_CLUSTER: &str = "+cluster|slots +asking +spublish +ssubscribe";

/// The number of times that a node has answered with this error so far.
fn errors(node: &Server, code: &str) -> u64 {
    let stats: String = node.ask(&["INFO", "errorstats"]);
    let start = format!("errorstat_{code}:count=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&start));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// Checks that a lock that moved while it was held is still the same lock.
#[track_caller]
fn assert_held(client: &Client, other: &Client, name: &str) {
    let guard = client.lock(name).unwrap();
    assert_eq!(guard.depth(), 2, "the lock is held already");
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert_eq!(client.mutex(name).holder().unwrap().unwrap().depth, 1);
    assert!(other.mutex(name).is_locked().unwrap());
}

#[test]
fn a_lock_is_held_through_every_step_of_a_move() {
    let cluster = Cluster::of_three();
    let (client, other) = (cluster.open(patient().lease(LEASE)), cluster.open(patient()));
    let away = cluster.move_away("a");
    let guard = take(&client, "a");
    away.begin();
    assert_held(&client, &other, "a");
    away.keys();
    assert!(away.from.hashes().is_empty());
    assert_held(&client, &other, "a");
    throughout(LEASE * 3 / 2, || guard.is_held());
    away.end();
    assert_held(&client, &other, "a");
    throughout(LEASE * 3 / 2, || guard.is_held());
    assert!(is_busy(&other, "a"));
    assert_eq!(away.to.hashes(), ["a"]);
    guard.unlock().unwrap();
    assert!(away.to.hashes().is_empty());
    take(&other, "a").unlock().unwrap();
}

/// The rights that the documentation requires, with those for a cluster.
#[test]
fn the_documented_rights_are_enough_in_a_cluster() {
    let cluster = Cluster::of_three();
    let page = include_str!("../../../../docs/deployment.md");
    assert!(page.contains(RIGHTS_IN_A_CLUSTER), "docs/deployment.md lists other rights");
    let rights: Vec<_> = RIGHTS.split(' ').chain(RIGHTS_IN_A_CLUSTER.split(' ')).collect();
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame"];
        node.command(&[&user[..], &rights].concat());
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("//", "//app:sesame@"));
    let urls: Vec<_> = urls.collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let open = || patient().lease(LEASE).open_cluster(&urls).unwrap();
    let (one, other) = (open(), open());
    let away = cluster.move_away("a");
    let guard = take(&one, "a");
    away.begin();
    away.keys();
    guard.verify().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| other.lock("a").map(drop));
        thread::sleep(ms(100));
        away.end();
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
    for node in cluster.nodes() {
        let log: Vec<redis::Value> = node.ask(&["ACL", "LOG"]);
        assert!(log.is_empty(), "{log:?}");
    }
}

#[test]
fn the_first_lock_of_a_name_goes_where_its_slot_is_going() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient());
    let away = cluster.move_away("a");
    away.begin();
    // The move continues only after the lock has been requested.
    thread::scope(|scope| {
        let locks = scope.spawn(|| client.lock("a").map(Guard::unlock));
        thread::sleep(ms(300));
        away.end();
        locks.join().unwrap().unwrap().unwrap();
    });
    assert!(away.to.keys().iter().any(|key| key.ends_with("{lock:a}")), "{:?}", away.to.keys());
}

/// A server that has only some of the keys of a request answers TRYAGAIN until all have moved.
#[test]
fn a_lock_with_half_of_its_keys_moved_is_waited_for() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient());
    let away = cluster.move_away("a");
    // This leaves its fence behind.
    take(&client, "a").unlock().unwrap();
    away.begin();
    let impatient = cluster.open(patient().retry_window(ms(200)));
    let refused = impatient.try_lock("a");
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    thread::scope(|scope| {
        let locks =
            scope.spawn(|| client.try_lock("a").map(|guard| guard.map(|guard| guard.fence())));
        thread::sleep(ms(300));
        assert!(!locks.is_finished());
        away.keys();
        away.end();
        assert!(locks.join().unwrap().unwrap().is_some());
    });
}

#[test]
fn a_slot_without_a_node_is_waited_for() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient());
    let (slot, home) = (cluster.slot("a").to_string(), cluster.home("a"));
    home.command(&["CLUSTER", "DELSLOTS", &slot]);
    thread::scope(|scope| {
        let locks = scope.spawn(|| client.try_lock("a").map(|guard| guard.is_some()));
        thread::sleep(ms(300));
        assert!(!locks.is_finished());
        home.command(&["CLUSTER", "ADDSLOTS", &slot]);
        assert!(locks.join().unwrap().unwrap());
    });
}

/// The other keys of a lock may not exist, or may have moved before or after it.
#[test]
fn every_kind_of_hold_lasts_while_its_slot_moves_and_ends_there() {
    let cluster = Cluster::of_three();
    let recorder = Recorder::default();
    let client = cluster.open(patient().lease(LEASE).on_event(recorder.listener()));
    let away = cluster.move_away("{tag}");
    let watched = client.lock_owned("{tag}watched").unwrap();
    let wanted = watched.wanted();
    let kept = client.mutex("{tag}kept").keep(LEASE).lock_owned().unwrap();
    let reader = client.rw_lock("{tag}read").read().unwrap();
    let writer = client.rw_lock("{tag}write").write().unwrap();
    let permit = client.semaphore("{tag}permit", 1).acquire().unwrap();
    let (downgraded, forced) = ("{tag}downgraded", "{tag}forced");
    let other = client.rw_lock(downgraded).write().unwrap();
    let ended = client.lock_owned(forced).unwrap();
    let are_held = || {
        let locks = watched.is_held() && kept.is_held();
        locks && reader.is_held() && writer.is_held() && permit.is_held()
    };
    away.begin();
    throughout(LEASE * 3 / 2, are_held);
    let names = ["watched", "kept", "read", "write", "permit", "downgraded", "forced"];
    let keys = names.map(|name| format!("lock:{{tag}}{name}"));
    for key in &keys {
        let port = away.to.port().to_string();
        away.from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    throughout(LEASE * 3 / 2, are_held);
    assert!(!wanted.is_wanted());
    watched.verify().unwrap();
    watched.unlock().unwrap();
    kept.unlock().unwrap();
    reader.unlock().unwrap();
    writer.unlock().unwrap();
    permit.unlock().unwrap();
    drop(other.downgrade().unwrap());
    assert!(client.mutex(forced).force_unlock().unwrap());
    assert!(!ended.is_held() || ended.verify().is_err());
    // The last one is released by a drop, whose reply no thread waits for.
    recorder.wait_for(&format!("released {downgraded}"));
    for node in cluster.nodes() {
        let left = node.keys();
        assert!(!left.iter().any(|key| keys.contains(key)), "{left:?}");
    }
    assert_eq!(client.stats().failed_releases, 0);
    away.keys();
    away.end();
}

#[test]
fn a_lock_stays_taken_though_its_slot_moves_at_the_release() {
    let cluster = Cluster::of_three();
    let (client, other) = (cluster.open(patient().lease(LEASE)), cluster.open(patient()));
    let away = cluster.move_away("{tag}");
    let names = ["{tag}drop", "{tag}unlock"];
    let guards = names.map(|name| client.mutex(name).hold_at_least(6 * SOON).lock().unwrap());
    away.begin();
    let [dropped, unlocked] = guards;
    drop(dropped);
    unlocked.unlock().unwrap();
    eventually(LEASE / 2, || names.iter().all(|name| away.from.hold(name).1 == "0"));
    away.keys();
    away.end();
    for name in names {
        assert!(away.to.pttl(name) > LEASE, "{name}");
        assert!(other.try_lock(name).unwrap().is_none());
    }
    assert_eq!(client.stats().failed_releases, 0);
}

#[test]
fn a_release_sent_to_the_old_node_of_a_slot_is_redirected_silently() {
    let cluster = Cluster::of_three();
    let recorder = Recorder::default();
    let client = cluster.open(patient().on_event(recorder.listener()));
    let away = cluster.move_away("a");
    for (round, step) in [&away, &away.back(), &away].into_iter().enumerate() {
        let guard = take(&client, "a");
        step.complete();
        drop(guard);
        recorder.wait_for_count("released a", round + 1);
        assert!(step.to.hashes().is_empty());
    }
    assert_eq!(recorder.events_of_locks(), ["acquired a", "released a"].repeat(3));
    assert_eq!(client.stats().failed_releases, 0);
}

/// A client follows MOVED once and remembers the new node.
#[test]
fn a_slot_that_has_moved_is_requested_at_its_new_node() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient());
    let away = cluster.move_away("a");
    take(&client, "a").unlock().unwrap();
    away.complete();
    take(&client, "a").unlock().unwrap();
    assert_eq!(errors(away.from, "MOVED"), 1);
    for _ in 0..10 {
        take(&client, "a").unlock().unwrap();
    }
    assert_eq!(errors(away.from, "MOVED"), 1);
}

/// ASK is about one request only.
#[test]
fn a_slot_that_is_moving_is_still_requested_at_its_old_node() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient());
    let away = cluster.move_away("{tag}");
    let held = take(&client, "{tag}here");
    away.begin();
    for _ in 0..10 {
        assert!(!client.mutex("{tag}gone").is_locked().unwrap());
        held.verify().unwrap();
    }
    assert_eq!(errors(away.from, "ASK"), 10);
    assert_eq!(errors(away.to, "MOVED"), 0);
}

/// Only a client that was sent there knows the node that gets the slot.
#[test]
fn a_node_that_no_map_names_is_connected_to_once() {
    let cluster = Cluster::with_empty_master();
    let seed = cluster.nodes()[0].url();
    let client = patient().lease(LEASE).open_cluster(&[&seed]).unwrap();
    let away = cluster.move_to_last("{tag}");
    let names: Vec<_> = (0..10).map(|number| format!("{{tag}}{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| take(&client, name)).collect();
    away.begin();
    away.keys();
    let before = away.to.connections();
    for guard in guards.iter().cycle().take(100) {
        guard.verify().unwrap();
    }
    throughout(2 * LEASE, || guards.iter().all(Guard::is_held));
    // One connection of the pool, one for renewals, and that of this question.
    let connections = away.to.connections() - before;
    assert!(connections <= 3, "{connections} connections");
}

/// Threads of two clients contend for a few locks of one slot, which keeps moving back and forth.
#[test]
fn one_holder_at_a_time_while_slots_move() {
    const NAMES: [&str; 3] = ["{tag}a", "{tag}b", "{tag}c"];
    let cluster = Cluster::of_three();
    let clients = [(); 2].map(|()| cluster.open(patient().lease(LEASE).wait(3 * SOON)));
    let away = cluster.move_away("{tag}");
    let inside = NAMES.map(|_| AtomicU32::new(0));
    let (rounds, over) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for worker in 0..8 {
            let (client, inside, rounds, over) = (&clients[worker % 2], &inside, &rounds, &over);
            threads.push(scope.spawn(move || {
                for round in worker.. {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    let lock = round % NAMES.len();
                    let guard = client.lock(NAMES[lock]).unwrap();
                    assert_eq!(inside[lock].fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    thread::sleep(ms(1));
                    assert_eq!(inside[lock].fetch_sub(1, Ordering::SeqCst), 1, "two holders");
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        let goes_on = |rounds_before: u32| {
            rounds.load(Ordering::SeqCst) > rounds_before + 20
                || threads.iter().any(ScopedJoinHandle::is_finished)
        };
        for _ in 0..10 {
            for step in [&away, &away.back()] {
                step.begin();
                thread::sleep(ms(20));
                step.keys();
                step.end();
                let before = rounds.load(Ordering::SeqCst);
                eventually(SOON, || goes_on(before));
            }
        }
        over.store(true, Ordering::SeqCst);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn renewals_follow_many_locks_that_move() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient().lease(LEASE));
    let names: Vec<_> = cluster.names_at(0).take(30).collect();
    let guards: Vec<_> = names.iter().map(|name| take(&client, name)).collect();
    for name in &names {
        cluster.move_away(name).complete();
    }
    throughout(2 * LEASE, || guards.iter().all(Guard::is_held));
    for guard in guards {
        guard.unlock().unwrap();
    }
}
