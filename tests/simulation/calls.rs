//! The calls of threads: acquiring, releasing, and passing on.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::canceller::Canceller;
use crate::base::clock;
use crate::base::sync::executor::{self, Process};
use crate::client::Client;
use crate::error::Error;
use crate::guards::election::Term;
use crate::guards::guard::AnyGuard;
use crate::guards::handle::LockHandle;
use crate::guards::multi_mutex::MultiGuard;
use crate::guards::mutex::{Guard, OwnedGuard};
use crate::guards::rw_lock::WriteGuard;
use crate::guards::watches::{Lost, Wanted};
use crate::protocol::hold::reliable;
use crate::simulation::coping::{self, Unlock};
use crate::simulation::deadlocks;
use crate::simulation::judge::{SLACK, WAKE_UP, begin_hold};
use crate::simulation::terms::{Terms, cancel_later};
use crate::simulation::uses::verify;
use crate::simulation::world::{NAMES, NameState, Usage, World, broken, say, with};

/// The kind of lock that a thread has or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Alone,
    /// The same, with a guard that belongs to the thread.
    Own,
    Reader,
    Permit,
    /// Several locks at once, as a bit mask of their numbers.
    Set(u8),
}

impl Side {
    /// Returns `true` if a hold of this side of `own` also covers `name`.
    fn includes(self, own: usize, name: usize) -> bool {
        match self {
            Self::Set(names) => names >> name & 1 == 1,
            _ => own == name,
        }
    }

    pub(super) fn is_set(self) -> bool {
        matches!(self, Self::Set(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    For(Duration),
    Endless,
}

pub(super) struct Held {
    /// Shared by the thread that uses it and the judge that inspects it.
    pub(super) guard: Rc<Guarded>,
    pub(super) client: Process,
    /// The client that acquired it. For an adopted hold, this is not `client`.
    pub(super) owner: Process,
    pub(super) name: usize,
    pub(super) side: Side,
    /// For an adopted hold, its index among the detached holds.
    pub(super) left: Option<usize>,
    /// When the call that acquired it began.
    pub(super) begun: Instant,
    /// When the guard was created.
    pub(super) since: Instant,
    /// When its lease was found to be over, which is final.
    pub(super) over_since: Option<Instant>,
    /// A watch. Every second guard has one until its client is shut down. The judge asks the watch
    /// whether such a guard is valid, because that has no side effect: the client must notice by
    /// itself.
    pub(super) lost: Option<Lost>,
    pub(super) terms: Terms,
}

/// A guard of any kind. Some kinds have more methods than others.
pub(super) enum Guarded {
    Lock(OwnedGuard),
    Own(Guard),
    Term(Term),
    Writer(WriteGuard),
    Set(MultiGuard),
    Other(Box<dyn AnyGuard>),
}

impl Guarded {
    fn guard(&self) -> &dyn AnyGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Own(guard) => guard,
            Self::Term(term) => term,
            Self::Writer(guard) => guard,
            Self::Set(guard) => guard,
            Self::Other(guard) => &**guard,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.guard().is_held()
    }

    pub(super) fn fence(&self, name: usize) -> Option<u64> {
        match self {
            Self::Set(guard) => guard.fence(NAMES[name]),
            _ => self.guard().fence(),
        }
    }

    pub(super) fn lost(&self) -> Lost {
        self.guard().lost()
    }

    pub(super) fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    pub(super) fn verify(&self) -> Result<(), Error> {
        self.guard().verify()
    }

    pub(super) fn renew(&self) -> Result<(), Error> {
        self.guard().renew()
    }

    /// Returns the guard's `Wanted`, if this kind has one.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        match self {
            Self::Lock(guard) => Some(guard.wanted()),
            Self::Own(guard) => Some(guard.wanted()),
            Self::Term(term) => Some(term.wanted()),
            _ => None,
        }
    }

    fn unlock(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Own(guard) => guard.unlock(),
            Self::Term(term) => term.resign(),
            Self::Writer(guard) => guard.unlock(),
            Self::Set(guard) => guard.unlock(),
            Self::Other(guard) => guard.unlock(),
        }
    }
}

thread_local! {
    /// The client whose guard the judge inspects. The judge runs on no thread of that client.
    static LOOKS_AS: Cell<Option<Process>> = const { Cell::new(None) };
}

/// Returns the client whose guard the judge is inspecting, if any.
pub(super) fn looks_as() -> Option<Process> {
    LOOKS_AS.get()
}

