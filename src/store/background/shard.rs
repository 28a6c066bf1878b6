//! The subscription to a client's sharded channel at one node of a cluster.
//!
//! It only saves work: whatever is not sent over it comes over the client's own channel. So it is
//! asked for when there is time, and given up if the server does not want it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Cmd;

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::store::keys::Keys;

/// The pause before asking for the channel again when its slot has moved.
const PAUSE: Duration = Duration::from_secs(1);

/// As `PAUSE`, where the server has no sharded channels, or no right to one.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);

/// The subscription of one connection.
#[derive(Debug, Default)]
pub(super) struct ShardSubscription {
    /// The channel that was asked for last, unless that was refused or has ended. The subscription
    /// to another one before it stays: some clients may not know yet that slots have moved.
    channel: Option<String>,
    /// Whether the server has not answered that.
    is_asked: bool,
    /// When to ask again.
    retry_at: Option<Instant>,
}

impl ShardSubscription {
    /// Returns the request for the channel with this tag, unless it was made already.
    pub(super) fn follow(&mut self, client_channel: &str, tag: &Arc<str>) -> Option<Cmd> {
        if self.is_asked || self.retry_at.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let channel = Keys::shard_channel(client_channel, tag);
        if self.channel.as_ref() == Some(&channel) {
            return None;
        }
        let subscribe = redis::cmd("SSUBSCRIBE").arg(&channel).take();
        (self.channel, self.is_asked, self.retry_at) = (Some(channel), true, None);
        Some(subscribe)
    }

    /// Reads that the subscription to a channel has begun, or has ended because its slot has moved.
    pub(super) fn receive(&mut self, kind: &str, channel: &str) {
        if self.channel.as_deref() != Some(channel) {
            return;
        }
        match kind {
            "ssubscribe" => self.is_asked = false,
            "sunsubscribe" => self.end(PAUSE),
            _ => {}
        }
    }

    /// Takes an error reply. Returns `false` if no request is without a reply.
    pub(super) fn refuse(&mut self, failure: &Failure) -> bool {
        let is_asked = self.is_asked;
        if is_asked {
            let moved = failure.code == "MOVED" || failure.kind != FailureKind::Rejected;
            self.end(if moved { PAUSE } else { REJECTED_PAUSE });
        }
        is_asked
    }

    fn end(&mut self, pause: Duration) {
        *self = Self { retry_at: Some(end_of(pause)), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(shard: &mut ShardSubscription, tag: &str) -> bool {
        shard.follow("mine", &tag.into()).is_some()
    }

    #[test]
    fn a_channel_is_asked_for_once_and_another_when_slots_have_moved() {
        let mut shard = ShardSubscription::default();
        assert!(follow(&mut shard, "1"));
        assert!(!follow(&mut shard, "1") && !follow(&mut shard, "2"), "one request at a time");
        shard.receive("ssubscribe", "mine:{1}");
        assert!(!follow(&mut shard, "1"));
        assert!(follow(&mut shard, "2"));
        shard.receive("ssubscribe", "mine:{2}");
        shard.receive("sunsubscribe", "mine:{1}");
        assert!(!follow(&mut shard, "2"), "the end of the other one changes nothing");
    }

    #[test]
    fn a_channel_that_is_refused_or_ends_is_not_asked_for_at_once() {
        let error = std::io::Error::other("NOPERM");
        let refusal = Failure::io(FailureKind::Rejected, &Arc::from("here"), error);
        let mut shard = ShardSubscription::default();
        assert!(!shard.refuse(&refusal), "there was no request");
        assert!(follow(&mut shard, "1") && shard.refuse(&refusal) && !follow(&mut shard, "1"));
        let mut shard = ShardSubscription::default();
        assert!(follow(&mut shard, "1"));
        shard.receive("ssubscribe", "mine:{1}");
        shard.receive("sunsubscribe", "mine:{1}");
        assert!(!shard.is_asked && !follow(&mut shard, "1"));
    }
}
