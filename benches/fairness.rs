//! # Fairness between clients
//!
//! Clients in processes of their own, with one thread each, take one lock, hold it, drop the guard
//! and ask again at once. A *fair round* is the number of clients times the median time from one
//! hold to the next. *Overtaken* is the greatest number of turns that another client had during one
//! wait. *Time between holds* runs from the drop of a guard in one client until another one holds
//! the lock. One crowd has a client that is farther away than the others, one has a client that
//! never waits and may therefore get nothing, and one locks on a quorum of three servers. Others
//! take two locks: *at once*, with `lock_all`, or *one by one*, always in the same order, as
//! programs without it must.
//!
//! In the table after these, readers and a writer want one read-write lock. Neither may starve the
//! other. In the last one, clients with `pollers` share a lock with programs that poll for it. Each
//! *side* should get at least half of the part that its number of threads suggests. Both sides have
//! the lock for the same time. With empty holds, a poller that never pauses therefore has it more
//! often: it needs less time for a hold than two clients that pass the lock to each other.

use std::any::Any;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;

use self::support::partner::{self, Partner};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
use self::support::slow_link::{self, SlowLink};
use self::support::table;

mod support;

const NAME: &str = "the lock";
const OTHER: &str = "the other lock";

/// The additional round-trip time to the far client, and that to each client if all are far away.
const FARTHER: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_millis(10);

/// The locks that the clients share, or the way in which one of them differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    Alike,
    /// One reaches the server over a slow link.
    OneFar,
    /// One only calls `try_lock`, again and again. It may get nothing, because it never waits.
    OneTries,
    /// The locks are on three independent servers.
    Quorum,
    /// Each takes two locks, perhaps over slow links.
    Two {
        at_once: bool,
        far: bool,
    },
}

/// The extent of the measurement.
struct Plan {
    clients: u32,
    holds: &'static [u64],
    /// The minimum number of turns of each client.
    turns: u32,
    at_least: Duration,
}

impl Plan {
    fn holds(&self) -> impl Iterator<Item = Duration> {
        self.holds.iter().copied().map(Duration::from_millis)
    }

    fn time(&self, held: Duration, clients: u32) -> Duration {
        (held * clients * self.turns).max(self.at_least)
    }
}

fn main() {
    slow_link::serve_if_started_for_it();
    partner::serve_if_started_for_it(&[
        ("take turns", take_turns),
        ("read and write", read_and_write),
        ("poll", poll),
    ]);
    let seconds = Duration::from_secs;
    let plan = Scale::from_args().pick(
        Plan { clients: 3, holds: &[0, 1, 5, 20, 100], turns: 25, at_least: seconds(3) },
        Plan { clients: 3, holds: &[0, 20], turns: 10, at_least: seconds(1) },
        Plan { clients: 2, holds: &[1], turns: 5, at_least: Duration::ZERO },
    );
    let servers = [(); 3].map(|()| Server::redis());
    println!("{}", Setting::of(&servers[0]));
    let two = |far| [true, false].map(|at_once| Crowd::Two { at_once, far });
    let one = [Crowd::Alike, Crowd::OneFar, Crowd::OneTries, Crowd::Quorum];
    for crowd in one.into_iter().chain(two(false)).chain(two(true)) {
        clients(crowd, &plan, &servers);
    }
    readers(&plan, &servers[0]);
    pollers(&plan, &servers[0]);
    setting::print_end(&servers[0]);
}

/// Measures clients that lock one name, and prints a table with a row for each length of the hold.
fn clients(crowd: Crowd, plan: &Plan, servers: &[Server; 3]) {
    let title = format!("{} clients, {crowd}", plan.clients);
    table::head(&[
        &title,
        "locks/s",
        "least ÷ most served",
        "longest wait",
        "in fair rounds",
        "overtaken at most",
        "time between holds: median",
        "99 %",
        "got by trying",
    ]);
    let goal = Duration::from_millis(20);
    let mut with_goal = None;
    for hold in plan.holds() {
        let row = measure(crowd, hold, plan, servers);
        row.print();
        with_goal = with_goal.or((hold == goal).then_some(row));
    }
    if let Some(Row { evenness, rounds, .. }) = with_goal {
        table::head_of_facts(&format!("{title}, holds of {goal:?}"));
        let goal = table::at_least(evenness, 0.95);
        table::fact("least ÷ most served", format!("{evenness:.2}"), &goal);
        let goal = table::at_most(rounds, 1.5);
        table::fact("longest wait in fair rounds", format!("{rounds:.1}"), &goal);
    }
}

