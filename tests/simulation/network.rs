//! The network and the server of a simulation: a store whose requests to the shipped memory server
//! travel for a while, get lost, or arrive late or twice.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::clock::{self, Moment};
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::executor::{self, Choice, Process, Random};
use crate::config::Config;
use crate::config::durability::Durability;
use crate::net::wait::Interrupter;
use crate::simulation::faults;
use crate::simulation::flaws::{
    Flaw, change_acquired, change_asked, change_granted, flawed, planted,
};
use crate::simulation::record::{self, Answer, Subject, Wish};
use crate::simulation::server::{Server, unless_refused};
use crate::simulation::world::{self, process_of, say, say_what_changed, text_of, words};
use crate::store::Store;
use crate::store::background::{Job, JobOutcome, JobRunner, Wake, Wakeups};
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::memory::Memory;
use crate::store::memory::memory_server::MemoryServer;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Ahead, Change, HoldReply, HoldRequest, Look, OwnerOf, PostedChange,
    ReportReply, Telling,
};
use crate::store::{ask_one, request::Registration};

/// How badly the network behaves: each chance is per mille.
#[derive(Clone, Default, Debug)]
pub(super) struct Weather {
    /// The connection breaks before the request has arrived, or after.
    pub(super) broken: u64,
    /// The request or its reply arrives after the caller has given up.
    pub(super) late: u64,
    /// The reply takes long, but arrives in time.
    pub(super) slow: u64,
    /// The request arrives twice.
    pub(super) twice: u64,
    /// A message to a waiting client is lost.
    pub(super) message_lost: u64,
}

impl Weather {
    pub(super) fn is_bad(&self) -> bool {
        self.broken + self.late + self.slow + self.twice + self.message_lost > 0
    }
}

/// The state of the network and of the server.
pub(super) struct Network {
    pub(super) random: Random,
    pub(super) weather: Weather,
    /// The usual travel time of a message, and how much longer it may take.
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    /// No request is executed later than this after it was sent, because clean-ups last as long.
    pub(super) lateness: Duration,
    /// Whether the requests of a client arrive in order, unless they get lost.
    pub(super) ordered: bool,
    /// Whether each name is on its own server, as in a cluster.
    pub(super) apart: bool,
    /// One server, or those of a quorum.
    pub(super) servers: Vec<Server>,
    /// When the replica last acknowledged a request too late.
    pub(super) fell_short: Option<Instant>,
    pub(super) links: Vec<Link>,
}

/// A client and a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) client: Process,
    pub(super) server: usize,
}

impl Pair {
    /// Returns the connections of the client to the server.
    pub(super) fn wire(self, network: &mut Network) -> &mut Wire {
        &mut network.links[self.client - 1].wires[self.server]
    }
}

/// The connections of one client to one server.
pub(super) struct Wire {
    pub(super) memory: Memory,
    /// How much longer than usual requests travel.
    pub(super) detour: Duration,
    /// No bytes pass until then.
    pub(super) cut_until: Instant,
    /// No message arrives until then, and the client cannot listen again.
    pub(super) deaf_until: Instant,
    /// When the last of the requests sent in order arrives.
    last_arrival: Instant,
    /// The server's side of the subscription, while there is one.
    pub(super) subscription: Option<Box<dyn Wakeups>>,
}

impl Wire {
    /// Ends all faults. Stuck requests do not delay a new connection.
    pub(super) fn heal(&mut self) {
        (self.cut_until, self.last_arrival) = (clock::now(), clock::now());
        self.deaf_until = clock::now();
    }
}

/// The connections of one client.
pub(super) struct Link {
    /// To each server.
    pub(super) wires: Vec<Wire>,
    pub(super) config: Config,
    /// The messages that have arrived, each with the server that has sent it.
    pub(super) inbox: VecDeque<(usize, Result<Wake, Failure>)>,
    /// When the client last asked for each name.
    pub(super) asked: BTreeMap<String, Instant>,
    /// The names for which an echo has arrived since the client began to listen, and when it last
    /// stopped listening.
    pub(super) echoes: BTreeSet<String>,
    pub(super) unheard_since: Instant,
    /// The first report of each name, for a flaw.
    reports: BTreeMap<String, ReportReply>,
    /// The outcomes of background jobs, and the number of those without one.
    outcomes: Vec<(u64, JobOutcome)>,
    jobs: usize,
    /// The number of requests without a reply that were posted, or sent to a quorum.
    pub(super) posts: usize,
    /// Counts how often the jobs were abandoned.
    generation: u64,
}

