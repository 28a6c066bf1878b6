//! The servers of a quorum in a simulation: the shipped quorum, over links to servers in memory. A
//! server does what the scripts would do for locks, with the arguments that they would get.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::base::clock::{self, Moment};
use crate::base::event_thread::Events;
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::executor::{self, Process};
use crate::config::Config;
use crate::net::demand::Demand;
use crate::net::endpoint::Endpoint;
use crate::net::factory::ConnectionFactory;
use crate::net::in_flight::Exchange;
use crate::net::packed::{Request, Script};
use crate::net::shared_call::Resolver;
use crate::net::wait::{Interrupter, ReplyWait, Spin};
use crate::simulation::flaws::{Flaw, flawed};
use crate::simulation::network::{Network, Pair, failure, network, send, subscribe};
use crate::simulation::record::{Subject, Wish};
use crate::simulation::server::unless_refused;
use crate::simulation::world::{self, text_of, words};
use crate::store::background::{
    BackgroundSettings, Decision, Job, JobOutcome, JobPolicy, JobRunner, Wake, WakeupPolicy,
    Wakeups,
};
use crate::store::commands::Commands;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::memory::Memory;
use crate::store::quorum::Quorum;
use crate::store::quorum::ballot::{Ballot, QuorumServers};
use crate::store::quorum::exclusive::{ExclusiveLinks, SharedLinks};
use crate::store::quorum::policies::{JobsOfMajorities, WakeupsOfMajorities};
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldReply, HoldRequest, Look, NextLease, OwnerOf, Registration,
    Telling,
};
use crate::store::scripts::{self, ScriptReply};
use crate::store::{Store, ask_one};

/// Returns the quorum as a client sees it.
pub(super) fn quorum(client: Process, config: &Config) -> Quorum<SimulatedLinks> {
    let settings = BackgroundSettings {
        commands: Commands::proposing(config),
        demand: Demand::new(config.durability),
        io_timeout: config.io_timeout(Duration::MAX),
        events: Events::default(),
    };
    let count = network(|it| it.servers.len());
    let factory = |number| {
        let url = format!("redis://server-{number}/");
        let endpoint = Endpoint::parse(&url, config, &settings.events).expect("a good URL");
        ConnectionFactory::new(endpoint, config, Resolver::default())
    };
    let factories: Vec<_> = (0..count).map(factory).collect();
    let servers = QuorumServers::new(factories, settings, Spin::new(Duration::ZERO));
    let traffic = Arc::default();
    let links = SimulatedLinks { client, servers: servers.clone(), traffic };
    Quorum { servers, links: vec![links] }
}

/// The links of one client.
#[derive(Clone)]
pub(super) struct SimulatedLinks {
    client: Process,
    servers: Arc<QuorumServers>,
    traffic: Arc<Traffic>,
}

/// The numbers of requests, and of their replies or failures.
#[derive(Default)]
struct Traffic {
    sent: AtomicU64,
    answered: AtomicU64,
}

impl SharedLinks for SimulatedLinks {
    type Locked<'a> = Self;

    fn lock(&self, _: Instant) -> Result<Self, Failure> {
        Ok(self.clone())
    }

    fn prepare(&self, _: Instant) -> Result<Self, Failure> {
        Ok(self.clone())
    }

    fn lock_to_post(&self, _: Instant) -> Result<Self, Failure> {
        Ok(self.clone())
    }

    fn post_if_open(&self, _: usize, posted: Vec<Exchange>, _: Instant) -> Vec<Exchange> {
        posted
    }

    fn jobs(servers: &Arc<QuorumServers>, links: &[Self]) -> Box<dyn JobRunner> {
        let policy = JobsOfMajorities::new(servers.clone(), links.to_vec());
        let links = links[0].clone();
        Box::new(QuorumJobs { links, policy, jobs: HashMap::new(), replies: Arc::default() })
    }

