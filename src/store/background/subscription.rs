//! The messages from one node to one client: over the client's own channel, over a sharded one at a
//! node of a cluster, and over those of Redisson's locks that threads wait for.
//!
//! The additional channels only save work: what is not sent over the sharded channel arrives over
//! the client's own, and nothing relies on a wake-up. So subscribing to them is not urgent, and
//! after a refusal there is a pause. A server answers requests in order, so an error reply is about
//! the first request without a reply.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use crate::base::clock::{self, end_of};
use crate::base::failure::{Failure, FailureKind};
use crate::base::maps::RandomState;
use crate::config::RESERVED;
use crate::net::connection::Connection;
use crate::net::wait::WaitFor;
use crate::store::background::Wake;
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;

/// After this long without a message the server is sent a PING, because a connection that was cut
/// without notice causes no error, only silence.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Like `SILENCE_MAX`, while calls wait and rely on messages.
const SILENCE_WHILE_CALLS_WAIT: Duration = Duration::from_secs(5);

/// How long after an echo a call may rely on wake-ups.
const ECHO_LASTS: Duration = Duration::from_secs(11);

/// Pause before subscribing again to a channel whose slot has moved, or to one of Redisson's that
/// was refused.
const PAUSE: Duration = Duration::from_secs(1);

/// Like `PAUSE`, where the server has no sharded channels, or the user has no right to one.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);

/// The kinds of pushes to a subscribed client: replies to its requests, and messages.
const PUSHES: [&str; 7] =
    ["message", "pong", "smessage", "ssubscribe", "subscribe", "sunsubscribe", "unsubscribe"];

/// The settings that the subscriptions of one client share.
pub(super) struct Channel {
    pub(super) keys: Keys,
    pub(super) name: String,
    /// A connection is closed if the server does not answer for this long.
    pub(super) io_timeout: Duration,
    /// If the client exchanges wake-ups with Redisson: the channels, and the prefix of the names of
    /// the commands for them.
    pub(super) redisson: Option<(RedissonChannels, &'static str)>,
}

/// A connection over which messages arrive.
pub(super) struct Subscription {
    channel: Arc<Channel>,
    pub(super) connection: Connection,
    /// The connection is closed if nothing has arrived by then.
    expected_by: Instant,
    /// The end of the time for which calls rely on wake-ups.
    relied_on_until: Option<Instant>,
    /// Whether a request is unanswered.
    asked: bool,
    further: FurtherChannels,
    /// Why the last subscription to an additional channel was refused, until this is taken.
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
        let reply = reply.unwrap_or_else(|| Err(connection.factory.no_reply()));
        // A subscription changes nothing, so every error reply is a refusal.
        let reply = reply.map_err(|failure| match failure.kind {
            FailureKind::Unclear => Failure { kind: FailureKind::Rejected, ..failure },
            _ => failure,
        })?;
        if !begins(&reply, &channel.name) {
            return Err(foreign(&connection));
        }
        Ok(Self {
            connection,
            expected_by: end_of(SILENCE_MAX),
            relied_on_until: None,
            asked: false,
            further: FurtherChannels { redisson: channel.redisson.clone(), ..Default::default() },
            refusal: None,
            channel,
        })
    }

    /// Subscribes to the client's sharded channel with this hash tag, unless the tag is empty, and
    /// to those of Redisson's channels that threads wait on and whose lock has its `home` here.
    pub(super) fn follow(&mut self, tag: &str, home: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let commands = self.further.follow(&self.channel.name, tag, home);
        commands.iter().try_for_each(|command| self.send(command))
    }

    /// Returns when to call `follow` or `receive` again even if no message arrives.
    pub(super) fn next_look(&self) -> Instant {
        let times = self.further.again.values().copied().chain(self.connection.next_change());
        times.fold(self.expected_by, Instant::min)
    }

