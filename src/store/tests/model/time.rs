//! Time passes only when a case says so: leases take hours, and offers too until they are ended.

use redis::{ConnectionLike as _, PubSub};

use super::steps::{CLIENTS, HOUR, client};
use super::*;
use crate::store::keys::Keys;
use crate::store::memory::memory_server::MemoryServer;

/// The effects of time on a server, and its messages.
pub(super) trait Time {
    /// Ends the lease of a hold.
    fn expire(&self, hold: &HoldId);

    /// Skips the time for which a key has only holds whose leases are over.
    fn pass(&self, name: &str);

    /// Ends the offers of a name.
    fn end_offers(&self, name: &str);

    /// Makes the offers of a name last, however slow this test is.
    fn prolong_offers(&self, name: &str);

    /// Returns the messages to clients since the last call, sorted.
    fn messages(&self) -> Vec<String>;
}

/// Longer than any lease.
const OFFERED: Duration = HOUR.saturating_mul(10);

pub(super) struct InMemory {
    server: MemoryServer,
    wakeups: Mutex<Vec<Box<dyn Wakeups>>>,
}

impl InMemory {
    /// All clients listen.
    pub(super) fn new(server: MemoryServer, store: &Memory) -> Self {
        let wakeups = CLIENTS.map(|label| {
            let mut wakeups = messages(store, &client(label));
            assert_eq!(wakeups.next(soon()).expect("at once").ok(), Some(Wake::Ready));
            wakeups
        });
        Self { server, wakeups: Mutex::new(wakeups.into()) }
    }

    fn end_at(&self, name: &str, end: Moment, is_meant: impl Fn(&HoldId) -> bool) {
        self.server.end_at(&lock_key(name), end, is_meant);
    }
}

impl Time for InMemory {
    fn expire(&self, hold: &HoldId) {
        let is_it = |held: &HoldId| held == hold && held.kind.waits_with(hold.kind);
        self.end_at(&hold.name, Moment::FIRST, is_it);
    }

    fn pass(&self, _: &str) {}

    fn end_offers(&self, name: &str) {
        self.end_at(name, Moment::FIRST, |held| held.nonce == 0);
    }

    fn prolong_offers(&self, name: &str) {
        self.end_at(name, Moment::now().after(OFFERED), |held| held.nonce == 0);
    }

    fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for (wakeups, label) in self.wakeups.lock().iter_mut().zip(CLIENTS) {
            while let Some(wake) = wakeups.next(now()) {
                messages.push(match wake.expect("a message") {
                    Wake::Ended { name, nonce } => {
                        format!("{label}: leasehold:ended:{nonce:x}:{}", lock_key(&name))
                    }
                    Wake::Lock(name) => format!("{label}: {}", lock_key(&name)),
                    Wake::Recall { name, nonce, waits } => {
                        let word = if waits { "want" } else { "try" };
                        format!("{label}: leasehold:{word}:{nonce:x}:{}", lock_key(&name))
                    }
                    other => panic!("{label} is told {other:?}"),
                });
            }
        }
        messages.sort();
        messages
    }
}

/// A lock ends with its key. For the others, the key ends with the last hold.
const EXPIRE: &str = "
if redis.call('type', KEYS[1]).ok == 'hash' then
  return redis.call('hexists', KEYS[1], ARGV[1]) == 1 and redis.call('del', KEYS[1])
end
redis.call('zadd', KEYS[1], 'xx', 1, ARGV[2])
local last = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
return last and redis.call('pexpireat', KEYS[1], last)";

const PASS: &str = "
local last = redis.pcall('zrange', KEYS[1], -1, -1, 'withscores')[2]
return last and redis.call('pexpireat', KEYS[1], last)";

/// `ARGV[1]` is the time from now in ms, or 0 to end the offers.
const OFFERS: &str = "
local kind, now = redis.call('type', KEYS[1]).ok, redis.call('time')
local ends = now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[1]
if kind == 'hash' and string.find(redis.call('hkeys', KEYS[1])[1], ':0$') then
  redis.call('pexpireat', KEYS[1], ARGV[1] == '0' and 1 or ends)
elseif kind == 'zset' then
  for _, member in ipairs(redis.call('zrange', KEYS[1], 10, '+inf', 'byscore')) do
    if string.find(member, ':0$') then
      redis.call('zadd', KEYS[1], ends, member)
      if ARGV[1] == '0' then
        redis.call('zrem', KEYS[1], member)
      end
    end
  end
  local last = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
  return last and redis.call('pexpireat', KEYS[1], last)
end";

/// Marks the end of the messages of a step.
const MARK: &str = "model:mark";

pub(super) struct AtServer<'a, 'm> {
    connection: &'a Mutex<redis::Connection>,
    messages: &'a Mutex<PubSub<'m>>,
}

impl<'a, 'm> AtServer<'a, 'm> {
    pub(super) fn new(
        connection: &'a Mutex<redis::Connection>,
        messages: &'a Mutex<PubSub<'m>>,
    ) -> Self {
        Self { connection, messages }
    }

    fn eval(&self, script: &str, name: &str, args: &[&str]) {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg(lock_key(name)).arg(args);
        eval.exec(&mut *self.connection.lock()).expect("it is executed");
    }
}

/// All clients listen.
pub(super) fn subscribe(connection: &mut redis::Connection) -> PubSub<'_> {
    let mut messages = connection.as_pubsub();
    for label in CLIENTS {
        messages.subscribe(Keys::channel(&client(label))).expect("it is accepted");
    }
    messages.subscribe(MARK).expect("it is accepted");
    messages
}

impl Time for AtServer<'_, '_> {
    fn expire(&self, hold: &HoldId) {
        let owner = hold.owner();
        let prefix = match hold.kind {
            HoldKind::Lock => "",
            HoldKind::Permit { .. } => "p:",
            HoldKind::Read => "r:",
            HoldKind::Write => "w:",
        };
        self.eval(EXPIRE, &hold.name, &[&owner, &format!("{prefix}{owner}")]);
    }

    fn pass(&self, name: &str) {
        self.eval(PASS, name, &[]);
    }

    fn end_offers(&self, name: &str) {
        self.eval(OFFERS, name, &["0"]);
    }

    fn prolong_offers(&self, name: &str) {
        self.eval(OFFERS, name, &[&OFFERED.as_millis().to_string()]);
    }

    fn messages(&self) -> Vec<String> {
        let mark = redis::cmd("PUBLISH").arg(MARK).arg("").get_packed_command();
        self.connection.lock().req_packed_command(&mark).expect("it is executed");
        let (mut received, mut messages) = (self.messages.lock(), Vec::new());
        loop {
            let message = received.get_message().expect("a message");
            let channel = message.get_channel_name();
            if channel == MARK {
                messages.sort();
                return messages;
            }
            let label = CLIENTS.into_iter().find(|label| channel.contains(label));
            let text: String = message.get_payload().expect("a text");
            messages.push(format!("{}: {text}", label.expect("a client")));
        }
    }
}

fn lock_key(name: &str) -> String {
    Keys::new(&Config::default().prefix).lock(name).into_owned()
}
