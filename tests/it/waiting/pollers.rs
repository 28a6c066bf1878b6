//! Locks shared with programs that poll for them, with `SET NX PX` and pauses.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::Client;

use crate::support::cluster::unique_prefix;
use crate::support::server::Server as Node;
use crate::support::{
    Cluster, SOON, Server, eventually, lock_key, ms, opened, patient, stores, take, unlock,
};

stores! {
    every server:
        pollers_and_clients_both_get_their_share,
        a_poller_without_pauses_does_not_shut_clients_out,
        the_clients_turn_ends_with_a_free_lock,
        a_turn_ends_if_the_clock_is_set_back,
        without_the_setting_pollers_have_no_turn;
}

/// Whose turn it is at lock `a`.
const TURN: &str = "leasehold:pollers:{lock:a}";

/// The contenders for a lock, and for how long each holds it.
struct Crowd {
    pollers: usize,
    pause: Duration,
    threads: usize,
    hold: Duration,
}

impl Crowd {
    /// Runs all contenders for a lock until it was held that many times, and returns the pollers'
    /// share.
    fn share_of_pollers(&self, nodes: &[&Node], clients: &[Client], turns: u32) -> f64 {
        let [ours, theirs] = [AtomicU32::new(0), AtomicU32::new(0)];
        let goes_on = || ours.load(Ordering::SeqCst) + theirs.load(Ordering::SeqCst) < turns;
        thread::scope(|scope| {
            for client in clients {
                for _ in 0..self.threads {
                    scope.spawn(|| {
                        while goes_on() {
                            let guard = client.lock("a").unwrap();
                            ours.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(self.hold);
                            drop(guard);
                        }
                    });
                }
            }
            for number in 0..self.pollers {
                let (goes_on, theirs) = (&goes_on, &theirs);
                scope.spawn(move || {
                    let mut poller = Poller::new(nodes, number);
                    while goes_on() {
                        if poller.tries() {
                            theirs.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(self.hold);
                            poller.release();
                        } else {
                            thread::sleep(self.pause);
                        }
                    }
                });
            }
        });
        let [ours, theirs] = [ours, theirs].map(|turns| f64::from(turns.into_inner()));
        theirs / (ours + theirs)
    }
}

/// A program that polls for the lock.
struct Poller {
    connections: Vec<redis::Connection>,
    token: String,
}

impl Poller {
    fn new(nodes: &[&Node], number: usize) -> Self {
        let connections = nodes.iter().map(|node| node.connect()).collect();
        Self { connections, token: format!("poller {number}") }
    }

    fn tries(&mut self) -> bool {
        let required = self.connections.len() / 2 + 1;
        let got = self.connections.iter_mut().filter_map(|connection| {
            let mut set = redis::cmd("SET");
            let set = set.arg(lock_key("a")).arg(&self.token).arg("NX").arg("PX").arg(10_000);
            set.query::<Option<String>>(connection).unwrap()
        });
        let has_it = got.count() >= required;
        if !has_it && required > 1 {
            self.release();
        }
        has_it
    }

    fn release(&mut self) {
        let script = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1])";
        for connection in &mut self.connections {
            let mut eval = redis::cmd("EVAL");
            // It may be a lock of leasehold, which is not a string.
            let released = eval.arg(script).arg(1).arg(lock_key("a")).arg(&self.token);
            released.query::<Option<u32>>(connection).unwrap_or_default();
        }
    }
}

fn pollers_and_clients_both_get_their_share(server: &Server) {
    let clients = [(); 2].map(|()| server.open(patient().pollers(true)));
    let crowd = Crowd { pollers: 2, pause: ms(5), threads: 2, hold: ms(1) };
    let share = crowd.share_of_pollers(&[server], &clients, 400);
    // Their share would be a third if every thread counted the same.
    assert!((0.1..0.85).contains(&share), "{share}");
}

fn a_poller_without_pauses_does_not_shut_clients_out(server: &Server) {
    let clients = [(); 2].map(|()| server.open(patient().pollers(true)));
    let crowd = Crowd { pollers: 1, pause: ms(0), threads: 1, hold: ms(1) };
    let share = crowd.share_of_pollers(&[server], &clients, 400);
    assert!((0.1..0.85).contains(&share), "{share}");
}

/// Returns whose turn it is at lock `a`.
fn turn(server: &Server) -> Option<String> {
    let turn: Option<String> = server.ask(&["GET", TURN]);
    turn.map(|turn| turn.split(' ').next().unwrap().to_owned())
}

fn set_turn(server: &Server, whose: &str, ahead: i64) {
    let (seconds, _): (i64, i64) = server.ask(&["TIME"]);
    server.command(&["SET", TURN, &format!("{whose} {} 0", 1000 * (seconds + ahead))]);
}

fn the_clients_turn_ends_with_a_free_lock(server: &Server) {
    let open = || server.open(patient().pollers(true));
    let (holder, waiter) = (open(), open());
    for seconds_left in [5, -5] {
        let guard = holder.lock("a").unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock_owned("a").unwrap());
            eventually(SOON, || server.queue("a") == [waiter.id()]);
            set_turn(server, "ours", seconds_left);
            let before: String = server.ask(&["GET", TURN]);
            guard.unlock().unwrap();
            // In the end it gets the lock in any case, and then it is the clients' turn.
            let guard = waits.join().unwrap();
            let after: String = server.ask(&["GET", TURN]);
            assert!(after.starts_with("ours "), "{after}");
            assert_eq!(after == before, seconds_left > 0, "{before} {after}");
            guard.unlock().unwrap();
        });
        server.command(&["DEL", TURN]);
    }
    unlock(take(&holder, "a"));
    assert_eq!(turn(server).as_deref(), Some("theirs"));
}

fn a_turn_ends_if_the_clock_is_set_back(server: &Server) {
    let client = server.open(patient().pollers(true));
    set_turn(server, "theirs", 3600);
    unlock(take(&client, "a"));
    set_turn(server, "ours", 3600);
    unlock(client.lock("a").unwrap());
    assert_eq!(turn(server).as_deref(), Some("theirs"));
    server.command(&["DEL", TURN]);
    server.command(&["HSET", TURN, "spoilt", "1"]);
    unlock(client.lock("a").unwrap());
}

fn without_the_setting_pollers_have_no_turn(server: &Server) {
    unlock(server.open(patient()).lock("a").unwrap());
    assert_eq!(turn(server), None);
}

#[test]
fn on_a_quorum_pollers_and_clients_both_get_their_share() {
    let servers = [(); 3].map(|()| Node::redis());
    let urls = servers.each_ref().map(Node::url);
    let open = || opened(|| patient().pollers(true).open_redlock(&urls));
    let crowd = Crowd { pollers: 2, pause: ms(5), threads: 2, hold: ms(1) };
    let share = crowd.share_of_pollers(&servers.each_ref(), &[open(), open()], 300);
    assert!((0.05..0.9).contains(&share), "{share}");
}

#[test]
fn in_a_cluster_a_set_is_locked_beside_pollers() {
    let cluster = Cluster::shared();
    let client = cluster.open(patient().pollers(true));
    let names = ["a", "b"].map(|name| format!("{}{name}", unique_prefix()));
    for _ in 0..2 {
        client.lock_all(&names).unwrap().unlock().unwrap();
    }
    unlock(client.lock(&names[0]).unwrap());
}
