//! The bytes of replies as they come: where a reply ends, and what it says.
//!
//! The replies of most scripts are whole numbers, which are read here. All others are left to the
//! parser of `redis` once they have come whole. It could read numbers as well, but clears 8 KB for
//! each read, which would take a quarter of the instructions of a lock and its release.

use std::io::{self, Read};
use std::str;

use redis::{RedisResult, Value, parse_redis_value};

/// Room for the replies of most reads.
const USUAL: usize = 1024;

/// A larger buffer is not kept for the next reply.
const LARGE: usize = 64 * 1024;

/// What was read and not taken yet.
#[derive(Debug, Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// The bytes from `start` to `end` were read.
    start: usize,
    end: usize,
}

impl ReplyBuffer {
    /// Takes the next reply, which may be an error reply; `None` if it has not come whole.
    pub(crate) fn take(&mut self) -> Option<RedisResult<Value>> {
        let unread = &self.bytes[self.start..self.end];
        let length = reply_length(unread)?;
        let reply = &unread[..length];
        let value = number(reply).map_or_else(|| parse_redis_value(reply), |n| Ok(Value::Int(n)));
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > LARGE {
                self.bytes = Vec::new();
            }
        }
        Some(value)
    }

    /// Reads once.
    pub(crate) fn fill(&mut self, reader: &mut impl Read) -> io::Result<()> {
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let room = USUAL.max(self.end * 2);
            self.bytes.resize(room.max(self.bytes.len()), 0);
        }
        match reader.read(&mut self.bytes[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }
}

/// Returns the length of the reply at the beginning of `bytes`, or `None` if not all of it has
/// come. What cannot be a reply is as long as what has come of it.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let (mut length, mut values) = (0_usize, 1_usize);
    while values > 0 {
        let rest = bytes.get(length..)?;
        let kind = *rest.first()?;
        if !b"+-:$*_,#!=(%~>|".contains(&kind) {
            return Some(bytes.len());
        }
        let line = rest.windows(2).position(|bytes| bytes == b"\r\n")? + 2;
        let size = || integer(&rest[..line]).and_then(|size| usize::try_from(size).ok());
        length += line;
        values -= 1;
        match kind {
            // Null has the size -1, and nothing follows.
            b'$' | b'=' | b'!' => length = length.saturating_add(size().map_or(0, |size| size + 2)),
            b'*' | b'~' | b'>' => values = values.saturating_add(size().unwrap_or(0)),
            b'%' => values = values.saturating_add(size().unwrap_or(0).saturating_mul(2)),
            // Attributes come in front of a value.
            b'|' => values = values.saturating_add(size().unwrap_or(0).saturating_mul(2) + 1),
            _ => {}
        }
    }
    (length <= bytes.len()).then_some(length)
}

/// Returns what a whole reply says if it is a whole number.
fn number(reply: &[u8]) -> Option<i64> {
    if reply.starts_with(b":") { integer(reply) } else { None }
}

/// The number in a line between its first byte and its end.
fn integer(line: &[u8]) -> Option<i64> {
    let digits = line.get(1..)?.strip_suffix(b"\r\n")?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    /// Replies of every kind that `redis` can parse.
    const REPLIES: [&[u8]; 16] = [
        b":42\r\n",
        b":-1\r\n",
        b"+OK\r\n",
        b"-ERR no \n such thing\r\n",
        b"$5\r\nab\r\nc\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n:0\r\n*2\r\n$1\r\nx\r\n+y\r\n$-1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"=8\r\ntxt:some\r\n",
        b">3\r\n+message\r\n+channel\r\n$4\r\ntext\r\n",
    ];

    fn read(buffer: &mut ReplyBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            buffer.fill(&mut bytes).expect("there are bytes");
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
        for bytes in [&b"\x15\x03\x01"[..], b"HTTP/1.1 400 Bad Request\r\n", b":one\r\n", b"*x\r\n"]
        {
            let mut buffer = ReplyBuffer::default();
            read(&mut buffer, bytes);
            let error = buffer.take().expect("it is known to be none").expect_err("no reply");
            assert_eq!(error.kind(), ErrorKind::Parse, "{error}");
        }
    }

    #[test]
    fn sizes_without_measure_are_waited_for() {
        for bytes in ["$9223372036854775807\r\nx", "%9223372036854775807\r\n:1\r\n"] {
            let mut buffer = ReplyBuffer::default();
            read(&mut buffer, bytes.as_bytes());
            assert!(buffer.take().is_none());
        }
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
        let error = ReplyBuffer::default().fill(&mut &b""[..]).expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
