//! A configuration that many threads keep reading and one changes now and then.
//!
//! Its parts belong together: a reader must not see the new host with the old port. See "Readers
//! and a writer" in `docs/cookbook.md`.
//!
//! `cargo run --example configuration [URL]`

use std::env;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, Result, RwLock};

use self::support::Redis;

mod support;

const READERS: usize = 3;
const CHANGES: u16 = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// The shared configuration, in two parts that are written one after the other.
#[derive(Default)]
struct Configuration {
    host: AtomicU16,
    port: AtomicU16,
}

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    let client = support::open(redis.as_ref(), Client::builder())?;
    let lock = client.rw_lock("example:configuration");
    let configuration = Configuration::default();

    support::in_threads(1 + READERS, |thread| match thread {
        1 => write(&lock, &configuration),
        _ => read(thread - 1, &lock, &configuration),
    })?;
    println!("no reader has seen a half-made change");
    Ok(())
}

fn write(lock: &RwLock, configuration: &Configuration) -> Result<()> {
    for version in 1..=CHANGES {
        thread::sleep(PAUSE);
        let guard = lock.write()?;
        configuration.host.store(version, Ordering::SeqCst);
        thread::sleep(PAUSE);
        configuration.port.store(version, Ordering::SeqCst);
        println!("the writer has made version {version}, with fence {}", guard.fence());
        guard.unlock()?;
    }
    Ok(())
}

/// Reads the configuration repeatedly, until the last version is there.
fn read(reader: usize, lock: &RwLock, configuration: &Configuration) -> Result<()> {
    let mut seen = None;
    loop {
        let guard = lock.read()?;
        let host = configuration.host.load(Ordering::SeqCst);
        let port = configuration.port.load(Ordering::SeqCst);
        assert_eq!(host, port, "both parts are of the same version");
        if seen.replace(guard.fence()) != Some(guard.fence()) {
            println!("reader {reader} has found version {host}");
        }
        guard.unlock()?;
        if host == CHANGES {
            return Ok(());
        }
        thread::sleep(PAUSE / 10);
    }
}
