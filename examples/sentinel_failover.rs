//! A failover as the users of a lock see it: the master is killed while locks are held.
//!
//! `cargo run --example sentinel_failover` starts its own servers, a master with two replicas and
//! three sentinels, with the redis-server or valkey-server on PATH. A worker acquires a lock for
//! each of its steps; a long job holds a lock throughout. Then the master is killed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Event};

use self::sentinel::{MASTER, Watched};

#[path = "../tests/it/support/sentinel.rs"]
mod sentinel;
#[path = "../tests/it/support/server.rs"]
mod server;

const LEASE: Duration = Duration::from_secs(15);
const WAIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(300);
/// The output explains waits longer than this.
const LONG: Duration = Duration::from_secs(1);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn main() -> Result<(), Error> {
    let Some(binary) = server::installed_binary() else {
        println!("neither redis-server nor valkey-server is on PATH");
        return Ok(());
    };
    say("starting a master, two replicas and three sentinels");
    let watched = Watched::start(binary, Duration::from_secs(1));
    let client = open(&watched)?;
    say(format_args!("the master is on port {}", watched.master().port()));

    let long_job = client.lock("example:long job")?;
    say(format_args!("the long job holds its lock: fence {}", long_job.fence()));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&client, &over));
        thread::sleep(STEP * 5);
        fail_over(&watched);
        thread::sleep(STEP * 10);
        over.store(true, Ordering::SeqCst);
        worker.join().expect("the worker does not panic")
    })?;
    match long_job.verify() {
        Ok(()) => say(format_args!("the long job still holds it: fence {}", long_job.fence())),
        Err(Error::Lost { .. }) => {
            say("the long job has lost it: the new master never received it");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn open(watched: &Watched) -> Result<Client, Error> {
    let urls = watched.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let builder = Client::builder().lease(LEASE).wait(WAIT).retry_window(WAIT);
    builder.on_event(narrate).open_sentinel(&urls, MASTER)
}

/// Acquires a lock for every step.
fn work(client: &Client, over: &AtomicBool) -> Result<(), Error> {
    for step in 1.. {
        let started = Instant::now();
        let guard = client.lock("example:step")?;
        let took = started.elapsed();
        let note = if took > LONG { ", because of the failover" } else { "" };
        say(format_args!("step {step}: fence {} after {took:.1?}{note}", guard.fence()));
        if over.load(Ordering::SeqCst) {
            break;
        }
        thread::sleep(STEP);
    }
    Ok(())
}

fn fail_over(watched: &Watched) {
    let old = watched.master();
    say(format_args!("-- the master on port {} is killed", old.port()));
    old.kill();
    let new = watched.wait_for_another(old.port());
    say(format_args!("-- the sentinels have made port {} the master", new.port()));
}

fn narrate(event: &Event) {
    match event {
        Event::RenewalFailing { name, remaining, .. } => {
            say(format_args!("renewing {name} is failing, {remaining:.1?} left"));
        }
        Event::Lost { name, .. } => say(format_args!("lost {name}")),
        _ => {}
    }
}

fn say(what: impl std::fmt::Display) {
    println!("{:5.1} s  {what}", START.elapsed().as_secs_f64());
}