    /// Returns the next message that has arrived, if any, and whether it came over a sharded
    /// channel: only this node sends those, and it serves the lock. Sends a PING after a long
    /// silence.
    pub(super) fn receive(&mut self) -> Result<Option<(Wake, bool)>, Failure> {
        while let Some(reply) = self.connection.receive_next(WaitFor::Nothing) {
            // Anything that arrives shows that the server is there.
            self.asked = false;
            self.expected_by = end_of(self.silence_max());
            let reply = match reply {
                Err(failure) if self.connection.is_connected() && self.further.refuse(&failure) => {
                    self.refusal = Some(failure);
                    continue;
                }
                reply => reply?,
            };
            if !is_push(&reply) {
                return Err(foreign(&self.connection));
            }
            if let Some(received) = self.decode(&reply) {
                if let Wake::Echo(_) = received.0 {
                    // Calls now rely on wake-ups and pause longer, so a lost connection must be
                    // noticed sooner.
                    self.relied_on_until = Some(end_of(ECHO_LASTS));
                    self.expected_by = end_of(self.silence_max());
                }
                return Ok(Some(received));
            }
        }
        if clock::now() >= self.expected_by {
            if self.asked {
                // The server has not even replied to the PING.
                return Err(self.connection.factory.no_reply());
            }
            self.send(&redis::cmd("PING"))?;
        }
        Ok(None)
    }

    /// Decodes a push; `None` if it does not concern the client.
    fn decode(&mut self, reply: &Value) -> Option<(Wake, bool)> {
        let Value::Array(parts) = reply else { return None };
        let [kind, name, content] = &parts[..] else { return None };
        let channel = &self.channel;
        let kind = text(kind)?;
        let name = text(name)?;
        let has_begun = self.further.has_begun(kind, name);
        let wake = if name.starts_with(&channel.name) {
            channel.decode(kind, content)?
        } else {
            // A release just before the subscription may have been missed, so the client asks
            // again.
            let has_ended = kind.ends_with("message") && text(content) == Some("0");
            if !(has_begun || has_ended) {
                return None;
            }
            self.further.unlocked(name)?
        };
        Some((wake, name != channel.name && is_sharded(name)))
    }

    /// Returns how long the connection may be silent before the server is sent a PING.
    fn silence_max(&self) -> Duration {
        let is_relied_on = self.relied_on_until.is_some_and(|until| clock::now() < until);
        if is_relied_on { SILENCE_WHILE_CALLS_WAIT } else { SILENCE_MAX }
    }

    fn send(&mut self, command: &Cmd) -> Result<(), Failure> {
        self.asked = true;
        self.expected_by = end_of(self.channel.io_timeout);
        self.connection.write(&command.get_packed_command())
    }
}

impl AsRef<Connection> for Subscription {
    fn as_ref(&self) -> &Connection {
        &self.connection
    }
}

impl Channel {
    /// Decodes a message over this channel, or over a sharded one of the client: the key of a lock
    /// that may be free, or another message of a script.
    fn decode(&self, kind: &str, content: &Value) -> Option<Wake> {
        if !matches!(kind, "message" | "smessage") {
            return None;
        }
        let message = text(content)?;
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
            "echo" => Some(Wake::Echo(name)),
            "ended" => Some(Wake::Ended { name, nonce }),
            "try" => Some(Wake::Recall { name, nonce, waits: false }),
            "want" => Some(Wake::Recall { name, nonce, waits: true }),
            _ => None,
        }
    }
}

