//! A limited stock that several processes sell at the same time without overselling it.
//!
//! `cargo run --example flash_sale [URL] [--unlocked] [--stock N]`. The stock is a plain key that
//! each sale reads and writes back after a delay, which is safe only under the lock. The example
//! checks its books and fails if it has oversold; `--unlocked` shows that happen.

use std::env;
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use leasehold::Client;

use self::shop::{Books, Shop};
use self::support::Redis;

mod shop;
#[path = "../support/mod.rs"]
mod support;

const USAGE: &str = "usage: flash_sale [URL] [--unlocked] [--stock N]";
const PROCESSES: usize = 4;
const THREADS: usize = 4;
const STOCK: usize = 300;
/// How long a sale takes between reading the stock and writing it back.
const PAYMENT: Duration = Duration::from_millis(2);
/// How long a seller pauses before the next sale.
const PAUSE: Duration = Duration::from_millis(5);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let outcome = Options::parse(env::args().skip(1)).and_then(|options| match &options.seller {
        Some(seller) => sell_in_threads(&options, seller),
        None => run_sale(&options),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flash_sale: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sells the stock from several processes, then checks the books.
fn run_sale(options: &Options) -> Result<()> {
    let redis = Redis::find(options.url.clone()).ok_or(
        "processes can share a lock only through a server: \
         give its URL as an argument or in REDIS_URL, or put redis-server on PATH",
    )?;
    println!("using {redis}");
    let how = if options.locked { "under" } else { "WITHOUT" };
    let stock = options.stock;
    println!("{stock} items, {PROCESSES} processes x {THREADS} threads, {how} the lock");

    let sale = format!("flash_sale:{}", UNIX_EPOCH.elapsed()?.as_micros());
    let mut shop = Shop::open(&redis.url(), &sale)?;
    shop.restock(stock)?;
    let mut sellers = start_sellers(options, &redis.url(), &sale)?;
    let failed = watch(&mut sellers, &mut shop)?;
    let books = Books::read(&mut shop, stock);
    shop.clear()?;
    if failed > 0 {
        return Err(format!("{failed} of {PROCESSES} processes failed").into());
    }
    books?.check()
}

/// Starts this program again, once for each seller.
fn start_sellers(options: &Options, url: &str, sale: &str) -> Result<Vec<Child>> {
    let start = |seller: usize| {
        let mut command = Command::new(env::current_exe()?);
        // The URL may contain a password, and command lines are visible to all users.
        command.env("REDIS_URL", url);
        command.args(["--seller", &seller.to_string(), sale]);
        command.args((!options.locked).then_some("--unlocked"));
        Ok(command.spawn()?)
    };
    (1..=PROCESSES).map(start).collect()
}

/// Prints the progress until all processes have ended, and returns how many failed.
fn watch(sellers: &mut [Child], shop: &mut Shop) -> Result<usize> {
    let started = Instant::now();
    let mut ended = Vec::new();
    while ended.len() < sellers.len() {
        thread::sleep(Duration::from_millis(250));
        ended.clear();
        for seller in &mut *sellers {
            ended.extend(seller.try_wait()?);
        }
        let (sold, left) = (shop.sold()?, shop.stock()?);
        println!("  {:4.1} s: {sold:4} sold, {left:4} left", started.elapsed().as_secs_f32());
    }
    Ok(ended.iter().filter(|status| !status.success()).count())
}

/// Runs one process of the sale: threads that share a client.
fn sell_in_threads(options: &Options, seller: &Seller) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let client = Client::builder().wait(Duration::from_secs(30)).open(&url)?;
    let client = options.locked.then_some(&client);
    let sell = || sell_out(client, &mut Shop::open(&url, &seller.sale)?, &seller.name);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(sell)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a seller does not panic"))
    })
}

fn sell_out(client: Option<&Client>, shop: &mut Shop, seller: &str) -> Result<()> {
    while sell_one(client, shop, seller)? {
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sells one item. Only the lock keeps other sellers from writing between the read and the write.
fn sell_one(client: Option<&Client>, shop: &mut Shop, seller: &str) -> Result<bool> {
    let _guard = client.map(|client| client.lock(shop.sale())).transpose()?;
    let left = shop.stock()?;
    if left == 0 {
        return Ok(false);
    }
    thread::sleep(PAYMENT);
    shop.sell(left, seller)?;
    Ok(true)
}

/// The options on the command line of a process.
struct Options {
    url: Option<String>,
    locked: bool,
    stock: usize,
    /// Given only to the processes that this program starts.
    seller: Option<Seller>,
}

struct Seller {
    name: String,
    sale: String,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { url: None, locked: true, stock: STOCK, seller: None };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(USAGE);
            match arg.as_str() {
                "--unlocked" => options.locked = false,
                "--stock" => options.stock = value()?.parse().map_err(|_| USAGE)?,
                "--seller" => {
                    let (name, sale) = (value()?, value()?);
                    options.seller = Some(Seller { name, sale });
                }
                option if option.starts_with('-') => return Err(USAGE.into()),
                url => options.url = Some(url.to_owned()),
            }
        }
        Ok(options)
    }
}
