//! One connection's bytes: opened, written and read by a deadline that covers the whole of each.
//!
//! A time limit per read call, which sockets offer, never ends a reply that drips in byte by byte.
//! So the socket does not block; waiting is done by `poll` with the time that is left, after a
//! short spin if the caller allows one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Parser, RedisResult, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::store::spin::{Manner, Spell, Spin};

/// After this long without traffic the kernel asks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// A connected socket and what was read of an unfinished reply.
pub(crate) struct Socket {
    stream: Stream,
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
        stream.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        Ok(Self { stream: Stream::Tcp(stream), parser: Parser::new() })
    }

    #[cfg(unix)]
    pub(crate) fn unix(path: &Path, until: Instant) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

        let address = SocketAddrUnix::new(path)?;
        let pause = Duration::from_millis(1);
        loop {
            let stream = UnixStream::from(socket(AddressFamily::UNIX, SocketType::STREAM, None)?);
            stream.set_nonblocking(true)?;
            match connect(&stream, &address) {
                Ok(()) => return Ok(Self { stream: Stream::Unix(stream), parser: Parser::new() }),
                // The server's queue of new connections is full, and `poll` does not tell when it
                // no longer is.
                Err(rustix::io::Errno::AGAIN) => std::thread::sleep(pause.min(remaining(until)?)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn unix(_: &Path, _: Instant) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Writes all of `bytes`. After an error an unknown part of them is written.
    pub(crate) fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait(PollFlags::OUT, until)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads one whole reply, an error reply included. Spins first if `spin` has a spell for it.
    /// After a timeout, and only after that, reading may go on where it stopped.
    pub(crate) fn receive(&mut self, spin: Option<&Spin>, until: Instant) -> RedisResult<Value> {
        let Some(spin) = spin else {
            return self.parser.parse_value(Patient { stream: &self.stream, spell: None, until });
        };
        let (started, spell) = (Instant::now(), spin.start());
        let busy = spell.is_some();
        let mut patient = Patient { stream: &self.stream, spell, until };
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

impl Stream {
    /// Sleeps until the socket is ready.
    fn wait(&self, what: PollFlags, until: Instant) -> io::Result<()> {
        loop {
            let time = Timespec::try_from(remaining(until)?).ok();
            let mut fd = match self {
                Self::Tcp(stream) => [PollFd::new(stream, what)],
                #[cfg(unix)]
                Self::Unix(stream) => [PollFd::new(stream, what)],
            };
            match poll(&mut fd, time.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read_now(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(into),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what comes by a deadline.
struct Patient<'a> {
    stream: &'a Stream,
    spell: Option<Spell>,
    until: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            // A reply that was just asked for is not there yet: looking before sleeping is wasted.
            if self.spell.as_ref().is_none_or(|spell| !spell.goes_on()) {
                self.spell = None;
                self.stream.wait(PollFlags::IN, self.until)?;
            }
            match self.stream.read_now(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
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
