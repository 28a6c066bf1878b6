//! The part of the world that the model visits, and everything that can happen next in it.

use stateright::{Model, Property};

use crate::network::{Arrival, Course};
use crate::tenure::client::{Client, Phase};
use crate::tenure::flaw::Flaw;
use crate::tenure::promises;
use crate::tenure::server::{Command, Grant};
use crate::tenure::world::{Message, World};

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// How many threads of each client want a guard once.
    pub(crate) threads: Vec<u64>,
    /// The number of clients that keep the lock: the first ones.
    pub(crate) keeps: usize,
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
    /// An operator ends a hold.
    Force,
    /// The last waiting thread of a client stops waiting.
    GiveUp,
    /// A client finds the lock free by itself, and lets others go first that have waited longer.
    GiveWay,
    /// A request for the lock, or the reply to it, is lost or late, and the request is repeated.
    NoReply,
    /// The lease of a hold is over when its client learns of it.
    Pause,
    /// A client stops forever.
    Stop,
    /// A message to a client that keeps the lock is lost.
    Unheard,
    /// A wake-up is lost.
    Unwoken,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(usize),
    Deliver(Message),
    /// A lock was kept for long enough, or is released for another reason.
    EndKept(usize),
    Execute(Arrival<Command>),
    /// A hold or an offer ends at the server.
    Expire,
    /// A fault of a client or of its requests.
    Fault(Fault, usize),
    HandOff(usize),
    Keep(usize),
    /// A message to a client is lost.
    Lose(Message),
    /// The lease of a hold is over for its client.
    Outlive(usize),
    /// The reply that has granted the lock arrives.
    Receive(usize, Grant),
    Release(usize),
    Renew(usize),
    /// A waiting client asks again.
    Retry(usize),
    /// A thread wants the lock that its client has kept.
    UseKept(usize),
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.threads, self.keeps)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.course(world, actions);
        self.accidents(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let (mut world, flaw) = (last.clone(), self.flaw);
        match action {
            Action::Deliver(message) => world.deliver(message, flaw),
            Action::Execute(arrival) => {
                let request = world.network.take(arrival);
                world.execute(request, flaw);
            }
            Action::Expire => world.free(),
            Action::Fault(fault, id) => self.fail(&mut world, fault, id),
            Action::HandOff(id) => world.hand_off(id, flaw),
            Action::Keep(id) => world.keep(id),
            Action::Lose(message) => {
                world.network.faults += 1;
                world.messages.remove(&message);
            }
            Action::Outlive(id) => world.clients[id].over = true,
            Action::Receive(id, grant) => world.receive(id, grant, flaw),
            Action::Begin(id) => world.send(id, |client| client.begin(flaw)),
            Action::EndKept(id) | Action::Release(id) => {
                world.send(id, |client| client.release(flaw));
            }
            Action::Renew(id) => world.renew(id),
            Action::Retry(id) => world.send(id, Client::ask),
            Action::UseKept(id) => world.use_kept(id, flaw),
        }
        world.simplify();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all(self)
    }
}

impl Course for Scope {
    fn course(&self, world: &World, actions: &mut Vec<Action>) {
        let (server, ends) = (&world.server, |unless| self.flaw != Some(unless));
        let is_over = world.may_expire() && ends(Flaw::LeaseHasNoEnd);
        let is_missed = server.offer.is_some() && ends(Flaw::OfferHasNoEnd);
        actions.extend((is_over || is_missed).then_some(Action::Expire));
        let arrivals = world.network.course(|request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        let mut told = None;
        for message in world.messages.iter().copied() {
            if told.replace(message.hold.client) != Some(message.hold.client) {
                actions.push(Action::Deliver(message));
            }
        }
        for (id, client) in world.clients.iter().enumerate() {
            actions.extend(client.has_live_guard().then_some(Action::Outlive(id)));
            if !client.stopped {
                self.moves(world, id, client, actions);
            }
        }
    }
}

impl Scope {
    /// Adds the moves of a client.
    fn moves(&self, world: &World, id: usize, client: &Client, actions: &mut Vec<Action>) {
        actions.extend(client.next_tokens(self.flaw).map(|_| Action::HandOff(id)));
        actions.extend(match client.phase {
            Phase::Idle | Phase::Released { .. } => {
                (client.waiting > 0 && !world.is_releasing(id)).then_some(Action::Begin(id))
            }
            Phase::Acquiring { granted } | Phase::Refilling { granted } => {
                granted.map(|grant| Action::Receive(id, grant))
            }
            Phase::Kept { .. } => (client.waiting > 0).then_some(Action::UseKept(id)),
            Phase::Waiting => self.may_retry(world, id).then_some(Action::Retry(id)),
            Phase::Holding { .. } => Some(Action::Release(id)),
        });
    }