/// Measures two processes with readers, and prints a table with a row for each length of the hold.
fn readers(plan: &Plan, server: &Server) {
    table::head(&[
        "2 processes with 4 readers each, one of them with a writer too",
        "reads/s",
        "writes/s",
        "longest wait of the writer",
        "share of the time with a reader",
    ]);
    for hold in plan.holds() {
        measure_readers(hold, plan.time(hold, 2), server).print();
    }
}

/// The pollers alongside two clients, and their pauses between two attempts.
const POLLERS: [(u32, Duration); 4] = [
    (1, Duration::ZERO),
    (2, Duration::from_millis(5)),
    (2, Duration::from_millis(50)),
    (8, Duration::from_millis(20)),
];

/// Measures two clients alongside programs that poll for their lock, and prints a table with a row
/// for each length of the hold and each kind of crowd.
fn pollers(plan: &Plan, server: &Server) {
    let title = "2 clients beside programs that poll";
    table::head(&[title, "locks/s", "share of the pollers", "by threads", "least side ÷ its part"]);
    let mut least = f64::INFINITY;
    for hold in plan.holds() {
        for (pollers, pause) in POLLERS {
            let time = plan.time(hold, 2 + pollers);
            let (ours, theirs) = measure_pollers(hold, pollers, pause, time, server);
            let share = theirs / (ours + theirs);
            let part = f64::from(pollers) / f64::from(2 + pollers);
            let side = (share / part).min((1.0 - share) / (1.0 - part));
            if !hold.is_zero() {
                least = least.min(side);
            }
            table::row(&[
                format!("holds of {hold:?}, {pollers} with pauses of {pause:?}"),
                format!("{:.1}", (ours + theirs) / time.as_secs_f64()),
                format!("{share:.2}"),
                format!("{part:.2}"),
                format!("{side:.2}"),
            ]);
        }
    }
    table::head_of_facts(&format!("{title}, holds of 1ms or more"));
    table::fact("least side ÷ its part", format!("{least:.2}"), &table::at_least(least, 0.5));
}

/// Returns how often the clients and the pollers had the lock.
fn measure_pollers(
    hold: Duration,
    pollers: u32,
    pause: Duration,
    time: Duration,
    server: &Server,
) -> (f64, f64) {
    server.command(&["FLUSHALL"]);
    let [hold, time_left] = [hold, time].map(|time| time.as_micros().to_string());
    let (pollers, pause) = (pollers.to_string(), pause.as_micros().to_string());
    let url = server.url();
    let client = || Partner::start("take turns", &[&url, "beside pollers", &hold, &time_left]);
    let polling = Partner::start("poll", &[&url, &pollers, &pause, &hold, &time_left]);
    let mut partners = [client(), client(), polling];
    for partner in &mut partners {
        assert_eq!(partner.hear(), "ready");
    }
    let end = partner::now() + u64::try_from(time.as_nanos()).expect("a short time");
    for partner in &mut partners {
        partner.tell("go");
    }
    let [one, other, theirs] = partners.each_mut().map(|partner| hear(partner, end).len());
    (as_f64(one + other), as_f64(theirs))
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alike => "one server",
            Self::OneFar => "one of them 2 ms farther away",
            Self::OneTries => "and one more that calls `try_lock` all the time",
            Self::Quorum => "three independent servers",
            Self::Two { at_once: true, far: false } => "two locks at once",
            Self::Two { at_once: false, far: false } => "two locks one by one",
            Self::Two { at_once: true, far: true } => "two locks at once, 10 ms away",
            Self::Two { at_once: false, far: true } => "two locks one by one, 10 ms away",
        })
    }
}

/// A turn of a client, by a clock that all processes share, in nanoseconds.
#[derive(Clone, Copy)]
struct Turn {
    asked: u64,
    held: u64,
    released: u64,
}

/// A row of the table.
struct Row {
    hold: Duration,
    per_second: f64,
    evenness: f64,
    longest: Duration,
    rounds: f64,
    /// The most turns that another client had during one wait.
    overtaken: usize,
    hand_over: Duration,
    slow_hand_over: Duration,
    /// The turns of the client that only tries.
    by_trying: Option<usize>,
}

