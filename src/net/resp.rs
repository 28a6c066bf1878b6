//! A connection as its user sees it: bytes of requests out, replies in, plain or over TLS.

use std::sync::{Arc, Weak};
use std::time::Instant;
use std::{io, mem};

use redis::{RedisResult, Value};

use crate::net::reply_buffer::{LARGE, ReplyBuffer};
use crate::net::socket::{PollFd, PollFlags, Stream};
#[cfg(feature = "tls")]
use crate::net::tls::{Encrypted, Session};
use crate::net::wait::{Arrived, Close, ReplyWait, Spin, WaitFor};

/// A connected socket, and what was read of an unfinished reply.
pub(crate) struct RespStream {
    /// Shared only with [`Interrupter`](crate::net::wait::Interrupter)s and [`PolledSocket`]s.
    stream: Arc<Stream>,
    layer: Layer,
    replies: ReplyBuffer,
    /// The bytes to write, to which more can be appended, and how many of them are written. Kept to
    /// reuse the memory.
    pub(crate) out: Vec<u8>,
    written: usize,
}

/// How bytes are encoded on the way.
enum Layer {
    Plain,
    /// In a cell, because a look at what has come processes some of it.
    #[cfg(feature = "tls")]
    Tls(Box<std::cell::RefCell<Session>>),
}

impl std::fmt::Debug for RespStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RespStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl RespStream {
    pub(super) fn plain(stream: Stream) -> Self {
        Self::over(stream, Layer::Plain)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn encrypted(stream: Stream, session: Session) -> Self {
        Self::over(stream, Layer::Tls(Box::new(session.into())))
    }

    fn over(stream: Stream, layer: Layer) -> Self {
        let (replies, out) = (ReplyBuffer::default(), Vec::new());
        Self { stream: Arc::new(stream), layer, replies, out, written: 0 }
    }

    pub(crate) fn awaited(&self) -> Weak<dyn Close> {
        let stream: Weak<Stream> = Arc::downgrade(&self.stream);
        stream
    }

    /// Looks for what has come and was not read, without waiting.
    pub(crate) fn look(&self) -> Arrived {
        match &self.layer {
            Layer::Plain => self.stream.look(),
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.borrow_mut().look(&self.stream),
        }
    }

    /// Returns `true` if something is to be written for which there was no room.
    pub(crate) fn is_writing(&self) -> bool {
        let is_session_writing = match &self.layer {
            Layer::Plain => false,
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.borrow().is_writing(),
        };
        is_session_writing || !self.out.is_empty()
    }

    /// The socket, to wait until there is something to read, or room to go on writing.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        self.stream.poll_fd(self.polled_for())
    }

    fn polled_for(&self) -> PollFlags {
        if self.is_writing() { PollFlags::IN.union(PollFlags::OUT) } else { PollFlags::IN }
    }

    pub(crate) fn polled(&self) -> PolledSocket {
        PolledSocket { stream: self.stream.clone(), what: self.polled_for() }
    }

    /// Writes as much as there is room for, without waiting. The thread that reads goes on with the
    /// rest.
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
            // A large batch is rare, and a connection lasts long.
            self.out.shrink_to(LARGE);
        }
        Ok(())
    }

    /// Blocks until everything is written. A timeout changes nothing.
    pub(crate) fn flush(&mut self, deadline: Instant) -> io::Result<()> {
        while self.is_writing() {
            self.wait_for_room(deadline)?;
            self.write()?;
        }
        Ok(())
    }

    /// Sleeps until there may be room to write, or until something has come. That is read: a server
    /// whose replies are not read may stop to read requests.
    fn wait_for_room(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream.wait(PollFlags::IN.union(PollFlags::OUT), deadline)?;
        match self.fill(WaitFor::Nothing, None) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            filled => filled,
        }
    }

    /// Reads one whole reply, which may be an error reply. If it has not come whole by then, that
    /// is a timeout. After a timeout, and only then, reading can go on where it stopped.
    pub(crate) fn receive(&mut self, wait: WaitFor, spin: &Spin) -> RedisResult<Value> {
        // One that has come along with another counts as well: a thread that sleeps finds more so.
        let mut waits = matches!(wait, WaitFor::SoonReply { .. }).then(|| spin.begin());
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

/// A socket to wait for, while another thread may use it or give it up.
#[derive(Debug)]
pub(crate) struct PolledSocket {
    stream: Arc<Stream>,
    what: PollFlags,
}

impl PolledSocket {
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        self.stream.poll_fd(self.what)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn what_was_written_takes_no_memory_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut stream = RespStream::plain(Stream::tcp(&[address], deadline).expect("it listens"));
        let (mut peer, _) = listener.accept().expect("a connection");
        let read = thread::spawn(move || peer.read_exact(&mut vec![0; 100 * LARGE]));
        stream.out.resize(100 * LARGE, b'x');
        stream.write().expect("it is open");
        stream.flush(deadline).expect("it is read");
        read.join().expect("no panic").expect("all has come");
        assert!(stream.out.capacity() <= LARGE, "{}", stream.out.capacity());
    }
}
