//! The requests in flight on one connection: written in order, answered in order.
//!
//! | reply | the request |
//! |---|---|
//! | none yet | it is in flight: the reader of the connection waits for it, or a sweep |
//! | script unknown | it is resent in full behind the others, or fails if it must keep the order |
//! | something was done that must be durable | it is answered when the request to wait is |
//! | any other | it is answered |
//! | none by the deadline of a posted one | it is answered with a timeout, and the reply ignored |
//! | the connection is closed | it is answered with that failure |
//!
//! Posted requests are expired by the thread that waits for replies on the connection, or by a
//! sweep while no thread waits.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use redis::Value;

use crate::base::clock;
use crate::base::failure::{Failure, FailureKind};
use crate::net::demand::{Demand, is_done};
use crate::net::packed::{Reply, ReplySlot, Request, Script};

/// Maximum number of bytes of posted requests in flight. Redis reads that much at a time, and can
/// lose anything behind it if the connection is closed before the replies are read.
pub(super) const POSTED_MAX: usize = 16 * 1024;

/// A request, and the destination of its reply.
pub(crate) struct Exchange {
    pub(super) request: Request,
    /// A reply after this does not count.
    pub(crate) deadline: Instant,
    /// The end of the posting thread's wait for a connection to open, or for room.
    pub(super) write_by: Instant,
    /// The durability a positive reply must reach before it counts.
    pub(super) demand: Option<(Demand, SendWait)>,
    /// Whether no later request may overtake it. If so, it fails instead of being resent behind
    /// later ones.
    pub(super) keeps_order: bool,
    pub(super) to: ReplyTo,
    pub(super) sent: Option<Instant>,
}

/// Called with the reply to a request by the thread that reads it. Must be quick.
pub(crate) type OnReply = Box<dyn FnOnce(Reply) + Send>;

pub(super) enum ReplyTo {
    /// To a callback: no thread waits for it.
    Callback(OnReply),
    Nowhere,
    /// To a thread that waits for several replies, with the index of this one.
    Slot(Arc<ReplySlot>, usize),
    /// The reply says whether everything done before is as durable as demanded.
    Wait(Demand),
}

impl ReplyTo {
    pub(super) fn pass_on(self, reply: Reply) {
        match self {
            // A panic must not reach the reading thread, which has other replies to pass on.
            Self::Callback(on_reply) => drop(catch_unwind(AssertUnwindSafe(|| on_reply(reply)))),
            Self::Slot(slot, place) => slot.answer(place, reply),
            Self::Nowhere | Self::Wait(_) => {}
        }
    }
}

/// When to send the request to wait for replicas or disks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendWait {
    /// In one write with the script, which is likely to do something.
    Along,
    /// After the reply to a script that has done something. Other scripts then block nothing.
    After,
}

#[derive(Default)]
pub(crate) struct InFlight {
    /// In the order of the replies.
    pub(crate) queue: VecDeque<Exchange>,
    /// The number of bytes in requests that no thread waits for.
    pub(super) posted: usize,
    /// Executed requests that may not be as durable as demanded yet.
    unconfirmed: Vec<(Exchange, Value)>,
    /// The replies that have arrived but have not been passed on.
    pub(super) ready: VecDeque<(Exchange, Reply)>,
    /// The scripts that were sent in full, so that the server knows them.
    known: Vec<&'static Script>,
    last_reply: Option<Instant>,
    /// No posted request expires before this; `None` if none is in flight. May still be the
    /// deadline of a request that has been answered.
    next_expiry: Option<Instant>,
}

