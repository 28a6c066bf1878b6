//! Model 3: fences grow.
//!
//! If one hold's lock call had returned before another's began, its fence is smaller; and no two
//! holds of a name have the same. Nothing voids this, as the server's clock is never set back here.

use super::{Verdict, Violation};
use crate::harness::history::{Action, Call, Outcome, Place, Span};

#[derive(Default)]
pub(crate) struct Fences {
    holds: Vec<Hold>,
}

#[derive(Clone, Copy)]
struct Hold {
    name: u32,
    fence: u64,
    lock: Span,
    place: Place,
}

impl Fences {
    pub(crate) fn note(&mut self, call: &Call) {
        if let (Action::Lock { level: 1 }, Outcome::Granted { fence, .. }) =
            (call.action, call.outcome)
        {
            let (name, lock, place) = (call.name, call.span, call.place);
            self.holds.push(Hold { name, fence, lock, place });
        }
    }

    pub(crate) fn verdict(mut self) -> Verdict {
        let mut violations = Vec::new();
        self.holds.sort_unstable_by_key(|hold| (hold.name, hold.fence));
        for pair in self.holds.windows(2) {
            if let [a, b] = pair
                && (a.name, a.fence) == (b.name, b.fence)
            {
                let what = format!("fence {} was given twice", a.fence);
                violations.push(Violation::new(what, &[a.place, b.place]));
            }
        }
        self.find_shrinking(&mut violations);
        let checked = format!("{} fences", self.holds.len());
        Verdict { model: "fences", checked, violations }
    }

    /// Compares each hold with the one of the greatest fence among those that had returned before
    /// it began.
    fn find_shrinking(&mut self, violations: &mut Vec<Violation>) {
        let mut returned = self.holds.clone();
        returned.sort_unstable_by_key(|hold| (hold.name, hold.lock.end));
        self.holds.sort_unstable_by_key(|hold| (hold.name, hold.lock.start));
        let mut earlier = returned.into_iter().peekable();
        let mut greatest: Option<Hold> = None;
        for hold in &self.holds {
            greatest = greatest.filter(|one| one.name == hold.name);
            let before = |one: &Hold| (one.name, one.lock.end) < (hold.name, hold.lock.start);
            while let Some(one) = earlier.next_if(before) {
                if one.name == hold.name && greatest.is_none_or(|other| other.fence < one.fence) {
                    greatest = Some(one);
                }
            }
            if let Some(one) = greatest
                && one.fence > hold.fence
            {
                let what = format!("fence {} came after {}", hold.fence, one.fence);
                violations.push(Violation::new(what, &[one.place, hold.place]));
            }
        }
    }
}
