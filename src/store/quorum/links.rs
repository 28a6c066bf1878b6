//! One connection to each server of a quorum, for one thread at a time.
//!
//! A request is written to all of them before the first reply is read, and nobody waits for a reply
//! that decides nothing: it is read before the next one over the same connection, by whoever reads
//! that. So requests that go over the same links are executed in their order by every server, and a
//! release cannot be overtaken by the request that began the hold.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::store::connection::Connection;
use crate::store::lane::Reply;
use crate::store::quorum::flight::Flight;
use crate::store::quorum::node::{Node, Opened};
use crate::store::quorum::ready::wait_ready;
use crate::store::quorum::strays::Strays;
use crate::store::quorum::votes::majority;
use crate::store::script::{Form, Script};
use crate::store::spin::{Manner, Spell, Spin};
use crate::store::{Failure, Trouble};

/// A server that owes so many replies is not only slow.
const OWED_MAX: usize = 256;

/// A server that takes nothing more for this long is given up.
const WRITE_TIME: Duration = Duration::from_millis(50);

/// For so long a connection is waited for that is not needed for a majority.
const LATECOMERS: Duration = Duration::from_millis(10);

/// What all links of a client share.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) strays: Strays,
    pub(super) spin: Spin,
    /// A server that is silent for this long is given up.
    pub(super) patience: Duration,
}

/// The connections.
#[derive(Debug)]
pub(super) struct Links {
    parts: Arc<Parts>,
    links: Vec<Link>,
    opened: Receiver<Opened>,
    /// For whoever opens a connection.
    answer: Sender<Opened>,
}

/// The connection to one server.
#[derive(Debug)]
struct Link {
    connection: Connection,
    /// Whether one is being opened in the background.
    opening: bool,
    /// Whether that is likely to succeed soon.
    trusted: bool,
    /// The scripts that were sent in full over this connection, so that the server knows them.
    known: Vec<&'static Script>,
    /// What was sent and not answered, in order.
    flying: VecDeque<Flying>,
}

#[derive(Debug)]
struct Flying {
    flight: Arc<Flight>,
    sent: Instant,
}

