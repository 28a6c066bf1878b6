//! The throughput of threads of one process that lock at the same time, compared with bare
//! connections.
//!
//! `cargo bench --bench threads` prints tables, with `-- --quick` in half a minute. Only ratios
//! within one run are meaningful.

use std::mem;
use std::time::Duration;

use leasehold::{Builder, Client, Mechanism, Mutex};

use self::support::crowd::Work;
use self::support::kept::KEEP;
use self::support::raw::Raw;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting;
use self::support::slow_link::{self, SlowLink};
use self::support::table;
use self::support::turns::{in_turn, quartiles};

mod support;

/// The one-way latency of the distant server.
const ONE_WAY: Duration = Duration::from_micros(500);

/// The number of rounds, and how long each rival runs in each of them.
#[derive(Clone, Copy)]
struct Plan {
    rounds: u32,
    time: Duration,
}

/// A label, a goal for the ratio to raw, and a function that runs one turn.
struct Rival<'a> {
    name: String,
    goal: Option<f64>,
    turn: Box<dyn Fn() -> Work + 'a>,
}

/// The place where the rivals lock.
struct Place<'a> {
    server: &'a Server,
    url: String,
    plan: Plan,
}

fn main() {
    slow_link::serve_if_started_for_it();
    let (rounds, millis) = Scale::from_args().pick((15, 500), (3, 100), (1, 10));
    let plan = Plan { rounds, time: Duration::from_millis(millis) };
    let server = Server::redis();
    println!("{}", setting::of(&server));
    println!("{rounds} rounds of {millis} ms for each");
    let link = SlowLink::to(server.port(), ONE_WAY);
    let near = Place { server: &server, url: server.url(), plan };
    let far = Place { server: &server, url: link.url(), plan };
    for threads in [1, 4, 8, 32, 128] {
        near.own_names(threads, "");
        far.own_names(threads, ", 1 ms away");
    }
    near.kept_names("");
    far.kept_names(", 1 ms away");
    near.mechanisms();
    near.sharers("");
    far.sharers(", 1 ms away");
    near.few_permits();
    near.one_name(10.0, "");
    far.one_name(80.0, ", 1 ms away");
    for (millis, goal) in [(10, 300.0), (50, 1000.0)] {
        let link = SlowLink::to(server.port(), Duration::from_millis(millis) / 2);
        let distant = Place { server: &server, url: link.url(), plan };
        distant.one_name_far_away(goal, &format!(", {millis} ms away"));
    }
    setting::print_end(&server);
}

