//! # What a lock costs the server
//!
//! The time that the server spends on the two scripts of a cycle, by its own count (`INFO
//! commandstats`). *The least* is what any lock must do. *The commands of leasehold, deciding
//! nothing* shows how much is due to the layout in Redis: the rest is the scripts' decisions.

use leasehold::Client;

use self::support::bare::Bare;
use self::support::raw::Raw;
use self::support::scale::Scale;
use self::support::server::Server;
use self::support::setting::Setting;
use self::support::table;
use self::support::turns::{in_turn, quartiles};

mod support;

/// A label, and a cycle of two scripts.
type Rival<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn main() {
    let (rounds, cycles) = Scale::from_args().pick((30, 1000), (15, 300), (1, 10));
    let server = Server::redis();
    println!("{} Each row had {rounds} turns of {cycles} cycles.", Setting::of(&server));
    let mut least = Bare::least(&server.url(), "lock");
    let mut same = Bare::same_commands(&server.url(), "lock");
    let mut raw = Raw::connect(&server.url(), "lock");
    let client = Client::open(&server.url()).expect("the server answers");
    let mut rivals: [Rival<'_>; 4] = [
        ("the least: `SET NX PX`, and compare and `DEL`", Box::new(|| least.lock_and_unlock())),
        ("the commands of leasehold, deciding nothing", Box::new(|| same.lock_and_unlock())),
        ("raw", Box::new(|| raw.lock_and_unlock())),
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
    table::head(&["server time of the two scripts of a cycle", "time", "÷ the least (quartiles)"]);
    for ((name, _), own) in rivals.iter().zip(&turns) {
        let [_, micros, _] = quartiles(own.clone());
        let ratios = own.iter().zip(&turns[0]).map(|(own, least)| own / least);
        let ratios = quartiles(ratios.collect());
        table::row(&[(*name).into(), format!("{micros:.1} µs"), table::quartiles(ratios)]);
    }
}