impl Link {
    pub(super) fn new(servers: &[Server], config: &Config) -> Self {
        let now = clock::now();
        let wire = |server: &Server| {
            let memory = Memory::new(&server.memory, config);
            let (detour, subscription) = (Duration::ZERO, None);
            let (cut_until, deaf_until, last_arrival) = (now, now, now);
            Wire { memory, detour, cut_until, deaf_until, last_arrival, subscription }
        };
        Self {
            wires: servers.iter().map(wire).collect(),
            config: config.clone(),
            inbox: VecDeque::new(),
            asked: BTreeMap::new(),
            echoes: BTreeSet::new(),
            unheard_since: now,
            reports: BTreeMap::new(),
            outcomes: Vec::new(),
            jobs: 0,
            posts: 0,
            generation: 0,
        }
    }

    /// Returns how long a request waits for the replica, if at all.
    fn acks_timeout(&self) -> Option<Duration> {
        let durability = self.config.durability;
        matches!(durability, Durability::Replicas { .. }).then(|| durability.timeout())
    }

    pub(super) fn break_subscription(&mut self, server: usize) {
        if self.wires[server].subscription.take().is_some() {
            self.inbox.retain(|(from, _)| *from != server);
            self.inbox.push_back((server, Err(failure(FailureKind::Disconnected))));
            self.echoes.clear();
            self.unheard_since = clock::now();
        }
    }

    /// Returns `true` if messages of a server arrive.
    pub(super) fn hears(&self, server: usize, now: Instant) -> bool {
        let wire = &self.wires[server];
        now >= wire.cut_until.max(wire.deaf_until) && wire.subscription.is_some()
    }

    /// Blocks all traffic between the client and a server until then.
    pub(super) fn cut_off(&mut self, server: usize, until: Instant) {
        self.wires[server].cut_until = until;
        self.break_subscription(server);
    }

    pub(super) fn has_jobs(&self) -> bool {
        self.jobs + self.posts > 0
    }
}

/// The process of events that have no cause.
pub(super) const NOWHERE: Process = 98;

pub(super) fn network<T>(act: impl FnOnce(&mut Network) -> T) -> T {
    world::with(|world| act(&mut world.network))
}

impl Network {
    pub(super) fn new(
        random: Random,
        weather: Weather,
        latency: Duration,
        lease: Duration,
        ordered: bool,
        servers: Vec<Server>,
        links: Vec<Link>,
    ) -> Self {
        Self {
            random,
            weather,
            latency,
            jitter: latency * 2,
            lateness: lease * 9 / 10,
            ordered,
            apart: false,
            servers,
            fell_short: None,
            links,
        }
    }

    /// Returns the holds and offers of a name at all servers, and how long each still lasts.
    pub(super) fn holds(&self, key: &str) -> Vec<(HoldId, u32, Duration)> {
        self.servers.iter().flat_map(|server| server.holds(key)).collect()
    }

    pub(super) fn is_quorum(&self) -> bool {
        self.servers.len() > 1
    }

    pub(super) fn delay(&mut self) -> Duration {
        self.latency + self.random.time(self.jitter)
    }

    /// Loses the server, and promotes the replica after a while. The new server gets a replica
    /// later.
    pub(super) fn fail_over(&mut self, server: usize, down_for: Duration) {
        let Some(replica) = &self.servers[server].replica else { return };
        let Some(state) = replica.state() else { return };
        let now = clock::now();
        self.servers[server].replica =
            Some(replica.next(&state, now + down_for + self.random.time(down_for)));
        self.restart(server, state, down_for);
    }

    /// Brings a server back with other data.
    pub(super) fn restart(&mut self, number: usize, memory: MemoryServer, down_for: Duration) {
        let server = &mut self.servers[number];
        server.memory = memory;
        server.restarts += 1;
        server.down_until = server.down_until.max(clock::now() + down_for);
        for link in &mut self.links {
            link.break_subscription(number);
            link.wires[number].memory = Memory::new(&server.memory, &link.config);
        }
    }
}

pub(super) fn failure(kind: FailureKind) -> Failure {
    Failure::io(kind, &Arc::from("simulated"), io::Error::other("simulated"))
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    BreaksBefore,
    BreaksAfter,
    /// It is executed late, without a reply in time.
    Late,
    /// It is neither executed nor answered.
    Lost,
    ReplyIsLost,
    Twice,
    /// It is executed again much later.
    TwiceLate,
}

