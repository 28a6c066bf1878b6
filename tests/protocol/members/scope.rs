//! The part of the world that the model visits, and everything that can happen next in it.

use stateright::{Model, Property};

use crate::hold::HoldId;
use crate::members::client::{Client, Phase};
use crate::members::flaw::Flaw;
use crate::members::promises;
use crate::members::server::{Command, Side};
use crate::members::world::World;
use crate::network::{Arrival, Course};

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The side that each client wants, and how many of its threads want it once.
    pub(crate) clients: Vec<(Side, u64)>,
    /// 0 for a read-write lock.
    pub(crate) permits: usize,
    /// The possible faults.
    pub(crate) faults: Vec<Fault>,
    /// The maximum number of faults.
    pub(crate) most: u64,
    pub(crate) flaw: Option<Flaw>,
}

/// A possible fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A request is executed twice.
    Duplicate,
    /// A client is too late for its offer.
    MissedOffer,
    /// A request, or the reply to it, is lost or late, and the request is repeated.
    NoReply,
    /// The lease of a hold is over when its client learns of it.
    Pause,
    /// A renewal arrives, however late.
    Renewal,
    /// A client stops forever.
    Stop,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(usize),
    /// A hold is over at the server.
    End(HoldId),
    /// An offer ends that its client does not take.
    EndOffer(usize),
    Execute(Arrival<Command>),
    /// A fault of a client or of its requests.
    Fault(Fault, usize),
    /// The lease of a hold is over for its client.
    Outlive(usize, u64),
    /// The reply that has granted holds arrives.
    Receive {
        id: usize,
        count: u64,
        fence: u64,
    },
    Release(usize, u64),
    /// A waiting client asks again.
    Retry(usize),
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.clients, self.permits)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.course(world, actions);
        self.accidents(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let (mut world, flaw) = (last.clone(), self.flaw);
        match action {
            Action::Begin(id) => world.send(id, Client::begin),
            Action::End(hold) => drop(world.server.holds.remove(&hold)),
            Action::EndOffer(id) => drop(world.server.offers.remove(&id)),
            Action::Execute(arrival) => {
                let request = world.network.take(arrival);
                world.execute(request, flaw);
            }
            Action::Fault(fault, id) => self.fail(&mut world, fault, id),
            Action::Outlive(id, nonce) => drop(world.clients[id].guards.insert(nonce, false)),
            Action::Receive { id, count, fence } => world.receive(id, count, fence, flaw),
            Action::Release(id, nonce) => world.send(id, |client| client.release(nonce)),
            Action::Retry(id) => world.send(id, Client::ask),
        }
        world.simplify(flaw);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Course for Scope {
    fn course(&self, world: &World, actions: &mut Vec<Action>) {
        if self.flaw != Some(Flaw::LeaseHasNoEnd) {
            let is_over =
                |hold: &HoldId, round: u64| !world.clients[hold.client].relies_on(*hold, round);
            let over = world.server.holds.iter().filter(|(hold, round)| is_over(hold, **round));
            actions.extend(over.map(|(hold, _)| Action::End(*hold)));
        }
        if self.flaw != Some(Flaw::OfferHasNoEnd) {
            let left = world.server.offers.iter().filter(|id| !world.clients[**id].will_ask());
            actions.extend(left.map(|id| Action::EndOffer(*id)));
        }
        let arrivals = world.network.course(|request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        for (id, client) in world.clients.iter().enumerate() {
            let live = client.guards.iter().filter(|(_, live)| **live);
            actions.extend(live.map(|(nonce, _)| Action::Outlive(id, *nonce)));
            if !client.stopped {
                self.moves(world, id, client, actions);
            }
        }
    }
}

impl Scope {
    /// Adds the moves of a client.
    fn moves(&self, world: &World, id: usize, client: &Client, actions: &mut Vec<Action>) {
        actions.extend(client.guards.keys().map(|nonce| Action::Release(id, *nonce)));
        actions.extend(match client.phase {
            Phase::Idle => (client.waiting > 0).then_some(Action::Begin(id)),
            Phase::Acquiring => None,
            Phase::Granted { count, fence } => Some(Action::Receive { id, count, fence }),
            Phase::Waiting => self.may_retry(world, id).then_some(Action::Retry(id)),
        });
    }

    /// Returns `true` if another request of a client makes a difference. It may ask at any time.
    fn may_retry(&self, world: &World, id: usize) -> bool {
        let (mut server, request) = (world.server.clone(), world.clients[id].clone().ask());
        let Command::Acquire { size } = request.command else { return false };
        server.acquire(&request.batch(size), request.round, true, self.flaw);
        let is_woken = world.server.offers.contains(&id);
        server != world.server && (is_woken || self.flaw != Some(Flaw::WaitsToBeWoken))
    }

    /// Adds events that may or may not happen.
    fn accidents(&self, world: &World, actions: &mut Vec<Action>) {
        let twice = self.may_fail(world, Fault::Duplicate);
        let arrivals = world.network.accidents(twice, |request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        for (id, client) in world.clients.iter().enumerate() {
            let is_asking = matches!(client.phase, Phase::Acquiring | Phase::Granted { .. });
            let acquires = is_asking && !client.stopped;
            let faults = [
                (Fault::MissedOffer, world.server.offers.contains(&id)),
                (Fault::NoReply, acquires),
                (Fault::Pause, acquires && !client.over),
                (Fault::Renewal, self.flaw == Some(Flaw::RenewalRevives)),
                (Fault::Stop, !client.stopped),
            ];
            for (fault, _) in faults.into_iter().filter(|(_, can)| *can) {
                actions.extend(self.may_fail(world, fault).then_some(Action::Fault(fault, id)));
            }
        }
    }

    fn fail(&self, world: &mut World, fault: Fault, id: usize) {
        world.network.faults += 1;
        match fault {
            Fault::Duplicate => {}
            Fault::MissedOffer => drop(world.server.offers.remove(&id)),
            Fault::NoReply => world.send(id, Client::ask),
            Fault::Pause => world.clients[id].over = true,
            Fault::Renewal => world.renew(id, self.flaw),
            Fault::Stop => world.clients[id].stop(),
        }
    }

    fn may_fail(&self, world: &World, fault: Fault) -> bool {
        world.network.faults < self.most && self.faults.contains(&fault)
    }
}
