//! A lock that one process uses again and again, and that another client wants only now and then.
//!
//! Measures locking with and without `keep`, and then lets another client take the lock. See "A
//! cached lock" in `docs/cookbook.md`.
//!
//! `cargo run --example cached_lock [URL]`

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use leasehold::{Client, Mutex, Result};

use self::support::Redis;

mod support;

const NAME: &str = "example:account 7";
const REQUESTS: u32 = 2000;
const KEEP: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let Some(redis) = Redis::find(env::args().nth(1)) else {
        println!("no Redis given and none on PATH: there is nothing to measure");
        return Ok(());
    };
    let open = || Client::builder().lease(LEASE).open(&redis.url());
    let (ours, theirs) = (open()?, open()?);
    println!("using {redis}");

    let account = Account::default();
    let plain = account.use_often(&ours.mutex(NAME))?;
    let keeping = ours.mutex(NAME).keep(KEEP);
    // A client keeps no lock before it listens to the requests of others.
    while ours.stats().kept == 0 {
        drop(keeping.lock()?);
        thread::yield_now();
    }
    let kept = account.use_often(&keeping)?;
    println!("{plain:.1?} for a lock and its release, and {kept:.1?} with keep");
    assert!(kept < plain, "a kept lock costs no request");

    let fence = keeping.lock()?.fence();
    let started = Instant::now();
    let guard = theirs.lock(NAME)?;
    println!("another client asks, and has it after {:.1?}", started.elapsed());
    assert!(guard.fence() > fence && ours.stats().recalls > 0);
    drop(guard);

    thread::scope(|scope| {
        let other = scope.spawn(|| account.use_often(&theirs.mutex(NAME)));
        account.use_often(&keeping)?;
        other.join().expect("no thread panics")
    })?;
    let uses = account.uses.load(Ordering::SeqCst);
    println!("{uses} uses in all, never two at a time");
    assert_eq!(uses, 4 * REQUESTS);
    Ok(())
}

/// The resource under the lock.
#[derive(Default)]
struct Account {
    in_use: AtomicBool,
    uses: AtomicU32,
}

impl Account {
    /// Returns how long one of many uses takes.
    fn use_often(&self, mutex: &Mutex) -> Result<Duration> {
        let started = Instant::now();
        for _ in 0..REQUESTS {
            let _guard = mutex.lock()?;
            assert!(!self.in_use.swap(true, Ordering::SeqCst), "two at a time");
            self.uses.fetch_add(1, Ordering::SeqCst);
            self.in_use.store(false, Ordering::SeqCst);
        }
        Ok(started.elapsed() / REQUESTS)
    }
}