/// A row of the table about readers and a writer.
struct Sharing {
    hold: Duration,
    reads: f64,
    writes: f64,
    /// The longest wait of the writer.
    longest: Duration,
    /// The part of the time during which at least one reader had the lock.
    share: f64,
}

fn measure_readers(hold: Duration, time: Duration, server: &Server) -> Sharing {
    server.command(&["FLUSHALL"]);
    let start = |writers: &str| {
        let [hold, time] = [hold, time].map(|time| time.as_micros().to_string());
        Partner::start("read and write", &[&server.url(), writers, &hold, &time])
    };
    let mut partners = ["1", "0"].map(start);
    for partner in &mut partners {
        assert_eq!(partner.hear(), "ready");
    }
    let end = partner::now() + u64::try_from(time.as_nanos()).expect("a short time");
    for partner in &mut partners {
        partner.tell("go");
    }
    let [mut reads, writes] = [Vec::new(), hear(&mut partners[0], end)];
    for partner in &mut partners {
        reads.extend(hear(partner, end));
    }
    reads.sort_unstable_by_key(|read| read.held);
    let (mut seen, mut covered) = (0, 0);
    for read in &reads {
        covered += read.released.saturating_sub(read.held.max(seen));
        seen = seen.max(read.released);
    }
    let longest = writes.iter().map(|write| write.held - write.asked).max().unwrap_or(0);
    Sharing {
        hold,
        reads: as_f64(reads.len()) / time.as_secs_f64(),
        writes: as_f64(writes.len()) / time.as_secs_f64(),
        longest: Duration::from_nanos(longest),
        share: Duration::from_nanos(covered).as_secs_f64() / time.as_secs_f64(),
    }
}

impl Sharing {
    fn print(&self) {
        let Self { hold, reads, writes, longest, share } = self;
        table::row(&[
            format!("holds of {hold:?}"),
            format!("{reads:.1}"),
            format!("{writes:.1}"),
            format!("{longest:.1?}"),
            format!("{share:.2}"),
        ]);
    }
}

fn measure(crowd: Crowd, hold: Duration, plan: &Plan, servers: &[Server; 3]) -> Row {
    let clients = usize::try_from(plan.clients).expect("a few");
    let time = plan.time(hold, plan.clients);
    // The last release of the previous row may have been lost with its slow link.
    for server in servers {
        server.command(&["FLUSHALL"]);
    }
    let are_far = matches!(crowd, Crowd::Two { far: true, .. });
    let round_trip = if are_far { FAR } else { FARTHER };
    let link = SlowLink::to(servers[0].port(), round_trip / 2);
    let start = |number: usize| {
        let url = match crowd {
            Crowd::OneFar if number == 0 => link.url(),
            Crowd::Two { far: true, .. } => link.url(),
            Crowd::Alike | Crowd::OneFar | Crowd::OneTries | Crowd::Two { .. } => servers[0].url(),
            Crowd::Quorum => servers.each_ref().map(Server::url).join(" "),
        };
        let how = match crowd {
            Crowd::Two { at_once: true, .. } => "two at once",
            Crowd::Two { at_once: false, .. } => "two one by one",
            _ if number == clients => "try",
            _ => "wait",
        };
        let [hold, time] = [hold, time].map(|time| time.as_micros().to_string());
        Partner::start("take turns", &[&url, how, &hold, &time])
    };
    let all = clients + usize::from(crowd == Crowd::OneTries);
    let mut partners: Vec<_> = (0..all).map(start).collect();
    for partner in &mut partners {
        assert_eq!(partner.hear(), "ready");
    }
    let end = partner::now() + u64::try_from(time.as_nanos()).expect("a short time");
    for partner in &mut partners {
        partner.tell("go");
    }
    let mut turns: Vec<Vec<Turn>> = partners.iter_mut().map(|partner| hear(partner, end)).collect();
    let tried = turns.split_off(clients);
    Row::of(&turns, tried.first(), hold, time)
}

/// Receives the turns of a client that began in time.
fn hear(partner: &mut Partner, end: u64) -> Vec<Turn> {
    let words = partner.hear();
    let numbers: Vec<u64> =
        words.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let turn = |times: &[u64]| Turn { asked: times[0], held: times[1], released: times[2] };
    numbers.chunks(3).map(turn).filter(|turn| turn.asked < end).collect()
}

