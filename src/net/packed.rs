//! Requests as they are written to a connection: commands, and calls of scripts.
//!
//! A script is called by its hash. A server that has not seen it since it started replies NOSCRIPT,
//! and is sent the whole script then. That is one round trip, makes the script known, and, unlike
//! SCRIPT LOAD, goes where the keys are.

use itoa::Buffer;
use redis::{Cmd, Value};

use crate::base::failure::{Failure, FailureKind};

/// What a server replies to a request.
pub(crate) type Reply = Result<Value, Failure>;

/// A Lua script, and the hash by which a server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    body: String,
    /// The arguments with which a call begins: EVALSHA and the hash of the body.
    call: Vec<u8>,
}

impl Script {
    pub(crate) fn new(body: impl Into<String>) -> Self {
        let body = body.into();
        let mut call = Vec::new();
        push_argument(&mut call, b"EVALSHA");
        push_argument(&mut call, redis::Script::new(&body).get_hash().as_bytes());
        Self { body, call }
    }
}

/// One argument of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    Text(&'a str),
}

/// The command after which a node serves the next request even for a slot that it is only about to
/// get.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// A packed request, with one reply that counts.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// Whether it is preceded by ASKING, whose reply does not count: if that had no effect, the
    /// request is redirected.
    pub(super) asking: bool,
    /// The script that is called by its hash.
    pub(super) script: Option<&'static Script>,
    /// Whether it may change something, as scripts do.
    has_effect: bool,
}

impl Request {
    pub(crate) fn command(command: &Cmd) -> Self {
        let bytes = command.get_packed_command();
        Self { bytes, asking: false, script: None, has_effect: false }
    }

    /// A call of a script by its hash.
    pub(crate) fn call(script: &'static Script, keys: &[&str], args: &[Arg<'_>]) -> Self {
        // Written here, because `Cmd` would take longer than everything else that a call does.
        let mut bytes = Vec::with_capacity(512);
        push_number(&mut bytes, b'*', 3 + keys.len() + args.len());
        bytes.extend_from_slice(&script.call);
        let mut digits = Buffer::new();
        push_argument(&mut bytes, digits.format(keys.len()).as_bytes());
        for key in keys {
            push_argument(&mut bytes, key.as_bytes());
        }
        for arg in args {
            let arg = match arg {
                Arg::Bytes(bytes) => bytes,
                Arg::Number(number) => digits.format(*number).as_bytes(),
                Arg::Text(text) => text.as_bytes(),
            };
            push_argument(&mut bytes, arg);
        }
        Self { bytes, asking: false, script: Some(script), has_effect: true }
    }

    /// The same request preceded by ASKING.
    pub(crate) fn asking(self) -> Self {
        Self { bytes: [ASKING, &self.bytes].concat(), asking: true, ..self }
    }

    /// The same request with the whole script in it.
    pub(crate) fn in_full(&self) -> Self {
        let Some(script) = self.script else { return self.clone() };
        let (head, rest) = self.split_at_hash(script);
        let mut bytes = Vec::with_capacity(self.bytes.len() + script.body.len());
        bytes.extend_from_slice(head);
        push_argument(&mut bytes, b"EVAL");
        push_argument(&mut bytes, script.body.as_bytes());
        bytes.extend_from_slice(rest);
        Self { bytes, script: None, ..*self }
    }

    /// Returns a failure as the caller should treat it. An error reply that does not say whether
    /// the request was executed is a refusal of one without an effect.
    pub(super) fn judge(&self, failure: Failure) -> Failure {
        match failure.kind {
            FailureKind::Unclear if !self.has_effect => failure.of_question(),
            _ => failure,
        }
    }

    /// The bytes in front of `EVALSHA` and those behind the hash.
    fn split_at_hash(&self, script: &Script) -> (&[u8], &[u8]) {
        // `*<number of arguments>\r\n` comes first.
        let start = if self.asking { ASKING.len() } else { 0 };
        let count = self.bytes[start..].iter().position(|byte| *byte == b'\n');
        let head = start + count.map_or(0, |end| end + 1);
        (&self.bytes[..head], &self.bytes[head + script.call.len()..])
    }
}

/// Appends an argument of a command.
fn push_argument(out: &mut Vec<u8>, argument: &[u8]) {
    push_number(out, b'$', argument.len());
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

/// Appends the header for a number of arguments (`*`) or bytes (`$`).
fn push_number(out: &mut Vec<u8>, mark: u8, number: usize) {
    out.push(mark);
    out.extend_from_slice(Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return KEYS[1]"));

    #[test]
    fn a_call_is_packed_as_its_command_is_and_in_full_with_the_same_arguments() {
        let args = [Arg::Text("a\r\nb"), Arg::Number(7)];
        let call = Request::call(&SCRIPT, &["key"], &args);
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg(redis::Script::new("return KEYS[1]").get_hash()).arg(1);
        evalsha.arg("key").arg("a\r\nb").arg(7);
        assert_eq!(call.bytes, evalsha.get_packed_command());
        let mut eval = redis::cmd("EVAL");
        eval.arg("return KEYS[1]").arg(1).arg("key").arg("a\r\nb").arg(7);
        assert_eq!(call.in_full().bytes, eval.get_packed_command());
        assert_eq!(call.in_full().in_full().bytes, call.in_full().bytes);
        let asking = call.clone().asking().in_full();
        assert_eq!(asking.bytes, [ASKING, &call.in_full().bytes].concat());
    }
}
