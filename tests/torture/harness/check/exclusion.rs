//! Model 1: one holder at a time, or any number of readers, or as many as there are permits.
//!
//! A hold is believed from the return of its lock call to the start of the unlock call of its last
//! guard, or to the last moment for which `is_held` was promised, whichever is earlier. Believed
//! holds of one name never overlap, except for readers among themselves, and permits up to their
//! number. None is found lost before its promise is over.
//!
//! Only servers that lose data void this, and only for two holds if one relies on a request from
//! before the end of the loss, and the other on a request after its start. They do so until a lease
//! after the end of the loss: by then the renewal of one hold has failed. A failover loses only
//! what was acknowledged after its start: an earlier promise still counts. A killed or paused
//! worker, a server that hangs or is restarted with its data, lost replies and closed connections
//! void nothing.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::tenures::Tenures;
use super::{Loss, Verdict, Violation};
use crate::harness::history::{Action, Actor, Call, Outcome, Place, Span};

pub(crate) struct Exclusion {
    lease: u64,
    /// How many permits of a name may be held at a time.
    permits: usize,
    losses: Vec<Loss>,
    tenures: Tenures,
    /// The holds that still have a guard.
    open: BTreeMap<Actor, Hold>,
    holds: Vec<Hold>,
    violations: Vec<Violation>,
}

struct Hold {
    name: u32,
    /// The call that began it: a lock, a reader's share of one, or a permit.
    action: Action,
    fence: u64,
    /// The call that acquired it.
    lock: Span,
    /// When its process asked for the lock.
    asked: u64,
    /// The end of the time during which it is believed.
    until: u64,
    promises: Vec<Promise>,
    place: Place,
}

/// A promise that the lock is held until then.
struct Promise {
    made: u64,
    until: u64,
}

impl Hold {
    fn promise(&mut self, made: u64, until: u64) {
        self.until = self.until.max(until);
        self.promises.push(Promise { made, until });
    }

    /// Returns the time until which it is held despite the loss.
    fn outlasts(&self, loss: &Loss) -> u64 {
        let before = self.promises.iter().filter(|one| one.made < loss.span.start);
        let until = before.map(|one| one.until).max();
        until.filter(|_| !loss.everything).unwrap_or_default()
    }
}

impl Exclusion {
    pub(crate) fn new(lease: u64, permits: u32, losses: Vec<Loss>, zero: u64) -> Self {
        let (open, holds) = (BTreeMap::new(), Vec::new());
        let (tenures, violations) = (Tenures::new(zero), Vec::new());
        Self { lease, permits: permits as usize, losses, tenures, open, holds, violations }
    }

    pub(crate) fn note(&mut self, call: &Call) {
        match (call.action, call.outcome) {
            (action, Outcome::Granted { fence, until, .. }) if action.begins() => {
                let promises = vec![Promise { made: call.span.end, until }];
                let (name, lock, place) = (call.name, call.span, call.place);
                let asked = self.tenures.begun(call);
                let hold = Hold { name, action, fence, lock, asked, until, promises, place };
                self.open.insert(call.actor, hold);
            }
            (_, Outcome::Granted { until, .. } | Outcome::Held { until }) => {
                if let Some(hold) = self.open.get_mut(&call.actor) {
                    hold.promise(call.span.end, until);
                }
            }
            (_, Outcome::Lost) => self.lose(call),
            _ => {}
        }
        if call.action == (Action::Unlock { levels: 1 })
            && let Some(mut hold) = self.open.remove(&call.actor)
        {
            hold.until = hold.until.min(call.span.start);
            self.holds.push(hold);
        }
    }

    /// Notes that a hold was found lost.
    fn lose(&mut self, call: &Call) {
        let Some(hold) = self.open.get_mut(&call.actor) else { return };
        let found = call.span.end;
        let was_lost = |loss: &Loss| {
            let Span { start, end } = loss.span;
            hold.asked <= end && start <= found && hold.outlasts(loss) <= found
        };
        if self.losses.iter().any(was_lost) {
            hold.until = hold.until.min(call.span.start);
        } else if found < hold.until {
            let early = hold.until - found;
            let what = format!("lost {early} ns before its promise was over");
            self.violations.push(Violation::new(what, &[hold.place, call.place]));
        }
    }

    pub(crate) fn verdict(mut self) -> Verdict {
        self.holds.extend(std::mem::take(&mut self.open).into_values());
        // When a worker was paused in its lock call, the hold may be over when the call returns.
        self.holds.retain(|hold| hold.lock.end < hold.until);
        self.holds.sort_unstable_by_key(|hold| (hold.name, hold.lock.end));
        let mut violations = std::mem::take(&mut self.violations);
        let (mut excused, mut believed) = (0, Vec::<&Hold>::new());
        for hold in &self.holds {
            believed.retain(|other| other.name == hold.name && other.until > hold.lock.end);
            let mut others = believed.clone();
            others.retain(|other| !self.is_excused(other, hold));
            let found = self.find_overlaps(hold, &others);
            excused += self.find_overlaps(hold, &believed).len() - found.len();
            violations.extend(found);
            believed.push(hold);
        }
        let holds = self.holds.len();
        let checked = format!("{holds} holds, {excused} overlaps excused by lost data");
        Verdict { model: "exclusion", checked, violations }
    }

    /// Finds conflicts of a hold with others that exist when it begins.
    fn find_overlaps(&self, hold: &Hold, others: &[&Hold]) -> Vec<Violation> {
        let at = hold.lock.end;
        if hold.action == Action::Permit {
            let held = others.len() + 1;
            let what = format!("{held} permits held at {at} instead of {}", self.permits);
            let places: Vec<_> = others.iter().chain([&hold]).map(|hold| hold.place).collect();
            let violation = (held > self.permits).then(|| Violation::new(what, &places));
            return violation.into_iter().collect();
        }
        let is_alone =
            |other: &&&Hold| (other.action, hold.action) != (Action::Share, Action::Share);
        others
            .iter()
            .filter(is_alone)
            .map(|other| {
                let both = other.until.min(hold.until).saturating_sub(at);
                let what = format!("held twice at {at}, for {both} ns");
                Violation::new(what, &[other.place, hold.place])
            })
            .collect()
    }

    /// Returns `true` if data was lost between the two holds, and one of them ends when its worker
    /// must know of the loss.
    fn is_excused(&self, first: &Hold, second: &Hold) -> bool {
        let requested = first.asked.min(second.asked);
        let acquired = second.lock.end;
        let older = older(first, second);
        self.losses.iter().any(|loss| {
            let Span { start, end } = loss.span;
            // If two masters grant locks, nothing tells which of the holds was lost.
            let known = older.filter(|_| loss.everything);
            let over = known.map_or(first.until.min(second.until), |older| older.until);
            requested <= end
                && start <= acquired
                && over <= end + self.lease
                && first.outlasts(loss) <= acquired
        })
    }
}

/// Returns the hold that the servers granted first, if this is certain. A reader has the fence of
/// the writer before it.
fn older<'a>(first: &'a Hold, second: &'a Hold) -> Option<&'a Hold> {
    let order = |hold: &Hold| (hold.fence, hold.action == Action::Share);
    match order(first).cmp(&order(second)) {
        Ordering::Less => Some(first),
        Ordering::Greater => Some(second),
        Ordering::Equal if first.lock.end < second.lock.start => Some(first),
        Ordering::Equal => None,
    }
}
