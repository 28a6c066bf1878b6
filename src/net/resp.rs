//! A connection as its user sees it: bytes of requests go out, replies come in, plain or over TLS.
//!
//! Servers speak version 2 of the protocol to a client that asks for no other. A reply is parsed
//! part by part as it arrives, so that nothing is searched twice, and within limits. The parser of
//! `redis` allows replies of any length, and clears 8 KB for each read, which would take a quarter
//! of the instructions for acquiring and releasing a lock.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;
use std::{io, mem, str};

use redis::{ErrorKind, RedisResult, Value, parse_redis_value};

use crate::net::socket::{PollFd, PollFlags, Stream};
#[cfg(feature = "tls")]
use crate::net::tls::{Encrypted, Session};
use crate::net::wait::{Arrived, Close, ReplyWait, Spin, WaitFor};

/// Room for the replies of most reads.
const USUAL: usize = 1024;

/// A larger buffer is not kept for the next reply.
const LARGE: usize = 64 * 1024;

/// Maximum length of a reply, in bytes. A working server sends far shorter ones.
const LONGEST: usize = 16 * 1024 * 1024;

/// Maximum memory of the parsed part of a reply. A short value takes many times its length.
const LARGEST: usize = 64 * 1024 * 1024;

/// Estimated overhead of the allocator for each value. An error reply becomes two strings.
const ALLOCATED: usize = 2 * 24;

/// An error text is cut to this length.
const ERROR_TEXT: usize = 4096;

/// The initial capacity of an array with at least as many parts.
const FEW: usize = 4;

const DEPTH_MAX: usize = 16;

const NO_REPLY: &str = "what the server sent is not a reply of Redis's protocol";
const TOO_DEEP: &str = "the server's reply is nested too deep";
const TOO_LONG: &str = "the server's reply is too long";

/// A connected socket, and the part of an unfinished reply that was already read.
pub(crate) struct RespStream {
    /// Shared only with threads that wait for the socket or interrupt that wait.
    stream: Arc<Stream>,
    layer: Layer,
    replies: ReplyBuffer,
    /// The bytes to write, and how many of them are written. Kept to reuse the memory.
    pub(crate) out: Vec<u8>,
    written: usize,
}

pub(crate) enum Layer {
    Plain,
    /// In a cell, because TLS processes messages even when only asked whether something has
    /// arrived.
    #[cfg(feature = "tls")]
    Tls(Box<std::cell::RefCell<Session>>),
}

impl RespStream {
    pub(crate) fn new(stream: Stream, layer: Layer) -> Self {
        Self {
            stream: Arc::new(stream),
            layer,
            replies: ReplyBuffer::default(),
            out: Vec::new(),
            written: 0,
        }
    }

    pub(crate) fn awaited(&self) -> Weak<dyn Close> {
        let stream: Weak<Stream> = Arc::downgrade(&self.stream);
        stream
    }

    /// Returns the address of the server; a Unix socket has none.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer()
    }

    /// Checks for unread bytes, without waiting.
    pub(crate) fn look(&self) -> Arrived {
        match &self.layer {
            Layer::Plain => self.stream.look(),
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.borrow_mut().look(&self.stream),
        }
    }

    /// Returns `true` if bytes were read that belong to no complete reply.
    pub(crate) fn has_unread(&self) -> bool {
        self.replies.start < self.replies.end
    }

    /// Returns `true` if some bytes did not fit into the socket's buffer yet.
    pub(crate) fn is_writing(&self) -> bool {
        let is_session_writing = match &self.layer {
            Layer::Plain => false,
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.borrow().is_writing(),
        };
        is_session_writing || !self.out.is_empty()
    }

    /// Returns the socket to poll, for bytes to read or for room to continue writing.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        self.stream.poll_fd(self.polled().1)
    }

    /// Like `poll_fd`, but usable while another thread may use or close the connection.
    pub(crate) fn polled(&self) -> (Arc<Stream>, PollFlags) {
        let room = if self.is_writing() { PollFlags::OUT } else { PollFlags::IN };
        (self.stream.clone(), PollFlags::IN.union(room))
    }

    /// Writes as much as there is room for, without waiting. The reader continues with the rest.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let rest = &self.out[self.written..];
        self.written += match &mut self.layer {
            Layer::Plain if rest.is_empty() => 0,
            Layer::Plain => self.stream.send(rest)?,
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.get_mut().send(&self.stream, rest)?,
        };
        if self.written * 2 >= self.out.len() {
            self.out.drain(..mem::take(&mut self.written));
            // Large batches are rare, and connections last long.
            self.out.shrink_to(LARGE);
        }
        Ok(())
    }

    /// Sleeps until there may be room to write. Reads what arrives in the meantime, because a
    /// server whose replies are not read may stop reading requests.
    pub(crate) fn wait_for_room(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream.wait(PollFlags::IN.union(PollFlags::OUT), deadline)?;
        match self.fill(WaitFor::Nothing, None) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            filled => filled,
        }
    }

    /// Reads one whole reply, perhaps an error reply. After a timeout, and only then, the next call
    /// continues where this one stopped.
    pub(crate) fn receive(&mut self, wait: WaitFor, spin: &Spin) -> RedisResult<Value> {
        // Replies that arrived along with others count as well, because a sleeping thread finds
        // more of them.
        let mut waits = match wait {
            WaitFor::SoonReply { .. } => Some(spin.begin()),
            _ => None,
        };
        loop {
            if let Some(reply) = self.replies.take() {
                return reply;
            }
            if self.is_writing() && !matches!(wait, WaitFor::Buffered) {
                self.write()?;
            }
            match wait {
                WaitFor::Buffered => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                WaitFor::Reply { deadline } | WaitFor::SoonReply { deadline }
                    if self.is_writing() =>
                {
                    self.wait_for_room(deadline)?;
                }
                _ => self.fill(wait, waits.as_mut())?,
            }
        }
    }

    /// Reads once.
    fn fill(&mut self, wait: WaitFor, spin: Option<&mut ReplyWait<'_>>) -> io::Result<()> {
        let Self { stream, layer, replies, .. } = self;
        replies.fill(|into| match layer {
            Layer::Plain => stream.read(into, wait, spin),
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.get_mut().read(into, Encrypted { stream, wait, spin }),
        })
    }
}

