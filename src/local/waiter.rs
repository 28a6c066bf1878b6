//! One thread in a wait queue: the signals that others send it, and how it sleeps until one comes.
//!
//! Decides which signal replaces another, and whether a signal that the lock may be free sends the
//! next request of a sleeping thread. Knows nothing of the queue that the waiter is in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::error::{Error, Result};
use crate::guards::canceller::{CancellableWait, Canceller};
use crate::local::call::Caller;
use crate::local::hold::Hold;
use crate::local::pending::{AcquireRequest, SentAcquire};
use crate::store::hold_id::HoldId;
use crate::store::request::{AcquireReply, PendingReply};

/// A thread in a queue, or before its one attempt outside. Its signals could go through a channel
/// too, which is larger than everything else that a lock takes.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// What it asks for, or the head for it.
    pub(super) hold: HoldId,
    pub(super) lease: Duration,
    /// Whether a request without a reply may have begun the hold, or may still begin it. The hold
    /// is cleaned up when the thread leaves without it.
    in_doubt: AtomicBool,
    state: Mutex<SignalState>,
    changed: Condvar,
}

/// A waiter behind the head.
#[derive(Debug)]
pub(crate) struct QueuedWaiter {
    pub(super) caller: Caller,
    /// Whether it waits without limit.
    pub(super) endless: bool,
    pub(super) waiter: Arc<Waiter>,
}

/// What another thread tells a waiter.
#[derive(Debug)]
pub(super) enum Signal {
    /// Its next request was sent, and the reply is pending.
    AcquireSent(Box<SentAcquire<PendingReply<AcquireReply>>>),
    Cancelled,
    Closed,
    /// The server cannot be reached.
    Failed(Failure),
    /// This is its hold now: the next one of a tenure, or one that the head has asked for as well.
    HandedOff(Arc<Hold>),
    /// It is at the head now, and has to acquire the lock.
    Head,
    /// The lock may be free.
    MayBeFree,
}

#[derive(Debug, Default)]
struct SignalState {
    signals: VecDeque<Signal>,
    /// While the thread sleeps at the head: what it would send if it were awake.
    next_request: Option<Box<AcquireRequest>>,
}

