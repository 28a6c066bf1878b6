//! A client: the behaviour of `src/local` with one name. Its threads wait in one queue, so that at
//! most one of them acquires the lock or has it.

use std::collections::BTreeSet;

use crate::hold::{Block, HoldId};
use crate::network::Request;
use crate::tenure::flaw::Flaw;
use crate::tenure::server::{Command, Grant};

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    /// Whether it keeps the lock unless there is a reason against it.
    pub(crate) keeps: bool,
    /// The number of its last tenure, or of the one that it tries to begin.
    pub(crate) nonce: u64,
    /// The last request for that, from which its lease counts.
    pub(crate) round: u64,
    pub(crate) phase: Phase,
    /// How many of its threads have not had a guard yet.
    pub(crate) waiting: u64,
    /// Whether that lease is over.
    pub(crate) over: bool,
    /// Whether an earlier request for that tenure may still be executed. It is not handed off then,
    /// although no promise of this model needs that.
    pub(crate) in_doubt: bool,
    /// Whether it remembers that another client waits for that tenure to end.
    pub(crate) wanted: bool,
    /// Whether it has stopped forever.
    pub(crate) stopped: bool,
    /// Known to no client: whether it was told that another one waits for its tenure to end.
    pub(crate) told: bool,
    /// Known to no client: whether an operator has ended its tenure, and it was not told yet.
    pub(crate) forced: bool,
    /// Known to no client: the first token of the tenure after its own, or 0.
    pub(crate) limit: u64,
    /// Known to no client: the clients that go first, because they were waiting when its tenure
    /// ended.
    pub(crate) owes: BTreeSet<usize>,
}

/// The state of the thread at the head of the wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Has sent a request for the lock. A reply in transit has `granted` it.
    Acquiring {
        granted: Option<Grant>,
    },
    /// Was told that the lock is held.
    Waiting,
    /// Has a guard with the first of these tokens.
    Holding {
        tokens: Block,
    },
    /// Has no guard, and keeps the lock. The last guard had the first of these tokens.
    Kept {
        tokens: Block,
    },
    /// Has asked for more tokens for its kept tenure.
    Refilling {
        granted: Option<Grant>,
    },
    /// Has sent the release of such a tenure, and would hand it off. Without the flaw it is idle.
    Released {
        tokens: Block,
    },
}

/// The way in which a thread uses a kept lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// With the first of these tokens, and no request.
    Guard(Block),
    /// Not at all, because its tenure is over.
    Lost,
    /// With more tokens, which it has to ask for.
    Refill,
}

impl Client {
    pub(crate) fn new(id: usize, threads: u64, keeps: bool) -> Self {
        Self {
            id,
            keeps,
            nonce: 0,
            round: 0,
            phase: Phase::Idle,
            waiting: threads,
            over: false,
            in_doubt: false,
            wanted: false,
            stopped: false,
            told: false,
            forced: false,
            limit: 0,
            owes: BTreeSet::new(),
        }
    }

    pub(crate) fn hold(&self) -> HoldId {
        HoldId { client: self.id, nonce: self.nonce }
    }

