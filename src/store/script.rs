//! The Lua scripts, and how a call of one is written to a connection.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Cmd;

/// Defines a script from its file in `lua/`, between the parts that it shares with others.
macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $file))),+)));
    };
}

script!(ACQUIRE, "clock.lua", "fence.lua", "acquire.lua");
script!(
    /// For a quorum, whose servers are to agree on a token: the client proposes it.
    ACQUIRE_PROPOSED,
    "proposal.lua",
    "fence.lua",
    "acquire.lua"
);
script!(FORCE, "force.lua", "wake.lua");
script!(INSPECT, "inspect.lua");
script!(LEAVE, "leave.lua", "wake.lua");
script!(NEST, "nest.lua");
script!(RAISE, "raise.lua");
script!(RELEASE, "release.lua", "wake.lua");
script!(RENEW, "renew.lua");
script!(TRANSFER, "clock.lua", "fence.lua", "transfer.lua", "wake.lua");
script!(
    /// For a quorum, as `ACQUIRE_PROPOSED`.
    TRANSFER_PROPOSED,
    "proposal.lua",
    "fence.lua",
    "transfer.lua",
    "wake.lua"
);
script!(WITHDRAW, "withdraw.lua");

/// A script and the hash that the server knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    body: &'static str,
    hash: String,
}

impl Script {
    fn new(body: &'static str) -> Self {
        Self { body, hash: redis::Script::new(body).get_hash().into() }
    }
}

/// How a script is named to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// EVALSHA. The server answers NOSCRIPT if it has not seen the script since it started.
    Hash,
    /// EVAL, which also makes the script known. Unlike SCRIPT LOAD it is one round trip, and it
    /// goes where the keys are.
    Body,
}

/// One argument of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Number(u64),
    Text(&'a str),
}

impl Arg<'_> {
    /// A time, in milliseconds and rounded up: zero would delete the key.
    pub(crate) fn millis(time: Duration) -> Self {
        let millis = time.as_nanos().div_ceil(1_000_000);
        Self::Number(u64::try_from(millis).unwrap_or(u64::MAX))
    }
}

/// A script with its keys and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: &'a [&'a str],
    pub(crate) args: &'a [Arg<'a>],
}

impl Call<'_> {
    /// Appends the request to what is to be sent.
    pub(crate) fn pack(&self, form: Form, out: &mut Vec<u8>) {
        let mut cmd = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), 256);
        match form {
            Form::Hash => cmd.arg("EVALSHA").arg(&self.script.hash),
            Form::Body => cmd.arg("EVAL").arg(self.script.body),
        };
        cmd.arg(self.keys.len());
        for key in self.keys {
            cmd.arg(key);
        }
        for arg in self.args {
            match arg {
                Arg::Number(number) => cmd.arg(number),
                Arg::Text(text) => cmd.arg(text),
            };
        }
        cmd.write_packed_command(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_whole_milliseconds() {
        let millis = |time| match Arg::millis(time) {
            Arg::Number(number) => number,
            Arg::Text(_) => panic!("a time is a number"),
        };
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(10)), 10);
        assert_eq!(millis(Duration::from_micros(10_001)), 11);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
