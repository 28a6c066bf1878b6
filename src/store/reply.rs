//! What the scripts answer. A reply of another shape is `None`.

use std::time::Duration;

use redis::Value;

use crate::store::{Bid, Handover, Holder, Standing};

/// Who has a lock, if anybody.
pub(crate) struct Inspected(pub(crate) Option<Holder>);

/// Tells whether a script has begun a hold or changed one: all that do say so with a 1 in front.
pub(crate) fn is_done(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => matches!(parts.first(), Some(Value::Int(1))),
        reply => *reply == Value::Int(1),
    }
}

/// Reads a reply of 1 or 0.
pub(crate) fn standing(reply: &Value) -> Option<Standing> {
    match reply {
        Value::Int(1) => Some(Standing::Ours),
        Value::Int(0) => Some(Standing::Gone),
        _ => None,
    }
}

/// Reads the reply of `acquire.lua`.
pub(crate) fn bid(reply: &Value) -> Option<Bid> {
    let Value::Array(parts) = reply else { return None };
    match parts[..] {
        [Value::Int(1), Value::Int(fence)] => Some(Bid::Won { fence: u64::try_from(fence).ok()? }),
        [Value::Int(0), Value::Int(millis)] => {
            Some(Bid::Busy { remaining: u64::try_from(millis).ok().map(Duration::from_millis) })
        }
        _ => None,
    }
}

/// Reads the reply of `transfer.lua`.
pub(crate) fn handover(reply: &Value) -> Option<Handover> {
    let Value::Array(parts) = reply else { return None };
    match parts[..] {
        [Value::Int(0), Value::Int(_)] => Some(Handover::Gone),
        [Value::Int(1), Value::Int(fence)] => {
            Some(Handover::Done { fence: u64::try_from(fence).ok()? })
        }
        [Value::Int(2), Value::Int(_)] => Some(Handover::Yielded),
        _ => None,
    }
}

/// Reads the reply of `inspect.lua`.
pub(crate) fn inspected(reply: &Value) -> Option<Inspected> {
    let Value::Array(parts) = reply else { return None };
    match &parts[..] {
        [] => Some(Inspected(None)),
        [Value::Int(millis), Value::BulkString(owner), Value::BulkString(depth)] => {
            let remaining = u64::try_from(*millis).map_or(Duration::MAX, Duration::from_millis);
            let owner = String::from_utf8_lossy(owner).into_owned();
            // A foreign hash may hold anything.
            let depth = str::from_utf8(depth).ok().and_then(|depth| depth.parse().ok());
            Some(Inspected(Some(Holder { owner, depth: depth.unwrap_or(1), remaining })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_another_shape_are_refused() {
        let odd = [
            Value::Nil,
            Value::Okay,
            Value::Int(2),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(-1)]),
            Value::Array(vec![Value::Int(3), Value::Int(5)]),
            Value::Array(vec![Value::Int(1), Value::Nil, Value::Nil]),
        ];
        for reply in odd {
            assert_eq!(standing(&reply), None, "{reply:?}");
            assert_eq!(bid(&reply), None, "{reply:?}");
            assert_eq!(handover(&reply), None, "{reply:?}");
            assert!(inspected(&reply).is_none(), "{reply:?}");
        }
    }

    #[test]
    fn a_holder_without_a_lease_is_busy_for_an_unknown_time() {
        let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
        assert_eq!(bid(&reply), Some(Bid::Busy { remaining: None }));
    }
}
