//! Pairs of scripts to compare leasehold's with: the minimum of a lock on Redis, one key with a
//! lease, but no fence and no waiting clients; and the same commands as leasehold's, with nothing
//! around them.

use redis::{Connection, Script, ScriptInvocation};

use super::raw::{FENCE_TTL_MS, LEASE_MS, OWNER, connect};

const LEAST: [&str; 2] = [
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
];

/// For a free lock that no client waits for.
const SAME_COMMANDS: [&str; 2] = [
    "redis.call('PTTL', KEYS[1]) \
     local time = redis.call('TIME') \
     redis.call('SET', KEYS[2], time[1] .. time[2], 'PX', ARGV[3], 'GET') \
     redis.call('HSET', KEYS[1], ARGV[1], 1) \
     return redis.call('PEXPIRE', KEYS[1], ARGV[2])",
    "local freed = redis.call('HDEL', KEYS[1], ARGV[1]) \
     redis.call('EXISTS', KEYS[3]) \
     return freed",
];

pub(crate) struct Bare {
    connection: Connection,
    keys: Vec<String>,
    acquire: Script,
    release: Script,
}

impl Bare {
    /// Returns the minimum of a lock.
    pub(crate) fn least(url: &str, name: &str) -> Self {
        Self::connect(url, LEAST, vec![format!("bare:{name}")])
    }

    /// Returns the commands of leasehold's scripts.
    pub(crate) fn same_commands(url: &str, name: &str) -> Self {
        let keys = ["", "fence:", "queue:"].map(|part| format!("same:{part}{{{name}}}"));
        Self::connect(url, SAME_COMMANDS, keys.into())
    }

    fn connect(url: &str, scripts: [&str; 2], keys: Vec<String>) -> Self {
        let [acquire, release] = scripts.map(Script::new);
        Self { connection: connect(url), keys, acquire, release }
    }

    pub(crate) fn lock_and_unlock(&mut self) {
        let Self { connection, keys, acquire, release } = self;
        let mut acquire = begin(acquire, keys);
        let held: bool = acquire
            .arg(LEASE_MS)
            .arg(FENCE_TTL_MS)
            .invoke(connection)
            .expect("the server runs the script");
        let freed: bool =
            begin(release, keys).invoke(connection).expect("the server runs the script");
        assert!(held && freed, "no other program uses it");
    }
}

fn begin<'a>(script: &'a Script, keys: &[String]) -> ScriptInvocation<'a> {
    let mut call = script.prepare_invoke();
    for key in keys {
        call.key(key);
    }
    call.arg(OWNER);
    call
}
