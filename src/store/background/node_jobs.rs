//! One node's part of the background jobs: requests go out in batches, replies are collected as
//! they come.

use std::mem;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::clock::end_of;
use crate::failure::Failure;
use crate::net::connection::Connection;
use crate::net::pipeline::{Pipeline, UnknownScript, WRITE_TIME};
use crate::net::transport::{Transport, WaitFor};
use crate::store::background::connection::{BackgroundConnection, ConnectAttempt, Node, Pauses};
use crate::store::background::opening::Opening;
use crate::store::commands::{Command, Commands};
use crate::store::decoder::Decoder;
use crate::store::job::{Job, JobOutcome};
use crate::store::request::HoldReply;

/// A node that could not be reached is not tried again for so long.
const PAUSE: Duration = Duration::from_millis(20);

const PAUSES: Pauses = Pauses { after_failure: PAUSE, after_rejection: PAUSE };

type JobConnection = Pipeline<JobInFlight, Connection>;

/// Called with each outcome.
type Done<'a> = &'a mut dyn FnMut(u64, JobOutcome);

/// What the jobs of all nodes have in common.
#[derive(Debug)]
pub(super) struct JobSettings {
    pub(super) commands: Commands,
    /// A connection that is silent for this long is given up.
    pub(super) io_timeout: Duration,
}

/// The jobs of one node.
#[derive(Debug)]
pub(super) struct NodeJobs<N> {
    connection: BackgroundConnection<N, JobConnection>,
    /// Sent as soon as the connection is open.
    waiting: Vec<Job>,
}

#[derive(Debug)]
struct JobInFlight {
    /// `None` once its time is over. A short lease must not cost the others the connection, so the
    /// reply is still awaited, and then ignored.
    job: Option<(u64, Instant)>,
    decoder: Decoder<HoldReply>,
}

impl<N: Node> NodeJobs<N> {
    pub(super) fn new(node: N) -> Self {
        Self { connection: BackgroundConnection::new(node, PAUSES), waiting: Vec::new() }
    }

    pub(super) fn node(&self) -> &N {
        &self.connection.node
    }

    /// Returns `true` if jobs can be sent without connecting first.
    pub(super) fn is_open(&self) -> bool {
        self.connection.as_open().is_some_and(|pipeline| pipeline.connection.is_open())
    }

