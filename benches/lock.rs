//! # An uncontended lock
//!
//! One thread, which locks and unlocks a name that no other thread wants. The server is near, and
//! then 1 ms away.
//!
//! - *lock + drop*: `Client::lock`, and the drop of its guard, which sends the release and does not
//!   wait for the reply. *`spin(0)`* never spins while it waits for a reply. *Not posted* waits for
//!   the reply to the release, as *`unlock`* does, which reports it.
//! - *nested*: by a thread that already holds the name. *Owned guard*: a guard that belongs to no
//!   thread. *Read lock* and *permit*: a side of a read-write lock, and one of a semaphore.
//!   *`lock_all` of 8*: eight names in one request.
//! - *kept*: with `Builder::keep`, the client keeps the lock after the drop and locks it again
//!   without a request.
//!
//! The last two tables count what does not depend on time: scripts that the server has run,
//! `PING`s, allocations of the thread, and wake-ups of the thread that renews leases. The program
//! fails if there are more than two scripts for a cycle, or a `PING`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Mechanism, RwLock, Semaphore};

use self::support::counts::{self, Counts};
use self::support::kept::keeping;
use self::support::raw::Raw;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
use self::support::slow_link::{self, SlowLink};
use self::support::table;
use self::support::turns::{Plan, Rival, Series, quartiles};

mod support;

/// The one-way latency of the distant server.
const ONE_WAY: Duration = Duration::from_micros(500);

