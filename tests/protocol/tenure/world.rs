//! One state of the world: the server, the clients, what is on its way, and what has happened.

use std::collections::BTreeSet;

use crate::hold::Block;
use crate::tenure::client::{Client, Phase};
use crate::tenure::flaw::Flaw;
use crate::tenure::server::{Command, Reply, Request, Server};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) clients: Vec<Client>,
    /// Requests that arrive in any order. One for the lock that no client waits for may be lost; a
    /// release is repeated until it has arrived.
    pub(crate) requests: BTreeSet<Request>,
    /// The clients that were woken and have not asked since.
    pub(crate) woken: BTreeSet<usize>,
    /// How many faults there have been.
    pub(crate) faults: u8,
    /// True when an operator has ended a hold.
    pub(crate) forced: bool,
    pub(crate) witness: Witness,
}

/// What no client or server knows, but the promises are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// The greatest token of a guard so far.
    pub(crate) fence: u8,
    /// True when a token was not above those before.
    pub(crate) fence_repeated: bool,
    /// True when a client got the lock while it was the turn of another.
    pub(crate) overtaken: bool,
    /// True when a release has left its hold.
    pub(crate) unreleased: bool,
}

impl World {
    /// A world in which all clients have asked for the lock.
    pub(crate) fn new(threads: &[u8]) -> Self {
        let client = |(id, threads): (usize, &u8)| Client::new(id, *threads);
        let mut clients: Vec<Client> = threads.iter().enumerate().map(client).collect();
        let requests = clients.iter_mut().map(|client| client.begin(None)).collect();
        let (server, witness) = (Server::default(), Witness::default());
        let woken = BTreeSet::new();
        Self { server, clients, requests, woken, faults: 0, forced: false, witness }
    }

    /// Has a client send a request.
    pub(crate) fn send(&mut self, id: usize, request: impl FnOnce(&mut Client) -> Request) {
        self.woken.remove(&id);
        self.requests.insert(request(&mut self.clients[id]));
    }

    /// Has the server execute a request.
    pub(crate) fn execute(&mut self, request: Request, flaw: Option<Flaw>) {
        match request.command {
            Command::Acquire { size } => self.acquire(request, size, flaw),
            Command::Release => self.release(request, flaw),
        }
    }

    fn acquire(&mut self, request: Request, size: u8, flaw: Option<Flaw>) {
        let id = request.hold.client;
        let reply = self.server.acquire(request, size, flaw);
        if let Reply::Granted { tokens, begun: true } = reply {
            let witness = &mut self.witness;
            witness.fence_repeated |= tokens.first <= witness.fence;
            witness.overtaken |= !self.clients[id].owes.is_empty();
            for client in &mut self.clients {
                client.owes.remove(&id);
                if client.limit == 0 && client.has_tokens() {
                    client.limit = tokens.first;
                }
            }
        }
        let client = &mut self.clients[id];
        if client.awaits(&request) {
            client.phase = match reply {
                Reply::Granted { tokens, .. } => Phase::Acquiring { granted: Some(tokens) },
                Reply::Held => Phase::Waiting,
            };
        }
    }

    fn release(&mut self, request: Request, flaw: Option<Flaw>) {
        if self.server.release(request.hold, flaw) {
            let id = request.hold.client;
            let waiting = self.server.queue.iter().copied();
            self.clients[id].owes = waiting.take_while(|client| *client != id).collect();
            self.wake(flaw);
        }
        self.witness.unreleased |= self.server.is_held_by(request.hold);
    }

    /// Offers the lock to a waiting client, and wakes it. That matters only where clients wait for
    /// it; others ask at any time.
    fn wake(&mut self, flaw: Option<Flaw>) {
        let woken = self.server.wake(flaw);
        self.woken.extend(woken.filter(|_| flaw == Some(Flaw::WaitsToBeWoken)));
        let server = &self.server;
        for client in &mut self.clients {
            client.owes.retain(|other| server.is_waiting(*other) || woken == Some(*other));
        }
    }

    /// Removes what no promise depends on.
    pub(crate) fn simplify(&mut self) {
        for client in &mut self.clients {
            if client.waiting == 0 {
                client.owes.clear();
            }
            let hold = client.hold();
            let is_past = |request: &Request| request.hold != hold;
            let is_asked = matches!(client.phase, Phase::Idle | Phase::Waiting);
            if is_asked && !self.server.is_held_by(hold) && self.requests.iter().all(is_past) {
                client.round = 0;
            }
        }
    }

    /// Has an operator end the hold that there is.
    pub(crate) fn force(&mut self, flaw: Option<Flaw>) {
        (self.server.lock, self.forced) = (None, true);
        self.wake(flaw);
    }

    /// Ends a hold or an offer because its time is over. The lock is free for any client then.
    pub(crate) fn free(&mut self) {
        (self.server.lock, self.server.offer) = (None, None);
        for client in &mut self.clients {
            client.owes.clear();
        }
    }

    /// Has a client learn that it has the lock. A hold whose lease is over counts as none.
    pub(crate) fn receive(&mut self, id: usize, tokens: Block, flaw: Option<Flaw>) {
        let client = &mut self.clients[id];
        client.over &= flaw != Some(Flaw::CountsFromReply);
        if client.over {
            self.send(id, |client| client.release(flaw));
        } else {
            self.begin_guard(id, tokens);
        }
    }

    /// Gives the tenure to the next thread of its client.
    pub(crate) fn hand_off(&mut self, id: usize, flaw: Option<Flaw>) {
        let Some(tokens) = self.clients[id].next_tokens(flaw) else { return };
        self.clients[id].over &= flaw != Some(Flaw::HandsOffLate);
        self.begin_guard(id, tokens);
    }

    fn begin_guard(&mut self, id: usize, tokens: Block) {
        let (client, witness) = (&mut self.clients[id], &mut self.witness);
        client.phase = Phase::Holding { tokens };
        client.waiting -= 1;
        witness.fence_repeated |= client.limit > 0 && tokens.first >= client.limit;
        witness.fence = witness.fence.max(tokens.first);
    }

    /// Returns `true` if a release is on its way. A client keeps its order.
    pub(crate) fn is_releasing(&self, id: usize) -> bool {
        let is_release = |it: &Request| it.command == Command::Release && !it.is_copy;
        self.requests.iter().any(|request| request.hold.client == id && is_release(request))
    }

    /// Returns `true` if a request is repeated until it has arrived.
    pub(crate) fn must_arrive(&self, request: &Request) -> bool {
        let client = &self.clients[request.hold.client];
        let must = client.awaits(request) || request.command == Command::Release && !client.stopped;
        must && !request.is_copy
    }

    /// Returns `true` if the server may end the hold that it has, because no client relies on it.
    pub(crate) fn may_expire(&self) -> bool {
        self.server.lock.is_some_and(|entry| {
            !self.clients[entry.hold.client].relies_on(entry.hold, entry.round)
        })
    }

    /// Returns `true` if each client that has not stopped has had all its guards.
    pub(crate) fn is_served(&self) -> bool {
        self.clients.iter().all(|client| client.stopped || client.waiting == 0)
    }
}