    fn wakeups(servers: &Arc<QuorumServers>, links: &[Self], id: &str) -> Box<dyn Wakeups> {
        let policy = WakeupsOfMajorities::new(servers.clone());
        let each = servers.each.iter().map(|_| Subscribed::At(clock::now())).collect();
        let interrupter = Interrupter::new();
        let (client, id) = (links[0].client, id.into());
        Box::new(QuorumWakeups { client, id, policy, each, interrupter, is_complete: None })
    }
}

impl ExclusiveLinks for SimulatedLinks {
    fn servers(&self) -> &Arc<QuorumServers> {
        &self.servers
    }

    fn is_connected(&self, server: usize) -> bool {
        network(|it| it.servers[server].down_until <= clock::now())
    }

    fn check(&self, server: usize, _: bool) -> Result<(), Failure> {
        if self.is_connected(server) {
            return Ok(());
        }
        Err(failure(FailureKind::Unreachable))
    }

    fn write<T: ScriptReply>(&mut self, server: usize, ballot: &Arc<Ballot<T>>) {
        let pair = Pair { client: self.client, server };
        let usual = clock::end_of(self.servers.settings.io_timeout);
        let deadline = ballot.demand.map_or(usual, |(_, deadline)| deadline);
        let durable = ballot.demand.is_some();
        self.traffic.sent.fetch_add(1, Ordering::Relaxed);
        let (request, ballot, traffic) =
            (ballot.request.clone(), ballot.clone(), self.traffic.clone());
        send_script(pair, "asks", request, deadline, durable, move |reply| {
            ballot.receive(server, reply);
            traffic.answered.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn read(&mut self, _: Option<&mut ReplyWait<'_>>, deadline: Instant) -> bool {
        let traffic = self.traffic.clone();
        let answered = traffic.answered.load(Ordering::Relaxed);
        if traffic.sent.load(Ordering::Relaxed) == answered {
            return false;
        }
        let is_answered =
            move || (traffic.answered.load(Ordering::Relaxed) != answered).then_some(());
        executor::wait_for(Some(deadline), is_answered).is_some()
    }

    fn drain(&mut self, deadline: Instant) {
        while self.read(None, deadline) {}
    }
}

/// Sends a script's call to one server. `done` gets its reply or its failure.
fn send_script(
    pair: Pair,
    what: &'static str,
    request: Request,
    deadline: Instant,
    durable: bool,
    done: impl FnOnce(Result<Value, Failure>) + 'static,
) {
    let Pair { client, server } = pair;
    network(|it| it.links[client - 1].posts += 1);
    let what = words(|| format!("{what} server {server}: {}", describe(&request)));
    let subjects = Call::parse(&request).subjects();
    let request = move |memory: &Memory| perform(memory, server, &request);
    send(pair, &what, subjects, deadline, durable, request, move |reply| {
        network(|it| it.links[client - 1].posts -= 1);
        executor::of_process(client, || done(reply));
    });
}

/// The background jobs of one client, each of which is sent to all servers.
struct QuorumJobs {
    links: SimulatedLinks,
    policy: JobsOfMajorities<SimulatedLinks>,
    /// The jobs without an outcome.
    jobs: HashMap<u64, (Job, <JobsOfMajorities<SimulatedLinks> as JobPolicy>::Progress)>,
    replies: Arc<Mutex<VecDeque<JobVote>>>,
}

/// The reply of one server to a job.
struct JobVote {
    id: u64,
    server: usize,
    reply: Result<HoldReply, Failure>,
}

impl QuorumJobs {
    fn decide(&mut self, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            let next = self.replies.lock().pop_front();
            let Some(JobVote { id, server, reply }) = next else { return };
            let Some((job, progress)) = self.jobs.get_mut(&id) else { continue };
            let from = self.links.servers.each[server].clone();
            if let Decision::Done(outcome) = self.policy.decide(job, progress, &from, reply) {
                self.jobs.remove(&id);
                done(id, outcome);
            }
        }
    }
}

impl JobRunner for QuorumJobs {
    fn send(&mut self, jobs: Vec<Job>, done: &mut dyn FnMut(u64, JobOutcome)) {
        self.decide(done);
        for job in jobs {
            let (id, deadline) = (job.id, job.deadline);
            let (peers, progress) = self.policy.route(&job.hold.name).expect("all servers");
            let settings = &self.links.servers.settings;
            let request = settings.commands.change(&job.hold, job.change);
            let durable = settings.demand.is_some() && job.change.is_durable();
            self.jobs.insert(id, (job, progress));
            for peer in peers {
                let (server, client) = (peer.number, self.links.client);
                let (pair, replies) = (Pair { client, server }, self.replies.clone());
                let (what, request) = ("in the background, to", request.clone());
                send_script(pair, what, request, deadline, durable, move |reply| {
                    let reply = reply.map(|it| HoldReply::read(&it).expect("a good reply"));
                    replies.lock().push_back(JobVote { id, server, reply });
                });
            }
        }
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        loop {
            self.decide(done);
            if self.jobs.is_empty() || clock::now() >= deadline {
                return;
            }
            let replies = self.replies.clone();
            let has_some = move || (!replies.lock().is_empty()).then_some(());
            executor::wait_for(Some(deadline), has_some);
        }
    }

    fn has_open_ends(&self) -> bool {
        self.policy.has_open_ends()
    }

    fn abandon(&mut self) {
        self.jobs.clear();
        self.replies.lock().clear();
    }
}

/// The messages of all servers to one client.
struct QuorumWakeups {
    client: Process,
    id: Arc<str>,
    policy: WakeupsOfMajorities,
    each: Vec<Subscribed>,
    interrupter: Interrupter,
    is_complete: Option<bool>,
}

/// Whether messages of a server arrive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscribed {
    /// Not before then.
    At(Instant),
    Yes,
}

impl QuorumWakeups {
    fn listening(&self) -> usize {
        self.each.iter().filter(|it| **it == Subscribed::Yes).count()
    }

