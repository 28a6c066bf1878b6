//! One state of the world: the servers, the clients, what is in transit, and what has happened.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold::HoldId;
use crate::network::{Network, Request};
use crate::sets::client::{Client, Command, Phase, bit, of};
use crate::sets::flaw::Flaw;
use crate::sets::server::acquire;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    servers: usize,
    /// The hold of each lock, and the request that has set its lease.
    pub(crate) locks: Vec<Option<(HoldId, u64)>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) network: Network<Command>,
    pub(crate) witness: Witness,
}

/// Facts that no client or server knows, but that the promises are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// True once a guard began without one of its locks, or a refusing server began a hold.
    pub(crate) is_partial: bool,
}

impl World {
    /// Creates a world in which all clients have asked their first server.
    pub(crate) fn new(clients: &[Vec<usize>], servers: usize) -> Self {
        let names = clients.iter().flatten().max().map_or(0, |last| last + 1);
        let mut world = Self {
            servers,
            locks: vec![None; names],
            clients: clients.iter().map(|wants| Client::new(wants)).collect(),
            network: Network::new(),
            witness: Witness::default(),
        };
        for id in 0..clients.len() {
            world.ask_next(id, None);
        }
        world
    }

    /// Asks the next server for the missing locks, or begins the guard.
    fn ask_next(&mut self, id: usize, flaw: Option<Flaw>) {
        let client = &self.clients[id];
        let mut missing = client.wants.iter().filter(|name| !client.has.contains_key(name));
        let is_enough = flaw == Some(Flaw::GuardWithPart) && !client.has.is_empty();
        let Some(first) = missing.clone().next().filter(|_| !is_enough) else {
            let is_held = |name: &usize| self.may_have(id, *name);
            self.witness.is_partial |= !client.over && !client.wants.iter().all(is_held);
            self.clients[id].phase = Phase::Holding;
            return;
        };
        let servers = self.servers;
        let together = missing.by_ref().filter(|name| *name % servers == first % servers);
        let locks = together.map(|name| bit(*name)).sum();
        self.begin(id, locks, flaw);
    }

    fn may_have(&self, id: usize, name: usize) -> bool {
        let nonce = self.clients[id].has.get(&name).copied();
        self.locks[name].is_some_and(|(hold, _)| hold.client == id && Some(hold.nonce) == nonce)
    }

    /// Asks for holds that no request has named before.
    fn begin(&mut self, id: usize, locks: u64, flaw: Option<Flaw>) {
        let client = &mut self.clients[id];
        if flaw != Some(Flaw::NumberIsReused) || client.nonce == 0 {
            (client.nonce, client.round) = (client.nonce + 1, 0);
        }
        self.ask(id, locks);
    }

    fn ask(&mut self, id: usize, locks: u64) {
        let client = &mut self.clients[id];
        (client.phase, client.round) = (Phase::Asking { locks, granted: None }, client.round + 1);
        let hold = HoldId { client: id, nonce: client.nonce };
        let request = Request::new(hold, client.round, Command::Acquire { locks });
        self.network.requests.insert(request);
    }

    /// Makes a client without a reply give back what it has, and ask that server again.
    pub(crate) fn repeat(&mut self, id: usize, flaw: Option<Flaw>) {
        if let Phase::Asking { locks, .. } = self.clients[id].phase {
            self.give_back(id, flaw);
            self.ask(id, locks);
        }
    }

    /// Makes a client ask for the one lock that it waits for.
    pub(crate) fn retry(&mut self, id: usize, flaw: Option<Flaw>) {
        if let Phase::Waiting { name } = self.clients[id].phase {
            self.clients[id].over = false;
            self.begin(id, bit(name), flaw);
        }
    }

    /// Sends the releases of all locks that a client has, one to each server.
    pub(crate) fn give_back(&mut self, id: usize, flaw: Option<Flaw>) {
        let mut releases: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let has = std::mem::take(&mut self.clients[id].has);
        let last = has.keys().last().copied();
        for (name, nonce) in has {
            if flaw != Some(Flaw::PartIsLeft) || Some(name) != last {
                *releases.entry((name % self.servers, nonce)).or_default() |= bit(name);
            }
        }
        for ((_, nonce), locks) in releases {
            let hold = HoldId { client: id, nonce };
            self.network.requests.insert(Request::new(hold, 0, Command::Release { locks }));
        }
    }

    /// Executes a request at a server.
    pub(crate) fn execute(&mut self, request: Request<Command>, flaw: Option<Flaw>) {
        let Request { hold, round, .. } = request;
        let is_own = |lock: &Option<(HoldId, u64)>| lock.is_some_and(|(found, _)| found == hold);
        match request.command {
            Command::Acquire { locks } => {
                let awaits = self.awaits(&request);
                let asked: Vec<_> = of(locks, self.locks.len()).collect();
                let before = self.locks.clone();
                let granted = acquire(&mut self.locks, &asked, hold, round, flaw);
                self.witness.is_partial |= granted.is_err() && self.locks != before;
                if awaits {
                    let granted = Some(granted);
                    self.clients[hold.client].phase = Phase::Asking { locks, granted };
                }
            }
            Command::Release { locks } => {
                for name in of(locks, self.locks.len()).collect::<Vec<_>>() {
                    self.locks[name] = self.locks[name].filter(|lock| !is_own(&Some(*lock)));
                }
            }
        }
    }