impl Held {
    /// Inspects the guard on behalf of its client, which reports what this reveals.
    pub(super) fn is_held(&self) -> bool {
        if let Some(lost) = &self.lost {
            return !lost.is_lost();
        }
        let before = LOOKS_AS.replace(Some(self.client));
        let is_held = self.guard.is_held();
        LOOKS_AS.set(before);
        is_held
    }

    pub(super) fn is_of(&self, name: usize) -> bool {
        self.side.includes(self.name, name)
    }

    /// Returns `true` if it may have reached its age limit. The age counts from the request for the
    /// first hold of the tenure.
    pub(super) fn is_of_age(&self, before: Duration) -> bool {
        let age = clock::elapsed(self.since) + before;
        self.terms.max_hold.is_some_and(|most| age >= reliable(most))
    }

    /// Returns `true` if it must have reached its age limit.
    pub(super) fn is_too_old(&self) -> bool {
        self.terms.max_hold.is_some_and(|most| clock::elapsed(self.since) > most)
    }

    /// Returns `true` if a user of its ticket has ended the hold, or is ending it.
    pub(super) fn has_ended(&self, world: &World) -> bool {
        self.left.is_some_and(|at| world.ends(at) > 0)
    }

    /// Returns `true` if both are guards of a hold that was adopted twice.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.left.is_some() && self.left == other.left
    }
}

impl CallState {
    pub(super) fn is_about(&self, name: usize) -> bool {
        self.side.includes(self.name, name)
    }
}

pub(super) struct CallState {
    pub(super) client: Process,
    pub(super) name: usize,
    pub(super) patience: Patience,
    pub(super) begun: Instant,
    /// How long its client had been stopped before, in total.
    stopped: Duration,
    pub(super) side: Side,
    /// When it was cancelled.
    pub(super) cancelled: Option<Instant>,
}

/// Acquires something and checks how the call has ended.
pub(super) fn acquire(
    client: &Client,
    process: Process,
    name: usize,
    side: Side,
    patience: Patience,
) -> Option<usize> {
    let (begun, number, text, terms) = with(|world| {
        world.last_call += 1;
        world.tally.calls += 1;
        let begun = clock::now();
        let is_lock = world.names[name].usage == Usage::Lock;
        let (terms, cancelled) = (world.any_terms(is_lock && !side.is_set()), None);
        let stopped = world.clients[process - 1].stopped;
        let call = CallState { client: process, name, patience, begun, stopped, side, cancelled };
        world.calls.insert(world.last_call, call);
        world.watch();
        (begun, world.last_call, world.names[name].name.clone(), terms)
    });
    say(process, || format!("call {number}: wants {text:?} as {side:?}, waits {patience:?}"));
    let canceller = terms.cancel_after.map(|after| cancel_later(process, number, after));
    let handles = Handles::new(client, terms, canceller);
    let result = match request(&handles, process, name, side, patience) {
        // Any other call would return this result.
        Err(Error::Timeout { .. }) if terms.has_own_wait => Ok(None),
        result => result,
    };
    let now = clock::now();
    let call = with(|world| {
        let call = world.calls.remove(&number).expect("it was added");
        let is_part = |at: usize| call.side.is_set() && call.is_about(at);
        let names = world.names.iter_mut().enumerate().filter(|(at, _)| is_part(*at));
        names.for_each(|(_, name)| name.taken_at = now);
        call
    });
    if let Err(why) = with(|world| world.check_end(&call, &result)) {
        broken(&format!("call {number} {why}"));
    }
    match result {
        Ok(Some(guard)) => {
            say(process, || format!("call {number}: acquired, fence {:?}", guard.fence(name)));
            let grows = |last, fence, side| match side {
                Side::Permit => true,
                Side::Reader => fence >= last,
                Side::Alone | Side::Own | Side::Set(_) => fence > last,
            };
            let (client, owner, left, over_since) = (process, process, None, None);
            let is_open = with(|world| world.clients[process - 1].shut_down.is_none());
            let is_watched = is_open && number.is_multiple_of(2);
            let lost = if is_watched { Some(guard.lost()) } else { None };
            let (guard, since) = (Rc::new(guard), now);
            let held = Held {
                guard,
                client,
                owner,
                name,
                side,
                left,
                begun,
                since,
                over_since,
                lost,
                terms,
            };
            Some(begin_hold(held, grows))
        }
        Ok(None) => {
            say(process, || format!("call {number}: busy"));
            with(|world| {
                world.tally.busy += 1;
                world.clients[process - 1].ledger.note_busy(patience);
            });
            if let Err(why) = coping::check_wait(&call) {
                broken(&format!("call {number}: {why}"));
            }
            let was_contended = with(|world| {
                world.look_at_server();
                let names = 0..world.names.len();
                let mut names = names.filter(|at| call.is_about(*at));
                names.any(|name| world.was_contended(&call, name))
            });
            if !was_contended {
                broken(&format!("call {number} reports {text:?} as held, which it was not"));
            }
            None
        }
        Err(error) => {
            say(process, || format!("call {number}: {error}"));
            with(|world| {
                world.tally.failed += 1;
                world.clients[process - 1].ledger.note_error(&error);
            });
            if let Err(why) = with(|world| world.check_outage(&call, &error)) {
                broken(&format!("call {number} fails: {error}: {why}"));
            }
            if let Error::Deadlock { names, clients, .. } = &error
                && with(|world| world.deadlocks.is_some())
            {
                deadlocks::check_error(names, clients);
                return None;
            }
            let is_cancelled = matches!(error, Error::Cancelled { .. });
            if !is_cancelled && !with(|world| world.may_fail(&error, process, begun)) {
                broken(&format!("call {number} fails: {error}"));
            }
            None
        }
    }
}