/// The fates of a request that is not left to chance, the usual one first.
const FATES: [Fate; 8] = [
    Fate::Arrives,
    Fate::BreaksBefore,
    Fate::BreaksAfter,
    Fate::Late,
    Fate::Lost,
    Fate::ReplyIsLost,
    Fate::Twice,
    Fate::TwiceLate,
];

/// Executes a request on the server now. Returns the reply, and how long it waits for the replica,
/// if at all.
fn execute<T>(
    pair: Pair,
    acks: Option<Duration>,
    request: &dyn Fn(&Memory) -> T,
) -> (T, Option<Duration>) {
    let (memory, server, skew, missing) = network(|it| {
        let server = &it.servers[pair.server];
        let missing = acks.filter(|timeout| !server.is_replicated_in(*timeout));
        let (server, skew) = (server.memory.clone(), server.skew());
        (pair.wire(it).memory.clone(), server, skew, missing)
    });
    if missing.is_some() && !flawed(Flaw::ShortfallIsSuccess) {
        network(|it| {
            it.fell_short = Some(clock::now());
            it.servers[pair.server].falls_short = true;
        });
        server.refuse_with(Some("NOTREPLICATED"));
    }
    let result = executor::skewed(skew, || request(&memory));
    server.refuse_with(None);
    let replicated = network(|it| {
        let server = &mut it.servers[pair.server];
        server.falls_short = false;
        server.replicate()
    });
    faults::after_execution();
    deliver(pair.server);
    let acks = acks.filter(|_| !flawed(Flaw::ShortfallIsSuccess));
    let waits = acks.map(|timeout| missing.or(replicated).unwrap_or(timeout));
    (result, waits)
}

/// Returns how much later than usual a request or message arrives, unless it is left to chance:
/// after those that were sent a little later.
fn late_arrival() -> Duration {
    let is_late = executor::choose(Choice::Arrival, 2) == Some(1);
    if is_late { network(|it| it.latency * 8) } else { Duration::ZERO }
}

/// Sends a server's pending messages to its clients.
pub(super) fn deliver(server: usize) {
    let mut client = 1;
    loop {
        let next = network(|it| {
            while let Some(link) = it.links.get_mut(client - 1) {
                let subscription = link.wires[server].subscription.as_mut();
                if let Some(next) = subscription.and_then(|it| it.next(executor::epoch())) {
                    return Some((next, it.delay(), it.random.permille(it.weather.message_lost)));
                }
                client += 1;
            }
            None
        });
        let Some((next, delay, is_lost)) = next else { return };
        let can_be_lost = !matches!(next, Ok(Wake::Complete(_) | Wake::Ready) | Err(_));
        let is_lost = can_be_lost
            && executor::choose(Choice::Message, 2).map_or(is_lost, |chosen| chosen == 1);
        let delay = if can_be_lost { delay + late_arrival() } else { delay };
        if is_lost || flawed(Flaw::NoWakeUps) && matches!(next, Ok(Wake::Lock(_))) {
            say(process_of(server), || format!("message to client {client} is lost: {next:?}"));
            continue;
        }
        let client = if flawed(Flaw::MessagesGoAstray) { 1 } else { client };
        executor::after(client, delay, move || {
            let arrives = network(|it| {
                let link = &mut it.links[client - 1];
                let arrives = link.hears(server, clock::now());
                if arrives {
                    if let Ok(Wake::Echo(name)) = &next {
                        link.echoes.insert(name.clone());
                    }
                    link.inbox.push_back((server, next.clone()));
                }
                arrives
            });
            say(client, || match &next {
                _ if !arrives => format!("does not receive the message {next:?}"),
                Ok(Wake::Lock(key)) => {
                    let calls = world::with(|world| world.calls_for(client, key));
                    format!("receives the message {next:?}: {calls}")
                }
                _ => format!("receives the message {next:?}"),
            });
        });
    }
}

