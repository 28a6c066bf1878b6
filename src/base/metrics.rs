//! The numbers of a client, for the recorder of the crate `metrics`.
//!
//! The recorder is code of the program, which may block or panic, so only the thread that delivers
//! events calls it. Counters and gauges come from [`Stats`], once a second, as what has changed
//! since then: so the clients of a process add up. Events tell how long calls wait and holds last.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use parking_lot::Mutex;

use crate::base::event_thread::EventListener;
use crate::event::Event;
use crate::stats::Stats;

const PAUSE: Duration = Duration::from_secs(1);

/// The most names whose contended calls are counted.
const NAMES_MAX: usize = 10_000;

/// A number: what follows `leasehold_` in its name, its label, and where it is found.
struct Series(&'static str, Option<(&'static str, &'static str)>, fn(&Stats) -> u64);

/// The numbers that only grow.
const COUNTERS: [Series; 18] = [
    Series("acquires_total", Some(("result", "acquired")), |stats| stats.acquired),
    Series("acquires_total", Some(("result", "busy")), |stats| stats.busy),
    Series("acquires_total", Some(("result", "timeout")), |stats| stats.timed_out),
    Series("acquires_total", Some(("result", "unavailable")), |stats| stats.failed),
    Series("contended_total", None, |stats| stats.contended),
    Series("handoffs_total", None, |stats| stats.handoffs),
    Series("relocks_total", None, |stats| stats.relocks),
    Series("recalls_total", None, |stats| stats.recalls),
    Series("lost_total", None, |stats| stats.lost),
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

/// The numbers of the present.
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
    /// How many calls for each name have found it held, and have not ended.
    contended: HashMap<String, usize>,
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
        self.reported.lock().record(event);
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
        // Whatever is still being shut down, the client no longer has anything.
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
        let before = std::mem::replace(&mut self.stats, now);
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

    fn record(&mut self, event: &Event) {
        match event {
            Event::Contended { name } => {
                // An attempt that does not wait is reported as contended only, so some stay.
                if self.contended.len() >= NAMES_MAX {
                    self.contended.clear();
                }
                *self.contended.entry(name.clone()).or_default() += 1;
            }
            // The time of a call that found the lock free is no wait: it may be an outage.
            Event::Acquired { name, waited, .. } if self.end_contended(name) => {
                histogram!(full("wait_seconds")).record(*waited);
            }
            Event::TimedOut { name, .. } | Event::Failed { name, .. } => {
                self.end_contended(name);
            }
            Event::Released { held, .. } => histogram!(full("held_seconds")).record(*held),
            _ => {}
        }
    }

    /// Notes the end of a call. Returns `true` if it may have found the lock held.
    fn end_contended(&mut self, name: &str) -> bool {
        let Some(calls) = self.contended.get_mut(name) else { return false };
        *calls -= 1;
        if *calls == 0 {
            self.contended.remove(name);
        }
        true
    }
}

fn full(name: &str) -> String {
    format!("leasehold_{name}")
}
