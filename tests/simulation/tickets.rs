//! Holds that threads detach, and what becomes of each.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;

use crate::base::clock;
use crate::base::sync::executor::{self, Process, Random};
use crate::client::Client;
use crate::error::Error;
use crate::guards::mutex::OwnedGuard;
use crate::simulation::calls::{Guarded, Held, Side, end_release, release};
use crate::simulation::faults::stop_soon;
use crate::simulation::judge::begin_hold;
use crate::simulation::record::{Asked, Wish};
use crate::simulation::terms::Terms;
use crate::simulation::uses::use_sometimes;
use crate::simulation::world::{Usage, World, broken, say, start, with};
use crate::store::hold_id::HoldId;
use crate::ticket::Ticket;

/// A detached hold.
pub(super) struct Left {
    pub(super) id: HoldId,
    pub(super) fence: u64,
    pub(super) name: usize,
    /// The client that acquired it, which remains the owner for the server.
    pub(super) owner: Process,
    /// When the call for it began.
    begun: Instant,
    /// The earliest and the latest end of its lease, unless it is renewed again.
    least: Instant,
    most: Instant,
    /// Whether its ticket is used more than once, so that one user may end another's hold.
    pub(super) is_shared: bool,
    /// When users began to end it. Another user's guard does not learn of it at once.
    ends: Vec<Instant>,
}

impl World {
    /// Returns `true` if the hold of a ticket may still exist, or was ended through the ticket just
    /// now.
    pub(super) fn may_be_adopted(&self, hold: &HoldId) -> bool {
        let now = clock::now();
        let ending = self.io_timeout * 2 + self.lease / 20 + self.grace();
        let renewal = self.network.lateness.max(self.io_timeout) + self.lease * 102 / 100;
        let Some(left) = self.left.iter().find(|left| left.id == *hold) else { return false };
        if let Some(ended) = left.ends.last() {
            return now < *ended + ending;
        }
        // This includes a request whose reply was lost.
        let is_renewal = |it: &&Asked| matches!(it.subject.wish, Wish::Renew(_));
        let renewed = self.record.of(left.name, hold).find(is_renewal);
        now < left.most || renewed.is_some_and(|it| now < it.sent + renewal)
    }

    /// Returns `true` if several may use the ticket of a hold.
    pub(super) fn has_shared_ticket(&self, hold: &HoldId) -> bool {
        self.left.iter().any(|left| left.id == *hold && left.is_shared)
    }

    /// Returns `true` if the client with the hold renews its lease.
    pub(super) fn is_renewed(&self, client: Process, hold: &HoldId) -> bool {
        let was_adopted = self.left.iter().any(|left| left.id == *hold && left.owner != client);
        if was_adopted { self.renews } else { hold.is_renewed() }
    }

    /// Records that a user begins to end a detached hold, or takes it for lost.
    pub(super) fn note_end(&mut self, at: usize) {
        self.left[at].ends.push(clock::now());
    }

    /// Records that a user that began to end it at that time has not ended it after all.
    fn take_end_back(&mut self, at: usize, began: Instant) {
        let ends = &mut self.left[at].ends;
        if let Some(place) = ends.iter().position(|ended| *ended >= began) {
            ends.remove(place);
        }
    }

    /// Returns how many users may be ending a detached hold. A user that relies on it for longer
    /// has renewed it since.
    pub(super) fn ends(&self, at: usize) -> usize {
        let now = clock::now();
        let lasts = self.lease * 2 + self.io_timeout * 2;
        self.left[at].ends.iter().filter(|ended| now < **ended + lasts).count()
    }

    /// Records that a request sent after `sent` has renewed a hold.
    fn note_left(&mut self, at: usize, sent: Instant, lease: Duration) {
        // The server's clock may drift either way.
        let (left, now) = (&mut self.left[at], clock::now());
        left.least = left.least.max(sent + lease * 98 / 100);
        left.most = left.most.max(now + lease * 102 / 100);
    }

    /// Returns `true` if a name may be held by a ticket, without a guard.
    pub(super) fn may_be_left(&self, name: usize) -> bool {
        let now = clock::now();
        self.left.iter().any(|left| left.name == name && left.ends.is_empty() && now < left.most)
    }

    /// Returns `true` if a name has a detached hold that the server attributes to this client.
    pub(super) fn has_left(&self, client: Process, name: usize) -> bool {
        self.left.iter().any(|left| left.name == name && left.owner == client)
    }

