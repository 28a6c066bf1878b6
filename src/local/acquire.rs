//! Acquiring a lock, from the call to the hold.
//!
//! Decides what a call does. If its thread holds the lock, it adds a level. Else it waits behind
//! the other threads of this client, and then tries, waits and tries again: at the head of the
//! queue, where the lock may be handed off to it, or outside it with a single attempt. Decides also
//! what an attempt and the end of a call mean for the waiters.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::canceller::CancellableWait;
use crate::clock::Moment;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::failure::Failure;
use crate::local::attempt::{Arrival, Attempt, NewHold, Tried, report_contended};
use crate::local::beside;
use crate::local::call::{Caller, Wait};
use crate::local::lease::Lease;
use crate::local::reentrancy::{self, Level};
use crate::local::retry::{Backoff, is_outage};
use crate::local::shared::Shared;
use crate::local::turn::{self, Turn, TurnLimit};
use crate::local::wait_queue::Place;
use crate::local::wait_queues::{Position, WaitQueues};
use crate::local::waiter::Waiter;
use crate::spans::CallSpan;
use crate::store::hold::HoldKind;

/// A call for a lock.
pub(super) struct LockCall<'a> {
    pub(super) shared: &'a Shared,
    pub(super) name: &'a Arc<str>,
    pub(super) caller: Caller,
    pub(super) wait: Wait,
    /// Whether the call has reported that the lock is held.
    pub(super) contended: Cell<bool>,
}

/// How a call goes on when it does not wait behind other threads any more.
enum Start {
    /// At the head of the queue.
    AtHead(Arrival),
    /// With one attempt outside the queue, as one of several that may succeed.
    Beside,
    /// With the lock, which was handed off to it.
    HandedOff(Arc<Lease>),
    /// With one attempt outside the queue.
    Outside,
}

/// Why a call ends without the lock.
enum Stopped {
    /// The client is closed, or the wait is cancelled.
    Ended(Error),
    Failed(Failure),
    TimedOut,
}

impl Stopped {
    fn into_result(self, name: &str) -> Result<Option<Arc<Lease>>> {
        match self {
            Self::Ended(error) => Err(error),
            Self::Failed(failure) => Err(failure.into_error("acquire", name)),
            Self::TimedOut => Ok(None),
        }
    }
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
    if let Some(lease) = shared.held_locks.find(thread::current().id(), name) {
        if !options.reentrant {
            return Err(Error::AlreadyHeld { name: name.to_string() });
        }
        return reentrancy::nest(shared, lease, wait).map(Some);
    }
    let caller = Caller::current(&shared.config, options);
    let lease = LockCall { shared, name, caller, wait, contended: Cell::default() }.run()?;
    Ok(lease.map(|lease| Level { lease, depth: 1 }))
}

