//! The connection to one server of a quorum, and what it owes replies to.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::failure::{Failure, FailureKind};
use crate::net::connection::Connection;
use crate::net::pipeline::{Pipeline, UnknownScript, WRITE_TIME, WaitFor};
use crate::net::request::{Reply, Request, Script};
use crate::store::background::opening::Opening;
use crate::store::quorum::flight::Broadcast;
use crate::store::quorum::in_doubt::InDoubtHolds;
use crate::store::quorum::node::QuorumServer;
use crate::store::quorum::requests::Effect;

/// A server that owes so many replies is not only slow.
const OWED_MAX: usize = 256;

/// Requests stand in line behind one that waits for replicas or a disk. A server that owes so many
/// replies then is asked nothing more, but to end what may stand there.
const LINE_MAX: usize = 4;

/// The connection to one server, open or not.
#[derive(Debug)]
pub(super) struct QuorumLink {
    node: Arc<QuorumServer>,
    in_doubt: Arc<InDoubtHolds>,
    pipeline: Pipeline<Owed, Connection>,
    /// The connection that is being opened in the background.
    opening: Option<Opening>,
    /// Whether that is likely to succeed soon.
    trusted: bool,
    /// The scripts that were sent in full over this connection, so that the server knows them.
    known: Vec<&'static Script>,
}

/// What a reply that is to come belongs to.
#[derive(Debug)]
struct Owed {
    broadcast: Arc<Broadcast>,
    part: Part,
}

/// What a reply is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Script,
    /// The request to wait until what the script has done is as durable as demanded.
    Wait,
}

