//! Wake-ups exchanged with Redisson, which is played here by its own scripts, channel and messages.

mod live;

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use leasehold::{Client, Error};
use redis::Value;

use crate::support::child::{self, Child};
use crate::support::cluster::unique_prefix;
use crate::support::redisson::{Redisson, Subscription, listeners, publish_end};
use crate::support::server::Server as Node;
use crate::support::{
    Cluster, Quorum, RIGHTS, SOON, Server, eventually, lock_key, ms, patient, sleepy, soon, stores,
    take, throughout, unlock,
};

stores! {
    every server:
        every_end_of_a_hold_notifies_redisson,
        inner_levels_and_handoffs_do_not_notify_redisson,
        without_the_setting_redisson_is_not_notified,
        a_waiting_client_and_redisson_take_turns_at_random,
        an_invalid_turn_is_ignored,
        redisson_gets_a_share_of_the_turns,
        clients_that_wait_are_not_taken_for_redisson,
        an_unlock_of_redisson_wakes_a_waiter,
        a_waiter_is_woken_by_redisson_after_its_connection_was_closed,
        a_hold_that_redisson_renews_stays,
        a_client_listens_only_while_it_waits;
    one server:
        an_unlock_while_subscribing_is_not_missed,
        without_the_right_to_the_channel_clients_wake_each_other,
        the_documented_rights_are_enough,
        clients_of_one_builder_listen_for_themselves;
}

fn every_end_of_a_hold_notifies_redisson(server: &Server) {
    let client = server.open(patient().redisson(true));
    let redisson = Redisson::new(server, "a");
    let mut subscription = redisson.listen(server);
    let mut next = || subscription.message();
    client.lock("a").unwrap().unlock().unwrap();
    assert_eq!(next(), "0");
    drop(client.lock("a").unwrap());
    assert_eq!(next(), "0");
    drop(client.lock_owned("a").unwrap());
    assert_eq!(next(), "0");
    drop(client.lock_all(["a", "b"]).unwrap());
    assert_eq!(next(), "0");
    let guard = client.lock("a").unwrap();
    assert!(client.mutex("a").force_unlock().unwrap());
    assert_eq!(next(), "0");
    drop(guard);
    // Redisson's own holds are respected too.
    assert_eq!(Redisson::new(server, "a").try_lock(), None);
    assert!(client.mutex("a").force_unlock().unwrap());
    assert_eq!(next(), "0");
    // The lock stays taken, for less time than Redisson has read.
    drop(client.mutex("a").hold_at_least(ms(500)).lock().unwrap());
    assert_eq!(next(), "0");
}

fn inner_levels_and_handoffs_do_not_notify_redisson(server: &Server) {
    let client = server.open(patient().redisson(true).tenure(ms(5000)));
    let redisson = Redisson::new(server, "a");
    // It does not count as a waiting Redisson, so that the lock may be handed off.
    let mut subscription = Subscription::begin(server, "psubscribe", "redisson_lock__channel:*");
    let guard = take(&client, "a");
    drop(take(&client, "a"));
    thread::scope(|scope| {
        for waiting in 1..=3 {
            scope.spawn(|| drop(client.lock("a").unwrap()));
            eventually(SOON, || client.stats().waiting == waiting);
        }
        guard.unlock().unwrap();
    });
    eventually(SOON, || client.stats().released == 4);
    publish_end(server, &redisson);
    // Redisson gets its unlock message twice: when the first holder releases the lock, and when the
    // last of the others does.
    assert_eq!([(); 3].map(|()| subscription.message()), ["00", "00", "end"]);
}

fn without_the_setting_redisson_is_not_notified(server: &Server) {
    let client = server.open(patient());
    let redisson = Redisson::new(server, "a");
    let mut subscription = redisson.listen(server);
    client.lock("a").unwrap().unlock().unwrap();
    take(&client, "a").unlock().unwrap();
    publish_end(server, &redisson);
    assert_eq!(subscription.message(), "end");
    assert!(!server.keys().iter().any(|key| key.contains("turn")));
}

