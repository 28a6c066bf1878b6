//! Background jobs: posts over connections that one thread keeps, at most two to each node.
//!
//! While a renewal waits for replicas or disks, the server executes nothing else on its connection.
//! So durable renewals have a connection of their own: no clean-up waits for them, and the next
//! batch is collected in the meantime.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::clock::{self, end_of};
use crate::base::failure::Failure;
use crate::base::shrink;
use crate::net::connection::Connection;
use crate::net::demand::Demand;
use crate::net::in_flight::{Exchange, SendWait};
use crate::net::socket::PollFd;
use crate::store::background::peer::{BackgroundConnection, Peer, sleep};
use crate::store::background::{
    BackgroundSettings, Decision, Job, JobOutcome, JobPolicy, JobRunner,
};
use crate::store::commands::Scope;
use crate::store::request::HoldReply;
use crate::store::scripts::ScriptReply;

/// Maximum number of jobs in one write, because the server executes them in one go.
const BATCH_MAX: usize = 2048;

/// Pause before a node that could not be reached is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// How often the pooled connections are polled, for room and for replies.
const LOOK: Duration = Duration::from_millis(5);

const UNOPENED: &str = "no connection was open in time";

pub(crate) struct BackgroundJobs<P: JobPolicy> {
    policy: P,
    settings: BackgroundSettings,
    nodes: Vec<NodeJobs<P::Peer>>,
    /// The jobs without an outcome, by number. A job is shared by all nodes that it was sent to.
    undecided: HashMap<u64, (Job, P::Progress)>,
}

impl<P: JobPolicy> BackgroundJobs<P> {
    pub(crate) fn new(policy: P, settings: BackgroundSettings) -> Self {
        Self { policy, settings, nodes: Vec::new(), undecided: HashMap::new() }
    }

    /// Returns the index of a node's connection for jobs with, or without, a durability demand.
    fn place(&mut self, node: P::Peer, demand: Option<Demand>) -> usize {
        let place = self.nodes.iter().position(|known| {
            known.connection.peer == node && known.demand.is_some() == demand.is_some()
        });
        if let Some(place) = place {
            return place;
        }
        self.nodes.push(NodeJobs {
            connection: BackgroundConnection::new(node, PAUSE),
            demand,
            is_prepared: false,
            shares_until: clock::now(),
            over_pool_until: None,
            waiting: Vec::new(),
            arrived: Arc::default(),
        });
        self.nodes.len() - 1
    }

    /// Queues a job for a node.
    fn push(&mut self, node: P::Peer, scope: Scope, job: &Job) {
        let demand = if job.change.is_durable() { self.settings.demand } else { None };
        let place = self.place(node, demand);
        let NodeJobs { connection, waiting, arrived, .. } = &mut self.nodes[place];
        let commands = self.policy.commands(&connection.peer).unwrap_or(&self.settings.commands);
        let request = commands.change_within(scope, &job.hold, job.change);
        let request = connection.peer.addressed(request);
        let arrived = arrived.clone();
        let factory = connection.peer.factory().clone();
        let id = job.id;
        // Over a pooled connection, another thread reads the reply, and must not wait for this one.
        let on_reply =
            Box::new(move |reply| arrived.lock().push((id, HoldReply::decode(reply, &factory))));
        let exchange = Exchange::posted(request, job.deadline, on_reply);
        waiting.push(exchange.durable(demand.map(|demand| (demand, SendWait::Along))));
    }

    /// Returns `true` if too few nodes are connected for jobs like those at `place`.
    fn is_urgent(&self, place: usize) -> bool {
        let durable = self.nodes[place].demand.is_some();
        let alike = self.nodes.iter().filter(|node| node.demand.is_some() == durable);
        let open = alike.filter_map(|node| node.connection.open.as_ref());
        open.filter(|open| open.is_open()).count() < self.policy.required()
    }

