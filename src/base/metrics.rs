//! The metrics of a client, for the recorder of the crate `metrics`.
//!
//! The recorder is the program's code, which may block or panic, so only the thread that delivers
//! events calls it. Counters and gauges come from [`Stats`], once a second, as changes since the
//! last report, so that the values of a process's clients add up.

use std::sync::OnceLock;
use std::time::Duration;
use std::{fmt, mem};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use parking_lot::Mutex;

use crate::event::{Event, EventListener};
use crate::stats::Stats;

const PAUSE: Duration = Duration::from_secs(1);

/// A metric: its name after `leasehold_`, its label, and its source.
struct Series(&'static str, Option<(&'static str, &'static str)>, fn(&Stats) -> u64);

/// The help texts of the counters, by their names after `leasehold_`.
const COUNTER_TEXTS: [(&str, &str); 16] = [
    ("acquires_total", "Calls for a lock that have ended, by their result"),
    ("contended_total", "Calls that found their lock held by another owner"),
    ("deadlocks_total", "Circles of threads that wait for each other"),
    ("handoffs_total", "Locks passed from thread to thread within a process, without a request"),
    ("relocks_total", "Kept locks used again, without a request"),
    ("recalls_total", "Kept locks released because another client asked"),
    ("lost_total", "Locks lost while their guards were alive"),
    ("long_holds_total", "Locks held for longer than warn_held"),
    ("renewals_total", "Renewed leases"),
    ("late_renewals_total", "Leases renewed in their last third"),
    ("renewal_failures_total", "Leases whose renewal has begun to fail"),
    ("releases_total", "Released locks"),
    ("release_failures_total", "Releases that were not confirmed"),
    ("wakes_total", "Waits ended by a message, or by a poll that found the lock free"),
    ("reconnects_total", "Connections opened in place of broken ones"),
    ("pool_waits_total", "Requests that waited for a connection of the pool"),
];

/// The help texts of the gauges.
const GAUGE_TEXTS: [(&str, &str); 4] = [
    ("held", "Locks held now"),
    ("kept", "Locks kept now after their last guard"),
    ("waiting", "Threads that wait for a lock now"),
    ("connections", "Connections of the pools now"),
];

/// The counters.
const COUNTERS: [Series; 20] = [
    Series("acquires_total", Some(("result", "acquired")), |stats| stats.acquired),
    Series("acquires_total", Some(("result", "busy")), |stats| stats.busy),
    Series("acquires_total", Some(("result", "timeout")), |stats| stats.timed_out),
    Series("acquires_total", Some(("result", "unavailable")), |stats| stats.failed),
    Series("contended_total", None, |stats| stats.contended),
    Series("deadlocks_total", None, |stats| stats.deadlocks),
    Series("handoffs_total", None, |stats| stats.handoffs),
    Series("relocks_total", None, |stats| stats.relocks),
    Series("recalls_total", None, |stats| stats.recalls),
    Series("lost_total", None, |stats| stats.lost),
    Series("long_holds_total", None, |stats| stats.long_holds),
    Series("renewals_total", None, |stats| stats.renewals),
    Series("late_renewals_total", None, |stats| stats.late_renewals),
    Series("renewal_failures_total", None, |stats| stats.failed_renewals),
    Series("releases_total", None, |stats| stats.released),
    Series("release_failures_total", None, |stats| stats.failed_releases),
    Series("wakes_total", Some(("kind", "message")), |stats| stats.wakeups),
    Series("wakes_total", Some(("kind", "poll")), |stats| stats.missed_wakeups),
    Series("reconnects_total", None, |stats| stats.reconnects),
    Series("pool_waits_total", None, |stats| stats.pool_waits),
];

/// The gauges.
const GAUGES: [Series; 5] = [
    Series("held", None, |stats| stats.held),
    Series("kept", None, |stats| stats.kept),
    Series("waiting", None, |stats| stats.waiting),
    Series("connections", Some(("state", "used")), |stats| {
        stats.connections.saturating_sub(stats.idle_connections)
    }),
    Series("connections", Some(("state", "idle")), |stats| stats.idle_connections),
];

#[derive(Default)]
pub(crate) struct Metrics {
    /// Set when the client has started.
    stats: OnceLock<Box<dyn Fn() -> Stats + Send + Sync>>,
    /// Locked only by the thread that delivers events.
    reported: Mutex<Reported>,
}

#[derive(Default)]
struct Reported {
    stats: Stats,
    /// Whether the recorder has the descriptions.
    described: bool,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub(crate) fn measure(&self, stats: impl Fn() -> Stats + Send + Sync + 'static) {
        self.stats.set(Box::new(stats)).unwrap_or_default();
    }
}

impl EventListener for Metrics {
    fn event(&self, event: &Event) {
        if let Event::Released { held, .. } = event {
            histogram!(full("held_seconds")).record(*held);
        }
    }

    fn waited(&self, time: Duration) {
        histogram!(full("wait_seconds")).record(time);
    }

    fn pause(&self) -> Option<Duration> {
        Some(PAUSE)
    }

    fn tick(&self) {
        if let Some(stats) = self.stats.get() {
            self.reported.lock().update(stats());
        }
    }

    fn end(&self) {
        self.tick();
        // The gauges end at zero, even while the client is still being shut down.
        let mut reported = self.reported.lock();
        let none = Stats {
            held: 0,
            kept: 0,
            waiting: 0,
            connections: 0,
            idle_connections: 0,
            ..reported.stats
        };
        reported.update(none);
    }
}

impl Reported {
    fn update(&mut self, now: Stats) {
        if !mem::replace(&mut self.described, true) {
            describe();
        }
        let before = mem::replace(&mut self.stats, now);
        for Series(name, label, read) in COUNTERS {
            let grown = read(&now).saturating_sub(read(&before));
            counter!(full(name), label.as_slice()).increment(grown);
        }
        for Series(name, label, read) in GAUGES {
            let change = read(&now).cast_signed() - read(&before).cast_signed();
            #[expect(
                clippy::cast_precision_loss,
                reason = "there are fewer than 2^53 of anything"
            )]
            gauge!(full(name), label.as_slice()).increment(change as f64);
        }
    }
}

/// Gives the recorder the descriptions.
fn describe() {
    for (name, text) in COUNTER_TEXTS {
        describe_counter!(full(name), Unit::Count, text);
    }
    for (name, text) in GAUGE_TEXTS {
        describe_gauge!(full(name), Unit::Count, text);
    }
    let waited = "Time that calls waited for a held lock until they got it";
    describe_histogram!(full("wait_seconds"), Unit::Seconds, waited);
    describe_histogram!(full("held_seconds"), Unit::Seconds, "How long locks were held");
}

fn full(name: &str) -> String {
    format!("leasehold_{name}")
}
