//! One state of the world: the server, the processes, what is in transit, and what has happened.

use std::collections::BTreeSet;

use crate::hold::HoldId;
use crate::network::{Network, Request};
use crate::tickets::flaw::Flaw;

/// The hold that the ticket is for.
const LEFT: u64 = 1;

/// The hold of a process that acquires the lock.
const NEXT: u64 = 2;

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    Acquire,
    Release,
    Renew,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    round: u64,
    /// Whether the lease that counts from its last request is over.
    pub(crate) over: bool,
    /// Whether it has stopped forever.
    pub(crate) stopped: bool,
}

/// The task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Adopts the hold.
    Adopter,
    /// Wants the lock for itself.
    Contender,
    /// Has the first guard, and detaches its hold.
    Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Has sent a request that renews or begins the hold.
    Asking,
    /// The reply is in transit.
    Answered {
        done: bool,
    },
    Holding,
    /// Has had its guard, or was told that the hold is lost.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The current hold, and the requests that have set its lease.
    pub(crate) lock: Option<(u64, BTreeSet<(usize, u64)>)>,
    /// Whether there is a ticket.
    pub(crate) is_left: bool,
    /// Known to no process: whether the hold of the ticket has ended.
    has_ended: bool,
    pub(crate) processes: Vec<Process>,
    pub(crate) network: Network<Command>,
    pub(crate) witness: Witness,
}

/// Facts that no process or server knows, but that the promises are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// How many processes have adopted the hold, even if its lease was over by then.
    pub(crate) adoptions: u64,
    /// The greatest token of a guard so far: the number of its hold.
    fence: u64,
    /// True once a guard began after one of a later hold.
    pub(crate) fence_fell: bool,
    /// True once the hold of the ticket existed again after its end.
    pub(crate) revived: bool,
    /// True once a request for one hold has changed the other.
    pub(crate) touched: bool,
}

impl Process {
    pub(crate) fn new(role: Role) -> Self {
        let phase = if role == Role::Owner { Phase::Holding } else { Phase::Idle };
        Self { role, phase, round: 0, over: false, stopped: false }
    }

    /// Returns the hold that it has or wants.
    pub(crate) fn hold(&self) -> u64 {
        if self.role == Role::Contender { NEXT } else { LEFT }
    }

    pub(crate) fn has_live_guard(&self) -> bool {
        let is_leaving = self.role == Role::Owner && self.is_asking();
        !self.over && (self.phase == Phase::Holding || is_leaving)
    }

    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Answered { .. })
    }

    /// Stops forever. It still relies on its guard.
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.over) = (true, self.over || !self.has_live_guard());
    }
}

impl World {
    /// Creates a world in which an owner has the lock.
    pub(crate) fn new(roles: &[Role]) -> Self {
        let processes = roles.iter().map(|role| Process::new(*role)).collect();
        let witness = Witness { fence: LEFT, ..Witness::default() };
        let lock = Some((LEFT, [(0, 0)].into()));
        Self { lock, is_left: false, has_ended: false, processes, network: Network::new(), witness }
    }

    /// Makes a process ask for its hold, perhaps again.
    pub(crate) fn ask(&mut self, id: usize) {
        let process = &mut self.processes[id];
        let is_owner = process.role == Role::Owner;
        (process.round, process.phase) = (process.round + 1, Phase::Asking);
        // The lease of its guard stays over once it is.
        process.over &= is_owner;
        let command = match process.role {
            Role::Contender => Command::Acquire,
            Role::Adopter | Role::Owner => Command::Renew,
        };
        self.send(id, command);
    }

    pub(crate) fn release(&mut self, id: usize) {
        self.processes[id].phase = Phase::Done;
        self.send(id, Command::Release);
    }

    fn send(&mut self, id: usize, command: Command) {
        let process = &self.processes[id];
        let hold = HoldId { client: id, nonce: process.hold() };
        self.network.requests.insert(Request::new(hold, process.round, command));
    }