    /// Subscribes wherever a subscription is due. Returns `true` if messages now arrive.
    fn follow(&mut self) -> bool {
        let mut is_ready = false;
        for server in 0..self.each.len() {
            let Subscribed::At(due) = self.each[server] else { continue };
            if due > clock::now() {
                continue;
            }
            let delay = network(Network::delay);
            executor::sleep(delay * 2);
            let pair = Pair { client: self.client, server };
            if subscribe(pair, &self.id).is_err() {
                self.each[server] = Subscribed::At(clock::end_of(self.policy.pause()));
                continue;
            }
            self.each[server] = Subscribed::Yes;
            is_ready |= self.policy.is_ready(self.listening());
        }
        is_ready
    }

    fn receive(&mut self) -> Option<Wake> {
        loop {
            let next = network(|it| it.links[self.client - 1].inbox.pop_front());
            match next? {
                (_, Ok(Wake::Complete(_) | Wake::Ready)) => {}
                (server, Ok(wake)) => {
                    let from = self.policy.peers()[server].clone();
                    let told = self.policy.receive(&from, wake);
                    if told.is_some() {
                        return told;
                    }
                }
                (server, Err(_)) => {
                    self.each[server] = Subscribed::At(clock::end_of(self.policy.pause()));
                }
            }
        }
    }

