//! One connection to one server: a socket, and the requests in flight over it. It is opened when
//! used. It is replaced when the server may have moved, when it is old, or when its credentials are
//! about to expire, and closed after any failure except an error reply.
//!
//! The socket is our own, not a connection of `redis`: a deadline must cover a whole reply, the
//! reader must be able to spin, and another thread must be able to end a blocked read. `redis`
//! provides URLs, the packing of commands, values and error kinds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{io, mem, process};

use redis::{RedisError, Value};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::error::Phase;
use crate::net::factory::{ConnectionFactory, ELSEWHERE, OpenSocket, Validity};
use crate::net::in_flight::{Exchange, InFlight};
use crate::net::packed::{Reply, ReplySlot, Request};
use crate::net::resp::RespStream;
use crate::net::route::Route;
use crate::net::wait::{Arrived, WaitFor};

/// A connection that was used this recently counts as open and silent. This saves a system call for
/// each request of a thread that locks again and again.
pub(super) const IDLE: Duration = Duration::from_millis(10);

/// How long a thread reads other threads' replies without waiting for them.
const COLLECT: Duration = Duration::from_millis(10);

/// A connection, without a socket until it is used.
pub(crate) struct Connection {
    pub(crate) factory: Arc<ConnectionFactory>,
    pub(super) socket: Option<OpenSocket>,
    /// Whether the last socket was opened successfully and has not been given up.
    opened: bool,
    pub(crate) in_flight: InFlight,
    /// The slot of the last thread that used the connection, to reuse the memory.
    pub(super) slot: Arc<ReplySlot>,
    /// When it was last checked before a request.
    used: Instant,
    process: u32,
}

impl Connection {
    pub(crate) fn new(factory: Arc<ConnectionFactory>) -> Self {
        let now = clock::now();
        Self {
            factory,
            socket: None,
            opened: false,
            in_flight: InFlight::default(),
            slot: ReplySlot::new(now),
            used: now,
            process: process::id(),
        }
    }

    pub(crate) fn stream(&self) -> Option<&RespStream> {
        self.socket.as_ref().map(|socket| &socket.stream)
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.stream().and_then(RespStream::peer)
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.stream().is_some_and(RespStream::is_writing)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns `true` if the next request needs no new socket.
    pub(crate) fn is_open(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let end = socket.validity.and_then(|validity| validity.end);
        let has_expired = end.is_some_and(|end| clock::now() >= end);
        // Any thread that finds out that the server may have moved raises the epoch.
        if has_expired || socket.epoch != self.factory.epoch.load(Ordering::SeqCst) {
            return false;
        }
        let suspicions = self.factory.suspicions.load(Ordering::Relaxed);
        if socket.checked.load(Ordering::Relaxed) != suspicions {
            // Another connection has broken since this one was checked.
            if socket.stream.look() == Arrived::End {
                return false;
            }
            socket.checked.store(suspicions, Ordering::Relaxed);
        }
        true
    }

    /// Returns `true` if the socket can carry the next request. Bytes that arrive while nothing is
    /// in flight are not a reply: they may say why the server is about to close the connection.
    pub(super) fn is_ready(&mut self) -> bool {
        let now = clock::now();
        let is_idle = self.in_flight.is_empty() && now.duration_since(self.used) >= IDLE;
        self.used = now;
        if is_idle && self.stream().is_some_and(|stream| stream.look() != Arrived::Nothing) {
            // The server has closed it, or is about to. The other connections may be gone, too.
            self.poison();
            self.factory.suspect_connections();
        }
        self.is_open()
    }

    /// Returns `true` if the connection is ready and leads to the server's current address.
    pub(crate) fn is_usable(&mut self) -> bool {
        self.is_ready() && self.factory.route.as_ref().is_none_or(Route::is_current)
    }

    /// Returns the validity of the socket, if it is time to replace it.
    pub(crate) fn retiring(&self) -> Option<Validity> {
        let validity = self.socket.as_ref()?.validity?;
        if clock::now() >= validity.retire_at { Some(validity) } else { None }
    }

    /// Returns when to replace the socket or, after that, when it can no longer be used.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let Validity { retire_at, end, .. } = self.socket.as_ref()?.validity?;
        if clock::now() < retire_at { Some(retire_at) } else { end }
    }

