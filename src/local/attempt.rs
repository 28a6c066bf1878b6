//! The attempts of one call to acquire a lock from the store: it tries, waits and tries again.
//!
//! Decides when to try again, what the next request says, and what a reply means for the requests
//! after it: whether the client is registered as waiting, whether a hold may exist without a reply,
//! and whether the next request is for another hold.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{iter, mem, slice};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::error::Result as CallResult;
use crate::local::call::{Counted, Wait};
use crate::local::head_requests::{followers_of_head, hand_out, mark_in_doubt};
use crate::local::hold::Hold;
use crate::local::lease::reliable;
use crate::local::retry::{HeldPauses, RetryPolicy, is_outage};
use crate::local::shared::Shared;
use crate::local::wait_queues::Pauses;
use crate::local::waiter::{HeadAnswer, Waiter};
use crate::store::ask_one;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::redisson_channels::RedissonWait;
use crate::store::request::{Acquire, AcquireReply, Change, HoldRequest, Registration, is_granted};

/// How long a call that does not wait gives another client to release a lock that is only kept.
const RECALL_TIME: Duration = Duration::from_millis(50);

/// The attempts of one call.
pub(super) struct Attempt<'a> {
    shared: &'a Shared,
    waiter: &'a Waiter,
    /// What the next request asks for.
    hold: Cow<'a, HoldId>,
    registration: Registration,
    pauses: HeldPauses,
    /// If the last pause has ended without a wake-up: until when the lock could be free only
    /// because it was released, by the reply before.
    held_until: Option<Moment>,
    /// Of a call that does not wait, once a client that may only keep the lock was told: until when
    /// that has time to release it.
    recall_ends: Option<Instant>,
    /// Whether the call has had a lock of the name released that is only kept, where it wants the
    /// name as something else.
    has_recalled: bool,
    /// Since the first failure.
    retry: Option<RetryPolicy>,
    /// Whether the call has reported that the lock is held.
    contended: &'a Cell<bool>,
    /// Whether the release of an earlier hold of this client was not confirmed when the last
    /// request was sent.
    after_release: bool,
    /// Once it was registered as waiting: has Redisson's releases wake it.
    redisson: Option<RedissonWait>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        waiter: &'a Waiter,
        contended: &'a Cell<bool>,
        registration: Registration,
        after_release: bool,
    ) -> Self {
        Self {
            shared,
            waiter,
            hold: Cow::Borrowed(&waiter.hold),
            registration,
            pauses: HeldPauses { backoff: None, yields_until: waiter.caller.begin },
            held_until: None,
            recall_ends: None,
            has_recalled: false,
            retry: None,
            contended,
            after_release,
            redisson: None,
        }
    }

    /// Tries for the lock until it is acquired. `None` if it is still held when the wait is over.
    /// If a request of the call has `failed` before, that was the first attempt.
    pub(super) fn run(&mut self, mut failed: Option<Failure>) -> CallResult<Option<Arc<Hold>>> {
        let (shared, waiter) = (self.shared, self.waiter);
        loop {
            let pause = match failed.take().map_or_else(|| self.ask(), Err) {
                Ok((sent, AcquireReply::Acquired { fence, room, wanted, .. })) => {
                    if self.held_until.is_some_and(|end| Moment::now() < end) {
                        shared.counters.missed_wakeups.fetch_add(1, Ordering::Relaxed);
                    }
                    let id = HoldId::clone(&self.hold);
                    let hold = Arc::new(Hold::new(id, fence, room, &waiter.caller, sent));
                    hold.in_doubt.store(waiter.in_doubt.load(Ordering::Relaxed), Ordering::Relaxed);
                    if wanted {
                        hold.set_wanted();
                    }
                    shared.reporter.begin(&hold, &waiter.caller, Some(waiter));
                    return Ok(Some(hold));
                }
                Ok((sent, AcquireReply::Held { remaining, recalled, .. })) => {
                    self.held_until = remaining.map(|remaining| sent.after(remaining));
                    let pause = self.pause_while_held(remaining, recalled);
                    let Some(pause) = pause else { return Ok(None) };
                    pause
                }
                Err(failure)
                    if failure.kind == FailureKind::WrongType && self.recall_kept_lock()? =>
                {
                    continue;
                }
                Err(failure) => self.pause_after(failure)?,
            };
            let _waiting = Counted::begin(&shared.counters.waiting);
            shared.wait_queues.check_open()?;
            waiter.caller.check_cancelled(&waiter.hold.name)?;
            if self.sleep(pause)? {
                // The lock was released a moment ago, so that another attempt may soon succeed too.
                (self.pauses.backoff, self.held_until) = (None, None);
            }
            waiter.set_pending();
        }
    }

    /// Sleeps until the next request. Returns `true` if the lock may be free.
    fn sleep(&self, pause: Duration) -> CallResult<bool> {
        let Self { shared, waiter, .. } = *self;
        if shared.wait_queues.is_acquiring(waiter) {
            return waiter.sleep(pause);
        }
        // In no queue, it gets no signals.
        let canceller = waiter.caller.canceller.as_ref();
        Pauses::of_wait(&shared.wait_queues, canceller).sleep(pause, &waiter.hold.name)?;
        Ok(false)
    }

    /// Sends the next request and waits for the reply. Returns it with the time when it was sent.
    fn ask(&mut self) -> Result<(Moment, AcquireReply), Failure> {
        loop {
            // When a first thread tries first, no thread behind it is worth a look.
            let (is_followed, alike) = match self.registration {
                Registration::Registered => {
                    self.shared.wait_queues.with(&self.hold, |queue| followers_of_head(queue))
                }
                _ => (false, Vec::new()),
            };
            let registration = match self.registration {
                Registration::Last => Registration::Last,
                Registration::IfHeld | Registration::Registered
                    if self.shared.wait_queues.has_missed_messages() =>
                {
                    Registration::Returning
                }
                _ if Instant::now() < self.pauses.yields_until => Registration::Yielding,
                Registration::Registered if is_followed => Registration::Followed,
                registration => registration,
            };
            let all: Vec<_>;
            let holds = if alike.is_empty() {
                slice::from_ref(&*self.hold)
            } else {
                let alike = alike.iter().map(|waiter| waiter.hold.clone());
                all = iter::once(HoldId::clone(&self.hold)).chain(alike).collect();
                &all
            };
            let (lease, sent) = (self.waiter.caller.times.lease, Moment::now());
            let deadline = self.waiter.caller.request_deadline();
            let request = Acquire { holds, lease, registration, deadline };
            let reply = self.shared.store.acquire(request);
            let reply = self.record_reply(sent, &alike, reply)?;
            let is_held = matches!(reply, AcquireReply::Held { .. });
            if !(is_held && self.confirm_releases()?) {
                return Ok((sent, reply));
            }
        }
    }

    /// Returns how long to sleep after a reply that the lock is held; `None` if the wait is over.
    fn pause_while_held(
        &mut self,
        remaining: Option<Duration>,
        recalled: bool,
    ) -> Option<Duration> {
        let Self { shared, waiter, .. } = self;
        self.retry.iter_mut().for_each(RetryPolicy::record_reply);
        shared.reporter.report_contended(&waiter.hold.name, self.contended);
        *waiter.answer.lock() = HeadAnswer::Held(Instant::now());
        let pause = self.pauses.next(shared.config.backoff, remaining);
        if let Some(pause) = waiter.caller.wait.cut(pause) {
            return Some(pause);
        }
        if recalled && matches!(self.registration, Registration::Last) {
            self.recall_ends.get_or_insert_with(|| end_of(RECALL_TIME));
        }
        // Whatever wakes the thread without the lock before that does not end the call.
        let left = self.recall_ends?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Has a lock of this name released that another client only keeps: a name that no guard has
    /// may be used for any kind. Returns `true` if it is worth trying again.
    fn recall_kept_lock(&mut self) -> CallResult<bool> {
        let Self { shared, waiter, .. } = *self;
        let Waiter { hold, caller, .. } = waiter;
        if hold.kind.is_lock() || mem::replace(&mut self.has_recalled, true) {
            return Ok(false);
        }
        let lock = HoldId { kind: HoldKind::Lock, ..hold.clone() };
        let (end, mut has_told) = (end_of(RECALL_TIME), false);
        let is_gone = loop {
            let request = Acquire {
                holds: slice::from_ref(&lock),
                lease: caller.times.lease,
                registration: Registration::Recall,
                deadline: caller.request_deadline(),
            };
            match shared.store.acquire(request) {
                Ok(AcquireReply::Held { recalled: true, .. }) => has_told = true,
                Ok(AcquireReply::Held { remaining, .. }) => break remaining.is_none(),
                Ok(AcquireReply::Acquired { .. }) | Err(_) => break false,
            }
            shared.listening.start(&*shared.store);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            if let Err(error) = waiter.sleep(left) {
                shared.listening.unregister(&*shared.store, &lock, caller.times);
                return Err(error);
            }
        };
        if has_told {
            // What this client was offered is a lock, too.
            let (change, deadline) = (Change::Unregister, caller.request_deadline());
            drop(ask_one(&*shared.store, HoldRequest { hold: &lock, change, deadline }));
            shared.wait_queues.wake(HoldKind::Lock, &lock.name);
        }
        Ok(is_gone || has_told)
    }

    /// Returns how long to sleep after a failure, unless trying again is pointless.
    fn pause_after(&mut self, mut failure: Failure) -> CallResult<Duration> {
        let Self { shared, waiter, .. } = *self;
        let Waiter { hold, caller, .. } = waiter;
        self.held_until = None;
        let new = || RetryPolicy::new(caller.wait, &shared.config, caller.times);
        let pause = self.retry.get_or_insert_with(new).pause_after(&mut failure);
        shared.reporter.outages.record_failed_call(&hold.name, &failure, pause);
        // A connection that was found broken is no outage.
        if pause != Some(Duration::ZERO) {
            *waiter.answer.lock() = HeadAnswer::Failed(failure.clone(), Instant::now());
        }
        pause.ok_or_else(|| {
            if caller.wait == Wait::Endless && is_outage(&failure) {
                shared.wait_queues.with(hold, |queue| queue.fail_endless(waiter, &failure));
            }
            failure.into_error_of(hold.kind.noun(), "acquire", &hold.name)
        })
    }

    /// Records what a reply means for the next request. A hold whose lease is over when it comes
    /// counts as none: a pause of this process must not bring forth a guard of nothing.
    fn record_reply(
        &mut self,
        sent: Moment,
        alike: &[Arc<Waiter>],
        reply: Result<AcquireReply, Failure>,
    ) -> Result<AcquireReply, Failure> {
        let in_doubt = match &reply {
            Ok(AcquireReply::Acquired { .. }) => {
                sent.elapsed() >= reliable(self.waiter.caller.times.lease)
            }
            Ok(AcquireReply::Held { in_doubt, .. }) => *in_doubt,
            Err(failure) => failure.is_ambiguous(),
        };
        self.record_registration(&reply);
        self.record_holds(sent, alike, &reply, in_doubt);
        let reply = reply?;
        self.shared.reporter.record_reply(&self.hold.name);
        match reply {
            AcquireReply::Acquired { .. } if in_doubt => Err(Failure::late()),
            reply => Ok(reply),
        }
    }

    /// Records which holds exist after a reply, or may: for this thread, and for the others for
    /// which it has asked.
    fn record_holds(
        &mut self,
        sent: Moment,
        alike: &[Arc<Waiter>],
        reply: &Result<AcquireReply, Failure>,
        in_doubt: bool,
    ) {
        let Self { shared, waiter, .. } = *self;
        let lease = waiter.caller.times.lease;
        let falls_short = reply.as_ref().is_err_and(Failure::is_shortfall);
        if in_doubt || falls_short {
            for waiter in alike {
                mark_in_doubt(shared, waiter);
            }
        } else if let Ok(AcquireReply::Acquired { others, .. }) = reply {
            for (waiter, fence) in alike.iter().zip(others) {
                hand_out(shared, waiter, *fence, sent);
            }
        }
        if falls_short {
            // The hold exists.
            let (hold, deadline) = (&*self.hold, waiter.caller.request_deadline());
            let release = HoldRequest { hold, change: Change::RELEASE, deadline };
            if ask_one(&*shared.store, release).is_err() {
                shared.clean_up(hold, lease, true);
            }
        }
        if shared.withdraws && (in_doubt || !is_granted(reply)) {
            if in_doubt {
                shared.clean_up(&self.hold, lease, false);
            }
            let next = shared.next_hold(self.hold.kind, &waiter.hold.name, &waiter.caller);
            self.hold = Cow::Owned(next);
        } else if in_doubt {
            waiter.in_doubt.store(true, Ordering::Relaxed);
        }
    }

    /// Notes whether the client may be registered as waiting after a reply, and listens if it is.
    fn record_registration(&mut self, reply: &Result<AcquireReply, Failure>) {
        self.registration = match (self.registration, reply) {
            (Registration::IfMayBeKept, Ok(AcquireReply::Held { recalled: true, .. })) => {
                Registration::Last
            }
            (Registration::IfMayBeKept | Registration::Last | Registration::None, _) => return,
            _ => Registration::Registered,
        };
        if matches!(reply, Ok(AcquireReply::Held { .. })) {
            let Shared { listening, store, .. } = self.shared;
            listening.start(&**store);
            if self.redisson.is_none() {
                self.redisson = listening.wait_for_redisson(&self.hold);
            }
        }
    }

    /// Makes sure that earlier holds of this client have ended whose release was not confirmed when
    /// the request was sent that found the lock held: by just those, perhaps. Returns `true` if it
    /// is worth trying again at once.
    fn confirm_releases(&mut self) -> Result<bool, Failure> {
        let Shared { store, reporter, wait_queues, .. } = self.shared;
        let Waiter { hold, .. } = self.waiter;
        let released = wait_queues.released(hold.kind, &hold.name);
        // If they were confirmed in the meantime, they may have ended after this request.
        let retries = !released.is_empty() || self.after_release && !store.keeps_order();
        for released in released {
            self.after_release = true;
            ask_one(&**store, released.to_release(self.waiter.caller.request_deadline()))?;
            reporter.settle(&released, &Ok(()));
        }
        self.after_release = false;
        Ok(retries)
    }

    /// Removes the client from the waiting clients if it is among them and servers reply.
    pub(super) fn unregister(&self) {
        let is_failing = self.retry.as_ref().is_some_and(RetryPolicy::is_failing);
        if self.registration.may_be_queued() && !is_failing {
            let Shared { listening, store, .. } = self.shared;
            listening.unregister(&**store, &self.hold, self.waiter.caller.times);
        }
    }
}
