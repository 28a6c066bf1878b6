//! Model 4: under the lock and with its fence, no acknowledged write is lost.
//!
//! Every holder reads a number and writes the next one. So no number is acknowledged twice, and the
//! last one is the count of acknowledged writes, plus at most the count of writes whose outcome is
//! unknown. Nothing voids this.

use std::collections::BTreeMap;

use super::{Verdict, Violation};
use crate::harness::history::{Action, Call, Kind, Outcome, Place};

#[derive(Default)]
pub(crate) struct Register {
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
    pub(crate) fn note(&mut self, call: &Call) {
        self.stale += usize::from(call.outcome == Outcome::Stale);
        let Action::Write { value, .. } = call.action else { return };
        match call.outcome.kind() {
            Kind::Ok => self.writes.push(Write { name: call.name, value, place: call.place }),
            Kind::Unknown => *self.unknown.entry(call.name).or_default() += 1,
            Kind::Fail => {}
        }
    }

    pub(crate) fn verdict(mut self, finals: &[u64]) -> Verdict {
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

    /// Returns how many acknowledged writes are missing at the end, if no unknown one took effect.
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