    /// Opens the connection unless it is open, and ensures that it leads to the right server, as
    /// far as this can be found out in time.
    pub(crate) fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        // A connection that has ended since its last use suggests that the server has moved.
        let was_ready = self.is_ready();
        self.refresh_route(deadline);
        let is_open = was_ready && self.is_open();
        let is_retiring = self.retiring().is_some();
        if is_open && !is_retiring {
            return Ok(());
        }
        if was_ready && !is_open {
            // This connection, or another one, broke while the sentinels were asked.
            self.refresh_route(deadline);
        }
        if is_open {
            // The socket must be replaced. If it failed, everything in flight has failed with it.
            drop(self.read_all(deadline));
        }
        // Replies that have arrived over the old socket still count.
        self.collect();
        self.poison();
        let moves = self.factory.route.as_ref().map_or(0, Route::moves);
        let limit = end_of(self.factory.connect_timeout);
        let settings = if limit <= deadline {
            "`connect_timeout`"
        } else {
            "`connect_timeout` and `io_timeout`"
        };
        // An attempt that had no time left says nothing about the server.
        let shows_something = clock::now() < deadline;
        let deadline = deadline.min(limit);
        let mut opened = self.open(deadline).or_else(|failure| {
            // There may be other credentials by now.
            let is_outdated = self.factory.credentials.is_some()
                && failure.phase == Phase::Login
                && failure.code == "WRONGPASS";
            if is_outdated { self.open(deadline) } else { Err(failure) }
        });
        // The first address of a host may be that of a replica.
        while let Err(failure) = &opened
            && failure.code == ELSEWHERE
            && clock::now() < deadline
        {
            opened = self.open(deadline);
        }
        if let Err(failure) = opened {
            if shows_something {
                self.factory.record_useless(&failure);
                if let Some(route) = &self.factory.route {
                    route.reject_address(moves);
                }
            }
            // The requests of a login change nothing, so a failure here is never ambiguous.
            let failure = ConnectionFactory::with_limit(failure, settings);
            return Err(self.give_up(failure).of_question());
        }
        self.opened = true;
        if !is_retiring {
            self.factory.record_opening();
        }
        Ok(())
    }

    /// Asks the route whether the server has moved, unless that is known.
    fn refresh_route(&mut self, deadline: Instant) {
        if self.factory.route.as_ref().is_none_or(Route::is_current) {
            return;
        }
        let factory = self.factory.clone();
        if let Some(route) = &factory.route
            && let Some(end) = factory.end_of_refresh(deadline)
        {
            self.leave_unread(end);
            route.refresh(end);
        }
    }

    /// Reads what has arrived before the thread does something else until `end`. Posted requests
    /// that expire by then fail now, because no other thread reads their replies.
    pub(super) fn leave_unread(&mut self, end: Instant) {
        self.collect();
        self.expire(end);
    }

    /// Fails the posted requests in flight that expire by `end`.
    pub(crate) fn expire(&mut self, end: Instant) {
        for expired in self.in_flight.take_expired(end) {
            expired.pass_on(Err(self.no_reply()));
        }
    }

    /// Like `connect`, for one of many callers: fails during the pause that all of them make after
    /// a failed connect.
    pub(super) fn try_connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        if !self.is_open() {
            self.factory.check_pause()?;
        }
        self.connect(deadline)
    }

    /// Sends a PING over the open connection, unless a reply has already arrived over it. Without a
    /// login, only the first reply shows that the server has accepted the connection.
    pub(crate) fn await_greeting(&mut self, deadline: Instant) -> Result<(), Failure> {
        if self.socket.as_ref().is_some_and(|socket| socket.greeted) {
            return Ok(());
        }
        let ping = Request::command(&redis::cmd("PING"));
        let reply = self.ask(vec![ping], deadline).reply();
        match self.factory.check_assent(reply) {
            // The user may lack the permission for PING.
            Err(failure) if failure.kind != FailureKind::Rejected => Err(failure.of_question()),
            _ if self.is_connected() => Ok(()),
            // Anything after the reply belongs to no request.
            _ => Err(self.invalid_reply().of_question()),
        }
    }

    /// Opens a socket and logs in, in one round trip.
    fn open(&mut self, deadline: Instant) -> Result<(), Failure> {
        let (socket, greeting) = self.factory.open(deadline)?;
        self.socket = Some(socket);
        let (steps, requests): (Vec<_>, Vec<_>) = greeting.into_iter().unzip();
        let replies = self.ask(requests, deadline).replies();
        let peer = self.peer();
        for (step, reply) in steps.into_iter().zip(replies) {
            self.factory.check(step, reply, peer)?;
        }
        // Anything after the replies belongs to no request.
        if self.is_connected() { Ok(()) } else { Err(self.invalid_reply()) }
    }

    /// Sends one request, connecting first if needed, and reads the reply. If none arrives in time,
    /// the connection is closed.
    pub(crate) fn exchange(&mut self, request: &Request, deadline: Instant) -> Reply {
        self.connect(deadline)?;
        self.ask(vec![request.clone()], deadline).reply()
    }

    /// Like `exchange`, over an open socket.
    fn ask(&mut self, requests: Vec<Request>, deadline: Instant) -> Arc<ReplySlot> {
        let slot = ReplySlot::renew(&mut self.slot, deadline);
        self.send(requests.into_iter().map(|request| Exchange::awaited(request, &slot)));
        self.read_until(&slot);
        if self.in_flight.calls_wait() {
            // A late reply would be taken for the reply to the next request.
            self.time_out();
        }
        slot
    }

    /// Like `write`, for whole requests, in one write.
    pub(crate) fn send(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        self.record(exchanges);
        drop(self.write(&[]));
    }

    /// Writes as many of these posted requests as a server reads at once. A reply after `deadline`
    /// does not count. Returns those that were not sent.
    pub(crate) fn send_what_fits(
        &mut self,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) -> Vec<Exchange> {
        let mut unsent = posted.into_iter();
        while let Some(next) = unsent.as_slice().first()
            && self.in_flight.has_room(next.request.bytes.len())
        {
            self.record(unsent.next().map(|next| next.due_by(deadline)));
        }
        drop(self.write(&[]));
        unsent.collect()
    }

    /// Adds requests to the next write.
    pub(super) fn record(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        // Without a socket they have already failed, and `write` reports that.
        let out = self.socket.as_mut().map(|socket| &mut socket.stream.out);
        self.in_flight.push(exchanges, out.unwrap_or(&mut Vec::new()));
    }

    /// Writes the pending bytes and then `more` over the open connection, without waiting for room.
    /// The reader writes the rest as room becomes available. If this fails, everything in flight
    /// has failed.
    pub(crate) fn write(&mut self, more: &[u8]) -> Result<(), Failure> {
        let Some(socket) = &mut self.socket else { return Err(self.time_out()) };
        socket.stream.out.extend_from_slice(more);
        let written = socket.stream.write();
        written.map_err(|error| self.break_off(error.into()))
    }

    pub(super) fn read_until(&mut self, slot: &ReplySlot) {
        let wait = WaitFor::SoonReply { deadline: slot.deadline };
        while self.receive(wait) && slot.state.lock().missing > 0 {}
    }

    /// Reads the next reply and passes it on. Returns `false` if none has arrived or none is
    /// outstanding.
    pub(crate) fn receive(&mut self, wait: WaitFor) -> bool {
        self.receive_answer(wait).map(|(exchange, reply)| exchange.answer(reply)).is_some()
    }

    /// Reads the next reply, and does everything needed before it can be passed on.
    pub(super) fn receive_answer(&mut self, wait: WaitFor) -> Option<(Exchange, Reply)> {
        loop {
            if let Some(answer) = self.in_flight.ready.pop_front() {
                return Some(answer);
            }
            let next = self.in_flight.queue.front()?;
            let is_last = self.in_flight.queue.len() == 1;
            let wait = match wait {
                // Replicas and disks take too long to spin for.
                WaitFor::SoonReply { deadline } if next.blocks() => WaitFor::Reply { deadline },
                wait => wait,
            };
            let reply = self.receive_unless_expired(wait)?;
            let Self { in_flight, socket, factory, .. } = self;
            // Without a socket, everything has failed.
            let out = &mut socket.as_mut()?.stream.out;
            let fits = in_flight.take(reply, || factory.label(), out);
            let has_more = !out.is_empty();
            // Surplus bytes would be taken for the reply to the next request.
            let is_surplus = is_last && socket.as_ref()?.stream.has_unread();
            if !fits || is_surplus {
                self.invalid_reply();
            } else if has_more {
                drop(self.write(&[]));
            }
        }
    }

    /// Like `receive_next`. Wakes up to fail the posted requests that expire in the meantime: no
    /// other thread can, and this one may wait for longer.
    fn receive_unless_expired(&mut self, wait: WaitFor) -> Option<Reply> {
        while let Some(deadline) = wait.deadline()
            && let Some(expiry) = self.in_flight.next_expiry()
            && expiry < deadline
        {
            let received = self.receive_next(wait.until(expiry));
            if received.is_some() {
                return received;
            }
            self.expire(expiry);
        }
        self.receive_next(wait)
    }

    /// Reads the next reply or message; `None` if it has not arrived and can be read later.
    pub(crate) fn receive_next(&mut self, wait: WaitFor) -> Option<Reply> {
        let Some(socket) = &mut self.socket else { return Some(Err(self.time_out())) };
        let received = socket.stream.receive(wait, &self.factory.spin);
        let is_first = !socket.greeted;
        socket.greeted |= received.is_ok();
        match received {
            Ok(Value::ServerError(error)) => {
                Some(Err(self.factory.failure_of_reply(&error, self.peer(), is_first)))
            }
            Ok(reply) => Some(Ok(reply)),
            Err(error) if error.is_timeout() => None,
            Err(error) => Some(Err(self.break_off(error))),
        }
    }

    /// Reads the replies that have arrived, without waiting, and for a moment at most: the thread
    /// has other work.
    pub(crate) fn collect(&mut self) {
        let begun = clock::now();
        while clock::elapsed(begun) < COLLECT && self.receive(WaitFor::Nothing) {}
    }

    /// Reads all outstanding replies. Closes the connection if they have not arrived by the
    /// deadline.
    pub(super) fn read_all(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.read_outstanding(deadline).map_err(|failure| self.give_up(failure))
    }

    /// Reads all outstanding replies. Fails if they have not arrived by the deadline.
    pub(super) fn read_outstanding(&mut self, deadline: Instant) -> Result<(), Failure> {
        while self.receive(WaitFor::SoonReply { deadline }) {}
        let is_good = self.is_connected() && self.in_flight.is_empty();
        if is_good { Ok(()) } else { Err(self.no_reply()) }
    }

    pub(crate) fn invalid_reply(&mut self) -> Failure {
        self.give_up(self.factory.invalid_reply())
    }

    pub(crate) fn time_out(&mut self) -> Failure {
        self.give_up(self.no_reply())
    }

    /// Returns the failure of a request that gets no reply over this connection in time.
    pub(super) fn no_reply(&self) -> Failure {
        match &self.socket {
            Some(socket) if !socket.greeted => self.factory.no_first_reply(),
            _ => self.factory.no_reply(),
        }
    }

    pub(super) fn break_off(&mut self, error: RedisError) -> Failure {
        let greeted = self.socket.as_ref().is_some_and(|socket| socket.greeted);
        self.give_up(self.factory.failure_of_break(error, greeted))
    }

    /// Closes the connection. Everything in flight fails.
    pub(crate) fn poison(&mut self) {
        let error = io::Error::other("the connection was given up");
        self.give_up(Failure::io(FailureKind::Disconnected, &self.factory.label(), error));
    }

    /// Closes the socket, which will be replaced. Everything in flight fails with this failure.
    pub(crate) fn give_up(&mut self, failure: Failure) -> Failure {
        // A socket that was due for replacement does not count as broken.
        let is_retiring = self.retiring().is_some();
        if mem::take(&mut self.opened) && !is_retiring {
            self.factory.broken.fetch_add(1, Ordering::Relaxed);
        }
        self.socket = None;
        self.in_flight.fail(&failure);
        failure
    }
}

impl AsRef<Self> for Connection {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In a forked child, the replies are the parent's.
        if !self.in_flight.is_empty() && process::id() == self.process {
            self.collect();
            self.poison();
        }
    }
}