/// Acquires a hold that belongs to no thread. `None` if it cannot be had when the wait is over.
pub(crate) fn owned(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Arc<Lease>>> {
    let _call = shared.counters.begin_call();
    check(shared, name, options)?;
    if kind != HoldKind::Lock {
        shared.check_has_members()?;
    }
    let caller = Caller::owned(&shared.config, options, kind);
    LockCall { shared, name, caller, wait, contended: Cell::default() }.run()
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
    fn run(&self) -> Result<Option<Arc<Lease>>> {
        let span = CallSpan::open(|| &**self.name);
        let outcome = self.acquire().and_then(|lease| {
            lease.as_deref().map_or(Ok(()), |lease| self.shared.check_not_ended(lease))?;
            Ok(lease)
        });
        let waited = self.caller.begin.elapsed();
        report_outcome(self.shared, self.name, self.wait, &outcome, waited);
        let lease = outcome.as_ref().ok().and_then(Option::as_ref);
        if let Some(lease) = lease {
            lease.span.open(lease.name(), lease.fence);
        }
        span.close(waited, lease.map(|lease| lease.fence));
        outcome
    }

    /// Acquires the lock, and reports nothing but contention.
    pub(super) fn acquire(&self) -> Result<Option<Arc<Lease>>> {
        let mut place = Place::Last;
        loop {
            let mut cancellable = None;
            let Some((waiter, start)) = self.queue(place, &mut cancellable)? else {
                return Ok(None);
            };
            match start {
                Start::AtHead(arrival) => return self.acquire_at_head(&waiter, arrival),
                Start::Beside => {
                    let attempt = self.attempt(self.first_arrival());
                    if let Some(lease) = beside::acquire(attempt, self.name, self.caller.kind)? {
                        return Ok(Some(lease));
                    }
                    place = Place::First;
                }
                Start::HandedOff(lease) => return Ok(Some(lease)),
                Start::Outside => return self.acquire_outside(&waiter),
            }
        }
    }

    /// Makes one attempt outside the queue.
    fn acquire_outside(&self, waiter: &Waiter) -> Result<Option<Arc<Lease>>> {
        let mut attempt = self.attempt(self.first_arrival());
        match try_until_acquired(&mut attempt, waiter) {
            Ok(NewHold::Acquired { lease, .. } | NewHold::HandedOff(lease)) => Ok(Some(lease)),
            Err(stopped) => {
                attempt.clean_up();
                stopped.into_result(self.name)
            }
        }
    }

    fn first_arrival(&self) -> Arrival {
        Arrival::First { after_release: !self.queues().released(self.name).is_empty() }
    }

    /// Waits behind the other threads of this client, or those that came before. `None` if the wait
    /// is over before.
    fn queue(
        &self,
        place: Place,
        cancellable: &mut Option<CancellableWait>,
    ) -> Result<Option<(Waiter, Start)>> {
        let Self { shared, name, caller, wait, contended } = self;
        let queues = shared.queues(caller.kind);
        let (waiter, position) = if *wait != Wait::No {
            queues.join(name, caller, *wait == Wait::Endless, place)?
        } else if let Some(joined) = queues.try_join(name, caller)? {
            joined
        } else if queues.holder(name).is_some_and(|lease| shared.is_valid(&lease)) {
            report_contended(shared, name, contended);
            return Ok(None);
        } else {
            return Ok(Some((Waiter::new(name), Start::Outside)));
        };
        let canceller = caller.options.canceller.as_ref();
        *cancellable = canceller.map(|canceller| waiter.watch(canceller));
        let start = match position {
            Position::Behind => self.wait_for_turn(&waiter)?,
            Position::Head { after_release } => {
                Some(Start::AtHead(Arrival::First { after_release }))
            }
        };
        Ok(start.map(|start| (waiter, start)))
    }

    fn wait_for_turn(&self, waiter: &Waiter) -> Result<Option<Start>> {
        report_contended(self.shared, self.name, &self.contended);
        let slack = self.caller.times.slack;
        let limit = self.wait.deadline().map(|deadline| TurnLimit { deadline, slack });
        let waiting = self.shared.counters.begin_wait();
        let turn = turn::wait(self.queues(), waiter, limit)?;
        drop(waiting);
        match turn {
            Turn::Beside => Ok(Some(Start::Beside)),
            Turn::Failed(failure) => Err(failure.into_error("acquire", self.name)),
            Turn::HandedOff(lease) => Ok(Some(Start::HandedOff(lease))),
            Turn::HandoffPending(pending) => Ok(Some(Start::AtHead(Arrival::Handoff(pending)))),
            Turn::Head { yields } => Ok(Some(Start::AtHead(Arrival::Next { yields }))),
            Turn::Outside => Ok(Some(Start::Outside)),
            Turn::TimedOut => Ok(None),
        }
    }

    /// Acquires the lock at the head of the queue. Without it the next waiter becomes the head.
    pub(super) fn acquire_at_head(
        &self,
        waiter: &Waiter,
        arrival: Arrival,
    ) -> Result<Option<Arc<Lease>>> {
        let head = self.head();
        let mut attempt = self.attempt(arrival);
        match try_until_acquired(&mut attempt, waiter) {
            Ok(NewHold::Acquired { lease, room }) if self.caller.kind != HoldKind::Lock => {
                head.leave(self.caller.kind, room);
                Ok(Some(lease))
            }
            Ok(NewHold::Acquired { lease, .. }) => {
                head.keep();
                self.queues().set_acquired(&lease);
                Ok(Some(lease))
            }
            Ok(NewHold::HandedOff(lease)) => {
                head.keep();
                self.queues().set_handed_off(&lease);
                Ok(Some(lease))
            }
            Err(stopped) => {
                attempt.clean_up();
                let has_next = head.give_up(&stopped);
                // The next thread may want another kind of hold.
                let leaves = !has_next || self.caller.kind != HoldKind::Lock;
                if leaves && !matches!(stopped, Stopped::Failed(_)) {
                    attempt.unregister();
                }
                stopped.into_result(self.name)
            }
        }
    }

    fn queues(&self) -> &WaitQueues {
        self.shared.queues(self.caller.kind)
    }

    fn attempt(&self, arrival: Arrival) -> Attempt<'_> {
        Attempt::new(self.shared, self.name, &self.caller, self.wait, &self.contended, arrival)
    }

    fn head(&self) -> QueueHead<'_> {
        let endless = self.wait == Wait::Endless;
        QueueHead { queues: self.queues(), name: self.name, endless, kept: false }
    }
}

