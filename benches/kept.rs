//! # Kept locks
//!
//! The cost to other clients of a client that keeps its locks. The first table has the time from
//! the call of another process until it holds a kept lock, and from the drop of the guard of a
//! plain lock until a waiting process holds that. The call takes a longer path: it wakes the
//! server, which finds the lock kept, and then the listening thread of the keeper, before the
//! release is sent. The second table has two processes that lock one name in turn, where keeping is
//! useless: after a few recalls the client stops keeping that name.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;

use self::support::kept::{KEEP, keep, keeping};
use self::support::partner::{self, Partner};
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::{self, Setting};
use self::support::table;
use self::support::turns::quartiles;

mod support;

/// Long enough for the other process to fall asleep.
const PAUSE: Duration = Duration::from_millis(2);

fn main() {
    partner::serve_if_started_for_it(&[("take", take), ("alternate", alternate)]);
    let rounds = Scale::from_args().pick(1000, 50, 5);
    let server = Server::redis();
    println!("{}", Setting::of(&server));
    recall_to_held(rounds, &server);
    by_turns(rounds * 2, &server);
    setting::print_end(&server);
}

/// Measures the time from the call for a lock that another process keeps until it is held, compared
/// with a release by its holder.
fn recall_to_held(rounds: u32, server: &Server) {
    let client = keeping(&server.url(), "warm");
    let mut other = Partner::start("take", &[&server.url()]);
    let [mut recalls, mut hand_overs] = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // Each round has its own name, because a lock that is recalled repeatedly is not kept.
        let name = format!("kept {round}");
        keep(&client, &name);
        thread::sleep(PAUSE);
        other.tell(&name);
        let [called, held] = times(&mut other);
        recalls.push(seconds(called, held));
        let name = format!("held {round}");
        let guard = client.mutex(&name).keep(Duration::ZERO).lock().expect("it is free");
        other.tell(&name);
        let queue = format!("leasehold:queue:{{lock:{name}}}");
        while server.ask::<u64>(&["ZCARD", &queue]) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(PAUSE);
        let dropped = partner::now();
        drop(guard);
        hand_overs.push(seconds(dropped, times(&mut other)[1]));
    }
    let [recall, hand_over] = [median(recalls), median(hand_overs)];
    table::head_of_facts(&format!("a kept lock, {rounds} times"));
    table::fact("from the call of another process until it holds the lock", micros(recall), "");
    table::fact("from the drop of a guard until it does", micros(hand_over), "");
    ratio("call ÷ drop", recall / hand_over, 1.5);
}

/// Returns when the other process called, and when it held the lock.
fn times(other: &mut Partner) -> [u64; 2] {
    let heard = other.hear();
    let (called, held) = heard.split_once(' ').expect("two numbers");
    [called, held].map(|number| number.parse().expect("a number"))
}

/// The main function of the process that locks a name that another one has.
fn take(arguments: &[String]) {
    let pause = Duration::from_secs(30);
    let client = Client::builder().backoff(pause, pause).open(&arguments[0]).expect("it answers");
    drop(client.lock("warm of the other"));
    loop {
        let name = partner::listen();
        if name.is_empty() {
            return;
        }
        let called = partner::now();
        let guard = client.lock(&name).expect("it answers");
        let held = partner::now();
        guard.unlock().expect("it is held");
        partner::say(&format!("{called} {held}"));
    }
}

/// Measures two processes that lock one name in turn, which makes keeping it useless.
fn by_turns(rounds: u32, server: &Server) {
    let [mut kept, mut not] = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        not.push(median(turns("not", rounds, server)));
        kept.push(median(turns("keep", rounds, server)));
    }
    let [kept, not] = [median(kept), median(not)];
    table::head_of_facts("2 processes that lock one name by turns");
    table::fact("a turn, without `keep`", micros(not), "");
    table::fact("with `keep`", micros(kept), "");
    ratio("with ÷ without", kept / not, 1.1);
}

/// Returns the seconds that each turn takes, including the message to the next process.
fn turns(keep: &str, rounds: u32, server: &Server) -> Vec<f64> {
    let arguments: [&str; 2] = [&server.url(), keep];
    let mut both = [(); 2].map(|()| Partner::start("alternate", &arguments));
    let mut turn = || {
        let started = Instant::now();
        for process in &mut both {
            process.tell("lock");
            process.hear();
        }
        started.elapsed().as_secs_f64() / 2.0
    };
    // Not counted: connections, and recalls until the lock is no longer kept.
    (0..20).for_each(|_| _ = turn());
    (0..rounds).map(|_| turn()).collect()
}

/// The main function of each of the two processes.
fn alternate(arguments: &[String]) {
    let keep = if arguments[1] == "keep" { KEEP } else { Duration::ZERO };
    let client = Client::builder().keep(keep).open(&arguments[0]).expect("it answers");
    while partner::listen() == "lock" {
        drop(client.lock("by turns").expect("it answers"));
        partner::say("done");
    }
}

fn seconds(from: u64, to: u64) -> f64 {
    Duration::from_nanos(to.saturating_sub(from)).as_secs_f64()
}

fn median(values: Vec<f64>) -> f64 {
    quartiles(values)[1]
}

fn micros(seconds: f64) -> String {
    table::micros(Duration::from_secs_f64(seconds))
}

/// Prints a row with a ratio and its maximum.
fn ratio(what: &str, ratio: f64, goal: f64) {
    table::fact(what, format!("{ratio:.2}"), &table::at_most(ratio, goal));
}
