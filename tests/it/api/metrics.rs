//! The reports of a client to the recorder of the crate `metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use leasehold::{Canceller, Client, Error, HoldEnd};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
    SharedString, Unit,
};
use parking_lot::Mutex;

use crate::support::recorder::Recorder;
use crate::support::{SHORT, SOON, assert_lost, eventually, ms, patient, take, while_held};

/// The sums of everything recorded, by series.
static SUMS: Mutex<BTreeMap<String, f64>> = Mutex::new(BTreeMap::new());

/// The names that were described.
static DESCRIBED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether the recorder panics.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

struct Sums;

/// One series, such as `leasehold_acquires_total result=busy`.
struct Sum(String);

impl Sum {
    fn new(key: &Key) -> Arc<Self> {
        assert!(!IS_BROKEN.load(Ordering::SeqCst), "as the test wants");
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        Arc::new(Self(key.name().to_owned() + &labels.collect::<String>()))
    }

    fn add(&self, value: f64) {
        *SUMS.lock().entry(self.0.clone()).or_default() += value;
    }
}

impl CounterFn for Sum {
    fn increment(&self, value: u64) {
        self.add(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _value: u64) {
        unreachable!("it cannot be summed");
    }
}

impl GaugeFn for Sum {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _value: f64) {
        unreachable!("it cannot be summed");
    }
}

/// Counts the recorded values.
impl HistogramFn for Sum {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value), "{value} seconds");
        self.add(1.0);
    }
}

impl metrics::Recorder for Sums {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        DESCRIBED.lock().insert(name.as_str().to_owned());
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        DESCRIBED.lock().insert(name.as_str().to_owned());
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        DESCRIBED.lock().insert(name.as_str().to_owned());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Sum::new(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Sum::new(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Sum::new(key))
    }
}

/// The name of a series without its label.
fn first_word(series: &str) -> String {
    series.split(' ').next().unwrap_or_default().to_owned()
}

fn is(series: &str, value: u32) -> bool {
    SUMS.lock().get(&format!("leasehold_{series}")) == Some(&f64::from(value))
}

/// One test, because a process has one recorder. Other clients do not report to it.
#[test]
fn the_numbers_of_clients_reach_the_recorder() {
    metrics::set_global_recorder(Sums).unwrap();

    let client = patient().metrics(true).in_memory().unwrap();
    take(&client, "a").unlock().unwrap();
    while_held(&client, "a", |end| {
        assert!(client.try_lock("a").unwrap().is_none());
        assert!(client.try_lock_for("a", ms(20)).unwrap().is_none());
        eventually(SOON, || is("held", 1));
        drop(end);
    });
    let lost = client.mutex("b").lease(SHORT).renew(false).lock().unwrap();
    assert_eq!(lost.lost().wait(), HoldEnd::Lost);
    assert_lost(lost.unlock(), "b");
    let guard = take(&client, "c");
    eventually(SOON, || is("acquires_total result=acquired", 4) && is("lost_total", 1));

    // The numbers of two clients add up, and a client that has ended holds nothing.
    let other = patient().metrics(true).in_memory().unwrap();
    let others = take(&other, "c");
    eventually(SOON, || is("held", 2) && is("acquires_total result=acquired", 5));
    others.unlock().unwrap();
    drop(other);
    guard.unlock().unwrap();
    let canceller = Canceller::new();
    while_held(&client, "d", |_end| {
        let waits = client.mutex("d").cancelled_by(&canceller);
        thread::scope(|scope| {
            let wait = scope.spawn(move || waits.lock().map(drop));
            eventually(SOON, || client.stats().waiting == 1);
            canceller.cancel();
            assert!(matches!(wait.join().unwrap(), Err(Error::Cancelled { .. })));
        });
    });
    // The lock is free.
    take(&client, "d").unlock().unwrap();
    drop(client);
    // The program may end right after its client.
    assert!(is("releases_total", 6), "{:?}", SUMS.lock());
    eventually(SOON, || is("held", 0));

    let keeps = patient().keep(SOON).metrics(true).in_memory().unwrap();
    let held = keeps.lock_owned("e").unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| keeps.lock("e").map(drop));
        eventually(SOON, || keeps.stats().waiting == 1);
        drop(held);
        wait.join().unwrap().unwrap();
    });
    eventually(SOON, || is("kept", 1));
    drop(keeps);
    eventually(SOON, || is("kept", 0) && is("wait_seconds", 1));
    let recorded = SUMS.lock().keys().map(|series| first_word(series)).collect::<BTreeSet<_>>();
    assert_eq!(recorded, *DESCRIBED.lock());
    for (series, value) in [
        ("acquires_total result=acquired", 9),
        ("acquires_total result=busy", 1),
        ("acquires_total result=timeout", 1),
        ("acquires_total result=unavailable", 0),
        ("contended_total", 4),
        ("held_seconds", 8),
        ("wait_seconds", 1),
        ("lost_total", 1),
        ("waiting", 0),
    ] {
        assert!(is(series, value), "not {series} {value}: {:?}", SUMS.lock());
    }

    // A recorder that panics stops neither locks nor the program's events.
    IS_BROKEN.store(true, Ordering::SeqCst);
    let events = Recorder::default();
    let builder = Client::builder().metrics(true).on_event(events.listener());
    let client = builder.in_memory().unwrap();
    take(&client, "a").unlock().unwrap();
    events.wait_for("released a");
    drop(client);
}
