//! Requests about holds of this client: to check, renew or release them, or to change their levels.
//!
//! Decides how often they are repeated, and what the replies mean. `release.rs` decides the end of
//! a hold.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use smallvec::SmallVec;

use crate::base::canceller::Canceller;
use crate::base::clock::{Moment, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::sync::receive;
use crate::error::{Error, Result as ApiResult};
use crate::local::attempts::Attempts;
use crate::local::shared::{Releases, Shared};
use crate::protocol::call::Wait;
use crate::protocol::hold::{Hold, HoldFailure};
use crate::protocol::signals::WantedSignal;
use crate::protocol::tenure::{HoldInput, Tenure};
use crate::store::ask_one;
use crate::store::request::{Change, DETACHED, HoldReply, HoldRequest, PostedChange};

/// One level of a hold, for one guard: a thread may lock a name that it already holds.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) hold: Arc<Hold>,
    pub(crate) depth: u32,
}

/// Adds a level to a hold. The request also checks whether the hold still exists.
pub(super) fn nest(
    shared: &Shared,
    hold: Arc<Hold>,
    canceller: Option<&Canceller>,
    wait: Wait,
) -> ApiResult<Level> {
    let next = hold.depth().checked_add(1);
    let Some(depth) = next.filter(|depth| *depth < DETACHED) else {
        return Err(Error::invalid("depth", "must not be greater than 4294967294"));
    };
    // The thread has the lock, so this waits for the server only, as `verify` does.
    let wait = if wait == Wait::Endless { Wait::No } else { wait };
    let attempts = attempts(shared, &hold, wait);
    let mut attempts = attempts.of_open_client().cancelled_by(canceller);
    match set_depth(shared, &hold, depth, &mut attempts) {
        Ok(()) => Ok(Level { hold, depth }),
        Err(HoldFailure::Failed(failure)) => Err(attempts.to_error(failure, "nest", &hold.id.name)),
        Err(failure) => Err(match hold.to_error(failure, "nest", Moment::now()) {
            Error::Lost { name, cause, last_failure, .. } => {
                Error::Lost { name, cause, last_failure, nested: true }
            }
            error => error,
        }),
    }
}

/// Sets the depth of a hold in the store, and then in this process. This also renews the hold.
pub(super) fn set_depth(
    shared: &Shared,
    hold: &Arc<Hold>,
    depth: u32,
    attempts: &mut Attempts<'_>,
) -> Result<(), HoldFailure> {
    if !shared.is_valid(hold) {
        return Err(HoldFailure::of(hold));
    }
    let change = |hold: &Hold| {
        let lease = if hold.renewed { Some(hold.next_lease(Moment::now())) } else { None };
        Change::SetDepth { depth, lease, durable: true }
    };
    match ask_about_one(shared, hold, change, attempts) {
        Err(HoldFailure::Failed(failure)) if failure.is_shortfall() => {
            if depth > hold.depth() {
                // The level has begun in Redis, but is refused, so it gets no guard.
                restore_depth(shared, hold, attempts.request_deadline());
                return Err(HoldFailure::Failed(failure));
            }
            // The level has ended nevertheless, but does not prolong the hold.
        }
        outcome => outcome?,
    }
    hold.set_depth(depth);
    Ok(())
}

/// Sets the depth in the store back to the local one. Only readers of the key in Redis need this:
/// the next request sets the depth anyway.
fn restore_depth(shared: &Shared, hold: &Hold, deadline: Instant) {
    let depth = hold.depth();
    let change = Change::SetDepth { depth, lease: None, durable: false };
    drop(ask_one(&*shared.store, HoldRequest { hold: &hold.id, change, deadline }));
}

/// The outcome for each of several holds.
type Outcomes = SmallVec<[Result<(), HoldFailure>; 1]>;

