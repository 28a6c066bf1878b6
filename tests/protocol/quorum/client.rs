//! A client: what `src/local` and `src/store/quorum` do with one name. Its threads wait in one
//! queue, so that at most one of them acquires the lock or has it.

use crate::quorum::hold::HoldId;
use crate::quorum::server::{Command, Request};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    /// The number of the last hold that the client has begun or tried to begin.
    pub(crate) nonce: u8,
    /// The request from which it counts the lease of that hold.
    pub(crate) round: u8,
    /// True when that lease is over, or the hold was released or undone: then any server may have
    /// ended it.
    pub(crate) over: bool,
    pub(crate) phase: Phase,
}

/// What the thread at the head of the wait queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Wants the lock, perhaps in the place of the hold of the thread before it.
    Acquiring {
        from: Option<HoldId>,
    },
    /// As `Acquiring`; a majority has granted the hold, but with different tokens.
    Raising {
        from: Option<HoldId>,
        fence: u8,
    },
    /// Has a guard, and waits for the replies to a renewal if it `renews`.
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

    /// The hold that the wanted one replaces.
    pub(crate) fn transferred(&self) -> Option<HoldId> {
        match self.phase {
            Phase::Acquiring { from } | Phase::Raising { from, .. } => from,
            Phase::Idle | Phase::Holding { .. } => None,
        }
    }

    /// Begins to acquire the lock, with a number that no request has named before.
    pub(crate) fn acquire(&mut self, proposal: u8) -> Request {
        self.begin(None, proposal)
    }

    /// Begins to replace the client's hold, on which it no longer relies, by one of the next
    /// thread.
    pub(crate) fn hand_off(&mut self, proposal: u8) -> Request {
        self.begin(Some(self.hold()), proposal)
    }

    fn begin(&mut self, from: Option<HoldId>, proposal: u8) -> Request {
        (self.nonce, self.round, self.over) = (self.nonce + 1, 0, false);
        self.attempt(from, proposal)
    }

    /// Requests the same hold once more.
    pub(crate) fn repeat(&mut self, from: Option<HoldId>, proposal: u8) -> Request {
        self.round += 1;
        self.attempt(from, proposal)
    }

    fn attempt(&mut self, from: Option<HoldId>, proposal: u8) -> Request {
        self.phase = Phase::Acquiring { from };
        let acquire = Command::Acquire { proposal };
        let transfer = |from| Command::Transfer { from, proposal };
        self.request(self.round, from.map_or(acquire, transfer))
    }

    /// Has the counters raised to the token.
    pub(crate) fn raise(&mut self, from: Option<HoldId>, fence: u8) -> Request {
        self.phase = Phase::Raising { from, fence };
        self.request(self.round, Command::Raise { fence })
    }

    pub(crate) fn renew(&mut self) -> Request {
        self.phase = Phase::Holding { renews: true };
        self.request(self.round + 1, Command::Renew)
    }

    /// Counts the lease from a renewal that enough servers have confirmed.
    pub(crate) fn renewed(&mut self) {
        self.phase = Phase::Holding { renews: false };
        self.round += 1;
    }

    /// Ends the hold: it was given up, undone, released or lost, and is removed everywhere sooner
    /// or later.
    pub(crate) fn end(&mut self) {
        (self.phase, self.over) = (Phase::Idle, true);
    }

    /// Returns `true` if the client waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request) -> bool {
        let round = match (self.phase, request.command) {
            (Phase::Acquiring { .. }, Command::Acquire { .. } | Command::Transfer { .. })
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
