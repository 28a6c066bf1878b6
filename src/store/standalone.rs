//! Locks on one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::config::Config;
use crate::event::Events;
use crate::net::demand::Demand;
use crate::net::exchange::{Exchange, SendWait};
use crate::net::request::{Reply, Request};
use crate::net::server::Server;
use crate::store::Store;
use crate::store::background::jobs::BackgroundJobs;
use crate::store::background::one_server::{JobsOfOneServer, WakeupsOfOneServer};
use crate::store::background::wakeups::BackgroundWakeups;
use crate::store::background::{JobRunner, Wakeups};
use crate::store::commands::Commands;
use crate::store::decoder::Decoder;
use crate::store::hold_id::HoldKind;
use crate::store::keys::ShardTag;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, HolderReply, PendingReply, PostedChange,
    ReportReply, ServerConnections,
};
use crate::store::scripts::Command;

/// How many acquires after one that found its lock held are expected to find theirs held, too.
const CONTENDED: u32 = 64;

/// Locks on one server. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Standalone {
    server: Server,
    commands: Commands,
    /// What new holds and levels must meet in addition.
    demand: Option<Demand>,
    /// How many more acquires that are to meet that are expected to find their locks held.
    contended: Arc<AtomicU32>,
    io_timeout: Duration,
    /// The same for wake-ups, where no lease is at stake.
    wakeups_io_timeout: Duration,
    events: Events,
}

impl Standalone {
    pub(crate) fn new(server: Server, config: &Config) -> Self {
        Self {
            server,
            commands: Commands::new(config),
            demand: Demand::new(config.durability),
            contended: Arc::default(),
            io_timeout: config.io_timeout(config.options.first_lease()),
            wakeups_io_timeout: config.io_timeout(Duration::MAX),
            events: config.events.clone(),
        }
    }

    /// The same locks on a node that is importing their slot, which serves only requests that are
    /// preceded by ASKING.
    pub(crate) fn asking(&self) -> Self {
        Self { server: self.server.asking(), ..self.clone() }
    }

    /// The same locks at a node of a cluster, where that is the hash tag of sharded channels.
    pub(crate) fn in_cluster(mut self, shard: ShardTag) -> Self {
        self.commands = self.commands.in_cluster(Some(shard));
        self
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Sends a command and waits for the reply.
    fn execute<T: Clone>(&self, command: Command<T>, deadline: Instant) -> Result<T, Failure> {
        let Command { request, decoder } = command;
        decode(&self.server, &decoder, self.server.exchange(request, deadline))
    }

    /// As `execute`. If the script has done something, the reply counts only once that is as
    /// durable as demanded.
    fn execute_durably<T: Clone>(
        &self,
        command: Command<T>,
        send_wait: SendWait,
        deadline: Instant,
    ) -> Result<T, Failure> {
        let (Command { request, decoder }, demand) = (command, self.demand);
        let demand = demand.map(|demand| (demand, send_wait));
        let reply = self.server.exchange_durably(request, demand, deadline);
        decode(&self.server, &decoder, reply)
    }

    fn ask_alone(&self, request: HoldRequest<'_>) -> Result<HoldReply, Failure> {
        let HoldRequest { hold, change, deadline } = request;
        let command = self.commands.change(hold, change);
        if change.is_durable() {
            self.execute_durably(command, SendWait::Along, deadline)
        } else {
            self.execute(command, deadline)
        }
    }

    /// Returns the request for a change.
    fn to_post(&self, post: PostedChange<'_>) -> Exchange {
        let PostedChange { request: HoldRequest { hold, change, deadline }, on_reply } = post;
        let Command { request, decoder } = self.commands.change(hold, change);
        let server = self.server.clone();
        let decode = move |reply: Reply| on_reply(decode(&server, &decoder, reply));
        let posted = self.server.to_post(request, deadline, Box::new(decode));
        if change == Change::Unregister { posted.at_once() } else { posted }
    }

    /// As `execute`, without waiting for the reply.
    fn start<T: Clone + Send + 'static>(
        &self,
        command: Command<T>,
        deadline: Instant,
    ) -> PendingReply<T> {
        let Command { request, decoder } = command;
        let (server, pending) = (self.server.clone(), self.server.begin(request, deadline));
        PendingReply::new(move || decode(&server, &decoder, pending.wait()))
    }
}

