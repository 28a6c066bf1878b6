//! Replaces sockets on a system without those of Unix: every connection is refused. So servers are
//! unreachable there, and only the store in memory works.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::net::wait::{Arrived, Close, ReplyWait, WaitFor};

const REASON: &str = "leasehold connects to servers on Unix systems only; elsewhere it has locks \
                      in memory, by `Client::in_memory` and `MemoryServer`";

pub(crate) use self::{NoSocket as Alarm, NoSocket as Stream};

/// A socket of any kind: there is none.
#[derive(Clone)]
pub(crate) struct NoSocket(Infallible);

#[derive(Clone, Copy)]
pub(crate) struct PollFlags;

pub(crate) struct PollFd<'a>(PhantomData<&'a NoSocket>);

impl PollFlags {
    pub(crate) const IN: Self = Self;
    pub(crate) const OUT: Self = Self;

    pub(crate) fn union(self, _: Self) -> Self {
        self
    }
}

macro_rules! never {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        impl NoSocket {
            $(pub(crate) fn $name(&self, $(_: $argument),*) -> $result {
                match self.0 {}
            })*
        }
    };
}

never! {
    look() -> Arrived;
    peer() -> Option<SocketAddr>;
    poll_fd(PollFlags) -> PollFd<'_>;
    read(&mut [u8], WaitFor, Option<&mut ReplyWait<'_>>) -> io::Result<usize>;
    reset() -> ();
    ring() -> ();
    rung() -> PollFd<'_>;
    send(&[u8]) -> io::Result<usize>;
    wait(PollFlags, Instant) -> io::Result<()>;
}

impl NoSocket {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::Error::new(ErrorKind::Unsupported, REASON))
    }

    pub(crate) fn tcp(_: &[SocketAddr], _: Instant) -> io::Result<Self> {
        Self::new()
    }

    pub(crate) fn unix(_: &Path, _: Instant) -> io::Result<Self> {
        Self::new()
    }
}

impl Close for NoSocket {
    fn close(&self) {
        match self.0 {}
    }
}

/// Sleeps until the deadline, because no socket is ever ready.
pub(crate) fn poll_ready(_: &mut [PollFd<'_>], deadline: Option<Instant>) -> Vec<usize> {
    if let Some(deadline) = deadline {
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
    }
    Vec::new()
}