    /// Records that a client ends its adopted holds, because it is being shut down.
    pub(super) fn end_adopted(&mut self, client: Process) {
        let held = self.guards.iter().flatten().filter(|held| held.client == client);
        let left: Vec<_> = held.filter_map(|held| held.left).collect();
        for at in left {
            self.note_end(at);
        }
    }

    /// Returns how often, per mille, a thread detaches a hold of a name. Holds with an age limit
    /// are not detached, and neither are holds whose lock stays taken.
    pub(super) fn leaves_of(&self, name: usize, place: usize) -> u64 {
        let held = self.guards[place].as_ref();
        let can_be_left = held.is_some_and(|held| {
            let is_lock = matches!(*held.guard, Guarded::Lock(_));
            is_lock && held.terms.max_hold.is_none() && held.terms.at_least.is_none()
        });
        let can_be_left = can_be_left && self.names[name].usage == Usage::Lock;
        if can_be_left { self.leaves } else { 0 }
    }

    /// Returns how many servers have a detached hold.
    fn servers_with(&self, at: usize) -> usize {
        let left = &self.left[at];
        let holds = self.network.holds(&self.names[left.name].key);
        holds.iter().filter(|(id, depth, _)| *id == left.id && *depth > 0).count()
    }
}

/// A use of a ticket.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// Adopts the hold, and keeps it for a while.
    Adopt(Duration),
    Release,
    Renew,
}

/// Detaches a lock, and returns its ticket.
fn leave(from: Process, place: usize) -> Option<(usize, Ticket)> {
    let Held { guard, name, owner, begun, left, .. } = with(|world| {
        let held = world.guards[place].take();
        world.releasing.extend(held.as_ref().map(|held| (from, held.name)));
        held
    })?;
    let guard = Rc::into_inner(guard).expect("it is not used");
    let Guarded::Lock(guard) = guard else { unreachable!("only locks are detached") };
    let (fence, sent, lost) = (guard.fence(), clock::now(), guard.lost());
    let result = guard.detach();
    say(from, || format!("detaches the hold with fence {fence}: {result:?}"));
    let ticket = match result {
        Ok(ticket) => ticket,
        Err(error) => {
            let is_expected = with(|world| {
                if let Some(at) = left {
                    world.note_end(at);
                }
                let is_shared = left.is_some_and(|at| world.left[at].is_shared);
                let may_fail =
                    matches!(error, Error::Lost { .. }) || world.may_fail(&error, from, sent);
                is_shared || !world.is_calm && may_fail
            });
            if !is_expected {
                broken(&format!("a hold is not detached: {error}"));
            }
            end_release(from, name);
            return None;
        }
    };
    // Waiting, even for no time, would take up time of this process.
    let is_over = lost.receiver().try_recv() == Err(TryRecvError::Disconnected);
    if !is_over || lost.is_lost() || ticket.fence() != fence {
        broken(&format!("{ticket:?} is of a hold with fence {fence}: {lost:?}"));
    }
    let at = with(|world| {
        world.tally.left += 1;
        let id = ticket.hold.id.clone();
        let at = world.left.iter().position(|left| left.id == id).unwrap_or_else(|| {
            world.left.push(Left {
                id,
                fence,
                name,
                owner,
                begun,
                least: sent,
                most: sent,
                is_shared: false,
                ends: Vec::new(),
            });
            world.left.len() - 1
        });
        world.note_left(at, sent, ticket.hold.lease);
        at
    });
    end_release(from, name);
    Some((at, ticket))
}

/// Passes a lock to another client, which keeps it for a while.
pub(super) fn pass(from: Process, place: usize, to: Process, holds: Duration) {
    let Some((at, ticket)) = leave(from, place) else { return };
    start(to, move |client, process| make_use(client, process, at, &ticket, Use::Adopt(holds)));
}

/// Detaches a lock for threads of any clients, which adopt it soon, late, or never.
pub(super) fn leave_to_any(from: Process, place: usize, random: &mut Random) {
    let Some((at, ticket)) = leave(from, place) else { return };
    let uses = random.pick(&[0, 1, 1, 1, 1, 2]);
    let (lease, clients, is_calm) = with(|world| {
        world.left[at].is_shared |= uses > 1;
        (world.lease, world.clients.len() as u64, world.is_calm)
    });
    for _ in 0..uses {
        let to = usize::try_from(random.below(clients)).unwrap_or(0) + 1;
        let late = random.pick(&[lease / 50, lease / 50, lease, lease * 3]);
        let (late, holds) = (random.time(late), random.time(lease));
        let what = match random.below(8) {
            0 => Use::Release,
            1 => Use::Renew,
            _ => Use::Adopt(holds),
        };
        let (text, mut random) = (ticket.to_string(), Random(random.next()));
        start(to, move |client, process| {
            executor::sleep(late);
            if !is_calm && random.permille(100) {
                stop_soon(process, &mut random);
            }
            // Another process would have only the text of the ticket.
            let ticket: Ticket = text.parse().expect("a ticket");
            make_use(client, process, at, &ticket, what);
        });
    }
}

