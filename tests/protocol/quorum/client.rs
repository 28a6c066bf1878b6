//! A client: the behaviour of `src/local` and `src/store/quorum` with one name. Its threads wait in
//! one queue, so that at most one of them acquires the lock or has it. A hold here is a tenure
//! there: guards of several threads may follow one another in it.

use crate::hold::{Block, HoldId};
use crate::quorum::server::{Command, Request};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    /// The number of the last hold that the client has begun or tried to begin.
    pub(crate) nonce: u64,
    /// The request from which it counts the lease of that hold.
    pub(crate) round: u64,
    /// True once that lease is over, or the hold was released or undone. Then any server may have
    /// ended it.
    pub(crate) over: bool,
    pub(crate) phase: Phase,
}

/// The state of the thread at the head of the wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Wants the lock, or more tokens.
    Acquiring,
    /// Wants the lock. A majority has granted the hold, but with different tokens.
    Raising {
        tokens: Block,
    },
    /// Has a guard with the first of these tokens. If it `renews`, waits for the replies to a
    /// renewal.
    Holding {
        tokens: Block,
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

    /// Begins to acquire the lock, with a number that no request has named before.
    pub(crate) fn acquire(&mut self, proposal: u64, size: u64) -> Request {
        (self.nonce, self.round, self.over) = (self.nonce + 1, 0, false);
        self.attempt(proposal, size)
    }

    /// Requests the same hold again.
    pub(crate) fn repeat(&mut self, proposal: u64, size: u64) -> Request {
        self.round += 1;
        self.attempt(proposal, size)
    }

    /// Asks for more tokens for its hold, which has no guard meanwhile.
    pub(crate) fn refill(&mut self, proposal: u64, size: u64) -> Request {
        (self.round, self.phase) = (self.round + 1, Phase::Acquiring);
        self.request(self.round, Command::Refill { proposal, size })
    }

    fn attempt(&mut self, proposal: u64, size: u64) -> Request {
        self.phase = Phase::Acquiring;
        self.request(self.round, Command::Acquire { proposal, size })
    }

    /// Asks the servers to raise their counters to the first token.
    pub(crate) fn raise(&mut self, tokens: Block) -> Request {
        self.phase = Phase::Raising { tokens };
        self.request(self.round, Command::Raise { fence: tokens.first })
    }

    /// Begins to renew the lease of its hold.
    pub(crate) fn renew(&mut self) -> Request {
        self.set_renews(true);
        self.request(self.round + 1, Command::Renew)
    }

    /// Counts the lease from a renewal that enough servers have confirmed.
    pub(crate) fn renewed(&mut self) {
        self.set_renews(false);
        self.round += 1;
    }

    fn set_renews(&mut self, now: bool) {
        if let Phase::Holding { renews, .. } = &mut self.phase {
            *renews = now;
        }
    }

    /// Ends the hold, which was abandoned, undone, released or lost, and is removed everywhere
    /// sooner or later.
    pub(crate) fn end(&mut self) {
        (self.phase, self.over) = (Phase::Idle, true);
    }

    /// Returns `true` if the client waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request) -> bool {
        let round = match (self.phase, request.command) {
            (Phase::Acquiring, Command::Acquire { .. } | Command::Refill { .. })
            | (Phase::Raising { .. }, Command::Raise { .. }) => self.round,
            (Phase::Holding { renews: true, .. }, Command::Renew) => self.round + 1,
            _ => return false,
        };
        request.hold == self.hold() && request.round == round
    }

    fn request(&self, round: u64, command: Command) -> Request {
        Request { hold: self.hold(), round, command }
    }
}
