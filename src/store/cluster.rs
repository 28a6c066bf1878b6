//! Locks on a Redis Cluster: each on the node that serves the hash slot of its name.
//!
//! All keys of a name are in one slot, so every request is one node's, and a [`Single`] per node
//! does what it does for a server that stands alone. Here is decided which, and where to go when
//! the node sends us elsewhere. The `redis` crate's own cluster client is not used, because it sends
//! requests again by itself, sleeps beyond any deadline, and has no pub/sub.

mod link;
mod map;
mod node;
mod opening;
mod shares;
mod slot;
mod subscriptions;
mod topology;
mod upkeep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use scheduled_thread_pool::ScheduledThreadPool;

use crate::config::Config;
use crate::error::{Error, Result as ApiResult};
use crate::store::cluster::node::Target;
use crate::store::cluster::slot::slot_of;
use crate::store::cluster::subscriptions::Subscriptions;
use crate::store::cluster::topology::Topology;
use crate::store::cluster::upkeep::ClusterUpkeep;
use crate::store::endpoint::Endpoint;
use crate::store::failure::Failure;
use crate::store::keys::Keys;
use crate::store::single::Single;
use crate::store::{
    Answer, Bid, Handover, HoldId, Holder, Queue, Recall, Standing, Store, Then, Upkeep, Wakeups,
};

/// A request that was sent elsewhere more often than this has met nodes that disagree for now.
const HOPS: u32 = 5;

/// A cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    topology: Arc<Topology>,
    keys: Keys,
    connect_timeout: Duration,
}

/// Understands the URLs of nodes to begin with.
pub(crate) fn parse_seeds(urls: &[&str], config: &Config) -> ApiResult<Vec<Endpoint>> {
    let seeds = Endpoint::parse_all("seeds", urls, config)?;
    for seed in &seeds {
        if seed.host().is_none() {
            return Err(Error::invalid("seeds", "must be reached over TCP"));
        }
        if seed.database() != 0 {
            return Err(Error::invalid("seeds", "must not have a database number other than 0"));
        }
    }
    Ok(seeds)
}

impl Cluster {
    /// Sends nothing yet.
    pub(crate) fn new(
        seeds: Vec<Endpoint>,
        config: &Config,
        threads: &Arc<ScheduledThreadPool>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            topology: Arc::new(Topology::new(seeds, config, threads)?),
            keys: Keys::new(&config.prefix),
            connect_timeout: config.connect_timeout,
        })
    }

    /// Learns who serves which slots, which every slot must be.
    pub(crate) fn explore(&self) -> Result<(), Failure> {
        self.topology.ask_around()
    }

    /// Has a request answered by the node that serves the lock, wherever that is.
    fn route<T>(
        &self,
        name: &str,
        until: Instant,
        ask: impl FnMut(&Single) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let slot = self.slot(name);
        let target = self.topology.target(slot, until)?;
        self.route_from(target, slot, ask)
    }

    /// As `route`, beginning at one node.
    fn route_from<T>(
        &self,
        mut target: Target,
        slot: usize,
        mut ask: impl FnMut(&Single) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut hop = 0;
        loop {
            let failure = match ask(target.store()) {
                Ok(answer) => {
                    target.node.trust();
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            match self.topology.redirected(&failure, slot, &target.node) {
                Some(next) if hop < HOPS => target = next,
                _ => {
                    self.topology.take_in(&failure, &target.node);
                    return Err(self.topology.verdict(failure));
                }
            }
            hop += 1;
        }
    }

    /// As `route_from`, for a request that the first node has got, and whose answer another thread
    /// may wait for.
    fn answer_from<T: 'static>(
        &self,
        target: Target,
        slot: usize,
        first: Answer<T>,
        ask: impl Fn(&Single) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<T> {
        let (cluster, mut first) = (self.clone(), Some(first));
        Box::new(move || {
            cluster.route_from(target, slot, |node| match first.take() {
                Some(answer) => answer(),
                None => ask(node),
            })
        })
    }

    fn slot(&self, name: &str) -> usize {
        slot_of(&self.keys.lock(name))
    }
}

impl Store for Cluster {
    fn acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Result<Bid, Failure> {
        self.route(&hold.name, until, |node| node.acquire(hold, lease, queue, until))
    }

    /// A node that is not known has to be looked for, which takes time.
    fn begin_acquire(
        &self,
        hold: &HoldId,
        lease: Duration,
        queue: Queue,
        until: Instant,
    ) -> Option<Answer<Bid>> {
        let slot = self.slot(&hold.name);
        let target = Target::of(self.topology.owner(slot)?);
        let first = target.store().begin_acquire(hold, lease, queue, until)?;
        let hold = hold.clone();
        let again = move |node: &Single| node.acquire(&hold, lease, queue, until);
        Some(self.answer_from(target, slot, first, again))
    }

    fn nest(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.route(&hold.name, until, |node| node.nest(hold, depth, lease, until))
    }

    fn deepen(
        &self,
        hold: &HoldId,
        depth: u32,
        lease: Duration,
        until: Instant,
    ) -> Result<Standing, Failure> {
        self.route(&hold.name, until, |node| node.deepen(hold, depth, lease, until))
    }

    fn release(&self, hold: &HoldId, until: Instant) -> Result<Standing, Failure> {
        self.route(&hold.name, until, |node| node.release(hold, until))
    }

    fn post_release(&self, hold: &HoldId, until: Instant, then: Then<Standing>) -> Option<Recall> {
        let target = Target::of(self.topology.owner(self.slot(&hold.name))?);
        let (topology, node) = (self.topology.clone(), target.node.clone());
        let read = Box::new(move |answer: Result<Standing, Failure>| {
            then(answer.map_err(|failure| {
                topology.take_in(&failure, &node);
                topology.verdict(failure)
            }));
        });
        target.store().post_release(hold, until, read)
    }

    fn transfer(
        &self,
        from: &HoldId,
        to: &HoldId,
        lease: Duration,
        yields: bool,
        until: Instant,
    ) -> Answer<Handover> {
        let (cluster, from, to) = (self.clone(), from.clone(), to.clone());
        let slot = self.slot(&to.name);
        let transfer = move |node: &Single| node.transfer(&from, &to, lease, yields, until);
        let Some(owner) = self.topology.owner(slot) else {
            return Box::new(move || {
                let target = cluster.topology.target(slot, until)?;
                cluster.route_from(target, slot, |node| transfer(node)())
            });
        };
        let target = Target::of(owner);
        let first = transfer(target.store());
        self.answer_from(target, slot, first, move |node| transfer(node)())
    }

    fn inspect(&self, name: &str, until: Instant) -> Result<Option<Holder>, Failure> {
        self.route(name, until, |node| node.inspect(name, until))
    }

    fn force(&self, name: &str, until: Instant) -> Result<bool, Failure> {
        self.route(name, until, |node| node.force(name, until))
    }

    fn leave(&self, name: &str, client: &str, until: Instant) -> Result<(), Failure> {
        self.route(name, until, |node| node.leave(name, client, until))
    }

    fn wakeups(&self, client: &str) -> Option<Box<dyn Wakeups>> {
        Some(Box::new(Subscriptions::new(self.topology.clone(), self.keys.clone(), client)))
    }

    fn upkeep(&self) -> Box<dyn Upkeep> {
        let (topology, keys) = (self.topology.clone(), self.keys.clone());
        Box::new(ClusterUpkeep::new(topology, keys, self.connect_timeout))
    }
}