    fn note_complete(&mut self) -> Option<Wake> {
        let is_complete = self.policy.is_complete(self.listening());
        let is_news = self.is_complete != Some(is_complete);
        self.is_complete = Some(is_complete);
        is_news.then_some(Wake::Complete(is_complete))
    }
}

impl Wakeups for QuorumWakeups {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        loop {
            if self.interrupter.is_interrupted() {
                return Some(Err(failure(FailureKind::Unreachable)));
            }
            let ready = self.follow().then_some(Wake::Ready);
            let wake = ready.or_else(|| self.receive()).or_else(|| self.policy.take_due());
            if let Some(wake) = wake.or_else(|| self.note_complete()) {
                return Some(Ok(wake));
            }
            if self.listening() == 0 {
                return Some(Err(failure(FailureKind::Unreachable)));
            }
            if clock::now() >= deadline {
                return None;
            }
            let retries = self.each.iter().filter_map(|it| match it {
                Subscribed::At(due) => Some(*due),
                Subscribed::Yes => None,
            });
            let end = retries.chain(self.policy.next_look()).fold(deadline, Instant::min);
            let (client, interrupter) = (self.client, self.interrupter.clone());
            executor::wait_for(Some(end), move || {
                let has_some = !network(|it| it.links[client - 1].inbox.is_empty());
                (has_some || interrupter.is_interrupted()).then_some(())
            });
        }
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

impl Drop for QuorumWakeups {
    fn drop(&mut self) {
        if executor::is_active() {
            network(|it| {
                for wire in &mut it.links[self.client - 1].wires {
                    wire.subscription = None;
                }
            });
        }
    }
}

/// The name and the arguments of a script call.
struct Call<'a> {
    script: &'static Script,
    name: &'a str,
    keys: usize,
    args: Vec<&'a str>,
}

/// Returns the parts of a packed request: the same as `redis::parse_redis_value`, which would take
/// most of the time of a simulated quorum.
fn parts(packed: &str) -> Vec<&str> {
    let (_, mut rest) = packed.split_once("\r\n").expect("the number of parts");
    let mut parts = Vec::with_capacity(16);
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = length.strip_prefix('$').and_then(|it| it.parse().ok());
        let (part, after) = after.split_at(length.expect("a length"));
        parts.push(part);
        rest = after.strip_prefix("\r\n").expect("the end of a part");
    }
    parts
}

impl<'a> Call<'a> {
    fn parse(request: &'a Request) -> Self {
        let parts = parts(str::from_utf8(&request.bytes).expect("text"));
        let keys: usize = parts[2].parse().expect("a number of keys");
        let name = parts[3].strip_prefix("lock:").expect("the prefix of all locks");
        let script = request.script.expect("a script");
        Self { script, name, keys, args: parts[3 + keys..].to_vec() }
    }

    fn number(&self, at: usize) -> i64 {
        self.args.get(at).map_or(0, |arg| arg.parse().expect("a number"))
    }

    fn time(&self, at: usize) -> Duration {
        Duration::from_millis(self.number(at).unsigned_abs())
    }

    fn hold(&self) -> HoldId {
        let owner = self.args[0].as_bytes();
        HoldId::of_owner(owner, HoldKind::Lock, self.name).expect("an owner")
    }

    fn is(&self, script: &Script) -> bool {
        std::ptr::eq(self.script, script)
    }

    fn registration(&self) -> Registration {
        let life = self.number(3);
        let place = self.args.get(5).copied().unwrap_or_default();
        match (place, life) {
            ("", 0) => Registration::None,
            ("", ..0) => Registration::IfMayBeKept,
            ("", _) => Registration::IfHeld,
            ("kept", ..0) => Registration::Recall,
            ("kept", _) => Registration::Kept,
            ("queued", 0) => Registration::Last,
            ("queued", _) if self.number(6) > 1 => Registration::Followed,
            ("queued", _) => Registration::Registered,
            ("yields", _) => Registration::Yielding,
            ("returns", _) => Registration::Returning,
            _ => panic!("an unknown place {place:?}"),
        }
    }

    /// Returns the hold that the call is about, if there is one.
    fn subjects(&self) -> Vec<Subject> {
        let wish = if self.is(&scripts::ACQUIRE) {
            Wish::Acquire(self.time(1))
        } else if self.is(&scripts::CHANGE) && self.args.len() != 6 {
            self.change().into()
        } else if self.is(&scripts::RELEASE) && self.args[2] != "force" {
            Wish::Release
        } else {
            return Vec::new();
        };
        vec![Subject::of(&self.hold(), wish)]
    }

    fn change(&self) -> Change {
        let lease = NextLease { duration: self.time(1), whole: self.time(2) };
        let lease = Some(lease).filter(|lease| !lease.duration.is_zero());
        match (self.args[3], lease) {
            ("watch", lease) => Change::Watch { lease },
            ("", Some(lease)) => Change::Renew { lease },
            ("", None) => Change::Check,
            (depth, lease) => {
                let depth = depth.parse().expect("a depth");
                Change::SetDepth { depth, lease, durable: false }
            }
        }
    }
}

