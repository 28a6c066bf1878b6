//! One connection to each server of a quorum, for one thread at a time.
//!
//! A request is written to all of them before the first reply is read. No call waits for a reply
//! that decides nothing: the next thread to read from that connection reads it. So every server
//! executes the requests that go over the same links in their order, and a release cannot be
//! overtaken by the request that began the hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::net::socket::poll_ready;
use crate::net::spin::Spin;
use crate::net::stream::PolledSocket;
use crate::store::background::opening::Opening;
use crate::store::quorum::broadcast::Broadcast;
use crate::store::quorum::commands::QuorumCommand;
use crate::store::quorum::in_doubt::{DecidesEnd, InDoubtHolds};
use crate::store::quorum::link::QuorumLink;
use crate::store::quorum::server::QuorumServer;
use crate::store::quorum::votes::majority;

/// A connection that is not needed for a majority is waited for this long.
const LATECOMERS: Duration = Duration::from_millis(50);

/// What all links of a client share.
#[derive(Debug)]
pub(super) struct QuorumServers {
    pub(super) each: Vec<Arc<QuorumServer>>,
    pub(super) in_doubt: Arc<InDoubtHolds>,
    pub(super) spin: Spin,
    /// A server that is silent for this long is given up.
    pub(super) io_timeout: Duration,
}

impl QuorumServers {
    /// A command for all of them.
    pub(super) fn broadcast<T>(&self, command: QuorumCommand<T>) -> Arc<Broadcast> {
        Broadcast::new(command, self.each.len(), &self.in_doubt)
    }
}

/// The connections, in the order of the servers.
#[derive(Debug)]
pub(super) struct LinkSet {
    pub(super) servers: Arc<QuorumServers>,
    links: Vec<QuorumLink>,
}

impl LinkSet {
    /// Opens nothing yet.
    pub(super) fn new(servers: Arc<QuorumServers>) -> Self {
        let link = |server| QuorumLink::new(server, &servers.in_doubt);
        Self { links: servers.each.iter().map(link).collect(), servers }
    }

    /// Prepares to send. Begins to open the connections that are missing, and waits for them: until
    /// `deadline` if there is no majority without them, and for a moment if their servers have not
    /// failed before.
    pub(super) fn prepare(&mut self, deadline: Instant) {
        self.begin_to_prepare();
        let moment = Instant::now() + LATECOMERS;
        while let Some(end) = self.end_of_wait_for_openings(deadline, moment)
            && Opening::wait_for_any(self.links.iter().filter_map(QuorumLink::opening), end)
        {
            self.links.iter_mut().for_each(QuorumLink::finish_opening);
        }
        // Only the first call waits: whether a server hangs is known only later.
        self.links.iter_mut().for_each(QuorumLink::opens_late);
    }

    /// As `prepare`, without waiting.
    pub(super) fn begin_to_prepare(&mut self) {
        for link in &mut self.links {
            link.finish_opening();
            link.close_if_useless(self.servers.io_timeout);
        }
        let urgent = !self.has_majority();
        for link in &mut self.links {
            link.begin_opening(urgent);
        }
    }

    /// Returns `true` if a majority is connected.
    fn has_majority(&self) -> bool {
        let connected = self.links.iter().filter(|link| link.is_connected()).count();
        connected >= majority(self.links.len())
    }

    /// Until when to wait for connections; `None` if there is none to wait for.
    fn end_of_wait_for_openings(&self, deadline: Instant, moment: Instant) -> Option<Instant> {
        if !self.has_majority() {
            return self.links.iter().any(|link| link.opening().is_some()).then_some(deadline);
        }
        self.links.iter().any(QuorumLink::opens_soon).then_some(deadline.min(moment))
    }

    /// The failures of the servers that are not connected.
    pub(super) fn missing(&self) -> impl Iterator<Item = (usize, Failure)> {
        let missing = self.links.iter().enumerate().filter(|(_, link)| !link.is_connected());
        missing.map(|(number, link)| (number, link.unreachable()))
    }

    /// For each server whether it is not owed too many replies.
    pub(super) fn room(&self) -> Vec<bool> {
        self.links.iter().map(QuorumLink::has_room).collect()
    }

    /// Writes a request to those `wanted` of the servers that are connected. For the others it has
    /// failed. Drop the returned value when the replies are in: what is in doubt about the hold
    /// that the request ends is reported then.
    pub(super) fn send(
        &mut self,
        broadcast: &Arc<Broadcast>,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<DecidesEnd> {
        let wanted = self.links.iter_mut().enumerate().filter(|(number, _)| wanted(*number));
        wanted.for_each(|(_, link)| link.send(broadcast));
        broadcast.decides_end()
    }

    /// The numbers of the servers whose replies to a request are awaited, and what to wait for.
    pub(super) fn awaited(&self, broadcast: &Broadcast) -> (Vec<usize>, Vec<PolledSocket>) {
        let links = self.links.iter().enumerate();
        let awaited = links.filter(|(number, _)| broadcast.awaits(*number));
        awaited.filter_map(|(number, link)| Some((number, link.polled()?))).unzip()
    }

    /// Reads the replies of one server that have come. Never waits.
    pub(super) fn read(&mut self, number: usize) {
        self.links[number].read();
    }

    /// Reads the replies that have come. Never waits.
    fn read_what_has_come(&mut self) {
        self.links.iter_mut().for_each(QuorumLink::read);
    }

    /// Blocks until a majority is not owed too many replies, or until the deadline. Returns which
    /// servers are not; those without a connection count among them.
    pub(super) fn make_room(&mut self, deadline: Instant) -> Vec<bool> {
        // Also because a program that ends with replies unread may lose what it has posted.
        self.read_what_has_come();
        loop {
            let has_room = self.room();
            let usable = self.links.iter().filter(|link| link.has_room() && link.is_connected());
            let connected = self.links.iter().filter(|link| link.is_connected()).count();
            let enough = usable.count() >= majority(self.links.len()).min(connected);
            if enough || !self.read_any(deadline) {
                return has_room;
            }
        }
    }

    /// Waits until something has come over any connection where a reply is still to come, and reads
    /// it. Returns `false` if nothing can come any more, or the deadline is over.
    fn read_any(&mut self, deadline: Instant) -> bool {
        let busy = self.links.iter().filter(|link| link.is_busy());
        let mut sockets: Vec<_> = busy.filter_map(QuorumLink::socket).collect();
        let has_come = !sockets.is_empty() && !poll_ready(&mut sockets, Some(deadline)).is_empty();
        self.read_what_has_come();
        has_come
    }

    /// Reads until no reply is still to come, or gives up the connections over which none come by
    /// the deadline.
    pub(super) fn settle(&mut self, deadline: Instant) {
        self.read_what_has_come();
        while self.is_busy() && self.read_any(deadline) {}
        for link in &mut self.links {
            link.close_if_useless(Duration::ZERO);
        }
    }

    /// Returns `true` if some reply is still to come.
    pub(super) fn is_busy(&self) -> bool {
        self.links.iter().any(QuorumLink::is_busy)
    }

    /// Reads what has come, and closes connections over which nothing comes. Never waits. Returns
    /// `true` if some reply is still to come.
    pub(super) fn sweep(&mut self) -> bool {
        for link in &mut self.links {
            link.read();
            link.close_if_useless(self.servers.io_timeout);
        }
        self.is_busy()
    }
}
