//! "Bare", the least that a lock on Redis does: one key with a lease, and neither a fence nor a
//! waiting client.

use redis::Connection;

use super::raw::connect;

const ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                       return 1 end return 0";
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                       return redis.call('DEL', KEYS[1]) end return 0";

pub(crate) struct Bare {
    connection: Connection,
    key: String,
    acquire: redis::Script,
    release: redis::Script,
}

impl Bare {
    pub(crate) fn connect(url: &str, name: &str) -> Self {
        let [acquire, release] = [ACQUIRE, RELEASE].map(redis::Script::new);
        Self { connection: connect(url), key: format!("bare:{name}"), acquire, release }
    }

    pub(crate) fn lock_and_unlock(&mut self) {
        let Self { connection, key, acquire, release } = self;
        let owner = "0123456789abcdef0123456789abcdef:1";
        let held: bool = acquire
            .key(&*key)
            .arg(owner)
            .arg(30_000)
            .invoke(connection)
            .expect("the server runs the script");
        let freed: bool =
            release.key(&*key).arg(owner).invoke(connection).expect("the server runs the script");
        assert!(held && freed, "no other program uses it");
    }
}
