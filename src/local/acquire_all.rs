//! Acquiring several locks: all of them or none.
//!
//! Decides what to wait for. If all locks are free, one request per group takes them, and these go
//! out together. Otherwise the call gives back the locks that it has, waits for the held one like
//! any call for that lock, and then tries for the others again. It also gives back its locks when a
//! server does not answer, and asks that server first next time. So no order of names can make two
//! calls wait for each other.
//!
//! If many calls want the same locks, each would find that another one has just taken one of them.
//! So from then on they ask in the same order, one group after the other, and wait for the same
//! lock. And a call that has waited for one waits a moment for a later one without giving it back
//! ([`SetCall::wait_beside`]).

use std::sync::Arc;
use std::time::Duration;
use std::{iter, mem};

use crate::base::clock::{self, Moment};
use crate::base::failure::{Failure, FailureKind};
use crate::base::random;
use crate::base::spans::CallSpan;
use crate::config::LockOptions;
use crate::error::{Error, LossCause, Result};
use crate::local::acquire::{LockCall, check, report};
use crate::local::attempts::Attempts;
use crate::local::release;
use crate::local::shared::{Releases, Shared};
use crate::protocol::call::{Caller, Counted, HoldOwner, Wait};
use crate::protocol::hold::{Grant, Hold, reliable};
use crate::protocol::retry::{Backoff, RetryPolicy};
use crate::protocol::tenure::Tenure;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{Acquire, AcquireReply, Registration};

/// Maximum number of groups that are asked for together, within the time of one request.
const TOGETHER: usize = 256;

/// How long a call waits for a lock while it has others, in attempts.
const TIMES_BESIDE: u32 = 6;

/// A call for several locks.
struct SetCall<'a> {
    shared: &'a Shared,
    names: &'a [Arc<str>],
    /// The indexes of the names, sorted by name.
    order: Vec<usize>,
    caller: &'a Caller,
    /// The holds that the call has, by the index of the name.
    holds: Vec<Option<Arc<Hold>>>,
    /// The locks for which requests are on their way.
    asked: Vec<Group>,
    /// The locks for which the last request failed.
    unanswered: Option<Group>,
    attempts: Attempts<'a>,
    /// The pauses after attempts in which a lease ended while the call asked for other locks: to
    /// acquire all of them may take longer than a lease lasts, however often the call tries.
    too_short: RetryPolicy,
    /// The pauses before locks for which the call has waited before.
    backoff: Backoff,
    /// For which locks the call has waited, by the index of the name.
    waited: Vec<bool>,
    /// Whether the call has read the replies to releases that were on their way, since the last
    /// failure.
    drained: bool,
    /// Its number among the calls that look for deadlocks, once it has waited.
    looker: Option<u64>,
    /// Whether the call has reported that a lock is held.
    contended: bool,
}

/// Neither an error nor a panic leaves holds without a guard.
impl Drop for SetCall<'_> {
    fn drop(&mut self) {
        for group in self.asked.drain(..) {
            // A panic has come between these requests and their replies.
            group.owe(self.shared, self.caller);
        }
        self.give_up_unanswered();
        self.give_back();
    }
}

/// Names whose locks one request acquires, by their indexes, and the holds that it asks for.
struct Group {
    indexes: Vec<usize>,
    holds: Vec<HoldId>,
    /// Whether a request without a reply may have begun the holds, or may still begin them.
    may_begin: bool,
}

/// Acquires all locks or none. Returns `None` if the wait ends first.
#[track_caller]
pub(crate) fn acquire_all(
    shared: &Shared,
    names: &[Arc<str>],
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Vec<Arc<Hold>>>> {
    let _call = Counted::begin(&shared.counters.unfinished);
    let order = checked_order(shared, names, options)?;
    let owner = HoldOwner::Guard;
    let caller = Caller::new(&shared.config, shared.times, options, wait, owner, clock::now());
    let caller = &Caller { in_set: true, ..caller };
    let all = names.join(", ");
    let span = CallSpan::open(|| &*all);
    let mut call = SetCall {
        shared,
        names,
        order,
        caller,
        holds: vec![None; names.len()],
        asked: Vec::new(),
        unanswered: None,
        attempts: Attempts::new(shared, caller.times, wait, random())
            .of_open_client()
            .of_set(caller),
        too_short: RetryPolicy::new(wait, shared.config.retry_window, caller.times, random()),
        backoff: Backoff::new(shared.config.backoff, random()),
        waited: vec![false; names.len()],
        drained: false,
        looker: None,
        contended: false,
    };
    let outcome = call.acquire();
    report(shared, caller, &all, (span, call.contended), outcome, Vec::as_slice)
}

/// Returns the indexes of the names, sorted by name, or an error if no call can acquire these
/// locks.
fn checked_order(shared: &Shared, names: &[Arc<str>], options: &LockOptions) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Err(Error::invalid("names", "must not be empty"));
    }
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_unstable_by_key(|index| &names[*index]);
    for pair in order.windows(2) {
        let name = &names[pair[0]];
        if *name == names[pair[1]] {
            return Err(Error::invalid("names", format_args!("have {name:?} twice")));
        }
    }
    for name in names {
        check(shared, name, options)?;
    }
    match names.iter().find(|name| shared.held_locks.find(name).is_some()) {
        Some(held) => Err(Error::AlreadyHeld { name: held.to_string() }),
        None => Ok(order),
    }
}

