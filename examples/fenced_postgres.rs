//! A holder that is paused for longer than its lease, and a PostgreSQL that rejects its late write.
//!
//! The holder checks `is_held()` just before the write, and is paused right after the check. See
//! "PostgreSQL with fences" in `docs/cookbook.md`.
//!
//! `cargo run --example fenced_postgres [URL]` starts its own PostgreSQL, and two processes.

use std::env;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Guard};

use self::postgres::{Postgres, query};
use self::support::Redis;

#[path = "support/postgres.rs"]
mod postgres;
mod support;

const NAME: &str = "example:account:1";
const LEASE: Duration = Duration::from_secs(1);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [option, name, socket] if option == "--writer" => {
            let client = Client::builder().lease(LEASE).open(&env::var("REDIS_URL")?)?;
            work(name, &client, Path::new(socket))
        }
        _ => watch(args.into_iter().next()),
    }
}

/// Starts the two processes, and checks what they have written.
fn watch(url: Option<String>) -> Result<()> {
    let redis = Redis::require(url)?;
    let postgres = Postgres::start()?;
    println!("using a private PostgreSQL");
    query(postgres.dir(), "CREATE TABLE account (id INT, balance INT, fence BIGINT)")?;
    query(postgres.dir(), "INSERT INTO account VALUES (1, 100, 0)")?;

    let start = |name| redis.this_program()?.args(["--writer", name]).arg(postgres.dir()).spawn();
    let client = Client::open(&redis.url())?;
    let ann = start("Ann")?;
    wait_until_held(&client)?;
    let bob = start("Bob")?;
    for mut writer in [ann, bob] {
        assert!(writer.wait()?.success(), "a writer failed");
    }
    let balance = query(postgres.dir(), "SELECT balance FROM account")?;
    println!("the balance was 100, and is {balance}");
    assert_eq!(balance, "110", "the later holder's write stands");
    Ok(())
}

/// One of the processes. Ann is stopped between her check of the lock and her write.
fn work(name: &str, client: &Client, socket: &Path) -> Result<()> {
    let guard = client.lock(NAME)?;
    let balance = read(&guard, socket)?;
    println!("{name} has the lock, with fence {}, and reads {balance}", guard.fence());
    println!("{name} looks before writing: is_held() is {}", guard.is_held());
    let (amount, expected) = if name == "Ann" { (5, "UPDATE 0") } else { (10, "UPDATE 1") };
    if name == "Ann" {
        println!("Ann is paused for three leases");
        support::stop_this_process(3)?;
        println!("Ann resumes");
    }
    let done = write(balance + amount, &guard, socket)?;
    println!("{name} writes {}: {done}", balance + amount);
    assert_eq!(done, expected, "the fence decides");
    println!("{name} looks after writing: is_held() is {}", guard.is_held());
    Ok(())
}

/// Enters the fence of the hold, unless there is a later one, and returns the balance.
fn read(guard: &Guard, socket: &Path) -> Result<i64> {
    let fence = guard.fence();
    let read = format!(
        "UPDATE account SET fence = {fence} WHERE id = 1 AND fence <= {fence} RETURNING balance"
    );
    let answer = query(socket, &read)?;
    let balance = answer.lines().next().unwrap_or_default().parse();
    balance.map_err(|_| "a later holder was here".into())
}

/// Writes if the fence of the hold is still the latest, and returns how many rows that has changed.
fn write(balance: i64, guard: &Guard, socket: &Path) -> Result<String> {
    let fence = guard.fence();
    query(
        socket,
        &format!("UPDATE account SET balance = {balance} WHERE id = 1 AND fence = {fence}"),
    )
}

fn wait_until_held(client: &Client) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !client.mutex(NAME).is_locked()? {
        if Instant::now() > deadline {
            return Err("the first writer does not come".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
