//! A request as it is written to a connection: a command, or a call of a script.
//!
//! A script is called by its hash. A server that has not seen it since it started replies NOSCRIPT,
//! and is sent the whole script then. That is one round trip, makes the script known, and, unlike
//! SCRIPT LOAD, goes where the keys are.

use std::ptr;

use redis::{Cmd, Value};

use crate::failure::{Failure, FailureKind};

/// What a server replies to a request.
pub(crate) type Reply = Result<Value, Failure>;

/// A Lua script, and the hash by which a server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    body: &'static str,
    hash: String,
}

impl Script {
    pub(crate) fn new(body: &'static str) -> Self {
        Self { body, hash: redis::Script::new(body).get_hash().into() }
    }
}

/// One argument of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Number(u64),
    Text(&'a str),
}

/// The command after which a node serves the next request even for a slot that it is only about to
/// get.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// A packed request, with one reply that counts.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    /// Whether it is preceded by ASKING, whose reply does not count.
    asking: bool,
    /// The script that is called by its hash.
    script: Option<&'static Script>,
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
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), 256);
        command.arg("EVALSHA").arg(&script.hash).arg(keys.len()).arg(keys);
        for arg in args {
            match arg {
                Arg::Number(number) => command.arg(number),
                Arg::Text(text) => command.arg(text),
            };
        }
        let bytes = command.get_packed_command();
        Self { bytes, asking: false, script: Some(script), has_effect: true }
    }

    /// The same request preceded by ASKING.
    pub(crate) fn asking(self) -> Self {
        Self { bytes: [ASKING, &self.bytes].concat(), asking: true, ..self }
    }

    /// How many replies come before the one that counts. They can be ignored: if ASKING had no
    /// effect, the request is redirected.
    pub(crate) fn preludes(&self) -> usize {
        self.asking.into()
    }

    /// The script that is called by its hash.
    pub(crate) fn script(&self) -> Option<&'static Script> {
        self.script
    }

    /// Returns `true` if this is a call of the script.
    pub(crate) fn calls(&self, script: &'static Script) -> bool {
        self.script.is_some_and(|called| ptr::eq(called, script))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same request with the whole script in it.
    pub(crate) fn in_full(&self) -> Self {
        let Some(script) = self.script else { return self.clone() };
        let (head, rest) = self.split_at_hash(script);
        let mut bytes = Vec::with_capacity(self.bytes.len() + script.body.len());
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(b"$4\r\nEVAL\r\n");
        bytes
            .extend_from_slice(format!("${}\r\n{}\r\n", script.body.len(), script.body).as_bytes());
        bytes.extend_from_slice(rest);
        Self { bytes, script: None, ..*self }
    }

    /// The reply as it is to be taken. An error reply that does not say whether the request was
    /// executed is a refusal of one without an effect.
    pub(crate) fn judge(&self, reply: Reply) -> Reply {
        reply.map_err(|failure| match failure.kind {
            FailureKind::Unclear if !self.has_effect => failure.of_question(),
            _ => failure,
        })
    }

    /// Returns the request in full, to be sent again, if the server does not know the script.
    pub(crate) fn again_after(&self, reply: &Reply) -> Option<Self> {
        let unknown = matches!(reply, Err(failure) if failure.code == "NOSCRIPT");
        (unknown && self.script.is_some()).then(|| self.in_full())
    }

    /// The bytes in front of `EVALSHA` and those behind the hash.
    fn split_at_hash(&self, script: &Script) -> (&[u8], &[u8]) {
        // `*<number of arguments>\r\n`, then `$7\r\nEVALSHA\r\n$40\r\n<hash>\r\n`.
        let start = if self.asking { ASKING.len() } else { 0 };
        let count = self.bytes[start..].iter().position(|byte| *byte == b'\n');
        let head = start + count.map_or(0, |end| end + 1);
        let rest = head + "$7\r\nEVALSHA\r\n$40\r\n".len() + script.hash.len() + "\r\n".len();
        (&self.bytes[..head], &self.bytes[rest..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return KEYS[1]"));

    #[test]
    fn a_call_in_full_has_the_same_keys_and_arguments() {
        let args = [Arg::Text("a\r\nb"), Arg::Number(7)];
        let call = Request::call(&SCRIPT, &["key"], &args);
        let mut eval = redis::cmd("EVAL");
        eval.arg("return KEYS[1]").arg(1).arg("key").arg("a\r\nb").arg(7);
        assert_eq!(call.in_full().bytes(), eval.get_packed_command());
        assert_eq!(call.in_full().in_full().bytes(), call.in_full().bytes());
        let asking = call.clone().asking().in_full();
        assert_eq!(asking.bytes(), [ASKING, call.in_full().bytes()].concat());
    }
}
