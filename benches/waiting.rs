//! # Waiting
//!
//! Waiting for a lock that another process holds, and the time until the next waiter holds it.
//!
//! - *2 processes with 4 threads each*: all of them want one lock all the time. The process with
//!   fewer locks is compared with the other one. *Held for this share of the time*: by any thread.
//!   *Holds that follow another without a request*: threads of a process hand the lock off for the
//!   length of a tenure before the other process has its turn.
//! - *released in one process, held in another*: from the drop of the guard until `lock` returns in
//!   a process that sleeps in it. *The same commands, bare*: two scripts with the same commands and
//!   a message between them, from bare connections and threads that block.
//! - *threads that wait for one name*: more threads than any real program has, each of which gets
//!   the lock once. The program fails if they need more requests or connections than the goals say.
//! - *8 threads that wait for a name held elsewhere*: what waiting itself costs.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use leasehold::{Builder, Client, Event};
use redis::{Connection, Script};

use self::support::counts;
use self::support::crowd::Work;
use self::support::meter::{Spent, info};
use self::support::partner::{self, Partner};
use self::support::raw::{self, Raw};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
use self::support::table;
use self::support::turns::quartiles;

mod support;

const NAME: &str = "the lock";

/// The key, and the channel, of the same measurement without a library.
const BARE: &str = "bare";

/// The script that frees the lock and wakes the other process, and the one that takes it there:
/// exactly the commands of leasehold's scripts, with nothing around them.
const FREE: &str = "redis.call('HDEL', KEYS[1], '1') redis.call('EXISTS', KEYS[2]) \
                    redis.call('EXISTS', KEYS[1]) redis.call('TIME') \
                    redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES') \
                    local heard = redis.call('PUBLISH', KEYS[1], KEYS[1]) \
                    redis.call('HSET', KEYS[1], '0', 0) redis.call('PEXPIRE', KEYS[1], 200) \
                    redis.call('ZREM', KEYS[2], '1') redis.call('ZRANGE', KEYS[2], 0, 9) \
                    return heard";
const TAKE: &str = "redis.call('PTTL', KEYS[1]) redis.call('TYPE', KEYS[1]) \
                    redis.call('HLEN', KEYS[1]) redis.call('HGETALL', KEYS[1]) \
                    local time = redis.call('TIME') \
                    redis.call('SET', KEYS[3], time[1] .. time[2], 'PX', 86400000, 'GET') \
                    redis.call('HSET', KEYS[1], '1', 1) redis.call('HDEL', KEYS[1], '0') \
                    redis.call('PEXPIRE', KEYS[1], 30000) \
                    return redis.call('ZREM', KEYS[2], '1')";

/// The extent of the measurement.
#[derive(Clone, Copy)]
struct Plan {
    contest: Duration,
    releases: u32,
    crowd: u32,
    patience: Duration,
}

