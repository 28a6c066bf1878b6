//! The calls of the scripts in `lua/`: keys, arguments and reply of each in one place.
//!
//! A reply of another shape than the script's is no reply; see [`Decoder::decode`].

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::net::request::{Arg, Reply, Request, Script};
use crate::store::hold::{HoldId, Holder};
use crate::store::job::Action;
use crate::store::keys::Keys;
use crate::store::request::{
    Acquire, AcquireReply, HoldReply, Registration, SetDepth, Transfer, TransferReply,
};

/// Defines a script from its file in `lua/`, between the parts that it shares with others.
macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $file))),+)));
    };
}

script!(ACQUIRE, "clock.lua", "fence.lua", "acquire.lua");
script!(
    /// For a quorum, whose servers must agree on a token: the client proposes it.
    ACQUIRE_PROPOSED,
    "proposal.lua",
    "fence.lua",
    "acquire.lua"
);
script!(FORCE_RELEASE, "force_release.lua", "wake.lua");
script!(INSPECT, "inspect.lua");
script!(RAISE, "raise.lua");
script!(RELEASE, "release.lua", "wake.lua");
script!(RENEW, "renew.lua");
script!(SET_DEPTH, "set_depth.lua");
script!(TRANSFER, "clock.lua", "fence.lua", "transfer.lua", "wake.lua");
script!(
    /// For a quorum, as `ACQUIRE_PROPOSED`.
    TRANSFER_PROPOSED,
    "proposal.lua",
    "fence.lua",
    "transfer.lua",
    "wake.lua"
);
script!(UNREGISTER, "unregister.lua", "wake.lua");
script!(WITHDRAW, "withdraw.lua");

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A counter of fencing tokens is kept at least this long after the last hold of its name, and no
/// longer than it must, so that names do not fill the server's memory.
const FENCE_LIFE_MIN: Duration = DAY;

/// The list of waiting clients is kept at least this long after a client was last registered, and
/// longer where clients ask less often.
const WAITING_LIFE_MIN: Duration = Duration::from_secs(60);

/// A request, and how its reply is read.
#[derive(Clone, Debug)]
pub(crate) struct Command<T> {
    pub(crate) request: Request,
    pub(crate) decoder: Decoder<T>,
}

/// Reads the replies to one kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<T> {
    read: fn(&Value) -> Option<T>,
    /// What it means that the lock's key holds something else; `None` if that is a failure.
    on_wrong_type: Option<T>,
}

impl<T: Clone> Decoder<T> {
    /// Returns what a reply says, or the failure that it is. `None` if it makes no sense.
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

/// Makes commands for the locks of one client.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) keys: Keys,
    waiting_life: Duration,
    /// Whether the client proposes fencing tokens, so that several servers can agree on them.
    proposes: bool,
}

impl Commands {
    /// For a server that makes fencing tokens by its own clock.
    pub(crate) fn new(config: &Config) -> Self {
        let (_, longest_pause) = config.backoff;
        Self {
            keys: Keys::new(&config.prefix),
            waiting_life: longest_pause.saturating_mul(2).clamp(WAITING_LIFE_MIN, DAY),
            proposes: false,
        }
    }

    /// For independent servers, to which the client proposes fencing tokens.
    pub(crate) fn proposing(config: &Config) -> Self {
        Self { proposes: true, ..Self::new(config) }
    }

    pub(crate) fn acquire(&self, request: Acquire<'_>) -> Command<AcquireReply> {
        let Acquire { hold, lease, registration, .. } = request;
        let owner = hold.owner();
        let registration = match registration {
            Registration::None => 0,
            Registration::IfHeld => 1,
            Registration::Registered => 2,
            Registration::Yielding => 3,
        };
        let args = [
            Arg::Text(&owner),
            millis(lease),
            fence_life(lease),
            Arg::Text(&hold.client),
            Arg::Number(registration),
            millis(self.waiting_life),
        ];
        let (own, proposed) = (&ACQUIRE, &ACQUIRE_PROPOSED);
        self.begin_hold(&hold.name, own, proposed, &args, acquire_reply)
    }

