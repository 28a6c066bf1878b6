//! The scripts in `lua/`: which of the files each is made of, and what its replies mean.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::net::factory::ConnectionFactory;
use crate::net::packed::{Reply, Request, Script};
use crate::store::hold_id::HeldAs;
use crate::store::request::{AcquireReply, HoldReply, HolderReply, ReportReply};

/// Defines a script from its file in `lua/`, between the parts that it shares with others.
macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(code(concat!($(include_str!(concat!("lua/", $file))),+))));
    };
}

script!(ACQUIRE, "holds.lua", "wake.lua", "token.lua", "acquire.lua");
script!(ACQUIRE_ALL, "token.lua", "acquire_all.lua");
script!(ACQUIRE_MEMBER, "holds.lua", "wake.lua", "serve.lua", "token.lua", "acquire_member.lua");
script!(CHANGE, "change.lua");
script!(RELEASE, "wake.lua", "redisson.lua", "release.lua");
script!(RELEASE_MEMBER, "wake.lua", "serve.lua", "release_member.lua");
script!(REPORT, "holds.lua", "report.lua");
script!(UNREGISTER, "holds.lua", "wake.lua", "serve.lua", "redisson.lua", "unregister.lua");

/// A request, and what its reply means.
#[derive(Debug)]
pub(crate) struct Command<T> {
    pub(crate) request: Request,
    /// Reads a reply of the server that this makes connections to.
    pub(crate) decode: fn(Reply, &ConnectionFactory) -> Result<T, Failure>,
}

/// What a server is sent of a script: its lines without indentation, and without those that are
/// comments.
fn code(script: &str) -> String {
    let lines = script.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.flat_map(|line| [line, "\n"]).collect()
}

pub(super) fn read_acquire(
    reply: Reply,
    from: &ConnectionFactory,
) -> Result<AcquireReply, Failure> {
    read(reply, from, acquire_reply)
}

/// A hold is gone if its key now has something else than a lock.
pub(super) fn read_hold(reply: Reply, from: &ConnectionFactory) -> Result<HoldReply, Failure> {
    match reply {
        Err(failure) if failure.kind == FailureKind::WrongType => Ok(HoldReply::Gone),
        reply => read(reply, from, hold_reply),
    }
}

pub(super) fn read_report(reply: Reply, from: &ConnectionFactory) -> Result<ReportReply, Failure> {
    read(reply, from, report_reply)
}

/// Returns the meaning of a reply. One of another shape than those of the script is a failure.
fn read<T>(
    reply: Reply,
    from: &ConnectionFactory,
    meaning: fn(&Value) -> Option<T>,
) -> Result<T, Failure> {
    meaning(&reply?).ok_or_else(|| from.invalid_reply())
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
        let others = Vec::new();
        return Some(AcquireReply::Acquired { fence, others, room: 0, wanted: false });
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

/// A fencing token. Not 0 or 1, which other scripts reply: a token is not below a clock in
/// microseconds.
fn token(reply: &Value) -> Option<u64> {
    match reply {
        Value::Int(fence @ 2..) => u64::try_from(*fence).ok(),
        _ => None,
    }
}

fn holder(left: &Value, owner: &Value, depth: &Value, fence: &Value) -> Option<HolderReply> {
    let Value::Int(millis) = left else { return None };
    let remaining = u64::try_from(*millis).map_or(Duration::MAX, Duration::from_millis);
    let depth = text(depth)?.parse().unwrap_or(1);
    let fence = text(fence)?.parse().unwrap_or(0);
    Some(HolderReply { owner: bytes(owner)?.to_vec(), depth, remaining, fence })
}

fn report_reply(reply: &Value) -> Option<ReportReply> {
    let parts = match reply {
        Value::Array(parts) => parts,
        Value::Int(permits) => {
            let permits = u32::try_from(*permits).ok()?;
            return Some(ReportReply { permits, ..ReportReply::default() });
        }
        _ => return None,
    };
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
    Some(ReportReply { holds, fence, waiting, permits: 0 })
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
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::fuzz::{cases, values};
    use crate::net::demand::is_done;
    use crate::net::endpoint::Endpoint;
    use crate::net::server::ServerFactory;

    /// The names of the files in `lua/`, and what they have.
    fn files() -> impl Iterator<Item = (String, String)> {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/lua");
        fs::read_dir(scripts).expect("the scripts are there").map(|script| {
            let script = script.expect("they can be listed").path();
            let text = fs::read_to_string(&script).expect("they can be read");
            (script.display().to_string(), text)
        })
    }

    #[test]
    fn the_scripts_need_no_lua_older_than_others_have() {
        // Redis and Valkey have Lua 5.1, Dragonfly has 5.4.
        const GONE: [&str; 5] = ["unpack(", "loadstring(", "setfenv(", "table.getn(", "math.pow("];
        for (name, text) in files() {
            let gone = GONE.iter().find(|function| text.contains(**function));
            assert_eq!(gone, None, "in {name}");
        }
    }

    #[test]
    fn no_comment_and_no_indentation_is_sent() {
        for (name, text) in files() {
            let code = code(&text);
            let needless = ["--", "  ", "\n ", "\n\n"].iter().find(|text| code.contains(**text));
            assert_eq!(needless, None, "in {name}");
            // Comments and strings of several lines, which are not looked for.
            assert!(!text.contains("[[") && !text.contains("[="), "in {name}");
        }
        let release = Request::call(&RELEASE, &[], &[]).in_full();
        let sent = String::from_utf8(release.bytes).expect("it is text");
        assert!(!sent.contains("--") && sent.len() < 5000, "{} bytes: {sent}", sent.len());
    }

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
            let _ = report_reply(&reply);
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
            Value::Array([5, 9, 1, 1].map(Value::Int).into()),
            Value::Array([0, 9, 1, 0, 1].map(Value::Int).into()),
        ];
        for reply in odd {
            assert_eq!(hold_reply(&reply), None, "{reply:?}");
            assert_eq!(acquire_reply(&reply), None, "{reply:?}");
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
        let config = Config::default();
        let endpoint = Endpoint::parse("redis://there/", &config).expect("a good URL");
        let from = ServerFactory::new(&config).expect("a thread").connections(endpoint);
        let decode = |kind| {
            let error = std::io::Error::other("test");
            let failure = Failure::io(kind, &std::sync::Arc::from("there"), error);
            read_hold(Err(failure), &from).map_err(|failure| failure.kind)
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
        let read = acquire_reply(&reply);
        assert!(matches!(read, Some(AcquireReply::Held { remaining: None, .. })), "{read:?}");
        let [owner, depth, fence] = ["me", "1", "7"].map(|it| Value::BulkString(it.into()));
        let holder = holder(&Value::Int(-1), &owner, &depth, &fence);
        assert_eq!(holder.map(|holder| holder.remaining), Some(Duration::MAX));
    }

    #[test]
    fn a_holder_is_of_the_kind_that_its_letter_says() {
        let text = |text: &str| Value::BulkString(text.into());
        let held_as = |kind: &str| {
            let hold = vec![text(kind), text("0a:1"), Value::Int(5), text("1")];
            let holds = Value::Array(vec![Value::Array(hold)]);
            let report = Value::Array(vec![holds, text("7"), Value::Array(Vec::new())]);
            report_reply(&report).map(|report| report.holds[0].0)
        };
        let kinds = [HeldAs::Lock, HeldAs::Permit, HeldAs::Reader, HeldAs::Foreign, HeldAs::Writer];
        assert_eq!(["l", "p", "r", "s", "w"].map(held_as), kinds.map(Some));
        assert_eq!(held_as("x"), None);
    }
}
