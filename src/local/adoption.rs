//! Detaching a hold from its guard, and adopting it with another guard, perhaps in another process
//! or as another kind of hold.
//!
//! Decides what happens to a hold in between: no client renews it, and it ends with its lease
//! unless a guard adopts it first, or its ticket renews or releases it. Adopting a hold renews it
//! under its existing owner, so there is no moment at which another client could get the lock, and
//! nothing to undo if a reply is lost. A thread that adopts a hold does not join a wait queue.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::{self, Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::random;
use crate::base::spans::CallSpan;
use crate::config::LockOptions;
use crate::error::{Error, LossCause, Result};
use crate::local::acquire::check;
use crate::local::attempts::Attempts;
use crate::local::hold_requests::verify;
use crate::local::shared::Shared;
use crate::protocol::call::{Caller, Counted, HoldOwner, Wait};
use crate::protocol::hold::{Grant, Hold, HoldFailure, reliable};
use crate::protocol::tenure::{HoldInput, Tenure};
use crate::store::ask_one;
use crate::store::hold_id::{HoldId, HoldKind};
use crate::store::request::{
    Change, DETACHED, HoldReply, HoldRequest, NextLease, PostedChange, Unused,
};

/// A hold of a lock without a guard.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct DetachedHold {
    pub(crate) id: HoldId,
    pub(crate) fence: u64,
    /// The duration of a whole lease.
    pub(crate) lease: Duration,
    /// How long the lock stays taken after its adoption, however early it is released.
    pub(crate) taken_for: Duration,
    /// Whether a request that began the hold may be executed again.
    pub(crate) may_begin: bool,
    pub(crate) note: Option<Arc<str>>,
}

/// Renews a hold, and ends it in this process only.
///
/// # Errors
///
/// If it cannot be renewed, or is over. Then its guard still has it.
pub(crate) fn detach(shared: &Shared, hold: &Arc<Hold>) -> Result<DetachedHold> {
    verify(shared, slice::from_ref(hold), true)?;
    // Renewed first, so that the adopter has a whole lease for that.
    let left = leave(shared, hold, "detach")?;
    show_depth(shared, &left, DETACHED);
    Ok(left)
}

/// Shows operators whether a hold has a guard. Does not wait for the reply: if the request fails,
/// only what operators see is wrong.
fn show_depth(shared: &Shared, left: &DetachedHold, depth: u32) {
    let change = Change::SetDepth { depth, lease: None, durable: false };
    let deadline = end_of(shared.times_for(left.lease).io_timeout);
    let request = HoldRequest { hold: &left.id, change, deadline };
    // This is not worth waiting for a connection.
    let write_by = clock::now();
    shared.store.post(vec![PostedChange { request, write_by, on_reply: Box::new(drop) }]);
}

/// Ends a hold in this process only, so that another guard can have it.
///
/// # Errors
///
/// If it is over. Then its guard still has it.
pub(crate) fn leave(
    shared: &Shared,
    hold: &Arc<Hold>,
    action: &'static str,
) -> Result<DetachedHold> {
    shared.check_process()?;
    if !shared.reporter.step(hold, HoldInput::Leave) {
        return Err(hold.to_error(HoldFailure::of(hold), action, Moment::now()));
    }
    if let Some(span) = hold.span.take() {
        span.close(false);
    }
    Ok(DetachedHold {
        id: hold.id.clone(),
        fence: hold.fence(),
        lease: hold.lease(),
        taken_for: hold.taken_until().left(),
        may_begin: hold.may_begin,
        note: hold.note().cloned(),
    })
}

/// Adopts a detached hold, by renewing it.
#[track_caller]
pub(crate) fn adopt(shared: &Shared, left: &DetachedHold) -> Result<Arc<Hold>> {
    let lease = left.lease;
    let LockOptions { renew, max_hold, .. } = &*shared.config.options;
    let options =
        LockOptions { lease, renew: *renew, max_hold: *max_hold, ..LockOptions::default() };
    check(shared, &left.id.name, &options)?;
    let hold_at_least = Some(left.taken_for).filter(|time| !time.is_zero());
    let note = left.note.clone();
    let options = LockOptions { hold_at_least, note, ..options };
    let hold = have(shared, left, &options, "adopt", |lease| Change::Renew { lease })?;
    show_depth(shared, left, 1);
    Ok(hold)
}

/// Renews a detached hold with one request, and leaves it detached.
pub(crate) fn renew(shared: &Shared, left: &DetachedHold) -> Result<()> {
    let caller = caller_for(shared, left)?;
    renew_detached(shared, &caller, &left.id, "renew", |lease| Change::Renew { lease }).map(drop)
}

/// Releases a detached hold with one request, without adopting it first.
pub(crate) fn release(shared: &Shared, left: &DetachedHold) -> Result<()> {
    let caller = caller_for(shared, left)?;
    let keeps = !left.taken_for.is_zero();
    let taken_until = if keeps { Moment::now().after(left.taken_for) } else { Moment::FIRST };
    let mut in_doubt = false;
    let released = request(shared, &caller, "release", &left.id.name, |deadline| {
        let change = Change::Release { taken_until, unused: None };
        let reply = ask_one(&*shared.store, HoldRequest { hold: &left.id, change, deadline });
        in_doubt |= reply.as_ref().is_err_and(Failure::is_ambiguous);
        reply
    });
    let is_clear = matches!(released, Ok(_) | Err(Error::Lost { .. }));
    if !is_clear || left.may_begin {
        let debt = Hold::debt(left.id.clone(), left.lease, left.may_begin);
        shared.reporter.renewer.pay(Arc::new(debt.that_stays_taken(taken_until)));
    }
    // If a repeat finds the hold gone, the attempt without a reply released it.
    let is_released = released? == HoldReply::Done || in_doubt;
    shared.wake_first(left.id.kind, &left.id.name);
    if is_released { Ok(()) } else { Err(Error::lost(&left.id.name, LossCause::Gone.into())) }
}

