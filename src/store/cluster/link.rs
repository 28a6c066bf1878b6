//! The background connection to one node, and what waits for it to be opened.

use std::mem;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::failure::Failure;
use crate::store::cluster::node::Target;
use crate::store::cluster::opening::Opening;
use crate::store::job::{Job, JobOutcome, JobRunner};
use crate::store::job_pipeline::JobPipeline;

/// A node that could not be reached is not tried again for so long.
const PAUSE: Duration = Duration::from_millis(20);

/// One node's part of the jobs. Nothing here waits for a connection.
#[derive(Debug)]
pub(super) struct NodeLink {
    pub(super) target: Target,
    connect_timeout: Duration,
    state: LinkState,
    /// What has no outcome yet.
    in_flight: usize,
}

#[derive(Debug)]
enum LinkState {
    /// Could not be opened.
    Failed(Failure, Instant),
    Open(JobPipeline),
    Opening(Opening<JobPipeline>, Vec<Job>),
}

impl NodeLink {
    pub(super) fn new(target: Target, connect_timeout: Duration) -> Self {
        let state = LinkState::Open(pipeline(&target));
        Self { target, connect_timeout, state, in_flight: 0 }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    pub(super) fn send(&mut self, tasks: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        self.in_flight += tasks.len();
        let mut done = counted(&mut self.in_flight, done);
        match &mut self.state {
            LinkState::Failed(failure, since) if since.elapsed() < PAUSE => {
                fail(tasks, failure, &mut done);
            }
            LinkState::Opening(_, waiting) => waiting.extend(tasks),
            LinkState::Open(pipeline) if pipeline.is_open() => pipeline.send(tasks, &mut done),
            LinkState::Open(pipeline) => {
                pipeline.abandon(&mut done);
                self.state = open(&self.target, self.connect_timeout, tasks);
            }
            LinkState::Failed(..) => self.state = open(&self.target, self.connect_timeout, tasks),
        }
    }

    pub(super) fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        let mut done = counted(&mut self.in_flight, done);
        if let LinkState::Opening(opening, waiting) = &mut self.state {
            let Some(opened) = opening.wait(deadline) else {
                let now = Instant::now();
                let late = waiting.extract_if(.., |task| task.deadline <= now).collect();
                let label = self.target.node.label();
                fail(late, &Failure::too_late(label, "connecting took too long"), &mut done);
                return;
            };
            let tasks = mem::take(waiting);
            match opened {
                Ok(mut pipeline) => {
                    pipeline.send(tasks, &mut done);
                    self.state = LinkState::Open(pipeline);
                }
                Err(failure) => {
                    fail(tasks, &failure, &mut done);
                    self.state = LinkState::Failed(failure, Instant::now());
                }
            }
        }
        if let LinkState::Open(pipeline) = &mut self.state {
            pipeline.collect(deadline, &mut done);
        }
    }

    pub(super) fn abandon(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        let mut done = counted(&mut self.in_flight, done);
        match &mut self.state {
            LinkState::Failed(..) => {}
            LinkState::Open(pipeline) => pipeline.abandon(&mut done),
            LinkState::Opening(_, waiting) => {
                let failure = Failure::too_late(self.target.node.label(), "given up");
                fail(mem::take(waiting), &failure, &mut done);
            }
        }
    }
}

fn pipeline(target: &Target) -> JobPipeline {
    let pipeline = target.store().job_pipeline();
    if target.asking { pipeline.asking() } else { pipeline }
}

/// Begins to connect for these tasks.
fn open(target: &Target, connect_timeout: Duration, tasks: Vec<Job>) -> LinkState {
    let mut pipeline = pipeline(target);
    let opening = Opening::begin(target.node.label(), move || {
        pipeline.connect(end_of(connect_timeout)).map(|()| pipeline)
    });
    LinkState::Opening(opening, tasks)
}

/// Counts down with every outcome.
fn counted<'a>(
    in_flight: &'a mut usize,
    done: &'a mut dyn FnMut(u64, JobOutcome),
) -> impl FnMut(u64, JobOutcome) + use<'a> {
    move |id, outcome| {
        *in_flight -= 1;
        done(id, outcome);
    }
}

fn fail(tasks: Vec<Job>, failure: &Failure, done: &mut dyn FnMut(u64, JobOutcome)) {
    for task in tasks {
        done(task.id, Err(failure.clone()));
    }
}
