//! How threads use a guard, with checks that its answers are true.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::base::sync::executor::Process;
use crate::error::Error;
use crate::protocol::hold::reliable;
use crate::simulation::calls::{Guarded, Held, Patience, Side, end_release};
use crate::simulation::judge::begin_hold;
use crate::simulation::world::{NAMES, Usage, World, broken, say, time_of, with};

/// One use of a guard.
#[derive(Clone, Copy, Debug)]
enum Use {
    Look,
    Renew,
    Verify,
    /// Waits for at most this long until another client wants the lock.
    Wanted(Duration),
}

/// Occasionally uses a guard.
pub(super) fn use_sometimes(process: Process, place: usize) {
    let used = with(|world| {
        let World { random, asks, guards, lease, .. } = world;
        if !random.permille(*asks) {
            return None;
        }
        let guard = guards[place].as_ref()?.guard.clone();
        let longest = random.pick(&[Duration::from_millis(5), *lease / 4]);
        let wanted = Use::Wanted(random.time(longest));
        Some((guard, random.pick(&[Use::Look, Use::Renew, Use::Verify, wanted])))
    });
    let Some((guard, what)) = used else { return };
    say(process, || format!("uses its guard: {what:?}"));
    let checked = match what {
        Use::Look => look(place, &guard),
        Use::Renew => renew(process, place, &guard),
        Use::Verify => return verify(place, &guard),
        Use::Wanted(time) => wait_for_others(process, place, &guard, time),
    };
    if let Err(why) = checked {
        broken(&format!("client {process} uses its guard, {what:?}: {why}"));
    }
}

/// Verifies a hold, and checks the answer.
pub(super) fn verify(place: usize, guard: &Guarded) {
    let (client, begun) = with(|world| {
        let held = world.guards[place].as_ref().expect("it is used");
        (held.client, world.begin_verify(held))
    });
    let result = guard.verify();
    say(client, || format!("verified: {result:?}"));
    if let Err(why) = with(|world| world.check_verify(&begun, &result)) {
        broken(&format!("client {client} verifies its hold: {why}"));
    }
}

/// Queries a guard, without a request.
fn look(place: usize, guard: &Guarded) -> Result<(), String> {
    let lease = with(|world| world.guards[place].as_ref().map(|held| held.terms.lease));
    let lease = lease.unwrap_or_default();
    let (was_held, remaining, lost, is_held) =
        (guard.is_held(), guard.remaining(), guard.lost(), guard.is_held());
    if is_held && !was_held {
        return Err("it is held again".into());
    }
    if is_held && remaining.is_zero() || remaining > reliable(lease) {
        return Err(format!("{remaining:?} of {lease:?} remain"));
    }
    let (cause, is_lost) = (lost.cause(), lost.is_lost());
    let is_shut_down = with(|world| world.is_shut_down(place));
    if is_held && cause.is_some() || !was_held && !is_lost && !is_shut_down {
        return Err(format!("it is held: {was_held}, and lost: {is_lost}, by {cause:?}"));
    }
    Ok(())
}

/// Renews a lease, and checks the result.
fn renew(process: Process, place: usize, guard: &Guarded) -> Result<(), String> {
    let begun = clock::now();
    let result = guard.renew();
    say(process, || format!("renewed: {result:?}"));
    let (remaining, is_held) = (guard.remaining(), guard.is_held());
    let took = clock::elapsed(begun);
    with(|world| {
        let is_shut_down = world.is_shut_down(place);
        let Some(held) = &world.guards[place] else { return Ok(()) };
        let (terms, is_of_age) = (held.terms, held.is_of_age(world.age_before()));
        match result {
            Ok(()) => {
                let least = reliable(terms.lease).saturating_sub(took);
                if remaining < least && !is_shut_down && terms.max_hold.is_none() {
                    return Err(format!("{remaining:?} remain instead of {least:?}"));
                }
                Ok(())
            }
            Err(Error::Lost { .. }) if !is_held && !world.is_calm => Ok(()),
            Err(Error::Lost { .. }) if !is_held && (is_of_age || world.is_shared(place)) => Ok(()),
            Err(error) if world.may_fail(&error, process, begun) => Ok(()),
            Err(error) => Err(format!("it fails, held: {is_held}: {error}")),
        }
    })
}

/// Waits until another client wants the lock.
fn wait_for_others(
    process: Process,
    place: usize,
    guard: &Guarded,
    time: Duration,
) -> Result<(), String> {
    let Some(wanted) = with(|world| world.waiting_beside(place)).and_then(|before| {
        let wanted = guard.wanted()?;
        Some((before, wanted))
    }) else {
        return Ok(());
    };
    let (before, wanted) = wanted;
    let asked = clock::now();
    let is_wanted = wanted.is_wanted();
    say(process, || format!("its lock is wanted: {is_wanted}"));
    with(|world| world.check_wanted(place, &before, is_wanted, asked))?;
    let before = with(|world| world.waiting_beside(place)).unwrap_or_default();
    let begun = clock::now();
    let was_wanted = wanted.wait_timeout(time);
    let took = clock::elapsed(begun);
    say(process, || format!("its lock is wanted now: {was_wanted}"));
    if is_wanted && !was_wanted {
        return Err("it is no longer wanted".into());
    }
    if !was_wanted && took < time && guard.is_held() {
        return Err(format!("it has waited for {took:?}"));
    }
    // A message takes some time.
    let is_late = time > with(|world| world.slack());
    let before = if is_late { before } else { BTreeSet::new() };
    with(|world| world.check_wanted(place, &before, was_wanted, begun))
}

