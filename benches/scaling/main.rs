//! # Growing beyond one server
//!
//! - *masters*: names over the masters of a cluster. All nodes share the cores of this machine with
//!   the client, so more masters make nothing faster here. What counts is the CPU time of the
//!   busiest master in a cycle, and what that means where each master has a core of its own.
//! - *a wake-up in a cluster*: a bare message from one client to another, and a cycle in which two
//!   clients want one lock all the time. `PUBLISH` is passed on to all nodes, `SPUBLISH` stays
//!   where the channel's slot is.
//! - *processes × threads*: many processes that lock the names of one set in turn, at one server.
//!   They share the cores of this machine too, which is what limits them. The program fails if a
//!   call fails or a process gets nothing.

use std::process::ExitCode;

use self::support::partner;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};

mod masters;
mod processes;
#[path = "../support/mod.rs"]
mod support;
mod wakeups;

fn main() -> ExitCode {
    partner::serve_if_started_for_it(&[("lock", processes::lock)]);
    let scale = Scale::from_args();
    let server = Server::redis();
    println!("{}", Setting::of(&server));
    masters::measure(scale);
    wakeups::measure(scale);
    let right = processes::measure(scale, &server);
    setting::print_end(&server);
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
