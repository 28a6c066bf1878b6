//! Model 2: a thread that has the lock gets it again, at once.
//!
//! A nested lock never finds the lock busy, has the fence of its hold, and one level more than
//! before. The hold ends with its last guard, neither earlier nor later, and once lost it stays
//! lost. Nothing voids this.

use std::collections::BTreeMap;

use super::{Verdict, Violation};
use crate::history::{Action, Actor, Call, Outcome, Place};

#[derive(Default)]
pub(super) struct Nesting {
    open: BTreeMap<Actor, Hold>,
    nested: usize,
    violations: Vec<Violation>,
}

struct Hold {
    fence: u64,
    /// How many guards there are.
    levels: u32,
    lost: bool,
    place: Place,
}

impl Nesting {
    pub(super) fn note(&mut self, call: &Call) {
        let problem = match call.action {
            Action::Lock { level: 1 } => self.begin(call),
            Action::Lock { level } => self.nest(call, level),
            Action::Check { levels: 0 } => match call.outcome {
                Outcome::Held { .. } => Some("still held after its last guard"),
                _ => None,
            },
            Action::Check { .. } => self.look(call),
            Action::Unlock { levels } => self.unlock(call, levels),
            Action::Read { .. } | Action::Write { .. } => None,
        };
        if let Some(what) = problem {
            let begun = self.open.get(&call.actor).map(|hold| hold.place);
            let places: Vec<Place> = begun.into_iter().chain([call.place]).collect();
            self.violations.push(Violation::new(what, &places));
        }
    }

    fn begin(&mut self, call: &Call) -> Option<&'static str> {
        match call.outcome {
            Outcome::Granted { fence, depth, .. } => {
                let hold = Hold { fence, levels: 1, lost: false, place: call.place };
                let before = self.open.insert(call.actor, hold);
                (before.is_some() || depth != 1).then_some("a new hold does not begin at depth 1")
            }
            Outcome::Lost => Some("lost, while this thread has no guard"),
            _ => None,
        }
    }

    fn nest(&mut self, call: &Call, level: u32) -> Option<&'static str> {
        let hold = self.open.get_mut(&call.actor);
        let Some(hold) = hold else { return Some("nested in nothing") };
        match call.outcome {
            Outcome::Granted { fence, depth, .. } => {
                self.nested += 1;
                hold.levels += 1;
                match () {
                    () if hold.lost => Some("nested in a hold that was lost before"),
                    () if fence != hold.fence => Some("a nested lock has another fence"),
                    () if depth != level || depth != hold.levels => Some("the depth is wrong"),
                    () => None,
                }
            }
            Outcome::Busy => Some("a nested lock waited for its own thread"),
            Outcome::Lost => {
                hold.lost = true;
                None
            }
            _ => None,
        }
    }

    fn look(&mut self, call: &Call) -> Option<&'static str> {
        let hold = self.open.get_mut(&call.actor)?;
        match call.outcome {
            Outcome::Held { .. } if hold.lost => Some("held again after it was lost"),
            Outcome::Lost => {
                hold.lost = true;
                None
            }
            _ => None,
        }
    }

    fn unlock(&mut self, call: &Call, levels: u32) -> Option<&'static str> {
        let hold = self.open.get_mut(&call.actor);
        let Some(hold) = hold else { return Some("unlocked without a lock") };
        let (was_lost, had) = (hold.lost, hold.levels);
        hold.levels -= 1;
        hold.lost |= call.outcome == Outcome::Lost;
        if hold.levels == 0 {
            self.open.remove(&call.actor);
        }
        match call.outcome {
            _ if had != levels => Some("the depth is wrong"),
            Outcome::Done if was_lost => Some("unlocked, although it was lost before"),
            _ => None,
        }
    }

    pub(super) fn verdict(self) -> Verdict {
        let checked = format!("{} nested locks", self.nested);
        Verdict { model: "nesting", checked, violations: self.violations }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::show;
    use super::*;

    fn violations(lines: &str) -> Vec<String> {
        let mut model = Nesting::default();
        show(lines, |call| model.note(call));
        model.verdict().violations.into_iter().map(|violation| violation.what).collect()
    }

    const NESTED: &str = "\
        10 1 > lock 0 1
        11 1 < granted 7 1 99
        12 1 > lock 0 2
        13 1 < granted 7 2 99
        14 1 > unlock 0 2
        15 1 < done
        16 1 > check 0 1
        17 1 < held 99
        18 1 > unlock 0 1
        19 1 < done
        20 1 > check 0 0
        21 1 < free";

    #[track_caller]
    fn assert_found(old: &str, new: &str, what: &str) {
        let history = NESTED.replace(old, new);
        assert_ne!(history, NESTED);
        assert_eq!(violations(&history), [what]);
    }

    #[test]
    fn a_good_history_has_no_violations() {
        assert!(violations(NESTED).is_empty());
        assert!(violations(&NESTED.replace("19 1 < done", "19 1 < unknown")).is_empty());
        let lost = NESTED.replace("< held 99", "< lost").replace("19 1 < done", "19 1 < lost");
        assert!(violations(&lost).is_empty());
    }

    #[test]
    fn a_nested_lock_that_waits_is_found() {
        let waits = "13 1 < busy\n13 1 > lock 0 2\n13 1 < granted";
        assert_found("13 1 < granted", waits, "a nested lock waited for its own thread");
    }

    #[test]
    fn another_fence_is_found() {
        assert_found("granted 7 2", "granted 8 2", "a nested lock has another fence");
    }

    #[test]
    fn a_wrong_depth_is_found() {
        assert_found("granted 7 2", "granted 7 3", "the depth is wrong");
        assert_found("granted 7 1", "granted 7 2", "a new hold does not begin at depth 1");
    }

    #[test]
    fn a_hold_that_does_not_end_is_found() {
        assert_found("< free", "< held 99", "still held after its last guard");
    }

    #[test]
    fn a_hold_that_comes_back_is_found() {
        let lost = "16 1 > check 0 1\n16 1 < lost\n16 1 > check 0 1";
        let history =
            NESTED.replace("16 1 > check 0 1", lost).replace("19 1 < done", "19 1 < lost");
        assert_eq!(violations(&history), ["held again after it was lost"]);
        assert_found("< held 99", "< lost", "unlocked, although it was lost before");
    }

    #[test]
    fn an_inner_unlock_that_finds_the_loss_is_remembered() {
        let history =
            NESTED.replace("15 1 < done", "15 1 < lost").replace("19 1 < done", "19 1 < lost");
        assert_eq!(violations(&history), ["held again after it was lost"]);
    }
}
