//! How locks grow beyond one server and one process: names over the masters of a cluster, wake-ups
//! between its nodes, and many processes at one server.
//!
//! `cargo bench --bench scaling` prints tables, with `-- --quick` in half a minute. The processes
//! are this program, started again. `cargo bench --bench leases` has many held leases.

use std::process::ExitCode;

use self::support::partner;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting;

mod masters;
mod processes;
#[path = "../support/mod.rs"]
mod support;
mod wakeups;

fn main() -> ExitCode {
    partner::serve_if_started_for_it(&[("lock", processes::lock)]);
    let scale = Scale::from_args();
    let server = Server::redis();
    println!("{}", setting::of(&server));
    masters::measure(scale);
    wakeups::measure(scale);
    let right = processes::measure(scale, &server);
    setting::print_end(&server);
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