impl InFlight {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.ready.is_empty()
    }

    /// Returns `true` if a request to wait for replicas or disks is in flight: the server reads
    /// nothing more on the connection until it has replied.
    pub(crate) fn is_blocked(&self) -> bool {
        // If there is one, it is among the last.
        self.queue.iter().rev().any(Exchange::blocks)
    }

    /// Returns `true` if there is room for a request of `len` bytes that no thread waits for.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.posted == 0 || self.posted + len <= POSTED_MAX
    }

    /// Returns when the request whose reply comes next was sent.
    pub(super) fn since(&self) -> Option<Instant> {
        self.queue.front().and_then(|next| next.sent)
    }

    /// Returns the time since which the next reply is expected. A request is not served before
    /// those in front of it.
    pub(crate) fn expected_since(&self) -> Option<Instant> {
        let last_reply = if self.queue.is_empty() { None } else { self.last_reply };
        self.since().max(last_reply)
    }

    /// Returns the longest time that any request without a reply may take.
    pub(crate) fn most_time(&self) -> Duration {
        let times =
            self.queue.iter().filter_map(|exchange| Some(exchange.deadline - exchange.sent?));
        times.max().unwrap_or_default()
    }

    /// Returns the slot of the next reply that a thread still waits for.
    pub(super) fn waiting(&self) -> Option<Arc<ReplySlot>> {
        let unconfirmed = self.unconfirmed.iter().map(|(exchange, _)| exchange);
        let mut slots = unconfirmed.chain(&self.queue).filter_map(Exchange::slot);
        slots.find(|slot| slot.calls_wait()).cloned()
    }

    /// Returns `true` if a thread waits, or has waited, for one of the outstanding replies.
    pub(super) fn calls_wait(&self) -> bool {
        self.queue.iter().any(|exchange| exchange.slot().is_some())
    }

    /// Records requests before they are written, and appends their bytes to `out`, followed by the
    /// request to wait for their effects if they need one.
    pub(super) fn push(
        &mut self,
        exchanges: impl IntoIterator<Item = Exchange>,
        out: &mut Vec<u8>,
    ) {
        let mut wait = None::<(Demand, Instant)>;
        for exchange in exchanges {
            if let Some((demand, SendWait::Along)) = exchange.demand {
                let until =
                    wait.map_or(exchange.deadline, |(_, until)| until.max(exchange.deadline));
                wait = Some((demand, until));
            }
            self.push_one(exchange, out);
        }
        self.push_wait(wait, out);
    }

    fn push_one(&mut self, mut exchange: Exchange, out: &mut Vec<u8>) {
        // A posted request cannot be resent once the program has ended, and resending behind a
        // request to wait could take as long as that wait. So the first call sends the script in
        // full.
        if let Some(script) = exchange.request.script
            && (exchange.demand.is_some() || exchange.is_posted())
            && !self.known.iter().any(|known| ptr::eq(*known, script))
        {
            self.known.push(script);
            exchange.request = exchange.request.in_full();
        }
        if exchange.request.asking {
            let asking = Request::command(&redis::cmd("ASKING"));
            self.push_one(Exchange::new(asking, exchange.deadline, ReplyTo::Nowhere), out);
        }
        exchange.sent = Some(clock::now());
        out.extend_from_slice(&exchange.request.bytes);
        if exchange.is_posted() {
            self.posted += exchange.request.bytes.len();
        }
        if exchange.has_callback() {
            self.next_expiry = self.next_expiry.into_iter().chain([exchange.deadline]).min();
        }
        self.queue.push_back(exchange);
    }

    fn push_wait(&mut self, wait: Option<(Demand, Instant)>, out: &mut Vec<u8>) {
        if let Some((demand, deadline)) = wait {
            let wait = Exchange::new(demand.request(deadline), deadline, ReplyTo::Wait(demand));
            self.push_one(wait, out);
        }
    }

    /// Takes the next reply. Appends the bytes that must be written next to `out`. Returns `false`
    /// for a reply that does not fit its request.
    pub(super) fn take(
        &mut self,
        reply: Reply,
        server: impl FnOnce() -> Arc<str>,
        out: &mut Vec<u8>,
    ) -> bool {
        self.last_reply = Some(clock::now());
        let Some(mut exchange) = self.queue.pop_front() else { return true };
        if exchange.is_posted() {
            self.posted -= exchange.request.bytes.len();
        }
        let reply = reply.map_err(|failure| exchange.request.judge(failure));
        if let ReplyTo::Wait(demand) = &exchange.to {
            let Some(confirmed) = demand.check(reply, &server()) else { return false };
            // WAIT is about every write on this connection so far, so it confirms all of them.
            for (exchange, reply) in mem::take(&mut self.unconfirmed) {
                self.ready.push_back((exchange, confirmed.clone().map(|()| reply)));
            }
        } else if let (Some(script), Err(failure)) = (exchange.request.script, &reply)
            && failure.code == "NOSCRIPT"
        {
            // The server has restarted, or SCRIPT FLUSH has made it forget the script.
            self.known.retain(|known| !ptr::eq(*known, script));
            if self.is_wanted_again(&exchange) {
                exchange.request = exchange.request.in_full();
                self.push_one(exchange, out);
            } else {
                // Nothing was executed, so the caller can try again.
                let reply =
                    reply.map_err(|failure| Failure { kind: FailureKind::Transient, ..failure });
                self.ready.push_back((exchange, reply));
            }
        } else {
            match (reply, &exchange.demand) {
                (Ok(reply), Some(_)) if is_done(&reply) => self.unconfirmed.push((exchange, reply)),
                (reply, _) => self.ready.push_back((exchange, reply)),
            }
        }
        self.wait_for_unconfirmed(out);
        if self.queue.is_empty() {
            self.next_expiry = None;
        }
        true
    }

    /// Sends the request to wait for the writes so far, unless one already follows them.
    fn wait_for_unconfirmed(&mut self, out: &mut Vec<u8>) {
        if !self.unconfirmed.is_empty() && !self.is_blocked() {
            let done = self.unconfirmed.iter().map(|(exchange, _)| exchange);
            // One request to wait covers all of them, so it has the latest of their deadlines.
            let waits = done.filter_map(|one| Some((one.demand?.0, one.deadline)));
            self.push_wait(waits.max_by_key(|(_, deadline)| *deadline), out);
        }
    }

    /// Returns `true` if a request whose script the server does not know should be resent.
    fn is_wanted_again(&self, exchange: &Exchange) -> bool {
        if exchange.keeps_order {
            return self.queue.iter().all(Exchange::blocks);
        }
        // The effect of a request that its thread has abandoned is already being undone.
        exchange.slot().is_none_or(|slot| slot.state.lock().waits)
    }

    /// Takes the callbacks of the posted requests that expire by `end`. Their replies are still
    /// read, and then ignored.
    pub(super) fn take_expired(&mut self, end: Instant) -> Vec<ReplyTo> {
        if self.next_expiry.is_none_or(|next| next > end) {
            return Vec::new();
        }
        let mut expired = Vec::new();
        for exchange in &mut self.queue {
            // It stays in the queue, because the server will still reply to it, in order.
            if exchange.has_expired(end) {
                expired.push(mem::replace(&mut exchange.to, ReplyTo::Nowhere));
            }
        }
        let unconfirmed =
            self.unconfirmed.extract_if(.., |(exchange, _)| exchange.has_expired(end));
        expired.extend(unconfirmed.map(|(exchange, _)| exchange.to));
        let unconfirmed = self.unconfirmed.iter().map(|(exchange, _)| exchange);
        let left = self.queue.iter().chain(unconfirmed).filter(|exchange| exchange.has_callback());
        self.next_expiry = left.map(|exchange| exchange.deadline).min();
        expired
    }

    /// Returns when to call `take_expired` next.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }

    pub(super) fn fail(&mut self, failure: &Failure) {
        let Self { queue, unconfirmed, ready, .. } = mem::take(self);
        // These replies arrived before the connection failed, and count.
        for (exchange, reply) in ready {
            exchange.answer(reply);
        }
        let unconfirmed = unconfirmed.into_iter().map(|(exchange, _)| exchange);
        for exchange in unconfirmed.chain(queue) {
            exchange.answer(Err(failure.clone()));
        }
    }
}

