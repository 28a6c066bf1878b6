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

/// The place where locks live. Every request can be executed twice, or late, without harm to
/// another hold. No call takes longer than its deadline.
pub(crate) trait Store: Send + Sync {
    /// Takes the lock if it is free, or all locks of a group if all of them are free.
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure>;

    /// Like `acquire`, for several groups, in one round trip per server if possible. Returns the
    /// replies in the order of the requests.
    fn acquire_together(&self, requests: &[Acquire<'_>]) -> Vec<Result<AcquireReply, Failure>> {
        requests.iter().map(|request| self.acquire(*request)).collect()
    }

    /// Like `acquire`, for another thread: it gets what is returned, and waits for the reply with
    /// that. Does not block. Returns `None`, and sends nothing, if that could take a while.
    fn acquire_ahead(&self, _: Acquire<'_>) -> Option<Ahead> {
        None
    }

    /// Divides names into groups that one request each can acquire.
    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        (0..names.len()).map(|index| vec![index]).collect()
    }

    /// Returns `true` if both locks are on the same server, as far as is known.
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

    /// Sends requests about holds, together per server if possible, and does not wait for the
    /// replies. Blocks only for room to write, and to open a connection.
    fn post(&self, posts: Vec<PostedChange<'_>>);

    /// Blocks until every posted request has its reply. Those without one by the deadline have
    /// failed.
    fn drain(&self, _: Instant) {}

    /// Returns `true` if the store withdraws a hold that it has not granted at once. Such a hold
    /// must not be requested again, because the request that withdraws it may arrive late.
    fn withdraws(&self) -> bool {
        false
    }

    /// Returns `true` if a request about a name is executed after what was posted before it, unless
    /// the latter fails.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Asks about a name.
    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure>;

    /// Returns the holder of a lock, perhaps without its token.
    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        Ok(self.report(name, Look::Holder, deadline)?.holder().cloned())
    }

    /// Returns the servers that have locks, not yet connected, for questions that are not about a
    /// lock; and how many of them must answer for the truth about locks.
    fn connections(&self) -> Result<(Vec<Connection>, usize), Failure> {
        Ok((Vec::new(), 0))
    }

    /// Ends the hold of an owner, of this client or another one, and notifies that client. Returns
    /// `false` if the owner does not hold the name as this kind.
    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure>;

    /// Sends a message to other clients, or to the one that holds a lock. It may get lost.
    fn tell(&self, name: &str, telling: &Telling, deadline: Instant) -> Result<(), Failure>;

    /// Checks that locks can be acquired: does everything a lock needs, for one that no other
    /// client asks for, and leaves nothing behind.
    fn ping(&self, hold: &HoldId, deadline: Instant) -> Result<(), Failure>;

    /// Returns the wake-ups of a client, including those of Redisson if `redisson` has its
    /// channels.
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
