//! The background connection to one node, and what waits for it to be opened.

use std::mem;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::store::cluster::node::Target;
use crate::store::cluster::opening::Opening;
use crate::store::failure::Failure;
use crate::store::pipeline::Pipeline;
use crate::store::{Outcome, Task, Upkeep};

/// A node that could not be reached is not tried again for so long.
const PAUSE: Duration = Duration::from_millis(20);

/// One node's part of the upkeep. Nothing here waits for a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) target: Target,
    connect_timeout: Duration,
    state: State,
    /// What has no outcome yet.
    flying: usize,
}

#[derive(Debug)]
enum State {
    /// Could not be opened.
    Failed(Failure, Instant),
    Open(Pipeline),
    Opening(Opening<Pipeline>, Vec<Task>),
}

impl Link {
    pub(super) fn new(target: Target, connect_timeout: Duration) -> Self {
        let state = State::Open(pipeline(&target));
        Self { target, connect_timeout, state, flying: 0 }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.flying > 0
    }

    pub(super) fn send(&mut self, tasks: Vec<Task>, done: &mut dyn FnMut(u64, Outcome)) {
        self.flying += tasks.len();
        let mut done = counted(&mut self.flying, done);
        match &mut self.state {
            State::Failed(failure, since) if since.elapsed() < PAUSE => {
                fail(tasks, failure, &mut done);
            }
            State::Opening(_, waiting) => waiting.extend(tasks),
            State::Open(pipeline) if pipeline.is_open() => pipeline.send(tasks, &mut done),
            State::Open(pipeline) => {
                pipeline.abandon(&mut done);
                self.state = open(&self.target, self.connect_timeout, tasks);
            }
            State::Failed(..) => self.state = open(&self.target, self.connect_timeout, tasks),
        }
    }

    pub(super) fn collect(&mut self, until: Instant, done: &mut dyn FnMut(u64, Outcome)) {
        let mut done = counted(&mut self.flying, done);
        if let State::Opening(opening, waiting) = &mut self.state {
            let Some(opened) = opening.wait(until) else {
                let now = Instant::now();
                let late = waiting.extract_if(.., |task| task.until <= now).collect();
                let label = self.target.node.label();
                fail(late, &Failure::too_late(label, "connecting took too long"), &mut done);
                return;
            };
            let tasks = mem::take(waiting);
            match opened {
                Ok(mut pipeline) => {
                    pipeline.send(tasks, &mut done);
                    self.state = State::Open(pipeline);
                }
                Err(failure) => {
                    fail(tasks, &failure, &mut done);
                    self.state = State::Failed(failure, Instant::now());
                }
            }
        }
        if let State::Open(pipeline) = &mut self.state {
            pipeline.collect(until, &mut done);
        }
    }

    pub(super) fn abandon(&mut self, done: &mut dyn FnMut(u64, Outcome)) {
        let mut done = counted(&mut self.flying, done);
        match &mut self.state {
            State::Failed(..) => {}
            State::Open(pipeline) => pipeline.abandon(&mut done),
            State::Opening(_, waiting) => {
                let failure = Failure::too_late(self.target.node.label(), "given up");
                fail(mem::take(waiting), &failure, &mut done);
            }
        }
    }
}

fn pipeline(target: &Target) -> Pipeline {
    let pipeline = target.store().pipeline();
    if target.asking { pipeline.asking() } else { pipeline }
}

/// Begins to connect for these tasks.
fn open(target: &Target, connect_timeout: Duration, tasks: Vec<Task>) -> State {
    let mut pipeline = pipeline(target);
    let opening = Opening::begin(target.node.label(), move || {
        pipeline.connect(end_of(connect_timeout)).map(|()| pipeline)
    });
    State::Opening(opening, tasks)
}

/// Counts down with every outcome.
fn counted<'a>(
    flying: &'a mut usize,
    done: &'a mut dyn FnMut(u64, Outcome),
) -> impl FnMut(u64, Outcome) + use<'a> {
    move |id, outcome| {
        *flying -= 1;
        done(id, outcome);
    }
}

fn fail(tasks: Vec<Task>, failure: &Failure, done: &mut dyn FnMut(u64, Outcome)) {
    for task in tasks {
        done(task.id, Err(failure.clone()));
    }
}
