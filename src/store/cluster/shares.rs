//! The reply to `CLUSTER SLOTS`.

use std::ops::RangeInclusive;

use redis::Value;

use crate::store::cluster::node::is_known;
use crate::store::cluster::slot::SLOTS;

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
}
