//! One server, alone or in a cluster, and what it is asked about locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use redis::Value;

use crate::base::failure::Failure;
use crate::config::Config;
use crate::net::demand::Demand;
use crate::net::exchange::{Exchange, SendWait};
use crate::net::exchange::{Reply, Request};
use crate::net::multiplexer::Multiplexer;
use crate::store::background::peer::Peer;
use crate::store::commands::Commands;
use crate::store::keys::{slot_of, tag_of};
use crate::store::request::{Acquire, AcquireReply, Change, HoldReply, HoldRequest, PostedChange};
use crate::store::scripts::Command;

/// How many acquires after one that found its lock held are expected to find theirs held, too.
const CONTENDED: u32 = 64;

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) server: Arc<Multiplexer>,
    pub(super) commands: Commands,
    /// What new holds and levels must meet in addition.
    demand: Option<Demand>,
    /// How many more acquires that are to meet that are expected to find their locks held.
    contended: AtomicU32,
    /// Whether the last request failed in a way that may mean that another node of the cluster
    /// serves its slots.
    doubted: AtomicBool,
}

impl Node {
    /// Sends nothing yet.
    pub(super) fn new(server: Arc<Multiplexer>, commands: Commands, config: &Config) -> Self {
        Self {
            server,
            commands,
            demand: Demand::new(config.durability),
            contended: AtomicU32::new(0),
            doubted: AtomicBool::new(false),
        }
    }

    /// The address, as users are shown it.
    pub(super) fn label(&self) -> &Arc<str> {
        &self.server.factory.endpoint.label
    }

    /// Asks which node serves which slots.
    pub(super) fn slots(&self, deadline: Instant) -> Result<Value, Failure> {
        let question = redis::cmd("CLUSTER").arg("SLOTS").take();
        self.server.exchange(Request::command(&question), None, deadline)
    }

    /// The hash tag of the channels over which clients that listen at this node are woken: that of
    /// the lowest slot which it serves.
    pub(super) fn shard_tag(&self) -> Option<Arc<str>> {
        self.commands.shard.as_ref()?.get()
    }

    /// Notes the lowest slot that the node serves. All clients that know the slots choose the same.
    pub(super) fn serve_from(&self, slot: usize) {
        if let Some(shard) = &self.commands.shard
            && shard.get().is_none_or(|tag| slot_of(&tag) != slot)
        {
            shard.set(&tag_of(slot));
        }
    }

    /// Returns `true` if another node may serve its slots by now.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Notes that the node has answered.
    pub(super) fn trust(&self) {
        // Each write would take the cache line from other threads.
        if self.is_doubted() {
            self.doubted.store(false, Ordering::Relaxed);
        }
    }
}

/// A node and how to ask it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) node: Arc<Node>,
    /// Whether requests are preceded by ASKING, because the node is only about to get the slot.
    pub(super) asking: bool,
}

impl Target {
    pub(super) fn of(node: Arc<Node>) -> Self {
        Self { node, asking: false }
    }

    /// Sends a command and waits for the reply. If there is a demand, and the script has done
    /// something, the reply counts only once that is as durable.
    pub(super) fn execute<T>(
        &self,
        command: Command<T>,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Result<T, Failure> {
        let Command { request, decode } = command;
        let reply = self.node.server.exchange(self.addressed(request), demand, deadline);
        or_invalid(decode(reply), &self.node.server)
    }

    pub(super) fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Node { commands, demand, contended, .. } = &*self.node;
        let command = commands.acquire(request);
        let Some(demand) = *demand else { return self.execute(command, None, request.deadline) };
        let expected = contended.load(Ordering::Relaxed);
        let send_wait = if expected > 0 { SendWait::After } else { SendWait::Along };
        let reply = self.execute(command, Some((demand, send_wait)), request.deadline);
        match reply {
            Ok(AcquireReply::Held { .. }) => contended.store(CONTENDED, Ordering::Relaxed),
            // Threads that do so at the same time count as one.
            _ if expected > 0 => contended.store(expected - 1, Ordering::Relaxed),
            _ => {}
        }
        reply
    }

    /// Executes a request about a hold.
    pub(super) fn change(&self, request: HoldRequest<'_>) -> Result<HoldReply, Failure> {
        let HoldRequest { hold, change, deadline } = request;
        let demand = self.demand_of(&[request]);
        self.execute(self.node.commands.change(hold, change), demand, deadline)
    }

    /// Executes requests about holds in one round trip.
    pub(super) fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        if let [request] = requests {
            return on_reply(0, self.change(*request));
        }
        let Some(deadline) = requests.iter().map(|request| request.deadline).max() else { return };
        let commands = requests.iter().map(|it| self.node.commands.change(it.hold, it.change));
        let (batch, decoders): (Vec<Request>, Vec<_>) =
            commands.map(|it| (self.addressed(it.request), it.decode)).unzip();
        let (server, demand) = (&self.node.server, self.demand_of(requests));
        let replies = server.exchange_all(batch, demand, deadline).into_iter().zip(decoders);
        for (place, (reply, decode)) in replies.enumerate() {
            on_reply(place, or_invalid(decode(reply), server));
        }
    }

    fn demand_of(&self, requests: &[HoldRequest<'_>]) -> Option<(Demand, SendWait)> {
        let is_durable = || requests.iter().any(|request| request.change.is_durable());
        self.node.demand.filter(|_| is_durable()).map(|demand| (demand, SendWait::Along))
    }

    pub(super) fn post(&self, posts: Vec<PostedChange<'_>>) {
        self.node.server.post(posts.into_iter().map(|post| self.to_post(post)).collect());
    }

    /// Returns the request for a change.
    fn to_post(&self, post: PostedChange<'_>) -> Exchange {
        let PostedChange { request: HoldRequest { hold, change, deadline }, on_reply } = post;
        let Command { request, decode } = self.node.commands.change(hold, change);
        let server = self.node.server.clone();
        let on_reply = move |reply: Reply| on_reply(or_invalid(decode(reply), &server));
        let posted = Exchange::posted(self.addressed(request), deadline, Box::new(on_reply));
        if change == Change::Unregister { posted.at_once() } else { posted }
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.asking == other.asking
    }
}

/// What a reply means, if it fits the request.
fn or_invalid<T>(meaning: Option<Result<T, Failure>>, server: &Multiplexer) -> Result<T, Failure> {
    meaning.unwrap_or_else(|| Err(server.factory.invalid_reply()))
}
