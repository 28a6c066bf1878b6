//! The messages from one node to one client: over the client's own channel, over a sharded one at a
//! node of a cluster, and over those of Redisson's locks that threads wait for.
//!
//! The further channels only save work: whatever is not sent over the sharded channel arrives over
//! the client's own, and nothing relies on a wake-up. So subscribing to them is not urgent, and if
//! the server refuses one, it is left alone for a while. A server answers requests in order, so an
//! error reply is about the first one without a reply.

use std::collections::{HashMap, HashSet, VecDeque};
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

/// After this long without a message the server is sent a PING: a connection that was cut without
/// notice causes no error, only silence.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Pause before subscribing again to a channel whose slot has moved, or to one of Redisson's that
/// was refused.
const PAUSE: Duration = Duration::from_secs(1);

/// Like `PAUSE`, where the server has no sharded channels, or the login no right to one.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);

/// What the subscriptions of one client share.
pub(super) struct Channel {
    pub(super) keys: Keys,
    pub(super) name: String,
    /// A connection over which the server does not answer for this long is closed.
    pub(super) io_timeout: Duration,
    /// If the client exchanges wake-ups with Redisson: the channels, and the prefix of the names of
    /// the commands for them.
    pub(super) redisson: Option<(RedissonChannels, &'static str)>,
}

/// A connection over which messages arrive.
pub(super) struct Subscription {
    channel: Arc<Channel>,
    pub(super) connection: Connection,
    /// By then something must have arrived.
    expected_by: Instant,
    /// Whether a request is unanswered.
    asked: bool,
    further: FurtherChannels,
    /// Why the last subscription to a further channel was refused, until taken.
    pub(super) refusal: Option<Failure>,
}

impl Subscription {
    /// Subscribes over an open connection, and blocks until the server has confirmed it.
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
    /// those of Redisson's that threads wait on and whose `home` is here.
    pub(super) fn follow(&mut self, tag: &str, home: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let commands = self.further.follow(&self.channel.name, tag, home);
        commands.iter().try_for_each(|command| self.send(command))
    }

    /// Returns when to follow again, or to receive, even if no message comes.
    pub(super) fn next_look(&self) -> Instant {
        let times = self.further.again.values().copied().chain(self.connection.next_change());
        times.fold(self.expected_by, Instant::min)
    }

    /// Returns the next message that has arrived, if any, and whether it came over a sharded
    /// channel: only this node sends those, and it serves the lock. Sends a PING after a long
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

