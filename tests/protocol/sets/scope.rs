//! The part of the world that the model visits, everything that can happen next in it, and the
//! promises.

use stateright::{Model, Property};

use crate::network::{Arrival, Course};
use crate::sets::client::{Command, Phase};
use crate::sets::flaw::Flaw;
use crate::sets::world::World;

/// No two clients with live guards share a lock.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// A client with a live guard has all its locks, and a server that refuses has begun no hold.
pub(crate) const ALL_OR_NONE: &str = "all or none";

/// Once the releases of a client have arrived without a fault, it has no lock.
pub(crate) const RELEASE: &str = "all are released together";

/// Each client gets its locks, unless it has stopped: all are served once nothing more needs to
/// happen.
pub(crate) const SERVICE: &str = "each client that waits is served";

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The locks that each client wants, in the order in which it asks for them.
    pub(crate) clients: Vec<Vec<usize>>,
    /// The number of servers that the locks are on.
    pub(crate) servers: usize,
    /// The possible faults, of which one occurs.
    pub(crate) faults: Vec<Fault>,
    pub(crate) flaw: Option<Flaw>,
}

/// A possible fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A request is executed twice.
    Duplicate,
    /// A request, or the reply to it, is lost or late, and the request is repeated.
    NoReply,
    /// The leases of a client are over when it learns of the last one.
    Pause,
    /// A client stops forever.
    Stop,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Execute(Arrival<Command>),
    /// The hold of a lock is over at its server.
    Expire(usize),
    /// A fault of a client or of its requests.
    Fault(Fault, usize),
    /// The leases of a guard are over for its client.
    Outlive(usize),
    /// A reply arrives.
    Receive(usize),
    Release(usize),
    /// A client asks for the lock that it waits for, which is free.
    Retry(usize),
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.clients, self.servers)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.course(world, actions);
        let may_fail = |fault| world.network.faults == 0 && self.faults.contains(&fault);
        let twice = may_fail(Fault::Duplicate);
        let late = world.network.accidents(twice, |request| world.must_arrive(request));
        actions.extend(late.into_iter().map(Action::Execute));
        for (id, client) in world.clients.iter().enumerate().filter(|(_, it)| !it.stopped) {
            let is_asking = matches!(client.phase, Phase::Asking { .. });
            let faults = [
                (Fault::NoReply, is_asking),
                (Fault::Pause, is_asking && !client.over),
                (Fault::Stop, client.phase != Phase::Done),
            ];
            let faults = faults.into_iter().filter(|(fault, can)| *can && may_fail(*fault));
            actions.extend(faults.map(|(fault, _)| Action::Fault(fault, id)));
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let (mut world, flaw) = (last.clone(), self.flaw);
        match action {
            Action::Execute(arrival) => {
                let request = world.network.take(arrival);
                world.execute(request, flaw);
            }
            Action::Expire(name) => world.locks[name] = None,
            Action::Fault(fault, id) => {
                world.network.faults += 1;
                match fault {
                    Fault::Duplicate => {}
                    Fault::NoReply => world.repeat(id, flaw),
                    Fault::Pause => world.clients[id].over = true,
                    Fault::Stop => world.clients[id].stop(),
                }
            }
            Action::Outlive(id) => world.clients[id].over = true,
            Action::Receive(id) => world.receive(id, flaw),
            Action::Release(id) => {
                world.clients[id].phase = Phase::Done;
                world.give_back(id, flaw);
            }
            Action::Retry(id) => world.retry(id, flaw),
        }
        world.simplify();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION_BY_LEASE, |_, world: &World| world.is_exclusive()),
            Property::always(ALL_OR_NONE, |_, world: &World| !world.witness.is_partial),
            Property::always(RELEASE, |_, world: &World| {
                world.network.faults > 0 || world.is_released()
            }),
            Property::always(SERVICE, |scope: &Scope, world: &World| {
                !scope.is_at_rest(world) || world.is_served()
            }),
            Property::sometimes("a client waits for another", |_, world: &World| {
                world.clients.iter().any(|client| matches!(client.phase, Phase::Waiting { .. }))
            }),
            Property::sometimes("all are served", |_, world: &World| world.is_served()),
        ]
    }
}

impl Course for Scope {
    fn course(&self, world: &World, actions: &mut Vec<Action>) {
        if self.flaw != Some(Flaw::LeaseHasNoEnd) {
            let over = (0..world.locks.len()).filter(|name| world.may_expire(*name));
            actions.extend(over.map(Action::Expire));
        }
        let arrivals = world.network.course(|request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        for (id, client) in world.clients.iter().enumerate() {
            actions.extend(client.has_live_guard().then_some(Action::Outlive(id)));
            actions.extend(match client.phase {
                _ if client.stopped => None,
                Phase::Asking { granted: Some(_), .. } => Some(Action::Receive(id)),
                Phase::Holding => Some(Action::Release(id)),
                Phase::Waiting { name } => world.locks[name].is_none().then_some(Action::Retry(id)),
                Phase::Asking { granted: None, .. } | Phase::Done => None,
            });
        }
    }
}