fn main() -> ExitCode {
    slow_link::serve_if_started_for_it();
    let scale = Scale::from_args();
    let server = Server::redis();
    let setting = Setting::of(&server);
    println!("{setting}");
    let link = SlowLink::to(server.port(), ONE_WAY);
    let near = scale.pick((100, 200), (20, 100), (1, 10));
    let is_dear = setting.regime.is_dear();
    let goal = |rival: &_| goal_near(rival, is_dear);
    let results = compare("a cycle", near, &server.url(), &server, goal);
    let work = results[1].work().div_duration_f64(results[0].work());
    table::head_of_facts("a cycle");
    let goal = table::at_most(work, if is_dear { 0.75 } else { 0.95 });
    table::fact("CPU of lock + drop, client and server, ÷ raw", format!("{work:.2}"), &goal);
    let far = scale.pick((20, 50), (5, 10), (1, 3));
    compare("a cycle, 1 ms away", far, &link.url(), &server, goal_far);
    let cycles = scale.pick(10_000, 10_000, 100);
    let counts = count(cycles, &server);
    let mut raw = Raw::connect(&server.url(), "counted");
    counts.print(counts::allocations(cycles, || raw.lock_and_unlock()));
    count_kept(cycles, &server);
    setting::print_end(&server);
    if counts.are_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The measured clients and locks.
struct Locks {
    raw: Raw,
    client: Client,
    sleeping: Client,
    unposted: Client,
    keeping: Client,
    sides: RwLock,
    permits: Semaphore,
}

impl Locks {
    fn open(url: &str) -> Self {
        let open = |builder: Builder| builder.open(url).expect("the server answers");
        let client = open(Client::builder());
        Self {
            raw: Raw::connect(url, "lock"),
            sleeping: open(Client::builder().spin(Duration::ZERO)),
            unposted: open(Client::builder().without(Mechanism::PostedRelease)),
            keeping: keeping(url, "kept"),
            sides: client.rw_lock("sides"),
            permits: client.semaphore("permits", 1),
            client,
        }
    }
}

/// Measures rivals that lock and unlock at `url`, and prints a table of them. Raw comes first, and
/// then a plain lock.
fn compare(
    title: &str,
    (rounds, cycles): (u32, u32),
    url: &str,
    server: &Server,
    goal: impl Fn(&str) -> Option<f64>,
) -> Vec<Series> {
    let Locks { mut raw, client, sleeping, unposted, keeping, sides, permits } = Locks::open(url);
    let outer = client.lock("outer").expect("it is free");
    let names: [_; 8] = std::array::from_fn(|number| format!("one of 8: {number}"));
    let servers = [server];
    let rival = |name, cycle| Rival { name, servers: &servers, cycle };
    let results = Plan { rounds, cycles }.run(&mut [
        rival("raw", Box::new(|| raw.lock_and_unlock())),
        rival("lock + drop", Box::new(|| lock_and_drop(&client, "alone"))),
        rival("lock + drop, `spin(0)`", Box::new(|| lock_and_drop(&sleeping, "alone"))),
        rival("lock + drop, not posted", Box::new(|| lock_and_drop(&unposted, "alone"))),
        rival("lock + `unlock`", Box::new(|| lock_and_unlock(&client))),
        rival("nested lock + drop", Box::new(|| lock_and_drop(&client, "outer"))),
        rival("owned guard", Box::new(|| drop(client.lock_owned("owned").expect("it is free")))),
        rival("kept lock + drop", Box::new(|| lock_and_drop(&keeping, "kept"))),
        rival("kept owned guard", Box::new(|| drop(keeping.lock_owned("kept").expect("mine")))),
        rival("read lock", Box::new(|| drop(sides.read().expect("it is free")))),
        rival("permit", Box::new(|| drop(permits.acquire().expect("it is free")))),
        rival("`lock_all` of 8", Box::new(|| drop(client.lock_all(&names).expect("all are free")))),
    ]);
    drop(outer);
    table::head_of_cycles(title);
    for series in &results {
        table::cycle(series, &results[0], goal(series.name));
    }
    results
}

fn lock_and_drop(client: &Client, name: &str) {
    drop(client.lock(name).expect("it is free"));
}

fn lock_and_unlock(client: &Client) {
    client.lock("alone").expect("it is free").unlock().expect("it is still held");
}

/// Where waking a thread is cheap, client and server share a core. So nothing runs in parallel, and
/// a cycle takes as long as its work.
fn goal_near(rival: &str, is_dear: bool) -> Option<f64> {
    let (dear, cheap) = match rival {
        "lock + drop" | "nested lock + drop" => (0.60, Some(0.95)),
        "lock + drop, `spin(0)`" => (0.75, Some(0.95)),
        "owned guard" => (0.70, Some(0.95)),
        "permit" | "read lock" => (0.70, Some(1.20)),
        "`lock_all` of 8" => (1.50, None),
        _ => return None,
    };
    if is_dear { Some(dear) } else { cheap }
}

fn goal_far(rival: &str) -> Option<f64> {
    match rival {
        "lock + drop" => Some(0.52),
        _ => None,
    }
}

fn count(cycles: u32, server: &Server) -> Counts {
    let client = Client::open(&server.url()).expect("the server answers");
    Counts::of(cycles, server, || lock_and_unlock(&client))
}

/// Prints the cost of cycles of a kept lock.
fn count_kept(cycles: u32, server: &Server) {
    let client = keeping(&server.url(), "counted");
    let cycle = || lock_and_drop(&client, "counted");
    let times = (0..20).map(|_| {
        let started = Instant::now();
        (0..cycles / 20).for_each(|_| cycle());
        started.elapsed().as_secs_f64() * 1e6 / f64::from(cycles / 20)
    });
    let [_, micros, _] = quartiles(times.collect());
    let evals = server.evals();
    let allocations = counts::each(counts::allocations(cycles, cycle), cycles);
    let scripts = server.evals() - evals;
    table::head_of_facts(&format!("a kept lock, {cycles} cycles"));
    table::fact("time of a cycle", format!("{micros:.2} µs"), &table::at_most(micros, 0.6));
    // Rounded: in one cycle in a thousand, a block of fences costs a few more.
    let allocations = (allocations * 10.0).round() / 10.0;
    let goal = table::at_most(allocations, 2.0);
    table::fact("allocations of a cycle", format!("{allocations:.1}"), &goal);
    table::fact("scripts of all cycles together: renewals, and blocks of fences", scripts, "");
}
