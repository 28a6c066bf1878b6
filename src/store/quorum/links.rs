//! One connection to each server of a quorum, for one thread at a time.
//!
//! A request is written to all of them before the first reply is read, and nobody waits for a reply
//! that decides nothing: it is read before the next one over the same connection, by whoever reads
//! that. So requests that go over the same links are executed in their order by every server, and a
//! release cannot be overtaken by the request that began the hold.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::net::poll::poll_readable;
use crate::net::request::Reply;
use crate::net::spin::{Manner, Spin, SpinTurn};
use crate::store::background::opening::Opening;
use crate::store::quorum::flight::Broadcast;
use crate::store::quorum::in_doubt::InDoubtHolds;
use crate::store::quorum::link::QuorumLink;
use crate::store::quorum::node::QuorumServer;
use crate::store::quorum::votes::majority;

/// For so long a connection is waited for that is not needed for a majority.
const LATECOMERS: Duration = Duration::from_millis(50);

/// What all links of a client share.
#[derive(Debug)]
pub(super) struct QuorumParts {
    pub(super) nodes: Vec<Arc<QuorumServer>>,
    pub(super) in_doubt: Arc<InDoubtHolds>,
    pub(super) spin: Spin,
    /// A server that is silent for this long is given up.
    pub(super) retry: Duration,
}

/// The connections, in the order of the servers.
#[derive(Debug)]
pub(super) struct QuorumLinks {
    parts: Arc<QuorumParts>,
    each: Vec<QuorumLink>,
}

impl QuorumLinks {
    /// QuorumLinks that are opened when they are first used.
    pub(super) fn new(parts: Arc<QuorumParts>) -> Self {
        let each = parts.nodes.iter().map(|node| QuorumLink::new(node, &parts.in_doubt)).collect();
        Self { parts, each }
    }

    /// Makes ready to send. Connections that are missing are opened in the background. They are
    /// waited for if there is no majority without them, and for a moment if nothing is known against
    /// the server.
    pub(super) fn prepare(&mut self, deadline: Instant) {
        for link in &mut self.each {
            link.finish_opening();
            link.check(self.parts.retry);
        }
        let urgent = !self.are_enough();
        for link in &mut self.each {
            link.begin_opening(urgent);
        }
        self.wait_for_connections(deadline);
    }

    /// The failures of the servers that cannot be asked.
    pub(super) fn missing(&self) -> impl Iterator<Item = (usize, Failure)> {
        let missing = self.each.iter().enumerate().filter(|(_, link)| !link.is_connected());
        missing.map(|(number, link)| (number, link.down()))
    }

    /// Tells of each server whether it lags: it would be asked nothing now but to end a hold.
    pub(super) fn lagging(&mut self) -> Vec<bool> {
        self.each.iter_mut().map(QuorumLink::lags).collect()
    }

    /// Writes a request to those `wanted` of the servers that are connected, and takes it as failed
    /// by the others.
    pub(super) fn send(&mut self, flight: &Arc<Broadcast>, wanted: impl Fn(usize) -> bool) {
        let mut arrives = true;
        let wanted = self.each.iter_mut().enumerate().filter(|(number, _)| wanted(*number));
        for (_, link) in wanted {
            arrives &= link.send(flight);
        }
        if let Some(hold) = flight.effect.ended() {
            self.parts.in_doubt.lay(hold);
            if !arrives {
                self.parts.in_doubt.may_stay(hold);
            }
        }
    }

    /// Reads until `decide` has a decision about the replies to a request so far; `None` if the time
    /// is over before.
    pub(super) fn wait<T>(
        &mut self,
        flight: &Arc<Broadcast>,
        deadline: Instant,
        mut decide: impl FnMut(usize, Reply) -> Option<T>,
    ) -> Option<T> {
        let (parts, started) = (self.parts.clone(), Instant::now());
        // Replicas and disks answer not soon, and that says nothing about the servers.
        let soon = flight.demand.is_none();
        let mut spell = if soon { parts.spin.start() } else { None };
        let busy = spell.is_some();
        let mut decision = None;
        loop {
            flight.take(|number, reply| {
                if decision.is_none() {
                    decision = decide(number, reply);
                }
            });
            if decision.is_some() || !self.read_ready(flight, &mut spell, deadline) {
                break;
            }
        }
        let manner = match (busy, spell.is_some()) {
            (false, _) => Manner::Asleep,
            (true, true) => Manner::Busy,
            (true, false) => Manner::BusyInVain,
        };
        if soon {
            parts.spin.learn(manner, started.elapsed());
        }
        decision
    }

    /// Tells whether some reply is still to come.
    pub(super) fn owe(&self) -> bool {
        self.each.iter().any(QuorumLink::owes)
    }

    /// Reads what has come, and gives up what does not come. Tells whether some reply is still to
    /// come.
    pub(super) fn sweep(&mut self) -> bool {
        for link in &mut self.each {
            link.read();
            link.check(self.parts.retry);
        }
        self.owe()
    }

    /// Tells whether a majority can be asked.
    fn are_enough(&self) -> bool {
        let connected = self.each.iter().filter(|link| link.is_connected()).count();
        connected >= majority(self.each.len())
    }

    fn wait_for_connections(&mut self, deadline: Instant) {
        let moment = Instant::now() + LATECOMERS;
        while let Some(end) = self.end_of_wait_for_connections(deadline, moment)
            && Opening::wait_for_any(self.each.iter().filter_map(QuorumLink::opening), end)
        {
            self.each.iter_mut().for_each(QuorumLink::finish_opening);
        }
        // Once is enough: a server that hangs is found out only later.
        self.each.iter_mut().for_each(QuorumLink::expect_nothing);
    }

    fn end_of_wait_for_connections(&self, deadline: Instant, moment: Instant) -> Option<Instant> {
        if !self.are_enough() {
            return self.each.iter().any(|link| link.opening().is_some()).then_some(deadline);
        }
        self.each.iter().any(QuorumLink::is_expected).then_some(deadline.min(moment))
    }

    /// Waits for replies to a request, and reads all that have come; `false` if there is none in
    /// time.
    fn read_ready(
        &mut self,
        flight: &Broadcast,
        spell: &mut Option<SpinTurn>,
        deadline: Instant,
    ) -> bool {
        let links = self.each.iter().enumerate();
        let awaited = links.filter(|(number, _)| flight.awaits(*number));
        let (numbers, sockets): (Vec<usize>, Vec<BorrowedFd<'_>>) =
            awaited.filter_map(|(number, link)| Some((number, link.socket()?))).unzip();
        if numbers.is_empty() {
            return false;
        }
        let ready = loop {
            let spins = spell.as_ref().is_some_and(SpinTurn::goes_on);
            let ready = poll_readable(&sockets, if spins { None } else { Some(deadline) });
            if !ready.is_empty() || !spins {
                break ready;
            }
            std::hint::spin_loop();
        };
        if spell.as_ref().is_some_and(|spell| !spell.goes_on()) {
            *spell = None;
        }
        for place in &ready {
            self.each[numbers[*place]].read();
        }
        !ready.is_empty()
    }
}
