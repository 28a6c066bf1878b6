//! Packed requests, and the slots in which threads wait for the replies.
//!
//! A script is called by its hash. A server that has not seen the script since its last start
//! replies NOSCRIPT, and is then sent the whole script with EVAL. That takes one round trip and
//! makes the script known. Unlike SCRIPT LOAD, EVAL reaches the node that has the keys.

use std::sync::Arc;
use std::time::Instant;

use itoa::Buffer;
use redis::{Cmd, Value};

use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while, wake_one};

/// The reply of a server to a request.
pub(crate) type Reply = Result<Value, Failure>;

/// A Lua script, and the hash by which a server knows it.
pub(crate) struct Script {
    body: String,
    /// The start of a call's arguments: EVALSHA and the hash of the body.
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

#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    Text(&'a str),
}

/// A packed request, with one reply that counts.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// Whether it is preceded by ASKING, which makes a node serve a slot that is still moving
    /// there. The reply to ASKING is ignored: if it had no effect, the request is redirected.
    pub(super) asking: bool,
    pub(crate) script: Option<&'static Script>,
    /// Whether it may change data, as scripts do.
    has_effect: bool,
}

impl Request {
    pub(crate) fn command(command: &Cmd) -> Self {
        let bytes = command.get_packed_command();
        Self { bytes, asking: false, script: None, has_effect: false }
    }

    pub(crate) fn call(script: &'static Script, keys: &[&str], args: &[Arg<'_>]) -> Self {
        // Packed here, because `Cmd` would take longer than everything else in a call.
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

    /// Returns the same request preceded by ASKING.
    pub(crate) fn asking(self) -> Self {
        Self { asking: true, ..self }
    }

    /// Returns the same request with the whole script in it.
    pub(crate) fn in_full(&self) -> Self {
        let Some(script) = self.script else { return self.clone() };
        // `*<number of arguments>\r\n` comes first.
        let head = self.bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut bytes = Vec::with_capacity(self.bytes.len() + script.body.len());
        bytes.extend_from_slice(&self.bytes[..head]);
        push_argument(&mut bytes, b"EVAL");
        push_argument(&mut bytes, script.body.as_bytes());
        bytes.extend_from_slice(&self.bytes[head + script.call.len()..]);
        Self { bytes, script: None, ..*self }
    }

    /// Returns the failure for an error reply. If the request has no effect, an error that does not
    /// say whether it was executed counts as a refusal.
    pub(super) fn judge(&self, failure: Failure) -> Failure {
        if self.has_effect { failure } else { failure.of_question() }
    }
}

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

/// The replies that one thread waits for.
pub(crate) struct ReplySlot {
    pub(super) deadline: Instant,
    pub(super) state: Mutex<SlotState>,
    changed: Condvar,
}

pub(super) struct SlotState {
    /// In the order of the requests.
    replies: Vec<Option<Reply>>,
    pub(super) missing: usize,
    pub(super) waits: bool,
    /// Whether a connection was lent to the thread, which reads until it has its replies.
    is_reader: bool,
}

impl ReplySlot {
    pub(super) fn new(deadline: Instant) -> Arc<Self> {
        let state = SlotState { replies: Vec::new(), missing: 0, waits: true, is_reader: false };
        Arc::new(Self { deadline, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Resets a used slot, to reuse its memory, or replaces the slot if a request still refers to
    /// it.
    pub(super) fn renew(used: &mut Arc<Self>, deadline: Instant) -> Arc<Self> {
        match Arc::get_mut(used) {
            Some(unused) => {
                unused.deadline = deadline;
                let mut state = unused.state.lock();
                state.replies.clear();
                state.missing = 0;
                state.waits = true;
            }
            None => *used = Self::new(deadline),
        }
        used.clone()
    }

    /// Reserves a place for one more reply, and returns its index.
    pub(super) fn add(&self) -> usize {
        let mut state = self.state.lock();
        state.replies.push(None);
        state.missing += 1;
        state.replies.len() - 1
    }

    /// Blocks until all replies have arrived, the thread is made a reader, or the deadline passes.
    /// Returns `true` if the thread is now a reader.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        wait_while(&self.changed, &mut state, Some(self.deadline), |state| {
            state.missing > 0 && !state.is_reader
        });
        // A reader counts as waiting until it has read its own replies.
        state.waits = state.is_reader;
        state.is_reader
    }

    pub(super) fn calls_wait(&self) -> bool {
        let state = self.state.lock();
        state.waits && state.missing > 0
    }

    /// Makes the thread the reader of a connection. Returns `false` if it no longer waits.
    pub(super) fn make_reader(&self) -> bool {
        let mut state = self.state.lock();
        // Decided under the lock, so that a thread that times out at this moment either leaves
        // without the connection or stays to read.
        let waits = state.waits && state.missing > 0;
        state.is_reader |= waits;
        drop(state);
        if waits {
            wake_one(&self.changed);
        }
        waits
    }

    /// Stores a reply. Has no effect if the thread no longer waits for it.
    pub(super) fn answer(&self, place: usize, reply: Reply) {
        let mut state = self.state.lock();
        if !state.waits || state.replies[place].is_some() {
            // The thread has timed out and left.
            return;
        }
        state.replies[place] = Some(reply);
        state.missing -= 1;
        if state.missing == 0 {
            // Not under the lock, which the woken thread takes first.
            drop(state);
            wake_one(&self.changed);
        }
    }

    /// Stops waiting. Replies that have not arrived become this failure.
    pub(super) fn close(&self, failure: impl Fn() -> Failure) {
        let mut state = self.state.lock();
        // The thread that reads a late reply drops it.
        state.waits = false;
        for reply in &mut state.replies {
            reply.get_or_insert_with(|| Err(failure()));
        }
    }

    /// Takes the only reply, once the slot is closed.
    pub(super) fn reply(&self) -> Reply {
        self.state.lock().replies.pop().flatten().expect("a slot is closed with every reply")
    }

    /// Takes the replies, once the slot is closed.
    pub(super) fn replies(&self) -> Vec<Reply> {
        self.state.lock().replies.drain(..).flatten().collect()
    }
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
        assert!(call.asking().in_full().asking);
    }
}