/// Asks for a change of each hold, as `change` makes it when the request is sent, batched by
/// server, and waits for the replies. Repeats failed requests, again in batches, while there are
/// `attempts`. The calls that wait for `releases` go on once the first requests were written.
pub(super) fn ask(
    shared: &Shared,
    holds: &[Arc<Hold>],
    change: impl Fn(&Hold) -> Change,
    attempts: &mut Attempts<'_>,
    mut releases: Option<&mut Releases<'_>>,
) -> Outcomes {
    let mut outcomes: Outcomes = holds.iter().map(|_| Ok(())).collect();
    let mut open: SmallVec<[usize; 1]> = (0..holds.len()).collect();
    while !open.is_empty() {
        // A lease counts from before its request: Redis may extend it at any time after that.
        let sent = Moment::now();
        let deadline = attempts.request_deadline();
        let mut requests = Vec::with_capacity(open.len());
        for at in &open {
            let hold = &holds[*at];
            requests.push(HoldRequest { hold: &hold.id, change: change(hold), deadline });
        }
        let mut on_reply = |place: usize, reply| {
            let at = open[place];
            outcomes[at] = conclude(shared, &holds[at], &requests[place], sent, reply);
        };
        match &mut releases {
            Some(releases) if releases.calls_wait() => {
                let released: Vec<_> = open.iter().map(|at| &holds[*at]).collect();
                release_before_next(shared, &released, &requests, releases, &mut on_reply);
            }
            _ => shared.store.ask(&requests, &mut on_reply),
        }
        // The others have their replies, and are not asked about again.
        open.retain(|at| matches!(outcomes[*at], Err(HoldFailure::Failed(_))));
        if !pause_before_next(shared, holds, &open, &mut outcomes, attempts) {
            break;
        }
    }
    outcomes
}

/// Pauses before the failed requests about these holds are repeated. Returns `false` if they are
/// not repeated.
fn pause_before_next(
    shared: &Shared,
    holds: &[Arc<Hold>],
    open: &[usize],
    outcomes: &mut [Result<(), HoldFailure>],
    attempts: &mut Attempts<'_>,
) -> bool {
    let Some(first) = open.first() else { return false };
    let Err(HoldFailure::Failed(failure)) = &mut outcomes[*first] else { return false };
    let pause = attempts.next_pause(failure);
    for at in open {
        if let Err(HoldFailure::Failed(failure)) = &outcomes[*at] {
            shared.reporter.outages.record_failed_call(&holds[*at].id.name, failure, pause);
        }
    }
    attempts.pause(pause, &holds[*first].id.name)
}

fn ask_about_one(
    shared: &Shared,
    hold: &Arc<Hold>,
    change: impl Fn(&Hold) -> Change,
    attempts: &mut Attempts<'_>,
) -> Result<(), HoldFailure> {
    ask(shared, slice::from_ref(hold), change, attempts, None).pop().unwrap_or(Ok(()))
}

