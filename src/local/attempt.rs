//! The attempts of one call to acquire a lock from the store: it tries, waits and tries again.
//!
//! Decides when to try again, what the next request says, and what a reply means for the requests
//! after it: whether the client is registered as waiting, whether a hold may exist without a reply,
//! and whether the next request is for another hold.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{iter, slice};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::Failure;
use crate::error::Result as CallResult;
use crate::local::call::{Counted, Wait};
use crate::local::hold::Hold;
use crate::local::lease::reliable;
use crate::local::retry::{HeldPauses, RetryPolicy, is_outage};
use crate::local::shared::Shared;
use crate::local::waiter::{Followers, HeadAnswer, Signal, Turn, Waiter};
use crate::store::ask_one;
use crate::store::hold_id::HoldId;
use crate::store::redisson_channels::RedissonWait;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldRequest, PostedChange, Registration, is_granted,
};

/// How long a call that does not wait gives another client to release a lock that is only kept.
const RECALL_TIME: Duration = Duration::from_millis(50);

/// The attempts of one call.
pub(super) struct Attempt<'a> {
    shared: &'a Shared,
    waiter: &'a Waiter,
    /// What the next request asks for.
    hold: HoldId,
    registration: Registration,
    pauses: HeldPauses,
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
            hold: waiter.hold.clone(),
            registration,
            pauses: HeldPauses { backoff: None, yields_until: waiter.caller.begin },
            retry: None,
            contended,
            after_release,
            redisson: None,
        }
    }

    /// Tries for the lock until it is acquired. `None` if it is still held when the wait is over.
    pub(super) fn run(&mut self) -> CallResult<Option<Arc<Hold>>> {
        let (shared, waiter) = (self.shared, self.waiter);
        // If the last pause has ended without a wake-up: until when the lock could be free only
        // because it was released, by the reply before.
        let mut held_until: Option<Moment> = None;
        loop {
            let pause = match self.ask() {
                Ok((sent, AcquireReply::Acquired { fence, room, wanted, .. })) => {
                    if held_until.is_some_and(|end| Moment::now() < end) {
                        shared.counters.missed_wakeups.fetch_add(1, Ordering::Relaxed);
                    }
                    let hold = granted(waiter, self.hold.clone(), fence, room, sent);
                    if wanted {
                        hold.set_wanted();
                    }
                    shared.reporter.begin(&hold, &waiter.caller, Some(waiter));
                    return Ok(Some(hold));
                }
                Ok((sent, AcquireReply::Held { remaining, recalled, .. })) => {
                    held_until = remaining.map(|remaining| sent.after(remaining));
                    let pause = self.pause_while_held(remaining, recalled);
                    let Some(pause) = pause else { return Ok(None) };
                    pause
                }
                Err(failure) => {
                    held_until = None;
                    self.pause_after(failure)?
                }
            };
            let _waiting = Counted::begin(&shared.counters.waiting);
            shared.wait_queues.check_open()?;
            waiter.caller.check_cancelled(&waiter.hold.name)?;
            let asleep = Instant::now();
            waiter.sleep(pause)?;
            if asleep.elapsed() < pause {
                held_until = None;
                // The lock was released a moment ago, so that another attempt may soon succeed too.
                self.pauses.backoff = None;
            }
            waiter.set_pending();
        }
    }

    /// Sends the next request and waits for the reply. Returns it with the time when it was sent.
    fn ask(&mut self) -> Result<(Moment, AcquireReply), Failure> {
        loop {
            // When a first thread tries first, no thread behind it is worth a look.
            let Followers { exist, alike } = match self.registration {
                Registration::Registered => {
                    self.shared.wait_queues.with(&self.hold, |queue| queue.followers())
                }
                _ => Followers::default(),
            };
            let registration = match self.registration {
                Registration::Last => Registration::Last,
                _ if Instant::now() < self.pauses.yields_until => Registration::Yielding,
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
            let (lease, sent) = (self.waiter.caller.times.lease, Moment::now());
            let deadline = self.waiter.caller.request_deadline();
            let request = Acquire { holds, lease, registration, deadline };
            let reply = self.shared.store.acquire(request);
            let reply = self.record_reply(sent, alike, reply)?;
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
        waiter.set_answer(HeadAnswer::Held(Instant::now()));
        let pause = self.pauses.next(shared.config.backoff, remaining);
        // A call that does not wait asks once for a lock that is perhaps only kept.
        let is_asked = recalled && matches!(self.registration, Registration::Last);
        waiter.caller.wait.cut(pause).or(is_asked.then_some(RECALL_TIME))
    }

    /// Returns how long to sleep after a failure, unless trying again is pointless.
    fn pause_after(&mut self, mut failure: Failure) -> CallResult<Duration> {
        let Self { shared, waiter, .. } = *self;
        let Waiter { hold, caller, .. } = waiter;
        let new = || RetryPolicy::new(caller.wait, &shared.config, caller.times);
        let pause = self.retry.get_or_insert_with(new).pause_after(&mut failure);
        shared.reporter.outages.record_failed_call(&hold.name, &failure, pause);
        // A connection that was found broken is no outage.
        if pause != Some(Duration::ZERO) {
            waiter.set_answer(HeadAnswer::Failed(failure.clone(), Instant::now()));
        }
        pause.ok_or_else(|| {
            if caller.wait == Wait::Endless && is_outage(&failure) {
                shared.wait_queues.with(hold, |queue| queue.fail_endless(waiter, &failure));
            }
            failure.into_error("acquire", &hold.name)
        })
    }

    /// Asks for more tokens for the holds of a tenure that was kept, and begins the next one.
    /// `None` if the tenure has ended: a hold of another one is to be acquired.
    pub(super) fn refill(&mut self, kept: Arc<Hold>) -> Option<Arc<Hold>> {
        let (sent, shared) = (Moment::now(), self.shared);
        let lease = kept.lease.next(sent);
        let deadline = self.waiter.caller.request_deadline();
        let (holds, registration) = (slice::from_ref(&kept.id), Registration::Kept);
        let reply = shared.store.acquire(Acquire { holds, lease, registration, deadline });
        if reply.is_ok() {
            shared.reporter.outages.record_reply(&kept.id.name);
        }
        match reply {
            Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
                kept.lease.extend(sent, lease);
                kept.add_fences(fence, room);
                if wanted {
                    kept.set_wanted();
                }
                let begins = shared.reporter.begin_kept(&kept, &self.waiter.caller);
                if begins {
                    shared.reporter.begin_at_head(&kept, Some(self.waiter));
                }
                return begins.then_some(kept);
            }
            Ok(AcquireReply::Held { .. }) => shared.reporter.lose(&kept),
            // The next request finds out whether the server can be reached.
            Err(_) => {
                shared.give_up_kept(&kept);
                self.after_release = true;
            }
        }
        None
    }

    /// Records what a reply means for the next request, and for the other threads for which this
    /// one has asked. A hold whose lease is over when the reply comes counts as none: a pause of
    /// this process must not bring forth a guard of nothing.
    fn record_reply(
        &mut self,
        sent: Moment,
        alike: Vec<Arc<Waiter>>,
        reply: Result<AcquireReply, Failure>,
    ) -> Result<AcquireReply, Failure> {
        let Self { shared, waiter, .. } = *self;
        let lease = waiter.caller.times.lease;
        let in_doubt = match &reply {
            Ok(AcquireReply::Acquired { .. }) => sent.elapsed() >= reliable(lease),
            Ok(AcquireReply::Held { in_doubt, .. }) => *in_doubt,
            Err(failure) => failure.is_ambiguous(),
        };
        self.record_registration(&reply);
        let falls_short = reply.as_ref().is_err_and(Failure::is_shortfall);
        if in_doubt || falls_short {
            self.leave_in_doubt(&alike);
        } else if let Ok(AcquireReply::Acquired { others, .. }) = &reply {
            self.hand_out(alike, others, sent);
        }
        if falls_short {
            self.undo_shortfall();
        }
        if shared.withdraws && (in_doubt || !is_granted(&reply)) {
            if in_doubt {
                shared.clean_up(&self.hold, lease, false);
            }
            self.hold = shared.next_hold(self.hold.kind, &waiter.hold.name, &waiter.caller);
        } else if in_doubt {
            waiter.in_doubt.store(true, Ordering::Relaxed);
        }
        let reply = reply?;
        shared.reporter.outages.record_reply(&self.hold.name);
        match reply {
            AcquireReply::Acquired { .. } if in_doubt => Err(Failure::late()),
            reply => Ok(reply),
        }
    }

    /// Notes whether the client may be registered as waiting after a reply, and listens if it is.
    fn record_registration(&mut self, reply: &Result<AcquireReply, Failure>) {
        self.registration = match (self.registration, reply) {
            (Registration::IfMayBeKept, Ok(AcquireReply::Held { recalled: true, .. })) => {
                Registration::Last
            }
            (Registration::IfMayBeKept | Registration::None, _) => return,
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

    /// Gives the first of these threads the holds that exist now for them. They have these tokens.
    fn hand_out(&self, alike: Vec<Arc<Waiter>>, fences: &[u64], sent: Moment) {
        let Shared { wait_queues, .. } = self.shared;
        for (waiter, fence) in alike.into_iter().zip(fences) {
            if wait_queues.remove(&waiter) {
                let hold = granted(&waiter, waiter.hold.clone(), *fence, 0, sent);
                self.shared.reporter.begin_renewal(&hold);
                waiter.send(Signal::Turn(Turn::HandedOff(hold)));
            } else {
                let lease = waiter.caller.times.lease;
                self.shared.clean_up(&waiter.hold, lease, !waiter.in_doubt.load(Ordering::Relaxed));
            }
        }
    }

    /// Notes that holds of these threads may exist.
    fn leave_in_doubt(&self, alike: &[Arc<Waiter>]) {
        let Shared { wait_queues, .. } = self.shared;
        for waiter in alike {
            if !wait_queues.with(&waiter.hold, |queue| queue.mark_in_doubt(waiter)) {
                self.shared.clean_up(&waiter.hold, waiter.caller.times.lease, false);
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

    /// Releases a hold that exists but fell short of its durability.
    fn undo_shortfall(&self) {
        let (hold, deadline) = (&self.hold, self.waiter.caller.request_deadline());
        let release = HoldRequest { hold, change: Change::RELEASE, deadline };
        if ask_one(&*self.shared.store, release).is_err() {
            self.shared.clean_up(hold, self.waiter.caller.times.lease, true);
        }
    }

    /// Removes the client from the waiting clients, if it is among them and servers reply, without
    /// waiting for the reply: the call ends at once, whatever the server does. If this fails, a
    /// wake-up does it.
    pub(super) fn unregister(&self) {
        let is_failing = self.retry.as_ref().is_some_and(RetryPolicy::is_failing);
        if !matches!(self.registration, Registration::Registered) || is_failing {
            return;
        }
        let (shared, hold, times) = (self.shared, &self.hold, self.waiter.caller.times);
        let (reporter, waited) = (shared.reporter.clone(), hold.clone());
        let deadline = end_of(times.io_timeout);
        shared.store.post(vec![PostedChange {
            request: HoldRequest { hold, change: Change::Unregister, deadline },
            on_reply: Box::new(move |reply| match reply {
                // A thread that began to wait in between is not registered now.
                Ok(_) => drop(reporter.wait_queues.wake_any(&waited.name)),
                Err(_) => reporter.renewer.unregister(waited, times.lease),
            }),
        }]);
    }
}

/// The hold that a request sent at `sent` has brought a waiter.
fn granted(waiter: &Waiter, id: HoldId, fence: u64, room: u32, sent: Moment) -> Arc<Hold> {
    let hold = Hold::new(id, fence, room, &waiter.caller, sent);
    if waiter.in_doubt.load(Ordering::Relaxed) {
        hold.in_doubt.store(true, Ordering::Relaxed);
    }
    Arc::new(hold)
}
