//! Model 2: a thread that has the lock gets it again at once.
//!
//! A nested lock never finds the lock busy, has the fence of its hold, and has one level more than
//! before. The hold ends with its last guard, neither earlier nor later, and once lost it stays
//! lost. The sides of read-write locks and permits do not nest, and have a single guard. Nothing
//! voids this.

use std::collections::BTreeMap;

use super::{Verdict, Violation};
use crate::harness::history::{Action, Actor, Call, Outcome, Place};

#[derive(Default)]
pub(crate) struct Nesting {
    open: BTreeMap<Actor, Hold>,
    nested: usize,
    violations: Vec<Violation>,
}

struct Hold {
    fence: u64,
    /// The number of guards.
    levels: u32,
    lost: bool,
    place: Place,
}

impl Nesting {
    pub(crate) fn note(&mut self, call: &Call) {
        let problem = match call.action {
            action if action.begins() => self.begin(call),
            Action::Lock { level } => self.nest(call, level),
            Action::Check { levels: 0 } => match call.outcome {
                Outcome::Held { .. } => Some("still held after its last guard"),
                _ => None,
            },
            Action::Check { .. } => self.look(call),
            Action::Unlock { levels } => self.unlock(call, levels),
            _ => None,
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

    pub(crate) fn verdict(self) -> Verdict {
        let checked = format!("{} nested locks", self.nested);
        Verdict { model: "nesting", checked, violations: self.violations }
    }
}
