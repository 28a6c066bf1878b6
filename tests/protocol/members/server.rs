//! The server, for one name: what `acquire_member.lua`, `serve.lua`, `release_member.lua` and
//! `change.lua` do to the holds, the offers, the fence and the queue of waiting clients.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold::HoldId;
use crate::members::flaw::Flaw;
use crate::network::Request;

/// What a client wants to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    Permit,
    Reader,
    Writer,
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    /// Begins up to this many holds, or registers the client as waiting.
    Acquire {
        size: u64,
    },
    Release,
}

/// What the server answers to a client that acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted { count: u64, fence: u64, begun: bool },
    Held,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// What each client wants.
    sides: Vec<Side>,
    /// 0 for a read-write lock.
    permits: usize,
    /// The holds, and the request that has set the lease of each.
    pub(crate) holds: BTreeMap<HoldId, u64>,
    /// The clients that are offered a place.
    pub(crate) offers: BTreeSet<usize>,
    /// The last token.
    counter: u64,
    /// The waiting clients, that which has waited longest first.
    pub(crate) queue: Vec<usize>,
}

impl Server {
    pub(crate) fn new(sides: &[Side], permits: usize) -> Self {
        let (holds, offers, queue) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { sides: sides.to_vec(), permits, holds, offers, counter: 0, queue }
    }

    /// Begins holds, finds them, or registers their client.
    pub(crate) fn acquire(
        &mut self,
        request: Request<Command>,
        size: u64,
        flaw: Option<Flaw>,
    ) -> Reply {
        let (hold, client, side) = (request.hold, request.hold.client, self.side_of(request.hold));
        let is_repeated = self.holds.contains_key(&hold);
        if !is_repeated {
            let mut is_offered = self.offers.contains(&client);
            let is_queued = !self.queue.is_empty() && flaw != Some(Flaw::QueueIsIgnored);
            if is_queued && !is_offered {
                self.register(client);
                self.serve(flaw);
                is_offered = self.offers.contains(&client);
                if !is_offered {
                    return Reply::Held;
                }
            }
            if self.is_busy(client, is_offered, flaw) {
                self.register(client);
                return Reply::Held;
            }
        }
        let keeps = is_repeated || side == Side::Reader || flaw == Some(Flaw::WriterKeepsToken);
        self.counter += u64::from(side != Side::Permit && (!keeps || self.counter == 0));
        let room = self.room(client, is_repeated, flaw);
        self.offers.remove(&client);
        self.lease(hold, request.round);
        let count = 1 + self.begin_further(request, size, room);
        Reply::Granted { count, fence: self.counter, begun: !is_repeated }
    }

    /// Returns `true` if a client has to wait.
    fn is_busy(&self, client: usize, is_offered: bool, flaw: Option<Flaw>) -> bool {
        if self.permits > 0 {
            return self.taken_by_others(client, flaw) >= self.permits;
        }
        !is_offered && !self.admits(client, flaw)
    }

    /// Returns how many permits clients have or are offered, but for the offer to this one.
    fn taken_by_others(&self, client: usize, flaw: Option<Flaw>) -> usize {
        let is_other = |offered: &&usize| **offered != client;
        let offered = self.offers.iter().filter(is_other).count();
        self.holds.len() + if flaw == Some(Flaw::OffersAreIgnored) { 0 } else { offered }
    }

    /// Returns `true` if there is a place for a client that was offered none.
    fn admits(&self, client: usize, flaw: Option<Flaw>) -> bool {
        let side = self.sides[client];
        let offers = self.offers.iter().filter(|_| flaw != Some(Flaw::OffersAreIgnored));
        let mut taken = self.holds.keys().map(|hold| hold.client).chain(offers.copied());
        if self.permits > 0 {
            return taken.count() < self.permits;
        }
        let share = |other| side == Side::Reader && self.sides[other] == Side::Reader;
        flaw == Some(Flaw::SidesAreIgnored) || taken.all(share)
    }

    /// Returns for how many further threads of a client there is room.
    fn room(&self, client: usize, is_repeated: bool, flaw: Option<Flaw>) -> usize {
        // A repeat does not count how many there are.
        let taken = if is_repeated { 0 } else { self.taken_by_others(client, flaw) };
        let is_wanted = !self.queue.is_empty() && flaw != Some(Flaw::BatchOvertakes);
        let is_reader = self.sides[client] == Side::Reader;
        if is_repeated && flaw != Some(Flaw::RepeatTakesMore) || is_wanted && !is_reader {
            0
        } else if is_reader || flaw == Some(Flaw::BatchIsUncounted) {
            usize::MAX
        } else {
            self.permits.saturating_sub(taken + 1)
        }
    }

    /// Begins or finds the holds of a batch after its first, and returns how many.
    fn begin_further(&mut self, request: Request<Command>, size: u64, mut room: usize) -> u64 {
        for further in 1..size {
            let hold = HoldId { nonce: request.hold.nonce + further, ..request.hold };
            if !self.holds.contains_key(&hold) {
                if room == 0 {
                    return further - 1;
                }
                room -= 1;
            }
            self.lease(hold, request.round);
        }
        size - 1
    }

    /// Begins a hold, or renews its lease, which a late request does not make shorter.
    fn lease(&mut self, hold: HoldId, round: u64) {
        let last = self.holds.entry(hold).or_insert(round);
        *last = round.max(*last);
    }

    /// Ends a hold. Waiting clients may get their turn then.
    pub(crate) fn release(&mut self, hold: HoldId, flaw: Option<Flaw>) {
        if flaw != Some(Flaw::ReleaseIsLeft) && self.holds.remove(&hold).is_some() {
            self.serve(flaw);
        }
    }

    /// Renews a hold, which without time changes nothing.
    pub(crate) fn renew(&mut self, hold: HoldId, flaw: Option<Flaw>) {
        if flaw == Some(Flaw::RenewalRevives) {
            self.holds.entry(hold).or_insert(0);
        }
    }

    /// A client that has missed its offer waits behind the others.
    fn register(&mut self, client: usize) {
        if !self.queue.contains(&client) {
            self.queue.push(client);
        }
    }

    /// Offers places to the clients at the head of the queue. They leave it, so that one that has
    /// stopped costs one offer.
    fn serve(&mut self, flaw: Option<Flaw>) {
        while let Some(first) = self.queue.first().copied() {
            if !self.admits(first, flaw) && flaw != Some(Flaw::ServesTooMany) {
                break;
            }
            self.queue.remove(0);
            self.offers.insert(first);
        }
    }

    fn side_of(&self, hold: HoldId) -> Side {
        self.sides[hold.client]
    }
}
