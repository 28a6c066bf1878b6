//! Holds on many nodes cared for by one thread: each node's over a connection of its own, so that
//! none waits for another.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::cluster::HOPS;
use crate::store::cluster::link::NodeLink;
use crate::store::cluster::node::Target;
use crate::store::cluster::slot::slot_of;
use crate::store::cluster::topology::{Topology, uncovered};
use crate::store::job::{Job, JobOutcome, JobRunner};
use crate::store::keys::Keys;

/// So long one node's replies are waited for before another's are looked at.
const SLICE: Duration = Duration::from_millis(1);

/// The background connections of one thread to the nodes of a cluster.
#[derive(Debug)]
pub(super) struct ClusterJobs {
    topology: Arc<Topology>,
    keys: Keys,
    connect_timeout: Duration,
    links: Vec<NodeLink>,
    /// What was sent, by a number of our own: the caller's need not be unique.
    in_flight: HashMap<u64, RoutedJob>,
    sent: u64,
}

/// A task and where it is.
#[derive(Debug)]
struct RoutedJob {
    task: Job,
    slot: usize,
    target: Target,
    hops: u32,
}

impl ClusterJobs {
    pub(super) fn new(topology: Arc<Topology>, keys: Keys, connect_timeout: Duration) -> Self {
        let (links, in_flight) = (Vec::new(), HashMap::new());
        Self { topology, keys, connect_timeout, links, in_flight, sent: 0 }
    }

    /// Sends tasks to where they belong, and deals with what comes of it at once.
    fn dispatch(&mut self, mut errands: Vec<RoutedJob>, done: &mut dyn FnMut(u64, JobOutcome)) {
        while !errands.is_empty() {
            let mut outcomes = Vec::new();
            for (target, tasks) in self.sort(errands) {
                self.link(&target).send(tasks, &mut |id, outcome| outcomes.push((id, outcome)));
            }
            errands = self.settle(outcomes, done);
        }
    }

    /// Gives errands their numbers, and puts together those with the same target.
    fn sort(&mut self, errands: Vec<RoutedJob>) -> Vec<(Target, Vec<Job>)> {
        let mut batches: Vec<(Target, Vec<Job>)> = Vec::new();
        for errand in errands {
            self.sent += 1;
            let task = Job { id: self.sent, ..errand.task.clone() };
            let batch = batches.iter_mut().find(|(target, _)| *target == errand.target);
            match batch {
                Some((_, tasks)) => tasks.push(task),
                None => batches.push((errand.target.clone(), vec![task])),
            }
            self.in_flight.insert(self.sent, errand);
        }
        batches
    }

    fn link(&mut self, target: &Target) -> &mut NodeLink {
        let place = self.links.iter().position(|link| link.target == *target);
        let place = place.unwrap_or_else(|| {
            // Nodes come and go.
            self.links.retain(NodeLink::is_busy);
            self.links.push(NodeLink::new(target.clone(), self.connect_timeout));
            self.links.len() - 1
        });
        &mut self.links[place]
    }

    /// Reports outcomes, and returns what is to be sent elsewhere.
    fn settle(
        &mut self,
        outcomes: Vec<(u64, JobOutcome)>,
        done: &mut dyn FnMut(u64, JobOutcome),
    ) -> Vec<RoutedJob> {
        let mut again = Vec::new();
        for (id, outcome) in outcomes {
            let Some(mut errand) = self.in_flight.remove(&id) else { continue };
            let node = &errand.target.node;
            match &outcome {
                Ok(_) => node.trust(),
                Err(failure) => {
                    let target = self.topology.redirected(failure, errand.slot, node);
                    if let Some(target) = target.filter(|_| errand.hops < HOPS) {
                        (errand.target, errand.hops) = (target, errand.hops + 1);
                        again.push(errand);
                        continue;
                    }
                    self.topology.take_in(failure, node);
                }
            }
            done(errand.task.id, outcome);
        }
        again
    }
}

impl JobRunner for ClusterJobs {
    fn send(&mut self, tasks: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        let mut errands = Vec::with_capacity(tasks.len());
        for task in tasks {
            let slot = slot_of(&self.keys.lock(&task.hold.name));
            if let Some(target) = self.topology.owner(slot).map(Target::of) {
                errands.push(RoutedJob { task, slot, target, hops: 0 });
            } else {
                self.topology.learn();
                done(task.id, Err(uncovered()));
            }
        }
        self.dispatch(errands, done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        while self.links.iter().any(NodeLink::is_busy) {
            let mut outcomes = Vec::new();
            for link in self.links.iter_mut().filter(|link| link.is_busy()) {
                let end = deadline.min(Instant::now() + SLICE);
                link.collect(end, &mut |id, outcome| outcomes.push((id, outcome)));
            }
            let again = self.settle(outcomes, done);
            self.dispatch(again, done);
            if Instant::now() >= deadline {
                return;
            }
        }
    }

    fn abandon(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        for mut link in mem::take(&mut self.links) {
            link.abandon(&mut |id, outcome| {
                if let Some(errand) = self.in_flight.remove(&id) {
                    done(errand.task.id, outcome);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use crate::clock::end_of;
    use crate::config::Config;
    use crate::net::endpoint::Endpoint;
    use crate::net::server::ServerFactory;
    use crate::store::hold::HoldId;
    use crate::store::job::Action;
    use crate::store::request::HoldReply;
    use crate::store::tests::process::Server;

    const AGES: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_secs(5);

    fn task(id: u64, name: &str, time: Duration) -> Job {
        let hold = HoldId { name: Arc::from(name), client: Arc::from("me"), nonce: id };
        Job { id, hold, action: Action::Release, deadline: end_of(time) }
    }

    /// Two nodes, of which the second accepts connections and says nothing.
    #[test]
    fn a_node_that_lets_nobody_in_holds_up_nobody_else() {
        let server = Server::redis();
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        // With a login, to connect is to wait for a reply.
        let urls = [server.url(), format!("redis://:sesame@127.0.0.1:{port}/")];
        let config = Config { connect_timeout: AGES, ..Config::default() };
        let seed = |url: &String| Endpoint::parse(url, &config).expect("a good URL");
        let seeds = urls.iter().map(seed).collect();
        let topology = Topology::new(seeds, &config, &ServerFactory::new(&config));
        topology.place(slot_of("good"), 0);
        topology.place(slot_of("silent"), 1);

        let mut jobs = ClusterJobs::new(Arc::new(topology), Keys::new(""), AGES);
        let mut outcomes = Vec::new();
        let tasks = vec![task(1, "silent", AGES), task(2, "good", AGES), task(3, "silent", SOON)];
        let start = Instant::now();
        jobs.send(tasks, &mut |id, outcome| outcomes.push((id, outcome)));
        while outcomes.is_empty() {
            jobs.collect(end_of(SOON / 5), &mut |id, outcome| outcomes.push((id, outcome)));
            assert!(start.elapsed() < SOON, "no outcome of the good node's task");
        }
        assert!(matches!(outcomes[..], [(2, Ok(HoldReply::Gone))]), "{outcomes:?}");

        jobs.collect(start + SOON * 3 / 2, &mut |id, outcome| outcomes.push((id, outcome)));
        assert!(matches!(outcomes[1..], [(3, Err(_))]), "it has a time of its own: {outcomes:?}");
        jobs.abandon(&mut |id, outcome| outcomes.push((id, outcome)));
        assert!(matches!(outcomes[2..], [(1, Err(_))]), "each task has an outcome: {outcomes:?}");
    }
}
