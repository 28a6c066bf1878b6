//! Wake-ups in a Redis Cluster: over sharded channels, without messages to other nodes, and over
//! the client's ordinary channel where that is not possible.

use std::path::Path;
use std::thread;

use leasehold::Client;

use crate::support::server::Server;
use crate::support::{Cluster, RIGHTS, SOON, eventually, ms, on_both, sleepy, soon, take};

/// A name in slot 0.
const IN_FIRST_SLOT: &str = "{3560}";

fn three_nodes(binary: &Path) -> Cluster {
    Cluster::three_of(binary)
}

on_both! {
    three_nodes:
    wake_ups_stay_at_one_node,
    recalls_stay_at_one_node,
    a_client_that_does_not_hear_a_node_keeps_nothing,
    wake_ups_follow_slots_that_move,
    a_client_without_a_sharded_channel_is_woken,
    without_the_rights_clients_wake_each_other;
}

/// Two clients that make no attempt by themselves.
struct Pair<'cluster> {
    cluster: &'cluster Cluster,
    holder: Client,
    waiter: Client,
}

impl<'cluster> Pair<'cluster> {
    fn open(cluster: &'cluster Cluster) -> Self {
        Self { cluster, holder: cluster.open(sleepy()), waiter: cluster.open(sleepy()) }
    }

    /// Passes the lock from the holder to the waiter. If the waiter is not woken, its call fails
    /// after `Builder::wait`.
    fn wake<H>(&self, home: &Server, name: &str, lock: impl Fn(&Client) -> H + Sync) {
        let held = lock(&self.holder);
        thread::scope(|scope| {
            let waits = scope.spawn(|| drop(lock(&self.waiter)));
            let is_queue = |key: &String| key.starts_with("leasehold:queue:");
            let queued = |key: &String| is_queue(key) && key.contains(name);
            eventually(SOON, || home.keys().iter().any(queued));
            eventually(SOON, || home.listeners(&self.waiter) == 1);
            drop(held);
            waits.join().unwrap();
        });
    }

    fn wake_by_lock(&self, name: &str) {
        self.wake(self.cluster.home(name), name, |client| client.lock(name).unwrap());
    }

    /// Waits until the waiter has a sharded channel at this many nodes.
    #[track_caller]
    fn wait_for_shards(&self, nodes: usize) {
        let channel = |node: &Server| shards(node, &self.waiter).len() == 1;
        let count = || self.cluster.nodes().iter().filter(|node| channel(node)).count();
        eventually(SOON, || count() == nodes);
    }
}

/// The sharded channels of a client at a node.
fn shards(node: &Server, client: &Client) -> Vec<String> {
    node.ask(&["PUBSUB", "SHARDCHANNELS", &format!("leasehold:wake:{}:*", client.id())])
}

/// Returns how often a script has published for other nodes too.
fn published(cluster: &Cluster) -> u64 {
    cluster.nodes().iter().map(|node| node.calls("publish")).sum()
}

fn wake_ups_stay_at_one_node(cluster: &Cluster) {
    let pair = Pair::open(cluster);
    pair.wake_by_lock("warm");
    pair.wait_for_shards(3);
    let before = published(cluster);
    for node in 0..3 {
        let name = cluster.name_at(node);
        for _ in 0..3 {
            pair.wake_by_lock(&name);
        }
        let mut others = cluster.names_at(node).skip(1);
        let (sides, permits) = (others.next().unwrap(), others.next().unwrap());
        let home = cluster.home(&name);
        pair.wake(home, &sides, |client| client.rw_lock(&sides).write().unwrap());
        pair.wake(home, &permits, |client| client.semaphore(&permits, 1).acquire().unwrap());
    }
    assert_eq!(published(cluster), before);
}

