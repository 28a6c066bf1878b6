//! One client's channel at one node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::base::clock::end_of;
use crate::base::failure::Failure;
use crate::config::lock_name::RESERVED;
use crate::net::connection::Connection;
use crate::net::stream::WaitFor;
use crate::store::background::Wake;
use crate::store::background::channels::FurtherChannels;
use crate::store::keys::Keys;
use crate::store::redisson_channels::RedissonChannels;

/// After this long without a message the server gets a PING: a connection that was cut without
/// notice brings no error, only silence.
const SILENCE_MAX: Duration = Duration::from_secs(10);

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
    pub(super) connection: Connection,
    /// Since when messages come: the server has confirmed the subscription.
    pub(super) since: Instant,
    /// When something must have come.
    pub(super) expected_by: Instant,
    /// Whether there is a request that the server has not answered.
    asked: bool,
    pub(super) further: FurtherChannels,
    /// Why a subscription to a further channel was refused last, until that was taken out.
    pub(super) refusal: Option<Failure>,
}

/// What has come over a subscription.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) wake: Wake,
    /// Whether it came over a sharded channel: no other node sends it, and this one serves the
    /// lock.
    pub(super) sharded: bool,
}

impl Subscription {
    /// Subscribes over an open connection, and blocks until the server has confirmed that.
    pub(super) fn begin(mut connection: Connection, channel: &Channel) -> Result<Self, Failure> {
        let deadline = end_of(channel.io_timeout);
        let subscribe = redis::cmd("SUBSCRIBE").arg(&channel.name).take();
        connection.write(|out| subscribe.write_packed_command(out))?;
        let reply = connection.receive_next(WaitFor::Reply { deadline });
        reply.unwrap_or_else(|| Err(connection.no_reply()))?;
        Ok(Self {
            connection,
            since: Instant::now(),
            expected_by: end_of(SILENCE_MAX),
            asked: false,
            further: FurtherChannels::new(channel.redisson.clone()),
            refusal: None,
        })
    }

    /// Subscribes to the client's sharded channel with this hash tag, if there is one, and to those
    /// of Redisson's that threads wait for and that are at `home` here.
    pub(super) fn follow(
        &mut self,
        channel: &Channel,
        tag: Option<&Arc<str>>,
        home: impl Fn(&str) -> bool,
    ) -> Result<(), Failure> {
        let sharded = tag.and_then(|tag| self.further.follow_shard(&channel.name, tag));
        let commands = sharded.into_iter().chain(self.further.follow_redisson(home));
        commands.into_iter().try_for_each(|command| self.send(&command, channel))
    }

    /// Returns the next message that has come, if any. Asks for a sign of life after a long
    /// silence.
    pub(super) fn receive(&mut self, channel: &Channel) -> Result<Option<Received>, Failure> {
        while let Some(reply) = self.connection.receive_next(WaitFor::Nothing) {
            (self.asked, self.expected_by) = (false, end_of(SILENCE_MAX));
            let reply = match reply {
                Err(failure)
                    if self.connection.socket.is_connected() && self.further.refuse(&failure) =>
                {
                    self.refusal = Some(failure);
                    continue;
                }
                reply => reply?,
            };
            if let Some(received) = self.decode(&reply, channel) {
                return Ok(Some(received));
            }
        }
        if Instant::now() >= self.expected_by {
            if self.asked {
                return Err(self.connection.no_reply());
            }
            self.send(&redis::cmd("PING"), channel)?;
        }
        Ok(None)
    }

    /// Reads what a server has sent; `None` if there is nothing to tell the client.
    fn decode(&mut self, reply: &Value, channel: &Channel) -> Option<Received> {
        let Value::Array(parts) = reply else { return None };
        let [kind, name, content] = &parts[..] else { return None };
        let (kind, name) = (text(kind)?, text(name)?);
        let sharded = name != channel.name && name.starts_with(&channel.name);
        if sharded {
            self.further.receive_shard(kind, name);
        }
        let wake = if sharded || name == channel.name {
            channel.decode(kind, content)
        } else {
            self.further.receive_redisson(kind, name, text(content).unwrap_or_default())
        };
        wake.map(|wake| Received { wake, sharded })
    }

    fn send(&mut self, command: &redis::Cmd, channel: &Channel) -> Result<(), Failure> {
        (self.asked, self.expected_by) = (true, end_of(channel.io_timeout));
        self.connection.write(|out| command.write_packed_command(out))
    }
}

impl AsRef<Connection> for Subscription {
    fn as_ref(&self) -> &Connection {
        &self.connection
    }
}

impl Channel {
    /// Reads what a server has sent about this channel, or about a sharded one of the client.
    fn decode(&self, kind: &str, content: &Value) -> Option<Wake> {
        match kind {
            "message" | "smessage" => {
                let message = text(content)?;
                match message.strip_prefix(RESERVED) {
                    Some(about) => self.decode_about(about),
                    None => self.keys.name(message).map(|name| Wake::Lock(name.into())),
                }
            }
            _ => None,
        }
    }

    /// Reads a message of `acquire.lua` or `release.lua` to the client that has the lock, or
    /// had it.
    fn decode_about(&self, about: &str) -> Option<Wake> {
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

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        _ => None,
    }
}
