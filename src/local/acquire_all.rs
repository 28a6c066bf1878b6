//! Acquiring several locks: all of them or none.
//!
//! Decides what to wait for. While all locks are free, one request per group takes them. Otherwise
//! the call gives back what it has, waits for the lock that was in the way like any call for that
//! lock, and tries for the others again once it has that one. It also gives back what it has when a
//! server does not answer, and asks that server first next time. So it never waits while it holds a
//! lock, and no order of names can make two calls wait for each other.

use std::cell::Cell;
use std::sync::Arc;
use std::{slice, thread};

use crate::base::clock::{Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::spans::CallSpan;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::acquire::{LockCall, check};
use crate::local::call::{Caller, Wait};
use crate::local::call_reports::{report_contended, report_outcome};
use crate::local::hold::{Hold, local_deadline};
use crate::local::release;
use crate::local::retry::{Backoff, RetryPolicy};
use crate::local::shared::Shared;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Acquire, AcquireReply, Registration};

/// A call for several locks.
struct SetCall<'a> {
    shared: &'a Shared,
    names: &'a [Arc<str>],
    caller: Caller,
    wait: Wait,
    /// Whether it was reported that a lock is held.
    contended: Cell<bool>,
}

/// What an attempt for several locks has brought.
enum Attempted {
    /// A hold of each name, in the order of the names.
    Acquired(Vec<Arc<Hold>>),
    /// No hold. The lock of the name with this index is held by another owner.
    Held(usize),
    /// No hold. The server has not answered for this group, which the call tries for again before
    /// any other.
    Unanswered(Group),
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
    let _call = shared.counters.begin_call();
    check_names(shared, names, options)?;
    let caller = Caller::owned(&shared.config, options, HoldKind::Lock);
    let caller = Caller { in_set: true, ..caller };
    let call = SetCall { shared, names, caller, wait, contended: Cell::default() };
    let span = CallSpan::open(|| names.join(", "));
    let outcome = call.acquire().and_then(|holds| {
        release::check_wanted(shared, options, holds.as_deref().unwrap_or_default())?;
        Ok(holds)
    });
    let waited = call.caller.begin.elapsed();
    if let Ok(Some(holds)) = &outcome {
        for hold in holds {
            hold.span.open(hold.name(), hold.fence());
            shared.reporter.report_acquired(hold, &call.caller);
        }
    } else {
        report_outcome(shared, &names.join(", "), wait, &outcome, waited);
    }
    span.close(waited, None);
    outcome
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
    let thread = thread::current().id();
    match names.iter().find(|name| shared.held_locks.find(thread, name).is_some()) {
        Some(held) => Err(Error::AlreadyHeld { name: held.to_string() }),
        None => Ok(()),
    }
}

