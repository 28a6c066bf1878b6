//! A client: what `src/local` does with one name. Its threads wait in one queue, so that at most
//! one of them acquires the lock or has it.

use std::collections::BTreeSet;

use crate::hold::{Block, HoldId};
use crate::tenure::flaw::Flaw;
use crate::tenure::server::{Command, Request};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    /// The number of its last tenure, or of that which it tries to begin.
    pub(crate) nonce: u8,
    /// The last request for that, from which its lease counts.
    pub(crate) round: u8,
    pub(crate) phase: Phase,
    /// How many of its threads have not had a guard yet.
    pub(crate) waiting: u8,
    /// Whether that lease is over.
    pub(crate) over: bool,
    /// Whether an earlier request for that tenure may still be executed. It is not handed off then,
    /// which no promise of this model needs.
    pub(crate) in_doubt: bool,
    /// Whether it has stopped for ever.
    pub(crate) stopped: bool,
    /// Known to no client: the first token of the tenure after its own, or 0.
    pub(crate) limit: u8,
    /// Known to no client: those that go first, because they were waiting when its tenure ended.
    pub(crate) owes: BTreeSet<usize>,
}

/// What the thread at the head of the wait queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Has sent a request for the lock. A reply on its way has `granted` it.
    Acquiring {
        granted: Option<Block>,
    },
    /// Was told that the lock is held.
    Waiting,
    /// Has a guard with the first of these tokens.
    Holding {
        tokens: Block,
    },
    /// Has sent the release of such a tenure, and would hand it on. It is idle where that is no
    /// flaw.
    Released {
        tokens: Block,
    },
}

impl Client {
    pub(crate) fn new(id: usize, threads: u8) -> Self {
        Self {
            id,
            nonce: 0,
            round: 0,
            phase: Phase::Idle,
            waiting: threads,
            over: false,
            in_doubt: false,
            stopped: false,
            limit: 0,
            owes: BTreeSet::new(),
        }
    }

    pub(crate) fn hold(&self) -> HoldId {
        HoldId { client: self.id, nonce: self.nonce }
    }

    /// Returns `true` if a guard of it is live, as far as it knows.
    pub(crate) fn has_live_guard(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. }) && !self.over
    }

    /// Returns `true` if its threads have tokens, or will once it has the reply.
    pub(crate) fn has_tokens(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Waiting => false,
            Phase::Acquiring { granted } => granted.is_some(),
            Phase::Holding { .. } | Phase::Released { .. } => true,
        }
    }

    /// Returns `true` if it relies on the lease that this request has set.
    pub(crate) fn relies_on(&self, hold: HoldId, round: u8) -> bool {
        let relies = matches!(self.phase, Phase::Acquiring { .. } | Phase::Holding { .. });
        relies && !self.over && (hold, round) == (self.hold(), self.round)
    }

    /// Begins to acquire the lock.
    pub(crate) fn begin(&mut self, flaw: Option<Flaw>) -> Request {
        self.in_doubt = false;
        if flaw != Some(Flaw::NumberIsReused) || self.nonce == 0 {
            (self.nonce, self.round) = (self.nonce + 1, 0);
        }
        self.ask()
    }

    /// Asks for the tenure, perhaps once more. If another thread waits, one more token is wanted.
    pub(crate) fn ask(&mut self) -> Request {
        (self.round, self.phase) = (self.round + 1, Phase::Acquiring { granted: None });
        (self.over, self.limit) = (false, 0);
        self.request(Command::Acquire { size: self.waiting.min(2) })
    }

    /// Ends the tenure, or what may be left of an attempt.
    pub(crate) fn release(&mut self, flaw: Option<Flaw>) -> Request {
        self.phase = match self.phase {
            Phase::Holding { tokens } if flaw == Some(Flaw::HandsOffInDoubt) => {
                Phase::Released { tokens }
            }
            _ => Phase::Idle,
        };
        (self.over, self.in_doubt, self.limit) = (false, false, 0);
        self.request(Command::Release)
    }

    /// Stops for ever. It still relies on the guard that it has.
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.over) = (true, self.over || !self.has_live_guard());
    }

    fn request(&self, command: Command) -> Request {
        Request { hold: self.hold(), round: self.round, command, is_copy: false }
    }

    /// Returns `true` if it waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request) -> bool {
        let is_last = (request.hold, request.round) == (self.hold(), self.round);
        let acquires = matches!(request.command, Command::Acquire { .. });
        is_last && acquires && !self.stopped && self.phase == Phase::Acquiring { granted: None }
    }

    /// Returns the tokens for the next guard of its tenure, if it may hand that on.
    pub(crate) fn next_tokens(&self, flaw: Option<Flaw>) -> Option<Block> {
        let tokens = match self.phase {
            Phase::Holding { tokens } => tokens,
            Phase::Released { tokens } if flaw == Some(Flaw::HandsOffInDoubt) => tokens,
            _ => return None,
        };
        let in_time = !self.over || flaw == Some(Flaw::HandsOffLate);
        let may_hand_off = in_time && !self.in_doubt && self.waiting > 0;
        may_hand_off.then(|| tokens.following()).flatten()
    }
}
