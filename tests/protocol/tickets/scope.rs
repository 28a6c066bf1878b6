//! The part of the world that the model visits, everything that can happen next in it, and the
//! promises.

use stateright::{Model, Property};

use crate::network::{Arrival, Course};
use crate::tickets::flaw::Flaw;
use crate::tickets::world::{Command, Phase, Process, Role, World};

/// At most one guard is live, unless the ticket was adopted twice: then one hold has two guards,
/// and one of them may not know yet that the other has ended it.
pub(crate) const EXCLUSION_BY_LEASE: &str = "exclusion by lease";

/// No guard begins with a lower token than an earlier one, unless the ticket was adopted twice.
pub(crate) const EXCLUSION_BY_FENCE: &str = "exclusion by fence";

/// A released or expired hold never comes back.
pub(crate) const END: &str = "an ended hold never comes back";

/// Nothing done with a ticket changes a later hold.
pub(crate) const OTHERS: &str = "other holds are left alone";

/// Each process that wants the lock gets it, unless it has stopped. No path is endless, so it is
/// enough to check the states in which nothing more needs to happen.
pub(crate) const SERVICE: &str = "each process that waits is served";

#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The number of processes that adopt the ticket.
    pub(crate) adopters: usize,
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
    /// A request, or the reply to it, is lost or late, and the request is repeated.
    NoReply,
    /// The lease of a hold is over when a process learns of it.
    Pause,
    /// A process stops forever.
    Stop,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A process detaches, adopts or acquires the hold.
    Ask(usize),
    Execute(Arrival<Command>),
    /// The hold is over at the server.
    Expire,
    /// A fault of a process or of its requests.
    Fault(Fault, usize),
    /// The lease of a hold is over for a process.
    Outlive(usize),
    /// A reply arrives.
    Receive {
        id: usize,
        done: bool,
    },
    Release(usize),
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut roles = vec![Role::Adopter; self.adopters + 2];
        (roles[0], roles[self.adopters + 1]) = (Role::Owner, Role::Contender);
        vec![World::new(&roles)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.course(world, actions);
        self.accidents(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let (mut world, flaw) = (last.clone(), self.flaw);
        match action {
            Action::Ask(id) => world.ask(id),
            Action::Execute(arrival) => {
                let request = world.network.take(arrival);
                world.execute(request, flaw);
            }
            Action::Expire => world.end(),
            Action::Fault(fault, id) => fail(&mut world, fault, id),
            Action::Outlive(id) => world.processes[id].over = true,
            Action::Receive { id, done } => world.receive(id, done, flaw),
            Action::Release(id) => world.release(id),
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION_BY_LEASE, |_, world: &World| {
                let live = world.processes.iter().filter(|process| process.has_live_guard());
                live.count() <= 1 || world.witness.adoptions > 1
            }),
            Property::always(EXCLUSION_BY_FENCE, |_, world: &World| {
                !world.witness.fence_fell || world.witness.adoptions > 1
            }),
            Property::always(END, |_, world: &World| !world.witness.revived),
            Property::always(OTHERS, |_, world: &World| !world.witness.touched),
            Property::always(SERVICE, |scope: &Scope, world: &World| {
                !scope.is_at_rest(world) || world.processes.iter().all(is_served)
            }),
            Property::sometimes("a hold is adopted", |_, world: &World| {
                world.witness.adoptions > 0
            }),
            Property::sometimes("a hold is adopted too late", |_, world: &World| {
                let adopters = world.processes.iter().filter(|it| it.role == Role::Adopter);
                world.witness.adoptions == 0
                    && adopters.into_iter().all(|it| it.phase == Phase::Done)
            }),
            Property::sometimes("the lock is acquired by another process", |_, world: &World| {
                world.processes.iter().any(|it| it.role == Role::Contender && it.has_live_guard())
            }),
        ]
    }
}

fn is_served(process: &Process) -> bool {
    process.stopped || process.role != Role::Contender || process.phase == Phase::Done
}

impl Course for Scope {
    fn course(&self, world: &World, actions: &mut Vec<Action>) {
        let is_over = world.may_expire() && self.flaw != Some(Flaw::LeftHoldHasNoEnd);
        actions.extend(is_over.then_some(Action::Expire));
        let arrivals = world.network.course(|request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        for (id, process) in world.processes.iter().enumerate() {
            actions.extend(process.has_live_guard().then_some(Action::Outlive(id)));
            if !process.stopped {
                actions.extend(moves(world, id, process));
            }
        }
    }
}

impl Scope {
    /// Adds events that may or may not happen.
    fn accidents(&self, world: &World, actions: &mut Vec<Action>) {
        let twice = self.may_fail(world, Fault::Duplicate);
        let arrivals = world.network.accidents(twice, |request| world.must_arrive(request));
        actions.extend(arrivals.into_iter().map(Action::Execute));
        for (id, process) in world.processes.iter().enumerate().filter(|(_, it)| !it.stopped) {
            let is_asking = process.is_asking();
            let faults = [
                (Fault::NoReply, is_asking),
                (Fault::Pause, is_asking && !process.over),
                (Fault::Stop, true),
            ];
            for (fault, _) in faults.into_iter().filter(|(_, can)| *can) {
                actions.extend(self.may_fail(world, fault).then_some(Action::Fault(fault, id)));
            }
        }
    }

    fn may_fail(&self, world: &World, fault: Fault) -> bool {
        world.network.faults < self.most && self.faults.contains(&fault)
    }
}

fn fail(world: &mut World, fault: Fault, id: usize) {
    world.network.faults += 1;
    match fault {
        Fault::Duplicate => {}
        Fault::NoReply => world.ask(id),
        Fault::Pause => world.processes[id].over = true,
        Fault::Stop => world.processes[id].stop(),
    }
}

/// Returns the moves of a process.
fn moves(world: &World, id: usize, process: &Process) -> Vec<Action> {
    match (process.phase, process.role) {
        (Phase::Idle, Role::Adopter) if world.is_left => vec![Action::Ask(id)],
        (Phase::Idle, Role::Contender) if world.lock.is_none() => vec![Action::Ask(id)],
        (Phase::Answered { done }, _) => vec![Action::Receive { id, done }],
        (Phase::Holding, Role::Owner) if !world.is_left => {
            vec![Action::Ask(id), Action::Release(id)]
        }
        (Phase::Holding, _) => vec![Action::Release(id)],
        _ => Vec::new(),
    }
}
