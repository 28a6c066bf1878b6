//! What the replies of the scripts mean.

use std::time::Duration;

use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::base::report::HeldAs;
use crate::net::request::Reply;
use crate::store::request::{AcquireReply, HoldReply, HolderReply, ReportReply};

pub(super) const ACQUIRE: Decoder<AcquireReply> = Decoder::new(acquire_reply);
pub(super) const COUNT: Decoder<u32> = Decoder::new(count_reply);
pub(super) const HOLDER: Decoder<Option<HolderReply>> = Decoder::new(holder_reply);
pub(super) const REPORT: Decoder<ReportReply> = Decoder::new(report_reply);

/// A hold is gone if its key now has something else than a lock.
pub(super) const HOLD_OR_GONE: Decoder<HoldReply> =
    Decoder { read: hold_reply, on_wrong_type: Some(HoldReply::Gone) };

/// Decodes the replies to one kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<T> {
    read: fn(&Value) -> Option<T>,
    /// What it means that the key of the lock has something else; `None` if that is a failure.
    on_wrong_type: Option<T>,
}

impl<T> Decoder<T> {
    const fn new(read: fn(&Value) -> Option<T>) -> Self {
        Self { read, on_wrong_type: None }
    }
}

impl<T: Clone> Decoder<T> {
    /// Returns the meaning of a reply, or the failure that it is; `None` if it has another shape
    /// than the replies of the script.
    pub(crate) fn decode(&self, reply: Reply) -> Option<Result<T, Failure>> {
        match (reply, &self.on_wrong_type) {
            (Ok(value), _) => (self.read)(&value).map(Ok),
            (Err(failure), Some(meaning)) if failure.kind == FailureKind::WrongType => {
                Some(Ok(meaning.clone()))
            }
            (Err(failure), _) => Some(Err(failure)),
        }
    }
}

fn hold_reply(reply: &Value) -> Option<HoldReply> {
    match reply {
        Value::Int(1) => Some(HoldReply::Done),
        Value::Int(0) => Some(HoldReply::Gone),
        _ => None,
    }
}

fn acquire_reply(reply: &Value) -> Option<AcquireReply> {
    if let Some(fence) = token(reply) {
        return Some(AcquireReply::acquired(fence, 0));
    }
    let Value::Array(parts) = reply else { return None };
    let number = |part: &Value| if let Value::Int(number) = part { Some(*number) } else { None };
    match &parts[..] {
        [Value::Int(0), Value::Int(millis), rest @ ..] if rest.len() <= 2 => {
            Some(AcquireReply::Held {
                index: rest.get(1).map_or(Some(0), |index| usize::try_from(number(index)?).ok())?,
                remaining: u64::try_from(*millis).ok().map(Duration::from_millis),
                in_doubt: false,
                recalled: rest.first() == Some(&Value::Int(1)),
            })
        }
        [Value::Int(1), fences @ ..] => {
            let mut fences = fences.iter().map(|fence| u64::try_from(number(fence)?).ok());
            let (fence, others) = (fences.next()??, fences.collect::<Option<_>>()?);
            Some(AcquireReply::Acquired { fence, others, room: 0, wanted: false })
        }
        [first, Value::Int(last), rest @ ..] if rest.len() <= 1 => {
            let fence = token(first)?;
            let room = u32::try_from(u64::try_from(*last).ok()?.checked_sub(fence)?).ok()?;
            let wanted = rest == [Value::Int(1)];
            Some(AcquireReply::Acquired { fence, others: Vec::new(), room, wanted })
        }
        _ => None,
    }
}

fn count_reply(reply: &Value) -> Option<u32> {
    let Value::Int(count) = reply else { return None };
    u32::try_from(*count).ok()
}

/// A fencing token. Not 0 or 1, which other scripts reply: a token is not below a clock in
/// microseconds.
fn token(reply: &Value) -> Option<u64> {
    match reply {
        Value::Int(fence @ 2..) => u64::try_from(*fence).ok(),
        _ => None,
    }
}

#[expect(clippy::option_option, reason = "the outer one: the reply has the right shape")]
fn holder_reply(reply: &Value) -> Option<Option<HolderReply>> {
    Some(report_reply(reply)?.holds.pop().map(|(_, holder)| holder))
}

fn holder(left: &Value, owner: &Value, depth: &Value, fence: &Value) -> Option<HolderReply> {
    let Value::Int(millis) = left else { return None };
    let remaining = u64::try_from(*millis).map_or(Duration::MAX, Duration::from_millis);
    let depth = text(depth)?.parse().unwrap_or(1);
    let fence = text(fence)?.parse().unwrap_or(0);
    Some(HolderReply { owner: bytes(owner)?.to_vec(), depth, remaining, fence })
}

