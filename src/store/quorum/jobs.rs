//! Many holds actiond for at N servers, over one background connection to each.

use std::collections::HashMap;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::net::poll::poll_readable;
use crate::store::commands::Commands;
use crate::store::job::{Action, Job, JobOutcome, JobRunner};
use crate::store::job_pipeline::JobPipeline;
use crate::store::quorum::node::{Opened, QuorumServer};
use crate::store::quorum::votes::{Votes, majority};
use crate::store::request::HoldReply;

/// While a connection is being opened, it is looked for this often.
const LOOK: Duration = Duration::from_millis(5);

/// What one server has said about a task, by the task's number.
type Report = (usize, u64, JobOutcome);

/// The background connections of one thread to all servers.
#[derive(Debug)]
pub(super) struct QuorumJobs {
    members: Vec<ServerJobs>,
    /// The tasks that are not decided, by a number of our own: those from outside may repeat.
    tasks: HashMap<u64, Ballot>,
    last: u64,
    reports: Vec<Report>,
    opened: Receiver<Opened>,
    answer: Sender<Opened>,
}

#[derive(Debug)]
struct ServerJobs {
    node: Arc<QuorumServer>,
    pipeline: JobPipeline,
    opening: bool,
    /// What is to be sent as soon as the connection is open.
    waiting: Vec<Job>,
}

#[derive(Debug)]
struct Ballot {
    id: u64,
    action: Action,
    votes: Votes<HoldReply>,
}

impl ServerJobs {
    /// What is known of a task without asking the server.
    fn unsent(&self, task: &Job) -> JobOutcome {
        if task.action == Action::Release && !self.node.may_have(&task.hold) {
            return Ok(HoldReply::Gone);
        }
        Err(self.node.down())
    }
}

impl Ballot {
    /// A renewal counts when a majority has confirmed it; but what is to be removed is to be
    /// removed everywhere.
    fn outcome(&self) -> Option<JobOutcome> {
        match self.action {
            Action::Renew { .. } => self.votes.standing(),
            Action::Release => self.votes.all(),
        }
    }
}

impl QuorumJobs {
    pub(super) fn new(
        nodes: Vec<Arc<QuorumServer>>,
        commands: &Commands,
        io_timeout: Duration,
    ) -> Self {
        let (answer, opened) = unbounded();
        let member = |node: Arc<QuorumServer>| ServerJobs {
            pipeline: JobPipeline::new(node.connection(), commands.clone(), io_timeout),
            node,
            opening: false,
            waiting: Vec::new(),
        };
        Self {
            members: nodes.into_iter().map(member).collect(),
            tasks: HashMap::new(),
            last: 0,
            reports: Vec::new(),
            opened,
            answer,
        }
    }

    /// Takes in the connections that have been opened, and sends what waits for them.
    fn take_in_opened(&mut self) {
        while let Ok((number, opened)) = self.opened.try_recv() {
            let member = &mut self.members[number];
            member.opening = false;
            let tasks = mem::take(&mut member.waiting);
            let mut done = |id, outcome| self.reports.push((number, id, outcome));
            match opened {
                Ok(connection) => {
                    member.pipeline.resume(connection, &mut done);
                    member.pipeline.send(tasks, &mut done);
                }
                Err(_) => tasks.iter().for_each(|task| done(task.id, member.unsent(task))),
            }
        }
    }

    /// Sends tasks to one server, or has it connected first.
    fn pass(&mut self, number: usize, tasks: Vec<Job>, urgent: bool) {
        let member = &mut self.members[number];
        let mut done = |id, outcome| self.reports.push((number, id, outcome));
        if member.pipeline.is_open() {
            return member.pipeline.send(tasks, &mut done);
        }
        member.pipeline.abandon(&mut done);
        if !member.opening {
            member.opening = member.node.open(urgent, &self.answer);
        }
        if member.opening {
            member.waiting.extend(tasks);
        } else {
            for task in &tasks {
                done(task.id, member.unsent(task));
            }
        }
    }

    /// Collects what has come from all servers, and tells when to look again.
    fn collect_now(&mut self) -> Option<Instant> {
        let (mut next, now) = (None::<Instant>, Instant::now());
        let mut look_at = |then: Instant| next = Some(next.map_or(then, |next| next.min(then)));
        for (number, member) in self.members.iter_mut().enumerate() {
            let mut done = |id, outcome| self.reports.push((number, id, outcome));
            if let Some(then) = member.pipeline.collect_now(&mut done) {
                look_at(then);
            }
            if member.opening {
                look_at(now + LOOK);
            }
            let late: Vec<_> = member.waiting.extract_if(.., |task| task.deadline <= now).collect();
            for task in &late {
                done(task.id, member.unsent(task));
            }
        }
        next
    }

    /// Counts what the servers have said, and reports what is decided.
    fn decide(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        for (number, task, outcome) in self.reports.drain(..) {
            // What is decided already is not there any more.
            let Some(ballot) = self.tasks.get_mut(&task) else { continue };
            ballot.votes.0[number] = Some(outcome);
            if let Some(outcome) = ballot.outcome() {
                done(ballot.id, outcome);
                self.tasks.remove(&task);
            }
        }
    }

    fn sleep(&self, deadline: Instant) {
        let sockets = self.members.iter().filter_map(|member| member.pipeline.socket());
        poll_readable(&sockets.collect::<Vec<BorrowedFd<'_>>>(), Some(deadline));
    }
}

impl JobRunner for QuorumJobs {
    fn send(&mut self, mut tasks: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        self.take_in_opened();
        for task in &mut tasks {
            self.last += 1;
            let votes = Votes::new(self.members.len());
            self.tasks.insert(self.last, Ballot { id: task.id, action: task.action, votes });
            task.id = self.last;
        }
        let open = self.members.iter().filter(|member| member.pipeline.is_open()).count();
        let urgent = open < majority(self.members.len());
        for number in 0..self.members.len() {
            self.pass(number, tasks.clone(), urgent);
        }
        self.decide(done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            self.take_in_opened();
            let next = self.collect_now();
            self.decide(done);
            if self.tasks.is_empty() || Instant::now() >= deadline {
                return;
            }
            self.sleep(next.map_or(deadline, |next| next.min(deadline)));
        }
    }

    fn abandon(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        for (number, member) in self.members.iter_mut().enumerate() {
            let mut report = |id, outcome| self.reports.push((number, id, outcome));
            member.pipeline.abandon(&mut report);
            let waiting = mem::take(&mut member.waiting);
            for task in &waiting {
                report(task.id, member.unsent(task));
            }
        }
        self.decide(done);
    }
}
