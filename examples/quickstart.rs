//! The lock on one page: acquire it, nest it, inspect its holder, and hand it off to a waiter.
//!
//! `cargo run --example quickstart [URL]` uses the Redis at `URL` or `REDIS_URL`. Without either it
//! starts a private server found on PATH, or uses a lock in memory, so it runs on a machine with
//! nothing installed.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};

use self::support::Redis;

mod support;

const NAME: &str = "example:stock:42";

fn main() -> Result<(), Error> {
    let redis = Redis::find(env::args().nth(1));
    let client = support::open(redis.as_ref(), Client::builder())?;
    hold_and_nest(&client)?;
    hand_off(&client)
}

fn hold_and_nest(client: &Client) -> Result<(), Error> {
    println!("\n-- one thread holds the lock and nests it");
    let outer = client.lock(NAME)?;
    println!("locked {}: fence {}", outer.name(), outer.fence());
    println!("the lease has {:.1?} left", outer.remaining());

    let inner = client.lock(NAME)?;
    println!("locked again: depth {}, fence {}", inner.depth(), inner.fence());
    show_holder(client)?;
    try_from_another_thread(client)?;

    drop(inner);
    println!("inner guard dropped, still held: {}", outer.is_held());
    outer.unlock()?;
    println!("outer guard unlocked");
    show_holder(client)?;
    try_from_another_thread(client)
}

fn show_holder(client: &Client) -> Result<(), Error> {
    match client.mutex(NAME).holder()? {
        Some(holder) => println!("holder: {} at depth {}", holder.owner, holder.depth),
        None => println!("holder: none"),
    }
    Ok(())
}

/// Another thread sees the same as another process or another machine.
fn try_from_another_thread(client: &Client) -> Result<(), Error> {
    in_another_thread(|| {
        match client.try_lock(NAME)? {
            Some(guard) => {
                println!("another thread's try_lock: Some, with fence {}", guard.fence());
            }
            None => println!("another thread's try_lock: None"),
        }
        Ok(())
    })
}

fn hand_off(client: &Client) -> Result<(), Error> {
    println!("\n-- a second thread waits until the first unlocks");
    let guard = client.lock(NAME)?;
    println!("first: locked, fence {}", guard.fence());

    thread::scope(|scope| {
        let second = scope.spawn(|| wait_for_lock(client));
        thread::sleep(Duration::from_millis(300));
        println!("first: unlocks");
        guard.unlock()?;
        second.join().expect("the waiting thread does not panic")
    })
}

fn wait_for_lock(client: &Client) -> Result<(), Error> {
    println!("second: waits");
    let started = Instant::now();
    let guard = client.lock(NAME)?;
    println!("second: locked after {:.1?}, fence {}", started.elapsed(), guard.fence());
    guard.unlock()
}

fn in_another_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().expect("the thread does not panic"))
}
