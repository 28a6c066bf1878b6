//! The connection to one server of a quorum, and what it owes replies to.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use crossbeam_channel::Sender;
use redis::Value;

use crate::store::connection::Connection;
use crate::store::failure::{Failure, Trouble};
use crate::store::lane::Reply;
use crate::store::quorum::flight::{Effect, Flight};
use crate::store::quorum::node::{Node, Opened};
use crate::store::quorum::strays::Strays;
use crate::store::script::{Form, Script};

/// A server that owes so many replies is not only slow.
const OWED_MAX: usize = 256;

/// Requests stand in line behind one that waits for replicas or a disk. A server that owes so many
/// replies then is asked nothing more, but to end what may stand there.
const LINE_MAX: usize = 4;

/// A server that takes nothing more for this long is given up.
const WRITE_TIME: Duration = Duration::from_millis(50);

/// The connection to one server, open or not.
#[derive(Debug)]
pub(super) struct Link {
    node: Arc<Node>,
    strays: Arc<Strays>,
    connection: Connection,
    /// Whether one is being opened in the background.
    opening: bool,
    /// Whether that is likely to succeed soon.
    trusted: bool,
    /// The scripts that were sent in full over this connection, so that the server knows them.
    known: Vec<&'static Script>,
    /// The replies that are to come, in order.
    flying: VecDeque<Flying>,
    /// When the last reply came.
    heard: Instant,
}

/// A reply that is to come.
#[derive(Debug)]
struct Flying {
    flight: Arc<Flight>,
    part: Part,
    sent: Instant,
}

/// What a reply is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Script,
    /// The request to wait until what the script has done is as durable as demanded.
    Wait,
}