fn a_waiting_client_and_redisson_take_turns_at_random(server: &Server) {
    let builder = || sleepy().redisson(true);
    let (holder, waiter) = (server.open(builder()), server.open(builder()));
    let _subscription = Redisson::new(server, "a").listen(server);
    let mut turns = HashSet::new();
    // In one run in 2^63, the turn always falls to the same one.
    for _ in 0..64 {
        let guard = holder.lock("a").unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock_owned("a").unwrap());
            eventually(SOON, || server.queue("a") == [waiter.id()]);
            guard.unlock().unwrap();
            let end: u64 = server.ask(&["GET", "leasehold:turn:{lock:a}"]);
            turns.insert(end > 0);
            drop(waits.join().unwrap());
        });
        if turns.len() == 2 {
            return;
        }
    }
    panic!("{turns:?}");
}

/// The clock of the server may be set back during a turn, and any program can write the key.
fn an_invalid_turn_is_ignored(server: &Server) {
    const TURN: &str = "leasehold:turn:{lock:a}";
    let client = server.open(patient().redisson(true));
    let [seconds, _]: [u64; 2] = server.ask(&["TIME"]);
    let later = ((seconds + 3600) * 1000).to_string();
    for turn in [&later, "turn", "", "inf", "nan", "-1"] {
        for life in [&["KEEPTTL"][..], &["EX", "3600"]] {
            server.command(&[&["SET", TURN, turn], life].concat());
            unlock(take(&client, "a"));
            let left: i64 = server.ask(&["PTTL", TURN]);
            assert!(left != -1 && left <= 500, "{turn:?}: {left}");
        }
    }
    server.command(&["DEL", TURN]);
    server.command(&["LPUSH", TURN, "1"]);
    unlock(take(&client, "a"));
}

fn redisson_gets_a_share_of_the_turns(server: &Server) {
    const TURNS: u32 = 200;
    let client = server.open(patient().redisson(true));
    let [ours, theirs] = [AtomicU32::new(0), AtomicU32::new(0)];
    let goes_on = || ours.load(Ordering::SeqCst) + theirs.load(Ordering::SeqCst) < TURNS;
    let mut redisson = Redisson::new(server, "a");
    let mut subscription = redisson.listen(server);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    let guard = client.lock("a").unwrap();
                    ours.fetch_add(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
                // The last waiter is notified.
                publish_end(server, &Redisson::new(server, "a"));
            });
        }
        while goes_on() {
            if redisson.try_lock().is_some() {
                subscription.message();
            } else {
                theirs.fetch_add(1, Ordering::SeqCst);
                redisson.unlock();
            }
        }
    });
    let share = f64::from(theirs.into_inner()) / f64::from(TURNS);
    assert!(share >= 0.2, "{share}");
}

fn clients_that_wait_are_not_taken_for_redisson(server: &Server) {
    let clients = [(); 3].map(|()| server.open(patient().redisson(true)));
    let mut subscription = Subscription::begin(server, "psubscribe", "redisson_lock__channel:*");
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                for _ in 0..50 {
                    client.lock("a").unwrap().unlock().unwrap();
                }
            });
        }
    });
    publish_end(server, &Redisson::new(server, "a"));
    let messages = std::iter::repeat_with(|| subscription.message());
    let messages: Vec<String> = messages.take_while(|message| message != "end").collect();
    assert!(
        messages.len() >= 150 && messages.iter().all(|message| message == "00"),
        "{messages:?}"
    );
}

/// Makes Redisson hold the lock, and unlock it when `body` returns. A waiting thread of `waiter`
/// must get it soon afterwards.
fn until_unlocked(
    node: &Node,
    waiter: &Client,
    redisson: &mut Redisson,
    name: &str,
    body: impl FnOnce(),
) {
    eventually(SOON, || redisson.try_lock().is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(name).map(unlock));
        eventually(SOON, || listeners(node, redisson) == 1);
        body();
        redisson.unlock();
        soon(|| waits.join().unwrap().unwrap());
    });
}

fn an_unlock_of_redisson_wakes_a_waiter(server: &Server) {
    let waiter = server.open(sleepy().redisson(true));
    let mut redisson = Redisson::new(server, "a");
    for _ in 0..3 {
        until_unlocked(server, &waiter, &mut redisson, "a", || {});
    }
}

