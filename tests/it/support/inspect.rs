//! Look-ups in a server, and faults that the tests cause there.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use leasehold::Client;

use super::server::{Server, lock_key};
use super::{SOON, eventually, ms};

/// The locks are those of clients without a prefix setting, and are looked up by their names.
impl Server {
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.ask(&["EXISTS", &lock_key(name)])
    }

    pub(crate) fn hash(&self, name: &str) -> BTreeMap<String, String> {
        self.ask(&["HGETALL", &lock_key(name)])
    }

    /// Returns the owner and the depth in a lock's hash, which must have exactly one field.
    #[track_caller]
    pub(crate) fn hold(&self, name: &str) -> (String, String) {
        let hash = self.hash(name);
        assert_eq!(hash.len(), 1, "one field is one hold: {hash:?}");
        hash.into_iter().next().expect("it has one")
    }

    /// Returns the reply of PTTL for a lock: -1 without a time to live, -2 without a key.
    pub(crate) fn raw_pttl(&self, name: &str) -> i64 {
        self.key_pttl(&lock_key(name))
    }

    /// Returns the time to live of a lock that must have one.
    #[track_caller]
    pub(crate) fn pttl(&self, name: &str) -> Duration {
        let millis = u64::try_from(self.raw_pttl(name));
        Duration::from_millis(millis.expect("the key has a time to live"))
    }

    /// Returns the time to live of a lock that may be gone.
    pub(crate) fn pttl_or_zero(&self, name: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.raw_pttl(name)).unwrap_or(0))
    }

    /// Returns the time to live of the counter of a name, which must have one.
    #[track_caller]
    pub(crate) fn fence_life(&self, name: &str) -> Duration {
        let millis = self.key_pttl(&format!("leasehold:fence:{{{}}}", lock_key(name)));
        Duration::from_millis(u64::try_from(millis).expect("the counter has a time to live"))
    }

    /// Returns the number of scripts that were run so far, once none has run for a while: this
    /// includes those that background threads were about to send.
    #[track_caller]
    pub(crate) fn settled_evals(&self) -> u64 {
        let mut scripts = self.evals();
        eventually(SOON, || {
            thread::sleep(ms(100));
            let before = scripts;
            scripts = self.evals();
            scripts == before
        });
        scripts
    }

    /// Returns the reply of PTTL for any key.
    pub(crate) fn key_pttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key])
    }

    /// All keys, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    /// The names of all locks, which are hashes; other keys are companions of names.
    pub(crate) fn hashes(&self) -> Vec<String> {
        let of_type = |key: &String| self.ask::<String>(&["TYPE", key]) == "hash";
        let name = |key: String| key.strip_prefix("lock:").unwrap_or(&key).to_owned();
        self.keys().into_iter().filter(of_type).map(name).collect()
    }

    /// The clients that wait for a lock, in the order of their arrival.
    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        self.ask(&["ZRANGE", &format!("leasehold:queue:{{{}}}", lock_key(name)), "0", "-1"])
    }

    /// Returns the number of connections that receive the wake-ups of a client: one, once it has
    /// waited for another client.
    pub(crate) fn listeners(&self, client: &Client) -> u64 {
        self.subscribers(client.id())
    }

    pub(crate) fn subscribers(&self, client_id: &str) -> u64 {
        let channel = format!("leasehold:wake:{client_id}");
        let (_, subscribers): (String, u64) = self.ask(&["PUBSUB", "NUMSUB", &channel]);
        subscribers
    }

    /// The number of connections so far, including that of this command.
    pub(crate) fn connections(&self) -> u64 {
        self.total("total_connections_received:")
    }

    /// How often the server has read from a connection so far.
    pub(crate) fn reads(&self) -> u64 {
        self.total("total_reads_processed:")
    }

    fn total(&self, field: &str) -> u64 {
        let stats: String = self.ask(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(field));
        line.expect("there is such a number").parse().expect("it is a number")
    }

    pub(crate) fn set_config(&self, option: &str, value: &str) {
        self.command(&["CONFIG", "SET", option, value]);
    }

    /// Closes every connection except that of this command.
    pub(crate) fn kill_connections(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
}
