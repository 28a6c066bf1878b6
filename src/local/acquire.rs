//! Acquiring a lock, from the call to the hold.
//!
//! Decides what a call does. If its thread holds the lock, it adds a level. Else it waits behind
//! the other threads of this client, and then tries, waits and tries again: at the head of the
//! queue, where the lock may be handed off to it, or outside it with a single attempt. Decides also
//! what an attempt and the end of a call mean for the waiters.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;

use crate::base::spans::CallSpan;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::guards::canceller::CancellableWait;
use crate::local::attempt::Attempt;
use crate::local::call::{Caller, Wait};
use crate::local::call_reports::{report_contended, report_outcome};
use crate::local::hold::Hold;
use crate::local::hold_requests::{Level, nest};
use crate::local::release;
use crate::local::retry::RetryPolicy;
use crate::local::shared::Shared;
use crate::local::status;
use crate::local::try_loop::{Stopped, try_until_acquired};
use crate::local::turn::{self, QueueHead};
use crate::local::wait_queue::{Arrival, Turn};
use crate::local::waiter::Waiter;
use crate::store::hold_id::{HoldId, HoldKind};

/// A call for a lock.
pub(super) struct LockCall<'a> {
    pub(super) shared: &'a Shared,
    pub(super) name: &'a Arc<str>,
    pub(super) caller: Caller,
    pub(super) wait: Wait,
    /// Whether the call has reported that the lock is held.
    pub(super) contended: Cell<bool>,
}

