//! Locks on a Redis Cluster: opened through any node, each lock on the node of its slot, and
//! wake-ups from every node.

mod outages;
mod sharded_wakeups;
mod slot_moves;

use std::net::TcpListener;
use std::thread;

use leasehold::{Builder, Client, Error, Guard, Phase};

use crate::support::child::{self, Child};
use crate::support::cluster::{add_slots, unique_prefix};
use crate::support::server::{Server, valkey_binary};
use crate::support::{
    Cluster, LEASE, SOON, eventually, everything, hasty, is_busy, ms, patient, sleepy, soon, take,
    throughout, timed, unlock,
};

fn names() -> Vec<String> {
    (0..60).map(|number| format!("lock {number}")).collect()
}

#[test]
fn invalid_seeds_are_refused_before_anything_is_sent() {
    // No server listens at port 1.
    let bad: [&[&str]; 6] = [
        &[],
        &["redis://127.0.0.1:1/", "nonsense"],
        &["redis://127.0.0.1:1/", "redis://127.0.0.1:1"],
        &["redis://127.0.0.1/", "redis://127.0.0.1:6379"],
        &["redis+unix:///nonexistent/socket"],
        &["redis://127.0.0.1:1/", "redis://:secret@127.0.0.1:2/1"],
    ];
    for seeds in bad {
        let error = Client::builder().open_cluster(seeds).unwrap_err();
        assert!(matches!(error, Error::InvalidInput(_)), "{seeds:?}: {error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn one_seed_that_answers_is_enough() {
    let cluster = Cluster::shared();
    let silent = Server::redis();
    silent.stop();
    let seeds = ["redis://127.0.0.1:1/", &silent.url(), &cluster.nodes()[1].url()];
    let client = Client::builder().prefix("by one seed: ").open_cluster(&seeds).unwrap();
    for name in names() {
        take(&client, &name).unlock().unwrap();
    }
}

/// All programs may have the same list of seeds, with the one that hangs in front.
#[test]
fn a_first_attempt_does_not_wait_for_a_seed_that_hangs() {
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = format!("redis://{}/", hung.local_addr().unwrap());
    let prefix = unique_prefix();
    for seeds in [vec![hung.clone()], vec![hung, Server::redis().url()]] {
        let seeds = [seeds, Cluster::shared().urls()].concat();
        let client = Client::builder().prefix(&prefix).lazy(true).open_cluster(&seeds).unwrap();
        let guard = client.try_lock_for("a", ms(0)).unwrap().expect("it is free");
        guard.unlock().unwrap();
    }
}

#[test]
fn a_numbered_database_of_a_cluster_has_locks_of_its_own() {
    let cluster = Cluster::three_with(valkey_binary(), &["--cluster-databases", "16"]);
    let urls: Vec<_> = cluster.urls().iter().map(|url| format!("{url}3")).collect();
    let (one, other) = (patient().open_cluster(&urls).unwrap(), sleepy().open_cluster(&urls));
    let (other, elsewhere) = (other.unwrap(), patient().open_cluster(cluster.urls()).unwrap());
    for node in 0..3 {
        let name = &cluster.name_at(node);
        let guard = take(&one, name);
        assert!(is_busy(&other, name) && !is_busy(&elsewhere, name));
        assert!(!cluster.nodes()[node].exists(name), "it is in the other database");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.lock(name).unwrap().fence());
            eventually(SOON, || one.survey().report(name).unwrap().waiting == [other.id()]);
            eventually(SOON, || cluster.nodes()[node].listeners(&other) == 1);
            let fence = guard.fence();
            guard.unlock().unwrap();
            assert!(waiter.join().unwrap() > fence);
        });
    }
}

#[test]
fn without_an_answer_the_cluster_is_unavailable() {
    let seeds = ["redis://127.0.0.1:1/", "redis://127.0.0.1:2/"];
    let (result, took) = timed(|| Client::builder().open_cluster(&seeds));
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < ms(5000), "{took:?}");
}

#[test]
fn a_cluster_that_does_not_serve_every_slot_is_unavailable() {
    let node = Server::start("redis-server", &["--cluster-enabled", "yes"]);
    add_slots(&node, 0..16383);
    let open = || Client::builder().retry_window(ms(300)).open_cluster(&[&node.url()]);
    let (result, took) = timed(open);
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(took < SOON / 2, "{took:?}");
    node.command(&["CLUSTER", "ADDSLOTS", "16383"]);
    eventually(SOON, || open().is_ok());
}