impl Place<'_> {
    /// Measures as many threads as names, over a pool and over one connection each.
    fn own_names(&self, threads: usize, distance: &str) {
        let goal = match (threads, distance) {
            (4, "") => Some(1.3),
            (32, "") => Some(1.5),
            _ => None,
        };
        let crowd = match threads {
            1 => "1 thread".into(),
            _ => format!("{threads} threads on as many names"),
        };
        self.compare(
            &format!("{crowd}{distance}"),
            false,
            &[
                self.raw(threads),
                self.raw_with_posted_releases(threads),
                self.locks("pool of 8", Client::builder(), threads, 1, None),
                self.locks("pool of 4", Client::builder().pool_size(4), threads, 1, goal),
            ],
        );
    }

    /// Measures threads with kept locks of their own, which use the cores and no server.
    fn kept_names(&self, distance: &str) {
        let kept = |name, threads| self.locks(name, Client::builder().keep(KEEP), threads, 1, None);
        self.compare(
            &format!("kept locks{distance}"),
            false,
            &[
                self.raw(32),
                kept("1 thread", 1),
                kept("2 on 2 names", 2),
                kept("32 on 32 names", 32),
            ],
        );
    }

    /// Measures the benefit of each mechanism for 32 threads.
    fn mechanisms(&self) {
        const THREADS: usize = 32;
        let pool = |size| Client::builder().pool_size(size);
        let without = |mechanism| pool(4).without(mechanism);
        let locks = |name, builder, names| self.locks(name, builder, THREADS, names, None);
        self.compare(
            "32 threads on 32 names, pool of 4",
            false,
            &[
                self.raw(THREADS),
                locks("all mechanisms", pool(4), 1),
                locks("no shared writes", without(Mechanism::SharedWrites), 1),
                locks("no posted releases", without(Mechanism::PostedRelease), 1),
                locks("no spinning", pool(4).spin(Duration::ZERO), 1),
                locks("pool of 1", pool(1), 1),
                locks("pool of 2", pool(2), 1),
                locks("4 names per thread, in turn", pool(4), 4),
                locks("the same, no posted releases", without(Mechanism::PostedRelease), 4),
            ],
        );
    }

    /// Measures the cost of threads that share one name without having to wait for each other,
    /// compared with locks of their own.
    fn sharers(&self, distance: &str) {
        const THREADS: usize = 32;
        let client = Client::builder().open(&self.url).expect("it answers");
        let semaphores = client.clone();
        let read = move |_| {
            let lock = client.rw_lock("read");
            move || drop(lock.read().expect("the server answers"))
        };
        let take_permit = move |_| {
            let semaphore = semaphores.semaphore("permits", 32);
            move || drop(semaphore.acquire().expect("the server answers"))
        };
        let rival = |name: &str, goal, turn| Rival { name: name.into(), goal, turn };
        let goal = distance.is_empty().then_some(15.0);
        self.compare(
            &format!("32 threads{distance}"),
            true,
            &[
                self.raw(THREADS),
                self.locks("32 mutexes of 32 names", Client::builder(), THREADS, 1, None),
                rival("32 readers of one name", goal, Box::new(|| self.work(THREADS, &read))),
                rival(
                    "32 of 32 permits of one name",
                    None,
                    Box::new(|| self.work(THREADS, &take_permit)),
                ),
            ],
        );
    }

    /// Measures threads that wait for a few permits of one name, compared with one bare connection.
    fn few_permits(&self) {
        let client = Client::builder().open(&self.url).expect("it answers");
        let take = move |_| {
            let semaphore = client.semaphore("few permits", 4);
            move || drop(semaphore.acquire().expect("the server answers"))
        };
        let turn = Box::new(|| self.work(32, &take));
        let permits = Rival { name: "4 permits".into(), goal: Some(8.0), turn };
        self.compare("32 threads on 4 permits of one name", true, &[self.raw(1), permits]);
    }

    /// Measures tenures, in which threads hand the lock off, compared with one bare connection.
    fn one_name(&self, goal: f64, distance: &str) {
        let without = |mechanism| Client::builder().without(mechanism);
        let rivals = [
            self.raw(1),
            self.sharing_one_name("all mechanisms", Client::builder(), Some(goal)),
            self.sharing_one_name("no tenures", Client::builder().tenure(Duration::ZERO), None),
            self.sharing_one_name("no shared writes", without(Mechanism::SharedWrites), None),
            self.sharing_one_name("no spinning", Client::builder().spin(Duration::ZERO), None),
        ];
        self.compare(&format!("8 threads on one name{distance}"), true, &rivals);
    }

    /// The same, when one cycle of the bare connection takes a good part of a turn.
    fn one_name_far_away(&self, goal: f64, distance: &str) {
        let tenures = self.sharing_one_name("tenures", Client::builder(), Some(goal));
        let title = format!("8 threads on one name{distance}");
        self.compare(&title, true, &[self.raw(1), tenures]);
    }

    fn sharing_one_name(&self, name: &str, builder: Builder, goal: Option<f64>) -> Rival<'_> {
        let client = builder.open(&self.url).expect("it answers");
        let cycle = move |_| in_cycles(vec![client.mutex("one")]);
        Rival { name: name.into(), goal, turn: Box::new(move || self.work(8, &cycle)) }
    }

    /// Returns a rival with one connection for each thread.
    fn raw(&self, threads: usize) -> Rival<'_> {
        let cycle = |thread: usize| {
            let mut raw = Raw::connect(&self.url, &thread.to_string());
            move || raw.lock_and_unlock()
        };
        let name = if threads == 1 { "raw".into() } else { format!("{threads} raw connections") };
        Rival { name, goal: None, turn: Box::new(move || self.work(threads, &cycle)) }
    }

    /// The same, without waiting for releases: as fast as possible with a connection for each
    /// thread.
    fn raw_with_posted_releases(&self, threads: usize) -> Rival<'_> {
        let cycle = |thread: usize| {
            let mut raw = [Raw::connect(&self.url, &thread.to_string())];
            let mut owed = false;
            move || Raw::lock_and_post_unlock(&mut raw, mem::replace(&mut owed, true))
        };
        let name = "the same, releases posted".into();
        Rival { name, goal: None, turn: Box::new(move || self.work(threads, &cycle)) }
    }

    /// Returns a rival with one client for all threads, each of which locks this many names in
    /// turn.
    fn locks(
        &self,
        name: &str,
        builder: Builder,
        threads: usize,
        names: usize,
        goal: Option<f64>,
    ) -> Rival<'_> {
        let client = builder.open(&self.url).expect("it answers");
        let cycle = move |thread| {
            let mutex = |number| client.mutex(&format!("{thread} {number}"));
            in_cycles((0..names).map(mutex).collect())
        };
        Rival { name: name.into(), goal, turn: Box::new(move || self.work(threads, &cycle)) }
    }

    fn work<C: FnMut()>(&self, threads: usize, prepare: &(impl Fn(usize) -> C + Sync)) -> Work {
        Work::of(&[self.server], threads, self.plan.time, prepare)
    }

    /// Measures the rivals in turn, and prints a table that compares them with the first one.
    fn compare(&self, title: &str, is_contended: bool, rivals: &[Rival<'_>]) {
        let mut turns: Vec<_> = rivals.iter().map(|rival| &rival.turn).collect();
        let works = in_turn(self.plan.rounds, &mut turns, |turn| turn());
        let ratio = "÷ raw (quartiles)";
        let cpu = "CPU of a cycle: client + server";
        let mut head = vec![title, "cycles/s", ratio, cpu, "÷ raw", "goal"];
        if is_contended {
            head.extend(["longest wait", "least ÷ most served"]);
        }
        table::head(&head);
        for (rival, own) in rivals.iter().zip(&works) {
            let mut row = rival.row(own, &works[0]);
            if is_contended {
                let longest = own.iter().map(Work::longest).max().unwrap_or_default();
                let evenness = |work: &Work| f64::from(work.least) / f64::from(work.most);
                row.push(format!("{:.1} ms", longest.as_secs_f64() * 1e3));
                row.push(format!("{:.2}", median(own, evenness)));
            }
            table::row(&row);
        }
    }
}

