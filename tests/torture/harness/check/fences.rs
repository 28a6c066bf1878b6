//! Model 3: fences grow.
//!
//! If one hold's lock call had returned before another's began, its fence is smaller; and no two
//! holds of a name have the same. A reader has the fence of the last writer before it: one that is
//! not smaller than that of a hold whose call had returned before, that is smaller than that of
//! every later writer, and, unless a fault has come between, that a writer was given. A request
//! that a fault delays may begin a hold after its call has ended. Permits have none.
//!
//! For writers that ask for the lock, nothing voids this, as the server's clock is never set back
//! here. A process that had the lock before it was lost may begin further holds of that tenure, for
//! at most a lease, with smaller fences than another process has by then. A reader's fence is that
//! of an earlier writer if a failover has lost the last one; if the data was lost, it is a new one.

use std::collections::BTreeMap;

use super::tenures::Tenures;
use super::{Loss, Verdict, Violation};
use crate::harness::history::{Action, Call, Outcome, Place, Span};

pub(crate) struct Fences {
    lease: u64,
    losses: Vec<Loss>,
    faults: Vec<Span>,
    tenures: Tenures,
    holds: Vec<Hold>,
    /// The name and the start of each call that may have become a writer without learning of it,
    /// because its reply was lost or late.
    secret: Vec<(u32, u64)>,
}

#[derive(Clone, Copy)]
struct Hold {
    name: u32,
    reads: bool,
    fence: u64,
    lock: Span,
    /// When its process asked for the lock.
    asked: u64,
    place: Place,
}

impl Fences {
    pub(crate) fn new(lease: u64, losses: Vec<Loss>, faults: Vec<Span>, zero: u64) -> Self {
        let (tenures, holds, secret) = (Tenures::new(zero), Vec::new(), Vec::new());
        Self { lease, losses, faults, tenures, holds, secret }
    }

    pub(crate) fn note(&mut self, call: &Call) {
        let Call { name, span: lock, place, .. } = *call;
        let reads = match call.action {
            Action::Lock { level: 1 } => false,
            Action::Share => true,
            _ => return,
        };
        if let Outcome::Granted { fence, .. } = call.outcome {
            let asked = self.tenures.begun(call);
            self.holds.push(Hold { name, reads, fence, lock, asked, place });
        }
        // Within a lease, a repeated request finds the hold that an earlier one has begun.
        let is_known = call.outcome != Outcome::Unknown && lock.end - lock.start < self.lease;
        if !reads && !is_known {
            self.secret.push((name, lock.start));
        }
    }

    pub(crate) fn verdict(mut self) -> Verdict {
        let mut violations = Vec::new();
        self.find_repeated(&mut violations);
        self.find_shrinking(&mut violations);
        self.find_unwritten(&mut violations);
        let readers = self.holds.iter().filter(|hold| hold.reads).count();
        let writers = self.holds.len() - readers;
        let checked = format!("{writers} fences, and {readers} of readers");
        Verdict { model: "fences", checked, violations }
    }

    fn find_repeated(&self, violations: &mut Vec<Violation>) {
        let mut writers: Vec<_> = self.holds.iter().filter(|hold| !hold.reads).collect();
        writers.sort_unstable_by_key(|hold| (hold.name, hold.fence));
        for pair in writers.windows(2) {
            if let [a, b] = pair
                && (a.name, a.fence) == (b.name, b.fence)
            {
                let what = format!("fence {} was given twice", a.fence);
                violations.push(Violation::new(what, &[a.place, b.place]));
            }
        }
    }

    /// Compares each hold with the one that has the greatest fence among those that had returned
    /// before it began.
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
            let Some(one) = greatest else { continue };
            let shrinks = if hold.reads {
                one.fence > hold.fence && !self.is_forgotten(&one, hold)
            } else {
                one.fence >= hold.fence && !self.is_older(hold, &one)
            };
            if shrinks {
                let what = format!("fence {} came after {}", hold.fence, one.fence);
                violations.push(Violation::new(what, &[one.place, hold.place]));
            }
        }
    }

    /// Returns `true` if the process of a hold had the lock before the servers lost it and has not
    /// learned of that, and the other hold began after the loss.
    fn is_older(&self, hold: &Hold, other: &Hold) -> bool {
        let follows = hold.asked < hold.lock.start;
        self.losses.iter().any(|loss| {
            let Span { start, end } = loss.span;
            follows
                && hold.asked <= end
                && start <= other.lock.end
                && hold.lock.start <= end + self.lease
        })
    }

    /// Returns `true` if the servers may have lost the fence of the first hold before the reader
    /// came.
    fn is_forgotten(&self, one: &Hold, reader: &Hold) -> bool {
        self.losses.iter().any(|loss| {
            let Span { start, end } = loss.span;
            start <= reader.lock.end && one.lock.start <= end && start <= one.lock.end
        })
    }

    /// Finds readers with a fence that no writer can have been given.
    fn find_unwritten(&self, violations: &mut Vec<Violation>) {
        let writers = self.holds.iter().filter(|hold| !hold.reads);
        let given: BTreeMap<_, _> =
            writers.map(|hold| ((hold.name, hold.fence), hold.lock.start)).collect();
        for reader in self.holds.iter().filter(|hold| hold.reads) {
            let Hold { name, fence, lock, .. } = *reader;
            let last = given.range((name, 0)..=(name, fence)).next_back();
            let Some((&(_, last), &since)) = last.filter(|((_, last), _)| *last != fence) else {
                continue;
            };
            let is_disturbed = self
                .faults
                .iter()
                .any(|fault| fault.start <= lock.end && since <= fault.end + self.lease);
            let secret = self.secret.iter().any(|(of, start)| *of == name && *start <= lock.end);
            if !is_disturbed && !secret {
                let what = format!("no writer was given the reader's fence {fence}, but {last}");
                violations.push(Violation::new(what, &[reader.place]));
            }
        }
    }
}
