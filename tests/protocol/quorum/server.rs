//! One of the servers, for one name: the effects of the scripts in `src/store/lua` on the lock and
//! its counter of fencing tokens, and the messages in transit to and from the server.
//!
//! The model executes only requests that are granted. One that would not be granted may just as
//! well be late or lost: its client can always stop waiting.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold::{Block, HoldId};
use crate::quorum::flaw::Flaw;

/// A request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request {
    pub(crate) hold: HoldId,
    /// Its number among the requests that set the lease of this hold, or that of the last of them.
    pub(crate) round: u64,
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    /// Begins the hold if the lock is free, with up to this many tokens. A repeat that asks for
    /// several gets new ones.
    Acquire {
        proposal: u64,
        size: u64,
    },
    /// Raises the counter to the token of the hold.
    Raise {
        fence: u64,
    },
    /// Gives the hold up to this many further tokens.
    Refill {
        proposal: u64,
        size: u64,
    },
    Renew,
}

/// The reply of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reply {
    Ours,
    Granted { tokens: Block },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Server {
    pub(crate) lock: Option<Entry>,
    /// The last token.
    pub(crate) counter: u64,
    /// Requests that may arrive, in any order, or never.
    pub(crate) requests: BTreeSet<Request>,
    /// Awaited replies, which may arrive in any order, or never.
    pub(crate) replies: BTreeMap<Request, Reply>,
    /// The holds that must end before the server comes back without its data.
    pub(crate) awaited: BTreeSet<HoldId>,
}

/// The hash of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub(crate) hold: HoldId,
    /// The request that has set its lease.
    pub(crate) round: u64,
}

impl Command {
    pub(crate) fn begins(self) -> bool {
        matches!(self, Self::Acquire { .. })
    }

    /// Returns the token that the command names.
    pub(crate) fn token(self) -> u64 {
        match self {
            Self::Acquire { proposal: token, .. }
            | Self::Raise { fence: token }
            | Self::Refill { proposal: token, .. } => token,
            Self::Renew => 0,
        }
    }

    /// Returns how many tokens the command asks for.
    pub(crate) fn size(self) -> u64 {
        match self {
            Self::Acquire { size, .. } | Self::Refill { size, .. } => size,
            Self::Raise { .. } | Self::Renew => 1,
        }
    }
}

impl Server {
    pub(crate) fn is_held_by(&self, hold: HoldId) -> bool {
        is_of(self.lock, hold)
    }

    /// Returns `true` if the script of a request grants it in this state of the `lock`.
    pub(crate) fn grants(lock: Option<Entry>, request: &Request, flaw: Option<Flaw>) -> bool {
        let ours = is_of(lock, request.hold);
        match request.command {
            Command::Acquire { .. } => ours || lock.is_none(),
            Command::Raise { .. } => ours || flaw == Some(Flaw::RaiseIsUnchecked),
            Command::Refill { .. } | Command::Renew => ours,
        }
    }

    /// Runs the script of a granted request, and gives this many tokens if it asks for some.
    pub(crate) fn execute(&mut self, request: &Request, size: u64, flaw: Option<Flaw>) -> Reply {
        match request.command {
            Command::Acquire { size: 1, .. } if self.is_held_by(request.hold) => {
                self.renew(request.round);
                return Reply::Granted {
                    tokens: Block { first: self.counter, last: self.counter },
                };
            }
            Command::Acquire { proposal, .. } | Command::Refill { proposal, .. } => {
                let first = self.next_token(proposal, flaw);
                let tokens = Block { first, last: first + size - 1 };
                let stored = flaw != Some(Flaw::BlockIsNotStored);
                self.counter = if stored { tokens.last } else { first };
                let begun = Entry { hold: request.hold, round: request.round };
                self.lock = self.lock.or(Some(begun));
                self.renew(request.round);
                return Reply::Granted { tokens };
            }
            Command::Raise { fence } if flaw == Some(Flaw::RaiseLowers) => self.counter = fence,
            Command::Raise { fence } => self.counter = self.counter.max(fence),
            Command::Renew => self.renew(request.round),
        }
        Reply::Ours
    }

    fn next_token(&self, proposal: u64, flaw: Option<Flaw>) -> u64 {
        match flaw {
            Some(Flaw::CounterIsGivenAgain) => self.counter.max(proposal),
            Some(Flaw::ProposalIsGiven) => proposal,
            _ => proposal.max(self.counter + 1),
        }
    }

    /// Sets the lease. A late request does not shorten it.
    fn renew(&mut self, round: u64) {
        self.lock = self.lock.map(|entry| Entry { round: entry.round.max(round), ..entry });
    }

    /// Ends the hold at this server.
    pub(crate) fn free(&mut self, flaw: Option<Flaw>) {
        self.lock = None;
        if flaw == Some(Flaw::CounterEndsWithHold) {
            self.counter = 0;
        }
    }

    /// Loses all data, and stays away for as long as these holds are live.
    pub(crate) fn forget(&mut self, live: BTreeSet<HoldId>) {
        (self.lock, self.counter, self.awaited) = (None, 0, live);
    }

    /// Returns `true` if a request can be granted neither now nor later.
    pub(crate) fn is_futile(&self, request: &Request) -> bool {
        match request.command {
            Command::Acquire { .. } => false,
            Command::Raise { .. } | Command::Refill { .. } | Command::Renew => {
                !self.may_have(request.hold)
            }
        }
    }

    /// Returns `true` if this server has the hold or may get it.
    fn may_have(&self, hold: HoldId) -> bool {
        let mut requests = self.requests.iter();
        self.is_held_by(hold)
            || requests.any(|request| request.hold == hold && request.command.begins())
    }
}

fn is_of(lock: Option<Entry>, hold: HoldId) -> bool {
    lock.is_some_and(|entry| entry.hold == hold)
}
