//! Counts the effects of uncontended cycles: requests to the server, allocations of the locking
//! thread, and wake-ups of the renewer.

use super::meter::Switches;
use super::server::Server;
use super::table;

/// The counts. Unlike times, they are exact, and so either right or wrong.
pub(crate) struct Counts {
    cycles: u32,
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
        let allocations = allocations(cycles, cycle);
        let renewer_switches = Switches::of("leasehold-renew").since(&switches);
        let (evals, pings) = seen();
        let (scripts, pings) = (evals - requests.0, pings - requests.1);
        Self { cycles, scripts, pings, allocations, renewer_switches }
    }

    /// Returns `true` if there were two scripts per cycle and no check of the connection.
    pub(crate) fn are_right(&self) -> bool {
        self.scripts == 2 * u64::from(self.cycles) && self.pings == 0
    }

    /// Prints the counts next to the allocations of as many cycles of raw.
    pub(crate) fn print(&self, raw_allocations: u64) {
        let Self { cycles, scripts, pings, allocations, renewer_switches } = *self;
        table::head_of_facts(&format!("lock + `unlock`, {cycles} cycles"));
        let each = each(scripts, cycles);
        table::fact("scripts of a cycle", format!("{each:.2}"), &table::at_most(each, 2.0));
        table::fact("`PING`s of all cycles together", pings, &table::none(pings));
        let [own, raw] = [allocations, raw_allocations].map(|count| self::each(count, cycles));
        table::fact("allocations of a cycle", format!("{own:.2}, and {raw:.2} of raw"), "");
        if let Some(switches) = renewer_switches {
            table::fact("context switches of the renewer, all together", switches, "");
        }
    }
}

/// Returns how many of these there are for each cycle.
pub(crate) fn each(count: u64, cycles: u32) -> f64 {
    f64::from(u32::try_from(count).expect("a u32 of them")) / f64::from(cycles)
}

/// Counts the allocations of this thread in this many cycles.
pub(crate) fn allocations(cycles: u32, mut cycle: impl FnMut()) -> u64 {
    allocation_counter::measure(|| (0..cycles).for_each(|_| cycle())).count_total
}
