//! Order numbers that no two orders share, from many threads of many processes.
//!
//! The first numbers are fences. The others, which have no gaps, come from a counter in a file that
//! only the holder reads and writes. See "Unique order numbers" in `docs/cookbook.md`.
//!
//! `cargo run --example order_numbers [URL]`

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;
use std::{env, fs, process};

use leasehold::{Client, Guard};

use self::support::Redis;

mod support;

const THREADS: usize = 4;
const ORDERS: usize = 25;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    let client = support::open(redis.as_ref(), Client::builder())?;

    println!("\n-- the fence is the order number");
    draw_all("number", || order_number(&client))?;

    println!("\n-- a counter in a file is the invoice number");
    let file = env::temp_dir().join(format!("order_numbers-{}", process::id()));
    fs::write(&file, "0")?;
    let drawn = draw_all("invoice", || invoice_number(&client, &file));
    fs::remove_file(&file)?;
    let drawn = drawn?;
    assert!(drawn.into_iter().eq(1..=100), "invoice numbers have no gaps");
    println!("they are 1 to 100 without a gap");
    Ok(())
}

/// Unique, growing, and with gaps.
fn order_number(client: &Client) -> Result<u64> {
    Ok(client.with_lock("example:orders", Guard::fence)?)
}

/// Unique, growing, and without gaps.
fn invoice_number(client: &Client, file: &Path) -> Result<u64> {
    client.with_lock("example:invoices", |_| {
        let last: u64 = fs::read_to_string(file)?.parse()?;
        fs::write(file, (last + 1).to_string())?;
        Ok(last + 1)
    })?
}

/// Draws numbers in several threads, and checks that all differ and that each thread sees them
/// grow.
fn draw_all(what: &str, draw: impl Fn() -> Result<u64> + Sync) -> Result<BTreeSet<u64>> {
    let started = Instant::now();
    let draw_some = |_| (0..ORDERS).map(|_| draw()).collect::<Result<Vec<_>>>();
    let per_thread = support::in_threads(THREADS, draw_some)?;
    for drawn in &per_thread {
        assert!(drawn.is_sorted_by(|one, next| one < next), "the numbers of a thread grow");
        println!("one thread: {what} {}, {}, {}, ...", drawn[0], drawn[1], drawn[2]);
    }
    let all: BTreeSet<u64> = per_thread.into_iter().flatten().collect();
    assert_eq!(all.len(), THREADS * ORDERS, "no number is drawn twice");
    println!("{} numbers in {:.1?}, all different", all.len(), started.elapsed());
    Ok(all)
}
