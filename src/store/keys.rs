//! The names of keys, all in one hash slot per lock.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::config::lock_name::{RESERVED, has_hash_tag};

/// Makes the keys of a lock from its name.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The hash with the owner and the depth: prefix and name, verbatim.
    pub(crate) fn lock<'n>(&self, name: &'n str) -> Cow<'n, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(name)
        } else {
            Cow::Owned([&self.prefix, name].concat())
        }
    }

    /// The counter of fencing tokens of the lock with this key.
    pub(crate) fn fence(lock: &str) -> String {
        companion("fence", lock)
    }

    /// The queue of clients that wait for the lock with this key.
    pub(crate) fn waiting(lock: &str) -> String {
        companion("queue", lock)
    }

    /// The end of Redisson's turn at the lock with this key.
    pub(crate) fn turn(lock: &str) -> String {
        companion("turn", lock)
    }

    /// The channel on which a client is woken. `wake.lua` has its name too.
    pub(crate) fn channel(client: &str) -> String {
        format!("{RESERVED}wake:{client}")
    }

    /// The sharded channel of a client at the node of a cluster that serves the slot of a hash tag,
    /// from the client's channel.
    pub(crate) fn shard_channel(channel: &str, tag: &str) -> String {
        format!("{channel}:{{{tag}}}")
    }

    /// The name of the lock with this key; `None` if the key has another prefix.
    pub(crate) fn name<'k>(&self, lock: &'k str) -> Option<&'k str> {
        lock.strip_prefix(self.prefix.as_str())
    }
}

/// The hash tag of sharded channels at one node of a cluster, if one is known. It changes when
/// slots move. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardTag(Arc<RwLock<Option<Arc<str>>>>);

impl ShardTag {
    pub(crate) fn get(&self) -> Option<Arc<str>> {
        self.0.read().clone()
    }

    pub(crate) fn set(&self, tag: &str) {
        *self.0.write() = Some(tag.into());
    }
}

/// A key in the slot of `lock`, which `lock_name::check` has accepted.
fn companion(kind: &str, lock: &str) -> String {
    let (open, close) = if has_hash_tag(lock) { ("", "") } else { ("{", "}") };
    // Unlike `format!`, allocates no more than once.
    [RESERVED, kind, ":", open, lock, close].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::store::tests::process;

    #[test]
    fn a_name_without_a_hash_tag_is_put_into_braces() {
        assert_eq!(Keys::fence("stock"), "leasehold:fence:{stock}");
        assert_eq!(Keys::fence("a{b"), "leasehold:fence:{a{b}");
        assert_eq!(Keys::fence("{user}:stock"), "leasehold:fence:{user}:stock");
    }

    /// Asks a real server, because the rule is the server's.
    #[test]
    fn all_keys_of_a_name_are_in_one_slot() {
        let process = process::Server::start("redis-server", &["--cluster-enabled", "yes"]);
        let mut connection = process.connect();
        let mut slots = |keys: Vec<String>| -> Vec<u16> {
            let mut requests = redis::pipe();
            for key in keys {
                requests.cmd("CLUSTER").arg("KEYSLOT").arg(key);
            }
            requests.query(&mut connection).expect("slots")
        };
        let mut random = 1_u64;
        let usual = Config::default();
        for config in [Config { prefix: String::new(), ..usual.clone() }, usual] {
            let keys = Keys::new(&config.prefix);
            let names: Vec<String> = std::iter::repeat_with(|| random_name(&mut random))
                .filter(|name| config.check_name(name).is_ok())
                .take(10_000)
                .collect();
            let keys: Vec<_> = names.iter().map(|name| keys.lock(name).into_owned()).collect();
            let fences = slots(keys.iter().map(|lock| Keys::fence(lock)).collect());
            let queues = slots(keys.iter().map(|lock| Keys::waiting(lock)).collect());
            let turns = slots(keys.iter().map(|lock| Keys::turn(lock)).collect());
            let locks = slots(keys);
            for (number, name) in names.iter().enumerate() {
                assert_eq!(locks[number], fences[number], "{name:?}");
                assert_eq!(locks[number], queues[number], "{name:?}");
                assert_eq!(locks[number], turns[number], "{name:?}");
            }
        }
    }

    /// A short name, rich in braces.
    fn random_name(state: &mut u64) -> String {
        let mut draw = |below: u64| {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (*state >> 33) % below
        };
        let length = 1 + draw(12);
        (0..length)
            .map(|_| match draw(8) {
                0 => '{',
                1 => '}',
                2 => ':',
                3 => '\u{1f409}',
                4 => '\r',
                letter => char::from(b'a' + u8::try_from(letter).unwrap_or(0)),
            })
            .collect()
    }

    #[test]
    fn the_prefix_belongs_to_the_name() {
        let keys = Keys::new("shop:");
        assert_eq!(keys.lock("stock"), "shop:stock");
        assert_eq!(Keys::fence(&keys.lock("stock")), "leasehold:fence:{shop:stock}");
        assert_eq!(Keys::waiting(&keys.lock("stock")), "leasehold:queue:{shop:stock}");
        assert_eq!(keys.name("shop:stock"), Some("stock"));
        assert_eq!(keys.name("stock"), None);
    }
}
