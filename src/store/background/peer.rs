//! A connection that one thread keeps to a node, and the one that replaces it.
//!
//! The thread never connects itself: a node that does not answer, or that hangs in the login, must
//! not delay what the thread does at other nodes, or at its own deadlines. So each connection is
//! opened on a short-lived thread.
//!
//! | connection | until | then |
//! |---|---|---|
//! | none | a job is to be sent, or a message to be waited for | being opened |
//! | none | the same, during a pause of the connection or of the node | none |
//! | being opened | the short-lived thread has connected | open |
//! | being opened | it has failed to | none, for a pause |
//! | open | an error, a long silence, or the server has moved | none, for wake-ups for a pause |
//! | open | what it has logged in with expires soon | open, while a successor is opened |
//! | open | the successor is open, and nothing is in flight here | replaced by it |
//!
//! Whatever is in flight on a connection that is closed has failed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, TryRecvError, bounded};

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::net::connection::Connection;
use crate::net::factory::ConnectionFactory;
use crate::net::packed::Request;
use crate::net::socket::{PollFd, poll_ready};

/// While a connection is being opened and others are open, its outcome is looked for this often.
const LOOK: Duration = Duration::from_millis(5);

/// How often a successor that could not be opened is tried again while its predecessor is good.
const SUCCESSOR_TRIES: u32 = 8;

/// A server that connections are opened to in the background.
pub(crate) trait Peer: Clone + fmt::Debug + PartialEq + Send + 'static {
    /// What makes the connections.
    fn factory(&self) -> &Arc<ConnectionFactory>;

    /// Fails if it is not time to connect, which it always is for an `urgent` attempt.
    fn claim(&self, _urgent: bool) -> Result<(), Failure> {
        Ok(())
    }

    /// When `claim` does not fail for a pause after a failure.
    fn next_try(&self) -> Instant {
        Instant::now()
    }

    /// Opens a connection, after `claim`. `previous` is the connection until now, which may be good
    /// still if it is confirmed that the server has not moved. That takes until `deadline` at most.
    fn connect(
        &self,
        previous: Option<Connection>,
        deadline: Instant,
    ) -> Result<Connection, Failure>;

    /// The request as the node wants it.
    fn addressed(&self, request: Request) -> Request {
        request
    }
}

/// How long a node is left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    /// After a failure that may pass.
    pub(crate) after_failure: Duration,
    /// After a server has refused what was asked. A login that was refused may soon be a good one.
    pub(crate) after_rejection: Duration,
}

/// A connection to a node, and what it is used for: a `T` is made of each connection that opens.
#[derive(Debug)]
pub(crate) struct BackgroundConnection<N, T> {
    pub(crate) peer: N,
    pauses: Pauses,
    pub(crate) open: Option<T>,
    /// The connection that is being opened: the first one, or the successor of the open one.
    /// Disconnected without an outcome if there is no thread, or it has panicked.
    pub(crate) opening: Option<Receiver<Result<T, Failure>>>,
    /// Why none could be opened or kept at last, and until when the node is left alone.
    failed: Option<(Failure, Instant)>,
}

