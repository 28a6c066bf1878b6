//! The use of the links for a request about one name: a thread locks the links, writes the request
//! to every server, and counts the replies until there is a decision.

use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use crate::base::failure::Failure;
use crate::net::in_flight::Exchange;
use crate::net::wait::ReplyWait;
use crate::store::background::{JobRunner, Wakeups};
use crate::store::quorum::ballot::{Ballot, QuorumServers};
use crate::store::quorum::votes::{Votes, majority};
use crate::store::request::HoldReply;
use crate::store::scripts::ScriptReply;

/// One link to each server, which threads use in turn.
pub(crate) trait SharedLinks: Clone + Send + Sync + 'static {
    type Locked<'a>: ExclusiveLinks
    where
        Self: 'a;

    /// Blocks until no other thread uses the links. Fails if that takes until `deadline`.
    fn lock(&self, deadline: Instant) -> Result<Self::Locked<'_>, Failure>;

    /// Like `lock`, ready to send. Waits until `deadline` for the connections of a majority, and
    /// for a moment for those of the other servers that have not failed before.
    fn prepare(&self, deadline: Instant) -> Result<Self::Locked<'_>, Failure>;

    /// Like `prepare`, with a majority connected.
    fn connect(&self, deadline: Instant) -> Result<Self::Locked<'_>, Failure> {
        let links = self.prepare(deadline)?;
        if !links.has_majority() {
            let servers = 0..links.servers().each.len();
            let votes =
                servers.map(|server| Some(links.check(server, true).map(|()| HoldReply::Done)));
            let votes = Votes(votes.collect());
            if let Some(Err(failure)) = votes.decide_hold() {
                return Err(failure);
            }
        }
        Ok(links)
    }

    /// Like `lock`, to post requests, even while another thread waits for its replies.
    fn lock_to_post(&self, deadline: Instant) -> Result<Self::Locked<'_>, Failure>;

    /// Posts requests to one server, without waiting, if its link is open and has room. Returns the
    /// requests that were not sent.
    fn post_if_open(
        &self,
        server: usize,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) -> Vec<Exchange>;

    /// Returns the background jobs of a client, which may use the links, too.
    fn jobs(servers: &Arc<QuorumServers>, links: &[Self]) -> Box<dyn JobRunner>;

    /// Returns the wake-ups of a client.
    fn wakeups(servers: &Arc<QuorumServers>, links: &[Self], client: &str) -> Box<dyn Wakeups>;
}

/// Exclusive use of the links until this is dropped.
pub(crate) trait ExclusiveLinks {
    fn servers(&self) -> &Arc<QuorumServers>;

    fn is_connected(&self, server: usize) -> bool;

    /// Returns how many servers are connected.
    fn connected(&self) -> usize {
        (0..self.servers().each.len()).filter(|server| self.is_connected(*server)).count()
    }

    fn has_majority(&self) -> bool {
        self.connected() >= majority(self.servers().each.len())
    }

    /// Fails if a request cannot be sent to that server now. `ends` says whether it ends a hold.
    fn check(&self, server: usize, ends: bool) -> Result<(), Failure>;

    /// Writes a request to one server. The reply is counted when it is read.
    fn write<T: ScriptReply>(&mut self, server: usize, ballot: &Arc<Ballot<T>>);

    /// Waits for replies, and reads what has arrived. Returns `false` at the deadline, or if no
    /// replies are outstanding.
    fn read(&mut self, wait: Option<&mut ReplyWait<'_>>, deadline: Instant) -> bool;

    /// Reads all outstanding replies. Those that have not arrived by the deadline fail.
    fn drain(&mut self, deadline: Instant);

    /// Writes a request to the `wanted` servers. It fails at once at those that are not connected.
    fn send<T: ScriptReply>(
        &mut self,
        ballot: Ballot<T>,
        wanted: impl Fn(usize) -> bool,
    ) -> Arc<Ballot<T>> {
        let ballot = Arc::new(ballot);
        let servers = self.servers().clone();
        for (number, server) in servers.each.iter().enumerate() {
            let ended = ballot.ended();
            if !wanted(number)
                || ended.is_some_and(|hold| !servers.in_doubt.may_be_at(server, hold))
            {
                // The server cannot have the hold, so there is nothing to end.
                ballot.count(number, Ok(Value::Int(0)));
            } else if let Err(failure) = self.check(number, ended.is_some()) {
                // The request that begins the hold may still be in flight.
                if let Some(hold) = ended
                    && self.is_connected(number)
                {
                    servers.in_doubt.may_begin_late(hold);
                }
                ballot.count(number, Err(failure));
            } else {
                ballot.note_sent_to(server);
                self.write(number, &ballot);
            }
        }
        ballot
    }

    /// Reads until a request is decided. At the deadline, it is decided without the missing votes.
    fn wait<T: ScriptReply>(
        &mut self,
        ballot: &Ballot<T>,
        deadline: Instant,
    ) -> Result<T, Failure> {
        let servers = self.servers().clone();
        // How slow replicas and disks are says nothing about the servers.
        let mut wait = if ballot.demand.is_none() { Some(servers.spin.begin()) } else { None };
        let decision = loop {
            let decision = ballot.take_decision();
            if decision.is_some() || !self.read(wait.as_mut(), deadline) {
                break decision;
            }
        };
        // Later votes are counted by the next thread that reads from these links.
        decision.unwrap_or_else(|| ballot.close())
    }
}
