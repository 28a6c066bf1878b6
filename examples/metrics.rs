//! Metrics of a client in the text format of Prometheus: counters and gauges from `Client::stats`,
//! and histograms from events of how long threads wait for locks and hold them.
//!
//! `cargo run --example metrics [URL]`. The name of a lock is not a label: the number of names such
//! as `stock:42` has no bound, and Prometheus keeps a time series for each value of a label.

use std::collections::HashMap;
use std::env;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Event, HoldEnd, Stats};

use self::support::Redis;

mod support;

const THREADS: usize = 4;
const ROUNDS: usize = 5;
const NAME: &str = "example:stock:42";

/// The maximum number of names for which contended calls are counted.
const NAMES_MAX: usize = 10_000;

fn main() -> Result<(), Error> {
    let metrics = Arc::new(Metrics::default());
    let redis = Redis::find(env::args().nth(1));
    let recorded = metrics.clone();
    let builder = Client::builder().on_event(move |event| recorded.record(event));
    let client = match &redis {
        Some(redis) => builder.open(&redis.url())?,
        None => builder.in_memory()?,
    };
    work(&client)?;

    // Events are delivered on a thread of their own, and it was another thread that found the lease
    // lost, so wait for both. A metrics server just takes whatever is there.
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_told = |stats: Stats| stats.lost == 1 && metrics.held.count() == stats.released;
    while !is_told(client.stats()) {
        assert!(Instant::now() < deadline, "every event is delivered soon");
        thread::sleep(Duration::from_millis(1));
    }
    let text = metrics.text(&client.stats());
    print!("{text}");
    check(&text);
    Ok(())
}

/// Something to count: threads that want the same lock, calls that do not get it, and a loss.
fn work(client: &Client) -> Result<(), Error> {
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| {
            scope.spawn(|| -> Result<(), Error> {
                for _ in 0..ROUNDS {
                    let guard = client.lock(NAME)?;
                    thread::sleep(Duration::from_millis(2));
                    guard.unlock()?;
                }
                Ok(())
            })
        });
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;

    // An owned guard belongs to no thread, so that this thread is refused the lock as well.
    let guard = client.lock_owned(NAME)?;
    assert!(client.try_lock(NAME)?.is_none());
    assert!(client.try_lock_for(NAME, Duration::from_millis(20))?.is_none());
    guard.unlock()?;

    let short = client.mutex(NAME).lease(Duration::from_millis(300)).renew(false);
    let guard = short.lock()?;
    assert_eq!(guard.lost().wait(), HoldEnd::Lost, "it is not renewed");
    Ok(())
}

/// The numbers that only events provide. The rest is in [`Stats`].
#[derive(Default)]
struct Metrics {
    waited: Histogram,
    held: Histogram,
    /// How many calls for each name have found it held, and have not ended.
    contended: Mutex<HashMap<String, usize>>,
}

impl Metrics {
    /// Notes the end of a call. Returns `true` if it may have found the lock held.
    fn end_contended(&self, name: &str) -> bool {
        let mut contended = self.contended.lock().expect("no panic");
        let Some(calls) = contended.get_mut(name) else { return false };
        *calls -= 1;
        if *calls == 0 {
            contended.remove(name);
        }
        true
    }

    /// Runs on a thread of the client, but should still be quick.
    fn record(&self, event: &Event) {
        match event {
            Event::Contended { name, .. } => {
                let mut contended = self.contended.lock().expect("no panic");
                // A contended attempt that does not wait reports nothing else, so some entries
                // stay.
                if contended.len() > NAMES_MAX {
                    contended.clear();
                }
                *contended.entry(name.clone()).or_default() += 1;
            }
            // The duration of a call that found the lock free is not a wait for it, and may be due
            // to an outage.
            Event::Acquired { name, waited, .. } if self.end_contended(name) => {
                self.waited.observe(*waited);
            }
            Event::TimedOut { name, .. } | Event::Failed { name, .. } => {
                self.end_contended(name);
            }
            Event::Released { held, .. } => self.held.observe(*held),
            _ => {}
        }
    }

