//! Writing requests that no thread waits for.
//!
//! The thread that drops a guard writes the release at once, because the program may end right
//! after. Replies that have arrived are read first, because a program that ends with unread replies
//! resets the connection, and the server might not read any further.

use std::time::Instant;

use crate::base::clock;
use crate::base::failure::Failure;
use crate::base::sync::Mutex;
use crate::net::connection::Connection;
use crate::net::in_flight::{Exchange, POSTED_MAX};
use crate::net::wait::WaitFor;

/// Writes posted requests, and remembers when writing to the server has just timed out: threads
/// that drop many guards while a server is down wait only once.
#[derive(Default)]
pub(super) struct PostWriter {
    /// The failure of the last wait, and the time before which no thread waits again.
    failure: Mutex<Option<(Instant, Failure)>>,
}

impl PostWriter {
    /// Writes requests that no thread waits for over an idle connection, opening it if needed. The
    /// calling thread, perhaps not the one that posted them, has time until the deadline.
    pub(super) fn post(
        &self,
        connection: &mut Connection,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) {
        // If the program ended with unread replies, its system would reset the connection, and the
        // server might not read beyond the request that it is executing at that moment.
        connection.collect();
        let write_by = posted.iter().map(|posted| posted.write_by).max().unwrap_or(deadline);
        let write_by = write_by.min(earliest(&posted, deadline));
        let is_ready = connection.is_ready() && connection.retiring().is_none();
        let opened = if is_ready { Ok(()) } else { self.wait(|| connection.try_connect(write_by)) };
        if let Err(failure) = opened {
            return posted.into_iter().for_each(|posted| posted.answer(Err(failure.clone())));
        }
        self.record(connection, posted, write_by);
        // A failure to write fails everything in flight, so it is reported there.
        drop(connection.write(&[]));
        if connection.is_writing() {
            drop(self.wait(|| {
                while connection.is_writing()
                    && connection.receive(WaitFor::Reply { deadline: write_by })
                {}
                if connection.is_writing() { Err(connection.factory.no_reply()) } else { Ok(()) }
            }));
        }
        if connection.in_flight.posted > POSTED_MAX {
            drop(self.wait(|| connection.read_all(write_by)));
        }
    }

    /// Adds posted requests to the next write. If too many are already in flight, reads their
    /// replies first. If these do not arrive in time, the requests fail.
    pub(super) fn record(
        &self,
        connection: &mut Connection,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) {
        let deadline = earliest(&posted, deadline);
        let mut posted = posted.into_iter().peekable();
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some(next) = posted.peek()
        {
            if connection.in_flight.has_room(next.request.bytes.len()) {
                connection.record(posted.next());
            } else {
                // The requests added so far are then written even if the program ends right after.
                drop(connection.write(&[]));
                // The connection stays open: others may wait for its replies for longer.
                outcome = self.wait(|| connection.read_outstanding(deadline));
            }
        }
        if let Err(failure) = outcome {
            posted.for_each(|posted| posted.answer(Err(failure.clone())));
        }
    }

    /// Waits for the server. After a wait that failed, fails at once for as long as that wait took.
    fn wait(&self, wait: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let begun = clock::now();
        if let Some((until, failure)) = &*self.failure.lock()
            && begun < *until
        {
            return Err(failure.clone());
        }
        // Not under the lock, so that threads on other connections do not wait for this one.
        wait().inspect_err(|failure| {
            let now = clock::now();
            *self.failure.lock() = Some((now + (now - begun), failure.clone()));
        })
    }
}

/// Returns how long a thread may keep posted requests before it writes them: until the first one
/// expires.
fn earliest(posted: &[Exchange], deadline: Instant) -> Instant {
    posted.iter().map(|posted| posted.deadline).fold(deadline, Instant::min)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use rustix::io::ioctl_fionread;

    use super::*;
    use crate::base::clock::end_of;
    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::connection::IDLE;
    use crate::net::packed::Request;
    use crate::net::server::ServerFactory;

    const SOON: Duration = Duration::from_secs(5);

    fn unread(connection: &Connection) -> u64 {
        ioctl_fionread(connection.stream().expect("it is open").poll_fd()).expect("a socket")
    }

    /// A peer that accepts connections, and a connection to it.
    fn peer() -> (TcpListener, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let config = Config::default();
        let servers = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let server = servers.server(servers.endpoint(&url).expect("a good URL"));
        let connection = Connection::new(server.factory.clone());
        (listener, connection)
    }

    fn post(connection: &mut Connection) {
        let request = Request::command(&redis::cmd("PING"));
        let posted = Exchange::posted(request, end_of(SOON), Box::new(drop));
        PostWriter::default().post(connection, vec![posted], end_of(SOON));
    }

    fn answer(connection: &Connection, peer: &mut TcpStream, bytes: &[u8]) {
        peer.write_all(bytes).expect("the connection is open");
        while unread(connection) == 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_reply_that_has_come_is_read_before_more_is_posted() {
        let (listener, mut connection) = peer();
        post(&mut connection);
        let (mut peer, _) = listener.accept().expect("a connection");
        answer(&connection, &mut peer, b"+PONG\r\n");
        post(&mut connection);
        assert_eq!(unread(&connection), 0);
    }

    #[test]
    fn replies_that_take_long_are_not_all_read_at_once() {
        const REQUESTS: usize = 100;
        let (listener, mut connection) = peer();
        connection.connect(end_of(SOON)).expect("the peer listens");
        let slow = |_| thread::sleep(Duration::from_millis(1));
        for _ in 0..REQUESTS {
            let request = Request::command(&redis::cmd("PING"));
            connection.record([Exchange::posted(request, end_of(SOON), Box::new(slow))]);
        }
        connection.write(&[]).expect("the peer listens");
        let (mut peer, _) = listener.accept().expect("a connection");
        answer(&connection, &mut peer, &b"+PONG\r\n".repeat(REQUESTS));
        connection.collect();
        assert!(!connection.in_flight.is_empty(), "the thread has other work");
        while !connection.in_flight.is_empty() {
            connection.collect();
        }
    }

    #[test]
    fn nothing_is_posted_behind_what_came_over_an_idle_connection() {
        let (listener, mut connection) = peer();
        post(&mut connection);
        let (mut peer, _) = listener.accept().expect("a connection");
        answer(&connection, &mut peer, b"+PONG\r\n");
        connection.collect();
        answer(&connection, &mut peer, b"-ERR this connection was idle for too long\r\n");
        thread::sleep(IDLE);
        post(&mut connection);
        listener.set_nonblocking(true).expect("a listener");
        listener.accept().expect("another connection");
    }
}
