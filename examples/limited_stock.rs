//! A limited stock in an SQL table that several processes sell without overselling it.
//!
//! A transaction that stays open during the payment would block all buyers; the lock blocks only
//! those who want the same item. One seller is paused for longer than its lease, and later writes
//! what it read long ago. See "A limited stock in SQL" in `docs/cookbook.md`.
//!
//! `cargo run --example limited_stock [URL] [--unlocked]` sells from three processes and checks the
//! books. It fails if it has oversold; `--unlocked` makes that happen.

use std::time::Duration;
use std::{env, fs, mem, process, thread};

use leasehold::Client;
use rusqlite::Connection;

use self::support::Redis;

mod support;

const STOCK: i64 = 60;
const SELLERS: [&str; 3] = ["Ann", "Bob", "Cem"];
const LEASE: Duration = Duration::from_secs(1);
/// How long a sale takes between reading the stock and writing it back.
const PAYMENT: Duration = Duration::from_millis(10);

const READ: &str = "UPDATE stock SET fence = ?1 WHERE item = 'socks' AND fence <= ?1
    RETURNING remaining";
const WRITE: &str = "UPDATE stock SET remaining = ?1 WHERE item = 'socks' AND fence = ?2";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let locked = !args.iter().any(|arg| arg == "--unlocked");
    match &args[..] {
        [option, seller, file, ..] if option == "--seller" => sell_out(seller, file, locked),
        _ => run_sale(args.into_iter().find(|arg| !arg.starts_with('-')), locked),
    }
}

/// Sells the stock from several processes, then checks the books.
fn run_sale(url: Option<String>, locked: bool) -> Result<()> {
    let redis = Redis::require(url)?;
    let how = if locked { "under" } else { "WITHOUT" };
    println!("{} sell {STOCK} items {how} the lock", SELLERS.join(", "));
    let file = env::temp_dir().join(format!("limited_stock-{}.db", process::id()));
    let db = Connection::open(&file)?;
    db.execute_batch(&format!(
        "CREATE TABLE stock (item TEXT PRIMARY KEY, remaining INTEGER, fence INTEGER);
         CREATE TABLE sale (number INTEGER, seller TEXT);
         INSERT INTO stock VALUES ('socks', {STOCK}, 0);"
    ))?;

    let start = |seller| {
        let mut command = redis.this_program()?;
        command.args(["--seller", seller]).arg(&file).args((!locked).then_some("--unlocked"));
        Ok(command.spawn()?)
    };
    for mut seller in SELLERS.map(start).into_iter().collect::<Result<Vec<_>>>()? {
        assert!(seller.wait()?.success(), "a seller failed");
    }

    let count = |what| db.query_row(what, [], |row| row.get(0));
    let remaining: i64 = count("SELECT remaining FROM stock")?;
    let sold: i64 = count("SELECT count(*) FROM sale")?;
    let twice = sold - count("SELECT count(DISTINCT number) FROM sale")?;
    fs::remove_file(&file)?;
    println!("{sold} sales of {STOCK} items, {twice} of an item sold before; {remaining} left");
    if sold != STOCK || twice != 0 || remaining != 0 {
        return Err("OVERSOLD".into());
    }
    println!("the books are correct: nothing oversold, nothing lost");
    Ok(())
}

/// One process of the sale.
fn sell_out(seller: &str, file: &str, locked: bool) -> Result<()> {
    let client = Client::builder().lease(LEASE).open(&env::var("REDIS_URL")?)?;
    let mut db = Connection::open(file)?;
    let (mut sold, mut stop) = (0, seller == SELLERS[0]);
    loop {
        let guard = locked.then(|| client.lock("example:stock:socks")).transpose()?;
        // Fences are below 2^53, so they fit every column that holds an i64.
        let fence = guard.as_ref().map_or(0, |guard| guard.fence().cast_signed());
        let left = db.query_row(READ, [fence], |row| row.get(0))?;
        if left == 0 {
            println!("{seller} sold {sold}");
            return Ok(());
        }
        thread::sleep(PAYMENT);
        if mem::take(&mut stop) {
            println!("{seller} has read that {left} are left, and is stopped for two leases");
            support::stop_this_process(2)?;
        }
        if sell(&mut db, left, fence, seller)? {
            sold += 1;
        } else {
            println!("{seller} wanted to write that {} are left: refused", left - 1);
            println!("{seller} asks the guard: held is {}", guard.is_some_and(|it| it.is_held()));
        }
    }
}

/// Sells the last of `left` items, and returns `false` if a later holder has read them meanwhile.
fn sell(db: &mut Connection, left: i64, fence: i64, seller: &str) -> Result<bool> {
    let transaction = db.transaction()?;
    if transaction.execute(WRITE, (left - 1, fence))? == 0 {
        return Ok(false);
    }
    transaction.execute("INSERT INTO sale VALUES (?1, ?2)", (left, seller))?;
    transaction.commit()?;
    Ok(true)
}
