//! One connection's bytes: opened, written and read by a deadline that covers the whole of each.
//!
//! A time limit per read call, which is all that sockets offer, never ends a reply that drips in
//! byte by byte. So every wait is for the time that is left: after a short spin if the caller allows
//! one, in `read` itself while much time is left, which saves a system call, and in `poll` at the end.
//! Who may have to wait for long is in `poll` all the time, because `read` wakes now and then.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Parser, RedisResult, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketType, sockopt,
};

use crate::store::spin::{Manner, Spell, Spin};

/// After this long without traffic the kernel asks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Apple has no such flag; there, as everywhere, Rust programs ignore the signal from the start.
#[cfg(not(target_vendor = "apple"))]
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const SEND: SendFlags = SendFlags::DONTWAIT;

/// How long one call of `read` sleeps at the most.
const NAP: Duration = Duration::from_millis(50);

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Ends the connection of a socket from another thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plug(Weak<Stream>);

impl Plug {
    /// Wakes whoever waits at the socket, if there still is one.
    pub(crate) fn pull(&self) {
        if let Some(stream) = self.0.upgrade() {
            // It fails if the connection has ended by itself, which is as good.
            net::shutdown(&*stream, Shutdown::Both).unwrap_or_default();
        }
    }
}

/// A connected socket and what was read of an unfinished reply.
pub(crate) struct Socket {
    /// Shared with nothing but plugs.
    stream: Arc<Stream>,
    parser: Parser,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Socket {
    /// Connects to the first of `addresses` that answers, giving each its share of the time.
    pub(crate) fn tcp(addresses: &[SocketAddr], until: Instant) -> io::Result<Self> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for (tried, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            match TcpStream::connect_timeout(address, remaining(until)? / left) {
                Ok(stream) => return Self::over_tcp(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn over_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(NAP))?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        Ok(Self { stream: Arc::new(Stream::Tcp(stream)), parser: Parser::new() })
    }

    pub(crate) fn unix(path: &Path, until: Instant) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let pause = Duration::from_millis(1);
        loop {
            let stream =
                UnixStream::from(net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?);
            stream.set_nonblocking(true)?;
            match net::connect(&stream, &address) {
                Ok(()) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(NAP))?;
                    let stream = Arc::new(Stream::Unix(stream));
                    return Ok(Self { stream, parser: Parser::new() });
                }
                // The server's queue of new connections is full, and `poll` does not tell when it
                // no longer is.
                Err(Errno::AGAIN) => std::thread::sleep(pause.min(remaining(until)?)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn plug(&self) -> Plug {
        Plug(Arc::downgrade(&self.stream))
    }

    /// Writes all of `bytes`. After an error an unknown part of them is written.
    pub(crate) fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match net::send(&*self.stream, bytes, SEND) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.stream.wait(PollFlags::OUT, until)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads a reply that has come already. If not all of it has, that is a timeout.
    pub(crate) fn receive_now(&mut self) -> RedisResult<Value> {
        self.parser.parse_value(Ready(&self.stream))
    }

    /// Reads one whole reply, an error reply included. With `spin` it is expected soon, and spun
    /// for if there is a spell for it; without, it may take long.
    /// After a timeout, and only after that, reading may go on where it stopped.
    pub(crate) fn receive(&mut self, spin: Option<&Spin>, until: Instant) -> RedisResult<Value> {
        let Some(spin) = spin else {
            let patient = Patient { stream: &self.stream, spell: None, naps: false, until };
            return self.parser.parse_value(patient);
        };
        let (started, spell) = (Instant::now(), spin.start());
        let busy = spell.is_some();
        let mut patient = Patient { stream: &self.stream, spell, naps: true, until };
        let reply = self.parser.parse_value(&mut patient);
        let manner = match (busy, patient.spell.is_some()) {
            (false, _) => Manner::Asleep,
            (true, true) => Manner::Busy,
            (true, false) => Manner::BusyInVain,
        };
        spin.learn(manner, started.elapsed());
        reply
    }
}

/// For waiting at several sockets at once.
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Stream {
    /// Sleeps until the socket is ready.
    fn wait(&self, what: PollFlags, until: Instant) -> io::Result<()> {
        loop {
            let time = Timespec::try_from(remaining(until)?).ok();
            match poll(&mut [PollFd::new(self, what)], time.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Reads what comes by a deadline.
struct Patient<'a> {
    stream: &'a Stream,
    spell: Option<Spell>,
    /// Whether it may sleep in `read`, from which it wakes after each `NAP`.
    naps: bool,
    until: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let flags = if self.spell.as_ref().is_some_and(Spell::goes_on) {
                std::hint::spin_loop();
                RecvFlags::DONTWAIT
            } else {
                self.spell = None;
                if remaining(self.until)? >= NAP && self.naps {
                    RecvFlags::empty()
                } else {
                    self.stream.wait(PollFlags::IN, self.until)?;
                    RecvFlags::DONTWAIT
                }
            };
            match net::recv(self.stream, &mut *into, flags) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((read, _)) => return Ok(read),
                // Nothing yet: the spin or the nap goes on while there is time.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Reads what has come.
struct Ready<'a>(&'a Stream);

impl Read for Ready<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match net::recv(self.0, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((read, _)) => return Ok(read),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The time left until `until`, or a timeout if there is none.
fn remaining(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the time for the request is over"));
    }
    Ok(left)
}