/// Returns the caller of a request about a detached hold.
fn caller_for(shared: &Shared, left: &DetachedHold) -> Result<Caller> {
    let options = LockOptions { lease: left.lease, ..LockOptions::default() };
    check(shared, &left.id.name, &options)?;
    let begin = clock::now();
    Ok(Caller::new(&shared.config, shared.times, &options, Wait::No, HoldOwner::Guard, begin))
}

/// Returns the tokens that the tenure of a writer has left.
pub(crate) fn unused(shared: &Shared, writer: &Hold) -> Option<Unused> {
    shared.names.unused(writer)
}

/// Turns a detached writer into a reader with the same owner, token and age. Readers get the token
/// before the unused ones of its tenure, which is that of the last writer.
#[track_caller]
pub(crate) fn downgrade(
    shared: &Shared,
    writer: &Hold,
    left: DetachedHold,
    unused: Option<Unused>,
) -> Result<Arc<Hold>> {
    let id = HoldId { kind: HoldKind::Read, ..left.id };
    let lease = left.lease;
    let left = DetachedHold { id, ..left };
    let options = LockOptions {
        lease,
        renew: writer.renewed,
        max_hold: Some(writer.age_left(Moment::now())),
        note: left.note.clone(),
        ..LockOptions::default()
    };
    let reader =
        have(shared, &left, &options, "downgrade", |lease| Change::Downgrade { lease, unused });
    // Without a reply, either hold may exist, and the request may be executed late.
    let is_clear = matches!(reader, Ok(_) | Err(Error::Lost { .. }));
    if !is_clear || left.may_begin {
        shared.owe(&writer.id, lease);
    }
    if !is_clear {
        shared.owe(&left.id, lease);
    }
    reader
}

/// Renews a detached hold, and begins it in this process.
#[track_caller]
fn have(
    shared: &Shared,
    left: &DetachedHold,
    options: &LockOptions,
    action: &'static str,
    renewal: impl FnOnce(NextLease) -> Change,
) -> Result<Arc<Hold>> {
    let _call = Counted::begin(&shared.counters.unfinished);
    let name = &left.id.name;
    let begin = clock::now();
    let caller =
        Caller::new(&shared.config, shared.times, options, Wait::No, HoldOwner::Guard, begin);
    let span = CallSpan::open(|| &**name);
    let renewed = renew_detached(shared, &caller, &left.id, action, renewal);
    if let Err(error) = &renewed {
        shared.reporter.report_failure(name, &caller, Some(error));
    }
    span.close(caller.begin, || if renewed.is_ok() { Some(left.fence) } else { None });
    let sent = renewed?;
    let replied = Moment::now();
    let grant = Grant { fence: left.fence, room: 0, may_begin: left.may_begin, sent, replied };
    let tenure = Tenure::new(left.id.clone(), &grant, &caller);
    let Some(hold) = shared.reporter.begin_beside(tenure, sent, &caller) else {
        return Err(Error::lost(name, LossCause::Gone.into()));
    };
    hold.span.open(name, || left.fence);
    Ok(hold)
}

/// Renews a detached hold, and returns when the successful request was sent.
fn renew_detached(
    shared: &Shared,
    caller: &Caller,
    id: &HoldId,
    action: &'static str,
    renewal: impl FnOnce(NextLease) -> Change,
) -> Result<Moment> {
    let lease = NextLease { duration: caller.times.lease, whole: caller.terms.lease };
    let change = renewal(lease);
    let mut sent = Moment::FIRST;
    let reply = request(shared, caller, action, &id.name, |deadline| {
        sent = Moment::now();
        match ask_one(&*shared.store, HoldRequest { hold: id, change, deadline }) {
            // After a pause of this process, the lease may be over, and the hold must get no guard.
            Ok(HoldReply::Done) if sent.elapsed() >= reliable(caller.times.lease) => {
                Err(Failure::late())
            }
            reply => reply,
        }
    })?;
    if reply == HoldReply::Gone {
        Err(Error::lost(&id.name, LossCause::Gone.into()))
    } else {
        Ok(sent)
    }
}

/// Makes a request about a detached hold, and repeats it after failures.
fn request(
    shared: &Shared,
    caller: &Caller,
    action: &'static str,
    name: &str,
    mut ask: impl FnMut(Instant) -> Result<HoldReply, Failure>,
) -> Result<HoldReply> {
    // The `check` of its caller has found the client open.
    let attempts = Attempts::new(shared, caller.times, Wait::No, random()).of_open_client();
    attempts.repeat(action, name, |deadline| match ask(deadline) {
        // Another program has replaced the lock with something else.
        Err(failure) if failure.kind == FailureKind::WrongType => Ok(HoldReply::Gone),
        reply => reply,
    })
}
