//! What one client hears from one node: over its own channel, over a sharded one at a node of a
//! cluster, and over those of Redisson's locks that threads wait for.
//!
//! The further channels only save work: whatever is not sent over the sharded channel comes over
//! the client's own, and nothing relies on a wake-up. So they are asked for when there is time, and
//! given up for a while if the server refuses them. A server answers requests in their order, so an
//! error reply is about the first one without a reply.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use crate::base::clock::end_of;
use crate::base::failure::{Failure, FailureKind};
use crate::config::RESERVED;
use crate::net::connection::Connection;
use crate::net::wait::WaitFor;
use crate::store::background::Wake;
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;

/// After this long without a message the server gets a PING: a connection that was cut without
/// notice brings no error, only silence.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The pause before asking for a channel again whose slot has moved, or for one of Redisson's that
/// was refused.
const PAUSE: Duration = Duration::from_secs(1);

/// As `PAUSE`, where the server has no sharded channels, or no right to one.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);

/// What the subscriptions of one client have in common.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) keys: Keys,
    pub(super) name: String,
    /// A server that does not answer for this long is given up.
    pub(super) io_timeout: Duration,
    /// If the client exchanges wake-ups with Redisson: the channels, and what the names of the
    /// commands for them begin with.
    pub(super) redisson: Option<(RedissonChannels, &'static str)>,
}

/// A connection over which messages come.
#[derive(Debug)]
pub(super) struct Subscription {
    channel: Arc<Channel>,
    pub(super) connection: Connection,
    /// When something must have come.
    pub(super) expected_by: Instant,
    /// Whether there is a request that the server has not answered.
    asked: bool,
    pub(super) further: FurtherChannels,
    /// Why a subscription to a further channel was refused last, until that was taken out.
    pub(super) refusal: Option<Failure>,
}

impl Subscription {
    /// Subscribes over an open connection, and blocks until the server has confirmed that.
    pub(super) fn begin(
        mut connection: Connection,
        channel: Arc<Channel>,
    ) -> Result<Self, Failure> {
        let deadline = end_of(channel.io_timeout);
        let subscribe = redis::cmd("SUBSCRIBE").arg(&channel.name).take();
        connection.write(&subscribe.get_packed_command())?;
        let reply = connection.receive_next(WaitFor::Reply { deadline });
        reply.unwrap_or_else(|| Err(connection.factory.no_reply()))?;
        Ok(Self {
            connection,
            expected_by: end_of(SILENCE_MAX),
            asked: false,
            further: FurtherChannels { redisson: channel.redisson.clone(), ..Default::default() },
            refusal: None,
            channel,
        })
    }

    /// Subscribes to the client's sharded channel with this hash tag, unless it is empty, and to
    /// those of Redisson's that threads wait for and that are at `home` here.
    pub(super) fn follow(&mut self, tag: &str, home: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let sharded = self.further.follow_shard(&self.channel.name, tag);
        let commands = sharded.into_iter().chain(self.further.follow_redisson(home));
        commands.into_iter().try_for_each(|command| self.send(&command))
    }

    /// Returns the next message that has come, if any, and whether that was over a sharded channel:
    /// no other node sends it, and this one serves the lock. Asks for a sign of life after a long
    /// silence.
    pub(super) fn receive(&mut self) -> Result<Option<(Wake, bool)>, Failure> {
        while let Some(reply) = self.connection.receive_next(WaitFor::Nothing) {
            (self.asked, self.expected_by) = (false, end_of(SILENCE_MAX));
            let reply = match reply {
                Err(failure) if self.connection.is_connected() && self.further.refuse(&failure) => {
                    self.refusal = Some(failure);
                    continue;
                }
                reply => reply?,
            };
            if let Some(received) = self.decode(&reply) {
                return Ok(Some(received));
            }
        }
        if Instant::now() >= self.expected_by {
            if self.asked {
                return Err(self.connection.factory.no_reply());
            }
            self.send(&redis::cmd("PING"))?;
        }
        Ok(None)
    }

