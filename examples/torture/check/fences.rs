//! Model 3: fences grow.
//!
//! If one hold's lock call had returned before another's began, its fence is smaller; and no two
//! holds of a name have the same. Nothing voids this, as the server's clock is never set back here.

use super::{Verdict, Violation};
use crate::history::{Action, Call, Outcome, Place, Span};

#[derive(Default)]
pub(super) struct Fences {
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
    pub(super) fn note(&mut self, call: &Call) {
        if let (Action::Lock { level: 1 }, Outcome::Granted { fence, .. }) =
            (call.action, call.outcome)
        {
            let (name, lock, place) = (call.name, call.span, call.place);
            self.holds.push(Hold { name, fence, lock, place });
        }
    }

    pub(super) fn verdict(mut self) -> Verdict {
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

#[cfg(test)]
mod tests {
    use super::super::tests::show;
    use super::*;

    fn violations(lines: &str) -> Vec<String> {
        let mut model = Fences::default();
        show(lines, |call| model.note(call));
        model.verdict().violations.into_iter().map(|violation| violation.what).collect()
    }

    const GROWING: &str = "\
        10 1 > lock 0 1
        20 1 < granted 7 1 99
        21 2 > lock 0 1
        30 2 < granted 8 1 99
        31 1 > lock 1 1
        40 1 < granted 5 1 99
        41 2 > lock 1 1
        50 2 < granted 6 1 99";

    #[test]
    fn growing_fences_are_good_in_each_name() {
        assert!(violations(GROWING).is_empty());
    }

    #[test]
    fn a_shrinking_fence_is_found() {
        let smaller = GROWING.replace("granted 8", "granted 6");
        assert_eq!(violations(&smaller), ["fence 6 came after 7"]);
        let smaller = GROWING.replace("50 2 < granted 6", "50 2 < granted 4");
        assert_eq!(violations(&smaller), ["fence 4 came after 5"]);
    }

    #[test]
    fn fences_of_calls_at_the_same_time_have_no_order() {
        let both = GROWING.replace("21 2", "19 2").replace("granted 8", "granted 6");
        assert!(violations(&both).is_empty());
    }

    #[test]
    fn a_fence_given_twice_is_found() {
        let twice = GROWING.replace("21 2", "19 2").replace("granted 8", "granted 7");
        assert_eq!(violations(&twice), ["fence 7 was given twice"]);
    }
}
