//! Background work: the jobs of the renewer, for many holds at a time, and the wake-ups of the
//! listener, which tell a waiting client that a lock may be free.
//!
//! Most stores run both over connections that one thread keeps to one or more nodes. These
//! connections are outside the pool, so that a busy pool cannot delay renewals. Each store has a
//! policy for what differs: which nodes there are, where a job is sent, and how replies and
//! messages are counted.

pub(crate) mod jobs;
pub(crate) mod peer;
mod subscription;
pub(crate) mod wakeups;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::event_thread::Events;
use crate::base::failure::Failure;
use crate::net::demand::Demand;
use crate::net::in_flight::Exchange;
use crate::net::server::ServerFactory;
use crate::net::wait::Interrupter;
use crate::store::background::peer::Peer;
use crate::store::commands::{Commands, Scope};
use crate::store::hold_id::HoldId;
use crate::store::request::{Change, HoldReply};

/// The settings that the jobs and wake-ups of a client share in all stores on servers.
#[derive(Clone)]
pub(crate) struct BackgroundSettings {
    pub(crate) commands: Commands,
    /// The durability a renewal must reach before it counts.
    pub(crate) demand: Option<Demand>,
    /// A connection is closed if it is silent for this long while a reply is outstanding. A short
    /// lease of the client does not shorten it, because handles may have longer leases.
    pub(crate) io_timeout: Duration,
    pub(crate) events: Events,
}

impl BackgroundSettings {
    pub(crate) fn new(commands: &Commands, servers: &ServerFactory) -> Self {
        let ServerFactory { config, events, .. } = servers;
        Self {
            commands: commands.clone(),
            demand: Demand::new(config.durability),
            io_timeout: config.io_timeout(Duration::MAX),
            events: events.clone(),
        }
    }
}

/// A request about one hold.
pub(crate) struct Job {
    /// Identifies its outcome. Unique among the jobs that have no outcome yet.
    pub(crate) id: u64,
    pub(crate) hold: HoldId,
    pub(crate) change: Change,
    /// If the job has no outcome by then, it has failed.
    pub(crate) deadline: Instant,
}

/// The outcome of a job. After an ambiguous failure the hold is in doubt, not lost.
pub(crate) type JobOutcome = Result<JobReply, Failure>;

/// The result of a job at the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobReply {
    pub(crate) hold: HoldReply,
    /// Whether every server that may have the hold has replied. With several servers, a majority
    /// is enough for a reply.
    pub(crate) everywhere: bool,
}

impl From<HoldReply> for JobReply {
    /// The reply of the only server.
    fn from(hold: HoldReply) -> Self {
        Self { hold, everywhere: true }
    }
}

/// Decides where jobs are sent, and how the replies are counted.
pub(crate) trait JobPolicy: Send {
    type Peer: Peer;

    /// The state of a job that has no outcome yet.
    type Progress: Send;

    /// Returns the nodes that a job about this name is sent to first. Fails if none is known.
    fn route(&mut self, name: &str) -> Result<(Vec<Self::Peer>, Self::Progress), Failure>;

    /// Sends requests to a node over a pooled connection that is open and free, without waiting. A
    /// reply after `deadline` does not count. Returns the requests that were not sent.
    fn post_over_pool(
        &self,
        node: &Self::Peer,
        posted: Vec<Exchange>,
        deadline: Instant,
    ) -> Vec<Exchange>;

    /// Returns the builder of requests to a node, if it depends on the node: a release notifies the
    /// next client over that node's own sharded channel.
    fn commands<'a>(&self, _: &'a Self::Peer) -> Option<&'a Commands> {
        None
    }

    /// See [`JobRunner::has_open_ends`].
    fn has_open_ends(&self) -> bool {
        false
    }

    /// Decides about a job after one node's reply.
    fn decide(
        &mut self,
        job: &Job,
        progress: &mut Self::Progress,
        from: &Self::Peer,
        reply: Result<HoldReply, Failure>,
    ) -> Decision<Self::Peer>;

    /// Returns how many nodes must be connected. While there are fewer, all missing ones are tried
    /// without a pause.
    fn required(&self) -> usize {
        0
    }

    /// Returns `true` if an idle connection to the node should be kept, because more jobs are
    /// likely.
    fn keeps(&self, _: &Self::Peer) -> bool {
        true
    }
}

/// The next step of a job after a reply.
pub(crate) enum Decision<N> {
    Done(JobOutcome),
    /// A node must be asked next, in this scope.
    SendTo(N, Scope),
    /// More replies are needed.
    Undecided,
}