/// Tries, waits and tries again.
fn try_until_acquired(attempt: &mut Attempt<'_>, waiter: &Waiter) -> Result<NewHold, Stopped> {
    let shared = attempt.shared;
    let queues = attempt.queues();
    let mut backoff = Backoff::new(shared.config.backoff);
    let mut started = None;
    // Until when the lock can be free only because it was released, by the last reply.
    let mut held_until: Option<Moment> = None;
    // Whether the last pause has ended without a wake-up.
    let mut unsignalled = false;
    if attempt.may_be_refused() {
        // A thread that becomes the head after `close` has sent its signals does not get one.
        queues.check_open().map_err(Stopped::Ended)?;
    }
    loop {
        let pause = match attempt.run(started) {
            Ok(Tried::Acquired(hold)) => {
                if unsignalled && held_until.is_some_and(|end| Moment::now() < end) {
                    shared.counters.missed_wakeups.add(1);
                }
                return Ok(hold);
            }
            Ok(Tried::Held { remaining, asked }) => {
                queues.set_answer(waiter, Ok(()));
                let pause = attempt.cut_pause(backoff.next().unwrap_or_default(), remaining);
                held_until = remaining.map(|remaining| asked.after(remaining));
                attempt.wait.cut(pause).ok_or(Stopped::TimedOut)?
            }
            Err(mut failure) => {
                held_until = None;
                let pause = attempt.retry.pause_after(&mut failure);
                // A connection that was found broken is no outage.
                if pause != Some(Duration::ZERO) {
                    queues.set_answer(waiter, Err(&failure));
                }
                pause.ok_or(Stopped::Failed(failure))?
            }
        };
        let _waiting = shared.counters.begin_wait();
        queues.check_open().map_err(Stopped::Ended)?;
        attempt.check_cancelled().map_err(Stopped::Ended)?;
        let asleep = Instant::now();
        started = waiter.sleep(pause, attempt.next_request()).map_err(Stopped::Ended)?;
        unsignalled = asleep.elapsed() >= pause;
        if !unsignalled {
            // The lock was released a moment ago, so that another attempt may soon succeed too.
            backoff = Backoff::new(shared.config.backoff);
        }
        queues.set_pending(waiter);
    }
}

/// Reports that a call has ended without a hold. A hold was reported when it began.
pub(super) fn report_outcome<T>(
    shared: &Shared,
    name: &str,
    wait: Wait,
    outcome: &Result<Option<T>>,
    waited: Duration,
) {
    let Shared { counters, events, .. } = shared;
    match outcome {
        // That the lock is held was reported when the only attempt found it so.
        Ok(None) if wait == Wait::No => counters.busy.add(1),
        Ok(None) => {
            counters.timed_out.add(1);
            events.emit(|| Event::TimedOut { name: name.to_string(), waited });
            events.debug(|| format!("waited for lock {name:?} in vain, for {waited:?}"));
        }
        Err(error) if error.is_failure() => {
            counters.failed.add(1);
            let reason = || error.with_causes();
            events.emit(|| Event::Failed { name: name.to_string(), waited, reason: reason() });
            events.debug(|| format!("lock {name:?} failed after {waited:?}: {}", reason()));
        }
        Ok(_) | Err(_) => {}
    }
}

/// The head of a wait queue, which is given up even if the thread panics.
struct QueueHead<'a> {
    queues: &'a WaitQueues,
    name: &'a Arc<str>,
    /// Whether the call waits without limit.
    endless: bool,
    kept: bool,
}

impl QueueHead<'_> {
    /// Stays the head, with the lock.
    fn keep(mut self) {
        self.kept = true;
    }

    /// Makes the next thread the head, which may have the lock as well.
    fn leave(mut self, kind: HoldKind, room: u32) {
        self.kept = true;
        self.queues.leave_head(self.name, kind, room);
    }

    /// Returns `true` if another thread is at the head now.
    fn give_up(mut self, stopped: &Stopped) -> bool {
        self.kept = true;
        let outage = match stopped {
            Stopped::Failed(failure) if self.endless && is_outage(failure) => Some(failure),
            Stopped::Ended(_) | Stopped::Failed(_) | Stopped::TimedOut => None,
        };
        self.queues.give_up_head(self.name, outage)
    }
}

impl Drop for QueueHead<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.queues.give_up_head(self.name, None);
        }
    }
}
