//! What this client holds and waits for, as its program sees it: by which line, in which thread.
//!
//! Decides nothing, and asks no server.

use std::cmp::Reverse;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{self, Moment, end_of};
use crate::local::shared::Shared;
use crate::protocol::call::Caller;
use crate::protocol::hold::Hold;
use crate::protocol::tenure::Tenure;
use crate::store::hold_id::{HeldAs, HoldKind};

/// How long the renewer may take to collect the holds.
const LIST_TIME: Duration = Duration::from_secs(1);

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

/// Returns what this client holds, the oldest first.
pub(crate) fn holds(shared: &Shared) -> Vec<HeldLock> {
    // A forked child has none, and no renewer.
    if shared.check_process().is_err() {
        return Vec::new();
    }
    let holds = shared.reporter.renewer.list(end_of(LIST_TIME));
    let now = Moment::now();
    let names = &shared.names;
    let held_as =
        |hold: &Arc<Hold>| names.with(&hold.id, |name| HeldLock::of(name.tenure(hold)?, now));
    let mut held: Vec<_> = holds.iter().filter_map(held_as).collect();
    held.sort_by_key(|held| Reverse(held.since));
    held
}

/// Returns the calls of this client that wait, those first that have waited longest.
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
