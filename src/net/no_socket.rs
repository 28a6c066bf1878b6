//! What is in place of sockets on a system without those of Unix: every connection is refused. So
//! the servers are unreachable there, and only the store in memory works.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::net::interrupter::Close;
use crate::net::stream::Arrived;

const REASON: &str = "leasehold connects to servers on Unix systems only; elsewhere it has locks \
                      in memory, by `Client::in_memory` and `MemoryServer`";

/// A connected socket: there is none.
#[derive(Debug)]
pub(crate) struct Stream(Infallible);

/// What a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollFlags;

/// A socket that a thread waits for.
#[derive(Debug)]
pub(crate) struct PollFd<'a>(PhantomData<&'a Stream>);

/// Wakes a thread that waits for sockets.
#[derive(Debug)]
pub(crate) struct Bell(Infallible);

/// Becomes readable when its bell is rung.
#[derive(Debug)]
pub(crate) struct Alarm(Infallible);

fn unsupported() -> io::Error {
    io::Error::new(ErrorKind::Unsupported, REASON)
}

impl PollFlags {
    pub(crate) const IN: Self = Self;
    pub(crate) const OUT: Self = Self;

    pub(crate) fn union(self, _other: Self) -> Self {
        self
    }
}

impl Stream {
    pub(crate) fn tcp(_addresses: &[SocketAddr], _deadline: Instant) -> io::Result<Self> {
        Err(unsupported())
    }

    pub(crate) fn unix(_path: &Path, _deadline: Instant) -> io::Result<Self> {
        Err(unsupported())
    }

    pub(crate) fn send(&self, _bytes: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub(super) fn receive(&self, _into: &mut [u8], _naps: bool) -> io::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn look(&self) -> Arrived {
        match self.0 {}
    }

    pub(crate) fn poll_fd(&self, _what: PollFlags) -> PollFd<'_> {
        match self.0 {}
    }

    pub(crate) fn wait(&self, _what: PollFlags, _deadline: Instant) -> io::Result<()> {
        match self.0 {}
    }
}

impl Close for Stream {
    fn close(&self) {
        match self.0 {}
    }
}

/// Sleeps until the deadline, because no socket is ever ready.
pub(crate) fn poll_ready(_sockets: &mut [PollFd<'_>], deadline: Option<Instant>) -> Vec<usize> {
    if let Some(deadline) = deadline {
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
    }
    Vec::new()
}

pub(crate) fn alarm() -> io::Result<(Bell, Alarm)> {
    Err(unsupported())
}

impl Bell {
    pub(crate) fn ring(&mut self) {
        match self.0 {}
    }
}

impl Alarm {
    pub(crate) fn reset(&mut self) {
        match self.0 {}
    }

    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        match self.0 {}
    }
}
