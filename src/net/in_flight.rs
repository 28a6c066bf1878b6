//! The requests in flight on one connection: written in order, answered in order.
//!
//! | reply | what becomes of the request |
//! |---|---|
//! | none yet | it is in flight: the reader of the connection waits for it, or a sweep |
//! | script unknown | it is sent again in full, behind the others, or fails if it keeps the order |
//! | something was done that must be durable | it is answered when the request to wait has been |
//! | any other | it is answered |
//! | the connection is given up | it is answered with that failure |
//!
//! All requests are kept here: those that threads wait for, those that no thread waits for, those
//! of background jobs, and those to the servers of a quorum.

use std::cmp::min;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use std::{mem, ptr};

use redis::Value;

use crate::base::failure::{Failure, FailureKind};
use crate::net::demand::{Demand, is_done};
use crate::net::exchange::{Exchange, ReplySlot, ReplyTo, SendWait};
use crate::net::packed::{Reply, Script};

/// The most bytes of requests in flight on one connection that no thread waits for. Redis reads
/// that much at a time, and can lose what is behind it if the connection is closed before the
/// replies are read.
pub(super) const POSTED_MAX: usize = 16 * 1024;

/// What is in flight over one socket.
#[derive(Default)]
pub(crate) struct InFlight {
    /// In the order of the replies.
    pub(super) queue: VecDeque<Exchange>,
    /// How many bytes of these no thread waits for.
    pub(super) posted: usize,
    /// What the server has executed, though perhaps not as durably as demanded yet.
    unconfirmed: Vec<(Exchange, Value)>,
    /// The replies that have come and were not passed on.
    pub(super) ready: VecDeque<(Exchange, Reply)>,
    /// The scripts that were sent in full, so that the server knows them.
    known: Vec<&'static Script>,
    last_reply: Option<Instant>,
}

impl InFlight {
    /// Returns `true` if there is nothing to wait for.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.ready.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns `true` if a request to wait for replicas or disks is in flight: the server reads
    /// nothing more over the connection until it has replied.
    pub(crate) fn is_blocked(&self) -> bool {
        // It is among the last, if there is one.
        self.queue.iter().rev().any(Exchange::blocks)
    }

