//! The thread that calls the program's code, namely the event callback and the logger, and the
//! queue of reports for this thread.
//!
//! That code may block or panic. It runs on a thread of its own, one report after another, and no
//! reporting thread waits for it or fails with it. The thread starts with the client if there is a
//! callback, and otherwise with the first line that the logger may want.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;
use std::{io, thread};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, never, select, tick};
use log::Level;

use crate::base::clock;
#[cfg(feature = "metrics")]
use crate::base::metrics::Metrics;
use crate::base::spans::{HoldSpan, OpenSpan};
#[cfg(all(test, unix, not(leasehold_shuttle)))]
use crate::base::sync::executor;
use crate::base::sync::sleep;
use crate::event::{Event, EventListener};

/// The maximum number of queued events and lines. With a slow callback or logger, further ones are
/// dropped and counted.
const WAITING_MAX: usize = 4096;

/// How long a client that ends waits for a slow callback or logger.
const FLUSH_TIME: Duration = Duration::from_secs(1);

const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// The reports of a client to the program: events for the callback, and lines for the logger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    queue: Arc<EventQueue>,
    /// Also one of the listeners.
    #[cfg(feature = "metrics")]
    pub(crate) metrics: Option<Arc<Metrics>>,
}

#[derive(Debug, Default)]
struct EventQueue {
    has_listener: bool,
    /// The listeners of a simulation, which are called at once, without the thread.
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    simulated: Vec<Arc<dyn EventListener>>,
    /// The thread ends when this is dropped and everything sent before has been delivered.
    sender: OnceLock<(Sender<Report>, ThreadId)>,
    dropped: Arc<AtomicUsize>,
}

impl Events {
    /// Starts the thread if there is a callback, or a recorder for the crate `metrics`.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_mut, unused_variables, reason = "no recorder without that crate")
    )]
    pub(crate) fn start(
        callback: Option<Arc<dyn EventListener>>,
        has_recorder: bool,
    ) -> io::Result<Self> {
        let mut listeners = Vec::from_iter(callback);
        #[cfg(feature = "metrics")]
        let metrics = if has_recorder { Some(Arc::new(Metrics::default())) } else { None };
        #[cfg(feature = "metrics")]
        listeners.extend(metrics.clone().map(|metrics| metrics as Arc<dyn EventListener>));
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if executor::is_active() {
            let queue = Arc::new(EventQueue { simulated: listeners, ..EventQueue::default() });
            return Ok(Self {
                queue,
                #[cfg(feature = "metrics")]
                metrics,
            });
        }
        let queue = EventQueue { has_listener: !listeners.is_empty(), ..EventQueue::default() };
        if queue.has_listener {
            queue.start(listeners)?;
        }
        Ok(Self {
            queue: Arc::new(queue),
            #[cfg(feature = "metrics")]
            metrics,
        })
    }

    /// Emits an event, which is built only if there is a listener.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        if executor::is_active() {
            return executor::report(&self.queue.simulated, event);
        }
        if self.queue.has_listener {
            self.queue.send(Report::Event(event()));
        }
    }

    /// Reports an event, and logs it as a line at the debug level.
    pub(crate) fn report(&self, event: impl FnOnce() -> Event, line: impl FnOnce() -> String) {
        self.emit(event);
        self.log(Level::Debug, line);
    }

    /// Reports to the metrics how long a call waited for a held lock.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(clippy::unused_self, unused_variables, reason = "no recorder without that crate")
    )]
    pub(crate) fn report_wait(&self, waited: Duration) {
        #[cfg(feature = "metrics")]
        if self.metrics.is_some() {
            self.queue.send(Report::Waited(waited));
        }
    }

    /// Closes the span of a lost hold on the event thread. If that fails, the thread that drops the
    /// guard closes it.
    pub(crate) fn end_span(&self, span: &HoldSpan) {
        if let Some(open) = span.take()
            && let Err(Report::EndOfSpan(open)) = self.queue.try_send(Report::EndOfSpan(open))
        {
            span.restore(open);
        }
    }

    /// Blocks until everything is delivered, but not for long, because the program may be about to
    /// end. Returns at once if the callback calls it, because the callback would otherwise wait for
    /// itself.
    pub(crate) fn flush(&self, is_told: impl Fn() -> bool) {
        let deadline = clock::now() + FLUSH_TIME;
        let sender = self.queue.sender.get();
        if sender.is_some_and(|(_, thread)| *thread == thread::current().id()) {
            // A listener would wait for itself.
            return;
        }
        while !is_told() && clock::now() < deadline {
            sleep(FLUSH_PAUSE);
        }
        let Some((sender, _)) = self.queue.sender.get() else { return };
        let (mark, delivered) = bounded(1);
        if sender.send_deadline(Report::Mark(mark), deadline).is_ok() {
            delivered.recv_deadline(deadline).unwrap_or_default();
        }
    }

    pub(crate) fn warn(&self, line: impl FnOnce() -> String) {
        self.log(Level::Warn, line);
    }

    /// Emits a line for the logger, which is built only if some line of its level is wanted.
    pub(crate) fn log(&self, level: Level, line: impl FnOnce() -> String) {
        // Only the maximum level is checked here: the logger itself is called on the event thread.
        if level <= log::max_level() {
            self.queue.send(Report::Line(level, line()));
        }
    }
}

