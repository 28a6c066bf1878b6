//! Acquiring a lock, from the call to the hold.
//!
//! Decides what a call does, and what its end means for the waiters. If its thread holds the lock,
//! it adds a level. Else it waits behind the other threads of this client, and then tries, waits
//! and tries again: at the head of the queue, or outside it with a single attempt.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{slice, thread};

use crate::base::failure::Failure;
use crate::base::spans::CallSpan;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::attempt::Attempt;
use crate::local::call::{Caller, Counted, Wait, are_own, current_thread};
use crate::local::head_requests::refill;
use crate::local::hold::Hold;
use crate::local::hold_requests::{Level, nest};
use crate::local::release;
use crate::local::retry::{Backoff, RetryPolicy};
use crate::local::shared::Shared;
use crate::local::status;
use crate::local::wait_queues::{Pauses, WaitQueues};
use crate::local::waiter::{WaitEnd, Waiter};
use crate::store::hold_id::HoldKind;
use crate::store::keys::check_name;
use crate::store::request::Registration;

/// How often a thread whose time is over checks what the thread in front has learned.
const LOOK_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// A call for a lock.
pub(super) struct LockCall<'a> {
    pub(super) shared: &'a Shared,
    pub(super) kind: HoldKind,
    pub(super) name: &'a Arc<str>,
    pub(super) caller: &'a Caller,
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
    let _call = Counted::begin(&shared.counters.unsettled);
    check(shared, name, options)?;
    if let Some(hold) = held_already(shared, name, options)? {
        return nest(shared, hold, options.cancelled_by.as_ref(), wait).map(Some);
    }
    let thread = Some(current_thread());
    let caller = Caller::new(&shared.config, shared.times, options, wait, thread);
    let Some(hold) = acquire_one(shared, HoldKind::Lock, name, &caller)? else { return Ok(None) };
    shared.held_locks.insert(name, &hold);
    Ok(Some(Level { hold, depth: 1 }))
}

/// Acquires a hold that belongs to no thread. `None` if it cannot be had when the wait is over.
pub(crate) fn owned(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Arc<Hold>>> {
    let _call = Counted::begin(&shared.counters.unsettled);
    check(shared, name, options)?;
    if kind.is_lock() {
        // It never nests, but waits for a hold of this thread like any other.
        held_already(shared, name, options)?;
    } else {
        shared.check_has_members()?;
    }
    let caller = Caller::new(&shared.config, shared.times, options, wait, None);
    acquire_one(shared, kind, name, &caller)
}

fn acquire_one(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    caller: &Caller,
) -> Result<Option<Arc<Hold>>> {
    let call = LockCall { shared, kind, name, caller, contended: Cell::default() };
    reported(shared, caller, name, &call.contended, slice::from_ref, || call.acquire())
}

/// Has `acquire` acquire the locks with these names, and reports how that went, also for how long
/// the call has waited if it was `contended`.
pub(super) fn reported<T>(
    shared: &Shared,
    caller: &Caller,
    names: &str,
    contended: &Cell<bool>,
    holds: impl Fn(&T) -> &[Arc<Hold>],
    acquire: impl FnOnce() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let span = CallSpan::open(|| names);
    let outcome = acquire().and_then(|acquired| {
        check_wanted(shared, caller, acquired.as_ref().map_or(&[], &holds))?;
        Ok(acquired)
    });
    let waited = caller.begin.elapsed();
    let Ok(Some(acquired)) = &outcome else {
        shared.reporter.report_failure(names, caller, outcome.as_ref().err());
        span.close(waited, || None);
        return outcome;
    };
    for hold in holds(acquired) {
        hold.span.open(&hold.id.name, || hold.fence());
        if caller.in_set {
            shared.reporter.report_acquired(hold, caller);
        }
    }
    if contended.get() {
        shared.reporter.events.report_wait(waited);
    }
    span.close(waited, || Some(holds(acquired)[0].fence()).filter(|_| !caller.in_set));
    outcome
}

/// Gives back new holds, with an error, if the client was closed in the meantime, or the wait
/// cancelled: the thread that did so may be what has freed their locks.
fn check_wanted(shared: &Shared, caller: &Caller, holds: &[Arc<Hold>]) -> Result<()> {
    let wanted = match (&caller.canceller, holds) {
        _ if shared.wait_queues.closed.load(Ordering::SeqCst) => Err(Error::Closed),
        (Some(canceller), [hold, ..]) => canceller.check(&hold.id.name),
        _ => Ok(()),
    };
    if wanted.is_err() {
        release::give_back(shared, holds, caller);
    }
    wanted
}

/// Returns the hold that the calling thread has of a lock, if there is one. Of a lock that is not
/// reentrant that is an error.
fn held_already(
    shared: &Shared,
    name: &Arc<str>,
    options: &LockOptions,
) -> Result<Option<Arc<Hold>>> {
    match shared.held_locks.find(name) {
        Some(_) if !options.reentrant => Err(Error::AlreadyHeld { name: name.to_string() }),
        held => Ok(held),
    }
}

/// Returns an error if no lock can be acquired so.
pub(super) fn check(shared: &Shared, name: &str, options: &LockOptions) -> Result<()> {
    shared.check_process()?;
    check_name(&shared.config.prefix, name)?;
    // The client's own were checked when it was opened.
    if !are_own(options, &shared.config) {
        options.check(&shared.config)?;
    }
    if let Some(canceller) = &options.cancelled_by {
        canceller.check(name)?;
    }
    if shared.wait_queues.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
}

/// A thread that may be at the head of a wait queue. It is not left there if it panics.
struct QueueHead<'a>(&'a WaitQueues, &'a Waiter);

impl Drop for QueueHead<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.give_up_head(self.1);
        }
    }
}

