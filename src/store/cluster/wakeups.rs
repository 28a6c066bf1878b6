//! Wake-ups in a cluster, from every master.
//!
//! A message reaches every node of a cluster, but to `wake.lua` a client is dead unless it listens
//! at the node where the script runs. So a client listens at all masters. It does so twice where
//! servers know sharded channels, whose messages do not go to other nodes: on its own channel, and
//! on a sharded one in the lowest slot of each master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::store::background::Wake;
use crate::store::background::connection::Pauses;
use crate::store::background::wakeups::WakeupPolicy;
use crate::store::cluster::node::Target;
use crate::store::cluster::slots::slot_of;
use crate::store::cluster::topology::Topology;
use crate::store::keys::Keys;

/// The pause before listening again at a node where that has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// How often to look for other masters.
const MASTERS_LOOK: Duration = Duration::from_secs(1);

/// Messages from every master.
#[derive(Debug)]
pub(super) struct WakeupsOfMasters {
    topology: Arc<Topology>,
    keys: Keys,
    /// Of the masters that were named last; `None` before the first time.
    version: Option<u64>,
}

impl WakeupsOfMasters {
    pub(super) fn new(topology: Arc<Topology>, keys: Keys) -> Self {
        Self { topology, keys, version: None }
    }
}

impl WakeupPolicy for WakeupsOfMasters {
    type Node = Target;

    fn pauses(&self) -> Pauses {
        Pauses { after_failure: PAUSE, after_rejection: PAUSE }
    }

    fn changed_nodes(&mut self) -> Option<Vec<Target>> {
        if self.version == Some(self.topology.version()) {
            return None;
        }
        let (masters, version) = self.topology.masters();
        self.version = Some(version);
        Some(masters.into_iter().map(Target::of).collect())
    }

    fn is_home(&self, node: &Target, name: &str) -> bool {
        let owner = self.topology.owner(slot_of(&self.keys.lock(name)));
        owner.is_none_or(|owner| Arc::ptr_eq(&owner, &node.node))
    }

    fn shard_tag(&self, node: &Target) -> Option<Arc<str>> {
        node.node.shard_tag()
    }

    /// A message comes by way of every node, and counts only from the one that serves its slot.
    fn receive(&mut self, from: &Target, wake: Wake) -> Option<Wake> {
        let Wake::Lock(name) = &wake else { return Some(wake) };
        self.is_home(from, name).then_some(wake)
    }

    fn next_look(&self) -> Option<Instant> {
        Some(Instant::now() + MASTERS_LOOK)
    }

    fn fail(&mut self, node: &Target, failure: &Failure) {
        if failure.code == "MOVED" {
            // A channel of Redisson's, which is where its lock is.
            self.topology.learn();
        }
        self.topology.note_failure(failure, &node.node);
    }
}
