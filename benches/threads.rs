//! # Threads that lock at the same time
//!
//! Many threads of one process with one client. *Raw* has a connection for each name, so that its
//! threads never wait for each other. *The same, releases posted* does not wait for the replies to
//! its releases either, which is all there is to gain without sharing connections. *Pool of 4* is a
//! client with four connections for all threads.
//!
//! - *kept locks*: each thread locks its own name again and again without a request.
//! - *32 threads on 32 names, pool of 4*: what each mechanism earns. Without *shared writes*,
//!   requests of several threads do not travel together; without *posted releases*, drops wait for
//!   their replies; without *spinning*, a thread sleeps until its reply comes.
//! - *32 readers of one name* share a hold, and come and go without a request while its tenure
//!   lasts. *32 of 32 permits*: no thread waits for another. *32 threads on 4 permits*: 28 of them
//!   wait.
//! - *8 threads on one name*: they hand the lock off among themselves. So do the *writers* of a
//!   read-write lock. Without *tenures*, each hold is acquired by a request. *Longest wait* is the
//!   longest of any thread in any turn, *least ÷ most served* compares the threads with the fewest
//!   and the most cycles.

use std::mem;
use std::time::Duration;

use leasehold::{Builder, Client, Mechanism, Mutex};

use self::support::crowd::Work;
use self::support::kept::KEEP;
use self::support::raw::Raw;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
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
    let (rounds, millis) = Scale::from_args().pick((11, 300), (3, 100), (1, 10));
    let plan = Plan { rounds, time: Duration::from_millis(millis) };
    let server = Server::redis();
    let setting = Setting::of(&server);
    println!("{setting} Each row had {rounds} turns of {millis} ms.");
    let is_dear = setting.regime.is_dear();
    let link = SlowLink::to(server.port(), ONE_WAY);
    let near = Place { server: &server, url: server.url(), plan };
    let far = Place { server: &server, url: link.url(), plan };
    for threads in [4, 32, 128] {
        let goal = (threads == 32).then_some(if is_dear { 1.5 } else { 1.1 });
        near.own_names(threads, goal, "");
        far.own_names(threads, None, ", 1 ms away");
    }
    near.kept_names("");
    far.kept_names(", 1 ms away");
    near.mechanisms();
    near.sharers("");
    far.sharers(", 1 ms away");
    near.few_permits(32, 4, 8.0, "");
    near.few_permits(8, 3, 8.0, "");
    near.scripts_of_few_permits();
    far.few_permits(8, 3, 80.0, ", 1 ms away");
    near.one_name(10.0, "");
    far.one_name(80.0, ", 1 ms away");
    for (millis, goal) in [(10, 300.0), (50, 1000.0)] {
        let link = SlowLink::to(server.port(), Duration::from_millis(millis) / 2);
        // A cycle of the bare connection takes a good part of a turn.
        let plan = Plan { rounds: rounds / 2 + 1, time: plan.time * 4 };
        let distant = Place { server: &server, url: link.url(), plan };
        let distance = format!(", {millis} ms away");
        distant.one_name_far_away(goal, &distance);
        distant.few_permits(8, 3, 300.0, &distance);
    }
    setting::print_end(&server);
}

