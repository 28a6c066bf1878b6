//! One node's part of the background jobs: requests go out in batches, replies are collected as
//! they come.
//!
//! Where renewals must reach replicas or disks, a renewal that the server has executed counts when
//! that is confirmed. The server executes nothing else over a connection that waits, so the next
//! batch is collected in the meantime.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::net::connection::Connection;
use crate::net::durability::Demand;
use crate::net::exchange::{Exchange, SendWait};
use crate::net::open_socket::WaitFor;
use crate::net::request::Reply;
use crate::net::socket::PollFd;
use crate::store::background::connection::{BackgroundConnection, ConnectAttempt, Node, Pauses};
use crate::store::background::jobs::SentJob;
use crate::store::background::opening::Opening;
use crate::store::command::Command;
use crate::store::commands::Commands;
use crate::store::job::Job;
use crate::store::request::HoldReply;

/// The most delayed jobs that are sent in one write, which the server takes at once.
const BATCH_MAX: usize = 2048;

/// How long a node that could not be reached is left alone.
const PAUSE: Duration = Duration::from_millis(20);

const PAUSES: Pauses = Pauses { after_failure: PAUSE, after_rejection: PAUSE };

/// What the node has replied to each job.
pub(super) type Replies<T> = Vec<(Arc<SentJob<T>>, Result<HoldReply, Failure>)>;

/// What has come over a connection for each job; `None` for what does not fit it.
type Inbox<T> = Arc<Mutex<Vec<(Arc<SentJob<T>>, Option<Result<HoldReply, Failure>>)>>>;

/// What the jobs of all nodes have in common.
#[derive(Debug)]
pub(super) struct JobSettings {
    pub(super) commands: Commands,
    /// A connection that is silent for this long is given up.
    pub(super) io_timeout: Duration,
}

/// The jobs of one node that go over one connection.
#[derive(Debug)]
pub(super) struct NodeJobs<N, T> {
    connection: BackgroundConnection<N, Connection>,
    /// Replaces the connection, which is soon no longer valid, as soon as it is open.
    successor: Option<BackgroundConnection<N, Connection>>,
    /// What must be met before the effects of these jobs count.
    demand: Option<Demand>,
    /// Sent as soon as the connection is open, has written what was sent before, and does not wait
    /// for replicas or disks.
    waiting: Vec<Arc<SentJob<T>>>,
    inbox: Inbox<T>,
}

