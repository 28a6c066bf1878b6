//! Parks the thread of a call while another call comes first, or between two requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::base::canceller::{CancellableWait, Canceller};
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::error::Error;
use crate::protocol::name::{Next, Port};
use crate::store::request::Telling;

/// A parked thread, and its signals. A channel would do too, but is larger than everything else
/// that a lock takes.
#[derive(Default)]
pub(crate) struct Parker {
    signals: Mutex<VecDeque<Signal>>,
    changed: Condvar,
}

/// A signal to a parked thread.
#[derive(Debug)]
pub(crate) enum Signal {
    /// The client is closed, the wait is cancelled, or the call is to end a deadlock.
    Ended(Error),
    Next(Next),
    /// The thread is to send a message, and then goes on waiting.
    Tell(Box<Telling>),
}

impl Parker {
    pub(super) fn send(&self, signal: Signal) {
        self.signals.lock().push_back(signal);
        self.changed.notify_one();
    }

    /// Discards signals to an earlier call of the thread.
    pub(super) fn clear(&self) {
        self.signals.lock().clear();
    }

    /// Blocks until there is a signal; `None` if there is none by the deadline.
    pub(super) fn park(&self, deadline: Option<Instant>) -> Option<Signal> {
        let mut signals = self.signals.lock();
        wait_while(&self.changed, &mut signals, deadline, VecDeque::is_empty);
        signals.pop_front()
    }

    /// Lets the canceller of a call for the lock with this name end the wait.
    pub(super) fn watch(self: &Arc<Self>, canceller: &Canceller, name: &str) -> CancellableWait {
        let (parker, name) = (self.clone(), name.to_owned());
        canceller.watch(move || {
            Parker::send(&parker, Signal::Ended(Error::Cancelled { name: name.clone() }));
        })
    }
}

impl Port for Arc<Parker> {
    fn send(&self, next: Next) {
        Parker::send(self, Signal::Next(next));
    }
}