impl EventQueue {
    fn send(&self, report: Report) {
        if self.try_send(report).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a report. Returns it if there is no room, or no thread.
    fn try_send(&self, report: Report) -> Result<(), Report> {
        // If no thread can be started now, the next report tries again.
        match self.sender.get().or_else(|| self.start(Vec::new()).ok()) {
            Some((sender, _)) => sender.try_send(report).map_err(TrySendError::into_inner),
            None => Err(report),
        }
    }

    fn start(
        &self,
        listeners: Vec<Arc<dyn EventListener>>,
    ) -> io::Result<&(Sender<Report>, ThreadId)> {
        let (sender, reports) = bounded(WAITING_MAX);
        let events = EventThread { listeners, dropped: self.dropped.clone() };
        let thread = thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || events.deliver(&reports))?;
        // If two threads were started at once, one of them ends without a sender.
        Ok(self.sender.get_or_init(|| (sender, thread.thread().id())))
    }
}

enum Report {
    EndOfSpan(OpenSpan),
    Event(Event),
    Line(Level, String),
    /// Answered once everything before it is delivered.
    Mark(Sender<()>),
    /// The duration of a call's wait.
    #[cfg(feature = "metrics")]
    Waited(Duration),
}

struct EventThread {
    listeners: Vec<Arc<dyn EventListener>>,
    /// The number of reports dropped since the last line about it.
    dropped: Arc<AtomicUsize>,
}

impl EventThread {
    fn deliver(&self, reports: &Receiver<Report>) {
        let pause = self.listeners.iter().find_map(|listener| listener.pause());
        let ticks = pause.map_or_else(never, tick);
        loop {
            select! {
                recv(reports) -> report => match report {
                    Ok(report) => self.deliver_one(report),
                    Err(_) => return self.call_listeners(&"the end", |listener| listener.end()),
                },
                recv(ticks) -> _ => self.call_listeners(&"a tick", |listener| listener.tick()),
            }
        }
    }

    fn deliver_one(&self, report: Report) {
        match report {
            Report::EndOfSpan(span) => span.close(true),
            Report::Event(event) => self.call_listeners(&event, |listener| listener.event(&event)),
            Report::Line(level, line) => write_line(level, &line),
            Report::Mark(delivered) => {
                self.call_listeners(&"a tick", |listener| listener.tick());
                // The waiting thread may have given up.
                delivered.try_send(()).unwrap_or_default();
            }
            #[cfg(feature = "metrics")]
            Report::Waited(time) => {
                self.call_listeners(&"a wait", |listener| listener.waited(time));
            }
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let why = "because the event callback or the logger is slow";
            write_line(Level::Warn, &format!("dropped {dropped} events and log lines, {why}"));
        }
    }

    /// Calls the program's code, which may panic.
    fn call_listeners(&self, what: &impl Debug, call: impl Fn(&dyn EventListener)) {
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
    // If the logger panics, the line is lost.
    drop(catch_unwind(|| log::log!(target: "leasehold", level, "{line}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_does_not_wait_for_events_that_it_delivers_itself() {
        let (give, given) = bounded::<Events>(1);
        let (has_flushed, flushed) = bounded(1);
        let callback = move |_: &Event| {
            let events = given.recv().expect("the test gives them");
            events.flush(|| true);
            let (sender, _) = events.queue.sender.get().expect("the thread runs");
            has_flushed.send(sender.len()).expect("the test waits");
        };
        let events = Events::start(Some(Arc::new(callback)), false).expect("a thread");
        events.emit(|| Event::Contended { name: "a".into() });
        give.send(events.clone()).expect("the callback takes them");
        assert_eq!(flushed.recv(), Ok(0), "a mark for itself");
    }
}
