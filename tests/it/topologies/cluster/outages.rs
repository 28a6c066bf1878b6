//! Locks on a Redis Cluster when one of its nodes hangs or dies.

use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, Guard, HoldEnd};

use crate::support::recorder::Recorder;
use crate::support::server::Server;
use crate::support::{
    Cluster, IO, LEASE, SOON, assert_lost, eventually, hasty, is_busy, lock_key, ms, patient,
    sleepy, take, throughout, timed,
};

/// Much more than one attempt and its repetition, and much less than the waits here.
const BOUND: Duration = ms(5000);

/// A cluster that works without the nodes that fail.
fn tolerant_cluster() -> Cluster {
    let cluster = Cluster::of_three();
    for node in cluster.nodes() {
        node.set_config("cluster-require-full-coverage", "no");
    }
    cluster
}

#[test]
fn a_set_holds_nothing_while_it_waits_for_a_node() {
    let cluster = tolerant_cluster();
    let (client, other) = (cluster.open(hasty()), cluster.open(patient()));
    // The nodes are asked in order.
    let [ours, also_ours, theirs] = [0, 1, 2].map(|node| cluster.name_at(node));
    client.lock_all([&ours, &also_ours, &theirs]).unwrap().unlock().unwrap();
    let (all, before) = ([&theirs, &ours, &also_ours], cluster.nodes()[1].calls("evalsha"));
    cluster.nodes()[2].stop();
    thread::scope(|scope| {
        let set = scope.spawn(|| client.try_lock_all_for(all, 6 * SOON));
        let are_free = || !is_busy(&other, &ours) && !is_busy(&other, &also_ours);
        // The first request to the node waits for a reply while the others are held.
        eventually(SOON, || cluster.nodes()[1].calls("evalsha") > before);
        eventually(SOON, are_free);
        throughout(IO * 8, are_free);
        assert!(!set.is_finished());
        cluster.nodes()[2].cont();
        let set = set.join().unwrap().unwrap().unwrap();
        assert_eq!(set.names(), all.map(|name| &**name));
        assert!(all.iter().all(|name| is_busy(&other, name)));
        set.unlock().unwrap();
    });
    assert_eq!(client.stats().held, 0);
}

/// Wake-ups that no thread waits for are passed on at a node that hangs.
#[test]
fn a_hung_node_delays_no_wake_up_of_another() {
    let cluster = tolerant_cluster();
    let builder = || sleepy().io_timeout(ms(9000));
    let (holder, waiter) = (cluster.open(builder()), cluster.open(builder()));
    let [theirs, ours] = [0, 1].map(|node| cluster.name_at(node));
    let guard = take(&holder, &ours);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(&ours).map(drop));
        let healthy = &cluster.nodes()[1];
        eventually(SOON, || {
            healthy.queue(&ours).len() == 1
                && cluster.nodes().iter().all(|node| node.listeners(&waiter) == 1)
        });
        let channel = format!("leasehold:wake:{}", waiter.id());
        let mut hung = cluster.nodes()[0].connect();
        redis::pipe()
            .atomic()
            .cmd("CLIENT")
            .arg("PAUSE")
            .arg(7000)
            .cmd("PUBLISH")
            .arg(channel)
            .arg(lock_key(&theirs))
            .exec(&mut hung)
            .unwrap();
        // Wait until the wake-up, and nothing else, has arrived.
        thread::sleep(ms(300));
        let (result, took) = timed(|| {
            drop(guard);
            waits.join().unwrap()
        });
        result.unwrap();
        assert!(took < BOUND, "{took:?}");
    });
}

#[test]
fn a_hung_node_delays_only_its_own_names() {
    let cluster = tolerant_cluster();
    let client = cluster.open(patient().lease(LEASE));
    let names = [0, 1, 2].map(|node| cluster.name_at(node));
    let [theirs, ours, also_ours] = names.each_ref().map(|name| take(&client, name));
    cluster.nodes()[0].stop();
    let lost = theirs.lost();
    throughout(2 * LEASE, || ours.is_held() && also_ours.is_held());
    assert!(lost.is_lost(), "its lease has run out");
    let (result, took) = timed(|| client.try_lock(&cluster.name_at(0)));
    assert!(result.is_err(), "{result:?}");
    assert!(took < BOUND, "{took:?}");
    for guard in [&ours, &also_ours] {
        let (result, took) = timed(|| guard.verify());
        result.unwrap();
        assert!(took < BOUND / 2, "{took:?}");
    }
    cluster.nodes()[0].cont();
    assert_lost(theirs.unlock(), &names[0]);
    eventually(SOON, || client.try_lock(&names[0]).is_ok_and(|guard| guard.is_some()));
}

/// Each lease is renewed separately, so that one connection is used while the others are idle.
#[test]
fn renewals_reuse_their_connections_while_a_node_is_down() {
    let cluster = tolerant_cluster();
    let client = cluster.open(patient().lease(LEASE));
    let mut guards = Vec::new();
    for node in [0, 1, 2, 1, 2] {
        let mut names = cluster.names_at(node);
        guards.push(take(&client, &names.nth(guards.len()).expect("names are many")));
        thread::sleep(LEASE / 15);
    }
    let theirs = guards.remove(0);
    throughout(LEASE, || guards.iter().all(Guard::is_held));
    cluster.nodes()[0].kill();
    let alive = &cluster.nodes()[1..];
    let connections = || alive.iter().map(Server::connections).collect::<Vec<_>>();
    let before = connections();
    throughout(3 * LEASE, || guards.iter().all(Guard::is_held));
    assert!(!theirs.is_held());
    for (after, before) in connections().iter().zip(before) {
        // The connection of this question, and two of calls that ask which node has the slots of
        // the dead one.
        assert!(after - before <= 3, "{} connections", after - before);
    }
}

