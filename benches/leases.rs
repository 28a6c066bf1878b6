//! # Many leases
//!
//! The cost of holding many locks, for several lengths of their leases. Each is renewed three times
//! in a lease. *Bytes each* are the private memory of the process and the `used_memory` of the
//! server, which also has a fence for each name. *CPU of the renewer* is the time of the one thread
//! that renews all of them. Plain leases belong to the thread that locked, *owned* ones to no
//! thread.
//!
//! The leases *over 150 ms* are held over a link with a round trip of that time, whose window grows
//! from 16 KB as that of TCP does, and they are acquired in sets of 1,000, so that many are due at
//! once. No lease may be lost there, and no connection may be taken for broken because its replies
//! are late. *Renewals tried again* had no reply after a second.
//!
//! The program fails if a lease is lost.

use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard, MultiGuard, OwnedGuard};

use self::support::counts;
use self::support::meter::{CpuTime, Switches, info, private_bytes};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::Setting;
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
    let owned = Plan::new(scale.pick((500_000, 60, 65), (10_000, 6, 7), (100, 3, 1)));
    println!("{}", Setting::of(&Server::redis()));
    let lock = |client: &Client, name: &str| client.lock(name).expect("it is free");
    let lost = guards.hold("", true, lock, Guard::is_held);
    let lock = |client: &Client, name: &str| client.lock_owned(name).expect("it is free");
    let lost = lost + owned.hold("owned ", false, lock, OwnedGuard::is_held);
    let few = Plan::new(scale.pick((1_000, 30, 35), (1_000, 6, 7), (100, 6, 1)));
    let many = Plan::new(scale.pick((100_000, 30, 65), (5_000, 6, 7), (100, 6, 1)));
    let lost = lost + few.hold_over_a_long_link() + many.hold_over_a_long_link();
    if lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Plan {
    /// Acquires and holds the leases, prints their cost, and counts the lost ones. The first ones
    /// have goals.
    fn hold<G>(
        self,
        kind: &str,
        is_first: bool,
        lock: impl Fn(&Client, &str) -> G,
        is_held: impl Fn(&G) -> bool,
    ) -> u64 {
        let Self { leases, lease, time } = self;
        let goal = |figure, goal| {
            if is_first { table::at_most(figure, goal) } else { String::new() }
        };
        let server = Server::redis();
        let client = Client::builder().lease(lease).open(&server.url()).expect("it answers");
        let names: Vec<_> = (0..leases).map(|number| format!("lock:{number:08}")).collect();
        let memory = || (private_bytes(process::id()), info(&server, "memory", "used_memory"));
        let (before, started) = (memory(), Instant::now());
        let guards: Vec<_> = names.iter().map(|name| lock(&client, name)).collect();
        let took = started.elapsed();
        let after = memory();
        table::head_of_facts(&format!("{leases} {kind}leases of {lease:?}, held for {time:?}"));
        table::fact("acquired one by one in", format!("{took:.1?}"), "");
        // Later ones use the memory that earlier ones have freed.
        if let (true, Some(before), Some(after)) = (is_first, before.0, after.0) {
            let own: usize = names.iter().map(String::len).sum();
            let each = counts::each(after.saturating_sub(before + own as u64), leases);
            table::fact("bytes each, beyond the name", format!("{each:.0}"), &goal(each, 360.0));
        }
        let each = after.1.saturating_sub(before.1) / u64::from(leases);
        table::fact("bytes each in the server, with the fence", each, "");
        self.renew(&server, goal);
        let lost = guards.iter().filter(|guard| !is_held(guard)).count() as u64;
        table::fact("lost", lost, &table::none(lost));
        lost
    }

    /// Acquires and holds the leases over a link that is too narrow for many renewals at once, in
    /// sets so that they are due together. Prints the outcome, and counts the lost ones.
    fn hold_over_a_long_link(self) -> u64 {
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
        table::head_of_facts(&title);
        let before = client.stats();
        thread::sleep(time);
        let after = client.stats();
        table::fact("renewals", after.renewals - before.renewals, "");
        let closed = after.reconnects - before.reconnects;
        table::fact("connections closed as broken", closed, &table::none(closed));
        table::fact("renewals tried again", after.failed_renewals - before.failed_renewals, "");
        table::fact("lost", after.lost, &table::none(after.lost));
        // Releasing them would take as long.
        guards.into_iter().for_each(std::mem::forget);
        after.lost
    }

    /// Measures the renewal of the leases for a while, and prints the cost.
    fn renew(self, server: &Server, goal: impl Fn(f64, f64) -> String) {
        let (cpu, switches) = (CpuTime::of(RENEWER), Switches::of(RENEWER));
        let (server_cpu, calls) = (server.cpu_time(), server.evals());
        thread::sleep(self.time);
        table::fact("renewals", server.evals() - calls, "");
        let percent = |spent: Duration| spent.div_duration_f64(self.time) * 100.0;
        let share = |percent| format!("{percent:.1} % of a core");
        if let Some(spent) = CpuTime::of(RENEWER).since(cpu).map(percent) {
            table::fact("CPU of the renewer", share(spent), &goal(spent, 3.0));
        }
        let spent = percent(server.cpu_time().saturating_sub(server_cpu));
        table::fact("CPU of the server", share(spent), "");
        if let Some(switches) = Switches::of(RENEWER).since(&switches) {
            table::fact("context switches of the renewer", switches, "");
        }
    }
}
