//! The scripts in `lua/`: the files that each is made of, and the meaning of its replies.

use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::net::factory::ConnectionFactory;
use crate::net::packed::{Reply, Script};
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

script!(ACQUIRE, "lives.lua", "holds.lua", "wake.lua", "token.lua", "acquire.lua");
script!(ACQUIRE_ALL, "lives.lua", "token.lua", "acquire_all.lua");
script!(
    ACQUIRE_MEMBER,
    "lives.lua",
    "holds.lua",
    "wake.lua",
    "serve.lua",
    "token.lua",
    "acquire_member.lua"
);
script!(CHANGE, "lives.lua", "change.lua");
script!(PING, "lives.lua", "holds.lua", "token.lua", "ping.lua");
script!(RELEASE, "wake.lua", "redisson.lua", "release.lua");
script!(RELEASE_MEMBER, "wake.lua", "serve.lua", "release_member.lua");
script!(REPORT, "holds.lua", "report.lua");
script!(TELL, "holds.lua", "wake.lua", "tell.lua");
script!(UNREGISTER, "holds.lua", "wake.lua", "serve.lua", "redisson.lua", "unregister.lua");

/// The reply of a script.
pub(crate) trait ScriptReply: Clone + Send + Sync + 'static {
    /// The meaning of a `WRONGTYPE` error, if that is no failure.
    const OF_WRONG_TYPE: Option<Self> = None;

    /// Parses a reply; `None` if it does not have a shape that the script returns.
    fn read(reply: &Value) -> Option<Self>;

    /// Decodes a reply of the server that `from` connects to.
    fn decode(reply: Reply, from: &ConnectionFactory) -> Result<Self, Failure> {
        match (reply, Self::OF_WRONG_TYPE) {
            (Err(failure), Some(meaning)) if failure.kind == FailureKind::WrongType => Ok(meaning),
            (reply, _) => Self::read(&reply?).ok_or_else(|| from.invalid_reply()),
        }
    }
}

/// Returns the part of a script that is sent to a server: its lines without indentation, blank
/// lines and comments.
fn code(script: &str) -> String {
    let lines = script.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.flat_map(|line| [line, "\n"]).collect()
}

impl ScriptReply for HoldReply {
    const OF_WRONG_TYPE: Option<Self> = Some(Self::Gone);

    fn read(reply: &Value) -> Option<Self> {
        match reply {
            Value::Int(1) => Some(Self::Done),
            Value::Int(0) => Some(Self::Gone),
            Value::Int(2) => Some(Self::Wanted),
            _ => None,
        }
    }
}

impl ScriptReply for AcquireReply {
    fn read(reply: &Value) -> Option<Self> {
        if let Some(fence) = token(reply) {
            return Some(Self::Acquired { fence, others: Vec::new(), room: 0, wanted: false });
        }
        let Value::Array(parts) = reply else { return None };
        let number =
            |part: &Value| if let Value::Int(number) = part { Some(*number) } else { None };
        match &parts[..] {
            [Value::Int(0), Value::Int(millis), rest @ ..] if rest.len() <= 2 => Some(Self::Held {
                index: rest.get(1).map_or(Some(0), |index| usize::try_from(number(index)?).ok())?,
                remaining: u64::try_from(*millis).ok().map(Duration::from_millis),
                in_doubt: false,
                recalled: rest.first() == Some(&Value::Int(1)),
            }),
            [Value::Int(1), fences @ ..] => {
                let mut fences = fences.iter().map(|fence| u64::try_from(number(fence)?).ok());
                let (fence, others) = (fences.next()??, fences.collect::<Option<_>>()?);
                Some(Self::Acquired { fence, others, room: 0, wanted: false })
            }
            [first, Value::Int(last), rest @ ..] if rest.len() <= 1 => {
                let fence = token(first)?;
                let room = u32::try_from(u64::try_from(*last).ok()?.checked_sub(fence)?).ok()?;
                let wanted = rest == [Value::Int(1)];
                Some(Self::Acquired { fence, others: Vec::new(), room, wanted })
            }
            _ => None,
        }
    }
}

/// Parses a fencing token. It is not 0 or 1, which other scripts reply: a token is not below a
/// clock in microseconds.
fn token(reply: &Value) -> Option<u64> {
    match reply {
        Value::Int(fence @ 2..) => u64::try_from(*fence).ok(),
        _ => None,
    }
}

/// The kind of a hold, its owner, the milliseconds left, and its depth.
type HoldParts = (String, Vec<u8>, i64, Vec<u8>);