    /// Decodes what a server has sent; `None` if there is nothing to tell the client.
    fn decode(&mut self, reply: &Value) -> Option<(Wake, bool)> {
        let Value::Array(parts) = reply else { return None };
        let [kind, name, content] = &parts[..] else { return None };
        let (channel, kind, name) = (&self.channel, text(kind)?, text(name)?);
        let has_begun = self.further.has_begun(kind, name);
        let wake = if name.starts_with(&channel.name) {
            channel.decode(kind, content)
        } else {
            // A release before the subscription may have been missed.
            let has_ended = kind.ends_with("message") && text(content) == Some("0");
            self.further.unlocked(name).filter(|_| has_begun || has_ended)
        };
        wake.map(|wake| (wake, name != channel.name && is_sharded(name)))
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
    /// Decodes what a server has sent about this channel, or about a sharded one of the client: the
    /// name of a lock, or what a script tells the client that has one, or had it.
    fn decode(&self, kind: &str, content: &Value) -> Option<Wake> {
        let message = text(content).filter(|_| matches!(kind, "message" | "smessage"))?;
        let Some(about) = message.strip_prefix(RESERVED) else {
            return self.keys.name(message).map(|name| Wake::Lock(name.into()));
        };
        let (what, about) = about.split_once(':')?;
        let (nonce, about) = about.split_once(':')?;
        let nonce = u64::from_str_radix(nonce, 16).ok()?;
        if what == "probe" {
            return Some(Wake::Probe { nonce, message: about.into() });
        }
        let name = self.keys.name(about)?.into();
        match what {
            "ended" => Some(Wake::Ended { name, nonce }),
            "try" => Some(Wake::Recall { name, nonce, waits: false }),
            "want" => Some(Wake::Recall { name, nonce, waits: true }),
            _ => None,
        }
    }
}

/// The further channels of one connection.
#[derive(Default)]
pub(super) struct FurtherChannels {
    /// The channels of the unanswered requests, in order.
    asked: VecDeque<String>,
    /// The channels that were asked for, unless the request was refused or the subscription has
    /// ended. A sharded one stays when there is another: some clients may not know yet that slots
    /// have moved.
    subscribed: HashSet<String>,
    /// When to ask again for those that were refused or have ended.
    again: HashMap<String, Instant>,
    /// As in [`Channel`], but with plain commands where the server has no sharded channels.
    redisson: Option<(RedissonChannels, &'static str)>,
    /// The hash tag and the version of Redisson's channels that were followed last.
    followed: Option<(String, u64)>,
}

impl FurtherChannels {
    /// Like [`Subscription::follow`], but returns the requests.
    fn follow(&mut self, own: &str, tag: &str, home: impl Fn(&str) -> bool) -> Vec<Cmd> {
        let now = Instant::now();
        if self.again.extract_if(|_, at| *at <= now).count() > 0 {
            self.followed = None;
            if let Some((channels, _)) = &self.redisson {
                // Another node may serve the channel now.
                channels.change();
            }
        }
        let version = self.redisson.as_ref().map_or(0, |(channels, _)| channels.version());
        if self.followed.as_ref().is_some_and(|known| known.0 == tag && known.1 == version) {
            return Vec::new();
        }
        self.followed = Some((tag.to_owned(), version));
        let redisson = self.redisson.iter().flat_map(|(channels, _)| channels.wanted());
        let at_home = redisson.filter(|(_, name)| home(name)).map(|(channel, _)| channel);
        let shard = (!tag.is_empty()).then(|| Keys::shard_channel(own, tag));
        let mut wanted: HashSet<String> = at_home.chain(shard).collect();
        let is_over = |channel: &String| !is_sharded(channel) && !wanted.contains(channel);
        let ended: Vec<_> = self.subscribed.extract_if(is_over).collect();
        wanted.retain(|it| !self.subscribed.contains(it) && !self.again.contains_key(it));
        self.subscribed.extend(wanted.iter().cloned());
        let ended = ended.into_iter().map(|channel| ("unsubscribe", channel));
        let begun = wanted.into_iter().map(|channel| ("subscribe", channel));
        ended.chain(begun).map(|(what, channel)| self.ask(what, channel)).collect()
    }

    fn ask(&mut self, what: &str, channel: String) -> Cmd {
        let form = self.redisson.as_ref().map_or("s", |(_, form)| form);
        let command = if is_sharded(&channel) {
            redis::cmd(&format!("s{what}")).arg(&channel).take()
        } else {
            let companion = RedissonChannels::companion(&channel);
            redis::cmd(&format!("{form}{what}")).arg(&channel).arg(companion).take()
        };
        self.asked.push_back(channel);
        command
    }

    /// Handles a reply about a channel. Returns `true` if a requested subscription begins.
    fn has_begun(&mut self, kind: &str, channel: &str) -> bool {
        let (is_reply, ends) = (kind.ends_with("subscribe"), kind.ends_with("unsubscribe"));
        let is_answer = is_reply && self.asked.front().is_some_and(|asked| asked == channel);
        if is_answer {
            self.asked.pop_front();
        } else if ends && self.subscribed.remove(channel) {
            // Another node serves the channel now.
            self.again.insert(channel.to_owned(), end_of(PAUSE));
        }
        is_answer && !ends
    }

    /// Returns what to tell the client when a lock with this channel of Redisson's may be free.
    fn unlocked(&self, channel: &str) -> Option<Wake> {
        let (channels, _) = self.redisson.as_ref()?;
        Some(channels.names(channel)).filter(|names| !names.is_empty()).map(Wake::Unlocked)
    }

