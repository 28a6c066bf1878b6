//! The messages to one client, over a connection of their own.

use std::time::{Duration, Instant};

use redis::Value;

use crate::clock::end_of;
use crate::failure::Failure;
use crate::net::connection::Connection;
use crate::net::interrupter::Interrupter;
use crate::net::pipeline::WaitFor;
use crate::net::request::Reply;
use crate::store::keys::Keys;
use crate::store::wake::{Wake, Wakeups};

/// After this long without a message the server is asked for a sign of life: a connection that was
/// cut without notice brings no error, only silence.
const IDLE: Duration = Duration::from_secs(10);

/// What has arrived is read even if the time is over.
const LOOK: Duration = Duration::from_millis(1);

/// One client's channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    connection: Connection,
    keys: Keys,
    channel: String,
    /// A server that does not answer for this long is given up.
    retry: Duration,
    /// When the server must have been heard of.
    expected: Instant,
    /// Whether it has something to answer: the subscription or a PING.
    asked: bool,
    interrupter: Interrupter,
}

impl Subscription {
    pub(crate) fn new(connection: Connection, keys: Keys, client: &str, retry: Duration) -> Self {
        Self {
            connection,
            keys,
            channel: Keys::channel(client),
            retry,
            expected: Instant::now(),
            asked: false,
            interrupter: Interrupter::new(),
        }
    }

    fn wait(&mut self, deadline: Instant) -> Result<Option<Wake>, Failure> {
        loop {
            self.check()?;
            if !self.connection.is_open() {
                self.open()?;
            }
            let end = deadline.min(self.expected).max(Instant::now() + LOOK);
            if let Some(wake) = self.step(end)? {
                return Ok(Some(wake));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Waits for one message until `end`, and then asks for a sign of life if it is time for that.
    pub(crate) fn step(&mut self, end: Instant) -> Result<Option<Wake>, Failure> {
        self.take_in(|connection| connection.receive(WaitFor::Reply { deadline: end }))
    }

    /// As `step`, for what has come already, over a connection that somebody else has opened.
    pub(crate) fn look(&mut self) -> Result<Option<Wake>, Failure> {
        if !self.connection.is_open() {
            return Err(self.connection.no_reply());
        }
        self.take_in(|connection| connection.receive(WaitFor::Nothing))
    }

    fn take_in(
        &mut self,
        mut next: impl FnMut(&mut Connection) -> Option<Reply>,
    ) -> Result<Option<Wake>, Failure> {
        while let Some(reply) = next(&mut self.connection) {
            let reply = reply?;
            (self.asked, self.expected) = (false, end_of(IDLE));
            if let Some(wake) = self.read(&reply) {
                return Ok(Some(wake));
            }
        }
        if Instant::now() >= self.expected {
            self.ask()?;
        }
        Ok(None)
    }

    /// The open connection.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// When to look again even if nothing comes.
    pub(crate) fn expected(&self) -> Instant {
        self.expected
    }

    fn check(&self) -> Result<(), Failure> {
        if self.interrupter.is_interrupted() { Err(self.connection.interrupted()) } else { Ok(()) }
    }

    /// Connects and asks for the messages.
    pub(crate) fn open(&mut self) -> Result<(), Failure> {
        self.connection.connect(end_of(self.retry))?;
        self.interrupter.guard(self.connection.plug());
        self.check()?;
        self.subscribe()
    }

    /// Asks for messages over the open connection.
    pub(crate) fn subscribe(&mut self) -> Result<(), Failure> {
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(&self.channel);
        self.send(&subscribe)
    }

    /// Asks for a sign of life, or has waited for it long enough.
    fn ask(&mut self) -> Result<(), Failure> {
        if self.asked {
            return Err(self.connection.no_reply());
        }
        self.send(&redis::cmd("PING"))
    }

    fn send(&mut self, cmd: &redis::Cmd) -> Result<(), Failure> {
        (self.asked, self.expected) = (true, end_of(self.retry));
        self.connection.write(self.expected, |out| cmd.write_packed_command(out))
    }

    /// Makes sense of what the server has sent; `None` if it means nothing to us.
    fn read(&self, reply: &Value) -> Option<Wake> {
        let Value::Array(parts) = reply else { return None };
        let [kind, channel, content] = &parts[..] else { return None };
        if text(channel)? != self.channel {
            return None;
        }
        match text(kind)? {
            "subscribe" => Some(Wake::Ready),
            "message" => self.keys.name(text(content)?).map(|name| Wake::Lock(name.into())),
            _ => None,
        }
    }
}

impl Wakeups for Subscription {
    fn next(&mut self, deadline: Instant) -> Option<Result<Wake, Failure>> {
        let outcome = self.wait(deadline);
        if outcome.is_err() {
            // Also where the server has refused to subscribe us and the connection is good.
            self.connection.poison();
        }
        outcome.transpose()
    }

    fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        _ => None,
    }
}
