//! One node's part of the background jobs: posts over a connection that is kept for them.
//!
//! Where renewals must reach replicas or disks, a renewal that the server has executed counts when
//! that is confirmed. The server executes nothing else over a connection that waits, so the next
//! batch is collected in the meantime.

use std::cmp::min;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::net::connection::Connection;
use crate::net::demand::Demand;
use crate::net::exchange::{Exchange, SendWait};
use crate::net::request::Reply;
use crate::net::socket::PollFd;
use crate::net::stream::WaitFor;
use crate::store::background::peer::{BackgroundConnection, ConnectAttempt, Pauses, Peer};
use crate::store::request::HoldReply;
use crate::store::scripts::Command;

/// The most delayed jobs that are sent in one write, which the server takes at once.
const BATCH_MAX: usize = 2048;

/// How long a node that could not be reached is left alone.
const PAUSE: Duration = Duration::from_millis(20);

const UNOPENED: &str = "no connection was open in time";

const PAUSES: Pauses = Pauses { after_failure: PAUSE, after_rejection: PAUSE };

/// What the node has replied to each job, by number.
pub(super) type Replies = Vec<(u64, Result<HoldReply, Failure>)>;

/// What has come over a connection for a job, by its number; `None` for what does not fit it.
type NumberedReply = (u64, Option<Result<HoldReply, Failure>>);

/// The jobs of one node that go over one connection.
#[derive(Debug)]
pub(super) struct NodeJobs<N> {
    pub(super) connection: BackgroundConnection<N, Connection>,
    /// What must be met before the effects of these jobs count.
    pub(super) demand: Option<Demand>,
    /// Sent as soon as the connection is open, has written what was sent before, and does not wait
    /// for replicas or disks.
    waiting: Vec<Exchange>,
    arrived: Arc<Mutex<Vec<NumberedReply>>>,
}

impl<N: Peer> NodeJobs<N> {
    pub(super) fn new(peer: N, demand: Option<Demand>) -> Self {
        let connection = BackgroundConnection::new(peer, PAUSES);
        Self { connection, demand, waiting: Vec::new(), arrived: Arc::default() }
    }

    /// Returns `true` if jobs can be sent without connecting first.
    pub(super) fn is_open(&self) -> bool {
        self.connection.open.as_ref().is_some_and(|open| open.socket.is_open())
    }