impl SetCall<'_> {
    /// Tries for all locks, waits for one that another owner holds, and tries for the others again.
    fn acquire(&mut self) -> Result<Option<Vec<Arc<Hold>>>> {
        loop {
            self.attempts.check(&self.names[0])?;
            let begun = clock::now();
            let has_waited = self.holds.iter().any(Option::is_some);
            let goes_on = match self.attempt() {
                Ok(Some(held)) => {
                    let attempt = clock::now() - begun;
                    has_waited && self.wait_beside(held, attempt)? || self.wait_alone(held)?
                }
                // One may have been lost while the call asked and waited for others.
                Ok(None) => match self.give_back_lost() {
                    None => return Ok(Some(self.holds.drain(..).flatten().collect())),
                    Some(lost) => self.pause_after_loss(&lost)?,
                },
                Err(failure) => {
                    self.pause_after(failure)?;
                    self.drained = false;
                    true
                }
            };
            if !goes_on {
                return Ok(None);
            }
        }
    }

    /// Gives back all locks, and waits for one that is held. Returns `false` if the wait is over.
    fn wait_alone(&mut self, held: usize) -> Result<bool> {
        let Self { shared, caller, .. } = *self;
        self.give_back();
        let name = &self.names[held];
        // It may be a hold of this client whose release is on its way.
        let may_be_own = !shared.names.debts(HoldKind::Lock, name).is_empty();
        if may_be_own && !self.drained {
            self.drained = true;
            shared.store.drain(caller.request_deadline(clock::now()));
            return Ok(true);
        }
        if !may_be_own {
            self.too_short.record_reply();
        }
        shared.reporter.report_contended(name, &mut self.contended);
        let again = mem::replace(&mut self.waited[held], true);
        if again {
            self.pause_between_waits(name)?;
        }
        // A call that does not wait tries once for each held lock, because it may only be kept.
        let is_over =
            if caller.wait == Wait::No { again } else { caller.wait.is_over(clock::now()) };
        if is_over {
            self.check_is_lock(name)?;
            return Ok(false);
        }
        self.holds[held] = self.wait_for(held, caller)?;
        Ok(self.holds[held].is_some())
    }

    /// Pauses before a lock for which the call has waited before: two calls that were in each
    /// other's way should not meet again.
    fn pause_between_waits(&mut self, name: &str) -> Result<()> {
        let pause = self.backoff.next().unwrap_or_default();
        let Some(pause) = self.caller.wait.cut(pause, clock::now()) else { return Ok(()) };
        let _waiting = Counted::begin(&self.shared.counters.waiting);
        self.attempts.sleep(pause, name)
    }

    /// Waits for a lock that the call has reported as held.
    fn wait_for(&mut self, held: usize, caller: &Caller) -> Result<Option<Arc<Hold>>> {
        let name = &self.names[held];
        let mut call = LockCall::new(self.shared, HoldKind::Lock, name, caller, self.looker);
        call.contended = true;
        let outcome = call.acquire();
        self.looker = call.looker;
        outcome
    }

    /// Waits for a held lock without giving back what the call has, if all of that comes earlier in
    /// the order of names: so no two such calls wait for each other. Others that have the lock only
    /// to try for more give it back within the time of an attempt. Returns `true` if the call has
    /// the lock. Most errors are ignored here, because the next attempt finds them again.
    ///
    /// # Errors
    ///
    /// `Deadlock` if this call must fail to break one, because the next attempt may not find it
    /// again.
    fn wait_beside(&mut self, held: usize, attempt: Duration) -> Result<bool> {
        let names = self.names;
        let caller = self.caller;
        let latest = self.holds.iter().flatten().map(|hold| &hold.id.name).max();
        if latest.is_none_or(|name| name > &names[held]) {
            return Ok(false);
        }
        let now = clock::now();
        // So other calls for these locks wait for a few attempts at most.
        let Some(time) = caller.wait.cut(attempt * TIMES_BESIDE, now) else { return Ok(false) };
        let caller = &Caller { wait: Wait::Until(now + time), ..caller.clone() };
        self.holds[held] = match self.wait_for(held, caller) {
            Err(error @ Error::Deadlock { .. }) => return Err(error),
            acquired => acquired.unwrap_or_default(),
        };
        Ok(self.holds[held].is_some())
    }

    /// Checks that the name that is in the way is a lock, because an attempt for several locks does
    /// not tell. Without an answer, it counts as a held lock.
    ///
    /// # Errors
    ///
    /// `WrongType` if it is not a lock.
    fn check_is_lock(&self, name: &str) -> Result<()> {
        // Within the time limit of the last request of the call.
        let begin = self.caller.wait.deadline().unwrap_or(self.caller.begin);
        match self.shared.store.inspect(name, begin + self.caller.times.io_timeout) {
            Err(failure) if failure.kind == FailureKind::WrongType => {
                Err(failure.into_error("acquire", name))
            }
            _ => Ok(()),
        }
    }

    /// Tries once for the locks that the call does not have, first for those in `unanswered`. If it
    /// cannot get all of them, it returns the index of a lock that another owner holds, or gives
    /// back those that it has and sets `unanswered`.
    fn attempt(&mut self) -> Result<Option<usize>, Failure> {
        let shared = self.shared;
        let first = self.unanswered.take();
        let mut is_missing: Vec<_> = self.holds.iter().map(Option::is_none).collect();
        first.iter().flat_map(|group| &group.indexes).for_each(|index| is_missing[*index] = false);
        let in_order = self.order.iter().copied();
        let missing: Vec<_> = in_order.filter(|index| is_missing[*index]).collect();
        let names: Vec<_> = missing.iter().map(|index| self.names[*index].clone()).collect();
        // Locks that this client only keeps would hold up its own request.
        let ended: Vec<_> = names.iter().filter_map(|name| shared.names.end_kept(name)).collect();
        Releases::of(shared, ended).post(Some(self.caller.write_by(clock::now())));
        let groups = shared.store.groups(&names).into_iter().map(|places| {
            let mut group = Group { indexes: Vec::new(), holds: Vec::new(), may_begin: false };
            for place in places {
                let hold = shared.new_hold_of(self.caller, HoldKind::Lock, &names[place]);
                group.indexes.push(missing[place]);
                group.holds.push(hold);
            }
            group
        });
        // Calls that are in each other's way ask in the same order, and none has locks while it
        // waits for a server that has not answered.
        let in_order = self.contended || first.is_some();
        let together = if in_order { 1 } else { TOGETHER };
        let mut groups = first.into_iter().chain(groups);
        loop {
            let batch: Vec<_> = groups.by_ref().take(together).collect();
            if batch.is_empty() {
                return Ok(None);
            }
            let outcome = self.attempt_groups(batch);
            if matches!(outcome, Ok(None)) {
                continue;
            }
            if outcome.is_err() {
                self.give_back();
            }
            return outcome;
        }
    }

    fn give_back(&mut self) {
        self.give_back_if(|_| true);
    }

    /// Gives back locks that are lost. Returns the first, if there are any.
    fn give_back_lost(&mut self) -> Option<Arc<Hold>> {
        let shared = self.shared;
        self.give_back_if(|hold| !shared.is_held(hold))
    }

    /// Gives back the locks that match. Returns the first of them, if there are any.
    fn give_back_if(&mut self, matches: impl Fn(&Arc<Hold>) -> bool) -> Option<Arc<Hold>> {
        let mut given_back = Vec::new();
        for hold in &mut self.holds {
            given_back.extend(hold.take_if(|hold| matches(hold)));
        }
        release::give_back(self.shared, &given_back, self.caller);
        given_back.into_iter().next()
    }

    /// Pauses after a lock of the set was lost before the last one was acquired. Returns `false` if
    /// the wait is over: the client that has ended it counts as its holder.
    ///
    /// # Errors
    ///
    /// `Unavailable` if its lease was over, and trying again is pointless.
    fn pause_after_loss(&mut self, lost: &Hold) -> Result<bool> {
        let name = &lost.id.name;
        let mut failure = Failure::too_short();
        let cause = lost.loss(Moment::now()).cause;
        let was_over = matches!(cause, LossCause::Expired | LossCause::MaxHold);
        match self.too_short.pause_after(&mut failure, clock::now()) {
            Some(pause) => self.attempts.sleep(pause, name).map(|()| true),
            None if !was_over && self.caller.wait != Wait::Endless => Ok(false),
            None => Err(failure.into_error("acquire", name)),
        }
    }

    /// Pauses after a failed request for a group, unless trying again is pointless.
    fn pause_after(&mut self, mut failure: Failure) -> Result<()> {
        let shared = self.shared;
        let Some(group) = &mut self.unanswered else { return Ok(()) };
        group.may_begin |= failure.is_in_doubt();
        let name = &self.names[group.indexes[0]];
        if shared.store.withdraws() {
            // A hold that a quorum has withdrawn must not be requested again.
            self.give_up_unanswered();
        }
        if self.attempts.pause_after(&mut failure, name) {
            return Ok(());
        }
        Err(self.attempts.to_error(failure, "acquire", name))
    }

    /// Stops asking for the holds for which the last request failed. They may exist.
    fn give_up_unanswered(&mut self) {
        if let Some(group) = self.unanswered.take()
            && group.may_begin
        {
            group.owe(self.shared, self.caller);
        }
    }

    /// Tries once for the locks of some groups. If one is held, returns its index. If a request
    /// fails, sets `unanswered`.
    fn attempt_groups(&mut self, groups: Vec<Group>) -> Result<Option<usize>, Failure> {
        let Self { shared, caller, .. } = *self;
        let lease = caller.times.lease;
        let sent = Moment::now();
        let deadline = self.attempts.request_deadline();
        let note = caller.note.as_deref();
        let registration = Registration::None;
        self.asked = groups;
        let mut requests = Vec::with_capacity(self.asked.len());
        for Group { holds, .. } in &self.asked {
            requests.push(Acquire { holds, lease, note, registration, echo: false, deadline });
        }
        let replies = shared.store.acquire_together(&requests);
        let mut outcome = Ok(None);
        for (group, reply) in mem::take(&mut self.asked).into_iter().zip(replies) {
            match reply.and_then(|reply| self.take(&group, &reply, sent)) {
                Ok(held) => {
                    shared.reporter.record_reply(&group.holds[0].name);
                    self.attempts.record_reply();
                    if matches!(outcome, Ok(None)) {
                        outcome = Ok(held);
                    }
                }
                Err(failure) if outcome.is_ok() => {
                    self.unanswered = Some(group);
                    outcome = Err(failure);
                }
                // The next attempt asks for new holds.
                Err(failure) => {
                    if group.may_begin || failure.is_in_doubt() {
                        group.owe(shared, caller);
                    }
                }
            }
        }
        outcome
    }

    /// Takes the locks of a group that a request has acquired. If one is held, returns its index:
    /// perhaps by a call of this client that has got it since, while this one waited for replies.
    fn take(
        &mut self,
        group: &Group,
        reply: &AcquireReply,
        sent: Moment,
    ) -> Result<Option<usize>, Failure> {
        let Self { shared, caller, .. } = *self;
        match reply {
            AcquireReply::Acquired { .. } if sent.elapsed() >= reliable(caller.times.lease) => {
                Err(Failure::late())
            }
            AcquireReply::Acquired { fence, others, .. } => {
                let fences = iter::once(fence).chain(others);
                let replied = Moment::now();
                let mut held = None;
                for ((index, id), fence) in group.indexes.iter().zip(&group.holds).zip(fences) {
                    let may_begin = group.may_begin;
                    let grant = Grant { fence: *fence, room: 0, may_begin, sent, replied };
                    let tenure = Tenure::new(id.clone(), &grant, caller);
                    self.holds[*index] = shared.reporter.begin_beside(tenure, sent, caller);
                    if self.holds[*index].is_none() {
                        shared.owe(id, caller.times.lease);
                        held = Some(*index);
                    }
                }
                Ok(held)
            }
            AcquireReply::Held { index, in_doubt, .. } => {
                if group.may_begin || *in_doubt {
                    group.owe(shared, caller);
                }
                Ok(Some(group.indexes[*index]))
            }
        }
    }
}

impl Group {
    fn owe(&self, shared: &Shared, caller: &Caller) {
        for hold in &self.holds {
            shared.owe(hold, caller.times.lease);
        }
    }
}
