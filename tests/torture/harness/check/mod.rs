//! The four models that decide whether a history keeps the promises, each in a file of its own.

pub(crate) mod exclusion;
pub(crate) mod fences;
pub(crate) mod nesting;
pub(crate) mod register;
mod tenures;

use self::exclusion::Exclusion;
use self::fences::Fences;
use self::nesting::Nesting;
use self::register::Register;
use crate::harness::history::{Call, Place, Span};

/// All models of one history. They see every call once, and the calls of one thread in order.
pub(crate) struct Checker {
    exclusion: Exclusion,
    nesting: Nesting,
    fences: Fences,
    register: Register,
}

/// The data that servers may have forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// Everything that was acknowledged in this time may be forgotten.
    pub(crate) span: Span,
    /// Whether everything from before may be forgotten too.
    pub(crate) everything: bool,
}

/// The verdict of one model.
pub(crate) struct Verdict {
    pub(crate) model: &'static str,
    /// The part of the history that it has checked.
    pub(crate) checked: String,
    pub(crate) violations: Vec<Violation>,
}

impl Verdict {
    pub(crate) fn is_broken(&self) -> bool {
        !self.violations.is_empty()
    }
}

/// A broken promise, and the lines that show it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) what: String,
    pub(crate) places: Vec<Place>,
}

impl Violation {
    fn new(what: impl Into<String>, places: &[Place]) -> Self {
        Self { what: what.into(), places: places.to_vec() }
    }
}

impl Checker {
    /// Creates a checker for leases of this many nanoseconds and semaphores of this many permits,
    /// for the `faults` of a run, and a clock that began at
    /// [`zero`](crate::harness::history::zero).
    pub(crate) fn new(
        lease: u64,
        permits: u32,
        losses: &[Loss],
        faults: Vec<Span>,
        zero: u64,
    ) -> Self {
        Self {
            exclusion: Exclusion::new(lease, permits, losses.to_vec(), zero),
            nesting: Nesting::default(),
            fences: Fences::new(lease, losses.to_vec(), faults, zero),
            register: Register::default(),
        }
    }

    pub(crate) fn note(&mut self, call: &Call) {
        self.exclusion.note(call);
        self.nesting.note(call);
        self.fences.note(call);
        self.register.note(call);
    }

    /// Ends the check. `finals` are the last values of the registers, which the last verdict is
    /// about.
    pub(crate) fn verdicts(self, finals: &[u64]) -> [Verdict; 4] {
        [
            self.exclusion.verdict(),
            self.nesting.verdict(),
            self.fences.verdict(),
            self.register.verdict(finals),
        ]
    }
}