impl<N: Node, T: Send + 'static> NodeJobs<N, T> {
    pub(super) fn new(node: N, demand: Option<Demand>) -> Self {
        let connection = BackgroundConnection::new(node, PAUSES);
        Self { connection, successor: None, demand, waiting: Vec::new(), inbox: Inbox::default() }
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
        self.connection.as_open().is_some_and(Connection::is_open)
    }

    /// Returns `true` if some job has no outcome yet, or some reply is still to come.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.is_sending()
    }

    /// Where replies come from; `None` if there are none to come.
    pub(super) fn socket(&self) -> Option<PollFd<'_>> {
        self.connection.as_open().filter(|open| !open.in_flight().is_empty())?.poll_fd()
    }

    pub(super) fn opening(&self) -> Option<&Opening> {
        self.connection.as_opening()
    }

    /// Sends jobs, now or as soon as the connection is open.
    pub(super) fn send(
        &mut self,
        jobs: Vec<Arc<SentJob<T>>>,
        settings: &JobSettings,
        urgent: bool,
        replies: &mut Replies<T>,
    ) {
        let Some(deadline) = jobs.iter().map(|sent| sent.job.deadline).max() else { return };
        let attempt = ConnectAttempt { deadline, urgent };
        self.finish_opening(settings, replies);
        self.replace_retiring(ConnectAttempt { urgent: false, ..attempt });
        let previous = self.close_unless_ready(replies);
        match self.connection.begin_opening(previous, attempt) {
            Ok(()) => {
                self.waiting.extend(jobs);
                self.write_waiting(settings);
            }
            Err(failure) => fail(jobs, &failure, replies),
        }
    }

    /// Returns `true` if the connection is open, everything that was sent is written, and no
    /// replicas or disks are waited for.
    fn can_write(&self) -> bool {
        let open = self.connection.as_open();
        open.is_some_and(|open| !open.is_writing()) && !self.is_confirming()
    }

    /// Returns `true` while replicas or disks are waited for.
    fn is_confirming(&self) -> bool {
        self.demand.is_some() && self.is_sending()
    }

    /// Returns `true` if some reply is still to come.
    fn is_sending(&self) -> bool {
        self.connection.as_open().is_some_and(|open| !open.in_flight().is_empty())
    }

    /// Closes a connection that must not be used any more, or only after it is confirmed that the
    /// server has not moved.
    fn close_unless_ready(&mut self, replies: &mut Replies<T>) -> Option<Connection> {
        let open = self.connection.as_open()?;
        // What is sent behind other requests goes where they went.
        let is_idle = open.in_flight().is_empty();
        let is_ready = if is_idle { open.is_usable() } else { open.is_open() };
        if is_ready {
            return None;
        }
        // The replies to what is in flight will not come over the next connection.
        self.give_up(replies);
        self.connection.close()
    }

    /// Has a connection that is soon no longer valid replaced: by one that is opened in the
    /// meantime, once no reply is to come over the old one.
    fn replace_retiring(&mut self, attempt: ConnectAttempt) {
        let Some(validity) = self.connection.as_open().and_then(Connection::retiring) else {
            self.successor = None;
            return;
        };
        let (node, pauses) = (&self.connection.node, Pauses::of_successor(validity));
        let new = || BackgroundConnection::new(node.clone(), pauses);
        let successor = self.successor.get_or_insert_with(new);
        // A failure is kept in its state.
        successor.finish_opening(Ok);
        successor.begin_opening(None, attempt).unwrap_or_default();
        let can_replace = successor.as_open().is_some() && !self.is_sending();
        if let Some(successor) = self.successor.take_if(|_| can_replace) {
            self.connection.take_over(successor);
        }
    }

    /// Sends the jobs that wait for the connection, if it has been opened.
    fn finish_opening(&mut self, settings: &JobSettings, replies: &mut Replies<T>) {
        match self.connection.finish_opening(Ok) {
            None => {}
            Some(Ok(_)) => self.write_waiting(settings),
            Some(Err(failure)) => fail(mem::take(&mut self.waiting), &failure, replies),
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
    fn write(&mut self, jobs: Vec<Arc<SentJob<T>>>, settings: &JobSettings) {
        let Self { connection: BackgroundConnection { node, .. }, demand, inbox, .. } = self;
        let exchange = |sent: Arc<SentJob<T>>| {
            let Job { hold, change, deadline, .. } = &sent.job;
            let Command { request, decoder } = settings.commands.change(hold, *change);
            let (request, deadline, inbox) = (node.addressed(request), *deadline, inbox.clone());
            let on_reply = move |reply: Reply| inbox.lock().push((sent, decoder.decode(reply)));
            Exchange::posted(request, deadline, Box::new(on_reply))
                .durable(demand.map(|demand| (demand, SendWait::Along)))
        };
        let batch: Vec<Exchange> = jobs.into_iter().map(exchange).collect();
        if let Some(open) = self.connection.as_open_mut() {
            open.send(batch);
        }
    }

    /// Reports the outcomes that are known by now, without waiting. Returns when there will be more
    /// even if no reply comes; `None` if no job is here.
    pub(super) fn collect(
        &mut self,
        settings: &JobSettings,
        replies: &mut Replies<T>,
    ) -> Option<Instant> {
        self.fail_late_waiting(replies);
        self.finish_opening(settings, replies);
        self.read(replies);
        if self.is_sending() {
            self.write_waiting(settings);
        } else if self.connection.as_opening().is_none() {
            // They had to wait until replicas or disks had answered, or failed to.
            let jobs = mem::take(&mut self.waiting);
            self.send(jobs, settings, false, replies);
        }
        let next = self.fail_late(settings.io_timeout, replies);
        self.waiting.iter().map(|sent| sent.job.deadline).chain(next).min()
    }

    /// Reports the outcomes that have come.
    fn read(&mut self, replies: &mut Replies<T>) {
        let Some(open) = self.connection.as_open_mut() else { return };
        loop {
            let has_come = open.receive(WaitFor::Nothing);
            for (sent, reply) in mem::take(&mut *self.inbox.lock()) {
                replies.push((sent, reply.unwrap_or_else(|| Err(open.invalid_reply()))));
            }
            if !has_come && self.inbox.lock().is_empty() {
                return;
            }
        }
    }

    /// Ends the jobs whose deadlines have come before they could be sent.
    fn fail_late_waiting(&mut self, replies: &mut Replies<T>) {
        let now = Instant::now();
        let late: Vec<_> = self.waiting.extract_if(.., |sent| sent.job.deadline <= now).collect();
        if !late.is_empty() {
            let why = if self.is_confirming() {
                "replicas or disks had not confirmed earlier renewals in time"
            } else if self.is_sending() {
                "the server had not accepted earlier requests in time"
            } else {
                "no connection was open in time"
            };
            fail(late, &Failure::too_late(&self.connection.node.label(), why), replies);
        }
    }

    /// Ends the sent jobs whose deadlines have come, and all of them if the server has been silent
    /// for `io_timeout`. Returns when there will be more of them.
    fn fail_late(&mut self, io_timeout: Duration, replies: &mut Replies<T>) -> Option<Instant> {
        let now = Instant::now();
        let open = self.connection.as_open_mut()?;
        let give_up_at = open.in_flight().expected_since()? + io_timeout;
        if give_up_at <= now {
            self.give_up(replies);
            return None;
        }
        let next = open.expire(now).map_or(give_up_at, |next| next.min(give_up_at));
        self.read(replies);
        Some(next)
    }

    /// Gives up the connection if replies are still to come over it.
    fn give_up(&mut self, replies: &mut Replies<T>) {
        if let Some(open) = self.connection.as_open_mut().filter(|it| !it.in_flight().is_empty()) {
            let failure = open.no_reply();
            open.give_up(&failure);
            self.read(replies);
        }
    }
}

fn fail<T>(jobs: Vec<Arc<SentJob<T>>>, failure: &Failure, replies: &mut Replies<T>) {
    replies.extend(jobs.into_iter().map(|sent| (sent, Err(failure.clone()))));
}
