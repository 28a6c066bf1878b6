//! Acquiring several locks: all of them or none.
//!
//! Decides what to wait for. While all locks are free, one request per group takes them. Otherwise
//! the call gives back what it has, waits for the lock that was in the way like any call for that
//! lock, and tries for the others again once it has that one. It also gives back what it has when a
//! server does not answer, and asks that server first next time. So it never waits while it holds a
//! lock, and no order of names can make two calls wait for each other.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{iter, mem, slice};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::acquire::{LockCall, check, reported};
use crate::local::call::{Caller, Counted, Wait};
use crate::local::hold::Hold;
use crate::local::lease::reliable;
use crate::local::release;
use crate::local::retry::{Backoff, RetryPolicy};
use crate::local::shared::Shared;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Acquire, AcquireReply, Registration};

/// A call for several locks.
struct SetCall<'a> {
    shared: &'a Shared,
    names: &'a [Arc<str>],
    caller: &'a Caller,
    /// Whether it was reported that a lock is held.
    contended: Cell<bool>,
}

/// Names whose locks one request acquires, by their indexes, and the holds that it asks for.
struct Group {
    indexes: Vec<usize>,
    holds: Vec<HoldId>,
    /// Whether a request without a reply may have begun the holds, or may still begin them.
    in_doubt: bool,
}

/// Acquires all locks or none. `None` if they cannot be had when the wait is over.
pub(crate) fn acquire_all(
    shared: &Shared,
    names: &[Arc<str>],
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Vec<Arc<Hold>>>> {
    let _call = Counted::begin(&shared.counters.unsettled);
    check_names(shared, names, options)?;
    let caller = Caller::owned(&shared.config, shared.times, options, wait);
    let caller = &Caller { in_set: true, ..caller };
    let call = SetCall { shared, names, caller, contended: Cell::default() };
    reported(shared, caller, &names.join(", "), Vec::as_slice, || call.acquire())
}

/// Returns an error if no call can acquire these locks.
fn check_names(shared: &Shared, names: &[Arc<str>], options: &LockOptions) -> Result<()> {
    if names.is_empty() {
        return Err(Error::invalid("names", "must not be empty"));
    }
    let mut sorted: Vec<&Arc<str>> = names.iter().collect();
    sorted.sort_unstable();
    if let Some([twice, ..]) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid("names", format_args!("have {twice:?} twice")));
    }
    for name in names {
        check(shared, name, options)?;
    }
    match names.iter().find(|name| shared.held_locks.find(name).is_some()) {
        Some(held) => Err(Error::AlreadyHeld { name: held.to_string() }),
        None => Ok(()),
    }
}

