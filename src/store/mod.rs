//! What servers are asked about locks, and what they reply: one file or folder per topology.

pub(crate) mod background;
pub(crate) mod commands;
pub(crate) mod hold_id;
pub(crate) mod keys;
pub(crate) mod memory;
pub(crate) mod quorum;
pub(crate) mod redisson_channels;
pub(crate) mod request;
mod scripts;
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
    Acquire, AcquireReply, HoldReply, HoldRequest, HolderReply, Look, OwnerOf, PostedChange,
    ReportReply,
};

/// Where locks live. Every request can be executed twice, or late, without harm to another hold.
/// None takes longer than its deadline.
pub(crate) trait Store: Send + Sync {
    /// Takes the lock if it is free, or the locks of one group if all of them are.
    fn acquire(&self, request: Acquire<'_>) -> Result<AcquireReply, Failure>;

    /// Divides names among the requests that it takes to acquire all of them.
    fn groups(&self, names: &[Arc<str>]) -> Vec<Vec<usize>> {
        (0..names.len()).map(|index| vec![index]).collect()
    }

    /// Returns `true` if the same server has both locks, as far as is known.
    fn share_server(&self, _: &str, _: &str) -> bool {
        true
    }

    /// Executes requests about holds, those for one server in one round trip if it can. Calls
    /// `on_reply` once for each, with its place among them and the reply.
    fn ask(
        &self,
        requests: &[HoldRequest<'_>],
        on_reply: &mut dyn FnMut(usize, Result<HoldReply, Failure>),
    );

    /// Sends requests about holds, those for one server together if it can, and does not wait for
    /// the replies. Blocks only for room to write, and to open a connection.
    fn post(&self, posts: Vec<PostedChange<'_>>);

    /// Blocks until the replies to all that was posted have come. What has none by the deadline has
    /// failed.
    fn settle(&self, _: Instant) {}

    /// Returns `true` if a request about a name is executed after what was posted before, unless
    /// that fails.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Asks about a name.
    fn report(&self, name: &str, look: Look, deadline: Instant) -> Result<ReportReply, Failure>;

    /// Returns the holder of a lock, perhaps without its token.
    fn inspect(&self, name: &str, deadline: Instant) -> Result<Option<HolderReply>, Failure> {
        Ok(self.report(name, Look::Holder, deadline)?.holder().cloned())
    }

    /// The servers that have locks, none of them connected yet, for questions that are about no
    /// lock; and how many of them must answer for what they answer to be the truth about locks.
    fn connections(&self) -> Result<(Vec<Connection>, usize), Failure> {
        Ok((Vec::new(), 0))
    }

    /// Ends the hold of that owner, whether it is this client's or not, and has its client told.
    /// `false` if it does not hold the name as this kind.
    fn force_release(&self, owner: OwnerOf<'_>, deadline: Instant) -> Result<bool, Failure>;

    /// Checks that locks can be acquired: does what a lock needs, for one that no other client asks
    /// for, and leaves nothing.
    fn ping(&self, hold: &HoldId, deadline: Instant) -> Result<(), Failure>;

    /// The wake-ups of a client, those of Redisson included if these are its channels.
    fn wakeups(&self, client: &str, redisson: Option<&RedissonChannels>) -> Box<dyn Wakeups>;

    /// The background jobs of a client.
    fn jobs(&self) -> Box<dyn JobRunner>;
}

/// As [`Store::ask`], for one request.
pub(crate) fn ask_one(
    store: &(impl Store + ?Sized),
    request: HoldRequest<'_>,
) -> Result<HoldReply, Failure> {
    let mut reply = None;
    store.ask(slice::from_ref(&request), &mut |_, it| reply = Some(it));
    reply.expect("each request has a reply")
}