fn a_waiter_is_woken_by_redisson_after_its_connection_was_closed(server: &Server) {
    let waiter = server.open(sleepy().redisson(true));
    let mut redisson = Redisson::new(server, "a");
    until_unlocked(server, &waiter, &mut redisson, "a", || {
        assert!(server.ask::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]) > 0);
        eventually(SOON, || listeners(server, &Redisson::new(server, "a")) == 1);
    });
}

fn a_hold_that_redisson_renews_stays(server: &Server) {
    let waiter = server.open(patient().redisson(true));
    let mut redisson = Redisson::new(server, "a");
    until_unlocked(server, &waiter, &mut redisson, "a", || {
        server.command(&["PEXPIRE", &lock_key("a"), "1000"]);
        throughout(ms(2500), || {
            // The script of its renewal does nothing else.
            server.command(&["PEXPIRE", &lock_key("a"), "1000"]);
            server.hold("a").0 == "uuid:1"
        });
    });
}

fn a_client_listens_only_while_it_waits(server: &Server) {
    let waiter = server.open(patient().redisson(true));
    let mut redisson = Redisson::new(server, "a");
    assert_eq!(redisson.try_lock(), None);
    assert!(waiter.try_lock("a").unwrap().is_none());
    assert_eq!(listeners(server, &redisson), 0);
    assert!(waiter.try_lock_for("a", ms(300)).unwrap().is_none());
    eventually(SOON, || listeners(server, &redisson) == 0);
    thread::scope(|scope| {
        // The second thread waits behind the first.
        let waits = [(); 2].map(|()| scope.spawn(|| waiter.lock("a").map(unlock)));
        eventually(SOON, || listeners(server, &redisson) == 1 && waiter.stats().waiting == 2);
        redisson.unlock();
        for wait in waits {
            wait.join().unwrap().unwrap();
        }
    });
    eventually(SOON, || listeners(server, &redisson) == 0);
}

fn an_unlock_while_subscribing_is_not_missed(server: &Server) {
    let mut redisson = Redisson::new(server, "a");
    assert_eq!(Redisson::new(server, "another").try_lock(), None);
    let waiter = server.open(sleepy().redisson(true));
    // It already listens on its own channel.
    assert!(waiter.try_lock_for("another", ms(50)).unwrap().is_none());
    eventually(SOON, || server.listeners(&waiter) == 1);
    for _ in 0..10 {
        eventually(SOON, || redisson.try_lock().is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            // This asks as fast as possible, mostly before the server knows of the subscription.
            while server.queue("a").is_empty() {}
            redisson.unlock();
            soon(|| waits.join().unwrap().unwrap());
        });
    }
}

fn open_as(server: &Server, rights: &[&str]) -> Client {
    let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame"];
    server.command(&[&user[..], rights].concat());
    let url = format!("redis://app:sesame@127.0.0.1:{}/", server.port());
    sleepy().redisson(true).open(&url).unwrap()
}

fn without_the_right_to_the_channel_clients_wake_each_other(server: &Server) {
    let rights = ["~*", "resetchannels", "&leasehold:*", "+@all"];
    let (holder, waiter) = (open_as(server, &rights), open_as(server, &rights));
    for _ in 0..3 {
        let guard = take(&holder, "a");
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock("a").map(unlock));
            eventually(SOON, || {
                server.queue("a") == [waiter.id()] && server.listeners(&waiter) == 1
            });
            guard.unlock().unwrap();
            soon(|| waits.join().unwrap().unwrap());
        });
    }
}

/// The further rights that the documentation requires.
const RIGHTS_WITH_REDISSON: &str = "&redisson_lock__channel:* +hvals +unsubscribe +pubsub|numsub";

