//! A connection that one thread keeps to a node, and its successor.
//!
//! The thread never connects by itself: a node that does not answer, or hangs in the login, must
//! not delay the thread's other nodes and deadlines. So each connection is opened on a short-lived
//! thread.
//!
//! | connection | until | then |
//! |---|---|---|
//! | none | a job or a wait for messages needs one | being opened |
//! | none | the same, during a pause of the connection or of the node | none |
//! | being opened | the short-lived thread has connected | open |
//! | being opened | the short-lived thread has failed | none, for a pause |
//! | open | an error, a long silence, or the server has moved | none |
//! | open | it is old, or its login expires soon | open, while a successor is opened |
//! | open | the successor is open, and nothing is in flight here | replaced by it |
//!
//! When a connection is closed, everything in flight on it has failed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, bounded};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::{spawn, wait_for_any};
use crate::error::Phase;
use crate::net::connection::Connection;
use crate::net::factory::ConnectionFactory;
use crate::net::packed::Request;
use crate::net::socket::{CLOSE_NOTICED, PollFd, poll_ready};
use crate::net::wait::WaitFor;

/// How often the outcome of an opening is polled while other connections are open.
const LOOK: Duration = Duration::from_millis(5);

/// How many attempts to open a successor fit into the time while its predecessor is still good.
const SUCCESSOR_TRIES: u32 = 8;

/// A server to which connections are opened in the background.
pub(crate) trait Peer: Clone + PartialEq + Send + 'static {
    /// Returns the factory of the connections.
    fn factory(&self) -> &Arc<ConnectionFactory>;

    /// Fails if it is not yet time to connect. For an `urgent` attempt it always is.
    fn claim(&self, _urgent: bool) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns when the pause after a failure ends, so that `claim` succeeds.
    fn next_try(&self) -> Instant {
        clock::now()
    }

    /// Opens a connection, after `claim`, by `deadline`. `previous` is the old connection, which
    /// can still be used if the server is confirmed not to have moved.
    fn connect(
        &self,
        previous: Option<Connection>,
        deadline: Instant,
    ) -> Result<Connection, Failure>;

    /// Adapts a request to the node, such as with ASKING.
    fn addressed(&self, request: Request) -> Request {
        request
    }
}

/// A connection to a node, and its use: each connection that opens becomes a `T`.
pub(crate) struct BackgroundConnection<N, T> {
    pub(crate) peer: N,
    /// Pause after a failed connect, or after a connection that lasted less than this.
    pause: Duration,
    pause_end: Instant,
    pub(crate) open: Option<T>,
    /// Receives the connection that is being opened: the first one, or the successor of the open
    /// one. Disconnected without an outcome if there is no thread, or if it has panicked.
    pub(crate) opening: Option<Receiver<Result<T, Failure>>>,
    /// Why the last attempt to open or keep a connection failed.
    failed: Option<Failure>,
}

impl<N: Peer, T: AsRef<Connection> + Send + 'static> BackgroundConnection<N, T> {
    pub(crate) fn new(peer: N, pause: Duration) -> Self {
        let pause_end = clock::now();
        Self { peer, pause, pause_end, open: None, opening: None, failed: None }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.as_ref().in_flight.is_empty())
    }

    /// Returns why there is no connection, if none is being opened either.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        if self.open.is_some() || self.opening.is_some() {
            return None;
        }
        self.failed.as_ref()
    }

    /// Returns when to try again to open a connection.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        if self.failed.is_none() || self.opening.is_some() {
            return None;
        }
        Some(self.pause_end.max(self.peer.next_try()))
    }

    /// Starts to open a connection, on a thread of its own, if there is none or the open one
    /// expires soon. `previous` is the old connection. Fails if there is none and the pause is not
    /// over; an `urgent` attempt skips the pause, because too few nodes are connected. The requests
    /// that wait for the connection fail at `deadline`.
    pub(crate) fn begin_opening(
        &mut self,
        previous: Option<Connection>,
        deadline: Instant,
        urgent: bool,
        make: impl FnOnce(Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        if self.opening.is_some() {
            return Ok(());
        }
        // A connection that is open and does not expire soon needs no successor.
        if let Some(open) = &self.open
            && open.as_ref().retiring().is_none()
        {
            return Ok(());
        }
        let urgent = urgent && self.open.is_none();
        let claimed = match &self.failed {
            Some(failure) if !urgent && clock::now() < self.pause_end => Err(failure.clone()),
            // The node has a pause of its own, which may end early.
            _ => self.peer.claim(urgent).inspect_err(|failure| self.failed = Some(failure.clone())),
        };
        match claimed {
            Err(failure) if self.open.is_none() => Err(failure),
            // The open connection can still be used for a while.
            Err(_) => Ok(()),
            Ok(()) => {
                let peer = self.peer.clone();
                let (sender, opening) = bounded(1);
                let thread = spawn("leasehold-connect", move || {
                    let outcome = peer.connect(previous, deadline).and_then(make);
                    // The owner may have given up in the meantime.
                    sender.send(outcome).unwrap_or_default();
                });
                // Without a thread, the sender is gone, which `finish_opening` reports.
                thread.unwrap_or_default();
                self.opening = Some(opening);
                Ok(())
            }
        }
    }

    /// Switches to the connection that was being opened, once it is open and no replies are
    /// outstanding on its predecessor. Returns `None` until then.
    pub(crate) fn finish_opening(&mut self) -> Option<Result<(), Failure>> {
        let opening = self.opening.as_ref()?;
        if self.is_busy() {
            // The old connection still has replies outstanding.
            return None;
        }
        let outcome = match opening.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                let why = format!("no thread could connect to {}", self.peer.factory().label());
                let system = Arc::from("the operating system");
                let failure = Failure::io(FailureKind::Unreachable, &system, io::Error::other(why));
                Err(failure.at(Phase::System))
            }
        };
        self.opening = None;
        // The old connection is good for a while, which leaves time for further attempts.
        let retiring = self.open.as_ref().and_then(|open| open.as_ref().retiring());
        self.pause_end =
            end_of(retiring.map_or(self.pause, |validity| validity.spare / SUCCESSOR_TRIES));
        self.failed = outcome.as_ref().err().cloned();
        Some(outcome.map(|open| self.open = Some(open)))
    }

    /// Makes no attempt for this time, or for the pause after a failure if that is longer.
    pub(crate) fn rest(&mut self, time: Duration) {
        self.pause_end = self.pause_end.max(end_of(time));
    }

    /// Closes the connection. It can be reopened at once if it has lasted as long as a pause.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.open = None;
        self.failed = Some(failure);
    }
}

