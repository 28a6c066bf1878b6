//! # Other crates
//!
//! leasehold compared with rslock and redlock, with the settings that favour each. Guards are
//! released by dropping them. rslock is made for async programs and has two rows: called from
//! threads, which is what leasehold is made for, and from tasks of a runtime. Raw has one
//! connection, and one thread, for each name.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::scenario::{Distance, Plan, Scenario, Servers};
use self::support::plot;
use self::support::setting::{self, Setting};
use self::support::slow_link;

mod peer;
mod report;
mod results;
mod scenario;
mod support;
mod worker;

const fn scenario(workers: usize, names: usize, distance: Distance) -> Scenario {
    Scenario { workers, names, distance }
}

const SCENARIOS: [Scenario; 6] = [
    scenario(1, 1, Distance::Here),
    scenario(1, 1, Distance::Millisecond),
    scenario(32, 32, Distance::Here),
    scenario(32, 32, Distance::Millisecond),
    scenario(8, 1, Distance::Here),
    scenario(8, 1, Distance::Millisecond),
];

/// The title of the plot.
const TITLE: &str = "Locks per second, in multiples of those of bare connections (1×)";

fn main() -> ExitCode {
    slow_link::serve_if_started_for_it();
    let Some(wishes) = Wishes::from_args(env::args().skip(1)) else {
        eprintln!("usage: peers [--quick] [--plot FILE]");
        return ExitCode::FAILURE;
    };
    let servers = Servers::start();
    let setting = Setting::of(&servers.server);
    println!("{setting}");
    let mut bars = Vec::new();
    for scenario in &SCENARIOS {
        let results = scenario.run(wishes.plan(scenario), &servers);
        scenario.print(&results);
        bars.extend(scenario.bars(&results));
    }
    setting::print_end(&servers.server);
    if let Some(file) = wishes.plot
        && let Err(error) = plot::write(&file, TITLE, &setting.brief(), &bars)
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
