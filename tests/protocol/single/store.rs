//! The store, for one name: what the scripts in `src/store/lua` do to the lock and its fence.
//! Wake-ups and the queue are left out, for nothing relies on them.

use crate::hold::HoldId;
use crate::single::flaw::Flaw;
use crate::single::{DRIFT, LEASE};

/// What a client asks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request {
    pub(crate) hold: HoldId,
    pub(crate) command: Command,
    /// For so many ticks its client may rely on a reply that confirms the hold. Counts from when it
    /// is sent, and only its client knows it.
    pub(crate) worth: u8,
}

impl Request {
    /// A request that is sent now.
    pub(crate) fn new(hold: HoldId, command: Command) -> Self {
        Self { hold, command, worth: LEASE - DRIFT }
    }

    pub(crate) fn release(hold: HoldId) -> Self {
        Self { hold, command: Command::Release, worth: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    Acquire,
    Nest { depth: u8 },
    Release,
    Renew,
    Transfer { to: HoldId },
}

/// What the store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    Busy,
    Gone,
    Ours,
    Won { fence: u8 },
}

/// What the store knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) lock: Option<Entry>,
    /// The last fence.
    pub(crate) fence: u8,
    /// Whether the server has lost it. Its clock is ahead of it nonetheless.
    pub(crate) forgot_fence: bool,
}

/// The hash of a lock with its TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) owner: HoldId,
    pub(crate) depth: u8,
    /// So many ticks are left of its lease.
    pub(crate) left: u8,
}

impl Store {
    /// Runs the script of a request.
    pub(crate) fn execute(&mut self, request: Request, flaw: Option<Flaw>) -> Answer {
        let Request { hold, command, .. } = request;
        match command {
            Command::Acquire => self.acquire(hold, flaw),
            Command::Nest { depth } => self.nest(hold, depth, flaw),
            Command::Release => self.release(hold, flaw),
            Command::Renew => self.renew(hold, flaw),
            Command::Transfer { to } => self.transfer(hold, to, flaw),
        }
    }

    fn acquire(&mut self, hold: HoldId, flaw: Option<Flaw>) -> Answer {
        let repeated = self.is_held_by(hold, flaw);
        if self.lock.is_some() && !repeated {
            return Answer::Busy;
        }
        self.win(hold, repeated, flaw)
    }

    fn nest(&mut self, hold: HoldId, depth: u8, flaw: Option<Flaw>) -> Answer {
        let answer = self.renew(hold, flaw);
        if answer == Answer::Ours {
            match (flaw, &mut self.lock) {
                (Some(Flaw::DepthIsCounted), _) if depth == 1 => self.count_down(),
                (Some(Flaw::DepthIsCounted), Some(entry)) => entry.depth += 1,
                (_, Some(entry)) => entry.depth = depth,
                (_, None) => {}
            }
        }
        answer
    }

    fn release(&mut self, hold: HoldId, flaw: Option<Flaw>) -> Answer {
        if !self.is_held_by(hold, flaw) {
            return Answer::Gone;
        }
        match flaw {
            Some(Flaw::DepthIsCounted) => self.count_down(),
            _ => self.lock = None,
        }
        Answer::Ours
    }

    fn renew(&mut self, hold: HoldId, flaw: Option<Flaw>) -> Answer {
        if self.lock.is_none() && flaw == Some(Flaw::RenewalCreates) {
            self.lock = Some(Entry::new(hold));
        }
        let ours = self.is_held_by(hold, flaw);
        let Some(entry) = self.lock.as_mut().filter(|_| ours) else { return Answer::Gone };
        entry.left = LEASE;
        Answer::Ours
    }

    fn transfer(&mut self, from: HoldId, to: HoldId, flaw: Option<Flaw>) -> Answer {
        let repeated = self.lock.is_some_and(|entry| entry.owner == to);
        if !repeated && !self.is_held_by(from, flaw) {
            return Answer::Gone;
        }
        if flaw == Some(Flaw::TransferKeepsFence) {
            self.lock = Some(Entry::new(to));
            return Answer::Won { fence: self.fence };
        }
        self.win(to, repeated, flaw)
    }

    /// Begins a hold, or finds it begun by a request that was `repeated`.
    fn win(&mut self, hold: HoldId, repeated: bool, flaw: Option<Flaw>) -> Answer {
        match &mut self.lock {
            Some(entry) if repeated && !self.forgot_fence => entry.left = LEASE,
            lock => {
                *lock = Some(Entry::new(hold));
                let counts = self.forgot_fence && flaw == Some(Flaw::FenceIsCounted);
                self.fence = if counts { 1 } else { self.fence + 1 };
                self.forgot_fence = false;
            }
        }
        Answer::Won { fence: self.fence }
    }

    fn is_held_by(&self, hold: HoldId, flaw: Option<Flaw>) -> bool {
        self.lock.is_some_and(|Entry { owner, .. }| match flaw {
            Some(Flaw::OwnerIsTheClient) => owner.client == hold.client,
            _ => owner == hold,
        })
    }

    /// What `HINCRBY -1` would do.
    fn count_down(&mut self) {
        self.lock = self.lock.filter(|entry| entry.depth > 1);
        if let Some(entry) = &mut self.lock {
            entry.depth -= 1;
        }
    }
}

impl Entry {
    fn new(owner: HoldId) -> Self {
        Self { owner, depth: 1, left: LEASE }
    }

    /// The entry after a tick.
    pub(crate) fn older(self) -> Option<Self> {
        (self.left > 1).then_some(Self { left: self.left - 1, ..self })
    }
}
