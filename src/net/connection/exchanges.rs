//! What a connection sends and receives: requests, and the replies to those in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::net::connection::Connection;
use crate::net::exchange::{Answer, Exchange, ReplySlot};
use crate::net::in_flight::InFlight;
use crate::net::open_socket::WaitFor;
use crate::net::request::{Reply, Request};

/// How long a thread reads replies of others without waiting for them.
const COLLECT: Duration = Duration::from_millis(10);

impl Connection {
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
    pub(in crate::net) fn slot(&mut self, deadline: Instant) -> Arc<ReplySlot> {
        match Arc::get_mut(&mut self.slot) {
            Some(unused) => unused.reset(deadline),
            None => self.slot = Arc::new(ReplySlot::new(deadline)),
        }
        self.slot.clone()
    }

    /// Reads until a slot has its replies, or its deadline.
    pub(in crate::net) fn read_until(&mut self, slot: &ReplySlot) {
        let wait = WaitFor::SoonReply { deadline: slot.deadline };
        while !slot.is_complete() && self.receive(wait) {}
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Ends the requests whose deadlines have come, though their replies are still awaited. Returns
    /// when the next deadline comes.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let Self { in_flight, factory, .. } = self;
        let next = in_flight.expire(now, || factory.no_reply());
        while let Some(answer) = in_flight.pop_ready() {
            answer.deliver();
        }
        next
    }

    /// Writes requests over the open connection, in one write, as `write` does.
    pub(crate) fn send(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        self.record(exchanges);
        drop(self.write(|_| {}));
    }

    /// Has requests written along with the next write.
    pub(in crate::net) fn record(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        // Without a socket they have failed, and `write` says so.
        let out = self.socket.as_mut().map(|socket| socket.stream.out());
        self.in_flight.push(exchanges, out.unwrap_or(&mut Vec::new()));
    }

    /// Reads the next reply and passes it on. Returns `false` if none has come by then, or none is
    /// to come.
    pub(crate) fn receive(&mut self, wait: WaitFor) -> bool {
        let answer = self.receive_answer(wait);
        answer.map(Answer::deliver).is_some()
    }

    /// Reads the next reply, and does what has to be done about it.
    pub(in crate::net) fn receive_answer(&mut self, wait: WaitFor) -> Option<Answer> {
        loop {
            if let Some(answer) = self.in_flight.pop_ready() {
                return Some(answer);
            }
            if self.in_flight.is_empty() {
                return None;
            }
            let wait = match wait {
                // Replicas and disks do not answer soon, so spinning for them does not pay.
                WaitFor::SoonReply { deadline } if self.in_flight.is_next_slow() => {
                    WaitFor::Reply { deadline }
                }
                wait => wait,
            };
            let reply = self.receive_next(wait)?;
            // Without a socket, everything has failed.
            let Self { socket: Some(socket), in_flight, factory, .. } = self else { return None };
            let fits = in_flight.take(reply, || factory.label(), socket.stream.out()).is_ok();
            let has_more = socket.stream.is_writing();
            if !fits {
                self.invalid_reply();
            } else if has_more {
                drop(self.write(|_| {}));
            }
        }
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
    pub(in crate::net) fn read_all(&mut self, deadline: Instant) -> Result<(), Failure> {
        while self.receive(WaitFor::SoonReply { deadline }) {}
        if !self.in_flight.is_empty() {
            return Err(self.time_out());
        }
        if self.is_connected() { Ok(()) } else { Err(self.no_reply()) }
    }

    /// Gives up the connection if threads have given up what is in flight over it: nothing is known
    /// about a server that has kept them waiting.
    pub(in crate::net) fn close_if_abandoned(&mut self) {
        if self.in_flight.is_awaited() {
            self.collect(WaitFor::Nothing);
            if self.in_flight.is_awaited() {
                self.time_out();
            }
        }
    }
}
