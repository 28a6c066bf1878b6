//! Calls to an API that allows a limited number at a time, across all processes.
//!
//! See "Calls to a paid API" in `docs/cookbook.md`.
//!
//! `cargo run --example paid_api [URL]`

use std::env;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Result};

use self::support::Redis;

mod support;

const NAME: &str = "example:paid-api";
const PERMITS: u32 = 3;
const WORKERS: usize = 8;
const CALLS: usize = 3;
const CALL: Duration = Duration::from_millis(50);

/// The provider's view of the calls.
#[derive(Default)]
struct Api {
    running: AtomicU32,
    most: AtomicU32,
    calls: AtomicU32,
}

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    let client = support::open(redis.as_ref(), Client::builder())?;
    let api = Api::default();

    println!("\n-- {WORKERS} workers want {CALLS} calls each, {PERMITS} at a time are allowed");
    let started = Instant::now();
    support::in_threads(WORKERS, |_| work(&client, &api))?;
    let (calls, most) = (api.calls.into_inner(), api.most.into_inner());
    println!("{calls} calls in {:.1?}, at most {most} at a time", started.elapsed());
    assert_eq!(calls as usize, WORKERS * CALLS, "every call is made");
    assert!(most <= PERMITS, "too many calls at a time");

    println!("\n-- all permits are taken");
    let semaphore = client.semaphore(NAME, PERMITS);
    let permits = (0..PERMITS).map(|_| semaphore.acquire()).collect::<Result<Vec<_>>>()?;
    println!("{} permits are available", semaphore.available()?);
    let in_vain = semaphore.try_acquire_for(CALL * 2)?;
    assert!(in_vain.is_none(), "a fourth permit does not exist");
    println!("a call that waits for {:?} gets none", CALL * 2);
    drop(permits);
    assert_eq!(semaphore.available()?, PERMITS);
    println!("given back, {PERMITS} are available");
    Ok(())
}

fn work(client: &Client, api: &Api) -> Result<()> {
    let semaphore = client.semaphore(NAME, PERMITS);
    for _ in 0..CALLS {
        let permit = semaphore.acquire()?;
        api.call();
        permit.unlock()?;
    }
    Ok(())
}

impl Api {
    fn call(&self) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        thread::sleep(CALL);
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}