impl SetCall<'_> {
    fn acquire(&self) -> Result<Option<Vec<Arc<Hold>>>> {
        let mut backoff = Backoff::new(self.shared.config.backoff);
        let mut first: Option<(usize, Arc<Hold>)> = None;
        let mut settled = false;
        let mut retry = self.retry();
        let mut unanswered = None;
        loop {
            let had_first = first.is_some();
            let index = match self.attempt(first.take(), unanswered.take(), &mut retry)? {
                Attempted::Acquired(holds) => return Ok(Some(holds)),
                Attempted::Held(index) => index,
                Attempted::Unanswered(group) => {
                    (unanswered, settled) = (Some(group), false);
                    continue;
                }
            };
            retry = self.retry();
            // It may be a hold of this client whose release is on its way.
            if !settled
                && !self
                    .shared
                    .wait_queues
                    .released(self.caller.kind, &self.names[index])
                    .is_empty()
            {
                settled = true;
                self.shared.store.settle(end_of(self.caller.times.io_timeout));
                continue;
            }
            report_contended(self.shared, &self.names[index], &self.contended);
            if had_first {
                // Two calls that were in each other's way should not meet again.
                let Some(pause) = self.wait.cut(backoff.next().unwrap_or_default()) else {
                    return self.check_is_lock(index).map(|()| None);
                };
                let _waiting = self.shared.counters.begin_wait();
                self.shared.wait_queues.pause(pause)?;
            }
            if self.wait.is_over() {
                return self.check_is_lock(index).map(|()| None);
            }
            let Some(hold) = self.lock(index)? else { return Ok(None) };
            first = Some((index, hold));
        }
    }

    /// Waits for the lock of the name with this index alone.
    fn lock(&self, index: usize) -> Result<Option<Arc<Hold>>> {
        let (name, contended) = (&self.names[index], self.contended.clone());
        let Self { shared, caller, wait, .. } = self;
        LockCall { shared, name, caller: caller.clone(), wait: *wait, contended }.acquire()
    }

    fn retry(&self) -> RetryPolicy {
        RetryPolicy::new(self.wait, &self.shared.config, self.caller.times)
    }

    /// Asks what is in the way under the name with this index: an attempt for several locks does
    /// not look at it closely. Without an answer it counts as a lock that is held.
    ///
    /// # Errors
    ///
    /// `WrongType` if it is no lock.
    fn check_is_lock(&self, index: usize) -> Result<()> {
        let name = &self.names[index];
        let begin = self.wait.deadline().unwrap_or(self.caller.begin);
        let asked = self.shared.store.inspect(name, begin + self.caller.times.io_timeout);
        match asked {
            Err(failure) if failure.kind == FailureKind::WrongType => {
                Err(failure.into_error("acquire", name))
            }
            _ => Ok(()),
        }
    }

    /// Tries once for all locks but the first, which it has already if there is one. What was
    /// unanswered before goes before the others.
    fn attempt(
        &self,
        first: Option<(usize, Arc<Hold>)>,
        unanswered: Option<Group>,
        retry: &mut RetryPolicy,
    ) -> Result<Attempted> {
        let mut held: Vec<_> = first.into_iter().collect();
        let is_missing = |index: &usize| {
            held.iter().all(|(held, _)| held != index)
                && unanswered.as_ref().is_none_or(|group| !group.indexes.contains(index))
        };
        let missing: Vec<usize> = (0..self.names.len()).filter(is_missing).collect();
        let names: Vec<_> = missing.iter().map(|index| self.names[*index].clone()).collect();
        let end_kept = |name: &Arc<str>| self.shared.wait_queues.end_kept_of(name);
        self.shared.post_releases(&names.iter().filter_map(end_kept).collect::<Vec<_>>());
        let groups = self.shared.store.groups(&names);
        let groups = groups.iter().map(|group| self.group(group.iter().map(|at| missing[*at])));
        for group in unanswered.into_iter().chain(groups) {
            let outcome = self.attempt_group(&group, retry);
            if outcome.is_ok() {
                self.shared.record_reply(&group.holds[0].name);
            }
            let stopped = match outcome {
                Ok(Ok(holds)) => {
                    retry.record_reply();
                    held.extend(group.indexes.into_iter().zip(holds));
                    continue;
                }
                Ok(Err(index)) => Ok(Attempted::Held(index)),
                Err(failure) => Err(failure),
            };
            for (_, hold) in &held {
                release::unlock_on_drop(self.shared, slice::from_ref(hold));
            }
            return stopped.or_else(|failure| self.pause_after(failure, group, retry));
        }
        held.sort_unstable_by_key(|(index, _)| *index);
        Ok(Attempted::Acquired(held.into_iter().map(|(_, hold)| hold).collect()))
    }

    fn group(&self, indexes: impl Iterator<Item = usize>) -> Group {
        let indexes: Vec<usize> = indexes.collect();
        let Self { shared, caller, names, .. } = self;
        let hold = |index: &usize| shared.identity.next_hold(caller.kind, &names[*index]);
        Group { holds: indexes.iter().map(hold).collect(), indexes, in_doubt: false }
    }

    /// Waits after a request for a group has failed, unless trying again is pointless.
    fn pause_after(
        &self,
        mut failure: Failure,
        mut group: Group,
        retry: &mut RetryPolicy,
    ) -> Result<Attempted> {
        // A hold that a quorum has withdrawn must not be requested again.
        group.in_doubt |= failure.is_ambiguous() || failure.is_shortfall();
        let withdraws = self.shared.withdraws;
        let pause = if withdraws { None } else { retry.pause_after(&mut failure) };
        self.shared.record_failure(&group.holds[0].name, &failure, pause);
        if pause.is_some_and(|pause| self.shared.wait_queues.pause(pause).is_ok()) {
            return Ok(Attempted::Unanswered(group));
        }
        if group.in_doubt {
            self.clean_up(&group);
        }
        let failed = Err(failure.into_error("acquire", &self.names[group.indexes[0]]));
        self.shared.wait_queues.check_open().and(failed)
    }

    /// Tries once for the locks of a group. Without them returns the index of the one that is held.
    fn attempt_group(
        &self,
        group: &Group,
        retry: &RetryPolicy,
    ) -> Result<Result<Vec<Arc<Hold>>, usize>, Failure> {
        let Group { indexes, holds, in_doubt } = group;
        let lease = self.caller.times.lease;
        let sent = Moment::now();
        let deadline = retry.request_deadline();
        let request = Acquire { holds, lease, registration: Registration::None, deadline };
        match self.shared.store.acquire(request)? {
            AcquireReply::Acquired { .. } if Moment::now() >= local_deadline(sent, lease) => {
                Err(Failure::late())
            }
            AcquireReply::Acquired { fence, others, .. } => {
                let begin = |(id, fence): (&HoldId, u64)| {
                    let hold = Arc::new(Hold::new(id.clone(), fence, 0, &self.caller, sent));
                    if *in_doubt {
                        hold.mark_in_doubt();
                    }
                    self.shared.add_hold(&hold, &self.caller);
                    hold
                };
                Ok(Ok(holds.iter().zip([fence].into_iter().chain(others)).map(begin).collect()))
            }
            AcquireReply::Held { index, in_doubt: now_in_doubt, .. } => {
                if *in_doubt || now_in_doubt {
                    self.clean_up(group);
                }
                Ok(Err(indexes[index]))
            }
        }
    }

    fn clean_up(&self, group: &Group) {
        for hold in &group.holds {
            self.shared.clean_up(hold, self.caller.times.lease, false);
        }
    }
}
