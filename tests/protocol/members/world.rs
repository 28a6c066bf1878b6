//! One state of the world: the server, the clients, what is in transit, and what has happened.

use std::collections::BTreeSet;

use crate::hold::HoldId;
use crate::members::client::{Client, Phase};
use crate::members::flaw::Flaw;
use crate::members::server::{Command, Reply, Server, Side};
use crate::network::{Network, Request};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) clients: Vec<Client>,
    pub(crate) network: Network<Command>,
    pub(crate) witness: Witness,
}

/// Facts that no client or server knows, but that the promises are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// For each client, those that were waiting when it came, and still are.
    ahead: Vec<BTreeSet<usize>>,
    /// The greatest token of a guard so far.
    fence: u64,
    /// True once the token of a writer was not above earlier ones, or that of a reader was below
    /// one.
    pub(crate) fence_repeated: bool,
    /// True once a client got a place that others had waited for longer.
    pub(crate) overtaken: bool,
    /// True once a hold was there after its release, or came back by a renewal.
    pub(crate) revived: bool,
}

impl World {
    /// Creates a world in which all clients have asked.
    pub(crate) fn new(clients: &[(Side, u64)], permits: usize) -> Self {
        let sides: Vec<Side> = clients.iter().map(|(side, _)| *side).collect();
        let clients = clients.iter().enumerate();
        let client =
            |(id, (side, threads)): (usize, &(Side, u64))| Client::new(id, *side, *threads);
        let mut clients: Vec<Client> = clients.map(client).collect();
        let mut network = Network::new();
        network.requests = clients.iter_mut().map(Client::begin).collect();
        let witness = Witness { ahead: vec![BTreeSet::new(); clients.len()], ..Witness::default() };
        Self { server: Server::new(&sides, permits), clients, network, witness }
    }

    /// Sends a request of a client.
    pub(crate) fn send(
        &mut self,
        id: usize,
        request: impl FnOnce(&mut Client) -> Request<Command>,
    ) {
        self.network.requests.insert(request(&mut self.clients[id]));
    }

    /// Executes a request at the server.
    pub(crate) fn execute(&mut self, request: Request<Command>, flaw: Option<Flaw>) {
        match request.command {
            Command::Acquire { size } => self.acquire(request, size, flaw),
            Command::Release => {
                self.server.release(request.hold, flaw);
                self.witness.revived |= self.server.holds.contains_key(&request.hold);
            }
        }
        let queue = &self.server.queue;
        for ahead in &mut self.witness.ahead {
            ahead.retain(|client| queue.contains(client));
        }
    }

    fn acquire(&mut self, request: Request<Command>, size: u64, flaw: Option<Flaw>) {
        let (id, server) = (request.hold.client, &self.server);
        if !server.queue.contains(&id) && !server.offers.contains(&id) {
            self.witness.ahead[id] = server.queue.iter().copied().collect();
        }
        let reply = self.server.acquire(&request.batch(size), request.round, true, flaw);
        let (client, queue) = (&mut self.clients[id], &self.server.queue);
        if let Reply::Granted { count, begun: true, .. } = reply {
            let further = count > 1 && client.side == Side::Permit && !queue.is_empty();
            let is_passed = self.witness.ahead[id].iter().any(|other| queue.contains(other));
            self.witness.overtaken |= further || is_passed;
        }
        if client.awaits(&request) {
            client.phase = match reply {
                Reply::Granted { count, fence, .. } => Phase::Granted { count, fence },
                Reply::Held => Phase::Waiting,
            };
        }
    }

    /// Delivers the reply about its holds to a client.
    pub(crate) fn receive(&mut self, id: usize, count: u64, fence: u64, flaw: Option<Flaw>) {
        let (client, witness) = (&mut self.clients[id], &mut self.witness);
        client.over &= flaw != Some(Flaw::CountsFromReply);
        if !client.over {
            witness.fence_repeated |= match client.side {
                Side::Permit => false,
                Side::Reader => fence < witness.fence,
                Side::Writer => fence <= witness.fence,
            };
            witness.fence = witness.fence.max(fence);
        }
        self.network.requests.extend(client.receive(count, flaw));
    }

    /// Executes a late renewal of the first hold of a client.
    pub(crate) fn renew(&mut self, id: usize, flaw: Option<Flaw>) {
        let hold = self.clients[id].hold(1);
        let was_held = self.server.holds.contains_key(&hold);
        self.server.renew(hold, flaw);
        self.witness.revived |= !was_held && self.server.holds.contains_key(&hold);
    }

    /// Removes details that no promise depends on.
    pub(crate) fn simplify(&mut self, flaw: Option<Flaw>) {
        for (client, ahead) in self.clients.iter().zip(&mut self.witness.ahead) {
            if client.waiting == 0 {
                ahead.clear();
            }
        }
        if flaw == Some(Flaw::NumberIsReused) {
            return;
        }
        // The copy of a release has no effect once the hold is gone and cannot come back.
        let has_begun = |request: &Request<Command>, nonce: u64| match request.command {
            Command::Acquire { size } => nonce - request.hold.nonce < size,
            Command::Release => false,
        };
        let (holds, sent) = (&self.server.holds, self.network.requests.clone());
        self.network.requests.retain(|request| {
            let HoldId { client, nonce } = request.hold;
            let mut acquires = sent
                .iter()
                .filter(|other| other.hold.client == client && other.hold.nonce <= nonce);
            !request.is_copy
                || request.command != Command::Release
                || holds.contains_key(&request.hold)
                || acquires.any(|other| has_begun(other, nonce))
        });
    }

    /// Returns `true` if a request is repeated until it has arrived.
    pub(crate) fn must_arrive(&self, request: &Request<Command>) -> bool {
        let client = &self.clients[request.hold.client];
        let must = client.awaits(request) || request.command == Command::Release && !client.stopped;
        must && !request.is_copy
    }

    /// Returns `true` if no two live guards exclude each other.
    pub(crate) fn is_exclusive(&self, permits: usize) -> bool {
        let live = |side| {
            let clients = self.clients.iter().filter(|client| client.side == side);
            clients.map(Client::live_guards).sum::<usize>()
        };
        let (readers, writers) = (live(Side::Reader), live(Side::Writer));
        live(Side::Permit) <= permits && (writers == 0 || writers == 1 && readers == 0)
    }

    /// Returns `true` if each client that has not stopped has had all its guards.
    pub(crate) fn is_served(&self) -> bool {
        self.clients.iter().all(|client| client.stopped || client.waiting == 0)
    }
}
