//! The scripts in `lua/`: the files of each, and the meaning of its replies.

use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::config::check_note;
use crate::net::factory::ConnectionFactory;
use crate::net::packed::{Reply, Script};
use crate::store::hold_id::HeldAs;
use crate::store::request::{AcquireReply, HoldReply, HolderReply, ReportReply};

/// Defines a script from its file in `lua/`, with the parts that it shares with others.
///
/// A script about holds has a variant for holds with notes, which contains the plain script as a
/// function and calls it.
macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(code(concat!($(include_str!(concat!("lua/", $file))),+))));
    };
    ($name:ident and $noted:ident by $last:literal, $($file:literal),+) => {
        script!($name, $($file),+);
        pub(crate) static $noted: LazyLock<Script> = LazyLock::new(|| {
            Script::new(code(concat!(
                include_str!("lua/note.lua"),
                "local function run()\n",
                $(include_str!(concat!("lua/", $file)),)+
                "end\n",
                include_str!(concat!("lua/", $last)),
            )))
        });
    };
}

script!(
    ACQUIRE and NOTED_ACQUIRE by "note_acquire.lua",
    "token.lua",
    "take.lua",
    "lives.lua",
    "holds.lua",
    "wake.lua",
    "join.lua",
    "pollers.lua",
    "acquire.lua"
);
script!(
    ACQUIRE_ALL and NOTED_ACQUIRE_ALL by "note_acquire_all.lua",
    "lives.lua",
    "token.lua",
    "acquire_all.lua"
);
script!(
    ACQUIRE_MEMBER and NOTED_ACQUIRE_MEMBER by "note_acquire_member.lua",
    "token.lua",
    "lives.lua",
    "holds.lua",
    "wake.lua",
    "join.lua",
    "serve.lua",
    "acquire_member.lua"
);
script!(CHANGE and NOTED_CHANGE by "note_change.lua", "lives.lua", "change.lua");
script!(PING, "lives.lua", "holds.lua", "token.lua", "ping.lua");
script!(
    RELEASE and NOTED_RELEASE by "note_release.lua",
    "free.lua",
    "wake.lua",
    "redisson.lua",
    "pollers.lua",
    "release.lua"
);
script!(
    RELEASE_MEMBER and NOTED_RELEASE_MEMBER by "note_release_member.lua",
    "lives.lua",
    "wake.lua",
    "serve.lua",
    "release_member.lua"
);
script!(REPORT, "holds.lua", "report.lua");
script!(TELL, "holds.lua", "wake.lua", "tell.lua");
script!(
    UNREGISTER,
    "holds.lua",
    "wake.lua",
    "serve.lua",
    "redisson.lua",
    "pollers.lua",
    "unregister.lua"
);

/// The reply of a script.
pub(crate) trait ScriptReply: Clone + Send + Sync + 'static {
    /// The reply for a `WRONGTYPE` error, if that is not a failure.
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
        match &parts[..] {
            [Value::Int(0), Value::Int(millis), rest @ ..] if rest.len() <= 3 => Some(Self::Held {
                index: rest
                    .get(1)
                    .map_or(Some(0), |index| usize::try_from(integer(index)?).ok())?,
                remaining: u64::try_from(*millis).ok().map(Duration::from_millis),
                in_doubt: false,
                recalled: rest.first() == Some(&Value::Int(1)),
                echoed: match rest.get(2) {
                    None => None,
                    Some(Value::BulkString(owner)) => String::from_utf8(owner.clone()).ok(),
                    Some(_) => return None,
                },
            }),
            // Several locks or members, each with a token.
            [Value::Int(1), fences @ ..] => {
                let mut fences = fences.iter().map(|fence| u64::try_from(integer(fence)?).ok());
                let fence = fences.next()??;
                let others = fences.collect::<Option<_>>()?;
                Some(Self::Acquired { fence, others, room: 0, wanted: false })
            }
            // A block of tokens, for the holds that follow within the tenure.
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

/// Parses a fencing token. It cannot be 0 or 1, which other scripts reply, because it is at least a
/// clock in microseconds.
fn token(reply: &Value) -> Option<u64> {
    match reply {
        Value::Int(fence @ 2..) => u64::try_from(*fence).ok(),
        _ => None,
    }
}

fn integer(reply: &Value) -> Option<i64> {
    if let Value::Int(number) = reply { Some(*number) } else { None }
}

/// Parses a hold: its kind, owner, remaining milliseconds and depth, and the note if it has one. A
/// note that no client of this library would write is dropped, because it would be shown as it is.
fn held(parts: &Value) -> Option<(HeldAs, HolderReply)> {
    let Value::Array(parts) = parts else { return None };
    let [kind, owner, left, depth, note @ ..] = &parts[..] else { return None };
    let held_as = match &*redis::from_redis_value_ref::<Vec<u8>>(kind).ok()? {
        b"l" => HeldAs::Lock,
        b"p" => HeldAs::Permit,
        b"r" => HeldAs::Reader,
        b"s" => HeldAs::Foreign,
        b"w" => HeldAs::Writer,
        _ => return None,
    };
    let note = match note {
        [] => None,
        [note] => redis::from_redis_value_ref::<String>(note).ok(),
        _ => return None,
    };
    let left: i64 = redis::from_redis_value_ref(left).ok()?;
    let depth: Vec<u8> = redis::from_redis_value_ref(depth).ok()?;
    let holder = HolderReply {
        owner: redis::from_redis_value_ref(owner).ok()?,
        depth: number(&depth).unwrap_or(1),
        remaining: u64::try_from(left).map_or(Duration::MAX, Duration::from_millis),
        fence: 0,
        // Any program may have written it, and it is shown on terminals.
        note: note.filter(|note| check_note(note).is_ok()),
    };
    Some((held_as, holder))
}

impl ScriptReply for ReportReply {
    fn read(reply: &Value) -> Option<Self> {
        if let Value::Int(permits) = reply {
            return Some(Self { permits: u32::try_from(*permits).ok()?, ..Self::default() });
        }
        let Value::Array(parts) = reply else { return None };
        let [Value::Array(holds), fence, waiting] = &parts[..] else { return None };
        let fence: Vec<u8> = redis::from_redis_value_ref(fence).ok()?;
        let fence = number(&fence).unwrap_or(0);
        let waiting: Vec<Vec<u8>> = redis::from_redis_value_ref(waiting).ok()?;
        let mut holds: Vec<_> = holds.iter().map(held).collect::<Option<_>>()?;
        for (_, holder) in &mut holds {
            holder.fence = fence;
        }
        let is_lock = matches!(holds[..], [(HeldAs::Foreign | HeldAs::Lock, _)]);
        let waiting = waiting.iter().map(|client| {
            let client = String::from_utf8_lossy(client);
            if is_lock {
                return client.into_owned();
            }
            // In queues of read-write locks and semaphores, the kind is a prefix of the client.
            let kind = ["p:", "r:", "w:"].into_iter().find(|kind| client.starts_with(kind));
            client[kind.unwrap_or_default().len()..].to_owned()
        });
        let waiting = waiting.collect();
        Some(Self { holds, fence, waiting, permits: 0 })
    }
}

fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