/// The additional channels of one connection.
#[derive(Default)]
pub(super) struct FurtherChannels {
    /// The channels of the unanswered requests, in order.
    asked: VecDeque<String>,
    /// The channels that were asked for, except those that were refused or have ended. An old
    /// sharded channel stays in addition to the new one, because some clients may not know yet that
    /// slots have moved.
    subscribed: HashSet<String, RandomState>,
    /// When to ask again for channels that were refused or have ended.
    again: HashMap<String, Instant, RandomState>,
    /// As in [`Channel`], but with plain commands where the server has no sharded channels.
    redisson: Option<(RedissonChannels, &'static str)>,
    /// The hash tag and the version of Redisson's channels that were followed last.
    followed: Option<(String, u64)>,
}

impl FurtherChannels {
    /// Like [`Subscription::follow`], but returns the requests.
    fn follow(&mut self, own: &str, tag: &str, home: impl Fn(&str) -> bool) -> Vec<Cmd> {
        let now = clock::now();
        if self.again.extract_if(|_, at| *at <= now).count() > 0 {
            self.followed = None;
            if let Some((channels, _)) = &self.redisson {
                // Another node may serve the channel now.
                channels.change();
            }
        }
        // Read before the channels: if one is added in between, the next call follows it.
        let version = self.redisson.as_ref().map_or(0, |(channels, _)| channels.version());
        if self.followed.as_ref().is_some_and(|known| known.0 == tag && known.1 == version) {
            return Vec::new();
        }
        self.followed = Some((tag.to_owned(), version));
        let redisson = self.redisson.iter().flat_map(|(channels, _)| channels.wanted());
        let at_home = redisson.filter(|(_, name)| home(name)).map(|(channel, _)| channel);
        let shard = if tag.is_empty() { None } else { Some(Keys::shard_channel(own, tag)) };
        let mut wanted: HashSet<String, RandomState> = at_home.chain(shard).collect();
        let ended =
            self.subscribed.extract_if(|channel| !is_sharded(channel) && !wanted.contains(channel));
        let ended: Vec<_> = ended.collect();
        wanted.retain(|channel| {
            !self.subscribed.contains(channel) && !self.again.contains_key(channel)
        });
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
        // Redis replies in order, and an error reply does not name the channel.
        self.asked.push_back(channel);
        command
    }

    /// Handles a reply about a channel. Returns `true` if a requested subscription begins.
    fn has_begun(&mut self, kind: &str, channel: &str) -> bool {
        let is_reply = kind.ends_with("subscribe");
        let ends = kind.ends_with("unsubscribe");
        // Redis replies to SUBSCRIBE and UNSUBSCRIBE in order, but also sends an UNSUBSCRIBE
        // unasked when the slot of a sharded channel moves.
        let is_answer = is_reply && self.asked.front().is_some_and(|asked| asked == channel);
        if is_answer {
            self.asked.pop_front();
        } else if ends && self.subscribed.remove(channel) {
            // Another node serves the channel now.
            self.again.insert(channel.to_owned(), end_of(PAUSE));
        }
        is_answer && !ends
    }