/// Returns the fate of a request, the travel times of it and its reply, and by how much it may be
/// late.
fn fate_of(
    pair: Pair,
    now: Instant,
    left: Duration,
) -> (Option<Fate>, Duration, Duration, Duration) {
    let chosen = executor::choose(Choice::Request, FATES.len()).map(|way| FATES[way]);
    let (overtaken, overtaken_back) = (late_arrival(), late_arrival());
    network(|it| {
        let weather = it.weather.clone();
        let is_cut = now < pair.wire(it).cut_until;
        let is_down = now < it.servers[pair.server].down_until;
        let last = pair.wire(it).last_arrival;
        let fate = match it.random.below(1000) {
            _ if is_cut && executor::follows_course() => Some(Fate::Lost),
            _ if is_cut => Some(Fate::Late),
            _ if is_down => None,
            _ if chosen.is_some() => chosen,
            chance if chance < weather.broken => {
                Some(if chance % 2 == 0 { Fate::BreaksBefore } else { Fate::BreaksAfter })
            }
            chance if chance < weather.broken + weather.late => {
                Some(if chance % 2 == 0 { Fate::Late } else { Fate::ReplyIsLost })
            }
            chance if chance < weather.broken + weather.late + weather.twice => Some(Fate::Twice),
            _ => Some(Fate::Arrives),
        };
        let detour = pair.wire(it).detour;
        let (mut there, mut back) = (it.delay() + detour + overtaken, it.delay() + overtaken_back);
        if it.random.permille(weather.slow) {
            back += it.random.time(left.saturating_sub(there + back));
        }
        let is_stuck = it.is_quorum() && fate == Some(Fate::Late);
        if it.ordered && fate != Some(Fate::Late) {
            let arrival = (now + there).max(last + Duration::from_nanos(1));
            there = arrival.saturating_duration_since(now);
            pair.wire(it).last_arrival = arrival;
        }
        // A late reply may also never arrive.
        let most = it.lateness.saturating_sub(left);
        let late = if chosen.is_some() {
            most / 2
        } else if it.random.permille(500) {
            it.random.time(most)
        } else {
            Duration::MAX
        };
        if is_stuck && late < Duration::MAX {
            // Each link of a quorum is one connection, so later requests queue up behind it.
            pair.wire(it).last_arrival = now + left + late;
        }
        (fate, there, back, late)
    })
}

/// Sends a request. `done` is called once, at the deadline at the latest.
pub(super) fn send<T: Answer + Clone + std::fmt::Debug + 'static>(
    pair: Pair,
    what: &str,
    subjects: Vec<Subject>,
    deadline: Instant,
    durable: bool,
    request: impl Fn(&Memory) -> Result<T, Failure> + 'static,
    done: impl FnOnce(Result<T, Failure>) + 'static,
) {
    let Pair { client, server } = pair;
    let done = Rc::new(RefCell::new(Some(done)));
    let timeout = Rc::new(Cell::new(None));
    let recorded = record::begin(pair, subjects);
    let finish = {
        let timeout = timeout.clone();
        move |outcome: Result<T, Failure>| {
            let Some(done) = done.take() else { return };
            if let Some(timeout) = timeout.take() {
                executor::cancel(timeout);
            }
            record::end(&recorded, &outcome);
            say(client, || match &outcome {
                Ok(reply) => format!("  reply: {reply:?}"),
                Err(failure) => format!("  failure: {:?}", failure.kind),
            });
            done(outcome);
        }
    };
    let now = clock::now();
    let left = deadline.saturating_duration_since(now);
    let (fate, there, back, late) = fate_of(pair, now, left);
    say(client, || format!("{what} ({fate:?})"));
    if !matches!(fate, Some(Fate::Arrives | Fate::Twice | Fate::TwiceLate)) {
        world::with(|world| world.disturb(client, deadline));
    }
    let Some(fate) = fate else {
        executor::after(client, there.min(left), move || {
            finish(Err(failure(FailureKind::Unreachable)));
        });
        return;
    };
    if !flawed(Flaw::TimeoutIsMissing) {
        let finish = finish.clone();
        let end = move || finish(Err(failure(FailureKind::Timeout)));
        timeout.set(Some(executor::after(client, left, end)));
    }
    if fate == Fate::BreaksBefore {
        executor::after(client, there, move || finish(Err(failure(FailureKind::Disconnected))));
        return;
    }
    let there = if fate == Fate::Late { left.saturating_add(late) } else { there };
    if fate == Fate::Lost || fate == Fate::Late && late == Duration::MAX {
        return;
    }
    let acks = if durable { network(|it| it.links[client - 1].acks_timeout()) } else { None };
    let request = Rc::new(request);
    if matches!(fate, Fate::Twice | Fate::TwiceLate) {
        // A connection does not repeat a request that was answered.
        let again = if fate == Fate::Twice { there + back / 2 } else { left + late };
        let request = request.clone();
        executor::after(process_of(server), again, move || {
            let before = world::with(|world| world.holds());
            let (reply, _) = execute(pair, acks, &*request);
            world::with(|world| world.note_unasked(&before));
            say(process_of(server), || {
                format!("  executes a request of client {client} again: {reply:?}")
            });
            say_what_changed(server);
        });
    }
    executor::after(process_of(server), there, move || {
        // It was sent before the server went down, and was lost with the connection.
        if network(|it| clock::now() < it.servers[server].down_until) {
            executor::after(client, back, move || finish(Err(failure(FailureKind::Disconnected))));
            return;
        }
        // Where requests arrive in order, a request behind a late one is late, too.
        let is_late = fate == Fate::Late || clock::now() >= deadline;
        let before = if is_late { world::with(|world| world.holds()) } else { Vec::new() };
        let (reply, waits) = execute(pair, acks, &*request);
        say(process_of(server), || format!("  executes a request of client {client}: {reply:?}"));
        say_what_changed(server);
        if is_late {
            world::with(|world| world.note_late(&before));
        }
        if matches!(fate, Fate::Late | Fate::ReplyIsLost) {
            return;
        }
        let restarts = network(|it| it.servers[server].restarts);
        executor::after(client, waits.unwrap_or_default() + back, move || {
            let is_cut = network(|it| clock::now() < pair.wire(it).cut_until);
            let acked_by = clock::now().checked_sub(back).unwrap_or(now);
            match fate {
                _ if is_cut => {}
                // The server has ended, or lost its replica, before it could answer.
                _ if waits.is_some()
                    && network(|it| !it.servers[server].has_waited(restarts, acked_by)) =>
                {
                    finish(Err(failure(FailureKind::Disconnected)));
                }
                Fate::BreaksAfter => finish(Err(failure(FailureKind::Disconnected))),
                _ => finish(reply),
            }
        });
    });
}

