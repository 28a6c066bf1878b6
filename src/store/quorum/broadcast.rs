//! A request to all servers of a quorum, and the replies to it.

use std::sync::Arc;
use std::time::Instant;
use std::{fmt, mem};

use parking_lot::Mutex;

use crate::net::durability::Demand;
use crate::net::request::{Reply, Request};
use crate::store::quorum::commands::{Effect, QuorumCommand};
use crate::store::quorum::in_doubt::{DecidesEnd, EndedHold, InDoubtHolds};

/// A request in flight to several servers. The thread that reads a reply to it stores that here,
/// whether or not a thread still waits for it.
#[derive(Debug)]
pub(super) struct Broadcast {
    pub(super) request: Request,
    pub(super) effect: Effect,
    /// The hold that it ends, if any.
    ended: Option<Arc<EndedHold>>,
    /// What a server must meet for its reply to count, and the deadline for that.
    pub(super) demand: Option<Demand>,
    pub(super) deadline: Instant,
    /// By the number of the server.
    replies: Mutex<Vec<ReplyState>>,
    /// What the replies go to instead if no thread waits for them.
    watcher: Mutex<Option<Watcher>>,
}

/// Takes the replies to a request that no thread waits for, until it has what it needs.
pub(super) struct Watcher {
    /// Called with each reply. Returns `true` when it needs no more.
    pub(super) on_reply: Box<dyn FnMut(usize, Reply) -> bool + Send>,
    /// Dropped then.
    pub(super) ended: Option<DecidesEnd>,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("ended", &self.ended).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum ReplyState {
    Awaited,
    Received(Reply),
    Taken,
}

impl Broadcast {
    pub(super) fn new<T>(
        command: QuorumCommand<T>,
        servers: usize,
        in_doubt: &Arc<InDoubtHolds>,
    ) -> Arc<Self> {
        let QuorumCommand { command, effect, demand } = command;
        let request = command.request;
        let ended = effect.ended().map(|end| Arc::new(EndedHold::new(in_doubt, end)));
        let replies = Mutex::new((0..servers).map(|_| ReplyState::Awaited).collect());
        let watcher = Mutex::new(None);
        let deadline = demand.map_or_else(Instant::now, |(_, deadline)| deadline);
        let demand = demand.map(|(demand, _)| demand);
        Arc::new(Self { request, effect, ended, demand, deadline, replies, watcher })
    }

    /// Notes that a server may keep the hold that the request ends, if it ends one.
    pub(super) fn may_remain(&self) {
        if let Some(ended) = &self.ended {
            ended.may_remain();
        }
    }

    /// What to drop when the replies are in, if the request ends a hold.
    pub(super) fn decides_end(&self) -> Option<DecidesEnd> {
        self.ended.clone().map(DecidesEnd)
    }

    /// Has the replies given to a watcher. Called before the request is sent.
    pub(super) fn watch(&self, watcher: Watcher) {
        *self.watcher.lock() = Some(watcher);
    }

    /// Sets what is dropped when the watcher needs no more replies. It is dropped now if the
    /// watcher needs none.
    pub(super) fn set_ended(&self, ended: Option<DecidesEnd>) {
        if let Some(watcher) = &mut *self.watcher.lock() {
            watcher.ended = ended;
        }
    }

    /// Stores the reply of a server.
    pub(super) fn store_reply(&self, server: usize, reply: Reply) {
        let mut watcher = self.watcher.lock();
        if let Some(Watcher { on_reply, .. }) = &mut *watcher {
            let done = on_reply(server, reply);
            let ended = if done { watcher.take() } else { None };
            drop(watcher);
            return drop(ended);
        }
        drop(watcher);
        self.replies.lock()[server] = ReplyState::Received(reply);
    }

    /// Returns `true` if the reply of a server is still to come.
    pub(super) fn awaits(&self, server: usize) -> bool {
        matches!(self.replies.lock()[server], ReplyState::Awaited)
    }

    /// Calls `each` with the replies that have not been taken yet.
    pub(super) fn take_replies(&self, mut each: impl FnMut(usize, Reply)) {
        for (server, state) in self.replies.lock().iter_mut().enumerate() {
            if matches!(state, ReplyState::Received(_))
                && let ReplyState::Received(reply) = mem::replace(state, ReplyState::Taken)
            {
                each(server, reply);
            }
        }
    }
}
