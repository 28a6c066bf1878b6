//! Compares leasehold with other Redis locks for Rust, and with "raw", a good hand-written one.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml` takes about six minutes, and
//! with `-- --quick` half a minute; `--plot FILE` draws the ratios as an SVG. All peers use
//! the same server, started for this run, and take short turns, so that other load on the machine
//! affects all of them equally. Ratios are comparable between runs, absolute figures are not.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::scenario::{Distance, Plan, Scenario, Servers};
use self::support::plot;
use self::support::setting;
use self::support::slow_link;

mod peer;
mod report;
mod results;
mod scenario;
mod support;
mod worker;

const fn scenario(workers: usize, names: usize, distance: Distance, goal: f64) -> Scenario {
    Scenario { workers, names, distance, goal: Some(goal), is_plotted: true }
}

/// A scenario that only fills the gaps between the others.
const fn beside(workers: usize, distance: Distance) -> Scenario {
    Scenario { workers, names: workers, distance, goal: None, is_plotted: false }
}

const SCENARIOS: [Scenario; 12] = [
    scenario(1, 1, Distance::Here, 0.60),
    scenario(1, 1, Distance::Millisecond, 0.55),
    scenario(4, 4, Distance::Here, 1.30),
    beside(4, Distance::Millisecond),
    beside(8, Distance::Here),
    beside(8, Distance::Millisecond),
    scenario(32, 32, Distance::Here, 1.50),
    beside(32, Distance::Millisecond),
    beside(128, Distance::Here),
    beside(128, Distance::Millisecond),
    scenario(8, 1, Distance::Here, 2.20),
    Scenario {
        workers: 8,
        names: 1,
        distance: Distance::Millisecond,
        goal: None,
        is_plotted: true,
    },
];

fn main() -> ExitCode {
    slow_link::serve_if_started_for_it();
    let Some(wishes) = Wishes::from_args(env::args().skip(1)) else {
        eprintln!("usage: peers [--quick] [--plot FILE]");
        return ExitCode::FAILURE;
    };
    let servers = Servers::start();
    let setting = setting::of(&servers.server);
    println!("{setting}");
    let mut bars = Vec::new();
    for scenario in &SCENARIOS {
        let results = scenario.run(wishes.plan(scenario), &servers);
        scenario.print(&results);
        if scenario.is_plotted {
            bars.extend(scenario.bars(&results));
        }
    }
    setting::print_end(&servers.server);
    if let Some(file) = wishes.plot
        && let Err(error) = plot::write(&file, setting.lines().next().unwrap_or_default(), &bars)
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

    /// Returns the turns of a scenario. If many wait for one lock, turns must be long enough to
    /// show how long they wait.
    fn plan(&self, scenario: &Scenario) -> Plan {
        let (rounds, turn_ms) = match (scenario.workers > scenario.names, self.quick) {
            (false, false) => (15, 300),
            (false, true) => (3, 60),
            (true, false) => (6, 2_000),
            (true, true) => (2, 300),
        };
        Plan { rounds, turn: Duration::from_millis(turn_ms) }
    }
}
