//! The throughput of threads of one process that lock at the same time, compared with bare
//! connections.
//!
//! `cargo bench --bench threads` prints a table; `-- --quick` takes a few seconds. Only ratios
//! within one run are meaningful.

use std::env;
use std::time::Duration;

use leasehold::{Builder, Client, Mechanism, Mutex};

use self::support::crowd::Work;
use self::support::raw::Raw;
use self::support::server::Server;
use self::support::setting;
use self::support::turns::{in_turn, quartiles};

mod support;

/// How many rounds there are, and how long each rival runs in each of them.
#[derive(Clone, Copy)]
struct Scale {
    rounds: u32,
    time: Duration,
}

impl Scale {
    fn from_args() -> Self {
        let has = |wanted| env::args().any(|arg| arg == wanted);
        let (rounds, millis) = if has("--test") || !has("--bench") {
            (1, 20)
        } else if has("--quick") {
            (3, 200)
        } else {
            (15, 500)
        };
        Self { rounds, time: Duration::from_millis(millis) }
    }
}

/// A label, and a function that runs one turn.
type Rival<'a> = (String, Box<dyn Fn() -> Work + 'a>);

fn main() {
    let scale = Scale::from_args();
    let server = Server::redis();
    println!("{}", setting::of(&server));
    println!("{} rounds of {:?} for each", scale.rounds, scale.time);
    println!("{:<44} {:>9}   ÷ raw (quartiles)", "cycles per second", "median");
    many_names(scale, &server);
    one_name(scale, &server);
}

/// Measures 32 threads with names of their own over a few connections, and over one connection
/// each.
fn many_names(scale: Scale, server: &Server) {
    const THREADS: usize = 32;
    const IN_TURN: usize = 4;
    let url = server.url();
    let raw = || {
        Work::of(THREADS, scale.time, |thread| {
            let mut raw = Raw::connect(&url, &thread.to_string());
            move || raw.lock_and_unlock()
        })
    };
    let with = |builder: Builder, names: usize| {
        let client = builder.open(&url).expect("it answers");
        let mutexes = move |thread| {
            let name = move |number| format!("{thread} {number}");
            (0..names).map(name).map(|name| client.mutex(&name)).collect::<Vec<_>>()
        };
        Box::new(move || Work::of(THREADS, scale.time, |thread| in_cycles(mutexes(thread))))
    };
    let pool = |size| Client::builder().pool_size(size);
    let unposted = || pool(4).without(Mechanism::PostedRelease);
    let mut rivals: Vec<Rival<'_>> = vec![("32 names, 32 raw connections".into(), Box::new(raw))];
    for size in [1, 2, 4, 8] {
        rivals.push((format!("32 names, pool of {size}"), with(pool(size), 1)));
    }
    let unshared = pool(4).without(Mechanism::SharedWrites);
    rivals.push(("32 names, pool of 4, no shared writes".into(), with(unshared, 1)));
    let asleep = pool(4).spin(Duration::ZERO);
    rivals.push(("32 names, pool of 4, no spinning".into(), with(asleep, 1)));
    rivals.push(("32 names, pool of 4, no posted releases".into(), with(unposted(), 1)));
    rivals.push(("32 × 4 names, pool of 4".into(), with(pool(4), IN_TURN)));
    rivals.push(("32 × 4 names, pool of 4, no posted releases".into(), with(unposted(), IN_TURN)));
    compare(scale, &mut rivals, |_| String::new());
}

/// Measures handoffs: 8 threads on one name, compared with one bare connection.
fn one_name(scale: Scale, server: &Server) {
    let url = server.url();
    let raw = || {
        Work::of(1, scale.time, |_| {
            let mut raw = Raw::connect(&url, "one");
            move || raw.lock_and_unlock()
        })
    };
    let with = |builder: Builder| {
        let client = builder.open(&url).expect("it answers");
        Box::new(move || Work::of(8, scale.time, |_| in_cycles(vec![client.mutex("one")])))
    };
    let without = |mechanism| with(Client::builder().without(mechanism));
    let mut rivals: Vec<Rival<'_>> = vec![
        ("1 name, 1 raw connection".into(), Box::new(raw)),
        ("1 name, 8 threads with handoffs".into(), with(Client::builder())),
        ("1 name, 8 threads, no handoffs".into(), without(Mechanism::Handoff)),
        ("1 name, 8 threads, no shared writes".into(), without(Mechanism::SharedWrites)),
        ("1 name, 8 threads, no spinning".into(), with(Client::builder().spin(Duration::ZERO))),
    ];
    compare(scale, &mut rivals, |works| {
        let longest = works.iter().map(Work::longest).max().unwrap_or_default();
        let even = works.iter().map(|work| f64::from(work.least) / f64::from(work.most));
        let least = even.fold(1.0, f64::min);
        format!(", longest wait {longest:.1?}, least ÷ most served {least:.2}")
    });
}

/// Measures the rivals in turn, and prints the cycles of each and their ratio to the first.
fn compare(scale: Scale, rivals: &mut [Rival<'_>], remark: impl Fn(&[Work]) -> String) {
    let works = in_turn(scale.rounds, rivals, |(_, work)| work());
    for ((name, _), own) in rivals.iter().zip(&works) {
        let [_, rate, _] = quartiles(own.iter().map(Work::per_second).collect());
        let rounds = own.iter().zip(&works[0]);
        let ratios = rounds.map(|(own, raw)| own.per_second() / raw.per_second()).collect();
        let [low, median, high] = quartiles(ratios);
        let remark = remark(own);
        println!("{name:<44} {rate:>9.0}   {median:.2} ({low:.2} – {high:.2}){remark}");
    }
}

/// Returns a cycle that locks the mutexes in turn.
fn in_cycles(mutexes: Vec<Mutex>) -> impl FnMut() {
    let mut turns = (0..mutexes.len()).cycle();
    move || {
        let turn = turns.next().expect("there is one at least");
        drop(mutexes[turn].lock().expect("the server answers"));
    }
}
