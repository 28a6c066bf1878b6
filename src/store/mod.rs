//! Requests about locks, and the replies to them: one file or folder per topology.

pub(crate) mod background;
pub(crate) mod commands;
pub(crate) mod hold_id;
pub(crate) mod keys;
pub(crate) mod memory;
pub(crate) mod quorum;
pub(crate) mod redisson_channels;
pub(crate) mod request;
pub(crate) mod scripts;
pub(crate) mod servers;

#[cfg(test)]
mod tests;

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use crate::base::failure::Failure;
use crate::net::connection::Connection;
use crate::store::background::{JobRunner, Wakeups};
use crate::store::hold_id::HoldId;
use crate::store::redisson_channels::RedissonChannels;
use crate::store::request::{
    Acquire, AcquireReply, Ahead, HoldReply, HoldRequest, HolderReply, Look, OwnerOf, PostedChange,
    ReportReply, Telling,
};

/// A place that keeps locks. Every request can be executed twice, or late, without harm to another
/// hold. No call takes longer than its deadline.
pub(crate) trait Store: Send + Sync {
    /// Acquires the lock if it is free, or all locks of a group if all of them are.
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure>;

    /// Like `acquire`, for several groups, in one round trip per server if possible. Returns the
    /// replies in the order of the requests.
    fn acquire_together(&self, requests: &[Acquire<'_>]) -> Vec<Result<AcquireReply, Failure>> {
        requests.iter().map(|request| self.acquire(*request)).collect()
    }

    /// Like `acquire`, but does not block: another thread waits for the reply with the returned
    /// value. Returns `None`, and sends nothing, if sending could block.
    fn acquire_ahead(&self, _: Acquire<'_>) -> Option<Ahead> {
        None
    }

    /// Divides names into groups, each of which one request can acquire.
    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        (0..names.len()).map(|index| vec![index]).collect()
    }

    /// Returns `true` if both locks are known to be on the same server.
    fn share_server(&self, _: &str, _: &str) -> bool {
        true
    }

    /// Executes requests about holds, in one round trip per server if possible. Calls `on_reply`
    /// once for each, with its index and the reply.
    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    );

    /// Sends requests about holds, in one write per server if possible, and does not wait for the
    /// replies. Blocks only for room to write, and to open a connection.
    fn post(&self, posts: Vec<PostedChange<'_>>);

    /// Blocks until every posted request has its reply. Requests without a reply by the deadline
    /// have failed.
    fn drain(&self, _: Instant) {}

    /// Returns `true` if the store withdraws a hold that it has not granted. That hold must not be
    /// requested again, because its withdrawal may arrive late.
    fn withdraws(&self) -> bool {
        false
    }

    /// Returns `true` if requests about a name are executed in order, unless one that was posted
    /// earlier fails.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Asks about a name.
    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure>;

    /// Returns the holder of a lock, perhaps without its token.
    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        Ok(self.report(name, Look::Holder, deadline)?.holder().cloned())
    }

    /// Returns connections, not yet open, to the servers that have locks, for questions about all
    /// locks; and how many of these servers must answer for a complete result.
    fn connections(&self) -> Result<(Vec<Connection>, usize), Failure> {
        Ok((Vec::new(), 0))
    }

    /// Ends the hold of an owner, of this client or another one, and notifies that client. Returns
    /// `false` if the owner does not hold the name as this kind.
    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure>;

    /// Sends a message to other clients, or to the one that holds a lock. It may get lost.
    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure>;

    /// Checks that locks can be acquired, with a lock that no other client asks for. Leaves nothing
    /// behind.
    fn ping(&self, hold: &HoldId, deadline: Instant) -> Result<(), Failure>;

    /// Returns the wake-ups of a client, with those of Redisson if `redisson` has its channels.
    fn wakeups(&self, client: &str, redisson: Option<&RedissonChannels>) -> Box<dyn Wakeups>;

    /// Returns the background jobs of a client.
    fn jobs(&self) -> Box<dyn JobRunner>;
}

/// Like [`Store::ask`], for one request.
pub(crate) fn ask_one(
    store: &(impl Store + ?Sized),
    request: HoldRequest<'_>,
) -> Result<HoldReply, Failure> {
    let mut reply = None;
    store.ask(slice::from_ref(&request), &mut |_, it| reply = Some(it));
    reply.expect("each request has a reply")
}
