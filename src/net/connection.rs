//! One connection to one server: a socket, and the requests in flight over it. It is opened when it
//! is used, and given up when anything but an error reply goes wrong with it.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io, process};

use crate::base::failure::{Failure, FailureKind};
use crate::net::exchange::{Answer, Exchange, ReplySlot};
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::InFlight;
use crate::net::request::{Reply, Request};
use crate::net::server_socket::ServerSocket;
use crate::net::stream::WaitFor;

/// How long a thread reads replies of others without waiting for them.
const COLLECT: Duration = Duration::from_millis(10);

/// A connection, without a socket until it is used.
pub(crate) struct Connection {
    pub(crate) socket: ServerSocket,
    pub(crate) in_flight: InFlight,
    pub(super) made: Instant,
    /// That of the last thread that has used the connection, to reuse the memory.
    slot: Arc<ReplySlot>,
    /// When something was last posted.
    pub(super) used: Instant,
    process: u32,
}

/// Shows nothing that was sent, which may be a password or the owner of a lock.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.socket.factory).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(factory: Arc<ConnectionFactory>) -> Self {
        let now = Instant::now();
        Self {
            socket: ServerSocket::new(factory),
            in_flight: InFlight::default(),
            made: now,
            slot: Arc::new(ReplySlot::new(now)),
            used: now,
            process: process::id(),
        }
    }

    /// Opens the connection unless it is open, and makes sure that it leads to the right server.
    pub(crate) fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        if self.socket.is_ready(deadline) {
            return Ok(());
        }
        if self.socket.is_open() {
            // It is time to replace it. A failure has ended what was in flight.
            drop(self.read_all(deadline));
        }
        self.collect(WaitFor::Nothing);
        self.in_flight.fail(&self.given_up());
        self.socket.open(deadline)
    }

    /// Sends one request, connecting first if need be, and reads the reply. If none comes in time,
    /// the connection is given up.
    pub(crate) fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        self.connect(deadline)?;
        let slot = self.slot(deadline);
        self.send([slot.exchange(request.clone(), None)]);
        self.read_until(&slot);
        slot.close(|| self.no_reply());
        if self.in_flight.is_awaited() {
            self.time_out();
        }
        slot.reply()
    }

    /// Returns a slot for the replies to requests of the thread that uses the connection.
    pub(super) fn slot(&mut self, deadline: Instant) -> Arc<ReplySlot> {
        match Arc::get_mut(&mut self.slot) {
            Some(unused) => unused.reset(deadline),
            None => self.slot = Arc::new(ReplySlot::new(deadline)),
        }
        self.slot.clone()
    }

    /// Writes requests over the open connection, in one write, as `write` does.
    pub(crate) fn send(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        self.record(exchanges);
        drop(self.write(|_| {}));
    }

    /// Has requests written along with the next write.
    pub(super) fn record(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        // Without a socket they have failed, and `write` says so.
        let out = self.socket.open.as_mut().map(|open| &mut open.stream.out);
        self.in_flight.push(exchanges, out.unwrap_or(&mut Vec::new()));
    }

    /// Writes what `pack` appends over the open connection, as far as there is room, without
    /// waiting. The reader goes on with the rest as room comes. If that fails, everything in
    /// flight has failed.
    pub(crate) fn write(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        if let Some(open) = &mut self.socket.open {
            pack(&mut open.stream.out);
        }
        self.socket.write().map_err(|failure| self.break_off(failure))
    }

    /// Blocks until everything is written. If there is no room for it in time, that is a failure,
    /// and the connection is as before.
    pub(super) fn flush(&mut self, deadline: Instant) -> Result<(), Failure> {
        match self.socket.flush(deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.no_reply()),
            Err(failure) => Err(self.break_off(failure)),
        }
    }

    /// Reads until a slot has its replies, or its deadline.
    pub(super) fn read_until(&mut self, slot: &ReplySlot) {
        let wait = WaitFor::SoonReply { deadline: slot.deadline };
        while self.receive(wait) && !slot.is_complete() {}
    }

    /// Reads the next reply and passes it on. Returns `false` if none has come by then, or none is
    /// to come.
    pub(crate) fn receive(&mut self, wait: WaitFor) -> bool {
        let answer = self.receive_answer(wait);
        answer.map(Answer::deliver).is_some()
    }

    /// Reads the next reply, and does what has to be done about it.
    pub(super) fn receive_answer(&mut self, wait: WaitFor) -> Option<Answer> {
        loop {
            if let Some(answer) = self.in_flight.ready.pop_front() {
                return Some(answer);
            }
            let next = self.in_flight.queue.front()?;
            let wait = match wait {
                // Replicas and disks do not answer soon, so spinning for them does not pay.
                WaitFor::SoonReply { deadline } if next.blocks() => WaitFor::Reply { deadline },
                wait => wait,
            };
            let reply = self.receive_next(wait)?;
            let Self { in_flight, socket: ServerSocket { factory, open, .. }, .. } = self;
            // Without a socket, everything has failed.
            let out = &mut open.as_mut()?.stream.out;
            let fits = in_flight.take(reply, || factory.label(), out);
            let has_more = !out.is_empty();
            if !fits {
                self.invalid_reply();
            } else if has_more {
                drop(self.write(|_| {}));
            }
        }
    }

    /// Reads the next reply, whichever request it belongs to, or the next message; `None` if it has
    /// not come by then, so that it can be read later.
    pub(crate) fn receive_next(&mut self, wait: WaitFor) -> Option<Reply> {
        let received = self.socket.receive(wait);
        received.unwrap_or_else(|failure| Some(Err(self.break_off(failure))))
    }

    /// Reads what has come, until nothing is in flight or no more has come by then. Without a wait
    /// it ends soon, even if more has come.
    pub(crate) fn collect(&mut self, wait: WaitFor) {
        // The thread of a sweep has other work, whatever the server sends.
        let longest = if matches!(wait, WaitFor::Nothing) { COLLECT } else { Duration::MAX };
        let begun = Instant::now();
        while begun.elapsed() < longest && self.receive(wait) {}
    }

    /// Reads all that is to come, or gives up the connection if it has not come by then.
    pub(super) fn read_all(&mut self, deadline: Instant) -> Result<(), Failure> {
        while self.receive(WaitFor::SoonReply { deadline }) {}
        if !self.in_flight.is_empty() {
            return Err(self.time_out());
        }
        if self.socket.is_connected() { Ok(()) } else { Err(self.no_reply()) }
    }

    /// Ends the requests whose deadlines have come, though their replies are still awaited. Returns
    /// when the next deadline comes.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let Self { in_flight, socket, .. } = self;
        in_flight.expire(now, || socket.factory.no_reply())
    }

    /// Gives up the connection if threads have given up what is in flight over it: nothing is known
    /// about a server that has kept them waiting.
    pub(super) fn close_if_abandoned(&mut self) {
        if self.in_flight.is_awaited() {
            self.collect(WaitFor::Nothing);
            if self.in_flight.is_awaited() {
                self.time_out();
            }
        }
    }

    /// The failure of a request that was not answered in time.
    pub(crate) fn no_reply(&self) -> Failure {
        self.socket.factory.no_reply()
    }

    /// Gives up a connection whose reply does not fit the request.
    pub(crate) fn invalid_reply(&mut self) -> Failure {
        self.break_off(self.socket.factory.invalid_reply())
    }

    /// Gives up a connection over which no reply has come in time.
    pub(crate) fn time_out(&mut self) -> Failure {
        self.break_off(self.no_reply())
    }

    /// Gives up a broken connection.
    fn break_off(&mut self, failure: Failure) -> Failure {
        self.socket.record_break();
        self.give_up(&failure);
        failure
    }

    /// Closes the socket. What is in flight over it has failed for this reason.
    pub(crate) fn give_up(&mut self, failure: &Failure) {
        self.socket.open = None;
        self.in_flight.fail(failure);
    }

    /// Gives up the connection, and with it whatever is in flight.
    pub(crate) fn poison(&mut self) {
        self.give_up(&self.given_up());
    }

    fn given_up(&self) -> Failure {
        let error = io::Error::other("the connection was given up");
        Failure::io(FailureKind::Disconnected, &self.socket.factory.label(), error)
    }
}

impl AsRef<Self> for Connection {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In a forked child the replies are the parent's.
        if !self.in_flight.is_empty() && process::id() == self.process {
            self.collect(WaitFor::Nothing);
            self.poison();
        }
    }
}