impl<N: Peer> BackgroundConnection<N, Connection> {
    /// Reads the replies that have arrived. Never waits.
    pub(crate) fn read(&mut self) {
        while self.open.as_mut().is_some_and(|open| open.receive(WaitFor::Nothing)) {}
    }
}

/// Sleeps until a socket is ready or closed, a connection has been opened, or `deadline`. May
/// return early.
pub(crate) fn sleep<T: 'static>(
    sockets: &mut [PollFd<'_>],
    openings: &[&Receiver<T>],
    deadline: Instant,
) {
    if sockets.is_empty() && !openings.is_empty() {
        wait_for_any(openings.iter().copied(), deadline);
        return;
    }
    let longest = if openings.is_empty() { CLOSE_NOTICED } else { LOOK };
    poll_ready(sockets, Some(deadline.min(clock::now() + longest)));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::thread;

    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::in_flight::Exchange;
    use crate::net::server::ServerFactory;
    use crate::store::tests::process::Server;

    const AGES: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_secs(5);

    #[derive(Clone)]
    pub(in crate::store::background) struct One(
        pub(in crate::store::background) Arc<ConnectionFactory>,
    );

    impl PartialEq for One {
        fn eq(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    impl Peer for One {
        fn factory(&self) -> &Arc<ConnectionFactory> {
            &self.0
        }

        fn connect(&self, _: Option<Connection>, end: Instant) -> Result<Connection, Failure> {
            let mut connection = Connection::new(self.0.clone());
            connection.connect(end).map(|()| connection)
        }
    }

    #[test]
    fn a_connection_that_has_lasted_is_opened_again_at_once() {
        let server = Server::redis();
        let config = Config::default();
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoint = servers.endpoint(&server.url()).expect("a good URL");
        let factory = Arc::new(servers.connections(endpoint));
        for (pause, lasts) in [(Duration::from_millis(1), true), (AGES, false)] {
            let mut connection = BackgroundConnection::new(One(factory.clone()), pause);
            connection.begin_opening(None, end_of(SOON), false, Ok).expect("it is time");
            assert!(wait_for_any(&connection.opening, end_of(SOON)));
            connection.finish_opening().expect("an outcome").expect("a connection");
            thread::sleep(Duration::from_millis(1));
            connection.fail(factory.no_reply());
            assert!(connection.open.is_none());
            let again = connection.begin_opening(None, end_of(SOON), false, Ok);
            assert_eq!(again.is_ok(), lasts, "after a pause of {pause:?}");
        }
    }
    /// A connection to a node, with an outcome of the attempt to open the next one.
    fn with_outcome(
        factory: &Arc<ConnectionFactory>,
        outcome: Result<Connection, Failure>,
    ) -> BackgroundConnection<One, Connection> {
        let mut connection = BackgroundConnection::new(One(factory.clone()), AGES);
        connection.begin_opening(None, end_of(SOON), false, Ok).expect("it is time");
        assert!(wait_for_any(&connection.opening, end_of(SOON)));
        connection.finish_opening().expect("an outcome").expect("a connection");
        let (sender, opening) = bounded(1);
        sender.send(outcome).expect("there is room");
        connection.opening = Some(opening);
        connection
    }

    #[test]
    fn a_connection_is_replaced_once_its_replies_have_come_and_only_by_an_open_one() {
        let server = Server::redis();
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let endpoint = servers.endpoint(&server.url()).expect("a good URL");
        let factory = Arc::new(servers.connections(endpoint));
        let mut failed = with_outcome(&factory, Err(factory.no_reply()));
        failed.finish_opening().expect("an outcome").expect_err("it was not opened");
        assert!(failed.open.as_ref().is_some_and(Connection::is_open), "it is still good");

        let mut busy = with_outcome(&factory, Ok(Connection::new(factory.clone())));
        let ping = Request::command(&redis::cmd("PING"));
        let posted = Exchange::posted(ping, end_of(SOON), Box::new(drop));
        busy.open.as_mut().expect("it is open").send([posted]);
        assert!(busy.finish_opening().is_none(), "a reply is still to come");
        while busy.is_busy() {
            busy.read();
        }
        busy.finish_opening().expect("an outcome").expect("the next one");
        assert!(!busy.open.as_ref().is_some_and(Connection::is_open), "that is not open here");
    }

    #[test]
    fn an_attempt_without_a_thread_has_failed() {
        let server = Server::redis();
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let endpoint = servers.endpoint(&server.url()).expect("a good URL");
        let factory = Arc::new(servers.connections(endpoint));
        let mut connection = BackgroundConnection::<_, Connection>::new(One(factory), AGES);
        connection.opening = Some(bounded(0).1);
        connection.finish_opening().expect("an outcome").expect_err("no thread");
    }
}
