//! One thread in a wait queue: the signals that others send it, how it sleeps until one comes, and
//! the request that another thread may send while it sleeps.
//!
//! Decides which signal replaces another, and whether a signal that the lock may be free sends the
//! next request of a sleeping thread. Knows nothing of the queue that the waiter is in, nor what a
//! reply means.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, iter, slice};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::Failure;
use crate::base::sync::{Condvar, Mutex, wait_while};
use crate::error::{Error, Result};
use crate::guards::canceller::{CancellableWait, Canceller};
use crate::local::call::{Caller, RequestLimits};
use crate::local::hold::Hold;
use crate::store::Store;
use crate::store::hold_id::HoldId;
use crate::store::request::{Acquire, AcquireReply, PendingReply, Registration};

/// A thread in a queue, or before its one attempt outside. Its signals could go through a channel
/// too, which is larger than everything else that a lock takes.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// What it asks for, or the head for it.
    pub(super) hold: HoldId,
    pub(super) caller: Caller,
    /// Whether a request without a reply may have begun the hold, or may still begin it. The hold
    /// is cleaned up when the thread leaves without it.
    pub(super) in_doubt: AtomicBool,
    /// The nonces of the holds that other clients wait for, in case the thread at the head is about
    /// to get one: the message may overtake the reply, and a late one about an earlier hold that.
    pub(super) wanted: Mutex<Vec<u64>>,
    /// While the thread is at the head.
    pub(super) answer: Mutex<HeadAnswer>,
    state: Mutex<SignalState>,
    changed: Condvar,
}

/// What the last request of the thread at the head has shown.
#[derive(Debug, Default)]
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
    /// Its next request was sent, and the reply is pending.
    AcquireSent(Box<SentAcquire<PendingReply<AcquireReply>>>),
    /// The client is closed, or the wait is cancelled.
    Ended(Error),
    /// The lock may be free.
    MayBeFree,
    /// It waits behind the head no more.
    Turn(Turn),
}

/// How the wait behind other threads has ended.
#[derive(Debug)]
pub(crate) enum Turn {
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
    /// The time was over, and another thread comes first. It is not known whether a server replies.
    Look,
    /// The time was over, and nothing is known against one attempt outside the queue: the hold of
    /// the head ends, or is none that excludes others.
    Outside,
    /// The time was over, and another owner holds the lock.
    TimedOut,
}

#[derive(Debug, Default)]
struct SignalState {
    signals: VecDeque<Signal>,
    /// While the thread sleeps at the head: what it would send if it were awake.
    next_request: Option<Box<AcquireRequest>>,
}

/// The next request of the thread at the head of a wait queue. The thread sends it itself, or,
/// while it sleeps, the thread that hears first that the lock may be free.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(super) hold: HoldId,
    pub(super) lease: Duration,
    pub(super) registration: Registration,
    /// Until then it yields to waiting clients.
    pub(super) yields_until: Instant,
    pub(super) limits: RequestLimits,
}

/// The threads behind the head when its request is sent.
#[derive(Default)]
pub(super) struct Followers {
    /// Whether there are any, and they may have the lock in the same tenure.
    pub(super) exist: bool,
    /// Those right behind it for which the request asks as well, because they want the same and can
    /// have it at the same time.
    pub(super) alike: Vec<Arc<Waiter>>,
}

/// A request that was sent, and its reply or what there is of it.
pub(crate) struct SentAcquire<R> {
    /// Read before it was sent.
    pub(super) sent: Moment,
    /// The other threads for which it asks.
    pub(super) alike: Vec<Arc<Waiter>>,
    pub(super) reply: R,
}