    pub(crate) fn transfer(&self, request: Transfer<'_>) -> Command<TransferReply> {
        let Transfer { from, to, lease, yields, .. } = request;
        let (old, new) = (from.owner(), to.owner());
        let args = [
            Arg::Text(&old),
            Arg::Text(&new),
            millis(lease),
            fence_life(lease),
            Arg::Number(yields.into()),
        ];
        self.begin_hold(&to.name, &TRANSFER, &TRANSFER_PROPOSED, &args, transfer_reply)
    }

    pub(crate) fn set_depth(&self, request: SetDepth<'_>) -> Command<HoldReply> {
        let SetDepth { hold, depth, lease, .. } = request;
        let args = [Arg::Number(depth.into()), millis(lease)];
        self.about_hold(&SET_DEPTH, hold, &args)
    }

    pub(crate) fn renew(&self, hold: &HoldId, lease: Duration) -> Command<HoldReply> {
        self.about_hold(&RENEW, hold, &[millis(lease)])
    }

    pub(crate) fn release(&self, hold: &HoldId) -> Command<HoldReply> {
        let (lock, waiting) = (self.keys.lock(&hold.name), self.keys.waiting(&hold.name));
        let request = Request::call(&RELEASE, &[&lock, &waiting], &[Arg::Text(&hold.owner())]);
        Command { request, decoder: GONE_ON_WRONG_TYPE }
    }

    /// Takes back a hold that has come about on too few servers, and wakes no client.
    pub(crate) fn withdraw(&self, hold: &HoldId) -> Command<HoldReply> {
        self.about_hold(&WITHDRAW, hold, &[])
    }

    /// Raises the counter of fencing tokens to that of a hold.
    pub(crate) fn raise(&self, hold: &HoldId, fence: u64, lease: Duration) -> Command<HoldReply> {
        let (lock, counter) = (self.keys.lock(&hold.name), self.keys.fence(&hold.name));
        let owner = hold.owner();
        let args = [Arg::Text(&owner), Arg::Number(fence), fence_life(lease)];
        let request = Request::call(&RAISE, &[&lock, &counter], &args);
        Command { request, decoder: GONE_ON_WRONG_TYPE }
    }

    pub(crate) fn inspect(&self, name: &str) -> Command<Option<Holder>> {
        let request = Request::call(&INSPECT, &[&self.keys.lock(name)], &[]);
        Command { request, decoder: Decoder { read: holder, on_wrong_type: None } }
    }

    pub(crate) fn force_release(&self, name: &str) -> Command<HoldReply> {
        let (lock, waiting) = (self.keys.lock(name), self.keys.waiting(name));
        let request = Request::call(&FORCE_RELEASE, &[&lock, &waiting], &[]);
        Command { request, decoder: Decoder { read: hold_reply, on_wrong_type: None } }
    }

    pub(crate) fn unregister(&self, name: &str, client: &str) -> Command<HoldReply> {
        let (lock, waiting) = (self.keys.lock(name), self.keys.waiting(name));
        let request = Request::call(&UNREGISTER, &[&lock, &waiting], &[Arg::Text(client)]);
        Command { request, decoder: Decoder { read: hold_reply, on_wrong_type: None } }
    }

    pub(crate) fn job(&self, hold: &HoldId, action: Action) -> Command<HoldReply> {
        match action {
            Action::Release => self.release(hold),
            Action::Renew { lease } => self.renew(hold, lease),
        }
    }

