//! Counts the effects of uncontended cycles: requests to the server, allocations of the locking
//! thread, and wake-ups of the renewer.

use std::time::{Duration, Instant};

use super::meter::Switches;
use super::server::Server;

/// The counts. Unlike times, they are exact, and so either right or wrong.
pub(crate) struct Counts {
    cycles: u32,
    took: Duration,
    scripts: u64,
    pings: u64,
    allocations: u64,
    /// `None` where the threads of a process are not visible.
    renewer_switches: Option<u64>,
}

impl Counts {
    /// Counts the effects of this many `cycles`, each of which locks and unlocks once at `server`.
    pub(crate) fn of(cycles: u32, server: &Server, mut cycle: impl FnMut()) -> Self {
        cycle(); // Connects, starts the renewer and may send the scripts.
        let seen = || (server.evals(), server.calls("ping"));
        let (requests, switches) = (seen(), Switches::of("leasehold-renew"));
        let started = Instant::now();
        let allocations = allocations(cycles, cycle);
        let took = started.elapsed();
        let renewer_switches = Switches::of("leasehold-renew").since(&switches);
        let (evals, pings) = seen();
        let (scripts, pings) = (evals - requests.0, pings - requests.1);
        Self { cycles, took, scripts, pings, allocations, renewer_switches }
    }

    /// Returns `true` if there were two scripts per cycle and no check of the connection.
    pub(crate) fn are_right(&self) -> bool {
        self.scripts == 2 * u64::from(self.cycles) && self.pings == 0
    }

    /// Prints the counts beside the allocations of this many cycles of raw.
    pub(crate) fn print(&self, raw_allocations: u64) {
        let Self { cycles, took, scripts, pings, allocations, renewer_switches } = self;
        println!("\n{cycles} uncontended cycles in {took:.1?}");
        println!("{:<32} {scripts:>9}   must be 2 per cycle", "scripts run");
        println!("{:<32} {pings:>9}   must be 0", "PINGs");
        println!("{:<32} {allocations:>9}   raw: {raw_allocations}", "allocations");
        if let Some(switches) = renewer_switches {
            println!("{:<32} {switches:>9}", "context switches of the renewer");
        }
        if !self.are_right() {
            println!("WRONG: the server saw requests that should not be there, or missed some");
        }
    }
}

/// Counts the allocations of this thread in this many cycles.
pub(crate) fn allocations(cycles: u32, mut cycle: impl FnMut()) -> u64 {
    allocation_counter::measure(|| (0..cycles).for_each(|_| cycle())).count_total
}