impl<N: Peer, T: AsRef<Connection> + Send + 'static> BackgroundConnection<N, T> {
    pub(crate) fn new(peer: N, pauses: Pauses) -> Self {
        Self { peer, pauses, open: None, opening: None, failed: None }
    }

    /// Why there is no connection and none is being opened.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        let (failure, _) = self.failed.as_ref()?;
        (self.open.is_none() && self.opening.is_none()).then_some(failure)
    }

    /// When to try again to open a connection.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let (_, retry_at) = self.failed.as_ref().filter(|_| self.opening.is_none())?;
        Some((*retry_at).max(self.peer.next_try()))
    }

    /// Begins to open a connection, on a thread that ends when it has connected or failed to, if
    /// there is none or it expires soon. `previous` is the connection until now. Fails if there is
    /// none, and it is not time to try that again. Requests that wait for it fail at `deadline`. An
    /// `urgent` attempt keeps no pause, because too few nodes are connected.
    pub(crate) fn begin_opening(
        &mut self,
        previous: Option<Connection>,
        deadline: Instant,
        urgent: bool,
        make: impl FnOnce(Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        let is_good = |open: &T| open.as_ref().retiring().is_none();
        if self.opening.is_some() || self.open.as_ref().is_some_and(is_good) {
            return Ok(());
        }
        let urgent = urgent && self.open.is_none();
        let claimed = match &self.failed {
            Some((failure, until)) if !urgent && Instant::now() < *until => Err(failure.clone()),
            _ => self.peer.claim(urgent).inspect_err(|failure| {
                // The node keeps a pause of its own, which may end early.
                self.failed = Some((failure.clone(), Instant::now()));
            }),
        };
        match claimed {
            Err(failure) if self.open.is_none() => Err(failure),
            Err(_) => Ok(()),
            Ok(()) => {
                let (peer, (sender, opening)) = (self.peer.clone(), bounded(1));
                let connect = move || {
                    let outcome = peer.connect(previous, deadline).and_then(make);
                    // The receiver may be gone.
                    sender.send(outcome).unwrap_or_default();
                };
                let thread = thread::Builder::new().name("leasehold-connect".into()).spawn(connect);
                thread.map(drop).unwrap_or_default();
                self.opening = Some(opening);
                Ok(())
            }
        }
    }

    /// Goes on with the connection that was being opened, once it is. Returns `None` if it is not.
    pub(crate) fn finish_opening(&mut self) -> Option<Result<(), Failure>> {
        let outcome = match self.opening.as_ref()?.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                let why = format!("no thread could connect to {}", self.peer.factory().label());
                let (system, error) = (Arc::from("the operating system"), io::Error::other(why));
                let failure = Failure::io(FailureKind::Unreachable, &system, error);
                Err(failure.at(Phase::System))
            }
        };
        self.opening = None;
        Some(match outcome {
            Ok(open) => {
                (self.open, self.failed) = (Some(open), None);
                Ok(())
            }
            Err(failure) => {
                self.pause(failure.clone());
                Err(failure)
            }
        })
    }

    /// Gives up the connection. It can be opened again at once if it has `lasted`, and else after a
    /// pause.
    pub(crate) fn fail(&mut self, failure: Failure, lasted: bool) {
        self.open = None;
        if lasted {
            self.failed = Some((failure, Instant::now()));
        } else {
            self.pause(failure);
        }
    }

    fn pause(&mut self, failure: Failure) {
        let retiring = self.open.as_ref().and_then(|open| open.as_ref().retiring());
        let pause = match retiring {
            Some(validity) => validity.spare() / SUCCESSOR_TRIES,
            None if failure.kind == FailureKind::Rejected && failure.phase != Phase::Login => {
                self.pauses.after_rejection
            }
            None => self.pauses.after_failure,
        };
        self.failed = Some((failure, end_of(pause)));
    }
}

/// Blocks until one of `openings` has an outcome or `deadline` has come. Returns `false` if none
/// has.
pub(crate) fn wait_for_any<'a, T: 'a>(
    openings: impl IntoIterator<Item = &'a Receiver<T>>,
    deadline: Instant,
) -> bool {
    let mut select = Select::new();
    for opening in openings {
        select.recv(opening);
    }
    select.ready_deadline(deadline).is_ok()
}

/// Sleeps until a socket is ready, a connection has been opened, or `deadline`.
pub(crate) fn sleep<T>(sockets: &mut [PollFd<'_>], openings: &[&Receiver<T>], deadline: Instant) {
    if openings.is_empty() {
        poll_ready(sockets, Some(deadline));
    } else if sockets.is_empty() {
        wait_for_any(openings.iter().copied(), deadline);
    } else {
        poll_ready(sockets, Some(deadline.min(Instant::now() + LOOK)));
    }
}