    /// Does everything that is possible at all nodes without waiting, and reports outcomes. Returns
    /// when to continue even if nothing arrives.
    fn go_on(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) -> Option<Instant> {
        let now = clock::now();
        let mut next = None::<Instant>;
        let mut place = 0;
        // A redirection may add nodes, and jobs for nodes that this turn has already visited.
        while place < self.nodes.len() {
            let urgent = self.is_urgent(place);
            let then = self.nodes[place].go_on(&self.policy, urgent, self.settings.io_timeout);
            next = next.into_iter().chain(then).min();
            // Taken out of the lock, because other threads add replies of pooled connections.
            let arrived = mem::take(&mut *self.nodes[place].arrived.lock());
            for (id, reply) in arrived {
                // A majority may already have decided the job.
                let Some((job, mut progress)) = self.undecided.remove(&id) else { continue };
                let from = &self.nodes[place].connection.peer;
                match self.policy.decide(&job, &mut progress, from, reply) {
                    Decision::Done(outcome) => {
                        done(id, outcome);
                        continue;
                    }
                    Decision::SendTo(node, scope) => {
                        self.push(node, scope, &job);
                        // The node may be one that this turn has visited already.
                        next = Some(clock::now());
                    }
                    Decision::Undecided => {}
                }
                self.undecided.insert(id, (job, progress));
            }
            place += 1;
        }
        next.into_iter().chain(self.give_up_late(now, done)).min()
    }

    /// Fails the jobs whose deadlines have passed, if some may be in flight over the connections of
    /// calls: a thread that reads from the links of a quorum may wait for longer than a job may
    /// take. Returns when to look again, because replies over those connections do not wake this
    /// thread.
    fn give_up_late(
        &mut self,
        now: Instant,
        done: &mut dyn FnMut(u64, JobOutcome),
    ) -> Option<Instant> {
        let over_pool = self.nodes.iter().find(|node| node.over_pool_until.is_some())?;
        let factory = over_pool.connection.peer.factory();
        for (id, _) in self.undecided.extract_if(|_, (job, _)| job.deadline <= now) {
            done(id, Err(factory.no_reply()));
        }
        for node in &mut self.nodes {
            node.over_pool_until.take_if(|until| *until <= now);
        }
        if self.undecided.is_empty() { None } else { Some(end_of(LOOK)) }
    }
}

impl<P: JobPolicy> JobRunner for BackgroundJobs<P> {
    fn prepare(&mut self, name: &str) {
        let Ok((nodes, _)) = self.policy.route(name) else { return };
        for node in nodes {
            let place = self.place(node, self.settings.demand);
            self.nodes[place].prepare();
        }
    }

    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        // Connections to nodes that have left the cluster are closed.
        self.nodes.retain(|known| {
            let is_busy = !known.waiting.is_empty() || known.connection.is_busy();
            // Replies over the connections of calls come here, too.
            let calls_wait = is_busy || known.over_pool_until.is_some();
            calls_wait || self.policy.keeps(&known.connection.peer)
        });
        for job in jobs {
            match self.policy.route(&job.hold.name) {
                Ok((nodes, progress)) => {
                    for node in nodes {
                        self.push(node, Scope::All, &job);
                    }
                    self.undecided.insert(job.id, (job, progress));
                }
                Err(failure) => done(job.id, Err(failure)),
            }
        }
        self.go_on(done);
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            let next = self.go_on(done);
            // Replies that have arrived count even at the deadline, so the deadline is checked
            // after reading.
            if self.undecided.is_empty() || clock::now() >= deadline {
                break;
            }
            let end = next.unwrap_or(deadline).min(deadline);
            let mut sockets: Vec<_> = self.nodes.iter().filter_map(NodeJobs::socket).collect();
            let openings = self.nodes.iter().filter_map(|node| node.connection.opening.as_ref());
            sleep(&mut sockets, &openings.collect::<Vec<_>>(), end);
        }
        shrink(&mut self.undecided);
    }

    fn has_open_ends(&self) -> bool {
        self.policy.has_open_ends()
    }

    fn abandon(&mut self) {
        self.undecided.clear();
        self.nodes.clear();
    }
}

/// The reply to a job, with its number.
type NumberedReply = (u64, Result<HoldReply, Failure>);

