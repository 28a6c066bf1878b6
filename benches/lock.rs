//! The cost of an uncontended lock, compared with a good hand-written one.
//!
//! `cargo bench --bench lock` runs criterion, then measures everything again in turns of one run
//! and prints a table; `-- --quick` keeps both under a minute. Compare times within one run only,
//! whatever criterion reports about the previous run: the cost of waking a sleeping reader, and so
//! of raw, changes severalfold with other load on the machine. Requests are counted, independently
//! of time, and the program fails if there are too many.

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use criterion::Criterion;
use leasehold::{Client, Mechanism};

use self::support::counts::Counts;
use self::support::raw::Raw;
use self::support::server::Server;
use self::support::setting;
use self::support::slow_link::{self, SlowLink};
use self::support::turns::{Plan, Rival, Series};

mod support;

fn main() -> ExitCode {
    slow_link::serve_if_started_for_it();
    let scale = Scale::from_args();
    let server = Server::redis();
    with_rivals(&server.url(), run_criterion);
    if env::args().any(|arg| arg == "--list" || arg.starts_with("--profile-time")) {
        return ExitCode::SUCCESS;
    }

    print_setting(scale, &server);
    with_rivals(&server.url(), |rivals| {
        print_times(&scale.near().run(rivals));
    });
    print_slow_server(&measure_slow_server(scale.far(), &server));
    let counts = count(scale.counted_cycles(), &server);
    counts.print();
    if counts.are_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How much to measure.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// `cargo bench`
    Full,
    /// `cargo test --benches`, which only checks that it runs.
    Once,
    /// `cargo bench -- --quick`
    Quick,
}

impl Scale {
    /// Criterion is controlled by the same arguments.
    fn from_args() -> Self {
        let has = |wanted| env::args().any(|arg| arg == wanted);
        if has("--test") || !has("--bench") {
            Self::Once
        } else if has("--quick") {
            Self::Quick
        } else {
            Self::Full
        }
    }

    fn near(self) -> Plan {
        let (rounds, cycles) = match self {
            Self::Full => (100, 200),
            Self::Once => (1, 10),
            Self::Quick => (40, 100),
        };
        Plan { rounds, cycles }
    }

    fn far(self) -> Plan {
        let (rounds, cycles) = match self {
            Self::Full => (20, 50),
            Self::Once => (1, 10),
            Self::Quick => (10, 20),
        };
        Plan { rounds, cycles }
    }

    fn counted_cycles(self) -> u32 {
        if self == Self::Once { 100 } else { 10_000 }
    }
}

/// Passes the rivals that lock and unlock at `url` to `measure`, raw first.
fn with_rivals(url: &str, measure: impl FnOnce(&mut [Rival<'_>])) {
    let mut raw = Raw::connect(url, "lock");
    let spinning = Client::open(url).expect("the server answers");
    let waiting = Client::builder().without(Mechanism::PostedRelease).open(url);
    let waiting = waiting.expect("the server answers");
    let sleeping = Client::builder().spin(Duration::ZERO).open(url).expect("the server answers");
    let outer = [(&spinning, "outer"), (&sleeping, "outer, spin(0)")]
        .map(|(client, name)| client.lock(name).expect("it is free"));
    measure(&mut [
        Rival::new("raw", || raw.lock_and_unlock()),
        Rival::new("uncontended", || lock_and_unlock(&spinning, "alone")),
        Rival::new("uncontended, spin(0)", || {
            lock_and_unlock(&sleeping, "alone");
        }),
        Rival::new("no posted releases", || lock_and_unlock(&waiting, "alone")),
        Rival::new("nested", || lock_and_unlock(&spinning, "outer")),
        Rival::new("nested, spin(0)", || {
            lock_and_unlock(&sleeping, "outer, spin(0)");
        }),
    ]);
    drop(outer);
}

fn lock_and_unlock(client: &Client, name: &str) {
    drop(client.lock(name).expect("it is free"));
}

fn run_criterion(rivals: &mut [Rival<'_>]) {
    let mut criterion = Criterion::default()
        .without_plots()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let mut group = criterion.benchmark_group("lock and unlock");
    for rival in rivals {
        group.bench_function(rival.name, |bencher| bencher.iter(&mut rival.cycle));
    }
    group.finish();
    criterion.final_summary();
}

/// Measures raw and leasehold, which spins for replies by default, over a link of 1 ms.
fn measure_slow_server(plan: Plan, server: &Server) -> Vec<Series> {
    let link = SlowLink::to(server.port(), Duration::from_micros(500));
    let mut raw = Raw::connect(&link.url(), "lock");
    let client = Client::open(&link.url()).expect("the server answers");
    plan.run(&mut [
        Rival::new("raw", || raw.lock_and_unlock()),
        Rival::new("uncontended", || lock_and_unlock(&client, "alone")),
    ])
}

fn count(cycles: u32, server: &Server) -> Counts {
    let client = Client::open(&server.url()).expect("the server answers");
    Counts::of(cycles, server, || lock_and_unlock(&client, "alone"))
}

fn print_setting(scale: Scale, server: &Server) {
    let Plan { rounds, cycles } = scale.near();
    println!("\n{}", setting::of(server));
    println!("{rounds} rounds of {cycles} cycles each, in turn; CPU time is the whole process's");
    if scale == Scale::Once {
        println!("a run this short only shows that it works; its times are meaningless");
    }
}

fn print_times(results: &[Series]) {
    println!(
        "\n{:<22} {:>9} {:>7} {:>13} {:>9} {:>8}   goal",
        "a cycle", "wall", "÷ raw", "(quartiles)", "CPU", "of user"
    );
    for series in results {
        let [low, ratio, high] = series.ratios_to(&results[0]);
        println!(
            "{:<22} {:>9.1?} {ratio:>7.2} {:>13} {:>9.1?} {:>8.1?}   {}",
            series.name,
            series.wall(),
            format!("({low:.2} - {high:.2})"),
            series.cpu(),
            series.user(),
            verdict(series.name, ratio),
        );
    }
}

fn verdict(rival: &str, ratio: f64) -> String {
    let goal = match rival {
        "raw" => return String::new(),
        sleeping if sleeping.ends_with("spin(0)") => 1.10,
        _ => 0.60,
    };
    let met = if ratio <= goal { "met" } else { "MISSED" };
    format!("<= {goal:.2} {met}")
}

fn print_slow_server(results: &[Series]) {
    println!("\n{:<22} {:>10} {:>9} {:>12}", "a cycle, 1 ms away", "wall", "CPU", "CPU ÷ wall");
    for series in results {
        let share = 100.0 * series.busy();
        println!(
            "{:<22} {:>10.1?} {:>9.1?} {share:>10.1} %",
            series.name,
            series.wall(),
            series.cpu(),
        );
    }
}
