//! One state of the world: the servers and the clients, and what has happened.

use std::collections::BTreeSet;

use crate::hold::HoldId;
use crate::quorum::client::{Client, Phase};
use crate::quorum::flaw::Flaw;
use crate::quorum::server::{Answer, Entry, Request, Server};
use crate::quorum::votes::majority;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Sorted, for they differ by nothing but what has happened to them.
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// Whether a request was executed that may come once more.
    pub(crate) duplicated: bool,
    /// Whether a server has lost its data.
    pub(crate) forgotten: bool,
    pub(crate) witness: Witness,
}

/// What nobody in the world knows, but the promises and right clocks are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// No token so far is above this. Counted only where clocks are right.
    pub(crate) clock: u8,
    /// The fence of the last guard.
    pub(crate) fence: u8,
    /// Whether a guard's fence was not above that of the guard before.
    pub(crate) fence_repeated: bool,
    /// How many guards there were.
    pub(crate) guards: u8,
    /// Whether a guard was handed out whose hold did not stand in a majority.
    pub(crate) unsupported: bool,
}

impl World {
    /// A world in which nobody has the lock. A majority of the servers has counted up to the last
    /// token.
    pub(crate) fn new(counters: &[u8], clients: usize) -> Self {
        let server = |counter: &u8| Server { counter: *counter, ..Server::default() };
        let mut servers: Vec<Server> = counters.iter().map(server).collect();
        servers.sort_unstable();
        let fence = servers[servers.len() - majority(servers.len())].counter;
        let witness = Witness { fence, ..Witness::default() };
        let clients = (0..clients).map(Client::new).collect();
        Self { servers, clients, duplicated: false, forgotten: false, witness }
    }

    /// Whether a hold is asked for or relied on, so that no server ends it.
    pub(crate) fn lives(&self, hold: HoldId) -> bool {
        lives(&self.clients, hold)
    }

    /// Whether a server may have ended what stands there.
    pub(crate) fn may_be_over(&self, entry: Entry) -> bool {
        !self.lives(entry.hold) || entry.round < self.clients[entry.hold.client].round
    }

    /// Sends a request to all servers.
    pub(crate) fn send(&mut self, request: Request) {
        for server in &mut self.servers {
            server.requests.insert(request);
        }
    }

    /// Makes a server forget all that it knows.
    pub(crate) fn forget(&mut self, server: usize, flaw: Option<Flaw>) {
        let living = self.clients.iter().filter(|client| !client.over).map(Client::hold);
        let soon = flaw == Some(Flaw::ReturnsTooSoon);
        let living = if soon { BTreeSet::new() } else { living.collect() };
        self.servers[server].forget(living);
        self.forgotten = true;
    }

    /// Hands out a guard to a client.
    pub(crate) fn grant(&mut self, id: usize, fence: u8) {
        self.clients[id].phase = Phase::Holding { renews: false };
        let hold = self.clients[id].hold();
        let standing = self.servers.iter().filter(|server| server.is_held_by(hold)).count();
        // One may have forgotten what it granted.
        let supported = standing + usize::from(self.forgotten);
        let witness = &mut self.witness;
        witness.unsupported |= supported < majority(self.servers.len());
        witness.fence_repeated |= fence <= witness.fence;
        witness.fence = fence;
        witness.guards += 1;
    }

    /// The tokens that a client has been given for the hold that it asks for.
    pub(crate) fn tokens(&self, client: usize) -> Vec<u8> {
        let token = |answer| if let Answer::Won { token } = answer { Some(token) } else { None };
        self.answers(client).filter_map(token).collect()
    }

    /// How many servers have confirmed the hold of a client, of those that it waits for.
    pub(crate) fn confirmations(&self, client: usize) -> usize {
        self.answers(client).filter(|answer| *answer == Answer::Ours).count()
    }

    fn answers(&self, client: usize) -> impl Iterator<Item = Answer> {
        let answers = self.servers.iter().flat_map(|server| &server.answers);
        answers.filter(move |(request, _)| request.hold.client == client).map(|(_, answer)| *answer)
    }

    /// Takes note of all tokens.
    pub(crate) fn wind_clock(&mut self) {
        let tokens = self.servers.iter().flat_map(|server| {
            let proposed = server.requests.iter().map(|request| request.command.token());
            proposed.chain([server.counter])
        });
        self.witness.clock = tokens.chain([self.witness.clock]).max().unwrap_or_default();
    }

    /// What can have no effect any more may as well be lost.
    pub(crate) fn drop_futile_requests(&mut self) {
        for server in &mut self.servers {
            let futile = |request: &&Request| server.is_futile(request);
            for request in server.requests.iter().filter(futile).copied().collect::<Vec<_>>() {
                server.requests.remove(&request);
            }
        }
    }

    /// Makes one of states between which there is no difference.
    pub(crate) fn simplify(&mut self) {
        for server in &mut self.servers {
            let clients = &self.clients;
            server.answers.retain(|request, _| clients[request.hold.client].awaits(request));
            server.awaited.retain(|hold| lives(clients, *hold));
        }
        self.servers.sort_unstable();
    }
}

fn lives(clients: &[Client], hold: HoldId) -> bool {
    let client = &clients[hold.client];
    client.nonce == hold.nonce && !client.over
}
