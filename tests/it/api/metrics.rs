//! What a client reports to the recorder of the crate `metrics`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::{Client, HoldEnd};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
    SharedString, Unit,
};
use parking_lot::Mutex;

use crate::support::recorder::Recorder;
use crate::support::{SHORT, SOON, assert_lost, eventually, ms, patient, take, while_held};

/// The sums of all that was recorded, by series.
static SUMS: Mutex<BTreeMap<String, f64>> = Mutex::new(BTreeMap::new());

/// Whether the recorder panics.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

struct Sums;

/// One of the series: `leasehold_acquires_total result=busy`.
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
        unreachable!("it would not add up");
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
        unreachable!("it would not add up");
    }
}

/// Counts what is recorded.
impl HistogramFn for Sum {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value), "{value} seconds");
        self.add(1.0);
    }
}

impl metrics::Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

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

fn is(series: &str, value: u32) -> bool {
    SUMS.lock().get(&format!("leasehold_{series}")) == Some(&f64::from(value))
}

/// One test, because a process has one recorder. Other clients report nothing to it.
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

    // Those of two clients add up, and one that has ended holds nothing.
    let other = patient().metrics(true).in_memory().unwrap();
    let others = take(&other, "c");
    eventually(SOON, || is("held", 2) && is("acquires_total result=acquired", 5));
    others.unlock().unwrap();
    drop(other);
    guard.unlock().unwrap();
    drop(client);
    eventually(SOON, || is("held", 0) && is("releases_total", 4));
    for (series, value) in [
        ("acquires_total result=acquired", 5),
        ("acquires_total result=busy", 1),
        ("acquires_total result=timeout", 1),
        ("acquires_total result=unavailable", 0),
        ("contended_total", 2),
        ("held_seconds", 4),
        ("lost_total", 1),
        ("waiting", 0),
    ] {
        assert!(is(series, value), "not {series} {value}: {:?}", SUMS.lock());
    }

    // A recorder that panics stops neither locks nor the events of the program.
    IS_BROKEN.store(true, Ordering::SeqCst);
    let events = Recorder::default();
    let builder = Client::builder().metrics(true).on_event(events.listener());
    let client = builder.in_memory().unwrap();
    take(&client, "a").unlock().unwrap();
    events.wait_for("released a");
    drop(client);
}