fn recalls_stay_at_one_node(cluster: &Cluster) {
    let (holder, waiter) = (cluster.open(sleepy().keep(ms(20_000))), cluster.open(sleepy()));
    let pair = Pair { cluster, holder, waiter };
    pair.wake_by_lock("warm");
    pair.wait_for_shards(3);
    let Pair { holder, waiter, .. } = &pair;
    let all = || cluster.nodes().iter().all(|node| shards(node, holder).len() == 1);
    eventually(SOON, all);
    let before = published(cluster);
    for node in 0..3 {
        let [asked, tried, watched] =
            [(); 3].map(|()| format!("{{{}}}:{node}", cluster.name_at(node)));
        drop(take(holder, &asked));
        soon(|| waiter.lock(&asked).unwrap()).unlock().unwrap();
        eventually(SOON, || {
            drop(take(holder, &tried));
            waiter.try_lock(&tried).unwrap().is_some_and(|guard| guard.unlock().is_ok())
        });
        let guard = holder.mutex(&watched).keep(ms(0)).lock().unwrap();
        let wanted = guard.wanted();
        thread::scope(|scope| {
            scope.spawn(|| waiter.lock(&watched).unwrap().unlock().unwrap());
            assert!(soon(|| wanted.wait_timeout(SOON)));
            drop(guard);
        });
    }
    assert_eq!(published(cluster), before);
}

fn a_client_that_does_not_hear_a_node_keeps_nothing(cluster: &Cluster) {
    let keeper = cluster.open(sleepy().keep(ms(20_000)));
    for node in cluster.nodes() {
        eventually(SOON, || {
            drop(keeper.lock("a").unwrap());
            keeper.stats().kept == 1
        });
        node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually(SOON, || keeper.stats().kept == 0);
    }
}

/// The lowest slot of one master becomes that of another, and both choose other channels.
fn wake_ups_follow_slots_that_move(cluster: &Cluster) {
    let pair = Pair::open(cluster);
    pair.wake_by_lock("warm");
    pair.wait_for_shards(3);
    let away = cluster.move_away(IN_FIRST_SLOT);
    let there = cluster.name_at(0);
    away.complete();
    let moved = || pair.wake(away.to, IN_FIRST_SLOT, |client| client.lock(IN_FIRST_SLOT).unwrap());
    moved();
    pair.wake_by_lock(&there);
    eventually(SOON, || {
        let before = published(cluster);
        moved();
        pair.wake_by_lock(&there);
        published(cluster) == before
    });
    // The new master still has its first channel, besides that of its new lowest slot.
    assert_eq!(shards(away.to, &pair.waiter).len(), 2);
    assert_eq!(shards(away.from, &pair.waiter).len(), 1);
}

/// For example a client of an earlier version, or one whose subscription is still on its way.
fn a_client_without_a_sharded_channel_is_woken(cluster: &Cluster) {
    let (holder, home) = (cluster.open(sleepy()), cluster.home("a"));
    let mut connection = home.connect();
    let mut listener = connection.as_pubsub();
    listener.subscribe("leasehold:wake:other").unwrap();
    let guard = take(&holder, "a");
    home.command(&["ZADD", "leasehold:queue:{lock:a}", "1", "other"]);
    guard.unlock().unwrap();
    let message = listener.get_message().unwrap();
    assert_eq!(message.get_payload::<String>().unwrap(), "lock:a");
}

fn without_the_rights_clients_wake_each_other(cluster: &Cluster) {
    let rights: Vec<_> = RIGHTS.split(' ').chain(["+cluster|slots", "+asking"]).collect();
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame"];
        node.command(&[&user[..], &rights].concat());
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("//", "//app:sesame@"));
    let urls: Vec<_> = urls.collect();
    let open = || sleepy().open_cluster(&urls).unwrap();
    let pair = Pair { cluster, holder: open(), waiter: open() };
    for node in [0, 1, 2] {
        let name = cluster.name_at(node);
        pair.wake_by_lock(&name);
        pair.wake_by_lock(&name);
    }
    pair.wait_for_shards(0);
}

#[test]
fn wake_ups_stay_at_one_node_after_a_failover() {
    let cluster = Cluster::with_replica();
    let pair = Pair::open(&cluster);
    let name = cluster.name_at(0);
    pair.wake_by_lock(&name);
    pair.wait_for_shards(3);
    let (old, new) = (&cluster.nodes()[0], &cluster.nodes()[3]);
    old.kill();
    eventually(SOON, || pair.holder.try_lock(&name).is_ok());
    let alive = || cluster.nodes()[1..].iter().map(|node| node.calls("publish")).sum::<u64>();
    eventually(SOON, || {
        let before = alive();
        pair.wake(new, &name, |client| client.lock(&name).unwrap());
        alive() == before
    });
    assert_eq!(shards(new, &pair.waiter).len(), 1);
}
