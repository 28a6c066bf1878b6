//! The cost of many held leases: memory, and the CPU time of the thread that renews them.
//!
//! `cargo bench --bench leases` holds 100,000 leases of 30 s for more than twice that time, and
//! then a million, which belong to no thread, for longer than one of them lasts; `-- --quick` holds
//! fewer and shorter ones. The program fails if a lease is lost.

use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard, OwnedGuard};

use self::support::meter::{CpuTime, Switches, info, private_bytes};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting;
use self::support::table;

mod support;

const RENEWER: &str = "leasehold-renew";

/// How many leases are held, their length, and how long they are held.
#[derive(Clone, Copy)]
struct Plan {
    leases: u32,
    lease: Duration,
    time: Duration,
}

impl Plan {
    fn new((leases, lease, time): (u32, u64, u64)) -> Self {
        Self { leases, lease: Duration::from_secs(lease), time: Duration::from_secs(time) }
    }
}

fn main() -> ExitCode {
    let scale = Scale::from_args();
    let guards = Plan::new(scale.pick((100_000, 30, 65), (20_000, 6, 13), (100, 3, 1)));
    let owned = Plan::new(scale.pick((1_000_000, 120, 130), (10_000, 6, 7), (100, 3, 1)));
    println!("{}", setting::of(&Server::redis()));
    let lock = |client: &Client, name: &str| client.lock(name).expect("it is free");
    let lost = guards.hold("", lock, Guard::is_held);
    let lock = |client: &Client, name: &str| client.lock_owned(name).expect("it is free");
    let lost = lost + owned.hold("owned ", lock, OwnedGuard::is_held);
    if lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Plan {
    /// Acquires and holds the leases, prints what they cost, and counts the lost ones.
    fn hold<G>(
        self,
        kind: &str,
        lock: impl Fn(&Client, &str) -> G,
        is_held: impl Fn(&G) -> bool,
    ) -> usize {
        let Self { leases, lease, time } = self;
        let server = Server::redis();
        let client = Client::builder().lease(lease).open(&server.url()).expect("it answers");
        let names: Vec<_> = (0..leases).map(|number| format!("lock:{number:08}")).collect();
        let memory = || (private_bytes(process::id()), info(&server, "memory", "used_memory"));
        let (before, started) = (memory(), Instant::now());
        let guards: Vec<_> = names.iter().map(|name| lock(&client, name)).collect();
        let took = started.elapsed();
        let after = memory();
        table::head(&[
            &format!("{leases} {kind}leases of {lease:?}, held for {time:?}"),
            "measured",
            "goal",
        ]);
        table::fact("acquired one by one in", format!("{took:.1?}"), "");
        if let (Some(before), Some(after)) = (before.0, after.0) {
            let own: usize = names.iter().map(String::len).sum();
            let each = (after.saturating_sub(before) - own as u64) / u64::from(leases);
            table::fact("bytes each, beyond the name", each, "≤ 400");
        }
        let each = after.1.saturating_sub(before.1) / u64::from(leases);
        table::fact("bytes each in the server, with the fence", each, "");
        self.renew(&server);
        let lost = guards.iter().filter(|guard| !is_held(guard)).count();
        table::fact("lost", lost, "0");
        lost
    }

    /// Lets the leases be renewed for a while, and prints what that costs.
    fn renew(self, server: &Server) {
        let (cpu, switches) = (CpuTime::of(RENEWER), Switches::of(RENEWER));
        let (server_cpu, calls) = (server.cpu_time(), server.evals());
        thread::sleep(self.time);
        table::fact("renewals", server.evals() - calls, "");
        let share = |spent: Duration| {
            format!("{:.1} % of a core", spent.div_duration_f64(self.time) * 100.0)
        };
        if let Some(spent) = CpuTime::of(RENEWER).since(cpu) {
            table::fact("CPU of the renewer", share(spent), "≤ 25 %");
        }
        table::fact("CPU of the server", share(server.cpu_time().saturating_sub(server_cpu)), "");
        if let Some(switches) = Switches::of(RENEWER).since(&switches) {
            table::fact("context switches of the renewer", switches, "");
        }
    }
}