fn the_documented_rights_are_enough(server: &Server) {
    let page = include_str!("../../../docs/deployment.md");
    assert!(page.contains(RIGHTS_WITH_REDISSON), "docs/deployment.md lists other rights");
    let rights: Vec<_> = RIGHTS.split(' ').chain(RIGHTS_WITH_REDISSON.split(' ')).collect();
    let client = open_as(server, &rights);
    let mut redisson = Redisson::new(server, "a");
    until_unlocked(server, &client, &mut redisson, "a", || {});
    let mut subscription = redisson.listen(server);
    client.lock("a").unwrap().unlock().unwrap();
    assert_eq!(subscription.message(), "0");
    drop(client.mutex("a").hold_at_least(ms(50)).lock().unwrap());
    assert_eq!(subscription.message(), "0");
    let log: Vec<Value> = server.ask(&["ACL", "LOG"]);
    assert!(log.is_empty(), "{log:?}");
}

#[test]
fn in_a_cluster_redisson_is_notified_on_its_sharded_channel() {
    let cluster = Cluster::shared();
    let client = cluster.open(patient().redisson(true));
    let name = unique_prefix();
    let mut redisson = Redisson::sharded(cluster.home(&name), &name);
    let mut subscription = redisson.listen(cluster.home(&name));
    let guard = client.lock(&name).unwrap();
    assert!(redisson.try_lock().is_some());
    guard.unlock().unwrap();
    assert_eq!(subscription.message(), "0");
    assert_eq!(redisson.try_lock(), None);
}

fn wakes_in_a_cluster(cluster: &Cluster) {
    let waiter = cluster.open(sleepy().redisson(true));
    for name in [unique_prefix(), unique_prefix()] {
        let node = cluster.home(&name);
        until_unlocked(node, &waiter, &mut Redisson::sharded(node, &name), &name, || {});
    }
}

#[test]
fn an_unlock_of_redisson_wakes_a_waiter_in_a_cluster() {
    wakes_in_a_cluster(Cluster::shared());
}

#[test]
fn an_unlock_of_redisson_wakes_a_waiter_in_a_valkey_cluster() {
    wakes_in_a_cluster(Cluster::shared_valkey());
}

#[test]
fn a_waiter_is_woken_by_redisson_after_its_slot_has_moved() {
    let cluster = Cluster::of_three();
    let waiter = cluster.open(sleepy().redisson(true));
    let name = cluster.name_at(0);
    let (home, away) = (cluster.home(&name), cluster.away(&name));
    let mut redisson = Redisson::sharded(home, &name);
    assert_eq!(redisson.try_lock(), None);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(&name).map(unlock));
        eventually(SOON, || listeners(home, &redisson) == 1);
        cluster.move_away(&name).complete();
        redisson.connection = away.connect();
        eventually(SOON, || listeners(away, &redisson) == 1);
        redisson.unlock();
        soon(|| waits.join().unwrap().unwrap());
    });
}

#[test]
fn independent_servers_cannot_exchange_wake_ups() {
    let urls: Vec<String> = Quorum::of(1).servers.iter().map(Node::url).collect();
    let error = patient().redisson(true).open_redlock(&urls).unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
}

fn clients_of_one_builder_listen_for_themselves(server: &Server) {
    if cfg!(target_os = "linux") {
        Child::start(wait_with_two_clients_in_a_child, &server.address()).finish();
    }
}

/// Runs in a process of its own, because other tests take processor time too.
#[test]
#[ignore = "a child of clients_of_one_builder_listen_for_themselves"]
fn wait_with_two_clients_in_a_child() {
    let Some(address) = child::address() else { return };
    let holder = address.open(patient());
    let guard = take(&holder, "a");
    let builder = sleepy().redisson(true);
    let clients = [address.open(builder.clone()), address.open(builder)];
    thread::scope(|scope| {
        let threads = clients.each_ref().map(|client| scope.spawn(|| client.lock("a").map(drop)));
        eventually(SOON, || clients.iter().all(|client| client.stats().waiting == 1));
        // The listeners start meanwhile.
        thread::sleep(ms(500));
        let before = processor_ticks();
        thread::sleep(ms(2000));
        let used = processor_ticks() - before;
        assert!(used < 20, "{used} ticks of 10 ms");
        unlock(guard);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
}

/// Returns the processor time of this process so far.
fn processor_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name of the program comes first, in brackets.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