impl Exchange {
    fn new(request: Request, deadline: Instant, to: ReplyTo) -> Self {
        let write_by = deadline;
        Self { request, deadline, write_by, demand: None, keeps_order: false, to, sent: None }
    }

    /// Creates a request whose reply goes to the thread that waits for `slot`.
    pub(super) fn awaited(request: Request, slot: &Arc<ReplySlot>) -> Self {
        Self::new(request, slot.deadline, ReplyTo::Slot(slot.clone(), slot.add()))
    }

    pub(crate) fn posted(request: Request, deadline: Instant, on_reply: OnReply) -> Self {
        Self::new(request, deadline, ReplyTo::Callback(on_reply))
    }

    /// The same, but the posting thread waits until `write_by` at most to write it.
    pub(crate) fn written_by(self, write_by: Instant) -> Self {
        Self { write_by: self.deadline.min(write_by), ..self }
    }

    /// The same, but a reply after `deadline` does not count.
    pub(super) fn due_by(self, deadline: Instant) -> Self {
        Self { deadline: self.deadline.min(deadline), ..self }
    }

    /// The same, whose reply counts only once the demand is met.
    pub(crate) fn durable(self, demand: Option<(Demand, SendWait)>) -> Self {
        Self { demand, ..self }
    }

    /// The same, but no later request may overtake it.
    pub(crate) fn in_order(self) -> Self {
        Self { keeps_order: true, ..self }
    }

    /// Returns `true` if the request was posted: no thread waits for its reply, even at first.
    pub(super) fn is_posted(&self) -> bool {
        matches!(self.to, ReplyTo::Callback(_) | ReplyTo::Nowhere)
    }

    /// Returns `true` if a callback waits for the reply.
    fn has_callback(&self) -> bool {
        matches!(self.to, ReplyTo::Callback(_))
    }

    /// Returns `true` if the request was posted and its deadline has passed.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.has_callback() && self.deadline <= now
    }

    /// Returns `true` if the server reads nothing behind this request until it has replied to it.
    pub(super) fn blocks(&self) -> bool {
        matches!(self.to, ReplyTo::Wait(_))
    }

    /// Returns the slot of the thread that the reply is for, even if the thread no longer waits.
    pub(super) fn slot(&self) -> Option<&Arc<ReplySlot>> {
        if let ReplyTo::Slot(slot, _) = &self.to { Some(slot) } else { None }
    }

    pub(super) fn is_for(&self, slot: &Arc<ReplySlot>) -> bool {
        self.slot().is_some_and(|own| Arc::ptr_eq(own, slot))
    }

    /// Returns `true` if passing on the reply wakes a thread or calls a callback.
    pub(super) fn wakes(&self) -> bool {
        self.slot().is_none_or(|slot| slot.state.lock().missing <= 1)
    }

    /// Passes on the reply, or the failure of a request that will not be answered.
    pub(crate) fn answer(self, reply: Reply) {
        self.to.pass_on(reply);
    }
}

#[cfg(test)]
mod tests;
