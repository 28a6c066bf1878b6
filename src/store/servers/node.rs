//! One server, alone or in a cluster: requests about locks, and questions about the nodes that have
//! them.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use redis::Value;

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::net::connection::Connection;
use crate::net::demand::Demand;
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::{Exchange, SendWait};
use crate::net::multiplexer::Multiplexer;
use crate::net::packed::Request;
use crate::store::background::peer::Peer;
use crate::store::commands::{Commands, Scope};
use crate::store::keys::{SLOTS, slot_of, tag_of};
use crate::store::request::{Acquire, AcquireReply, Ahead, HoldReply, HoldRequest, PostedChange};
use crate::store::scripts::ScriptReply;

/// After one acquire has found its lock held, how many more are expected to do so.
const CONTENDED: u32 = 64;

/// How many keys are read, each in a different slot, to find out whether other nodes have some.
const KEYS_READ: u32 = 20;

/// One server.
pub(super) struct Node {
    pub(super) server: Arc<Multiplexer>,
    pub(super) commands: Commands,
    /// The durability that new holds and levels must reach.
    demand: Option<Demand>,
    /// How many of the next durable acquires are expected to find their locks held.
    contended: AtomicU32,
    /// Whether the last failure may mean that another node of the cluster now serves the slots of
    /// this one.
    doubted: AtomicBool,
    /// Whether a thread is asking which node serves which slots.
    pub(super) is_asked: AtomicBool,
    /// When it was last named, by the map of the cluster or by a redirection.
    pub(super) last_named: Mutex<Instant>,
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
            is_asked: AtomicBool::new(false),
            last_named: Mutex::new(clock::now()),
        }
    }

    /// Returns the address as shown to users.
    pub(super) fn label(&self) -> &Arc<str> {
        &self.server.factory.endpoint.label
    }

    /// Asks which node serves which slots.
    pub(super) fn shares(&self, deadline: Instant) -> Result<Vec<Share>, Failure> {
        let question = redis::cmd("CLUSTER").arg("SLOTS").take();
        let reply = self.server.exchange(Request::command(&question), None, deadline);
        let reply = reply.inspect_err(|failure| {
            if is_doubtful(failure) {
                self.doubt();
            }
        })?;
        let factory = &self.server.factory;
        let own_host = factory.endpoint.host().unwrap_or_default();
        shares(&reply, own_host)
            .ok_or_else(|| Failure { kind: FailureKind::Unreachable, ..factory.invalid_reply() })
    }

    /// Returns `true` if this is a node of a cluster and other nodes have some of the names. Reads
    /// some keys, because locks do not need the right to ask about the cluster.
    pub(super) fn has_others(&self, deadline: Instant) -> bool {
        let reads = (0..KEYS_READ).map(|number| {
            let key = self.commands.keys.lock(&number.to_string()).into_owned();
            Request::command(&redis::cmd("GET").arg(key).take())
        });
        let replies = self.server.exchange_all(reads, None, deadline);
        replies.iter().any(|reply| matches!(reply, Err(failure) if failure.code == "MOVED"))
    }

    /// Notes the lowest slot that the node serves. The sharded channels over which it wakes clients
    /// have a hash tag in that slot. All clients that know the slots choose the same tag.
    pub(super) fn serve_from(&self, slot: usize) {
        let known = self.commands.shard_tag();
        if known.is_empty() || slot_of(&known) != slot {
            *self.commands.shard_tag.write() = tag_of(slot).into();
        }
    }

    /// Returns `true` if another node may now serve its slots.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    pub(super) fn trust(&self) {
        // Read first, because a write would take the cache line from other threads.
        if self.is_doubted() {
            self.doubted.store(false, Ordering::Relaxed);
        }
    }
}

/// A node and how to address it.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) node: Arc<Node>,
    /// Whether requests are preceded by ASKING, because the slot is still moving to the node.
    pub(super) asking: bool,
}

impl Target {
    pub(super) fn of(node: Arc<Node>) -> Self {
        Self { node, asking: false }
    }

    /// Sends a request and waits for the reply. With a demand, a reply that reports a change counts
    /// only once the change is that durable.
    pub(super) fn execute<T: ScriptReply>(
        &self,
        request: Request,
        demand: Option<(Demand, SendWait)>,
        deadline: Instant,
    ) -> Result<T, Failure> {
        let server = &self.node.server;
        T::decode(server.exchange(self.addressed(request), demand, deadline), &server.factory)
    }