/// The bytes that were read and not yet taken.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// The bytes from `start` to `end` were read but not parsed.
    start: usize,
    end: usize,
    /// How many of these bytes were already searched for the end of a line.
    searched: usize,
    /// The unfinished arrays of the next reply, each with its size, the outermost first.
    arrays: Vec<(Vec<Value>, usize)>,
    /// The length of the parsed part of the next reply, and its size in memory.
    parsed: usize,
    memory: usize,
}

enum Part {
    /// The head of an array that is not empty.
    Array(usize),
    Value(Value),
}

impl ReplyBuffer {
    /// Takes the next reply; `None` if it has not fully arrived. Nothing can be read after invalid
    /// bytes.
    pub(crate) fn take(&mut self) -> Option<RedisResult<Value>> {
        loop {
            match self.next_part() {
                Ok(None) => return None,
                Ok(Some(Part::Array(size))) => self.arrays.push((Vec::new(), size)),
                Ok(Some(Part::Value(value))) => match self.complete(value) {
                    Ok(None) => {}
                    Ok(Some(reply)) => {
                        self.parsed = 0;
                        self.memory = 0;
                        return Some(Ok(reply));
                    }
                    Err(why) => return Some(Err((ErrorKind::Parse, why).into())),
                },
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
            self.end -= self.start;
            self.start = 0;
            // The unparsed bytes are never longer than a reply may be.
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

    /// Takes the next part of a reply; `None` if it has not fully arrived.
    fn next_part(&mut self) -> Result<Option<Part>, &'static str> {
        let length_left = LONGEST.checked_sub(self.parsed).ok_or(TOO_LONG)?;
        let room = LARGEST.checked_sub(self.memory).ok_or(TOO_LONG)?.min(length_left);
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
        let line = &unread[1..end];
        let part = match (kind, str::from_utf8(line)) {
            (b'-', _) => Part::Value(error_reply(line)?),
            (_, Err(_)) => return Err(NO_REPLY),
            (b'+', Ok("OK")) => Part::Value(Value::Okay),
            (b'+', Ok(text)) => Part::Value(Value::SimpleString(text.into())),
            (b':', Ok(number)) => Part::Value(Value::Int(number.parse().map_err(|_| NO_REPLY)?)),
            (_, Ok("-1")) => Part::Value(Value::Nil),
            (b'*', Ok(size)) => match size.parse().map_err(|_| NO_REPLY)? {
                0 => Part::Value(Value::Array(Vec::new())),
                _ if self.arrays.len() == DEPTH_MAX => return Err(TOO_DEEP),
                size => Part::Array(size),
            },
            (_, Ok(size)) => {
                let size: usize = size.parse().map_err(|_| NO_REPLY)?;
                let whole = size.checked_add(length + 2).filter(|whole| *whole <= room);
                let start = mem::replace(&mut length, whole.ok_or(TOO_LONG)?);
                let Some(text) = unread.get(start..length) else { return Ok(None) };
                let text = text.strip_suffix(b"\r\n").ok_or(NO_REPLY)?;
                Part::Value(Value::BulkString(text.to_vec()))
            }
        };
        self.parsed += length;
        self.memory += length + ALLOCATED;
        self.drop_unread(length);
        Ok(Some(part))
    }

    fn drop_unread(&mut self, length: usize) {
        self.searched = 0;
        self.start += length;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > LARGE {
                self.bytes = Vec::new();
            }
        }
    }

    /// Adds a value to the array that it is part of. Returns the reply once it is complete.
    fn complete(&mut self, mut value: Value) -> Result<Option<Value>, &'static str> {
        while let Some((mut values, size)) = self.arrays.pop() {
            if values.len() == values.capacity() {
                // Grows by doubling: the announced size is not trusted before the values have
                // arrived.
                let more = values.len().max(FEW).min(size - values.len());
                // While the values are copied, both arrays exist.
                if self.memory + (values.len() + more) * size_of::<Value>() > LARGEST {
                    return Err(TOO_LONG);
                }
                values.reserve_exact(more);
                self.memory += more * size_of::<Value>();
            }
            values.push(value);
            if values.len() < size {
                self.arrays.push((values, size));
                return Ok(None);
            }
            value = Value::Array(values);
        }
        Ok(Some(value))
    }
}

/// Parses an error reply. A server that repeats a part of a request may cut it off within a
/// character.
fn error_reply(text: &[u8]) -> Result<Value, &'static str> {
    let text = &text[..text.len().min(ERROR_TEXT)];
    let reply = format!("-{}\r\n", String::from_utf8_lossy(text));
    parse_redis_value(reply.as_bytes()).map_err(|_| NO_REPLY)
}

#[cfg(test)]
mod tests;
