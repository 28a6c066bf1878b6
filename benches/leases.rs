//! The cost of many held leases: memory, and the CPU time of the thread that renews them.
//!
//! `cargo bench --bench leases` holds 100,000 leases of 30 s for more than twice that time. Then it
//! holds a million, which belong to no thread, for longer than one of them lasts, and some over a
//! link of great distance and little bandwidth. `-- --quick` holds fewer and shorter ones. The
//! program fails if a lease is lost.

use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard, MultiGuard, OwnedGuard};

use self::support::meter::{CpuTime, Switches, info, private_bytes};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting;
use self::support::slow_link::{SlowLink, serve_if_started_for_it};
use self::support::table;

mod support;

/// The time from a request to its reply over the long link.
const ROUND_TRIP: Duration = Duration::from_millis(150);

/// The bytes that the long link takes in the first round trip. The system takes more.
const WINDOW: usize = 16_000;

const RENEWER: &str = "leasehold-renew";

/// The number of leases, their length, and how long they are held.
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
    serve_if_started_for_it();
    let scale = Scale::from_args();
    let guards = Plan::new(scale.pick((100_000, 30, 65), (20_000, 6, 13), (100, 3, 1)));
    let owned = Plan::new(scale.pick((1_000_000, 120, 130), (10_000, 6, 7), (100, 3, 1)));
    println!("{}", setting::of(&Server::redis()));
    let lock = |client: &Client, name: &str| client.lock(name).expect("it is free");
    let lost = guards.hold("", lock, Guard::is_held);
    let lock = |client: &Client, name: &str| client.lock_owned(name).expect("it is free");
    let lost = lost + owned.hold("owned ", lock, OwnedGuard::is_held);
    let few = Plan::new(scale.pick((1_000, 30, 45), (1_000, 6, 7), (100, 6, 1)));
    let many = Plan::new(scale.pick((100_000, 30, 65), (5_000, 6, 7), (100, 6, 1)));
    let lost = lost + few.hold_over_a_long_link() + many.hold_over_a_long_link();
    if lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Plan {
    /// Acquires and holds the leases, prints their cost, and counts the lost ones.
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

    /// Acquires and holds the leases over a link that is too narrow for many renewals at once, in
    /// sets so that they are due together. Prints the outcome, and counts the lost ones.
    fn hold_over_a_long_link(self) -> usize {
        const SET: u32 = 1000;
        let Self { leases, lease, time } = self;
        let server = Server::redis();
        let link = SlowLink::narrow_to(server.port(), ROUND_TRIP / 2, WINDOW);
        let client = Client::builder().lease(lease).open(&link.url()).expect("it answers");
        let lock = |set: u32| {
            let names = (set * SET..leases.min((set + 1) * SET)).map(|number| number.to_string());
            client.lock_all(names).expect("they are free")
        };
        let sets: Vec<u32> = (0..leases.div_ceil(SET)).collect();
        let guards: Vec<MultiGuard> = thread::scope(|scope| {
            let share = sets.len().div_ceil(8);
            let threads = sets
                .chunks(share)
                .map(|sets| scope.spawn(|| sets.iter().map(|set| lock(*set)).collect::<Vec<_>>()));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let title = format!("{leases} leases of {lease:?} over {ROUND_TRIP:?}, held for {time:?}");
        table::head(&[&title, "measured", "goal"]);
        let before = client.stats();
        thread::sleep(time);
        let after = client.stats();
        table::fact("renewals", after.renewals - before.renewals, "");
        table::fact("connections given up", after.reconnects - before.reconnects, "0");
        table::fact("renewals tried again", after.failed_renewals - before.failed_renewals, "");
        let lost = after.lost;
        table::fact("lost", lost, "0");
        // Releasing them would take as long.
        guards.into_iter().for_each(std::mem::forget);
        usize::try_from(lost).expect("no more than were held")
    }

    /// Lets the leases be renewed for a while, and prints the cost.
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
