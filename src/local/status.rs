//! Queries: what this client holds and waits for, as its program sees it, and what the store says
//! about a name. And ending a hold by force.
//!
//! Decides how long such a request is repeated. In this process, changes only what a reply proves:
//! a hold is lost if the store does not know it, or has ended it by force.

use std::cmp::Reverse;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::clock::{self, Moment, end_of};
use crate::base::failure::Failure;
use crate::base::holder::{Holder, Leader};
use crate::base::random;
use crate::error::{Error, Result};
use crate::local::attempts::Attempts;
use crate::local::shared::Shared;
use crate::protocol::call::{Caller, Wait};
use crate::protocol::hold::Hold;
use crate::protocol::tenure::{HoldInput, Tenure};
use crate::store::ask_one;
use crate::store::hold_id::{HeldAs, HoldId, HoldKind};
use crate::store::keys::check_name;
use crate::store::request::{HoldRequest, HolderReply, Look, OwnerOf};

/// How many of the names that threads wait for are shown.
const NAMES_SHOWN: usize = 10;

/// How many holders the error of a timed-out wait names.
const HOLDERS_SHOWN: usize = 3;

/// A hold of this client. Returned by [`Client::holds`](crate::Client::holds).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name.
    pub name: String,
    /// How it is held.
    pub kind: HeldAs,
    /// How long it has been held.
    pub since: Duration,
    /// The name of the thread that acquired it, if that has one.
    pub thread: Option<String>,
    /// The line of the program that acquired it.
    pub place: &'static Location<'static>,
    /// The [note](crate::Mutex::note) of the hold, if it has one.
    pub note: Option<String>,
}

/// A call of this client that waits for a lock. Returned by
/// [`Client::waits`](crate::Client::waits).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WaitingCall {
    /// The name for which it waits. A call for several locks waits for one of them at a time.
    pub name: String,
    /// How it will hold that.
    pub kind: HeldAs,
    /// How long ago the call began.
    pub since: Duration,
    /// The name of its thread, if that has one.
    pub thread: Option<String>,
    /// The line of the program that has made the call.
    pub place: &'static Location<'static>,
    /// The [note](crate::Mutex::note) that its hold will have, if any.
    pub note: Option<String>,
}

impl HeldLock {
    /// `None` if it is not held: the client only keeps the lock, or the hold is over.
    fn of(tenure: &Tenure, now: Moment) -> Option<Self> {
        let hold = &tenure.hold;
        if !hold.is_valid(now) {
            return None;
        }
        let current = tenure.current()?;
        Some(Self {
            name: hold.id.name.to_string(),
            kind: hold.id.kind.row().held_as,
            since: now.since(current.since),
            thread: current.site.thread.name.as_deref().map(str::to_owned),
            place: current.site.place,
            note: hold.note().map(ToString::to_string),
        })
    }
}

impl WaitingCall {
    fn new(kind: HoldKind, name: &str, caller: &Caller) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.row().held_as,
            since: clock::elapsed(caller.begin),
            thread: caller.thread.name.as_deref().map(str::to_owned),
            place: caller.place,
            note: caller.note.as_deref().map(str::to_owned),
        }
    }
}

/// Returns the holder of a lock. A hold that was dropped is over, even if its release has not
/// reached the store yet.
pub(crate) fn holder(shared: &Shared, name: &Arc<str>) -> Result<Option<Holder>> {
    inspect(shared, name, Look::Holder).map(|found| found.map(HolderReply::into_holder))
}

pub(crate) fn is_locked(shared: &Shared, name: &Arc<str>) -> Result<bool> {
    inspect(shared, name, Look::Owner).map(|found| found.is_some())
}

/// Checks that locks can be acquired, and returns how long the last attempt took.
pub(crate) fn ping(shared: &Shared) -> Result<Duration> {
    shared.check_process()?;
    shared.names.check_open()?;
    // No other client uses this name.
    let name = format!("leasehold-ping:{}", shared.client).into();
    let hold = shared.new_hold(HoldKind::Lock, &name);
    repeat_briefly(shared, "ping", "", |deadline| {
        let sent = clock::now();
        shared.store.ping(&hold, deadline).map(|()| clock::elapsed(sent))
    })
}

/// Starts to listen for messages of other clients.
pub(crate) fn listen(shared: &Shared) {
    if shared.check_process().is_ok() {
        shared.listening.start(&*shared.store);
    }
}

/// Returns what this client holds, the oldest first.
pub(crate) fn holds(shared: &Shared) -> Vec<HeldLock> {
    // A forked child has none, and no renewer.
    if shared.check_process().is_err() {
        return Vec::new();
    }
    let now = Moment::now();
    let mut held = Vec::new();
    shared.names.each(|_, name| {
        held.extend(name.tenures().filter_map(|tenure| HeldLock::of(tenure, now)));
    });
    held.sort_by_key(|held| Reverse(held.since));
    held
}

