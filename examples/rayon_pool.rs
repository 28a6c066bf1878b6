//! Locks in the tasks of a rayon pool: the recipe, and the two mistakes that `reentrant(false)` and
//! `wait` turn into errors.
//!
//! See "A rayon pool" in `docs/cookbook.md`.
//!
//! `cargo run --example rayon_pool [URL]`

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, Guard, Mutex, Result};
use rayon::prelude::*;

use self::support::Redis;

mod support;

const CUSTOMERS: [&str; 3] =
    ["example:customer:Ann", "example:customer:Bob", "example:customer:Cem"];
const ORDERS: usize = 60;

/// Longer than any task holds a lock.
const WAIT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    let client = support::open(redis.as_ref(), Client::builder().reentrant(false).wait(WAIT))?;

    println!("\n-- each order under the lock of its customer");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().expect("threads start");
    let totals = [0; 3].map(AtomicU32::new);
    pool.install(|| {
        (0..ORDERS).into_par_iter().try_for_each(|order| book(&client, &totals, order))
    })?;
    let totals = totals.map(AtomicU32::into_inner);
    println!("{ORDERS} orders booked: {totals:?}");
    assert_eq!(totals, [20; 3], "no order is lost");

    println!("\n-- two tasks on one thread, and rayon work under the lock");
    let reentrant = client.mutex(CUSTOMERS[0]).reentrant(true);
    assert_eq!(two_tasks(&reentrant)?, [1, 2]);
    println!("reentrant(true): both held the lock, the second one at depth 2");
    let outcome = two_tasks(&client.mutex(CUSTOMERS[0]));
    assert!(matches!(outcome, Err(Error::AlreadyHeld { .. })));
    println!("reentrant(false): the second one got an error");

    println!("\n-- a task on a thread that does a part of the holder's work");
    let impatient = client.mutex(CUSTOMERS[0]).wait(Duration::from_millis(200));
    let outcome = task_above_a_part(&impatient)?;
    assert!(matches!(outcome, Err(Error::Timeout { .. })));
    println!("it got an error after its wait; without one both would have waited forever");
    Ok(())
}

/// Adds an order to the total of its customer, by a read and a write.
fn book(client: &Client, totals: &[AtomicU32; 3], order: usize) -> Result<()> {
    let customer = order % CUSTOMERS.len();
    let guard = client.lock(CUSTOMERS[customer])?;
    let total = totals[customer].load(Ordering::SeqCst);
    thread::yield_now();
    totals[customer].store(total + 1, Ordering::SeqCst);
    drop(guard); // Hands the lock off to the next task.
    Ok(())
}

/// Locks in two tasks on the only thread of a pool, and returns how deep each of them was.
fn two_tasks(mutex: &Mutex) -> Result<Vec<u32>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread starts");
    let task = |_| {
        let guard = mutex.lock()?;
        rayon::yield_now(); // Runs the other task, if it has not begun.
        Ok(guard.depth())
    };
    pool.install(|| (0..2).into_par_iter().map(task).collect())
}

/// Locks, and leaves part of the work to another thread. Before that part is done, that thread runs
/// a task that wants the lock too. Returns the result of that task.
fn task_above_a_part(mutex: &Mutex) -> Result<Result<()>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
    let (is_taken, is_running) = (AtomicBool::new(false), AtomicBool::new(false));
    let until = |flag: &AtomicBool| {
        while !flag.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    };
    let mut outcome = Ok(());
    let task = |outcome: &mut Result<()>| {
        is_running.store(true, Ordering::SeqCst);
        *outcome = mutex.lock().and_then(Guard::unlock);
    };
    pool.scope(|scope| {
        let guard = mutex.lock()?;
        rayon::join(
            || {
                until(&is_taken);
                scope.spawn(|_| task(&mut outcome));
                until(&is_running);
            },
            || {
                is_taken.store(true, Ordering::SeqCst);
                while !is_running.load(Ordering::SeqCst) {
                    rayon::yield_now(); // Runs the task, above this part on the stack.
                }
            },
        );
        guard.unlock()
    })?;
    Ok(outcome)
}