fn describe(request: &Request) -> String {
    let call = Call::parse(request);
    let holds: Vec<_> = call.subjects().iter().map(|it| text_of(&it.hold)).collect();
    format!("{:?} {:?} {}", call.name, call.args, holds.concat())
}

fn answer(reply: HoldReply) -> Value {
    Value::Int(match reply {
        HoldReply::Gone => 0,
        HoldReply::Done => 1,
        HoldReply::Wanted => 2,
    })
}

fn int<T: TryInto<i64>>(number: T) -> Value {
    Value::Int(number.try_into().unwrap_or(i64::MAX))
}

/// Executes a script on a server.
fn perform(memory: &Memory, server: usize, request: &Request) -> Result<Value, Failure> {
    let call = Call::parse(request);
    let deadline = executor::epoch();
    if call.is(&scripts::ACQUIRE) {
        return acquire(memory, server, &call);
    } else if call.is(&scripts::CHANGE) {
        let hold = call.hold();
        if call.args.len() == 6 {
            let fence = call.number(5).unsigned_abs();
            return unless_refused(server, Some(Change::Check), || {
                raise(server, &hold, fence).map(answer)
            });
        }
        return change(memory, server, &hold, call.change());
    } else if call.is(&scripts::RELEASE) {
        if call.args[2] == "force" {
            let owner = call.args[0].as_bytes();
            let owner = OwnerOf { kind: HoldKind::Lock, name: call.name, owner };
            let force = || memory.force_release(owner, deadline);
            let found = world::with(|world| world.force(call.name, force))?;
            return Ok(Value::Int(found.into()));
        }
        let hold = call.hold();
        if call.args[1].is_empty() {
            let server_memory = network(|it| it.servers[server].memory.clone());
            let release = Some(Change::RELEASE);
            return unless_refused(server, release, || {
                Ok(answer(server_memory.withdraw(&lock_key(call.name), &hold)))
            });
        }
        if let Some(taken) = call.args[2].strip_prefix("leave") {
            let released = change(memory, server, &hold, release_in(taken))?;
            if released == answer(HoldReply::Gone) && !flawed(Flaw::WaitsElsewhere) {
                change(memory, server, &hold, Change::Unregister)?;
            }
            return Ok(released);
        }
        return change(memory, server, &hold, release_in(call.args[2]));
    } else if call.is(&scripts::UNREGISTER) {
        let (kind, name, client) = (HoldKind::Lock, call.name.into(), call.args[0].into());
        let hold = HoldId { kind, name, client, nonce: 1 };
        return change(memory, server, &hold, Change::Unregister);
    } else if call.is(&scripts::REPORT) {
        return report(memory, &call);
    } else if call.is(&scripts::TELL) {
        let (message, clients) =
            (call.args[0].to_owned(), call.args[2..].iter().map(ToString::to_string));
        let telling = Telling { clients: clients.collect(), message };
        memory.tell(call.name, &telling, deadline)?;
    }
    Ok(Value::Int(1))
}

/// Returns the release of a hold whose lock stays taken for this many milliseconds.
fn release_in(taken: &str) -> Change {
    let taken_until = match taken.parse().expect("a number") {
        0 => Moment::FIRST,
        taken => Moment::now().after(Duration::from_millis(taken)),
    };
    Change::Release { taken_until, unused: None }
}

fn lock_key(name: &str) -> String {
    format!("lock:{name}")
}

fn change(memory: &Memory, server: usize, hold: &HoldId, change: Change) -> Result<Value, Failure> {
    let deadline = executor::epoch();
    let request = HoldRequest { hold, change, deadline };
    let is_renewal = change.lease().is_some();
    if flawed(Flaw::RenewalOfAMinority) && is_renewal && server > 0 {
        return Ok(answer(HoldReply::Done));
    }
    if flawed(Flaw::CounterEndsWithHold) && matches!(change, Change::Release { .. }) {
        network(|it| it.servers[server].memory.set_last_token(0));
    }
    let reply = unless_refused(server, Some(change), || ask_one(memory, request))?;
    Ok(answer(reply))
}

