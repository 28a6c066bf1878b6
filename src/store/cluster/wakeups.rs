//! The messages to one client, from every master.
//!
//! A message reaches every node of a cluster, but `wake.lua` takes a client for dead that nobody
//! listens for at the node where it runs. So a client listens at all of them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::{Failure, FailureKind};
use crate::net::interrupter::Interrupter;
use crate::net::poll::poll_readable;
use crate::store::cluster::node::ClusterNode;
use crate::store::cluster::opening::Opening;
use crate::store::cluster::slot::slot_of;
use crate::store::cluster::topology::Topology;
use crate::store::keys::Keys;
use crate::store::subscription::Subscription;
use crate::store::wake::{Wake, Wakeups};

/// A node that could not be listened at is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);

/// How often it is looked whether there are other masters.
const MASTERS_LOOK: Duration = Duration::from_secs(1);

/// How often it is looked whether a connection was opened.
const OPENING_LOOK: Duration = Duration::from_millis(5);

/// What has arrived is read even if it is not complete yet.
const LOOK: Duration = Duration::from_millis(1);

/// One client's channel at all masters.
#[derive(Debug)]
pub(super) struct ClusterWakeups {
    topology: Arc<Topology>,
    keys: Keys,
    client: String,
    /// Of the topology that `members` are from; `None` before the first.
    version: Option<u64>,
    members: Vec<NodeSubscription>,
    interrupter: Interrupter,
}

#[derive(Debug)]
struct NodeSubscription {
    node: Arc<ClusterNode>,
    state: SubscriptionState,
}

#[derive(Debug)]
enum SubscriptionState {
    Failed {
        again: Instant,
    },
    Open {
        subscription: Subscription,
        /// How long to look for a message; `None` if there is none.
        look: Option<Duration>,
    },
    Opening(Opening<Subscription>),
}

impl ClusterWakeups {
    pub(super) fn new(topology: Arc<Topology>, keys: Keys, client: &str) -> Self {
        Self {
            topology,
            keys,
            client: client.into(),
            version: None,
            members: Vec::new(),
            interrupter: Interrupter::new(),
        }
    }

    fn wait(&mut self, deadline: Instant) -> Result<Option<Wake>, Failure> {
        loop {
            self.check()?;
            self.follow_masters();
            self.follow_openings()?;
            if let Some(wake) = self.read() {
                return Ok(Some(wake));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.sleep(deadline)?;
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.interrupter.is_interrupted() { Err(failure("interrupted")) } else { Ok(()) }
    }

    /// Listens at every master, and nowhere else.
    fn follow_masters(&mut self) {
        if self.version == Some(self.topology.version()) {
            return;
        }
        let (masters, version) = self.topology.masters();
        self.version = Some(version);
        self.members.retain(|member| masters.iter().any(|node| Arc::ptr_eq(node, &member.node)));
        for node in masters {
            if !self.members.iter().any(|member| Arc::ptr_eq(&node, &member.node)) {
                let state = open(&node, &self.client);
                self.members.push(NodeSubscription { node, state });
            }
        }
    }

    /// Takes in which connections were opened, and opens those that have to be. A failure if there
    /// is none.
    fn follow_openings(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let mut last = None;
        for NodeSubscription { node, state } in &mut self.members {
            let stale = match state {
                SubscriptionState::Failed { again } => *again <= now,
                SubscriptionState::Open { subscription, .. } => {
                    !subscription.connection().is_open()
                }
                SubscriptionState::Opening(_) => false,
            };
            if stale {
                *state = open(node, &self.client);
            }
            if let SubscriptionState::Opening(opening) = state
                && let Some(outcome) = opening.wait(now)
            {
                *state = match outcome {
                    Ok(subscription) => SubscriptionState::Open { subscription, look: None },
                    Err(failure) => {
                        self.topology.take_in(&failure, node);
                        last = Some(failure);
                        SubscriptionState::Failed { again: now + RETRY }
                    }
                };
            }
        }
        if self
            .members
            .iter()
            .all(|member| matches!(member.state, SubscriptionState::Failed { .. }))
        {
            return Err(last.unwrap_or_else(|| failure("no master can be listened at")));
        }
        Ok(())
    }

    /// Reads the next message that has come.
    fn read(&mut self) -> Option<Wake> {
        for NodeSubscription { node, state } in &mut self.members {
            while let SubscriptionState::Open { subscription, look } = state {
                let now = Instant::now();
                if look.is_none() && subscription.expected() > now {
                    break;
                }
                match subscription.step(now + look.unwrap_or_default()) {
                    Ok(Some(wake)) => {
                        // More of them may have come with it.
                        *look = Some(Duration::ZERO);
                        if is_from(node, &wake, &self.keys, &self.topology) {
                            return Some(wake);
                        }
                    }
                    Ok(None) => *look = None,
                    Err(failure) => {
                        log::debug!(target: "leasehold", "no wake-ups from {}: {}", failure.server, failure.source);
                        self.topology.take_in(&failure, node);
                        *state = SubscriptionState::Failed { again: now + RETRY };
                    }
                }
            }
        }
        None
    }

    /// Sleeps until a message comes, another thread interrupts, or there is something to look after.
    fn sleep(&mut self, deadline: Instant) -> Result<(), Failure> {
        let now = Instant::now();
        let mut end = deadline.min(now + MASTERS_LOOK);
        let (mut sockets, mut places) = (Vec::new(), Vec::new());
        for (place, member) in self.members.iter().enumerate() {
            end = end.min(match &member.state {
                SubscriptionState::Failed { again } => *again,
                SubscriptionState::Open { subscription, .. } => subscription.expected(),
                SubscriptionState::Opening(_) => now + OPENING_LOOK,
            });
            if let SubscriptionState::Open { subscription, .. } = &member.state
                && let Some(fd) = subscription.connection().as_fd()
            {
                // One is enough: it is to end the wait at all of them.
                self.interrupter.guard(subscription.connection().plug());
                sockets.push(fd);
                places.push(place);
            }
        }
        self.check()?;
        for ready in poll_readable(&sockets, Some(end)) {
            if let SubscriptionState::Open { look, .. } = &mut self.members[places[ready]].state {
                *look = Some(LOOK);
            }
        }
        Ok(())
    }
}

impl Wakeups for ClusterWakeups {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        let outcome = self.wait(deadline);
        if outcome.is_err() {
            self.members.clear();
            self.version = None;
        }
        outcome.transpose()
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

fn open(node: &Arc<ClusterNode>, client: &str) -> SubscriptionState {
    let mut subscription = node.store().subscription(client);
    SubscriptionState::Opening(Opening::begin(node.label(), move || {
        subscription.open().map(|()| subscription)
    }))
}

/// Tells whether a message is the node's own: each comes by way of every other node too.
fn is_from(node: &Arc<ClusterNode>, wake: &Wake, keys: &Keys, topology: &Topology) -> bool {
    let Wake::Lock(name) = wake else { return true };
    let owner = topology.owner(slot_of(&keys.lock(name)));
    owner.is_none_or(|owner| Arc::ptr_eq(&owner, node))
}

fn failure(why: &'static str) -> Failure {
    let error = io::Error::new(io::ErrorKind::ConnectionAborted, why);
    Failure::io(FailureKind::Unreachable, &Arc::from("the cluster"), error)
}