    /// Calls a script that begins a hold, with the token that the client proposes, if it does.
    fn begin_hold<T>(
        &self,
        name: &str,
        own: &'static Script,
        proposed: &'static Script,
        args: &[Arg<'_>],
        read: fn(&Value) -> Option<T>,
    ) -> Command<T> {
        let keys: &[&str] =
            &[&self.keys.lock(name), &self.keys.fence(name), &self.keys.waiting(name)];
        let request = if self.proposes {
            Request::call(proposed, keys, &[args, &[proposal()]].concat())
        } else {
            Request::call(own, keys, args)
        };
        Command { request, decoder: Decoder { read, on_wrong_type: None } }
    }

    /// Calls a script whose first argument is the owner and whose only key is the lock.
    fn about_hold(
        &self,
        script: &'static Script,
        hold: &HoldId,
        args: &[Arg<'_>],
    ) -> Command<HoldReply> {
        let owner = hold.owner();
        let args = [&[Arg::Text(&owner)], args].concat();
        let request = Request::call(script, &[&self.keys.lock(&hold.name)], &args);
        Command { request, decoder: GONE_ON_WRONG_TYPE }
    }
}

/// A hold is gone if something else has taken the place of its lock.
const GONE_ON_WRONG_TYPE: Decoder<HoldReply> =
    Decoder { read: hold_reply, on_wrong_type: Some(HoldReply::Gone) };

/// A time in milliseconds, rounded up: zero would delete the key.
fn millis(time: Duration) -> Arg<'static> {
    let millis = time.as_nanos().div_ceil(1_000_000);
    Arg::Number(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn fence_life(lease: Duration) -> Arg<'static> {
    millis(FENCE_LIFE_MIN.max(lease * 2))
}

/// The token that every server should give: this system's clock in microseconds.
fn proposal() -> Arg<'static> {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    Arg::Number(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// Returns `true` if a script has begun a hold or changed one: each then replies with a 1 in front.
pub(crate) fn is_done(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => matches!(parts.first(), Some(Value::Int(1))),
        reply => *reply == Value::Int(1),
    }
}

fn hold_reply(reply: &Value) -> Option<HoldReply> {
    match reply {
        Value::Int(1) => Some(HoldReply::Held),
        Value::Int(0) => Some(HoldReply::Gone),
        _ => None,
    }
}

fn acquire_reply(reply: &Value) -> Option<AcquireReply> {
    let Value::Array(parts) = reply else { return None };
    match parts[..] {
        [Value::Int(1), Value::Int(fence)] => {
            Some(AcquireReply::Acquired { fence: u64::try_from(fence).ok()? })
        }
        [Value::Int(0), Value::Int(millis)] => Some(AcquireReply::Held {
            remaining: u64::try_from(millis).ok().map(Duration::from_millis),
        }),
        _ => None,
    }
}

fn transfer_reply(reply: &Value) -> Option<TransferReply> {
    let Value::Array(parts) = reply else { return None };
    match parts[..] {
        [Value::Int(0), Value::Int(_)] => Some(TransferReply::Gone),
        [Value::Int(1), Value::Int(fence)] => {
            Some(TransferReply::Transferred { fence: u64::try_from(fence).ok()? })
        }
        [Value::Int(2), Value::Int(_)] => Some(TransferReply::Yielded),
        _ => None,
    }
}

fn holder(reply: &Value) -> Option<Option<Holder>> {
    let Value::Array(parts) = reply else { return None };
    match &parts[..] {
        [] => Some(None),
        [Value::Int(millis), Value::BulkString(owner), Value::BulkString(depth)] => {
            let remaining = u64::try_from(*millis).map_or(Duration::MAX, Duration::from_millis);
            let owner = String::from_utf8_lossy(owner).into_owned();
            // A foreign hash can hold anything.
            let depth = str::from_utf8(depth).ok().and_then(|depth| depth.parse().ok());
            Some(Some(Holder { owner, depth: depth.unwrap_or(1), remaining }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_whole_milliseconds() {
        let millis = |time| match millis(time) {
            Arg::Number(number) => number,
            Arg::Text(_) => panic!("a time is a number"),
        };
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(10)), 10);
        assert_eq!(millis(Duration::from_micros(10_001)), 11);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

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
            assert_eq!(hold_reply(&reply), None, "{reply:?}");
            assert_eq!(acquire_reply(&reply), None, "{reply:?}");
            assert_eq!(transfer_reply(&reply), None, "{reply:?}");
            assert!(holder(&reply).is_none(), "{reply:?}");
        }
    }

    #[test]
    fn a_holder_without_a_lease_holds_for_an_unknown_time() {
        let reply = Value::Array(vec![Value::Int(0), Value::Int(-1)]);
        assert_eq!(acquire_reply(&reply), Some(AcquireReply::Held { remaining: None }));
    }
}