impl Link {
    pub(super) fn new(node: &Arc<Node>, strays: &Arc<Strays>) -> Self {
        Self {
            node: node.clone(),
            strays: strays.clone(),
            connection: node.connection(),
            opening: false,
            trusted: false,
            known: Vec::new(),
            flying: VecDeque::new(),
            heard: Instant::now(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_connected()
    }

    pub(super) fn is_opening(&self) -> bool {
        self.opening
    }

    /// Tells whether it is worth a moment to wait for the connection that is being opened.
    pub(super) fn is_expected(&self) -> bool {
        self.opening && self.trusted
    }

    /// Waits no longer for the connection that is being opened.
    pub(super) fn expect_nothing(&mut self) {
        self.trusted = false;
    }

    /// Tells whether some reply is still to come.
    pub(super) fn owes(&self) -> bool {
        !self.flying.is_empty()
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_fd()
    }

    /// The failure of a request that is not sent for want of a connection.
    pub(super) fn down(&self) -> Failure {
        self.node.down()
    }

    /// Has a connection opened in the background if there is none. `urgent` is what cannot do
    /// without it.
    pub(super) fn open(&mut self, urgent: bool, answer: &Sender<Opened>) {
        if !self.is_connected() && !self.opening {
            self.trusted = self.node.is_trusted();
            self.opening = self.node.open(urgent, answer);
        }
    }

    /// Takes in what has become of that.
    pub(super) fn take_in(&mut self, opened: Result<Connection, Failure>) {
        self.opening = false;
        if let Ok(connection) = opened {
            self.connection = connection;
        }
    }

    /// Gives up a connection over which nothing has come for so long though something should have,
    /// or that is stale.
    pub(super) fn check(&mut self, patience: Duration) {
        if !self.is_connected() {
            return;
        }
        if !self.connection.is_open() {
            let failure = Failure { trouble: Trouble::Reset, ..self.node.no_reply() };
            return self.give_up(&failure);
        }
        if self.is_overdue(patience) {
            self.read();
            if self.is_overdue(patience) {
                let failure = self.node.hangs();
                self.give_up(&failure);
            }
        }
    }

    /// Tells whether too much is in line behind a request that waits.
    pub(super) fn lags(&mut self) -> bool {
        let lags = |flying: &VecDeque<Flying>| {
            flying.len() >= LINE_MAX && flying.iter().any(|flying| flying.part == Part::Wait)
        };
        lags(&self.flying) && {
            self.read();
            lags(&self.flying)
        }
    }

    /// Sends a request, whose packed forms are given. If there is no connection it has failed, and
    /// if so a hold that it was to end may stay where it is: then this is `false`. It has failed as
    /// well if the server lags, unless it is only to end a hold.
    pub(super) fn send(
        &mut self,
        flight: &Arc<Flight>,
        pack: impl FnOnce(Form) -> Vec<u8>,
    ) -> bool {
        let effect = &flight.request.effect;
        let lags = self.lags();
        let stays = effect.ended().is_some_and(|hold| self.node.may_have(hold));
        if !self.is_connected() {
            flight.answer(self.node.number, Err(self.down()));
            return !stays;
        }
        let ends = matches!(effect, Effect::Ends(_));
        if lags && !(ends && stays) {
            // What has never come to stand there is gone.
            let reply = if ends { Ok(Value::Int(0)) } else { Err(self.node.lags()) };
            flight.answer(self.node.number, reply);
            return true;
        }
        if let Some(hold) = effect.begun() {
            self.node.reach(hold);
        }
        let form = if self.knows(flight.request.script) { Form::Hash } else { Form::Body };
        self.write(flight, &pack(form));
        true
    }

    /// Reads the replies that have come.
    pub(super) fn read(&mut self) {
        while !self.flying.is_empty()
            && let Some(reply) = self.connection.receive_now()
        {
            let Some(Flying { flight, part, .. }) = self.flying.pop_front() else { return };
            self.heard = Instant::now();
            let broken = if self.is_connected() { None } else { reply.clone().err() };
            self.settle(&flight, part, reply);
            if let Some(failure) = broken {
                self.give_up(&failure);
            }
        }
    }

    /// Takes in a reply.
    fn settle(&mut self, flight: &Arc<Flight>, part: Part, reply: Reply) {
        match (part, &flight.request.demand) {
            (Part::Wait, Some((demand, _))) => {
                flight.confirm(self.node.number, self.node.weigh(demand, reply));
            }
            _ => self.answer(flight, reply),
        }
    }

    /// Takes a request as answered.
    fn answer(&mut self, flight: &Arc<Flight>, mut reply: Reply) {
        if let Err(failure) = &mut reply
            && failure.code == "NOSCRIPT"
        {
            // What was sent after it must not be overtaken.
            if self.flying.iter().all(|flying| Arc::ptr_eq(&flying.flight, flight)) {
                return self.write(flight, &flight.request.pack(Form::Body));
            }
            self.known.retain(|script| !ptr::eq(*script, flight.request.script));
            failure.trouble = Trouble::Passing;
        }
        if let Err(failure) = &reply {
            let effect = &flight.request.effect;
            if let Some(hold) = effect.begun().filter(|_| failure.is_ambiguous()) {
                self.strays.may_come(hold);
            }
            if let Some(hold) = effect.ended().filter(|_| failure.trouble != Trouble::WrongType) {
                self.strays.may_stay(hold);
            }
        }
        flight.answer(self.node.number, reply);
    }

    fn write(&mut self, flight: &Arc<Flight>, bytes: &[u8]) {
        let now = Instant::now();
        let flying = |part| Flying { flight: flight.clone(), part, sent: now };
        self.flying.push_back(flying(Part::Script));
        self.flying.extend(flight.request.demand.map(|_| flying(Part::Wait)));
        let sent = self.connection.write(now + WRITE_TIME, |out| out.extend_from_slice(bytes));
        if let Err(failure) = sent {
            self.give_up(&failure);
        }
    }

    /// Gives up the connection, and with it all requests that were not answered over it.
    fn give_up(&mut self, failure: &Failure) {
        self.connection.poison();
        self.known.clear();
        for Flying { flight, part, .. } in mem::take(&mut self.flying) {
            self.settle(&flight, part, Err(failure.clone()));
        }
    }

    /// Tells whether the server knows the script; it does after this request.
    fn knows(&mut self, script: &'static Script) -> bool {
        let knows = self.known.iter().any(|known| ptr::eq(*known, script));
        if !knows {
            self.known.push(script);
        }
        knows
    }

    /// Tells whether the server owes a reply for too long, or too many.
    fn is_overdue(&self, patience: Duration) -> bool {
        // What stands in line behind others has no turn before they are answered.
        let turn = self.flying.front().map(|flying| flying.sent.max(self.heard));
        self.flying.len() >= OWED_MAX || turn.is_some_and(|turn| turn.elapsed() >= patience)
    }
}

/// Replies that were not read would make the system reset the connection, and that might keep the
/// server from the last requests.
impl Drop for Link {
    fn drop(&mut self) {
        self.read();
    }
}