    /// Returns `true` if there is room for a request of `len` bytes that no thread waits for.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.posted == 0 || self.posted + len <= POSTED_MAX
    }

    /// When the request was sent whose reply comes next.
    pub(super) fn since(&self) -> Option<Instant> {
        self.queue.front().and_then(|next| next.sent)
    }

    /// Since when the next reply has been expected. A request behind others is not served before
    /// those are answered.
    pub(crate) fn expected_since(&self) -> Option<Instant> {
        self.since().max(self.last_reply.filter(|_| !self.queue.is_empty()))
    }

    /// The slot for the reply with this number among those that threads wait for, or did.
    pub(super) fn waiting(&self, number: usize) -> Option<Arc<ReplySlot>> {
        let unconfirmed = self.unconfirmed.iter().map(|(exchange, _)| exchange);
        unconfirmed.chain(&self.queue).filter_map(Exchange::slot).nth(number).cloned()
    }

    /// Returns `true` if the server owes a reply that a thread waits for, or did.
    pub(super) fn is_awaited(&self) -> bool {
        self.queue.iter().any(|exchange| exchange.slot().is_some())
    }

    /// Records requests before they are written, and appends their bytes to `out`, with those of
    /// the request to wait for their effects if they need one.
    pub(super) fn push(
        &mut self,
        exchanges: impl IntoIterator<Item = Exchange>,
        out: &mut Vec<u8>,
    ) {
        let mut wait = None::<(Demand, Instant)>;
        for exchange in exchanges {
            if let Some((demand, SendWait::Along)) = exchange.demand {
                let until = wait.map_or(exchange.deadline, |(_, until)| until);
                wait = Some((demand, until.max(exchange.deadline)));
            }
            self.push_one(exchange, out);
        }
        if let Some((demand, deadline)) = wait {
            self.push_wait(demand, deadline, out);
        }
    }

    fn push_one(&mut self, mut exchange: Exchange, out: &mut Vec<u8>) {
        // Without the reply, nothing is sent again if the program ends. And to be sent again behind
        // a request to wait can take as long as that.
        if let Some(script) = exchange.request.script
            && (exchange.demand.is_some() || exchange.posted)
            && !self.known.iter().any(|known| ptr::eq(*known, script))
        {
            self.known.push(script);
            exchange.request = exchange.request.in_full();
        }
        (exchange.sent, exchange.asking) = (Some(Instant::now()), exchange.request.asking);
        out.extend_from_slice(&exchange.request.bytes);
        if exchange.posted {
            self.posted += exchange.request.bytes.len();
        }
        self.queue.push_back(exchange);
    }

    fn push_wait(&mut self, demand: Demand, deadline: Instant, out: &mut Vec<u8>) {
        let wait = Exchange::new(demand.request(deadline), deadline, ReplyTo::Wait(demand));
        self.push_one(wait, out);
    }

    /// Takes the next reply. What is to be written because of it is appended to `out`. Returns
    /// `false` for a reply that does not fit its request.
    pub(super) fn take(
        &mut self,
        reply: Reply,
        server: impl FnOnce() -> Arc<str>,
        out: &mut Vec<u8>,
    ) -> bool {
        self.last_reply = Some(Instant::now());
        if self.queue.front_mut().is_some_and(|next| mem::take(&mut next.asking)) {
            return true;
        }
        let Some(mut exchange) = self.queue.pop_front() else { return true };
        if exchange.posted {
            self.posted -= exchange.request.bytes.len();
        }
        if let ReplyTo::Wait(demand) = &exchange.to {
            let reply = reply.map_err(|failure| exchange.request.judge(failure));
            let Some(confirmed) = demand.check(reply, &server()) else { return false };
            for (exchange, reply) in mem::take(&mut self.unconfirmed) {
                self.ready.push_back((exchange, confirmed.clone().map(|()| reply)));
            }
        } else if let (Some(script), Err(failure)) = (exchange.request.script, &reply)
            && failure.code == "NOSCRIPT"
        {
            self.known.retain(|known| !ptr::eq(*known, script));
            if self.is_wanted_again(&exchange) {
                exchange.request = exchange.request.in_full();
                self.push_one(exchange, out);
            } else {
                let transient = |failure| Failure { kind: FailureKind::Transient, ..failure };
                self.ready.push_back((exchange, reply.map_err(transient)));
            }
        } else {
            match (reply, &exchange.demand) {
                (Ok(reply), Some(_)) if is_done(&reply) => self.unconfirmed.push((exchange, reply)),
                (reply, _) => self.ready.push_back((exchange, reply)),
            }
        }
        self.wait_for_unconfirmed(out);
        true
    }

    /// Has the request to wait sent for what was done, unless one is behind it that was sent along.
    fn wait_for_unconfirmed(&mut self, out: &mut Vec<u8>) {
        // One that was sent with the script is behind it still, unless that was sent again.
        if let Some((Exchange { demand: Some((demand, _)), .. }, _)) = self.unconfirmed.first()
            && !self.is_blocked()
        {
            let demand = *demand;
            let deadlines = self.unconfirmed.iter().map(|(exchange, _)| exchange.deadline);
            let deadline = deadlines.max().unwrap_or_else(Instant::now);
            self.push_wait(demand, deadline, out);
        }
    }

    /// Returns `true` if a request whose script the server does not know is sent again, behind
    /// those in flight.
    fn is_wanted_again(&self, exchange: &Exchange) -> bool {
        if exchange.keeps_order {
            return self.queue.iter().all(Exchange::blocks);
        }
        // The effect of one that its thread has given up is being undone already.
        exchange.slot().is_none_or(|slot| slot.state.lock().waits)
    }

    /// Ends the requests whose deadlines have come with a failure. Their replies are still awaited,
    /// and then ignored. Returns when the next deadline comes.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        failure: impl Fn() -> Failure,
    ) -> Option<Instant> {
        let is_late = |exchange: &Exchange| exchange.deadline <= now;
        for exchange in self.queue.iter_mut().filter(|exchange| is_late(exchange)) {
            if matches!(exchange.to, ReplyTo::Callback(_)) {
                mem::replace(&mut exchange.to, ReplyTo::Nowhere).pass_on(Err(failure()));
            }
        }
        for (exchange, _) in self.unconfirmed.extract_if(.., |(exchange, _)| is_late(exchange)) {
            exchange.fail(failure());
        }
        let waiting = self.unconfirmed.iter().map(|(exchange, _)| exchange);
        let deadlines = self.queue.iter().chain(waiting).filter(|exchange| !is_late(exchange));
        deadlines.map(|exchange| exchange.deadline).reduce(min)
    }

    /// Ends everything that is in flight with this failure.
    pub(super) fn fail(&mut self, failure: &Failure) {
        let Self { queue, unconfirmed, ready, .. } = mem::take(self);
        for (exchange, reply) in ready {
            exchange.answer(reply);
        }
        let unconfirmed = unconfirmed.into_iter().map(|(exchange, _)| exchange);
        for exchange in unconfirmed.chain(queue) {
            exchange.fail(failure.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;
    use std::time::Duration;

    use parking_lot::Mutex;

    use crate::config::durability::Durability;
    use crate::net::packed::Request;

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));

    type Replies = Vec<(u64, Result<Value, FailureKind>)>;

    /// Requests with numbers, whose replies are recorded with these.
    #[derive(Default)]
    struct Scene {
        in_flight: InFlight,
        replies: Arc<Mutex<Replies>>,
        out: Vec<u8>,
    }

    impl Scene {
        fn posted(&self, number: u64) -> Exchange {
            let replies = self.replies.clone();
            let on_reply = move |reply: Reply| {
                replies.lock().push((number, reply.map_err(|failure| failure.kind)));
            };
            let request = Request::call(&SCRIPT, &[], &[]);
            Exchange::posted(request, Instant::now(), Box::new(on_reply))
        }

        fn durable(&self, number: u64, send_wait: SendWait) -> Exchange {
            let durability = Durability::Replicas { acks: 1, timeout: Duration::from_secs(1) };
            let demand = Demand::new(durability).expect("a demand");
            self.posted(number).durable(Some((demand, send_wait)))
        }

        fn send(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
            self.in_flight.push(exchanges, &mut self.out);
        }

        fn take(&mut self, reply: Reply) {
            let taken = self.in_flight.take(reply, || "here".into(), &mut self.out);
            assert!(taken, "it fits");
            while let Some((exchange, reply)) = self.in_flight.ready.pop_front() {
                exchange.answer(reply);
            }
        }

        /// The commands that were written since the last call.
        fn written(&mut self) -> Vec<&'static str> {
            let text = String::from_utf8(mem::take(&mut self.out)).expect("text");
            let known = ["EVAL", "EVALSHA", "WAIT"];
            text.lines().filter_map(|line| known.into_iter().find(|name| *name == line)).collect()
        }

        fn numbers(&self) -> Vec<(u64, bool)> {
            self.replies.lock().iter().map(|(number, reply)| (*number, reply.is_ok())).collect()
        }
    }

    fn failure(code: &str) -> Failure {
        let error = std::io::Error::other("test");
        let failure = Failure::io(FailureKind::Rejected, &Arc::from("here"), error);
        Failure { code: code.into(), ..failure }
    }

    #[test]
    fn replies_go_to_the_requests_in_their_order() {
        let mut scene = Scene::default();
        let three = [1, 2, 3].map(|number| scene.posted(number));
        scene.send(three);
        assert_eq!(scene.written(), ["EVAL", "EVALSHA", "EVALSHA"], "known from the first on");
        scene.take(Ok(Value::Int(1)));
        scene.take(Err(failure("READONLY")));
        assert!(scene.in_flight.since().is_some());
        scene.in_flight.fail(&failure(""));
        assert_eq!(scene.numbers(), [(1, true), (2, false), (3, false)]);
        assert!(scene.in_flight.is_empty() && scene.in_flight.since().is_none());
    }

    #[test]
    fn what_the_server_does_not_know_is_sent_again_in_full() {
        let mut scene = Scene::default();
        let two = [1, 2].map(|number| scene.posted(number));
        scene.send(two);
        scene.take(Ok(Value::Int(1)));
        scene.written();
        scene.take(Err(failure("NOSCRIPT")));
        assert_eq!((scene.written(), scene.numbers().len()), (vec!["EVAL"], 1));
        scene.take(Err(failure("NOSCRIPT")));
        assert_eq!(scene.numbers(), [(1, true), (2, false)], "not for ever");
    }

    #[test]
    fn what_keeps_the_order_is_not_sent_again_behind_others() {
        let mut scene = Scene::default();
        let three = [1, 2, 3].map(|number| scene.posted(number).in_order());
        scene.send(three);
        scene.take(Ok(Value::Int(1)));
        scene.written();
        scene.take(Err(failure("NOSCRIPT")));
        assert_eq!(scene.replies.lock()[1], (2, Err(FailureKind::Transient)));
        scene.take(Err(failure("NOSCRIPT")));
        assert_eq!((scene.written(), scene.numbers().len()), (vec!["EVAL"], 2), "the last one is");
    }

    #[test]
    fn no_more_is_posted_than_redis_reads_at_a_time() {
        let mut scene = Scene::default();
        assert!(scene.in_flight.has_room(POSTED_MAX + 1), "one request may be longer");
        while scene.in_flight.has_room(scene.posted(0).request.bytes.len()) {
            let next = scene.posted(1);
            scene.send([next]);
        }
        assert!(scene.out.len() <= POSTED_MAX && scene.out.len() > POSTED_MAX / 2);
        while !scene.in_flight.is_empty() {
            scene.take(Ok(Value::Int(1)));
        }
        assert!(scene.in_flight.has_room(POSTED_MAX + 1), "nothing is in flight");
    }

    #[test]
    fn what_must_be_durable_counts_when_replicas_have_confirmed_it() {
        let mut scene = Scene::default();
        let two = [1, 2].map(|number| scene.durable(number, SendWait::Along));
        scene.send(two);
        assert_eq!(scene.written(), ["EVAL", "EVALSHA", "WAIT"]);
        assert!(scene.in_flight.is_blocked());
        scene.take(Ok(Value::Int(0)));
        assert_eq!(scene.numbers(), [(1, true)], "nothing was done");
        scene.take(Ok(Value::Int(1)));
        assert_eq!(scene.numbers().len(), 1);
        scene.take(Ok(Value::Int(0)));
        let short = FailureKind::NotReplicated { acked: 0, required: 1 };
        assert_eq!(scene.replies.lock()[1], (2, Err(short)));
        assert!(scene.in_flight.is_empty() && scene.written().is_empty());
    }

    #[test]
    fn a_request_to_wait_follows_whatever_was_done_after_the_last_one() {
        let mut scene = Scene::default();
        let two = [SendWait::Along, SendWait::After].map(|when| scene.durable(1, when));
        scene.send(two);
        assert_eq!(scene.written(), ["EVAL", "EVALSHA", "WAIT"]);
        scene.take(Ok(Value::Int(0)));
        scene.take(Err(failure("NOSCRIPT")));
        assert_eq!(scene.written(), ["EVAL"]);
        scene.take(Ok(Value::Int(1)));
        assert!(scene.written().is_empty(), "it was about what came before it");
        scene.take(Ok(Value::Int(1)));
        assert_eq!((scene.written(), scene.numbers().len()), (vec!["WAIT"], 1));
        scene.take(Ok(Value::Int(1)));
        assert_eq!(scene.numbers(), [(1, true), (1, true)]);
    }

    #[test]
    fn a_reply_that_comes_after_the_deadline_is_ignored() {
        let mut scene = Scene::default();
        let one = scene.posted(1);
        scene.send([one]);
        assert!(scene.in_flight.expire(Instant::now(), || failure("")).is_none());
        scene.take(Ok(Value::Int(1)));
        assert_eq!(scene.numbers(), [(1, false)]);
    }
}
