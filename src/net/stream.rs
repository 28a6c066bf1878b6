//! The bytes of one connection: opened and read by deadlines that cover the whole of each, and
//! written as there is room.
//!
//! A time limit for each call of `read`, which is all that sockets offer, never ends a reply that
//! drips in byte by byte. So every wait is for the time that is left: after a short spin if the
//! caller allows one, in `read` itself while much time is left, which saves a system call, and in
//! `poll` at the end. A caller that may wait long waits in `poll` all the time, because `read`
//! wakes up now and then.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Phase;
use crate::net::socket::{PollFd, PollFlags, Stream};
use crate::net::spin::ReplyWait;

/// The longest sleep of one call of `read`.
pub(super) const NAP: Duration = Duration::from_millis(50);

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

/// A socket to wait for, while another thread may use it or give it up.
#[derive(Debug)]
pub(crate) struct PolledSocket {
    pub(super) stream: Arc<Stream>,
    pub(super) what: PollFlags,
}

impl PolledSocket {
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        self.stream.poll_fd(self.what)
    }
}

/// What has come over a connection and was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    #[cfg_attr(not(unix), expect(dead_code, reason = "nothing comes there"))]
    Data,
    /// Nothing more can be read.
    End,
    Nothing,
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
            let naps = if self.wait.as_mut().is_some_and(|wait| wait.spins()) {
                std::hint::spin_loop();
                false
            } else {
                match self.sleep {
                    Sleep::Never => false,
                    Sleep::Naps if remaining(self.deadline)? >= NAP => true,
                    Sleep::Naps | Sleep::Polls => {
                        self.stream.wait(PollFlags::IN, self.deadline)?;
                        false
                    }
                }
            };
            match self.stream.receive(into, naps).map_err(|error| (error.kind(), error)) {
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
pub(super) fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the time for the request is over"));
    }
    Ok(left)
}