    pub(super) fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let Node { commands, demand, contended, .. } = &*self.node;
        let acquire = commands.acquire(request);
        let Some(demand) = *demand else { return self.execute(acquire, None, request.deadline) };
        // WAIT behind a script that finds the lock held would block the connection for no purpose.
        let expected = contended.load(Ordering::Relaxed);
        // Along with the script, WAIT saves a round trip, which pays if the lock is likely free.
        let send_wait = if expected > 0 { SendWait::After } else { SendWait::Along };
        let reply = self.execute(acquire, Some((demand, send_wait)), request.deadline);
        match reply {
            Ok(AcquireReply::Held { .. }) => contended.store(CONTENDED, Ordering::Relaxed),
            // Stored, not subtracted: threads that get their replies at the same time count as one.
            _ if expected > 0 => contended.store(expected - 1, Ordering::Relaxed),
            _ => {}
        }
        reply
    }

    /// Like `acquire`, for several groups of locks in one round trip, unless they must be durable:
    /// then each group takes its own.
    pub(super) fn acquire_together(
        &self,
        requests: &[Acquire<'_>],
    ) -> Vec<Result<AcquireReply, Failure>> {
        let Node { server, commands, demand, .. } = &*self.node;
        let deadline = requests.iter().map(|request| request.deadline).max();
        let Some(deadline) = deadline.filter(|_| demand.is_none() && requests.len() > 1) else {
            return requests.iter().map(|request| self.acquire(*request)).collect();
        };
        let acquires = requests.iter().map(|request| self.addressed(commands.acquire(*request)));
        let replies = server.exchange_all(acquires, None, deadline);
        replies.into_iter().map(|reply| AcquireReply::decode(reply, &server.factory)).collect()
    }

    /// Like `acquire`, for another thread. A durable request is not sent, because it would block a
    /// connection that others use.
    pub(super) fn acquire_ahead(&self, request: Acquire<'_>) -> Option<Ahead> {
        let Node { commands, server, demand: None, .. } = &*self.node else { return None };
        let acquire = self.addressed(commands.acquire(request));
        // Sent by the listener, which must not wait. The woken thread reads the reply.
        let slot = server.send_ahead(acquire, request.deadline)?;
        let server = server.clone();
        Some(Ahead::new(move || AcquireReply::decode(server.reply(&slot), &server.factory)))
    }

    pub(super) fn change(
        &self,
        scope: Scope,
        request: HoldRequest<'_>,
    ) -> Result<HoldReply, Failure> {
        let HoldRequest { hold, change, deadline } = request;
        let demand = self.demand_of(&[request]);
        self.execute(self.node.commands.change_within(scope, hold, change), demand, deadline)
    }

    /// Executes requests about holds in one round trip.
    pub(super) fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        if let [request] = requests {
            return on_reply(0, self.change(Scope::All, *request));
        }
        let Some(deadline) = requests.iter().map(|request| request.deadline).max() else { return };
        let Node { server, commands, .. } = &*self.node;
        let changes = requests
            .iter()
            .map(|request| self.addressed(commands.change(request.hold, request.change)));
        let replies = server.exchange_all(changes, self.demand_of(requests), deadline);
        for (place, reply) in replies.into_iter().enumerate() {
            on_reply(place, HoldReply::decode(reply, &server.factory));
        }
    }

    fn demand_of(&self, requests: &[HoldRequest<'_>]) -> Option<(Demand, SendWait)> {
        let demand = self.node.demand?;
        if requests.iter().any(|request| request.change.is_durable()) {
            Some((demand, SendWait::Along))
        } else {
            None
        }
    }

    pub(super) fn post(&self, posts: Vec<PostedChange<'_>>) {
        let Node { server, commands, .. } = &*self.node;
        let exchanges = posts.into_iter().map(|PostedChange { request, write_by, on_reply }| {
            let HoldRequest { hold, change, deadline } = request;
            let request = commands.change(hold, change);
            let factory = server.factory.clone();
            let on_reply = Box::new(move |reply| on_reply(HoldReply::decode(reply, &factory)));
            let posted = Exchange::posted(self.addressed(request), deadline, on_reply);
            posted.written_by(write_by)
        });
        server.post(exchanges.collect());
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.asking == other.asking
    }
}

impl Peer for Target {
    fn factory(&self) -> &Arc<ConnectionFactory> {
        &self.node.server.factory
    }

    fn connect(
        &self,
        previous: Option<Connection>,
        deadline: Instant,
    ) -> Result<Connection, Failure> {
        let factory = self.factory();
        let mut connection = previous.unwrap_or_else(|| Connection::new(factory.clone()));
        // The open connection may lead to a master that has been replaced.
        if let Some(route) = &factory.route {
            factory.refresh(route, deadline);
        }
        connection.connect(end_of(factory.connect_timeout))?;
        Ok(connection)
    }

