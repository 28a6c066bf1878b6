//! One connection that one thread keeps to a node. The states are described in [`super`].

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::net::connection::Connection;
use crate::net::login::Validity;
use crate::net::request::Request;
use crate::net::socket::{PollFd, poll_ready};
use crate::store::background::opening::Opening;

/// While a connection is being opened and others are open, its outcome is looked for this often.
const LOOK: Duration = Duration::from_millis(5);

/// A server that connections are opened to in the background.
pub(crate) trait Node: Clone + fmt::Debug + Send {
    /// The address as users are shown it.
    fn label(&self) -> Arc<str>;

    /// Returns `true` if that is the same node, to be asked in the same way.
    fn is(&self, other: &Self) -> bool;

    /// Begins to open a connection, or fails if it is not time to try that again. `previous` is the
    /// connection until now, which may be good still if it is confirmed that the server has not
    /// moved. That takes until `deadline` at most.
    fn open(
        &self,
        previous: Option<Connection>,
        attempt: ConnectAttempt,
    ) -> Result<Opening, Failure>;

    /// When `open` does not fail for a pause after a failure.
    fn next_try(&self) -> Instant {
        Instant::now()
    }

    /// The request as the node wants it.
    fn addressed(&self, request: Request) -> Request {
        request
    }
}

/// How to open a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectAttempt {
    /// When the requests that it is opened for have failed.
    pub(crate) deadline: Instant,
    /// Whether too few nodes are connected without this one, so that no pause is kept.
    pub(crate) urgent: bool,
}

/// How long a node is left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    /// After a failure that may pass.
    pub(crate) after_failure: Duration,
    /// After a server has refused what was asked. A login that was refused may soon be a good one.
    pub(crate) after_rejection: Duration,
}

/// How often a successor that could not be opened is tried again while its predecessor is good.
const SUCCESSOR_TRIES: u32 = 8;

impl Pauses {
    /// Those of a connection that replaces one which is still valid.
    pub(super) fn of_successor(predecessor: Validity) -> Self {
        let pause = predecessor.spare() / SUCCESSOR_TRIES;
        Self { after_failure: pause, after_rejection: pause }
    }
}

/// A connection to a node, and what it is used for: a `T` is made of each connection that opens.
#[derive(Debug)]
pub(crate) struct BackgroundConnection<N, T> {
    pub(crate) node: N,
    pauses: Pauses,
    state: ConnectionState<T>,
}

#[derive(Debug)]
enum ConnectionState<T> {
    Closed,
    Failed { failure: Failure, retry_at: Instant },
    Open(T),
    Opening(Opening),
}

impl<N: Node, T> BackgroundConnection<N, T> {
    pub(crate) fn new(node: N, pauses: Pauses) -> Self {
        Self { node, pauses, state: ConnectionState::Closed }
    }

    /// The connection, if it is open.
    pub(crate) fn as_open(&self) -> Option<&T> {
        if let ConnectionState::Open(open) = &self.state { Some(open) } else { None }
    }

    pub(crate) fn as_open_mut(&mut self) -> Option<&mut T> {
        if let ConnectionState::Open(open) = &mut self.state { Some(open) } else { None }
    }

    pub(crate) fn as_opening(&self) -> Option<&Opening> {
        if let ConnectionState::Opening(opening) = &self.state { Some(opening) } else { None }
    }

    /// Why the connection could not be opened or kept, and when that is tried again.
    fn as_failed(&self) -> Option<(&Failure, Instant)> {
        match &self.state {
            ConnectionState::Failed { failure, retry_at } => Some((failure, *retry_at)),
            _ => None,
        }
    }

    /// Why the connection could not be opened or kept.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.as_failed().map(|(failure, _)| failure)
    }

    /// When to try again to open the connection.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.as_failed().map(|(_, retry_at)| retry_at.max(self.node.next_try()))
    }

    /// Begins to open the connection unless it is open or being opened. Fails during the pause
    /// after a failure.
    pub(crate) fn begin_opening(
        &mut self,
        previous: Option<Connection>,
        attempt: ConnectAttempt,
    ) -> Result<(), Failure> {
        match &self.state {
            ConnectionState::Open(_) | ConnectionState::Opening(_) => return Ok(()),
            ConnectionState::Failed { failure, retry_at }
                if !attempt.urgent && Instant::now() < *retry_at =>
            {
                return Err(failure.clone());
            }
            ConnectionState::Closed | ConnectionState::Failed { .. } => {}
        }
        match self.node.open(previous, attempt) {
            Ok(opening) => self.state = ConnectionState::Opening(opening),
            Err(failure) => {
                // The node keeps a pause of its own, which may end early.
                let (failed, retry_at) = (failure.clone(), Instant::now());
                self.state = ConnectionState::Failed { failure: failed, retry_at };
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Makes use of the connection that was being opened, once it is. Returns `None` if it is not.
    pub(crate) fn finish_opening(
        &mut self,
        make: impl FnOnce(Connection) -> Result<T, Failure>,
    ) -> Option<Result<&mut T, Failure>> {
        let outcome = self.as_opening()?.take_outcome()?;
        match outcome.and_then(make) {
            Ok(open) => self.state = ConnectionState::Open(open),
            Err(failure) => {
                self.fail(failure.clone());
                return Some(Err(failure));
            }
        }
        self.as_open_mut().map(Ok)
    }

    /// Gives up the connection, for a pause.
    pub(crate) fn fail(&mut self, failure: Failure) {
        let pause = match failure.kind {
            FailureKind::Rejected if failure.phase != Phase::Login => self.pauses.after_rejection,
            _ => self.pauses.after_failure,
        };
        self.fail_for(failure, pause);
    }

    /// Gives up the connection, for this long.
    pub(crate) fn fail_for(&mut self, failure: Failure, pause: Duration) {
        self.state = ConnectionState::Failed { failure, retry_at: end_of(pause) };
    }

    /// Goes on with the connection of its successor.
    pub(crate) fn take_over(&mut self, successor: Self) {
        self.state = successor.state;
    }

    /// Gives up the connection, which can be opened again at once.
    pub(crate) fn close(&mut self) -> Option<T> {
        match std::mem::replace(&mut self.state, ConnectionState::Closed) {
            ConnectionState::Open(open) => Some(open),
            _ => None,
        }
    }
}

/// Sleeps until a socket is ready, a connection has been opened, or `deadline`.
pub(crate) fn sleep(sockets: &mut [PollFd<'_>], openings: &[&Opening], deadline: Instant) {
    if openings.is_empty() {
        poll_ready(sockets, Some(deadline));
    } else if sockets.is_empty() {
        Opening::wait_for_any(openings.iter().copied(), deadline);
    } else {
        poll_ready(sockets, Some(deadline.min(Instant::now() + LOOK)));
    }
}
