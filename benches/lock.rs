//! The cost of an uncontended lock, compared with a good hand-written one.
//!
//! `cargo bench --bench lock` measures everything in turns of one run and prints tables; `--quick`
//! makes it a few seconds. Compare times within one run only: the cost of waking a sleeping reader,
//! and so of raw, varies severalfold with other load on the machine. Requests are counted
//! independently of time, and the program fails if there are too many.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Builder, Client, Mechanism, RwLock, Semaphore};

use self::support::counts::{Counts, allocations};
use self::support::kept::keeping;
use self::support::raw::Raw;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting;
use self::support::slow_link::{self, SlowLink};
use self::support::table;
use self::support::turns::{Plan, Rival};

mod support;

/// The one-way latency of the distant server.
const ONE_WAY: Duration = Duration::from_micros(500);

fn main() -> ExitCode {
    slow_link::serve_if_started_for_it();
    let scale = Scale::from_args();
    let server = Server::redis();
    println!("{}", setting::of(&server));
    let link = SlowLink::to(server.port(), ONE_WAY);
    let near = scale.pick((100, 200), (20, 100), (1, 10));
    compare("a cycle", near, &server.url(), &server, goal_near);
    let far = scale.pick((20, 50), (5, 10), (1, 3));
    compare("a cycle, 1 ms away", far, &link.url(), &server, goal_far);
    let cycles = scale.pick(10_000, 10_000, 100);
    let counts = count(cycles, &server);
    let mut raw = Raw::connect(&server.url(), "counted");
    counts.print(allocations(cycles, || raw.lock_and_unlock()));
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

/// Measures rivals that lock and unlock at `url`, and prints a table of them.
fn compare(
    title: &str,
    (rounds, cycles): (u32, u32),
    url: &str,
    server: &Server,
    goal: fn(&str) -> Option<f64>,
) {
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
}

fn lock_and_drop(client: &Client, name: &str) {
    drop(client.lock(name).expect("it is free"));
}

fn lock_and_unlock(client: &Client) {
    client.lock("alone").expect("it is free").unlock().expect("it is still held");
}

fn goal_near(rival: &str) -> Option<f64> {
    match rival {
        "lock + drop" | "nested lock + drop" => Some(0.60),
        "lock + drop, `spin(0)`" => Some(0.75),
        "owned guard" | "permit" | "read lock" => Some(0.70),
        "`lock_all` of 8" => Some(1.50),
        "kept lock + drop" => Some(0.01),
        _ => None,
    }
}

fn goal_far(rival: &str) -> Option<f64> {
    match rival {
        "lock + drop" => Some(0.55),
        "kept lock + drop" => Some(0.001),
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
    let evals = server.evals();
    let allocations = allocations(cycles, || lock_and_drop(&client, "counted"));
    let each = f64::from(u32::try_from(allocations).unwrap_or(u32::MAX)) / f64::from(cycles);
    println!("\n{cycles} cycles of a kept lock");
    println!("{:<32} {:>9}   renewals and blocks of tokens", "scripts run", server.evals() - evals);
    println!("{:<32} {each:>9.2}   at most 3", "allocations of a cycle");
}
