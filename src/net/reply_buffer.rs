//! The bytes of replies as they come: where a reply ends, and what it says.
//!
//! Servers speak version 2 of the protocol to a client that asks for no other. A reply is parsed
//! part by part as it comes, so that nothing is searched twice, and within limits. The parser of
//! `redis` would allow a reply of any length, and clears 8 KB for each read, which would take a
//! quarter of the instructions of a lock and its release.

use std::io;
use std::str;

use redis::{ErrorKind, RedisResult, Value, parse_redis_value};

/// Room for the replies of most reads.
const USUAL: usize = 1024;

/// A larger buffer is not kept for the next reply.
pub(super) const LARGE: usize = 64 * 1024;

/// The longest reply, in bytes. A server that works sends far shorter ones.
const LONGEST: usize = 16 * 1024 * 1024;

/// A part of a reply counts as at least this many bytes: a short one takes more in memory.
const PART_MIN: usize = 16;

/// How many arrays may be nested.
const DEPTH_MAX: usize = 16;

const NO_REPLY: &str = "what the server sent is not a reply of Redis's protocol";
const TOO_DEEP: &str = "the server's reply is nested too deep";
const TOO_LONG: &str = "the server's reply is too long";

/// What was read and not taken yet.
#[derive(Debug, Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// The bytes from `start` to `end` were read and not parsed.
    start: usize,
    end: usize,
    /// How many of these were searched for the end of a line.
    searched: usize,
    /// The unfinished arrays of the next reply, the outermost first.
    arrays: Vec<UnfinishedArray>,
    /// How long the parsed part of the next reply is.
    parsed: usize,
}

#[derive(Debug)]
struct UnfinishedArray {
    values: Vec<Value>,
    size: usize,
}

/// What a reply is made of.
enum Part {
    /// The head of an array that is not empty.
    Array(usize),
    Value(Value),
}

impl ReplyBuffer {
    /// Takes the next reply, which may be an error reply; `None` if it has not come whole. Behind
    /// what is no reply, none is found.
    pub(crate) fn take(&mut self) -> Option<RedisResult<Value>> {
        loop {
            match self.next_part() {
                Ok(None) => return None,
                Ok(Some(Part::Array(size))) => {
                    self.arrays.push(UnfinishedArray { values: Vec::new(), size });
                }
                Ok(Some(Part::Value(value))) => {
                    if let Some(reply) = self.complete(value) {
                        self.parsed = 0;
                        return Some(Ok(reply));
                    }
                }
                Err(why) => return Some(Err((ErrorKind::Parse, why).into())),
            }
        }
    }