/// Raises the counter to the token of a hold.
fn raise(server: usize, hold: &HoldId, fence: u64) -> Result<HoldReply, Failure> {
    let (memory, falls_short) = network(|it| {
        let server = &it.servers[server];
        (server.memory.clone(), server.falls_short)
    });
    let has_it = memory.holds(&lock_key(&hold.name)).iter().any(|(it, ..)| it == hold);
    if !has_it && !flawed(Flaw::RaiseIsUnchecked) {
        return Ok(HoldReply::Gone);
    }
    if flawed(Flaw::RaiseLowers) {
        memory.set_last_token(fence);
    } else if !flawed(Flaw::RaiseOfAMinority) || server == 0 {
        memory.set_last_token(memory.last_token().max(fence));
    }
    if falls_short {
        return Err(failure(FailureKind::NotReplicated { acked: 0, required: 1 }));
    }
    Ok(HoldReply::Done)
}

fn acquire(memory: &Memory, server: usize, call: &Call<'_>) -> Result<Value, Failure> {
    let (holds, lease) = (&[call.hold()], call.time(1));
    let deadline = executor::epoch();
    let (registration, echo) = (call.registration(), call.args.get(9).is_some());
    let request = Acquire { holds, lease, note: None, registration, echo, deadline };
    let proposal = Duration::from_micros(call.number(4).unsigned_abs());
    let state = network(|it| it.servers[server].memory.clone());
    if flawed(Flaw::ProposalIsGiven) {
        state.set_last_token(0);
    } else if flawed(Flaw::CounterIsGivenAgain) {
        state.set_last_token(state.last_token().saturating_sub(1));
    }
    let act = || executor::at_unix_time(proposal, || memory.acquire(request));
    let mut reply = unless_refused(server, None, act)?;
    if let AcquireReply::Acquired { fence, room, .. } = &mut reply {
        let most = network(|it| it.servers[server].block) - 1;
        if *room > most && state.last_token() == *fence + u64::from(*room) {
            state.set_last_token(*fence + u64::from(most));
        }
        *room = most.min(*room);
    }
    Ok(match reply {
        AcquireReply::Acquired { fence, room: 0, wanted: false, .. } => int(fence),
        AcquireReply::Acquired { fence, room, wanted, .. } => {
            let wanted = wanted.then_some(Value::Int(1));
            let last = fence + u64::from(room);
            Value::Array([int(fence), int(last)].into_iter().chain(wanted).collect())
        }
        AcquireReply::Held { remaining, recalled, echoed, .. } => {
            let left = remaining.map_or(Value::Int(-1), |left| int(left.as_millis()));
            let recalled = Value::Int(i64::from(recalled));
            let held = [Value::Int(0), left, recalled, Value::Int(0)];
            Value::Array(
                held.into_iter()
                    .chain(echoed.map(|owner| Value::BulkString(owner.into_bytes())))
                    .collect(),
            )
        }
    })
}

fn report(memory: &Memory, call: &Call<'_>) -> Result<Value, Failure> {
    let look = if call.keys == 1 { Look::Holder } else { Look::Token };
    let report = memory.report(call.name, look, executor::epoch())?;
    let text = |text: String| Value::BulkString(text.into_bytes());
    let holds = report.holds.into_iter().map(|(_, holder)| {
        let left = int(holder.remaining.as_millis());
        let (owner, depth) = (Value::BulkString(holder.owner), text(holder.depth.to_string()));
        Value::Array(vec![text("l".into()), owner, left, depth])
    });
    let waiting = report.waiting.into_iter().map(text);
    Ok(Value::Array(vec![
        Value::Array(holds.collect()),
        text(report.fence.to_string()),
        Value::Array(waiting.collect()),
    ]))
}