impl Links {
    /// Links that are opened when they are first used.
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        let (answer, opened) = unbounded();
        let link = |node: &Arc<Node>| Link {
            connection: node.connection(),
            opening: false,
            trusted: false,
            known: Vec::new(),
            flying: VecDeque::new(),
        };
        let links = parts.nodes.iter().map(link).collect();
        Self { parts, links, opened, answer }
    }

    /// Makes ready to send. Connections that are missing are opened in the background. They are
    /// waited for if there is no majority without them, and for a moment if nothing is known against
    /// the server.
    pub(super) fn prepare(&mut self, until: Instant) {
        while let Ok(opened) = self.opened.try_recv() {
            self.take_in(opened);
        }
        (0..self.links.len()).for_each(|number| self.check(number));
        let urgent = self.connected() < self.majority();
        (0..self.links.len()).for_each(|number| self.open(number, urgent));
        self.wait_for_connections(until);
    }

    fn wait_for_connections(&mut self, until: Instant) {
        let started = Instant::now();
        while let Some(end) = self.patience_for_connections(started, until)
            && let Ok(opened) = self.opened.recv_deadline(end)
        {
            self.take_in(opened);
        }
        // Once is enough: a server that hangs is found out only later.
        self.links.iter_mut().for_each(|link| link.trusted = false);
    }

    /// Until when to wait for connections, if at all.
    fn patience_for_connections(&self, started: Instant, until: Instant) -> Option<Instant> {
        let mut opening = self.links.iter().filter(|link| link.opening);
        if self.connected() < self.majority() {
            return opening.next().map(|_| until);
        }
        opening.any(|link| link.trusted).then(|| until.min(started + LATECOMERS))
    }

    /// Tells whether some reply is still to come.
    pub(super) fn owed(&self) -> bool {
        self.links.iter().any(|link| !link.flying.is_empty())
    }

    /// Reads what has come, and gives up what does not come. Tells whether some reply is still to
    /// come.
    pub(super) fn sweep(&mut self) -> bool {
        for number in 0..self.links.len() {
            self.read(number);
            self.check(number);
        }
        self.owed()
    }

    fn majority(&self) -> usize {
        majority(self.links.len())
    }

    /// How many servers can be asked.
    fn connected(&self) -> usize {
        self.links.iter().filter(|link| link.connection.is_connected()).count()
    }

    /// The failures of those that cannot be asked.
    pub(super) fn missing(&self) -> impl Iterator<Item = (usize, Failure)> {
        let numbered = self.links.iter().zip(&self.parts.nodes).enumerate();
        numbered
            .filter(|(_, (link, _))| !link.connection.is_connected())
            .map(|(number, (_, node))| (number, node.down()))
    }

    /// Writes a request to those `wanted` of the servers that are connected, and takes it as failed
    /// by the others.
    pub(super) fn send(&mut self, flight: &Arc<Flight>, wanted: impl Fn(usize) -> bool) {
        let (hash, mut body) = (flight.request.pack(Form::Hash), None);
        let until = Instant::now() + WRITE_TIME;
        let mut missed = false;
        for number in (0..self.links.len()).filter(|number| wanted(*number)) {
            let node = self.parts.nodes[number].clone();
            let link = &mut self.links[number];
            if !link.connection.is_connected() {
                missed |= flight.request.effect.ended().is_some_and(|hold| node.may_have(hold));
                flight.fail(number, &node.down());
                continue;
            }
            if let Some(hold) = flight.request.effect.begun() {
                node.reach(hold);
            }
            let bytes = if link.knows(flight.request.script) {
                &hash
            } else {
                body.get_or_insert_with(|| flight.request.pack(Form::Body))
            };
            let sent = link.connection.write(until, |out| out.extend_from_slice(bytes));
            link.flying.push_back(Flying { flight: flight.clone(), sent: Instant::now() });
            if let Err(failure) = sent {
                self.give_up(number, &failure);
            }
        }
        if let Some(hold) = flight.request.effect.ended() {
            self.parts.strays.lay(hold);
            if missed {
                self.parts.strays.may_stay(hold);
            }
        }
    }

    /// Reads until `decide` has a decision about the replies to a request so far; `None` if the time
    /// is over before.
    pub(super) fn wait<T>(
        &mut self,
        flight: &Arc<Flight>,
        until: Instant,
        mut decide: impl FnMut(usize, Reply) -> Option<T>,
    ) -> Option<T> {
        let (parts, started) = (self.parts.clone(), Instant::now());
        let mut spell = parts.spin.start();
        let busy = spell.is_some();
        let mut decision = None;
        loop {
            flight.take(|number, reply| {
                if decision.is_none() {
                    decision = decide(number, reply);
                }
            });
            if decision.is_some() {
                break;
            }
            let awaited: Vec<usize> =
                (0..self.links.len()).filter(|number| flight.awaits(*number)).collect();
            if awaited.is_empty() || !self.read_ready(&awaited, &mut spell, until) {
                break;
            }
        }
        let manner = match (busy, spell.is_some()) {
            (false, _) => Manner::Asleep,
            (true, true) => Manner::Busy,
            (true, false) => Manner::BusyInVain,
        };
        parts.spin.learn(manner, started.elapsed());
        decision
    }

    fn take_in(&mut self, (number, opened): Opened) {
        let link = &mut self.links[number];
        link.opening = false;
        if let Ok(connection) = opened {
            link.connection = connection;
        }
    }

    fn open(&mut self, number: usize, urgent: bool) {
        let (link, node) = (&mut self.links[number], &self.parts.nodes[number]);
        if !link.connection.is_connected() && !link.opening {
            link.trusted = node.is_trusted();
            link.opening = node.open(urgent, &self.answer);
        }
    }

    /// Gives up a connection that was used for too long without an answer, or that is stale.
    fn check(&mut self, number: usize) {
        let link = &self.links[number];
        if !link.connection.is_connected() {
            return;
        }
        if !link.connection.is_open() {
            let failure =
                Failure { trouble: Trouble::Reset, ..self.parts.nodes[number].no_reply() };
            return self.give_up(number, &failure);
        }
        if link.is_overdue(self.parts.patience) {
            self.read(number);
            if self.links[number].is_overdue(self.parts.patience) {
                let failure = self.parts.nodes[number].hangs();
                self.give_up(number, &failure);
            }
        }
    }

    /// Waits for replies, and reads all that have come; `false` if the time is over.
    fn read_ready(&mut self, awaited: &[usize], spell: &mut Option<Spell>, until: Instant) -> bool {
        let sockets = awaited.iter().filter_map(|number| {
            self.links[*number].connection.socket().map(|socket| (*number, socket))
        });
        let (numbers, sockets): (Vec<usize>, Vec<BorrowedFd<'_>>) = sockets.unzip();
        let ready = loop {
            let spins = spell.as_ref().is_some_and(Spell::goes_on);
            let ready = wait_ready(&sockets, if spins { None } else { Some(until) });
            if !ready.is_empty() || !spins {
                break ready;
            }
            std::hint::spin_loop();
        };
        if spell.as_ref().is_some_and(|spell| !spell.goes_on()) {
            *spell = None;
        }
        ready.iter().for_each(|place| self.read(numbers[*place]));
        !ready.is_empty()
    }

    /// Reads the replies that have come from a server.
    fn read(&mut self, number: usize) {
        while let link = &mut self.links[number]
            && !link.flying.is_empty()
            && let Some(reply) = link.connection.receive_now()
        {
            let Some(Flying { flight, .. }) = link.flying.pop_front() else { return };
            let broken = if link.connection.is_connected() { None } else { reply.clone().err() };
            self.settle(number, &flight, reply);
            if let Some(failure) = broken {
                self.give_up(number, &failure);
            }
        }
    }

    /// Takes a request as answered by a server.
    fn settle(&mut self, number: usize, flight: &Arc<Flight>, mut reply: Reply) {
        let link = &mut self.links[number];
        if let Err(failure) = &mut reply
            && failure.code == "NOSCRIPT"
        {
            // What was sent after it must not be overtaken.
            if link.flying.is_empty() {
                return self.send_body(number, flight);
            }
            link.known.retain(|script| !ptr::eq(*script, flight.request.script));
            failure.trouble = Trouble::Passing;
        }
        if let Err(failure) = &reply {
            let effect = &flight.request.effect;
            if let Some(hold) = effect.begun().filter(|_| failure.is_ambiguous()) {
                self.parts.strays.may_come(hold);
            }
            if let Some(hold) = effect.ended().filter(|_| failure.trouble != Trouble::WrongType) {
                self.parts.strays.may_stay(hold);
            }
        }
        flight.answer(number, reply);
    }

    /// Sends a request once more, to a server that did not know the script any more.
    fn send_body(&mut self, number: usize, flight: &Arc<Flight>) {
        let body = flight.request.pack(Form::Body);
        let (link, now) = (&mut self.links[number], Instant::now());
        link.flying.push_back(Flying { flight: flight.clone(), sent: now });
        let sent = link.connection.write(now + WRITE_TIME, |out| out.extend_from_slice(&body));
        if let Err(failure) = sent {
            self.give_up(number, &failure);
        }
    }

    /// Gives up a connection, and with it all requests that were not answered over it.
    fn give_up(&mut self, number: usize, failure: &Failure) {
        let link = &mut self.links[number];
        link.connection.poison();
        link.known.clear();
        for Flying { flight, .. } in mem::take(&mut link.flying) {
            self.settle(number, &flight, Err(failure.clone()));
        }
    }
}

/// Replies that were not read would make the system reset the connections, and that might keep a
/// server from the last requests.
impl Drop for Links {
    fn drop(&mut self) {
        (0..self.links.len()).for_each(|number| self.read(number));
    }
}

impl Link {
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
        let oldest = self.flying.front();
        self.flying.len() >= OWED_MAX
            || oldest.is_some_and(|flying| flying.sent.elapsed() >= patience)
    }
}