/// Uses a ticket, and checks the result.
fn make_use(client: &Client, process: Process, at: usize, ticket: &Ticket, what: Use) {
    let sent = clock::now();
    // A late request may spread the hold of a minority to other servers.
    let (was_there, changes) = with(|world| (world.servers_with(at) > 0, world.changes));
    let fence = ticket.fence();
    say(process, || format!("uses the ticket of the hold with fence {fence}: {what:?}"));
    let name = with(|world| {
        let name = world.left[at].name;
        if let Use::Release = what {
            world.note_end(at);
            world.releasing.push((process, name));
        }
        name
    });
    let result = match what {
        Use::Adopt(_) => client.adopt(ticket).map(Some),
        Use::Release => {
            let result = client.release_ticket(ticket);
            end_release(process, name);
            result.map(|()| None)
        }
        Use::Renew => client.renew_ticket(ticket).map(|()| None),
    };
    let error = match result {
        Ok(guard) => {
            with(|world| {
                if !matches!(what, Use::Release) {
                    world.note_left(at, sent, ticket.hold.lease);
                }
            });
            // The answer to a release may have been lost.
            let is_certain = !matches!(what, Use::Release);
            if is_certain && !was_there && with(|world| world.changes == changes) {
                broken(&format!("{what:?} of the hold with fence {fence}, which was over"));
            }
            if let (Some(guard), Use::Adopt(holds)) = (guard, what) {
                have(guard, ticket.hold.lease, process, at, holds);
            }
            return;
        }
        Err(error) => error,
    };
    say(process, || format!("its use fails: {error}"));
    let broken_by = with(|world| {
        world.tally.refused += u64::from(matches!(error, Error::Lost { .. }));
        // The other uses do not acquire a lock.
        if let Use::Adopt(_) = what {
            world.clients[process - 1].ledger.note_error(&error);
        }
        if let (Use::Release, Error::Closed) = (what, &error) {
            world.take_end_back(at, sent);
        }
        let left = &world.left[at];
        if !matches!(error, Error::Lost { .. }) {
            let is_expected = world.may_fail(&error, process, sent);
            return (!is_expected).then(|| format!("a use of a ticket fails: {error}"));
        }
        let is_there = world.servers_with(at) > world.network.servers.len() / 2;
        if is_there && world.changes == changes {
            return Some(format!("a ticket is refused, though its hold exists: {error}"));
        }
        let own = usize::from(matches!(what, Use::Release));
        let is_over = world.ends(at) > own || clock::now() >= left.least;
        let mut excuses = world.excuses_of(left.owner, left.name, Some(left.fence), left.begun);
        (!is_over && excuses.next().is_none())
            .then(|| format!("a detached hold ends early: {error}"))
    });
    if let Some(why) = broken_by {
        broken(&why);
    }
}

/// Keeps an adopted hold for a while.
fn have(guard: OwnedGuard, lease: Duration, client: Process, at: usize, holds: Duration) {
    let begun = clock::now();
    let (held, fence, is_back) = with(|world| {
        world.tally.adopted += 1;
        let state = &world.clients[client - 1];
        // It may be over if its client was stopped after the reply.
        let is_late = !state.stopped.is_zero() && !guard.is_held();
        if state.shut_down.is_some() || is_late {
            world.note_end(at);
        }
        let Left { name, owner, fence, .. } = world.left[at];
        let is_back = world.is_unasked(&world.left[at].id);
        let (guard, side, left) = (Rc::new(Guarded::Lock(guard)), Side::Alone, Some(at));
        let (over_since, lost) = (None, None);
        let terms = Terms { lease, ..world.usual_terms() };
        let since = clock::now();
        let held =
            Held { guard, client, owner, name, side, left, begun, since, over_since, lost, terms };
        (held, fence, is_back)
    });
    say(client, || format!("adopts the hold with fence {fence}"));
    let place = begin_hold(held, |last, found, _| found == fence && (found >= last || is_back));
    use_sometimes(client, place);
    executor::sleep(holds);
    release(client, place, false);
}