/// The jobs of one node that share a connection.
struct NodeJobs<N> {
    connection: BackgroundConnection<N, Connection>,
    /// The durability that these jobs must reach before they count.
    demand: Option<Demand>,
    /// Whether the last attempt to open the connection was made before any job needed it.
    is_prepared: bool,
    /// When jobs that cannot be sent stop waiting for the pooled connections, because these have
    /// not taken any for a while.
    shares_until: Instant,
    /// The latest deadline of the jobs that were sent over pooled connections, until it has passed.
    over_pool_until: Option<Instant>,
    /// Sent as soon as the connection is open, has written everything sent before, and does not
    /// wait for replicas or disks.
    waiting: Vec<Exchange>,
    arrived: Arc<Mutex<Vec<NumberedReply>>>,
}

impl<N: Peer> NodeJobs<N> {
    /// Returns the socket that replies arrive on; `None` if none are outstanding.
    fn socket(&self) -> Option<PollFd<'_>> {
        if !self.connection.is_busy() {
            return None;
        }
        Some(self.connection.open.as_ref()?.stream()?.poll_fd())
    }

    /// Starts to open the connection, unless it is open or being opened.
    fn prepare(&mut self) {
        let previous =
            self.connection.open.take_if(|open| open.in_flight.is_empty() && !open.is_usable());
        // If opening failed, it is tried again when a job needs the connection.
        drop(self.connection.finish_opening());
        let is_opening = self.connection.opening.is_some();
        let deadline = end_of(self.connection.peer.factory().connect_timeout);
        self.connection.begin_opening(previous, deadline, false, greeted).unwrap_or_default();
        self.is_prepared |= !is_opening && self.connection.opening.is_some();
    }

    /// Does everything that is possible without waiting. Returns when to continue even if no reply
    /// arrives; `None` if there is no job.
    fn go_on<P: JobPolicy<Peer = N>>(
        &mut self,
        policy: &P,
        urgent: bool,
        io_timeout: Duration,
    ) -> Option<Instant> {
        // Everything that can make room comes first. A job that is left behind despite room would
        // not wake the thread.
        let previous = self.close_unless_ready();
        self.connection.read();
        let now = clock::now();
        self.time_out(now, io_timeout);
        self.connection.open.take_if(|open| !open.is_connected());
        self.drop_late(now);
        let sent = self.send_waiting(previous, urgent);
        if self.demand.is_none() || sent.is_err() {
            self.fall_back_to_pool(policy, io_timeout);
        }
        // If other jobs have just gone over the pool, the server is reachable, and these wait for
        // room.
        if let Err(failure) = sent
            && self.shares_until <= now
        {
            fail(mem::take(&mut self.waiting), &failure);
        }
        self.next_wake(io_timeout)
    }

    /// Fails the jobs that could not be sent in time.
    fn drop_late(&mut self, now: Instant) {
        let late = self.waiting.extract_if(.., |exchange| exchange.deadline <= now);
        let late: Vec<_> = late.collect();
        if late.is_empty() {
            return;
        }
        let why = match (self.connection.is_busy(), self.demand.is_some()) {
            (false, _) => UNOPENED,
            (true, false) => "the server had not accepted earlier requests in time",
            (true, true) => "replicas or disks had not confirmed earlier renewals in time",
        };
        fail(late, &Failure::too_late(&self.connection.peer.factory().label(), why));
    }

    /// Without a connection, sends jobs over the pooled ones: they may be open even if the server
    /// accepts no further connections. A durable job would block one of them, so it goes there only
    /// if opening has failed.
    fn fall_back_to_pool<P: JobPolicy<Peer = N>>(&mut self, policy: &P, io_timeout: Duration) {
        if self.connection.open.is_some() || self.waiting.is_empty() {
            return;
        }
        let waiting = mem::take(&mut self.waiting);
        let before = waiting.len();
        let latest = waiting.iter().map(|exchange| exchange.deadline).max();
        let deadline = end_of(io_timeout);
        self.waiting = policy.post_over_pool(&self.connection.peer, waiting, deadline);
        if self.waiting.len() < before {
            self.shares_until = deadline;
            self.over_pool_until = self.over_pool_until.max(latest);
        }
    }

    /// Returns when to close a silent connection: after `io_timeout`, or after the longest time
    /// that one of its jobs may take.
    fn give_up_at(&self, io_timeout: Duration) -> Option<Instant> {
        let in_flight = &self.connection.open.as_ref()?.in_flight;
        Some(in_flight.expected_since()? + io_timeout.min(in_flight.most_time()))
    }

    /// Closes a silent connection, and fails the jobs in flight whose deadlines have passed.
    fn time_out(&mut self, now: Instant, io_timeout: Duration) {
        let is_silent = self.give_up_at(io_timeout).is_some_and(|give_up_at| give_up_at <= now);
        let Some(open) = &mut self.connection.open else { return };
        if is_silent {
            open.time_out();
        } else {
            open.expire(now);
        }
    }

    /// Returns when to continue even if no reply arrives.
    fn next_wake(&self, io_timeout: Duration) -> Option<Instant> {
        let open = self.connection.open.as_ref();
        let next_expiry = open.and_then(|open| open.in_flight.next_expiry());
        let is_unsent = open.is_none() && !self.waiting.is_empty();
        let look = if is_unsent { Some(end_of(LOOK)) } else { None };
        let deadlines = self.waiting.iter().map(|exchange| exchange.deadline);
        deadlines.chain(next_expiry).chain(self.give_up_at(io_timeout)).chain(look).min()
    }

    /// Sends the queued jobs if everything before them is written and the server is not waiting for
    /// replicas or disks. Starts to open a connection if there is none. Fails if none is going to
    /// open.
    fn send_waiting(&mut self, previous: Option<Connection>, urgent: bool) -> Result<(), Failure> {
        let outcome = self.connection.finish_opening();
        let was_prepared = outcome.is_some() && mem::take(&mut self.is_prepared);
        if let Some(Err(failure)) = outcome
            && self.connection.open.is_none()
            // A failure from before any job needed the connection may be long past.
            && !was_prepared
        {
            return Err(failure);
        }
        let Some(deadline) = self.waiting.iter().map(|exchange| exchange.deadline).max() else {
            return Ok(());
        };
        let urgent = urgent || was_prepared;
        // Durable jobs go over the pool only if opening fails. So for them, and after an earlier
        // failure, it succeeds only once the server has answered over the connection.
        if self.demand.is_some() || self.connection.failure().is_some() {
            self.connection.begin_opening(previous, deadline, urgent, greeted)?;
        } else {
            self.connection.begin_opening(previous, deadline, urgent, Ok)?;
        }
        while !self.waiting.is_empty() {
            // The server reads nothing behind WAIT until the replicas have confirmed what was sent.
            let is_confirming = self.demand.is_some() && self.connection.is_busy();
            let Some(open) = &mut self.connection.open else { break };
            if is_confirming || open.is_writing() {
                break;
            }
            let batch = self.waiting.len().min(BATCH_MAX);
            open.send(self.waiting.drain(..batch));
        }
        Ok(())
    }

    /// Closes a connection that must not be used for the queued jobs. Returns one that may be used
    /// as soon as the server is confirmed not to have moved.
    fn close_unless_ready(&mut self) -> Option<Connection> {
        if self.waiting.is_empty() {
            return None;
        }
        let open = self.connection.open.as_mut()?;
        // A stale connection stays in use while replies are outstanding: these jobs go where the
        // others went.
        let is_idle = open.in_flight.is_empty();
        let is_ready = if is_idle { open.is_usable() } else { open.is_open() };
        if is_ready {
            return None;
        }
        if !is_idle {
            // The requests in flight fail, because their replies cannot arrive over another
            // connection.
            open.time_out();
        }
        self.connection.open.take()
    }
}

