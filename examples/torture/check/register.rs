//! Model 4: under the lock and with its fence, no acknowledged write is lost.
//!
//! Every holder reads a number and writes the next one. So no number is acknowledged twice, and the
//! last one is the count of acknowledged writes, or more by writes that nobody knows the outcome of.
//! Nothing voids this.

use std::collections::BTreeMap;

use super::{Verdict, Violation};
use crate::history::{Action, Call, Kind, Outcome, Place};

#[derive(Default)]
pub(super) struct Register {
    writes: Vec<Write>,
    unknown: BTreeMap<u32, u64>,
    stale: usize,
}

/// An acknowledged write.
struct Write {
    name: u32,
    value: u64,
    place: Place,
}

impl Register {
    pub(super) fn note(&mut self, call: &Call) {
        self.stale += usize::from(call.outcome == Outcome::Stale);
        let Action::Write { value, .. } = call.action else { return };
        match call.outcome.kind() {
            Kind::Ok => self.writes.push(Write { name: call.name, value, place: call.place }),
            Kind::Unknown => *self.unknown.entry(call.name).or_default() += 1,
            Kind::Fail => {}
        }
    }

    pub(super) fn verdict(mut self, finals: &[u64]) -> Verdict {
        self.writes.sort_unstable_by_key(|write| (write.name, write.value));
        let mut violations = Vec::new();
        for pair in self.writes.windows(2) {
            if let [a, b] = pair
                && (a.name, a.value) == (b.name, b.value)
            {
                let what = format!("a lost update: {} was written twice", a.value);
                violations.push(Violation::new(what, &[a.place, b.place]));
            }
        }
        for (name, value) in (0..).zip(finals) {
            violations.extend(self.check_final(name, *value));
        }
        let unknown: u64 = self.unknown.values().sum();
        let lost: u64 = (0..).zip(finals).map(|(name, value)| self.lost(name, *value)).sum();
        let checked = format!(
            "{} writes acknowledged, {lost} lost, {unknown} unknown, {} stale requests refused",
            self.writes.len(),
            self.stale,
        );
        Verdict { model: "register", checked, violations }
    }

    fn of(&self, name: u32) -> impl DoubleEndedIterator<Item = &Write> {
        self.writes.iter().filter(move |write| write.name == name)
    }

    fn count(&self, name: u32) -> u64 {
        u64::try_from(self.of(name).count()).expect("a count")
    }

    /// How many acknowledged writes do not count in the end, if no unknown one does.
    fn lost(&self, name: u32, last: u64) -> u64 {
        self.count(name).saturating_sub(last)
    }

    fn check_final(&self, name: u32, last: u64) -> Option<Violation> {
        let (greatest, least) = (self.of(name).next_back(), self.count(name));
        let most = least + self.unknown.get(&name).copied().unwrap_or_default();
        let too_great = greatest.filter(|write| write.value > last);
        if too_great.is_none() && (least..=most).contains(&last) {
            return None;
        }
        let what = format!("lock {name} ended at {last} instead of {least} to {most}");
        let places: Vec<Place> = too_great.into_iter().map(|write| write.place).collect();
        Some(Violation::new(what, &places))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::show;
    use super::*;

    fn violations(lines: &str, finals: &[u64]) -> Vec<String> {
        let mut model = Register::default();
        show(lines, |call| model.note(call));
        model.verdict(finals).violations.into_iter().map(|violation| violation.what).collect()
    }

    const WRITTEN: &str = "\
        10 1 > write 0 7 1
        11 1 < done
        12 2 > write 0 8 2
        13 2 < done
        14 1 > write 0 7 2
        15 1 < stale
        16 1 > write 1 9 1
        17 1 < done";

    #[test]
    fn the_last_value_counts_what_was_acknowledged() {
        assert!(violations(WRITTEN, &[2, 1]).is_empty());
    }

    #[test]
    fn a_lost_update_is_found() {
        let lost = violations(&WRITTEN.replace("write 0 8 2", "write 0 8 1"), &[1, 1]);
        let count = "lock 0 ended at 1 instead of 2 to 2";
        assert_eq!(lost, ["a lost update: 1 was written twice", count]);
    }

    #[test]
    fn a_write_that_vanishes_or_appears_is_found() {
        assert_eq!(violations(WRITTEN, &[2, 0]), ["lock 1 ended at 0 instead of 1 to 1"]);
        assert_eq!(violations(WRITTEN, &[3, 1]), ["lock 0 ended at 3 instead of 2 to 2"]);
    }

    #[test]
    fn an_unknown_write_may_count_or_not() {
        let unknown = WRITTEN.replace("13 2 < done", "13 2 < unknown");
        assert!(violations(&unknown, &[2, 1]).is_empty());
        assert!(violations(&unknown, &[1, 1]).is_empty());
        assert_eq!(violations(&unknown, &[3, 1]).len(), 1);
    }

    #[test]
    fn a_last_value_below_an_acknowledged_one_is_found() {
        let replaced = WRITTEN.replace("13 2 < done", "13 2 < unknown").replace("0 7 1", "0 7 2");
        assert_eq!(violations(&replaced, &[1, 1]), ["lock 0 ended at 1 instead of 1 to 2"]);
    }
}
