//! Background jobs over connections that one thread keeps.
//!
//! Renewals that must reach replicas or disks have connections of their own, which are blocked
//! until that is confirmed: no clean-up waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::net::durability::Demand;
use crate::net::socket::PollFd;
use crate::store::background::connection::{Node, sleep};
use crate::store::background::node_jobs::{JobSettings, NodeJobs, Replies};
use crate::store::background::opening::Opening;
use crate::store::commands::Commands;
use crate::store::job::{Job, JobOutcome, JobRunner};
use crate::store::request::HoldReply;

/// Where jobs are sent, and what the replies amount to.
pub(crate) trait JobPolicy: fmt::Debug + Send {
    type Node: Node;

    /// What is known of a job that has no outcome yet.
    type Progress: fmt::Debug + Send + 'static;

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
    nodes: Vec<NodeJobs<P::Node, P::Progress>>,
    /// How many jobs have no outcome yet.
    undecided: usize,
}

/// A job that was sent. All nodes that it was sent to share it.
#[derive(Debug)]
pub(super) struct SentJob<T> {
    pub(super) job: Job,
    /// `None` since the job has an outcome.
    progress: Mutex<Option<T>>,
}

/// Jobs by the node that they are to be sent to, and by what must be met before they count.
type Batches<N, T> = Vec<(N, Option<Demand>, Vec<Arc<SentJob<T>>>)>;

impl<P: JobPolicy> BackgroundJobs<P> {
    /// Sends nothing yet. A connection that is silent for `io_timeout` is given up.
    pub(crate) fn new(
        policy: P,
        commands: Commands,
        demand: Option<Demand>,
        io_timeout: Duration,
    ) -> Self {
        let settings = JobSettings { commands, io_timeout };
        Self { policy, settings, demand, nodes: Vec::new(), undecided: 0 }
    }

    /// Sends jobs, and again those that a node has redirected at once.
    fn dispatch(
        &mut self,
        mut batches: Batches<P::Node, P::Progress>,
        done: &mut dyn FnMut(u64, JobOutcome),
    ) {
        while !batches.is_empty() {
            let mut again = Batches::new();
            for (node, demand, jobs) in batches {
                let urgent = self.is_urgent(demand.as_ref());
                let place = self.place_of(node, demand);
                let mut replies = Replies::new();
                self.nodes[place].send(jobs, &self.settings, urgent, &mut replies);
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
        let mut nodes = self.nodes.iter();
        let place = nodes.position(|known| known.node().is(&node) && known.is_for(demand.as_ref()));
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
        replies: Replies<P::Progress>,
        again: &mut Batches<P::Node, P::Progress>,
        done: &mut dyn FnMut(u64, JobOutcome),
    ) {
        for (sent, reply) in replies {
            let mut progress = sent.progress.lock();
            let Some(known) = progress.as_mut() else { continue };
            match self.policy.decide(&sent.job, known, self.nodes[place].node(), reply) {
                Decision::Done(outcome) => {
                    *progress = None;
                    self.undecided -= 1;
                    done(sent.job.id, outcome);
                }
                Decision::SendTo(node) => add(again, node, self.demand, sent.clone()),
                Decision::Undecided => {}
            }
        }
    }

    /// Collects what has come from all nodes. Returns when there will be more to do even if nothing
    /// comes.
    fn collect_now(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) -> Option<Instant> {
        let (mut next, mut again) = (None::<Instant>, Batches::new());
        for place in 0..self.nodes.len() {
            let mut replies = Replies::new();
            let then = self.nodes[place].collect(&self.settings, &mut replies);
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
                    let sent = Arc::new(SentJob { job, progress: Mutex::new(Some(progress)) });
                    self.undecided += 1;
                    for node in nodes {
                        add(&mut batches, node, self.demand, sent.clone());
                    }
                }
                Err(failure) => done(job.id, Err(failure)),
            }
        }
        self.dispatch(batches, done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            let next = self.collect_now(done);
            if self.undecided == 0 || Instant::now() >= deadline {
                return;
            }
            self.sleep(next.map_or(deadline, |next| next.min(deadline)));
        }
    }

    fn abandon(&mut self) {
        self.undecided = 0;
        self.nodes.clear();
    }
}

/// Adds a job to the batch that it belongs to.
fn add<N: Node, T>(
    batches: &mut Batches<N, T>,
    node: N,
    demand: Option<Demand>,
    sent: Arc<SentJob<T>>,
) {
    let demand = demand.filter(|_| sent.job.change.is_durable());
    let same = |(known, other, _): &&mut (N, Option<Demand>, _)| {
        known.is(&node) && other.is_some() == demand.is_some()
    };
    match batches.iter_mut().find(same) {
        Some((_, _, jobs)) => jobs.push(sent),
        None => batches.push((node, demand, vec![sent])),
    }
}