/// Returns the calls of this client that wait, longest wait first.
pub(crate) fn waits(shared: &Shared) -> Vec<WaitingCall> {
    // No thread of a forked child waits, but one of the parent's may have locked the names.
    if shared.check_process().is_err() {
        return Vec::new();
    }
    let mut waits = Vec::new();
    shared.names.each(|name, known| {
        let calls = known.calls();
        waits.extend(calls.map(|call| WaitingCall::new(call.hold.kind, name, &call.caller)));
    });
    let sleeping = shared.names.sleeping_calls();
    waits.extend(sleeping.iter().map(|it| WaitingCall::new(it.kind, &it.name, &it.caller)));
    waits.sort_by_key(|call| Reverse(call.since));
    waits
}

/// Returns the names for which most threads of this client wait, with their numbers, in descending
/// order.
pub(crate) fn waiting_names(shared: &Shared) -> Vec<(String, usize)> {
    // No thread of a forked child waits, but one of the parent's may have locked the names.
    if shared.check_process().is_err() {
        return Vec::new();
    }
    let mut names = Vec::new();
    shared.names.each(|name, known| match known.calls().count() {
        0 => {}
        count => names.push((name.clone(), count)),
    });
    names.sort_unstable_by(|(name, count), (other, others)| {
        others.cmp(count).then_with(|| name.cmp(other))
    });
    names.truncate(NAMES_SHOWN);
    names.into_iter().map(|(name, count)| (name.to_string(), count)).collect()
}

/// Returns the holder of a lock as a leader.
pub(crate) fn leader(shared: &Shared, name: &Arc<str>) -> Result<Option<Leader>> {
    inspect(shared, name, Look::Token).map(|found| found.map(HolderReply::into_leader))
}

fn inspect(shared: &Shared, name: &Arc<str>, look: Look) -> Result<Option<HolderReply>> {
    shared.check_process()?;
    // Before the request: a debt that is paid in the meantime is then not in the reply.
    let debts = shared.names.debts(HoldKind::Lock, name);
    let Some(holder) = ask_for_holder(shared, name, look)? else { return Ok(None) };
    match debts.iter().find(|debt| holder.is_owner_of(&debt.id)) {
        None => Ok(Some(holder)),
        Some(debt) => {
            pay(shared, debt)?;
            ask_for_holder(shared, name, look)
        }
    }
}

fn ask_for_holder(shared: &Shared, name: &Arc<str>, look: Look) -> Result<Option<HolderReply>> {
    let report = repeat(shared, "inspect", name, |end| shared.store.report(name, look, end))?;
    Ok(report.holder().cloned())
}

/// Resends the release of a dropped hold, and waits for the reply.
fn pay(shared: &Shared, debt: &Arc<Hold>) -> Result<()> {
    let name = &debt.id.name;
    repeat(shared, "inspect", name, |deadline| {
        let change = shared.names.begin_release(debt);
        ask_one(&*shared.store, HoldRequest { hold: &debt.id, change, deadline })
    })?;
    shared.reporter.settle(debt, &Ok(()));
    Ok(())
}

/// Returns how many permits of a semaphore are held.
pub(crate) fn count(shared: &Shared, name: &Arc<str>) -> Result<u32> {
    shared.check_process()?;
    shared.check_has_members()?;
    // Dropped permits do not count, even if their releases have not reached the store yet.
    for debt in shared.names.debts(HoldKind::Read, name) {
        pay(shared, &debt)?;
    }
    let report =
        repeat(shared, "inspect", name, |end| shared.store.report(name, Look::Permits, end));
    report.map(|report| report.permits).map_err(|mut error| {
        if let Error::WrongType { wanted, .. } = &mut error {
            *wanted = HoldKind::Permit { of: 0 }.noun().into();
        }
        error
    })
}

/// Returns the error of a call that timed out waiting for a hold of this kind; `None` for several
/// locks, any of which may be held.
pub(crate) fn timed_out(
    shared: &Shared,
    name: &Arc<str>,
    wait: Wait,
    kind: Option<HoldKind>,
) -> Error {
    let deadline = wait.deadline();
    let holders = kind.zip(deadline).map(|(kind, end)| holders_after(shared, kind, name, end));
    let mut holders = holders.unwrap_or_default();
    let noun = kind.map_or("lock", HoldKind::noun);
    let reason = describe_holders(shared, name, noun, &holders);
    // A lock has only one holder. It is reported if it is another client.
    holders.retain(|holder| holder.client != *shared.client);
    let is_lock = kind.is_some_and(HoldKind::is_lock);
    let holder = if is_lock { holders.pop() } else { None };
    Error::Timeout { name: name.to_string(), holder, reason }
}