/// Returns the connection once the server has answered over it.
fn greeted(mut connection: Connection) -> Result<Connection, Failure> {
    let deadline = end_of(connection.factory.connect_timeout);
    connection.await_greeting(deadline).map(|()| connection)
}

fn fail(unsent: Vec<Exchange>, failure: &Failure) {
    for exchange in unsent {
        exchange.answer(Err(failure.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::server::ServerFactory;
    use crate::store::background::JobReply;
    use crate::store::background::peer::tests::One;
    use crate::store::commands::Commands;
    use crate::store::hold_id::{HoldId, HoldKind};
    use crate::store::request::Change;
    use crate::store::tests::process::Server;

    const SOON: Duration = Duration::from_secs(5);

    /// A node, whether it is likely to get more jobs, and its jobs in flight over the connections
    /// of calls, if any.
    struct ToOne(One, Arc<AtomicBool>, Option<Mutex<Vec<Exchange>>>);

    impl JobPolicy for ToOne {
        type Peer = One;
        type Progress = ();

        fn route(&mut self, _: &str) -> Result<(Vec<One>, ()), Failure> {
            Ok((vec![self.0.clone()], ()))
        }

        fn post_over_pool(&self, _: &One, posted: Vec<Exchange>, _: Instant) -> Vec<Exchange> {
            let Some(in_flight) = &self.2 else { return posted };
            in_flight.lock().extend(posted);
            Vec::new()
        }

        fn decide(
            &mut self,
            _: &Job,
            (): &mut (),
            _: &One,
            reply: Result<HoldReply, Failure>,
        ) -> Decision<One> {
            Decision::Done(reply.map(JobReply::from))
        }

        fn keeps(&self, _: &One) -> bool {
            self.1.load(Ordering::Relaxed)
        }
    }

    fn release(deadline: Instant) -> Job {
        let (kind, name, client) = (HoldKind::Lock, Arc::from("a"), Arc::from("me"));
        let hold = HoldId { kind, name, client, nonce: 1 };
        Job { id: 1, hold, change: Change::RELEASE, deadline }
    }

    #[test]
    fn a_job_over_the_connections_of_calls_ends_in_its_time_if_no_thread_reads_the_reply() {
        let config = Config::default();
        let factory = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoint = factory.endpoint("redis://127.0.0.1:1/").expect("a good URL");
        let node = Arc::new(factory.connections(endpoint));
        let settings = BackgroundSettings::new(&Commands::new(&config), &factory);
        let policy = ToOne(One(node), Arc::default(), Some(Mutex::default()));
        let mut jobs = BackgroundJobs::new(policy, settings);
        let deadline = end_of(Duration::from_millis(100));
        jobs.send(vec![release(deadline)], &mut |_, _| panic!("it is in flight"));
        let mut done = Vec::new();
        jobs.collect(end_of(SOON), &mut |id, outcome| {
            outcome.expect_err("no reply");
            done.push((id, clock::now() < deadline + SOON / 2));
        });
        assert_eq!(done, [(1, true)], "in time");
    }

    #[test]
    fn the_connection_to_a_node_that_has_left_is_closed() {
        let (server, config) = (Server::redis(), Config::default());
        let factory = ServerFactory::new(&config, &Events::default()).expect("a thread");
        let endpoint = factory.endpoint(&server.url()).expect("a good URL");
        let (node, keeps) = (Arc::new(factory.connections(endpoint)), Arc::default());
        let settings = BackgroundSettings::new(&Commands::new(&config), &factory);
        let policy = ToOne(One(node), Arc::clone(&keeps), None);
        let mut jobs = BackgroundJobs::new(policy, settings);
        let mut done = Vec::new();
        jobs.send(vec![release(end_of(SOON))], &mut |id, _| done.push(id));
        jobs.collect(end_of(SOON), &mut |id, outcome| {
            outcome.expect("a reply");
            done.push(id);
        });
        assert_eq!((done, jobs.nodes.len()), (vec![1], 1));
        keeps.store(true, Ordering::Relaxed);
        jobs.send(Vec::new(), &mut |_, _| {});
        assert_eq!(jobs.nodes.len(), 1);
        keeps.store(false, Ordering::Relaxed);
        jobs.send(Vec::new(), &mut |_, _| {});
        assert!(jobs.nodes.is_empty());
    }
}