impl Place<'_> {
    /// Measures as many threads as names, over a pool and over one connection each.
    fn own_names(&self, threads: usize, goal: Option<f64>, distance: &str) {
        let title = format!("{threads} threads on as many names{distance}");
        let works = self.compare(
            &title,
            false,
            &[
                self.raw(threads),
                self.raw_with_posted_releases(threads),
                self.locks("pool of 8", Client::builder(), threads, 1, None),
                self.locks("pool of 4", Client::builder().pool_size(4), threads, 1, goal),
            ],
        );
        if threads == 4 && distance.is_empty() {
            let ratios = ratios(&works[3], &works[1]);
            table::head_of_facts(&title);
            let goal = table::at_least(ratios[1], 0.95);
            let what = "pool of 4 ÷ 4 raw connections with posted releases";
            table::fact(what, table::quartiles(ratios), &goal);
        }
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
    fn few_permits(&self, threads: usize, permits: u32, goal: f64, distance: &str) {
        let client = Client::builder().open(&self.url).expect("it answers");
        let take = move |_| {
            let semaphore = client.semaphore("few permits", permits);
            move || drop(semaphore.acquire().expect("the server answers"))
        };
        let turn = Box::new(|| self.work(threads, &take));
        let rival = Rival { name: format!("{permits} permits"), goal: Some(goal), turn };
        let title = format!("{threads} threads on {permits} permits of one name{distance}");
        self.compare(&title, true, &[self.raw(1), rival]);
    }

    /// Counts the scripts of threads that wait for a few permits.
    fn scripts_of_few_permits(&self) {
        let client = Client::builder().open(&self.url).expect("it answers");
        let take = move |_| {
            let semaphore = client.semaphore("counted permits", 3);
            move || drop(semaphore.acquire().expect("the server answers"))
        };
        let before = self.server.evals();
        let work = self.work(8, &take);
        let scripts = self.server.evals() - before;
        table::head_of_facts("8 threads on 3 permits of one name");
        let scripts = u32::try_from(scripts).expect("a few");
        let of_1000 = f64::from(scripts) * 1000.0 / f64::from(work.cycles);
        let goal = table::at_most(of_1000, 150.0);
        table::fact("scripts per 1,000 holds", format!("{of_1000:.0}"), &goal);
    }

    /// Measures tenures, in which threads hand the lock off, compared with one bare connection.
    fn one_name(&self, goal: f64, distance: &str) {
        let without = |mechanism| Client::builder().without(mechanism);
        let rivals = [
            self.raw(1),
            self.sharing_one_name("all mechanisms", Client::builder(), Some(goal)),
            self.writers(),
            self.sharing_one_name("no tenures", Client::builder().tenure(Duration::ZERO), None),
            self.sharing_one_name("no shared writes", without(Mechanism::SharedWrites), None),
            self.sharing_one_name("no spinning", Client::builder().spin(Duration::ZERO), None),
        ];
        self.compare(&format!("8 threads on one name{distance}"), true, &rivals);
    }

    /// The same, with tenures only.
    fn one_name_far_away(&self, goal: f64, distance: &str) {
        let tenures = self.sharing_one_name("tenures", Client::builder(), Some(goal));
        let title = format!("8 threads on one name{distance}");
        self.compare(&title, true, &[self.raw(1), tenures, self.writers()]);
    }

    fn sharing_one_name(&self, name: &str, builder: Builder, goal: Option<f64>) -> Rival<'_> {
        let client = builder.open(&self.url).expect("it answers");
        let cycle = move |_| in_cycles(vec![client.mutex("one")]);
        Rival { name: name.into(), goal, turn: Box::new(move || self.work(8, &cycle)) }
    }

    /// The same with the write side of a read-write lock.
    fn writers(&self) -> Rival<'_> {
        let client = Client::builder().open(&self.url).expect("it answers");
        let cycle = move |_| {
            let lock = client.rw_lock("written");
            move || drop(lock.write().expect("the server answers"))
        };
        let turn = Box::new(move || self.work(8, &cycle));
        Rival { name: "writers".into(), goal: None, turn }
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

    /// Measures the rivals in turn, prints a table that compares them with the first one, and
    /// returns the turns of each.
    fn compare(&self, title: &str, is_contended: bool, rivals: &[Rival<'_>]) -> Vec<Vec<Work>> {
        let mut turns: Vec<_> = rivals.iter().map(|rival| &rival.turn).collect();
        let works = in_turn(self.plan.rounds, &mut turns, |turn| turn());
        let ratio = "÷ raw (quartiles)";
        let cpu = "CPU of a cycle: client + server";
        let mut head = vec![title, "cycles/s", ratio, cpu, "CPU ÷ raw", "goal"];
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
        works
    }
}

impl Rival<'_> {
    fn row(&self, own: &[Work], raw: &[Work]) -> Vec<String> {
        let ratios = ratios(own, raw);
        let part = |part: usize| {
            let time = median(own, |work| work.cpu()[part].as_secs_f64());
            table::micros(Duration::from_secs_f64(time))
        };
        let all = |works| median(works, |work| work.cpu().iter().sum::<Duration>().as_secs_f64());
        let verdict = |goal| table::at_least(ratios[1], goal);
        vec![
            self.name.clone(),
            table::rate(median(own, Work::per_second)),
            table::quartiles(ratios),
            format!("{} + {}", part(0), part(1)),
            format!("{:.2}", all(own) / all(raw)),
            self.goal.map_or(String::new(), verdict),
        ]
    }
}

/// Returns the quartiles of the ratios of throughput in each round.
fn ratios(own: &[Work], base: &[Work]) -> [f64; 3] {
    let rates = own.iter().zip(base).map(|(own, base)| own.per_second() / base.per_second());
    quartiles(rates.collect())
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