/// Returns the holders of a name after a wait that timed out at `deadline`, if there is time to
/// ask.
fn holders_after(
    shared: &Shared,
    kind: HoldKind,
    name: &Arc<str>,
    deadline: Instant,
) -> Vec<Holder> {
    // The call has waited behind a thread of this client.
    if kind.is_lock()
        && let Some(hold) = shared.names.holder(kind, name)
    {
        let holder = HolderReply {
            owner: hold.id.owner().into(),
            depth: 1,
            remaining: hold.remaining(Moment::now()),
            fence: hold.fence(),
            note: hold.note().map(ToString::to_string),
        };
        return vec![holder.into_holder()];
    }
    let end = deadline.checked_add(shared.times.slack);
    let Some(end) = end.filter(|end| clock::now() < *end) else { return Vec::new() };
    let look = if kind.is_lock() { Look::Holder } else { Look::All };
    let report = shared.store.report(name, look, end.min(end_of(shared.times.io_timeout)));
    let holds = report.map(|report| report.holds).unwrap_or_default();
    holds.into_iter().map(|(_, holder)| holder.into_holder()).collect()
}

/// Describes which clients held a name when a wait for it ended.
fn describe_holders(shared: &Shared, name: &str, noun: &str, holders: &[Holder]) -> String {
    let mut names: Vec<_> = holders.iter().map(|holder| describe_holder(shared, holder)).collect();
    names.sort();
    names.dedup();
    let others = names.len().saturating_sub(HOLDERS_SHOWN);
    names.truncate(HOLDERS_SHOWN);
    let and_others = if others == 0 { String::new() } else { format!(" and {others} more") };
    if names.is_empty() {
        return format!("the wait for {name:?} ended before it was free");
    }
    format!("{}{and_others} held {noun} {name:?} when the wait ended", names.join(", "))
}

fn describe_holder(shared: &Shared, holder: &Holder) -> String {
    let note = holder.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    match &*holder.client {
        "" => "another library".to_owned(),
        client if client == &*shared.client => format!("another thread of this client{note}"),
        client => format!("client {client:?}{note}"),
    }
}

/// Ends the current hold of a lock, of any owner, and no later one. Returns `false` if there is
/// none.
pub(crate) fn force_unlock(shared: &Shared, name: &Arc<str>) -> Result<bool> {
    let holder = inspect(shared, name, Look::Owner)?;
    let Some(HolderReply { owner, .. }) = holder else { return Ok(false) };
    end_hold(shared, HoldKind::Lock, name, &owner)
}

/// Ends the hold of an owner, of any client. Returns `false` if it did not exist. If it belongs to
/// this client, which began or adopted it, it is lost here at once.
pub(crate) fn end_hold(shared: &Shared, kind: HoldKind, name: &str, owner: &[u8]) -> Result<bool> {
    shared.check_process()?;
    let hold = HoldId::of_owner(owner, kind, name);
    // Before the request: a renewal, or a call of another thread, may find it gone first. Several
    // guards may have adopted it.
    if let Some(hold) = &hold {
        shared.reporter.force(hold);
    }
    let mut in_doubt = false;
    let ended = repeat(shared, "force-unlock", name, |deadline| {
        let reply = shared.store.force_release(OwnerOf { kind, name, owner }, deadline);
        in_doubt |= reply.as_ref().is_err_and(Failure::is_ambiguous);
        reply
    })?;
    // If a repeat finds the owner gone, the attempt without a reply ended its hold.
    let ended = ended || in_doubt;
    if ended && let Some(hold) = &hold {
        // Once more: its call may have got it only now.
        for hold in shared.reporter.force(hold) {
            shared.reporter.step(&hold, HoldInput::Gone);
        }
    }
    shared.wake_first(kind, name);
    Ok(ended)
}

/// Makes a request about a lock for a call without a deadline, and repeats it after failures.
pub(crate) fn repeat<T>(
    shared: &Shared,
    attempt: &str,
    name: &str,
    request: impl FnMut(Instant) -> Result<T, Failure>,
) -> Result<T> {
    shared.check_process()?;
    check_name(&shared.config.prefix, name)?;
    repeat_briefly(shared, attempt, name, request)
}

pub(crate) fn repeat_briefly<T>(
    shared: &Shared,
    attempt: &str,
    name: &str,
    request: impl FnMut(Instant) -> Result<T, Failure>,
) -> Result<T> {
    Attempts::new(shared, shared.times, Wait::No, random()).repeat(attempt, name, request)
}

pub(crate) fn is_held_by_current_thread(shared: &Shared, name: &Arc<str>) -> bool {
    shared.check_process().is_ok()
        && shared.held_locks.find(name).is_some_and(|hold| shared.is_valid(&hold))
}
