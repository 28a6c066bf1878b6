//! Acquiring a lock, from the call to the hold.
//!
//! A call of a thread that holds the lock adds a level. Any other call asks the machine of its name
//! what to do: to send a request, to wait until it is woken, or to end. It does that, and reports
//! the result to the machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use std::{slice, thread};

use crate::base::clock::{self, Moment};
use crate::base::failure::Failure;
use crate::base::spans::CallSpan;
use crate::config::LockOptions;
use crate::error::{Error, Result};
use crate::local::hold_requests::{Level, nest};
use crate::local::looks::Looks;
use crate::local::names::SleepingCall;
use crate::local::parker::{Parker, Sent, Signal, perform_each};
use crate::local::release;
use crate::local::shared::Shared;
use crate::protocol::call::{Caller, Counted, HoldOwner, Wait, are_own};
use crate::protocol::hold::Hold;
use crate::protocol::name::Name;
use crate::protocol::steps::{Action, Call, Input, Next, Outcome};
use crate::store::ask_one;
use crate::store::hold_id::HoldKind;
use crate::store::keys::check_name;
use crate::store::redisson_channels::RedissonWait;
use crate::store::request::{AcquireReply, HoldRequest};

/// A call for a lock.
pub(super) struct LockCall<'a> {
    pub(super) shared: &'a Shared,
    pub(super) kind: HoldKind,
    pub(super) name: &'a Arc<str>,
    pub(super) caller: &'a Caller,
    /// Whether the call has reported that the lock is held.
    pub(super) contended: bool,
    /// Its number in the conversation about the name.
    number: u64,
    /// Its number among the calls that look for deadlocks: that of the hold that it has asked for
    /// first.
    pub(super) looker: Option<u64>,
    /// Its own conversation, if it takes part in no other.
    alone: Option<Name<Arc<Parker>>>,
    /// When the request with the latest reply was sent.
    sent: Moment,
    /// Makes a release by Redisson wake the call.
    redisson: Option<RedissonWait>,
}

/// Acquires a lock, or one more level of it. `None` if it is still held when the wait is over.
#[track_caller]
pub(crate) fn lock(
    shared: &Shared,
    name: &Arc<str>,
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Level>> {
    let _call = Counted::begin(&shared.counters.unfinished);
    check(shared, name, options)?;
    if let Some(hold) = held_already(shared, name, options)? {
        return nest(shared, hold, options.cancelled_by.as_ref(), wait).map(Some);
    }
    let owner = HoldOwner::Thread;
    let caller = Caller::new(&shared.config, shared.times, options, wait, owner, clock::now());
    let Some(hold) = acquire_one(shared, HoldKind::Lock, name, &caller)? else { return Ok(None) };
    shared.held_locks.insert(&hold);
    Ok(Some(Level { hold, depth: 1 }))
}

/// Acquires a hold that belongs to no thread. `None` if it cannot be acquired by the end of the
/// wait.
#[track_caller]
pub(crate) fn owned(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    options: &LockOptions,
    wait: Wait,
) -> Result<Option<Arc<Hold>>> {
    let _call = Counted::begin(&shared.counters.unfinished);
    check(shared, name, options)?;
    if kind.is_lock() {
        // It never nests, but waits for a hold of this thread like any other.
        held_already(shared, name, options)?;
    } else {
        shared.check_has_members()?;
    }
    let owner = HoldOwner::Guard;
    let caller = Caller::new(&shared.config, shared.times, options, wait, owner, clock::now());
    acquire_one(shared, kind, name, &caller)
}

fn acquire_one(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    caller: &Caller,
) -> Result<Option<Arc<Hold>>> {
    let span = CallSpan::open(|| &**name);
    let mut call = LockCall::new(shared, kind, name, caller, None);
    let outcome = call.acquire();
    report(shared, caller, name, (span, call.contended), outcome, slice::from_ref)
}

/// Reports how a call for the locks with these names has ended, and how long it has waited if it
/// was `contended`.
pub(super) fn report<T>(
    shared: &Shared,
    caller: &Caller,
    names: &str,
    (span, contended): (CallSpan, bool),
    outcome: Result<Option<T>>,
    holds: impl Fn(&T) -> &[Arc<Hold>],
) -> Result<Option<T>> {
    let outcome = outcome.and_then(|acquired| {
        give_back_if_ended(shared, caller, acquired.as_ref().map_or(&[], &holds))?;
        Ok(acquired)
    });
    let Ok(Some(acquired)) = &outcome else {
        shared.reporter.report_failure(names, caller, outcome.as_ref().err());
        span.close(caller.begin, || None);
        return outcome;
    };
    for hold in holds(acquired) {
        hold.span.open(&hold.id.name, || hold.fence());
        if caller.in_set {
            shared.reporter.report_acquired(hold, caller);
        }
    }
    if contended {
        shared.reporter.events.report_wait(clock::elapsed(caller.begin));
    }
    span.close(
        caller.begin,
        || {
            if caller.in_set { None } else { Some(holds(acquired)[0].fence()) }
        },
    );
    outcome
}

/// Gives back new holds, with an error, if the client was closed or the wait cancelled in the
/// meantime: the thread that did so may have freed these locks.
fn give_back_if_ended(shared: &Shared, caller: &Caller, holds: &[Arc<Hold>]) -> Result<()> {
    // Checked after the holds have begun: a thread that closes or cancels later finds the holds.
    let mut outcome = shared.names.check_open();
    if let Some(hold) = holds.first() {
        outcome = outcome.and_then(|()| caller.check_cancelled(&hold.id.name));
    }
    if outcome.is_err() {
        release::give_back(shared, holds, caller);
    }
    outcome
}

/// Returns the calling thread's hold of a lock, if it has one. For a non-reentrant lock this is an
/// error.
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

/// Checks the name and the options of a call.
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
    shared.names.check_open()
}

