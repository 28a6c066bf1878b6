//! The commands that the servers of a quorum are sent, and what a failure of each leaves in doubt.

use std::time::Instant;

use crate::base::clock::Moment;
use crate::net::durability::Demand;
use crate::store::command::Command;
use crate::store::commands::Commands;
use crate::store::hold_id::HoldId;
use crate::store::request::{Acquire, AcquireReply, Change, HoldReply, HoldRequest};

/// A command for every server.
#[derive(Debug)]
pub(super) struct QuorumCommand<T> {
    pub(super) command: Command<T>,
    pub(super) effect: Effect,
    /// What a server must meet for its reply to count, and the deadline for that.
    pub(super) demand: Option<(Demand, Instant)>,
}

/// What a command does at a server, and what is therefore in doubt where it fails.
#[derive(Debug)]
pub(super) enum Effect {
    /// It leaves nothing in doubt.
    None,
    /// The hold may come to exist there.
    Begins(HoldId),
    /// The hold may still exist there. Until then the lock stays taken all the same.
    Ends { hold: HoldId, kept_until: Moment },
}

impl Effect {
    pub(super) fn begun(&self) -> Option<&HoldId> {
        match self {
            Self::Begins(hold) => Some(hold),
            Self::None | Self::Ends { .. } => None,
        }
    }

    /// The hold that ends, and until when the lock stays taken.
    pub(super) fn ended(&self) -> Option<(&HoldId, Moment)> {
        match self {
            Self::Ends { hold, kept_until } => Some((hold, *kept_until)),
            Self::None | Self::Begins(_) => None,
        }
    }
}

impl<T> QuorumCommand<T> {
    pub(super) fn new(command: Command<T>, effect: Effect) -> Self {
        Self { command, effect, demand: None }
    }
}

/// Makes commands.
#[derive(Debug)]
pub(super) struct QuorumCommands {
    pub(super) commands: Commands,
    /// What each server must meet for a new hold or level.
    pub(super) demand: Option<Demand>,
}

impl QuorumCommands {
    /// A command whose effect at a server counts only once it is as durable as demanded.
    pub(super) fn durable<T>(
        &self,
        command: QuorumCommand<T>,
        deadline: Instant,
    ) -> QuorumCommand<T> {
        QuorumCommand { demand: self.demand.map(|demand| (demand, deadline)), ..command }
    }

    pub(super) fn acquire(&self, request: Acquire<'_>) -> QuorumCommand<AcquireReply> {
        let effect = Effect::Begins(request.holds[0].clone());
        let command = QuorumCommand::new(self.commands.acquire(request), effect);
        self.durable(command, request.deadline)
    }

    pub(super) fn change(&self, request: &HoldRequest<'_>) -> QuorumCommand<HoldReply> {
        let HoldRequest { hold, change, deadline } = *request;
        let effect = match change {
            Change::Release { kept_until } => Effect::Ends { hold: hold.clone(), kept_until },
            _ => Effect::None,
        };
        let command = QuorumCommand::new(self.commands.change(hold, change), effect);
        if change.is_durable() { self.durable(command, deadline) } else { command }
    }

    /// Takes back a hold that has begun on too few servers.
    pub(super) fn withdraw(&self, hold: &HoldId) -> QuorumCommand<HoldReply> {
        let effect = Effect::Ends { hold: hold.clone(), kept_until: Moment::FIRST };
        QuorumCommand::new(self.commands.withdraw(hold), effect)
    }
}
