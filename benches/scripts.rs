//! The cost of a lock for the server: the time that it spends on the two scripts of a cycle, by its
//! own count, compared with two scripts that do the least that any lock must do, and with two that
//! run the same commands and nothing else.
//!
//! `cargo bench --bench scripts` prints a table; `-- --quick` takes a few seconds. The rivals take
//! turns, because the server is slower or faster with whatever else runs on the machine.

use std::env;

use leasehold::Client;

use self::support::bare::Bare;
use self::support::raw::Raw;
use self::support::server::Server;
use self::support::setting;
use self::support::turns::{in_turn, quartiles};

mod support;

/// A label, and a cycle of two scripts.
type Rival<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn main() {
    let (rounds, cycles) = scale();
    let server = Server::redis();
    println!("{}", setting::of(&server));
    println!("{rounds} rounds of {cycles} cycles each, in turn\n");
    let mut least = Bare::least(&server.url(), "lock");
    let mut same = Bare::same_commands(&server.url(), "lock");
    let mut raw = Raw::connect(&server.url(), "lock");
    let client = Client::open(&server.url()).expect("the server answers");
    let mut rivals: [Rival<'_>; 4] = [
        ("bare: SET NX PX, and compare and DEL", Box::new(|| least.lock_and_unlock())),
        ("the commands of leasehold alone", Box::new(|| same.lock_and_unlock())),
        ("raw: a hash with a fence", Box::new(|| raw.lock_and_unlock())),
        (
            "leasehold",
            Box::new(|| {
                let guard = client.lock("alone").expect("it is free");
                guard.unlock().expect("it is still held");
            }),
        ),
    ];
    let turns = in_turn(rounds, &mut rivals, |(_, cycle)| {
        cycle(); // The server may not know the scripts yet.
        let before = server.script_time();
        for _ in 0..cycles {
            cycle();
        }
        server.script_time().saturating_sub(before).as_secs_f64() * 1e6 / f64::from(cycles)
    });
    println!("| server time of the two scripts of a cycle | µs | ÷ bare (quartiles) |");
    println!("|---|---|---|");
    for ((name, _), own) in rivals.iter().zip(&turns) {
        let [_, micros, _] = quartiles(own.clone());
        let ratios = own.iter().zip(&turns[0]).map(|(own, bare)| own / bare).collect();
        let [low, ratio, high] = quartiles(ratios);
        println!("| {name} | {micros:.1} | {ratio:.2} ({low:.2} – {high:.2}) |");
    }
}

/// Returns how many turns each rival gets, and how many cycles a turn has.
fn scale() -> (u32, u32) {
    let has = |wanted| env::args().any(|arg| arg == wanted);
    if has("--test") || !has("--bench") {
        (1, 10)
    } else if has("--quick") {
        (15, 300)
    } else {
        (60, 2000)
    }
}