impl QuorumLink {
    pub(super) fn new(node: &Arc<QuorumServer>, in_doubt: &Arc<InDoubtHolds>) -> Self {
        Self {
            node: node.clone(),
            in_doubt: in_doubt.clone(),
            pipeline: Pipeline::new(node.closed_connection(), UnknownScript::Fail),
            opening: None,
            trusted: false,
            known: Vec::new(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.pipeline.connection.is_connected()
    }

    /// The connection that is being opened.
    pub(super) fn opening(&self) -> Option<&Opening> {
        self.opening.as_ref()
    }

    /// Tells whether it is worth a moment to wait for the connection that is being opened.
    pub(super) fn is_expected(&self) -> bool {
        self.opening.is_some() && self.trusted
    }

    /// Waits no longer for the connection that is being opened.
    pub(super) fn expect_nothing(&mut self) {
        self.trusted = false;
    }

    /// Tells whether some reply is still to come.
    pub(super) fn owes(&self) -> bool {
        !self.pipeline.is_empty()
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.pipeline.connection.as_fd()
    }

    /// The failure of a request that is not sent for want of a connection.
    pub(super) fn down(&self) -> Failure {
        self.node.down()
    }

    /// Begins to open a connection if there is none. `urgent` is what cannot do without it.
    pub(super) fn begin_opening(&mut self, urgent: bool) {
        if !self.is_connected() && self.opening.is_none() {
            self.trusted = self.node.is_trusted();
            self.opening = self.node.begin_opening(urgent);
        }
    }

    /// Uses the connection that was being opened, once it is.
    pub(super) fn finish_opening(&mut self) {
        let Some(outcome) = self.opening.as_ref().and_then(Opening::take_outcome) else { return };
        self.opening = None;
        if let Ok(connection) = outcome {
            self.pipeline.connection = connection;
        }
    }

    /// Gives up a connection over which nothing has come for so long though something should have,
    /// or that is stale.
    pub(super) fn check(&mut self, retry: Duration) {
        if !self.is_connected() {
            return;
        }
        if !self.pipeline.connection.is_open() {
            let failure = Failure { kind: FailureKind::Disconnected, ..self.node.no_reply() };
            return self.give_up(failure);
        }
        if self.is_overdue(retry) {
            self.read();
            if self.is_overdue(retry) {
                let failure = self.node.hangs();
                self.give_up(failure);
            }
        }
    }

    /// Returns `true` if too much is in line behind a request that waits.
    pub(super) fn lags(&mut self) -> bool {
        let lags = |pipeline: &Pipeline<Owed, Connection>| {
            pipeline.len() >= LINE_MAX && pipeline.tags().any(|owed| owed.part == Part::Wait)
        };
        lags(&self.pipeline) && {
            self.read();
            lags(&self.pipeline)
        }
    }

    /// Sends a request. If there is no connection it has failed, and if so a hold that it was to end
    /// may stay where it is: then this is `false`. It has failed as well if the server lags, unless
    /// it is only to end a hold.
    pub(super) fn send(&mut self, broadcast: &Arc<Broadcast>) -> bool {
        let effect = &broadcast.effect;
        let lags = self.lags();
        let stays = effect.ended().is_some_and(|hold| self.node.may_have(hold));
        if !self.is_connected() {
            broadcast.answer(self.node.number, Err(self.down()));
            return !stays;
        }
        let ends = matches!(effect, Effect::Ends(_));
        if lags && !(ends && stays) {
            // What has never come to exist there is gone.
            let reply = if ends { Ok(Value::Int(0)) } else { Err(self.node.lags()) };
            broadcast.answer(self.node.number, reply);
            return true;
        }
        if let Some(hold) = effect.begun() {
            self.node.reach(hold);
        }
        let request = &broadcast.request;
        // What is sent after it must not overtake it, so the script is sent unless it is known.
        let request = if self.knows(request) { request.clone() } else { request.in_full() };
        self.write(broadcast, request);
        true
    }

    fn write(&mut self, broadcast: &Arc<Broadcast>, request: Request) {
        let owed = |part| Owed { broadcast: broadcast.clone(), part };
        let wait = broadcast.demand.as_ref().map(|(demand, deadline)| demand.request(*deadline));
        let batch = [(owed(Part::Script), request)];
        let batch = batch.into_iter().chain(wait.map(|wait| (owed(Part::Wait), wait)));
        self.pipeline.send(batch, Instant::now() + WRITE_TIME);
        if !self.is_connected() {
            // All that was in flight has failed, and the next connection must not inherit it.
            self.read();
        }
    }

    /// Reads the replies that have come.
    pub(super) fn read(&mut self) {
        while let Some((owed, reply)) = self.pipeline.receive(WaitFor::Nothing) {
            if !self.is_connected() {
                self.known.clear();
            }
            self.settle(&owed, reply);
        }
    }

    /// Passes a reply on to the request that it answers.
    fn settle(&mut self, Owed { broadcast, part }: &Owed, reply: Reply) {
        if let (Part::Wait, Some((demand, _))) = (part, &broadcast.demand) {
            return broadcast.confirm(self.node.number, self.node.weigh(demand, reply));
        }
        if let Err(failure) = &reply {
            if let Some(again) = broadcast.request.again_after(&reply) {
                // What was sent after it must not be overtaken.
                if self.pipeline.tags().all(|owed| Arc::ptr_eq(&owed.broadcast, broadcast)) {
                    return self.write(broadcast, again);
                }
                self.known.retain(|known| !broadcast.request.calls(known));
            }
            if let Some(hold) = broadcast.effect.begun().filter(|_| failure.is_ambiguous()) {
                self.in_doubt.may_come(hold);
            }
            let gone = failure.kind == FailureKind::WrongType;
            if let Some(hold) = broadcast.effect.ended().filter(|_| !gone) {
                self.in_doubt.may_stay(hold);
            }
        }
        broadcast.answer(self.node.number, reply);
    }

    /// Gives up the connection, and with it all requests that were not answered over it.
    fn give_up(&mut self, failure: Failure) {
        self.known.clear();
        self.pipeline.give_up(failure);
        self.read();
    }

    /// Returns `true` if the server knows the script of the request; it does after this request.
    fn knows(&mut self, request: &Request) -> bool {
        let knows = self.known.iter().any(|known| request.calls(known));
        if !knows {
            self.known.extend(request.script());
        }
        knows
    }

    /// Returns `true` if the server owes a reply for too long, or too many.
    fn is_overdue(&self, limit: Duration) -> bool {
        let waited = self.pipeline.expected_since().map(|since| since.elapsed());
        self.pipeline.len() >= OWED_MAX || waited.is_some_and(|waited| waited >= limit)
    }
}

/// Replies that were not read would make the system reset the connection, and that might keep the
/// server from the last requests.
impl Drop for QuorumLink {
    fn drop(&mut self) {
        self.read();
    }
}
