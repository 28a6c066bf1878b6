//! A client: the behaviour of `src/local/acquire_all.rs`.

use std::collections::BTreeMap;

/// A request about locks of one server. Locks are bits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    Acquire { locks: u64 },
    Release { locks: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) wants: Vec<usize>,
    pub(crate) phase: Phase,
    /// The number of the holds that it last asked for, and of the last request for these.
    pub(crate) nonce: u64,
    pub(crate) round: u64,
    /// The locks that it has, each with the number of its hold.
    pub(crate) has: BTreeMap<usize, u64>,
    /// Whether a lease that it relies on, or would, is over.
    pub(crate) over: bool,
    /// Whether it has stopped forever.
    pub(crate) stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Has asked a server for these. A reply in transit has `granted` them, or says which one is
    /// held.
    Asking {
        locks: u64,
        granted: Option<Result<(), usize>>,
    },
    /// Was told that this one is held.
    Waiting {
        name: usize,
    },
    Holding,
    Done,
}

impl Client {
    pub(crate) fn new(wants: &[usize]) -> Self {
        Self {
            wants: wants.to_vec(),
            phase: Phase::Done,
            nonce: 0,
            round: 0,
            has: BTreeMap::new(),
            over: false,
            stopped: false,
        }
    }

    pub(crate) fn has_live_guard(&self) -> bool {
        self.phase == Phase::Holding && !self.over
    }

    /// Stops forever. It still relies on its guard.
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.over) = (true, !self.has_live_guard());
    }

    pub(crate) fn relies_on(&self, name: usize, nonce: u64, round: u64) -> bool {
        let asks = match self.phase {
            Phase::Asking { locks, .. } => locks & bit(name) != 0 && round == self.round,
            _ => false,
        };
        !self.over && (self.has.get(&name) == Some(&nonce) || asks && nonce == self.nonce)
    }
}

pub(crate) fn bit(name: usize) -> u64 {
    1 << name
}

/// Returns the locks of a number, out of that many names.
pub(crate) fn of(locks: u64, names: usize) -> impl Iterator<Item = usize> {
    (0..names).filter(move |name| locks & bit(*name) != 0)
}
