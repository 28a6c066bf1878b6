//! Redisson, played by its own scripts, channel and messages.

use redis::{Connection, Value};

use super::cluster::unique_prefix;
use super::server::{Server, lock_key};

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
pub(crate) struct Redisson {
    pub(crate) connection: Connection,
    pub(crate) key: String,
    /// Prefix of the names of its commands for channels.
    form: &'static str,
}

impl Redisson {
    pub(crate) fn new(server: &Server, name: &str) -> Redisson {
        Redisson { connection: server.connect(), key: lock_key(name), form: "" }
    }

    /// Creates one in a cluster of Redis 7, where it uses sharded channels.
    pub(crate) fn sharded(node: &Server, name: &str) -> Redisson {
        Redisson { form: "s", ..Redisson::new(node, name) }
    }

    pub(crate) fn channel(&self) -> String {
        format!("redisson_lock__channel:{{{}}}", self.key)
    }

    /// Tries for the lock. Returns for how many milliseconds another owner has it.
    pub(crate) fn try_lock(&mut self) -> Option<i64> {
        let mut call = redis::cmd("EVAL");
        call.arg(TRY_LOCK).arg(1).arg(&self.key).arg(30_000).arg("uuid:1");
        call.query(&mut self.connection).expect("the script runs")
    }

    pub(crate) fn unlock(&mut self) {
        let latch = format!("redisson_unlock_latch:{{{}}}:{}", self.key, unique_prefix());
        let mut call = redis::cmd("EVAL");
        call.arg(UNLOCK).arg(3).arg(&self.key).arg(self.channel()).arg(latch);
        call.arg("0").arg(30_000).arg("uuid:1").arg(format!("{}publish", self.form)).arg(18_000);
        let freed: Option<i64> = call.query(&mut self.connection).expect("the script runs");
        assert_eq!(freed, Some(1), "it held the lock");
    }

    /// Begins to listen, over a connection of its own.
    pub(crate) fn listen(&self, server: &Server) -> Subscription {
        Subscription::begin(server, &format!("{}subscribe", self.form), &self.channel())
    }
}

/// The messages to Redisson.
pub(crate) struct Subscription {
    pub(crate) connection: Connection,
}

impl Subscription {
    pub(crate) fn begin(server: &Server, command: &str, channel: &str) -> Subscription {
        let mut connection = server.connect();
        let subscribe = redis::cmd(command).arg(channel).get_packed_command();
        connection.send_packed_command(&subscribe).unwrap();
        let mut subscription = Subscription { connection };
        assert_eq!(subscription.receive()[0], command);
        subscription
    }

    pub(crate) fn receive(&mut self) -> Vec<String> {
        let Value::Array(parts) = self.connection.recv_response().expect("a message") else {
            panic!("an array")
        };
        let text = |part| redis::from_redis_value(part).unwrap_or_default();
        parts.into_iter().map(text).collect()
    }

    pub(crate) fn message(&mut self) -> String {
        self.receive().pop().expect("a text")
    }
}

/// Publishes a message of the test, which a subscription receives after all earlier ones.
pub(crate) fn publish_end(server: &Server, redisson: &Redisson) {
    server.command(&["PUBLISH", &redisson.channel(), "end"]);
}

/// Returns the number of listeners on the channel.
pub(crate) fn listeners(server: &Server, redisson: &Redisson) -> u64 {
    let command = if redisson.form == "s" { "SHARDNUMSUB" } else { "NUMSUB" };
    let (_, listeners): (String, u64) = server.ask(&["PUBSUB", command, &redisson.channel()]);
    listeners
}
