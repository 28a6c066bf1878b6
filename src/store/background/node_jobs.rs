//! One node's part of the background jobs: requests go out in batches, replies are collected as
//! they come.
//!
//! Where renewals must reach replicas or disks, each batch ends with one request to wait for them,
//! and a renewal that the server has executed counts when that is confirmed. The server executes
//! nothing else over a connection that waits, so the next batch is collected in the meantime. A
//! script that the server did not know is sent again behind the request to wait, which is then
//! repeated behind it.

use std::cmp::min;
use std::mem;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::failure::Failure;
use crate::net::connection::Connection;
use crate::net::pipeline::{Pipeline, UnknownScript};
use crate::net::transport::WaitFor;
use crate::store::background::connection::{BackgroundConnection, ConnectAttempt, Node, Pauses};
use crate::store::background::opening::Opening;
use crate::store::command::Command;
use crate::store::commands::Commands;
use crate::store::decoder::Decoder;
use crate::store::durability::Demand;
use crate::store::job::Job;
use crate::store::request::HoldReply;

/// The most delayed jobs that are sent in one write, which the server takes at once.
const BATCH_MAX: usize = 2048;

/// How long a node that could not be reached is left alone.
const PAUSE: Duration = Duration::from_millis(20);

const PAUSES: Pauses = Pauses { after_failure: PAUSE, after_rejection: PAUSE };

type JobConnection = Pipeline<SentRequest, Connection>;

/// Called with what the node has replied to each job.
type Done<'a> = &'a mut dyn FnMut(u64, Result<HoldReply, Failure>);

/// What the jobs of all nodes have in common.
#[derive(Debug)]
pub(super) struct JobSettings {
    pub(super) commands: Commands,
    /// A connection that is silent for this long is given up.
    pub(super) io_timeout: Duration,
}

/// The jobs of one node that go over one connection.
#[derive(Debug)]
pub(super) struct NodeJobs<N> {
    connection: BackgroundConnection<N, JobConnection>,
    /// Replaces the connection, which is soon no longer valid, as soon as it is open.
    successor: Option<BackgroundConnection<N, JobConnection>>,
    /// What must be met before the effects of these jobs count.
    demand: Option<Demand>,
    /// Sent as soon as the connection is open, has written what was sent before, and does not wait
    /// for replicas or disks.
    waiting: Vec<Job>,
    /// What the server has executed, and replicas or disks have not confirmed yet.
    unconfirmed: Vec<SentJob>,
}

#[derive(Debug)]
enum SentRequest {
    /// `None` once its time is over. A short lease must not cost the others the connection, so the
    /// reply is still awaited, and then ignored.
    Job(Option<SentJob>, Decoder<HoldReply>),
    /// The request to wait until what was executed before it is as durable as demanded.
    Wait(Demand),
}

/// A job that was sent.
#[derive(Clone, Copy, Debug)]
struct SentJob {
    id: u64,
    deadline: Instant,
}

impl<N: Node> NodeJobs<N> {
    pub(super) fn new(node: N, demand: Option<Demand>) -> Self {
        let connection = BackgroundConnection::new(node, PAUSES);
        Self { connection, successor: None, demand, waiting: Vec::new(), unconfirmed: Vec::new() }
    }

    /// Returns `true` if jobs with such a demand, or without one, belong here.
    pub(super) fn is_for(&self, demand: Option<&Demand>) -> bool {
        self.demand.is_some() == demand.is_some()
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
        !self.waiting.is_empty() || self.is_sending()
    }

