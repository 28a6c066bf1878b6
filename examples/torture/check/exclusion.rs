//! Model 1: one holder at a time.
//!
//! A hold is believed from the return of its lock call to the start of the unlock call of its last
//! guard, or to the last moment for which `is_held` was promised, whichever is earlier. Believed
//! holds of one name never overlap, and none is found lost before its promise is over.
//!
//! Only servers that lose data void this: for two holds one of which was got before the end of the
//! loss and the other after its start, until a lease after its end. By then one of them was renewed
//! in vain. And a failover loses only what was acknowledged after its start: a promise made before
//! still counts. A killed or paused worker, a server that hangs or is restarted with its data, lost
//! replies and closed connections void nothing.

use std::collections::BTreeMap;

use super::{Loss, Verdict, Violation};
use crate::history::{Action, Actor, Call, Outcome, Place, Span};

pub(super) struct Exclusion {
    lease: u64,
    losses: Vec<Loss>,
    /// Those whose last guard is not gone yet.
    open: BTreeMap<Actor, Hold>,
    holds: Vec<Hold>,
    violations: Vec<Violation>,
}

struct Hold {
    name: u32,
    fence: u64,
    /// The call that took it.
    lock: Span,
    /// Believed until here.
    until: u64,
    promises: Vec<Promise>,
    place: Place,
}

/// To be held until then.
struct Promise {
    made: u64,
    until: u64,
}

impl Hold {
    fn promise(&mut self, made: u64, until: u64) {
        self.until = self.until.max(until);
        self.promises.push(Promise { made, until });
    }

    /// Until when it is held in spite of the loss.
    fn outlasts(&self, loss: &Loss) -> u64 {
        let before = self.promises.iter().filter(|one| one.made < loss.span.start);
        let until = before.map(|one| one.until).max();
        until.filter(|_| !loss.everything).unwrap_or_default()
    }
}

impl Exclusion {
    pub(super) fn new(lease: u64, losses: Vec<Loss>) -> Self {
        let (open, holds) = (BTreeMap::new(), Vec::new());
        Self { lease, losses, open, holds, violations: Vec::new() }
    }