impl ScriptReply for ReportReply {
    fn read(reply: &Value) -> Option<Self> {
        if let Value::Int(permits) = reply {
            return Some(Self { permits: u32::try_from(*permits).ok()?, ..Self::default() });
        }
        let (holds, fence, waiting): (Vec<HoldParts>, Vec<u8>, Vec<Vec<u8>>) =
            redis::from_redis_value_ref(reply).ok()?;
        let fence = number(&fence).unwrap_or(0);
        let hold = |(kind, owner, left, depth): HoldParts| {
            let held_as = match kind.as_str() {
                "l" => HeldAs::Lock,
                "p" => HeldAs::Permit,
                "r" => HeldAs::Reader,
                "s" => HeldAs::Foreign,
                "w" => HeldAs::Writer,
                _ => return None,
            };
            let remaining = u64::try_from(left).map_or(Duration::MAX, Duration::from_millis);
            let depth = number(&depth).unwrap_or(1);
            Some((held_as, HolderReply { owner, depth, remaining, fence }))
        };
        let holds: Vec<_> = holds.into_iter().map(hold).collect::<Option<_>>()?;
        let is_lock = matches!(holds[..], [(HeldAs::Foreign | HeldAs::Lock, _)]);
        let client = |client: Vec<u8>| {
            let client = String::from_utf8_lossy(&client);
            // A client that waits for something with several owners has its kind as a prefix.
            let kind = ["p:", "r:", "w:"].into_iter().find(|kind| client.starts_with(kind));
            client[kind.filter(|_| !is_lock).unwrap_or_default().len()..].to_owned()
        };
        let waiting = waiting.into_iter().map(client).collect();
        Some(Self { holds, fence, waiting, permits: 0 })
    }
}

fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::fuzz::{cases, values};
    use crate::net::demand::is_done;
    use crate::net::packed::Request;
    use crate::net::server::ServerFactory;

    /// The names of the files in `lua/`, and their contents.
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
            // Comments and strings that span lines are not recognized.
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
            if let Some(AcquireReply::Acquired { .. }) = AcquireReply::read(&reply) {
                prop_assert!(is_done(&reply));
            }
            if let Some(HoldReply::Done | HoldReply::Wanted) = HoldReply::read(&reply) {
                prop_assert!(is_done(&reply));
            }
            let _ = ReportReply::read(&reply);
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
            assert_eq!(HoldReply::read(&reply), None, "{reply:?}");
            assert_eq!(AcquireReply::read(&reply), None, "{reply:?}");
            assert_eq!(ReportReply::read(&reply), None, "{reply:?}");
        }
        for other in [Value::Int(0), Value::Int(1)] {
            assert_eq!(AcquireReply::read(&other), None, "{other:?}");
        }
        assert_eq!(HoldReply::read(&Value::Int(3)), None);
    }

    #[test]
    fn only_a_hold_that_has_begun_or_changed_is_done() {
        let array = |first| Value::Array(vec![Value::Int(first), Value::Int(5)]);
        for (reply, done) in [
            (Value::Int(1), true),
            (Value::Int(2), true),
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
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let from = servers.connections(servers.endpoint("redis://there/").expect("a good URL"));
        let decode = |kind| {
            let error = std::io::Error::other("test");
            let failure = Failure::io(kind, &std::sync::Arc::from("there"), error);
            HoldReply::decode(Err(failure), &from).map_err(|failure| failure.kind)
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
            ReportReply::read(&Value::Array(vec![holds, text("7"), clients]))
                .expect("a reply")
                .waiting
        };
        assert_eq!(waiting("w"), ["0b", "0c"]);
        assert_eq!(waiting("l"), ["r:0b", "w:0c"], "labels");
    }

    #[test]
    fn a_holder_without_a_lease_holds_for_an_unknown_time() {
        let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
        let read = AcquireReply::read(&reply);
        assert!(matches!(read, Some(AcquireReply::Held { remaining: None, .. })), "{read:?}");
        let [kind, owner, depth, fence] =
            ["l", "me", "1", "7"].map(|it| Value::BulkString(it.into()));
        let holds = Value::Array(vec![Value::Array(vec![kind, owner, Value::Int(-1), depth])]);
        let reply = Value::Array(vec![holds, fence, Value::Array(Vec::new())]);
        let report = ReportReply::read(&reply).expect("a report");
        assert_eq!(report.holder().map(|holder| holder.remaining), Some(Duration::MAX));
    }

    #[test]
    fn a_holder_is_of_the_kind_that_its_letter_says() {
        let text = |text: &str| Value::BulkString(text.into());
        let held_as = |kind: &str| {
            let hold = vec![text(kind), text("0a:1"), Value::Int(5), text("1")];
            let holds = Value::Array(vec![Value::Array(hold)]);
            let report = Value::Array(vec![holds, text("7"), Value::Array(Vec::new())]);
            ReportReply::read(&report).map(|report| report.holds[0].0)
        };
        let kinds = [HeldAs::Lock, HeldAs::Permit, HeldAs::Reader, HeldAs::Foreign, HeldAs::Writer];
        assert_eq!(["l", "p", "r", "s", "w"].map(held_as), kinds.map(Some));
        assert_eq!(held_as("x"), None);
    }
}
