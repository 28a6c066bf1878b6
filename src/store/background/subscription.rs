//! One client's channel at one node.

use std::time::{Duration, Instant};

use redis::Value;

use crate::clock::end_of;
use crate::failure::Failure;
use crate::net::connection::Connection;
use crate::net::login::Validity;
use crate::net::transport::{Transport, WaitFor};
use crate::store::keys::Keys;
use crate::store::wake::Wake;

/// After this long without a message the server is asked for a sign of life: a connection that was
/// cut without notice brings no error, only silence.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What the subscriptions of one client have in common.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) keys: Keys,
    pub(super) name: String,
    /// A server that does not answer for this long is given up.
    pub(super) io_timeout: Duration,
}

/// A connection over which messages come.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) connection: Connection,
    /// Since when messages come: the server has confirmed the subscription.
    pub(super) ready: Option<Instant>,
    /// When something must have come.
    pub(super) expected_by: Instant,
    /// Whether there is a request that the server has not answered: SUBSCRIBE or PING.
    asked: bool,
}

impl Subscription {
    /// Subscribes over an open connection.
    pub(super) fn begin(connection: Connection, channel: &Channel) -> Result<Self, Failure> {
        let expected_by = Instant::now();
        let mut subscription = Self { connection, ready: None, expected_by, asked: false };
        let subscribe = redis::cmd("SUBSCRIBE").arg(&channel.name).take();
        subscription.send(&subscribe, channel)?;
        Ok(subscription)
    }

    /// For how long messages may come, if it is time to replace the connection.
    pub(super) fn retiring(&self) -> Option<Validity> {
        self.connection.retiring()
    }

    /// Returns the next message that has come, if any. Asks for a sign of life after a long
    /// silence.
    pub(super) fn receive(&mut self, channel: &Channel) -> Result<Option<Wake>, Failure> {
        while let Some(reply) = self.connection.receive(WaitFor::Nothing) {
            let reply = reply?;
            (self.asked, self.expected_by) = (false, end_of(SILENCE_MAX));
            if let Some(wake) = channel.decode(&reply) {
                if wake == Wake::Ready {
                    self.ready = Some(Instant::now());
                }
                return Ok(Some(wake));
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

    fn send(&mut self, command: &redis::Cmd, channel: &Channel) -> Result<(), Failure> {
        (self.asked, self.expected_by) = (true, end_of(channel.io_timeout));
        self.connection.write(self.expected_by, |out| command.write_packed_command(out))
    }
}

impl Channel {
    /// Reads what a server has sent; `None` if it is not about this channel.
    fn decode(&self, reply: &Value) -> Option<Wake> {
        let Value::Array(parts) = reply else { return None };
        let [kind, channel, content] = &parts[..] else { return None };
        if text(channel)? != self.name {
            return None;
        }
        match text(kind)? {
            "subscribe" => Some(Wake::Ready),
            "message" => self.keys.name(text(content)?).map(|name| Wake::Lock(name.into())),
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
