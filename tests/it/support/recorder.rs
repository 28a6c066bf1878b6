//! A callback that records events.

use std::sync::Arc;

use leasehold::Event;
use parking_lot::Mutex;

use super::{SOON, eventually};

/// Keeps every event as a short sentence, such as `acquired stock`.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    events: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    /// A callback for `Builder::on_event`.
    pub(crate) fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let events = Arc::clone(&self.events);
        move |event| events.lock().push(sentence(event))
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().clone()
    }

    /// Returns the events except renewals and their failures, which come at any time.
    pub(crate) fn events_of_locks(&self) -> Vec<String> {
        let mut events = self.events();
        events.retain(|event| !event.starts_with("renew"));
        events
    }

    pub(crate) fn count(&self, event: &str) -> usize {
        self.events().iter().filter(|seen| *seen == event).count()
    }

    /// Waits for an event. Events are delivered on a thread of their own.
    #[track_caller]
    pub(crate) fn wait_for(&self, event: &str) {
        self.wait_for_count(event, 1);
    }

    /// Waits until an event has occurred this many times.
    #[track_caller]
    pub(crate) fn wait_for_count(&self, event: &str, count: usize) {
        eventually(SOON, || self.count(event) >= count);
    }

    /// Waits until this many threads have found the lock "a" held, and wait for it or are about to.
    #[track_caller]
    pub(crate) fn wait_for_waiters(&self, threads: usize) {
        self.wait_for_count("contended a", threads);
    }
}

fn sentence(event: &Event) -> String {
    match event {
        Event::Acquired { name, .. } => format!("acquired {name}"),
        Event::HeldLong { name, .. } => format!("held long {name}"),
        Event::Contended { name, .. } => format!("contended {name}"),
        Event::Renewed { .. } => "renewed".to_owned(),
        Event::RenewalFailing { name, .. } => format!("renewal failing {name}"),
        Event::Lost { name, .. } => format!("lost {name}"),
        Event::Released { name, .. } => format!("released {name}"),
        Event::ReleaseFailed { name, .. } => format!("release failed {name}"),
        Event::TimedOut { name, .. } => format!("timed out {name}"),
        Event::Failed { name, .. } => format!("failed {name}"),
        other => format!("{other:?}"),
    }
}
