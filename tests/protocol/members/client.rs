//! A client: the behaviour of `src/local` with one side of a read-write lock, or with a semaphore.
//! The thread at the head of its wait queue asks for itself and for the next one.

use std::collections::BTreeMap;

use crate::hold::HoldId;
use crate::members::flaw::Flaw;
use crate::members::server::{Command, Side};
use crate::network::Request;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    id: usize,
    pub(crate) side: Side,
    /// The number of the first hold that it tries to begin.
    first: u64,
    /// How many holds it tries to begin.
    size: u64,
    /// The last request, from which their lease counts.
    round: u64,
    pub(crate) phase: Phase,
    /// Whether that lease is over.
    pub(crate) over: bool,
    /// How many of its threads have not had a guard yet.
    pub(crate) waiting: u64,
    /// The holds that its guards have, and whether each is live as far as it knows.
    pub(crate) guards: BTreeMap<u64, bool>,
    /// Whether it has stopped forever.
    pub(crate) stopped: bool,
}

/// The state of the thread at the head of the wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Has sent a request.
    Acquiring,
    /// A reply is on its way that grants this many holds.
    Granted {
        count: u64,
        fence: u64,
    },
    /// Was told that it has to wait.
    Waiting,
}

impl Client {
    pub(crate) fn new(id: usize, side: Side, threads: u64) -> Self {
        Self {
            id,
            side,
            first: 1,
            size: 0,
            round: 0,
            phase: Phase::Idle,
            over: false,
            waiting: threads,
            guards: BTreeMap::new(),
            stopped: false,
        }
    }

    pub(crate) fn hold(&self, nonce: u64) -> HoldId {
        HoldId { client: self.id, nonce }
    }

    /// Begins to acquire, with the numbers of its next threads. A thread that was asked for before
    /// and got nothing keeps its number.
    pub(crate) fn begin(&mut self) -> Request<Command> {
        self.size = if self.side == Side::Writer { 1 } else { self.waiting.min(2) };
        self.ask()
    }

    /// Asks for the holds, perhaps again.
    pub(crate) fn ask(&mut self) -> Request<Command> {
        (self.round, self.phase, self.over) = (self.round + 1, Phase::Acquiring, false);
        let command = Command::Acquire { size: self.size };
        Request::new(self.hold(self.first), self.round, command)
    }

    /// Creates guards for the granted holds, or ends these if their lease is over.
    pub(crate) fn receive(&mut self, count: u64, flaw: Option<Flaw>) -> Vec<Request<Command>> {
        self.phase = Phase::Idle;
        let granted = self.first..self.first + count;
        if flaw != Some(Flaw::NumberIsReused) {
            self.first += count;
        }
        if self.over {
            return granted.map(|nonce| self.release(nonce)).collect();
        }
        self.waiting -= count;
        self.guards.extend(granted.map(|nonce| (nonce, true)));
        Vec::new()
    }

    /// Ends a hold.
    pub(crate) fn release(&mut self, nonce: u64) -> Request<Command> {
        self.guards.remove(&nonce);
        Request::new(self.hold(nonce), 0, Command::Release)
    }

    /// Stops forever. It still relies on its guards.
    pub(crate) fn stop(&mut self) {
        (self.stopped, self.over) = (true, true);
    }

    /// Returns `true` if it waits for the reply to a request.
    pub(crate) fn awaits(&self, request: &Request<Command>) -> bool {
        let acquires = matches!(request.command, Command::Acquire { .. });
        let is_last = (request.hold, request.round) == (self.hold(self.first), self.round);
        acquires && is_last && !self.stopped && self.phase == Phase::Acquiring
    }

    /// Returns `true` if it relies on the lease that this request has set.
    pub(crate) fn relies_on(&self, hold: HoldId, round: u64) -> bool {
        let is_acquiring = matches!(self.phase, Phase::Acquiring | Phase::Granted { .. });
        let is_wanted = (self.first..self.first + self.size).contains(&hold.nonce);
        let is_live = self.guards.get(&hold.nonce).is_some_and(|live| *live);
        is_live || is_acquiring && is_wanted && round == self.round && !self.over
    }

    /// Returns how many of its guards are live, as far as it knows.
    pub(crate) fn live_guards(&self) -> usize {
        self.guards.values().filter(|live| **live).count()
    }

    /// Returns `true` if it takes an offer sooner or later.
    pub(crate) fn will_ask(&self) -> bool {
        let served = match self.phase {
            Phase::Granted { count, .. } if !self.over => count,
            _ => 0,
        };
        !self.stopped && self.waiting > served
    }
}