fn report_reply(reply: &Value) -> Option<ReportReply> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Array(holds), fence, Value::Array(waiting)] = &parts[..] else { return None };
    let hold = |hold: &Value| {
        let Value::Array(parts) = hold else { return None };
        let [kind, owner, left, depth] = &parts[..] else { return None };
        let held_as = match text(kind)?.as_str() {
            "l" => HeldAs::Lock,
            "p" => HeldAs::Permit,
            "r" => HeldAs::Reader,
            "s" => HeldAs::Foreign,
            "w" => HeldAs::Writer,
            _ => return None,
        };
        Some((held_as, holder(left, owner, depth, fence)?))
    };
    let holds: Vec<_> = holds.iter().map(hold).collect::<Option<_>>()?;
    let is_lock = matches!(holds[..], [(HeldAs::Foreign | HeldAs::Lock, _)]);
    let client = |part: &Value| {
        let client = text(part)?;
        // What several owners can hold is waited for as something.
        let kind = ["p:", "r:", "w:"].into_iter().find(|kind| client.starts_with(kind));
        let kind = kind.filter(|_| !is_lock).unwrap_or_default();
        Some(client[kind.len()..].to_owned())
    };
    let fence = text(fence)?.parse().unwrap_or(0);
    let waiting = waiting.iter().map(client).collect::<Option<_>>()?;
    Some(ReportReply { holds, fence, waiting })
}

fn text(part: &Value) -> Option<String> {
    Some(String::from_utf8_lossy(bytes(part)?).into_owned())
}

fn bytes(part: &Value) -> Option<&[u8]> {
    let Value::BulkString(bytes) = part else { return None };
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{cases, values};
    use crate::net::demand::is_done;

    proptest! {
        #![proptest_config(cases(4000))]

        #[test]
        fn whatever_a_script_replies_is_decoded_or_has_another_shape(reply in values()) {
            if let Some(AcquireReply::Acquired { .. }) = acquire_reply(&reply) {
                prop_assert!(is_done(&reply));
            }
            if let Some(HoldReply::Done) = hold_reply(&reply) {
                prop_assert!(is_done(&reply));
            }
            let _ = (count_reply(&reply), holder_reply(&reply), report_reply(&reply));
        }
    }

    #[test]
    fn replies_of_another_shape_are_rejected() {
        let odd = [
            Value::Nil,
            Value::Okay,
            Value::Int(-1),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(-1)]),
            Value::Array(vec![Value::Int(3), Value::Int(2)]),
            Value::Array(vec![Value::Int(1), Value::Nil, Value::Nil]),
        ];
        for reply in odd {
            assert_eq!(hold_reply(&reply), None, "{reply:?}");
            assert_eq!(acquire_reply(&reply), None, "{reply:?}");
            assert!(holder_reply(&reply).is_none(), "{reply:?}");
            assert_eq!(report_reply(&reply), None, "{reply:?}");
        }
        for other in [Value::Int(0), Value::Int(1)] {
            assert_eq!(acquire_reply(&other), None, "{other:?}");
        }
        assert_eq!(hold_reply(&Value::Int(2)), None);
    }

    #[test]
    fn only_a_hold_that_has_begun_or_changed_is_done() {
        let array = |first| Value::Array(vec![Value::Int(first), Value::Int(5)]);
        for (reply, done) in [
            (Value::Int(1), true),
            (Value::Int(0), false),
            (array(7), true),
            (array(0), false),
            (array(-1), false),
            (Value::Array(Vec::new()), false),
            (Value::Nil, false),
        ] {
            assert_eq!(is_done(&reply), done, "{reply:?}");
        }
    }

    #[test]
    fn only_a_key_of_another_kind_means_that_a_hold_is_gone() {
        let decode = |kind| {
            let error = std::io::Error::other("test");
            let failure = Failure::io(kind, &std::sync::Arc::from("there"), error);
            HOLD_OR_GONE.decode(Err(failure)).expect("a meaning").map_err(|failure| failure.kind)
        };
        assert_eq!(decode(FailureKind::WrongType), Ok(HoldReply::Gone));
        for kind in [FailureKind::Timeout, FailureKind::Rejected] {
            assert_eq!(decode(kind), Err(kind));
        }
    }

    #[test]
    fn a_waiting_client_is_named_without_what_it_waits_for() {
        let text = |text: &str| Value::BulkString(text.into());
        let waiting = |kind: &str| {
            let hold = vec![text(kind), text("web:0a:1"), Value::Int(5), text("1")];
            let holds = Value::Array(vec![Value::Array(hold)]);
            let clients = Value::Array(vec![text("r:0b"), text("w:0c")]);
            report_reply(&Value::Array(vec![holds, text("7"), clients])).expect("a reply").waiting
        };
        assert_eq!(waiting("w"), ["0b", "0c"]);
        assert_eq!(waiting("l"), ["r:0b", "w:0c"], "labels");
    }

    #[test]
    fn a_holder_without_a_lease_holds_for_an_unknown_time() {
        let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
        assert_eq!(acquire_reply(&reply), Some(AcquireReply::held(None)));
    }
}
