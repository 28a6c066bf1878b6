//! The cost of an uncontended lock on five independent servers, compared with a good hand-written
//! one on a single server.
//!
//! `cargo bench --bench quorum` measures all rivals in turns of one run and prints a table;
//! `-- --quick` keeps it under a minute. Compare times within one run only. For one of the clients,
//! two of the five servers hang, which should cost it next to nothing.

use std::env;
use std::process::ExitCode;
use std::thread::available_parallelism;

use leasehold::Client;

use self::support::raw::Raw;
use self::support::server::Server;
use self::support::turns::{Plan, Rival, Series};

mod support;

fn main() -> ExitCode {
    let plan = plan();
    let single = Server::redis();
    let (healthy, crippled) = (five(), five());
    let mut raw = Raw::connect(&single.url(), "lock");
    let (all, rest) = (open(&healthy), open(&crippled));
    crippled[1].stop();
    crippled[3].stop();
    let results = plan.run(&mut [
        Rival::new("raw, one server", || raw.lock_and_unlock()),
        Rival::new("quorum of 5", || lock_and_unlock(&all)),
        Rival::new("quorum of 5, 2 hang", || lock_and_unlock(&rest)),
    ]);
    let cores = available_parallelism().map_or(0, usize::from);
    let Plan { rounds, cycles } = plan;
    println!("\n{rounds} rounds of {cycles} cycles each, in turn, on {cores} cores");
    print_times(&results);
    ExitCode::SUCCESS
}

fn plan() -> Plan {
    let has = |wanted| env::args().any(|arg| arg == wanted);
    let (rounds, cycles) = if has("--test") || !has("--bench") {
        (1, 10)
    } else if has("--quick") {
        (40, 100)
    } else {
        (100, 200)
    };
    Plan { rounds, cycles }
}

fn five() -> [Server; 5] {
    std::array::from_fn(|_| Server::redis())
}

fn open(servers: &[Server; 5]) -> Client {
    let urls = servers.each_ref().map(Server::url);
    let urls = urls.each_ref().map(String::as_str);
    Client::builder().open_redlock(&urls).expect("the servers answer")
}

fn lock_and_unlock(client: &Client) {
    let guard = client.lock("alone").expect("it is free");
    guard.unlock().expect("it is still held");
}

fn print_times(results: &[Series]) {
    println!(
        "\n{:<22} {:>9} {:>7} {:>13} {:>9}   goal",
        "a cycle", "wall", "÷ raw", "(quartiles)", "CPU"
    );
    for series in results {
        let [low, ratio, high] = series.ratios_to(&results[0]);
        let quartiles = format!("({low:.2} - {high:.2})");
        let (wall, cpu, verdict) = (series.wall(), series.cpu(), verdict(series.name, ratio));
        println!(
            "{:<22} {wall:>9.1?} {ratio:>7.2} {quartiles:>13} {cpu:>9.1?}   {verdict}",
            series.name
        );
    }
}

fn verdict(rival: &str, ratio: f64) -> String {
    let goal = match rival {
        "quorum of 5" => 2.0,
        "quorum of 5, 2 hang" => 2.5,
        _ => return String::new(),
    };
    let met = if ratio <= goal { "met" } else { "MISSED" };
    format!("<= {goal:.2} {met}")
}