    /// Returns the reply of an HTTP server to `GET /metrics`.
    fn text(&self, stats: &Stats) -> String {
        let mut page = Page::default();
        page.head("acquires_total", "counter", "How calls for locks have ended.");
        page.labelled("acquires_total", "result", "acquired", stats.acquired);
        page.labelled("acquires_total", "result", "busy", stats.busy);
        page.labelled("acquires_total", "result", "timeout", stats.timed_out);
        page.labelled("acquires_total", "result", "unavailable", stats.failed);
        page.counter("contended_total", "Calls that found a lock held.", stats.contended);
        page.counter("deadlocks_total", "Circles of waiting threads.", stats.deadlocks);
        page.counter("handoffs_total", "Locks got from a thread here.", stats.handoffs);
        page.counter("relocks_total", "Kept locks got again.", stats.relocks);
        page.counter("recalls_total", "Kept locks given back.", stats.recalls);
        page.counter("long_holds_total", "Locks held for long.", stats.long_holds);
        page.counter("lost_total", "Leases that ended before their guards.", stats.lost);
        page.counter("renewals_total", "Leases renewed.", stats.renewals);
        page.counter("late_renewals_total", "Leases renewed late.", stats.late_renewals);
        page.counter("renewal_failures_total", "Renewals that failed.", stats.failed_renewals);
        page.counter("releases_total", "Holds released.", stats.released);
        page.counter("release_failures_total", "Releases that failed.", stats.failed_releases);
        page.head("wakes_total", "counter", "How waiters learned that a lock was free.");
        page.labelled("wakes_total", "kind", "message", stats.wakeups);
        page.labelled("wakes_total", "kind", "poll", stats.missed_wakeups);
        page.counter("reconnects_total", "Broken connections replaced.", stats.reconnects);
        page.counter("pool_waits_total", "Requests queued for a connection.", stats.pool_waits);
        page.head("held", "gauge", "Holds that have guards now.");
        page.line("held", "", stats.held);
        page.head("kept", "gauge", "Locks kept without a guard now.");
        page.line("kept", "", stats.kept);
        page.head("waiting", "gauge", "Threads that wait for a lock now.");
        page.line("waiting", "", stats.waiting);
        page.head("connections", "gauge", "Connections of all pools now.");
        let used = stats.connections.saturating_sub(stats.idle_connections);
        page.labelled("connections", "state", "used", used);
        page.labelled("connections", "state", "idle", stats.idle_connections);
        page.histogram("wait_seconds", "How long calls took for a held lock.", &self.waited);
        page.histogram("held_seconds", "How long locks were held.", &self.held);
        page.text
    }
}

/// The text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.text, "# HELP leasehold_{name} {help}").expect("a string takes everything");
        writeln!(self.text, "# TYPE leasehold_{name} {kind}").expect("a string takes everything");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl fmt::Display) {
        writeln!(self.text, "leasehold_{name}{labels} {value}").expect("a string takes everything");
    }

    fn labelled(&mut self, name: &str, label: &str, value: &str, number: u64) {
        self.line(name, &format!("{{{label}=\"{value}\"}}"), number);
    }

    fn counter(&mut self, name: &str, help: &str, number: u64) {
        self.head(name, "counter", help);
        self.line(name, "", number);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for (index, number) in histogram.numbers.iter().enumerate() {
            count += number.load(Ordering::Relaxed);
            let bound = BOUNDS.get(index).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            self.labelled(&bucket, "le", &bound, count);
        }
        let sum = Duration::from_nanos(histogram.nanos.load(Ordering::Relaxed));
        self.line(&format!("{name}_sum"), "", sum.as_secs_f64());
        self.line(&format!("{name}_count"), "", count);
    }
}

/// In seconds. A free lock takes one round trip, and a lease is 30 s.
const BOUNDS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0];

/// How many durations were no longer than each of [`BOUNDS`], but longer than the one before.
#[derive(Default)]
struct Histogram {
    /// The last one is for durations beyond the greatest bound.
    numbers: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let index = BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        self.numbers[index].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.numbers.iter().map(|number| number.load(Ordering::Relaxed)).sum()
    }
}

/// Checks that the page says what has happened.
fn check(page: &str) {
    let acquired = THREADS * ROUNDS + 2;
    for line in [
        format!("leasehold_acquires_total{{result=\"acquired\"}} {acquired}"),
        "leasehold_acquires_total{result=\"busy\"} 1".to_owned(),
        "leasehold_acquires_total{result=\"timeout\"} 1".to_owned(),
        "leasehold_acquires_total{result=\"unavailable\"} 0".to_owned(),
        "leasehold_lost_total 1".to_owned(),
        "leasehold_held 0".to_owned(),
        "leasehold_waiting 0".to_owned(),
        format!("leasehold_held_seconds_count {}", acquired - 1),
    ] {
        assert!(page.lines().any(|other| other == line), "no {line:?} in\n{page}");
    }
    assert!(!page.contains(NAME), "names of locks are not labels");
    let waits = page.lines().find_map(|line| line.strip_prefix("leasehold_wait_seconds_count "));
    let waits: usize = waits.and_then(|count| count.parse().ok()).expect("a number");
    assert!((1..acquired).contains(&waits), "some calls have waited, and the first has not");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let number = line.rsplit_once(' ').map(|(_, number)| number.parse::<f64>());
        assert!(matches!(number, Some(Ok(number)) if number >= 0.0), "{line:?}");
    }
}
