//! A cached page that one server rebuilds while the others serve the old one.
//!
//! See "Rebuilding a cache" in `docs/cookbook.md`.
//!
//! `cargo run --example stale_cache [URL]`

use std::env;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Result};
use parking_lot::Mutex;

use self::support::Redis;

mod support;

const NAME: &str = "example:front page";
const SERVERS: usize = 8;
const IO_TIMEOUT: Duration = Duration::from_millis(250);
/// How long the database takes for the page.
const REBUILD: Duration = Duration::from_millis(300);

fn main() -> Result<()> {
    let redis = Redis::find(env::args().nth(1));
    // Even while Redis hangs or restarts, visitors who could have the old page do not wait.
    let builder = Client::builder().wait(Duration::from_secs(10)).io_timeout(IO_TIMEOUT);
    let builder = builder.retry_window(Duration::from_millis(500));
    let client = support::open(redis.as_ref(), builder)?;
    let cache = Cache::default();

    println!("\n-- the cache is empty, and {SERVERS} servers want the page");
    let pages = serve_all(&client, &cache)?;
    assert!(pages.iter().all(|page| page.version == 1), "all wait for the first version");
    for version in 2..=3 {
        println!("\n-- version {} has expired, and {SERVERS} servers want the page", version - 1);
        cache.expire();
        let pages = serve_all(&client, &cache)?;
        assert!(pages.iter().any(|page| page.version == version), "a server has rebuilt it");
    }
    let rebuilt = cache.rebuilt.load(Ordering::SeqCst);
    println!("\nthe page was wanted {} times and rebuilt {rebuilt} times", SERVERS * 3);
    assert_eq!(rebuilt, 3, "each version was built once");
    Ok(())
}

/// Returns the page, possibly an old one while another server rebuilds it.
fn serve(client: &Client, cache: &Cache) -> Result<Page> {
    match cache.page() {
        Some(page) if page.fresh => Ok(page),
        Some(old) => {
            let rebuilt = client.try_with_lock(NAME, |_| cache.rebuild_if_expired());
            // `Ok(None)`: another server rebuilds it. `Err`: Redis is away.
            Ok(rebuilt.ok().flatten().unwrap_or(old))
        }
        None => client.with_lock(NAME, |_| cache.rebuild_if_expired()),
    }
}

/// The shared cache: in real life a key in Redis, a table or a file.
#[derive(Default)]
struct Cache {
    page: Mutex<Option<Page>>,
    rebuilt: AtomicU32,
}

#[derive(Clone, Copy)]
struct Page {
    version: u32,
    fresh: bool,
}

impl Cache {
    fn page(&self) -> Option<Page> {
        *self.page.lock()
    }

    fn expire(&self) {
        self.page.lock().as_mut().expect("the page was built").fresh = false;
    }

    /// Called under the lock.
    fn rebuild_if_expired(&self) -> Page {
        if let Some(page) = self.page().filter(|page| page.fresh) {
            return page;
        }
        thread::sleep(REBUILD);
        let version = self.rebuilt.fetch_add(1, Ordering::SeqCst) + 1;
        let page = Page { version, fresh: true };
        *self.page.lock() = Some(page);
        page
    }
}

/// Makes all servers ask for the page at the same moment. Threads play the servers.
fn serve_all(client: &Client, cache: &Cache) -> Result<Vec<Page>> {
    let all_ready = Barrier::new(SERVERS);
    let ask = |server: usize| {
        all_ready.wait();
        let started = Instant::now();
        let page = serve(client, cache)?;
        println!("server {server} has version {} after {:.0?}", page.version, started.elapsed());
        Ok(page)
    };
    support::in_threads(SERVERS, ask)
}