impl Waiter {
    pub(super) fn new(hold: HoldId, caller: &Caller) -> Self {
        Self {
            hold,
            lease: caller.times.lease,
            in_doubt: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns `true` if one request can ask for both, because they want the same and can have it
    /// at the same time.
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        let kind = self.hold.kind;
        (kind, self.lease) == (other.hold.kind, other.lease) && kind.shares_with(kind)
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Called by the head, or for a waiter behind it under the lock of the queue.
    pub(super) fn mark_in_doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    pub(super) fn send(&self, signal: Signal) {
        self.state.lock().signals.push_back(signal);
        self.changed.notify_one();
    }

    /// Signals that the lock may be free. If the thread sleeps at the head, `start` may send its
    /// next request, and the thread wakes to wait for the reply.
    ///
    /// The state is locked meanwhile: a thread whose pause is over finds its request either unsent
    /// or sent.
    pub(super) fn wake(
        &self,
        start: impl FnOnce(&AcquireRequest) -> Option<SentAcquire<PendingReply<AcquireReply>>>,
    ) {
        let mut state = self.state.lock();
        let signal = match state.signals.back() {
            None => {
                let sent = state.next_request.as_deref().and_then(start);
                sent.map_or(Signal::MayBeFree, |sent| Signal::AcquireSent(Box::new(sent)))
            }
            // The request may have been executed before the lock became free.
            Some(Signal::AcquireSent(_)) => Signal::MayBeFree,
            // One such signal is enough.
            Some(_) => return,
        };
        state.signals.push_back(signal);
        self.changed.notify_one();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().signals.is_empty()
    }

    /// Blocks until there is a signal; `None` if there is none by the deadline.
    pub(super) fn receive(&self, deadline: Option<Instant>) -> Option<Signal> {
        self.receive_or_start(deadline, None)
    }

    /// As `receive`, and has `next_request` sent if the lock may be free in the meantime.
    fn receive_or_start(
        &self,
        deadline: Option<Instant>,
        next_request: Option<Box<AcquireRequest>>,
    ) -> Option<Signal> {
        let mut state = self.state.lock();
        state.next_request = next_request;
        wait_while(&self.changed, &mut state, deadline, |state| state.signals.is_empty());
        state.next_request = None;
        state.signals.pop_front()
    }

    /// Sleeps at the head between two attempts, until the lock may be free or the time is over.
    /// The thread that signals this may send `next_request`: its reply has to be waited for then.
    ///
    /// # Errors
    ///
    /// `Closed` if the client is closed, `Cancelled` if the wait is.
    pub(crate) fn sleep(
        &self,
        time: Duration,
        next_request: Option<&AcquireRequest>,
    ) -> Result<Option<SentAcquire<PendingReply<AcquireReply>>>> {
        let next_request = next_request.cloned().map(Box::new);
        match self.receive_or_start(Some(end_of(time)), next_request) {
            Some(Signal::AcquireSent(sent)) => Ok(Some(*sent)),
            Some(Signal::Cancelled) => Err(Error::Cancelled { name: self.hold.name.to_string() }),
            Some(Signal::Closed) => Err(Error::Closed),
            _ => Ok(None),
        }
    }

    /// Lets a canceller end the wait.
    pub(super) fn watch(self: &Arc<Self>, canceller: &Canceller) -> CancellableWait {
        let waiter = self.clone();
        canceller.watch(move || waiter.send(Signal::Cancelled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LockOptions};
    use crate::local::pending::tests::{request, sent};

    const SOON: Duration = Duration::from_secs(10);

    /// A waiter that sleeps at the head.
    fn asleep() -> Waiter {
        let caller = Caller::current(&Config::default(), &LockOptions::default());
        let waiter = Waiter::new(request().hold, &caller);
        waiter.state.lock().next_request = Some(Box::new(request()));
        waiter
    }

    fn wake(waiter: &Waiter) {
        waiter.wake(|_| Some(sent()));
    }

    fn wake_only(waiter: &Waiter) {
        waiter.wake(|_| panic!("the thread is awake"));
    }

    #[test]
    fn a_signal_sends_the_request_of_a_thread_that_sleeps() {
        let waiter = asleep();
        wake(&waiter);
        assert!(waiter.sleep(SOON, Some(&request())).expect("open").is_some());
    }

    #[test]
    fn a_thread_that_is_awake_sends_its_request_itself() {
        let waiter = asleep();
        assert!(waiter.sleep(Duration::ZERO, Some(&request())).expect("open").is_none());
        wake_only(&waiter);
        wake_only(&waiter);
        assert!(waiter.sleep(SOON, Some(&request())).expect("open").is_none());
        assert!(waiter.is_empty(), "one signal is as good as many");
    }

    #[test]
    fn without_a_reply_to_wait_for_a_signal_only_wakes() {
        let waiter = asleep();
        waiter.wake(|_| None);
        assert!(waiter.sleep(SOON, Some(&request())).expect("open").is_none());
    }

    /// The request may have been refused before the lock became free.
    #[test]
    fn a_signal_that_comes_while_a_reply_is_pending_is_kept() {
        let waiter = asleep();
        wake(&waiter);
        wake_only(&waiter);
        wake_only(&waiter);
        assert!(waiter.sleep(SOON, Some(&request())).expect("open").is_some());
        assert!(!waiter.is_empty());
        assert!(waiter.sleep(SOON, Some(&request())).expect("open").is_none());
        assert!(waiter.is_empty());
    }

    #[test]
    fn close_sends_no_request_and_loses_no_reply() {
        let waiter = asleep();
        waiter.send(Signal::Closed);
        wake_only(&waiter);
        assert!(matches!(waiter.sleep(SOON, Some(&request())), Err(Error::Closed)));
        let waiter = asleep();
        wake(&waiter);
        waiter.send(Signal::Closed);
        assert!(waiter.sleep(SOON, Some(&request())).expect("a reply").is_some());
        assert!(matches!(waiter.sleep(SOON, Some(&request())), Err(Error::Closed)));
    }
}