    fn addressed(&self, request: Request) -> Request {
        if self.asking { request.asking() } else { request }
    }
}

/// Returns `true` if this is a host. A node that does not know its own host says `?` or nothing.
pub(super) fn is_known(host: &str) -> bool {
    !matches!(host, "" | "?")
}

/// Returns `true` if a failure may mean that another node now serves the slot.
pub(super) fn is_doubtful(failure: &Failure) -> bool {
    !matches!(failure.kind, FailureKind::Rejected | FailureKind::WrongType)
}

/// Some slots, and the master that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) slots: RangeInclusive<usize>,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Parses the reply of a node to CLUSTER SLOTS. `own_host` stands in for a host that the node does
/// not know. `None` if the reply has another shape.
fn shares(reply: &Value, own_host: &str) -> Option<Vec<Share>> {
    let Value::Array(entries) = reply else { return None };
    entries.iter().map(|entry| share(entry, own_host)).collect()
}

/// Parses `[first slot, last slot, [host, port, …] of the master, replicas…]`.
fn share(entry: &Value, own_host: &str) -> Option<Share> {
    let Value::Array(parts) = entry else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    let first = usize::try_from(*first).ok()?;
    let last = usize::try_from(*last).ok()?;
    let host = match host {
        // A cluster can be configured to announce no hosts. Clients then use the host that they
        // already know.
        Value::Nil => "",
        Value::BulkString(bytes) => str::from_utf8(bytes).ok()?,
        _ => return None,
    };
    let port = u16::try_from(*port).ok()?;
    if first > last || last >= SLOTS {
        return None;
    }
    let host = if is_known(host) { host } else { own_host }.to_owned();
    Some(Share { slots: first..=last, host, port })
}

pub(super) fn covered(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.slots.clone().count()).sum()
}

/// The failure if no node is known to serve the slot.
pub(super) fn uncovered() -> Failure {
    unmapped("no node serves the hash slot")
}

/// The failure while the node that serves the slot is not known.
pub(super) fn unmapped(why: &'static str) -> Failure {
    let error = io::Error::new(io::ErrorKind::NotFound, why);
    let failure = Failure::io(FailureKind::Transient, &Arc::from("the cluster"), error);
    Failure { code: "CLUSTERDOWN".into(), ..failure }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{cases, values};

    proptest! {
        #![proptest_config(cases(4000))]

        #[test]
        fn whatever_a_node_replies_names_slots_that_exist_or_has_another_shape(
            reply in values(),
            first in any::<i64>(),
            last in -1..20_000_i64,
            host in values(),
            port in any::<i64>(),
        ) {
            let nearly_right = Value::Array(vec![entry(first % 20_000, last, host, port)]);
            for reply in [reply, nearly_right] {
                for share in shares(&reply, "here").unwrap_or_default() {
                    prop_assert!(share.slots.start() <= share.slots.end());
                    prop_assert!(*share.slots.end() < SLOTS);
                }
            }
        }
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"0a1b".to_vec());
        let node = Value::Array(vec![host, Value::Int(port), id, Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    fn text(host: &str) -> Value {
        Value::BulkString(host.into())
    }

    #[test]
    fn masters_and_their_slots_are_read() {
        let reply = Value::Array(vec![
            entry(0, 8000, text("10.0.0.1"), 7000),
            entry(8001, 16_382, text("?"), 7001),
            entry(16_383, 16_383, Value::Nil, 7002),
        ]);
        let shares = shares(&reply, "here").expect("a good reply");
        let host = str::to_owned;
        assert_eq!(shares[0], Share { slots: 0..=8000, host: host("10.0.0.1"), port: 7000 });
        assert_eq!(shares[1], Share { slots: 8001..=16_382, host: host("here"), port: 7001 });
        assert_eq!(shares[2], Share { slots: 16_383..=16_383, host: host("here"), port: 7002 });
        assert_eq!(covered(&shares), SLOTS);
    }

    #[test]
    fn replies_of_another_shape_are_refused() {
        let odd = [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(0, 16_384, text("host"), 7000)]),
            Value::Array(vec![entry(5, 4, text("host"), 7000)]),
            Value::Array(vec![entry(-1, 4, text("host"), 7000)]),
            Value::Array(vec![entry(0, 4, text("host"), 70_000)]),
            Value::Array(vec![entry(0, 4, Value::Int(1), 7000)]),
        ];
        for reply in odd {
            assert_eq!(shares(&reply, "here"), None, "{reply:?}");
        }
    }
}