/// Sends a request, and blocks until it has an outcome.
fn call<T: Answer + Clone + std::fmt::Debug + 'static>(
    pair: Pair,
    what: &str,
    subjects: Vec<Subject>,
    deadline: Instant,
    durable: bool,
    request: impl Fn(&Memory) -> Result<T, Failure> + 'static,
) -> Result<T, Failure> {
    wait(&begin(pair, what, subjects, deadline, durable, request))
}

/// The place where the outcome of a request arrives.
type Slot<T> = Arc<Mutex<Option<Result<T, Failure>>>>;

/// Sends a request, and returns the place where its outcome arrives.
fn begin<T: Answer + Clone + std::fmt::Debug + 'static>(
    pair: Pair,
    what: &str,
    subjects: Vec<Subject>,
    deadline: Instant,
    durable: bool,
    request: impl Fn(&Memory) -> Result<T, Failure> + 'static,
) -> Slot<T> {
    let slot = Slot::default();
    let outcome = slot.clone();
    send(pair, what, subjects, deadline, durable, request, move |reply| {
        *outcome.lock() = Some(reply);
        executor::signal(Arc::as_ptr(&outcome).addr(), false);
    });
    slot
}

/// Blocks until a request has an outcome.
fn wait<T>(slot: &Slot<T>) -> Result<T, Failure> {
    loop {
        if let Some(outcome) = slot.lock().take() {
            return outcome;
        }
        executor::wait(Arc::as_ptr(slot).addr(), None);
    }
}

/// The store of one client.
pub(super) struct SimulatedStore {
    pub(super) client: Process,
}

/// The messages to one client.
struct SimulatedWakeups {
    client: Process,
    id: Arc<str>,
    interrupter: Interrupter,
}

/// The background jobs of one client.
struct SimulatedJobs {
    client: Process,
}

/// A change of a hold in transit, between two clocks that differ.
#[derive(Clone, Copy)]
struct SentChange {
    change: Change,
    /// How much longer a released lock stays taken, at the time of sending.
    taken: Duration,
}

impl SentChange {
    fn of(change: Change) -> Self {
        let taken = match change {
            Change::Release { taken_until, .. } => taken_until.left(),
            _ => Duration::ZERO,
        };
        Self { change, taken }
    }

    /// Returns the change by the clock of the server, which executes it now.
    fn arriving(self) -> Change {
        match self.change {
            Change::Release { unused, .. } if !self.taken.is_zero() => {
                Change::Release { taken_until: Moment::now().after(self.taken), unused }
            }
            Change::Release { unused, .. } => {
                Change::Release { taken_until: Moment::FIRST, unused }
            }
            change => change,
        }
    }
}

fn request_text(hold: &HoldId, change: Change) -> String {
    let what = match change {
        Change::Release { taken_until, .. } if taken_until != Moment::FIRST => {
            format!("Release, to stay taken for {:?},", taken_until.left())
        }
        Change::Release { .. } => "Release".into(),
        change => format!("{change:?}"),
    };
    format!("{what} of {:?}, {}", hold.name, text_of(hold))
}

