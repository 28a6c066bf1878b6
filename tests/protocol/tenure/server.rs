//! The server, for one name: the effects of the scripts in `src/store/lua` on the lock, its counter
//! of fencing tokens and its queue of waiting clients.

use crate::hold::{Block, HoldId};
use crate::network::Request;
use crate::tenure::flaw::Flaw;

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    /// Begins the hold, with up to this many tokens, or registers the client as waiting. One that
    /// `yields` lets clients go first that have waited longer.
    Acquire {
        size: u64,
        yields: bool,
    },
    /// Gives a kept tenure another two tokens.
    Refill,
    Release,
    /// Removes the client from the queue, and takes back an offer to it.
    Unregister,
}

/// The reply to a client that acquires the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted {
        grant: Grant,
        begun: bool,
    },
    /// Another hold has the lock, or there is an offer to another client.
    Held(Option<HoldId>),
}

/// The tokens of a granted lock, and the news with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) tokens: Block,
    /// Whether another client waits.
    pub(crate) wanted: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) lock: Option<Entry>,
    /// The client with an offer of the lock.
    pub(crate) offer: Option<usize>,
    /// The last token.
    pub(crate) counter: u64,
    /// The waiting clients, in the order of their arrival.
    pub(crate) queue: Vec<usize>,
}

/// The hash of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) hold: HoldId,
    /// The request that has set its lease.
    pub(crate) round: u64,
    depth: u64,
}

impl Server {
    pub(crate) fn is_held_by(&self, hold: HoldId) -> bool {
        self.lock.is_some_and(|entry| entry.hold == hold)
    }

    pub(crate) fn is_waiting(&self, client: usize) -> bool {
        self.queue.contains(&client)
    }

    /// Begins a hold, finds it, or registers its client.
    pub(crate) fn acquire(
        &mut self,
        request: Request<Command>,
        size: u64,
        flaw: Option<Flaw>,
    ) -> Reply {
        let (hold, round) = (request.hold, request.round);
        if let Some(entry) = self.lock.as_mut().filter(|entry| entry.hold == hold) {
            entry.round = entry.round.max(round);
            entry.depth += u64::from(flaw == Some(Flaw::RepeatIsCounted));
            self.queue.retain(|client| *client != hold.client || round == 1);
            let last = Block { first: self.counter, last: self.counter };
            let tokens = if size > 1 { self.next_tokens(size, flaw) } else { last };
            return self.grant(tokens, false);
        }
        let is_kept = flaw != Some(Flaw::OffersAreIgnored);
        let is_offered = self.offer.is_some_and(|client| is_kept && client != hold.client);
        if self.lock.is_some() || is_offered {
            self.register(hold.client);
            return Reply::Held(self.lock.map(|entry| entry.hold));
        }
        let tokens = self.next_tokens(size, flaw);
        self.lock = Some(Entry { hold, round, depth: 1 });
        self.offer = None;
        // With its first request it is in no queue, unless an earlier one is late.
        self.queue.retain(|client| *client != hold.client || round == 1);
        self.grant(tokens, true)
    }

    /// Gives a hold more tokens, if it still exists.
    pub(crate) fn refill(
        &mut self,
        request: Request<Command>,
        size: u64,
        flaw: Option<Flaw>,
    ) -> Reply {
        if !self.is_held_by(request.hold) {
            return Reply::Held(None);
        }
        let tokens = self.next_tokens(size, flaw);
        if let Some(entry) = &mut self.lock {
            entry.round = entry.round.max(request.round);
        }
        self.grant(tokens, false)
    }

    fn next_tokens(&mut self, size: u64, flaw: Option<Flaw>) -> Block {
        let tokens = Block { first: self.counter + 1, last: self.counter + size };
        let is_reserved = flaw != Some(Flaw::BlockIsNotReserved);
        self.counter = if is_reserved { tokens.last } else { tokens.first };
        tokens
    }

    fn grant(&self, tokens: Block, begun: bool) -> Reply {
        let grant = Grant { tokens, wanted: !self.queue.is_empty() };
        Reply::Granted { grant, begun }
    }

    /// Returns `true` if the lock is free, and a request leaves it to another client.
    pub(crate) fn gives_way(&self, request: &Request<Command>) -> bool {
        let yields = matches!(request.command, Command::Acquire { yields: true, .. });
        let first = self.queue.first().filter(|_| self.lock.is_none() && self.offer.is_none());
        yields && first.is_some_and(|first| *first != request.hold.client)
    }

    /// Registers a client. One that has missed its offer waits behind the others.
    pub(crate) fn register(&mut self, client: usize) {
        if !self.is_waiting(client) {
            self.queue.push(client);
        }
    }

    /// Ends a hold. Returns `false` if it is gone.
    pub(crate) fn release(&mut self, hold: HoldId, flaw: Option<Flaw>) -> bool {
        let is_checked = flaw != Some(Flaw::ReleaseIsUnchecked);
        match &mut self.lock {
            Some(entry) if entry.hold == hold || !is_checked => entry.depth -= 1,
            _ => return false,
        }
        self.lock = self.lock.filter(|entry| entry.depth > 0);
        self.lock.is_none()
    }

    /// Removes a client from the queue. Returns `false` if it was not waiting.
    pub(crate) fn unregister(&mut self, client: usize) -> bool {
        let was_offered = self.offer.take_if(|offered| *offered == client).is_some();
        let before = self.queue.len();
        self.queue.retain(|other| *other != client);
        was_offered || self.queue.len() < before
    }

    /// Offers a free lock to the client that has waited longest, and returns that client. It leaves
    /// the queue, so that a stopped one costs one offer.
    pub(crate) fn wake(&mut self, flaw: Option<Flaw>) -> Option<usize> {
        let is_free = self.lock.is_none() && self.offer.is_none();
        let client = (is_free && !self.queue.is_empty()).then(|| self.queue.remove(0))?;
        self.offer = (flaw != Some(Flaw::NothingIsOffered)).then_some(client);
        Some(client)
    }
}
