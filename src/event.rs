//! Events in the life of a lock, and lines for the log, delivered to the program's callback and
//! logger on a thread of their own.
//!
//! So a callback or a logger that blocks or panics stops neither calls, renewals nor the pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use std::{io, thread};

use crossbeam_channel::{Sender, TrySendError, bounded};
use log::Level;

use crate::base::event_thread::{EventListener, EventThread, Report};
use crate::base::spans::HoldSpan;

/// How many events and lines are queued for a slow callback or logger before further ones are
/// dropped, and counted.
const WAITING_MAX: usize = 4096;

/// How long the end of a client waits for a slow callback or logger.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The pause before checking again whether everything was delivered.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// An event in the life of a lock of this client, of every kind. See
/// [`Builder::on_event`](crate::Builder::on_event).
///
/// A set of locks is reported once it is complete, each lock by its own name. A call for a set that
/// ends without it is reported by all names, separated by commas. Inner levels of nested locks are
/// not reported. Permits of a semaphore have no fencing token: it is 0.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A thread acquired a lock.
    Acquired {
        /// The name of the lock.
        name: String,
        /// The fencing token of the new hold.
        fence: u64,
        /// How long the call took, including the wait.
        waited: Duration,
    },
    /// A thread found a lock held by another owner. Reported once per call.
    Contended {
        /// The name of the lock; of several locks, the first that was held.
        name: String,
    },
    /// A call for a lock failed because of an outage or a refusal.
    #[non_exhaustive]
    Failed {
        /// The name of the lock.
        name: String,
        /// How long the call took.
        waited: Duration,
        /// The error of the call, with its causes.
        reason: String,
    },
    /// A lease ended before its guard did.
    Lost {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
    },
    /// A lock could not be released. It ends with its lease, or earlier by a retry in the
    /// background.
    #[non_exhaustive]
    ReleaseFailed {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// The cause of the failure.
        reason: String,
    },
    /// A lock was released.
    Released {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// How long it was held, from the reply that brought it until its release.
        held: Duration,
    },
    /// A renewal was not confirmed. It is retried until the lease ends. Reported once until a
    /// renewal of that lease succeeds again.
    #[non_exhaustive]
    RenewalFailing {
        /// The name of the lock.
        name: String,
        /// The fencing token of the hold.
        fence: u64,
        /// How much of the lease is left.
        remaining: Duration,
        /// The cause of the failure.
        reason: String,
    },
    /// A batch of leases was renewed.
    Renewed {
        /// The number of leases.
        count: usize,
    },
    /// A wait for a lock was over before the lock was free.
    TimedOut {
        /// The name of the lock.
        name: String,
        /// How long the call took.
        waited: Duration,
    },
}

/// What a client reports to the program: events for the callback, and lines for the logger.
///
/// Both are code of the program, which may block or panic. So one thread of the client's own calls
/// them, in order, and no thread that reports something ever waits for it or fails with it. It
/// starts with the client if there is a callback, and otherwise with the first line that the logger
/// may want.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    queue: Arc<EventQueue>,
}

#[derive(Debug, Default)]
struct EventQueue {
    has_listener: bool,
    /// The thread ends when this is dropped and what was sent before has been delivered.
    sender: OnceLock<(Sender<Report<Event>>, ThreadId)>,
    dropped: Arc<AtomicUsize>,
}

impl Events {
    /// Starts the thread if anything listens.
    pub(crate) fn start(listeners: Vec<Arc<dyn EventListener<Event>>>) -> io::Result<Self> {
        let queue = EventQueue { has_listener: !listeners.is_empty(), ..EventQueue::default() };
        if queue.has_listener {
            queue.start(listeners)?;
        }
        Ok(Self { queue: Arc::new(queue) })
    }

    /// Emits an event, which is built only if anything listens.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.queue.has_listener {
            self.queue.send(Report::Event(event()));
        }
    }

    /// Reports an event, and a line that says the same where the log is detailed.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event, line: impl FnOnce() -> String) {
        self.emit(event);
        self.debug(line);
    }

    /// Closes the span of a lost hold on the thread of events; failing that, the thread that drops
    /// the guard closes it.
    pub(crate) fn end_span(&self, span: &HoldSpan) {
        if let Some(open) = span.take()
            && let Err(Report::EndOfSpan(open)) = self.queue.try_send(Report::EndOfSpan(open))
        {
            span.restore(open);
        }
    }

    /// Blocks until everything is delivered, but not for long: the program may be about to end.
    /// Returns at once in the callback, which would wait for itself.
    pub(crate) fn flush(&self, is_told: impl Fn() -> bool) {
        let deadline = Instant::now() + FLUSH_TIME;
        let is_own = |(_, thread): &(_, ThreadId)| *thread == thread::current().id();
        if self.queue.sender.get().is_some_and(is_own) {
            return;
        }
        while !is_told() && Instant::now() < deadline {
            thread::sleep(FLUSH_PAUSE);
        }
        let Some((sender, _)) = self.queue.sender.get() else { return };
        let (mark, delivered) = bounded(1);
        if sender.send_deadline(Report::Mark(mark), deadline).is_ok() {
            delivered.recv_deadline(deadline).unwrap_or_default();
        }
    }

    pub(crate) fn error(&self, line: impl FnOnce() -> String) {
        self.log(Level::Error, line);
    }

    pub(crate) fn warn(&self, line: impl FnOnce() -> String) {
        self.log(Level::Warn, line);
    }

    pub(crate) fn info(&self, line: impl FnOnce() -> String) {
        self.log(Level::Info, line);
    }

    pub(crate) fn debug(&self, line: impl FnOnce() -> String) {
        self.log(Level::Debug, line);
    }

    pub(crate) fn trace(&self, line: impl FnOnce() -> String) {
        self.log(Level::Trace, line);
    }

    /// Emits a line for the logger, which is built only if any line of its level is wanted.
    fn log(&self, level: Level, line: impl FnOnce() -> String) {
        // The logger itself must not be asked here.
        if level <= log::max_level() {
            self.queue.send(Report::Line(level, line()));
        }
    }
}

impl EventQueue {
    fn send(&self, report: Report<Event>) {
        if self.try_send(report).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a report for which there is no room, or no thread.
    fn try_send(&self, report: Report<Event>) -> Result<(), Report<Event>> {
        match self.sender() {
            Some(sender) => sender.try_send(report).map_err(TrySendError::into_inner),
            None => Err(report),
        }
    }

    fn sender(&self) -> Option<&Sender<Report<Event>>> {
        // If no thread can be started now, the next report tries again.
        let started = self.sender.get().or_else(|| self.start(Vec::new()).ok());
        started.map(|(sender, _)| sender)
    }

    fn start(
        &self,
        listeners: Vec<Arc<dyn EventListener<Event>>>,
    ) -> io::Result<&(Sender<Report<Event>>, ThreadId)> {
        let (sender, reports) = bounded(WAITING_MAX);
        let events = EventThread { listeners, dropped: self.dropped.clone() };
        let thread = thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || events.deliver(&reports))?;
        // Of two threads that were started at once, one ends without a sender.
        Ok(self.sender.get_or_init(|| (sender, thread.thread().id())))
    }
}