/// Connecting to each of four nodes hangs for a third of the lease or longer.
#[test]
fn leases_are_renewed_while_connecting_to_others_hangs() {
    let cluster = Cluster::of(5);
    let names = [0, 1, 2, 3, 4].map(|node| cluster.name_at(node));
    for node in cluster.nodes() {
        // No node should count as failed: this is about what the client does by itself.
        node.set_config("cluster-node-timeout", "60000");
        // With a login, connecting means waiting for a reply.
        node.set_config("requirepass", "sesame");
    }
    let seed = format!("redis://:sesame@127.0.0.1:{}/", cluster.nodes()[4].port());
    let client = patient().lease(LEASE).open_cluster(&[&seed]).unwrap();
    let [theirs @ .., ours] = names.each_ref().map(|name| take(&client, name));
    let (hung, _) = cluster.nodes().split_at(4);
    hung.iter().for_each(Server::stop);
    throughout(4 * LEASE, || ours.is_held());
    assert!(theirs.iter().all(|guard| !guard.is_held()));
    hung.iter().for_each(Server::cont);
}

#[test]
fn the_calls_of_a_dead_node_fail_and_those_of_others_do_not() {
    let cluster = tolerant_cluster();
    let client = cluster.open(hasty().retry_window(ms(500)));
    let [dead, alive] = [0, 1].map(|node| cluster.name_at(node));
    take(&client, &dead).unlock().unwrap();
    cluster.nodes()[0].kill();
    let (result, took) = timed(|| client.try_lock(&dead));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < BOUND, "{took:?}");
    let ((), took) = timed(|| take(&client, &alive).unlock().unwrap());
    assert!(took < BOUND / 2, "{took:?}");
    let (result, took) = timed(|| client.try_lock_for(&dead, ms(500)));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < BOUND, "{took:?}");
}

#[test]
fn a_dead_cluster_is_given_up_soon() {
    let cluster = Cluster::of_three();
    let client = cluster.open(hasty());
    cluster.nodes().iter().for_each(Server::kill);
    thread::sleep(ms(200));
    let (result, took) = timed(|| client.try_lock("a"));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < BOUND, "{took:?}");
}

#[test]
fn a_replica_takes_over_what_it_has() {
    let cluster = Cluster::with_replica();
    let recorder = Recorder::default();
    let client =
        cluster.open(patient().lease(2 * SOON).wait(3 * SOON).on_event(recorder.listener()));
    let other = cluster.open(patient().wait(3 * SOON));
    let name = cluster.name_at(0);
    let kept = take(&client, &name);
    eventually(SOON, || replica_has(&cluster, &name));
    cluster.nodes()[0].kill();
    // Even calls that do not wait for locks wait for the new master.
    let inner = take(&client, &name);
    assert_eq!(inner.depth(), 2);
    assert_eq!(inner.fence(), kept.fence());
    inner.unlock().unwrap();
    assert!(is_busy(&other, &name));
    kept.verify().unwrap();
    let before = kept.fence();
    kept.unlock().unwrap();
    assert!(take(&other, &name).fence() > before);
    assert_eq!(recorder.count(&format!("lost {name}")), 0);
}

/// Returns `true` if the replica has a lock, which only its own keyspace shows.
fn replica_has(cluster: &Cluster, name: &str) -> bool {
    cluster.nodes()[3].keys().iter().any(|key| *key == lock_key(name))
}

#[test]
fn a_lock_that_the_replica_does_not_know_is_lost_at_the_next_renewal() {
    let cluster = Cluster::with_replica();
    let client = cluster.open(patient().lease(4 * SOON).wait(3 * SOON));
    let (master, replica) = (&cluster.nodes()[0], &cluster.nodes()[3]);
    let name = cluster.name_at(0);
    replica.stop();
    // Otherwise the replica would find the lock in data that it has yet to read.
    master.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    let guard = take(&client, &name);
    master.kill();
    replica.cont();
    let lost = guard.lost();
    let found = lost.wait_timeout(3 * SOON);
    assert_eq!(found, Some(HoldEnd::Lost), "the renewal notices, long before the lease ends");
    assert!(!guard.is_held());
    assert_lost(guard.unlock(), &name);
    take(&client, &name).unlock().unwrap();
}

/// A wait that began at one master ends with a release at its successor.
#[test]
fn waits_continue_at_the_new_master() {
    let cluster = Cluster::with_replica();
    let open = || cluster.open(Client::builder().lease(2 * SOON).wait(3 * SOON));
    let (holder, waiter) = (open(), open());
    let name = cluster.name_at(0);
    let guard = take(&holder, &name);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(&name).map(|guard| guard.fence()));
        eventually(SOON, || {
            replica_has(&cluster, &name) && cluster.nodes()[0].queue(&name).len() == 1
        });
        cluster.nodes()[0].kill();
        let fence = guard.fence();
        eventually(3 * SOON, || cluster.nodes()[3].listeners(&waiter) == 1);
        guard.unlock().unwrap();
        assert!(waits.join().unwrap().unwrap() > fence);
    });
}
