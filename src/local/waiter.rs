//! One thread in a wait queue: the signals that others send it, and how it sleeps until one comes.
//!
//! Decides which signals it receives. Knows nothing of the queue that the waiter is in.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::base::canceller::{CancellableWait, Canceller};
use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::error::{Error, Result};
use crate::local::call::Caller;
use crate::local::hold::Hold;
use crate::store::hold_id::HoldId;

/// A thread in a queue, or before its one attempt outside. Its signals could go through a channel
/// too, which is larger than everything else that a lock takes.
pub(crate) struct Waiter {
    /// What it asks for, or the head for it.
    pub(super) hold: HoldId,
    pub(super) caller: Caller,
    /// Whether a request without a reply may have begun the hold, or may still begin it. The hold
    /// is cleaned up when the thread leaves without it.
    pub(super) in_doubt: AtomicBool,
    /// The nonces of the holds that other clients wait for, in case the thread at the head is about
    /// to get one: the message may overtake the reply, and a late one about an earlier hold that.
    pub(super) wanted: Mutex<BTreeSet<u64>>,
    /// While the thread is at the head.
    pub(super) answer: Mutex<HeadAnswer>,
    signals: Mutex<VecDeque<Signal>>,
    changed: Condvar,
}

/// What the last request of the thread at the head has shown.
#[derive(Default)]
pub(super) enum HeadAnswer {
    /// It has failed, at that time.
    Failed(Failure, Instant),
    /// Another owner held the lock, said a reply that came then.
    Held(Instant),
    /// Nothing yet: the request is on its way.
    #[default]
    Pending,
}

/// What another thread tells a waiter.
#[derive(Debug)]
pub(super) enum Signal {
    /// The client is closed, or the wait is cancelled.
    Ended(Error),
    /// The lock may be free.
    MayBeFree,
    /// It waits behind the head no more.
    WaitEnd(WaitEnd),
}

/// How the wait behind other threads has ended.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// The server cannot be reached, as the thread in front has found out.
    Failed(Failure),
    /// With a hold: the next one of a tenure, or one that the head has asked for as well.
    HandedOff(Arc<Hold>),
    /// At the head, to acquire the lock.
    Head {
        /// Whether the thread in front may have left the client registered as waiting.
        is_next: bool,
        /// Whether the release of an earlier hold of this client is not confirmed.
        after_release: bool,
        /// The tenure that was kept until now: it may want nothing but more tokens.
        kept: Option<Arc<Hold>>,
    },
    /// At the head, with the next hold of a tenure that was kept.
    Kept(Arc<Hold>),
    /// The time was over, and another thread comes first. It is not known yet what keeps the thread
    /// from the lock.
    Look,
    /// The time was over, and nothing is known against one attempt outside the queue: the hold of
    /// the head ends, or is none that excludes others.
    Outside,
    /// The time was over, and another owner holds the lock.
    TimedOut,
}

impl Waiter {
    pub(super) fn new(hold: HoldId, caller: &Caller) -> Self {
        Self {
            hold,
            caller: caller.clone(),
            in_doubt: AtomicBool::new(false),
            wanted: Mutex::default(),
            answer: Mutex::default(),
            signals: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Notes that the next request is on its way. A failure counts until there is a reply.
    pub(super) fn set_pending(&self) {
        let mut answer = self.answer.lock();
        if !matches!(*answer, HeadAnswer::Failed(..)) {
            *answer = HeadAnswer::Pending;
        }
    }

    pub(super) fn send(&self, signal: Signal) {
        self.signals.lock().push_back(signal);
        self.changed.notify_one();
    }

    /// Signals that the lock may be free. The thread tries now, or once more after the request that
    /// it waits for: that may have been executed before. One signal does for many.
    pub(super) fn wake(&self) {
        let mut signals = self.signals.lock();
        if signals.is_empty() {
            signals.push_back(Signal::MayBeFree);
            self.changed.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.signals.lock().is_empty()
    }

    /// Blocks until there is a signal; `None` if there is none by the deadline.
    pub(super) fn receive(&self, deadline: Option<Instant>) -> Option<Signal> {
        let mut signals = self.signals.lock();
        wait_while(&self.changed, &mut signals, deadline, VecDeque::is_empty);
        signals.pop_front()
    }

    /// Sleeps at the head between two attempts, at most for this time. Returns `true` if the lock
    /// may be free.
    ///
    /// # Errors
    ///
    /// `Closed` if the client is closed, `Cancelled` if the wait is.
    pub(crate) fn sleep(&self, time: Duration) -> Result<bool> {
        match self.receive(Some(end_of(time))) {
            Some(Signal::Ended(error)) => Err(error),
            signal => Ok(signal.is_some()),
        }
    }

    /// Lets the canceller of the call end the wait.
    pub(super) fn watch(self: &Arc<Self>, canceller: &Canceller) -> CancellableWait {
        let waiter = self.clone();
        canceller.watch(move || {
            let name = waiter.hold.name.to_string();
            waiter.send(Signal::Ended(Error::Cancelled { name }));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::local::call::tests::caller;
    use crate::store::hold_id::HoldKind;

    const SOON: Duration = Duration::from_secs(10);

    fn waiter() -> Waiter {
        let (kind, name, client) = (HoldKind::Lock, Arc::from("x"), Arc::from("c"));
        Waiter::new(HoldId { kind, name, client, nonce: 1 }, &caller(&LockOptions::default()))
    }

    #[test]
    fn a_signal_that_comes_while_the_thread_is_awake_is_kept_and_one_does_for_many() {
        let waiter = waiter();
        waiter.sleep(Duration::ZERO).expect("open");
        waiter.wake();
        waiter.wake();
        waiter.sleep(SOON).expect("open");
        assert!(waiter.is_empty());
    }

    #[test]
    fn close_ends_the_sleep_whatever_came_before() {
        let waiter = waiter();
        waiter.wake();
        waiter.send(Signal::Ended(Error::Closed));
        waiter.wake();
        waiter.sleep(SOON).expect("the lock may be free");
        assert!(matches!(waiter.sleep(SOON), Err(Error::Closed)));
    }
}