/// A thread that panics must not leave its name waiting for it.
impl Drop for LockCall<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.step(Input::Panicked(self.number));
        }
    }
}

impl<'a> LockCall<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        kind: HoldKind,
        name: &'a Arc<str>,
        caller: &'a Caller,
        looker: Option<u64>,
    ) -> Self {
        Self {
            shared,
            kind,
            name,
            caller,
            contended: false,
            number: 0,
            looker,
            alone: None,
            sent: Moment::FIRST,
            redisson: None,
        }
    }

    /// Acquires the lock, and reports nothing but contention.
    pub(super) fn acquire(&mut self) -> Result<Option<Arc<Hold>>> {
        let Self { shared, kind, name, caller, .. } = *self;
        let Shared { reporter, names, .. } = shared;
        // A hold that is found lost is in no call's way.
        if matches!(caller.wait, Wait::No)
            && let Some(hold) = names.holder(kind, name)
        {
            reporter.expire(&hold);
        }
        let mut rejoins = false;
        loop {
            match self.converse(rejoins)? {
                Outcome::Acquired(hold) if self.alone.is_some() => {
                    let tenure = self.alone.as_mut().and_then(|name| name.take_tenure(&hold));
                    let begun = tenure.and_then(|it| reporter.begin_beside(it, self.sent, caller));
                    if begun.is_some() {
                        return Ok(begun);
                    }
                    shared.owe(&hold.id, caller.times.lease);
                }
                Outcome::Acquired(hold) => {
                    reporter.begin(&hold, caller);
                    return Ok(Some(hold));
                }
                Outcome::HandedOff(hold) => {
                    // Its deadline may have passed while this thread woke up. Then it asks again.
                    if reporter.begin_next(&hold, caller) {
                        shared.counters.handoffs.fetch_add(1, Ordering::Relaxed);
                        return Ok(Some(hold));
                    }
                }
                Outcome::Kept(hold) => {
                    if reporter.begin_next(&hold, caller) {
                        shared.counters.relocks.fetch_add(1, Ordering::Relaxed);
                        return Ok(Some(hold));
                    }
                }
                Outcome::Shared(hold) if shared.is_valid(&hold) => return Ok(Some(hold)),
                // The readers' hold was lost in the meantime. Another request shows whether a
                // writer has the lock.
                Outcome::Shared(_) => {}
                // A client has one place among the waiting clients: that of the call which may try
                // again.
                Outcome::Alone => self.alone = Some(Name::NEW),
                // Perhaps this is known from the reply to another call, and this one has sent no
                // request.
                Outcome::Busy => {
                    reporter.report_contended(name, &mut self.contended);
                    return Ok(None);
                }
                Outcome::Failed(failure) => {
                    return Err(failure.into_error_of(kind.noun(), "acquire", name));
                }
                Outcome::Closed => return Err(Error::Closed),
                Outcome::Left => unreachable!("it ends with the error for which it has left"),
            }
            rejoins = true;
        }
    }

    /// Takes part in the conversation about the name, or has one of its own, until this call's part
    /// is over.
    fn converse(&mut self, rejoins: bool) -> Result<Outcome> {
        let Self { shared, kind, name, caller, .. } = *self;
        let parker = Parker::of_thread();
        let _watch = caller.canceller.as_ref().map(|canceller| parker.watch(canceller, name));
        let _sleeper = if self.alone.is_some() {
            // No queue knows the call, which must learn that the client is closed.
            let call = SleepingCall { kind, name: name.clone(), caller: caller.clone() };
            Some(shared.names.add_sleeper(&parker, Some(call)))
        } else {
            None
        };
        let hold = shared.next_hold(kind, name, caller);
        let looker = *self.looker.get_or_insert(hold.number());
        let call = Call::new(hold, caller, parker.clone());
        self.number = call.number;
        let input = if self.alone.is_some() {
            Input::CallAlone { call, debts: shared.names.debts(kind, name) }
        } else {
            Input::Call { call, rejoins }
        };
        let mut next = self.step(input);
        let mut looks = Looks::new(shared, (kind, name), caller, &parker, looker);
        loop {
            next = match next {
                Next::Done(outcome) => return Ok(outcome),
                Next::Park { until, contended } => self.park(&mut looks, until, contended)?,
                Next::Turn => match self.check_not_ended() {
                    Ok(()) => self.go_on(),
                    Err(error) => {
                        // The call leaves like one that is cancelled, which gives the turn to the
                        // next one.
                        Parker::send(&parker, Signal::Ended(error));
                        Next::Park { until: None, contended: false }
                    }
                },
                asks => self.carry(asks),
            };
        }
    }

    /// Parks until the call is told what to do next, or its time is over.
    fn park(
        &mut self,
        looks: &mut Looks<'_>,
        until: Option<Instant>,
        contended: bool,
    ) -> Result<Next> {
        let Shared { reporter, counters, .. } = self.shared;
        if contended {
            reporter.report_contended(self.name, &mut self.contended);
        }
        let _waits = if self.caller.wait != Wait::No || !contended {
            Some(Counted::begin(&counters.waiting))
        } else {
            None
        };
        match looks.park(until) {
            Some(Signal::Next(next)) => Ok(next),
            Some(Signal::Sent(Sent { at, ahead })) => Ok(self.take_reply(at, ahead.reply())),
            Some(Signal::Ended(error)) => match self.step(Input::Cancelled(self.number)) {
                Next::Done(_) => Err(error),
                // The reply to a request that was sent ahead comes first.
                _ if self.asks() => {
                    let next = self.park(looks, None, false);
                    Parker::send(looks.parker, Signal::Ended(error));
                    next
                }
                // The call has already been told how it ends, perhaps with a hold.
                next => Ok(next),
            },
            Some(Signal::Tell(telling)) => {
                looks.tell(&telling);
                Ok(Next::Park { until, contended })
            }
            None => Ok(self.go_on()),
        }
    }

    /// Makes the requests of the first call.
    fn carry(&mut self, next: Next) -> Next {
        let Shared { store, reporter, .. } = self.shared;
        let caller = self.caller;
        match next {
            Next::Ask(ask) => {
                let sent = Moment::now();
                let reply = store.acquire(ask.request());
                self.take_reply(sent, reply)
            }
            Next::Change(hold, change) => {
                let deadline = caller.request_deadline(clock::now());
                let request = HoldRequest { hold: &hold, change, deadline };
                let outcome = ask_one(&**store, request).map(drop);
                self.step(Input::Changed(outcome))
            }
            Next::Pay(debts) => {
                let mut outcome = Ok(());
                for debt in &*debts {
                    let deadline = caller.request_deadline(clock::now());
                    let change = self.shared.names.begin_release(debt);
                    let request = HoldRequest { hold: &debt.id, change, deadline };
                    outcome = ask_one(&**store, request).map(drop);
                    if outcome.is_err() {
                        break;
                    }
                    reporter.settle(debt, &Ok(()));
                }
                self.step(Input::Changed(outcome))
            }
            other => other,
        }
    }

    /// Takes the reply to the request of the first call, which was sent at `sent`.
    fn take_reply(&mut self, sent: Moment, reply: Result<AcquireReply, Failure>) -> Next {
        let Self { shared, kind, name, caller, .. } = *self;
        let Shared { reporter, store, .. } = shared;
        self.sent = sent;
        if reply.is_ok() {
            reporter.record_reply(name);
        }
        let next =
            if store.withdraws() { Some(shared.next_hold(kind, name, caller)) } else { None };
        self.step(Input::Reply { sent, reply, next })
    }

    /// Goes on when it is the call's turn, or its time to park is over.
    fn go_on(&mut self) -> Next {
        self.step(Input::Due(self.number))
    }

    fn asks(&mut self) -> bool {
        let number = self.number;
        self.with(|name| name.asks(number))
    }

    /// Gives the machine an input, and performs its actions. The time is read while the name is
    /// locked: no reply may seem older than a call that it decides on.
    fn step(&mut self, input: Input<Arc<Parker>>) -> Next {
        let Shared { names, reporter, .. } = self.shared;
        let (next, actions) = self.with(|name| {
            let mut turn = names.turn();
            let next = name.step(input, &mut turn);
            reporter.report(&turn.reports);
            (next, turn.actions)
        });
        // Not while the name is locked: actions wake threads and write requests.
        perform_each(actions, |action| {
            if let Action::Listen(hold) = &action
                && self.redisson.is_none()
            {
                self.redisson = self.shared.listening.wait_for_redisson(hold);
            }
            if self.alone.is_some() && matches!(action, Action::Begin { .. }) {
                // `begin_beside` adds the tenure to the name, unless a later hold shows that it is
                // over.
                return;
            }
            self.shared.perform(self.name, self.caller.times, self.caller.wait, action);
        });
        next
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Name<Arc<Parker>>) -> T) -> T {
        match &mut self.alone {
            Some(name) => act(name),
            None => self.shared.names.with_name(self.kind, self.name, act),
        }
    }

    /// Returns an error if the client is closed, or the call cancelled.
    fn check_not_ended(&self) -> Result<()> {
        self.shared.names.check_open()?;
        self.caller.check_cancelled(self.name)
    }
}
