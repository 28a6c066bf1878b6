//! The names of keys, all in one hash slot per lock, and the slots of a cluster.

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

/// The counter of fencing tokens of a lock.
pub(crate) const FENCE: &str = "fence";
/// The queue of clients that wait for a lock.
pub(crate) const QUEUE: &str = "queue";
/// The end of Redisson's turn at a lock.
pub(crate) const TURN: &str = "turn";

/// The keys of such kinds in the slot of `lock`, which `lock_name::check` has accepted.
pub(crate) fn companions<const N: usize>(lock: &str, kinds: [&str; N]) -> [String; N] {
    let (open, close) = if has_hash_tag(lock) { ("", "") } else { ("{", "}") };
    // Unlike `format!`, allocates no more than once.
    kinds.map(|kind| [RESERVED, kind, ":", open, lock, close].concat())
}

/// How many hash slots there are.
pub(crate) const SLOTS: usize = 16_384;

/// CRC-16/XMODEM of each byte.
static TABLE: [u16; 256] = table();

/// The slot of a key: Redis hashes what is between the first `{` and the first `}` after it, or the
/// whole key if that is empty or not there.
pub(crate) fn slot_of(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    usize::from(crc16(tag.unwrap_or(key).as_bytes())) % SLOTS
}

/// A hash tag whose slot that is.
pub(crate) fn tag_of(slot: usize) -> String {
    // Every slot has a number with few digits.
    let mut tags = (0_u32..).map(|number| number.to_string());
    tags.find(|tag| slot_of(tag) == slot).unwrap_or_default()
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ TABLE[usize::from(high ^ byte)]
    })
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    let mut start = 0_u16;
    while byte < 256 {
        let mut crc = start << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
        start += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::Config;
    use crate::store::tests::process;

    #[test]
    fn a_name_without_a_hash_tag_is_put_into_braces() {
        assert_eq!(companions("stock", [FENCE]), ["leasehold:fence:{stock}"]);
        assert_eq!(companions("a{b", [FENCE]), ["leasehold:fence:{a{b}"]);
        assert_eq!(companions("{user}:stock", [FENCE]), ["leasehold:fence:{user}:stock"]);
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
            let others = keys.iter().flat_map(|lock| companions(lock, [FENCE, QUEUE, TURN]));
            let (others, locks) = (slots(others.collect()), slots(keys.clone()));
            for (number, name) in names.iter().enumerate() {
                assert_eq!([locks[number]; 3], others[3 * number..3 * number + 3], "{name:?}");
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
        let [fence, queue] = companions(&keys.lock("stock"), [FENCE, QUEUE]);
        assert_eq!(fence, "leasehold:fence:{shop:stock}");
        assert_eq!(queue, "leasehold:queue:{shop:stock}");
        assert_eq!(keys.name("shop:stock"), Some("stock"));
        assert_eq!(keys.name("stock"), None);
    }

    #[test]
    fn the_checksum_is_that_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn every_slot_has_a_short_hash_tag() {
        let slots: HashSet<usize> = (0..200_000).map(|tag| slot_of(&tag.to_string())).collect();
        assert_eq!(slots.len(), SLOTS);
        for slot in [0, 5461, SLOTS - 1] {
            assert_eq!(slot_of(&format!("key:{{{}}}", tag_of(slot))), slot);
        }
    }

    /// What `CLUSTER KEYSLOT` says.
    #[test]
    fn only_a_hash_tag_counts_where_there_is_one() {
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("bar{foo}"), 12_182);
        assert_eq!(slot_of("{foo}{bar}"), 12_182);
        assert_eq!(slot_of("foo{}{bar}"), 8363);
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_eq!(slot_of("a{b"), slot_of("{a{b}"));
    }
}
