//! A request to all servers of a quorum, and the replies to it.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use redis::Value;

use crate::failure::Failure;
use crate::net::request::{Reply, Request};
use crate::store::commands::is_done;
use crate::store::durability::Demand;
use crate::store::quorum::requests::{Effect, QuorumCommand};

/// A request on its way. Whoever reads a reply to it puts it in here; nobody need wait for it.
#[derive(Debug)]
pub(super) struct Broadcast {
    pub(super) request: Request,
    pub(super) effect: Effect,
    pub(super) demand: Option<(Demand, Instant)>,
    fates: Mutex<Vec<ReplyState>>,
}

#[derive(Debug)]
enum ReplyState {
    Awaited,
    /// The server has done it, and is still to say whether that is as durable as demanded.
    Done(Value),
    Replied(Reply),
    Taken,
}

impl Broadcast {
    pub(super) fn new<T>(command: QuorumCommand<T>, servers: usize) -> Arc<Self> {
        let QuorumCommand { command, effect, demand } = command;
        let fates = Mutex::new((0..servers).map(|_| ReplyState::Awaited).collect());
        Arc::new(Self { request: command.request, effect, demand, fates })
    }

    /// Puts in the reply of a server.
    pub(super) fn answer(&self, server: usize, reply: Reply) {
        self.fates.lock()[server] = match reply {
            Ok(reply) if self.demand.is_some() && is_done(&reply) => ReplyState::Done(reply),
            reply => ReplyState::Replied(reply),
        };
    }

    /// Puts in whether what a server has done, if anything, is as durable as demanded.
    pub(super) fn confirm(&self, server: usize, durable: Result<(), Failure>) {
        let fate = &mut self.fates.lock()[server];
        if let ReplyState::Done(reply) = fate {
            *fate = ReplyState::Replied(durable.map(|()| mem::replace(reply, Value::Nil)));
        }
    }

    pub(super) fn awaits(&self, server: usize) -> bool {
        matches!(self.fates.lock()[server], ReplyState::Awaited | ReplyState::Done(_))
    }

    /// Hands out the replies that nobody has taken yet.
    pub(super) fn take(&self, mut each: impl FnMut(usize, Reply)) {
        for (server, fate) in self.fates.lock().iter_mut().enumerate() {
            if matches!(fate, ReplyState::Replied(_))
                && let ReplyState::Replied(reply) = mem::replace(fate, ReplyState::Taken)
            {
                each(server, reply);
            }
        }
    }
}