impl SetCall<'_> {
    fn acquire(&self) -> Result<Option<Vec<Arc<Hold>>>> {
        let Self { shared, names, caller, contended } = self;
        let mut backoff = Backoff::new(shared.config.backoff);
        let mut holds: Vec<Option<Arc<Hold>>> = vec![None; names.len()];
        let (mut unanswered, mut settled, mut retry) = (None, false, self.retry());
        let mut tried = vec![false; names.len()];
        loop {
            let held = match self.attempt(&mut holds, &mut unanswered, &mut retry) {
                Ok(None) => return Ok(Some(holds.into_iter().flatten().collect())),
                Ok(Some(held)) => held,
                Err(failure) => {
                    self.pause_after(failure, unanswered.as_mut(), &mut retry)?;
                    settled = false;
                    continue;
                }
            };
            retry = self.retry();
            // It may be a hold of this client whose release is on its way.
            if !settled && !shared.wait_queues.released(HoldKind::Lock, &names[held]).is_empty() {
                settled = true;
                shared.store.settle(end_of(caller.times.io_timeout));
                continue;
            }
            shared.reporter.report_contended(&names[held], contended);
            let again = mem::replace(&mut tried[held], true);
            if again && let Some(pause) = caller.wait.cut(backoff.next().unwrap_or_default()) {
                // Two calls that were in each other's way should not meet again.
                let _waiting = Counted::begin(&shared.counters.waiting);
                shared.wait_queues.pause(pause)?;
            }
            // A call that does not wait tries once for each lock, which may only be kept.
            let is_over = if caller.wait == Wait::No { again } else { caller.wait.is_over() };
            if is_over {
                return self.check_is_lock(held).map(|()| None);
            }
            let (kind, name, contended) = (HoldKind::Lock, &names[held], contended.clone());
            match (LockCall { shared, kind, name, caller, contended }).acquire()? {
                Some(hold) => holds[held] = Some(hold),
                None => return Ok(None),
            }
        }
    }

    fn retry(&self) -> RetryPolicy {
        RetryPolicy::new(self.caller.wait, &self.shared.config, self.caller.times)
    }

    /// Asks what is in the way under the name with this index: an attempt for several locks does
    /// not look at it closely. Without an answer it counts as a lock that is held.
    ///
    /// # Errors
    ///
    /// `WrongType` if it is no lock.
    fn check_is_lock(&self, index: usize) -> Result<()> {
        let name = &self.names[index];
        let begin = self.caller.wait.deadline().unwrap_or(self.caller.begin);
        match self.shared.store.inspect(name, begin + self.caller.times.io_timeout) {
            Err(failure) if failure.kind == FailureKind::WrongType => {
                Err(failure.into_error("acquire", name))
            }
            _ => Ok(()),
        }
    }

    /// Tries once for the locks that the call does not have, first for those that are unanswered
    /// for. Without all of them it gives back what it has, and returns the index of a lock that
    /// another owner holds, or sets what is unanswered for.
    fn attempt(
        &self,
        holds: &mut [Option<Arc<Hold>>],
        unanswered: &mut Option<Group>,
        retry: &mut RetryPolicy,
    ) -> Result<Option<usize>, Failure> {
        let shared = self.shared;
        let first = unanswered.take();
        let is_first =
            |index: &usize| first.as_ref().is_some_and(|group| group.indexes.contains(index));
        let is_missing = |index: &usize| holds[*index].is_none() && !is_first(index);
        let missing: Vec<usize> = (0..self.names.len()).filter(is_missing).collect();
        let names: Vec<_> = missing.iter().map(|index| self.names[*index].clone()).collect();
        let end_kept = |name: &Arc<str>| shared.wait_queues.end_kept_of(name);
        shared.post_releases(&names.iter().filter_map(end_kept).collect::<Vec<_>>());
        let groups = shared.store.groups(&names);
        let groups = groups.iter().map(|group| self.group(group.iter().map(|at| missing[*at])));
        for group in first.into_iter().chain(groups) {
            let outcome = self.attempt_group(&group, holds, retry);
            if outcome.is_ok() {
                shared.reporter.outages.record_reply(&group.holds[0].name);
            }
            if matches!(outcome, Ok(None)) {
                retry.record_reply();
                continue;
            }
            for hold in holds.iter_mut().filter_map(Option::take) {
                release::unlock_on_drop(shared, slice::from_ref(&hold));
            }
            *unanswered = outcome.is_err().then_some(group);
            return outcome;
        }
        Ok(None)
    }

    fn group(&self, indexes: impl Iterator<Item = usize>) -> Group {
        let indexes: Vec<usize> = indexes.collect();
        let Self { shared, names, .. } = self;
        let hold = |index: &usize| shared.new_hold(HoldKind::Lock, &names[*index]);
        Group { holds: indexes.iter().map(hold).collect(), indexes, in_doubt: false }
    }

    /// Waits after a request for a group has failed, unless trying again is pointless.
    fn pause_after(
        &self,
        mut failure: Failure,
        unanswered: Option<&mut Group>,
        retry: &mut RetryPolicy,
    ) -> Result<()> {
        let Some(group) = unanswered else { return Ok(()) };
        // A hold that a quorum has withdrawn must not be requested again.
        group.in_doubt |= failure.is_ambiguous() || failure.is_shortfall();
        let withdraws = self.shared.withdraws;
        let pause = if withdraws { None } else { retry.pause_after(&mut failure) };
        let name = &self.names[group.indexes[0]];
        self.shared.reporter.outages.record_failed_call(name, &failure, pause);
        let slept = pause.map(|pause| self.shared.wait_queues.pause(pause));
        let cancelled = self.caller.check_cancelled(name);
        if matches!(slept, Some(Ok(()))) && cancelled.is_ok() {
            return Ok(());
        }
        if group.in_doubt {
            self.clean_up(group);
        }
        let failed = Err(failure.into_error("acquire", name));
        self.shared.wait_queues.check_open().and(cancelled).and(failed)
    }

    /// Tries once for the locks of a group. Without them returns the index of the one that is held.
    fn attempt_group(
        &self,
        group: &Group,
        holds: &mut [Option<Arc<Hold>>],
        retry: &RetryPolicy,
    ) -> Result<Option<usize>, Failure> {
        let Group { indexes, holds: ids, in_doubt } = group;
        let (lease, registration) = (self.caller.times.lease, Registration::None);
        let (sent, deadline) = (Moment::now(), retry.limits.request_deadline());
        let request = Acquire { holds: ids, lease, registration, deadline };
        match self.shared.store.acquire(request)? {
            AcquireReply::Acquired { .. } if sent.elapsed() >= reliable(lease) => {
                Err(Failure::late())
            }
            AcquireReply::Acquired { fence, others, .. } => {
                let fences = iter::once(fence).chain(others);
                for ((index, id), fence) in indexes.iter().zip(ids).zip(fences) {
                    let hold = Arc::new(Hold::new(id.clone(), fence, 0, self.caller, sent));
                    if *in_doubt {
                        hold.in_doubt.store(true, Ordering::Relaxed);
                    }
                    self.shared.reporter.begin(&hold, self.caller, None);
                    holds[*index] = Some(hold);
                }
                Ok(None)
            }
            AcquireReply::Held { index, in_doubt: now_in_doubt, .. } => {
                if *in_doubt || now_in_doubt {
                    self.clean_up(group);
                }
                Ok(Some(indexes[index]))
            }
        }
    }

    fn clean_up(&self, group: &Group) {
        for hold in &group.holds {
            self.shared.clean_up(hold, self.caller.times.lease, false);
        }
    }
}
