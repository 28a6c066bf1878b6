//! Background jobs over connections that one thread keeps.
//!
//! Renewals that must reach replicas or disks have connections of their own, which are blocked
//! until that is confirmed: no clean-up waits for it.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::base::shrink;
use crate::net::socket::PollFd;
use crate::store::background::node_jobs::{NodeJobs, Replies};
use crate::store::background::peer::{Peer, sleep};
use crate::store::background::{BackgroundSettings, Job, JobOutcome, JobRunner};
use crate::store::request::HoldReply;

/// Where jobs are sent, and what the replies amount to.
pub(crate) trait JobPolicy: fmt::Debug + Send {
    type Peer: Peer;

    /// What is known of a job that has no outcome yet.
    type Progress: fmt::Debug + Send;

    /// Returns the nodes that a job is sent to first. Fails if none is known.
    fn route(&mut self, job: &Job) -> Result<(Vec<Self::Peer>, Self::Progress), Failure>;

    /// Decides what comes of a job after one node's reply.
    fn decide(
        &mut self,
        job: &Job,
        progress: &mut Self::Progress,
        from: &Self::Peer,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Self::Peer>;

    /// How many nodes have to be connected: while there are fewer, all that are missing are tried
    /// without a pause.
    fn required(&self) -> usize {
        0
    }

    /// Returns `true` if jobs are likely to be sent to that node again, so that an idle connection
    /// to it is kept.
    fn keeps(&self, _: &Self::Peer) -> bool {
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
    settings: BackgroundSettings,
    nodes: Vec<NodeJobs<P::Peer>>,
    /// The jobs that have no outcome yet, by number. All nodes that one was sent to share it.
    undecided: HashMap<u64, (Job, P::Progress)>,
    last_number: u64,
}

impl<P: JobPolicy> BackgroundJobs<P> {
    /// Sends nothing yet.
    pub(crate) fn new(policy: P, settings: BackgroundSettings) -> Self {
        let (nodes, undecided) = (Vec::new(), HashMap::new());
        Self { policy, settings, nodes, undecided, last_number: 0 }
    }

    /// Adds a job to those that are sent next to a node.
    fn push(&mut self, node: P::Peer, number: u64, job: &Job) {
        let demand = self.settings.demand.filter(|_| job.change.is_durable());
        let mut known = self.nodes.iter();
        let is_its = |known: &NodeJobs<P::Peer>| {
            known.connection.peer == node && known.demand.is_some() == demand.is_some()
        };
        let place = known.position(is_its).unwrap_or_else(|| {
            self.nodes.push(NodeJobs::new(node, demand));
            self.nodes.len() - 1
        });
        let command = self.settings.commands.change(&job.hold, job.change);
        self.nodes[place].push(number, command, job.deadline);
    }

    /// Returns `true` if too few nodes are connected for jobs like those of this one.
    fn is_urgent(&self, place: usize) -> bool {
        let durable = self.nodes[place].demand.is_some();
        let is_open = |node: &&NodeJobs<_>| node.demand.is_some() == durable && node.is_open();
        let open = self.nodes.iter().filter(is_open);
        open.count() < self.policy.required()
    }

    /// Does what there is to do at all nodes, without waiting, and reports outcomes. Returns when
    /// there will be more to do even if nothing comes.
    fn go_on(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) -> Option<Instant> {
        let mut next = None::<Instant>;
        let mut place = 0;
        // A redirection may add nodes, and brings jobs to earlier ones.
        while place < self.nodes.len() {
            let (urgent, mut replies) = (self.is_urgent(place), Replies::new());
            let then = self.nodes[place].go_on(urgent, self.settings.io_timeout, &mut replies);
            next = next.into_iter().chain(then).min();
            if self.decide(place, replies, done) {
                next = Some(Instant::now());
            }
            place += 1;
        }
        next
    }

    /// Applies the policy to replies of one node. Returns `true` if jobs are to be sent elsewhere.
    fn decide(
        &mut self,
        place: usize,
        replies: Replies,
        done: &mut dyn FnMut(u64, JobOutcome),
    ) -> bool {
        let mut redirected = false;
        for (number, reply) in replies {
            let Some((job, mut progress)) = self.undecided.remove(&number) else { continue };
            match self.policy.decide(&job, &mut progress, &self.nodes[place].connection.peer, reply)
            {
                Decision::Done(outcome) => {
                    done(job.id, outcome);
                    continue;
                }
                Decision::SendTo(node) => {
                    self.push(node, number, &job);
                    redirected = true;
                }
                Decision::Undecided => {}
            }
            self.undecided.insert(number, (job, progress));
        }
        redirected
    }

    fn sleep(&self, deadline: Instant) {
        let mut sockets: Vec<PollFd<'_>> = self.nodes.iter().filter_map(NodeJobs::socket).collect();
        let openings: Vec<_> =
            self.nodes.iter().filter_map(|node| node.connection.opening.as_ref()).collect();
        sleep(&mut sockets, &openings, deadline);
    }
}

impl<P: JobPolicy> JobRunner for BackgroundJobs<P> {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        // Nodes of a cluster come and go.
        self.nodes.retain(|known| known.is_busy() || self.policy.keeps(&known.connection.peer));
        for job in jobs {
            match self.policy.route(&job) {
                Ok((nodes, progress)) => {
                    self.last_number += 1;
                    for node in nodes {
                        self.push(node, self.last_number, &job);
                    }
                    self.undecided.insert(self.last_number, (job, progress));
                }
                Err(failure) => done(job.id, Err(failure)),
            }
        }
        self.go_on(done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            let next = self.go_on(done);
            if self.undecided.is_empty() || Instant::now() >= deadline {
                break;
            }
            self.sleep(next.map_or(deadline, |next| next.min(deadline)));
        }
        shrink(&mut self.undecided);
    }

    fn abandon(&mut self) {
        self.undecided.clear();
        self.nodes.clear();
    }
}
