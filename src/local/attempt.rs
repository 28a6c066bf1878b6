//! The attempts of one call to acquire a lock from the store: a hold in the making.
//!
//! Decides what the next request says, and what a reply means for the requests after it: whether
//! the client is registered as waiting, whether a hold may exist without a reply, and whether the
//! next request is for another hold. When to try again is decided in `try_loop.rs`.

use std::cell::Cell;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::Failure;
use crate::config::Mechanism;
use crate::error::Error;
use crate::local::call::{Caller, Wait};
use crate::local::call_reports::report_contended;
use crate::local::hold::{Hold, local_deadline};
use crate::local::pending::{AcquireRequest, Followers, SentAcquire};
use crate::local::retry::RetryPolicy;
use crate::local::shared::Shared;
use crate::local::wait_queue::Arrival;
use crate::local::waiter::{QueuedWaiter, Signal, Waiter};
use crate::store::ask_one;
use crate::store::hold_id::HoldKind;
use crate::store::redisson_channels::RedissonWait;
use crate::store::request::{
    Acquire, AcquireReply, Change, HoldRequest, PendingReply, PostedChange, Registration,
    is_granted,
};

/// How long a thread yields to clients that have waited longer after the lock has become free by
/// itself, so that it was offered to none. Long enough for one that is far away.
const TURN_TIME: Duration = Duration::from_millis(200);

/// What the attempts of one call have in common.
pub(super) struct Attempt<'a> {
    pub(super) shared: &'a Shared,
    caller: &'a Caller,
    pub(super) wait: Wait,
    pub(super) waiter: &'a Waiter,
    /// The next request.
    request: AcquireRequest,
    pub(super) retry: RetryPolicy,
    /// Whether the call has reported that the lock is held.
    contended: &'a Cell<bool>,
    /// Whether the release of an earlier hold of this client was not confirmed when the last
    /// request was sent.
    after_release: bool,
    /// The tenure that was kept and needs more tokens, until it was asked for them.
    kept: Option<Arc<Hold>>,
    /// Once it was registered as waiting: has Redisson's releases wake it.
    redisson: Option<RedissonWait>,
}

