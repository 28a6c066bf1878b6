//! Transfers between accounts, each protected by its own lock.
//!
//! First, two transfers in opposite directions lock one account after the other, and each waits for
//! the other. With `lock_all` this cannot happen. See "A bank transfer" in `docs/cookbook.md`.
//!
//! `cargo run --example bank_transfer [URL]`

use std::collections::BTreeMap;
use std::env;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Result};

use self::support::Redis;

mod support;

const NAMES: [&str; 4] =
    ["example:account:Ann", "example:account:Bob", "example:account:Cem", "example:account:Dan"];
const TELLERS: usize = 4;
const TRANSFERS: usize = 50;

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    let client = support::open(redis.as_ref(), Client::builder())?;

    println!("\n-- one lock after the other, in opposite directions");
    lock_one_after_the_other(&client)?;

    println!("\n-- all locks at once");
    let bank = Bank(NAMES.map(|name| (name, AtomicI64::new(1000))).into());
    let started = Instant::now();
    support::in_threads(TELLERS, |teller| work(&client, &bank, teller))?;
    println!("{TELLERS} tellers, {TRANSFERS} transfers each, in {:.1?}", started.elapsed());
    for (name, balance) in &bank.0 {
        println!("{name}: {}", balance.load(Ordering::SeqCst));
    }
    let total: i64 = bank.0.values().map(|balance| balance.load(Ordering::SeqCst)).sum();
    assert_eq!(total, 4000, "money is neither made nor lost");
    println!("together {total}, as before");
    Ok(())
}

/// Two transfers that each hold one account and want the other.
fn lock_one_after_the_other(client: &Client) -> Result<()> {
    let [one, other, ..] = NAMES;
    let (both_have_one, both_gave_up) = (Barrier::new(2), Barrier::new(2));
    let got_both = support::in_threads(2, |teller| {
        let (from, to) = if teller == 1 { (one, other) } else { (other, one) };
        let _from = client.lock(from)?;
        both_have_one.wait();
        let to = client.try_lock_for(to, Duration::from_millis(300))?;
        both_gave_up.wait();
        Ok(to.is_some())
    })?;
    assert_eq!(got_both, [false, false], "neither gets its second lock");
    println!("each waits for the other's lock; with `lock` they would wait forever");
    Ok(())
}

/// Transfers between all pairs of accounts in turn.
fn work(client: &Client, bank: &Bank, teller: usize) -> Result<()> {
    for number in 0..TRANSFERS {
        let (from, to) = (NAMES[number % 4], NAMES[(teller + number / 4) % 4]);
        if from != to {
            let _guard = client.lock_all([from, to])?;
            bank.transfer(from, to, 10);
        }
    }
    Ok(())
}

/// The balances, each of which is read and then written, as in a store without transactions.
struct Bank(BTreeMap<&'static str, AtomicI64>);

impl Bank {
    /// Called under the locks of both accounts.
    fn transfer(&self, from: &str, to: &str, amount: i64) {
        let balances = [&self.0[from], &self.0[to]];
        let [from, to] = balances.map(|balance| balance.load(Ordering::SeqCst));
        thread::yield_now();
        balances[0].store(from - amount, Ordering::SeqCst);
        balances[1].store(to + amount, Ordering::SeqCst);
    }
}