/// Executes a change of a hold on the server, with the planted flaw.
fn change_of(memory: &Memory, hold: &HoldId, sent: SentChange) -> Result<HoldReply, Failure> {
    let (change, deadline) = (sent.arriving(), executor::epoch());
    match (planted(), change) {
        (Some(Flaw::ReleaseDoesNothing), Change::Release { .. })
        | (Some(Flaw::RenewalDoesNothing), Change::Renew { .. })
        | (Some(Flaw::PlacesAreKept), Change::Unregister) => return Ok(HoldReply::Done),
        (Some(Flaw::RenewalRevives), Change::Renew { lease }) => {
            let (holds, registration) = (slice::from_ref(hold), Registration::None);
            let lease = lease.duration;
            memory.acquire(Acquire {
                holds,
                lease,
                note: None,
                registration,
                echo: false,
                deadline,
            })?;
            return Ok(HoldReply::Done);
        }
        (Some(Flaw::ReleaseEndsAny), Change::Release { .. }) => {
            for (held_as, holder) in memory.report(&hold.name, Look::All, deadline)?.holds {
                let kind = HoldKind::reported_as(held_as, hold.kind.permits());
                let owner = OwnerOf { kind, name: &hold.name, owner: &holder.owner };
                memory.force_release(owner, deadline)?;
            }
            return Ok(HoldReply::Done);
        }
        _ => {}
    }
    let reply =
        unless_refused(0, Some(change), || ask_one(memory, HoldRequest { hold, change, deadline }));
    match (planted(), change, reply) {
        (Some(Flaw::UnconfirmedRelease), Change::Release { .. }, Ok(_)) => {
            Err(failure(FailureKind::Timeout))
        }
        (Some(Flaw::RenewalRenewsAny), Change::Renew { .. }, Ok(HoldReply::Gone)) => {
            let holds = memory.report(&hold.name, Look::All, deadline)?.holds;
            Ok(if holds.is_empty() { HoldReply::Gone } else { HoldReply::Done })
        }
        (_, _, reply) => reply,
    }
}

impl SimulatedStore {
    fn pair(&self) -> Pair {
        Pair { client: self.client, server: 0 }
    }

    fn begin_acquire(&self, request: Acquire<'_>) -> Slot<AcquireReply> {
        let Acquire { holds, mut lease, note, mut registration, echo, deadline } = request;
        let (mut holds, note) = (holds.to_vec(), note.map(str::to_owned));
        change_asked(&mut holds, &mut lease);
        let what = words(|| {
            let ids: Vec<_> = holds.iter().map(text_of).collect();
            let (kind, name) = (holds[0].kind, &holds[0].name);
            format!(
                "asks for {kind:?} {name:?} as {} ({registration:?}, {lease:?})",
                ids.join(", ")
            )
        });
        let name = holds[0].name.to_string();
        network(|it| it.links[self.client - 1].asked.insert(name, clock::now()));
        if flawed(Flaw::NeverRegisters) && registration.joins() {
            registration = Registration::None;
        }
        let wish = Wish::Acquire(lease);
        let subjects = request.holds.iter().map(|hold| Subject::of(hold, wish)).collect();
        begin(self.pair(), &what, subjects, deadline, true, move |memory| {
            let deadline = executor::epoch();
            let note = note.as_deref();
            let request = Acquire { holds: &holds, lease, note, registration, echo, deadline };
            // An offer is for one permit, or for all readers.
            let is_several = holds[0].kind.row().is_several;
            let firsts: Vec<_> = world::with(|world| {
                let holds = holds.iter().enumerate();
                holds.map(|(at, hold)| world.first_waiter(hold, at == 0 || !is_several)).collect()
            });
            let reply = change_granted(unless_refused(0, None, || memory.acquire(request)));
            if let (Ok(AcquireReply::Held { .. }), [first, _, ..]) = (&reply, &*holds)
                && flawed(Flaw::ServerGrantsPart)
            {
                let (holds, registration) = (slice::from_ref(first), Registration::None);
                memory.acquire(Acquire {
                    holds,
                    lease,
                    note: None,
                    registration,
                    echo,
                    deadline,
                })?;
            }
            let granted = match &reply {
                Ok(AcquireReply::Acquired { others, .. }) => 1 + others.len(),
                _ => 0,
            };
            for first in firsts.into_iter().take(granted).flatten() {
                if world::with(|world| world.is_first(&holds[0], &first)) {
                    let client = &holds[0].client;
                    world::broken(&format!("client {client} is admitted before {first}"));
                }
            }
            reply
        })
    }
}

