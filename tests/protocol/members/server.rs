//! The server, for one name: the effects of `acquire_member.lua`, `serve.lua`, `release_member.lua`
//! and `change.lua` on the holds, the offers, the fence and the queue of waiting clients.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold::HoldId;
use crate::members::flaw::Flaw;

/// The kind of hold that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    Permit,
    Reader,
    Writer,
}

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    /// Begins up to this many holds, or registers the client as waiting.
    Acquire {
        size: u64,
    },
    Release,
}

/// The reply to a client that acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted { count: u64, fence: u64, begun: bool },
    Held,
}

/// Waiting clients without a listener, which only traces have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Absent {
    /// Clients that are removed from the queue.
    pub(crate) gone: BTreeSet<usize>,
    /// Clients that are put in front of the others, where they keep their places for a while.
    pub(crate) parked: BTreeSet<usize>,
    /// Clients that keep their places from before.
    pub(crate) silent: BTreeSet<usize>,
    /// The client that asks, if it is offered nothing.
    pub(crate) asks: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// The side that each client wants.
    pub(crate) sides: Vec<Side>,
    /// 0 for a read-write lock.
    pub(crate) permits: usize,
    /// The holds, and the request that has set the lease of each.
    pub(crate) holds: BTreeMap<HoldId, u64>,
    /// The clients with an offer.
    pub(crate) offers: BTreeSet<usize>,
    /// The last token.
    pub(crate) counter: u64,
    /// The waiting clients, in the order of their arrival.
    pub(crate) queue: Vec<usize>,
    pub(crate) absent: Absent,
}

impl Server {
    pub(crate) fn new(sides: &[Side], permits: usize) -> Self {
        Self { sides: sides.to_vec(), permits, ..Self::default() }
    }

    /// Begins or finds holds. Otherwise their client is registered, if it `waits`.
    pub(crate) fn acquire(
        &mut self,
        holds: &[HoldId],
        round: u64,
        waits: bool,
        flaw: Option<Flaw>,
    ) -> Reply {
        let (hold, client) = (holds[0], holds[0].client);
        let (side, is_repeated) = (self.sides[client], self.holds.contains_key(&hold));
        let mut is_offered = waits && !is_repeated && self.offers.contains(&client);
        if !is_repeated {
            let is_queued = !self.queue.is_empty() && flaw != Some(Flaw::QueueIsIgnored);
            let mut is_busy = false;
            if is_queued && !is_offered {
                if waits {
                    self.register(client);
                }
                is_busy = self.serve(flaw);
                is_offered = waits && self.offers.contains(&client);
            }
            if is_busy && !is_offered || self.is_busy(client, is_offered, flaw) {
                if waits {
                    self.register(client);
                }
                return Reply::Held;
            }
        }
        let keeps = is_repeated || side == Side::Reader || flaw == Some(Flaw::WriterKeepsToken);
        self.counter += u64::from(side != Side::Permit && (!keeps || self.counter == 0));
        let room = self.room(client, is_repeated, is_offered, flaw);
        self.offers.retain(|offered| !is_offered || *offered != client);
        self.lease(hold, round);
        let count = 1 + self.begin_further(&holds[1..], round, room);
        Reply::Granted { count, fence: self.counter, begun: !is_repeated }
    }

    /// Returns `true` if a client has to wait.
    fn is_busy(&self, client: usize, is_offered: bool, flaw: Option<Flaw>) -> bool {
        if self.permits > 0 {
            return self.taken_by_others(client, is_offered, flaw) >= self.permits;
        }
        !is_offered && !self.admits(client, 0, flaw)
    }

    /// Returns how many permits clients have or are offered, except for the offer that this one
    /// takes.
    fn taken_by_others(&self, client: usize, is_offered: bool, flaw: Option<Flaw>) -> usize {
        let is_other = |offered: &&usize| !is_offered || **offered != client;
        let offered = self.offers.iter().filter(is_other).count();
        self.holds.len() + if flaw == Some(Flaw::OffersAreIgnored) { 0 } else { offered }
    }