impl World {
    /// Returns `true` if the client of a guard is shut down, which may have ended its holds.
    fn is_shut_down(&self, place: usize) -> bool {
        let held = self.guards[place].as_ref();
        held.is_none_or(|held| self.clients[held.client - 1].shut_down.is_some())
    }

    /// Returns `true` if another user of the ticket may have ended the hold.
    fn is_shared(&self, place: usize) -> bool {
        let left = self.guards[place].as_ref().and_then(|held| held.left);
        left.is_some_and(|at| self.left[at].is_shared)
    }

    /// Returns the other clients that, as the server knows, wait for the lock of a guard. Calls
    /// that only try do not count.
    fn waiting_beside(&self, place: usize) -> Option<BTreeSet<String>> {
        let held = self.guards[place].as_ref()?;
        if self.names[held.name].usage != Usage::Lock || held.side.is_set() {
            return None;
        }
        let own = &self.clients[held.client - 1].id;
        let waiting = self.network.servers.iter();
        let waiting = waiting.flat_map(|server| server.waiting(&self.names[held.name].key));
        let has_call = |id: &String| {
            let mut calls = self.calls.values().filter(|it| it.is_about(held.name));
            calls
                .any(|it| it.patience == Patience::Endless && self.clients[it.client - 1].id == *id)
        };
        Some(waiting.filter(|client| client != own && has_call(client)).collect())
    }

    /// Checks the guard's answer to whether its lock is wanted.
    fn check_wanted(
        &self,
        place: usize,
        before: &BTreeSet<String>,
        is_wanted: bool,
        since: Instant,
    ) -> Result<(), String> {
        let Some(held) = self.guards[place].as_ref() else { return Ok(()) };
        // The server knows the client that began the hold.
        let own = &self.clients[held.owner - 1].id;
        if is_wanted {
            let mut others = self.names[held.name].had_waiter.keys();
            let has_waited = others.any(|client| client != own);
            return if has_waited { Ok(()) } else { Err("no client has waited for it".into()) };
        }
        let now = self.waiting_beside(place).unwrap_or_default();
        let still = before.intersection(&now).next();
        // At first, a client asks for a kept lock without waiting.
        let is_kept = self.names[held.name].keep.is_some();
        let is_certain =
            self.is_calm && !is_kept && !self.network.is_quorum() && held.left.is_none();
        match still {
            Some(client) if is_certain && held.is_held() => {
                Err(format!("{client} has waited for it since {}", time_of(since)))
            }
            _ => Ok(()),
        }
    }
}

impl World {
    /// Decides whether a thread turns its hold into a reader.
    pub(super) fn is_downgraded(&mut self, name: usize, side: Side) -> bool {
        let is_writer = self.names[name].usage == Usage::ReadWrite && side == Side::Alone;
        is_writer && self.random.permille(self.asks)
    }
}

/// Turns a writer into a reader, and checks that no other writer comes between. Returns its place.
pub(super) fn downgrade(process: Process, place: usize) -> Option<usize> {
    let held = with(|world| {
        let held = world.guards[place].take()?;
        world.releasing.push((process, held.name));
        Some(held)
    })?;
    let is_of_age = held.terms.max_hold.is_some();
    let Held { guard, client, owner, name, begun, terms, .. } = held;
    let guard = Rc::into_inner(guard).expect("it is not used");
    let Guarded::Writer(writer) = guard else { unreachable!("only a writer is downgraded") };
    let (fence, sent) = (writer.fence(), clock::now());
    let result = writer.downgrade();
    say(process, || format!("becomes a reader of {:?}: {result:?}", NAMES[name]));
    let reader = match result {
        Ok(reader) => reader,
        Err(error) => {
            let is_expected = with(|world| {
                world.clients[process - 1].ledger.note_error(&error);
                let is_lost = matches!(error, Error::Lost { .. });
                is_lost && (!world.is_calm || is_of_age) || world.may_fail(&error, process, sent)
            });
            if !is_expected {
                broken(&format!("a writer does not become a reader: {error}"));
            }
            end_release(process, name);
            return None;
        }
    };
    let (guard, since) = (Rc::new(Guarded::Other(Box::new(reader))), clock::now());
    let (side, left, over_since, lost) = (Side::Reader, None, None, None);
    let held =
        Held { guard, client, owner, name, side, left, begun, since, over_since, lost, terms };
    let place = begin_hold(held, |last, found, _| found == fence && found >= last);
    end_release(process, name);
    Some(place)
}
