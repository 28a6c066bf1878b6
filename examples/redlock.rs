//! A lock on five independent servers that survives the loss of two of them.
//!
//! `cargo run --example redlock` starts its own servers, with the redis-server or valkey-server on
//! PATH. Workers increment a number under a lock while one server is killed, a second hangs and a
//! third is killed. That leaves no majority until one comes back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};

use self::server::Server;

#[path = "../tests/it/support/server.rs"]
mod server;

const NAME: &str = "example:counter";
const STAGE: Duration = Duration::from_millis(700);

/// Incrementing it takes a read and a write, and another worker could write in between.
static COUNTER: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), Error> {
    let Some(servers) = (0..5).map(|_| Server::on_path()).collect::<Option<Vec<_>>>() else {
        println!("neither redis-server nor valkey-server is on PATH: nothing to demonstrate");
        return Ok(());
    };
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    // The calls that wait for the server that hangs must end before the first lock expires there.
    let (lease, io_timeout) = (Duration::from_secs(10), Duration::from_millis(500));
    let client = Client::builder().lease(lease).io_timeout(io_timeout).open_redlock(&urls)?;

    let guard = client.lock("example:long job")?;
    stage("five of five servers are up", &client)?;
    servers[0].kill();
    stage("four of five servers are up", &client)?;
    servers[3].stop();
    stage("three of five servers are up, and one of the others hangs", &client)?;
    servers[4].kill();
    show_no_quorum(&client);
    servers[3].cont();
    stage("three of five servers are up again", &client)?;
    guard.verify()?;
    println!("\na lock acquired at the start is still held, fence {}", guard.fence());
    guard.unlock()
}

/// Runs three workers that count for a while, and prints how far they got.
fn stage(what: &str, client: &Client) -> Result<(), Error> {
    println!("\n-- {what}");
    let before = COUNTER.load(Ordering::SeqCst);
    let end = Instant::now() + STAGE;
    let counted = thread::scope(|scope| {
        let count = || count_until(end, client);
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(count)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().expect("no panic");
        workers.into_iter().map(join).sum::<Result<u64, Error>>()
    })?;
    let number = COUNTER.load(Ordering::SeqCst);
    println!("three workers counted {counted} times, from {before} to {number}");
    assert_eq!(before + counted, number, "the lock excludes");
    Ok(())
}

fn count_until(end: Instant, client: &Client) -> Result<u64, Error> {
    let mut times = 0;
    while Instant::now() < end {
        let guard = client.lock(NAME)?;
        let number = COUNTER.load(Ordering::SeqCst);
        thread::yield_now();
        COUNTER.store(number + 1, Ordering::SeqCst);
        guard.unlock()?;
        times += 1;
    }
    Ok(times)
}

fn show_no_quorum(client: &Client) {
    println!("\n-- two of five servers are up");
    match client.try_lock(NAME) {
        Ok(_) => println!("two of five servers are not a majority, but granted the lock"),
        Err(error) => {
            println!("{error}");
            if let Error::NoQuorum { failures, .. } = error {
                for failure in failures {
                    println!("  {}: {}", failure.server, failure.source);
                }
            }
        }
    }
}
