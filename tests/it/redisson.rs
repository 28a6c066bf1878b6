//! Wake-ups for Redisson, which is played here by its own scripts, channel and messages.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use leasehold::Error;
use redis::{Connection, Value};

use crate::support::cluster::unique_prefix;
use crate::support::server::Server as Node;
use crate::support::{
    Cluster, Quorum, SOON, Server, eventually, lock_key, ms, patient, stores, take, unlock,
};

stores! {
    every server:
        every_end_of_a_hold_tells_redisson,
        inner_levels_and_handoffs_tell_redisson_nothing,
        without_the_setting_redisson_is_told_nothing,
        redisson_gets_a_share_of_the_turns;
}

/// The script of `RLock.tryLock()`.
const TRY_LOCK: &str = "if ((redis.call('exists', KEYS[1]) == 0) \
    or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
    redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); \
    return nil; end; return redis.call('pttl', KEYS[1]);";

/// The script of `RLock.unlock()`.
const UNLOCK: &str = "local val = redis.call('get', KEYS[3]); \
    if val ~= false then return tonumber(val); end; \
    if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
    local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
    if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); \
    redis.call('set', KEYS[3], 0, 'px', ARGV[5]); return 0; \
    else redis.call('del', KEYS[1]); redis.call(ARGV[4], KEYS[2], ARGV[1]); \
    redis.call('set', KEYS[3], 1, 'px', ARGV[5]); return 1; end;";

/// A thread of a Java service that uses `RLock` of one name.
struct Redisson {
    connection: Connection,
    key: String,
    /// What the names of its commands for channels begin with.
    form: &'static str,
}

impl Redisson {
    fn new(server: &Node, name: &str) -> Redisson {
        Redisson { connection: server.connect(), key: lock_key(name), form: "" }
    }

    /// In a cluster of Redis 7, where it uses sharded channels.
    fn sharded(node: &Node, name: &str) -> Redisson {
        Redisson { form: "s", ..Redisson::new(node, name) }
    }

    fn channel(&self) -> String {
        format!("redisson_lock__channel:{{{}}}", self.key)
    }

    /// Tries for the lock. Returns for how many milliseconds another has it.
    fn try_lock(&mut self) -> Option<i64> {
        let mut call = redis::cmd("EVAL");
        call.arg(TRY_LOCK).arg(1).arg(&self.key).arg(30_000).arg("uuid:1");
        call.query(&mut self.connection).expect("the script runs")
    }

    fn unlock(&mut self) {
        let latch = format!("redisson_unlock_latch:{{{}}}:{}", self.key, unique_prefix());
        let mut call = redis::cmd("EVAL");
        call.arg(UNLOCK).arg(3).arg(&self.key).arg(self.channel()).arg(latch);
        call.arg("0").arg(30_000).arg("uuid:1").arg(format!("{}publish", self.form)).arg(18_000);
        let freed: Option<i64> = call.query(&mut self.connection).expect("the script runs");
        assert_eq!(freed, Some(1), "it held the lock");
    }

    /// Begins to listen, over a connection of its own.
    fn listen(&self, server: &Node) -> Subscription {
        Subscription::begin(server, &format!("{}subscribe", self.form), &self.channel())
    }
}

/// The messages that Redisson gets.
struct Subscription {
    connection: Connection,
}

impl Subscription {
    fn begin(server: &Node, command: &str, channel: &str) -> Subscription {
        let mut connection = server.connect();
        connection.set_read_timeout(Some(SOON)).unwrap();
        let subscribe = redis::cmd(command).arg(channel).get_packed_command();
        connection.send_packed_command(&subscribe).unwrap();
        let mut subscription = Subscription { connection };
        assert_eq!(subscription.receive()[0], command);
        subscription
    }

    fn receive(&mut self) -> Vec<String> {
        let Value::Array(parts) = self.connection.recv_response().expect("a message") else {
            panic!("an array")
        };
        let text = |part| redis::from_redis_value(part).unwrap_or_default();
        parts.into_iter().map(text).collect()
    }

    fn message(&mut self) -> String {
        self.receive().pop().expect("a text")
    }
}

/// Publishes a message of the test, which a subscription gets after all that came before.
fn publish_end(server: &Node, redisson: &Redisson) {
    server.command(&["PUBLISH", &redisson.channel(), "end"]);
}

fn every_end_of_a_hold_tells_redisson(server: &Server) {
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
    // Redisson's own hold, too.
    assert_eq!(Redisson::new(server, "a").try_lock(), None);
    assert!(client.mutex("a").force_unlock().unwrap());
    assert_eq!(next(), "0");
    // The lock stays taken, for less time than Redisson has read.
    drop(client.mutex("a").hold_at_least(ms(500)).lock().unwrap());
    assert_eq!(next(), "0");
}

fn inner_levels_and_handoffs_tell_redisson_nothing(server: &Server) {
    let client = server.open(patient().redisson(true));
    let redisson = Redisson::new(server, "a");
    // Not counted as Redisson waiting, so that the lock may be handed off.
    let mut subscription = Subscription::begin(server, "psubscribe", "redisson_lock__channel:*");
    let guard = take(&client, "a");
    drop(take(&client, "a"));
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").map(unlock));
        eventually(SOON, || client.stats().waiting == 1);
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
    publish_end(server, &redisson);
    // The same to Redisson, of the second thread.
    assert_eq!([subscription.message(), subscription.message()], ["00", "end"]);
}

fn without_the_setting_redisson_is_told_nothing(server: &Server) {
    let client = server.open(patient());
    let redisson = Redisson::new(server, "a");
    let mut subscription = redisson.listen(server);
    client.lock("a").unwrap().unlock().unwrap();
    take(&client, "a").unlock().unwrap();
    publish_end(server, &redisson);
    assert_eq!(subscription.message(), "end");
    assert!(!server.keys().iter().any(|key| key.contains("turn")));
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
                // The last one to wait is told.
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

#[test]
fn in_a_cluster_redisson_is_told_on_its_sharded_channel() {
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

#[test]
fn independent_servers_cannot_exchange_wake_ups() {
    let urls: Vec<String> = Quorum::of(1).servers.iter().map(Node::url).collect();
    let error = patient().redisson(true).open_redlock(&urls).unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
}