/// What an attempt has shown.
pub(super) enum Tried {
    Acquired(Arc<Hold>),
    /// Another owner holds the lock, for this long unless it renews; `None` if that is not known.
    Held {
        remaining: Option<Duration>,
        asked: Moment,
        /// Whether a call that does not wait has asked a client for it that may only keep it.
        recalled: bool,
    },
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        caller: &'a Caller,
        wait: Wait,
        contended: &'a Cell<bool>,
        waiter: &'a Waiter,
        arrival: Arrival,
    ) -> Self {
        let registration = match arrival {
            // The thread in front may have left the client registered.
            Arrival::Next => Registration::Registered,
            Arrival::Outside => Registration::None,
            _ if !wait.is_over() => Registration::IfHeld,
            _ if caller.kind == HoldKind::Lock => Registration::IfMayBeKept,
            _ => Registration::None,
        };
        let has_released =
            || !shared.wait_queues.released(caller.kind, &waiter.hold.name).is_empty();
        let (after_release, kept) = match arrival {
            Arrival::First { after_release } => (after_release, None),
            Arrival::Kept(hold) if hold.suits(caller) => (false, Some(hold)),
            Arrival::Kept(hold) => {
                shared.give_up_kept(&hold);
                (true, None)
            }
            Arrival::Next | Arrival::Outside => (has_released(), None),
        };
        let retry = RetryPolicy::new(wait, &shared.config, caller.times);
        let request = AcquireRequest {
            hold: waiter.hold.clone(),
            lease: waiter.lease,
            registration,
            yields_until: Instant::now(),
            limits: retry.limits(),
            may_be_early: shared.config.uses(Mechanism::EarlyRequest),
            may_be_followed: !caller.options.tenure().is_zero(),
        };
        Self {
            shared,
            caller,
            wait,
            waiter,
            request,
            retry,
            contended,
            after_release,
            kept,
            redisson: None,
        }
    }

    /// Sends the next request, unless another thread has, and waits for the reply.
    pub(super) fn run(
        &mut self,
        mut started: Option<SentAcquire<PendingReply<AcquireReply>>>,
    ) -> Result<Tried, Failure> {
        if let Some(kept) = self.kept.take()
            && let Some(hold) = self.refill(kept)?
        {
            return Ok(Tried::Acquired(hold));
        }
        loop {
            let answered = match started.take() {
                None => self.request.execute(&*self.shared.store, self.followers()),
                Some(started) => started.wait(),
            };
            let sent = answered.sent;
            match self.record_reply(answered) {
                Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
                    return Ok(Tried::Acquired(self.begin_hold(fence, room, sent, wanted)));
                }
                Ok(AcquireReply::Held { .. }) if self.confirm_releases()? => {}
                Ok(AcquireReply::Held { remaining, recalled, .. }) => {
                    self.retry.record_reply();
                    report_contended(self.shared, &self.request.hold.name, self.contended);
                    let recalled = recalled && self.request.registration == Registration::Last;
                    return Ok(Tried::Held { remaining, asked: sent, recalled });
                }
                Err(failure) => {
                    self.undo_shortfall(&failure);
                    return Err(failure);
                }
            }
        }
    }

    /// Asks for more tokens for the holds of a tenure that was kept, and begins the next one.
    /// `None` if the tenure has ended: a hold of another one is to be acquired.
    fn refill(&self, kept: Arc<Hold>) -> Result<Option<Arc<Hold>>, Failure> {
        let (sent, shared) = (Moment::now(), self.shared);
        let (lease, deadline) = (kept.next_lease(sent), self.request.limits.request_deadline());
        let (holds, registration) = (slice::from_ref(&kept.id), Registration::Kept);
        let reply = shared.store.acquire(Acquire { holds, lease, registration, deadline });
        if reply.is_ok() {
            shared.record_reply(kept.name());
        }
        match reply {
            Ok(AcquireReply::Acquired { fence, room, wanted, .. }) => {
                kept.extend(sent, lease);
                kept.add_fences(fence, room);
                if wanted {
                    kept.set_wanted();
                }
                Ok(shared.take_kept(&kept, self.caller).then_some(kept))
            }
            Ok(AcquireReply::Held { .. }) => {
                shared.lose(&kept);
                Ok(None)
            }
            Err(failure) => {
                shared.give_up_kept(&kept);
                Err(failure)
            }
        }
    }

    /// Returns how long to pause before the next attempt; `None` if there should be none.
    pub(super) fn pause_after(&mut self, failure: &mut Failure) -> Option<Duration> {
        self.shared.pause_after(&mut self.retry, &self.request.hold.name, failure)
    }

    pub(super) fn check_cancelled(&self) -> Result<(), Error> {
        self.caller.options.check_cancelled(&self.request.hold.name)
    }

    /// Cuts the pause before the next attempt to the time after which the lock becomes free by
    /// itself, and a little more, because Redis counts whole milliseconds; or, while this thread
    /// yields, to the time after which it does not.
    pub(super) fn cut_pause(&mut self, pause: Duration, remaining: Option<Duration>) -> Duration {
        let now = Instant::now();
        match remaining.map(|remaining| remaining + Duration::from_millis(1)) {
            Some(free) if free <= pause => {
                // Not twice in a row: two clients that are far away would miss what each of them
                // has the other offered, again and again.
                if now >= self.request.yields_until {
                    self.request.yields_until = now + free + TURN_TIME;
                }
                free
            }
            None if now < self.request.yields_until => pause.min(self.request.yields_until - now),
            Some(_) | None => pause,
        }
    }

    /// The request that another thread may send in the meantime.
    pub(super) fn next_request(&self) -> &AcquireRequest {
        &self.request
    }

    /// Who waits behind this thread. When a first thread tries first, there is none worth a look.
    fn followers(&self) -> Followers {
        if self.request.registration == Registration::Registered {
            self.shared.wait_queues.followers(&self.request.hold)
        } else {
            Followers::default()
        }
    }

    /// Records what a reply means for the next request, and for the other threads for which this
    /// one has asked. A hold whose lease is over when the reply comes counts as none: a pause of
    /// this process must not bring forth a guard of nothing.
    fn record_reply(
        &mut self,
        answered: SentAcquire<Result<AcquireReply, Failure>>,
    ) -> Result<AcquireReply, Failure> {
        let SentAcquire { sent, registration, alike, reply } = answered;
        let lease = self.request.lease;
        let is_registered = match registration {
            Registration::None => false,
            Registration::IfMayBeKept => {
                matches!(&reply, Ok(AcquireReply::Held { recalled: true, .. }))
            }
            _ => true,
        };
        if is_registered {
            let is_first = registration == Registration::IfMayBeKept;
            self.request.registration =
                if is_first { Registration::Last } else { Registration::Registered };
        }
        let in_doubt = match &reply {
            Ok(AcquireReply::Acquired { .. }) => Moment::now() >= local_deadline(sent, lease),
            Ok(AcquireReply::Held { in_doubt, .. }) => *in_doubt,
            Err(failure) => failure.is_ambiguous(),
        };
        if is_registered && let Ok(AcquireReply::Held { .. }) = &reply {
            self.shared.listen();
            if self.redisson.is_none() {
                self.redisson = self.shared.listen_to_redisson(&self.request.hold);
            }
        }
        if self.shared.withdraws && (in_doubt || !is_granted(&reply)) {
            if in_doubt {
                self.shared.clean_up(&self.request.hold, lease, false);
            }
            self.request.hold = self.shared.next_hold(self.caller, &self.request.hold.name);
        } else if in_doubt {
            self.waiter.mark_in_doubt();
        }
        if in_doubt || reply.as_ref().is_err_and(Failure::is_shortfall) {
            self.leave_in_doubt(alike);
        } else if let Ok(AcquireReply::Acquired { others, .. }) = &reply {
            self.hand_out(&alike, others, sent);
        }
        let reply = reply?;
        self.shared.record_reply(&self.request.hold.name);
        match reply {
            AcquireReply::Acquired { .. } if in_doubt => Err(Failure::late()),
            reply => Ok(reply),
        }
    }

    /// Gives the first of these threads the holds that exist now for them. They have these tokens.
    fn hand_out(&self, alike: &[Arc<Waiter>], fences: &[u64], sent: Moment) {
        let granted = &alike[..fences.len().min(alike.len())];
        for ((asked, taken), fence) in
            granted.iter().zip(self.shared.wait_queues.take(granted)).zip(fences)
        {
            let Some(QueuedWaiter { caller, waiter, .. }) = taken else {
                self.shared.clean_up(&asked.hold, asked.lease, !asked.is_in_doubt());
                continue;
            };
            let hold = Arc::new(Hold::new(waiter.hold.clone(), *fence, 0, &caller, sent));
            if waiter.is_in_doubt() {
                hold.mark_in_doubt();
            }
            self.shared.begin_hold(&hold);
            waiter.send(Signal::HandedOff(hold));
        }
    }

    /// Notes that holds of these threads may exist.
    fn leave_in_doubt(&self, alike: Vec<Arc<Waiter>>) {
        for gone in self.shared.wait_queues.mark_in_doubt(alike) {
            self.shared.clean_up(&gone.hold, gone.lease, false);
        }
    }

    /// Makes sure that earlier holds of this client have ended whose release was not confirmed when
    /// the request was sent that found the lock held: by just those, perhaps. Returns `true` if it
    /// is worth trying again at once.
    fn confirm_releases(&mut self) -> Result<bool, Failure> {
        let Shared { store, reporter, wait_queues, .. } = self.shared;
        let released = wait_queues.released(self.caller.kind, &self.request.hold.name);
        // If they were confirmed in the meantime, they may have ended after this request.
        let retries = !released.is_empty() || self.after_release && !store.keeps_order();
        for released in released {
            self.after_release = true;
            ask_one(&**store, released.to_release(self.retry.request_deadline()))?;
            reporter.settle(&released, &Ok(()));
        }
        self.after_release = false;
        Ok(retries)
    }

    /// Releases a hold that exists but fell short of its durability.
    fn undo_shortfall(&self, failure: &Failure) {
        if failure.is_shortfall() {
            let (hold, deadline) = (&self.request.hold, self.retry.request_deadline());
            let release = HoldRequest { hold, change: Change::RELEASE, deadline };
            if ask_one(&*self.shared.store, release).is_err() {
                self.shared.clean_up(hold, self.caller.times.lease, true);
            }
        }
    }

    /// Begins the hold that a request sent at `sent` has acquired.
    fn begin_hold(&self, fence: u64, room: u32, sent: Moment, wanted: bool) -> Arc<Hold> {
        let hold = Arc::new(Hold::new(self.request.hold.clone(), fence, room, self.caller, sent));
        if self.waiter.is_in_doubt() {
            hold.mark_in_doubt();
        }
        if wanted {
            hold.set_wanted();
        }
        self.shared.add_hold(&hold, self.caller);
        hold
    }

    /// Removes the client from the waiting clients, if it is among them, and there is time and a
    /// server that replies. If not, or if this fails, the first wake-up does it.
    pub(super) fn unregister(&self) {
        if self.request.registration != Registration::Registered || self.retry.is_failing() {
            return;
        }
        let io_timeout = self.caller.times.io_timeout;
        let end = end_of(io_timeout);
        let last = self.wait.deadline().and_then(|deadline| deadline.checked_add(io_timeout));
        let deadline = last.map_or(end, |last| last.min(end));
        if deadline > Instant::now() {
            let (shared, hold) = (self.shared, &self.request.hold);
            let change = Change::Unregister { any_kind: false };
            // If it fails, a wake-up does it.
            drop(ask_one(&*shared.store, HoldRequest { hold, change, deadline }));
            // A thread that began to wait in between is not registered now.
            shared.wait_queues.wake(hold.kind, &hold.name, &*shared.store);
        }
    }

    /// As `unregister`, without waiting for the reply: the call ends at once, whatever the server
    /// does.
    pub(super) fn post_unregistration(&self) {
        if self.request.registration != Registration::Registered || self.retry.is_failing() {
            return;
        }
        let (shared, hold) = (self.shared, &self.request.hold);
        let (reporter, lease) = (shared.reporter.clone(), self.caller.times.lease);
        let waited = hold.clone();
        let change = Change::Unregister { any_kind: false };
        let deadline = end_of(self.caller.times.io_timeout);
        shared.store.post(vec![PostedChange {
            request: HoldRequest { hold, change, deadline },
            on_reply: Box::new(move |reply| match reply {
                Ok(_) => reporter.wait_queues.signal_heads(&waited.name),
                Err(_) => reporter.sink.unregister(waited, lease),
            }),
        }]);
    }
}
