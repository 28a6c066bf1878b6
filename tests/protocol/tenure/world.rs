//! One state of the world: the server, the clients, what is in transit, and what has happened.

use std::collections::BTreeSet;

use crate::hold::{Block, HoldId};
use crate::network::{Network, Request};
use crate::tenure::client::{Client, Phase, Use};
use crate::tenure::flaw::Flaw;
use crate::tenure::server::{Command, Entry, Grant, Reply, Server};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) clients: Vec<Client>,
    pub(crate) network: Network<Command>,
    /// The clients that were woken and have not asked since.
    pub(crate) woken: BTreeSet<usize>,
    /// Messages in transit to clients that keep locks. A client receives them in the order of its
    /// tenures.
    pub(crate) messages: BTreeSet<Message>,
    pub(crate) witness: Witness,
}

/// A message from a server to the client of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Message {
    pub(crate) hold: HoldId,
    pub(crate) news: News,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum News {
    /// An operator has ended the hold.
    Ended,
    /// Another client waits for the lock.
    Wanted,
}

/// Facts that no client or server knows, but that the promises are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// The greatest token of a guard so far.
    pub(crate) fence: u64,
    /// True once a token was not above earlier ones.
    pub(crate) fence_repeated: bool,
    /// True once a client got the lock when it was another's turn.
    pub(crate) overtaken: bool,
    /// True once a release has left its hold.
    pub(crate) unreleased: bool,
}

impl World {
    /// Creates a world in which all clients have asked for the lock.
    pub(crate) fn new(threads: &[u64], keeps: usize) -> Self {
        let client = |(id, threads): (usize, &u64)| Client::new(id, *threads, id < keeps);
        let mut clients: Vec<Client> = threads.iter().enumerate().map(client).collect();
        let mut network = Network::new();
        network.requests = clients.iter_mut().map(|client| client.begin(None)).collect();
        let (server, witness) = (Server::default(), Witness::default());
        let (woken, messages) = (BTreeSet::new(), BTreeSet::new());
        Self { server, clients, network, woken, messages, witness }
    }

    /// Sends a request of a client.
    pub(crate) fn send(
        &mut self,
        id: usize,
        request: impl FnOnce(&mut Client) -> Request<Command>,
    ) {
        self.woken.remove(&id);
        self.network.requests.insert(request(&mut self.clients[id]));
    }

    /// Executes a request at the server.
    pub(crate) fn execute(&mut self, request: Request<Command>, flaw: Option<Flaw>) {
        match request.command {
            Command::Acquire { size, .. } => self.acquire(request, size, flaw),
            Command::Refill => self.refill(request, flaw),
            Command::Release => self.release(request, flaw),
            Command::Unregister => {
                if self.server.unregister(request.hold.client) {
                    self.wake(flaw);
                }
            }
        }
    }

    fn acquire(&mut self, request: Request<Command>, size: u64, flaw: Option<Flaw>) {
        let id = request.hold.client;
        let reply = if self.server.gives_way(&request) {
            self.server.register(id);
            self.wake(flaw);
            Reply::Held(None)
        } else {
            self.server.acquire(request, size, flaw)
        };
        if let Reply::Granted { grant: Grant { tokens, .. }, begun: true } = reply {
            let witness = &mut self.witness;
            witness.fence_repeated |= tokens.first <= witness.fence;
            witness.overtaken |= !self.clients[id].owes.is_empty();
            for client in &mut self.clients {
                client.owes.remove(&id);
                if client.limit == 0 && client.has_tokens() && client.hold() != request.hold {
                    client.limit = tokens.first;
                }
            }
        }
        if let Reply::Held(Some(holder)) = reply {
            self.tell(holder, News::Wanted);
        }
        let client = &mut self.clients[id];
        if client.awaits(&request) {
            client.phase = match reply {
                Reply::Granted { grant, .. } => {
                    // A client that keeps nothing does not ask who waits.
                    let wanted = client.keeps && grant.wanted;
                    Phase::Acquiring { granted: Some(Grant { wanted, ..grant }) }
                }
                Reply::Held(_) => Phase::Waiting,
            };
        }
    }

    fn refill(&mut self, request: Request<Command>, flaw: Option<Flaw>) {
        let reply = self.server.refill(request, 2, flaw);
        if let Reply::Granted { grant, .. } = reply {
            self.witness.fence_repeated |= grant.tokens.first <= self.witness.fence;
        }
        let client = &mut self.clients[request.hold.client];
        if client.awaits(&request) {
            match reply {
                Reply::Granted { grant, .. } => {
                    client.phase = Phase::Refilling { granted: Some(grant) };
                    client.limit = 0;
                }
                Reply::Held(_) => self.send(request.hold.client, |client| client.begin(flaw)),
            }
        }
    }

    /// Sends a message to the client of a hold, if it listens.
    fn tell(&mut self, hold: HoldId, news: News) {
        let client = &self.clients[hold.client];
        if client.keeps && !client.stopped {
            self.messages.insert(Message { hold, news });
        }
    }