    /// Delivers the reply to a client.
    pub(crate) fn receive(&mut self, id: usize, flaw: Option<Flaw>) {
        let Phase::Asking { locks, granted: Some(granted) } = self.clients[id].phase else {
            return;
        };
        let client = &mut self.clients[id];
        client.over &= flaw != Some(Flaw::CountsFromReply);
        match granted {
            Ok(()) => {
                let nonce = client.nonce;
                client.has.extend(of(locks, self.locks.len()).map(|name| (name, nonce)));
                if client.over {
                    self.give_back(id, flaw);
                    self.clients[id].over = false;
                    self.ask_next(id, flaw);
                } else {
                    self.ask_next(id, flaw);
                }
            }
            Err(name) => {
                client.phase = Phase::Waiting { name };
                if flaw != Some(Flaw::KeepsWhileWaiting) {
                    self.give_back(id, flaw);
                }
            }
        }
    }

    fn awaits(&self, request: &Request<Command>) -> bool {
        let client = &self.clients[request.hold.client];
        let is_last = (request.hold.nonce, request.round) == (client.nonce, client.round);
        let is_asking = matches!(client.phase, Phase::Asking { granted: None, .. });
        let acquires = matches!(request.command, Command::Acquire { .. });
        acquires && is_last && is_asking && !client.stopped
    }

    /// Returns `true` if a request is repeated until it has arrived.
    pub(crate) fn must_arrive(&self, request: &Request<Command>) -> bool {
        let ends = matches!(request.command, Command::Release { .. });
        let runs = !self.clients[request.hold.client].stopped;
        (self.awaits(request) || ends && runs) && !request.is_copy
    }

    /// Returns `true` if a server may end the hold of a lock, because no client relies on it.
    pub(crate) fn may_expire(&self, name: usize) -> bool {
        self.locks[name].is_some_and(|(hold, round)| {
            !self.clients[hold.client].relies_on(name, hold.nonce, round)
        })
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        let guards = self.clients.iter().filter(|client| client.has_live_guard());
        let mut taken = BTreeSet::new();
        guards.flat_map(|client| &client.wants).all(|name| taken.insert(*name))
    }

    /// Returns `true` if no client has a lock that is done with it, and has nothing in transit.
    pub(crate) fn is_released(&self) -> bool {
        self.locks.iter().flatten().all(|(hold, _)| {
            let is_its = |request: &&Request<Command>| request.hold.client == hold.client;
            self.clients[hold.client].phase != Phase::Done
                || self.network.requests.iter().any(|request| is_its(&request))
        })
    }

    /// Returns `true` if each client that has not stopped has had its locks.
    pub(crate) fn is_served(&self) -> bool {
        self.clients.iter().all(|client| client.stopped || client.phase == Phase::Done)
    }

    /// Drops releases of holds that are gone and can no longer begin, and numbers holds from 1
    /// again: of old holds, only those that have left something matter.
    pub(crate) fn simplify(&mut self) {
        let sent = self.network.requests.clone();
        self.network.requests.retain(|request| {
            let Command::Release { locks } = request.command else { return true };
            let is_own = |other: &Request<Command>| other.hold == request.hold;
            let may_begin = |other: &Request<Command>| {
                matches!(other.command, Command::Acquire { .. }) && is_own(other)
            };
            of(locks, self.locks.len())
                .any(|name| self.locks[name].is_some_and(|(hold, _)| hold == request.hold))
                || sent.iter().any(may_begin)
        });
        for id in 0..self.clients.len() {
            let sent = self.network.requests.iter().map(|request| request.hold);
            let held = self.locks.iter().flatten().map(|(hold, _)| *hold);
            let holds = sent.chain(held).filter(|hold| hold.client == id).map(|hold| hold.nonce);
            let client = &self.clients[id];
            let numbers = holds.chain(client.has.values().copied()).chain([client.nonce]);
            let numbers: BTreeSet<u64> = numbers.collect();
            let rank = |nonce: &mut u64| *nonce = numbers.range(..*nonce).count() as u64 + 1;
            let client = &mut self.clients[id];
            client.has.values_mut().chain([&mut client.nonce]).for_each(rank);
            for (hold, _) in self.locks.iter_mut().flatten().filter(|(hold, _)| hold.client == id) {
                rank(&mut hold.nonce);
            }
            let requests = std::mem::take(&mut self.network.requests).into_iter();
            self.network.requests = requests
                .map(|mut request| {
                    if request.hold.client == id {
                        rank(&mut request.hold.nonce);
                    }
                    request
                })
                .collect();
        }
    }
}