impl Store for SimulatedStore {
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure> {
        change_acquired(wait(&self.begin_acquire(request)))
    }

    fn acquire_together(&self, requests: &[Acquire<'_>]) -> Vec<Result<AcquireReply, Failure>> {
        let slots: Vec<_> = requests.iter().map(|request| self.begin_acquire(*request)).collect();
        slots.iter().map(|slot| change_acquired(wait(slot))).collect()
    }

    /// Returns `None` if no connection is free.
    fn acquire_ahead(&self, request: Acquire<'_>) -> Option<Ahead> {
        let is_busy = network(|it| it.random.permille(200));
        if executor::choose(Choice::Connection, 2).map_or(is_busy, |chosen| chosen == 1) {
            return None;
        }
        let slot = self.begin_acquire(request);
        Some(Ahead::new(move || change_acquired(wait(&slot))))
    }

    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        if network(|it| it.apart) {
            return (0..names.len()).map(|at| vec![at]).collect();
        }
        if names.is_empty() { Vec::new() } else { vec![(0..names.len()).collect()] }
    }

    fn keeps_order(&self) -> bool {
        network(|it| it.ordered)
    }

    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    ) {
        let Some(deadline) = requests.iter().map(|request| request.deadline).max() else { return };
        let changes: Vec<_> = requests.iter().map(|it| (it.hold.clone(), it.change)).collect();
        let what = words(|| {
            let changes = changes.iter();
            let changes = changes.map(|(hold, change)| request_text(hold, *change));
            format!("asks: {}", changes.collect::<Vec<_>>().join(", "))
        });
        let is_durable = changes.iter().any(|(_, change)| change.is_durable());
        let subjects = changes.iter().map(|(hold, change)| Subject::of(hold, *change)).collect();
        let changes = changes.into_iter().map(|(hold, change)| (hold, SentChange::of(change)));
        let changes: Vec<_> = changes.collect();
        let replies = call(self.pair(), &what, subjects, deadline, is_durable, move |memory| {
            Ok(changes.iter().map(|(hold, change)| change_of(memory, hold, *change)).collect())
        });
        let replies: Vec<Result<HoldReply, Failure>> =
            replies.unwrap_or_else(|failure| vec![Err(failure); requests.len()]);
        replies.into_iter().enumerate().for_each(|(place, reply)| on_reply(place, reply));
    }

    fn post(&self, posts: Vec<PostedChange<'_>>) {
        for PostedChange { request, on_reply, .. } in posts {
            let HoldRequest { hold, change, deadline } = request;
            let hold = hold.clone();
            let what = words(|| format!("posts: {}", request_text(&hold, change)));
            let subjects = vec![Subject::of(&hold, change)];
            let sent = SentChange::of(change);
            let request = move |memory: &Memory| change_of(memory, &hold, sent);
            let client = self.client;
            let is_durable = change.is_durable();
            network(|it| it.links[client - 1].posts += 1);
            send(self.pair(), &what, subjects, deadline, is_durable, request, move |reply| {
                // A thread reads the reply.
                executor::spawn(Some(client), move || {
                    network(|it| it.links[client - 1].posts -= 1);
                    on_reply(reply);
                });
            });
        }
    }

    fn drain(&self, deadline: Instant) {
        let client = self.client;
        let are_answered = move || network(|it| (it.links[client - 1].posts == 0).then_some(()));
        executor::wait_for(Some(deadline), are_answered);
    }

    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure> {
        let text = name.to_owned();
        let report = call(
            self.pair(),
            "asks who has the lock",
            Vec::new(),
            deadline,
            false,
            move |memory| memory.report(&text, look, executor::epoch()),
        );
        let report = report.map_err(Failure::of_question)?;
        if flawed(Flaw::ReportIsOld) {
            let first = |it: &mut Network| {
                let reports = &mut it.links[self.client - 1].reports;
                reports.entry(name.to_owned()).or_insert(report).clone()
            };
            return Ok(network(first));
        }
        Ok(report)
    }

    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure> {
        let OwnerOf { kind, name, owner } = owner;
        let (name, owner) = (name.to_owned(), owner.to_owned());
        call(self.pair(), "ends a hold by force", Vec::new(), deadline, false, move |memory| {
            let owner = OwnerOf { kind, name: &name, owner: &owner };
            world::with(|world| {
                world.force(&name, || memory.force_release(owner, executor::epoch()))
            })
        })
    }

    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure> {
        let (name, telling) = (name.to_owned(), telling.clone());
        call(self.pair(), "sends a message", Vec::new(), deadline, false, move |memory| {
            memory.tell(&name, &telling, executor::epoch())
        })
    }

    fn ping(&self, _: &HoldId, deadline: Instant) -> Result<(), Failure> {
        call(self.pair(), "pings", Vec::new(), deadline, false, |_| Ok(()))
    }

    fn wakeups(&self, client: &str, _: Option<&RedissonChannels>) -> Box<dyn Wakeups> {
        let (id, interrupter) = (client.into(), Interrupter::new());
        Box::new(SimulatedWakeups { client: self.client, id, interrupter })
    }

    fn jobs(&self) -> Box<dyn JobRunner> {
        Box::new(SimulatedJobs { client: self.client })
    }
}

