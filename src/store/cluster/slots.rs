//! The hash slots: which one a key is in, which node serves each as far as is known, and what nodes
//! reply to `CLUSTER SLOTS`.

use std::collections::HashMap;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::Value;

use crate::store::cluster::node::{ClusterNode, is_known};

/// How many hash slots there are.
pub(super) const SLOTS: usize = 16_384;

/// CRC-16/XMODEM of each byte.
static TABLE: [u16; 256] = table();

/// The slot of a key: Redis hashes what is between the first `{` and the first `}` after it, or the
/// whole key if that is empty or not there.
pub(super) fn slot_of(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    usize::from(crc16(tag.unwrap_or(key).as_bytes())) % SLOTS
}

/// A hash tag whose slot that is.
pub(super) fn tag_of(slot: usize) -> String {
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

/// The nodes by slot.
#[derive(Debug)]
pub(super) struct Map {
    owners: Vec<Option<Arc<ClusterNode>>>,
    /// By address.
    masters: HashMap<Arc<str>, Arc<ClusterNode>>,
    version: u64,
}

impl Default for Map {
    fn default() -> Self {
        Self { owners: vec![None; SLOTS], masters: HashMap::new(), version: 0 }
    }
}

impl Map {
    pub(super) fn owner(&self, slot: usize) -> Option<&Arc<ClusterNode>> {
        self.owners[slot].as_ref()
    }

    pub(super) fn master(&self, address: &str) -> Option<&Arc<ClusterNode>> {
        self.masters.get(address)
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.masters.values()
    }

    /// Grows with every change of `masters`.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Sets the owner of one slot.
    pub(super) fn set(&mut self, slot: usize, node: &Arc<ClusterNode>) {
        self.owners[slot] = Some(node.clone());
        let before = self.masters.insert(node.label().clone(), node.clone());
        if before.is_none_or(|before| !Arc::ptr_eq(&before, node)) {
            self.version += 1;
        }
    }

    /// Sets the owners of all slots, and returns the map until now.
    pub(super) fn replace(&mut self, owners: Vec<Option<Arc<ClusterNode>>>) -> Self {
        let masters: HashMap<_, _> =
            owners.iter().flatten().map(|node| (node.label().clone(), node.clone())).collect();
        let known = |(label, node): (&Arc<str>, &Arc<ClusterNode>)| {
            self.masters.get(label).is_some_and(|before| Arc::ptr_eq(before, node))
        };
        let same = masters.len() == self.masters.len() && masters.iter().all(known);
        let version = if same { self.version } else { self.version + 1 };
        mem::replace(self, Self { owners, masters, version })
    }
}

/// Some slots, and the master that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) slots: RangeInclusive<usize>,
    /// `None`: the host that was asked.
    pub(super) host: Option<String>,
    pub(super) port: u16,
}

/// Reads the reply; `None` if it has another shape.
pub(super) fn shares(reply: &Value) -> Option<Vec<Share>> {
    let Value::Array(entries) = reply else { return None };
    entries.iter().map(share).collect()
}

/// Reads `[first slot, last slot, [host, port, …] of the master, replicas…]`.
fn share(entry: &Value) -> Option<Share> {
    let Value::Array(parts) = entry else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
    let host = match host {
        Value::Nil => None,
        Value::BulkString(bytes) => Some(str::from_utf8(bytes).ok()?.to_owned()),
        _ => return None,
    };
    (first <= last && last < SLOTS).then_some(Share {
        slots: first..=last,
        host: host.filter(|host| is_known(host)),
        port: u16::try_from(*port).ok()?,
    })
}

/// How many slots are served.
pub(super) fn covered(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.slots.clone().count()).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{cases, values};

    proptest! {
        #![proptest_config(cases(4000))]

        #[test]
        fn whatever_a_node_replies_names_slots_that_exist_or_has_another_shape(
            reply in values(),
            first in any::<i64>(),
            last in -1..20_000_i64,
            host in values(),
            port in any::<i64>(),
        ) {
            let nearly_right = Value::Array(vec![entry(first % 20_000, last, host, port)]);
            for reply in [reply, nearly_right] {
                for share in shares(&reply).unwrap_or_default() {
                    prop_assert!(share.slots.start() <= share.slots.end());
                    prop_assert!(*share.slots.end() < SLOTS);
                }
            }
        }
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"0a1b".to_vec());
        let node = Value::Array(vec![host, Value::Int(port), id, Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    fn text(host: &str) -> Value {
        Value::BulkString(host.into())
    }

    #[test]
    fn masters_and_their_slots_are_read() {
        let reply = Value::Array(vec![
            entry(0, 8000, text("10.0.0.1"), 7000),
            entry(8001, 16_382, text("?"), 7001),
            entry(16_383, 16_383, Value::Nil, 7002),
        ]);
        let shares = shares(&reply).expect("a good reply");
        let host = |host: &str| Some(host.to_owned());
        assert_eq!(shares[0], Share { slots: 0..=8000, host: host("10.0.0.1"), port: 7000 });
        assert_eq!(shares[1], Share { slots: 8001..=16_382, host: None, port: 7001 });
        assert_eq!(shares[2], Share { slots: 16_383..=16_383, host: None, port: 7002 });
        assert_eq!(covered(&shares), SLOTS);
    }

    #[test]
    fn replies_of_another_shape_are_refused() {
        let odd = [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(0, 16_384, text("host"), 7000)]),
            Value::Array(vec![entry(5, 4, text("host"), 7000)]),
            Value::Array(vec![entry(-1, 4, text("host"), 7000)]),
            Value::Array(vec![entry(0, 4, text("host"), 70_000)]),
            Value::Array(vec![entry(0, 4, Value::Int(1), 7000)]),
        ];
        for reply in odd {
            assert_eq!(shares(&reply), None, "{reply:?}");
        }
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