    /// Reads once.
    pub(crate) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            // What is not parsed is never longer than a reply may be.
            let room = (self.end * 2).clamp(USUAL, LONGEST + USUAL);
            self.bytes.resize(room.max(self.bytes.len()), 0);
        }
        match read(&mut self.bytes[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }

    /// Takes the next part of a reply; `None` if it has not come whole.
    fn next_part(&mut self) -> Result<Option<Part>, &'static str> {
        let room = LONGEST.checked_sub(self.parsed).ok_or(TOO_LONG)?;
        let unread = &self.bytes[self.start..self.end];
        let Some(&kind) = unread.first() else { return Ok(None) };
        if !b"+-:$*".contains(&kind) {
            return Err(NO_REPLY);
        }
        let Some(end) = unread[self.searched..].windows(2).position(|two| two == b"\r\n") else {
            self.searched = unread.len() - 1;
            return if unread.len() > room { Err(TOO_LONG) } else { Ok(None) };
        };
        let end = self.searched + end;
        let mut length = end + 2;
        let part = match (kind, str::from_utf8(&unread[1..end]).map_err(|_| NO_REPLY)?) {
            (b'+', "OK") => Part::Value(Value::Okay),
            (b'+', text) => Part::Value(Value::SimpleString(text.into())),
            (b'-', _) => Part::Value(parse_redis_value(&unread[..length]).map_err(|_| NO_REPLY)?),
            (b':', number) => Part::Value(Value::Int(number.parse().map_err(|_| NO_REPLY)?)),
            (_, "-1") => Part::Value(Value::Nil),
            (b'*', size) => match size.parse().map_err(|_| NO_REPLY)? {
                0 => Part::Value(Value::Array(Vec::new())),
                _ if self.arrays.len() == DEPTH_MAX => return Err(TOO_DEEP),
                size => Part::Array(size),
            },
            (_, size) => {
                let size: usize = size.parse().map_err(|_| NO_REPLY)?;
                let whole = size.checked_add(length + 2).filter(|whole| *whole <= room);
                let start = std::mem::replace(&mut length, whole.ok_or(TOO_LONG)?);
                let Some(text) = unread.get(start..length) else { return Ok(None) };
                let text = text.strip_suffix(b"\r\n").ok_or(NO_REPLY)?;
                Part::Value(Value::BulkString(text.to_vec()))
            }
        };
        self.parsed += length.max(PART_MIN);
        self.drop_unread(length);
        Ok(Some(part))
    }

    /// Skips `length` bytes.
    fn drop_unread(&mut self, length: usize) {
        self.searched = 0;
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > LARGE {
                self.bytes = Vec::new();
            }
        }
    }

    /// Adds a value to the array that it is part of. Returns the reply once it is whole.
    fn complete(&mut self, mut value: Value) -> Option<Value> {
        while let Some(mut array) = self.arrays.pop() {
            array.values.push(value);
            if array.values.len() < array.size {
                self.arrays.push(array);
                return None;
            }
            value = Value::Array(array.values);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Replies of every kind.
    const REPLIES: [&[u8]; 12] = [
        b":42\r\n",
        b":-1\r\n",
        b"+OK\r\n",
        b"-ERR no \n such thing\r\n",
        b"$5\r\nab\r\nc\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*+0\r\n",
        b"*3\r\n:0\r\n*2\r\n$1\r\nx\r\n+y\r\n$-1\r\n",
        b"*2\r\n*1\r\n*0\r\n+\r\n",
    ];

    fn read(buffer: &mut ReplyBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            buffer.fill(|into| bytes.read(into)).expect("there are bytes");
        }
    }

    #[test]
    fn a_reply_is_taken_when_it_has_come_whole() {
        let mut buffer = ReplyBuffer::default();
        for reply in REPLIES {
            for byte in reply {
                assert!(buffer.take().is_none());
                read(&mut buffer, &[*byte]);
            }
            let value = buffer.take().expect("it is whole").expect("it is a reply");
            assert_eq!(value, parse_redis_value(reply).expect("it is a reply"));
        }
        assert!(buffer.take().is_none());
    }

    #[test]
    fn replies_that_have_come_together_are_taken_one_by_one() {
        let mut buffer = ReplyBuffer::default();
        read(&mut buffer, &REPLIES.concat());
        for reply in REPLIES {
            let value = buffer.take().expect("it is there").expect("it is a reply");
            assert_eq!(value, parse_redis_value(reply).expect("it is a reply"));
        }
        assert!(buffer.take().is_none());
    }

    #[test]
    fn what_is_no_reply_is_an_error_at_once() {
        for bytes in [
            &b"\x15\x03\x01"[..],
            b"HTTP/1.1 400 Bad Request\r\n",
            b":one\r\n",
            b"*x\r\n",
            b"*-2\r\n",
            b"$3\r\nabcde",
            b"$16777216\r\n",
            b"$18446744073709551615\r\n",
            b"$18446744073709551616\r\n",
            &b"*1\r\n".repeat(DEPTH_MAX + 1),
        ] {
            let mut buffer = ReplyBuffer::default();
            read(&mut buffer, bytes);
            let error = buffer.take().expect("it is known to be none").expect_err("no reply");
            assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
        }
    }

    /// Would not end within hours if each search began where the line does.
    #[test]
    fn a_reply_without_end_is_an_error_before_it_takes_much_memory() {
        for (head, piece) in [("+", "x".repeat(USUAL)), ("*1000000000\r\n", ":1\r\n".repeat(4))] {
            let (mut buffer, mut sent) = (ReplyBuffer::default(), 0);
            read(&mut buffer, head.as_bytes());
            let error = loop {
                if let Some(reply) = buffer.take() {
                    break reply.expect_err("it has no end");
                }
                read(&mut buffer, piece.as_bytes());
                sent += piece.len();
            };
            assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
            assert!(sent <= LONGEST + piece.len() && buffer.bytes.len() <= LONGEST + USUAL);
            let values = buffer.arrays.first().map_or(0, |array| array.values.len());
            assert!(values <= LONGEST / PART_MIN + 1, "{values}");
        }
    }

    #[test]
    fn a_reply_may_be_as_long_as_any_that_a_server_sends() {
        let (mut buffer, element) = (ReplyBuffer::default(), b"$20\r\n01234567890123456789\r\n");
        for bytes in [&b"*500000\r\n"[..], &element.repeat(500_000)] {
            read(&mut buffer, bytes);
        }
        let Some(Ok(Value::Array(values))) = buffer.take() else { panic!("it is a reply") };
        assert_eq!(values.len(), 500_000);
    }

    #[test]
    fn a_large_reply_leaves_no_large_buffer() {
        let mut buffer = ReplyBuffer::default();
        let text = "x".repeat(3 * LARGE);
        read(&mut buffer, format!("${}\r\n{text}\r\n:1\r\n", text.len()).as_bytes());
        let value = buffer.take().expect("it is whole").expect("it is a reply");
        assert_eq!(value, Value::BulkString(text.into_bytes()));
        assert_eq!(buffer.take().expect("it is whole").expect("it is a reply"), Value::Int(1));
        assert!(buffer.bytes.capacity() <= LARGE);
    }

    #[test]
    fn the_end_of_the_connection_is_an_error() {
        let error = ReplyBuffer::default().fill(|_| Ok(0)).expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
