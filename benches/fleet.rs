//! # A fleet
//!
//! The cost of many clients to one server: clients that hold a lock each, clients that wait for one
//! name or for a name each, and busy ones. They are in several processes, which share the cores of
//! this machine with the server, so times of the server count, and not those of the clients.
//! Commands are those that a server counts, inside scripts too. Waiting clients are silent, so the
//! cost of 10,000 follows from theirs.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client};

use self::support::meter::{info, private_bytes};
use self::support::partner::{self, Partner};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
use self::support::table;

mod support;

/// The number of clients that the goals are about.
const FLEET: u32 = 10_000;

/// How many threads a busy client has, each with a name.
const THREADS: u32 = 4;

/// How long a busy thread pauses after each lock for each client of the fleet, so that a fleet of
/// any size takes no more locks than one server can handle.
const BUSY_PAUSE: Duration = Duration::from_micros(400);

/// How long a busy client waits for a connection or a reply: thousands of threads share the cores.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    partner::serve_if_started_for_it(&[("clients", play)]);
    let scale = Scale::from_args();
    let fleets = scale.pick(&[100, 300, 1000][..], &[20, 100], &[4]);
    let (processes, time) = scale.pick((10, 20), (5, 10), (2, 1));
    let server = Server::redis();
    println!("{}", Setting::of(&server));
    for clients in fleets {
        let fleet = Fleet { clients: *clients, processes, time: Duration::from_secs(time) };
        fleet.measure(&server, scale);
    }
    setting::print_end(&server);
    ExitCode::SUCCESS
}

#[derive(Clone, Copy)]
struct Fleet {
    clients: u32,
    processes: u32,
    time: Duration,
}

/// The resources that clients use at rest, or while they are busy.
struct Usage {
    connections: f64,
    cpu: Duration,
    scripts: f64,
    commands: f64,
    server_memory: u64,
    client_memory: Option<u64>,
}

impl Fleet {
    fn measure(self, server: &Server, scale: Scale) {
        let Self { clients, .. } = self;
        let mut processes = self.start(server, "hold");
        table::head_of_facts(&format!("{clients} clients that hold a lock each"));
        let holding = self.usage(server, &processes);
        self.print(&holding);
        self.print_connections(&holding, 2.0);
        end(&mut processes);
        for (how, what) in [("one", "one name"), ("each", "a name each")] {
            self.measure_waiting(server, how, what, scale);
        }
        let mut processes = self.start(server, "busy");
        let pause = BUSY_PAUSE * clients;
        let title = format!("{clients} clients with {THREADS} busy threads, {pause:?} pause");
        table::head_of_facts(&title);
        let busy = self.usage(server, &processes);
        self.print(&busy);
        self.print_connections(&busy, 6.0);
        end(&mut processes);
    }

    fn measure_waiting(self, server: &Server, how: &str, what: &str, scale: Scale) {
        let Self { clients, .. } = self;
        let client = open(&server.url(), |builder| builder.lease(Duration::from_secs(600)));
        let names = if how == "one" { 1 } else { clients };
        let name = |number| format!("wanted {number}");
        let guards: Vec<_> = (0..names)
            .map(|number| client.mutex(&name(number)).lock_owned().expect("it is free"))
            .collect();
        let mut processes = self.start(server, how);
        table::head_of_facts(&format!("{clients} clients that wait for {what}"));
        let waiting = self.usage(server, &processes);
        self.print(&waiting);
        let each = |number: f64| number / f64::from(clients) / self.time.as_secs_f64();
        let is_whole = scale != Scale::Once;
        let goal =
            |figure, most| if is_whole { table::at_most(figure, most) } else { String::new() };
        let (scripts, commands) = (each(waiting.scripts), each(waiting.commands));
        table::fact("scripts a second of a client", format!("{scripts:.2}"), &goal(scripts, 0.2));
        let commands_goal = goal(commands, 1.0);
        table::fact("commands a second of a client", format!("{commands:.2}"), &commands_goal);
        self.print_connections(&waiting, 2.0);
        if clients >= 1000 {
            let of_fleet = waiting.cpu.div_duration_f64(self.time) * 100.0 * f64::from(FLEET)
                / f64::from(clients);
            let core = format!("{of_fleet:.1} % of a core");
            table::fact(
                &format!("CPU of the server for {FLEET} of them"),
                core,
                &goal(of_fleet, 5.0),
            );
        }
        let begin = partner::now();
        drop(guards);
        let ends = processes.iter_mut().map(|process| {
            process.tell("end");
            process.hear().parse::<u64>().expect("a time")
        });
        let last = ends.max().unwrap_or(begin);
        let took = Duration::from_nanos(last.saturating_sub(begin));
        table::fact("until all were served once", format!("{took:.2?}"), "");
    }