    /// Returns `true` if it has a guard that is live, as far as it knows.
    pub(crate) fn has_live_guard(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. }) && !self.over
    }

    /// Returns `true` if its threads have tokens, or will once it has the reply.
    pub(crate) fn has_tokens(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Waiting => false,
            Phase::Acquiring { granted } => granted.is_some(),
            Phase::Holding { .. }
            | Phase::Kept { .. }
            | Phase::Refilling { .. }
            | Phase::Released { .. } => true,
        }
    }

    /// Returns `true` if it relies on the lease that this request has set.
    pub(crate) fn relies_on(&self, hold: HoldId, round: u64) -> bool {
        let relies = !matches!(self.phase, Phase::Idle | Phase::Waiting | Phase::Released { .. });
        // A lease that a request for more tokens has not renewed yet was renewed by the one before.
        let is_last = round == self.round
            || matches!(self.phase, Phase::Refilling { .. }) && round + 1 == self.round;
        relies && !self.over && hold == self.hold() && is_last
    }

    /// Begins to acquire the lock.
    pub(crate) fn begin(&mut self, flaw: Option<Flaw>) -> Request<Command> {
        self.in_doubt = false;
        if flaw != Some(Flaw::NumberIsReused) || self.nonce == 0 {
            (self.nonce, self.round) = (self.nonce + 1, 0);
        }
        (self.wanted, self.told, self.forced) = (false, false, false);
        self.ask()
    }

    /// Asks for the tenure, perhaps again. If another thread waits, it asks for one more token.
    pub(crate) fn ask(&mut self) -> Request<Command> {
        (self.round, self.phase) = (self.round + 1, Phase::Acquiring { granted: None });
        (self.over, self.limit) = (false, 0);
        self.request(Command::Acquire { size: self.waiting.min(2), yields: false })
    }

    /// Like `ask`, for a lock that has become free by itself.
    pub(crate) fn give_way(&mut self) -> Request<Command> {
        let request = self.ask();
        let Command::Acquire { size, .. } = request.command else { return request };
        Request { command: Command::Acquire { size, yields: true }, ..request }
    }

    /// Makes its last thread stop waiting.
    pub(crate) fn give_up(&mut self) -> Request<Command> {
        (self.waiting, self.phase) = (0, Phase::Idle);
        self.request(Command::Unregister)
    }

    /// Asks for more tokens for its kept tenure.
    pub(crate) fn refill(&mut self) -> Request<Command> {
        (self.round, self.phase) = (self.round + 1, Phase::Refilling { granted: None });
        self.request(Command::Refill)
    }

    /// Ends the tenure, or the remains of an attempt.
    pub(crate) fn release(&mut self, flaw: Option<Flaw>) -> Request<Command> {
        self.phase = match self.phase {
            Phase::Holding { tokens } if flaw == Some(Flaw::HandsOffInDoubt) => {
                Phase::Released { tokens }
            }
            _ => Phase::Idle,
        };
        (self.over, self.in_doubt, self.limit) = (false, false, 0);
        (self.wanted, self.told, self.forced) = (false, false, false);
        self.request(Command::Release)
    }

    /// Stops forever. It still relies on its guard.
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.over) = (true, self.over || !self.has_live_guard());
    }

    fn request(&self, command: Command) -> Request<Command> {
        Request::new(self.hold(), self.round, command)
    }

    /// Returns `true` if it waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request<Command>) -> bool {
        let is_last = (request.hold, request.round) == (self.hold(), self.round);
        let awaits = match request.command {
            Command::Acquire { .. } => self.phase == Phase::Acquiring { granted: None },
            Command::Refill => self.phase == Phase::Refilling { granted: None },
            Command::Release | Command::Unregister => false,
        };
        is_last && awaits && !self.stopped
    }

    /// Returns the tokens of its tenure if it may keep the lock after its guard is gone.
    pub(crate) fn may_keep(&self) -> Option<Block> {
        let Phase::Holding { tokens } = self.phase else { return None };
        let may_keep = self.keeps && !self.over && !self.in_doubt && !self.wanted;
        may_keep.then_some(tokens)
    }

    /// Returns what it does if it has kept the lock and a thread wants it.
    pub(crate) fn next_use(&self, flaw: Option<Flaw>) -> Option<Use> {
        let Phase::Kept { tokens } = self.phase else { return None };
        if self.over && flaw != Some(Flaw::KeptIsUsedLate) {
            return Some(Use::Lost);
        }
        let overdrawn = Block { first: tokens.first + 1, last: tokens.first + 1 };
        let overdraws = flaw == Some(Flaw::BlockIsOverdrawn);
        let tokens = tokens.following().or(overdraws.then_some(overdrawn));
        Some(tokens.map_or(Use::Refill, Use::Guard))
    }

    /// Learns that another client waits for the tenure with this number. Returns `true` if the
    /// tenure must be released at once.
    pub(crate) fn recall(&mut self, nonce: u64, flaw: Option<Flaw>) -> bool {
        if nonce != self.nonce || self.over {
            return false;
        }
        match self.phase {
            Phase::Idle | Phase::Released { .. } => return false,
            Phase::Kept { .. } => {
                self.told = true;
                return flaw != Some(Flaw::RecallIsIgnored);
            }
            Phase::Holding { .. } => self.wanted = true,
            Phase::Acquiring { .. } | Phase::Refilling { .. } | Phase::Waiting => {
                self.wanted |= flaw != Some(Flaw::WantedTooEarly);
            }
        }
        self.told = true;
        false
    }

    /// Learns that an operator has ended the tenure with this number. It does not know a hold by
    /// number before it has the reply.
    pub(crate) fn learn_end(&mut self, nonce: u64, flaw: Option<Flaw>) {
        if nonce != self.nonce {
            return;
        }
        match self.phase {
            Phase::Holding { .. } | Phase::Refilling { .. } => self.over = true,
            Phase::Kept { .. } => self.over |= flaw != Some(Flaw::KeptIsUsedAfterItsEnd),
            _ => return,
        }
        self.forced = false;
    }

    /// Loses the tokens for further guards: if the lock may be kept, its renewal removes them, so
    /// that the next use shows whether another client waits.
    pub(crate) fn expire_tokens(&mut self) {
        if let Phase::Holding { tokens } | Phase::Kept { tokens } = &mut self.phase {
            tokens.last = tokens.first;
        }
    }

    /// Returns `true` if a renewal changes something.
    pub(crate) fn may_renew(&self) -> bool {
        let (Phase::Holding { tokens } | Phase::Kept { tokens }) = self.phase else {
            return false;
        };
        self.keeps && !self.over && tokens.following().is_some()
    }

    /// Returns the tokens for the next guard of its tenure, if it may hand it off.
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
