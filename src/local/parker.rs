//! Parks the thread of a call while another call comes first, or between two requests.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::base::canceller::{CancellableWait, Canceller};
use crate::base::clock::Moment;
use crate::base::sync::{Condvar, Mutex, wait_while, wake_one};
use crate::error::Error;
use crate::protocol::steps::{Action, Actions, Next};
use crate::store::request::{Ahead, Telling};

/// A parked thread, and its signals. A channel would do too, but is larger than everything else
/// that a lock takes.
#[derive(Default)]
pub(crate) struct Parker {
    signals: Mutex<VecDeque<Signal>>,
    changed: Condvar,
}

/// Performs the actions that tell parked calls what to do next.
pub(super) fn tell(actions: impl IntoIterator<Item = Action<Arc<Parker>>>) {
    for action in actions {
        if let Action::Tell(parker, next) = action {
            parker.send(Signal::Next(next));
        }
    }
}

/// Performs actions one by one, in their order.
pub(super) fn perform_each(
    actions: Actions<Arc<Parker>>,
    mut perform_one: impl FnMut(Action<Arc<Parker>>),
) {
    let mut left = Left(actions.into_iter());
    for action in left.0.by_ref() {
        perform_one(action);
    }
}

/// The actions that are left.
struct Left(<Actions<Arc<Parker>> as IntoIterator>::IntoIter);

/// If performing one panics, the rest still reach the parked calls, which nothing else would wake.
impl Drop for Left {
    fn drop(&mut self) {
        tell(self.0.by_ref());
    }
}

/// A signal to a parked thread.
#[derive(Debug)]
pub(crate) enum Signal {
    /// The client is closed, the wait is cancelled, or the call must fail to break a deadlock.
    Ended(Error),
    Next(Next),
    /// The request of the call was sent ahead of its thread.
    Sent(Sent),
    /// The thread must send a message, and then goes on waiting.
    Tell(Box<Telling>),
}

/// A request for a hold that was sent ahead.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(super) at: Moment,
    pub(super) ahead: Ahead,
}

thread_local! {
    static PARKER: Arc<Parker> = Arc::default();
}

impl Parker {
    /// Returns the parker of the calling thread, or a new one while another call of the thread uses
    /// it: a request may call the program back for a password, and the program may lock something
    /// then. In a destructor of a thread-local there may be none.
    pub(super) fn of_thread() -> Arc<Self> {
        let unused = PARKER.try_with(|parker| {
            // A thread that has taken this one from a queue may still send a signal to it.
            if Arc::strong_count(parker) == 1 { Some(parker.clone()) } else { None }
        });
        let parker = unused.ok().flatten().unwrap_or_default();
        // Signals that came too late for an earlier call.
        parker.clear();
        parker
    }

    pub(super) fn clear(&self) {
        let late = mem::take(&mut *self.signals.lock());
        // Not under the lock: a request that was sent ahead waits for its reply.
        drop(late);
    }

    pub(super) fn send(&self, signal: Signal) {
        // Signals are queued, because a second one may come before the thread has woken up.
        self.signals.lock().push_back(signal);
        wake_one(&self.changed);
    }

    /// Blocks until there is a signal; `None` if there is none by the deadline.
    pub(super) fn park(&self, deadline: Option<Instant>) -> Option<Signal> {
        let mut signals = self.signals.lock();
        wait_while(&self.changed, &mut signals, deadline, VecDeque::is_empty);
        signals.pop_front()
    }

    /// Makes the canceller of a call for this lock end the wait.
    pub(super) fn watch(self: &Arc<Self>, canceller: &Canceller, name: &str) -> CancellableWait {
        let parker = self.clone();
        let name = name.to_owned();
        canceller.watch(move || {
            Parker::send(&parker, Signal::Ended(Error::Cancelled { name: name.clone() }));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_within_a_call_has_a_parker_of_its_own_and_no_late_signals() {
        let (outer, inner) = (Parker::of_thread(), Parker::of_thread());
        Parker::send(&outer, Signal::Next(Next::Turn));
        assert!(inner.park(Some(Instant::now())).is_none());
        let address = Arc::as_ptr(&outer);
        drop((outer, inner));
        let later = Parker::of_thread();
        assert!(Arc::as_ptr(&later) == address && later.park(Some(Instant::now())).is_none());
    }
}
