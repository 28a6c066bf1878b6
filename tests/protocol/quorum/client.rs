//! A client: what `src/hold` and `src/store/quorum` do with one name. Its threads stand in line, so
//! that at most one of them asks for the lock or has it.

use crate::hold::HoldId;
use crate::quorum::server::{Command, Request};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    /// The number of the last hold that it has begun or tried to.
    pub(crate) nonce: u8,
    /// Which request it counts the lease of that hold from.
    pub(crate) round: u8,
    /// Whether that lease is over, or the hold was released or taken back: then any server may have
    /// ended it.
    pub(crate) over: bool,
    pub(crate) phase: Phase,
}

/// What the thread at the head of the line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Wants the lock, perhaps in the place of the hold of the thread in front.
    Asking {
        from: Option<HoldId>,
    },
    /// As `Asking`, and has a majority that has not agreed on a token.
    Raising {
        from: Option<HoldId>,
        fence: u8,
    },
    /// Has a guard, and perhaps waits for the answers to a renewal.
    Holding {
        renews: bool,
    },
}

impl Client {
    pub(crate) fn new(id: usize) -> Self {
        Self { id, nonce: 0, round: 0, over: true, phase: Phase::Idle }
    }

    pub(crate) fn hold(&self) -> HoldId {
        HoldId { client: self.id, nonce: self.nonce }
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. })
    }

    /// The hold in whose place it wants one.
    pub(crate) fn transferred(&self) -> Option<HoldId> {
        match self.phase {
            Phase::Asking { from } | Phase::Raising { from, .. } => from,
            Phase::Idle | Phase::Holding { .. } => None,
        }
    }

    /// Asks for the lock, by a number that no request has named before.
    pub(crate) fn ask(&mut self, proposal: u8) -> Request {
        self.begin(None, proposal)
    }

    /// Asks for the lock in the place of the hold that it has, which it does not rely on any more.
    pub(crate) fn hand_on(&mut self, proposal: u8) -> Request {
        self.begin(Some(self.hold()), proposal)
    }

    fn begin(&mut self, from: Option<HoldId>, proposal: u8) -> Request {
        (self.nonce, self.round, self.over) = (self.nonce + 1, 0, false);
        self.bid(from, proposal)
    }

    /// Asks for the same hold once more.
    pub(crate) fn repeat(&mut self, from: Option<HoldId>, proposal: u8) -> Request {
        self.round += 1;
        self.bid(from, proposal)
    }

    fn bid(&mut self, from: Option<HoldId>, proposal: u8) -> Request {
        self.phase = Phase::Asking { from };
        let acquire = Command::Acquire { proposal };
        let transfer = |from| Command::Transfer { from, proposal };
        self.request(self.round, from.map_or(acquire, transfer))
    }

    /// Has the counters raised to a token.
    pub(crate) fn raise(&mut self, from: Option<HoldId>, fence: u8) -> Request {
        self.phase = Phase::Raising { from, fence };
        self.request(self.round, Command::Raise { fence })
    }

    pub(crate) fn renew(&mut self) -> Request {
        self.phase = Phase::Holding { renews: true };
        self.request(self.round + 1, Command::Renew)
    }

    /// Takes in that enough servers have confirmed a renewal.
    pub(crate) fn renewed(&mut self) {
        self.phase = Phase::Holding { renews: false };
        self.round += 1;
    }

    /// Gives up, takes back, releases or has lost its hold, which sooner or later is removed
    /// everywhere.
    pub(crate) fn end(&mut self) {
        (self.phase, self.over) = (Phase::Idle, true);
    }

    /// Whether anybody waits for the answer to a request.
    pub(crate) fn awaits(&self, request: &Request) -> bool {
        let round = match (self.phase, request.command) {
            (Phase::Asking { .. }, Command::Acquire { .. } | Command::Transfer { .. })
            | (Phase::Raising { .. }, Command::Raise { .. }) => self.round,
            (Phase::Holding { renews: true }, Command::Renew) => self.round + 1,
            _ => return false,
        };
        request.hold == self.hold() && request.round == round
    }

    fn request(&self, round: u8, command: Command) -> Request {
        Request { hold: self.hold(), round, command }
    }
}