fn decode<T: Clone>(server: &Server, decoder: &Decoder<T>, reply: Reply) -> Result<T, Failure> {
    decoder.decode(reply).unwrap_or_else(|| Err(server.invalid_reply()))
}

impl Store for Standalone {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        let command = self.commands.acquire(request);
        if self.demand.is_none() {
            return self.execute(command, request.deadline);
        }
        let contended = self.contended.load(Ordering::Relaxed);
        let send_wait = if contended > 0 { SendWait::After } else { SendWait::Along };
        let reply = self.execute_durably(command, send_wait, request.deadline);
        match reply {
            Ok(AcquireReply::Held { .. }) => self.contended.store(CONTENDED, Ordering::Relaxed),
            // Threads that do so at the same time count as one.
            _ if contended > 0 => self.contended.store(contended - 1, Ordering::Relaxed),
            _ => {}
        }
        reply
    }

    fn start_acquire(&self, request: Acquire<'_>) -> Option<PendingReply<AcquireReply>> {
        // A demand needs a connection to itself, over which only the thread that waits can read.
        let can_start = self.demand.is_none();
        can_start.then(|| self.start(self.commands.acquire(request), request.deadline))
    }

    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..names.len()).collect();
        all.chunks(self.commands.group_max()).map(<[usize]>::to_vec).collect()
    }

    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        if let [request] = requests {
            return on_reply(0, self.ask_alone(*request));
        }
        let Some(deadline) = requests.iter().map(|request| request.deadline).max() else { return };
        let demand = self.demand.filter(|_| requests.iter().any(|it| it.change.is_durable()));
        let command = |request: &HoldRequest<'_>| {
            let Command { request, decoder } = self.commands.change(request.hold, request.change);
            (request, decoder)
        };
        let (batch, decoders): (Vec<Request>, Vec<_>) = requests.iter().map(command).unzip();
        let demand = demand.map(|demand| (demand, SendWait::Along));
        let replies = self.server.exchange_all(batch, demand, deadline).into_iter().zip(decoders);
        for (place, (reply, decoder)) in replies.enumerate() {
            on_reply(place, decode(&self.server, &decoder, reply));
        }
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        self.server.post(posts.into_iter().map(|post| self.to_post(post)));
    }

    fn settle(&self, deadline: Instant) {
        self.server.settle(deadline);
    }

    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        self.execute(self.commands.inspect(name), deadline)
    }

    fn inspect_fence(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        self.execute(self.commands.inspect_fence(name), deadline)
    }

    fn report(&self, name: &str, deadline: Instant) -> Result<ReportReply, Failure> {
        self.execute(self.commands.report(name), deadline)
    }

    fn connections(&self) -> Result<ServerConnections, Failure> {
        Ok(ServerConnections { each: vec![self.server.connection()], required: 1 })
    }

    fn force_release(
        &self,
        kind: HoldKind,
        name: &str,
        owner: &[u8],
        deadline: Instant,
    ) -> Result<bool, Failure> {
        let reply = self.execute(self.commands.force_release(kind, name, owner), deadline)?;
        Ok(reply == HoldReply::Done)
    }

    fn count(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        self.execute(self.commands.count(name), deadline)
    }

    fn ping(&self, deadline: Instant) -> Result<(), Failure> {
        self.server.ping(deadline)
    }

    fn wakeups(&self, client: &str, redisson: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        Box::new(BackgroundWakeups::new(
            WakeupsOfOneServer::new(self.server.clone()),
            &self.commands,
            client,
            self.wakeups_io_timeout,
            redisson,
            &self.events,
        ))
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        let (policy, commands) = (JobsOfOneServer(self.server.clone()), self.commands.clone());
        Box::new(BackgroundJobs::new(policy, commands, self.demand, self.io_timeout))
    }
}