    /// Returns `true` if some job has no outcome yet, or some reply is still to come.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
            || self.connection.as_open().is_some_and(|pipeline| !pipeline.is_empty())
    }

    /// Where replies come from; `None` if there are none to come.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        let pipeline = self.connection.as_open().filter(|pipeline| !pipeline.is_empty())?;
        pipeline.connection.as_fd()
    }

    pub(super) fn opening(&self) -> Option<&Opening> {
        self.connection.as_opening()
    }

    /// Sends jobs, now or as soon as the connection is open.
    pub(super) fn send(
        &mut self,
        jobs: Vec<Job>,
        settings: &JobSettings,
        urgent: bool,
        done: Done<'_>,
    ) {
        let Some(deadline) = jobs.iter().map(|job| job.deadline).max() else { return };
        self.finish_opening(settings, done);
        let previous = self.close_unless_ready(done);
        let attempt = ConnectAttempt { deadline, urgent };
        match self.connection.begin_opening(previous, attempt) {
            Ok(()) if self.connection.as_opening().is_some() => self.waiting.extend(jobs),
            Ok(()) => self.write(jobs, settings),
            Err(failure) => fail(&jobs, &failure, done),
        }
    }

    /// Closes a connection that must not be used any more, or only after it is confirmed that the
    /// server has not moved.
    fn close_unless_ready(&mut self, done: Done<'_>) -> Option<Connection> {
        let pipeline = self.connection.as_open()?;
        // What is sent behind other requests goes where they went.
        let is_ready = if pipeline.is_empty() {
            pipeline.connection.is_ready()
        } else {
            pipeline.connection.is_open()
        };
        if is_ready {
            return None;
        }
        // The replies to what is in flight will not come over the next connection.
        self.give_up(done);
        self.connection.close().map(|pipeline| pipeline.connection)
    }

    /// Sends the jobs that wait for the connection, if it has been opened.
    fn finish_opening(&mut self, settings: &JobSettings, done: Done<'_>) {
        let make = |connection| Ok(Pipeline::new(connection, UnknownScript::SendAgain));
        match self.connection.finish_opening(make) {
            None => {}
            Some(Ok(_)) => {
                let jobs = mem::take(&mut self.waiting);
                self.write(jobs, settings);
            }
            Some(Err(failure)) => fail(&mem::take(&mut self.waiting), &failure, done),
        }
    }

    /// Sends jobs over the open connection, in one write.
    fn write(&mut self, jobs: Vec<Job>, settings: &JobSettings) {
        let Some(deadline) = jobs.iter().map(|job| job.deadline).max() else { return };
        let BackgroundConnection { node, .. } = &self.connection;
        let batch: Vec<_> = jobs
            .into_iter()
            .map(|Job { id, hold, action, deadline }| {
                let Command { request, decoder } = settings.commands.job(&hold, action);
                let sent = JobInFlight { job: Some((id, deadline)), decoder };
                (sent, node.addressed(request))
            })
            .collect();
        if let Some(pipeline) = self.connection.as_open_mut() {
            pipeline.send(batch, deadline.min(end_of(WRITE_TIME)));
        }
    }

    /// Reports the outcomes that are known by now, without waiting. Returns when there will be more
    /// even if no reply comes; `None` if no job is here.
    pub(super) fn collect(&mut self, settings: &JobSettings, done: Done<'_>) -> Option<Instant> {
        self.fail_late_waiting(done);
        self.finish_opening(settings, done);
        self.read(done);
        let next = self.fail_late(settings.io_timeout, done);
        self.waiting.iter().map(|job| job.deadline).chain(next).min()
    }

    /// Reports the outcomes that have come.
    fn read(&mut self, done: Done<'_>) {
        let Some(pipeline) = self.connection.as_open_mut() else { return };
        while let Some((sent, reply)) = pipeline.receive(WaitFor::Nothing) {
            let outcome = sent.decoder.decode(reply).unwrap_or_else(|| {
                let failure = pipeline.connection.invalid_reply();
                pipeline.give_up(failure.clone());
                Err(failure)
            });
            if let Some((id, _)) = sent.job {
                done(id, outcome);
            }
        }
    }

    /// Ends the jobs whose deadlines have come before the connection was open.
    fn fail_late_waiting(&mut self, done: Done<'_>) {
        let now = Instant::now();
        let late: Vec<_> = self.waiting.extract_if(.., |job| job.deadline <= now).collect();
        if !late.is_empty() {
            let label = self.connection.node.label();
            fail(&late, &Failure::too_late(&label, "no connection was open in time"), done);
        }
    }

    /// Ends the sent jobs whose deadlines have come, and all of them if the server has been silent
    /// for `io_timeout`. Returns when there will be more of them.
    fn fail_late(&mut self, io_timeout: Duration, done: Done<'_>) -> Option<Instant> {
        let now = Instant::now();
        let pipeline = self.connection.as_open_mut()?;
        let give_up_at = pipeline.expected_since()? + io_timeout;
        if give_up_at <= now {
            self.give_up(done);
            return None;
        }
        let mut next = give_up_at;
        let mut late = Vec::new();
        for sent in pipeline.tags_mut() {
            match sent.job.take_if(|(_, deadline)| *deadline <= now) {
                Some((id, _)) => late.push(id),
                None => next = sent.job.map_or(next, |(_, deadline)| next.min(deadline)),
            }
        }
        for id in late {
            done(id, Err(pipeline.connection.no_reply()));
        }
        Some(next)
    }

    /// Gives up the connection if replies are still to come over it.
    fn give_up(&mut self, done: Done<'_>) {
        if let Some(pipeline) = self.connection.as_open_mut().filter(|open| !open.is_empty()) {
            let failure = pipeline.connection.no_reply();
            pipeline.give_up(failure);
            self.read(done);
        }
    }

    /// Gives up all jobs that have no outcome yet.
    pub(super) fn abandon(&mut self, done: Done<'_>) {
        self.give_up(done);
        let failure = Failure::too_late(&self.connection.node.label(), "it was given up");
        fail(&mem::take(&mut self.waiting), &failure, done);
    }
}

fn fail(jobs: &[Job], failure: &Failure, done: Done<'_>) {
    for job in jobs {
        done(job.id, Err(failure.clone()));
    }
}