    /// Reads what a server has sent; `None` if there is nothing to tell the client.
    fn decode(&mut self, reply: &Value) -> Option<(Wake, bool)> {
        let Value::Array(parts) = reply else { return None };
        let [kind, name, content] = &parts[..] else { return None };
        let (channel, kind, name) = (&self.channel, text(kind)?, text(name)?);
        let sharded = name != channel.name && name.starts_with(&channel.name);
        if sharded {
            self.further.receive_shard(kind, name);
        }
        let wake = if sharded || name == channel.name {
            channel.decode(kind, content)
        } else {
            self.further.receive_redisson(kind, name, text(content).unwrap_or_default())
        };
        wake.map(|wake| (wake, sharded))
    }

    fn send(&mut self, command: &Cmd) -> Result<(), Failure> {
        (self.asked, self.expected_by) = (true, end_of(self.channel.io_timeout));
        self.connection.write(&command.get_packed_command())
    }
}

impl AsRef<Connection> for Subscription {
    fn as_ref(&self) -> &Connection {
        &self.connection
    }
}

impl Channel {
    /// Reads what a server has sent about this channel, or about a sharded one of the client: the
    /// name of a lock, or what a script tells the client that has one, or had it.
    fn decode(&self, kind: &str, content: &Value) -> Option<Wake> {
        let message = text(content).filter(|_| matches!(kind, "message" | "smessage"))?;
        let Some(about) = message.strip_prefix(RESERVED) else {
            return self.keys.name(message).map(|name| Wake::Lock(name.into()));
        };
        let (what, about) = about.split_once(':')?;
        let (nonce, lock) = about.split_once(':')?;
        let (name, nonce) = (self.keys.name(lock)?.into(), u64::from_str_radix(nonce, 16).ok()?);
        match what {
            "ended" => Some(Wake::Ended { name, nonce }),
            "try" => Some(Wake::Recall { name, nonce, waits: false }),
            "want" => Some(Wake::Recall { name, nonce, waits: true }),
            _ => None,
        }
    }
}

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
    /// As in [`Channel`], but with plain commands where the server has no sharded channels.
    redisson: Option<(RedissonChannels, &'static str)>,
    /// Those of Redisson's channels that were subscribed to, and whose subscription has not ended.
    subscribed: HashSet<String>,
    /// Which version of the wanted channels was followed last.
    version: Option<u64>,
    /// When to follow them again though they are the same.
    pub(super) follow_at: Option<Instant>,
}

impl FurtherChannels {
    /// Returns the request for the client's sharded channel with this tag, unless it was made
    /// already.
    fn follow_shard(&mut self, own: &str, tag: &str) -> Option<Cmd> {
        let channel = Keys::shard_channel(own, tag);
        let is_asked = self.asked.iter().any(|asked| Some(asked) == self.shard.as_ref());
        let is_early = self.shard_at.is_some_and(|at| Instant::now() < at);
        if tag.is_empty() || is_asked || is_early || self.shard.as_ref() == Some(&channel) {
            return None;
        }
        let subscribe = redis::cmd("SSUBSCRIBE").arg(&channel).take();
        self.asked.push_back(channel.clone());
        (self.shard, self.shard_at) = (Some(channel), None);
        Some(subscribe)
    }

    /// Returns the requests after which the connection is subscribed to the channels of Redisson's
    /// that threads wait for and that are at `home` here, and to no others.
    fn follow_redisson(&mut self, home: impl Fn(&str) -> bool) -> Vec<Cmd> {
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

    /// Reads that a subscription to a sharded channel has begun, or ended as its slot has moved.
    fn receive_shard(&mut self, kind: &str, channel: &str) {
        match kind {
            "ssubscribe" => drop(self.answers(channel)),
            "sunsubscribe" if self.shard.as_deref() == Some(channel) => self.end_shard(PAUSE),
            _ => {}
        }
    }

    /// Reads a message or a reply about one of Redisson's channels.
    fn receive_redisson(&mut self, kind: &str, channel: &str, content: &str) -> Option<Wake> {
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

    /// Takes the first request without a reply for answered if it is about this channel.
    fn answers(&mut self, channel: &str) -> bool {
        self.asked.front().is_some_and(|asked| asked == channel) && self.asked.pop_front().is_some()
    }

    /// Takes an error reply. Returns `false` if no request is without a reply.
    fn refuse(&mut self, failure: &Failure) -> bool {
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

fn text(value: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = value else { return None };
    str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(channels: &mut FurtherChannels, tag: &str) -> bool {
        channels.follow_shard("mine", tag).is_some()
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
        let mut channels =
            FurtherChannels { redisson: Some((redisson, "s")), ..Default::default() };
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
