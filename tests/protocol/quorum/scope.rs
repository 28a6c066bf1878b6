//! The part of the world that the model visits, and everything that can happen next in it.

use stateright::{Model, Property};

use crate::quorum::client::{Client, Phase};
use crate::quorum::flaw::Flaw;
use crate::quorum::promises;
use crate::quorum::server::{Request, Server};
use crate::quorum::votes::{Grant, grants, majority};
use crate::quorum::world::World;

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The counters of the servers, as earlier holds have left them.
    pub(crate) counters: Vec<u64>,
    /// The maximum number of holds that each client begins or tries to begin.
    pub(crate) holds: Vec<u64>,
    pub(crate) clocks: Clocks,
    /// The additional possible events.
    pub(crate) extras: Vec<Extra>,
    pub(crate) flaw: Option<Flaw>,
}

/// The possible readings of the clients' clocks when a token is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// Any of these, in any order.
    Any(Vec<u64>),
    /// More than all tokens so far.
    Right,
}

/// An event that happens only in the scopes that name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Each server may give a block of two tokens, and threads hand the lock off.
    Block,
    /// One request is executed twice.
    Duplicate,
    /// One server loses its data and comes back when all leases of that time are over.
    Forgetting,
    /// Each hold may be kept when its guard is gone, and get more tokens once.
    Refill,
    /// Each hold may be renewed once.
    Renewal,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire {
        client: usize,
        proposal: u64,
    },
    End(usize),
    /// A server executes a request. The hold that it had ends before that if the lock is `freed`.
    /// An acquire gets a block of this `size`. The request may arrive `again`.
    Execute {
        server: usize,
        request: Request,
        size: u64,
        freed: bool,
        again: bool,
    },
    Forget {
        server: usize,
    },
    HandOff(usize),
    /// The lease of a hold ends, but its client continues.
    Outlive(usize),
    /// Enough servers have raised their counters to the token.
    Raised(usize),
    Refill {
        client: usize,
        proposal: u64,
    },
    Renew(usize),
    Renewed(usize),
    /// Enough servers have begun the hold.
    Granted {
        client: usize,
        grant: Grant,
    },
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(&self.counters, self.holds.len());
        self.read_the_clock(&mut world);
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !self.may_grant(world) {
            return;
        }
        for (number, server) in world.servers.iter().enumerate() {
            // Of two servers in the same state, one is enough.
            if number == 0 || world.servers[number - 1] != *server {
                self.events(world, number, actions);
            }
        }
        for (id, client) in world.clients.iter().enumerate() {
            self.moves(world, id, client, actions);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::End(id) => world.clients[id].end(),
            Action::Execute { server, request, size, freed, again } => {
                self.execute(&mut world.servers[server], request, size, freed, again);
                world.duplicated |= again;
            }
            Action::Forget { server } => world.forget(server, self.flaw),
            Action::HandOff(id) => world.hand_off(id),
            Action::Outlive(id) => world.clients[id].over = true,
            Action::Raised(id) => {
                let Phase::Raising { tokens } = world.clients[id].phase else { return None };
                world.grant(id, tokens);
            }
            Action::Renewed(id) => world.clients[id].renewed(),
            Action::Granted { client, grant } => self.granted(&mut world, client, grant),
            _ => {
                let request = self.request(&mut world, action)?;
                world.send(request);
            }
        }
        self.read_the_clock(&mut world);
        if self.flaw != Some(Flaw::RaiseIsUnchecked) {
            world.drop_futile_requests();
        }
        world.simplify();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Scope {
    fn has(&self, what: Extra) -> bool {
        self.extras.contains(&what)
    }

    /// Returns the number of servers that have to grant a hold.
    fn required(&self) -> usize {
        let servers = self.counters.len();
        if self.flaw == Some(Flaw::HalfIsEnough) { servers / 2 } else { majority(servers) }
    }

    /// Like `required`, or one if that is the flaw.
    fn required_unless(&self, flaw: Flaw) -> usize {
        if self.flaw == Some(flaw) { 1 } else { self.required() }
    }

    /// Returns the tokens that a client may propose.
    fn proposals(&self, world: &World) -> Vec<u64> {
        match &self.clocks {
            Clocks::Any(times) => times.clone(),
            Clocks::Right => vec![world.witness.clock + 1],
        }
    }

    fn read_the_clock(&self, world: &mut World) {
        if self.clocks == Clocks::Right {
            world.wind_clock();
        }
    }

    /// Returns `true` if a client may still get a guard. Otherwise no promise can be broken any
    /// more.
    fn may_grant(&self, world: &World) -> bool {
        world.clients.iter().zip(&self.holds).any(|(client, holds)| {
            let may_grant = match client.phase {
                Phase::Idle => false,
                Phase::Acquiring | Phase::Raising { .. } => true,
                Phase::Holding { tokens, .. } => {
                    tokens.following().is_some() || self.has(Extra::Refill) && client.round == 0
                }
            };
            may_grant || client.nonce < *holds
        })
    }

    /// Adds the possible events at a server.
    fn events(&self, world: &World, number: usize, actions: &mut Vec<Action>) {
        let server = &world.servers[number];
        if self.has(Extra::Forgetting) && !world.forgotten {
            actions.push(Action::Forget { server: number });
        }
        if !server.awaited.is_empty() {
            return;
        }
        let twice = self.has(Extra::Duplicate) && !world.duplicated;
        let may_be_free = server.lock.is_some_and(|entry| world.may_have_ended(entry));
        for request in server.requests.iter().copied() {
            let granted = Server::grants(server.lock, &request, self.flaw);
            let freed = may_be_free && Server::grants(None, &request, self.flaw);
            for (freed, can) in [(false, granted), (true, freed)] {
                for size in (1..=request.command.size()).filter(|_| can) {
                    let execute =
                        |again| Action::Execute { server: number, request, size, freed, again };
                    actions.push(execute(false));
                    actions.extend(twice.then(|| execute(true)));
                }
            }
        }
    }

    /// Adds the possible moves of a client.
    fn moves(&self, world: &World, id: usize, client: &Client, actions: &mut Vec<Action>) {
        let (more, once) = (client.nonce < self.holds[id], client.round == 0);
        let proposals = || self.proposals(world).into_iter();
        let confirmed = |unless| world.confirmations(id) >= self.required_unless(unless);
        match client.phase {
            Phase::Idle if more => {
                actions
                    .extend(proposals().map(|proposal| Action::Acquire { client: id, proposal }));
            }
            Phase::Idle => {}
            Phase::Acquiring => self.outcomes(world, id, actions),
            Phase::Raising { .. } => {
                let raised = confirmed(Flaw::RaiseOfAMinority);
                actions.extend(raised.then_some(Action::Raised(id)));
            }
            Phase::Holding { tokens, renews } => {
                actions.extend(tokens.following().map(|_| Action::HandOff(id)));
                if once && !renews && self.has(Extra::Refill) {
                    let refill = |proposal| Action::Refill { client: id, proposal };
                    actions.extend(proposals().map(refill));
                }
                let begins = once && !renews && self.has(Extra::Renewal);
                actions.extend(begins.then_some(Action::Renew(id)));
                let renewed = renews && confirmed(Flaw::RenewalOfAMinority);
                actions.extend(renewed.then_some(Action::Renewed(id)));
            }
        }
        actions.extend((client.phase != Phase::Idle).then_some(Action::End(id)));
    }

    /// Adds the possible outcomes of a request for a hold.
    fn outcomes(&self, world: &World, id: usize, actions: &mut Vec<Action>) {
        if self.flaw == Some(Flaw::LateRepliesCount) {
            actions.push(Action::Outlive(id));
        }
        let grants = grants(&world.granted(id), self.required(), self.flaw);
        actions.extend(grants.into_iter().map(|grant| Action::Granted { client: id, grant }));
    }

    /// Sends a request of a client.
    fn request(&self, world: &mut World, action: Action) -> Option<Request> {
        let size = if self.has(Extra::Block) { 2 } else { 1 };
        Some(match action {
            Action::Acquire { client: id, proposal } => {
                let client = &mut world.clients[id];
                let reused = self.flaw == Some(Flaw::NumberIsReused) && client.round == 0;
                if reused && client.nonce > 0 {
                    client.repeat(proposal, size)
                } else {
                    client.acquire(proposal, size)
                }
            }
            Action::Refill { client, proposal } => world.clients[client].refill(proposal, size),
            Action::Renew(id) => world.clients[id].renew(),
            _ => return None,
        })
    }

    fn execute(&self, server: &mut Server, request: Request, size: u64, freed: bool, again: bool) {
        if freed {
            server.free(self.flaw);
        }
        let reply = server.execute(&request, size, self.flaw);
        // No client waits for a second reply.
        server.replies.entry(request).or_insert(reply);
        if !again {
            server.requests.remove(&request);
        }
    }

    fn granted(&self, world: &mut World, id: usize, Grant { tokens, agreed }: Grant) {
        if agreed || self.flaw == Some(Flaw::RaiseIsLeftOut) {
            world.grant(id, tokens);
        } else {
            let raise = world.clients[id].raise(tokens);
            world.send(raise);
        }
    }
}
