//! Background jobs over one connection: requests go out in batches, replies are collected as they
//! come.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::net::connection::Connection;
use crate::net::pipeline::{Pipeline, UnknownScript, WRITE_TIME, WaitFor};
use crate::net::request::Reply;
use crate::store::commands::{Commands, Decoder};
use crate::store::job::{Job, JobOutcome, JobRunner};
use crate::store::request::HoldReply;

/// The background connection of one thread to one server.
#[derive(Debug)]
pub(crate) struct JobPipeline {
    pipeline: Pipeline<SentJob, Connection>,
    commands: Commands,
    /// A connection that is silent for this long is given up.
    io_timeout: Duration,
    /// Whether each request is preceded by ASKING.
    asking: bool,
}

#[derive(Debug)]
struct SentJob {
    /// `None` once its time is over. A short lease must not cost the others the connection, so the
    /// reply is still awaited, and then ignored.
    job: Option<(u64, Instant)>,
    decoder: Decoder<HoldReply>,
}

impl JobPipeline {
    pub(crate) fn new(connection: Connection, commands: Commands, io_timeout: Duration) -> Self {
        let pipeline = Pipeline::new(connection, UnknownScript::SendAgain);
        Self { pipeline, commands, io_timeout, asking: false }
    }

    /// The same for a node that is about to get the slot of the jobs.
    pub(crate) fn asking(self) -> Self {
        Self { asking: true, ..self }
    }

    /// Opens the connection, which `send` would do otherwise.
    pub(crate) fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.pipeline.connection.connect(deadline)
    }

    /// Returns `true` if jobs can be sent without connecting first.
    pub(crate) fn is_open(&self) -> bool {
        self.pipeline.connection.is_open()
    }

    /// Goes on over another connection.
    pub(crate) fn resume(&mut self, connection: Connection, done: &mut dyn FnMut(u64, JobOutcome)) {
        self.abandon(done);
        self.pipeline.connection = connection;
    }

    /// Where outcomes come from; `None` if there are none to come.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        if self.pipeline.is_empty() { None } else { self.pipeline.connection.as_fd() }
    }

    /// Collects the outcomes that have come already, and returns when some will have waited too
    /// long.
    pub(crate) fn collect_now(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) -> Option<Instant> {
        self.collect_replies(WaitFor::Nothing, done);
        self.time_out(done)
    }

    fn collect_replies(&mut self, wait: WaitFor, done: &mut dyn FnMut(u64, JobOutcome)) {
        while let Some((sent, reply)) = self.pipeline.receive(wait) {
            self.finish(sent, reply, done);
        }
    }

    /// Reports the outcome of a job.
    fn finish(&mut self, sent: SentJob, reply: Reply, done: &mut dyn FnMut(u64, JobOutcome)) {
        let outcome = sent.decoder.decode(reply).unwrap_or_else(|| {
            let failure = self.pipeline.connection.nonsense();
            self.pipeline.give_up(failure.clone());
            Err(failure)
        });
        if let Some((id, _)) = sent.job {
            done(id, outcome);
        }
    }

    /// Ends the jobs that have waited too long, and returns when the next will have.
    fn time_out(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) -> Option<Instant> {
        let now = Instant::now();
        let give_up = self.pipeline.expected_since()? + self.io_timeout;
        if give_up <= now {
            self.abandon(done);
            return None;
        }
        let mut next = give_up;
        let mut late = Vec::new();
        for sent in self.pipeline.tags_mut() {
            match sent.job.take_if(|(_, deadline)| *deadline <= now) {
                Some((id, _)) => late.push(id),
                None => next = sent.job.map_or(next, |(_, deadline)| next.min(deadline)),
            }
        }
        late.into_iter().for_each(|id| done(id, Err(self.pipeline.connection.no_reply())));
        Some(next)
    }
}

impl JobRunner for JobPipeline {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        let Some(deadline) = jobs.iter().map(|job| job.deadline).max() else { return };
        if !self.is_open() {
            // The replies to what is in flight will not come over the next socket.
            self.abandon(done);
        }
        // A socket is opened only while nothing is in flight; and requests go over the socket of
        // this moment, even if other threads give it up for a new one in between.
        if self.pipeline.is_empty()
            && let Err(failure) = self.connect(deadline)
        {
            return jobs.iter().for_each(|job| done(job.id, Err(failure.clone())));
        }
        let batch: Vec<_> = jobs
            .into_iter()
            .map(|Job { id, hold, action, deadline }| {
                let command = self.commands.job(&hold, action);
                let sent = SentJob { job: Some((id, deadline)), decoder: command.decoder };
                let request = command.request;
                (sent, if self.asking { request.asking() } else { request })
            })
            .collect();
        self.pipeline.send(batch, deadline.min(Instant::now() + WRITE_TIME));
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        while let Some(next) = self.time_out(done) {
            self.collect_replies(WaitFor::Reply { deadline: deadline.min(next) }, done);
            if Instant::now() >= deadline {
                break;
            }
        }
    }

    fn abandon(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        if !self.pipeline.is_empty() {
            let failure = self.pipeline.connection.no_reply();
            self.pipeline.give_up(failure);
            self.collect_replies(WaitFor::Nothing, done);
        }
    }
}