    /// Returns the wake-up for the locks that share this channel of Redisson's.
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

/// Returns `true` for the reply that a subscription to this channel has begun.
fn begins(reply: &Value, channel: &str) -> bool {
    let Value::Array(parts) = reply else { return false };
    matches!(&parts[..], [kind, name, _]
        if text(kind) == Some("subscribe") && text(name) == Some(channel))
}

/// Returns `true` for a push of a server. Anything else, such as the client's own requests echoed
/// back, is not a sign of life.
fn is_push(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => {
            parts.first().and_then(text).is_some_and(|kind| PUSHES.contains(&kind))
        }
        // Some servers reply to a PING as if the connection were not subscribed.
        reply => *reply == Value::SimpleString("PONG".into()),
    }
}

fn foreign(connection: &Connection) -> Failure {
    let why = "a subscription has got something else than a Redis server sends";
    connection.factory.foreign(io::Error::new(io::ErrorKind::InvalidData, why))
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
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use crate::base::event_thread::Events;
    use crate::config::Config;
    use crate::net::server::ServerFactory;

    const SOON: Duration = Duration::from_secs(5);

    /// Subscribes at a peer that replies to SUBSCRIBE with `answer`. Returns both ends.
    fn begin(answer: &'static [u8]) -> (Result<Subscription, Failure>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let servers = ServerFactory::new(&Config::default(), &Events::default());
        let servers = servers.expect("a thread");
        let factory = servers.connections(servers.endpoint(&url).expect("a good URL"));
        let mut connection = Connection::new(Arc::new(factory));
        connection.connect(end_of(SOON)).expect("it listens");
        let (mut peer, _) = listener.accept().expect("a connection");
        let answers = thread::spawn(move || {
            request(&mut peer);
            peer.write_all(answer).expect("it is open");
            peer
        });
        let (keys, name) = (Keys::new("lock:"), "mine".into());
        let channel = Channel { keys, name, io_timeout: SOON, redisson: None };
        let begun = Subscription::begin(connection, Arc::new(channel));
        (begun, answers.join().expect("no panic"))
    }

    fn request(peer: &mut TcpStream) -> String {
        let mut bytes = [0; 1000];
        let read = peer.read(&mut bytes).expect("a request");
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    const BEGUN: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nmine\r\n:1\r\n";

    /// Receives until something has been read.
    fn receive_something(subscription: &mut Subscription) -> Result<(), Failure> {
        let end = end_of(SOON);
        while subscription.asked {
            subscription.receive()?;
            assert!(Instant::now() < end, "nothing has come");
            thread::yield_now();
        }
        Ok(())
    }

    #[test]
    fn a_subscription_that_falls_silent_is_asked_for_a_sign_of_life_and_then_ended() {
        let (begun, mut peer) = begin(BEGUN);
        let mut subscription = begun.expect("it is confirmed");
        for _ in 0..2 {
            let next = subscription.next_look().saturating_duration_since(Instant::now());
            assert!(next <= SILENCE_MAX && next <= Duration::from_secs(15), "{next:?}");
            // As if it had been silent until now.
            subscription.expected_by = Instant::now();
            assert!(subscription.receive().expect("no failure").is_none());
            assert!(request(&mut peer).contains("PING"));
            assert!(subscription.next_look() <= end_of(SOON), "the reply is due soon");
            peer.write_all(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n").expect("it is open");
            receive_something(&mut subscription).expect("it is alive");
        }
        subscription.expected_by = Instant::now();
        assert!(subscription.receive().expect("no failure").is_none());
        subscription.expected_by = Instant::now();
        let failure = subscription.receive().expect_err("there was no reply");
        assert_eq!(failure.kind, FailureKind::Timeout);
    }

    #[test]
    fn a_subscription_is_asked_for_a_sign_of_life_sooner_while_calls_rely_on_it() {
        const ECHO: &str = "leasehold:echo:0:lock:a";
        let (begun, mut peer) = begin(BEGUN);
        let mut subscription = begun.expect("it is confirmed");
        assert!(subscription.next_look() > end_of(SILENCE_WHILE_CALLS_WAIT));
        let length = ECHO.len();
        let message = format!("*3\r\n$7\r\nmessage\r\n$4\r\nmine\r\n${length}\r\n{ECHO}\r\n");
        peer.write_all(message.as_bytes()).expect("it is open");
        let end = end_of(SOON);
        let received = loop {
            assert!(Instant::now() < end, "nothing has come");
            if let Some(received) = subscription.receive().expect("no failure") {
                break received;
            }
        };
        assert_eq!(received, (Wake::Echo("a".into()), false));
        assert!(subscription.next_look() <= end_of(SILENCE_WHILE_CALLS_WAIT));
        subscription.relied_on_until = Some(Instant::now());
        assert_eq!(subscription.silence_max(), SILENCE_MAX);
    }

    #[test]
    fn only_what_redis_sends_to_a_subscriber_counts_as_a_reply_or_a_sign_of_life() {
        const ECHO: &[u8] = b"*2\r\n$9\r\nSUBSCRIBE\r\n$4\r\nmine\r\n";
        const OTHER: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:1\r\n";
        for answer in [ECHO, OTHER, b"+OK\r\n", b":1\r\n"] {
            assert!(begin(answer).0.is_err(), "{:?}", String::from_utf8_lossy(answer));
        }
        for (answer, counts) in [
            ("*1\r\n$4\r\nPING\r\n", false),
            (":1\r\n", false),
            ("+PONG\r\n", true),
            ("*2\r\n$4\r\npong\r\n$0\r\n\r\n", true),
        ] {
            let (begun, mut peer) = begin(BEGUN);
            let mut subscription = begun.expect("it is confirmed");
            subscription.expected_by = Instant::now();
            subscription.receive().expect("no failure");
            peer.write_all(answer.as_bytes()).expect("it is open");
            assert_eq!(receive_something(&mut subscription).is_ok(), counts, "{answer:?}");
        }
    }

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
