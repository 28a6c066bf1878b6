//! A web server that locks what a visitor has ordered, and a worker that releases the lock when the
//! order is done, perhaps on another machine.
//!
//! See "A lock in a queue" in `docs/cookbook.md`.
//!
//! `cargo run --example tickets [URL]`. A second process plays the worker, and its standard input
//! the queue.

use std::env;
use std::io::{self, Write};
use std::process::Stdio;
use std::time::Duration;

use leasehold::{Client, Error, Ticket};

use self::support::Redis;

mod support;

/// Longer than an order waits in the queue.
const LEASE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("--worker") => work(&Client::open(&env::var("REDIS_URL")?)?),
        url => serve(&Redis::require(url.map(Into::into))?),
    }
}

/// Accepts orders, and leaves them to the worker.
fn serve(redis: &Redis) -> Result<()> {
    let client = Client::open(&redis.url())?;
    let mut worker = redis.this_program()?.arg("--worker").stdin(Stdio::piped()).spawn()?;
    let mut queue = worker.stdin.take().ok_or("it is piped")?;
    for order in 1..=3 {
        let stock = client.mutex(&format!("example:stock:{order}")).lease(LEASE);
        let guard = stock.try_lock_owned()?.ok_or("no other visitor is there")?;
        println!("server: order {order} is accepted, with fence {}", guard.fence());
        writeln!(queue, "{}", guard.detach()?)?;
        assert!(stock.is_locked()?, "for the worker");
    }
    assert_eq!(client.stats().held, 0);
    drop(queue);
    assert!(worker.wait()?.success(), "the worker failed");
    for order in 1..=3 {
        assert!(!client.mutex(&format!("example:stock:{order}")).is_locked()?);
    }
    println!("server: all orders are done");
    Ok(())
}

/// Processes the orders in the queue.
fn work(client: &Client) -> Result<()> {
    for line in io::stdin().lines() {
        let ticket: Ticket = line?.parse()?;
        let guard = match client.adopt(&ticket) {
            Err(Error::Lost { name, .. }) => {
                println!("worker: too late for {name}, which is sold again");
                continue;
            }
            guard => guard?,
        };
        // ... send the parcel, with the fence; the lease is renewed meanwhile ...
        println!("worker: {} is done, with fence {}", guard.name(), guard.fence());
        guard.unlock()?;
    }
    Ok(())
}