/// Acquires a lock, or one more level of it. `None` if it is still held when the wait is over.
pub(crate) fn lock(
    shared: &Shared,
    name: &Arc<str>,
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Level>> {
    let _call = shared.counters.begin_call();
    check(shared, name, options)?;
    if let Some(hold) = held_already(shared, name, options)? {
        return nest(shared, hold, wait).map(Some);
    }
    let caller = Caller::current(&shared.config, options);
    let hold = LockCall { shared, name, caller, wait, contended: Cell::default() }.run()?;
    Ok(hold.map(|hold| Level { hold, depth: 1 }))
}

/// Acquires a hold that belongs to no thread. `None` if it cannot be had when the wait is over.
pub(crate) fn owned(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Arc<Hold>>> {
    let _call = shared.counters.begin_call();
    check(shared, name, options)?;
    if kind == HoldKind::Lock {
        // It never nests, but waits for a hold of this thread like any other.
        held_already(shared, name, options)?;
    } else {
        shared.check_has_members()?;
    }
    let caller = Caller::owned(&shared.config, options, kind);
    LockCall { shared, name, caller, wait, contended: Cell::default() }.run()
}

/// Returns the hold that the calling thread has of a lock, if there is one.
///
/// # Errors
///
/// `AlreadyHeld` if there is one, and the lock is not reentrant.
fn held_already(
    shared: &Shared,
    name: &Arc<str>,
    options: &LockOptions,
) -> Result<Option<Arc<Hold>>> {
    match shared.held_locks.find(thread::current().id(), name) {
        Some(_) if !options.reentrant => Err(Error::AlreadyHeld { name: name.to_string() }),
        held => Ok(held),
    }
}

/// Returns an error if no lock can be acquired so.
pub(super) fn check(shared: &Shared, name: &str, options: &LockOptions) -> Result<()> {
    shared.identity.check_process()?;
    shared.config.check_name(name)?;
    options.check(&shared.config)?;
    options.check_cancelled(name)?;
    shared.wait_queues.check_open()
}

impl LockCall<'_> {
    /// Acquires the lock, and reports how that went.
    fn run(&self) -> Result<Option<Arc<Hold>>> {
        let span = CallSpan::open(|| &**self.name);
        let outcome = self.acquire().and_then(|hold| {
            release::check_wanted(self.shared, &self.caller.options, hold.as_slice())?;
            Ok(hold)
        });
        let waited = self.caller.begin.elapsed();
        report_outcome(self.shared, self.name, self.wait, &outcome, waited);
        let hold = outcome.as_ref().ok().and_then(Option::as_ref);
        if let Some(hold) = hold {
            hold.span.open(hold.name(), hold.fence());
        }
        span.close(waited, hold.map(|hold| hold.fence()));
        outcome
    }

    /// Acquires the lock, and reports nothing but contention.
    pub(super) fn acquire(&self) -> Result<Option<Arc<Hold>>> {
        let mut rejoins = false;
        loop {
            let (waiter, turn) = self.join(rejoins)?;
            let _watch = self.watch(&waiter);
            let turn = turn.map_or_else(|| self.wait_for_turn(&waiter), Ok)?;
            return match turn {
                Turn::Failed(failure) => Err(failure.into_error("acquire", self.name)),
                Turn::HandedOff(hold) if self.shared.take_hold(&hold, &self.caller) => {
                    Ok(Some(hold))
                }
                Turn::Kept(hold) if self.shared.take_kept(&hold, &self.caller) => Ok(Some(hold)),
                Turn::HandedOff(_) | Turn::Kept(_) => {
                    rejoins = true;
                    continue;
                }
                Turn::Head(arrival) => self.acquire_at_head(&waiter, arrival),
                Turn::Look => self.look().map(|()| None),
                Turn::Outside => self.acquire_outside(),
                Turn::TimedOut => Ok(None),
            };
        }
    }

    /// Joins the queue of the lock.
    fn join(&self, rejoins: bool) -> Result<(Arc<Waiter>, Option<Turn>)> {
        let Self { shared, name, caller, wait, .. } = self;
        // A hold that is found lost leaves the head.
        if *wait == Wait::No
            && let Some(hold) = shared.wait_queues.holder(caller.kind, name)
        {
            shared.reporter.expire(&hold);
        }
        shared.wait_queues.join(self.next_hold(), caller, *wait == Wait::Endless, rejoins)
    }

    fn next_hold(&self) -> HoldId {
        self.shared.next_hold(&self.caller, self.name)
    }

    /// Lets the canceller end the wait, if there is one.
    fn watch(&self, waiter: &Arc<Waiter>) -> Option<CancellableWait> {
        self.caller.options.canceller.as_ref().map(|canceller| waiter.watch(canceller))
    }

    /// Waits behind the other threads of this client.
    fn wait_for_turn(&self, waiter: &Waiter) -> Result<Turn> {
        let waits = (self.wait != Wait::No).then(|| {
            report_contended(self.shared, self.name, &self.contended);
            self.shared.counters.begin_wait()
        });
        let turn = turn::wait(&self.shared.wait_queues, waiter, self.wait);
        drop(waits);
        match &turn {
            Ok(Turn::HandedOff(_) | Turn::Head(_) | Turn::Kept(_)) => {}
            _ => self.leave(waiter),
        }
        if matches!(turn, Ok(Turn::Look | Turn::TimedOut)) {
            report_contended(self.shared, self.name, &self.contended);
        }
        turn
    }

    /// Cleans up after a thread that is in the queue no more, and has no hold.
    fn leave(&self, waiter: &Waiter) {
        if waiter.is_in_doubt() {
            self.shared.clean_up(&waiter.hold, waiter.lease, false);
        }
    }

    /// Makes one attempt outside the queue, for another hold than the head may have asked for.
    fn acquire_outside(&self) -> Result<Option<Arc<Hold>>> {
        let waiter = Arc::new(Waiter::new(self.next_hold(), &self.caller));
        let _watch = self.watch(&waiter);
        let acquired = try_until_acquired(&mut self.attempt(&waiter, Arrival::Outside));
        acquired.map(Some).or_else(|stopped| {
            self.leave(&waiter);
            stopped.into_result(self.name)
        })
    }

    /// Makes sure that the lock can be asked about, by a request that overtakes no other thread.
    fn look(&self) -> Result<()> {
        let Self { shared, name, caller, wait, .. } = self;
        let retry = RetryPolicy::new(*wait, &shared.config, caller.times);
        let sleep = |pause| {
            shared.wait_queues.pause(pause)?;
            caller.options.check_cancelled(name)
        };
        let look = |deadline| shared.store.inspect(name, deadline);
        status::repeat_with(shared, retry, sleep, "acquire", name, look).map(drop)
    }

    /// Acquires the lock at the head of the queue. Without it the next waiter becomes the head.
    pub(super) fn acquire_at_head(
        &self,
        waiter: &Waiter,
        arrival: Arrival,
    ) -> Result<Option<Arc<Hold>>> {
        let head =
            QueueHead::new(&self.shared.wait_queues, &waiter.hold, self.wait == Wait::Endless);
        let mut attempt = self.attempt(waiter, arrival);
        match try_until_acquired(&mut attempt) {
            Ok(hold) if self.caller.kind == HoldKind::Lock => {
                head.keep();
                self.shared.wait_queues.set_acquired(&hold);
                Ok(Some(hold))
            }
            Ok(hold) => {
                head.leave();
                Ok(Some(hold))
            }
            Err(stopped) => {
                self.leave(waiter);
                let next = head.give_up(&stopped);
                // The place among the waiting clients is the next thread's too, if that wants the
                // same.
                let stays = next.is_some_and(|next| next.waits_with(self.caller.kind));
                match stopped {
                    Stopped::Ended(_) if !stays => attempt.post_unregistration(),
                    Stopped::TimedOut if !stays => attempt.unregister(),
                    _ => {}
                }
                stopped.into_result(self.name)
            }
        }
    }

    fn attempt<'a>(&'a self, waiter: &'a Waiter, arrival: Arrival) -> Attempt<'a> {
        Attempt::new(self.shared, &self.caller, self.wait, &self.contended, waiter, arrival)
    }
}