impl World {
    /// Checks that a call ends in time, and with an allowed outcome if it was cancelled.
    fn check_end(
        &self,
        call: &CallState,
        result: &Result<Option<Guarded>, Error>,
    ) -> Result<(), String> {
        let CallState { begun, .. } = *call;
        let (now, client) = (clock::now(), &self.clients[call.client - 1]);
        // Time during which the process was stopped does not count.
        let stopped = client.stopped.saturating_sub(call.stopped);
        let took = (now - begun).saturating_sub(stopped);
        let Self { io_timeout, retry_window, .. } = *self;
        let most = match call.patience {
            Patience::For(time) => Some(time + io_timeout),
            Patience::None => Some(retry_window + io_timeout * 2),
            Patience::Endless => {
                client.closed.map(|at| at.saturating_duration_since(begun) + io_timeout * 2)
            }
        };
        let cancelled = call.cancelled.map(|at| at.saturating_duration_since(begun));
        let most = most.into_iter().chain(cancelled.map(|after| after + io_timeout * 2)).min();
        if let Some(most) = most.filter(|most| took > *most + SLACK) {
            return Err(format!("took {took:?}, and may take {most:?}"));
        }
        match (result, call.cancelled) {
            (Err(Error::Cancelled { .. }), None) => Err("reports that it was cancelled".into()),
            (Ok(Some(_)), Some(at)) if now > at + stopped + WAKE_UP => {
                Err(format!("gets its hold {:?} after it was cancelled", now - at))
            }
            _ => Ok(()),
        }
    }
}

/// Makes the handles of one call.
struct Handles<'a> {
    client: &'a Client,
    terms: Terms,
    usual: Terms,
    canceller: Option<Canceller>,
}

impl<'a> Handles<'a> {
    fn new(client: &'a Client, terms: Terms, canceller: Option<Canceller>) -> Self {
        let usual = with(|world| world.usual_terms());
        Self { client, terms, usual, canceller }
    }

    fn of<K>(&self, handle: LockHandle<K>) -> LockHandle<K> {
        let handle = self.terms.of(handle, &self.usual);
        match &self.canceller {
            Some(canceller) => handle.cancelled_by(canceller),
            None => handle,
        }
    }
}