impl Rival<'_> {
    fn row(&self, own: &[Work], raw: &[Work]) -> Vec<String> {
        let rates = own.iter().zip(raw).map(|(own, raw)| own.per_second() / raw.per_second());
        let ratios = quartiles(rates.collect());
        let part = |part: usize| {
            let time = median(own, |work| work.cpu()[part].as_secs_f64());
            table::micros(Duration::from_secs_f64(time))
        };
        let all = |works| median(works, |work| work.cpu().iter().sum::<Duration>().as_secs_f64());
        let verdict = |goal| table::verdict("≥", goal, ratios[1] >= goal);
        vec![
            self.name.clone(),
            format!("{:.1} k", median(own, Work::per_second) / 1e3),
            table::quartiles(ratios),
            format!("{} + {}", part(0), part(1)),
            format!("{:.2}", all(own) / all(raw)),
            self.goal.map_or(String::new(), verdict),
        ]
    }
}

fn median(works: &[Work], figure: impl Fn(&Work) -> f64) -> f64 {
    quartiles(works.iter().map(figure).collect())[1]
}

/// Returns a cycle that locks the mutexes in turn.
fn in_cycles(mutexes: Vec<Mutex>) -> impl FnMut() {
    let mut turns = (0..mutexes.len()).cycle();
    move || {
        let turn = turns.next().expect("there is one at least");
        drop(mutexes[turn].lock().expect("the server answers"));
    }
}