impl LockCall<'_> {
    /// Acquires the lock, and reports nothing but contention.
    pub(super) fn acquire(&self) -> Result<Option<Arc<Hold>>> {
        let Self { shared, kind, name, caller, .. } = self;
        let queues = &shared.wait_queues;
        // A hold that is found lost leaves the head.
        if matches!(caller.wait, Wait::No)
            && let Some(hold) = queues.holder(*kind, name)
        {
            shared.reporter.expire(&hold);
        }
        let mut rejoins = false;
        loop {
            let (waiter, end) =
                queues.join(shared.next_hold(*kind, name, caller), caller, rejoins)?;
            let _watch = caller.canceller.as_ref().map(|canceller| waiter.watch(canceller));
            let end = match end.map_or_else(|| self.wait_behind(&waiter), Ok)? {
                WaitEnd::Look => self.look(&waiter)?,
                end => end,
            };
            return match end {
                WaitEnd::Failed(failure) => {
                    Err(failure.into_error_of(kind.noun(), "acquire", name))
                }
                WaitEnd::HandedOff(hold) if shared.reporter.begin_handed_off(&hold, caller) => {
                    Ok(Some(hold))
                }
                WaitEnd::Kept(hold) if shared.reporter.begin_kept(&hold, caller) => Ok(Some(hold)),
                WaitEnd::HandedOff(_) | WaitEnd::Kept(_) => {
                    rejoins = true;
                    continue;
                }
                WaitEnd::Head { is_next, after_release, kept } => {
                    self.acquire_at_head(&waiter, is_next, after_release, kept)
                }
                // No thread comes first any more.
                WaitEnd::Look => continue,
                WaitEnd::Outside => self.acquire_outside(),
                WaitEnd::TimedOut => Ok(None),
            };
        }
    }

    /// Waits behind the other threads of this client.
    fn wait_behind(&self, waiter: &Waiter) -> Result<WaitEnd> {
        let Shared { reporter, counters, wait_queues, .. } = self.shared;
        let _waits = (self.caller.wait != Wait::No).then(|| {
            reporter.report_contended(self.name, &self.contended);
            Counted::begin(&counters.waiting)
        });
        let end = wait_queues.wait(waiter, self.caller.wait);
        if !matches!(end, Ok(WaitEnd::HandedOff(_) | WaitEnd::Head { .. } | WaitEnd::Kept(_))) {
            self.clean_up(waiter);
        }
        if matches!(end, Ok(WaitEnd::Look | WaitEnd::TimedOut)) {
            reporter.report_contended(self.name, &self.contended);
        }
        end
    }

    /// Cleans up after a thread that is in the queue no more, and has no hold.
    fn clean_up(&self, waiter: &Waiter) {
        if waiter.in_doubt.load(Ordering::Relaxed) {
            self.shared.clean_up(&waiter.hold, self.caller.times.lease, false);
        }
    }

    /// Makes one attempt outside the queue, for another hold than the head may have asked for. A
    /// client has one place among the waiting clients: that of the thread which may try again.
    fn acquire_outside(&self) -> Result<Option<Arc<Hold>>> {
        let Self { shared, kind, name, caller, contended } = self;
        let waiter = Arc::new(Waiter::new(shared.next_hold(*kind, name, caller), caller));
        let _watch = caller.canceller.as_ref().map(|canceller| waiter.watch(canceller));
        let after_release = !shared.wait_queues.released(*kind, name).is_empty();
        let none = Registration::None;
        let acquired = Attempt::new(shared, &waiter, contended, none, after_release).run(None);
        if !matches!(acquired, Ok(Some(_))) {
            self.clean_up(&waiter);
        }
        acquired
    }

    /// Finds out what keeps a thread from the lock whose time is over, while another comes first,
    /// by a request that overtakes none. Another client's hold is contention. Otherwise what the
    /// head learns next counts for this thread, too: the lock may be free, or held by this very
    /// client, which may be taking that hold back. Returns `Look` if there is no such head.
    fn look(&self, waiter: &Waiter) -> Result<WaitEnd> {
        let Self { shared, kind, name, caller, .. } = self;
        let queues = &shared.wait_queues;
        let pauses = Pauses::of_wait(queues, caller.canceller.as_ref());
        let end = caller.request_deadline();
        let retry = RetryPolicy::new(caller.wait, &shared.config, caller.times);
        let holder = status::repeat_with(shared, retry, &pauses, "acquire", name, |deadline| {
            shared.store.inspect(name, deadline)
        })?;
        if holder.is_some_and(|holder| !holder.is_owned_by(&shared.client)) {
            return Ok(WaitEnd::TimedOut);
        }
        queues.wake(*kind, name);
        for pause in Backoff::new(LOOK_PAUSES) {
            match queues.known_to(waiter) {
                Some(WaitEnd::Look) if Instant::now() < end => pauses.sleep(pause, name)?,
                Some(WaitEnd::Look) => break,
                Some(known) => return Ok(known),
                None => return Ok(WaitEnd::Look),
            }
        }
        let why = "the thread in front has had no reply in time";
        Ok(WaitEnd::Failed(Failure::too_late(&Arc::from("the server"), why)))
    }

    /// Acquires the lock at the head of the queue. Without it the next waiter becomes the head, and
    /// with a hold that other threads can share, too.
    pub(super) fn acquire_at_head(
        &self,
        waiter: &Waiter,
        is_next: bool,
        mut after_release: bool,
        kept: Option<Arc<Hold>>,
    ) -> Result<Option<Arc<Hold>>> {
        let Self { shared, kind, caller, contended, .. } = self;
        let _head = QueueHead(&shared.wait_queues, waiter);
        let mut failed = None;
        if let Some(kept) = kept {
            match refill(shared, waiter, &kept) {
                Ok(true) => return Ok(Some(kept)),
                Ok(false) => {}
                // It counts as the first attempt.
                Err(failure) => failed = Some(failure),
            }
            after_release = true;
        }
        let registration = match caller.wait.is_over() {
            _ if is_next => Registration::Registered,
            false => Registration::IfHeld,
            true if kind.is_lock() => Registration::IfMayBeKept,
            true => Registration::None,
        };
        let mut attempt = Attempt::new(shared, waiter, contended, registration, after_release);
        // One that becomes the head after `close` has sent its signals does not get one.
        let is_open = if is_next { shared.wait_queues.check_open() } else { Ok(()) };
        let acquired = is_open.and_then(|()| attempt.run(failed));
        if matches!(acquired, Ok(Some(_))) {
            if !matches!(kind, HoldKind::Lock) {
                shared.wait_queues.give_up_head(waiter);
            }
        } else {
            self.clean_up(waiter);
            let next = shared.wait_queues.give_up_head(waiter);
            // The place among the waiting clients is the next thread's too, if that wants the same.
            if !next.is_some_and(|next| next.waits_with(*kind)) {
                attempt.unregister();
            }
        }
        acquired
    }
}