    /// Starts the clients, and waits until they do their work.
    fn start(self, server: &Server, what: &str) -> Vec<Partner> {
        let each = self.clients / self.processes;
        let processes = (0..self.processes).map(|process| {
            let numbers = [process * each, each, self.clients].map(|number| number.to_string());
            let [first, count, all] = &numbers;
            Partner::start("clients", &[&*server.url(), what, first, count, all])
        });
        let mut processes: Vec<_> = processes.collect();
        for process in &mut processes {
            assert_eq!(process.hear(), "ready");
        }
        // The first attempts of those that wait are over.
        thread::sleep(self.time / 4);
        processes
    }

    fn usage(self, server: &Server, processes: &[Partner]) -> Usage {
        let before = (server.cpu_time(), server.evals(), commands(server));
        thread::sleep(self.time);
        let cpu = server.cpu_time().saturating_sub(before.0);
        let number = |number: u64| f64::from(u32::try_from(number).expect("a u32"));
        let memory = processes.iter().map(|process| private_bytes(process.pid()));
        Usage {
            connections: number(info(server, "clients", "connected_clients")),
            cpu,
            scripts: number(server.evals() - before.1),
            commands: number(commands(server) - before.2),
            server_memory: info(server, "memory", "used_memory"),
            client_memory: memory.sum(),
        }
    }

    /// Prints how many connections a client has, to one decimal: this program has some, too.
    fn print_connections(self, usage: &Usage, most: f64) {
        let each = (usage.connections / f64::from(self.clients) * 10.0).round() / 10.0;
        table::fact("connections of a client", format!("{each:.1}"), &table::at_most(each, most));
    }

    fn print(self, usage: &Usage) {
        let Usage { connections, cpu, scripts, commands, server_memory, client_memory } = usage;
        let seconds = self.time.as_secs_f64();
        table::fact("connections", format!("{connections:.0}"), "");
        let busy = cpu.div_duration_f64(self.time) * 100.0;
        table::fact("CPU of the server", format!("{busy:.2} % of a core"), "");
        let rates = [scripts, commands].map(|number| table::rate(number / seconds));
        table::fact("scripts, commands a second", rates.join(", "), "");
        let memory = server_memory / 1024;
        table::fact("memory of the server", format!("{memory} kB"), "");
        if let Some(bytes) = client_memory {
            let each = bytes / 1024 / u64::from(self.clients);
            table::fact("private memory of a client", format!("{each} kB"), "");
        }
    }
}

fn end(processes: &mut [Partner]) {
    for process in processes {
        process.tell("end");
        process.hear();
    }
}

/// Returns how many commands a server has executed, apart from those that ask it about itself.
fn commands(server: &Server) -> u64 {
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    let own = ["client", "config", "hello", "info"];
    let theirs = lines.filter(|(command, _)| !own.iter().any(|own| command.starts_with(own)));
    let calls = theirs.filter_map(|(_, fields)| {
        fields.strip_prefix("calls=")?.split_once(',')?.0.parse::<u64>().ok()
    });
    calls.sum()
}

/// Opens a client. When many start at once, some have to try again.
fn open(url: &str, set: impl Fn(Builder) -> Builder) -> Client {
    let begin = Instant::now();
    loop {
        match set(Client::builder()).open(url) {
            Ok(client) => return client,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{error}"),
        }
    }
}

fn patient(builder: Builder) -> Builder {
    builder.connect_timeout(PATIENCE).io_timeout(PATIENCE)
}

/// The main function of each process.
fn play(arguments: &[String]) {
    let [url, what, first, count, all] = arguments else { panic!("five arguments") };
    let number = |text: &String| text.parse::<u32>().expect("a number");
    let numbers = number(first)..number(first) + number(count);
    let clients: Vec<_> = numbers.clone().map(|it| (it, open(url, patient))).collect();
    match &**what {
        "hold" => {
            let hold = |(number, client): &(u32, Client)| {
                client.mutex(&format!("held {number}")).lock_owned()
            };
            let guards: Vec<_> = clients.iter().map(hold).collect();
            partner::say("ready");
            partner::listen();
            drop(guards);
            partner::say("ended");
        }
        "busy" => be_busy(&clients, BUSY_PAUSE * number(all)),
        _ => wait(&clients, what == "one"),
    }
}

fn wait(clients: &[(u32, Client)], is_one: bool) {
    let last = AtomicU64::new(0);
    thread::scope(|scope| {
        for (number, client) in clients {
            let name = format!("wanted {}", if is_one { 0 } else { *number });
            let last = &last;
            scope.spawn(move || {
                drop(client.lock(&name).expect("it is released"));
                last.fetch_max(partner::now(), Ordering::Relaxed);
            });
        }
        while clients.iter().any(|(_, client)| client.stats().waiting == 0) {
            thread::sleep(Duration::from_millis(10));
        }
        partner::say("ready");
        partner::listen();
    });
    partner::say(&last.into_inner().to_string());
}

fn be_busy(clients: &[(u32, Client)], pause: Duration) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, client) in clients {
            for thread in 0..THREADS {
                let (name, is_over) = (format!("busy {number} {thread}"), &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(client.lock(&name).expect("no other thread wants it"));
                        thread::sleep(pause);
                    }
                });
            }
        }
        partner::say("ready");
        partner::listen();
        is_over.store(true, Ordering::Relaxed);
    });
    partner::say("ended");
}
