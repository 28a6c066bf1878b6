//! The spans of the feature `tracing`, as a subscriber sees them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::bounded;
use leasehold::HoldEnd;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, info_span, subscriber};

use crate::support::{
    LEASE, SHORT, SOON, Store, eventually, ms, patient, stores, take, throughout, timed, while_held,
};

stores! {
    every store:
        a_hold_has_a_span_from_acquired_to_released,
        a_hold_that_is_lost_ends_its_span,
        a_call_without_a_lock_has_a_span,
        a_set_has_one_span_for_the_call_and_one_for_each_hold,
        nested_levels_have_no_spans,
        spans_are_never_entered,
        a_subscriber_that_panics_stops_nothing,
        a_subscriber_that_blocks_stops_nothing;
}

/// A span, as a subscriber sees it.
#[derive(Clone, Debug, Default)]
struct Recorded {
    span: &'static str,
    fields: HashMap<&'static str, String>,
    parent: Option<u64>,
    handles: usize,
    entered: usize,
}

impl Recorded {
    fn is_open(&self) -> bool {
        self.handles > 0
    }
}

impl Visit for Recorded {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

/// Records the spans of the thread that uses it, numbered in the order in which they begin.
#[derive(Clone)]
struct Spans {
    all: Arc<Mutex<Vec<Recorded>>>,
    /// The spans that are entered by the only thread of the test.
    entered: Arc<Mutex<Vec<u64>>>,
    /// Called with each step before it is recorded.
    hook: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Spans {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { all: Arc::default(), entered: Arc::default(), hook: Arc::new(hook) }
    }

    fn record<T>(&self, body: impl FnOnce() -> T) -> T {
        subscriber::with_default(self.clone(), body)
    }

    fn named(&self, span: &str) -> Vec<Recorded> {
        self.all.lock().iter().filter(|recorded| recorded.span == span).cloned().collect()
    }

    fn change<T>(&self, id: &Id, change: impl FnOnce(&mut Recorded) -> T) -> T {
        let index = usize::try_from(id.into_u64() - 1).unwrap();
        change(&mut self.all.lock()[index])
    }
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let span = attributes.metadata().name();
        (self.hook)(span);
        let parent = self.entered.lock().last().copied();
        let mut recorded = Recorded { span, parent, handles: 1, ..Recorded::default() };
        attributes.record(&mut recorded);
        let mut all = self.all.lock();
        all.push(recorded);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.change(id, |span| values.record(span));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.entered.lock().push(id.into_u64());
        self.change(id, |span| span.entered += 1);
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.entered.lock().pop(), Some(id.into_u64()));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.change(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let (span, closed) = self.change(&id, |span| {
            span.handles -= 1;
            (span.span, !span.is_open())
        });
        if closed {
            (self.hook)(&format!("end of {span}"));
        }
        closed
    }
}

/// Returns the only span of the library with this name, which has ended.
#[track_caller]
fn only(spans: &Spans, name: &str) -> Recorded {
    let [span] = &spans.named(name)[..] else { panic!("{:?}", spans.named(name)) };
    assert!(!span.is_open(), "{span:?}");
    span.clone()
}

fn a_hold_has_a_span_from_acquired_to_released(store: &Store) {
    let (spans, client) = (Spans::new(), store.open(patient()));
    let fence = spans.record(|| {
        let guard = take(&client, "a");
        assert!(spans.named("hold").iter().all(Recorded::is_open));
        let fence = guard.fence();
        guard.unlock().unwrap();
        fence.to_string()
    });
    let hold = only(&spans, "hold");
    assert_eq!((&hold.fields["name"][..], &hold.fields["fence"]), ("\"a\"", &fence));
    assert_eq!(hold.fields["lost"], "false");
    let acquire = only(&spans, "acquire");
    assert_eq!((&acquire.fields["name"][..], &acquire.fields["fence"]), ("\"a\"", &fence));
    assert!(acquire.fields["waited"].parse::<f64>().is_ok_and(|waited| waited < 10.0));

    // This also holds on a thread without a subscriber.
    let owned = spans.record(|| client.lock_owned("b").unwrap());
    thread::spawn(|| drop(owned)).join().unwrap();
    assert!(spans.named("hold").iter().all(|hold| !hold.is_open()));
}

