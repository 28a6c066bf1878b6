//! One request to all servers, from the connections to the decision.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::net::pool::PoolThread;
use crate::net::request::Reply;
use crate::store::decoder::Decoder;
use crate::store::quorum::broadcast::{Broadcast, Watcher};
use crate::store::quorum::commands::QuorumCommand;
use crate::store::quorum::link_set::{LinkSet, QuorumServers};
use crate::store::quorum::shared_links::{LockedLinks, SharedLinks};
use crate::store::quorum::votes::Votes;
use crate::store::request::{HoldReply, HoldRequest};

/// The links of a client.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) servers: Arc<QuorumServers>,
    /// A name always has the same, so that its requests do not overtake one another.
    links: Vec<Arc<SharedLinks>>,
}

impl Rounds {
    pub(super) fn new(servers: Arc<QuorumServers>, sets: u32, pool_thread: &PoolThread) -> Self {
        let links = |_| SharedLinks::new(LinkSet::new(servers.clone()), pool_thread);
        Self { links: (0..sets).map(links).collect(), servers }
    }

    /// Locks the links for requests about this name.
    pub(super) fn lock(&self, name: &str, deadline: Instant) -> Result<LockedLinks<'_>, Failure> {
        self.links_of(name).lock(deadline)
    }

    fn links_of(&self, name: &str) -> &Arc<SharedLinks> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let sets = u64::try_from(self.links.len()).unwrap_or(1);
        &self.links[usize::try_from(hasher.finish() % sets).unwrap_or(0)]
    }

    /// As `lock`, with a majority connected.
    pub(super) fn connect(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<LockedLinks<'_>, Failure> {
        let mut links = self.lock(name, deadline)?;
        links.prepare(deadline);
        let mut votes = Votes::new(self.servers.each.len());
        for (number, failure) in links.missing() {
            votes.0[number] = Some(Err(failure));
        }
        if votes.pending() >= votes.required() {
            return Ok(links);
        }
        for vote in &mut votes.0 {
            vote.get_or_insert(Ok(HoldReply::Done));
        }
        votes.decide_hold().unwrap_or(Ok(HoldReply::Done)).map(|_| links)
    }

    /// Sends a command to all servers. Returns what `decide` makes of the replies as soon as it
    /// can, and these replies.
    pub(super) fn ask<T: Clone, D>(
        &self,
        links: &mut LockedLinks<'_>,
        command: QuorumCommand<T>,
        deadline: Instant,
        decide: impl Fn(&Votes<T>) -> Option<D>,
    ) -> (D, Votes<T>) {
        let decoder = command.command.decoder.clone();
        let broadcast = self.servers.broadcast(command);
        let _ended = links.send(&broadcast, |_| true);
        self.count(links, &broadcast, deadline, &decoder, decide)
    }

    /// As `ask`, for a command that has been sent.
    pub(super) fn count<T: Clone, D>(
        &self,
        links: &mut LockedLinks<'_>,
        broadcast: &Arc<Broadcast>,
        deadline: Instant,
        decoder: &Decoder<T>,
        decide: impl Fn(&Votes<T>) -> Option<D>,
    ) -> (D, Votes<T>) {
        let servers = &self.servers.each;
        let mut votes = Votes::new(servers.len());
        let decision = links.wait(broadcast, deadline, |number, reply| {
            let vote =
                decoder.decode(reply).unwrap_or_else(|| Err(servers[number].invalid_reply()));
            votes.0[number] = Some(vote);
            decide(&votes)
        });
        let decision = decision.or_else(|| {
            votes.close(|number| servers[number].no_reply());
            decide(&votes)
        });
        (decision.expect("there is a decision when all votes are in"), votes)
    }

    /// Sends a command about a hold to the servers that are connected, and returns. The decision
    /// goes to `on_reply` when a later call or a sweep has read enough replies.
    pub(super) fn post(
        &self,
        request: &HoldRequest<'_>,
        command: QuorumCommand<HoldReply>,
        on_reply: impl FnOnce(Result<HoldReply, Failure>) + Send + 'static,
    ) {
        let HoldRequest { hold, change, deadline } = *request;
        let mut links = match self.links_of(&hold.name).lock_to_post(deadline) {
            Ok(links) => links,
            Err(failure) => return on_reply(Err(failure)),
        };
        let decoder = command.command.decoder.clone();
        let broadcast = self.servers.broadcast(command);
        let (servers, mut on_reply) = (self.servers.clone(), Some(on_reply));
        let mut votes = Votes::new(servers.each.len());
        let count = move |number: usize, reply: Reply| {
            let vote = decoder.decode(reply);
            votes.0[number] =
                Some(vote.unwrap_or_else(|| Err(servers.each[number].invalid_reply())));
            let Some(decision) = votes.decide_change(change) else { return false };
            if let Some(on_reply) = on_reply.take() {
                on_reply(decision);
            }
            true
        };
        broadcast.watch(Watcher { on_reply: Box::new(count), ended: None });
        let has_room = links.prepare_to_post(deadline);
        for (number, server) in self.servers.each.iter().enumerate() {
            if !has_room[number] {
                broadcast.store_reply(number, Err(server.lagging()));
            }
        }
        let ended = links.send(&broadcast, |number| has_room[number]);
        if has_room.contains(&false) {
            broadcast.may_remain();
        }
        broadcast.set_ended(ended);
    }

    /// Reads the replies that are still to come, or gives up the links over which none come.
    pub(super) fn settle(&self, deadline: Instant) {
        for links in &self.links {
            if let Ok(mut links) = links.lock(deadline) {
                links.settle(deadline);
            }
        }
    }
}