    /// Executes a request at the server.
    pub(crate) fn execute(&mut self, request: Request<Command>, flaw: Option<Flaw>) {
        let HoldId { client: id, nonce: hold } = request.hold;
        let found = self.lock.as_ref().map(|(found, _)| *found);
        let (set_by, own) = ((id, request.round), found == Some(hold));
        let done = match request.command {
            Command::Acquire => own || found.is_none(),
            Command::Release => own || found.is_some() && flaw == Some(Flaw::ReleaseIsUnchecked),
            Command::Renew if found.is_none() => flaw == Some(Flaw::AdoptionBegins),
            Command::Renew => own || flaw == Some(Flaw::AdoptionIsUnchecked),
        };
        if done && request.command == Command::Release {
            self.end();
        } else if done {
            let leases = &mut self.lock.get_or_insert((hold, BTreeSet::new())).1;
            if flaw == Some(Flaw::RenewalShortens) {
                leases.clear();
            }
            leases.insert(set_by);
        }
        let is_there = self.lock.as_ref().is_some_and(|(hold, _)| *hold == LEFT);
        self.witness.touched |= done && found.is_some_and(|found| found != hold);
        self.witness.revived |= is_there && self.has_ended;
        if self.awaits(&request) {
            self.processes[id].phase = Phase::Answered { done };
        }
    }

    /// Ends the current hold.
    pub(crate) fn end(&mut self) {
        self.has_ended |= self.lock.as_ref().is_some_and(|(hold, _)| *hold == LEFT);
        self.lock = None;
    }

    /// Tells a process whether it has its hold.
    pub(crate) fn receive(&mut self, id: usize, done: bool, flaw: Option<Flaw>) {
        let process = &mut self.processes[id];
        match process.role {
            // An expired hold is not detached, but its guard is dropped.
            Role::Owner if !done || process.over => self.release(id),
            Role::Owner => self.leave(id, flaw),
            Role::Adopter if !done => process.phase = Phase::Done,
            Role::Contender if !done => process.phase = Phase::Idle,
            Role::Adopter | Role::Contender => self.begin_guard(id, flaw),
        }
    }

    /// Ends a guard that is replaced by a ticket.
    fn leave(&mut self, id: usize, flaw: Option<Flaw>) {
        let keeps = flaw == Some(Flaw::OwnerKeepsGuard);
        self.processes[id].phase = if keeps { Phase::Holding } else { Phase::Done };
        self.is_left = true;
    }

    fn begin_guard(&mut self, id: usize, flaw: Option<Flaw>) {
        let (process, witness) = (&mut self.processes[id], &mut self.witness);
        witness.adoptions += u64::from(process.role == Role::Adopter);
        process.over &= flaw != Some(Flaw::CountsFromReply);
        if process.over {
            return self.release(id);
        }
        process.phase = Phase::Holding;
        witness.fence_fell |= process.hold() < witness.fence;
        witness.fence = witness.fence.max(process.hold());
    }

    /// Returns `true` if a process waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request<Command>) -> bool {
        let process = &self.processes[request.hold.client];
        let is_last = request.round == process.round && request.command != Command::Release;
        is_last && !process.stopped && process.phase == Phase::Asking
    }

    /// Returns `true` if a request is repeated until it has arrived.
    pub(crate) fn must_arrive(&self, request: &Request<Command>) -> bool {
        let is_release = request.command == Command::Release;
        let runs = !self.processes[request.hold.client].stopped;
        (self.awaits(request) || is_release && runs) && !request.is_copy
    }

    /// Returns `true` if no process relies on a lease of the current hold.
    pub(crate) fn may_expire(&self) -> bool {
        let relies = |(id, round): &(usize, u64)| {
            let process = &self.processes[*id];
            let is_asked = process.is_asking() && *round == process.round;
            process.has_live_guard() || !process.over && is_asked
        };
        self.lock.as_ref().is_some_and(|(_, set_by)| !set_by.iter().any(relies))
    }
}