fn a_hold_that_is_lost_ends_its_span(store: &Store) {
    let spans = Spans::new();
    let client = store.open_for(SHORT, patient());
    let mutex = client.mutex("a").lease(SHORT).renew(false);
    let guard = spans.record(|| mutex.lock().unwrap());
    eventually(SOON, || {
        let holds = spans.named("hold");
        !holds.is_empty() && holds.iter().all(|hold| !hold.is_open())
    });
    assert_eq!(only(&spans, "hold").fields["lost"], "true");
    drop(guard);
}

fn a_call_without_a_lock_has_a_span(store: &Store) {
    let (spans, client) = (Spans::new(), store.open(patient()));
    while_held(&client, "a", |_end| {
        spans.record(|| {
            assert!(client.try_lock("a").unwrap().is_none());
            assert!(client.try_lock_for("a", ms(100)).unwrap().is_none());
        });
    });
    let calls = spans.named("acquire");
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| !call.is_open() && !call.fields.contains_key("fence")));
    assert!(calls[1].fields["waited"].parse::<f64>().is_ok_and(|waited| waited >= 0.1));
    assert!(spans.named("hold").is_empty());
}

fn a_set_has_one_span_for_the_call_and_one_for_each_hold(store: &Store) {
    let (spans, client) = (Spans::new(), store.open(patient()));
    let guard = spans.record(|| client.lock_all(["a", "b"]).unwrap());
    assert!(spans.named("hold").iter().all(Recorded::is_open));
    drop(guard);
    assert_eq!(only(&spans, "acquire").fields["name"], "\"a, b\"");
    let holds = spans.named("hold");
    let names: Vec<_> = holds.iter().map(|hold| &hold.fields["name"][..]).collect();
    assert_eq!(names, ["\"a\"", "\"b\""]);
    assert!(holds.iter().all(|hold| !hold.is_open()));
}

fn nested_levels_have_no_spans(store: &Store) {
    let (spans, client) = (Spans::new(), store.open(patient()));
    spans.record(|| {
        let outer = take(&client, "a");
        let inner = take(&client, "a");
        drop(outer);
        assert!(spans.named("hold")[0].is_open(), "the inner guard is left");
        drop(inner);
    });
    only(&spans, "hold");
    only(&spans, "acquire");
}

fn spans_are_never_entered(store: &Store) {
    let (spans, client) = (Spans::new(), store.open(patient()));
    spans.record(|| {
        info_span!("request").in_scope(|| {
            let guard = take(&client, "a");
            info_span!("work").in_scope(|| {});
            guard.unlock().unwrap();
        });
    });
    for name in ["acquire", "hold", "work"] {
        let span = only(&spans, name);
        assert_eq!(span.parent, Some(1), "the request: {span:?}");
        assert_eq!(span.entered, usize::from(name == "work"));
    }
}

fn a_subscriber_that_panics_stops_nothing(store: &Store) {
    let client = store.open_for(SHORT, patient().lease(LEASE));
    for moment in ["acquire", "hold", "end of acquire", "end of hold"] {
        let spans = Spans::with(move |now| assert_ne!(now, moment, "as the test wants"));
        spans.record(|| {
            let guard = take(&client, "a");
            guard.verify().unwrap();
            guard.unlock().unwrap();
            drop(take(&client, "a"));
            let mutex = client.mutex("b").lease(SHORT).renew(false);
            assert_eq!(mutex.lock().unwrap().lost().wait(), HoldEnd::Lost);
        });
    }
    eventually(SOON, || client.stats().held == 0);
}

fn a_subscriber_that_blocks_stops_nothing(store: &Store) {
    let (end, ended) = bounded::<()>(0);
    let spans = Spans::with(move |now| {
        if now == "end of hold" {
            // It waits until the end of the test; the time limit turns a deadlock into a failure.
            ended.recv_timeout(3 * SOON).ok();
        }
    });
    let client = store.open_for(SHORT, patient().lease(LEASE));
    let guard = take(&client, "a");
    let mutex = client.mutex("b").lease(SHORT).renew(false);
    let lost = spans.record(|| mutex.lock().unwrap());
    assert_eq!(lost.lost().wait(), HoldEnd::Lost);
    throughout(2 * LEASE, || guard.is_held());
    guard.unlock().unwrap();
    let ((), took) = timed(|| drop((lost, client)));
    assert!(took < SOON, "{took:?}");
    drop(end);
}
