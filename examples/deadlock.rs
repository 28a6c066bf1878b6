//! Two processes that lock the same two names in opposite order: a deadlock, which is reported and
//! then ended.
//!
//! See "A deadlock" in `docs/cookbook.md`.
//!
//! `cargo run --example deadlock [URL]`

use std::env;
use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use leasehold::{Client, Deadlock, Error, Event};

use self::support::Redis;

mod support;

const NAMES: [&str; 2] = ["example:stock:7", "example:stock:8"];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    if env::args().nth(1).as_deref() == Some("--other") {
        let [first, second] = NAMES;
        return lock_both(&env::var("REDIS_URL")?, "other process", [second, first]);
    }
    let redis = Redis::require(env::args().nth(1))?;
    let mut other = redis.this_program()?.arg("--other").spawn()?;
    let ended = lock_both(&redis.url(), "first process", NAMES);
    assert!(other.wait()?.success(), "it goes on, too");
    ended
}

fn lock_both(url: &str, process: &'static str, [first, second]: [&str; 2]) -> Result<()> {
    let client = Client::builder()
        .deadlock(Deadlock::Fail)
        .on_event(move |event| {
            // The log says the same in words, once for each process.
            if let Event::Deadlock { names, clients, .. } = event {
                for (name, client) in names.iter().zip(clients) {
                    println!("{process} learns: {client} waits for {name}");
                }
            }
        })
        .open(url)?;
    let mut failed = false;
    loop {
        let guard = client.lock(first)?;
        println!("{process} holds {first}");
        // The first time, wait until each process has one lock.
        while !failed && !client.mutex(second).is_locked()? {
            thread::sleep(Duration::from_millis(10));
        }
        match client.lock(second) {
            Ok(_both) => {
                println!("{process} holds both");
                return Ok(());
            }
            Err(error @ Error::Deadlock { .. }) => {
                println!("{process} gives way: {error}");
                failed = true;
                // First of all, so that the other process can go on.
                drop(guard);
                let random = RandomState::new().hash_one(process) % 100;
                thread::sleep(Duration::from_millis(random));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
