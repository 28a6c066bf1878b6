//! The cost of many held leases: memory, and the CPU time of the thread that renews them.
//!
//! `cargo bench --bench leases` holds 100,000 leases of 30 s for more than twice that time; `--
//! --quick` holds fewer and shorter leases that are renewed as many times. The program fails if a
//! lease is lost.

use std::env;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard};

use self::support::meter::{CpuTime, Switches};
use self::support::server::Server;
use self::support::setting;
use self::support::table;

mod support;

const RENEWER: &str = "leasehold-renew";

/// How many leases are held, their length, and how long they are held.
#[derive(Clone, Copy)]
struct Scale {
    leases: usize,
    lease: Duration,
    time: Duration,
}

impl Scale {
    fn from_args() -> Self {
        let has = |wanted| env::args().any(|arg| arg == wanted);
        let (leases, lease, time) = if has("--test") || !has("--bench") {
            (100, 3, 1)
        } else if has("--quick") {
            (20_000, 6, 13)
        } else {
            (100_000, 30, 65)
        };
        Self { leases, lease: Duration::from_secs(lease), time: Duration::from_secs(time) }
    }
}

fn main() -> ExitCode {
    let scale = Scale::from_args();
    let server = Server::redis();
    println!("{}", setting::of(&server));
    let client = Client::builder().lease(scale.lease).open(&server.url()).expect("it answers");
    let names: Vec<_> = (0..scale.leases).map(|number| format!("lock:{number:08}")).collect();

    let (before, started) = (private_bytes(), Instant::now());
    let guards: Vec<_> = names.iter().map(|name| client.lock(name).expect("it is free")).collect();
    let took = started.elapsed();
    let title = format!("{} leases of {:?}, held for {:?}", scale.leases, scale.lease, scale.time);
    table::head(&[&title, "measured", "goal"]);
    table::fact("acquired one by one in", format!("{took:.1?}"), "");
    if let (Some(before), Some(after)) = (before, private_bytes()) {
        print_memory(after.saturating_sub(before), &names);
    }
    let lost = renew(scale.time, &server, &guards);
    if lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Holds the leases for a while, prints the cost of renewing them, and counts the lost ones.
fn renew(time: Duration, server: &Server, guards: &[Guard]) -> usize {
    let (cpu, switches, calls) = (CpuTime::of(RENEWER), Switches::of(RENEWER), server.evals());
    thread::sleep(time);
    let renewals = server.evals() - calls;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    table::fact("renewals", renewals, "");
    if let Some(spent) = CpuTime::of(RENEWER).since(cpu) {
        let share = spent.div_duration_f64(time) * 100.0;
        table::fact("CPU of the renewer", format!("{share:.1} % of a core"), "≤ 25 %");
    }
    if let Some(switches) = Switches::of(RENEWER).since(&switches) {
        table::fact("context switches of the renewer", switches, "");
    }
    table::fact("lost", lost, "0");
    lost
}

fn print_memory(bytes: u64, names: &[String]) {
    let own: usize = names.iter().map(String::len).sum();
    let each = bytes.saturating_sub(own as u64) / names.len() as u64;
    table::fact("bytes each, beyond the name", each, "≤ 400");
}

/// Returns the private memory of this process; `None` where there is no /proc.
fn private_bytes() -> Option<u64> {
    let all = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}