fn main() -> ExitCode {
    partner::serve_if_started_for_it(&[
        ("contend", contend),
        ("follow", follow),
        ("follow bare", follow_bare),
    ]);
    let millis = Duration::from_millis;
    let plan = Scale::from_args().pick(
        Plan { contest: millis(10_000), releases: 1000, crowd: 1000, patience: millis(5000) },
        Plan { contest: millis(2000), releases: 100, crowd: 200, patience: millis(500) },
        Plan { contest: millis(500), releases: 5, crowd: 20, patience: millis(500) },
    );
    let server = Server::redis();
    println!("{}", Setting::of(&server));
    for hold in [Duration::ZERO, Duration::from_millis(1)] {
        two_processes(plan, hold, &server);
    }
    release_to_held(plan, &server);
    let right = crowd(plan, &server);
    idle_waiters(plan, &server);
    setting::print_end(&server);
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Measures two processes with four threads each that keep contending for one lock, and hold it for
/// a while each time.
fn two_processes(plan: Plan, hold: Duration, server: &Server) {
    let [time, held] = [plan.contest, hold].map(|time| time.as_micros().to_string());
    let mut both = [(); 2].map(|()| Partner::start("contend", &[&server.url(), &time, &held]));
    for process in &mut both {
        assert_eq!(process.hear(), "ready");
    }
    for process in &mut both {
        process.tell("go");
    }
    let heard = both.map(|mut process| {
        let words = process.hear();
        let numbers = words.split(' ').map(|word| word.parse::<u32>().expect("a number"));
        numbers.collect::<Vec<_>>()
    });
    let [fewer, more] = if heard[0][0] < heard[1][0] { [0, 1] } else { [1, 0] };
    let ratio = f64::from(heard[fewer][0]) / f64::from(heard[more][0]);
    let most = |place: usize| heard.iter().map(|numbers| numbers[place]).max().unwrap_or(0);
    let micros = |place: usize| Duration::from_micros(most(place).into());
    let time = plan.contest;
    let title = format!("2 processes with 4 threads each, 1 name, {time:?}, holds of {hold:?}");
    table::head_of_facts(&title);
    table::fact("locks of the one", heard[more][0], "");
    table::fact("locks of the other", heard[fewer][0], "");
    if hold.is_zero() {
        table::fact("fewer ÷ more", format!("{ratio:.2}"), &table::at_least(ratio, 0.3));
    } else {
        let held = f64::from(heard[0][3] + heard[1][3]) / f64::from(most(4));
        table::fact("fewer ÷ more", format!("{ratio:.2}"), &table::at_least(ratio, 0.9));
        let goal = table::at_least(held, 0.9);
        table::fact("held for this share of the time", format!("{held:.2}"), &goal);
        let handoffs = f64::from(heard[0][5] + heard[1][5]);
        let share = handoffs / f64::from(heard[0][0] + heard[1][0]) * 100.0;
        table::fact("holds that follow another without a request", format!("{share:.0} %"), "");
    }
    table::fact(
        "99 % of the waits, with the hold, are shorter than",
        format!("{:.1?}", micros(1)),
        "",
    );
    table::fact("the longest wait, with the hold", format!("{:.1?}", micros(2)), "");
}

/// The main function of each of the two processes.
fn contend(arguments: &[String]) {
    let client = Client::open(&arguments[0]).expect("it answers");
    let [time, hold] = [1, 2]
        .map(|place: usize| Duration::from_micros(arguments[place].parse().expect("a number")));
    let held = AtomicU64::new(0);
    drop(client.lock("warm"));
    partner::say("ready");
    partner::listen();
    let work = Work::of(&[], 4, time, |_| {
        let (mutex, held) = (client.mutex(NAME), &held);
        move || {
            let guard = mutex.lock().expect("it answers");
            if !hold.is_zero() {
                let begun = partner::now();
                thread::sleep(hold);
                held.fetch_add(partner::now() - begun, Ordering::Relaxed);
            }
            drop(guard);
        }
    });
    let [p99, longest, wall] =
        [work.p99(), work.longest(), work.spent.wall].map(|time| time.as_micros());
    let (held, handoffs) = (held.into_inner() / 1000, client.stats().handoffs);
    partner::say(&format!("{} {p99} {longest} {held} {wall} {handoffs}", work.cycles));
}

/// Returns a client that retries by itself only after half a minute.
fn sleepy() -> Builder {
    Client::builder().backoff(Duration::from_secs(30), Duration::from_secs(30))
}

/// Measures the time from the release in one process until another holds the lock that it waits
/// for: as it is, and without each mechanism that makes it faster, in turn.
fn release_to_held(plan: Plan, server: &Server) {
    let mut raw = Raw::connect(&server.url(), "beside");
    let mut pairs = ["nothing", "spinning"].map(|without| {
        let client = sleepy_without(without).open(&server.url()).expect("it answers");
        (without, client, Partner::start("follow", &[&server.url(), without]), Vec::new())
    });
    let mut bare = (raw::connect(&server.url()), Partner::start("follow bare", &[&server.url()]));
    let (mut round_trips, mut bare_waits) = (Vec::new(), Vec::new());
    for _ in 0..plan.releases {
        bare_waits.push(release_bare(&mut bare.0, &mut bare.1));
        for (_, client, other, waits) in &mut pairs {
            waits.push(release_once(server, client, other));
            thread::sleep(Duration::from_millis(2));
            let started = Instant::now();
            raw.lock_and_unlock();
            round_trips.push(started.elapsed().as_secs_f64() / 2.0);
        }
    }
    let [[_, round_trip, _], [_, bare, _]] = [round_trips, bare_waits].map(quartiles);
    for (without, _, _, waits) in pairs {
        let [_, wait, _] = quartiles(waits);
        let micros = |seconds| Duration::from_secs_f64(seconds);
        let times = plan.releases;
        let title = match without {
            "nothing" => "released in one process, held in another".to_owned(),
            without => format!("released in one process, held in another, without {without}"),
        };
        table::head_of_facts(&format!("{title}, {times} times"));
        table::fact("median", format!("{:.1?}", micros(wait)), "");
        table::fact("a raw round trip after a pause", format!("{:.1?}", micros(round_trip)), "");
        table::fact("÷ a raw round trip", format!("{:.1}", wait / round_trip), "");
        table::fact("the same commands, bare", format!("{:.1?}", micros(bare)), "");
        let ratio = wait / bare;
        let goal = if without == "nothing" { table::at_most(ratio, 1.05) } else { String::new() };
        table::fact("÷ the same commands, bare", format!("{ratio:.2}"), &goal);
    }
}

/// Returns the seconds from a release until the other process, which waits for the lock, holds it.
fn release_once(server: &Server, client: &Client, other: &mut Partner) -> f64 {
    let queue = format!("leasehold:queue:{{lock:{NAME}}}");
    let guard = client.lock(NAME).expect("it answers");
    other.tell("lock");
    while server.ask::<u64>(&["ZCARD", &queue]) == 0 {
        thread::sleep(Duration::from_micros(200));
    }
    // The other process is asleep by then.
    thread::sleep(Duration::from_millis(2));
    let released = partner::now();
    drop(guard);
    let held: u64 = other.hear().parse().expect("a number");
    Duration::from_nanos(held.saturating_sub(released)).as_secs_f64()
}

/// Returns a client that retries by itself only after half a minute, without one of the mechanisms.
fn sleepy_without(mechanism: &str) -> Builder {
    match mechanism {
        "nothing" => sleepy(),
        "spinning" => sleepy().spin(Duration::ZERO),
        other => panic!("no mechanism {other:?}"),
    }
}

/// Like `release_once`, but with two bare scripts, a thread that the message wakes, and one that
/// this thread wakes. All of them block.
fn release_bare(connection: &mut Connection, other: &mut Partner) -> f64 {
    other.tell("lock");
    thread::sleep(Duration::from_millis(2));
    let (free, released) = (Script::new(FREE), partner::now());
    // At the start it may not listen yet.
    while free.key(BARE).key("queue").invoke::<u32>(connection).expect("it answers") == 0 {}
    let held: u64 = other.hear().parse().expect("a number");
    Duration::from_nanos(held.saturating_sub(released)).as_secs_f64()
}

fn follow_bare(arguments: &[String]) {
    let (mut listening, mut connection) =
        (raw::connect(&arguments[0]), raw::connect(&arguments[0]));
    let (freed, woken) = bounded(1);
    thread::spawn(move || {
        let mut channel = listening.as_pubsub();
        channel.subscribe(BARE).expect("it answers");
        while channel.get_message().is_ok() && freed.send(()).is_ok() {}
    });
    let take = Script::new(TAKE);
    while partner::listen() == "lock" && woken.recv().is_ok() {
        let taken = take.key(BARE).key("queue").key("fence").invoke::<()>(&mut connection);
        taken.expect("it answers");
        partner::say(&partner::now().to_string());
    }
}

/// The main function of the waiting process.
fn follow(arguments: &[String]) {
    let client = sleepy_without(&arguments[1]).open(&arguments[0]).expect("it answers");
    while partner::listen() == "lock" {
        let guard = client.lock(NAME).expect("it answers");
        let held = partner::now();
        drop(guard);
        partner::say(&held.to_string());
    }
}

/// Measures very many threads that wait for one lock at the same time. Returns `false` if that took
/// more requests or connections than it should.
fn crowd(plan: Plan, server: &Server) -> bool {
    const POOL: u32 = 8;
    let holder = Client::open(&server.url()).expect("it answers");
    let held = holder.lock(NAME).expect("it answers");
    let others = connections(server);
    let (told, waiting) = bounded(0);
    let tell = move |event: &Event| {
        if let Event::Contended { .. } = event {
            told.send(()).expect("they are counted");
        }
    };
    let client = Client::builder().pool_size(POOL).on_event(tell);
    let client = client.open(&server.url()).expect("it answers");
    let before = server.evals();
    let most = thread::scope(|scope| {
        for _ in 0..plan.crowd {
            scope.spawn(|| drop(client.lock(NAME).expect("it answers")));
        }
        for _ in 0..plan.crowd {
            waiting.recv().expect("each finds the lock taken");
        }
        drop(held);
        connections(server)
    });
    let most = most.max(connections(server)) - others;
    let requests = u32::try_from(server.evals() - before).expect("a u32 of requests");
    let requests = f64::from(requests) / f64::from(plan.crowd);
    let right = requests <= 3.0 && most <= u64::from(POOL) + 2;
    let title = format!("{} threads that wait for one name, all of them served", plan.crowd);
    table::head_of_facts(&title);
    let goal = table::at_most(requests, 3.0);
    table::fact("requests per thread", format!("{requests:.2}"), &goal);
    let goal = table::at_most(counts::each(most, 1), f64::from(POOL + 2));
    table::fact("connections with a pool of 8", most, &goal);
    right
}

fn connections(server: &Server) -> u64 {
    info(server, "clients", "connected_clients")
}

/// Measures the CPU time of threads that wait for a name that is held elsewhere.
fn idle_waiters(plan: Plan, server: &Server) {
    let holder = Client::open(&server.url()).expect("it answers");
    let client = Client::open(&server.url()).expect("it answers");
    let held = holder.lock(NAME).expect("it answers");
    let spent = Spent::by(&[], || {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let waited = client.try_lock_for(NAME, plan.patience);
                    assert!(waited.expect("it answers").is_none(), "it is held elsewhere");
                });
            }
        });
    });
    drop(held);
    let share = spent.cpu.div_duration_f64(spent.wall) * 100.0;
    let title = format!("8 threads that wait {:?} for a name held elsewhere", plan.patience);
    table::head_of_facts(&title);
    table::fact("CPU", format!("{share:.2} % of a core"), &table::at_most(share, 2.0));
}