/// Makes a client receive the later messages of a server.
pub(super) fn subscribe(pair: Pair, id: &str) -> Result<(), Failure> {
    let Pair { client, server } = pair;
    network(|it| {
        let now = clock::now();
        let (link, server_state) = (&mut it.links[client - 1], &it.servers[server]);
        let wire = &link.wires[server];
        if now < server_state.down_until || now < wire.cut_until.max(wire.deaf_until) {
            return Err(failure(FailureKind::Unreachable));
        }
        // Earlier messages are missed.
        let memory = Memory::new(&server_state.memory, &link.config);
        let wire = &mut link.wires[server];
        wire.subscription = Some(memory.wakeups(id, None));
        wire.memory = memory;
        link.inbox.retain(|(from, _)| *from != server);
        Ok(())
    })?;
    deliver(server);
    Ok(())
}

impl SimulatedWakeups {
    /// Subscribes, after a round trip.
    fn connect(&self) -> Result<(), Failure> {
        let delay = network(Network::delay);
        executor::sleep(delay * 2);
        subscribe(Pair { client: self.client, server: 0 }, &self.id)
    }
}

impl Wakeups for SimulatedWakeups {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        let client = self.client;
        if self.interrupter.is_interrupted() {
            return Some(Err(failure(FailureKind::Unreachable)));
        }
        let is_connected = network(|it| {
            let link = &it.links[client - 1];
            link.wires[0].subscription.is_some() || !link.inbox.is_empty()
        });
        if !is_connected && let Err(failure) = self.connect() {
            return Some(Err(failure));
        }
        let interrupter = self.interrupter.clone();
        executor::wait_for(Some(deadline), move || {
            if interrupter.is_interrupted() {
                return Some(Err(failure(FailureKind::Unreachable)));
            }
            network(|it| it.links[client - 1].inbox.pop_front()).map(|(_, message)| message)
        })
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

impl Drop for SimulatedWakeups {
    fn drop(&mut self) {
        if executor::is_active() {
            network(|it| it.links[self.client - 1].wires[0].subscription = None);
        }
    }
}

impl JobRunner for SimulatedJobs {
    fn send(&mut self, jobs: Vec<Job>, _: &mut dyn FnMut(u64, JobOutcome)) {
        let client = self.client;
        for Job { id, hold, change, deadline } in jobs {
            let generation = network(|it| {
                it.links[client - 1].jobs += 1;
                it.links[client - 1].generation
            });
            let what = words(|| format!("in the background: {}", request_text(&hold, change)));
            let subjects = vec![Subject::of(&hold, change)];
            let sent = SentChange::of(change);
            let request = move |memory: &Memory| change_of(memory, &hold, sent);
            let pair = Pair { client, server: 0 };
            let is_durable = change.is_durable();
            send(pair, &what, subjects, deadline, is_durable, request, move |outcome| {
                network(|it| {
                    let link = &mut it.links[client - 1];
                    if link.generation == generation {
                        link.jobs -= 1;
                        link.outcomes.push((id, outcome.map(Into::into)));
                    }
                });
            });
        }
    }

    fn collect(&mut self, deadline: Instant, done: &mut dyn FnMut(u64, JobOutcome)) {
        let client = self.client;
        let are_done = move || network(|it| (it.links[client - 1].jobs == 0).then_some(()));
        executor::wait_for(Some(deadline), are_done);
        let outcomes = network(|it| std::mem::take(&mut it.links[client - 1].outcomes));
        for (id, outcome) in outcomes {
            done(id, outcome);
        }
    }

    fn abandon(&mut self) {
        network(|it| {
            let link = &mut it.links[self.client - 1];
            link.generation += 1;
            link.jobs = 0;
            link.outcomes.clear();
        });
    }
}
