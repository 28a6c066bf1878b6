//! Waiting for several sockets at once.

use std::time::Instant;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// Blocks until some of the sockets are ready, and returns their positions; none if the deadline is
/// over. Without a deadline it does not block.
pub(crate) fn poll_ready(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Vec<usize> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = Timespec::try_from(left.unwrap_or_default()).ok();
        match poll(fds, time.as_ref()) {
            Ok(0) if left.is_some_and(|left| !left.is_zero()) => {}
            Err(Errno::INTR) => {}
            // If something is wrong with a socket, reading from it returns the error.
            _ => break,
        }
    }
    let ready = fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
    ready.map(|(position, _)| position).collect()
}