impl Row {
    fn of(turns: &[Vec<Turn>], tried: Option<&Vec<Turn>>, hold: Duration, time: Duration) -> Self {
        let counts = || turns.iter().map(Vec::len);
        let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        let by_trying = tried.map(Vec::len);
        let waited = |turn: &Turn| turn.held - turn.asked;
        let longest = turns.iter().flatten().map(waited).max().unwrap_or(0);
        let mut all: Vec<(usize, Turn)> = (0..)
            .zip(turns.iter().chain(tried))
            .flat_map(|(client, turns)| turns.iter().map(move |turn| (client, *turn)))
            .collect();
        all.sort_unstable_by_key(|(_, turn)| turn.held);
        let pairs = || all.windows(2).map(|pair| (pair[0], pair[1]));
        let changes = pairs().filter(|(one, next)| one.0 != next.0);
        let hand_overs =
            sorted(changes.map(|(one, next)| next.1.held.saturating_sub(one.1.released)));
        let periods = sorted(pairs().map(|(one, next)| next.1.held - one.1.held));
        let round = of_rank(&periods, 50).as_secs_f64() * as_f64(turns.len());
        let longest = Duration::from_nanos(longest);
        Self {
            hold,
            per_second: as_f64(all.len()) / time.as_secs_f64(),
            evenness: as_f64(least) / as_f64(most),
            longest,
            rounds: longest.as_secs_f64() / round,
            overtaken: overtaken(turns),
            hand_over: of_rank(&hand_overs, 50),
            slow_hand_over: of_rank(&hand_overs, 99),
            by_trying,
        }
    }
}

fn overtaken(turns: &[Vec<Turn>]) -> usize {
    let began_before = |turns: &[Turn], time: u64| turns.partition_point(|turn| turn.held < time);
    let others = |wait: &Turn| {
        let during =
            |other: &Vec<Turn>| began_before(other, wait.held) - began_before(other, wait.asked);
        turns.iter().map(during).max().unwrap_or(0)
    };
    turns.iter().flatten().map(others).max().unwrap_or(0)
}

fn sorted(times: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times
}

/// Returns the time below which this percentage lies.
fn of_rank(sorted: &[u64], percent: usize) -> Duration {
    Duration::from_nanos(sorted.get(sorted.len() * percent / 100).copied().unwrap_or(0))
}

fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("not that many"))
}

impl Row {
    fn print(&self) {
        table::row(&[
            format!("holds of {:?}", self.hold),
            format!("{:.1}", self.per_second),
            format!("{:.2}", self.evenness),
            format!("{:.1?}", self.longest),
            format!("{:.1}", self.rounds),
            self.overtaken.to_string(),
            format!("{:.1?}", self.hand_over),
            format!("{:.1?}", self.slow_hand_over),
            self.by_trying.map_or(String::new(), |times| times.to_string()),
        ]);
    }
}

/// The main function of a client process.
fn take_turns(arguments: &[String]) {
    let [urls, how, hold, time] = arguments else { panic!("four arguments") };
    let urls: Vec<_> = urls.split(' ').collect();
    let builder = Client::builder().pollers(how == "beside pollers");
    let client = if let [url] = urls[..] { builder.open(url) } else { builder.open_redlock(urls) };
    let client = client.expect("it answers");
    drop(client.lock("warm"));
    let [hold, time] = [hold, time].map(|micros| micros.parse().expect("a number"));
    let [hold, time] = [hold, time].map(Duration::from_micros);
    partner::say("ready");
    partner::listen();
    let end = Instant::now() + time;
    let mut turns = Vec::new();
    while Instant::now() < end {
        let asked = partner::now();
        let Some(guard) = take(&client, how, end) else { break };
        let held = partner::now();
        if !hold.is_zero() {
            thread::sleep(hold);
        }
        let released = partner::now();
        drop(guard);
        turns.push(format!("{asked} {held} {released}"));
    }
    partner::say(&turns.join(" "));
}

