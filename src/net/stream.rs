//! The bytes of one connection: opened and read by deadlines that cover the whole of each, and
//! written as there is room.
//!
//! A time limit for each call of `read`, which is all that sockets offer, never ends a reply that
//! drips in byte by byte. So every wait is for the time that is left: after a short spin if the
//! caller allows one, in `read` itself while much time is left, which saves a system call, and in
//! `poll` at the end. A caller that may wait long waits in `poll` all the time, because `read`
//! wakes up now and then.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

use crate::error::Phase;
use crate::net::interrupter::Close;
#[cfg(all(test, leasehold_shuttle))]
use crate::net::schedules::FakeStream;
use crate::net::spin::ReplyWait;

/// After this time without traffic, the kernel checks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Apple's systems have no `NOSIGNAL`. Rust programs ignore that signal from the start anyway.
#[cfg(not(target_vendor = "apple"))]
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const SEND: SendFlags = SendFlags::DONTWAIT;

/// Programs that this one starts must not inherit the socket. Apple's systems cannot say so when it
/// is made, only right afterwards.
#[cfg(not(target_vendor = "apple"))]
const SOCKET: SocketFlags = SocketFlags::CLOEXEC;
#[cfg(target_vendor = "apple")]
const SOCKET: SocketFlags = SocketFlags::empty();

/// The longest sleep of one call of `read`.
const NAP: Duration = Duration::from_millis(50);

/// Why no connection could be opened, and how far that had come.
#[derive(Debug)]
pub(crate) struct ConnectError {
    pub(crate) phase: Phase,
    pub(crate) source: io::Error,
}

impl ConnectError {
    /// Makes the error from its cause in that phase.
    pub(crate) fn at(phase: Phase) -> impl Fn(io::Error) -> Self {
        move |source| Self { phase, source }
    }
}

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(all(test, leasehold_shuttle))]
    Fake(FakeStream),
}

impl Stream {
    /// Connects to the first of `addresses` that answers, giving each its share of the time.
    pub(crate) fn tcp(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Self> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for (tried, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            match TcpStream::connect_timeout(address, remaining(deadline)? / left) {
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
        Ok(Self::Tcp(stream))
    }

    pub(crate) fn unix(path: &Path, deadline: Instant) -> io::Result<Self> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Some(stream) = FakeStream::open(path) {
            return stream.map(Self::Fake);
        }
        let address = SocketAddrUnix::new(path)?;
        let pause = Duration::from_millis(1);
        loop {
            let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET, None)?;
            fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
            let stream = UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            match net::connect(&stream, &address) {
                Ok(()) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(NAP))?;
                    return Ok(Self::Unix(stream));
                }
                // The server's queue of new connections is full, and `poll` does not wait until it
                // no longer is.
                Err(Errno::AGAIN) => std::thread::sleep(pause.min(remaining(deadline)?)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes as many of `bytes` as there is room for, without waiting.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(stream) = self {
            return stream.send(bytes);
        }
        loop {
            match net::send(self, bytes, SEND) {
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    /// Reads once, as the flags say.
    fn receive(&self, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(stream) = self {
            return stream.receive(into, flags.contains(RecvFlags::DONTWAIT));
        }
        Ok(net::recv(self, into, flags)?.1)
    }

    /// Looks for what has come, without waiting and without taking any of it.
    pub(crate) fn look(&self) -> Arrived {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(_) = self {
            return Arrived::Nothing;
        }
        match net::recv(self, &mut [0], RecvFlags::PEEK.union(RecvFlags::DONTWAIT)) {
            Ok((_, 1..)) => Arrived::Data,
            Err(Errno::AGAIN | Errno::INTR) => Arrived::Nothing,
            Ok(_) | Err(_) => Arrived::End,
        }
    }

    /// Sleeps until the socket is ready.
    pub(crate) fn wait(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        #[cfg(all(test, leasehold_shuttle))]
        if let Self::Fake(stream) = self {
            return stream.wait();
        }
        loop {
            let time = Timespec::try_from(remaining(deadline)?).ok();
            match poll(&mut [PollFd::new(self, what)], time.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            #[cfg(all(test, leasehold_shuttle))]
            Self::Fake(_) => unreachable!("it has no file"),
        }
    }
}

/// A socket to wait for, while another thread may use it or give it up.
#[derive(Debug)]
pub(crate) struct PolledSocket {
    pub(super) stream: Arc<Stream>,
    pub(super) what: PollFlags,
}

impl PolledSocket {
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&*self.stream, self.what)
    }
}

/// What has come over a connection and was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    Data,
    /// Nothing more can be read.
    End,
    Nothing,
}

impl Close for Stream {
    /// Ends the connection.
    fn close(&self) {
        // It fails if the connection has ended by itself, which is as good.
        net::shutdown(self, Shutdown::Both).unwrap_or_default();
    }
}

/// Reads from a stream until a deadline.
pub(crate) struct DeadlineReader<'a> {
    pub(crate) stream: &'a Stream,
    /// The wait for a reply that is expected soon: the thread may spin before it sleeps.
    pub(crate) wait: Option<&'a mut ReplyWait>,
    pub(crate) sleep: Sleep,
    pub(crate) deadline: Instant,
}

/// How to wait until there is something to read, after spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In `read`, which wakes up after each `NAP`.
    Naps,
    /// Not at all: only what has come already is read.
    Never,
    /// In `poll`.
    Polls,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let flags = if self.wait.as_mut().is_some_and(|wait| wait.spins()) {
                std::hint::spin_loop();
                RecvFlags::DONTWAIT
            } else {
                match self.sleep {
                    Sleep::Never => RecvFlags::DONTWAIT,
                    Sleep::Naps if remaining(self.deadline)? >= NAP => RecvFlags::empty(),
                    Sleep::Naps | Sleep::Polls => {
                        self.stream.wait(PollFlags::IN, self.deadline)?;
                        RecvFlags::DONTWAIT
                    }
                }
            };
            match self.stream.receive(into, flags).map_err(|error| (error.kind(), error)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => return Ok(read),
                Err((io::ErrorKind::WouldBlock, _)) if self.sleep == Sleep::Never => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                // Nothing yet: the thread goes on spinning or sleeping while there is time.
                Err((io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted, _)) => {}
                Err((_, error)) => return Err(error),
            }
        }
    }
}

/// Returns the time until the deadline, or a timeout if there is none.
fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the time for the request is over"));
    }
    Ok(left)
}
