//! Long jobs from a queue, each under the lock of its account. A job stops at once if its lock is
//! lost.
//!
//! See "A long job" in `docs/cookbook.md`.
//!
//! `cargo run --example worker_pool [URL]`. A job takes longer than a lease, so every job depends
//! on renewal. Halfway through the first job, an "operator" ends its hold. The worker is notified
//! while it works, stops, and starts the job over under a new fence.

use std::env;
use std::fmt::Display;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select, tick, unbounded};
use leasehold::{Client, Error, Event};

use self::support::Redis;

mod support;

const WORKERS: usize = 3;
const LEASE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(100);
const STEPS_PER_JOB: usize = 15;
/// Two jobs may touch the same account, but never at the same time.
const JOBS: [(usize, &str); 6] = [
    (1, "example:account:alice"),
    (2, "example:account:bob"),
    (3, "example:account:carol"),
    (4, "example:account:alice"),
    (5, "example:account:bob"),
    (6, "example:account:dave"),
];

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn main() -> Result<(), Error> {
    let redis = Redis::find(env::args().nth(1));
    let builder = Client::builder().lease(LEASE).wait(Duration::from_secs(20)).on_event(narrate);
    let client = support::open(redis.as_ref(), builder)?;
    let (queue, jobs) = unbounded();
    for (id, account) in JOBS {
        queue.send(Job { id, account }).expect("the receiver is alive");
    }
    drop(queue); // The workers stop when it is empty.

    let done = run(&client, &jobs)?;
    assert_eq!(done, JOBS.len(), "every job is done once");
    say(format_args!("all {done} jobs done"));
    Ok(())
}

/// Prints events. It runs on a thread of the client.
fn narrate(event: &Event) {
    match event {
        Event::Contended { name, .. } => say(format_args!("  [event] {name} is held, waiting")),
        Event::Renewed { count, .. } => say(format_args!("  [event] renewed {count}")),
        Event::RenewalFailing { name, .. } => {
            say(format_args!("  [event] renewing {name} is failing"));
        }
        Event::Lost { name, fence, .. } => {
            say(format_args!("  [event] lost {name}, fence {fence}"));
        }
        _ => {}
    }
}

fn run(client: &Client, jobs: &Receiver<Job>) -> Result<usize, Error> {
    thread::scope(|scope| {
        let work = |worker| move || work(worker, client, jobs);
        let workers: Vec<_> = (1..=WORKERS).map(|worker| scope.spawn(work(worker))).collect();
        meddle(client)?;
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).sum()
    })
}

/// Releases the lock of the first job by force.
fn meddle(client: &Client) -> Result<(), Error> {
    let (_, account) = JOBS[0];
    thread::sleep(STEP * 7);
    say(format_args!("operator: releases {account} by force"));
    client.mutex(account).force_unlock()?;
    Ok(())
}

struct Job {
    id: usize,
    account: &'static str,
}

/// Processes jobs until the queue is empty, and returns how many it has done.
fn work(worker: usize, client: &Client, jobs: &Receiver<Job>) -> Result<usize, Error> {
    let mut done = 0;
    for job in jobs {
        while attempt(worker, client, &job)? == Outcome::Lost {
            say(format_args!("worker {worker}: job {} lost its lock, starts over", job.id));
        }
        done += 1;
    }
    Ok(done)
}

#[derive(PartialEq)]
enum Outcome {
    Done,
    Lost,
}

fn attempt(worker: usize, client: &Client, job: &Job) -> Result<Outcome, Error> {
    let guard = client.lock(job.account)?;
    let (id, fence) = (job.id, guard.fence());
    say(format_args!("worker {worker}: job {id} begins on {}, fence {fence}", job.account));

    let lost = guard.lost();
    let steps = tick(STEP);
    for _ in 0..STEPS_PER_JOB {
        select! {
            recv(lost.receiver()) -> _ => return Ok(Outcome::Lost),
            // A step of the real work goes here, with the fence in every write.
            recv(steps) -> _ => {}
        }
    }
    match guard.unlock() {
        Ok(()) => say(format_args!("worker {worker}: job {id} done")),
        Err(Error::Lost { .. }) => return Ok(Outcome::Lost),
        Err(error) => return Err(error),
    }
    Ok(Outcome::Done)
}

fn say(text: impl Display) {
    println!("{:5.2} s  {text}", START.elapsed().as_secs_f64());
}
