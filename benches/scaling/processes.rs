//! Many processes with many threads each that lock the names of one set, all at one server.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::Client;

use super::support::crowd::Work;
use super::support::meter::{info, private_bytes};
use super::support::partner::{self, Partner};
use super::support::scale::Scale;
use super::support::server::Server;
use super::support::table;

/// The extent of the measurement.
#[derive(Clone, Copy)]
struct Plan {
    processes: u32,
    threads: u32,
    names: u32,
    time: Duration,
}

/// The resources in use at the server at half time, and the memory of a process.
struct Usage {
    connections: u64,
    server: u64,
    process: Option<u64>,
}

/// The counts of one process.
struct Counts {
    locks: u32,
    errors: u32,
    contended: u32,
    longest: Duration,
    wall: Duration,
}

/// Measures them with many more names than threads and with fewer. Returns `false` if a call has
/// failed or a process got nothing.
pub(crate) fn measure(scale: Scale, server: &Server) -> bool {
    let (processes, threads, names, seconds) =
        scale.pick((100, 100, [100_000, 1000], 15), (5, 10, [1000, 10], 2), (2, 2, [20, 2], 1));
    let time = Duration::from_secs(seconds);
    // Not `all`, which would skip the second after a failure of the first.
    let right = names.map(|names| Plan { processes, threads, names, time }.run(server));
    right == [true; 2]
}

impl Plan {
    fn run(self, server: &Server) -> bool {
        let Self { processes, threads, names, time } = self;
        let idle = info(server, "memory", "used_memory");
        let arguments = [threads, names].map(|number| number.to_string());
        let millis = time.as_millis().to_string();
        let arguments = [&*server.url(), &arguments[0], &arguments[1], &millis];
        let mut all: Vec<_> = (0..processes).map(|_| Partner::start("lock", &arguments)).collect();
        for process in &mut all {
            assert_eq!(process.hear(), "ready");
        }
        let (cpu, requests) = (server.cpu_time(), server.evals());
        for process in &mut all {
            process.tell("go");
        }
        thread::sleep(time / 2);
        let connections = info(server, "clients", "connected_clients");
        let memory = info(server, "memory", "used_memory").saturating_sub(idle);
        let usage = Usage { connections, server: memory, process: private_bytes(all[0].pid()) };
        let counts: Vec<_> = all.iter_mut().map(|process| Counts::of(&process.hear())).collect();
        let (cpu, requests) = (server.cpu_time().saturating_sub(cpu), server.evals() - requests);
        print(self, &counts, cpu, requests, &usage);
        counts.iter().all(|own| own.errors == 0 && own.locks > 0)
    }
}

fn print(plan: Plan, counts: &[Counts], cpu: Duration, requests: u64, usage: &Usage) {
    let Plan { processes, threads, names, time } = plan;
    let sum = |figure: fn(&Counts) -> u32| counts.iter().map(figure).sum::<u32>();
    let locks = sum(|own| own.locks);
    let longest = |figure: fn(&Counts) -> Duration| counts.iter().map(figure).max();
    let wall = longest(|own| own.wall).unwrap_or(time);
    let title = format!(
        "{processes} processes × {threads} threads that lock {names} names in turn for {time:?}"
    );
    table::head_of_facts(&title);
    table::fact("locks/s", format!("{:.0}", f64::from(locks) / wall.as_secs_f64()), "");
    let contended = f64::from(sum(|own| own.contended)) / f64::from(locks) * 100.0;
    table::fact("calls that found the lock held", format!("{contended:.0} %"), "");
    let errors = sum(|own| own.errors);
    table::fact("errors", errors, &table::none(errors.into()));
    let per_process = || counts.iter().map(|own| own.locks);
    let (least, most) = (per_process().min().unwrap_or(0), per_process().max().unwrap_or(0));
    let evenness = f64::from(least) / f64::from(most);
    table::fact("least ÷ most locks of a process", format!("{evenness:.2}"), "");
    let wait = longest(|own| own.longest).unwrap_or_default();
    table::fact("the longest wait", format!("{wait:.1?}"), "");
    let busy = cpu.div_duration_f64(wall) * 100.0;
    table::fact("CPU of the server", format!("{busy:.0} % of a core"), "");
    table::fact("CPU of the server for a lock", table::micros(cpu / locks.max(1)), "");
    let requests = f64::from(u32::try_from(requests).expect("a u32 of requests"));
    table::fact("requests for a lock", format!("{:.1}", requests / f64::from(locks)), "");
    let each = usage.connections / u64::from(processes);
    let connections = format!("{}, {each} of each process", usage.connections);
    table::fact("connections at the server", connections, "");
    table::fact("memory of the server", kilobytes(usage.server), "");
    if let Some(process) = usage.process {
        table::fact("private memory of a process", kilobytes(process), "");
    }
}

fn kilobytes(bytes: u64) -> String {
    format!("{} kB", bytes / 1024)
}

/// The main function of each process.
pub(crate) fn lock(arguments: &[String]) {
    let [url, threads, names, millis] = arguments else { panic!("four arguments") };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (threads, names) = (number(threads), number(names));
    let time = Duration::from_millis(millis.parse().expect("a number"));
    let client = Client::open(url).expect("it answers");
    partner::say("ready");
    partner::listen();
    let errors = AtomicU32::new(0);
    let own = usize::try_from(process::id()).expect("not that large");
    let work = Work::of(&[], threads, time, |thread| {
        // Each begins elsewhere.
        let mut next = own * 31 + thread * 7;
        let (client, errors) = (&client, &errors);
        move || {
            next = (next + 1) % names;
            match client.lock(&format!("shared {next}")) {
                Ok(guard) => drop(guard),
                Err(_) => drop(errors.fetch_add(1, Ordering::Relaxed)),
            }
        }
    });
    let (errors, contended) = (errors.into_inner(), client.stats().contended);
    let [longest, wall] = [work.longest(), work.spent.wall].map(|time| time.as_micros());
    partner::say(&format!("{} {errors} {contended} {longest} {wall}", work.cycles - errors));
}

impl Counts {
    fn of(words: &str) -> Self {
        let numbers: Vec<u64> =
            words.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [locks, errors, contended] =
            [0, 1, 2].map(|place: usize| u32::try_from(numbers[place]).expect("a u32"));
        let [longest, wall] = [3, 4].map(|place: usize| Duration::from_micros(numbers[place]));
        Self { locks, errors, contended, longest, wall }
    }
}
