//! What the tests look up in a server, and the faults that they cause there.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::Client;

use super::server::Server;

impl Server {
    pub(crate) fn exists(&self, key: &str) -> bool {
        self.ask(&["EXISTS", key])
    }

    pub(crate) fn hash(&self, key: &str) -> BTreeMap<String, String> {
        self.ask(&["HGETALL", key])
    }

    /// The owner and the depth in a lock's hash, which must have exactly one field.
    #[track_caller]
    pub(crate) fn hold(&self, key: &str) -> (String, String) {
        let hash = self.hash(key);
        assert_eq!(hash.len(), 1, "one field is one hold: {hash:?}");
        hash.into_iter().next().expect("it has one")
    }

    /// The reply of PTTL: -1 without a time to live, -2 without a key.
    pub(crate) fn raw_pttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key])
    }

    /// The time to live of a key that must have one.
    #[track_caller]
    pub(crate) fn pttl(&self, key: &str) -> Duration {
        let millis = u64::try_from(self.raw_pttl(key));
        Duration::from_millis(millis.expect("the key has a time to live"))
    }

    /// The time to live of a key that may be gone.
    pub(crate) fn pttl_or_zero(&self, key: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.raw_pttl(key)).unwrap_or(0))
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
        self.keys().into_iter().filter(of_type).collect()
    }

    /// The clients that wait for a lock, in the order of their arrival.
    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        self.ask(&["ZRANGE", &format!("leasehold:queue:{{{name}}}"), "0", "-1"])
    }

    /// The number of connections that receive the wake-ups of a client: one, once it has waited for
    /// another client.
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
        let stats: String = self.ask(&["INFO", "stats"]);
        let field = "total_connections_received:";
        let line = stats.lines().find_map(|line| line.strip_prefix(field));
        line.expect("there is such a number").parse().expect("it is a number")
    }

    pub(crate) fn set_config(&self, option: &str, value: &str) {
        self.command(&["CONFIG", "SET", option, value]);
    }

    /// Closes every connection but that of this command.
    pub(crate) fn kill_connections(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
}