    /// Returns `true` if there is a place for a client without an offer, besides the permits `kept`
    /// for others.
    fn admits(&self, client: usize, kept: usize, flaw: Option<Flaw>) -> bool {
        let side = self.sides[client];
        let offers = self.offers.iter().filter(|_| flaw != Some(Flaw::OffersAreIgnored));
        let mut taken = self.holds.keys().map(|hold| hold.client).chain(offers.copied());
        if self.permits > 0 {
            return taken.count() + kept < self.permits;
        }
        let share = |other| side == Side::Reader && self.sides[other] == Side::Reader;
        flaw == Some(Flaw::SidesAreIgnored) || taken.all(share)
    }

    /// Returns for how many further threads of a client there is room.
    fn room(
        &self,
        client: usize,
        is_repeated: bool,
        is_offered: bool,
        flaw: Option<Flaw>,
    ) -> usize {
        // A repeat does not count the permits.
        let taken = if is_repeated { 0 } else { self.taken_by_others(client, is_offered, flaw) };
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

    /// Begins or finds the holds of a batch after the first, and returns their number.
    fn begin_further(&mut self, holds: &[HoldId], round: u64, mut room: usize) -> u64 {
        let mut begun = 0;
        for hold in holds {
            if !self.holds.contains_key(hold) {
                if room == 0 {
                    break;
                }
                room -= 1;
            }
            self.lease(*hold, round);
            begun += 1;
        }
        begun
    }

    /// Begins a hold, or renews its lease, which a late request does not shorten.
    fn lease(&mut self, hold: HoldId, round: u64) {
        let last = self.holds.entry(hold).or_insert(round);
        *last = round.max(*last);
    }

    /// Ends a hold. Waiting clients may then get their turn. Returns `false` if it is gone.
    pub(crate) fn release(&mut self, hold: HoldId, flaw: Option<Flaw>) -> bool {
        let ends = flaw != Some(Flaw::ReleaseIsLeft) && self.holds.remove(&hold).is_some();
        if ends {
            self.serve(flaw);
        }
        ends
    }

    /// Removes clients from the queue, and takes back offers to them. The number of permits is not
    /// known then: all that are taken, with the offers, are a safe number. Returns `false` if none
    /// was waiting.
    pub(crate) fn unregister(&mut self, clients: &[usize]) -> bool {
        let (taken, waiting) = (self.holds.len() + self.offers.len(), self.queue.len());
        self.offers.retain(|client| !clients.contains(client));
        self.queue.retain(|client| !clients.contains(client));
        let waited = self.holds.len() + self.offers.len() + self.queue.len() < taken + waiting;
        if waited {
            let permits = self.permits;
            self.permits = permits.min(taken.max(1));
            self.serve(None);
            self.permits = permits;
        }
        waited
    }

    /// Renews a hold, which changes nothing in a model without time.
    pub(crate) fn renew(&mut self, hold: HoldId, flaw: Option<Flaw>) {
        if flaw == Some(Flaw::RenewalRevives) {
            self.holds.entry(hold).or_insert(0);
        }
    }

    /// Registers a client. One that has missed its offer waits behind the others.
    fn register(&mut self, client: usize) {
        if !self.queue.contains(&client) {
            self.queue.push(client);
        }
    }

    /// Offers places to the clients at the head of the queue. They leave it, so that a stopped one
    /// costs one offer. Returns `true` if a client is left whose turn it is not.
    fn serve(&mut self, flaw: Option<Flaw>) -> bool {
        let Absent { gone, parked, silent, asks } = self.absent.clone();
        let (mut at, mut kept, mut is_blocked) = (0, 0, false);
        self.queue.retain(|client| !gone.contains(client));
        while let Some(next) = self.queue.get(at).copied() {
            if parked.contains(&next) {
                at += 1;
            } else if silent.contains(&next) && self.permits > 0 {
                (at, kept) = (at + 1, kept + 1);
            } else if silent.contains(&next)
                || asks == Some(next) && !parked.is_empty()
                || !self.admits(next, kept, flaw) && flaw != Some(Flaw::ServesTooMany)
            {
                is_blocked = true;
                break;
            } else {
                self.queue.remove(at);
                self.offers.insert(next);
            }
        }
        // Clients in front have been there longer.
        let place = |client: &usize| match (silent.contains(client), parked.contains(client)) {
            (true, _) => 0,
            (_, true) => 1,
            _ => 2,
        };
        self.queue.sort_by_key(place);
        kept += parked.len();
        let is_full =
            self.permits == 0 || self.holds.len() + self.offers.len() + kept >= self.permits;
        is_blocked || kept > 0 && is_full
    }
}
