//! Acquiring several locks: all of them or none.
//!
//! Decides what to wait for. While all locks are free, one request per group takes them. Else the
//! call gives back what it has, waits for the lock that was in the way as any call for that lock
//! does, and tries for the others again once it has that one. So it never waits while it holds a
//! lock, and no order of names can make two calls wait for each other.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;

use crate::clock::{Moment, end_of};
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::local::acquire::{LockCall, check};
use crate::local::call::{Caller, Wait};
use crate::local::call_reports::{report_contended, report_outcome};
use crate::local::lease::{Lease, local_deadline};
use crate::local::release;
use crate::local::retry::{Backoff, RetryPolicy};
use crate::local::shared::Shared;
use crate::spans::CallSpan;
use crate::store::hold::{HoldId, HoldKind};
use crate::store::request::{AcquireAll, AcquireAllReply};

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
    Acquired(Vec<Arc<Lease>>),
    /// No hold. The lock of the name with this index is held by another owner.
    Held(usize),
}

/// Acquires all locks or none. `None` if they cannot be had when the wait is over.
pub(crate) fn acquire_all(
    shared: &Shared,
    names: &[Arc<str>],
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Vec<Arc<Lease>>>> {
    let _call = shared.counters.begin_call();
    check_names(shared, names, options)?;
    let caller = Caller::owned(&shared.config, options, HoldKind::Lock);
    let caller = Caller { in_set: true, ..caller };
    let call = SetCall { shared, names, caller, wait, contended: Cell::default() };
    let span = CallSpan::open(|| names.join(", "));
    let outcome = call.acquire().and_then(|leases| {
        release::check_wanted(shared, options, leases.as_deref().unwrap_or_default())?;
        Ok(leases)
    });
    let waited = call.caller.begin.elapsed();
    if let Ok(Some(leases)) = &outcome {
        for lease in leases {
            lease.span.open(lease.name(), lease.fence);
            shared.report_acquired(lease, &call.caller);
            if lease.set_reported() {
                shared.end_reports.ends.tell_loss(lease);
            }
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
    fn acquire(&self) -> Result<Option<Vec<Arc<Lease>>>> {
        let mut backoff = Backoff::new(self.shared.config.backoff);
        let mut first: Option<(usize, Arc<Lease>)> = None;
        let mut settled = false;
        loop {
            let index = match self.attempt(first.as_ref())? {
                Attempted::Acquired(leases) => return Ok(Some(leases)),
                Attempted::Held(index) => index,
            };
            // It may be a hold of this client whose release is on its way.
            if !settled && !self.shared.wait_queues.released(&self.names[index]).is_empty() {
                settled = true;
                self.shared.store.settle(end_of(self.caller.times.io_timeout));
                self.give_back(first.take());
                continue;
            }
            report_contended(self.shared, &self.names[index], &self.contended);
            if first.is_some() {
                self.give_back(first.take());
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
            let call = LockCall {
                shared: self.shared,
                name: &self.names[index],
                caller: self.caller.clone(),
                wait: self.wait,
                contended: self.contended.clone(),
            };
            match call.acquire()? {
                Some(lease) => first = Some((index, lease)),
                None => return Ok(None),
            }
        }
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

    fn give_back(&self, first: Option<(usize, Arc<Lease>)>) {
        if let Some((_, lease)) = first {
            release::give_back(self.shared, &lease);
        }
    }

    /// Tries once for all locks but the first, which it has already if there is one.
    fn attempt(&self, first: Option<&(usize, Arc<Lease>)>) -> Result<Attempted> {
        let wanted: Vec<usize> = (0..self.names.len())
            .filter(|index| first.is_none_or(|(held, _)| held != index))
            .collect();
        let names: Vec<Arc<str>> = wanted.iter().map(|index| self.names[*index].clone()).collect();
        let mut leases: Vec<Option<Arc<Lease>>> = vec![None; self.names.len()];
        for group in self.shared.store.groups(&names) {
            let names: Vec<&Arc<str>> = group.iter().map(|index| &names[*index]).collect();
            let outcome = self.attempt_group(&names);
            let stopped = match outcome {
                Ok(Ok(acquired)) => {
                    for (index, lease) in group.iter().zip(acquired) {
                        leases[wanted[*index]] = Some(lease);
                    }
                    continue;
                }
                Ok(Err(index)) => Ok(Attempted::Held(wanted[group[index]])),
                Err(failure) => {
                    if let Some((_, lease)) = first {
                        release::give_back(self.shared, lease);
                    }
                    let failed = Err(failure.into_error("acquire", names[0]));
                    self.shared.wait_queues.check_open().and(failed)
                }
            };
            leases.iter().flatten().for_each(|lease| release::give_back(self.shared, lease));
            return stopped;
        }
        if let Some((index, lease)) = first {
            leases[*index] = Some(lease.clone());
        }
        Ok(Attempted::Acquired(leases.into_iter().flatten().collect()))
    }

    /// Tries once for the locks of a group. Without them returns the index of the one that is held.
    fn attempt_group(
        &self,
        names: &[&Arc<str>],
    ) -> Result<Result<Vec<Arc<Lease>>, usize>, Failure> {
        let (shared, caller) = (self.shared, &self.caller);
        let holds: Vec<HoldId> =
            names.iter().map(|name| shared.identity.next_hold(caller.kind, name)).collect();
        let lease = caller.times.lease;
        let mut retry = RetryPolicy::new(self.wait, &shared.config, caller.times);
        let mut in_doubt = false;
        let clean_up = || holds.iter().for_each(|hold| shared.clean_up(hold, lease, false));
        loop {
            let sent = Moment::now();
            let deadline = retry.request_deadline();
            let reply = shared.store.acquire_all(AcquireAll { holds: &holds, lease, deadline });
            let mut failure = match reply {
                Ok(AcquireAllReply::Acquired { fences }) => {
                    if Moment::now() < local_deadline(sent, lease) {
                        return Ok(Ok(self.begin(holds, &fences, sent, in_doubt)));
                    }
                    Failure::late()
                }
                Ok(AcquireAllReply::Held { index }) => {
                    if in_doubt {
                        clean_up();
                    }
                    return Ok(Err(index));
                }
                Ok(AcquireAllReply::Unknown { index }) => {
                    clean_up();
                    return Ok(Err(index));
                }
                Err(failure) => failure,
            };
            // A hold that a quorum has withdrawn must not be requested again.
            in_doubt |= failure.is_ambiguous() || failure.is_shortfall();
            let pause = if shared.withdraws { None } else { retry.pause_after(&mut failure) };
            if pause.is_some_and(|pause| shared.wait_queues.pause(pause).is_ok()) {
                continue;
            }
            if in_doubt {
                clean_up();
            }
            return Err(failure);
        }
    }

    fn begin(
        &self,
        holds: Vec<HoldId>,
        fences: &[u64],
        sent: Moment,
        in_doubt: bool,
    ) -> Vec<Arc<Lease>> {
        let leases = holds.into_iter().zip(fences).map(|(hold, fence)| {
            let lease = Arc::new(Lease::new(hold, *fence, &self.caller, sent));
            if in_doubt {
                lease.mark_in_doubt();
            }
            self.shared.add_hold(&lease, &self.caller);
            lease
        });
        leases.collect()
    }
}