impl Waiter {
    pub(super) fn new(hold: HoldId, caller: &Caller) -> Self {
        Self {
            hold,
            caller: caller.clone(),
            in_doubt: AtomicBool::new(false),
            wanted: Mutex::default(),
            answer: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns `true` if one request can ask for both, because they want the same and can have it
    /// at the same time.
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        let kind = self.hold.kind;
        let (lease, others) = (self.caller.times.lease, other.caller.times.lease);
        (kind, lease) == (other.hold.kind, others) && kind.shares_with(kind)
    }

    /// Called by the head, or for a waiter behind it under the lock of the queue.
    pub(super) fn mark_in_doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    /// Notes that another client waits for the hold with this nonce.
    pub(super) fn note_wanted(&self, nonce: u64) {
        let mut wanted = self.wanted.lock();
        if !wanted.contains(&nonce) {
            wanted.push(nonce);
        }
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

    /// Blocks until there is a signal; `None` if there is none by the deadline. If the lock may be
    /// free in the meantime, `next_request` is sent.
    pub(super) fn receive(
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
        match self.receive(Some(end_of(time)), next_request.cloned().map(Box::new)) {
            Some(Signal::AcquireSent(sent)) => Ok(Some(*sent)),
            Some(Signal::Ended(error)) => Err(error),
            _ => Ok(None),
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

impl AcquireRequest {
    /// Sends the request without waiting for the reply. `None` if the store cannot.
    pub(super) fn start(
        &self,
        store: &dyn Store,
        followers: Followers,
    ) -> Option<SentAcquire<PendingReply<AcquireReply>>> {
        let SentAcquire { sent, alike, reply } =
            self.send(followers, |request| store.start_acquire(request));
        reply.map(|reply| SentAcquire { sent, alike, reply })
    }

    /// Has `send` send the request.
    pub(super) fn send<R>(
        &self,
        Followers { exist, alike }: Followers,
        send: impl FnOnce(Acquire<'_>) -> R,
    ) -> SentAcquire<R> {
        let sent = Moment::now();
        let registration = match self.registration {
            Registration::Last => Registration::Last,
            _ if Instant::now() < self.yields_until => Registration::Yielding,
            Registration::Registered if exist => Registration::Followed,
            registration => registration,
        };
        let all: Vec<_>;
        let holds = if alike.is_empty() {
            slice::from_ref(&self.hold)
        } else {
            let alike = alike.iter().map(|waiter| waiter.hold.clone());
            all = iter::once(self.hold.clone()).chain(alike).collect();
            &all
        };
        let deadline = self.limits.request_deadline();
        let reply = send(Acquire { holds, lease: self.lease, registration, deadline });
        SentAcquire { sent, alike, reply }
    }
}

impl SentAcquire<PendingReply<AcquireReply>> {
    /// Blocks until the reply has come, or the deadline of the request.
    pub(super) fn wait(self) -> SentAcquire<Result<AcquireReply, Failure>> {
        let Self { sent, alike, reply } = self;
        SentAcquire { sent, alike, reply: reply.wait() }
    }
}

impl<R> fmt::Debug for SentAcquire<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentAcquire").field("sent", &self.sent).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::LockOptions;
    use crate::local::call::Wait;
    use crate::local::call::tests::caller;
    use crate::store::hold_id::HoldKind;

    const SOON: Duration = Duration::from_secs(10);
    const LEASE: Duration = Duration::from_secs(30);

    pub(in crate::local) fn request() -> AcquireRequest {
        let hold =
            HoldId { kind: HoldKind::Lock, name: Arc::from("x"), client: Arc::from("c"), nonce: 1 };
        let times = caller(&LockOptions::default()).times;
        AcquireRequest {
            hold,
            lease: LEASE,
            registration: Registration::IfHeld,
            yields_until: Instant::now(),
            limits: RequestLimits::new(Wait::Endless, times),
        }
    }

    /// A request that finds the lock held.
    pub(in crate::local) fn sent() -> SentAcquire<PendingReply<AcquireReply>> {
        let reply: PendingReply<AcquireReply> = PendingReply::new(|| Ok(AcquireReply::held(None)));
        SentAcquire { sent: Moment::now(), alike: Vec::new(), reply }
    }

    /// A waiter that sleeps at the head.
    fn asleep() -> Waiter {
        let waiter = Waiter::new(request().hold, &caller(&LockOptions::default()));
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
        waiter.send(Signal::Ended(Error::Closed));
        wake_only(&waiter);
        assert!(matches!(waiter.sleep(SOON, Some(&request())), Err(Error::Closed)));
        let waiter = asleep();
        wake(&waiter);
        waiter.send(Signal::Ended(Error::Closed));
        assert!(waiter.sleep(SOON, Some(&request())).expect("a reply").is_some());
        assert!(matches!(waiter.sleep(SOON, Some(&request())), Err(Error::Closed)));
    }

    #[test]
    fn a_request_yields_until_the_time_it_says() {
        let registration = |yields_until| {
            let request = AcquireRequest { yields_until, ..request() };
            request.send(Followers::default(), |request| request.registration).reply
        };
        assert_eq!(registration(Instant::now() + LEASE), Registration::Yielding);
        assert_eq!(registration(Instant::now()), Registration::IfHeld);
    }

    #[test]
    fn a_request_of_a_registered_thread_says_that_others_wait() {
        let registration = |registration, exist| {
            let request = AcquireRequest { registration, ..request() };
            let followers = Followers { exist, ..Followers::default() };
            request.send(followers, |request| request.registration).reply
        };
        let (first, registered) = (Registration::IfHeld, Registration::Registered);
        assert_eq!(registration(registered, true), Registration::Followed);
        assert_eq!(registration(registered, false), registered);
        assert_eq!(registration(first, true), first);
    }
}