    pub(super) fn note(&mut self, call: &Call) {
        match (call.action, call.outcome) {
            (Action::Lock { level: 1 }, Outcome::Granted { fence, until, .. }) => {
                let promises = vec![Promise { made: call.span.end, until }];
                let (name, lock, place) = (call.name, call.span, call.place);
                self.open.insert(call.actor, Hold { name, fence, lock, until, promises, place });
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

    /// Takes in that a hold was found lost.
    fn lose(&mut self, call: &Call) {
        let Some(hold) = self.open.get_mut(&call.actor) else { return };
        let found = call.span.end;
        let was_lost = |loss: &Loss| {
            let Span { start, end } = loss.span;
            hold.lock.start <= end && start <= found && hold.outlasts(loss) <= found
        };
        if self.losses.iter().any(was_lost) {
            hold.until = hold.until.min(call.span.start);
        } else if found < hold.until {
            let early = hold.until - found;
            let what = format!("lost {early} ns before its promise was over");
            self.violations.push(Violation::new(what, &[hold.place, call.place]));
        }
    }

    pub(super) fn verdict(mut self) -> Verdict {
        self.holds.extend(std::mem::take(&mut self.open).into_values());
        // A worker that was paused in its lock call may find the hold over when it returns.
        self.holds.retain(|hold| hold.lock.end < hold.until);
        self.holds.sort_unstable_by_key(|hold| (hold.name, hold.lock.end));
        let mut violations = std::mem::take(&mut self.violations);
        let (mut excused, mut believed) = (0, Vec::<&Hold>::new());
        for hold in &self.holds {
            believed.retain(|other| other.name == hold.name && other.until > hold.lock.end);
            for other in &believed {
                if self.is_excused(other, hold) {
                    excused += 1;
                    continue;
                }
                let both = other.until.min(hold.until).saturating_sub(hold.lock.end);
                let what = format!("held twice at {}, for {both} ns", hold.lock.end);
                violations.push(Violation::new(what, &[other.place, hold.place]));
            }
            believed.push(hold);
        }
        let holds = self.holds.len();
        let checked = format!("{holds} holds, {excused} overlaps excused by lost data");
        Verdict { model: "exclusion", checked, violations }
    }

    /// Whether data was lost between the two, and one is given up when that must be known.
    fn is_excused(&self, first: &Hold, second: &Hold) -> bool {
        let asked = first.lock.start.min(second.lock.start);
        let got = second.lock.end;
        let older = if first.fence < second.fence { first } else { second };
        self.losses.iter().any(|loss| {
            let Span { start, end } = loss.span;
            // Where two masters give locks, nobody can tell whose hold was lost.
            let over = if loss.everything { older.until } else { first.until.min(second.until) };
            asked <= end && start <= got && over <= end + self.lease && first.outlasts(loss) <= got
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::show;
    use super::*;

    const LEASE: u64 = 1000;

    fn violations(lines: &str, losses: &[Loss]) -> Vec<String> {
        let mut model = Exclusion::new(LEASE, losses.to_vec());
        show(lines, |call| model.note(call));
        model.verdict().violations.into_iter().map(|violation| violation.what).collect()
    }

    fn wipe(start: u64, end: u64) -> Loss {
        Loss { span: Span { start, end }, everything: true }
    }

    fn failover(start: u64, end: u64) -> Loss {
        Loss { everything: false, ..wipe(start, end) }
    }

    /// Thread 2 gets the lock while thread 1 has it.
    const OVERLAP: &str = "\
        1000 1 > lock 0 1
        1010 1 < granted 7 1 1900
        1020 2 > lock 0 1
        1500 2 < granted 8 1 2400";

    #[test]
    fn two_holders_at_once_are_found() {
        assert_eq!(violations(OVERLAP, &[]), ["held twice at 1500, for 400 ns"]);
    }

    #[test]
    fn two_names_are_two_locks() {
        let two = OVERLAP.replace("2 > lock 0", "2 > lock 1");
        assert!(violations(&two, &[]).is_empty());
    }

    #[test]
    fn a_hold_ends_with_its_promise() {
        assert!(violations(&OVERLAP.replace("1900", "1500"), &[]).is_empty());
    }

    #[test]
    fn a_hold_that_was_over_when_it_was_got_is_none() {
        assert!(violations(&OVERLAP.replace("2400", "1500"), &[]).is_empty());
        assert!(violations(&OVERLAP.replace("2400", "0"), &[]).is_empty());
    }

    #[test]
    fn a_hold_ends_when_its_last_unlock_begins() {
        let unlocked = OVERLAP.replace("1020 2", "1015 1 > unlock 0 1\n1019 1 < unknown\n1020 2");
        assert!(violations(&unlocked, &[]).is_empty());
        let inner = unlocked.replace("unlock 0 1", "unlock 0 2");
        assert_eq!(violations(&inner, &[]).len(), 1);
    }

    #[test]
    fn a_hold_of_a_killed_process_lasts_as_long_as_promised() {
        let killed = OVERLAP.replace("1020 2", "1015 1 > lock 0 2\n1020 2");
        assert_eq!(violations(&killed, &[]).len(), 1);
    }

    #[test]
    fn a_check_prolongs_a_hold() {
        let checked = OVERLAP.replace("1900", "1100");
        assert!(violations(&checked, &[]).is_empty());
        let checked = checked + "\n1600 1 > check 0 1\n1601 1 < held 1600";
        assert_eq!(violations(&checked, &[]).len(), 1);
    }

    #[test]
    fn a_long_hold_is_compared_with_all_that_begin_in_it() {
        let third =
            OVERLAP.replace("2400", "1510") + "\n1520 3 > lock 0 1\n1600 3 < granted 9 1 1601";
        assert_eq!(violations(&third, &[]).len(), 2);
    }

    #[test]
    fn lost_data_excuses_two_holders() {
        assert!(violations(OVERLAP, &[wipe(1100, 1200)]).is_empty());
    }

    #[test]
    fn lost_data_excuses_nothing_else() {
        let before_both = wipe(800, 900);
        let after_both = wipe(1501, 1600);
        assert_eq!(violations(OVERLAP, &[before_both, after_both]).len(), 1);
        // The first is not given up, although the second was not long.
        let kept = OVERLAP.replace("1900", "2201").replace("2400", "1600");
        assert_eq!(violations(&kept, &[wipe(1100, 1200)]).len(), 1);
        assert!(violations(&kept, &[failover(1005, 1200)]).is_empty());
        let long = OVERLAP.replace("1900", "2201");
        assert_eq!(violations(&long, &[wipe(1100, 1200)]).len(), 1);
        assert!(violations(&long, &[wipe(1100, 1201)]).is_empty());
    }

    #[test]
    fn a_failover_excuses_two_holders_if_the_first_came_after_its_start() {
        assert!(violations(OVERLAP, &[failover(1005, 1600)]).is_empty());
        assert!(violations(OVERLAP, &[failover(1010, 1020)]).is_empty());
        assert_eq!(violations(OVERLAP, &[failover(1011, 1600)]).len(), 1);
    }

    #[test]
    fn a_failover_voids_promises_made_after_its_start() {
        let renewed = OVERLAP.replace("1900", "1400");
        let renewed = renewed + "\n1300 1 > check 0 1\n1301 1 < held 1900";
        assert!(violations(&renewed, &[failover(1200, 1600)]).is_empty());
        assert_eq!(violations(&renewed, &[failover(1302, 1600)]).len(), 1);
    }

    #[test]
    fn a_hold_from_before_a_failover_is_not_lost_early() {
        let lost = "\
            1000 1 > lock 0 1
            1010 1 < granted 7 1 1900
            1020 1 > check 0 1
            1300 1 < lost";
        assert_eq!(violations(lost, &[failover(1011, 1200)]).len(), 1);
        assert!(violations(lost, &[failover(1005, 1200)]).is_empty());
        assert!(violations(&lost.replace("1300", "1900"), &[failover(1011, 1200)]).is_empty());
    }

    #[test]
    fn a_broken_promise_is_found() {
        let lost = "\
            1000 1 > lock 0 1
            1010 1 < granted 7 1 1900
            1020 1 > unlock 0 1
            1030 1 < lost";
        assert_eq!(violations(lost, &[]), ["lost 870 ns before its promise was over"]);
        assert!(violations(lost, &[wipe(1005, 1009)]).is_empty());
        assert!(violations(&lost.replace("1030", "1900"), &[]).is_empty());
    }
}
