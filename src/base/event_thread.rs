//! The thread that calls code of the program: the callback for events, and the logger.
//!
//! Decides when each is called, and that a panic in one ends nothing else.

use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, never, select, tick};
use log::Level;

use crate::base::spans::OpenSpan;

/// What is to be delivered. `E`: an event.
pub(crate) enum Report<E> {
    /// The span of a lost hold, to be closed.
    EndOfSpan(OpenSpan),
    Event(E),
    Line(Level, String),
    /// To be answered once everything before it is delivered.
    Mark(Sender<()>),
}

/// Receives events, on one thread.
pub(crate) trait EventListener<E>: Send + Sync {
    fn event(&self, event: &E);

    /// How often `tick` is called; `None`: never.
    fn pause(&self) -> Option<Duration> {
        None
    }

    fn tick(&self) {}

    /// No event will follow.
    fn end(&self) {}
}

/// The callback of the program.
impl<E, F: Fn(&E) + Send + Sync> EventListener<E> for F {
    fn event(&self, event: &E) {
        self(event);
    }
}

impl<E> fmt::Debug for dyn EventListener<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventListener").finish_non_exhaustive()
    }
}

/// The state of the thread.
pub(crate) struct EventThread<E> {
    pub(crate) listeners: Vec<Arc<dyn EventListener<E>>>,
    /// How many reports were dropped since the last line about it.
    pub(crate) dropped: Arc<AtomicUsize>,
}

impl<E: Debug> EventThread<E> {
    /// Delivers everything until no more can come.
    pub(crate) fn deliver(&self, reports: &Receiver<Report<E>>) {
        let pause = self.listeners.iter().find_map(|listener| listener.pause());
        let ticks = pause.map_or_else(never, tick);
        loop {
            select! {
                recv(reports) -> report => match report {
                    Ok(report) => self.deliver_one(report),
                    Err(_) => return self.tell(&"the end", |listener| listener.end()),
                },
                recv(ticks) -> _ => self.tell(&"a tick", |listener| listener.tick()),
            }
        }
    }

    fn deliver_one(&self, report: Report<E>) {
        match report {
            Report::EndOfSpan(span) => span.close(true),
            Report::Event(event) => self.tell(&event, |listener| listener.event(&event)),
            Report::Line(level, line) => write_line(level, &line),
            // The thread that waits may have given up.
            Report::Mark(delivered) => delivered.try_send(()).unwrap_or_default(),
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let why = "because the event callback or the logger is slow";
            write_line(Level::Warn, &format!("dropped {dropped} events and log lines, {why}"));
        }
    }

    /// Calls the program's code, which may panic.
    fn tell(&self, what: &impl Debug, call: impl Fn(&dyn EventListener<E>)) {
        for listener in &self.listeners {
            if catch_unwind(AssertUnwindSafe(|| call(&**listener))).is_err() {
                write_line(Level::Error, &format!("the event callback panicked at {what:?}"));
            }
        }
    }
}

/// The one place where the library calls the logger.
#[expect(clippy::disallowed_macros, reason = "this is the thread that may wait for a logger")]
fn write_line(level: Level, line: &str) {
    // A logger that panics has no better use for the line.
    drop(catch_unwind(|| log::log!(target: "leasehold", level, "{line}")));
}
