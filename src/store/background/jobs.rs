//! Background jobs over connections that one thread keeps.
//!
//! Renewals that must reach replicas or disks have connections of their own, which are blocked
//! until that is confirmed: no clean-up waits for it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::failure::Failure;
use crate::store::background::connection::{Node, sleep};
use crate::store::background::node_jobs::{JobSettings, NodeJobs};
use crate::store::background::opening::Opening;
use crate::store::commands::Commands;
use crate::store::durability::Demand;
use crate::store::job::{Job, JobOutcome, JobRunner};
use crate::store::request::HoldReply;

/// Where jobs are sent, and what the replies amount to.
pub(crate) trait JobPolicy: fmt::Debug + Send {
    type Node: Node;

    /// What is known of a job that has no outcome yet.
    type Progress: fmt::Debug + Send;

    /// Returns the nodes that a job is sent to first. Fails if none is known.
    fn route(&mut self, job: &Job) -> Result<(Vec<Self::Node>, Self::Progress), Failure>;

    /// Decides what comes of a job after one node's reply.
    fn decide(
        &mut self,
        job: &Job,
        progress: &mut Self::Progress,
        from: &Self::Node,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Self::Node>;

    /// How many nodes have to be connected: while there are fewer, all that are missing are tried
    /// without a pause.
    fn required(&self) -> usize {
        0
    }

    /// Returns `true` if jobs are likely to be sent to that node again, so that an idle connection
    /// to it is kept.
    fn keeps(&self, _: &Self::Node) -> bool {
        true
    }
}

/// What comes of a job after a reply.
#[derive(Debug)]
pub(crate) enum Decision<N> {
    Done(JobOutcome),
    /// Another node must be asked.
    SendTo(N),
    /// More replies are needed.
    Undecided,
}

/// The background jobs of one thread.
#[derive(Debug)]
pub(crate) struct BackgroundJobs<P: JobPolicy> {
    policy: P,
    settings: JobSettings,
    /// What must be met before a renewal counts.
    demand: Option<Demand>,
    nodes: Vec<NodeJobs<P::Node>>,
    /// The jobs without an outcome, by a number of this type: the caller's ids may repeat.
    undecided: HashMap<u64, Undecided<P::Progress>>,
    last: u64,
}

#[derive(Debug)]
struct Undecided<T> {
    job: Job,
    progress: T,
}

/// Jobs by the node that they are to be sent to, and by what must be met before they count.
type Batches<N> = Vec<(N, Option<Demand>, Vec<Job>)>;

impl<P: JobPolicy> BackgroundJobs<P> {
    /// Sends nothing yet. A connection that is silent for `io_timeout` is given up.
    pub(crate) fn new(
        policy: P,
        commands: Commands,
        demand: Option<Demand>,
        io_timeout: Duration,
    ) -> Self {
        let settings = JobSettings { commands, io_timeout };
        let (nodes, undecided) = (Vec::new(), HashMap::new());
        Self { policy, settings, demand, nodes, undecided, last: 0 }
    }

    /// Sends jobs, and again those that a node has redirected at once.
    fn dispatch(&mut self, mut batches: Batches<P::Node>, done: &mut dyn FnMut(u64, JobOutcome)) {
        while !batches.is_empty() {
            let mut again = Batches::new();
            for (node, demand, jobs) in batches {
                let urgent = self.is_urgent(demand.as_ref());
                let place = self.place_of(node, demand);
                let mut replies = Vec::new();
                let report = &mut |id, reply| replies.push((id, reply));
                self.nodes[place].send(jobs, &self.settings, urgent, report);
                self.decide(place, replies, &mut again, done);
            }
            batches = again;
        }
    }

    /// Returns `true` if too few nodes are connected for jobs that must meet that.
    fn is_urgent(&self, demand: Option<&Demand>) -> bool {
        let open = self.nodes.iter().filter(|node| node.is_open() && node.is_for(demand)).count();
        open < self.policy.required()
    }

