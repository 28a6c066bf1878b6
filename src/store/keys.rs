//! The keys of a lock, all in one hash slot; the lock names that this allows; and the slots of a
//! cluster.

use std::borrow::Cow;

use crate::config::{NAME_MAX, RESERVED};
use crate::error::{Error, Result};

/// Derives the keys of a lock from its name.
#[derive(Clone)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Returns the key of the hash with the owner and the depth: prefix and name, verbatim.
    pub(crate) fn lock<'n>(&self, name: &'n str) -> Cow<'n, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(name)
        } else {
            Cow::Owned([&self.prefix, name].concat())
        }
    }

    /// Returns the key of a lock, and its companions of the given kinds.
    pub(crate) fn with_companions<'n, const N: usize>(
        &self,
        name: &'n str,
        kinds: [&str; N],
    ) -> (Cow<'n, str>, [String; N]) {
        let lock = self.lock(name);
        let companions = companions(&lock, kinds);
        (lock, companions)
    }

    /// Returns the channel on which a client is woken. `wake.lua` builds the same name.
    pub(crate) fn channel(client: &str) -> String {
        format!("{RESERVED}wake:{client}")
    }

    /// Returns the sharded channel of a client at the cluster node that serves the slot of a hash
    /// tag, given the client's channel.
    pub(crate) fn shard_channel(channel: &str, tag: &str) -> String {
        format!("{channel}:{{{tag}}}")
    }

    /// Returns the start of the keys of all queues.
    pub(crate) fn queue_start() -> String {
        [RESERVED, QUEUE, ":"].concat()
    }

    /// Returns the name whose queue of waiting clients has this key; `None` for any other key, and
    /// for another prefix.
    pub(crate) fn name_of_queue<'k>(&self, queue: &'k str) -> Option<&'k str> {
        let lock = queue.strip_prefix(&Self::queue_start())?;
        let in_braces = lock.strip_prefix('{').and_then(|lock| lock.strip_suffix('}'));
        let names = in_braces.into_iter().chain([lock]);
        let mut names = names.filter_map(|lock| self.name(lock));
        names.find(|name| self.with_companions(name, [QUEUE]).1 == [queue])
    }

    /// Returns the name of the lock with this key; `None` if the key has another prefix.
    pub(crate) fn name<'k>(&self, lock: &'k str) -> Option<&'k str> {
        lock.strip_prefix(self.prefix.as_str())
    }
}

/// The counter of fencing tokens of a lock.
pub(crate) const FENCE: &str = "fence";
/// The queue of clients that wait for a lock.
pub(crate) const QUEUE: &str = "queue";
/// The notes of the holds of a name, by owner.
pub(crate) const NOTE: &str = "note";
/// When Redisson's turn at a lock ends.
pub(crate) const TURN: &str = "turn";
/// Whose turn it is at a lock for which other programs poll.
pub(crate) const POLLERS: &str = "pollers";

/// Returns the companion keys of a lock, which are in the same slot. `check_name` has accepted its
/// name.
pub(crate) fn companions<const N: usize>(lock: &str, kinds: [&str; N]) -> [String; N] {
    let (open, close) = if hash_tag(lock).is_some() { ("", "") } else { ("{", "}") };
    // Allocates once, unlike `format!`.
    kinds.map(|kind| [RESERVED, kind, ":", open, lock, close].concat())
}

/// Returns an error if no lock can have this name.
///
/// The keys of a lock and of its companions must share a hash slot. A key without a hash tag is put
/// into braces, which works only if it contains no `}`.
pub(crate) fn check_name(prefix: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return refuse(&format!("must be 1 to {NAME_MAX} bytes"));
    }
    if prefix.bytes().chain(name.bytes()).take(RESERVED.len()).eq(RESERVED.bytes()) {
        return refuse(&format!("must not begin with {RESERVED:?}, prefix included"));
    }
    if !name.contains(['{', '}']) && !prefix.contains(['{', '}']) {
        return Ok(());
    }
    let key = [prefix, name].concat();
    if hash_tag(&key).is_none() && key.contains('}') {
        let why = "must not contain `}`, prefix included, unless it has a hash tag such as `{tag}`";
        return refuse(why);
    }
    // The same name without braces would have the same companion keys.
    if key.starts_with('{') && key.find('}') == Some(key.len() - 1) {
        return refuse(
            "must not be nothing but a hash tag, prefix included: `{x}` has the keys of `x`",
        );
    }
    Ok(())
}

fn refuse(why: &str) -> Result<()> {
    Err(Error::invalid("name", why))
}

/// Returns the hash tag of a key, which Redis hashes instead of the whole key: the text between the
/// first `{` and the next `}`, unless it is empty.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

pub(crate) const SLOTS: usize = 16_384;

pub(crate) fn slot_of(key: &str) -> usize {
    usize::from(crc16(hash_tag(key).unwrap_or(key).as_bytes())) % SLOTS
}

/// Returns a hash tag in that slot.
pub(crate) fn tag_of(slot: usize) -> String {
    // For every slot there is a number with few digits that hashes to it.
    let mut tags = (0_u32..).map(|number| number.to_string());
    tags.find(|tag| slot_of(tag) == slot).unwrap_or_default()
}

/// CRC-16/XMODEM, a byte at a time.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let high = (crc >> 8) ^ u16::from(*byte);
        let high = high ^ (high >> 4);
        (crc << 8) ^ (high << 12) ^ (high << 5) ^ high
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::Config;
    use crate::store::tests::process;

    #[test]
    fn names_that_would_break_the_slot_rule_are_refused() {
        for good in ["a", "{a}:b", "x{a}b}", "a{b", "a{b}{}", " ", "🐉"] {
            check_name("", good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
        }
        for bad in ["", "{a}", "{{a}", "a}", "}", "{}", "{}{a}", "}{", "a{}b", "leasehold:x"] {
            assert!(check_name("", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_judged_with_its_prefix() {
        assert!(check_name("lease", "hold:x").is_err());
        assert!(check_name("leasehold", "x").is_ok());
        assert!(check_name("{shop}", "a}").is_ok());
        assert!(check_name("}", "a").is_err());
        assert!(check_name("p", "leasehold:x").is_ok());
        for good in ["leasehold:x", "{x}", "{{x}", "a{b}"] {
            check_name("lock:", good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
        }
        for bad in ["", "}", "a}", "{}", "{}{a}", "}{"] {
            assert!(check_name("lock:", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_without_a_hash_tag_is_put_into_braces() {
        assert_eq!(companions("stock", [FENCE]), ["leasehold:fence:{stock}"]);
        assert_eq!(companions("a{b", [FENCE]), ["leasehold:fence:{a{b}"]);
        assert_eq!(companions("{user}:stock", [FENCE]), ["leasehold:fence:{user}:stock"]);
    }

    #[test]
    fn a_queue_leads_back_to_its_name() {
        for prefix in ["", "lock:", "{tag}"] {
            let keys = Keys::new(prefix);
            for name in ["stock", "a{b", "user:{7}:x", "x:leasehold:queue:a"] {
                let (lock, [fence, queue]) = keys.with_companions(name, [FENCE, QUEUE]);
                assert_eq!(keys.name_of_queue(&queue), Some(name), "{queue}");
                assert!([&*lock, &fence].iter().all(|key| keys.name_of_queue(key).is_none()));
                assert_eq!(Keys::new("other:").name_of_queue(&queue), None, "{queue}");
            }
        }
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
                .filter(|name| check_name(&config.prefix, name).is_ok())
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

    /// A short name with many braces.
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

    /// The expected values are those of `CLUSTER KEYSLOT`.
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
