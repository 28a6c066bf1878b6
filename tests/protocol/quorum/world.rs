//! One state of the world: the servers, the clients, and what has happened.

use std::collections::BTreeSet;

use crate::hold::{Block, HoldId};
use crate::quorum::client::{Client, Phase};
use crate::quorum::flaw::Flaw;
use crate::quorum::server::{Entry, Reply, Request, Server};
use crate::quorum::votes::majority;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Sorted, because servers differ only by what has happened to them.
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// True once a request was executed that may arrive again.
    pub(crate) duplicated: bool,
    /// True once a server has lost its data.
    pub(crate) forgotten: bool,
    pub(crate) witness: Witness,
}

/// Facts that no client or server knows, but that the promises and right clocks are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// No token so far is above this. Counted only if clocks are right.
    pub(crate) clock: u64,
    /// The fence of the last guard.
    pub(crate) fence: u64,
    /// True once the fence of a guard was not above that of the guard before.
    pub(crate) fence_repeated: bool,
    /// The number of guards so far.
    pub(crate) guards: u64,
    /// True once a client got a guard whose hold no majority had.
    pub(crate) unsupported: bool,
}

impl World {
    /// Creates a world in which the lock is free. A majority of the servers has counted up to the
    /// last token.
    pub(crate) fn new(counters: &[u64], clients: usize) -> Self {
        let server = |counter: &u64| Server { counter: *counter, ..Server::default() };
        let mut servers: Vec<Server> = counters.iter().map(server).collect();
        servers.sort_unstable();
        let fence = servers[servers.len() - majority(servers.len())].counter;
        let witness = Witness { fence, ..Witness::default() };
        let clients = (0..clients).map(Client::new).collect();
        Self { servers, clients, duplicated: false, forgotten: false, witness }
    }

    /// Returns `true` if a client acquires the hold or relies on it, so that no server ends it.
    pub(crate) fn is_live(&self, hold: HoldId) -> bool {
        is_live(&self.clients, hold)
    }

    /// Returns `true` if a server may have ended this hold.
    pub(crate) fn may_have_ended(&self, entry: Entry) -> bool {
        !self.is_live(entry.hold) || entry.round < self.clients[entry.hold.client].round
    }

    /// Sends a request to all servers.
    pub(crate) fn send(&mut self, request: Request) {
        for server in &mut self.servers {
            server.requests.insert(request);
        }
    }

    /// Makes a server lose its data.
    pub(crate) fn forget(&mut self, server: usize, flaw: Option<Flaw>) {
        let live = self.clients.iter().filter(|client| !client.over).map(Client::hold);
        let soon = flaw == Some(Flaw::ReturnsTooSoon);
        let live = if soon { BTreeSet::new() } else { live.collect() };
        self.servers[server].forget(live);
        self.forgotten = true;
    }

    /// Gives a client a guard, with the first of the tokens of its hold.
    pub(crate) fn grant(&mut self, id: usize, tokens: Block) {
        self.begin_guard(id, tokens, false);
        let hold = self.clients[id].hold();
        let holding = self.servers.iter().filter(|server| server.is_held_by(hold)).count();
        // The server that has lost its data may have granted the hold before.
        let supported = holding + usize::from(self.forgotten);
        self.witness.unsupported |= supported < majority(self.servers.len());
    }

    /// Gives the guard to the next thread of its client, with the next token.
    pub(crate) fn hand_off(&mut self, id: usize) {
        let Phase::Holding { tokens, renews } = self.clients[id].phase else { return };
        if let Some(tokens) = tokens.following() {
            self.begin_guard(id, tokens, renews);
        }
    }

    fn begin_guard(&mut self, id: usize, tokens: Block, renews: bool) {
        self.clients[id].phase = Phase::Holding { tokens, renews };
        let witness = &mut self.witness;
        witness.fence_repeated |= tokens.first <= witness.fence;
        witness.fence = tokens.first;
        witness.guards += 1;
    }

    /// Returns the tokens that a client has received for the hold that it acquires.
    pub(crate) fn granted(&self, client: usize) -> Vec<Block> {
        let granted =
            |reply| if let Reply::Granted { tokens } = reply { Some(tokens) } else { None };
        self.replies(client).filter_map(granted).collect()
    }

    /// Returns how many of the servers that a client waits for have confirmed its hold.
    pub(crate) fn confirmations(&self, client: usize) -> usize {
        self.replies(client).filter(|reply| *reply == Reply::Ours).count()
    }

    fn replies(&self, client: usize) -> impl Iterator<Item = Reply> {
        let replies = self.servers.iter().flat_map(|server| &server.replies);
        replies.filter(move |(request, _)| request.hold.client == client).map(|(_, reply)| *reply)
    }

    /// Winds the clock to the greatest of all tokens.
    pub(crate) fn wind_clock(&mut self) {
        let tokens = self.servers.iter().flat_map(|server| {
            let proposed = server.requests.iter().map(|request| request.command.token());
            proposed.chain([server.counter])
        });
        self.witness.clock = tokens.chain([self.witness.clock]).max().unwrap_or_default();
    }

    /// Removes requests that can no longer have an effect: they may just as well be lost.
    pub(crate) fn drop_futile_requests(&mut self) {
        for server in &mut self.servers {
            let futile = |request: &&Request| server.is_futile(request);
            for request in server.requests.iter().filter(futile).copied().collect::<Vec<_>>() {
                server.requests.remove(&request);
            }
        }
    }

    /// Merges states that do not differ in effect.
    pub(crate) fn simplify(&mut self) {
        for server in &mut self.servers {
            let clients = &self.clients;
            server.replies.retain(|request, _| clients[request.hold.client].awaits(request));
            server.awaited.retain(|hold| is_live(clients, *hold));
        }
        self.servers.sort_unstable();
    }
}

fn is_live(clients: &[Client], hold: HoldId) -> bool {
    let client = &clients[hold.client];
    client.nonce == hold.nonce && !client.over
}