/// Sends releases, wakes the threads that wait for these locks, and then reads the replies. Each
/// reply is reported before the next hold of its name begins.
fn release_before_next(
    shared: &Shared,
    holds: &[&Arc<Hold>],
    requests: &[HoldRequest<'_>],
    releases: &mut Releases<'_>,
    on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
) {
    let (sender, replies) = unbounded();
    let mut posts = Vec::with_capacity(requests.len());
    for (place, (released, request)) in holds.iter().zip(requests).enumerate() {
        let reporter = shared.reporter.clone();
        let released = Arc::clone(released);
        let sender = sender.clone();
        posts.push(PostedChange {
            request: *request,
            write_by: request.deadline,
            on_reply: Box::new(move |reply| {
                if let Ok(reply) = &reply {
                    // The thread that reads the reply reports it before it reads the reply to the
                    // next call.
                    reporter.report_reply(&released, Ok(*reply));
                }
                // The unlocking thread waits for this.
                drop(sender.send((place, reply)));
            }),
        });
    }
    shared.store.post(posts);
    // The next call goes on. Its request cannot overtake the release, which is written.
    releases.let_next_try();
    drop(sender);
    // Every post has a reply by its deadline, and the senders are gone then.
    while let Ok((place, reply)) = receive(&replies, end_of(Duration::MAX)) {
        on_reply(place, reply);
    }
}

/// Applies a reply to the hold that it is about.
fn conclude(
    shared: &Shared,
    hold: &Arc<Hold>,
    request: &HoldRequest<'_>,
    sent: Moment,
    reply: Result<HoldReply, Failure>,
) -> Result<(), HoldFailure> {
    let HoldRequest { change, deadline, .. } = *request;
    if reply.is_ok() {
        shared.reporter.record_reply(&hold.id.name);
    }
    match (change, reply) {
        (Change::Release { .. }, reply) => {
            let outcome = hold.release_outcome(reply);
            if matches!(outcome, Err(HoldFailure::Lost)) && !hold.is_lost(Moment::now()) {
                // Before the loss is reported, so that its cause is known by then. If another
                // thread has read the reply, the loss is reported already, and the next hold may
                // have begun since.
                shared.reporter.look(hold, deadline);
            }
            if !matches!(outcome, Err(HoldFailure::Failed(_))) {
                shared.reporter.settle(hold, &outcome);
            }
            return outcome;
        }
        (_, Ok(reply @ (HoldReply::Done | HoldReply::Wanted))) => {
            if reply == HoldReply::Wanted {
                shared.reporter.step(hold, HoldInput::Wanted);
            }
            if let Some(next) = change.lease() {
                shared.reporter.step(hold, HoldInput::Renewed { sent, lease: next.duration });
            }
        }
        // The thread spends what is left of the time for its request to learn why.
        (_, Ok(HoldReply::Gone)) => shared.reporter.lose_and_look(hold, deadline),
        // Another program has replaced the lock with something else.
        (Change::Check | Change::Renew { .. } | Change::Watch { .. }, Err(failure))
            if failure.kind == FailureKind::WrongType =>
        {
            shared.reporter.step(hold, HoldInput::Gone);
        }
        (_, Err(failure)) if shared.is_valid(hold) => return Err(HoldFailure::Failed(failure)),
        // It was lost while the request was on its way, which is what the caller must learn.
        (_, Err(_)) => {}
    }
    // A late reply may have extended nothing: the deadline had passed, and a loss is final.
    if shared.is_valid(hold) { Ok(()) } else { Err(HoldFailure::of(hold)) }
}

/// Checks that holds exist in the store, or renews them, all in one round trip to each server.
///
/// # Errors
///
/// `Lost` for the first lost hold, without a request if the loss is known. `Closed` if a shutdown
/// has ended a hold, or the client was closed before a reply. Otherwise the failure of the first
/// failed request.
pub(crate) fn verify(shared: &Shared, holds: &[Arc<Hold>], renews: bool) -> ApiResult<()> {
    shared.check_process()?;
    let attempt = if renews { "renew" } else { "verify" };
    let Some(first) = holds.first() else { return Ok(()) };
    // A loss by this process's own clock needs no request.
    if let Some(hold) = holds.iter().find(|hold| !shared.is_valid(hold)) {
        return Err(hold.to_error(HoldFailure::of(hold), attempt, Moment::now()));
    }
    let mut attempts = attempts(shared, first, Wait::No);
    let change = |hold: &Hold| {
        if renews { Change::Renew { lease: hold.next_lease(Moment::now()) } } else { Change::Check }
    };
    let outcomes = ask(shared, holds, change, &mut attempts, None);
    let mut result = Ok(());
    for (hold, outcome) in holds.iter().zip(outcomes) {
        add_outcome(&mut result, attempt, hold, outcome);
    }
    match result {
        Err(Error::Lost { .. }) | Ok(()) => result,
        failed => attempts.check(&first.id.name).and(failed),
    }
}

/// Returns the signal of other clients that wait for the lock. Asks whether one does, and for a
/// message once one does. If that fails, renewals continue to ask. Messages about an adopted hold
/// go to the client that began it, so each call asks whether such a hold is wanted.
pub(crate) fn watch(shared: &Shared, hold: &Arc<Hold>) -> WantedSignal {
    let names = &shared.names;
    let signal = names.with(&hold.id, |name| name.wanted_signal(hold));
    let holder = names.holder(hold.id.kind, &hold.id.name);
    // Redis sends messages to the client that began the hold, not to one that has adopted it.
    let is_own = holder.is_some_and(|holder| Arc::ptr_eq(&holder, hold));
    let is_told =
        is_own && names.with(&hold.id, |name| name.tenure(hold).is_some_and(Tenure::is_told));
    if is_told || signal.is_wanted() || !shared.is_held(hold) {
        return signal;
    }
    if is_own {
        shared.listening.start(&*shared.store);
    }
    let mut attempts = attempts(shared, hold, Wait::No);
    let watch = Change::Watch { lease: None };
    if ask_about_one(shared, hold, |_| watch, &mut attempts).is_ok() {
        shared.reporter.step(hold, HoldInput::WillBeTold);
    }
    signal
}

/// Returns the attempts of a call at requests about a hold.
pub(super) fn attempts<'a>(shared: &'a Shared, hold: &Hold, wait: Wait) -> Attempts<'a> {
    Attempts::new(shared, shared.times_for(hold.lease()), wait, hold.id.seed())
}

/// Adds the outcome for one hold to the result of a call about several: a loss takes precedence,
/// then the first failure.
pub(super) fn add_outcome(
    result: &mut ApiResult<()>,
    attempt: &str,
    hold: &Hold,
    outcome: Result<(), HoldFailure>,
) {
    let Err(failure) = outcome else { return };
    let is_lost = matches!(failure, HoldFailure::Lost);
    if result.is_ok() || is_lost && !matches!(result, Err(Error::Lost { .. })) {
        *result = Err(hold.to_error(failure, attempt, Moment::now()));
    }
}