    /// Where replies come from; `None` if there are none to come.
    pub(super) fn socket(&self) -> Option<PollFd<'_>> {
        let pipeline = self.connection.as_open().filter(|pipeline| !pipeline.is_empty())?;
        pipeline.connection.poll_fd()
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
        let attempt = ConnectAttempt { deadline, urgent };
        self.finish_opening(settings, done);
        self.replace_retiring(ConnectAttempt { urgent: false, ..attempt });
        let previous = self.close_unless_ready(done);
        match self.connection.begin_opening(previous, attempt) {
            Ok(()) => {
                self.waiting.extend(jobs);
                self.write_waiting(settings);
            }
            Err(failure) => fail(&jobs, &failure, done),
        }
    }

    /// Returns `true` if the connection is open, everything that was sent is written, and no
    /// replicas or disks are waited for.
    fn can_write(&self) -> bool {
        let open = self.connection.as_open();
        open.is_some_and(|open| !open.connection.is_writing()) && !self.is_confirming()
    }

    /// Returns `true` while replicas or disks are waited for.
    fn is_confirming(&self) -> bool {
        self.demand.is_some() && self.is_sending()
    }

    /// Returns `true` if some reply is still to come.
    fn is_sending(&self) -> bool {
        self.connection.as_open().is_some_and(|pipeline| !pipeline.is_empty())
    }

    /// Closes a connection that must not be used any more, or only after it is confirmed that the
    /// server has not moved.
    fn close_unless_ready(&mut self, done: Done<'_>) -> Option<Connection> {
        let pipeline = self.connection.as_open()?;
        // What is sent behind other requests goes where they went.
        let is_ready = if pipeline.is_empty() {
            pipeline.connection.is_usable()
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

    /// Has a connection that is soon no longer valid replaced: by one that is opened in the
    /// meantime, once no reply is to come over the old one.
    fn replace_retiring(&mut self, attempt: ConnectAttempt) {
        let retiring = |open: &JobConnection| open.connection.retiring();
        let Some(validity) = self.connection.as_open().and_then(retiring) else {
            self.successor = None;
            return;
        };
        let (node, pauses) = (&self.connection.node, Pauses::of_successor(validity));
        let new = || BackgroundConnection::new(node.clone(), pauses);
        let successor = self.successor.get_or_insert_with(new);
        // A failure is kept in its state.
        successor.finish_opening(|connection| Ok(pipeline(connection)));
        successor.begin_opening(None, attempt).unwrap_or_default();
        let can_replace = successor.as_open().is_some() && !self.is_sending();
        if let Some(successor) = self.successor.take_if(|_| can_replace) {
            self.connection.take_over(successor);
        }
    }

    /// Sends the jobs that wait for the connection, if it has been opened.
    fn finish_opening(&mut self, settings: &JobSettings, done: Done<'_>) {
        match self.connection.finish_opening(|connection| Ok(pipeline(connection))) {
            None => {}
            Some(Ok(_)) => self.write_waiting(settings),
            Some(Err(failure)) => fail(&mem::take(&mut self.waiting), &failure, done),
        }
    }

    /// Sends the jobs that no longer have to wait.
    fn write_waiting(&mut self, settings: &JobSettings) {
        while !self.waiting.is_empty() && self.can_write() {
            let batch = self.waiting.len().min(BATCH_MAX);
            let jobs = self.waiting.drain(..batch).collect();
            self.write(jobs, settings);
        }
    }

    /// Sends jobs over the open connection, in one write.
    fn write(&mut self, jobs: Vec<Job>, settings: &JobSettings) {
        let Some(deadline) = jobs.iter().map(|job| job.deadline).max() else { return };
        let BackgroundConnection { node, .. } = &self.connection;
        let mut batch: Vec<_> = jobs
            .into_iter()
            .map(|Job { id, hold, change, deadline }| {
                let Command { request, decoder } = settings.commands.change(&hold, change);
                let sent = SentJob { id, deadline };
                (SentRequest::Job(Some(sent), decoder), node.addressed(request))
            })
            .collect();
        batch.extend(
            self.demand.map(|demand| (SentRequest::Wait(demand), demand.request(deadline))),
        );
        if let Some(pipeline) = self.connection.as_open_mut() {
            pipeline.send(batch);
        }
    }

    /// Reports the outcomes that are known by now, without waiting. Returns when there will be more
    /// even if no reply comes; `None` if no job is here.
    pub(super) fn collect(&mut self, settings: &JobSettings, done: Done<'_>) -> Option<Instant> {
        self.fail_late_waiting(done);
        self.finish_opening(settings, done);
        self.read(done);
        if self.is_sending() {
            self.write_waiting(settings);
        } else if self.connection.as_opening().is_none() {
            // They had to wait until replicas or disks had answered, or failed to.
            let jobs = mem::take(&mut self.waiting);
            self.send(jobs, settings, false, done);
        }
        let next = self.fail_late(settings.io_timeout, done);
        self.waiting.iter().map(|job| job.deadline).chain(next).min()
    }

    /// Reports the outcomes that have come.
    fn read(&mut self, done: Done<'_>) {
        let Self { connection, demand, unconfirmed, .. } = self;
        let label = connection.node.label();
        let Some(pipeline) = connection.as_open_mut() else { return };
        while let Some((in_flight, reply)) = pipeline.receive(WaitFor::Nothing) {
            match in_flight {
                SentRequest::Job(job, decoder) => {
                    let outcome = decoder.decode(reply).unwrap_or_else(|| Err(garbled(pipeline)));
                    match (job, outcome) {
                        (Some(job), Ok(HoldReply::Done)) if demand.is_some() => {
                            unconfirmed.push(job);
                        }
                        (Some(job), outcome) => done(job.id, outcome),
                        (None, _) => {}
                    }
                }
                SentRequest::Wait(demand) => {
                    let confirmed = demand.check(reply, &label);
                    let confirmed = confirmed.unwrap_or_else(|| Err(garbled(pipeline)));
                    for job in unconfirmed.drain(..) {
                        done(job.id, confirmed.clone().map(|()| HoldReply::Done));
                    }
                    wait_again(pipeline, demand);
                }
            }
        }
    }

    /// Ends the jobs whose deadlines have come before they could be sent.
    fn fail_late_waiting(&mut self, done: Done<'_>) {
        let now = Instant::now();
        let late: Vec<_> = self.waiting.extract_if(.., |job| job.deadline <= now).collect();
        if !late.is_empty() {
            let why = if self.is_confirming() {
                "replicas or disks had not confirmed earlier renewals in time"
            } else if self.is_sending() {
                "the server had not accepted earlier requests in time"
            } else {
                "no connection was open in time"
            };
            fail(&late, &Failure::too_late(&self.connection.node.label(), why), done);
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
        let is_late = |job: &mut SentJob| job.deadline <= now;
        let mut late: Vec<_> = self.unconfirmed.extract_if(.., is_late).collect();
        let mut next = self.unconfirmed.iter().map(|job| job.deadline).fold(give_up_at, min);
        for in_flight in pipeline.tags_mut() {
            let SentRequest::Job(job, _) = in_flight else { continue };
            late.extend(job.take_if(|job| is_late(job)));
            next = job.map_or(next, |job| next.min(job.deadline));
        }
        for job in late {
            done(job.id, Err(pipeline.connection.no_reply()));
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

fn pipeline(connection: Connection) -> JobConnection {
    Pipeline::new(connection, UnknownScript::SendAgain)
}

/// Gives up a connection over which a reply has come that does not fit its request.
fn garbled(pipeline: &mut JobConnection) -> Failure {
    let failure = pipeline.connection.invalid_reply();
    pipeline.give_up(failure.clone());
    failure
}

/// Sends the request to wait again, behind the jobs that had to be sent again.
fn wait_again(pipeline: &mut JobConnection, demand: Demand) {
    let deadline = |in_flight: &SentRequest| match in_flight {
        SentRequest::Job(job, _) => job.map(|job| job.deadline),
        SentRequest::Wait(_) => None,
    };
    if let Some(deadline) = pipeline.tags().filter_map(deadline).max() {
        pipeline.send([(SentRequest::Wait(demand), demand.request(deadline))]);
    }
}

fn fail(jobs: &[Job], failure: &Failure, done: Done<'_>) {
    for job in jobs {
        done(job.id, Err(failure.clone()));
    }
}