    /// Returns `true` if some job has no outcome yet, or some reply is still to come.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.is_sending()
    }

    /// Returns `true` if some reply is still to come.
    fn is_sending(&self) -> bool {
        self.connection.open.as_ref().is_some_and(|open| !open.in_flight.is_empty())
    }

    /// Where replies come from; `None` if there are none to come.
    pub(super) fn socket(&self) -> Option<PollFd<'_>> {
        let open = self.connection.open.as_ref().filter(|open| !open.in_flight.is_empty());
        open?.socket.poll_fd()
    }

    /// Adds a job to those that are sent next.
    pub(super) fn push(&mut self, number: u64, command: Command<HoldReply>, deadline: Instant) {
        let Command { request, decode } = command;
        let (request, arrived) = (self.connection.peer.addressed(request), self.arrived.clone());
        let on_reply = move |reply: Reply| arrived.lock().push((number, decode(reply)));
        let exchange = Exchange::posted(request, deadline, Box::new(on_reply));
        self.waiting.push(exchange.durable(self.demand.map(|demand| (demand, SendWait::Along))));
    }

    /// Does what there is to do, without waiting, and adds the outcomes that are known by now. A
    /// connection that is silent for `io_timeout` is given up. Returns when there will be more to
    /// do even if no reply comes; `None` if no job is here.
    pub(super) fn go_on(
        &mut self,
        urgent: bool,
        io_timeout: Duration,
        replies: &mut Replies,
    ) -> Option<Instant> {
        let previous = self.close_unless_ready();
        self.receive(replies);
        let now = Instant::now();
        self.end_late_waiting(now);
        if let Err(failure) = self.send_waiting(previous, urgent) {
            fail(mem::take(&mut self.waiting), &failure);
        }
        let next = self.end_late_sent(now, io_timeout);
        self.receive(replies);
        self.waiting.iter().map(|exchange| exchange.deadline).chain(next).min()
    }

    /// Takes the outcomes that have come.
    fn receive(&mut self, replies: &mut Replies) {
        loop {
            let BackgroundConnection { peer, open, .. } = &mut self.connection;
            let has_come = open.as_mut().is_some_and(|open| open.receive(WaitFor::Nothing));
            let arrived = mem::take(&mut *self.arrived.lock());
            if !has_come && arrived.is_empty() {
                return;
            }
            for (number, reply) in arrived {
                let mut misfit = || match open {
                    Some(open) => open.invalid_reply(),
                    None => Failure::too_late(&peer.label(), UNOPENED),
                };
                replies.push((number, reply.unwrap_or_else(|| Err(misfit()))));
            }
        }
    }

    /// Ends the jobs whose deadlines have come before they could be sent.
    fn end_late_waiting(&mut self, now: Instant) {
        let is_late = |exchange: &mut Exchange| exchange.deadline <= now;
        let late: Vec<_> = self.waiting.extract_if(.., is_late).collect();
        if !late.is_empty() {
            let why = match (self.is_sending(), self.demand.is_some()) {
                (false, _) => UNOPENED,
                (true, false) => "the server had not accepted earlier requests in time",
                (true, true) => "replicas or disks had not confirmed earlier renewals in time",
            };
            let failure = Failure::too_late(&self.connection.peer.label(), why);
            fail(late, &failure);
        }
    }

    /// Ends the sent jobs whose deadlines have come, and all of them if the server has been silent
    /// for too long. Returns when there will be more of them.
    fn end_late_sent(&mut self, now: Instant, io_timeout: Duration) -> Option<Instant> {
        let open = self.connection.open.as_mut()?;
        let give_up_at = open.in_flight.expected_since()? + io_timeout;
        if give_up_at <= now {
            open.give_up(&open.no_reply());
            return None;
        }
        Some(open.expire(now).map_or(give_up_at, |next| min(next, give_up_at)))
    }

    /// Sends the jobs that no longer have to wait, or begins to open a connection for them. Fails
    /// if there will be none.
    fn send_waiting(&mut self, previous: Option<Connection>, urgent: bool) -> Result<(), Failure> {
        if !self.is_sending() {
            match self.connection.finish_opening() {
                Some(Err(failure)) if self.connection.open.is_none() => return Err(failure),
                Some(Ok(())) => self.write_waiting(),
                _ => {}
            }
        }
        let Some(deadline) = self.waiting.iter().map(|exchange| exchange.deadline).max() else {
            return Ok(());
        };
        self.connection.begin_opening(previous, ConnectAttempt { deadline, urgent }, Ok)?;
        self.write_waiting();
        Ok(())
    }

    /// Closes a connection that must not be used for the jobs that wait. Returns it if it may be
    /// used once it is confirmed that the server has not moved.
    fn close_unless_ready(&mut self) -> Option<Connection> {
        let open = self.connection.open.as_mut().filter(|_| !self.waiting.is_empty())?;
        // What is sent behind other requests goes where they went.
        let is_idle = open.in_flight.is_empty();
        let is_ready = if is_idle { open.socket.is_usable() } else { open.socket.is_open() };
        if is_ready {
            return None;
        }
        if !is_idle {
            // The replies to what is in flight will not come over the next connection.
            open.give_up(&open.no_reply());
        }
        self.connection.open.take()
    }

    /// Writes the jobs that no longer have to wait: everything that was sent is written, and no
    /// replicas or disks are waited for.
    fn write_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let is_confirming = self.demand.is_some() && self.is_sending();
            let open = self.connection.open.as_mut().filter(|open| !open.socket.is_writing());
            let Some(open) = open.filter(|_| !is_confirming) else { return };
            let batch = self.waiting.len().min(BATCH_MAX);
            open.send(self.waiting.drain(..batch));
        }
    }
}

fn fail(unsent: Vec<Exchange>, failure: &Failure) {
    for exchange in unsent {
        exchange.fail(failure.clone());
    }
}