    /// Delivers a message to a client.
    pub(crate) fn deliver(&mut self, message: Message, flaw: Option<Flaw>) {
        self.messages.remove(&message);
        let Message { hold: HoldId { client: id, nonce }, news } = message;
        match news {
            News::Ended => self.clients[id].learn_end(nonce, flaw),
            News::Wanted => {
                if self.clients[id].recall(nonce, flaw) {
                    self.send(id, |client| client.release(flaw));
                }
            }
        }
    }

    /// Returns `true` if a message that another client waits is news to the holder.
    pub(crate) fn may_recall(&self) -> bool {
        self.server.lock.is_some_and(|Entry { hold, .. }| {
            let client = &self.clients[hold.client];
            let listens = client.keeps && !client.stopped && client.hold() == hold;
            let message = Message { hold, news: News::Wanted };
            let relies = !client.over && client.has_tokens();
            listens && relies && !client.wanted && !self.messages.contains(&message)
        })
    }

    fn release(&mut self, request: Request<Command>, flaw: Option<Flaw>) {
        if self.server.release(request.hold, flaw) {
            let id = request.hold.client;
            let waiting = self.server.queue.iter().copied();
            self.clients[id].owes = waiting.take_while(|client| *client != id).collect();
            self.wake(flaw);
        }
        self.witness.unreleased |= self.server.is_held_by(request.hold);
    }

    /// Offers the lock to a waiting client, and wakes it. That matters only for clients that wait
    /// for it; others ask at any time.
    fn wake(&mut self, flaw: Option<Flaw>) {
        let woken = self.server.wake(flaw);
        self.woken.extend(woken.filter(|_| flaw == Some(Flaw::WaitsToBeWoken)));
        let server = &self.server;
        for client in &mut self.clients {
            client.owes.retain(|other| server.is_waiting(*other) || woken == Some(*other));
        }
    }

    /// Removes details that no promise depends on.
    pub(crate) fn simplify(&mut self) {
        for client in &mut self.clients {
            if client.waiting == 0 {
                client.owes.clear();
            }
            let hold = client.hold();
            let is_past = |request: &Request<Command>| request.hold != hold;
            let is_asked = matches!(client.phase, Phase::Idle | Phase::Waiting);
            if is_asked
                && !self.server.is_held_by(hold)
                && self.network.requests.iter().all(is_past)
            {
                client.round = 0;
            }
        }
    }

    /// Ends the current hold as an operator would.
    pub(crate) fn force(&mut self, flaw: Option<Flaw>) {
        if let Some(Entry { hold, .. }) = self.server.lock.take() {
            let client = &mut self.clients[hold.client];
            client.forced |= client.hold() == hold;
            self.tell(hold, News::Ended);
        }
        self.wake(flaw);
    }

    /// Ends a hold or an offer because its time is over. The lock is then free for any client.
    pub(crate) fn free(&mut self) {
        (self.server.lock, self.server.offer) = (None, None);
        for client in &mut self.clients {
            client.owes.clear();
        }
    }

    /// Delivers the lock to a client. A hold whose lease is over does not count.
    pub(crate) fn receive(&mut self, id: usize, grant: Grant, flaw: Option<Flaw>) {
        let client = &mut self.clients[id];
        client.over &= flaw != Some(Flaw::CountsFromReply);
        client.told |= grant.wanted;
        let refills = matches!(client.phase, Phase::Refilling { .. });
        client.wanted |= grant.wanted && !(refills && flaw == Some(Flaw::RefillHidesWaiters));
        match (client.over, refills) {
            (false, _) => self.begin_guard(id, grant.tokens),
            (true, false) => self.send(id, |client| client.release(flaw)),
            (true, true) => self.send(id, |client| client.begin(flaw)),
        }
    }

    /// Keeps the lock after the guard of a client.
    pub(crate) fn keep(&mut self, id: usize) {
        let client = &mut self.clients[id];
        if let Some(tokens) = client.may_keep() {
            client.phase = Phase::Kept { tokens };
        }
    }

    /// Lets a thread use the lock that its client has kept.
    pub(crate) fn use_kept(&mut self, id: usize, flaw: Option<Flaw>) {
        match self.clients[id].next_use(flaw) {
            Some(Use::Guard(tokens)) => {
                self.clients[id].over = false;
                self.begin_guard(id, tokens);
            }
            Some(Use::Lost) => self.send(id, |client| client.begin(flaw)),
            Some(Use::Refill) => self.send(id, Client::refill),
            None => {}
        }
    }

    /// Renews the tenure of a client.
    pub(crate) fn renew(&mut self, id: usize) {
        let client = &mut self.clients[id];
        if self.server.is_held_by(client.hold()) {
            client.expire_tokens();
        } else {
            (client.over, client.forced) = (true, false);
        }
    }

    /// Hands the tenure off to the next thread of its client.
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

    /// Returns `true` if a release is in transit. A client's requests stay in order.
    pub(crate) fn is_releasing(&self, id: usize) -> bool {
        let is_release = |it: &Request<Command>| it.command == Command::Release && !it.is_copy;
        self.network.requests.iter().any(|request| request.hold.client == id && is_release(request))
    }

    /// Returns `true` if a request is repeated until it has arrived.
    pub(crate) fn must_arrive(&self, request: &Request<Command>) -> bool {
        let client = &self.clients[request.hold.client];
        let ends = matches!(request.command, Command::Release | Command::Unregister);
        let must = client.awaits(request) || ends && !client.stopped;
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