    /// Returns `true` if another request of a client makes a difference. It may ask at any time.
    fn may_retry(&self, world: &World, id: usize) -> bool {
        let (mut server, request) = (world.server.clone(), world.clients[id].clone().ask());
        let Command::Acquire { size, .. } = request.command else { return false };
        server.acquire(request, size, self.flaw);
        let recalls = world.may_recall() && self.flaw != Some(Flaw::RecallIsNotRepeated);
        (server != world.server || recalls)
            && (world.woken.contains(&id) || self.flaw != Some(Flaw::WaitsToBeWoken))
    }

    /// Adds events that may or may not happen.
    fn accidents(&self, world: &World, actions: &mut Vec<Action>) {
        let twice = self.may_fail(world, Fault::Duplicate);
        let arrivals = world.network.accidents(twice, |request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        if self.may_fail(world, Fault::Unheard) {
            actions.extend(world.messages.iter().copied().map(Action::Lose));
        }
        for (id, client) in world.clients.iter().enumerate() {
            let runs = !client.stopped;
            if runs && client.keeps {
                Self::keeping(id, client, actions);
            }
            let acquires =
                matches!(client.phase, Phase::Acquiring { .. } | Phase::Refilling { .. });
            let acquires = runs && acquires;
            let faults = [
                (Fault::Force, world.server.lock.is_some_and(|entry| entry.hold.client == id)),
                (Fault::GiveUp, runs && client.phase == Phase::Waiting && client.waiting == 1),
                (Fault::GiveWay, runs && client.phase == Phase::Waiting),
                (Fault::NoReply, acquires),
                (Fault::Pause, acquires && !client.over),
                (Fault::Stop, runs),
                (Fault::Unwoken, world.woken.contains(&id)),
            ];
            for (fault, _) in faults.into_iter().filter(|(_, can)| *can) {
                actions.extend(self.may_fail(world, fault).then_some(Action::Fault(fault, id)));
            }
        }
    }

    /// Adds the possible events of a client that keeps the lock. None of them has to happen,
    /// because a tenure may be kept and renewed for any time.
    fn keeping(id: usize, client: &Client, actions: &mut Vec<Action>) {
        actions.extend(client.may_keep().map(|_| Action::Keep(id)));
        actions.extend(client.may_renew().then_some(Action::Renew(id)));
        if matches!(client.phase, Phase::Kept { .. }) && !client.over {
            actions.extend([Action::EndKept(id), Action::Outlive(id)]);
        }
    }

    fn fail(&self, world: &mut World, fault: Fault, id: usize) {
        world.network.faults += 1;
        match fault {
            Fault::Duplicate | Fault::Unheard => {}
            Fault::Force => world.force(self.flaw),
            Fault::GiveUp => world.send(id, Client::give_up),
            Fault::GiveWay => world.send(id, Client::give_way),
            Fault::NoReply if matches!(world.clients[id].phase, Phase::Refilling { .. }) => {
                world.send(id, |client| client.release(self.flaw));
            }
            Fault::NoReply => {
                world.clients[id].in_doubt = true;
                world.send(id, Client::ask);
            }
            Fault::Pause => world.clients[id].over = true,
            Fault::Stop => {
                world.clients[id].stop();
                world.messages.retain(|message| message.hold.client != id);
            }
            Fault::Unwoken => drop(world.woken.remove(&id)),
        }
    }

    fn may_fail(&self, world: &World, fault: Fault) -> bool {
        world.network.faults < self.most && self.faults.contains(&fault)
    }
}
