//! Compares leasehold with other Redis locks for Rust, and with "raw", a good hand-written one.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml` takes about three minutes, and
//! with `-- --quick` a quarter of a minute; `--plot FILE` draws the ratios as an SVG. All peers use
//! the same server, started for this run, and take short turns, so that other load on the machine
//! affects all of them equally. Ratios are comparable between runs, absolute figures are not.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::results::Measure;
use self::scenario::{Plan, Scenario};
use self::support::plot;
use self::support::server::Server;
use self::support::setting;

mod peer;
mod report;
mod results;
mod scenario;
mod support;
mod worker;

const SCENARIOS: [Scenario; 3] = [
    Scenario {
        title: "1 thread, 1 name",
        measure: Measure::Time,
        workers: 1,
        names: 1,
        goal: 0.60,
    },
    Scenario {
        title: "32 threads, 32 names",
        measure: Measure::Rate,
        workers: 32,
        names: 32,
        goal: 1.50,
    },
    Scenario {
        title: "8 threads, 1 name",
        measure: Measure::Rate,
        workers: 8,
        names: 1,
        goal: 3.00,
    },
];

fn main() -> ExitCode {
    let Some(wishes) = Wishes::from_args(env::args().skip(1)) else {
        eprintln!("usage: peers [--quick] [--plot FILE]");
        return ExitCode::FAILURE;
    };
    let server = Server::redis();
    println!("{}", setting::of(&server));
    let mut bars = Vec::new();
    for (scenario, plan) in SCENARIOS.iter().zip(wishes.plans()) {
        let results = scenario.run(plan, &server.url());
        scenario.print(&results);
        bars.extend(scenario.bars(&results));
    }
    if let Some(file) = wishes.plot
        && let Err(error) = plot::write(&file, &bars)
    {
        eprintln!("cannot write {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The options on the command line.
#[derive(Default)]
struct Wishes {
    quick: bool,
    plot: Option<PathBuf>,
}

impl Wishes {
    /// Returns `None` if `args` are invalid.
    fn from_args(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut wishes = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--plot" => wishes.plot = Some(args.next()?.into()),
                "--quick" => wishes.quick = true,
                _ => return None,
            }
        }
        Some(wishes)
    }

    /// The turns for each of the scenarios. Where many wait for one lock, turns must be long enough
    /// to show how long they wait.
    fn plans(&self) -> [Plan; 3] {
        let plans = if self.quick {
            [(10, 40), (5, 120), (3, 400)]
        } else {
            [(50, 200), (20, 400), (6, 2_000)]
        };
        plans.map(|(rounds, turn_ms)| Plan { rounds, turn: Duration::from_millis(turn_ms) })
    }
}