    /// Handles an error reply. Returns `false` if no request is unanswered.
    fn refuse(&mut self, failure: &Failure) -> bool {
        let Some(channel) = self.asked.pop_front() else { return false };
        let is_rejected = failure.kind == FailureKind::Rejected && failure.code != "MOVED";
        let pause = match &mut self.redisson {
            _ if is_sharded(&channel) && is_rejected => REJECTED_PAUSE,
            // Redis 6.2 has no sharded channels, and Redisson then uses plain ones.
            Some((_, form @ "s")) if failure.code == "ERR" && !is_sharded(&channel) => {
                *form = "";
                Duration::ZERO
            }
            _ => PAUSE,
        };
        self.subscribed.remove(&channel);
        self.again.insert(channel, end_of(pause));
        true
    }
}

/// Returns `true` for a sharded channel of the client, and `false` for one of Redisson's.
fn is_sharded(channel: &str) -> bool {
    channel.starts_with(RESERVED)
}

fn text(value: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = value else { return None };
    str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "leasehold:wake:mine";

    fn follow(channels: &mut FurtherChannels, tag: &str) -> usize {
        channels.follow(OWN, tag, |_| true).len()
    }

    fn shard(tag: &str) -> String {
        Keys::shard_channel(OWN, tag)
    }

    fn refusal() -> Failure {
        let error = std::io::Error::other("NOPERM");
        Failure::io(FailureKind::Rejected, &Arc::from("here"), error)
    }

    #[test]
    fn a_sharded_channel_is_asked_for_once_and_another_when_slots_have_moved() {
        let mut channels = FurtherChannels::default();
        assert_eq!(follow(&mut channels, "1"), 1);
        assert_eq!(follow(&mut channels, "1"), 0, "it was asked for");
        assert!(channels.has_begun("ssubscribe", &shard("1")));
        assert_eq!(follow(&mut channels, "1"), 0);
        assert_eq!(follow(&mut channels, "2"), 1);
        assert!(channels.has_begun("ssubscribe", &shard("2")));
        assert!(!channels.has_begun("sunsubscribe", &shard("1")));
        assert_eq!(follow(&mut channels, "2"), 0, "the end of the other one changes nothing");
    }

    #[test]
    fn a_sharded_channel_that_is_refused_or_ends_is_not_asked_for_at_once() {
        let mut channels = FurtherChannels::default();
        assert!(!channels.refuse(&refusal()), "there was no request");
        assert!(follow(&mut channels, "1") == 1 && channels.refuse(&refusal()));
        assert_eq!(follow(&mut channels, "1"), 0);
        let mut channels = FurtherChannels::default();
        assert_eq!(follow(&mut channels, "1"), 1);
        channels.has_begun("ssubscribe", &shard("1"));
        channels.has_begun("sunsubscribe", &shard("1"));
        assert!(channels.asked.is_empty() && follow(&mut channels, "1") == 0);
        channels.again.values_mut().for_each(|at| *at = Instant::now());
        assert_eq!(follow(&mut channels, "1"), 1, "after a pause");
    }

    #[test]
    fn an_error_reply_is_about_the_first_request_without_a_reply() {
        let redisson = RedissonChannels::default();
        let _wait = redisson.wait(&"x".into(), "x");
        let channel = RedissonChannels::channel("x");
        let mut channels =
            FurtherChannels { redisson: Some((redisson, "s")), ..Default::default() };
        assert_eq!(follow(&mut channels, ""), 1, "Redisson's");
        assert!(follow(&mut channels, "1") == 1 && channels.refuse(&refusal()));
        assert!(channels.again.contains_key(&channel), "Redisson's is asked for again");
        channels.has_begun("ssubscribe", &shard("1"));
        assert!(channels.asked.is_empty() && follow(&mut channels, "1") == 0);
        channels.again.values_mut().for_each(|at| *at = Instant::now());
        assert_eq!(follow(&mut channels, "1"), 1);
        assert!(channels.has_begun("ssubscribe", &channel));
        assert_eq!(channels.unlocked(&channel), Some(Wake::Unlocked(vec!["x".into()])));
    }
}