#[test]
fn a_server_that_is_no_cluster_is_a_permanent_error() {
    let server = Server::redis();
    match Client::builder().open_cluster(&[&server.url()]) {
        Err(Error::Redis { code, .. }) => assert_eq!(code, "ERR"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lazy_client_reports_why_the_node_of_a_lock_is_unknown() {
    let lazy = |url: &str| patient().wait(4 * SOON).lazy(true).open_cluster([url]).unwrap();
    let refused = |url: &str, expected: &str| {
        let client = lazy(url);
        let permanent = |result: Result<(), Error>| match result {
            Err(Error::Redis { code, .. }) => assert_eq!(code, expected),
            other => panic!("{other:?}"),
        };
        permanent(soon(|| client.lock("a").map(drop)));
        permanent(soon(|| client.try_lock("a").map(drop)));
        permanent(soon(|| client.ping().map(drop)));
    };
    refused(&Server::redis().url(), "ERR");
    let cluster = Cluster::shared();
    let port = cluster.nodes()[0].port();
    refused(&format!("redis://ali:simsim@127.0.0.1:{port}/"), "WRONGPASS");

    let away = lazy("redis://127.0.0.1:1/");
    let result = soon(|| away.try_lock("a").map(drop));
    assert!(matches!(result, Err(Error::Unavailable { phase: Phase::Connect, .. })), "{result:?}");
    let error = away.try_lock_for("a", ms(300)).unwrap_err();
    assert!(everything(&error).contains("refused"), "{error:?}");
}

#[test]
fn a_node_of_a_cluster_is_not_taken_for_a_server_with_all_names() {
    let cluster = Cluster::shared();
    let url = cluster.nodes()[0].url();
    match Client::open(&url) {
        Err(Error::InvalidInput(text)) => assert!(text.contains("redis+cluster://"), "{text}"),
        other => panic!("{other:?}"),
    }
    let lazy = patient().lazy(true).open(&url).unwrap();
    let error = names().iter().find_map(|name| lazy.try_lock(name).err()).unwrap();
    assert!(everything(&error).contains("redis+cluster://"), "{error:?}");
    let alone = Cluster::of(1);
    take(&Client::open(&alone.nodes()[0].url()).unwrap(), "a").unlock().unwrap();
}

#[test]
fn the_login_of_the_seeds_is_used_at_every_node() {
    let cluster = Cluster::of_three();
    for node in cluster.nodes() {
        node.command(&["ACL", "SETUSER", "ali", "on", ">sesame", "~*", "&*", "+@all"]);
        node.command(&["ACL", "SETUSER", "default", "off"]);
    }
    let seed = format!("redis://ali:sesame@127.0.0.1:{}/", cluster.nodes()[2].port());
    let client = Client::builder().open_cluster(&[&seed]).unwrap();
    for name in names() {
        take(&client, &name).unlock().unwrap();
    }
    let wrong = seed.replace("sesame", "simsim");
    match Client::builder().open_cluster(&[&wrong]) {
        Err(Error::Redis { code, .. }) => assert_eq!(code, "WRONGPASS"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn locks_are_where_their_slots_are() {
    let cluster = Cluster::of_three();
    let (client, other) = (cluster.open(patient()), cluster.open(patient()));
    let guards: Vec<_> = names().iter().map(|name| take(&client, name)).collect();
    for name in names() {
        assert!(cluster.home(&name).exists(&name), "{name}");
        assert!(is_busy(&other, &name), "{name}");
    }
    assert!(cluster.nodes().iter().all(|node| node.hashes().len() >= 10));
    drop(guards);
    assert!(cluster.nodes().iter().all(|node| node.hashes().is_empty()));
}

#[test]
fn many_leases_on_three_nodes_are_renewed_by_one_script_each() {
    let cluster = Cluster::of_three();
    let client = cluster.open(patient().lease(LEASE));
    let guards: Vec<_> = (0..300).map(|n| take(&client, &format!("lock {n}"))).collect();
    let scripts = || cluster.nodes().iter().map(Server::evals).sum::<u64>();
    let before = scripts();
    throughout(2 * LEASE, || guards.iter().all(Guard::is_held));
    // One per third of a lease makes six, and more at the start and the end of the time.
    let renewals = scripts() - before;
    assert!((300 * 4..=300 * 9).contains(&renewals), "{renewals} renewals");
}

/// Announces names that lead nowhere, and ports where no node listens, as containers may.
fn announce_elsewhere(cluster: &Cluster) {
    for (number, node) in cluster.nodes().iter().enumerate() {
        node.set_config("cluster-announce-hostname", &format!("node-{number}.invalid"));
        node.set_config("cluster-announce-port", &(node.port() + 30_000).to_string());
        node.set_config("cluster-preferred-endpoint-type", "hostname");
    }
    let announced = |node: &Server, one: &Server| {
        let slots: String = node.ask(&["CLUSTER", "NODES"]);
        slots.contains(&format!(":{}@", one.port() + 30_000))
    };
    let nodes = cluster.nodes();
    eventually(SOON, || nodes.iter().all(|node| nodes.iter().all(|one| announced(node, one))));
}

#[test]
fn nodes_that_announce_other_addresses_are_reached_by_a_map() {
    let cluster = Cluster::of_three();
    announce_elsewhere(&cluster);
    let error = hasty().open_cluster([cluster.nodes()[0].url()]);
    let error = error.and_then(|client| client.lock(&cluster.name_at(1)).map(drop)).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");

    let mapped = |builder: Builder| {
        let builder = builder.address_map(|host, port| {
            assert!(host.ends_with(".invalid"), "{host}");
            ("127.0.0.1".into(), port - 30_000)
        });
        builder.open_cluster([cluster.nodes()[0].url()]).unwrap()
    };
    let (holder, waiter) = (mapped(patient().lease(LEASE)), mapped(sleepy()));
    let guards: Vec<_> = names().iter().map(|name| take(&holder, name)).collect();
    throughout(LEASE, || guards.iter().all(Guard::is_held));
    drop(guards);
    for node in 0..3 {
        let name = cluster.name_at(node);
        let guard = take(&holder, &name);
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock(&name).map(unlock));
            wait_until_queued(cluster.home(&name), &name, 1);
            wait_until_heard(&cluster, &waiter);
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
    }
    // A node that redirects a request names the other one in the same way.
    cluster.move_away("moved").complete();
    take(&holder, "moved").unlock().unwrap();
}

#[test]
fn clients_opened_through_different_nodes_wake_each_other() {
    let cluster = Cluster::of_three();
    let by = |node: usize| sleepy().open_cluster(&[&cluster.nodes()[node].url()]).unwrap();
    let (one, other) = (by(0), by(1));
    for node in 0..3 {
        let name = cluster.name_at(node);
        for (holder, waiter) in [(&one, &other), (&other, &one)] {
            let guard = take(holder, &name);
            thread::scope(|scope| {
                let waits = scope.spawn(|| waiter.lock(&name).map(unlock));
                wait_until_queued(cluster.home(&name), &name, 1);
                wait_until_heard(&cluster, waiter);
                let ((), took) = timed(|| {
                    guard.unlock().unwrap();
                    waits.join().unwrap().unwrap();
                });
                assert!(took < SOON / 2, "{took:?}");
            });
        }
    }
}

/// Each message arrives from every node, and only one of them counts. Each of the others would
/// cause a request to leave the queue.
#[test]
fn a_wake_up_costs_no_request_of_its_own() {
    let cluster = Cluster::of_three();
    let (holder, waiter) = (cluster.open(sleepy()), cluster.open(sleepy()));
    let home = cluster.home("a");
    let round = || {
        let guard = take(&holder, "a");
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            wait_until_queued(home, "a", 1);
            wait_until_heard(&cluster, &waiter);
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
    };
    // The subscriptions may wake the first waiter, and their message may arrive when it has the
    // lock. Requests that the listener's thread then sends may arrive after the second round.
    (0..2).for_each(|_| round());
    let before = home.settled_evals();
    (0..5).for_each(|_| round());
    // A further request would be sent at once, but on another thread.
    throughout(ms(300), || {
        assert_eq!(home.evals() - before, 5 * 5);
        true
    });
}

#[test]
fn a_waiter_that_was_killed_is_skipped() {
    let cluster = Cluster::of_three();
    let (holder, waiter) = (cluster.open(sleepy()), cluster.open(sleepy()));
    let home = cluster.home("a");
    let guard = take(&holder, "a");
    let mut child = Child::start(wait_in_a_child, &cluster.urls()[0]);
    assert_eq!(child.next(), "waits");
    wait_until_queued(home, "a", 1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").map(unlock));
        wait_until_queued(home, "a", 2);
        wait_until_heard(&cluster, &waiter);
        child.kill();
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
        assert!(took < SOON / 2, "{took:?}");
    });
    assert!(home.queue("a").is_empty());
}

#[test]
#[ignore = "a child of a_waiter_that_was_killed_is_skipped"]
fn wait_in_a_child() {
    let Some(url) = child::argument() else { return };
    let client = sleepy().open_cluster(&[&url]).unwrap();
    child::report("waits");
    drop(client.lock("a"));
}

/// Waits until this many clients are in the queue of the lock.
#[track_caller]
fn wait_until_queued(home: &Server, name: &str, clients: usize) {
    eventually(SOON, || home.queue(name).len() == clients);
}

/// Waits until a client listens at all nodes.
#[track_caller]
fn wait_until_heard(cluster: &Cluster, client: &Client) {
    eventually(SOON, || cluster.nodes().iter().all(|node| node.listeners(client) == 1));
}

#[test]
fn the_threads_and_connections_of_a_client_end_with_it() {
    let cluster = Cluster::of_three();
    let (holder, waiter) = (cluster.open(patient()), cluster.open(patient()));
    let guard = take(&holder, "a");
    assert!(waiter.try_lock_for("a", ms(100)).unwrap().is_none());
    wait_until_heard(&cluster, &waiter);
    drop((guard, holder, waiter));
    let connections = |node: &Server| {
        let clients: String = node.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        let listeners: String = node.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        clients.lines().count() + listeners.lines().count()
    };
    // Only the one that runs CLIENT LIST is left.
    eventually(SOON, || cluster.nodes().iter().all(|node| connections(node) == 1));
}