/// The main function of a process with programs of another kind: each sets a string unless there is
/// one, and tries again after a pause. Prints the turns of all.
fn poll(arguments: &[String]) {
    let [url, pollers, pause, hold, time] = arguments else { panic!("five arguments") };
    let pollers: usize = pollers.parse().expect("a number");
    let times = [pause, hold, time].map(|micros| micros.parse().expect("a number"));
    let [pause, hold, time] = times.map(Duration::from_micros);
    let server = redis::Client::open(url.as_str()).expect("a good URL");
    let connect = |_| server.get_connection().expect("it answers");
    let connections: Vec<_> = (0..pollers).map(connect).collect();
    partner::say("ready");
    partner::listen();
    let end = Instant::now() + time;
    let turns = thread::scope(|scope| {
        let poll_with = |(number, connection)| {
            scope.spawn(move || poll_until(end, number, connection, pause, hold))
        };
        let threads: Vec<_> = connections.into_iter().enumerate().map(poll_with).collect();
        threads.into_iter().flat_map(|it| it.join().expect("it polls")).collect::<Vec<_>>()
    });
    partner::say(&turns.join(" "));
}

/// Polls for the lock again and again, and returns when it was asked for, held and released.
fn poll_until(
    end: Instant,
    number: usize,
    mut connection: redis::Connection,
    pause: Duration,
    hold: Duration,
) -> Vec<String> {
    const RELEASE: &str =
        "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1])";
    let (key, token) = (format!("lock:{NAME}"), format!("poller {number}"));
    let (mut turns, mut asked) = (Vec::new(), partner::now());
    while Instant::now() < end {
        let mut set = redis::cmd("SET");
        let set = set.arg(&key).arg(&token).arg("NX").arg("PX").arg(10_000);
        if set.query::<Option<String>>(&mut connection).expect("it answers").is_none() {
            thread::sleep(pause);
            continue;
        }
        let held = partner::now();
        thread::sleep(hold);
        let released = partner::now();
        let mut eval = redis::cmd("EVAL");
        let eval = eval.arg(RELEASE).arg(1).arg(&key).arg(&token);
        eval.query::<Option<u32>>(&mut connection).expect("it answers");
        turns.push(format!("{asked} {held} {released}"));
        asked = partner::now();
    }
    turns
}

/// The main function of a client process with four readers and possibly a writer. Prints the turns
/// of the writer, if any, and then those of its readers.
fn read_and_write(arguments: &[String]) {
    let [url, writers, hold, time] = arguments else { panic!("four arguments") };
    let client = Client::open(url).expect("it answers");
    let lock = client.rw_lock(NAME);
    drop(lock.read());
    let [hold, time] = [hold, time].map(|micros| micros.parse().expect("a number"));
    let [hold, time] = [hold, time].map(Duration::from_micros);
    partner::say("ready");
    partner::listen();
    let end = Instant::now() + time;
    let read = || drop_after(hold, lock.read().expect("it answers"));
    let write = || drop_after(hold, lock.write().expect("it answers"));
    let (writes, reads) = thread::scope(|scope| {
        let has_writer = writers != "0";
        let writer = has_writer.then(|| scope.spawn(|| turns_until(end, write)));
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| turns_until(end, read))).collect();
        let reads: Vec<_> =
            readers.into_iter().flat_map(|it| it.join().expect("it reads")).collect();
        (writer.map(|it| it.join().expect("it writes")), reads)
    });
    if let Some(writes) = writes {
        partner::say(&writes.join(" "));
    }
    partner::say(&reads.join(" "));
}

/// Repeats a turn, which returns when its guard was acquired and released.
fn turns_until(end: Instant, turn: impl Fn() -> (u64, u64)) -> Vec<String> {
    let mut turns = Vec::new();
    while Instant::now() < end {
        let asked = partner::now();
        let (held, released) = turn();
        turns.push(format!("{asked} {held} {released}"));
    }
    turns
}

fn drop_after<G>(hold: Duration, guard: G) -> (u64, u64) {
    let held = partner::now();
    if !hold.is_zero() {
        thread::sleep(hold);
    }
    let released = partner::now();
    drop(guard);
    (held, released)
}

/// Waits for the lock, or for two, or tries until then.
fn take(client: &Client, how: &str, end: Instant) -> Option<Box<dyn Any>> {
    let lock = |name| client.lock(name).expect("it answers");
    match how {
        "beside pollers" | "wait" => return Some(Box::new(lock(NAME))),
        "two at once" => {
            let both = client.lock_all([NAME, OTHER]);
            return Some(Box::new(both.expect("they answer")));
        }
        "two one by one" => {
            let first = lock(NAME);
            return Some(Box::new((lock(OTHER), first)));
        }
        _ => {}
    }
    while Instant::now() < end {
        if let Some(guard) = client.try_lock(NAME).expect("it answers") {
            return Some(Box::new(guard));
        }
    }
    None
}