/// Attempts to get a hold.
fn request(
    handles: &Handles<'_>,
    process: Process,
    name: usize,
    side: Side,
    patience: Patience,
) -> Result<Option<Guarded>, Error> {
    let (name, usage, keep) = with(|world| {
        let NameState { name, usage, keep, .. } = &world.names[name];
        (name.clone(), *usage, *keep)
    });
    macro_rules! acquired {
        ($wrap:expr, $handle:expr, $lock:ident, $try_lock:ident, $try_lock_for:ident) => {
            match patience {
                Patience::For(time) if handles.terms.has_own_wait => {
                    Some($wrap($handle.wait(time).$lock()?))
                }
                Patience::None => $handle.$try_lock()?.map($wrap),
                Patience::For(time) => $handle.$try_lock_for(time)?.map($wrap),
                Patience::Endless => Some($wrap($handle.$lock()?)),
            }
        };
    }
    Ok(match (usage, side) {
        (_, Side::Set(_)) => {
            let names = (0..NAMES.len()).filter(|at| side.includes(0, *at));
            let mut names: Vec<_> = names.map(|at| NAMES[at]).collect();
            let count = names.len();
            names.rotate_left(process % count);
            let set = handles.of(handles.client.multi_mutex(names));
            acquired!(Guarded::Set, set, lock, try_lock, try_lock_for)
        }
        (Usage::Lock, _) if handles.terms.is_candidacy && side != Side::Own => {
            let election = handles.of(handles.client.election(&name));
            acquired!(Guarded::Term, election, campaign, try_campaign, try_campaign_for)
        }
        (Usage::Lock, _) => {
            let mut mutex = handles.of(handles.client.mutex(&name));
            if let Some(keep) = keep {
                mutex = mutex.keep(keep);
            }
            if let Some(time) = handles.terms.at_least {
                mutex = mutex.hold_at_least(time);
            }
            if side == Side::Own {
                return Ok(acquired!(Guarded::Own, mutex, lock, try_lock, try_lock_for));
            }
            acquired!(Guarded::Lock, mutex, lock_owned, try_lock_owned, try_lock_owned_for)
        }
        (Usage::ReadWrite, Side::Reader) => {
            let rw_lock = handles.of(handles.client.rw_lock(&name));
            acquired!(other, rw_lock, read, try_read, try_read_for)
        }
        (Usage::ReadWrite, _) => {
            let rw_lock = handles.of(handles.client.rw_lock(&name));
            acquired!(Guarded::Writer, rw_lock, write, try_write, try_write_for)
        }
        (Usage::Semaphore(permits), _) => {
            let semaphore = handles.of(handles.client.semaphore(&name, permits));
            acquired!(other, semaphore, acquire, try_acquire, try_acquire_for)
        }
    })
}

fn other<G: AnyGuard + 'static>(guard: G) -> Guarded {
    Guarded::Other(Box::new(guard))
}

/// Ends a hold.
pub(super) fn release(process: Process, place: usize, drops: bool) {
    let is_verified = !drops && with(|world| world.tally.acquired % 4 == 0);
    if is_verified && !executor::follows_course() {
        let guard = with(|world| world.guards[place].as_ref().map(|held| held.guard.clone()));
        guard.inspect(|guard| verify(place, guard));
    }
    let Some(held) = with(|world| {
        let held = world.guards[place].take()?;
        world.note_taken(&held);
        let names = (0..world.names.len()).filter(|at| held.is_of(*at));
        world.releasing.extend(names.map(|name| (process, name)));
        Some(held)
    }) else {
        return;
    };
    let unlock = Unlock::begin(&held);
    if let Err(why) = with(|world| world.check_renewed(&held)) {
        broken(&format!("client {process} has a lease until its release: {why}"));
    }
    let is_of_age = held.is_of_age(with(|world| world.age_before()));
    let Held { guard, name, side, left, .. } = held;
    // Another user of its ticket may have ended it.
    let may_fail = with(|world| {
        if let Some(at) = left {
            world.note_end(at);
        }
        let is_shared = left.is_some_and(|at| world.left[at].is_shared);
        !world.is_calm || is_shared || is_of_age
    });
    let guard = Rc::into_inner(guard).expect("it is not used");
    let fence = guard.fence(name);
    let verb = if drops { "drops" } else { "unlocks" };
    say(process, || format!("{verb} its {side:?} of name {name}, fence {fence:?}"));
    if drops {
        drop(guard);
    } else {
        let result = guard.unlock();
        say(process, || format!("unlocked: {result:?}"));
        let is_lost = matches!(result, Err(Error::Lost { .. }));
        with(|world| world.tally.lost += u64::from(is_lost));
        if let Err(why) = with(|world| world.check_unlock(&unlock, &result)) {
            broken(&format!("client {process} unlocks fence {fence:?}: {why}"));
        }
        if let Err(error) = result
            && !may_fail
        {
            broken(&format!("a release fails, though nothing went wrong: {error}"));
        }
    }
    for name in (0..NAMES.len()).filter(|at| side.includes(name, *at)) {
        end_release(process, name);
    }
}

pub(super) fn end_release(process: Process, name: usize) {
    with(|world| {
        let ended = world.releasing.iter().position(|it| *it == (process, name));
        ended.map(|at| world.releasing.swap_remove(at));
        world.names[name].had_guard.insert(process, clock::now());
    });
}
