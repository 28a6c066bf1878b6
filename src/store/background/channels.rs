//! The channels that one connection listens on besides the client's own: its sharded channel at a
//! node of a cluster, and those of Redisson's locks that threads wait for.
//!
//! They only save work: whatever is not sent over the sharded channel comes over the client's own,
//! and nothing relies on a wake-up. So they are asked for when there is time, and given up for a
//! while if the server refuses them. A server answers requests in their order, so an error reply is
//! about the first one without a reply.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Cmd;

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::store::background::Wake;
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;

/// The pause before asking for a channel again whose slot has moved, or for one of Redisson's that
/// was refused.
const PAUSE: Duration = Duration::from_secs(1);

/// As `PAUSE`, where the server has no sharded channels, or no right to one.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);

/// The further channels of one connection.
#[derive(Debug, Default)]
pub(super) struct FurtherChannels {
    /// The channels of the requests without a reply, in their order.
    asked: VecDeque<String>,
    /// The sharded channel that was asked for last, unless that was refused or has ended. The
    /// subscription to another one before it stays: some clients may not know yet that slots have
    /// moved.
    shard: Option<String>,
    /// When to ask for it again.
    shard_at: Option<Instant>,
    /// If the client exchanges wake-ups with Redisson: the channels, and what the names of the
    /// commands for them begin with.
    redisson: Option<(RedissonChannels, &'static str)>,
    /// Those of Redisson's channels that were subscribed to, and whose subscription has not ended.
    subscribed: HashSet<String>,
    /// Which version of the wanted channels was followed last.
    version: Option<u64>,
    /// When to follow them again though they are the same.
    pub(super) follow_at: Option<Instant>,
}

impl FurtherChannels {
    pub(super) fn new(redisson: Option<(RedissonChannels, &'static str)>) -> Self {
        Self { redisson, ..Self::default() }
    }

    /// Returns the request for the client's sharded channel with this tag, unless it was made
    /// already.
    pub(super) fn follow_shard(&mut self, own: &str, tag: &Arc<str>) -> Option<Cmd> {
        let is_asked = self.asked.iter().any(|asked| Some(asked) == self.shard.as_ref());
        if is_asked || self.shard_at.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let channel = Keys::shard_channel(own, tag);
        if self.shard.as_ref() == Some(&channel) {
            return None;
        }
        let subscribe = redis::cmd("SSUBSCRIBE").arg(&channel).take();
        self.asked.push_back(channel.clone());
        (self.shard, self.shard_at) = (Some(channel), None);
        Some(subscribe)
    }

    /// Returns the requests after which the connection is subscribed to the channels of Redisson's
    /// that threads wait for and that are at `home` here, and to no others.
    pub(super) fn follow_redisson(&mut self, home: impl Fn(&str) -> bool) -> Vec<Cmd> {
        let Some((channels, form)) = &self.redisson else { return Vec::new() };
        if self.follow_at.is_some_and(|at| Instant::now() >= at) {
            // Another node may serve the channel now.
            channels.change();
            self.follow_at = None;
        }
        let version = channels.version();
        if self.version.replace(version) == Some(version) {
            return Vec::new();
        }
        let wanted = channels.wanted().into_iter().filter(|(_, name)| home(name));
        let wanted: HashSet<String> = wanted.map(|(channel, _)| channel).collect();
        let ended = self.subscribed.difference(&wanted).map(|channel| ("unsubscribe", channel));
        let begun = wanted.difference(&self.subscribed).map(|channel| ("subscribe", channel));
        let mut commands = Vec::new();
        for (name, channel) in ended.chain(begun) {
            let companion = RedissonChannels::companion(channel);
            commands.push(redis::cmd(&format!("{form}{name}")).arg(channel).arg(companion).take());
            self.asked.push_back(channel.clone());
        }
        self.subscribed = wanted;
        commands
    }

    /// Reads that the subscription to a sharded channel has begun, or has ended because its slot
    /// has moved.
    pub(super) fn receive_shard(&mut self, kind: &str, channel: &str) {
        match kind {
            "ssubscribe" => drop(self.answers(channel)),
            "sunsubscribe" if self.shard.as_deref() == Some(channel) => self.end_shard(PAUSE),
            _ => {}
        }
    }

    /// Reads a message or a reply about one of Redisson's channels.
    pub(super) fn receive_redisson(
        &mut self,
        kind: &str,
        channel: &str,
        content: &str,
    ) -> Option<Wake> {
        let (channels, form) = self.redisson.clone()?;
        match kind.strip_prefix(form)? {
            // A release before the subscription may have been missed.
            "subscribe" if self.answers(channel) => {}
            "unsubscribe" => {
                if !self.answers(channel) && self.subscribed.remove(channel) {
                    // Another node serves the channel now.
                    self.follow_at = Some(end_of(PAUSE));
                }
                return None;
            }
            "message" if content == "0" => {}
            _ => return None,
        }
        let names = channels.names(channel);
        (!names.is_empty()).then_some(Wake::Unlocked(names))
    }

    /// Returns `true` if the first request without a reply is about this channel, and takes it for
    /// answered.
    fn answers(&mut self, channel: &str) -> bool {
        self.asked.front().is_some_and(|asked| asked == channel) && self.asked.pop_front().is_some()
    }

    /// Takes an error reply. Returns `false` if no request is without a reply.
    pub(super) fn refuse(&mut self, failure: &Failure) -> bool {
        let Some(channel) = self.asked.pop_front() else { return false };
        match &mut self.redisson {
            _ if self.shard.as_ref() == Some(&channel) => {
                let moved = failure.code == "MOVED" || failure.kind != FailureKind::Rejected;
                self.end_shard(if moved { PAUSE } else { REJECTED_PAUSE });
            }
            // Redis 6.2 has no sharded channels, and Redisson then uses others.
            Some((_, form @ "s")) if failure.code == "ERR" => {
                (*form, self.follow_at) = ("", Some(Instant::now()));
            }
            _ => self.follow_at = Some(end_of(PAUSE)),
        }
        self.subscribed.remove(&channel);
        true
    }

    fn end_shard(&mut self, pause: Duration) {
        (self.shard, self.shard_at) = (None, Some(end_of(pause)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(channels: &mut FurtherChannels, tag: &str) -> bool {
        channels.follow_shard("mine", &tag.into()).is_some()
    }

    fn refusal() -> Failure {
        let error = std::io::Error::other("NOPERM");
        Failure::io(FailureKind::Rejected, &Arc::from("here"), error)
    }

    #[test]
    fn a_sharded_channel_is_asked_for_once_and_another_when_slots_have_moved() {
        let mut channels = FurtherChannels::default();
        assert!(follow(&mut channels, "1"));
        let again = follow(&mut channels, "1") || follow(&mut channels, "2");
        assert!(!again, "one request at a time");
        channels.receive_shard("ssubscribe", "mine:{1}");
        assert!(!follow(&mut channels, "1"));
        assert!(follow(&mut channels, "2"));
        channels.receive_shard("ssubscribe", "mine:{2}");
        channels.receive_shard("sunsubscribe", "mine:{1}");
        assert!(!follow(&mut channels, "2"), "the end of the other one changes nothing");
    }

    #[test]
    fn a_sharded_channel_that_is_refused_or_ends_is_not_asked_for_at_once() {
        let mut channels = FurtherChannels::default();
        assert!(!channels.refuse(&refusal()), "there was no request");
        assert!(follow(&mut channels, "1") && channels.refuse(&refusal()));
        assert!(!follow(&mut channels, "1"));
        let mut channels = FurtherChannels::default();
        assert!(follow(&mut channels, "1"));
        channels.receive_shard("ssubscribe", "mine:{1}");
        channels.receive_shard("sunsubscribe", "mine:{1}");
        assert!(channels.asked.is_empty() && !follow(&mut channels, "1"));
    }

    #[test]
    fn an_error_reply_is_about_the_first_request_without_a_reply() {
        let redisson = RedissonChannels::default();
        let _wait = redisson.wait(&"x".into(), "x");
        let channel = RedissonChannels::channel("x");
        let mut channels = FurtherChannels::new(Some((redisson, "s")));
        assert_eq!(channels.follow_redisson(|_| true).len(), 1);
        assert!(follow(&mut channels, "1") && channels.refuse(&refusal()));
        assert!(channels.follow_at.is_some(), "Redisson's is asked for again");
        channels.receive_shard("ssubscribe", "mine:{1}");
        assert!(channels.asked.is_empty() && !follow(&mut channels, "1"));
        channels.follow_at = Some(Instant::now());
        assert_eq!(channels.follow_redisson(|_| true).len(), 1);
        let wake = channels.receive_redisson("ssubscribe", &channel, "");
        assert_eq!(wake, Some(Wake::Unlocked(vec!["x".into()])), "it may have been released");
    }
}