    fn place_of(&mut self, node: P::Node, demand: Option<Demand>) -> usize {
        let same =
            |known: &NodeJobs<P::Node>| known.node().is(&node) && known.is_for(demand.as_ref());
        let place = self.nodes.iter().position(same);
        place.unwrap_or_else(|| {
            // Nodes of a cluster come and go.
            let policy = &self.policy;
            self.nodes.retain(|known| known.is_busy() || policy.keeps(known.node()));
            self.nodes.push(NodeJobs::new(node, demand));
            self.nodes.len() - 1
        })
    }

    /// Applies the policy to replies of one node: reports outcomes, and adds what is to be sent
    /// elsewhere to `again`.
    fn decide(
        &mut self,
        place: usize,
        replies: Vec<(u64, Result<HoldReply, Failure>)>,
        again: &mut Batches<P::Node>,
        done: &mut dyn FnMut(u64, JobOutcome),
    ) {
        for (number, reply) in replies {
            // A job that is decided already is not there any more.
            let Entry::Occupied(mut entry) = self.undecided.entry(number) else { continue };
            let Undecided { job, progress } = entry.get_mut();
            match self.policy.decide(job, progress, self.nodes[place].node(), reply) {
                Decision::Done(outcome) => done(entry.remove().job.id, outcome),
                Decision::SendTo(node) => {
                    add(again, node, self.demand, Job { id: number, ..job.clone() });
                }
                Decision::Undecided => {}
            }
        }
    }

    /// Collects what has come from all nodes. Returns when there will be more to do even if nothing
    /// comes.
    fn collect_now(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) -> Option<Instant> {
        let (mut next, mut again) = (None::<Instant>, Batches::new());
        for place in 0..self.nodes.len() {
            let mut replies = Vec::new();
            let report = &mut |id, reply| replies.push((id, reply));
            let then = self.nodes[place].collect(&self.settings, report);
            next = next.into_iter().chain(then).min();
            self.decide(place, replies, &mut again, done);
        }
        if again.is_empty() {
            return next;
        }
        self.dispatch(again, done);
        Some(Instant::now())
    }

    fn sleep(&self, deadline: Instant) {
        let mut sockets: Vec<PollFd<'_>> = self.nodes.iter().filter_map(NodeJobs::socket).collect();
        let openings: Vec<&Opening> = self.nodes.iter().filter_map(NodeJobs::opening).collect();
        sleep(&mut sockets, &openings, deadline);
    }
}

impl<P: JobPolicy> JobRunner for BackgroundJobs<P> {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        let mut batches = Batches::new();
        for job in jobs {
            match self.policy.route(&job) {
                Ok((nodes, progress)) => {
                    self.last += 1;
                    for node in nodes {
                        add(&mut batches, node, self.demand, Job { id: self.last, ..job.clone() });
                    }
                    self.undecided.insert(self.last, Undecided { job, progress });
                }
                Err(failure) => done(job.id, Err(failure)),
            }
        }
        self.dispatch(batches, done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            let next = self.collect_now(done);
            if self.undecided.is_empty() || Instant::now() >= deadline {
                return;
            }
            self.sleep(next.map_or(deadline, |next| next.min(deadline)));
        }
    }

    fn abandon(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        for place in 0..self.nodes.len() {
            let mut replies = Vec::new();
            self.nodes[place].abandon(&mut |id, reply| replies.push((id, reply)));
            // A connection that was given up redirects nothing.
            self.decide(place, replies, &mut Batches::new(), done);
        }
    }
}

/// Adds a job to the batch that it belongs to.
fn add<N: Node>(batches: &mut Batches<N>, node: N, demand: Option<Demand>, job: Job) {
    let demand = demand.filter(|_| job.change.is_durable());
    let same = |(known, other, _): &&mut (N, Option<Demand>, _)| {
        known.is(&node) && other.is_some() == demand.is_some()
    };
    match batches.iter_mut().find(same) {
        Some((_, _, jobs)) => jobs.push(job),
        None => batches.push((node, demand, vec![job])),
    }
}