/// Sends jobs in batches and collects their outcomes. Each job that is not abandoned has exactly
/// one outcome. No method waits for a connection to open.
pub(crate) trait JobRunner: Send {
    /// Starts to open the connections that jobs about this name will need, unless they are open.
    fn prepare(&mut self, _name: &str) {}

    /// Sends jobs now, or as soon as a connection is open and has room. Does not block.
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome));

    /// Blocks until every job has an outcome or until `deadline`. Calls `done` with each outcome.
    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome));

    /// Returns `true` if a hold that the store withdraws by itself may still exist, because not all
    /// replies have come. If the withdrawal fails, the hold is reported as in doubt before this is
    /// `false`.
    fn has_open_ends(&self) -> bool {
        false
    }

    /// Forgets the jobs without an outcome, and closes the connections. After a panic, their state
    /// may be wrong.
    fn abandon(&mut self) {}
}

/// A hold that has no guard but may exist on a server.
#[derive(Debug)]
pub(crate) struct InDoubtHold {
    pub(crate) hold: HoldId,
    /// The lock stays taken until then, even after the hold is removed.
    pub(crate) taken_until: Moment,
    /// After this time the hold has ended by itself.
    pub(crate) lease: Duration,
    /// Whether a late request may still begin the hold, in which case one confirmed release is not
    /// enough.
    pub(crate) may_begin: bool,
}

/// After a connection has lasted this long, its end counts as a new outage.
pub(crate) const STABLE: Duration = Duration::from_secs(1);

/// A message to a waiting client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Whether messages arrive from all nodes that have locks, so that this client hears every
    /// request for one.
    Complete(bool),
    /// The echo that a call for the lock of this name has asked for. It shows that messages of that
    /// server arrive.
    Echo(String),
    /// The hold of this name with this nonce was ended by force, on at least one server.
    Ended { name: String, nonce: u64 },
    /// The lock of this name may be free.
    Lock(String),
    /// A thread of another client has waited long for a lock that this client holds with this
    /// nonce. A nonce of 0 means that threads wait for each other in a circle. The message says
    /// which threads.
    Probe { nonce: u64, message: String },
    /// Another client wants a lock of this client, whose hold has this nonce.
    Recall {
        name: String,
        nonce: u64,
        /// Whether that client waits for a kept lock for longer than a moment.
        waits: bool,
    },
    /// Redisson may have released the locks of these names. A client that is not in the queue may
    /// already have taken them again.
    Unlocked(Vec<Arc<str>>),
    /// Messages arrive again. Earlier ones may have been missed.
    Ready,
}

/// The messages to one client, for one thread.
pub(crate) trait Wakeups: Send {
    /// Blocks until a message arrives or until `deadline`, but returns a message that has already
    /// arrived even after that. Fails if no message can arrive at the moment; the next call tries
    /// again.
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>>;

    /// Returns a handle with which another thread can end a call of `next`, and every later one.
    fn interrupter(&self) -> Interrupter;
}

/// Decides which nodes to listen to, and how their messages are counted.
pub(crate) trait WakeupPolicy: Send {
    type Peer: Peer;

    /// Returns the pause after a failed attempt to listen to a node, or after listening to it for
    /// less than this time.
    fn pause(&self) -> Duration;

    /// Returns the nodes to listen to.
    fn peers(&self) -> Vec<Self::Peer>;

    /// Returns `true` if that node serves, or may serve, the lock of this name.
    fn is_home(&self, _: &Self::Peer, _: &str) -> bool {
        true
    }

    /// Returns the hash tag of the sharded channels of that node; empty if it has none.
    fn shard_tag(&self, _: &Self::Peer) -> Arc<str> {
        Arc::default()
    }

    /// Returns `true` if the client should learn that it now listens to one more node.
    fn is_ready(&self, _listening: usize) -> bool {
        true
    }

    /// Returns `true` if listening to this many nodes is enough to hear every client that asks for
    /// a lock.
    fn is_complete(&self, listening: usize) -> bool {
        listening == self.peers().len()
    }

    /// Handles the message of a node. Returns the message for the client, if it is due at once.
    fn receive(&mut self, from: &Self::Peer, wake: Wake) -> Option<Wake>;

    /// Returns a message for the client that has become due in the meantime.
    fn take_due(&mut self) -> Option<Wake> {
        None
    }

    /// Returns when `take_due` has something to return even if no message arrives.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// Notes that messages of a node no longer arrive.
    fn fail(&mut self, _: &Self::Peer, _: &Failure) {}
}
